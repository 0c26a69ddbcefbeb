// The JSON lines of step_log.h.
#include "examples/step_log.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"

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

}  // namespace

StepLog::StepLog(const std::string& path) : path_(path) {}

StepLog::~StepLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void StepLog::Write(int64_t step, float loss, const char* rate_name, double rate, double step_ms) {
  if (path_.empty()) return;
  if (file_ == nullptr) file_ = std::fopen(path_.c_str(), step > 0 && KeepBefore(path_, step) ? "a" : "w");
  if (file_ == nullptr) Fail("cannot open the log file ", path_, ": ", std::strerror(errno));
  const int printed =
      std::fprintf(file_, "{\"step\":%lld,\"loss\":%.9g,\"%s\":%.1f,\"step_ms\":%.3f}\n",
                   static_cast<long long>(step), static_cast<double>(loss), rate_name, rate, step_ms);
  if (printed < 0 || std::fflush(file_) != 0) {
    Fail("cannot write to the log file ", path_, ": ", std::strerror(errno));
  }
}

std::string MinutesAndSeconds(double seconds) {
  char text[32];
  const long long whole = static_cast<long long>(seconds + 0.5);
  std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  return text;
}

}  // namespace oneflow_like
