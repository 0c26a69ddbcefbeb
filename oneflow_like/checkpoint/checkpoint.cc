#include "oneflow_like/checkpoint.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>

#include "actor/net/talk/job.h"
#include "oneflow_like/checkpoint/index.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/safetensors.h"
#include "oneflow_like/pieces.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";

// Does `work` on every process and throws on all what it throws on one; gives what all return.
std::vector<std::string> Together(const ModelImpl& model, const std::string& what,
                                  const std::function<std::string()>& work) {
  std::string mine;
  try {
    mine = "+" + work();
  } catch (const Error& error) {
    mine = Cat("-", error.what());
  }
  std::vector<std::string> all = {mine};
  if (Job* job = model.options.job.get()) all = job->AllGather(what, mine);
  for (const std::string& text : all)
    if (text[0] == '-') Fail(text.substr(1));
  for (std::string& text : all) text.erase(0, 1);
  return all;
}

bool IsFirst(const ModelImpl& model) { return !model.options.job || model.options.job->process() == 0; }

// --- Saving ---

// CRC-32 of every kChecksumBytes of bytes that come in order.
class Checksums {
 public:
  void Add(const void* data, int64_t bytes) {
    auto* at = static_cast<const Bytef*>(data);
    while (bytes > 0) {
      if (filled_ == 0) sums_.push_back(0);
      const int64_t n = std::min(bytes, kChecksumBytes - filled_);
      sums_.back() = static_cast<uint32_t>(crc32(sums_.back(), at, static_cast<uInt>(n)));
      filled_ = (filled_ + n) % kChecksumBytes;
      at += n;
      bytes -= n;
    }
  }
  std::vector<uint32_t> Take() { return std::move(sums_); }

 private:
  std::vector<uint32_t> sums_;
  int64_t filled_ = 0;
};

struct Given {
  std::string variable, key;
  DType dtype;
  Part part;
};

// What this process writes.
std::vector<Given> Mine(ModelImpl* model) {
  const Job* job = model->options.job.get();
  const int hosted = model->mesh.size() / (job ? job->processes() : 1);
  std::vector<Given> mine;
  for (const auto& [name, unused] : model->variables) {
    const ModelVariable& variable = model->Require(name);
    const std::vector<Part> parts = PartsOf(*model, variable);
    for (const Part& part : parts) {
      if (part.giver / hosted != (job ? job->process() : 0)) continue;
      const bool whole = part.box == Box::Whole(variable.shape);
      mine.push_back({name, whole ? name : Cat(name, "@", part.box.begin.str()), variable.dtype, part});
    }
  }
  return mine;
}

std::map<std::string, StoredVariable> WriteMine(ModelImpl* model, const std::string& folder) {
  const Job* job = model->options.job.get();
  char file[64];
  std::snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", (job ? job->process() : 0) + 1,
                job ? job->processes() : 1);
  const std::vector<Given> mine = Mine(model);
  std::vector<SafetensorsWriter::Entry> entries;
  for (const Given& given : mine) entries.push_back({given.key, given.dtype, given.part.box.extent});
  SafetensorsWriter writer(folder + "/" + file, entries, {{"format", "oneflow_like"}});
  std::map<std::string, StoredVariable> written;
  for (const Given& given : mine) {
    LocalPiece piece(*model, given.part.giver, given.variable);
    Checksums checksums;
    int64_t offset = 0;
    ForEachRun(given.part.box, piece.box(), MostElements(given.dtype), [&](const Box& run) {
      const int64_t bytes = run.elements() * static_cast<int64_t>(SizeOf(given.dtype));
      const void* data = piece.Get(run);
      checksums.Add(data, bytes);
      writer.Write(given.key, offset, data, bytes);
      offset += bytes;
    });
    StoredVariable& stored = written[given.variable];
    stored.dtype = given.dtype;
    stored.shape = model->variables.at(given.variable).shape;
    stored.pieces.push_back({file, given.key, given.part.box, checksums.Take()});
  }
  writer.Sync();
  return written;
}

void WriteIndex(const ModelImpl& model, const std::string& folder, const SaveOptions& options,
                const std::vector<std::string>& written) {
  CheckpointIndex index;
  index.mesh = model.mesh.str();
  index.seed = model.options.seed;
  for (const auto& [name, steps] : model.steps) index.steps[name] = steps.next;
  index.state = options.state;
  for (const std::string& text : written)
    for (auto& [name, variable] : WrittenFromText(text)) {
      StoredVariable& all = index.variables[name];
      all.dtype = variable.dtype;
      all.shape = variable.shape;
      all.pieces.insert(all.pieces.end(), variable.pieces.begin(), variable.pieces.end());
    }
  const std::string text = index.ToJson();
  File file(folder + "/" + CheckpointIndex::kFile, File::kCreate);
  file.WriteAt(0, text.data(), static_cast<int64_t>(text.size()));
  file.Sync();
  SyncFolder(folder);
}

void Rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    Fail(from, " cannot become ", to, ": ", std::strerror(errno));
}

// --- Loading ---

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
    if (name.rfind(kPrefix, 0) != 0 || !fs::exists(entry.path() / CheckpointIndex::kFile, error)) continue;
    found.push_back({std::atoll(name.c_str() + std::strlen(kPrefix)), entry.path().string()});
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(path);
  return paths;
}

std::string Save(Model& model, const std::string& folder, const SaveOptions& options) {
  ModelImpl* impl = model.impl();
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", kPrefix,
                static_cast<long long>(model.next_step(options.training)));
  const std::string path = folder + "/" + name, partial = folder + "/." + name + ".partial";
  impl->Load();
  impl->WaitIdle();
  Together(*impl, "checkpoint begins", [&] {
    if (!IsFirst(*impl)) return "";
    std::error_code error;
    if (fs::exists(path, error)) Fail(path, ": there is such a checkpoint already; save in another folder");
    fs::remove_all(partial, error);
    fs::create_directories(partial, error);
    if (error) Fail(partial, ": it cannot be made: ", error.message());
    return "";
  });
  try {
    const std::vector<std::string> written = Together(*impl, "checkpoint is written", [&] {
      std::error_code error;
      if (!fs::is_directory(partial, error))
        Fail(partial, ": process 0 made this folder, but process ", impl->options.job->process(),
             " does not see it: all hosts must share the folder of checkpoints");
      return ToText(WriteMine(impl, partial));
    });
    Together(*impl, "checkpoint is complete", [&] {
      if (!IsFirst(*impl)) return "";
      WriteIndex(*impl, partial, options, written);
      Rename(partial, path);
      SyncFolder(folder);
      return "";
    });
  } catch (const Error&) {
    std::error_code error;
    if (IsFirst(*impl)) fs::remove_all(partial, error);
    throw;
  }
  if (options.keep > 0 && IsFirst(*impl)) {
    std::vector<std::string> all = Checkpoints(folder);
    for (size_t i = 0; i + options.keep < all.size(); ++i) {
      std::error_code error;  // what cannot be removed stays
      fs::remove_all(all[i], error);
    }
  }
  return path;
}

Loaded Load(Model& model, const std::string& path, const LoadOptions& options) {
  ModelImpl* impl = model.impl();
  impl->Load();
  impl->WaitIdle();
  Loaded loaded;
  std::error_code error;
  loaded.path = path;
  if (!fs::exists(fs::path(path) / CheckpointIndex::kFile, error)) {
    const std::vector<std::string> all = Checkpoints(path);
    if (all.empty()) Fail(path, ": there is no complete checkpoint in it");
    loaded.path = all.back();
  }
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
