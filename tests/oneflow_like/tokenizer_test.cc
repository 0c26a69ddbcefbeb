// Tokenizers: equal to Hugging Face's on random strings, for files that its package trains here; to
// SentencePiece's library; streams of tokens in whole characters; files that are broken.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "oneflow_like/text/tokenizers.h"
#include "oneflow_like/text/utf8.h"
#include "tests/error_of.h"
#include "tests/processes.h"
#include "tests/python.h"

namespace oneflow_like {
namespace {

using nlohmann::json;

// Whether this program was built with PCRE2; utf8proc is looked for by the tests that need it.
bool HasPattern(const std::string& path) {
  try {
    OpenBytePairs(path);
  } catch (const Error& error) {
    return std::string(error.what()).find("built without") == std::string::npos;
  }
  return true;
}

// A small file: bytes, and the merges of "the" and " t".
json SmallFile() {
  json vocab;
  int next = 0;
  for (int c = 0; c < 256; ++c) {
    const bool shown = (c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xAC) || c >= 0xAE;
    const int code = shown ? c : 0x100 + next++;
    const std::string name =
        code < 0x80 ? std::string(1, static_cast<char>(code))
                    : std::string{static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    vocab[name] = c;
  }
  vocab["th"] = 256;
  vocab["the"] = 257;
  vocab["\u0120t"] = 258;
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 259}, {"content", "<|end|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h", "th e", json::array({"\u0120", "t"})}}}}};
}

class TokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasPattern(folder_.Write("probe.json", SmallFile().dump()))) GTEST_SKIP() << "built without PCRE2";
  }
  std::shared_ptr<const Tokenizer> Open(const json& file) {
    return OpenTokenizer(folder_.Write("tokenizer.json", file.dump()));
  }
  TestFolder folder_{"tokenizer_test"};
};

TEST_F(TokenizerTest, EqualsHuggingFacesOnRandomStrings) {
  constexpr int kStringsOfAKind = 2000;  // of eleven kinds
  if (!PythonHas("tokenizers"))
    GTEST_SKIP() << Python() << " lacks the package tokenizers (OFL_PYTHON names another)";
  const uint64_t seed = std::random_device()();
  ASSERT_EQ(std::system(Cat(Python(), " ", OFL_SOURCE_DIR, "/tests/oneflow_like/tokenizers_check.py ",
                            folder_ / "", " ", kStringsOfAKind, " ", seed)
                            .c_str()),
            0);
  for (const char* kind : {"gpt2", "llama3", "qwen2", "prefix", "digits", "llama2", "llama2_new", "gemma",
                           "words", "never", "replaced"}) {
    std::shared_ptr<const Tokenizer> tokenizer;
    try {
      tokenizer = OpenTokenizer(folder_ / Cat(kind, ".json"));
    } catch (const Error& error) {
      if (std::string(error.what()).find("utf8proc") == std::string::npos) throw;
      std::cout << "left out: " << error.what() << "\n";
      continue;
    }
    std::ifstream lines(folder_ / Cat(kind, ".strings"));
    int strings = 0;
    for (std::string line; std::getline(lines, line); ++strings) {
      const json row = json::parse(line);
      const std::string text = row[0];
      const auto tokens = row[1].get<std::vector<int32_t>>(), whole = row[2].get<std::vector<int32_t>>();
      ASSERT_EQ(tokenizer->Encode(text), tokens) << kind << ", seed " << seed << ": " << line;
      ASSERT_EQ(tokenizer->EncodeWhole(text), whole) << kind << ", seed " << seed << ": " << line;
      ASSERT_EQ(ValidUtf8(tokenizer->Decode(whole)), row[3].get<std::string>())
          << kind << ", seed " << seed << ": " << line;
      TokenStream stream(*tokenizer);
      std::string streamed;
      for (int32_t token : whole) {
        const std::string more = stream.Add(token);
        ASSERT_EQ(more, ValidUtf8(more));
        streamed += more;
      }
      ASSERT_EQ(streamed + stream.End(), row[3].get<std::string>()) << kind << ": " << line;
    }
    EXPECT_EQ(strings, kStringsOfAKind);
  }
}

// Words of two letters with many merges, which overlap. Byte-level BPE by its definition: of all neighbours
// that a merge joins the first pair of the earliest merge, again and again.
TEST_F(TokenizerTest, OfOverlappingMergesTheEarliestJoinsTheFirstPair) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    json file = SmallFile();
    std::vector<std::string> names = {"a", "b"};
    std::vector<std::pair<std::string, std::string>> merges;
    json listed = json::array();
    while (merges.size() < 8) {
      const std::string left = names[random() % names.size()], right = names[random() % names.size()];
      if (std::find(names.begin(), names.end(), left + right) != names.end()) continue;
      names.push_back(left + right);
      merges.push_back({left, right});
      listed.push_back({left, right});
      file["model"]["vocab"][left + right] = 300 + merges.size();
    }
    file["model"]["merges"] = listed;
    const auto tokenizer = Open(file);
    for (int word = 0; word < 50; ++word) {
      std::string text;
      for (uint32_t i = random() % 30 + 1; i > 0; --i) text += random() % 4 ? 'a' : 'b';
      std::vector<std::string> parts;
      for (char c : text) parts.emplace_back(1, c);
      for (size_t m = 0; m < merges.size();) {
        size_t at = 0;
        while (at + 1 < parts.size() && std::pair(parts[at], parts[at + 1]) != merges[m]) ++at;
        if (at + 1 >= parts.size()) {
          ++m;
          continue;
        }
        parts[at] += parts[at + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        m = 0;
      }
      std::vector<int32_t> expected;
      for (const std::string& part : parts) expected.push_back(tokenizer->Find(part));
      ASSERT_EQ(tokenizer->Encode(text), expected) << "seed " << seed << ": " << text << "\n" << listed;
    }
  }
}

// Any bytes come back.
TEST_F(TokenizerTest, BytesComeBack) {
  const auto tokenizer = Open(SmallFile());
  EXPECT_EQ(tokenizer->Encode("the t"), (std::vector<int32_t>{257, 258}));
  EXPECT_EQ(tokenizer->Encode("a<|end|>the"), (std::vector<int32_t>{'a', 259, 257}));
  EXPECT_EQ(tokenizer->vocabulary(), 260);
  EXPECT_EQ(tokenizer->Find("<|end|>"), 259);
  EXPECT_EQ(tokenizer->Find("<|begin|>"), -1);
  EXPECT_TRUE(tokenizer->Special(259));
  EXPECT_FALSE(tokenizer->Special(257));
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    std::string text;
    const int length = static_cast<int>(RandomBits(seed, 0, 0) % 60);
    for (int i = 0; i < length; ++i) {
      const uint32_t bits = RandomBits(seed, 1, i);
      text += bits % 3 ? "the \xE2\x82\xAC\xF0\x9F\x98\x80"[bits / 3 % 11] : static_cast<char>(bits / 3);
    }
    const std::vector<int32_t> tokens = tokenizer->Encode(text);
    ASSERT_EQ(tokenizer->Decode(tokens), text) << "seed " << seed;
    // A stream gives what the whole text is, and characters whole.
    TokenStream stream(*tokenizer);
    std::string streamed;
    for (int32_t token : tokens) {
      const std::string more = stream.Add(token);
      ASSERT_EQ(more, ValidUtf8(more)) << "seed " << seed;
      streamed += more;
    }
    ASSERT_EQ(streamed + stream.End(), ValidUtf8(text)) << "seed " << seed;
  }
  EXPECT_NE(ErrorOf([&] { tokenizer->Decode({260}); }).find("it has no token 260"), std::string::npos);
}

// A file as Llama 2 has it: spaces as marks, bytes for characters that have no token.
json CharacterFile() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) vocab[{'<', '0', 'x', kHex[b >> 4], kHex[b & 15], '>'}] = 3 + b;
  for (const char* name : {"\u2581", "t", "h", "e", "\u2581t", "\u2581th", "\u2581the", "he", "\u00e9"})
    vocab[name] = vocab.size();
  json file = SmallFile();
  file["model"] = {
      {"type", "BPE"},         {"vocab", vocab},   {"merges", {"\u2581 t", "\u2581t h", "\u2581th e", "h e"}},
      {"byte_fallback", true}, {"fuse_unk", true}, {"unk_token", "<unk>"}};
  file["added_tokens"] = json::array();
  for (const auto& [id, name] : {std::pair{0, "<unk>"}, {1, "<s>"}, {2, "</s>"}})
    file["added_tokens"].push_back({{"id", id}, {"content", name}, {"special", true}, {"normalized", false}});
  const json to_mark = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const json to_space = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  file["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers", json::array({{{"type", "Prepend"}, {"prepend", "\u2581"}}, to_mark})}};
  file["pre_tokenizer"] = nullptr;
  file["decoder"] = {
      {"type", "Sequence"},
      {"decoders", json::array({to_space,
                                {{"type", "ByteFallback"}},
                                {{"type", "Fuse"}},
                                {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}};
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", json::array({{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}})},
      {"special_tokens", {{"<s>", {{"ids", {1}}}}}}};
  return file;
}

TEST_F(TokenizerTest, CharactersWithoutATokenAreTheirBytes) {
  const json file = CharacterFile(), vocab = file["model"]["vocab"];
  const auto tokenizer = Open(file);
  const int32_t the = vocab["\u2581the"], mark = vocab["\u2581"], he = vocab["he"];
  EXPECT_EQ(tokenizer->Encode("the the"), (std::vector<int32_t>{the, the}));
  EXPECT_EQ(tokenizer->EncodeWhole("the"), (std::vector<int32_t>{1, the}));
  EXPECT_EQ(tokenizer->Encode("  he"), (std::vector<int32_t>{mark, mark, mark, he}));
  EXPECT_EQ(tokenizer->Encode("\u00e9\u20ac\n"),
            (std::vector<int32_t>{mark, vocab["\u00e9"], 3 + 0xE2, 3 + 0x82, 3 + 0xAC, 3 + 10}));
  EXPECT_EQ(tokenizer->Encode("the</s>the"), (std::vector<int32_t>{the, 2, the}));
  EXPECT_EQ(tokenizer->Encode(""), std::vector<int32_t>());
  EXPECT_EQ(tokenizer->Decode({1, the, the}), "<s> the the");
  EXPECT_EQ(tokenizer->Decode({the, the}), "the the");
  EXPECT_EQ(tokenizer->Decode({mark, mark, he}), " he");
  for (uint64_t seed = 1; seed <= 500; ++seed) {  // any bytes come back
    std::string text;
    for (uint64_t i = 0; i < RandomBits(seed, 0, 0) % 30; ++i) {
      const uint32_t bits = RandomBits(seed, 1, i);
      text += bits % 3 ? "the \xE2\x82\xAC\xF0\x9F\x98\x80"[bits / 3 % 11] : static_cast<char>(bits / 3);
    }
    std::string shown = text;
    for (size_t at; (at = shown.find("\xE2\x96\x81")) != std::string::npos;) shown.replace(at, 3, " ");
    ASSERT_EQ(tokenizer->Decode(tokenizer->Encode(text)), shown) << "seed " << seed;
  }
}

// Numbers that no token has are none, in gaps and behind the last.
TEST_F(TokenizerTest, KnowsWhatItHas) {
  json file = SmallFile();
  file["added_tokens"][0]["id"] = 300;
  const auto tokenizer = Open(file);
  EXPECT_EQ(tokenizer->vocabulary(), 301);
  for (int32_t t : {-1, 259, 299, 301}) EXPECT_FALSE(tokenizer->Has(t)) << t;
  for (int32_t t : {0, 258, 300}) EXPECT_TRUE(tokenizer->Has(t)) << t;
  EXPECT_NE(ErrorOf([&] { tokenizer->Decode({270}); }).find("it has no token 270"), std::string::npos);
}

// A folder's other files may have tokens behind those of the tokenizer's own.
TEST_F(TokenizerTest, TakesTheFoldersTokensBehindTheFiles) {
  const auto put = [&](const std::string& file, const json& names, const json& config) {
    folder_.Write("tokenizer.json", file);
    folder_.Write("added_tokens.json", names.dump());
    folder_.Write("tokenizer_config.json", config.dump());
    return OpenTokenizer(folder_ / "");
  };
  const auto about = [](const std::string& name, bool special) {
    return json{{"content", name}, {"special", special}, {"lstrip", false}, {"rstrip", special}};
  };
  const json config = {
      {"chat_template", "{{ x }}"},
      {"added_tokens_decoder", {{"259", about("<|end|>", true)}, {"262", about("<tool>", true)}}}};
  const auto tokenizer = put(SmallFile().dump(), {{"<pad>", 260}, {"<|end|>", 259}}, config);
  EXPECT_EQ(tokenizer->vocabulary(), 263);
  for (int32_t t : {261, 263, -1}) EXPECT_FALSE(tokenizer->Has(t)) << t;
  for (int32_t t : {0, 259, 260, 262}) EXPECT_TRUE(tokenizer->Has(t)) << t;
  EXPECT_EQ(tokenizer->Encode("the<pad><tool>  the<|end|>"), (std::vector<int32_t>{257, 260, 262, 257, 259}));
  EXPECT_EQ(tokenizer->Decode({257, 260, 262, 258}), "the<pad><tool> t");
  EXPECT_EQ(tokenizer->Find("<tool>"), 262);
  EXPECT_EQ(tokenizer->Find("the"), 257);
  EXPECT_TRUE(tokenizer->Special(262));
  EXPECT_FALSE(tokenizer->Special(260));
  TokenStream stream(*tokenizer);
  std::string streamed;
  for (int32_t t : {257, 262, 258, 260, 257, 258, 258, 262, 257, 258, 260, 257}) streamed += stream.Add(t);
  EXPECT_EQ(streamed + stream.End(), "the<tool> t<pad>the t t<tool>the t<pad>the");
  // What stands around a text stays around it.
  EXPECT_EQ(put(CharacterFile().dump(), {{"<pad>", 400}}, json::object())->EncodeWhole("<pad>the"),
            (std::vector<int32_t>{1, 400, CharacterFile()["model"]["vocab"]["\u2581the"]}));
  const auto refuse = [&](const json& names, const json& about, const std::string& wanted) {
    const std::string error = ErrorOf([&] { put(SmallFile().dump(), names, about); });
    EXPECT_EQ(error.rfind(folder_ / "", 0), 0u) << error;
    EXPECT_NE(error.find(wanted), std::string::npos) << wanted << "\n" << error;
  };
  refuse({{"<pad>", "260"}}, config, "added_tokens.json: '<pad>' is \"260\", but must be a token's number");
  refuse({{"<pad>", 200'000'000}}, config, "'<pad>' has number 200000000, far beyond the 260 tokens");
  refuse(json::array(), config, "added_tokens.json: it is no JSON object");
  refuse({{"<pad>", 262}}, config, "token 262 is '<tool>', but '<pad>' in another file");
  refuse(json::object(), {{"added_tokens_decoder", 3}}, "tokenizer_config.json: added_tokens_decoder is 3");
  refuse(json::object(), {{"added_tokens_decoder", {{"x", about("a", true)}}}}, "is no number of a token");
  refuse(json::object(), {{"added_tokens_decoder", {{"270", {{"special", true}}}}}}, ".content is null");
}

// The first file of a folder that can be read; the others are named.
TEST_F(TokenizerTest, TakesTheFirstFileThatCanBeRead) {
  const std::string pieces = TextOf(OFL_SOURCE_DIR "/tests/fuzz/corpus/pieces/valid_bpe");
  const std::string json_file = folder_ / "tokenizer.json", model = folder_ / "tokenizer.model";
  ASSERT_FALSE(pieces.empty());
  json unigram = SmallFile();
  unigram["model"]["type"] = "Unigram";
  folder_.Write("tokenizer.json", unigram.dump());
  folder_.Write("tokenizer.model", pieces);
  if (const std::string error = ErrorOf([&] { OpenTokenizer(model); }); !error.empty()) {
    ASSERT_NE(error.find("built without"), std::string::npos) << error;
    GTEST_SKIP() << error;
  }
  TokenizerFile found = FindTokenizer(folder_ / "");
  EXPECT_EQ(std::filesystem::path(found.path), model);
  EXPECT_NE(found.refused.find("tokenizer.json: model.type is \"Unigram\""), std::string::npos)
      << found.refused;
  EXPECT_EQ(found.tokenizer->Encode("ab"), OpenTokenizer(model)->Encode("ab"));
  folder_.Write("added_tokens.json", json({{"<pad>", found.tokenizer->vocabulary()}}).dump());
  const auto more = OpenTokenizer(folder_ / "");
  EXPECT_EQ(more->vocabulary(), found.tokenizer->vocabulary() + 1);
  std::vector<int32_t> wanted = found.tokenizer->EncodeWhole("ab");
  wanted.push_back(static_cast<int32_t>(found.tokenizer->vocabulary()));
  EXPECT_EQ(more->EncodeWhole("ab<pad>"), wanted);
  std::filesystem::remove(folder_ / "added_tokens.json");
  folder_.Write("tokenizer.json", SmallFile().dump());
  found = FindTokenizer(folder_ / "");
  EXPECT_EQ(std::filesystem::path(found.path), json_file);
  EXPECT_EQ(found.refused, "");
  folder_.Write("tokenizer.json", "{");
  folder_.Write("tokenizer.model", "no model");
  const std::string both = ErrorOf([&] { OpenTokenizer(folder_ / ""); });
  EXPECT_NE(both.find("tokenizer.json: it is no JSON object; "), std::string::npos) << both;
  EXPECT_NE(both.find("tokenizer.model at byte 0: it is no model of SentencePiece"), std::string::npos)
      << both;
}

// A word of a million characters, and one of a million spaces: neither recursion nor squares of its length.
TEST_F(TokenizerTest, LongWordsAreWords) {
  const auto tokenizer = Open(SmallFile());
  const std::string word(1'000'000, 't'), spaces(1'000'000, ' ');
  EXPECT_EQ(tokenizer->Encode(word), std::vector<int32_t>(1'000'000, 't'));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(spaces + word)), spaces + word);
}

TEST_F(TokenizerTest, BrokenFilesAreRefusedByName) {
  const std::string path = folder_ / "tokenizer.json", good = SmallFile().dump();
  auto refuse = [&](const std::string& text, const std::string& wanted) {
    folder_.Write("tokenizer.json", text);
    const std::string error = ErrorOf([&] { OpenTokenizer(path); });
    EXPECT_EQ(error.rfind(path + ": ", 0), 0u) << error;
    EXPECT_NE(error.find(wanted), std::string::npos) << wanted << "\n" << error;
  };
  auto change = [&](const std::string& pointer, const json& value, const std::string& wanted) {
    json file = SmallFile();
    file[json::json_pointer(pointer)] = value;
    refuse(file.dump(), wanted);
  };
  for (size_t cut = 0; cut < good.size(); cut += 101) refuse(good.substr(0, cut), "it is no JSON object");
  refuse("[]", "it is no JSON object");
  refuse(std::string(1000, '['), "nested");
  refuse("{}", "model is null, but must be an object");
  change("/model/type", "Unigram", "model.type is \"Unigram\", but this program knows BPE alone");
  change("/model/vocab", json::array(), "model.vocab is []");
  change("/model/vocab/the", -1, "model.vocab['the'] is -1");
  change("/model/vocab/the", 1e300, "model.vocab['the'] is 1e+300");
  change("/model/vocab/the", 200'000'000, "there are only 259 tokens");
  change("/model/vocab/the", 256, "is another name of token 256");
  change("/model/merges", 3, "model.merges is 3");
  change("/model/merges/1", "the", "model.merges[1] is \"the\", but must be two tokens");
  change("/model/merges/1", "th x", "model.merges[1] names 'thx', which is no token");
  change("/model/dropout", 0.1, "model.dropout is 0.1");
  change("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix");
  change("/model/unk_token", "<unk>", "model.unk_token names '<unk>'");
  change("/model/ignore_merges", 1, "model.ignore_merges is 1");
  change("/added_tokens/0/id", "7", "added_tokens[0].id is \"7\"");
  change("/added_tokens/0/id", 200'000'000, "added_tokens[0].id is 200000000");
  change("/added_tokens/0/id", 5, "another name of token 5");
  change("/added_tokens/0/content", "", "added_tokens[0].content is empty");
  change("/added_tokens/0/content", nullptr, "added_tokens[0].content is null");
  change("/added_tokens/0/single_word", true, "single_word");
  change("/normalizer", {{"type", "Lowercase"}}, "normalizer.type is \"Lowercase\"");
  change("/normalizer", {{"type", "Prepend"}}, "normalizer.prepend is null, but must be a text");
  change("/normalizer", {{"type", "Replace"}, {"pattern", 3}}, "normalizer.pattern is 3");
  change("/normalizer", {{"type", "Replace"}, {"pattern", {{"String", "a"}}}}, "normalizer.content is null");
  change("/pre_tokenizer", nullptr, "its decoder has a step ByteLevel, but its pre_tokenizer has none");
  change("/pre_tokenizer", {{"type", "Whitespace"}}, "pre_tokenizer.type is \"Whitespace\"");
  change("/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer.replacement is null");
  change("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}, "must be one character");
  change("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}},
         "prepend_scheme is \"last\", but must be always, first or never");
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  change("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split}}},
         "its pattern (a is not understood");
  json merged = split;
  merged["behavior"] = "Merged";
  merged["pattern"]["Regex"] = "a";
  change("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {merged}}},
         "pre_tokenizer.pretokenizers[0].behavior is \"Merged\"");
  change("/model/byte_fallback", "yes", "model.byte_fallback is \"yes\"");
  change("/decoder", nullptr, "it has no decoder");
  change("/decoder/type", "WordPiece", "decoder.type is \"WordPiece\"");
  change("/decoder", {{"type", "Metaspace"}, {"replacement", "_"}},
         "its pre_tokenizer has a step ByteLevel, but its decoder has none");
  const auto decoders = [&](const json& steps, const std::string& wanted) {
    change("/decoder", {{"type", "Sequence"}, {"decoders", steps}}, wanted);
  };
  const json bytes = {{"type", "ByteLevel"}}, fuse = {{"type", "Fuse"}};
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  decoders({bytes, strip}, "decoder.decoders[1] is ");
  decoders({bytes, fuse, strip, strip}, "Strip must stand behind Fuse, once");
  decoders({fuse, bytes}, "decoder.decoders[1].type is \"ByteLevel\", but Strip alone may follow Fuse");
  json wrong = strip;
  wrong["stop"] = 1;
  decoders({bytes, fuse, wrong}, "decoder.decoders[2].stop is 1, but must be 0");
  wrong["stop"] = "0";
  decoders({bytes, fuse, wrong}, "decoder.decoders[2].stop is \"0\", but must be a whole number");
  change("/post_processor", {{"type", "BertProcessing"}}, "post_processor.type is \"BertProcessing\"");
  change("/post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}},
         "a text must stand there");
  EXPECT_NE(ErrorOf([&] { OpenTokenizer(folder_ / "none.json"); }).find("none.json: there is no such file"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] { OpenTokenizer(folder_.Write("words.txt", "")); }).find("words.txt: a tokenizer is"),
            std::string::npos);
}

// Any change of any byte is read or refused, by an Error.
TEST_F(TokenizerTest, ChangedBytesAreReadOrRefused) {
  const std::string good = SmallFile().dump();
  int refused = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    std::string text = good;
    for (uint64_t i = 0; i <= seed % 3; ++i)
      text[RandomBits(seed, 2, i) % text.size()] = "{}[]\",:0919\\u\xFF e"[RandomBits(seed, 3, i) % 17];
    const std::string error = ErrorOf([&] {
      OpenTokenizer(folder_.Write("tokenizer.json", text))->Encode("the text <|end|>");
      Fail("read");
    });
    refused += error != "read";
  }
  EXPECT_GT(refused, 100);
}

// --- UTF-8 ---

TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";  // the examples of the Unicode Standard, section 3.9
  EXPECT_EQ(ValidUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ValidUtf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(ValidUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(ValidUtf8("\xF0\x9F\x98"), r) << "cut short";
  EXPECT_EQ(ValidUtf8("a\u00e9\u20ac\U0001f600"), "a\u00e9\u20ac\U0001f600");
}

TEST(Utf8, TerminalsGetNoControlCharacters) {
  EXPECT_EQ(ForTerminal("a\x1b[2J\n\t\x7f\u009b\u20ac"), "a\\x1b[2J\n\t\\x7f\\x9b\u20ac");
}

TEST(Utf8, StreamsOfBytesWaitForCharacters) {
  const ByteTokenizer bytes;
  TokenStream stream(bytes);
  std::vector<std::string> parts;
  for (unsigned char c : std::string("a\U0001f600\xE2\x82z\xE2")) parts.push_back(stream.Add(c));
  EXPECT_EQ(parts, (std::vector<std::string>{"a", "", "", "", "\U0001f600", "", "", "\xEF\xBF\xBDz", ""}));
  EXPECT_EQ(stream.End(), "\xEF\xBF\xBD");
}

// --- SentencePiece ---

TEST(SentencePieces, EqualTheLibrarys) {
  TestFolder folder("tokenizer_test");
  const std::string error = ErrorOf([&] { OpenTokenizer(folder.Write("tokenizer.model", "no model")); });
  if (error.find("built without") != std::string::npos) GTEST_SKIP() << error;
  EXPECT_EQ(error, folder / "tokenizer.model at byte 0: it is no model of SentencePiece");
  const std::string train = Cat(Python(), " ", OFL_SOURCE_DIR,
                                "/tests/oneflow_like/sentence_pieces_check.py ", folder / "", " 2000");
  if (!PythonHas("sentencepiece"))
    GTEST_SKIP() << Python() << " lacks the package sentencepiece (OFL_PYTHON names another)";
  ASSERT_EQ(std::system(train.c_str()), 0);
  for (const char* kind : {"bpe", "unigram"}) {
    const auto tokenizer = OpenTokenizer(folder / Cat(kind, ".model"));
    std::ifstream lines(folder / Cat(kind, ".strings"));
    int strings = 0;
    for (std::string line; std::getline(lines, line); ++strings) {
      const json row = json::parse(line);
      const auto tokens = row[1].get<std::vector<int32_t>>();
      ASSERT_EQ(tokenizer->Encode(row[0]), tokens) << kind << ": " << line;
      ASSERT_EQ(ValidUtf8(tokenizer->Decode(tokens)), row[2].get<std::string>()) << kind << ": " << line;
      TokenStream stream(*tokenizer);
      std::string streamed;
      for (int32_t token : tokens) streamed += stream.Add(token);
      ASSERT_EQ(streamed + stream.End(), row[2].get<std::string>()) << kind << ": " << line;
      std::vector<int32_t> whole = {tokenizer->Find("<s>")};
      whole.insert(whole.end(), tokens.begin(), tokens.end());
      ASSERT_EQ(tokenizer->EncodeWhole(row[0]), whole);
    }
    EXPECT_EQ(strings, 2000);
    EXPECT_TRUE(tokenizer->Special(tokenizer->Find("</s>")));
  }
}

}  // namespace
}  // namespace oneflow_like
