// Bytes and characters: text that may have been cut inside a character, or never was UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oneflow_like/data/tokens.h"

namespace oneflow_like {

// The character at the beginning of `text`: its bytes and its code point. -1: they are no character, and as
// many bytes as no character begins with, at least one, are to be replaced by one U+FFFD (the maximal subpart
// of the Unicode Standard, section 3.9). -2: `text` ends inside a character. REQUIRES: text is not empty.
struct Utf8Character {
  int bytes = 1;
  int32_t code = -1;
};
Utf8Character FirstCharacter(std::string_view text);

// U+FFFD in place of what is no UTF-8.
std::string ValidUtf8(std::string_view text);

// For terminals: valid UTF-8 as it is, U+FFFD for the rest, and control characters other than newline and tab
// as \xNN.
std::string ForTerminal(std::string_view text);

// Text of tokens that come one by one, in whole characters. The tokenizer must outlive it.
class TokenStream {
 public:
  // `before`: tokens whose text has been shown, and on which what follows may depend.
  explicit TokenStream(const Tokenizer& tokenizer, std::vector<int32_t> before = {});
  std::string Add(int32_t token);  // what is certain now; valid UTF-8
  std::string End();               // the rest

 private:
  std::string Take(bool all);

  const Tokenizer* tokenizer_;
  std::vector<int32_t> tokens_;  // the last ones
  size_t shown_ = 0;             // bytes of their text
};

}  // namespace oneflow_like
