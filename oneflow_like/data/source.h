// SampleSource: the interface of training data. A sample is a function of (seed, epoch, index) alone, so
// every mesh, every number of processes and every resumed run sees the same samples in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/boxes/feeds.h"
#include "core/dims.h"
#include "core/dtype.h"
#include "core/error.h"

namespace oneflow_like {

// A sample's data for one input of the session: the input's name, and type and shape without the batch axis.
struct SampleField {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  size_t bytes() const { return shape.elements() * SizeOf(dtype); }
};

struct SampleId {
  uint64_t seed = 1;
  int64_t epoch = 0;
  int64_t index = 0;  // 0 .. samples() - 1
};

// A sample with a fault of its own, such as a truncated picture. The text names file and offset. Pipelines
// may skip these (DataPipelineOptions::broken_share); any other Error ends the run.
class BrokenSample : public Error {
 public:
  using Error::Error;
};
template <typename... Args>
[[noreturn]] void FailSample(const Args&... args) {
  throw BrokenSample(Cat(args...));
}

// A part of a source's data, a file for instance, as the processes of a job compare it.
struct DataHash {
  std::string name;  // for messages: the path. Not compared
  int64_t size = 0;
  uint64_t hash = 0;  // HashOfSome (oneflow_like/data/files.h) hashes a file
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual const std::vector<SampleField>& fields() const = 0;
  virtual int64_t samples() const = 0;  // of one epoch; at least 1
  // Writes the sample: to[i] has room for fields()[i], row-major. Must be thread-safe. Throws BrokenSample or
  // Error.
  virtual void Read(const SampleId& id, std::span<void* const> to) const = 0;
  // What tells this data from other data of as many samples. The processes of a job compare it before the
  // first step, as hosts may have different files under one name. Empty: it is not known, and only fields and
  // the number of samples are compared.
  virtual std::vector<DataHash> Hashes() const { return {}; }
};

// What processes that read from such a source must have alike: Hashes, fields, number of samples.
std::vector<SourceFact> FactsOf(const SampleSource& source);

// Throws Error, beginning with `who`, for a source that is none or breaks its contract: no samples, fields
// without a name or with the name of another, negative extents.
void CheckSource(const std::string& who, const SampleSource* source);

// The place of `index` in an epoch after shuffling `count` samples: a permutation that is computed, not
// stored. It is a Feistel network over the index's bits (Luby and Rackoff, "How to construct pseudorandom
// permutations from pseudorandom functions", 1988) that is walked until it lands below `count` (cycle
// walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). REQUIRES: 0 <= index < count.
int64_t ShuffledIndex(int64_t index, int64_t count, uint64_t seed, int64_t epoch);

// Several sources as one, each in proportion to its weight. In every 1024 samples each source has its exact
// share, rounded to a sample, in an order drawn anew; each source goes through all its samples, shuffled,
// before it repeats one.
class Mixture final : public SampleSource {
 public:
  struct Part {
    std::shared_ptr<const SampleSource> source;
    double weight = 1;
  };
  // An epoch of the mixture is `samples` long; 0: as long as all parts together. Throws Error for parts whose
  // fields differ, and for weights that are not positive or below 1/1024 of their sum.
  explicit Mixture(std::vector<Part> parts, int64_t samples = 0);
  const std::vector<SampleField>& fields() const override { return parts_[0].source->fields(); }
  int64_t samples() const override { return samples_; }
  void Read(const SampleId& id, std::span<void* const> to) const override;
  std::vector<DataHash> Hashes() const override;  // of all parts

 private:
  std::vector<Part> parts_;
  std::vector<int64_t> shares_;  // of 1024
  int64_t samples_ = 0;
};

}  // namespace oneflow_like
