// The numbers of a run, by step.
#include "oneflow_like/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "actor/net/talk/job.h"
#include "compiler/explain.h"
#include "core/formatted.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/launch/event_file.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {
namespace {

// Cuts a log behind its last whole line of a step before `step`. False when it is no file that can be cut.
bool KeepBefore(const std::string& path, int64_t step) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::ifstream in(path, std::ios::binary);
  uintmax_t kept = 0;
  long long of = 0;
  for (std::string line; std::getline(in, line) && !in.eof(); kept += line.size() + 1)
    if (std::sscanf(line.c_str(), "{\"step\":%lld,", &of) != 1 || of >= step) break;
  std::filesystem::resize_file(path, kept, error);
  return !error;
}

// Nine digits are all of a float, which most of these are.
std::string JsonNumber(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value, std::chars_format::general, 9).ptr);
}

void CheckNames(const Scalars& scalars) {
  std::set<std::string> names = {"step"};
  for (const auto& [name, value] : scalars) {
    if (name.empty() || std::any_of(name.begin(), name.end(), [](char c) { return c < ' ' || c > '~'; }))
      Fail("Metrics: '", Shown(name), "' is no name of a scalar, which is printable ASCII");
    if (!names.insert(name).second) Fail("Metrics: '", name, "' is given twice; name yours otherwise");
  }
}

// 0 where the system does not say.
double ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  double whole = 0, resident = 0;
  in >> whole >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace

class Metrics::Json {
 public:
  explicit Json(std::string path) : path_(std::move(path)) {}
  ~Json() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Json(const Json&) = delete;

  void Write(int64_t step, const Scalars& scalars) {
    if (file_ == nullptr) file_ = std::fopen(path_.c_str(), step > 0 && KeepBefore(path_, step) ? "a" : "w");
    if (file_ == nullptr) Fail("cannot open the log file ", path_, ": ", std::strerror(errno));
    std::string line = Cat("{\"step\":", step);
    for (const auto& [name, value] : scalars)
      line += Cat(",", nlohmann::json(name).dump(), ":", JsonNumber(value));
    line += "}\n";
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0)
      Fail("cannot write to the log file ", path_, ": ", std::strerror(errno));
  }

 private:
  const std::string path_;
  std::FILE* file_ = nullptr;
};

Metrics::Metrics(const Session& session, const MetricsOptions& options)
    : session_(session), options_(options) {
  if (session.impl() == nullptr) Fail("Metrics: this Session was moved elsewhere");
  if (!(options.per_step >= 0 && std::isfinite(options.per_step)))
    Fail("MetricsOptions::per_step is ", options.per_step, ", must be 0 (no rates) or more");
  if (!(options.peak_flops >= 0 && std::isfinite(options.peak_flops)))
    Fail("MetricsOptions::peak_flops is ", options.peak_flops, ", must be 0 (not known) or more");
  flops_ = ModelFlops(session.impl()->compiled);
  const Job* job = session.impl()->model->options.job.get();
  if (!options.json.empty() && (!job || job->process() == 0)) json_ = std::make_unique<Json>(options.json);
}

Metrics::~Metrics() = default;

double Metrics::step_seconds() const {
  if (steps_ == 0) return 0;
  return steps_ == 1 ? last_end_ : (last_end_ - first_end_) / static_cast<double>(steps_ - 1);
}

double Metrics::rate() const { return steps_ == 0 ? 0 : options_.per_step / step_seconds(); }

void Metrics::AddRates(double seconds, Scalars* scalars) const {
  const double devices = session_.impl()->compiled.graph.mesh().size();
  if (options_.per_step > 0) {
    scalars->push_back({options_.unit + "_per_s", options_.per_step / seconds});
    scalars->push_back({options_.unit + "_per_s_per_device", options_.per_step / seconds / devices});
  }
  scalars->push_back({"step_ms", 1e3 * seconds});
  if (flops_ == 0) return;
  scalars->push_back({"flops_per_s_per_device", flops_ / seconds / devices});
  if (options_.peak_flops > 0) scalars->push_back({"mfu", flops_ / seconds / devices / options_.peak_flops});
}

void Metrics::Step(const StepResult& result, const Scalars& own) {
  result.Wait();
  const Session::Impl& session = *session_.impl();
  Scalars scalars;
  for (const std::string& name : session.outputs) {
    const HostTensor& value = result.Get(name);
    if (value.elements() != 1 || value.dtype != DType::kFloat32) continue;
    scalars.insert(name == "loss" ? scalars.begin() : scalars.end(), {name, value.as<float>()[0]});
  }
  if (std::isfinite(result.lr_factor()))
    scalars.push_back({session.lr > 0 ? "lr" : "lr_factor",
                       session.lr > 0 ? session.lr * result.lr_factor() : result.lr_factor()});
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  AddRates(now - last_end_, &scalars);
  if (result.data_seconds() >= 0) scalars.push_back({"data_ms", 1e3 * result.data_seconds()});
  int64_t fullest = 0;
  const Store& store = *session.model->store;  // a step has run, so it is there
  for (int rank : store.ranks())
    fullest = std::max(fullest, store.PersistentBytes(rank) + store.ArenaBytes(rank));
  scalars.push_back({"memory_bytes", static_cast<double>(fullest)});
  scalars.push_back({"host_bytes", ResidentBytes()});
  scalars.insert(scalars.end(), own.begin(), own.end());
  last_end_ = now;
  if (++steps_ == 1) first_end_ = now;
  Write(result.step(), scalars);
  last_ = std::move(scalars);
}

void Metrics::Add(int64_t step, const Scalars& scalars) { Write(step, scalars); }

void Metrics::Write(int64_t step, const Scalars& scalars) {
  CheckNames(scalars);
  if (json_) json_->Write(step, scalars);
  const Job* job = session_.impl()->model->options.job.get();
  if (options_.tensorboard.empty() || (job && job->process() != 0)) return;
  if (!events_) events_ = std::make_unique<EventFile>(options_.tensorboard, step);
  events_->Write(step, scalars);
}

std::string MinutesAndSeconds(double seconds) {
  const long long whole = static_cast<long long>(seconds + 0.5);
  return Formatted("%lld:%02lld", whole / 60, whole % 60);
}

}  // namespace oneflow_like
