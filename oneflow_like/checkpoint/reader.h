// Reads boxes of variables from a checkpoint, wherever its files have them, in bounded memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/checkpoint/index.h"
#include "oneflow_like/checkpoint/source.h"

namespace oneflow_like {

class CheckpointReader : public VariableSource {
 public:
  // Reads the index; a file is opened when something of it is wanted. Throws Error naming the file.
  explicit CheckpointReader(std::string folder);
  const CheckpointIndex& index() const { return index_; }
  const std::string& where() const override { return folder_; }

  // Every block of a file that is touched is held against its checksum.
  void Read(const std::string& variable, const Box& box, void* to) override;
  // The same for one block of kChecksumBytes, whose number counts from the piece's first.
  void Check(const StoredVariable& variable, const StoredPiece& piece, int64_t number);

 private:
  struct Block {
    const StoredPiece* piece = nullptr;
    int64_t number = -1;
    std::string bytes;
  };
  void ReadPiece(const StoredVariable& variable, const StoredPiece& piece, int64_t offset, char* to,
                 int64_t bytes);
  // Opens the file of the piece; throws Error when it has another tensor than the index says.
  const SafetensorsReader& FileOf(const StoredVariable& variable, const StoredPiece& piece);
  const Block& BlockOf(const StoredPiece& piece, const SafetensorsReader& file, int64_t number);

  const std::string folder_;
  const CheckpointIndex index_;
  std::map<std::string, std::unique_ptr<SafetensorsReader>> files_;
  std::vector<Block> blocks_;  // the last few
  size_t next_ = 0;            // to be replaced
  std::string run_;            // of a box that has gaps in what is asked for
};

}  // namespace oneflow_like
