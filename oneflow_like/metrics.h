// Metrics: the numbers of a run by step, as JSON lines, as TensorBoard's event files, and for the program's
// own progress line.
//
//   Metrics metrics(train, {.json = "run.json", .tensorboard = "run", .unit = "tokens", .per_step = 8 *
//   1024}); for (...) metrics.Step(train.Run(data), {{"temperature", t}});   // waits for the step
//   metrics.Add(train.next_step(), {{"held_out_loss", loss}});
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "oneflow_like/session.h"

namespace oneflow_like {

using Scalars = std::vector<std::pair<std::string, double>>;  // by name, in the order they are written

struct MetricsOptions {
  std::string json;              // file that gets one JSON object a line; empty: none
  std::string tensorboard;       // folder that gets an event file, made when it is missing; empty: none
  std::string unit = "samples";  // what a step has `per_step` of, in the whole batch: "tokens"
  double per_step = 0;           // 0: no rates are given
  double peak_flops = 0;         // that a device could do in a second, for mfu; 0: not known, no mfu
};

// Of one session. In a job every process makes one and tells it the same; process 0 writes. One thread.
//
// Each step has, under these names in both kinds of file:
//   loss, and every other output of the session that is one fp32 number: grad_norm, skipped, your own
//   lr                          of the step; lr_factor where the optimizer names no single rate
//   <unit>_per_s, <unit>_per_s_per_device
//   step_ms                     since the step before ended
//   data_ms                     the program waited for the step's data, if Run took it from a source
//   flops_per_s_per_device      of products, attention and convolutions, each counted once (ModelFlops)
//   mfu                         the same as a part of peak_flops
//   memory_bytes                variables and arena of the fullest device of process 0, of all sessions
//   host_bytes                  resident memory of process 0
// A number that is not finite is null in JSON.
class Metrics {
 public:
  // `session` must outlive this object. Files are opened, and the JSON file is emptied, by the first line: a
  // program that is refused before leaves them as they were. When that line is not of step 0 a run goes on:
  // lines of steps before it stay in the JSON file. TensorBoard is told to forget what earlier files of its
  // folder say of the first step and later ones.
  explicit Metrics(const Session& session, const MetricsOptions& options = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Steps in their order: waits for the step, adds the program's `own` scalars and writes all of it at once,
  // so that a run that is killed leaves every finished step. Throws Error when the step has failed, a file
  // cannot be opened or the disk does not take it, or for a name that is empty or given twice.
  void Step(const StepResult& result, const Scalars& own = {});
  // What was measured beside steps, when `step` of them had been made.
  void Add(int64_t step, const Scalars& scalars);

  // Of the last Step: all that was written of it.
  const Scalars& last() const { return last_; }
  // From when this object was made to the end of the last step.
  double seconds() const { return last_end_; }
  // Mean time of a step, without the first one, which also loads the plan, where there are others.
  double step_seconds() const;
  // per_step / step_seconds().
  double rate() const;

 private:
  class Json;
  void AddRates(double seconds, Scalars* scalars) const;
  void Write(int64_t step, const Scalars& scalars);

  const Session& session_;
  const MetricsOptions options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double first_end_ = 0, last_end_ = 0;  // seconds
  int64_t steps_ = 0;
  double flops_ = 0;  // of a step
  Scalars last_;
  std::unique_ptr<Json> json_;               // of process 0, with such a file
  std::unique_ptr<class EventFile> events_;  // from the first line on
};

std::string MinutesAndSeconds(double seconds);  // "1:05"

}  // namespace oneflow_like
