// The names that saves give in a folder of checkpoints. What has another name is somebody else's: it is not
// read as a checkpoint of the folder, and never removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace oneflow_like {

// "step-00000100".
std::string StepFolder(int64_t step);
// The folder of a save that is under way, hidden: ".step-00000100.partial".
std::string PartialFolder(int64_t step);
// The step of a folder's name; none if StepFolder gives no such name ("step-best", "step-00000100 (copy)").
std::optional<int64_t> StepOfFolder(const std::string& name);

// The step of a save under way, by its hidden folder's name.
std::optional<int64_t> StepOfPartial(const std::string& name);
// A hidden file by which process `process` finds out who sees the same folder.
std::string ProbeFile(const std::string& token, int process);

// Removes what saves that ended early, and removals that did, have left in a folder of checkpoints. REQUIRES:
// none is under way.
void RemoveUnfinished(const std::filesystem::path& folder);

// Removes the checkpoint at `folder`, at once for whoever looks for checkpoints. Files that no save wrote,
// and a link in the place of a folder, stay where they are.
void RemoveCheckpoint(const std::filesystem::path& folder);

// Removes from the folder of a save, complete or not, what saves write into one (SaveOptions::files as its
// index names them), and the folder if nothing is left in it.
void RemoveSaved(const std::filesystem::path& folder);

}  // namespace oneflow_like
