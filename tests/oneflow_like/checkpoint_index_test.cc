// The pieces of an index: any way of cutting a variable is taken, every overlap and gap is found, and of
// thousands of pieces, too.
// ctest: asan=25
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/random.h"
#include "oneflow_like/checkpoint/index.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/variable_sources.h"
#include "tests/sanitized.h"

namespace oneflow_like {
namespace {

class CheckpointIndexPieces : public testing::Test {
 protected:
  CheckpointIndexPieces() { std::filesystem::create_directories(folder_); }
  ~CheckpointIndexPieces() override { std::filesystem::remove_all(folder_); }

  std::string ErrorWith(const Dims& shape, const std::vector<Box>& boxes) const {
    CheckpointIndex index;
    StoredVariable& variable = index.variables["w"] = {DType::kUInt8, shape, {}};
    for (const Box& box : boxes)
      variable.pieces.push_back(
          {"model-0.safetensors", "w", box, std::vector<uint32_t>(box.empty() ? 0 : 1)});
    PutBytes(folder_ + "/" + CheckpointIndex::kFile, index.ToJson());
    return ErrorOf([&] { CheckpointIndex::Read(folder_); });
  }

 private:
  const std::string folder_ = testing::TempDir() + "/checkpoint_index_test." + std::to_string(getpid());
};

// Cuts made one after the other, and boxes of which some have grown, shrunk or moved by one.
TEST_F(CheckpointIndexPieces, OverlapsAndGapsAreWhatCountingSays) {
  int wrong = 0, overlaps = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    auto draw = [&, k = uint64_t{0}](uint64_t n) mutable {
      return static_cast<int64_t>(RandomBits(seed, 1, k++) % n);
    };
    const Dims shape = seed % 2 == 0 ? Dims{6, 5} : Dims{3, 4, 3};
    std::vector<Box> boxes = {Box::Whole(shape)};
    for (int64_t cuts = draw(8); cuts > 0; --cuts) {
      Box& box = boxes[draw(boxes.size())];
      const int axis = static_cast<int>(draw(shape.size()));
      Box rest = box;
      box.extent[axis] = draw(box.extent[axis] + 1);
      rest.begin[axis] += box.extent[axis];
      rest.extent[axis] -= box.extent[axis];
      boxes.push_back(rest);
    }
    for (int64_t changes = draw(3); changes > 0; --changes) {
      Box& box = boxes[draw(boxes.size())];
      const int axis = static_cast<int>(draw(shape.size()));
      box.begin[axis] = std::max<int64_t>(0, box.begin[axis] - draw(2));
      box.extent[axis] =
          std::clamp<int64_t>(box.extent[axis] + draw(3) - 1, 0, shape[axis] - box.begin[axis]);
    }
    std::swap(boxes.front(), boxes[draw(boxes.size())]);
    bool overlap = false;
    int64_t elements = 0;
    for (size_t i = 0; i < boxes.size(); ++i) {
      elements += boxes[i].elements();
      for (size_t j = 0; j < i; ++j) overlap = overlap || !boxes[i].Intersect(boxes[j]).empty();
    }
    const std::string error = ErrorWith(shape, boxes);
    EXPECT_EQ(error.find("which overlap") != std::string::npos, overlap) << seed << " " << error;
    EXPECT_EQ(error.empty(), !overlap && elements == shape.elements()) << seed << " " << error;
    wrong += !error.empty();
    overlaps += overlap;
  }
  EXPECT_GT(wrong, overlaps);
  EXPECT_GT(overlaps, 50);
  EXPECT_LT(wrong, 350);
}

// No axis has a place that no piece crosses.
TEST_F(CheckpointIndexPieces, PinwheelsAreTaken) {
  std::vector<Box> boxes = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_EQ(ErrorWith({3, 3}, boxes), "");
  boxes[4].extent = {1, 2};
  EXPECT_NE(ErrorWith({3, 3}, boxes).find("which overlap"), std::string::npos);
}

// Each compared with each would take minutes.
TEST_F(CheckpointIndexPieces, ManyPiecesTakeNoTime) {
  const int64_t n = kSanitized ? 40 : 150;
  std::vector<Box> boxes(kSanitized ? 2'000 : 20'000, Box{{7, 0}, {0, n}});
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < n; ++c) boxes.push_back({{r, c}, {1, 1}});
  EXPECT_EQ(ErrorWith({n, n}, boxes), "");
  boxes.back() = boxes[boxes.size() - 2];
  EXPECT_NE(ErrorWith({n, n}, boxes).find("which overlap"), std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
