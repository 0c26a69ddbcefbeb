// Which token comes next: from logits to a token, on the host. A draw is a function of the options, the
// logits, the sequence's number and the place in it: the same on every mesh and for every process.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace oneflow_like {

// Applied in this order; defaults change nothing.
struct SamplingOptions {
  // Of a token that the sequence holds already, a positive logit is divided and a negative one multiplied by
  // it (Keskar et al. 2019). At least 1e-3; above 1 repeats less.
  double repetition_penalty = 1;
  double temperature = 1;  // logits are divided by it; 0: always the likeliest, of equals the first
  int64_t top_k = 0;       // of the k likeliest tokens alone, and of those as likely as the k-th; 0: of all
  // Of the fewest likeliest tokens whose probabilities sum to at least this (Holtzman et al. 2020); of tokens
  // equally likely those of smaller numbers first. In (0, 1].
  double top_p = 1;
  double min_p = 0;  // of tokens at least this share as likely as the likeliest (Nguyen et al. 2024)
  uint64_t seed = 1;
  int64_t vocabulary = 0;  // tokens from this number on are never drawn; 0: all may be
};

// A small value; any thread.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);  // throws Error for what is out of range

  // The next token of a sequence that holds `seen` (its prompt and what was drawn). `sequence` is its number;
  // the draw's other argument is the length of `seen`. Throws Error for a logit that is NaN or +infinity, and
  // when all are -infinity.
  int32_t Draw(std::span<const float> logits, std::span<const int32_t> seen, int64_t sequence) const;

  // The distribution that Draw draws from: a probability for each token, which sum to 1.
  std::vector<double> Probabilities(std::span<const float> logits, std::span<const int32_t> seen) const;

 private:
  std::vector<float> Penalised(std::span<const float> logits, std::span<const int32_t> seen) const;

  SamplingOptions options_;
};

}  // namespace oneflow_like
