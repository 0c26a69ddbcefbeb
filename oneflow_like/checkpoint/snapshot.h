// Writes the values of variables at one moment to a file while training continues. On the host: before a step
// changes a variable, its thread writes the part that is not written yet; so variables are not copied, and an
// update waits only for its own variable. Of devices with memory of their own all is copied to the host at
// once, on a stream beside the step, and an update waits there for the copy of its variable.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actor/runtime.h"
#include "oneflow_like/checkpoint/index.h"
#include "oneflow_like/checkpoint/safetensors.h"
#include "oneflow_like/checkpoint/team.h"
#include "oneflow_like/model/pieces.h"

namespace oneflow_like {

class Snapshot final : public WriteWatch {
 public:
  // This process's part of a checkpoint in `folder`, which `team` writes: creates its file and allocates the
  // space. Throws Error.
  Snapshot(ModelImpl* model, const std::string& folder, const Team& team);

  // Lets devices with memory of their own copy what is given, and does not wait. False: there is none, or the
  // host has no room for all of it at once; steps must then not begin before WriteAll has returned. REQUIRES:
  // as WriteAll.
  bool BeginCopies();
  // Writes what no step has written, and syncs the file. REQUIRES: steps that began before the watch was set
  // have ended. Throws Error when any part could not be written, also by a step.
  void WriteAll();
  // Stops: steps no longer wait, and nothing more is read. For a state that must not be saved.
  void Abandon();
  void BeforeWrite(int rank, const std::string& variable) override;
  const DeviceEvent* WritesAfter(int rank, const std::string& variable) override;
  // Its entries for the index. REQUIRES: WriteAll has returned.
  std::map<std::string, StoredVariable> Written() const;

 private:
  struct Given {
    std::string variable, key;
    DType dtype;
    Dims shape;
    int rank;
    Box box, piece;  // the box to write, of the piece that the rank has
    const char* data;
    Device* device;
    std::vector<uint32_t> checksums;
    const char* copied = nullptr;  // by BeginCopies: the box, on the host
    int64_t bytes() const { return box.elements() * static_cast<int64_t>(SizeOf(dtype)); }
  };
  // A unit of writing, done by one thread.
  struct Chunk {
    size_t given;
    int64_t offset, bytes;
    enum { kLeft, kTaken, kWritten } state = kLeft;
  };

  void AddGiven(const ModelImpl& model, const ModelVariable& variable, const Team& team);
  void AddChunks(size_t given);
  void WriteIfLeft(size_t chunk);
  void Write(const Chunk& chunk);
  void WriteInRuns(Given* given);
  const void* ToHost(const Given& given, const char* from, int64_t bytes);
  void CopyGiven(const Given& given, char* to, DeviceStream* stream) const;
  void WaitForCopies();

  std::string file_;
  // Of a rank's device.
  struct Copies {
    std::unique_ptr<Memory> memory;
    std::unique_ptr<DeviceStream> stream;
    std::map<std::string, std::unique_ptr<DeviceEvent>> events;  // by variable
  };

  std::map<int, Copies> copies_;     // by rank
  std::map<int, int64_t> to_write_;  // bytes, by process
  std::vector<Given> given_;
  std::unique_ptr<SafetensorsWriter> writer_;
  std::unique_ptr<Memory> staging_;  // for devices other than the host; used by WriteAll
  // Chunks of a variable of a rank: from the first up to the second.
  std::map<std::pair<int, std::string>, std::pair<size_t, size_t>> of_variable_;
  // A lock, because the saving thread and workers take chunks; not held while one is written.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Chunk> chunks_;
  std::string failure_;
};

}  // namespace oneflow_like
