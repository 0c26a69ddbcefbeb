// Reads boxes of variables from the files of a checkpoint, in bounded memory.
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
  // Reads the index; a file is opened when it is first needed. Throws Error naming the file.
  explicit CheckpointReader(std::string folder);
  const CheckpointIndex& index() const { return index_; }
  const std::string& where() const override { return folder_; }
  std::vector<SourceFact> Facts() const override;

  // Checks the checksum of every block that it reads.
  void Read(const std::string& variable, const Box& box, void* to) override;
  // The contents of one of the index's files, checked. Throws Error naming it.
  std::string Contents(const std::string& file) const;
  // Opens all files of tensors, one after the other. Throws Error naming the first that is missing or has a
  // broken header.
  void OpenAll();
  // Checks block `number` (of kChecksumBytes) of the piece.
  void Check(const StoredVariable& variable, const StoredPiece& piece, int64_t number);
  // Throws Error when a file is missing, too short, or has other tensors than the index says.
  void RequireFiles();

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
  size_t next_ = 0;            // block to replace next
  std::string run_;            // for a box that is not contiguous in the requested one
};

}  // namespace oneflow_like
