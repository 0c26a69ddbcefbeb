#include "oneflow_like/text/tokenizers.h"

#include <filesystem>

#include "core/error.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// In the order in which they are looked for.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model"};

}  // namespace

bool HasTokenizer(const std::string& folder) {
  std::error_code error;
  for (const char* name : kTokenizerFiles)
    if (fs::exists(fs::path(folder) / name, error)) return true;
  return false;
}

std::shared_ptr<const Tokenizer> OpenTokenizer(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const char* name : kTokenizerFiles)
      if (const fs::path file = fs::path(path) / name; fs::exists(file, error)) return OpenTokenizer(file);
    Fail(path, ": the folder has neither tokenizer.json nor tokenizer.model");
  }
  if (!fs::exists(path, error)) Fail(path, ": there is no such file or folder");
  if (path.ends_with(".json")) return OpenBytePairs(path);
  if (path.ends_with(".model")) return OpenSentencePieces(path);
  Fail(path,
       ": a tokenizer is a file *.json (byte-level BPE) or *.model (SentencePiece), or a folder with one");
}

}  // namespace oneflow_like
