// Loaders of the examples: text and token files for gpt, gzipped IDX images for mlp, and batches drawn from
// them. Every file that is missing, truncated, corrupt or absurd gives an Error of one sentence that names
// it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace oneflow_like {

// The bytes of a file; gzip is recognised by content and unpacked, and a name ending in .gz must hold it.
// Throws Error when the contents exceed `limit` bytes.
std::string ReadFile(const std::string& path, int64_t limit = int64_t{4} << 30);

struct TokenData {
  std::vector<uint16_t> tokens;
  int64_t vocabulary = 256;
  bool bytes = true;  // tokens are the bytes of a text
};
// Any file as byte tokens; a name ending in .bin as a token file of llm.c: 256 int32 (magic 20240520, version
// 1, number of tokens, zeros), then that many uint16, all little-endian. The vocabulary of a token file is
// its largest token + 1, rounded up to a multiple of 128 (GPT-2's 50257 become 50304).
TokenData LoadTokens(const std::string& path);

using TokenSpan = std::span<const uint16_t>;

// The text's last 5 % (at least one sequence) is held out; when too little would be left to train on, nothing
// is. Throws Error when the text is shorter than one sequence, which takes context + 1 tokens.
struct TextSplit {
  TokenSpan train, held_out;
};
TextSplit SplitText(TokenSpan tokens, int64_t context, const std::string& path);

// [batch, context], row-major; targets are the tokens one further on, -1 where there is none.
struct TokenBatch {
  std::vector<int32_t> tokens, targets;
  int64_t counted = 0;  // targets that are not -1
};
// Sequences from anywhere in the text: a pure function of seed and step. REQUIRES: text.size() > context.
TokenBatch RandomBatch(TokenSpan text, int64_t batch, int64_t context, uint64_t seed, int64_t step);
// The index-th batch of the text cut into consecutive sequences. Rows past the end count nothing.
TokenBatch ConsecutiveBatch(TokenSpan text, int64_t batch, int64_t context, int64_t index);

// An IDX file of bytes (LeCun's format of MNIST): magic 0 0 8 <axes>, big-endian extents, values.
struct IdxData {
  std::vector<int64_t> shape;
  std::vector<uint8_t> values;
};
IdxData LoadIdx(const std::string& path, int axes);

struct ImageSet {
  int64_t count = 0, pixels = 0;  // pixels of one image
  std::vector<uint8_t> images;    // [count, pixels]
  std::vector<uint8_t> labels;    // [count], below `classes`
};
ImageSet LoadImages(const std::string& images_path, const std::string& labels_path, int classes);

// 0 .. count-1 in an order that is a pure function of seed and epoch.
std::vector<int32_t> Shuffled(int64_t count, uint64_t seed, int64_t epoch);

// Text for a terminal: bytes that are neither printable ASCII nor newline nor tab become \xNN.
std::string Escaped(const std::string& bytes);

}  // namespace oneflow_like
