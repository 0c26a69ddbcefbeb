// Texts that are split, and tokens that are made.
#include "oneflow_like/program/data.h"

#include <algorithm>

#include "core/error.h"
#include "core/random.h"

namespace oneflow_like {

int64_t RoundedVocabulary(int64_t vocabulary) {
  constexpr int64_t kMultiple = 128;  // GPT-2's 50257 become 50304
  return (vocabulary + kMultiple - 1) / kMultiple * kMultiple;
}

TextSplit OpenText(const std::string& pattern, int64_t context) {
  TextSplit text;
  text.all = Tokens::Open(pattern);
  const int64_t size = text.all.size(), sequence = context + 1, held = std::max(size / 20, sequence);
  if (size < sequence)
    Fail(pattern, " holds ", size, " tokens, but one sequence takes context + 1 = ", sequence);
  const int64_t train = size - held < sequence ? size : size - held;
  text.train = text.all.Part(0, train);
  text.held_out = text.all.Part(train, size);
  text.vocabulary = text.all.Vocabulary();
  return text;
}

LearnableRows::LearnableRows(int64_t context, int64_t tokens, int64_t first, int64_t rows)
    : context_(context),
      tokens_(tokens),
      first_(first),
      rows_(rows),
      fields_{{"tokens", DType::kInt32, {context}}, {"targets", DType::kInt32, {context}}} {}

void LearnableRows::Read(const SampleId& id, std::span<void* const> to) const {
  const uint64_t key = RandomKey(id.seed, HashName("learnable"));
  const uint64_t row = first_ + id.index;
  int32_t *tokens = static_cast<int32_t*>(to[0]), *targets = static_cast<int32_t*>(to[1]);
  int64_t token = RandomBits(key, row, 0) % tokens_;
  for (int64_t t = 0; t < context_; ++t) {
    tokens[t] = static_cast<int32_t>(token);
    const uint32_t noise = RandomBits(key, row, t + 1);
    token = noise % 8 == 0 ? noise / 8 % tokens_ : (5 * token + 3) % tokens_;
    targets[t] = static_cast<int32_t>(token);
  }
}

MaskedRows::MaskedRows(std::shared_ptr<const SampleSource> rows, int64_t tokens)
    : rows_(std::move(rows)),
      tokens_(tokens),
      fields_{{"tokens", DType::kInt32, rows_->fields()[0].shape},
              {"targets", DType::kInt32, rows_->fields()[0].shape},
              {"padding", DType::kInt32, rows_->fields()[0].shape}} {}

void MaskedRows::Read(const SampleId& id, std::span<void* const> to) const {
  const int64_t context = fields_[0].shape[0];
  std::vector<std::vector<char>> others;  // fields of the rows that are not read
  std::vector<void*> of_row = {to[0]};
  for (size_t i = 1; i < rows_->fields().size(); ++i) {
    others.emplace_back(rows_->fields()[i].bytes());
    of_row.push_back(others.back().data());
  }
  rows_->Read(id, of_row);
  auto *tokens = static_cast<int32_t*>(to[0]), *targets = static_cast<int32_t*>(to[1]),
       *padding = static_cast<int32_t*>(to[2]);
  const uint64_t key = RandomKey(id.seed + id.epoch, HashName("masked rows"));
  const uint32_t ends = RandomBits(key, id.index, 0);
  const int64_t least = std::max<int64_t>(1, context / 4);
  const int64_t length = ends % 2 == 0 ? context : least + ends / 2 % (context - least + 1);
  for (int64_t t = 0; t < context; ++t) {
    const uint32_t draw = RandomBits(key, id.index, t + 1), share = draw % 1000;
    padding[t] = t >= length ? 1 : 0;
    targets[t] = t < length && share < 150 ? tokens[t] : -1;
    if (t >= length) {
      tokens[t] = static_cast<int32_t>(tokens_ + 1);
    } else if (share < 120) {
      tokens[t] = static_cast<int32_t>(tokens_);
    } else if (share < 135) {
      tokens[t] = static_cast<int32_t>(draw / 1000 % tokens_);
    }
  }
}

std::string Escaped(const std::string& bytes) {
  static const char kHex[] = "0123456789abcdef";
  std::string out;
  for (unsigned char c : bytes) {
    if ((c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t') {
      out += static_cast<char>(c);
    } else {
      out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
    }
  }
  return out;
}

}  // namespace oneflow_like
