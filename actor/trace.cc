// Writes traces: finds a row for every act, and what to call it.
#include "actor/trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "actor/profile.h"
#include "core/error.h"
#include "core/formatted.h"
#include "core/system/file_check.h"

namespace oneflow_like {
namespace {

std::string Quoted(const std::string& text) {
  std::string json = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      json += Cat('\\', c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += Formatted("\\u%04x", c);
    } else {
      json += c;
    }
  }
  return json + '"';
}

// Microseconds, with three decimals.
std::string Microseconds(int64_t nanoseconds) {
  const long long size = std::abs(nanoseconds);
  return Formatted("%s%lld.%03lld", nanoseconds < 0 ? "-" : "", size / 1000, size % 1000);
}

std::string Metadata(const std::string& what, int pid, int tid, const std::string& args) {
  return Cat(R"({"ph":"M","name":")", what, R"(","pid":)", pid, R"(,"tid":)", tid, R"(,"args":{)", args,
             "}}");
}

// Rows of one stream are numbered from a multiple of this: more than that many collectives are never under
// way.
constexpr int kRowsOfStream = 1000;

// The rows of one rank, and what its actors are called.
class RankRows {
 public:
  explicit RankRows(const plan::Plan& plan) : plan_(plan) {
    for (const plan::Actor& actor : plan.actor()) actors_[actor.id()] = &actor;
  }

  const plan::Actor& actor(int id) const { return *actors_.at(id); }

  // The first row of the stream that is free by then. REQUIRES: called in the order of `start`.
  int RowFor(const plan::Actor& actor, int64_t start, int64_t end) {
    int stream = actor.stream() < 0 ? plan_.stream_size() : actor.stream();
    std::vector<int64_t>& free_at = free_at_[stream];
    size_t row = 0;
    while (row < free_at.size() && free_at[row] > start) ++row;
    if (row == free_at.size()) free_at.push_back(0);
    free_at[row] = end;
    return stream * kRowsOfStream + static_cast<int>(row);
  }

  // Names of process and rows.
  std::vector<std::string> Names() const {
    int pid = plan_.rank();
    std::vector<std::string> events = {Metadata("process_name", pid, 0, Cat(R"("name":"rank )", pid, '"')),
                                       Metadata("process_sort_index", pid, 0, Cat(R"("sort_index":)", pid))};
    for (const auto& [stream, free_at] : free_at_) {
      std::string name =
          stream < plan_.stream_size() ? plan_.stream(stream).name() : std::string("feeds and fetches");
      for (size_t row = 0; row < free_at.size(); ++row) {
        int tid = stream * kRowsOfStream + static_cast<int>(row);
        events.push_back(Metadata("thread_name", pid, tid,
                                  Cat(R"("name":)", Quoted(row == 0 ? name : Cat(name, " ", row + 1)))));
        events.push_back(Metadata("thread_sort_index", pid, tid, Cat(R"("sort_index":)", tid)));
      }
    }
    return events;
  }

 private:
  const plan::Plan& plan_;
  std::map<int, const plan::Actor*> actors_;
  std::map<int, std::vector<int64_t>> free_at_;  // by stream, by row
};

using ActKey = std::tuple<int, int, int64_t, int>;  // rank, actor, step, act
ActKey KeyOf(const TraceRecord& r) { return {r.rank, r.actor, r.step, r.act}; }

}  // namespace

TraceFile::TraceFile(const std::string& path) : path_(path), origin_(SteadyNanoseconds()) {
  const std::string why = WhyNotWritable(path);
  if (!why.empty()) Fail("trace file '", path, "' cannot be written: ", why);
  if (FileIdentity(path).empty()) Start();  // there are no contents to keep
}

void TraceFile::Start() {
  if (std::exchange(started_, true)) return;
  errno = 0;
  out_.open(path_, std::ios::binary | std::ios::trunc);
  if (!out_) Fail("trace file '", path_, "' cannot be written: ", std::strerror(errno));
  out_ << "[\n]\n";
  Flush();
}

void TraceFile::Flush() {
  if (error_ == 0) errno = 0;
  if (!out_.flush())
    throw WriteError(
        Cat("trace file '", path_, "' cannot be written: ", std::strerror(error_ != 0 ? error_ : errno)));
}

void TraceFile::Event(const std::string& json) {
  errno = 0;
  if (!(out_ << (empty_ ? "" : ",\n") << json) && error_ == 0) error_ = errno;
  empty_ = false;
}

// Before the closing bracket of the last call.
void TraceFile::Begin() {
  Start();
  out_.seekp(-static_cast<int>(std::strlen(empty_ ? "]\n" : "\n]\n")), std::ios::end);
}

void TraceFile::End() {
  out_ << (empty_ ? "]\n" : "\n]\n");
  Flush();
}

void TraceFile::AddEvents(const std::string& events) {
  Begin();
  if (!events.empty()) Event(events);
  End();
}

std::string TraceReader::Next(size_t bytes) {
  std::string events;
  for (std::string line; events.size() < bytes && std::getline(in_, line);) {
    if (line.empty() || line[0] != '{') continue;  // brackets
    if (line.back() == ',') line.pop_back();
    events += Cat(events.empty() ? "" : ",\n", line);
  }
  return events;
}

int64_t TraceFile::Add(const std::vector<plan::Plan>& plans, const std::vector<TraceBuffer>& buffers,
                       const TickScale& scale) {
  std::map<int, RankRows> ranks;
  std::string session = plans.empty() ? "" : Quoted(plans[0].name());
  for (const plan::Plan& plan : plans) ranks.emplace(plan.rank(), RankRows(plan));
  int64_t missing = 0;
  std::vector<const TraceRecord*> acts, kernels;
  for (const TraceBuffer& buffer : buffers) {
    missing += buffer.dropped();
    for (const TraceRecord& r : buffer) (r.kernel < 0 ? acts : kernels).push_back(&r);
  }
  std::stable_sort(acts.begin(), acts.end(), [](auto* a, auto* b) { return a->start < b->start; });
  Begin();
  auto slice = [&](const TraceRecord& r, int row, const std::string& name, const std::string& more) {
    int64_t start = scale.Nanoseconds(r.start) - origin_, end = scale.Nanoseconds(r.end) - origin_;
    Event(Cat(R"({"ph":"X","name":)", Quoted(name), R"(,"cat":)", session, R"(,"pid":)", r.rank, R"(,"tid":)",
              row, R"(,"ts":)", Microseconds(start), R"(,"dur":)", Microseconds(end - start),
              R"(,"args":{"step":)", r.step, R"(,"micro_batch":)", r.act, more, "}}"));
  };
  std::map<ActKey, int> row_of;
  for (const TraceRecord* r : acts) {
    RankRows& rank = ranks.at(r->rank);
    const plan::Actor& actor = rank.actor(r->actor);
    int row = row_of[KeyOf(*r)] = rank.RowFor(actor, r->start, r->end);
    slice(*r, row, actor.name(), "");
  }
  for (const TraceRecord* r : kernels) {
    auto row = row_of.find(KeyOf(*r));
    if (row == row_of.end()) {  // its act did not end, or was not kept
      ++missing;
      continue;
    }
    const plan::Actor& actor = ranks.at(r->rank).actor(r->actor);
    const plan::Kernel& kernel = actor.kernel(r->kernel);
    slice(*r, row->second, KernelLabel(actor, kernel),
          Cat(R"(,"flops":)", static_cast<int64_t>(kernel.flops()), R"(,"bytes":)",
              static_cast<int64_t>(kernel.bytes())));
  }
  for (const auto& [index, rank] : ranks) {
    for (const std::string& name : rank.Names()) Event(name);
  }
  if (missing > 0) {
    Event(Cat(R"({"ph":"i","s":"g","name":"the trace is full: )", missing,
              R"( slices are not kept","pid":0,"tid":0,"ts":)",
              Microseconds(acts.empty() ? 0 : scale.Nanoseconds(acts.back()->end) - origin_), "}"));
  }
  End();
  return missing;
}

}  // namespace oneflow_like
