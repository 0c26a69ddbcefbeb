#include "oneflow_like/text/byte_pair_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/text/cut_text.h"
#include "oneflow_like/text/json_fields.h"
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

void AppendUtf8(int32_t code, std::string* to) {
  if (code < 0x80) {
    *to += static_cast<char>(code);
  } else {  // the alphabet of bytes ends at U+0143
    *to += static_cast<char>(0xC0 | code >> 6);
    *to += static_cast<char>(0x80 | (code & 0x3F));
  }
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

// --- The model ---

void Learn(int32_t id, const std::string& name, const std::string& where, BytePairFile* file) {
  auto [at, fresh] = file->ids.emplace(name, id);
  if (!fresh && at->second != id)
    Fail(file->path, ": ", where, " gives '", ForTerminal(name), "' number ", id, ", which has number ",
         at->second);
  if (static_cast<size_t>(id) >= file->known.size()) {
    file->known.resize(id + 1);
    file->special.resize(id + 1);
  }
  if (file->known[id] && fresh)
    Fail(file->path, ": ", where, ": '", ForTerminal(name), "' is another name of token ", id);
  file->known[id] = true;
}

int32_t IdOf(const BytePairFile& file, const std::string& name, const std::string& where) {
  const auto found = file.ids.find(name);
  if (found == file.ids.end())
    Fail(file.path, ": ", where, " names '", ForTerminal(name), "', which is no token");
  return found->second;
}

void ReadMerges(const JsonField& merges, BytePairFile* file) {
  int32_t rank = 0;
  for (const json& merge : merges.List().value) {
    const std::string where = Cat(merges.where, "[", rank, "]");
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
    if (a.empty() || b.empty()) JsonField{merge, where, file->path}.Refuse("must be two tokens");
    const BytePairMerge made{rank++, IdOf(*file, a + b, where)};
    // Of two alike the last counts.
    file->merges[BytePairKey(IdOf(*file, a, where), IdOf(*file, b, where))] = made;
  }
}

void ReadVocab(const JsonField& vocab, BytePairFile* file) {
  const size_t size = vocab.Object().value.size();
  if (size >= static_cast<size_t>(kMostTokens)) Fail(file->path, ": ", vocab.where, " is too large");
  for (const auto& [name, id] : vocab.value.items()) {
    const JsonField entry{id, Cat(vocab.where, "['", ForTerminal(name), "']"), file->path};
    const int32_t token = entry.Token();
    // Numbers that leave large gaps would take memory without bound.
    if (token > 16 * static_cast<int64_t>(size) + 4096)
      Fail(file->path, ": ", entry.where, " is ", token, ", but there are only ", size, " tokens");
    Learn(token, name, vocab.where, file);
  }
  for (const auto& [name, token] : file->ids)
    if (const Utf8Character c = name.empty() ? Utf8Character{0} : FirstCharacter(name);
        c.code >= 0 && static_cast<size_t>(c.bytes) == name.size())
      file->of_character[c.code] = token;
  for (int b = 0; b < 256; ++b) {
    const auto token = [&](const std::string& name) {
      const auto found = file->ids.find(name);
      return found == file->ids.end() ? -1 : found->second;
    };
    file->of_byte[b] = token(file->alphabet.character[b]);
    file->fallback[b] = token({'<', '0', 'x', kHexDigits[b >> 4], kHexDigits[b & 15], '>'});
  }
}

void ReadModel(const JsonField& model, BytePairFile* file) {
  if (const JsonField type = model["type"]; !type.value.is_null() && !type.Is("BPE"))
    type.Refuse("this program knows BPE alone");
  for (const char* none : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const JsonField affix = model[none]; !affix.value.is_null() && !affix.Is(""))
      affix.Refuse("this program knows BPE without it");
  if (const JsonField dropout = model["dropout"]; !dropout.value.is_null() && dropout.value != 0)
    dropout.Refuse("must be null");
  ReadVocab(model["vocab"], file);
  ReadMerges(model["merges"], file);
  file->whole_words = model["ignore_merges"].Flag();
  file->fuse_unknown = model["fuse_unk"].Flag();
  file->byte_fallback = model["byte_fallback"].Flag();
  if (const JsonField unknown = model["unk_token"]; !unknown.value.is_null())
    file->unknown = IdOf(*file, unknown.Text(), unknown.where);
}

// Those that are found in a text as it is, and in the changed text.
struct FoundTokens {
  std::vector<AddedToken> before, after;
};

FoundTokens ReadAdded(const JsonField& added, BytePairFile* file) {
  FoundTokens found;
  if (added.value.is_null()) return found;
  const size_t size = added.List().value.size();
  for (size_t i = 0; i < size; ++i) {
    const JsonField entry{added.value[i], Cat(added.where, "[", i, "]"), file->path};
    const int32_t id = entry["id"].Token();
    if (id > static_cast<int64_t>(file->known.size() + size) + 4096)
      Fail(file->path, ": ", entry.where, ".id is ", id, ", far beyond the ", file->known.size(),
           " tokens before it");
    AddedToken token{id, entry["content"].Text(), entry["lstrip"].Flag(), entry["rstrip"].Flag()};
    if (token.content.empty()) Fail(file->path, ": ", entry.where, ".content is empty");
    if (entry["single_word"].Flag())
      Fail(file->path, ": ", entry.where, ".single_word is true, which this program does not know");
    Learn(id, token.content, entry.where, file);
    file->special[id] = token.special = entry["special"].Flag();
    const bool normalized = entry["normalized"].Flag(!file->special[id]);
    (normalized ? found.after : found.before).push_back(std::move(token));
  }
  return found;
}

// --- Steps of a text ---

// {"pattern": {"Regex": "..."}} or {"String": "..."}
std::shared_ptr<const Pattern> PatternIn(const JsonField& step) {
  const JsonField pattern = step["pattern"].Object();
  if (pattern.value.contains("Regex"))
    return std::make_shared<Pattern>(step.file, WithWhiteSpace(pattern["Regex"].Text()));
  const std::string text = AllReplaced(pattern["String"].Text(), "\\E", R"(\E\\E\Q)");
  return std::make_shared<Pattern>(step.file, R"(\Q)" + text + R"(\E)");
}

std::function<std::string(const std::string&)> Replacing(const JsonField& step) {
  return [pattern = PatternIn(step), with = step["content"].Text()](const std::string& text) {
    return MatchesReplaced(*pattern, with, text);
  };
}

void ReadNormalizer(const JsonField& normalizer, BytePairFile* file) {
  for (const JsonField& step : normalizer.Steps("normalizers")) {
    const JsonField type = step["type"];
    if (type.Is("Prepend")) {
      file->changes.push_back([front = step["prepend"].Text()](const std::string& text) {
        return text.empty() ? text : front + text;
      });
    } else if (type.Is("Replace")) {
      file->changes.push_back(Replacing(step));
    } else if (type.Is("NFC") || type.Is("NFD") || type.Is("NFKC") || type.Is("NFKD")) {
      if (!CanNormalize())
        Fail(file->path, ": ", step.where, " is ", type.Text(),
             ", which this program was built without; install libutf8proc-dev and build again");
      file->changes.push_back(
          [form = type.Text()](const std::string& text) { return Normalized(text, form); });
    } else {
      type.Refuse("this program knows NFC, NFD, NFKC, NFKD, Prepend and Replace");
    }
  }
}

void Cut(const std::string& regex, BytePairFile* file) {
  file->cutters.push_back([pattern = std::make_shared<Pattern>(file->path, WithWhiteSpace(regex))](
                              std::string_view text, bool begins, const UseTextPart& use) {
    CutByPattern(*pattern, CutBehavior::kIsolated, false, text, begins, use);
  });
}

void ReadByteLevel(const JsonField& step, BytePairFile* file) {
  file->byte_level = true;
  if (step["add_prefix_space"].Flag(true))
    file->cutters.push_back([](std::string_view text, bool begins, const UseTextPart& use) {
      text.starts_with(' ') ? use(text, begins) : use(Cat(' ', text), begins);
    });
  if (step["use_regex"].Flag(true)) Cut(kGpt2Words, file);
}

void ReadSplit(const JsonField& step, BytePairFile* file) {
  const auto pattern = PatternIn(step);
  const JsonField named = step["behavior"];
  const auto* behavior = std::find_if(std::begin(kCutBehaviors), std::end(kCutBehaviors),
                                      [&](const auto& known) { return named.Is(known.first); });
  if (behavior == std::end(kCutBehaviors))
    named.Refuse("this program knows Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous");
  file->cutters.push_back([pattern, how = behavior->second, invert = step["invert"].Flag()](
                              std::string_view text, bool begins, const UseTextPart& use) {
    CutByPattern(*pattern, how, invert, text, begins, use);
  });
}

void ReadMetaspace(const JsonField& step, BytePairFile* file) {
  SpaceMark mark{.mark = step["replacement"].Character(), .cut = step["split"].Flag(true)};
  const JsonField scheme = step["prepend_scheme"];
  if (!scheme.value.is_null() && !scheme.Is("always") && !scheme.Is("first") && !scheme.Is("never"))
    scheme.Refuse("must be always, first or never");
  // Older files have the flag alone.
  mark.in_front = !scheme.Is("never") && step["add_prefix_space"].Flag(true);
  mark.at_begin_only = scheme.Is("first");
  file->cutters.push_back(mark);
}

void ReadWords(const JsonField& words, BytePairFile* file) {
  for (const JsonField& step : words.Steps("pretokenizers")) {
    const JsonField type = step["type"];
    if (file->byte_level) step.Refuse("nothing may follow ByteLevel");
    if (type.Is("ByteLevel")) {
      ReadByteLevel(step, file);
    } else if (type.Is("Digits")) {
      Cut(step["individual_digits"].Flag() ? R"(\p{N})" : R"(\p{N}+)", file);
    } else if (type.Is("Split")) {
      ReadSplit(step, file);
    } else if (type.Is("Metaspace")) {
      ReadMetaspace(step, file);
    } else {
      type.Refuse("this program knows Split, Digits, Metaspace and ByteLevel");
    }
  }
}

// --- Back to text, and around one ---

using DecoderStep = std::function<std::string(const std::string& token, bool first)>;

// What tokens stand for, after all of these steps; and as the first of a text, if that differs.
void DecodeTokens(const std::vector<DecoderStep>& steps, bool knows_first, BytePairFile* file) {
  file->bytes.resize(file->known.size());
  if (knows_first) file->first_bytes.resize(file->known.size());
  for (const auto& [name, id] : file->ids)
    for (bool first : {false, true}) {
      if (first && !knows_first) continue;
      std::string text = name;
      for (const DecoderStep& step : steps) text = step(text, first);
      (first ? file->first_bytes : file->bytes)[id] = std::move(text);
    }
}

// A step changes each token by itself, or, behind Fuse, the text that they are together.
void ReadDecoder(const JsonField& decoder, BytePairFile* file) {
  BytePairFile& f = *file;
  std::vector<DecoderStep> steps;
  const auto each = [&](const std::function<std::string(const std::string&)>& change) {
    steps.push_back([change](const std::string& token, bool) { return change(token); });
  };
  bool byte_level = false, fused = false, knows_first = false;
  for (const JsonField& step : decoder.Steps("decoders")) {
    const JsonField type = step["type"];
    if (fused && !type.Is("Strip")) type.Refuse("Strip alone may follow Fuse");
    if (type.Is("ByteLevel")) {
      byte_level = true;
      each([&f](const std::string& token) { return f.alphabet.BytesOf(token); });
    } else if (type.Is("Replace")) {
      each(Replacing(step));
    } else if (type.Is("ByteFallback")) {
      each(ByteOf);
    } else if (type.Is("Fuse")) {
      fused = true;
    } else if (type.Is("Strip")) {
      if (!fused || !f.strip.empty()) step.Refuse("Strip must stand behind Fuse, once");
      if (step["stop"].Count() != 0) step["stop"].Refuse("must be 0");
      f.strip = step["content"].Character();
      f.strip_count = step["start"].Count();
    } else if (type.Is("Metaspace")) {
      knows_first = !step["prepend_scheme"].Is("never") && step["add_prefix_space"].Flag(true);
      steps.push_back(
          [mark = step["replacement"].Character(), knows_first](const std::string& token, bool first) {
            return AllReplaced(token, mark, first && knows_first ? "" : " ");
          });
    } else {
      type.Refuse("this program knows ByteLevel, Replace, ByteFallback, Fuse, Strip and Metaspace");
    }
  }
  if (steps.empty())
    Fail(f.path, ": it has no decoder, which says how tokens become text; that of bytes is ByteLevel");
  if (byte_level != f.byte_level)
    Fail(f.path, ": its ", byte_level ? "decoder" : "pre_tokenizer", " has a step ByteLevel, but its ",
         byte_level ? "pre_tokenizer" : "decoder", " has none");
  DecodeTokens(steps, knows_first, file);
}

// The ids of a special token in a template, which its field `special_tokens` has by name.
std::vector<int32_t> IdsOf(const JsonField& special_tokens, const std::string& name,
                           const BytePairFile& file) {
  const json& ids = special_tokens[name]["ids"].value;
  if (!ids.is_array())
    Fail(file.path, ": ", special_tokens.where, " lacks the ids of '", ForTerminal(name), "'");
  std::vector<int32_t> tokens;
  for (const json& id : ids) {
    const int32_t token = JsonField{id, special_tokens.where + ".ids", file.path}.Token();
    if (static_cast<size_t>(token) >= file.known.size() || !file.known[token])
      Fail(file.path, ": ", special_tokens.where, " puts token ", token,
           " around texts, which is neither in model.vocab nor in added_tokens");
    tokens.push_back(token);
  }
  return tokens;
}

// The tokens around a single text.
void ReadAround(const JsonField& post, BytePairFile* file) {
  for (const JsonField& step : post.Steps("processors")) {
    const JsonField type = step["type"], single = step["single"];
    if (type.Is("ByteLevel")) continue;  // it changes offsets alone
    if (!type.Is("TemplateProcessing")) type.Refuse("this program knows ByteLevel and TemplateProcessing");
    bool behind = false;
    for (const json& piece : single.List().value) {
      if (piece.contains("Sequence")) {
        if (behind) single.Refuse("a text must stand there once");
        behind = true;
        continue;
      }
      const JsonField named{piece, single.where, file->path};
      std::vector<int32_t>& to = behind ? file->last : file->first;
      for (int32_t token : IdsOf(step["special_tokens"], named["SpecialToken"]["id"].Text(), *file))
        to.push_back(token);
    }
    if (!behind) single.Refuse("a text must stand there");
  }
}

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
  constexpr int64_t kMostText = 1 << 28;
  const json read = ParseJson(path, ReadFile(path, kMostText));
  if (!read.is_object()) Fail(path, ": it is no JSON object");
  const JsonField root{read, "", path};
  auto file = std::make_unique<BytePairFile>();
  file->path = path;
  ReadModel(root["model"].Object(), file.get());
  FoundTokens added = ReadAdded(root["added_tokens"], file.get());
  ReadNormalizer(root["normalizer"], file.get());
  for (AddedToken& token : added.before) file->before.Add(std::move(token));
  for (AddedToken& token : added.after) {
    for (const auto& change : file->changes) token.content = change(token.content);
    if (!token.content.empty()) file->after.Add(std::move(token));
  }
  ReadWords(root["pre_tokenizer"], file.get());
  ReadDecoder(root["decoder"], file.get());
  ReadAround(root["post_processor"], file.get());
  return file;
}

}  // namespace oneflow_like
