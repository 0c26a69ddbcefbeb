// Finding lines of click logs, and turning them into numbers.
#include "oneflow_like/data/clicks.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "core/hash_bytes.h"
#include "core/random.h"

namespace oneflow_like {
namespace {

constexpr int64_t kIndexed = 64;  // lines

// The line's end, behind the last byte before its newline.
int64_t EndOfLine(const MappedFile& file, int64_t begin) {
  const void* end = std::memchr(file.data() + begin, '\n', file.size() - begin);
  return end == nullptr ? file.size() : static_cast<const uint8_t*>(end) - file.data();
}

// Behind the last line that has anything in it: blank ones at the end are none.
int64_t EndOfLines(const MappedFile& file) {
  int64_t end = file.size();
  while (end > 0 && (file.data()[end - 1] == '\n' || file.data()[end - 1] == '\r')) --end;
  return end;
}

// A finite number as people and programs write it; "+1" and what is too small for a float are some.
bool IsNumber(std::string_view word, float* value) {
  if (word.starts_with('+') && !word.starts_with("+-")) word.remove_prefix(1);
  double wide = 0;
  const char* end = word.data() + word.size();
  if (const auto [rest, error] = std::from_chars(word.data(), end, *value);
      error != std::errc::result_out_of_range)
    return error == std::errc() && rest == end && std::isfinite(*value);
  const auto [rest, error] = std::from_chars(word.data(), end, wide);
  if (error != std::errc() || rest != end || std::fabs(wide) > std::numeric_limits<float>::max())
    return false;
  *value = static_cast<float>(wide);
  return true;
}

}  // namespace

ClickLog::ClickLog(const std::string& pattern, const ClickLogOptions& options) : options_(options) {
  if (options.dense < 0 || options.categorical < 0 || options.dense + options.categorical < 1)
    Fail(pattern, ": a click log of ", options.dense, " numbers and ", options.categorical,
         " words must have at least one of them");
  if (options.buckets < 1 || options.buckets > INT32_MAX)
    Fail(pattern, ": a click log has ", options.buckets, " buckets, must lie between 1 and ", INT32_MAX);
  fields_ = {{"labels", DType::kFloat32, {}},
             {"dense", DType::kFloat32, {options.dense}},
             {"ids", DType::kInt32, {options.categorical}}};
  for (const std::string& path : FilesOf(pattern)) {
    Log log{std::make_shared<MappedFile>(path), lines_, {}};
    const bool packed = IsGzip(log.file->data(), log.file->size());
    const std::string format = packed ? "gzip" : ForeignFormat(log.file->data(), log.file->size());
    if (!format.empty())
      Fail(path, " at byte 0: a click log must be unpacked lines of text, and this is ", format);
    const std::string_view bytes(reinterpret_cast<const char*>(log.file->data()), log.file->size());
    const int64_t end = EndOfLines(*log.file);
    for (int64_t at = bytes.starts_with("\xEF\xBB\xBF") ? 3 : 0; at < end;
         at = EndOfLine(*log.file, at) + 1) {
      if ((lines_ - log.first) % kIndexed == 0) log.offsets.push_back(at);
      ++lines_;
    }
    logs_.push_back(std::move(log));
  }
  if (lines_ == 0) Fail(pattern, " has no line");
}

std::vector<DataHash> ClickLog::Hashes() const {
  std::vector<DataHash> hashes;
  for (const Log& log : logs_)
    hashes.push_back({log.file->path(), log.file->size(),
                      HashOfSome(log.file->data(), log.file->size(), HashedBytes(logs_.size()))});
  return hashes;
}

void ClickLog::Read(const SampleId& id, std::span<void* const> to) const {
  const Log& log = *(std::upper_bound(logs_.begin(), logs_.end(), id.index,
                                      [](int64_t line, const Log& l) { return line < l.first; }) -
                     1);
  const int64_t line = id.index - log.first;
  int64_t begin = log.offsets[line / kIndexed];
  for (int64_t i = 0; i < line % kIndexed; ++i) begin = EndOfLine(*log.file, begin) + 1;
  int64_t end = EndOfLine(*log.file, begin);
  if (end > begin && log.file->data()[end - 1] == '\r') --end;
  const std::string_view text(reinterpret_cast<const char*>(log.file->data()) + begin, end - begin);
  const int columns = 1 + options_.dense + options_.categorical;
  const int64_t there = 1 + std::count(text.begin(), text.end(), '\t');
  if (there != columns)
    FailSample(log.file->path(), " at byte ", begin, ": line ", line + 1, " has ", there,
               " columns, must have ", columns);
  size_t at = 0;
  for (int c = 0; c < columns; ++c) {
    const size_t next = std::min(text.find('\t', at), text.size());
    const std::string_view word = text.substr(at, next - at);
    if (c <= options_.dense) {
      float value = 0;
      auto fail = [&](const char* wrong) {
        FailSample(log.file->path(), " at byte ", begin + static_cast<int64_t>(at), ": column ", c + 1,
                   " of line ", line + 1, " is '", Shown(word), "', ", wrong);
      };
      if (!(word.empty() && c > 0) && !IsNumber(word, &value)) fail("not a number");
      if (c == 0 && !(value >= 0 && value <= 1))
        fail("but a label must lie in [0, 1]: 1 for a click, 0 for none");
      if (c == 0)
        *static_cast<float*>(to[0]) = value;
      else
        static_cast<float*>(to[1])[c - 1] = std::log1p(std::max(0.0f, value));
    } else {
      const uint64_t hash = RandomKey(HashOfBytes(word.data(), word.size()), c);
      static_cast<int32_t*>(to[2])[c - 1 - options_.dense] = static_cast<int32_t>(hash % options_.buckets);
    }
    at = next + 1;
  }
}

}  // namespace oneflow_like
