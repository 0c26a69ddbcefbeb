// Regular expressions over UTF-8, by PCRE2, for cutting texts into words.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace oneflow_like {

// Any thread.
class Pattern {
 public:
  // `regex` with Unicode's properties; `who` names the file in messages. Throws Error for one that PCRE2 does
  // not take, and where this was built without PCRE2.
  Pattern(const std::string& who, const std::string& regex);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  // Calls use(part, whether it matched) for the text's parts in order: matches, and what lies between them;
  // none is empty. Bytes that are no UTF-8 match nothing.
  void Split(std::string_view text, const std::function<void(std::string_view, bool)>& use) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A text's characters in a normal form of Unicode ("NFC", "NFD", "NFKC", "NFKD"), by utf8proc. Bytes that are no
// UTF-8 stay. Throws Error where this was built without utf8proc (CanNormalize).
std::string Normalized(std::string_view text, const std::string& form);
bool CanNormalize();

}  // namespace oneflow_like
