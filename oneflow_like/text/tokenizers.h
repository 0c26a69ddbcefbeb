// Tokenizers of Hugging Face models (the interface Tokenizer, and the tokenizer of bytes, are in
// oneflow_like/data/tokens.h).
#pragma once

#include <memory>
#include <string>

#include "oneflow_like/data/tokens.h"

namespace oneflow_like {

// Byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) from a tokenizer.json, as in GPT-2, Llama 3 and
// Qwen 2. It gives the same tokens as Hugging Face's tokenizers; added tokens are recognised in any text,
// also in a user's input. Throws Error, naming the file and the entry, for invalid or unsupported files:
// models other than BPE, alphabets other than bytes. Throws Error in a build without PCRE2, and without
// utf8proc for files that normalise.
std::shared_ptr<const Tokenizer> OpenBytePairs(const std::string& path);

// A SentencePiece model (Kudo and Richardson 2018), in a file that is usually called tokenizer.model, as in
// Llama 2 and Mistral. EncodeWhole prepends its begin token, if it has one. Throws Error in a build without
// SentencePiece.
std::shared_ptr<const Tokenizer> OpenSentencePieces(const std::string& path);

// Opens the tokenizer in a file (*.json: byte-level BPE, *.model: SentencePiece) or a folder (its
// tokenizer.json, else its tokenizer.model). Throws Error when there is none.
std::shared_ptr<const Tokenizer> OpenTokenizer(const std::string& path);
// Whether a folder contains a tokenizer.
bool HasTokenizer(const std::string& folder);

}  // namespace oneflow_like
