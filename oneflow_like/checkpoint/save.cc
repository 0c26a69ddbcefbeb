#include <glog/logging.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "actor/net/talk/job.h"
#include "oneflow_like/checkpoint/common_checkpoint.h"
#include "oneflow_like/checkpoint/saving.h"
#include "oneflow_like/checkpoint/step_folders.h"
#include "oneflow_like/checkpoint/team.h"
#include "oneflow_like/job/replicas_check.h"
#include "oneflow_like/job/together.h"
#include "oneflow_like/model/variables.h"
#include "oneflow_like/text/utf8.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

constexpr auto kLook = std::chrono::milliseconds(5);  // for the others' files

void Rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    Fail(from, " cannot become ", to, ": ", std::strerror(errno));
}

void WriteFile(const std::string& path, const std::string& text) {
  File file(path, File::kCreate);
  file.WriteAt(0, text.data(), static_cast<int64_t>(text.size()));
  file.Sync();
}

std::string ReadText(const std::string& path) {
  const File file(path, File::kRead);
  std::string text(file.size(), '\0');
  file.ReadAt(0, text.data(), file.size());
  return text;
}

// What the index says beside the variables, as it is now.
CheckpointIndex IndexOf(const ModelImpl& model, const SaveOptions& options, const Team& team,
                        const std::string& save) {
  CheckpointIndex index;
  index.mesh = model.mesh.str();
  index.seed = model.options.seed;
  for (const auto& [name, steps] : model.steps) index.steps[name] = steps.next;
  index.state = options.state;
  for (const auto& [name, contents] : options.files) index.files[name] = StoredAs(contents);
  index.local = !team.everyone;
  if (index.local) index.save = save;
  return index;
}

std::vector<LastStep> LastSteps(ModelImpl& model) {
  model.SettleSteps();
  std::vector<LastStep> steps;
  for (const auto& [session, step] : model.last_steps) steps.push_back(step);
  return steps;
}

// What JSON can hold.
void RequireText(const std::map<std::string, std::string>& state) {
  for (const auto& [key, value] : state)
    if (!IsUtf8(key) || !IsUtf8(value))
      Fail("SaveOptions::state: '", key, "' or its value is no text in UTF-8; encode what is not text");
}

// Whether checkpoints use the name themselves, be it for a while: "written-3", "written-3.new".
bool IsOwnName(const std::string& name) {
  if (name == CheckpointIndex::kFile || name.ends_with(".safetensors")) return true;
  for (const std::string prefix : {"written-", "led-by-"}) {
    if (name.rfind(prefix, 0) != 0) continue;
    const std::string process = name.substr(prefix.size(), name.find('.') - prefix.size());
    if (!process.empty() && process.find_first_not_of("0123456789") == std::string::npos) return true;
  }
  return false;
}

void RequireFreeNames(const std::map<std::string, std::string>& files) {
  for (const auto& [name, contents] : files)
    if (const bool own = IsOwnName(name); own || !IsNameInFolder(name) || !IsUtf8(name))
      Fail("SaveOptions::files: '", name, "' is ",
           own ? "a name that checkpoints use themselves; rename it" : "no name of a file in a folder");
}

// Of those up to `newest` the last `keep` stay. Later ones are of a run that ended otherwise, and lie beside
// it.
void RemoveOld(const std::string& newest, int keep) {
  std::vector<std::string> all = Checkpoints(fs::path(newest).parent_path().string());
  const auto end = std::find_if(all.begin(), all.end(), [&](const std::string& path) {
    return fs::path(path).filename() == fs::path(newest).filename();
  });
  if (end != all.end()) all.erase(end + 1, all.end());
  std::error_code error;
  std::erase_if(all, [&](const std::string& path) { return fs::is_symlink(path, error); });
  for (size_t i = 0; keep > 0 && i + keep < all.size(); ++i) RemoveCheckpoint(all[i]);
}

}  // namespace

// --- One process's part ---

Saving::Saving(ModelImpl* model, std::string path, std::string partial, SaveOptions options,
               const std::string& save)
    : model_(model),
      team_(model->save_folder->team),
      path_(std::move(path)),
      partial_(std::move(partial)),
      options_(std::move(options)),
      index_(IndexOf(*model, options_, team_, save)),
      before_(LastSteps(*model)),
      snapshot_(std::make_shared<Snapshot>(model, partial_, team_)) {}

Saving::~Saving() { Stop(); }

void Saving::Start() {
  model_->store->SetWatch(snapshot_);
  thread_ = std::thread([this] { Run(); });
}

void Saving::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Saving::Wait() {
  done_.Wait();
  if (!failure_.empty()) Fail(failure_);
}

void Saving::Run() {
  try {
    try {
      RequireGoodSteps();
      if (snapshot_->BeginCopies()) begun_.Signal();
      snapshot_->WriteAll();
    } catch (const std::exception&) {
      snapshot_->Abandon();
      throw;
    }
    copied_.Signal();
    begun_.Signal();
    model_->store->SetWatch(nullptr);
    TellOthers("+" + ToText(snapshot_->Written()));
    if (team_.leads()) Complete();
  } catch (const std::exception& error) {
    failure_ = error.what();
    copied_.Signal();
    begun_.Signal();
    model_->store->SetWatch(nullptr);
    try {
      TellOthers("-" + failure_);
    } catch (const std::exception&) {  // the others hear of it when the job meets
    }
    // Where the job has ended, others may have completed it: what is left here says that it was under way.
    const bool others_may = !team_.everyone && (stop_ || !model_->options.job->failure().empty());
    if (team_.leads() && !others_may) RemoveSaved(partial_);
  }
  before_.clear();  // and what they gave
  done_.Signal();
}

void Saving::RequireGoodSteps() const {
  for (const LastStep& step : before_) {
    const Status status = step.handle.Wait();
    const std::string what = Cat("checkpoint ", path_, " is not written: step ", step.handle.step(), " ");
    if (!status.ok() && step.trains) Fail(what, "failed: ", status.message());
    if (!status.ok() || step.finite.empty()) continue;
    const float value = step.handle.Get(step.finite).as<float>()[0];
    if (!std::isfinite(value)) Fail(what, "has ", step.finite, " ", value);
  }
}

std::string Saving::FileOf(int process) const { return Cat(partial_, "/written-", process); }

// Renamed, so that nobody reads half of it.
void Saving::TellOthers(const std::string& text) const {
  WriteFile(FileOf(team_.me) + ".new", text);
  Rename(FileOf(team_.me) + ".new", FileOf(team_.me));
}

std::vector<std::string> Saving::HearOthers() const {
  std::vector<std::string> texts;
  for (int p : team_.processes) {
    std::error_code error;
    while (!fs::exists(FileOf(p), error)) {
      const std::string lost = model_->options.job->failure();
      if (stop_ || !lost.empty())
        Fail("checkpoint ", path_, " is not complete: process ", p, " has not written its part",
             lost.empty() ? "" : "; ", lost);
      std::this_thread::sleep_for(kLook);
    }
    texts.push_back(ReadText(FileOf(p)));
    if (texts.back().empty()) Fail(FileOf(p), ": it is empty");
    if (texts.back()[0] == '-') Fail(texts.back().substr(1));
    texts.back().erase(0, 1);
  }
  return texts;
}

void Saving::Complete() const {
  CheckpointIndex index = index_;
  for (const std::string& text : HearOthers())
    for (auto& [name, variable] : WrittenFromText(text)) {
      StoredVariable& all = index.variables[name];
      all.dtype = variable.dtype;
      all.shape = variable.shape;
      all.pieces.insert(all.pieces.end(), variable.pieces.begin(), variable.pieces.end());
    }
  // First, so that RemoveSaved knows the files of a save that is cut off.
  WriteFile(Cat(partial_, "/", CheckpointIndex::kFile), index.ToJson());
  for (const auto& [name, contents] : options_.files) {
    const fs::path path = fs::path(partial_) / name;
    std::error_code ignored;
    fs::create_directories(path.parent_path(), ignored);
    WriteFile(path, contents);
    if (path.parent_path() != fs::path(partial_)) SyncFolder(path.parent_path());
  }
  std::error_code ignored;
  for (int p : team_.processes) fs::remove(FileOf(p), ignored);
  SyncFolder(partial_);
  if (!team_.everyone && fs::exists(path_, ignored)) RemoveCheckpoint(path_);  // not all hosts have it
  Rename(partial_, path_);
  const std::string folder = fs::path(path_).parent_path().string();
  SyncFolder(folder);
}

void Saving::RemoveOlder() const {
  if (team_.leads()) RemoveOld(path_, options_.keep);
}

// --- Save ---

const std::string& SaveHandle::path() const { return saving_->path(); }

bool SaveHandle::Done() const { return saving_->Done(); }

std::string SaveHandle::Wait() const {
  try {
    Together(model_->options.job.get(), fs::path(path()).filename().string() + " is complete", [&] {
      saving_->Wait();
      return "";
    });
  } catch (const Error&) {
    if (model_->saving == saving_) model_->saving = nullptr;  // told; the next save begins anew
    throw;
  }
  saving_->RemoveOlder();
  VLOG(1) << "checkpoint " << path() << " is complete";
  return path();
}

namespace {

// Whether there is nothing in the folder but what saves write.
bool HoldsACheckpoint(const std::string& path) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    if (name != CheckpointIndex::kFile && !(name.rfind("model-", 0) == 0 && name.ends_with(".safetensors")))
      return false;
  }
  return !error;
}

// Collective. One that not all hosts have, or not of one save, is none, and is replaced.
void RequireNew(Job* job, const Team& team, const std::string& path) {
  const std::vector<std::string> there = Together(job, "checkpoint is new", [&] {
    std::error_code error;
    if (!fs::exists(path, error)) return "no";
    if (!HoldsACheckpoint(path))
      Fail(path, ": there is something of that name, and more in it than a checkpoint");
    return "yes";
  });
  if (std::find(there.begin(), there.end(), "yes") == there.end()) return;
  if (!team.everyone && !WhyNotCommon(job, path).empty()) return;
  Fail(path, ": there is such a checkpoint already; save in another folder");
}

void BeginPartial(const std::string& folder, const std::string& partial) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) Fail(folder, ": it cannot be made: ", error.message());
  RemoveUnfinished(folder);
  fs::create_directories(partial, error);
  if (error) Fail(partial, ": it cannot be made: ", error.message());
}

}  // namespace

SaveHandle Save(Model& model, const std::string& folder, const SaveOptions& options) {
  ModelImpl* impl = model.impl();
  if (folder.empty()) Fail("Save: the folder's name is empty");
  RequireText(options.state);
  RequireFreeNames(options.files);
  if (impl->saving)
    SaveHandle(impl->shared_from_this(), std::static_pointer_cast<Saving>(impl->saving)).Wait();
  const int64_t step = model.next_step(options.training);
  const std::string path = folder + "/" + StepFolder(step), partial = folder + "/" + PartialFolder(step);
  Job* job = impl->options.job.get();
  impl->Load();
  BeginAverages(impl);
  if (impl->options.check_replicas > 0) RequireEqualReplicas(impl, step);
  if (!impl->save_folder || impl->save_folder->folder != folder ||
      impl->save_folder->local != options.local) {
    impl->save_folder = nullptr;  // and its lock
    impl->save_folder = std::make_shared<SaveFolder>(job, folder, options.local);
  }
  const Team& team = impl->save_folder->team;
  RequireNew(job, team, path);
  const std::string save = Together(job, "checkpoint begins", [&] {
    if (team.leads()) BeginPartial(folder, partial);
    return RandomToken();
  })[0];
  std::shared_ptr<Saving> saving;
  try {
    Together(job, "checkpoint has room", [&] {
      std::error_code error;
      if (!fs::is_directory(partial, error))
        Fail(partial, ": process ", team.processes[0], " made this folder, but process ", team.me,
             " does not see it");
      saving = std::make_shared<Saving>(impl, path, partial, options, save);
      return "";
    });
  } catch (const Error&) {
    if (team.leads()) RemoveSaved(partial);
    throw;
  }
  saving->Start();
  impl->saving = saving;
  return SaveHandle(impl->shared_from_this(), saving);
}

}  // namespace oneflow_like
