// A tokenizer.json of BPE, read: the steps that a text goes through, and the tables of its model.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "oneflow_like/text/added_tokens.h"
#include "oneflow_like/text/cut_text.h"

namespace oneflow_like {

// The character that stands for each byte in files of byte-level BPE: itself if it is printable Latin-1, else
// one from U+0100 on.
struct ByteAlphabet {
  std::array<std::string, 256> character;
  std::unordered_map<int32_t, char> byte;  // by code point

  ByteAlphabet();
  // The bytes that a token of the file stands for; itself where it has other characters.
  std::string BytesOf(const std::string& token) const;
};

struct BytePairMerge {
  int32_t rank = 0, made = 0;
};
inline uint64_t BytePairKey(int32_t a, int32_t b) {
  return static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b);
}

struct BytePairFile {
  std::string path;
  ByteAlphabet alphabet;
  bool byte_level = false;  // the model's characters are bytes; else those of the text

  // A text, or what is between added tokens that are found in it as it is (`before`), goes through all of
  // `changes`, is cut at added tokens of the changed text (`after`), and by all of `cutters` into words.
  AddedTokens before, after;
  std::vector<std::function<std::string(const std::string&)>> changes;
  std::vector<std::function<void(std::string_view text, bool begins, const UseTextPart& use)>> cutters;
  std::vector<int32_t> first, last;  // put around a whole text

  std::unordered_map<std::string, int32_t> ids;       // by the file's name
  std::vector<bool> special, known;                   // by token
  std::unordered_map<int32_t, int32_t> of_character;  // tokens of one character, by its code point
  std::array<int32_t, 256> of_byte, fallback;         // of the byte's character, and named "<0x0A>"; -1: none
  bool byte_fallback = false;  // a character without a token is those of its bytes, where all have one
  std::unordered_map<uint64_t, BytePairMerge> merges;  // by BytePairKey
  bool whole_words = false;                            // a word that is a token is not built by merges
  std::optional<int32_t> unknown;
  bool fuse_unknown = false;

  // Back to text: what each token stands for, and each as the first of a text (empty: the same).
  // Of the text that they are together, up to `strip_count` times `strip` is left out at the beginning.
  std::vector<std::string> bytes, first_bytes;
  std::string strip;
  int64_t strip_count = 0;
};

// Throws Error, naming the file and the entry, for what is invalid or not supported.
std::unique_ptr<const BytePairFile> ReadBytePairFile(const std::string& path);

}  // namespace oneflow_like
