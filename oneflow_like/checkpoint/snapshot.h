// What variables are at one moment, written to a file while training goes on. A step that is about to change
// a variable has what is still missing of it written first, by its own thread; so no copy of the variables is
// made, and an update waits for its own variable alone.
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
#include "oneflow_like/checkpoint/together.h"
#include "oneflow_like/pieces.h"

namespace oneflow_like {

class Snapshot final : public WriteWatch {
 public:
  // What this process gives to a checkpoint in `folder`, which `team` writes: its file is made, and its space
  // taken. Throws Error.
  Snapshot(ModelImpl* model, const std::string& folder, const Team& team);

  // Writes what no step has written, and makes the file last. REQUIRES: steps that began before the watch was
  // set have ended. Throws Error when any part could not be written, by whomever.
  void WriteAll();
  // No step is told to wait any more, and nothing more is read: for what has been found not worth saving.
  void Abandon();
  void BeforeWrite(int rank, const std::string& variable) override;
  // What the index says of it. REQUIRES: WriteAll has returned.
  std::map<std::string, StoredVariable> Written() const;

 private:
  struct Given {
    std::string variable, key;
    DType dtype;
    Dims shape;
    int rank;
    Box box, piece;  // what is written of what the rank has
    const char* data;
    Device* device;
    std::vector<uint32_t> checksums;
    int64_t bytes() const { return box.elements() * static_cast<int64_t>(SizeOf(dtype)); }
  };
  // What one thread writes at a time.
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

  std::string file_;
  std::map<int, int64_t> to_write_;  // bytes, by process
  std::vector<Given> given_;
  std::unique_ptr<SafetensorsWriter> writer_;
  std::unique_ptr<Memory> staging_;  // of devices that are not the host; of WriteAll
  // Chunks of a variable of a rank: from the first up to the second.
  std::map<std::pair<int, std::string>, std::pair<size_t, size_t>> of_variable_;
  // A lock, since chunks are taken by the saving thread and by workers; not held while one is written.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Chunk> chunks_;
  std::string failure_;
};

}  // namespace oneflow_like
