// Synthetic data that can be learnt: pictures of classes, and clicks. A sample is a function of the seed and
// its number alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oneflow_like/data/source.h"

namespace oneflow_like {

// Pictures: each class has a pattern of 4 x 4 coarse squares in each channel, which is moved by up to two
// pixels, and half of what one sees is noise. Fields: "images" f32[channels, height, width], about in [-1,
// 1], and "labels" i32[].
class SyntheticImages final : public SampleSource {
 public:
  struct Options {
    int64_t channels = 3, height = 32, width = 32;
    int64_t classes = 10, first_class = 0;  // labels are 0 .. classes - 1; `first_class` chooses the patterns
    int64_t first = 0, samples = 1 << 16;   // number of the first sample; held-out ones begin where these end
    uint64_t seed = 1;
  };
  explicit SyntheticImages(const Options& options);
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return options_.samples; }
  void Read(const SampleId& id, std::span<void* const> to) const override;

 private:
  const Options options_;
  const uint64_t key_;
  const std::vector<SampleField> fields_;
};

// Clicks: whether one happens depends on two numbers, on every word by itself, and on pairs of words. Fields
// as those of ClickLog (oneflow_like/data/clicks.h).
class SyntheticClicks final : public SampleSource {
 public:
  struct Options {
    int64_t dense = 13, categorical = 26, buckets = 1000;
    int64_t first = 0, samples = 1 << 20;
    uint64_t seed = 1;
  };
  explicit SyntheticClicks(const Options& options);
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return options_.samples; }
  void Read(const SampleId& id, std::span<void* const> to) const override;

 private:
  // A draw of [-1, 1) that stands for a word of a column.
  float Effect(int64_t column, int64_t word) const;

  const Options options_;
  const uint64_t key_;
  const std::vector<SampleField> fields_;
};

}  // namespace oneflow_like
