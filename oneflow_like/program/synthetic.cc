#include "oneflow_like/program/synthetic.h"

#include <algorithm>
#include <cmath>

#include "core/random.h"

namespace oneflow_like {

SyntheticImages::SyntheticImages(const Options& options)
    : options_(options),
      key_(RandomKey(options.seed, HashName("synthetic images"))),
      fields_{{"images", DType::kFloat32, {options.channels, options.height, options.width}},
              {"labels", DType::kInt32, {}}} {}

void SyntheticImages::Read(const SampleId& id, std::span<void* const> to) const {
  constexpr int64_t kSquares = 4, kMost = 2;
  const auto& [channels, height, width, classes, first_class, first, samples, seed] = options_;
  const uint64_t sample = 1 + first + id.index;  // step 0 draws the patterns
  const int64_t label = RandomBits(key_, sample, 0) % classes;
  const uint32_t moved = RandomBits(key_, sample, 1);
  const int64_t down = moved % (2 * kMost + 1), right = moved / 16 % (2 * kMost + 1);
  float square[kSquares][kSquares];
  auto* pixel = static_cast<float*>(to[0]);
  uint64_t draw = 4;
  Philox4 noise = {};
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < kSquares * kSquares; ++i) {
      const uint64_t at = ((first_class + label) * channels + c) * kSquares * kSquares + i;
      square[i / kSquares][i % kSquares] = RandomBits(key_, 0, at) % 2 == 0 ? 0.5f : -0.5f;
    }
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x, ++draw) {
        if (draw % 4 == 0) noise = Philox(key_, draw / 4, sample);
        const int64_t row = (y + down) * kSquares / height % kSquares,
                      column = (x + right) * kSquares / width % kSquares;
        *pixel++ = square[row][column] + ToUniform(noise.v[draw % 4]) - 0.5f;
      }
  }
  *static_cast<int32_t*>(to[1]) = static_cast<int32_t>(label);
}

SyntheticClicks::SyntheticClicks(const Options& options)
    : options_(options),
      key_(RandomKey(options.seed, HashName("synthetic clicks"))),
      fields_{{"labels", DType::kFloat32, {}},
              {"dense", DType::kFloat32, {options.dense}},
              {"ids", DType::kInt32, {options.categorical}}} {}

float SyntheticClicks::Effect(int64_t column, int64_t word) const {
  return 2 * ToUniform(RandomBits(key_, 0, column * options_.buckets + word)) - 1;
}

void SyntheticClicks::Read(const SampleId& id, std::span<void* const> to) const {
  const uint64_t sample = 1 + options_.first + id.index;  // step 0 draws the effects
  auto* dense = static_cast<float*>(to[1]);
  auto* ids = static_cast<int32_t*>(to[2]);
  float score = -1.5f;
  for (int64_t i = 0; i < options_.dense; ++i) {
    dense[i] = 2 * ToUniform(RandomBits(key_, sample, i));
    if (i < 2) score += dense[i] - 1;
  }
  float before = 0;
  for (int64_t i = 0; i < options_.categorical; ++i) {
    // Few words are frequent, most are rare.
    const double place = std::pow(ToUniform(RandomBits(key_, sample, options_.dense + i)), 3);
    const int64_t word =
        std::min(static_cast<int64_t>(place * static_cast<double>(options_.buckets)), options_.buckets - 1);
    const float effect = Effect(i, word);
    score += 0.5f * effect + before * effect;
    before = effect;
    ids[i] = static_cast<int32_t>(word);
  }
  const float chance = 1 / (1 + std::exp(-score));
  *static_cast<float*>(to[0]) =
      ToUniform(RandomBits(key_, sample, options_.dense + options_.categorical)) < chance ? 1.0f : 0.0f;
}

}  // namespace oneflow_like
