// Byte-level BPE. A text is cut at added tokens, normalised, cut into words; a word's bytes are the first
// tokens, and neighbours become one token in the order of the merges.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/text/json_text.h"
#include "oneflow_like/text/split.h"
#include "oneflow_like/text/tokenizers.h"
#include "oneflow_like/text/utf8.h"

namespace oneflow_like {
namespace {

using nlohmann::json;

// GPT-2's words, which the byte-level step cuts by itself.
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int32_t kMostTokens = 1 << 28;

void AppendUtf8(int32_t code, std::string* to) {
  if (code < 0x80) {
    *to += static_cast<char>(code);
  } else {  // the alphabet of bytes ends at U+0143
    *to += static_cast<char>(0xC0 | code >> 6);
    *to += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// The character that stands for each byte in files: itself if it is printable Latin-1, else one from U+0100
// on.
struct ByteAlphabet {
  std::array<std::string, 256> character;
  std::unordered_map<int32_t, char> byte;  // by code point

  ByteAlphabet() {
    int32_t next = 0x100;
    for (int32_t b = 0; b < 256; ++b) {
      const bool shown = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const int32_t code = shown ? b : next++;
      AppendUtf8(code, &character[b]);
      byte[code] = static_cast<char>(b);
    }
  }
  // The bytes that a token of the file stands for; itself where it has other characters.
  std::string BytesOf(const std::string& token) const {
    std::string bytes;
    for (std::string_view rest = token; !rest.empty();) {
      const Utf8Character c = FirstCharacter(rest);
      const auto found = byte.find(c.code);
      if (found == byte.end()) return token;
      bytes += found->second;
      rest.remove_prefix(c.bytes);
    }
    return bytes;
  }
};

// Unicode's White_Space.
bool IsWhiteSpace(int32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}
size_t SpaceAtBegin(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Character c = FirstCharacter(text.substr(at));
    if (!IsWhiteSpace(c.code)) break;
    at += c.bytes;
  }
  return at;
}
size_t SpaceAtEnd(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (text[begin] & 0xC0) == 0x80) --begin;
    const Utf8Character c = FirstCharacter(text.substr(begin, end - begin));
    if (!IsWhiteSpace(c.code)) break;
    end = begin;
  }
  return text.size() - end;
}

// The same for PCRE2, whose \s has U+180E besides: files mean the \s of Oniguruma.
std::string WithWhiteSpace(const std::string& regex) {
  const std::string space =
      R"(\t-\r\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size()) {
      const char next = regex[++i];
      if (next == 's') {
        out += in_class ? space : "[" + space + "]";
      } else if (next == 'S' && !in_class) {
        out += "[^" + space + "]";
      } else {
        out += {c, next};
      }
      continue;
    }
    in_class = in_class ? c != ']' : c == '[';
    out += c;
  }
  return out;
}

// Tokens that are found in a text as they are.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool left = false, right = false;  // take white space beside them
};
class AddedTokens {
 public:
  void Add(AddedToken token) {
    auto& list = by_first_[static_cast<uint8_t>(token.content[0])];
    list.push_back(std::move(token));
    std::stable_sort(list.begin(), list.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.content.size() > b.content.size();
    });
  }
  // Calls use(text before, -1) and use("", token) for the parts of a text in order: the first token to begin,
  // and of those the longest.
  template <typename F>
  void Split(std::string_view text, F&& use) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const AddedToken* token = At(text.substr(at));
      if (!token) {
        ++at;
        continue;
      }
      const size_t end = at + token->content.size();
      const size_t begin = token->left ? std::max(done, at - SpaceAtEnd(text.substr(0, at))) : at;
      if (begin > done) use(text.substr(done, begin - done), -1);
      use(std::string_view(), token->id);
      done = token->right ? end + SpaceAtBegin(text.substr(end)) : end;
      at = done;
    }
    if (done < text.size()) use(text.substr(done), -1);
  }

 private:
  const AddedToken* At(std::string_view text) const {
    for (const AddedToken& token : by_first_[static_cast<uint8_t>(text[0])])
      if (text.starts_with(token.content)) return &token;
    return nullptr;
  }
  std::array<std::vector<AddedToken>, 256> by_first_;
};

struct Merge {
  int32_t rank = 0, made = 0;
};

// One step that cuts texts into smaller ones.
struct Cutter {
  Pattern pattern;
  bool drop_matches = false, drop_others = false;
};

// A tokenizer.json, read.
struct BytePairFile {
  std::string path;
  ByteAlphabet alphabet;
  std::vector<std::string> forms;  // normal forms, one after the other
  std::vector<Cutter> cutters;
  size_t byte_level_step = 0;        // the cutter that the byte-level step begins with, or their number
  bool space_before = false;         // what comes to it gets a space in front, unless it begins with one
  AddedTokens before, after;         // found before and after normalising
  std::vector<int32_t> first, last;  // put around a text
  std::unordered_map<std::string, int32_t> ids;  // by the file's name
  std::vector<std::string> bytes;                // by token; what it stands for
  std::vector<bool> special, known;
  std::array<int32_t, 256> of_byte;  // -1: none
  std::unordered_map<uint64_t, Merge> merges;
  bool whole_words = false;  // a word that is a token is not built by merges
  std::optional<int32_t> unknown;
  bool fuse_unknown = false;
};

uint64_t PairOf(int32_t a, int32_t b) { return static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b); }

// --- Reading the file ---

class BytePairReader {
 public:
  explicit BytePairReader(const std::string& path) : file_(std::make_unique<BytePairFile>()) {
    file_->path = path;
    constexpr int64_t kMostText = 1 << 28;
    root_ = ParseJson(path, ReadFile(path, kMostText));
    if (!root_.is_object()) Fail(path, ": it is no JSON object");
  }

  std::unique_ptr<BytePairFile> Read() {
    ReadModel(Part(root_, "model", "model"));
    ReadAdded();
    ReadNormalizer(At(root_, "normalizer"), "normalizer");
    ReadWords(At(root_, "pre_tokenizer"), "pre_tokenizer");
    if (!byte_level_)
      Fail(file_->path,
           ": its pre_tokenizer has no step ByteLevel, and this program knows tokenizers of bytes "
           "alone; a SentencePiece model comes with a tokenizer.model");
    RequireByteLevel(At(root_, "decoder"));
    ReadAround(At(root_, "post_processor"), "post_processor");
    return std::move(file_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& where, const json& value, const std::string& wanted) const {
    const std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60);
    Fail(file_->path, ": ", where, " is ", shown, ", but ", wanted);
  }
  static const json& At(const json& object, const char* name) {
    static const json kNone;
    const auto found = object.is_object() ? object.find(name) : object.end();
    return !object.is_object() || found == object.end() ? kNone : *found;
  }
  const json& Part(const json& object, const char* name, const std::string& where) const {
    const json& part = At(object, name);
    if (!part.is_object()) Refuse(where, part, "must be an object");
    return part;
  }
  bool Flag(const json& object, const char* name, const std::string& where, bool otherwise = false) const {
    const json& value = At(object, name);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) Refuse(where + "." + name, value, "must be true or false");
    return value.get<bool>();
  }
  std::string Text(const json& object, const char* name, const std::string& where) const {
    const json& value = At(object, name);
    if (!value.is_string()) Refuse(where + "." + name, value, "must be a text");
    return value.get<std::string>();
  }
  int32_t Id(const json& value, const std::string& where) const {
    if (!value.is_number_integer() || value < 0 || value >= kMostTokens)
      Refuse(where, value, Cat("must be a token's number, from 0 and below ", kMostTokens));
    return value.get<int32_t>();
  }
  // Parts of a sequence, or the one that there is.
  template <typename F>
  void ForSteps(const json& step, const char* list, const std::string& where, F&& use) const {
    if (step.is_null()) return;
    if (At(step, "type") != "Sequence") return use(step, where);
    const json& parts = At(step, list);
    if (!parts.is_array()) Refuse(where + "." + list, parts, "must be a list");
    for (size_t i = 0; i < parts.size(); ++i) use(parts[i], Cat(where, ".", list, "[", i, "]"));
  }

  void Learn(int32_t id, const std::string& name, std::string bytes, const std::string& where) {
    auto [at, fresh] = file_->ids.emplace(name, id);
    if (!fresh && at->second != id)
      Fail(file_->path, ": ", where, " gives '", ForTerminal(name), "' number ", id, ", which has number ",
           at->second);
    if (static_cast<size_t>(id) >= file_->bytes.size()) {
      file_->bytes.resize(id + 1);
      file_->known.resize(id + 1);
      file_->special.resize(id + 1);
    }
    if (file_->known[id] && fresh)
      Fail(file_->path, ": ", where, ": '", ForTerminal(name), "' is another name of token ", id);
    file_->known[id] = true;
    file_->bytes[id] = std::move(bytes);
  }

  void ReadModel(const json& model) {
    BytePairFile& f = *file_;
    const json& type = At(model, "type");
    if (!type.is_null() && type != "BPE") Refuse("model.type", type, "this program knows BPE alone");
    for (const char* none : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json& value = At(model, none); !value.is_null() && value != "")
        Refuse(Cat("model.", none), value, "byte-level BPE has none");
    if (const json& dropout = At(model, "dropout"); !dropout.is_null() && dropout != 0)
      Refuse("model.dropout", dropout, "must be null");
    const json& vocab = Part(model, "vocab", "model.vocab");
    if (vocab.size() >= static_cast<size_t>(kMostTokens)) Fail(f.path, ": model.vocab is too large");
    for (const auto& [name, id] : vocab.items()) {
      const int32_t token = Id(id, Cat("model.vocab['", ForTerminal(name), "']"));
      // Numbers that leave large gaps would take memory without bound.
      if (token > 16 * static_cast<int64_t>(vocab.size()) + 4096)
        Fail(f.path, ": model.vocab['", ForTerminal(name), "'] is ", token, ", but there are only ",
             vocab.size(), " tokens");
      Learn(token, name, f.alphabet.BytesOf(name), "model.vocab");
    }
    for (int b = 0; b < 256; ++b) {
      const auto found = f.ids.find(f.alphabet.character[b]);
      f.of_byte[b] = found == f.ids.end() ? -1 : found->second;
    }
    ReadMerges(At(model, "merges"));
    f.whole_words = Flag(model, "ignore_merges", "model");
    f.fuse_unknown = Flag(model, "fuse_unk", "model");
    if (const json& unknown = At(model, "unk_token"); !unknown.is_null())
      f.unknown = IdOf(Text(model, "unk_token", "model"), "model.unk_token");
  }

  int32_t IdOf(const std::string& name, const std::string& where) const {
    const auto found = file_->ids.find(name);
    if (found == file_->ids.end())
      Fail(file_->path, ": ", where, " names '", ForTerminal(name), "', which is no token");
    return found->second;
  }

  void ReadMerges(const json& merges) {
    if (!merges.is_array()) Refuse("model.merges", merges, "must be a list");
    int32_t rank = 0;
    for (const json& merge : merges) {
      const std::string where = Cat("model.merges[", rank, "]");
      std::string a, b;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        a = merge[0];
        b = merge[1];
      } else if (merge.is_string()) {
        const std::string text = merge;
        const size_t space = text.find(' ');
        if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
          a = text.substr(0, space);
          b = text.substr(space + 1);
        }
      }
      if (a.empty() || b.empty()) Refuse(where, merge, "must be two tokens");
      const Merge made{rank++, IdOf(a + b, where)};
      file_->merges[PairOf(IdOf(a, where), IdOf(b, where))] = made;  // of two alike the last counts
    }
  }

  void ReadAdded() {
    const json& added = At(root_, "added_tokens");
    if (added.is_null()) return;
    if (!added.is_array()) Refuse("added_tokens", added, "must be a list");
    for (size_t i = 0; i < added.size(); ++i) {
      const std::string where = Cat("added_tokens[", i, "]");
      const int32_t id = Id(At(added[i], "id"), where + ".id");
      if (id > static_cast<int64_t>(file_->bytes.size() + added.size()) + 4096)
        Fail(file_->path, ": ", where, ".id is ", id, ", far beyond the ", file_->bytes.size(),
             " tokens before it");
      AddedToken token{id, Text(added[i], "content", where), Flag(added[i], "lstrip", where),
                       Flag(added[i], "rstrip", where)};
      if (token.content.empty()) Fail(file_->path, ": ", where, ".content is empty");
      if (Flag(added[i], "single_word", where))
        Fail(file_->path, ": ", where, ".single_word is true, which this program does not know");
      Learn(id, token.content, file_->alphabet.BytesOf(token.content), where);
      file_->special[id] = Flag(added[i], "special", where);
      const bool normalized = Flag(added[i], "normalized", where, !file_->special[id]);
      (normalized ? after_ : before_).push_back(std::move(token));
    }
  }

  void ReadNormalizer(const json& normalizer, const std::string& whole) {
    ForSteps(normalizer, "normalizers", whole, [&](const json& step, const std::string& where) {
      const json& type = At(step, "type");
      if (type != "NFC" && type != "NFD" && type != "NFKC" && type != "NFKD")
        Refuse(where + ".type", type, "this program knows NFC, NFD, NFKC and NFKD");
      if (!CanNormalize())
        Fail(file_->path, ": ", where, " is ", type.get<std::string>(),
             ", which this program was built without; install libutf8proc-dev and build again");
      file_->forms.push_back(type);
    });
    for (AddedToken& token : before_) file_->before.Add(std::move(token));
    for (AddedToken& token : after_) {
      for (const std::string& form : file_->forms) token.content = Normalized(token.content, form);
      file_->after.Add(std::move(token));
    }
  }

  void ReadWords(const json& words, const std::string& whole) {
    ForSteps(words, "pretokenizers", whole, [&](const json& step, const std::string& where) {
      const json& type = At(step, "type");
      if (byte_level_) Refuse(where, step, "nothing may follow ByteLevel");
      if (type == "ByteLevel") {
        byte_level_ = true;
        file_->byte_level_step = file_->cutters.size();
        file_->space_before = Flag(step, "add_prefix_space", where, true);
        if (Flag(step, "use_regex", where, true)) Cut(kGpt2Words);
      } else if (type == "Digits") {
        Cut(Flag(step, "individual_digits", where) ? R"(\p{N})" : R"(\p{N}+)");
      } else if (type == "Split") {
        ReadSplit(step, where);
      } else {
        Refuse(where + ".type", type, "this program knows Split, Digits and ByteLevel");
      }
    });
  }

  void ReadSplit(const json& step, const std::string& where) {
    const json& pattern = Part(step, "pattern", where + ".pattern");
    const bool regex = pattern.contains("Regex");
    std::string text = Text(pattern, regex ? "Regex" : "String", where + ".pattern");
    if (!regex) {  // as it is
      size_t at = 0;
      while ((at = text.find("\\E", at)) != std::string::npos) text.replace(at, 2, R"(\E\\E\Q)"), at += 7;
      text = R"(\Q)" + text + R"(\E)";
    }
    const json& behavior = At(step, "behavior");
    if (behavior != "Isolated" && behavior != "Removed")
      Refuse(where + ".behavior", behavior, "this program knows Isolated and Removed");
    Cut(text);
    const bool removed = behavior == "Removed", invert = Flag(step, "invert", where);
    file_->cutters.back().drop_matches = removed && !invert;
    file_->cutters.back().drop_others = removed && invert;
  }

  void Cut(const std::string& regex) {
    file_->cutters.push_back({Pattern(file_->path, WithWhiteSpace(regex))});
  }

  void RequireByteLevel(const json& decoder) {
    bool found = false;
    ForSteps(decoder, "decoders", "decoder", [&](const json& step, const std::string& where) {
      if (At(step, "type") != "ByteLevel")
        Refuse(where + ".type", At(step, "type"), "that of bytes must be ByteLevel");
      found = true;
    });
    if (!found) Fail(file_->path, ": it has no decoder, but that of bytes is ByteLevel");
  }

  // The tokens around a single text.
  void ReadAround(const json& post, const std::string& whole) {
    ForSteps(post, "processors", whole, [&](const json& step, const std::string& where) {
      const json& type = At(step, "type");
      if (type == "ByteLevel") return;  // it changes offsets alone
      if (type != "TemplateProcessing")
        Refuse(where + ".type", type, "this program knows ByteLevel and TemplateProcessing");
      const json& single = At(step, "single");
      if (!single.is_array()) Refuse(where + ".single", single, "must be a list");
      bool behind = false;
      for (const json& piece : single) {
        if (piece.contains("Sequence")) {
          if (behind) Refuse(where + ".single", single, "a text must stand there once");
          behind = true;
        } else {
          const json& named = At(piece, "SpecialToken");
          const std::string name = Text(named, "id", where + ".single.SpecialToken");
          const json& ids = At(At(At(step, "special_tokens"), name.c_str()), "ids");
          if (!ids.is_array())
            Fail(file_->path, ": ", where, ".special_tokens lacks the ids of '", ForTerminal(name), "'");
          for (const json& id : ids) {
            const int32_t token = Id(id, where + ".special_tokens.ids");
            if (static_cast<size_t>(token) >= file_->known.size() || !file_->known[token])
              Fail(file_->path, ": ", where, ".special_tokens puts token ", token,
                   " around texts, which is neither in model.vocab nor in added_tokens");
            (behind ? file_->last : file_->first).push_back(token);
          }
        }
      }
      if (!behind) Refuse(where + ".single", single, "a text must stand there");
    });
  }

  std::unique_ptr<BytePairFile> file_;
  json root_;
  bool byte_level_ = false;
  std::vector<AddedToken> before_, after_;
};

// --- Words to tokens ---

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
      const Merge* merge = MergeOf(next.left);
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
  const Merge* MergeOf(int32_t left) const {
    const Symbol& symbol = symbols_[left];
    if (symbol.next < 0) return nullptr;
    const auto found = file_.merges.find(PairOf(symbol.token, symbols_[symbol.next].token));
    return found == file_.merges.end() ? nullptr : &found->second;
  }
  void Consider(int32_t left) {
    if (const Merge* merge = MergeOf(left)) queue_.push({merge->rank, left, merge->made});
  }

  const BytePairFile& file_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> queue_;
};

class BytePairTokenizer final : public Tokenizer {
 public:
  explicit BytePairTokenizer(std::unique_ptr<BytePairFile> file) : file_(std::move(file)) {}

  int64_t vocabulary() const override { return std::ssize(file_->bytes); }

  std::vector<int32_t> Encode(const std::string& text) const override {
    std::vector<int32_t> out;
    file_->before.Split(text, [&](std::string_view part, int32_t token) {
      if (token >= 0) return out.push_back(token);
      std::string normal(part);
      for (const std::string& form : file_->forms) normal = Normalized(normal, form);
      file_->after.Split(normal, [&](std::string_view words, int32_t added) {
        if (added >= 0) return out.push_back(added);
        EncodeWords(words, 0, &out);
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
    std::string text;
    for (int32_t token : tokens) {
      if (token < 0 || token >= vocabulary() || !file_->known[token])
        Fail(file_->path, ": it has no token ", token);
      text += file_->bytes[token];
    }
    return text;
  }

  int32_t Find(const std::string& name) const override {
    const auto found = file_->ids.find(name);
    return found == file_->ids.end() ? -1 : found->second;
  }

  bool Special(int32_t token) const override {
    return token >= 0 && token < vocabulary() && file_->special[token];
  }

 private:
  // The pieces that the cutters from number `step` on leave of it.
  void EncodeWords(std::string_view text, size_t step, std::vector<int32_t>* out) const {
    std::string spaced;
    if (step == file_->byte_level_step && file_->space_before && !text.starts_with(' '))
      text = spaced = Cat(' ', text);
    if (step == file_->cutters.size()) return EncodeWord(text, out);
    const Cutter& cutter = file_->cutters[step];
    cutter.pattern.Split(text, [&](std::string_view part, bool matched) {
      if (matched ? !cutter.drop_matches : !cutter.drop_others) EncodeWords(part, step + 1, out);
    });
  }

  void EncodeWord(std::string_view word, std::vector<int32_t>* out) const {
    const BytePairFile& f = *file_;
    if (f.whole_words) {
      std::string name;
      for (char c : word) name += f.alphabet.character[static_cast<uint8_t>(c)];
      if (const auto found = f.ids.find(name); found != f.ids.end()) return out->push_back(found->second);
    }
    std::vector<int32_t> tokens;
    bool unknown = false;  // the one before
    for (char c : word) {
      const int32_t token = f.of_byte[static_cast<uint8_t>(c)];
      if (token >= 0) {
        tokens.push_back(token);
      } else if (f.unknown && !(unknown && f.fuse_unknown)) {
        tokens.push_back(*f.unknown);
      }
      unknown = token < 0;
    }
    MergingWord(f, tokens).AppendTo(out);
  }

  const std::unique_ptr<const BytePairFile> file_;
};

}  // namespace

std::shared_ptr<const Tokenizer> OpenBytePairs(const std::string& path) {
  return std::make_shared<BytePairTokenizer>(BytePairReader(path).Read());
}

}  // namespace oneflow_like
