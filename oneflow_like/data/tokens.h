// Texts as numbers: files of tokens, mapped and never loaded, and rows of tokens for training a language
// model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/data/source.h"

namespace oneflow_like {

// Converts text to tokens and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocabulary() const = 0;  // tokens are some of 0 .. vocabulary - 1
  virtual bool Has(int32_t token) const { return token >= 0 && token < vocabulary(); }
  virtual std::vector<int32_t> Encode(const std::string& text) const = 0;
  // Adds the special tokens that models expect around a text, if the tokenizer has any.
  virtual std::vector<int32_t> EncodeWhole(const std::string& text) const { return Encode(text); }
  // Returns bytes, which may begin or end inside a UTF-8 character. Throws Error for an unknown token.
  virtual std::string Decode(const std::vector<int32_t>& tokens) const = 0;
  // The token of this name ("</s>", "<|eot_id|>"); -1: none.
  virtual int32_t Find(const std::string& name) const { return -1; }
  // Whether the token has no text: the begin or end of a text, for instance.
  virtual bool Special(int32_t token) const { return false; }
};

// Every byte is a token.
class ByteTokenizer final : public Tokenizer {
 public:
  int64_t vocabulary() const override { return 256; }
  std::vector<int32_t> Encode(const std::string& text) const override;
  std::string Decode(const std::vector<int32_t>& tokens) const override;
};

// The tokens of several files, concatenated. Cheap to copy: parts and copies share the files.
class Tokens {
 public:
  // Opens the files that match a shell pattern ("data/fineweb_train_*.bin"), in the order of their names. The
  // format follows from the name:
  //   .bin  of llm.c: 256 int32 (magic 20240520 and version 1: uint16 follow; 20240801 and 7: uint32; the
  //         number of tokens), or Megatron's, when a file of that name with .idx is beside it
  //   .idx  of Megatron, which stands for its .bin; its documents are known
  //   .npy  NumPy's: integers of 1, 2, 4 or 8 bytes, in C order
  //   else  text, plain or gzip, through the tokenizer; nullptr: bytes
  // Numbers are little-endian. Throws Error with file and offset for what is none of these.
  static Tokens Open(const std::string& pattern, const Tokenizer* tokenizer = nullptr);

  int64_t size() const { return end_ - begin_; }
  const std::string& files() const { return files_; }  // the pattern that opened them
  bool text() const { return text_; }                  // made from text by a tokenizer
  // to[0 .. count) = tokens begin .. begin + count. Throws BrokenSample, with file and offset, for a token
  // that does not fit into an int32. REQUIRES: 0 <= begin <= begin + count <= size().
  void Read(int64_t begin, int64_t count, int32_t* to) const;
  // The largest token + 1, for which the first call reads all tokens; for text, the tokenizer's vocabulary.
  int64_t Vocabulary() const;
  // Of each file's numbers, whatever format and header they have, and of the beginnings of its documents.
  std::vector<DataHash> Hashes() const;
  // The tokens begin .. end of these.
  Tokens Part(int64_t begin, int64_t end) const;
  // Beginnings of documents, ascending, the first at 0: of each file, of each document in Megatron's index,
  // and after each end-of-document token once CutDocumentsAt has been called, which reads all tokens.
  const std::vector<int64_t>& documents() const { return documents_; }
  void CutDocumentsAt(int32_t end_of_document);

  struct Shard;  // a file

 private:
  std::shared_ptr<const std::vector<Shard>> shards_;
  std::string files_;
  int64_t begin_ = 0, end_ = 0;
  bool text_ = false;
  int64_t text_vocabulary_ = 256;
  std::vector<int64_t> documents_ = {0};
};

struct TokenRowsOptions {
  int64_t context = 0;  // tokens of a row
  // A row contains several documents that do not attend to each other: rows also have the fields "positions"
  // (within the document's part of the row) and "documents" (0, 1, ... in the row), operands of attention's
  // mask; the last token of a document has no target.
  bool documents = false;
  bool tail = false;  // keep the last, partial row; else each epoch leaves out other tokens
};

// Consecutive rows of `context` tokens. Fields: "tokens" and "targets", i32[context] each; a target is the
// next token, or -1 where there is none.
class TokenRows final : public SampleSource {
 public:
  // Throws Error when there are fewer than context + 1 tokens; messages call them `name`, or by their files
  // where it is empty.
  TokenRows(Tokens tokens, const TokenRowsOptions& options, const std::string& name = "");
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override;
  void Read(const SampleId& id, std::span<void* const> to) const override;
  std::vector<DataHash> Hashes() const override { return tokens_.Hashes(); }

 private:
  void MarkDocuments(int64_t begin, int64_t count, std::span<void* const> to) const;

  const Tokens tokens_;
  const TokenRowsOptions options_;
  std::vector<SampleField> fields_;
};

}  // namespace oneflow_like
