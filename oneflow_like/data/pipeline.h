// DataPipeline: reads batches ahead of the step, on threads of its own, and gives each process the rows that
// its ranks hold.
//
//   DataPipeline data(rows, {.batch = 64, .needs = train.Needs(), .start = position_of_a_checkpoint});
//   StepResult result = train.Run(data);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/feeds.h"
#include "oneflow_like/data/source.h"

namespace oneflow_like {

struct DataPipelineOptions {
  int64_t batch = 0;  // samples of a step, of all processes together
  uint64_t seed = 1;
  bool shuffle = true;  // each epoch in an order of its own
  // Which boxes of which inputs are wanted: Session::Needs(). Empty: all of every field. Fields that nobody
  // needs are left out, and an input that no field feeds is an Error.
  FeedNeeds needs;
  int64_t start = 0;   // number of the first sample: DataPipeline::position() of the run that goes on
  int64_t epochs = 0;  // after so many Next throws, and More() is false; 0: never
  // Rows behind the end of the last epoch: every element of a field that is named here has this value, of
  // others 0.
  std::map<std::string, double> fill;
  int threads = 1;  // that read and decode
  int ahead = 2;    // most batches that are read or wait to be taken
  // Broken samples (BrokenSample) are logged and another sample of the epoch, drawn by their index, takes the
  // place of each, as long as this process has met at most this share of an epoch of them; 0: the first is an
  // Error.
  double broken_share = 0;
};

// Belongs to one thread. Destroying it, at any moment, waits for the samples being read and for no more.
class DataPipeline final : public FeedSource {
 public:
  // Throws Error for options that contradict the source.
  DataPipeline(std::shared_ptr<const SampleSource> source, const DataPipelineOptions& options);
  ~DataPipeline() override;
  DataPipeline(const DataPipeline&) = delete;

  // The next batch; waits until it is read. Its memory is used again once nobody holds it. Throws Error with
  // what a stage met in this batch, file and offset; batches before it have been given, and every later call
  // throws the same.
  FeedPieces Next() override;
  // Whether there is another batch.
  bool More() const;
  // Number of the first sample that Next gives next, counted over epochs: with the seed, all of the state.
  // Keep it in a checkpoint's SaveOptions::state, and resume with DataPipelineOptions::start, on any mesh.
  int64_t position() const;
  // How many samples the batch that Next gave last has; fewer than `batch` only at the end of the last epoch.
  int64_t rows() const;
  // What broken samples this process has met so far say, in the order they were met.
  std::vector<std::string> broken() const;
  double seconds_waited() const;  // in Next

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Threads for a pipeline beside `kernel_threads` that compute: what they leave of this process's share of the
// host's cores, at least one.
int DataThreads(int cores, int kernel_threads);

}  // namespace oneflow_like
