#include "oneflow_like/checkpoint/step_folders.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <regex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/formatted.h"
#include "oneflow_like/checkpoint.h"
#include "oneflow_like/checkpoint/index.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

constexpr const char *kPartial = ".partial", *kOld = ".old.partial";

// Of a hidden name with one of these endings, the step.
std::optional<int64_t> StepOfHidden(const std::string& name, const std::string& ending) {
  if (!name.starts_with('.') || name.size() <= ending.size() || !name.ends_with(ending)) return std::nullopt;
  return StepOfFolder(name.substr(1, name.size() - 1 - ending.size()));
}

// Names are listed before anything is removed, which may change what an iterator finds.
std::vector<fs::path> EntriesOf(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    entries.push_back(entry->path());
  return entries;
}

// A checkpoint whose removal has begun: what is left of it is nobody's but ours, and other files go back to
// where they were put.
void RemoveHidden(const fs::path& hidden, const fs::path& folder) {
  std::error_code error;
  RemoveSaved(hidden);
  if (fs::exists(fs::symlink_status(hidden, error)) && !fs::exists(fs::symlink_status(folder, error)))
    fs::rename(hidden, folder, error);
}

}  // namespace

std::string StepFolder(int64_t step) { return Formatted("step-%08lld", static_cast<long long>(step)); }

std::string PartialFolder(int64_t step) { return Cat(".", StepFolder(step), kPartial); }

std::optional<int64_t> StepOfFolder(const std::string& name) {
  constexpr size_t kPrefix = 5;  // "step-"
  int64_t step = -1;
  if (name.size() <= kPrefix) return std::nullopt;
  std::from_chars(name.data() + kPrefix, name.data() + name.size(), step);
  return step >= 0 && StepFolder(step) == name ? std::optional(step) : std::nullopt;
}

std::optional<int64_t> StepOfPartial(const std::string& name) { return StepOfHidden(name, kPartial); }

std::vector<std::string> Checkpoints(const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::optional<int64_t> step = StepOfFolder(entry.path().filename().string());
    if (step && fs::exists(entry.path() / CheckpointIndex::kFile, error))
      found.push_back({*step, entry.path().string()});
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(path);
  return paths;
}

std::string ProbeFile(const std::string& token, int process) {
  return Cat(".step-seen-by-", token, "-", process, kPartial);
}

void RemoveUnfinished(const fs::path& folder) {
  static const std::regex probe("\\.step-seen-by-\\w+-\\d+\\.partial");
  std::error_code error;
  for (const fs::path& entry : EntriesOf(folder)) {
    if (fs::is_symlink(entry, error)) continue;
    const std::string name = entry.filename().string();
    if (StepOfPartial(name)) RemoveSaved(entry);
    if (std::regex_match(name, probe)) fs::remove(entry, error);
    if (const std::optional<int64_t> step = StepOfHidden(name, kOld))
      RemoveHidden(entry, folder / StepFolder(*step));
  }
}

void RemoveCheckpoint(const fs::path& folder) {
  std::error_code error;
  if (fs::is_symlink(folder, error) || !StepOfFolder(folder.filename().string())) return;
  const fs::path hidden = folder.parent_path() / Cat(".", folder.filename().string(), kOld);
  fs::rename(folder, hidden, error);
  if (!error) RemoveHidden(hidden, folder);  // what cannot be removed stays
}

void RemoveSaved(const fs::path& folder) {
  static const std::regex names("model-\\d{5,}-of-\\d{5,}\\.safetensors|written-\\d+(\\.new)?|led-by-\\d+");
  std::error_code error;
  std::map<std::string, StoredFile> files;
  try {
    files = CheckpointIndex::Read(folder.string()).files;
  } catch (const Error&) {  // of a damaged index nothing is believed
  }
  fs::remove(folder / CheckpointIndex::kFile, error);
  for (const auto& [name, file] : files) {
    fs::remove(folder / name, error);
    if (const fs::path inner = fs::path(name).parent_path(); !inner.empty())
      fs::remove(folder / inner, error);
  }
  for (const fs::path& entry : EntriesOf(folder))
    if (fs::is_regular_file(fs::symlink_status(entry, error)) &&
        std::regex_match(entry.filename().string(), names))
      fs::remove(entry, error);
  fs::remove(folder, error);  // an empty one alone
}

}  // namespace oneflow_like
