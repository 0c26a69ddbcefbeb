// Texts as numbers: files of tokens, mapped and never loaded, and rows of them to train a language model on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/data/source.h"

namespace oneflow_like {

// From text to tokens and back. Any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocabulary() const = 0;  // tokens are 0 .. vocabulary - 1
  virtual std::vector<int32_t> Encode(const std::string& text) const = 0;
  // With the special tokens that models expect around a text, where the tokenizer has such.
  virtual std::vector<int32_t> EncodeWhole(const std::string& text) const { return Encode(text); }
  // Bytes, which may begin or end inside a UTF-8 character. Throws Error for a token that there is not.
  virtual std::string Decode(const std::vector<int32_t>& tokens) const = 0;
  // The token of this name ("</s>", "<|eot_id|>"); -1: none.
  virtual int32_t Find(const std::string& name) const { return -1; }
  // Whether it stands for no text: the begin or end of one, say.
  virtual bool Special(int32_t token) const { return false; }
};

// Every byte is a token.
class ByteTokenizer final : public Tokenizer {
 public:
  int64_t vocabulary() const override { return 256; }
  std::vector<int32_t> Encode(const std::string& text) const override;
  std::string Decode(const std::vector<int32_t>& tokens) const override;
};

// The tokens of several files, one after the other. A small value: parts and copies share the files.
class Tokens {
 public:
  // Files by a pattern of the shell ("data/fineweb_train_*.bin"), in the order of their names. By the name's
  // end:
  //   .bin  of llm.c: 256 int32 (magic 20240520 and version 1: uint16 follow; 20240801 and 7: uint32; the
  //         number of tokens), or Megatron's, when a file of that name with .idx is beside it
  //   .idx  of Megatron, which stands for its .bin; its documents are known
  //   .npy  NumPy's: integers of 1, 2, 4 or 8 bytes, in C order
  //   else  text, plain or gzip, through the tokenizer; nullptr: bytes
  // Numbers are little-endian. Throws Error with file and offset for what is none of these.
  static Tokens Open(const std::string& pattern, const Tokenizer* tokenizer = nullptr);

  int64_t size() const { return end_ - begin_; }
  const std::string& files() const { return files_; }  // the pattern that opened them
  bool text() const { return text_; }                  // they came through a tokenizer
  // to[0 .. count) = tokens begin .. begin + count. Throws BrokenSample, with file and offset, for one that
  // does not fit into an int32. REQUIRES: 0 <= begin <= begin + count <= size().
  void Read(int64_t begin, int64_t count, int32_t* to) const;
  // The largest token + 1. Reads them all the first time; of text, the tokenizer's vocabulary.
  int64_t Vocabulary() const;
  // Tokens begin .. end of these.
  Tokens Part(int64_t begin, int64_t end) const;
  // Where documents begin, ascending, the first at 0: each file, each document of Megatron's, and what
  // follows each end-of-document token once CutDocumentsAt has been told of it, which reads all tokens.
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
  // Documents lie in a row one behind the other, and know nothing of each other: also gives "positions"
  // (within the document's part of the row) and "documents" (0, 1, ... in the row), operands of attention's
  // mask; the last token of a document has no target.
  bool documents = false;
  bool tail = false;  // the last row, which is not full, too; else each epoch leaves out others of the tokens
};

// Rows of `context` tokens, cut from the text one behind the other. Fields: "tokens" and "targets", which are
// the tokens one further on and -1 where there is none; i32[context] each.
class TokenRows final : public SampleSource {
 public:
  // Throws Error when there are fewer than context + 1 tokens; `name` stands for them in messages, their
  // files where it is empty.
  TokenRows(Tokens tokens, const TokenRowsOptions& options, const std::string& name = "");
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override;
  void Read(const SampleId& id, std::span<void* const> to) const override;

 private:
  void MarkDocuments(int64_t begin, int64_t count, std::span<void* const> to) const;

  const Tokens tokens_;
  const TokenRowsOptions options_;
  std::vector<SampleField> fields_;
};

}  // namespace oneflow_like
