// BPE: a text is cut at added tokens, changed, and cut into words; a word's characters, or its bytes, are the
// first tokens, and neighbours become one token in the order of the merges.
#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "oneflow_like/text/byte_pair_file.h"
#include "oneflow_like/text/tokenizers.h"
#include "oneflow_like/text/utf8.h"

namespace oneflow_like {
namespace {

// Tokens of a word, linked in order, of which neighbours become one until no merge is left.
class MergingWord {
 public:
  MergingWord(const BytePairFile& file, const std::vector<int32_t>& tokens) : file_(file) {
    const auto size = static_cast<int32_t>(tokens.size());
    for (int32_t i = 0; i < size; ++i) symbols_.push_back({tokens[i], i - 1, i + 1 < size ? i + 1 : -1});
    for (int32_t i = 0; i + 1 < size; ++i) Consider(i);
  }
  void AppendTo(std::vector<int32_t>* out) {
    while (!queue_.empty()) {
      const Candidate next = queue_.top();
      queue_.pop();
      Symbol& left = symbols_[next.left];
      // The piece that stood there may have become part of another token.
      if (left.token < 0 || left.next < 0) continue;
      const BytePairMerge* merge = MergeOf(next.left);
      if (!merge || merge->made != next.made) continue;
      Symbol& right = symbols_[left.next];
      left.token = next.made;
      right.token = -1;
      left.next = right.next;
      if (left.next >= 0) symbols_[left.next].previous = next.left;
      if (left.previous >= 0) Consider(left.previous);
      Consider(next.left);
    }
    for (const Symbol& symbol : symbols_)
      if (symbol.token >= 0) out->push_back(symbol.token);
  }

 private:
  struct Symbol {
    int32_t token, previous, next;
  };
  struct Candidate {
    int32_t rank, left, made;
    bool operator<(const Candidate& o) const { return std::tie(rank, left) > std::tie(o.rank, o.left); }
  };
  const BytePairMerge* MergeOf(int32_t left) const {
    const Symbol& symbol = symbols_[left];
    if (symbol.next < 0) return nullptr;
    const auto found = file_.merges.find(BytePairKey(symbol.token, symbols_[symbol.next].token));
    return found == file_.merges.end() ? nullptr : &found->second;
  }
  void Consider(int32_t left) {
    if (const BytePairMerge* merge = MergeOf(left)) queue_.push({merge->rank, left, merge->made});
  }

  const BytePairFile& file_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> queue_;
};

class BytePairTokenizer final : public Tokenizer {
 public:
  explicit BytePairTokenizer(std::unique_ptr<const BytePairFile> file) : file_(std::move(file)) {}

  int64_t vocabulary() const override { return std::ssize(file_->known); }

  std::vector<int32_t> Encode(const std::string& text) const override {
    std::vector<int32_t> out;
    bool begins = true;
    file_->before.Split(text, [&](std::string_view part, int32_t token) {
      const bool first = std::exchange(begins, false);
      if (token >= 0) return out.push_back(token);
      std::string changed(part);
      for (const auto& change : file_->changes) changed = change(changed);
      bool here = first;
      file_->after.Split(changed, [&](std::string_view words, int32_t added) {
        const bool first_here = std::exchange(here, false);
        if (added >= 0) return out.push_back(added);
        EncodeWords(words, first_here, 0, &out);
      });
    });
    return out;
  }

  std::vector<int32_t> EncodeWhole(const std::string& text) const override {
    std::vector<int32_t> out = file_->first;
    const std::vector<int32_t> tokens = Encode(text);
    out.insert(out.end(), tokens.begin(), tokens.end());
    out.insert(out.end(), file_->last.begin(), file_->last.end());
    return out;
  }

  std::string Decode(const std::vector<int32_t>& tokens) const override {
    const BytePairFile& f = *file_;
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!Has(tokens[i])) Fail(f.path, ": it has no token ", tokens[i]);
      text += (i == 0 && !f.first_bytes.empty() ? f.first_bytes : f.bytes)[tokens[i]];
    }
    size_t begin = 0;
    for (int64_t i = 0; i < f.strip_count && text.compare(begin, f.strip.size(), f.strip) == 0; ++i)
      begin += f.strip.size();
    return text.substr(begin);
  }

  int32_t Find(const std::string& name) const override {
    const auto found = file_->ids.find(name);
    return found == file_->ids.end() ? -1 : found->second;
  }

  bool Special(int32_t token) const override { return Has(token) && file_->special[token]; }

  bool Has(int32_t token) const override { return token >= 0 && token < vocabulary() && file_->known[token]; }

 private:
  // The pieces that the cutters from number `step` on leave of it.
  void EncodeWords(std::string_view text, bool begins, size_t step, std::vector<int32_t>* out) const {
    if (step == file_->cutters.size()) return EncodeWord(text, out);
    file_->cutters[step](text, begins, [&](std::string_view part, bool part_begins) {
      EncodeWords(part, part_begins, step + 1, out);
    });
  }

  // The name in the file of a word, or of a byte or character of it.
  std::string NameOf(std::string_view word) const {
    if (!file_->byte_level) return std::string(word);
    std::string name;
    for (char c : word) name += file_->alphabet.character[static_cast<uint8_t>(c)];
    return name;
  }

  // Takes the first character, or byte, of a word; -1: it has no token.
  int32_t TakeToken(std::string_view* word, std::string_view* character) const {
    const BytePairFile& f = *file_;
    const Utf8Character c = f.byte_level ? Utf8Character{1} : FirstCharacter(*word);
    *character = word->substr(0, c.bytes);
    word->remove_prefix(c.bytes);
    if (f.byte_level) return f.of_byte[static_cast<uint8_t>((*character)[0])];
    const auto found = f.of_character.find(c.code);
    return found == f.of_character.end() ? -1 : found->second;
  }

  // Appends the tokens of a character's bytes, where all have one.
  bool AppendBytes(std::string_view character, std::vector<int32_t>* tokens) const {
    if (!file_->byte_fallback) return false;
    const std::string name = NameOf(character);
    for (char c : name)
      if (file_->fallback[static_cast<uint8_t>(c)] < 0) return false;
    for (char c : name) tokens->push_back(file_->fallback[static_cast<uint8_t>(c)]);
    return true;
  }

  void EncodeWord(std::string_view word, std::vector<int32_t>* out) const {
    const BytePairFile& f = *file_;
    if (f.whole_words)
      if (const auto found = f.ids.find(NameOf(word)); found != f.ids.end())
        return out->push_back(found->second);
    std::vector<int32_t> tokens;
    bool unknown = false;  // comes before the next token of a character
    for (std::string_view character; !word.empty();) {
      const int32_t token = TakeToken(&word, &character);
      // As Hugging Face's library: those of bytes come before what was unknown.
      if (token < 0 && AppendBytes(character, &tokens)) continue;
      if (unknown && f.unknown && (token >= 0 || !f.fuse_unknown)) tokens.push_back(*f.unknown);
      if (token >= 0) tokens.push_back(token);
      unknown = token < 0;
    }
    if (unknown && f.unknown) tokens.push_back(*f.unknown);
    MergingWord(f, tokens).AppendTo(out);
  }

  const std::unique_ptr<const BytePairFile> file_;
};

}  // namespace

std::shared_ptr<const Tokenizer> OpenBytePairs(const std::string& path) {
  return std::make_shared<BytePairTokenizer>(ReadBytePairFile(path));
}

}  // namespace oneflow_like
