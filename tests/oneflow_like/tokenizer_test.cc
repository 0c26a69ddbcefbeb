// Tokenizers: equal to Hugging Face's on random strings, for files that its package trains here; to
// SentencePiece's library; streams of tokens in whole characters; files that are broken.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "oneflow_like/text/tokenizers.h"
#include "oneflow_like/text/utf8.h"
#include "tests/error_of.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

using nlohmann::json;

std::string Python() {
  const char* given = std::getenv("OFL_PYTHON");
  return given != nullptr ? given : "python3";
}

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
  constexpr int kStringsOfAKind = 2000;  // of five kinds
  if (std::system((Python() + " -c 'import tokenizers' 2> /dev/null").c_str()) != 0)
    GTEST_SKIP() << Python() << " lacks the package tokenizers (OFL_PYTHON names another)";
  const uint64_t seed = std::random_device()();
  ASSERT_EQ(std::system(Cat(Python(), " ", OFL_SOURCE_DIR, "/tests/oneflow_like/tokenizers_check.py ",
                            folder_ / "", " ", kStringsOfAKind, " ", seed)
                            .c_str()),
            0);
  for (const char* kind : {"gpt2", "llama3", "qwen2", "prefix", "digits"}) {
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
  change("/pre_tokenizer", nullptr, "no step ByteLevel");
  change("/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer.type is \"Metaspace\"");
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  change("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split}}},
         "its pattern (a is not understood");
  json merged = split;
  merged["behavior"] = "MergedWithNext";
  change("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {merged}}},
         "pre_tokenizer.pretokenizers[0].behavior is \"MergedWithNext\"");
  change("/decoder", nullptr, "it has no decoder");
  change("/decoder/type", "Metaspace", "decoder.type is \"Metaspace\"");
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
  if (std::system((Python() + " -c 'import sentencepiece' 2> /dev/null").c_str()) != 0)
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
