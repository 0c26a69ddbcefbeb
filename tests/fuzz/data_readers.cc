// The readers of data, driven by any bytes.
#include "tests/fuzz/data_readers.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "core/error.h"
#include "oneflow_like/data/clicks.h"
#include "oneflow_like/data/idx.h"
#include "oneflow_like/data/images.h"
#include "oneflow_like/data/tokens.h"

namespace oneflow_like {
namespace {

constexpr int64_t kMostSamples = 64;

// All of them, or the first and the last ones.
void ReadSamples(const SampleSource& source) {
  std::vector<std::string> values;
  std::vector<void*> to;
  for (const SampleField& field : source.fields()) values.emplace_back(field.bytes(), '\0');
  for (std::string& value : values) to.push_back(value.data());
  for (int64_t i = 0; i < source.samples(); ++i) {
    if (i == kMostSamples) i = std::max(i, source.samples() - kMostSamples);
    try {
      source.Read({1, 2, i}, to);
    } catch (const BrokenSample&) {
    }
  }
}

void ReadTokens(const std::string& path) {
  Tokens tokens = Tokens::Open(path);
  tokens.CutDocumentsAt(10);
  if (tokens.size() > 0) tokens.Vocabulary();
  if (tokens.size() > 1) ReadSamples(TokenRows(tokens, {.context = 5, .documents = true, .tail = true}));
}

}  // namespace

FuzzedData::FuzzedData(const std::string& parent)
    : folder_(parent + "/fuzzed_data." + std::to_string(getpid())) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/megatron.bin", std::ios::binary) << std::string(24, '\1');
}

FuzzedData::~FuzzedData() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

std::string FuzzedData::Read(const std::string& bytes) {
  static const char* const kNames[] = {"llmc.bin", "megatron.idx", "numbers.npy", "text",
                                       "idx",      "clicks",       "picture"};
  const size_t kind = bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]) % std::size(kNames);
  const std::string path = folder_ + "/" + kNames[kind],
                    rest = bytes.substr(std::min<size_t>(1, bytes.size()));
  std::ofstream(path, std::ios::binary) << rest;
  try {
    if (kind < 4) ReadTokens(path);
    if (kind == 4) LoadIdx(path, 1 + static_cast<int>(bytes.size() % 3));
    if (kind == 5) ReadSamples(ClickLog(path, {.dense = 2, .categorical = 2, .buckets = 100}));
    if (kind == 6) Decode(reinterpret_cast<const uint8_t*>(rest.data()), rest.size(), path, 8);
  } catch (const Error& error) {
    const std::string said = error.what();
    if (said.find(folder_) == std::string::npos || said.find('\n') != std::string::npos)
      throw std::logic_error("an Error that is not a sentence with the file: " + said);
    return said;
  }
  return "";
}

}  // namespace oneflow_like
