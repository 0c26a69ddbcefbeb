#include "oneflow_like/generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
#include "oneflow_like/model/limits.h"

namespace oneflow_like {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// Every weight below the k-th largest becomes 0.
void KeepTopK(int64_t k, std::vector<double>* weights) {
  if (k == 0 || k >= std::ssize(*weights)) return;
  std::vector<double> sorted = *weights;
  std::nth_element(sorted.begin(), sorted.begin() + k - 1, sorted.end(), std::greater<>());
  for (double& w : *weights) w = w < sorted[k - 1] ? 0 : w;
}

void KeepTopP(double p, std::vector<double>* weights) {
  if (p == 1) return;
  std::vector<int32_t> order;
  for (size_t t = 0; t < weights->size(); ++t)
    if ((*weights)[t] > 0) order.push_back(static_cast<int32_t>(t));
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return (*weights)[a] > (*weights)[b]; });
  const double enough = p * std::accumulate(weights->begin(), weights->end(), 0.0);
  double sum = 0;
  for (int32_t t : order) {
    const double weight = (*weights)[t];
    if (sum >= enough) (*weights)[t] = 0;
    sum += weight;
  }
}

void KeepMinP(double p, std::vector<double>* weights) {
  if (p == 0) return;
  const double least = p * *std::max_element(weights->begin(), weights->end());
  for (double& w : *weights) w = w < least ? 0 : w;
}

// In [0, 1), 53 bits: 24 are too few for vocabularies of many thousand tokens.
double DrawUniform(uint64_t seed, int64_t sequence, int64_t place) {
  const uint64_t key = RandomKey(seed, HashName("sample"));
  const uint64_t high = RandomBits(key, static_cast<uint64_t>(sequence), 2 * static_cast<uint64_t>(place)),
                 low = RandomBits(key, static_cast<uint64_t>(sequence), 2 * static_cast<uint64_t>(place) + 1);
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  CheckRange("sampling: repetition_penalty", options.repetition_penalty, 1e-3, 1e3);
  CheckRange("sampling: temperature", options.temperature, 0.0, 1e30);
  CheckRange<int64_t>("sampling: top_k", options.top_k, 0, INT32_MAX);
  if (!(options.top_p > 0 && options.top_p <= 1))
    Fail("sampling: top_p is ", options.top_p, ", must be more than 0, at most 1");
  CheckRange("sampling: min_p", options.min_p, 0.0, 1.0);
}

// Logits of the tokens that may be drawn.
std::vector<float> Sampler::Penalised(std::span<const float> logits, std::span<const int32_t> seen) const {
  const std::vector<bool>& known = options_.known;
  if (!known.empty()) logits = logits.first(std::min(logits.size(), known.size()));
  std::vector<float> out(logits.begin(), logits.end());
  for (size_t t = 0; t < out.size(); ++t)
    if (!known.empty() && !known[t])
      out[t] = kImpossible;
    else if (!(out[t] < std::numeric_limits<float>::infinity()))
      Fail("sampling: the logit of token ", t, " is ", out[t], ", from which nothing can be drawn");
  if (options_.repetition_penalty != 1) {
    const auto penalty = static_cast<float>(options_.repetition_penalty);
    for (int32_t t : seen)
      if (static_cast<size_t>(t) < out.size() && out[t] != 0 && out[t] != kImpossible) {
        const float was = logits[t];  // once, however often the token stands there
        out[t] = was > 0 ? was / penalty : was * penalty;
      }
  }
  if (out.empty() || *std::max_element(out.begin(), out.end()) == kImpossible)
    Fail("sampling: no token can be drawn, as every one's logit is -infinity");
  return out;
}

std::vector<double> Sampler::Probabilities(std::span<const float> logits,
                                           std::span<const int32_t> seen) const {
  const std::vector<float> from = Penalised(logits, seen);
  const auto best = std::max_element(from.begin(), from.end());
  std::vector<double> weights(logits.size(), 0);
  if (options_.temperature == 0) {
    weights[best - from.begin()] = 1;
    return weights;
  }
  for (size_t t = 0; t < from.size(); ++t)
    weights[t] = std::exp((static_cast<double>(from[t]) - *best) / options_.temperature);
  KeepTopK(options_.top_k, &weights);
  KeepTopP(options_.top_p, &weights);
  KeepMinP(options_.min_p, &weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& w : weights) w /= sum;
  return weights;
}

int32_t Sampler::Draw(std::span<const float> logits, std::span<const int32_t> seen, int64_t sequence) const {
  if (options_.temperature == 0) {
    const std::vector<float> from = Penalised(logits, seen);
    return static_cast<int32_t>(std::max_element(from.begin(), from.end()) - from.begin());
  }
  const std::vector<double> probabilities = Probabilities(logits, seen);
  double left = DrawUniform(options_.seed, sequence, std::ssize(seen));
  int32_t last = 0;  // that is possible, where rounding leaves something
  for (size_t t = 0; t < probabilities.size(); ++t) {
    if (probabilities[t] == 0) continue;
    last = static_cast<int32_t>(t);
    if ((left -= probabilities[t]) < 0) break;
  }
  return last;
}

}  // namespace oneflow_like
