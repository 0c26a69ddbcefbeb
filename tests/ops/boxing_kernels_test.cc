// What a rank does alone when a layout changes, by its promise: whatever the micro-batches and ranks of a
// partial value hold, folded together, is the value; a slice is the part it names.
// ctest: asan=10
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/boxes/copy_box.h"
#include "core/random.h"
#include "ops/manifest.h"
#include "ops/op.h"

namespace oneflow_like {
namespace {

constexpr float kUnwritten = -777;

struct Piece32 {
  Box box;
  std::vector<float> data;
  explicit Piece32(const Box& b) : box(b), data(b.elements(), kUnwritten) {}
  TensorArg Arg(const Dims& global) { return {data.data(), DType::kFloat32, global, box.begin, box.extent}; }
};

const KernelRegistry& Registry() {
  static const KernelRegistry* const registry = [] {
    auto* made = new KernelRegistry;
    AddBoxingKernels(made);
    return made;
  }();
  return *registry;
}

void RunBoxing(const std::string& name, const std::string& fold, bool keep, const Dims& global, Piece32* from,
               Piece32* to, int time, int times) {
  KernelSpec spec;
  spec.name = name;
  spec.attrs = {{"fold", fold}, {"keep", int64_t{keep}}};
  spec.in = {from->Arg(global)};
  spec.out = {to->Arg(global)};
  std::unique_ptr<Kernel> kernel = Registry().Make(spec, "cpu");
  KernelContext context{.spec = spec, .in = spec.in, .out = spec.out, .time = time, .times = times};
  ASSERT_TRUE(kernel->Run(context).ok()) << name;
}

float Fold(const std::string& fold, float a, float b) {
  return fold == "max" ? std::max(a, b) : fold == "min" ? std::min(a, b) : a + b;
}

class Drawn {
 public:
  explicit Drawn(uint64_t seed) : seed_(seed) {}
  int operator()(int limit) { return static_cast<int>(RandomBits(seed_, 51, count_++) % limit); }
  void Fill(Piece32* piece) {  // whole numbers, whose sums are exact
    for (float& x : piece->data) x = static_cast<float>((*this)(2001) - 1000);
  }
  Dims Shape() { return {1 + (*this)(5), 1 + (*this)(70)}; }
  Box Part(const Box& of) {
    Box part = of;
    for (int a = 0; a < of.extent.rank(); ++a) {
      int64_t skip = (*this)(static_cast<int>(of.extent[a]));
      part.begin[a] += skip;
      part.extent[a] = 1 + (*this)(static_cast<int>(of.extent[a] - skip));
    }
    return part;
  }

 private:
  uint64_t seed_, count_ = 0;
};

const char* const kFolds[] = {"sum", "max", "min"};

TEST(BoxingKernels, WhatMicroBatchesKeepFoldsBackToTheValue) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Drawn drawn(seed);
    const Dims shape = drawn.Shape();
    const std::string fold = kFolds[drawn(3)];
    int times = 1 + drawn(4), ranks = 1 + drawn(3), keeper = drawn(ranks);
    Piece32 value(Box::Whole(shape)), total(value.box);
    drawn.Fill(&value);
    bool first = true;
    for (int rank = 0; rank < ranks; ++rank)
      for (int t = 0; t < times; ++t) {
        Piece32 kept(value.box);
        RunBoxing("keep", fold, rank == keeper, shape, &value, &kept, t, times);
        for (size_t i = 0; i < kept.data.size(); ++i)
          total.data[i] = first ? kept.data[i] : Fold(fold, total.data[i], kept.data[i]);
        first = false;
      }
    EXPECT_EQ(total.data, value.data)
        << "seed " << seed << " " << fold << " over " << times << " micro-batches and " << ranks << " ranks";
  }
}

TEST(BoxingKernels, AccumulateIsTheFoldOfAllMicroBatchesAndOfNoStepBefore) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Drawn drawn(1000 + seed);
    const Dims shape = drawn.Shape();
    const std::string fold = kFolds[drawn(3)];
    int times = 1 + drawn(5);
    Piece32 sum(drawn.Part(Box::Whole(shape)));
    for (int step = 0; step < 2; ++step) {
      std::vector<float> want;
      for (int t = 0; t < times; ++t) {
        Piece32 part(sum.box);
        drawn.Fill(&part);
        for (size_t i = 0; i < part.data.size(); ++i)
          if (t == 0)
            want.push_back(part.data[i]);
          else
            want[i] = Fold(fold, want[i], part.data[i]);
        RunBoxing("accumulate", fold, true, shape, &part, &sum, t, times);
      }
      EXPECT_EQ(sum.data, want) << "seed " << seed << " " << fold << " of " << times
                                << " micro-batches, step " << step;
    }
  }
}

// Parts of one extent or none, in any order of acts: the whole, and nothing of it twice.
TEST(BoxingKernels, GatheredPartsAreTheWhole) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Drawn drawn(3000 + seed);
    const Dims shape = drawn.Shape();
    const int times = 1 + drawn(6), axis = drawn(2), first = drawn(times);
    Piece32 value(drawn.Part(Box::Whole(shape))), whole(value.box);
    drawn.Fill(&value);
    for (int act = 0; act < times; ++act) {
      const int t = (first + act) % times;
      Piece32 part(value.box);
      const Interval cut = Cut({value.box.begin[axis], value.box.extent[axis]}, times, t, 1);
      part.box.begin[axis] = cut.begin;
      part.box.extent[axis] = cut.extent;
      part = Piece32(part.box);
      const int64_t width = value.box.extent[1];
      for (int64_t r = 0, i = 0; r < part.box.extent[0]; ++r)
        for (int64_t c = 0; c < part.box.extent[1]; ++c, ++i)
          part.data[i] = value.data[(part.box.begin[0] - value.box.begin[0] + r) * width + part.box.begin[1] -
                                    value.box.begin[1] + c];
      RunBoxing("time_gather", "", true, shape, &part, &whole, t, times);
    }
    EXPECT_EQ(whole.data, value.data) << "seed " << seed << ", " << times << " micro-batches";
  }
}

// Outside of what the rank has, and everywhere on a rank that does not keep it, the fold's identity.
TEST(BoxingKernels, SlicesAreThePartsTheyName) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Drawn drawn(2000 + seed);
    const Dims shape = drawn.Shape();
    const std::string fold = kFolds[drawn(3)], name = drawn(2) ? "local_slice" : "time_slice";
    bool keep = drawn(3) != 0, inside = drawn(2) == 0;
    Piece32 value(drawn.Part(Box::Whole(shape)));
    Piece32 part(drawn.Part(inside ? value.box : Box::Whole(shape)));
    drawn.Fill(&value);
    RunBoxing(name, fold, keep, shape, &value, &part, drawn(3), 3);
    size_t i = 0;
    for (int64_t r = part.box.begin[0]; r < part.box.begin[0] + part.box.extent[0]; ++r)
      for (int64_t c = part.box.begin[1]; c < part.box.begin[1] + part.box.extent[1]; ++c, ++i) {
        int64_t row = r - value.box.begin[0], column = c - value.box.begin[1];
        bool has =
            keep && row >= 0 && row < value.box.extent[0] && column >= 0 && column < value.box.extent[1];
        float want = has             ? value.data[row * value.box.extent[1] + column]
                     : fold == "max" ? -INFINITY
                     : fold == "min" ? INFINITY
                                     : 0;
        ASSERT_EQ(part.data[i], want)
            << "seed " << seed << " " << name << " " << fold << " at " << r << "," << c;
      }
  }
}

}  // namespace
}  // namespace oneflow_like
