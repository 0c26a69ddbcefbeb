// The order of samples: shuffling by a computed permutation, mixing by blocks of fixed shares.
#include "oneflow_like/data/source.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/hash_bytes.h"
#include "core/random.h"

namespace oneflow_like {
namespace {

constexpr int kFeistelRounds = 6;
constexpr int64_t kMixtureBlock = 1024;

// 32 bits that depend on all bits of both.
uint64_t RoundBits(uint64_t key, uint64_t half) { return RandomKey(key, half) & 0xffffffffu; }

}  // namespace

int64_t ShuffledIndex(int64_t index, int64_t count, uint64_t seed, int64_t epoch) {
  if (count < 2) return index;
  const uint64_t key = RandomKey(RandomKey(seed, HashName("shuffle")), static_cast<uint64_t>(epoch));
  const int half = (std::bit_width(static_cast<uint64_t>(count - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t at = static_cast<uint64_t>(index);
  do {  // at most four times as many numbers as samples, so this ends after a few turns
    uint64_t left = at >> half, right = at & mask;
    for (int round = 0; round < kFeistelRounds; ++round) {
      const uint64_t next = left ^ (RoundBits(key + 0x9E3779B97F4A7C15ull * (round + 1), right) & mask);
      left = right;
      right = next;
    }
    at = left << half | right;
  } while (at >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(at);
}

void CheckSource(const std::string& who, const SampleSource* source) {
  if (source == nullptr) Fail(who, " is null");
  if (source->samples() < 1) Fail(who, " has ", source->samples(), " samples, must have at least 1");
  const auto& fields = source->fields();
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].name.empty()) Fail(who, " has no name for field ", f);
    for (size_t other = 0; other < f; ++other)
      if (fields[other].name == fields[f].name) Fail(who, " has two fields '", fields[f].name, "'");
    for (const int64_t extent : fields[f].shape)
      if (extent < 0)
        Fail(who, ": field '", fields[f].name, "' has extents ", fields[f].shape.str(),
             ", must be 0 or more");
  }
}

std::vector<SourceFact> FactsOf(const SampleSource& source) {
  std::vector<SourceFact> facts;
  const std::vector<DataHash> hashes = source.Hashes();
  if (!hashes.empty()) facts.push_back({"the number of files", Cat(hashes.size())});
  for (size_t i = 0; i < hashes.size(); ++i) {
    facts.push_back({Cat("file ", i + 1),
                     Cat(hashes[i].size, " bytes with hash ", Hexadecimal(hashes[i].hash)), hashes[i].name});
  }
  for (const SampleField& field : source.fields())
    facts.push_back({Cat("field '", field.name, "'"), Cat(Name(field.dtype), field.shape.str())});
  facts.push_back({"the number of samples", Cat(source.samples())});
  return facts;
}

Mixture::Mixture(std::vector<Part> parts, int64_t samples) : parts_(std::move(parts)), samples_(samples) {
  if (parts_.empty()) Fail("a mixture of data needs at least one source");
  double sum = 0;
  for (const Part& part : parts_) {
    CheckSource(Cat("source ", &part - parts_.data(), " of a mixture"), part.source.get());
    if (!(part.weight > 0) || !std::isfinite(part.weight))
      Fail("source ", &part - parts_.data(), " of a mixture has weight ", part.weight,
           ", must be a positive number");
    sum += part.weight;
    const auto &first = fields(), &other = part.source->fields();
    for (size_t f = 0; f < std::max(first.size(), other.size()); ++f) {
      auto text = [&](const auto& all) {
        return f < all.size() ? Cat("'", all[f].name, "' ", Name(all[f].dtype), all[f].shape.str())
                              : "nothing";
      };
      if (text(first) != text(other))
        Fail("source ", &part - parts_.data(), " of a mixture gives ", text(other), " as field ", f,
             ", but source 0 gives ", text(first));
    }
    if (samples == 0) samples_ += part.source->samples();
  }
  // Largest remainders, so that the shares add up.
  std::vector<std::pair<double, size_t>> rest;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const double exact = parts_[p].weight / sum * kMixtureBlock;
    if (exact < 1)
      Fail("source ", p, " of a mixture has weight ", parts_[p].weight, " of ", sum, ", must be at least 1/",
           kMixtureBlock, " of the sum");
    shares_.push_back(static_cast<int64_t>(exact));
    rest.push_back({shares_.back() - exact, p});
  }
  std::sort(rest.begin(), rest.end());
  const int64_t left = kMixtureBlock - std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++shares_[rest[i].second];
  if (samples_ < 1) Fail("a mixture of ", samples_, " samples must have at least 1");
}

std::vector<DataHash> Mixture::Hashes() const {
  std::vector<DataHash> all;
  for (const Part& part : parts_)
    for (DataHash& hash : part.source->Hashes()) all.push_back(std::move(hash));
  return all;
}

void Mixture::Read(const SampleId& id, std::span<void* const> to) const {
  // Blocks go on through the epochs, so that no source begins anew with each.
  const int64_t number = id.epoch * samples_ + id.index, block = number / kMixtureBlock;
  int64_t place =
      ShuffledIndex(number % kMixtureBlock, kMixtureBlock, RandomKey(id.seed, HashName("mixture")), block);
  size_t p = 0;
  while (place >= shares_[p]) place -= shares_[p++];
  const SampleSource& source = *parts_[p].source;
  const int64_t of_source = block * shares_[p] + place, epoch = of_source / source.samples();
  const uint64_t seed = RandomKey(id.seed, p + 1);
  const int64_t index = ShuffledIndex(of_source % source.samples(), source.samples(), seed, epoch);
  source.Read({seed, epoch, index}, to);
}

}  // namespace oneflow_like
