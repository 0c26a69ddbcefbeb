#include "oneflow_like/text/byte_pair_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/text/json_text.h"
#include "oneflow_like/text/split.h"
#include "oneflow_like/text/utf8.h"

namespace oneflow_like {
namespace {

using nlohmann::json;

constexpr char kHexDigits[] = "0123456789ABCDEF";  // as files write bytes: <0x0A>
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

// Unicode's White_Space for PCRE2, whose \s has U+180E besides: files mean the \s of Oniguruma.
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

std::string MatchesReplaced(const Pattern& pattern, const std::string& with, const std::string& text) {
  std::string out;
  pattern.Split(text, [&](std::string_view part, bool matched) { out += matched ? with : part; });
  return out;
}

std::string AllReplaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

// The byte that a token "<0x0A>" stands for; itself where it is another.
std::string ByteOf(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return token;
  int byte = 0;
  for (char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', upper = c >= 'A' && c <= 'F', lower = c >= 'a' && c <= 'f';
    if (!digit && !upper && !lower) return token;
    byte = 16 * byte + (digit ? c - '0' : (upper ? c - 'A' : c - 'a') + 10);
  }
  return std::string(1, static_cast<char>(byte));
}

// --- Cutting a text ---

// What becomes of the matches of a pattern that cuts a text.
enum class CutBehavior { kIsolated, kRemoved, kWithPrevious, kWithNext, kContiguous };
constexpr std::pair<const char*, CutBehavior> kBehaviors[] = {
    {"Isolated", CutBehavior::kIsolated},
    {"Removed", CutBehavior::kRemoved},
    {"MergedWithPrevious", CutBehavior::kWithPrevious},
    {"MergedWithNext", CutBehavior::kWithNext},
    {"Contiguous", CutBehavior::kContiguous}};

struct CutPart {
  std::string_view text;
  bool match = false;
};

std::string_view Joined(std::string_view a, std::string_view b) { return {a.data(), a.size() + b.size()}; }

// A match joins its neighbour, but a run of matches only by one of its ends.
std::vector<CutPart> JoinedParts(const std::vector<CutPart>& parts, CutBehavior behavior) {
  std::vector<CutPart> joined;
  const auto size = static_cast<int64_t>(parts.size());
  for (int64_t i = 0; i < size; ++i) {
    const bool match = parts[i].match;
    bool join = i > 0;
    if (behavior == CutBehavior::kWithPrevious) join = join && match && !parts[i - 1].match;
    if (behavior == CutBehavior::kWithNext) join = join && !match && parts[i - 1].match;
    if (behavior == CutBehavior::kContiguous) join = join && match == parts[i - 1].match;
    if (join) {
      joined.back().text = Joined(joined.back().text, parts[i].text);
    } else {
      joined.push_back(parts[i]);
    }
  }
  return joined;
}

void CutByPattern(const Pattern& pattern, CutBehavior behavior, bool invert, std::string_view text,
                  bool begins, const UseTextPart& use) {
  std::vector<CutPart> parts;
  pattern.Split(text, [&](std::string_view part, bool matched) {
    parts.push_back({part, matched != invert});
  });
  if (behavior != CutBehavior::kIsolated && behavior != CutBehavior::kRemoved)
    parts = JoinedParts(parts, behavior);
  for (const CutPart& part : parts)
    if (!part.match || behavior != CutBehavior::kRemoved)
      use(part.text, begins && part.text.data() == text.data());
}

// Metaspace: a mark in place of each space, and in front of the text.
struct SpaceMark {
  std::string mark;
  bool in_front = true, at_begin_only = false;  // of the user's text
  bool cut = true;                              // before each mark

  void operator()(std::string_view text, bool begins, const UseTextPart& use) const {
    std::string marked = AllReplaced(std::string(text), " ", mark);
    if (in_front && (begins || !at_begin_only) && !marked.empty() && !marked.starts_with(mark))
      marked.insert(0, mark);
    const std::string_view all = marked;
    for (size_t at = 0; at < all.size();) {
      const size_t end = cut ? std::min(all.find(mark, at + 1), all.size()) : all.size();
      use(all.substr(at, end - at), begins && at == 0);
      at = end;
    }
  }
};

// --- The file ---

class BytePairReader {
 public:
  explicit BytePairReader(const std::string& path) : file_(std::make_unique<BytePairFile>()) {
    file_->path = path;
    constexpr int64_t kMostText = 1 << 28;
    root_ = ParseJson(path, ReadFile(path, kMostText));
    if (!root_.is_object()) Fail(path, ": it is no JSON object");
  }

  std::unique_ptr<const BytePairFile> Read() {
    ReadModel(Part(root_, "model", "model"));
    ReadAdded();
    ReadNormalizer(At(root_, "normalizer"), "normalizer");
    ReadWords(At(root_, "pre_tokenizer"), "pre_tokenizer");
    ReadDecoder(At(root_, "decoder"));
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

  int64_t Count(const json& object, const char* name, const std::string& where) const {
    const json& value = At(object, name);
    if (!value.is_number_integer() || value < 0 || value >= kMostTokens)
      Refuse(where + "." + name, value, "must be a whole number from 0 on");
    return value.get<int64_t>();
  }
  // A text of one character.
  std::string Character(const json& object, const char* name, const std::string& where) const {
    const std::string text = Text(object, name, where);
    if (text.empty() || static_cast<size_t>(FirstCharacter(text).bytes) != text.size())
      Refuse(where + "." + name, At(object, name), "must be one character");
    return text;
  }
  // {"pattern": {"Regex": "..."}} or {"String": "..."}
  std::shared_ptr<const Pattern> PatternIn(const json& step, const std::string& where) const {
    const json& pattern = Part(step, "pattern", where + ".pattern");
    const bool regex = pattern.contains("Regex");
    const std::string text = Text(pattern, regex ? "Regex" : "String", where + ".pattern");
    return std::make_shared<Pattern>(
        file_->path,
        regex ? WithWhiteSpace(text) : R"(\Q)" + AllReplaced(text, "\\E", R"(\E\\E\Q)") + R"(\E)");
  }

  void Learn(int32_t id, const std::string& name, const std::string& where) {
    auto [at, fresh] = file_->ids.emplace(name, id);
    if (!fresh && at->second != id)
      Fail(file_->path, ": ", where, " gives '", ForTerminal(name), "' number ", id, ", which has number ",
           at->second);
    if (static_cast<size_t>(id) >= file_->known.size()) {
      file_->known.resize(id + 1);
      file_->special.resize(id + 1);
    }
    if (file_->known[id] && fresh)
      Fail(file_->path, ": ", where, ": '", ForTerminal(name), "' is another name of token ", id);
    file_->known[id] = true;
  }

  void ReadModel(const json& model) {
    BytePairFile& f = *file_;
    const json& type = At(model, "type");
    if (!type.is_null() && type != "BPE") Refuse("model.type", type, "this program knows BPE alone");
    for (const char* none : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json& value = At(model, none); !value.is_null() && value != "")
        Refuse(Cat("model.", none), value, "this program knows BPE without it");
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
      Learn(token, name, "model.vocab");
    }
    for (const auto& [name, token] : f.ids)
      if (const Utf8Character c = name.empty() ? Utf8Character{0} : FirstCharacter(name);
          c.code >= 0 && static_cast<size_t>(c.bytes) == name.size())
        f.of_character[c.code] = token;
    for (int b = 0; b < 256; ++b) {
      const auto token = [&](const std::string& name) {
        const auto found = f.ids.find(name);
        return found == f.ids.end() ? -1 : found->second;
      };
      f.of_byte[b] = token(f.alphabet.character[b]);
      f.fallback[b] = token({'<', '0', 'x', kHexDigits[b >> 4], kHexDigits[b & 15], '>'});
    }
    ReadMerges(At(model, "merges"));
    f.whole_words = Flag(model, "ignore_merges", "model");
    f.fuse_unknown = Flag(model, "fuse_unk", "model");
    f.byte_fallback = Flag(model, "byte_fallback", "model");
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
      const BytePairMerge made{rank++, IdOf(a + b, where)};
      file_->merges[BytePairKey(IdOf(a, where), IdOf(b, where))] = made;  // of two alike the last counts
    }
  }

  void ReadAdded() {
    const json& added = At(root_, "added_tokens");
    if (added.is_null()) return;
    if (!added.is_array()) Refuse("added_tokens", added, "must be a list");
    for (size_t i = 0; i < added.size(); ++i) {
      const std::string where = Cat("added_tokens[", i, "]");
      const int32_t id = Id(At(added[i], "id"), where + ".id");
      if (id > static_cast<int64_t>(file_->known.size() + added.size()) + 4096)
        Fail(file_->path, ": ", where, ".id is ", id, ", far beyond the ", file_->known.size(),
             " tokens before it");
      AddedToken token{id, Text(added[i], "content", where), Flag(added[i], "lstrip", where),
                       Flag(added[i], "rstrip", where)};
      if (token.content.empty()) Fail(file_->path, ": ", where, ".content is empty");
      if (Flag(added[i], "single_word", where))
        Fail(file_->path, ": ", where, ".single_word is true, which this program does not know");
      Learn(id, token.content, where);
      file_->special[id] = token.special = Flag(added[i], "special", where);
      const bool normalized = Flag(added[i], "normalized", where, !file_->special[id]);
      (normalized ? after_ : before_).push_back(std::move(token));
    }
  }

  void ReadNormalizer(const json& normalizer, const std::string& whole) {
    ForSteps(normalizer, "normalizers", whole, [&](const json& step, const std::string& where) {
      const json& type = At(step, "type");
      if (type == "Prepend") {
        file_->changes.push_back([front = Text(step, "prepend", where)](const std::string& text) {
          return text.empty() ? text : front + text;
        });
      } else if (type == "Replace") {
        file_->changes.push_back(Replacing(step, where));
      } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
        if (!CanNormalize())
          Fail(file_->path, ": ", where, " is ", type.get<std::string>(),
               ", which this program was built without; install libutf8proc-dev and build again");
        file_->changes.push_back(
            [form = type.get<std::string>()](const std::string& text) { return Normalized(text, form); });
      } else {
        Refuse(where + ".type", type, "this program knows NFC, NFD, NFKC, NFKD, Prepend and Replace");
      }
    });
    for (AddedToken& token : before_) file_->before.Add(std::move(token));
    for (AddedToken& token : after_) {
      for (const auto& change : file_->changes) token.content = change(token.content);
      if (!token.content.empty()) file_->after.Add(std::move(token));
    }
  }

  std::function<std::string(const std::string&)> Replacing(const json& step, const std::string& where) const {
    return [pattern = PatternIn(step, where), with = Text(step, "content", where)](const std::string& text) {
      return MatchesReplaced(*pattern, with, text);
    };
  }

  void ReadWords(const json& words, const std::string& whole) {
    ForSteps(words, "pretokenizers", whole, [&](const json& step, const std::string& where) {
      const json& type = At(step, "type");
      if (file_->byte_level) Refuse(where, step, "nothing may follow ByteLevel");
      if (type == "ByteLevel") {
        ReadByteLevel(step, where);
      } else if (type == "Digits") {
        Cut(Flag(step, "individual_digits", where) ? R"(\p{N})" : R"(\p{N}+)");
      } else if (type == "Split") {
        ReadSplit(step, where);
      } else if (type == "Metaspace") {
        ReadMetaspace(step, where);
      } else {
        Refuse(where + ".type", type, "this program knows Split, Digits, Metaspace and ByteLevel");
      }
    });
  }

  void ReadByteLevel(const json& step, const std::string& where) {
    file_->byte_level = true;
    if (Flag(step, "add_prefix_space", where, true))
      file_->cutters.push_back([](std::string_view text, bool begins, const UseTextPart& use) {
        text.starts_with(' ') ? use(text, begins) : use(Cat(' ', text), begins);
      });
    if (Flag(step, "use_regex", where, true)) Cut(kGpt2Words);
  }

  void ReadSplit(const json& step, const std::string& where) {
    const auto pattern = PatternIn(step, where);
    const json& named = At(step, "behavior");
    const auto* behavior = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                        [&](const auto& known) { return named == known.first; });
    if (behavior == std::end(kBehaviors))
      Refuse(where + ".behavior", named,
             "this program knows Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous");
    file_->cutters.push_back([pattern, how = behavior->second, invert = Flag(step, "invert", where)](
                                 std::string_view text, bool begins, const UseTextPart& use) {
      CutByPattern(*pattern, how, invert, text, begins, use);
    });
  }

  void ReadMetaspace(const json& step, const std::string& where) {
    SpaceMark mark{.mark = Character(step, "replacement", where), .cut = Flag(step, "split", where, true)};
    const json& scheme = At(step, "prepend_scheme");
    if (!scheme.is_null() && scheme != "always" && scheme != "first" && scheme != "never")
      Refuse(where + ".prepend_scheme", scheme, "must be always, first or never");
    // Older files have the flag alone.
    mark.in_front = scheme != "never" && Flag(step, "add_prefix_space", where, true);
    mark.at_begin_only = scheme == "first";
    file_->cutters.push_back(mark);
  }

  void Cut(const std::string& regex) {
    file_->cutters.push_back([pattern = std::make_shared<Pattern>(file_->path, WithWhiteSpace(regex))](
                                 std::string_view text, bool begins, const UseTextPart& use) {
      CutByPattern(*pattern, CutBehavior::kIsolated, false, text, begins, use);
    });
  }

  // A step changes each token by itself, or, behind Fuse, the text that they are together.
  void ReadDecoder(const json& decoder) {
    BytePairFile& f = *file_;
    std::vector<std::function<std::string(const std::string& token, bool first)>> steps;
    const auto each = [&](const std::function<std::string(const std::string&)>& change) {
      steps.push_back([change](const std::string& token, bool) { return change(token); });
    };
    bool byte_level = false, fused = false, knows_first = false;
    ForSteps(decoder, "decoders", "decoder", [&](const json& step, const std::string& where) {
      const json& type = At(step, "type");
      if (fused && type != "Strip") Refuse(where + ".type", type, "Strip alone may follow Fuse");
      if (type == "ByteLevel") {
        byte_level = true;
        each([&f](const std::string& token) { return f.alphabet.BytesOf(token); });
      } else if (type == "Replace") {
        each(Replacing(step, where));
      } else if (type == "ByteFallback") {
        each(ByteOf);
      } else if (type == "Fuse") {
        fused = true;
      } else if (type == "Strip") {
        if (!fused || !f.strip.empty()) Refuse(where, step, "Strip must stand behind Fuse, once");
        if (Count(step, "stop", where) != 0) Refuse(where + ".stop", At(step, "stop"), "must be 0");
        f.strip = Character(step, "content", where);
        f.strip_count = Count(step, "start", where);
      } else if (type == "Metaspace") {
        knows_first = At(step, "prepend_scheme") != "never" && Flag(step, "add_prefix_space", where, true);
        steps.push_back([mark = Character(step, "replacement", where), knows_first](const std::string& token,
                                                                                    bool first) {
          return AllReplaced(token, mark, first && knows_first ? "" : " ");
        });
      } else {
        Refuse(where + ".type", type,
               "this program knows ByteLevel, Replace, ByteFallback, Fuse, Strip and Metaspace");
      }
    });
    if (steps.empty())
      Fail(f.path, ": it has no decoder, which says how tokens become text; that of bytes is ByteLevel");
    if (byte_level != f.byte_level)
      Fail(f.path, ": its ", byte_level ? "decoder" : "pre_tokenizer", " has a step ByteLevel, but its ",
           byte_level ? "pre_tokenizer" : "decoder", " has none");
    f.bytes.resize(f.known.size());
    if (knows_first) f.first_bytes.resize(f.known.size());
    for (const auto& [name, id] : f.ids)
      for (bool first : {false, true}) {
        if (first && !knows_first) continue;
        std::string text = name;
        for (const auto& step : steps) text = step(text, first);
        (first ? f.first_bytes : f.bytes)[id] = std::move(text);
      }
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
  std::vector<AddedToken> before_, after_;
};

}  // namespace

ByteAlphabet::ByteAlphabet() {
  int32_t next = 0x100;
  for (int32_t b = 0; b < 256; ++b) {
    const bool shown = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const int32_t code = shown ? b : next++;
    AppendUtf8(code, &character[b]);
    byte[code] = static_cast<char>(b);
  }
}

std::string ByteAlphabet::BytesOf(const std::string& token) const {
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

std::unique_ptr<const BytePairFile> ReadBytePairFile(const std::string& path) {
  return BytePairReader(path).Read();
}

}  // namespace oneflow_like
