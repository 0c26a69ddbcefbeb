// Bytes and characters: for text that may be cut inside a character, or be invalid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oneflow_like/data/tokens.h"

namespace oneflow_like {

// The character at the beginning of `text`: its number of bytes and its code point. Code point -1: the bytes
// are invalid and are to be replaced by one U+FFFD (the maximal subpart of the Unicode Standard, section 3.9;
// at least one byte). -2: `text` ends inside a character. REQUIRES: text is not empty.
struct Utf8Character {
  int bytes = 1;
  int32_t code = -1;
};
Utf8Character FirstCharacter(std::string_view text);

// Replaces invalid UTF-8 by U+FFFD.
std::string ValidUtf8(std::string_view text);
bool IsUtf8(std::string_view text);

// For terminals: keeps valid UTF-8, replaces the rest by U+FFFD, and control characters other than newline
// and tab by \xNN.
std::string ForTerminal(std::string_view text);

// Converts tokens that arrive one by one to text in whole characters. The tokenizer must outlive it.
class TokenStream {
 public:
  // `before`: tokens whose text has been shown already; the text that follows may depend on them.
  explicit TokenStream(const Tokenizer& tokenizer, std::vector<int32_t> before = {});
  std::string Add(int32_t token);  // the text that is certain now; valid UTF-8
  std::string End();               // the rest

 private:
  std::string Take(bool all);

  const Tokenizer* tokenizer_;
  std::vector<int32_t> tokens_;  // the last ones
  size_t shown_ = 0;             // bytes of their text
};

}  // namespace oneflow_like
