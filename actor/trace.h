// Traces: the acts of every stream with their times, kept in a buffer of each thread while running, and
// written in the JSON array format that ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "actor/clock.h"
#include "core/plan.pb.h"

namespace oneflow_like {

// An act (kernel -1), or one kernel of an act; for a collective's kernel only the own work.
struct TraceRecord {
  int64_t start = 0, end = 0;  // ticks
  int64_t step = 0;
  int32_t rank = 0, actor = 0, act = 0, kernel = -1;  // actor: its id
};

// The buffer of one thread: never grows; records that do not fit are counted.
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

// Reads the events of a TraceFile back, to join several files.
class TraceReader {
 public:
  explicit TraceReader(const std::string& path) : in_(path, std::ios::binary) {}
  // About `bytes` bytes of whole events for TraceFile::AddEvents; empty at the end.
  std::string Next(size_t bytes);

 private:
  std::ifstream in_;
};

// A file to which several runtimes may add, one after another. It is a valid JSON array after every call.
class TraceFile {
 public:
  // Throws Error when the file cannot be written, but does not change it. Times in the file count from this
  // call.
  explicit TraceFile(const std::string& path);
  // Empties the file, the first time: called once it is certain that there will be a trace, so that a refused
  // program leaves the file unchanged.
  void Start();

  // Adds the records of one runtime. One process for each rank, one row for each of its streams (and one for
  // feeds and fetches); acts of a stream that overlap, as collectives under way do, take further rows ("link
  // 2"). Returns how many records are missing because a buffer was full. Throws Error when the disk is full.
  int64_t Add(const std::vector<plan::Plan>& plans, const std::vector<TraceBuffer>& buffers,
              const TickScale& scale);

  // Times added from here on count from this moment of the steady clock.
  void SetOrigin(int64_t nanoseconds) { origin_ = nanoseconds; }
  // Adds events that TraceReader has read from other files.
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
  int error_ = 0;  // the first of a write: the system's number
};

}  // namespace oneflow_like
