#include "oneflow_like/text/tokenizers.h"

#include <filesystem>

#include "core/error.h"
#include "oneflow_like/text/added_tokens.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// In the order in which they are looked for.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model"};

std::shared_ptr<const Tokenizer> OpenTokenizerFile(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) Fail(path, ": there is no such file or folder");
  if (path.ends_with(".json")) return OpenBytePairs(path);
  if (path.ends_with(".model")) return OpenSentencePieces(path);
  Fail(path, ": a tokenizer is a file *.json (BPE) or *.model (SentencePiece), or a folder with one");
}

}  // namespace

bool HasTokenizer(const std::string& folder) {
  std::error_code error;
  for (const char* name : kTokenizerFiles)
    if (fs::exists(fs::path(folder) / name, error)) return true;
  return false;
}

TokenizerFile FindTokenizer(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {OpenTokenizerFile(path), path, ""};
  TokenizerFile found;
  for (const char* name : kTokenizerFiles) {
    found.path = path + "/" + name;
    if (!fs::exists(found.path, error)) continue;
    try {
      found.tokenizer = OpenTokenizerFile(found.path);
    } catch (const Error& wrong) {
      found.refused += Cat(found.refused.empty() ? "" : "; ", wrong.what());
      continue;
    }
    found.tokenizer = WithAddedTokens(found.tokenizer, path);
    return found;
  }
  if (!found.refused.empty()) Fail(found.refused);
  Fail(path, ": the folder has neither tokenizer.json nor tokenizer.model");
}

std::shared_ptr<const Tokenizer> OpenTokenizer(const std::string& path) {
  return FindTokenizer(path).tokenizer;
}

}  // namespace oneflow_like
