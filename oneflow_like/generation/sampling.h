// Draws the next token from logits, on the host. A draw is a function of the options, the logits, the
// sequence's number and the place in it: the same on every mesh and in every process.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace oneflow_like {

// Applied in this order; defaults change nothing.
struct SamplingOptions {
  // For each token that the sequence contains already, a positive logit is divided by this number, a negative
  // one multiplied (Keskar et al. 2019). At least 1e-3; above 1 repeats less.
  double repetition_penalty = 1;
  double temperature = 1;  // logits are divided by it; 0: the likeliest token, of equals the first
  int64_t top_k = 0;       // draw only among the k likeliest tokens and those as likely as the k-th; 0: all
  // Draw only among the fewest likeliest tokens whose probabilities sum to at least this (Holtzman et al.
  // 2020); of equally likely tokens those of smaller numbers come first. In (0, 1].
  double top_p = 1;
  double min_p = 0;  // draw only tokens at least this share as likely as the likeliest (Nguyen et al. 2024)
  uint64_t seed = 1;
  // Whether each token may be drawn, by number; those behind the last never are. Empty: all may be. A model
  // can have rows for numbers that its tokenizer does not know, in gaps and behind its last.
  std::vector<bool> known = {};
};

// Thread-safe.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);  // throws Error for options out of range

  // Draws the next token of a sequence with tokens `seen` (its prompt and the tokens drawn so far).
  // `sequence` is its number; the random number also depends on the length of `seen`. Throws Error for a
  // logit that is NaN or +infinity, and when all are -infinity.
  int32_t Draw(std::span<const float> logits, std::span<const int32_t> seen, int64_t sequence) const;

  // The distribution that Draw draws from: a probability for each token, which sum to 1.
  std::vector<double> Probabilities(std::span<const float> logits, std::span<const int32_t> seen) const;

 private:
  std::vector<float> Penalised(std::span<const float> logits, std::span<const int32_t> seen) const;

  SamplingOptions options_;
};

}  // namespace oneflow_like
