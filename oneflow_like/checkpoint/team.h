// The folder that a model saves its checkpoints in: which processes see the same one, and its lock.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

class FolderLock;  // oneflow_like/checkpoint/safetensors.h

// The processes that see one folder of checkpoints, and write what is in it together.
struct Team {
  int me = 0;
  std::vector<int> processes = {0};  // ascending; the first makes folders and indexes
  bool everyone = true;              // whether it is all processes of the job
  bool leads() const { return me == processes[0]; }
};

// Collective: makes the folder wherever it is missing, and finds out who sees the same one by files that the
// processes put there for a moment; hosts may share a disk, and processes of one host may not. Throws Error,
// on all processes, when it cannot be written.
Team TeamOf(Job* job, const std::string& folder);

// The folder that a model saved in last.
struct SaveFolder {
  const std::string folder;
  const bool local;
  const Team team;
  std::unique_ptr<FolderLock> lock;  // on the process that leads

  // Collective. Throws Error when another program saves there, and, unless `local`, when not all processes
  // see the same folder.
  SaveFolder(Job* job, std::string folder, bool local);
  ~SaveFolder();
};

}  // namespace oneflow_like
