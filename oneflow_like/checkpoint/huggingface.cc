#include "oneflow_like/checkpoint/huggingface.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "oneflow_like/text/utf8.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kMostBeside = 64 << 20;  // bytes of a file

constexpr const char* kBeside[] = {kConfigFile,
                                   kGenerationFile,
                                   "tokenizer*",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "vocab*",
                                   "merges.txt",
                                   "*.model",
                                   "*.tiktoken",
                                   "*.jinja",
                                   "chat_template*",
                                   "*processor_config.json",
                                   "*.py",
                                   "LICENSE*",
                                   "NOTICE*",
                                   "USE_POLICY*"};
// Of which these are no small files of a model but tensors, or data that somebody keeps there.
constexpr const char* kNotBeside[] = {"*.safetensors", "*.bin",  "*.pt",   "*.pth", "*.h5",  "*.msgpack",
                                      "*.onnx",        "*.gguf", "*.ckpt", "*.npy", "*.npz", "*.index.json"};
// transformers keeps a model's second and later templates there.
constexpr const char* kTemplates = "additional_chat_templates";

template <size_t n>
bool MatchesOne(const std::string& name, const char* const (&patterns)[n]) {
  return std::any_of(std::begin(patterns), std::end(patterns),
                     [&](const char* pattern) { return fnmatch(pattern, name.c_str(), FNM_CASEFOLD) == 0; });
}

void AddFiles(const std::string& folder, const std::string& prefix, FolderFiles* files) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name[0] == '.' || !MatchesOne(name, kBeside) || MatchesOne(name, kNotBeside) || !IsUtf8(name) ||
        !entry.is_regular_file(error) || entry.file_size(error) > kMostBeside || error)
      continue;
    (*files)[prefix + name] = ReadText(entry.path().string(), kMostBeside);
  }
}

// The one type of all floating tensors, as config.json names it; empty: there are several, or none.
std::string TypeOfTensors(const VariableSource& source) {
  std::string type;
  for (const auto& [name, variable] : source.variables()) {
    if (!IsFloating(variable.dtype)) continue;
    const char* here = variable.dtype == DType::kFloat32    ? "float32"
                       : variable.dtype == DType::kBFloat16 ? "bfloat16"
                                                            : "float16";
    if (!type.empty() && type != here) return "";
    type = here;
  }
  return type;
}

// In lines, with the type that the tensors have.
std::string WrittenConfig(const std::string& config, const VariableSource& source) {
  ordered_json all = ordered_json::parse(config, nullptr, false);
  if (!all.is_object()) Fail(source.where(), ": the ", kConfigFile, " of its model is no JSON object");
  const std::string type = TypeOfTensors(source);
  for (const char* entry : {"dtype", "torch_dtype"})
    if (all.contains(entry) && all[entry].is_string() && !type.empty()) all[entry] = type;
  return all.dump(2) + "\n";
}

void PutFile(const std::string& folder, const std::string& name, const std::string& contents) {
  const fs::path path = fs::path(folder) / name;
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  File file(path.string(), File::kCreate);
  file.WriteAt(0, contents.data(), static_cast<int64_t>(contents.size()));
  file.Sync();
  if (path.parent_path() != fs::path(folder)) SyncFolder(path.parent_path().string());
}

}  // namespace

FolderFiles ReadFolderFiles(const std::string& folder) {
  FolderFiles files;
  AddFiles(folder, "", &files);
  AddFiles(folder + "/" + kTemplates, std::string(kTemplates) + "/", &files);
  return files;
}

void WriteHuggingFace(std::shared_ptr<VariableSource> ours, const NameTable& table, const std::string& config,
                      const FolderFiles& files, const std::string& folder) {
  TheirNames theirs(std::move(ours), table);
  const std::string written = WrittenConfig(config, theirs);
  WriteBeside(folder, [&](const std::string& partial) {
    std::error_code error;
    fs::create_directory(partial, error);
    if (error) Fail(partial, ": it cannot be made: ", error.message());
    // transformers refuses a file that does not say so.
    WriteTensors(theirs, partial + "/model.safetensors", {{"format", "pt"}});
    for (const auto& [name, contents] : files)
      if (name != kConfigFile) PutFile(partial, name, contents);
    PutFile(partial, kConfigFile, written);
    SyncFolder(partial);
  });
}

}  // namespace oneflow_like
