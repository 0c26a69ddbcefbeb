// Sampling: each filter against its definition on random logits, draws against the probabilities they come
// from, and what is refused.
#include "oneflow_like/generation/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/random.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

const std::vector<int32_t> kNothing;

std::vector<float> RandomLogits(uint64_t seed, int64_t classes) {
  std::vector<float> logits;
  for (int64_t t = 0; t < classes; ++t)  // some are equal
    logits.push_back(0.25f * static_cast<float>(RandomBits(seed, 1, t) % 40) - 4);
  return logits;
}

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  for (float l : logits) p.push_back(std::exp(l / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

std::vector<double> Kept(std::vector<double> p, const std::vector<bool>& keep) {
  for (size_t t = 0; t < p.size(); ++t) p[t] = keep[t] ? p[t] : 0;
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

void ExpectNearAll(const std::vector<double>& got, const std::vector<double>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t t = 0; t < got.size(); ++t) ASSERT_NEAR(got[t], want[t], 1e-8) << what << ", token " << t;
}

TEST(Sampling, TemperatureIsSoftmax) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (double temperature : {0.3, 1.0, 2.5}) {
      const std::vector<float> logits = RandomLogits(seed, 1 + seed * 7 % 60);
      ExpectNearAll(Sampler({.temperature = temperature}).Probabilities(logits, kNothing),
                    Softmax(logits, temperature), Cat("seed ", seed));
    }
}

TEST(Sampling, TopKKeepsTheKLikeliestAndTheirEquals) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (int64_t k : {1, 2, 5, 30, 1000}) {
      const std::vector<float> logits = RandomLogits(seed, 50);
      std::vector<float> sorted = logits;
      std::sort(sorted.rbegin(), sorted.rend());
      std::vector<bool> keep;
      for (float l : logits) keep.push_back(l >= sorted[std::min<int64_t>(k, 50) - 1]);
      ExpectNearAll(Sampler({.top_k = k}).Probabilities(logits, kNothing), Kept(Softmax(logits, 1), keep),
                    Cat("seed ", seed, ", k ", k));
    }
}

TEST(Sampling, TopPKeepsTheFewestThatAreEnough) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (double p : {0.05, 0.5, 0.9, 0.999, 1.0}) {
      const std::vector<float> logits = RandomLogits(seed, 50);
      const std::vector<double> all = Softmax(logits, 1);
      std::vector<int> order(50);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
      std::vector<bool> keep(50, false);
      double sum = 0;
      for (int t : order) {
        keep[t] = sum < p || p == 1;
        sum += all[t];
      }
      ExpectNearAll(Sampler({.top_p = p}).Probabilities(logits, kNothing), Kept(all, keep),
                    Cat("seed ", seed, ", p ", p));
    }
}

// Tokens whose probabilities add up to top_p exactly are enough.
TEST(Sampling, TopPKeepsNoMoreThanMakeUpThat) {
  for (int64_t tokens : {1, 2, 4, 8, 32})
    for (int64_t kept = 1; kept <= tokens; ++kept) {
      const std::vector<float> equal(tokens, 0.5f);
      const SamplingOptions options{.top_p = static_cast<double>(kept) / static_cast<double>(tokens)};
      const std::vector<double> p = Sampler(options).Probabilities(equal, kNothing);
      EXPECT_EQ(std::count_if(p.begin(), p.end(), [](double x) { return x > 0; }), kept) << "of " << tokens;
    }
}

TEST(Sampling, MinPIsAShareOfTheLikeliest) {
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (double p : {0.01, 0.3, 1.0}) {
      const std::vector<float> logits = RandomLogits(seed, 50);
      const std::vector<double> all = Softmax(logits, 1);
      std::vector<bool> keep;
      for (double x : all) keep.push_back(x >= p * *std::max_element(all.begin(), all.end()) * (1 - 1e-12));
      ExpectNearAll(Sampler({.min_p = p}).Probabilities(logits, kNothing), Kept(all, keep),
                    Cat("seed ", seed, ", p ", p));
    }
}

TEST(Sampling, RepetitionIsPenalisedOnce) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<float> logits = RandomLogits(seed, 30), changed = logits;
    std::vector<int32_t> seen;
    for (int i = 0; i < 12; ++i)
      seen.push_back(static_cast<int32_t>(RandomBits(seed, 2, i) % 40));  // some are no tokens
    for (int32_t t = 0; t < 30; ++t)
      if (std::count(seen.begin(), seen.end(), t))
        changed[t] = logits[t] > 0 ? logits[t] / 1.5f : logits[t] * 1.5f;
    ExpectNearAll(Sampler({.repetition_penalty = 1.5}).Probabilities(logits, seen), Softmax(changed, 1),
                  Cat("seed ", seed));
    const int32_t best =
        static_cast<int32_t>(std::max_element(changed.begin(), changed.end()) - changed.begin());
    EXPECT_EQ(Sampler({.repetition_penalty = 1.5, .temperature = 0}).Draw(logits, seen, 0), best);
  }
}

// Gaps, and what lies behind the last one: whatever their logits are, also such as nothing can be drawn from.
TEST(Sampling, DrawsKnownTokensAlone) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::vector<float> logits = RandomLogits(seed, 40);
    std::vector<bool> known, keep(40, false);
    for (uint64_t t = 0; t < 1 + seed % 40; ++t) {
      known.push_back(t == seed % 7 || RandomBits(seed, 3, t) % 3 != 0);
      keep[t] = known[t];
    }
    if (std::none_of(known.begin(), known.end(), [](bool k) { return k; })) known[0] = keep[0] = true;
    const std::vector<double> wanted = Kept(Softmax(logits, 0.5), keep);
    for (size_t t = 0; t < 40; ++t)
      if (!keep[t] && RandomBits(seed, 4, t) % 2) logits[t] = RandomBits(seed, 5, t) % 2 ? std::nanf("") : 50;
    const std::string about = Cat("seed ", seed);
    ExpectNearAll(Sampler({.temperature = 0.5, .known = known}).Probabilities(logits, kNothing), wanted,
                  about);
    for (const SamplingOptions& options : std::vector<SamplingOptions>{
             {.known = known},
             {.temperature = 0, .known = known},
             {.repetition_penalty = 2, .temperature = 9, .top_k = 30, .known = known},
             {.temperature = 9, .top_p = 0.9, .min_p = 0.01, .known = known}})
      for (int64_t i = 0; i < 20; ++i)
        EXPECT_TRUE(keep[Sampler(options).Draw(logits, std::vector<int32_t>{1, 5, 9, 39}, i)]) << about;
  }
}

TEST(Sampling, FiltersWorkOneAfterTheOther) {
  // Of 8, 4, 2, 1 and 1 parts three stay by top_k; of 8, 4, 2 two are 12 / 14 by top_p; min_p takes the half.
  const std::vector<float> logits = {0, std::log(2.0f), std::log(4.0f), std::log(8.0f), 0};
  auto probabilities = [&](SamplingOptions o) { return Sampler(o).Probabilities(logits, kNothing); };
  ExpectNearAll(probabilities({.top_k = 3, .top_p = 0.7}), {0, 0, 1.0 / 3, 2.0 / 3, 0}, "k, p");
  ExpectNearAll(probabilities({.top_k = 3, .top_p = 0.7, .min_p = 0.6}), {0, 0, 0, 1, 0}, "k, p, min_p");
  ExpectNearAll(probabilities({.known = {true, true}}), {1.0 / 3, 2.0 / 3, 0, 0, 0}, "known");
  EXPECT_EQ(Sampler({.temperature = 0, .known = {true, true}}).Draw(logits, kNothing, 0), 1);
}

// Draws of 40,000 places (and as many sequences) fit the probabilities: Pearson's chi-square, whose value
// exceeds the mean by five standard deviations in fewer than one of 10^5 experiments.
TEST(Sampling, DrawsFitTheirProbabilities) {
  constexpr int kDraws = 40000;
  const std::vector<float> logits = RandomLogits(3, 24);
  for (const SamplingOptions& options :
       {SamplingOptions{}, {.temperature = 2}, {.top_k = 6}, {.top_p = 0.8, .seed = 9}, {.min_p = 0.05}})
    for (bool along_places : {true, false}) {
      const Sampler sampler(options);
      const std::vector<double> p = sampler.Probabilities(logits, kNothing);
      std::vector<int> count(p.size(), 0);
      std::vector<int32_t> seen;
      for (int i = 0; i < kDraws; ++i) {
        ++count[sampler.Draw(logits, seen, along_places ? 0 : i)];
        if (along_places) seen.push_back(0);
      }
      double square = 0, freedom = -1;
      for (size_t t = 0; t < p.size(); ++t) {
        if (p[t] == 0) {
          EXPECT_EQ(count[t], 0) << t;
          continue;
        }
        square += std::pow(count[t] - kDraws * p[t], 2) / (kDraws * p[t]);
        ++freedom;
      }
      EXPECT_LT(square, freedom + 5 * std::sqrt(2 * freedom)) << "along places " << along_places;
    }
}

TEST(Sampling, DrawsAreFunctionsOfSeedSequenceAndPlace) {
  const std::vector<float> logits(1000, 0.0f);
  auto draw = [&](uint64_t seed, int64_t sequence, int64_t place) {
    return Sampler({.seed = seed}).Draw(logits, std::vector<int32_t>(place, 5), sequence);
  };
  EXPECT_EQ(draw(1, 2, 3), draw(1, 2, 3));
  int same = 0;
  for (int i = 0; i < 100; ++i)
    same += (draw(1, 2, i) == draw(2, 2, i)) + (draw(1, 2, i) == draw(1, 3, i)) +
            (draw(1, 2, i) == draw(1, 2, i + 1));
  EXPECT_LT(same, 5);
}

TEST(Sampling, OfEqualsTheFirst) {
  EXPECT_EQ(Sampler({.temperature = 0}).Draw(std::vector<float>{1, 3, 3, 2}, kNothing, 0), 1);
}

TEST(Sampling, RefusesWhatCannotBe) {
  auto error = [](const SamplingOptions& o) { return ErrorOf([&] { Sampler{o}; }); };
  EXPECT_EQ(error({.temperature = -1}), "sampling: temperature is -1, must be at least 0");
  EXPECT_EQ(error({.top_p = 0}), "sampling: top_p is 0, must be more than 0, at most 1");
  EXPECT_EQ(error({.top_p = std::nan("")}), "sampling: top_p is NaN, must be more than 0, at most 1");
  EXPECT_EQ(error({.min_p = 1.5}), "sampling: min_p is 1.5, must be at most 1");
  EXPECT_EQ(error({.top_k = -1}), "sampling: top_k is -1, must be at least 0");
  EXPECT_EQ(error({.repetition_penalty = 0}), "sampling: repetition_penalty is 0, must be at least 0.001");
  const float inf = std::numeric_limits<float>::infinity();
  auto draw = [](std::vector<float> logits) {
    return ErrorOf([&] { Sampler({}).Draw(logits, kNothing, 0); });
  };
  EXPECT_EQ(draw({0, std::nanf("")}),
            "sampling: the logit of token 1 is NaN, from which nothing can be drawn");
  EXPECT_EQ(draw({inf, 0}), "sampling: the logit of token 0 is +infinity, from which nothing can be drawn");
  EXPECT_EQ(draw({-inf, -inf}), "sampling: no token can be drawn, as every one's logit is -infinity");
  EXPECT_EQ(Sampler({}).Draw(std::vector<float>{-inf, 0, -inf}, kNothing, 0), 1);
}

}  // namespace
}  // namespace oneflow_like
