#include <glog/logging.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "actor/net/talk/job.h"
#include "oneflow_like/checkpoint/folder.h"
#include "oneflow_like/checkpoint/saving.h"
#include "oneflow_like/checkpoint/team.h"
#include "oneflow_like/job/replicas_check.h"
#include "oneflow_like/job/together.h"

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
CheckpointIndex IndexOf(const ModelImpl& model, const SaveOptions& options) {
  CheckpointIndex index;
  index.mesh = model.mesh.str();
  index.seed = model.options.seed;
  for (const auto& [name, steps] : model.steps) index.steps[name] = steps.next;
  index.state = options.state;
  index.local = options.local;
  return index;
}

std::vector<LastStep> LastSteps(const ModelImpl& model) {
  std::vector<LastStep> steps;
  for (const auto& [session, step] : model.last_steps) steps.push_back(step);
  return steps;
}

// Each host has made a folder of its own; one that they share would be written by several.
void RequireOwnFolder(const std::string& partial, const Team& team) {
  int leaders = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(partial))
    leaders += entry.path().filename().string().rfind("led-by-", 0) == 0;
  if (leaders != 1 || !fs::exists(Cat(partial, "/led-by-", team.processes[0])))
    Fail(partial,
         ": several hosts see this folder; leave out --local (SaveOptions::local), which is for hosts "
         "without a common file system");
}

// What JSON can hold.
void RequireText(const std::map<std::string, std::string>& state) {
  for (const auto& [key, value] : state)
    if (!IsUtf8(key) || !IsUtf8(value))
      Fail("SaveOptions::state: '", key, "' or its value is no text in UTF-8; encode what is not text");
}

// The newest `keep` stay.
void RemoveOld(const std::string& folder, int keep) {
  std::error_code error;
  std::vector<std::string> ours = Checkpoints(folder);
  std::erase_if(ours, [&](const std::string& path) { return fs::is_symlink(path, error); });
  for (size_t i = 0; keep > 0 && i + keep < ours.size(); ++i) RemoveCheckpoint(ours[i]);
}

}  // namespace

// --- One process's part ---

Saving::Saving(ModelImpl* model, std::string path, std::string partial, SaveOptions options)
    : model_(model),
      team_(*model, options.local),
      path_(std::move(path)),
      partial_(std::move(partial)),
      options_(std::move(options)),
      index_(IndexOf(*model, options_)),
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
      snapshot_->WriteAll();
    } catch (const std::exception&) {
      snapshot_->Abandon();
      throw;
    }
    copied_.Signal();
    model_->store->SetWatch(nullptr);
    TellOthers("+" + ToText(snapshot_->Written()));
    if (team_.leads()) Complete();
  } catch (const std::exception& error) {
    failure_ = error.what();
    copied_.Signal();
    model_->store->SetWatch(nullptr);
    try {
      TellOthers("-" + failure_);
    } catch (const std::exception&) {  // the others hear of it when the job meets
    }
    if (team_.leads()) RemoveSaved(partial_);
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
  WriteFile(Cat(partial_, "/", CheckpointIndex::kFile), index.ToJson());
  std::error_code ignored;
  fs::remove(Cat(partial_, "/led-by-", team_.me), ignored);
  for (int p : team_.processes) fs::remove(FileOf(p), ignored);
  SyncFolder(partial_);
  Rename(partial_, path_);
  const std::string folder = fs::path(path_).parent_path().string();
  SyncFolder(folder);
}

void Saving::RemoveOlder() const {
  if (team_.leads()) RemoveOld(fs::path(path_).parent_path().string(), options_.keep);
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

SaveHandle Save(Model& model, const std::string& folder, const SaveOptions& options) {
  ModelImpl* impl = model.impl();
  if (folder.empty()) Fail("Save: the folder's name is empty");
  RequireText(options.state);
  if (impl->saving)
    SaveHandle(impl->shared_from_this(), std::static_pointer_cast<Saving>(impl->saving)).Wait();
  const int64_t step = model.next_step(options.training);
  const std::string path = folder + "/" + StepFolder(step), partial = folder + "/" + PartialFolder(step);
  const Team team(*impl, options.local);
  impl->Load();
  if (impl->options.check_replicas > 0) RequireEqualReplicas(impl, model.next_step(options.training));
  Together(impl->options.job.get(), "checkpoint begins", [&] {
    if (!team.leads()) return "";
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) Fail(folder, ": it cannot be made: ", error.message());
    if (!impl->folder_lock || impl->folder_lock->folder() != folder)
      impl->folder_lock = std::make_shared<FolderLock>(
          folder, ".saving",
          Cat("another program",
              options.local ? ", or another host of this job, which then should leave out --local," : "",
              " saves checkpoints in this folder; give each run one of its own"));
    if (fs::exists(path, error)) Fail(path, ": there is such a checkpoint already; save in another folder");
    RemoveUnfinished(folder);
    fs::create_directories(partial, error);
    if (error) Fail(partial, ": it cannot be made: ", error.message());
    if (options.local) WriteFile(Cat(partial, "/led-by-", team.me), "");
    return "";
  });
  std::shared_ptr<Saving> saving;
  try {
    Together(impl->options.job.get(), "checkpoint has room", [&] {
      std::error_code error;
      if (!fs::is_directory(partial, error))
        Fail(partial, ": process ", team.processes[0], " made this folder, but process ", team.me,
             " does not see it: share the folder of checkpoints between all hosts, or let each keep its own "
             "(SaveOptions::local, --local)");
      if (options.local) RequireOwnFolder(partial, team);
      saving = std::make_shared<Saving>(impl, path, partial, options);
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
