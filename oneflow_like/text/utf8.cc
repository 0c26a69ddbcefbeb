#include "oneflow_like/text/utf8.h"

#include <algorithm>
#include <utility>

namespace oneflow_like {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr size_t kContext = 4;                        // tokens kept for those to come

// The form of a character that begins with this byte: how many bytes, and between which the second must lie;
// which bytes those are is table 3-7 of the Unicode Standard.
struct Utf8Form {
  int bytes = 0;  // 0: none begins so
  uint8_t low = 0x80, high = 0xBF;
};
Utf8Form FormOf(uint8_t first) {
  if (first < 0x80) return {1};
  if (first < 0xC2) return {};
  if (first < 0xE0) return {2};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (first < 0xF0) return {3};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first < 0xF4) return {4};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

// Calls use(bytes of a character or "", code) for each character and each run to be replaced. Gives how many
// bytes at the end may be the beginning of a character.
template <typename F>
size_t ForCharacters(std::string_view text, F&& use) {
  while (!text.empty()) {
    const Utf8Character c = FirstCharacter(text);
    if (c.code == -2) return text.size();
    use(c.code < 0 ? std::string_view() : text.substr(0, c.bytes), c.code);
    text.remove_prefix(c.bytes);
  }
  return 0;
}

}  // namespace

Utf8Character FirstCharacter(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  const Utf8Form form = FormOf(first);
  if (form.bytes == 0) return {1, -1};
  int32_t code = form.bytes == 1 ? first : first & (0x7F >> form.bytes);
  for (int i = 1; i < form.bytes; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {i, -2};
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < (i == 1 ? form.low : 0x80) || byte > (i == 1 ? form.high : 0xBF)) return {i, -1};
    code = code << 6 | (byte & 0x3F);
  }
  return {form.bytes, code};
}

std::string ValidUtf8(std::string_view text) {
  std::string out;
  const size_t cut =
      ForCharacters(text, [&](std::string_view c, int32_t) { out += c.empty() ? kReplacement : c; });
  return cut > 0 ? out + kReplacement : out;
}

bool IsUtf8(std::string_view text) { return ValidUtf8(text) == text; }

std::string ForTerminal(std::string_view text) {
  static const char kHex[] = "0123456789abcdef";
  std::string out;
  const std::string valid = ValidUtf8(text);
  ForCharacters(valid, [&](std::string_view c, int32_t code) {
    const bool control = (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0);
    if (control) {
      out += {'\\', 'x', kHex[code >> 4], kHex[code & 15]};
    } else {
      out += c;
    }
  });
  return out;
}

TokenStream::TokenStream(const Tokenizer& tokenizer, std::vector<int32_t> before)
    : tokenizer_(&tokenizer), tokens_(std::move(before)) {
  if (tokens_.size() > kContext) tokens_.erase(tokens_.begin(), tokens_.end() - kContext);
  shown_ = tokenizer_->Decode(tokens_).size();
}

std::string TokenStream::Add(int32_t token) {
  tokens_.push_back(token);
  return Take(false);
}

std::string TokenStream::End() { return Take(true); }

std::string TokenStream::Take(bool all) {
  const std::string text = tokenizer_->Decode(tokens_);
  const std::string_view fresh = std::string_view(text).substr(std::min(shown_, text.size()));
  const size_t open = ForCharacters(fresh, [](std::string_view, int32_t) {});
  const std::string_view certain = fresh.substr(0, all ? fresh.size() : fresh.size() - open);
  shown_ += certain.size();
  // Tokens are forgotten where no character is open, so that a long text costs no more than a short one.
  if (open == 0 && tokens_.size() > 2 * kContext) {
    tokens_.erase(tokens_.begin(), tokens_.end() - kContext);
    shown_ = tokenizer_->Decode(tokens_).size();
  }
  return ValidUtf8(certain);
}

}  // namespace oneflow_like
