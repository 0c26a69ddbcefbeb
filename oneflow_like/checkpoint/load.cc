#include <glog/logging.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <regex>

#include "compiler/graph/training.h"
#include "oneflow_like/checkpoint.h"
#include "oneflow_like/checkpoint/common_checkpoint.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/saving.h"
#include "oneflow_like/checkpoint/step_folders.h"
#include "oneflow_like/checkpoint/team.h"
#include "oneflow_like/job/source_check.h"
#include "oneflow_like/job/together.h"
#include "oneflow_like/model/pieces.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// The source's names by those they become.
using Names = std::map<std::string, std::string>;

Names Renamed(const VariableSource& source, const LoadOptions& options) {
  Names names;
  std::vector<std::pair<std::regex, std::string>> patterns;
  for (const auto& [pattern, text] : options.rename) try {
      patterns.push_back({std::regex(pattern), text});
    } catch (const std::regex_error&) {
      Fail("LoadOptions::rename: '", pattern, "' is no regular expression");
    }
  for (const auto& [name, variable] : source.variables()) {
    std::string becomes = name;
    for (const auto& [pattern, text] : patterns) becomes = std::regex_replace(becomes, pattern, text);
    const auto [at, added] = names.emplace(becomes, name);
    if (!added)
      Fail("checkpoint ", source.where(), ": both '", at->second, "' and '", name, "' become '", becomes,
           "' by LoadOptions::rename");
  }
  return names;
}

// Averages of weights (TrainOptions::average) by training: the averages, and the number of their updates.
std::map<std::string, std::vector<std::string>> AveragesIn(const std::vector<std::string>& names) {
  std::map<std::string, std::vector<std::string>> found;
  for (const std::string& name : names) {
    const size_t colon = name.find(':');
    const std::string state = colon == std::string::npos ? "" : name.substr(colon);
    if (state == kAverages || state.starts_with(Cat(":", kAverage, "/")))
      found[name.substr(0, colon)].push_back(name);
  }
  return found;
}

// Takes the averages of those trainings out of `names` of which `others` has none, and returns them: a
// training may begin to keep averages in the middle, or no longer keep any.
std::vector<std::string> TakeAverages(std::vector<std::string>* names,
                                      const std::vector<std::string>& others) {
  const auto here = AveragesIn(*names), there = AveragesIn(others);
  std::vector<std::string> taken;
  for (const auto& [training, averages] : here)
    if (!there.count(training)) taken.insert(taken.end(), averages.begin(), averages.end());
  std::erase_if(*names, [&](const std::string& name) {
    return std::find(taken.begin(), taken.end(), name) != taken.end();
  });
  return taken;
}

// The variables to read; throws Error for what does not fit. `dropped`: averages that nothing here keeps.
std::vector<std::string> ToRead(const ModelImpl& model, const VariableSource& source, const Names& names,
                                const LoadOptions& options, std::vector<std::string>* dropped) {
  auto wants = [&](const std::string& name) { return !options.weights_only || !IsTrainingState(name); };
  std::vector<std::string> wanted, missing, unknown, different, different_state;
  for (const auto& [name, variable] : model.variables) {
    if (!wants(name)) continue;
    auto stored = names.find(name);
    if (stored == names.end()) {
      missing.push_back(name);
      continue;
    }
    const SourceVariable& there = source.variables().at(stored->second);
    if (there.shape != variable.shape || there.dtype != variable.dtype)
      (IsTrainingState(name) ? different_state : different)
          .push_back(Cat("'", name, "' is ", Name(variable.dtype), variable.shape.str(), " here but ",
                         Name(there.dtype), there.shape.str(), " there"));
    wanted.push_back(name);
  }
  for (const auto& [name, stored] : names)
    if (!model.variables.count(name) && wants(name)) unknown.push_back(name);
  for (const auto& [name, type] : source.others())
    if (model.variables.count(name) || !options.partial)
      different.push_back(Cat("'", name, "' is of type ", type, ", which is not known here"));
  std::vector<std::string> here, there;
  for (const auto& [name, variable] : model.variables) here.push_back(name);
  for (const auto& [name, stored] : names) there.push_back(name);
  TakeAverages(&missing, there);  // they begin here, with the weights
  *dropped = TakeAverages(&unknown, here);
  std::string wrong;
  if (!missing.empty() && !options.partial) wrong += Cat("; it lacks ", Quoted(missing));
  if (!unknown.empty() && !options.partial) wrong += Cat("; the model has no ", Quoted(unknown));
  // Of weights first, which state follows.
  different.insert(different.end(), different_state.begin(), different_state.end());
  constexpr size_t kShown = 4;
  for (size_t i = 0; i < std::min(kShown, different.size()); ++i) wrong += "; " + different[i];
  if (different.size() > kShown) wrong += Cat("; ", different.size() - kShown, " more differ");
  if (!wrong.empty()) Fail("checkpoint ", source.where(), " does not fit the model: ", wrong.substr(2));
  return wanted;
}

void ReadHere(const ModelImpl& model, const std::string& name, const std::string& stored,
              VariableSource* source) {
  for (int rank : model.store->ranks()) {
    if (model.store->Find(rank, name) == nullptr) continue;
    LocalPiece piece(model, rank, name);
    ForEachRun(piece.box(), piece.box(), MostElements(model.variables.at(name).dtype), [&](const Box& run) {
      source->Read(stored, run, piece.staging());
      piece.Put(run);
    });
  }
}

// Returns read(), whose Error gets the ending `instead`.
template <typename F>
auto OrElse(const std::string& instead, F&& read) {
  try {
    return read();
  } catch (const Error& error) {
    Fail(error.what(), instead);
  }
}

// Sets what it has left alone, and dropped. An Error while it reads ends with `instead`.
void ReadAll(ModelImpl* model, VariableSource* source, const LoadOptions& options, Loaded* loaded,
             const std::string& instead = "") {
  const Names names = Renamed(*source, options);
  const std::vector<std::string> wanted = ToRead(*model, *source, names, options, &loaded->dropped);
  if (wanted.empty())
    Fail("checkpoint ", source->where(), " has no variable of the model; it has ", Quoted([&] {
           std::vector<std::string> all;
           for (const auto& [name, stored] : names) all.push_back(name);
           return all;
         }()));
  for (const std::string& name : wanted) {
    model->Require(name);
    OrElse(instead, [&] { ReadHere(*model, name, names.at(name), source); });
    ModelVariable& read = model->variables.at(name);
    read.origin = source->where();
    read.compared = false;
  }
  for (const auto& [name, variable] : model->variables)
    if (!(options.weights_only && IsTrainingState(name)) && !names.count(name))
      loaded->left_alone.push_back(name);
}

// A checkpoint, or the newest of a folder that all processes have.
CommonCheckpoint NewestOf(const ModelImpl& model, const std::string& path) {
  CommonCheckpoint newest = NewestInCommon(model.options.job.get(), path);
  std::error_code error;
  if (newest.path.empty() && !fs::exists(path, error)) Fail(path, ": there is nothing of that name");
  if (newest.path.empty())
    Fail(path, ": there is no complete checkpoint in it", model.options.job ? " that all processes see" : "");
  return newest;
}

// The end of an Error about the newest checkpoint of the folder that a user named.
std::string EarlierThan(const std::string& newest, const std::string& folder) {
  if (newest == folder) return "";
  std::string earlier;
  for (const std::string& checkpoint : Checkpoints(folder)) {
    if (fs::path(checkpoint).filename() == fs::path(newest).filename()) break;
    earlier = checkpoint;
  }
  return earlier.empty() ? "" : Cat("; the one before it is ", earlier);
}

// The source, with averages in the place of weights where LoadOptions::weights asks for them.
std::shared_ptr<VariableSource> Chosen(const std::shared_ptr<VariableSource>& source,
                                       const LoadOptions& options) {
  if (options.weights.empty()) return source;
  return std::make_shared<ConvertedSource>(source, Conversion{.weights = options.weights});
}

// Averages that the checkpoint lacks begin with the weights, whatever they were here.
void ResetAverages(Model* model, const std::vector<std::string>& left_alone) {
  for (const std::string& name : left_alone) {
    if (!name.ends_with(kAverages)) continue;
    model->Write(name, HostTensor::Make(DType::kFloat32, {}));
    model->impl()->steps[name.substr(0, name.find(':'))].averaged = false;
  }
}

void BeginLoading(ModelImpl* model) {
  model->Load();
  model->WaitIdle();
  if (model->saving) model->saving->WaitCopied();
}

}  // namespace

Loaded Load(Model& model, const std::string& path, const LoadOptions& user_options) {
  LoadOptions options = user_options;
  options.weights_only = options.weights_only || !options.weights.empty();
  ModelImpl* impl = model.impl();
  BeginLoading(impl);
  Loaded loaded;
  CommonCheckpoint newest = NewestOf(*impl, path);
  loaded.path = newest.path;
  loaded.passed_over = std::move(newest.passed_over);
  Job* job = impl->options.job.get();
  const std::string instead = EarlierThan(loaded.path, path);
  std::shared_ptr<CheckpointReader> reader;
  Together(job, "checkpoint is opened", [&] {
    reader = OrElse(instead, [&] { return std::make_shared<CheckpointReader>(loaded.path); });
    return "";
  });
  if (job) RequireSameWeights(job, loaded.path, reader->Facts());
  Together(job, "checkpoint is read", [&] {
    const CheckpointIndex& index = reader->index();
    if (!options.weights_only && index.seed != impl->options.seed)
      Fail("checkpoint ", loaded.path, " is of a run with seed ", index.seed, ", but the model has seed ",
           impl->options.seed, ", with which it would not go on as it began");
    ReadAll(impl, Chosen(reader, options).get(), options, &loaded, instead);
    loaded.steps = index.steps;
    loaded.state = index.state;
    return "";
  });
  ++impl->loads;
  if (!options.weights_only) ResetAverages(&model, loaded.left_alone);
  if (!options.weights_only)
    for (const auto& [name, step] : loaded.steps) model.SetNextStep(name, step);
  VLOG(1) << "checkpoint " << loaded.path << " is read";
  return loaded;
}

std::string NewestCheckpoint(const std::string& path) { return NewestInCommon(nullptr, path).path; }

std::string NewestCheckpoint(const Model& model, const std::string& path,
                             std::vector<std::string>* passed_over) {
  CommonCheckpoint newest = NewestInCommon(model.impl()->options.job.get(), path);
  if (passed_over) *passed_over = std::move(newest.passed_over);
  return newest.path;
}

void RequireCheckpoint(const std::string& path) {
  const std::string newest = NewestCheckpoint(path);
  std::error_code error;
  if (newest.empty() && !fs::exists(path, error)) Fail(path, ": there is nothing of that name");
  if (newest.empty()) Fail(path, ": there is no complete checkpoint in it");
  OrElse(EarlierThan(newest, path), [&] { CheckpointReader(newest).OpenAll(); });
}

void LoadWeights(Model& model, VariableSource& source, LoadOptions options) {
  options.weights_only = true;
  BeginLoading(model.impl());
  Job* job = model.impl()->options.job.get();
  if (job) RequireSameWeights(job, source.where(), source.Facts());
  Together(job, "weights are read", [&] {
    const std::shared_ptr<VariableSource> borrowed(&source, [](VariableSource*) {});
    Loaded loaded;
    ReadAll(model.impl(), Chosen(borrowed, options).get(), options, &loaded);
    return "";
  });
  ++model.impl()->loads;
}

}  // namespace oneflow_like
