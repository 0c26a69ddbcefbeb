// The index of a checkpoint, model.safetensors.index.json: the entries that Hugging Face's tools read, and
// those that loading on another mesh needs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"

namespace oneflow_like {

// Each checksum (CRC-32) covers so many bytes of a piece.
constexpr int64_t kChecksumBytes = 4 << 20;

// A box of a variable, in one file of the checkpoint's folder.
struct StoredPiece {
  std::string file, key;
  Box box;
  std::vector<uint32_t> checksums;  // one for every kChecksumBytes, the last for the remainder
};

struct StoredVariable {
  DType dtype = DType::kFloat32;
  Dims shape;
  std::vector<StoredPiece> pieces;  // every element is in one, unless the checkpoint is local
};

// A file of the program's own (SaveOptions::files).
struct StoredFile {
  int64_t bytes = 0;
  uint32_t checksum = 0;
};
StoredFile StoredAs(const std::string& contents);
// Whether the name is that of a file in a folder, or of one in a folder in it; none may be hidden.
bool IsNameInFolder(const std::string& name);

struct CheckpointIndex {
  static constexpr int kVersion = 1;
  static constexpr const char* kFile = "model.safetensors.index.json";

  std::string mesh;
  bool local = false;  // of one host: pieces cover only what its ranks hold
  // Of a local one: a number, as text, that the folders of all hosts have of one save. Without white space.
  std::string save;
  uint64_t seed = 0;
  std::map<std::string, int64_t> steps;      // next, by training or evaluation
  std::map<std::string, std::string> state;  // the program's own values
  std::map<std::string, StoredFile> files;
  std::map<std::string, StoredVariable> variables;

  // The metadata in the header of each file of tensors.
  static const std::map<std::string, std::string>& FileMetadata();

  std::string ToJson() const;
  // A text that tells this checkpoint from others: equal on all hosts, also where they have only their own
  // part of it.
  std::string Identity() const;
  // Throws Error naming the file and the variable: for invalid JSON, a newer version, a wrong checksum,
  // pieces that exceed the variable, overlap, or do not cover it, and a file outside the folder.
  static CheckpointIndex Read(const std::string& folder);
  // Whether the folder's index, possibly damaged, was written by this library: Hugging Face's has the same
  // name. Throws Error when it cannot be read.
  static bool IsOurs(const std::string& folder);
};

// Converts the list of what one process wrote to text for the others, and back.
std::string ToText(const std::map<std::string, StoredVariable>& written);
std::map<std::string, StoredVariable> WrittenFromText(const std::string& text);

}  // namespace oneflow_like
