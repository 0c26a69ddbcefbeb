#include "tests/fuzz/readers.h"

#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "examples/gpt_huggingface.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/text/json_text.h"
#include "tests/error_of.h"

namespace oneflow_like {

using namespace examples;
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Entry = SafetensorsWriter::Entry;

constexpr int64_t kMostRead = 1 << 16;  // bytes of a variable

void Put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void WriteFile(const std::string& path, const std::vector<Entry>& entries) {
  SafetensorsWriter writer(path, entries);
  for (const Entry& entry : entries) {
    std::string data(entry.shape.elements() * SizeOf(entry.dtype), '\0');
    for (size_t i = 0; i < data.size(); ++i)
      data[i] = static_cast<char>(entry.dtype == DType::kBool ? i % 2 : i * 7 % 60);
    writer.Write(entry.name, 0, data.data(), static_cast<int64_t>(data.size()));
  }
}

void MakeCheckpointFiles(const std::string& folder) {
  WriteFile(folder + "/model-0.safetensors", {{"w@[0,0]", DType::kFloat32, {2, 3}},
                                              {"n", DType::kInt64, {2}},
                                              {"h", DType::kBFloat16, {2, 2, 2}},
                                              {"none", DType::kUInt8, {0, 3}}});
  WriteFile(
      folder + "/model-1.safetensors",
      {{"w@[2,0]", DType::kFloat32, {1, 3}}, {"scalar", DType::kFloat16, {}}, {"b", DType::kBool, {5}}});
  fs::create_directories(folder + "/more");
  Put(folder + "/words.txt", "ab");
  Put(folder + "/more/words.txt", "");
}

void MakeGpt(const std::string& path) {
  std::vector<Entry> entries;
  for (const NameRow& row :
       Gpt2Names({.layers = 1, .width = 4, .heads = 2, .context = 3, .vocabulary = 5}).rows)
    entries.push_back({row.theirs, DType::kFloat32, RowLayout(row).shape});
  WriteFile(path, entries);
}

// Its first and its last element, and all of it if it is small.
void ReadVariables(VariableSource& source) {
  std::string data;
  for (const auto& [name, variable] : source.variables()) {
    const Dims& shape = variable.shape;
    if (Box::Whole(shape).empty()) continue;
    Box first{Dims(shape.rank(), 0), Dims(shape.rank(), 1)}, last = first;
    for (int a = 0; a < shape.rank(); ++a) last.begin[a] = shape[a] - 1;
    data.resize(std::max<int64_t>(SizeOf(variable.dtype), std::min(kMostRead, variable.bytes())));
    source.Read(name, first, data.data());
    source.Read(name, last, data.data());
    if (variable.bytes() <= kMostRead) source.Read(name, Box::Whole(shape), data.data());
  }
}

}  // namespace

FuzzedReaders::FuzzedReaders(const std::string& parent)
    : folder_(parent + "/fuzzed_readers." + std::to_string(getpid())) {
  for (const char* part : {"checkpoint", "gpt2", "shards"}) fs::create_directories(folder_ + "/" + part);
  MakeCheckpointFiles(folder_ + "/checkpoint");
  MakeGpt(folder_ + "/gpt2/model.safetensors");
  MakeCheckpointFiles(folder_ + "/shards");
}

FuzzedReaders::~FuzzedReaders() {
  std::error_code error;
  fs::remove_all(folder_, error);
}

std::string FuzzedReaders::Try(const std::function<void()>& read) const {
  const std::string error = ErrorOf(read);
  if (!error.empty() && error.rfind(folder_ + "/", 0) != 0)
    throw std::logic_error("an Error that does not begin with the file: " + error);
  return error;
}

std::string FuzzedReaders::Safetensors(const std::string& bytes) {
  const std::string path = folder_ + "/file.safetensors";
  Put(path, bytes);
  return Try([&] {
    const SafetensorsReader reader(path);
    FileSource source(path);
    if (source.others().size() != reader.others().size()) throw std::logic_error("tensors are lost");
    std::string data;
    for (const auto& [name, tensor] : reader.tensors()) {
      data.resize(tensor.bytes());
      source.Read(name, Box::Whole(tensor.shape), data.data());
      if (data != bytes.substr(tensor.offset, tensor.bytes()))
        throw std::logic_error("other values than the file has");
    }
    ReadVariables(source);
  });
}

std::string FuzzedReaders::Index(const std::string& bytes) {
  const std::string folder = folder_ + "/checkpoint";
  Put(folder + "/" + CheckpointIndex::kFile, bytes);
  return Try([&] {
    CheckpointIndex::IsOurs(folder);
    CheckpointReader reader(folder);
    reader.index().ToJson();
    reader.OpenAll();
    for (const auto& [file, stored] : reader.index().files) reader.Contents(file);
    ReadVariables(reader);
  });
}

std::string FuzzedReaders::IndexWithChecksum(const std::string& bytes) {
  json all;
  Try([&] { all = ParseJson(folder_ + "/" + CheckpointIndex::kFile, bytes); });
  if (!all.is_object()) return Index(bytes);
  all.erase("checksum");
  const std::string text = all.dump();
  all["checksum"] = static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
  return Index(all.dump());
}

std::string FuzzedReaders::Config(const std::string& bytes) {
  const std::string folder = folder_ + "/gpt2";
  Put(folder + "/config.json", bytes);
  return Try([&] { ReadVariables(*Gpt2Format().read(folder)); });
}

std::string FuzzedReaders::Shards(const std::string& bytes) {
  const std::string folder = folder_ + "/shards";
  Put(folder + "/" + CheckpointIndex::kFile, bytes);
  return Try([&] {
    FileSource source(folder);
    ReadVariables(source);
  });
}

}  // namespace oneflow_like
