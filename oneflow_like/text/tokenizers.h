// Tokenizers of Hugging Face models (the interface Tokenizer, and the tokenizer of bytes, are in
// oneflow_like/data/tokens.h).
#pragma once

#include <memory>
#include <string>

#include "oneflow_like/data/tokens.h"

namespace oneflow_like {

// BPE (Sennrich et al. 2016) from a tokenizer.json: of bytes (Radford et al. 2019), as in GPT-2, Llama 3 and
// Qwen 2, or of characters with bytes for those without a token, as in Llama 2, TinyLlama and Mistral. It
// gives the same tokens as Hugging Face's tokenizers; added tokens are recognised in any text, also in a
// user's input. Throws Error, naming the file and the entry, for invalid or unsupported files: models other
// than BPE, steps that README.md does not list. Throws Error in a build without PCRE2, and without utf8proc
// for files that normalise.
std::shared_ptr<const Tokenizer> OpenBytePairs(const std::string& path);

// A SentencePiece model (Kudo and Richardson 2018), in a file that is usually called tokenizer.model, as in
// Llama 2 and Mistral. EncodeWhole prepends its begin token, if it has one. Throws Error in a build without
// SentencePiece.
std::shared_ptr<const Tokenizer> OpenSentencePieces(const std::string& path);

struct TokenizerFile {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string path;     // of its file
  std::string refused;  // what is wrong with the folder's file that comes before it; empty: none does
};
// Opens the tokenizer in a file (*.json: BPE, *.model: SentencePiece) or a folder: the first of its
// tokenizer.json and tokenizer.model that can be read, with the tokens that the folder's added_tokens.json
// and tokenizer_config.json have behind that file's own. Throws Error when there is none.
TokenizerFile FindTokenizer(const std::string& path);
std::shared_ptr<const Tokenizer> OpenTokenizer(const std::string& path);
// Whether a folder contains a tokenizer.
bool HasTokenizer(const std::string& folder);

}  // namespace oneflow_like
