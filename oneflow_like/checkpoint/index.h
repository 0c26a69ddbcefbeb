// The index of a checkpoint, model.safetensors.index.json: what Hugging Face's tools read of such a file, and
// what loading on another mesh needs besides.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"

namespace oneflow_like {

// Bytes of a piece that have one checksum (CRC-32).
constexpr int64_t kChecksumBytes = 4 << 20;

// A box of a variable, in one file of the checkpoint's folder.
struct StoredPiece {
  std::string file, key;
  Box box;
  std::vector<uint32_t> checksums;  // of every kChecksumBytes, the last of what is left
};

struct StoredVariable {
  DType dtype = DType::kFloat32;
  Dims shape;
  std::vector<StoredPiece> pieces;  // every element is in one, unless the checkpoint is local
};

struct CheckpointIndex {
  static constexpr int kVersion = 1;
  static constexpr const char* kFile = "model.safetensors.index.json";

  std::string mesh;
  bool local = false;  // of one host: what no rank there holds is in no piece
  uint64_t seed = 0;
  std::map<std::string, int64_t> steps;      // next, by training or evaluation
  std::map<std::string, std::string> state;  // the program's own values
  std::map<std::string, StoredVariable> variables;

  std::string ToJson() const;
  // Throws Error naming the file, and the variable: no JSON, a newer version, a wrong checksum, pieces that
  // leave the variable, overlap, or do not cover it, a file outside the folder.
  static CheckpointIndex Read(const std::string& folder);
  // Whether the folder's index is, or was before it was damaged, one of this library: Hugging Face's has the
  // same name. Throws Error when it cannot be read.
  static bool IsOurs(const std::string& folder);
};

// What one process wrote, as text for the others, and back.
std::string ToText(const std::map<std::string, StoredVariable>& written);
std::map<std::string, StoredVariable> WrittenFromText(const std::string& text);

}  // namespace oneflow_like
