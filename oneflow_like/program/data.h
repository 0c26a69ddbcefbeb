// Texts and rows of tokens for programs that learn language.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "oneflow_like/data/tokens.h"

namespace oneflow_like {

// A text to learn from, whose last 5 %, at least one sequence of context + 1 tokens, are held out. If too
// little would be left to learn from, nothing is held out.
struct TextSplit {
  Tokens all, train, held_out;
  int64_t vocabulary = 256;  // 256 for bytes; for a file of tokens the largest one + 1
};
// Returns the next multiple of 128: the number of rows of a model's tables, which mesh axes cut evenly.
int64_t RoundedVocabulary(int64_t vocabulary);
// Throws Error for a file that is missing, none of Tokens::Open's, or shorter than one sequence.
TextSplit OpenText(const std::string& pattern, int64_t context);

// Synthetic rows that can be learnt: seven of eight tokens are 5 times the one before plus 3, modulo
// `tokens`, the others are random. Fields are those of TokenRows; a row is a function of first + index and
// the seed.
class LearnableRows final : public SampleSource {
 public:
  LearnableRows(int64_t context, int64_t tokens, int64_t first, int64_t rows);
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return rows_; }
  void Read(const SampleId& id, std::span<void* const> to) const override;

 private:
  const int64_t context_, tokens_, first_, rows_;
  const std::vector<SampleField> fields_;
};

// Rows with masked tokens (Devlin et al. 2019): 15 % of the tokens of a row, the first field of `rows`, are
// to be guessed; of these 80 % are replaced by the mask and 10 % by a random token. Half of the rows, drawn
// at random, end early, after a quarter of the row or later, and padding follows. Fields: "tokens"
// i32[context]; "targets" i32[context], -1 where nothing is asked; "padding" i32[context], 1 behind the end,
// else 0. Drawn anew in each epoch.
class MaskedRows final : public SampleSource {
 public:
  static constexpr int64_t kMoreTokens = 2;  // mask and padding, which follow the tokens of the rows
  MaskedRows(std::shared_ptr<const SampleSource> rows, int64_t tokens);
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return rows_->samples(); }
  void Read(const SampleId& id, std::span<void* const> to) const override;
  std::vector<DataHash> Hashes() const override { return rows_->Hashes(); }

 private:
  const std::shared_ptr<const SampleSource> rows_;
  const int64_t tokens_;
  const std::vector<SampleField> fields_;
};

// `samples` of a source, from `first` on. REQUIRES: it has them.
class SourcePart final : public SampleSource {
 public:
  SourcePart(std::shared_ptr<const SampleSource> source, int64_t first, int64_t samples)
      : source_(std::move(source)), first_(first), samples_(samples) {}
  const std::vector<SampleField>& fields() const override { return source_->fields(); }
  int64_t samples() const override { return samples_; }
  void Read(const SampleId& id, std::span<void* const> to) const override {
    source_->Read({.seed = id.seed, .epoch = id.epoch, .index = first_ + id.index}, to);
  }
  std::vector<DataHash> Hashes() const override { return source_->Hashes(); }

 private:
  const std::shared_ptr<const SampleSource> source_;
  const int64_t first_, samples_;
};

// Returns text for a terminal: of bytes that are neither printable ASCII nor newline nor tab the hexadecimal
// code.
std::string Escaped(const std::string& bytes);

}  // namespace oneflow_like
