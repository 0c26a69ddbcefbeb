#include "oneflow_like/checkpoint/source.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compiler/graph/training.h"
#include "core/boxes/runs.h"
#include "core/error.h"
#include "core/float16.h"
#include "core/hash_bytes.h"
#include "oneflow_like/checkpoint/index.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/text/json_text.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTensors = "model.safetensors";
constexpr const char* kIndex = CheckpointIndex::kFile;  // Hugging Face's has the same name
constexpr int64_t kMostIndex = int64_t{1} << 28;

void PutNumber(DType dtype, float value, void* data, int64_t index) {
  switch (dtype) {
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[index] = ToBFloat16(value);
      break;
    case DType::kFloat16:
      static_cast<Float16*>(data)[index] = ToFloat16(value);
      break;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

}  // namespace

long double NumberAt(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[index];
    case DType::kBFloat16:
      return ToFloat(static_cast<const BFloat16*>(data)[index]);
    case DType::kFloat16:
      return ToFloat(static_cast<const Float16*>(data)[index]);
    case DType::kInt32:
      return static_cast<const int32_t*>(data)[index];
    case DType::kInt64:
      return static_cast<const int64_t*>(data)[index];
    case DType::kUInt8:
    case DType::kBool:
      return static_cast<const uint8_t*>(data)[index];
  }
  return 0;
}

void ForEachBlock(const SourceVariable& variable, const std::function<void(const Box&)>& use) {
  const Box whole = Box::Whole(variable.shape);
  ForEachRun(whole, whole, ElementsOfBlock(variable.dtype), use);
}

std::string Quoted(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += Cat(i ? ", " : "", "'", names[i], "'");
  return names.size() > kShown ? Cat(text, " and ", names.size() - kShown, " more") : text;
}

std::vector<SourceFact> VariableSource::Facts() const {
  std::string text;
  for (const auto& [name, variable] : variables_)
    text += Cat(name, ' ', Name(variable.dtype), variable.shape.str(), '\n');
  return {{"the number of tensors", Cat(variables_.size())},
          {"the hash of their names, types and shapes", Hexadecimal(HashOfBytes(text.data(), text.size()))}};
}

void RequireAllReadable(const VariableSource& source) {
  if (source.others().empty()) return;
  const auto& [name, type] = *source.others().begin();
  Fail(source.where(), ": '", name, "' is of type ", type, ", which is not known here",
       source.others().size() == 1 ? "" : Cat(", as ", source.others().size() - 1, " more"));
}

// --- Files ---

FileSource::FileSource(std::string path) : path_(std::move(path)) {
  std::error_code error;
  const std::string tensors = path_ + "/" + kTensors, index = path_ + "/" + kIndex;
  const bool folder = fs::is_directory(path_, error);
  if (folder && !fs::exists(tensors, error)) {
    if (!fs::exists(index, error)) Fail(path_, ": there is neither ", kTensors, " nor ", kIndex, " in it");
    AddShards(index);
    return;
  }
  std::unique_ptr<SafetensorsReader>& file = files_[""];
  file = std::make_unique<SafetensorsReader>(folder ? tensors : path_);
  for (const auto& [name, unused] : file->tensors()) Add(name, file.get());
  for (const auto& [name, unused] : file->others()) Add(name, file.get());
}

void FileSource::AddShards(const std::string& index) {
  const json all = ParseJson(index, ReadText(index, kMostIndex));
  if (!all.is_object() || !all.contains("weight_map") || !all["weight_map"].is_object())
    Fail(index, ": it has no weight_map, which says where tensors are");
  const json::json_pointer format("/metadata/format");
  if (all.contains(format) && all[format] == "oneflow_like")
    Fail(path_, ": it is a checkpoint of this library, not a folder of another's tensors");
  for (const auto& [tensor, name] : all["weight_map"].items()) {
    const std::string file = name.is_string() ? name.get<std::string>() : "";
    if (file.empty() || file.find('/') != std::string::npos || file[0] == '.')
      Fail(index, ": tensor '", tensor, "' is said to be in ", name.dump().substr(0, 60),
           ", which is no file of this folder");
    std::unique_ptr<SafetensorsReader>& reader = files_[file];
    if (!reader) reader = std::make_unique<SafetensorsReader>(path_ + "/" + file);
    Add(tensor, reader.get());
  }
}

void FileSource::Add(const std::string& tensor, const SafetensorsReader* file) {
  if (const auto other = file->others().find(tensor); other != file->others().end()) {
    others_[tensor] = json(other->second.type).dump().substr(0, 40);
    return;
  }
  const StoredTensor& stored = file->Find(tensor);
  variables_[tensor] = {stored.dtype, stored.shape};
  file_of_[tensor] = file;
}

std::vector<SourceFact> FileSource::Facts() const {
  std::vector<SourceFact> facts = VariableSource::Facts();
  std::string some;
  for (const auto& [name, reader] : files_) {
    const File& file = reader->file();
    const uint64_t hash =
        HashOfSome(file.size(), HashedBytes(files_.size()), [&](int64_t offset, int64_t bytes) {
          some.resize(bytes);
          file.ReadAt(offset, some.data(), bytes);
          return some.data();
        });
    facts.push_back({name.empty() ? "the file" : "file " + name,
                     Cat(file.size(), " bytes with hash ", Hexadecimal(hash)), file.path()});
  }
  return facts;
}

void FileSource::Read(const std::string& name, const Box& box, void* to) {
  const SafetensorsReader* file = file_of_.at(name);
  const StoredTensor& tensor = file->Find(name);
  const Box whole = Box::Whole(tensor.shape);
  auto* at = static_cast<char*>(to);  // runs come in the order of the box
  ForEachRun(box, whole, ElementsOfBlock(tensor.dtype), [&](const Box& run) {
    const int64_t bytes = run.elements() * static_cast<int64_t>(SizeOf(tensor.dtype));
    file->file().ReadAt(tensor.offset + OffsetIn(whole, run, tensor.dtype), at, bytes);
    at += bytes;
  });
}

// --- Conversion ---

std::map<std::string, std::string> AveragesIn(const std::string& who, const VariableSource& source,
                                              const std::string& weights) {
  std::map<std::string, std::string> averages;
  if (weights.empty()) return averages;
  const std::string ending = "average";
  if (weights != ending && !weights.ends_with(":" + ending))
    Fail(who, " is \"", weights, "\" but must be empty, \"average\" or \"<training>:average\"");
  for (const auto& [name, variable] : source.variables()) {
    const size_t colon = name.find(':'), slash = name.find('/', colon);
    if (colon == std::string::npos || slash == std::string::npos) continue;
    const std::string state = name.substr(0, slash), weight = name.substr(slash + 1);
    if (weights == ending ? !state.ends_with(":" + ending) : state != weights) continue;
    const auto [other, added] = averages.emplace(weight, name);
    if (!added)
      Fail(who, " is \"", weights, "\", but ", source.where(), " has both '", other->second, "' and '", name,
           "'; say \"", state, "\", for instance");
  }
  if (averages.empty())
    Fail(who, " is \"", weights, "\", but ", source.where(), " has no ",
         weights == ending ? "averages" : Cat("'", weights, "/...'"),
         "; a training keeps them with TrainOptions::average");
  return averages;
}

ConvertedSource::ConvertedSource(std::shared_ptr<VariableSource> from, const Conversion& conversion)
    : from_(std::move(from)), averages_(AveragesIn("weights", *from_, conversion.weights)) {
  others_ = from_->others();
  for (const auto& [name, variable] : from_->variables()) {
    if ((conversion.weights_only || !conversion.weights.empty()) && IsTrainingState(name)) continue;
    variables_[name] = variable;
    if (conversion.dtype && IsFloating(variable.dtype)) variables_[name].dtype = *conversion.dtype;
  }
}

void ConvertedSource::Read(const std::string& variable, const Box& box, void* to) {
  const auto average = averages_.find(variable);
  const std::string& name = average == averages_.end() ? variable : average->second;
  const DType is = from_->variables().at(name).dtype, becomes = variables_.at(variable).dtype;
  if (is == becomes) return from_->Read(name, box, to);
  int64_t at = 0;
  ForEachRun(box, box, ElementsOfBlock(is), [&](const Box& run) {
    run_.resize(run.elements() * SizeOf(is));
    from_->Read(name, run, run_.data());
    for (int64_t i = 0; i < run.elements(); ++i, ++at) {
      const auto value = static_cast<float>(NumberAt(is, run_.data(), i));
      PutNumber(becomes, value, to, at);
      if (std::isfinite(value) && !std::isfinite(NumberAt(becomes, to, at)))
        Fail(where(), ": '", name, "' has ", value, ", more than ", Name(becomes), " can hold");
    }
  });
}

// --- Writing ---

void WriteTensors(VariableSource& source, const std::string& path,
                  const std::map<std::string, std::string>& metadata) {
  RequireAllReadable(source);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, variable] : source.variables())
    entries.push_back({name, variable.dtype, variable.shape});
  SafetensorsWriter writer(path, entries, metadata);
  std::string block;
  for (const SafetensorsWriter::Entry& entry : entries) {
    int64_t offset = 0;
    ForEachBlock({entry.dtype, entry.shape}, [&](const Box& box) {
      block.resize(box.elements() * SizeOf(entry.dtype));
      source.Read(entry.name, box, block.data());
      writer.Write(entry.name, offset, block.data(), static_cast<int64_t>(block.size()));
      offset += static_cast<int64_t>(block.size());
    });
  }
  writer.Sync();
}

void WriteBeside(const std::string& path, const std::function<void(const std::string& partial)>& write) {
  fs::path to = fs::path(path).lexically_normal();
  if (!to.has_filename()) to = to.parent_path();  // of "folder/"
  const fs::path parent = to.has_parent_path() ? to.parent_path() : fs::path(".");
  const fs::path partial = parent / ("." + to.filename().string() + ".partial");
  std::error_code error;
  auto require_free = [&] {
    if (fs::exists(fs::symlink_status(to, error))) Fail(path, ": it is there already");
  };
  require_free();
  if (!fs::is_directory(parent, error))
    Fail(path, ": there is no folder ", parent.string(), " to make it in");
  fs::remove_all(partial, error);  // of one that was interrupted
  try {
    write(partial.string());
    require_free();
    if (std::rename(partial.c_str(), to.c_str()) != 0)
      Fail(partial.string(), " cannot become ", path, ": ", std::strerror(errno));
    SyncFolder(parent.string());
  } catch (...) {
    fs::remove_all(partial, error);
    throw;
  }
}

}  // namespace oneflow_like
