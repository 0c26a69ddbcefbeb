// Tokenizers that models of Hugging Face's come with (Tokenizer itself, and that of bytes, are in
// oneflow_like/data/tokens.h).
#pragma once

#include <memory>
#include <string>

#include "oneflow_like/data/tokens.h"

namespace oneflow_like {

// Byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) from a tokenizer.json, as GPT-2, Llama 3 and
// Qwen 2 have it. It gives the tokens that Hugging Face's tokenizers gives; added tokens are found in the
// text, whoever wrote it. Throws Error, naming the file and the entry, for what is broken or not computed
// here: other models than BPE, alphabets other than bytes. Where this was built without PCRE2, an Error;
// without utf8proc, one for files that normalise.
std::shared_ptr<const Tokenizer> OpenBytePairs(const std::string& path);

// A model of SentencePiece (Kudo and Richardson 2018), a file that is usually called tokenizer.model, as
// Llama 2 and Mistral have it. EncodeWhole puts its token for the beginning in front, where it has one. Where
// this was built without SentencePiece, an Error.
std::shared_ptr<const Tokenizer> OpenSentencePieces(const std::string& path);

// The tokenizer of a file: *.json is byte-level BPE, *.model SentencePiece. Of a folder: its tokenizer.json,
// else its tokenizer.model. Throws Error when there is none.
std::shared_ptr<const Tokenizer> OpenTokenizer(const std::string& path);
// Whether a folder has one.
bool HasTokenizer(const std::string& folder);

}  // namespace oneflow_like
