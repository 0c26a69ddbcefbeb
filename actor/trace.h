// Traces: what every stream did when, kept while running in a buffer of each thread, and written in the JSON
// array format that ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "actor/clock.h"
#include "core/plan.pb.h"

namespace oneflow_like {

// An act (kernel -1), or one kernel of an act; of a collective's kernel the own work alone.
struct TraceRecord {
  int64_t start = 0, end = 0;  // ticks
  int64_t step = 0;
  int32_t rank = 0, actor = 0, act = 0, kernel = -1;  // actor: its id
};

// Of one thread: never grows; what does not fit is counted.
class TraceBuffer {
 public:
  explicit TraceBuffer(int64_t capacity = 0) : records_(capacity) {}
  bool on() const { return !records_.empty(); }
  void Add(const TraceRecord& record) {
    if (used_ < static_cast<int64_t>(records_.size())) {
      records_[used_++] = record;
    } else {
      ++dropped_;
    }
  }
  const TraceRecord* begin() const { return records_.data(); }
  const TraceRecord* end() const { return records_.data() + used_; }
  int64_t dropped() const { return dropped_; }

 private:
  std::vector<TraceRecord> records_;
  int64_t used_ = 0, dropped_ = 0;
};

// Reads the events of a TraceFile back, so that files become one.
class TraceReader {
 public:
  explicit TraceReader(const std::string& path) : in_(path, std::ios::binary) {}
  // About so many bytes of whole events for TraceFile::AddEvents; empty at the end.
  std::string Next(size_t bytes);

 private:
  std::ifstream in_;
};

// A file that several runtimes may add to, one after another. It is a whole JSON array after every call.
class TraceFile {
 public:
  // Throws Error when the file cannot be written, but leaves it as it is. Times in the file count from here.
  explicit TraceFile(const std::string& path);
  // Empties the file, the first time: once there is going to be a trace, which a refused program has none of.
  void Start();

  // Adds the records of one runtime. One process for each rank, one row for each of its streams (and one for
  // feeds and fetches); acts of a stream that overlap, as collectives under way do, take further rows ("link
  // 2"). Returns how many records are not in the file since a buffer was full. Throws Error when the disk is
  // full.
  int64_t Add(const std::vector<plan::Plan>& plans, const std::vector<TraceBuffer>& buffers,
              const TickScale& scale);

  // Times added from here on count from this moment of the steady clock.
  void SetOrigin(int64_t nanoseconds) { origin_ = nanoseconds; }
  // Adds what TraceReader has read of other files.
  void AddEvents(const std::string& events);

  const std::string& path() const { return path_; }

 private:
  void Begin();
  void End();
  void Event(const std::string& json);
  void Flush();

  std::string path_;
  std::ofstream out_;
  int64_t origin_;  // nanoseconds of the steady clock
  bool started_ = false, empty_ = true;
};

}  // namespace oneflow_like
