#include <algorithm>
#include <cstring>
#include <filesystem>

#include "oneflow_like/checkpoint.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/saving.h"
#include "oneflow_like/checkpoint/together.h"
#include "oneflow_like/pieces.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

void ReadHere(const ModelImpl& model, const std::string& name, CheckpointReader* reader) {
  for (int rank : model.store->ranks()) {
    if (model.store->Find(rank, name) == nullptr) continue;
    LocalPiece piece(model, rank, name);
    ForEachRun(piece.box(), piece.box(), MostElements(model.variables.at(name).dtype), [&](const Box& run) {
      reader->Read(name, run, piece.staging());
      piece.Put(run);
    });
  }
}

// "'a', 'b' and 3 more"
std::string List(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += Cat(i ? ", " : "", "'", names[i], "'");
  return names.size() > kShown ? Cat(text, " and ", names.size() - kShown, " more") : text;
}

bool IsWeight(const std::string& variable) { return variable.find(':') == std::string::npos; }

// The variables to read; throws Error for what does not fit.
std::vector<std::string> ToRead(const ModelImpl& model, const std::string& path, const CheckpointIndex& index,
                                const LoadOptions& options) {
  std::vector<std::string> wanted, missing, unknown, different;
  for (const auto& [name, variable] : model.variables) {
    if (options.weights_only && !IsWeight(name)) continue;
    auto stored = index.variables.find(name);
    if (stored == index.variables.end()) {
      missing.push_back(name);
    } else if (stored->second.shape != variable.shape || stored->second.dtype != variable.dtype) {
      different.push_back(Cat("'", name, "' is ", Name(variable.dtype), variable.shape.str(), " here but ",
                              Name(stored->second.dtype), stored->second.shape.str(), " there"));
    } else {
      wanted.push_back(name);
    }
  }
  for (const auto& [name, stored] : index.variables)
    if (!model.variables.count(name) && !(options.weights_only && !IsWeight(name))) unknown.push_back(name);
  std::string wrong;
  if (!missing.empty() && !options.partial) wrong += Cat("; it lacks ", List(missing));
  if (!unknown.empty() && !options.partial) wrong += Cat("; the model has no ", List(unknown));
  for (const std::string& text : different) wrong += "; " + text;
  if (!wrong.empty()) Fail("checkpoint ", path, " does not fit the model: ", wrong.substr(2));
  return wanted;
}

}  // namespace

std::vector<std::string> Checkpoints(const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kStepPrefix, 0) != 0 || !fs::exists(entry.path() / CheckpointIndex::kFile, error)) continue;
    found.push_back({std::atoll(name.c_str() + std::strlen(kStepPrefix)), entry.path().string()});
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(path);
  return paths;
}

Loaded Load(Model& model, const std::string& path, const LoadOptions& options) {
  ModelImpl* impl = model.impl();
  impl->Load();
  impl->WaitIdle();
  if (impl->saving) impl->saving->WaitCopied();
  Loaded loaded;
  // What process 0 finds: a newer one may be complete when the others look.
  loaded.path = Together(*impl, "checkpoint is found", [&] {
    std::error_code error;
    if (fs::exists(fs::path(path) / CheckpointIndex::kFile, error)) return path;
    const std::vector<std::string> all = Checkpoints(path);
    if (all.empty()) Fail(path, ": there is no complete checkpoint in it");
    return all.back();
  })[0];
  Together(*impl, "checkpoint is read", [&] {
    CheckpointReader reader(loaded.path);
    const CheckpointIndex& index = reader.index();
    if (!options.weights_only && index.seed != impl->options.seed)
      Fail("checkpoint ", loaded.path, " is of a run with seed ", index.seed, ", but the model has seed ",
           impl->options.seed, ", with which it would not go on as it began");
    for (const std::string& name : ToRead(*impl, loaded.path, index, options)) {
      impl->Require(name);
      ReadHere(*impl, name, &reader);
    }
    loaded.steps = index.steps;
    loaded.state = index.state;
    return "";
  });
  if (!options.weights_only)
    for (const auto& [name, step] : loaded.steps) model.SetNextStep(name, step);
  return loaded;
}

}  // namespace oneflow_like
