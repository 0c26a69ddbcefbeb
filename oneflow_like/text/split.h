// Regular expressions over UTF-8, by PCRE2, for cutting texts into words.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace oneflow_like {

// Thread-safe.
class Pattern {
 public:
  // Compiles `regex` with Unicode's properties; `who` names the file in messages. Throws Error if PCRE2
  // refuses the expression, and in a build without PCRE2.
  Pattern(const std::string& who, const std::string& regex);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  // Calls use(part, whether it matched) for the text's parts in order: matches, and the text between them; no
  // part is empty. Invalid UTF-8 matches nothing.
  void Split(std::string_view text, const std::function<void(std::string_view, bool)>& use) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The text in a normal form of Unicode ("NFC", "NFD", "NFKC", "NFKD"), by utf8proc. Invalid UTF-8 is kept
// unchanged. Throws Error in a build without utf8proc (CanNormalize).
std::string Normalized(std::string_view text, const std::string& form);
bool CanNormalize();

}  // namespace oneflow_like
