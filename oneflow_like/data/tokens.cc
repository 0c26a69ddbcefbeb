// Tokens of several files as one row, and rows of them as samples.
#include "oneflow_like/data/tokens.h"

#include <algorithm>

#include "core/random.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/data/token_files.h"

namespace oneflow_like {
namespace {

constexpr int64_t kScanned = 1 << 14;  // tokens at a time, where all are read

bool IsTokenFile(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx") || path.ends_with(".npy");
}

}  // namespace

std::vector<int32_t> ByteTokenizer::Encode(const std::string& text) const {
  return std::vector<int32_t>(reinterpret_cast<const uint8_t*>(text.data()),
                              reinterpret_cast<const uint8_t*>(text.data()) + text.size());
}

std::string ByteTokenizer::Decode(const std::vector<int32_t>& tokens) const {
  std::string text;
  for (int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

Tokens Tokens::Open(const std::string& pattern, const Tokenizer* tokenizer) {
  Tokens all;
  all.files_ = pattern;
  std::vector<std::string> files = FilesOf(pattern);
  // A pattern may name both halves of Megatron's files.
  std::erase_if(files, [&](const std::string& path) {
    return path.ends_with(".bin") &&
           std::find(files.begin(), files.end(), path.substr(0, path.size() - 3) + "idx") != files.end();
  });
  auto shards = std::make_shared<std::vector<Shard>>();
  for (const std::string& path : files) {
    if (IsTokenFile(path) != IsTokenFile(files[0]))
      Fail(pattern, " matches both texts and files of tokens: ", files[0], " and ", path);
    Shard shard = OpenShard(path, tokenizer);
    shard.begin = all.end_;
    for (int64_t begin : shard.documents)
      if (shard.begin + begin > all.documents_.back()) all.documents_.push_back(shard.begin + begin);
    all.end_ += shard.count;
    shards->push_back(std::move(shard));
  }
  while (all.documents_.size() > 1 && all.documents_.back() >= all.end_) all.documents_.pop_back();
  all.text_ = !IsTokenFile(files[0]);
  if (all.text_ && tokenizer != nullptr) all.text_vocabulary_ = tokenizer->vocabulary();
  all.shards_ = std::move(shards);
  return all;
}

void Tokens::Read(int64_t begin, int64_t count, int32_t* to) const {
  if (count == 0) return;
  int64_t at = begin_ + begin;
  auto shard = std::upper_bound(shards_->begin(), shards_->end(), at,
                                [](int64_t value, const Shard& s) { return value < s.begin; }) -
               1;
  while (count > 0) {
    const int64_t here = std::min(count, shard->begin + shard->count - at);
    shard->Read(at - shard->begin, here, to);
    at += here;
    to += here;
    count -= here;
    ++shard;
  }
}

int64_t Tokens::Vocabulary() const {
  if (text_) return text_vocabulary_;
  std::vector<int32_t> some(kScanned);
  int32_t largest = 0;
  for (int64_t at = 0; at < size(); at += kScanned) {
    const int64_t count = std::min(kScanned, size() - at);
    Read(at, count, some.data());
    largest = std::max(largest, *std::max_element(some.begin(), some.begin() + count));
  }
  return int64_t{largest} + 1;
}

std::vector<DataHash> Tokens::Hashes() const {
  std::vector<DataHash> hashes;
  for (const Shard& shard : *shards_) {
    const int64_t bytes = shard.count * shard.width,
                  documents = static_cast<int64_t>(shard.documents.size() * sizeof(int64_t));
    const uint64_t numbers = HashOfSome(shard.numbers, bytes, HashedBytes(shards_->size()));
    hashes.push_back(
        {shard.path, bytes,
         RandomKey(numbers, HashOfSome(shard.documents.data(), documents, HashedBytes(shards_->size())))});
  }
  return hashes;
}

Tokens Tokens::Part(int64_t begin, int64_t end) const {
  Tokens part = *this;
  part.begin_ = begin_ + begin;
  part.end_ = begin_ + end;
  part.documents_ = {0};
  for (int64_t document : documents_)
    if (document > begin && document < end) part.documents_.push_back(document - begin);
  return part;
}

void Tokens::CutDocumentsAt(int32_t end_of_document) {
  std::vector<int64_t> ends;
  std::vector<int32_t> some(kScanned);
  for (int64_t at = 0; at < size(); at += kScanned) {
    const int64_t count = std::min(kScanned, size() - at);
    Read(at, count, some.data());
    for (int64_t i = 0; i < count; ++i)
      if (some[i] == end_of_document && at + i + 1 < size()) ends.push_back(at + i + 1);
  }
  std::vector<int64_t> all;
  std::set_union(documents_.begin(), documents_.end(), ends.begin(), ends.end(), std::back_inserter(all));
  documents_ = std::move(all);
}

TokenRows::TokenRows(Tokens tokens, const TokenRowsOptions& options, const std::string& given)
    : tokens_(std::move(tokens)), options_(options) {
  const std::string& name = given.empty() ? tokens_.files() : given;
  if (options.context < 1)
    Fail(name, ": a row of tokens has context ", options.context, ", must be at least 1");
  if (tokens_.size() < options.context + 1 && !(options.tail && tokens_.size() > 1))
    Fail(name, " holds ", tokens_.size(),
         " tokens, but one sequence takes context + 1 = ", options.context + 1);
  for (const char* field : {"tokens", "targets", "positions", "documents"})
    if (fields_.size() < 2 || options.documents) fields_.push_back({field, DType::kInt32, {options.context}});
}

int64_t TokenRows::samples() const {
  return (tokens_.size() - 1 + (options_.tail ? options_.context - 1 : 0)) / options_.context;
}

void TokenRows::Read(const SampleId& id, std::span<void* const> to) const {
  const int64_t context = options_.context, slack = (tokens_.size() - 1) % context;
  // What does not fill a row is left out at the begin and the end, in another way each epoch.
  const uint64_t key = RandomKey(id.seed, HashName("token rows"));
  const int64_t shift =
      options_.tail ? 0
                    : RandomBits(key, static_cast<uint64_t>(id.epoch), 0) % static_cast<uint64_t>(slack + 1);
  const int64_t begin = id.index * context + shift, count = std::min(context, tokens_.size() - 1 - begin);
  auto* tokens = static_cast<int32_t*>(to[0]);
  auto* targets = static_cast<int32_t*>(to[1]);
  tokens_.Read(begin, count, tokens);
  std::copy(tokens + 1, tokens + count, targets);
  tokens_.Read(begin + count, 1, targets + count - 1);
  std::fill(tokens + count, tokens + context, 0);
  std::fill(targets + count, targets + context, -1);
  if (options_.documents) MarkDocuments(begin, count, to);
}

void TokenRows::MarkDocuments(int64_t begin, int64_t count, std::span<void* const> to) const {
  auto *targets = static_cast<int32_t*>(to[1]), *positions = static_cast<int32_t*>(to[2]),
       *documents = static_cast<int32_t*>(to[3]);
  const std::vector<int64_t>& starts = tokens_.documents();
  auto next = std::upper_bound(starts.begin(), starts.end(), begin);
  int32_t document = 0, position = 0;
  for (int64_t i = 0; i < options_.context; ++i) {
    if (i < count && next != starts.end() && begin + i == *next) {
      ++next;
      ++document;
      position = 0;
    }
    if (i == count) {  // what fills up the row is a document of its own, which nobody sees
      ++document;
      position = 0;
    }
    positions[i] = position++;
    documents[i] = document;
    if (i < count && next != starts.end() && begin + i + 1 == *next) targets[i] = -1;
  }
}

}  // namespace oneflow_like
