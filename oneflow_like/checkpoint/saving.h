// A save in progress in this process: its thread writes the process's file and, on the first process of its
// team, completes the checkpoint.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "oneflow_like/checkpoint.h"
#include "oneflow_like/checkpoint/snapshot.h"
#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

class Saving : public SaveUnderWay {
 public:
  // The folder `partial` must exist on all processes, and ModelImpl::save_folder be that around it. Throws
  // Error when the process's file cannot be created. `save`: CheckpointIndex::save, the same on all
  // processes.
  Saving(ModelImpl* model, std::string path, std::string partial, SaveOptions options,
         const std::string& save);
  ~Saving() override;

  void Start();
  const std::string& path() const { return path_; }
  bool Done() const { return done_.Done(); }
  void WaitBegun() override { begun_.Wait(); }
  void WaitCopied() override { copied_.Wait(); }
  // Called when the model is destroyed or its job has failed: an incomplete checkpoint stays incomplete.
  void Stop();
  // Waits until this process has done its part; throws Error when that failed.
  void Wait();
  // Removes older checkpoints of the folder, as SaveOptions::keep says. REQUIRES: this one is complete
  // everywhere.
  void RemoveOlder() const;

 private:
  void Run();
  void RequireGoodSteps() const;
  void TellOthers(const std::string& text) const;
  std::vector<std::string> HearOthers() const;
  void Complete() const;
  std::string FileOf(int process) const;

  ModelImpl* const model_;
  const Team team_;
  const std::string path_, partial_;
  const SaveOptions options_;
  const CheckpointIndex index_;  // all but the variables
  std::vector<LastStep> before_;
  const std::shared_ptr<Snapshot> snapshot_;
  std::atomic<bool> stop_{false};
  Completion begun_, copied_, done_;
  std::string failure_;  // set before done_
  std::thread thread_;
};

}  // namespace oneflow_like
