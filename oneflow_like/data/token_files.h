// One file of tokens, whatever its format.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/data/files.h"
#include "oneflow_like/data/tokens.h"

namespace oneflow_like {

struct Tokens::Shard {
  std::shared_ptr<const MappedFile> file;    // of `numbers`, unless they are in memory
  std::shared_ptr<const std::string> bytes;  // of decompressed text
  std::shared_ptr<const std::vector<int32_t>> encoded;
  std::string path;
  const uint8_t* numbers = nullptr;
  int width = 1;  // bytes of a number
  bool is_signed = false;
  int64_t count = 0, begin = 0;          // number of tokens in earlier files
  int64_t offset = 0;                    // of the first number in the file
  std::vector<int64_t> documents = {0};  // their beginnings in this file
  // to[0 .. many) = numbers first .. first + many.
  void Read(int64_t first, int64_t many, int32_t* to) const;
};

// The files that Tokens::Open reads for a pattern: those that match, and of Megatron's both. Throws Error
// when none matches.
std::vector<std::string> TokenFilesOf(const std::string& pattern);

// Throws Error with file and offset.
Tokens::Shard OpenShard(const std::string& path, const Tokenizer* tokenizer);

}  // namespace oneflow_like
