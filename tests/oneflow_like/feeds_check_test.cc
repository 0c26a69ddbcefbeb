// Processes that feed different data are told so: in the first steps of every session, and in all with
// check_feeds.
#include "oneflow_like/job/feeds_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.h"

namespace oneflow_like {
namespace {

HostTensor Random(DType dtype, const Dims& shape, std::mt19937* random) {
  HostTensor t = HostTensor::Make(dtype, shape);
  for (size_t i = 0; i < t.bytes(); ++i) t.as<uint8_t>()[i] = static_cast<uint8_t>((*random)());
  return t;
}

HostTensor CopyOf(const HostTensor& t) {
  HostTensor copy = HostTensor::Make(t.dtype, t.shape);
  std::copy_n(t.as<uint8_t>(), t.bytes(), copy.as<uint8_t>());
  return copy;
}

Dims Extents(int64_t rows, int64_t columns) { return {1 + rows, 1 + columns}; }

// Of random feeds on two to four processes, one of which has one bit, an input or a shape of its own.
TEST(FeedsCheck, AnyDifferenceIsNamed) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const DType types[] = {DType::kFloat32, DType::kInt32, DType::kInt64, DType::kUInt8};
    Feeds feeds;
    for (uint32_t i = 0; i < 1 + random() % 3; ++i)
      feeds["in" + std::to_string(i)] =
          Random(types[random() % 4], Extents(random() % 5, random() % 7), &random);
    const int processes = 2 + random() % 3, odd = 1 + random() % (processes - 1);
    std::vector<Feeds> all(processes);
    for (Feeds& f : all)
      for (const auto& [name, tensor] : feeds) f[name] = CopyOf(tensor);
    auto difference = [&] {
      std::vector<std::string> texts;
      for (const Feeds& f : all) texts.push_back(FeedsText(f));
      return DifferenceOfFeeds(texts);
    };
    EXPECT_EQ(difference(), "");
    const std::string name = "in" + std::to_string(random() % feeds.size());
    HostTensor& changed = all[odd][name];
    std::string expected;
    if (random() % 3 != 0) {
      changed.as<uint8_t>()[random() % changed.bytes()] ^= 1 << random() % 8;
      expected = Cat("input '", name, "' has other values in process ", odd, " than in process 0");
    } else if (random() % 2 == 0) {
      const std::string before = Cat(Name(changed.dtype), changed.shape.str());
      changed = Random(changed.dtype, {changed.shape[0] + 1, changed.shape[1]}, &random);
      expected = Cat("input '", name, "' is ", before, " in process 0 but ", Name(changed.dtype),
                     changed.shape.str(), " in process ", odd);
    } else {
      all[odd].erase(name);
      expected = Cat("input '", name, "' is fed by process 0 but not by process ", odd);
    }
    EXPECT_EQ(difference(), expected);
  }
}

}  // namespace
}  // namespace oneflow_like
