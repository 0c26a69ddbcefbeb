// Metrics: the numbers of a run by step, as JSON lines, as TensorBoard's event files, and for the program's
// own progress line.
//
//   Metrics metrics(train, {.json = "run.json", .tensorboard = "run", .unit = "tokens", .per_step = 8192});
//   for (...) metrics.Step(train.Run(data), {{"temperature", t}});   // waits for the step
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
  std::string json;              // file with one JSON object a line; empty: none
  std::string tensorboard;       // folder for an event file, created if missing; empty: none
  std::string unit = "samples";  // what a step has `per_step` of, in the whole batch: "tokens"
  double per_step = 0;           // 0: no rates are given
  double peak_flops = 0;         // flops per second of a device, for mfu; 0: not known, no mfu
};

// Metrics of one session. In a job every process creates one and makes the same calls; process 0 writes. Not
// thread-safe.
//
// Each step has these entries in both kinds of file:
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
  // `session` must outlive this object. The first line opens the files and empties the JSON file, so a
  // program that is refused before leaves them unchanged. If the first line is not of step 0, a run is
  // resumed: lines of earlier steps stay in the JSON file, and TensorBoard discards what earlier files of its
  // folder have for this step and later ones.
  explicit Metrics(const Session& session, const MetricsOptions& options = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Call it for steps in their order: waits for the step, adds the program's `own` scalars and writes all of
  // it at once, so that a run that is killed leaves every finished step. Throws Error when the step has
  // failed, a file cannot be opened or written, or for a name that is empty or given twice.
  void Step(const StepResult& result, const Scalars& own = {});
  // Adds values measured between steps, after `step` steps.
  void Add(int64_t step, const Scalars& scalars);

  // Everything that the last Step wrote.
  const Scalars& last() const { return last_; }
  // Seconds from the creation of this object to the end of the last step.
  double seconds() const { return last_end_; }
  // Mean time of a step, without the first one, which also loads the plan (unless it is the only one).
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
