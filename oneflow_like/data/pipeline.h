// DataPipeline: reads batches ahead of the step, on threads of its own, and gives each process the rows that
// its ranks hold.
//
//   DataPipeline data(rows, {.batch = 64, .needs = train.Needs(), .start = position_of_a_checkpoint});
//   StepResult result = train.Run(data);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/boxes/feeds.h"
#include "oneflow_like/data/source.h"

namespace oneflow_like {

struct DataPipelineOptions {
  int64_t batch = 0;  // samples of a step, of all processes together
  uint64_t seed = 1;
  bool shuffle = true;  // each epoch in another order
  // The boxes of inputs to feed: Session::Needs(). Empty: all of every field. Fields that no rank needs are
  // left out, and an input that no field feeds is an Error.
  FeedNeeds needs;
  int64_t start = 0;   // number of the first sample: DataPipeline::position() of the run to resume
  int64_t epochs = 0;  // after these More() is false and Next throws; 0: unlimited
  // Values of the rows after the end of the last epoch, by field; 0 for other fields.
  std::map<std::string, double> fill;
  int threads = 1;  // for reading and decoding
  int ahead = 2;    // most batches being read or waiting
  // A broken sample (BrokenSample) is logged and replaced by another sample of the epoch, drawn by its index,
  // as long as this process has met at most this share of an epoch of them; 0: the first is an Error.
  double broken_share = 0;
  // Whether the processes of a job compare their sources and these options, once, before the first step
  // (SampleSource::Hashes). False, then on all of them: they hold different parts of the data on purpose.
  bool compare = true;
};

// Not thread-safe. Destroying it, at any moment, waits only for the samples that are being read.
class DataPipeline final : public FeedSource {
 public:
  // Throws Error for options that contradict the source.
  DataPipeline(std::shared_ptr<const SampleSource> source, const DataPipelineOptions& options);
  ~DataPipeline() override;
  DataPipeline(const DataPipeline&) = delete;

  // Waits for the next batch and returns it. Its memory is reused once the result is released. If reading
  // this batch failed, throws the Error, with file and offset; earlier batches have been returned, and every
  // later call throws the same.
  FeedPieces Next() override;
  std::optional<Dims> ShapeOf(const std::string& input) const override;
  std::vector<SourceFact> Facts() const override;
  // Whether there is another batch.
  bool More() const;
  // Number of the next batch's first sample, counted over epochs: with the seed, the pipeline's whole state.
  // Keep it in a checkpoint's SaveOptions::state, and resume with DataPipelineOptions::start, on any mesh.
  int64_t position() const;
  // Number of samples in the last batch; fewer than `batch` only at the end of the last epoch.
  int64_t rows() const;
  // Messages of the broken samples that this process has met so far, in that order.
  std::vector<std::string> broken() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Threads for a pipeline beside `kernel_threads` that compute: the rest of this process's share of the host's
// cores, at least one.
int DataThreads(int cores, int kernel_threads);

}  // namespace oneflow_like
