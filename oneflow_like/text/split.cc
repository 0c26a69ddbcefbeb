#include "oneflow_like/text/split.h"

#include <cstdlib>

#include "core/error.h"
#include "oneflow_like/text/utf8.h"
#ifdef OFL_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif
#ifdef OFL_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

namespace oneflow_like {

#ifdef OFL_HAVE_PCRE2

struct Pattern::Impl {
  std::string who;
  pcre2_code* code = nullptr;
  ~Impl() { pcre2_code_free(code); }
};

Pattern::Pattern(const std::string& who, const std::string& regex) : impl_(new Impl{who}) {
  int error = 0;
  size_t offset = 0;
  impl_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, nullptr);
  if (!impl_->code) {
    char text[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
    Fail(who, ": its pattern ", regex, " is not understood at character ", offset, ": ", text);
  }
  pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE);  // where it cannot, matching is slower
}

void Pattern::Split(std::string_view text, const std::function<void(std::string_view, bool)>& use) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(impl_->code, nullptr), pcre2_match_data_free);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0, from = 0;
  while (from <= text.size()) {
    int found = pcre2_match(impl_->code, subject, text.size(), from, 0, data.get(), nullptr);
    // The compiled form has a small stack.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(impl_->code, subject, text.size(), from, PCRE2_NO_JIT, data.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      Fail(impl_->who, ": its pattern takes more than PCRE2 allows on this text (error ", found, ")");
    const size_t *at = pcre2_get_ovector_pointer(data.get()), begin = at[0], end = at[1];
    if (end == begin) {  // from the next character on
      from = begin >= text.size() ? text.size() + 1 : begin + FirstCharacter(text.substr(begin)).bytes;
      continue;
    }
    if (begin > done) use(text.substr(done, begin - done), false);
    use(text.substr(begin, end - begin), true);
    done = from = end;
  }
  if (done < text.size()) use(text.substr(done), false);
}

#else

struct Pattern::Impl {};
Pattern::Pattern(const std::string& who, const std::string&) {
  Fail(who,
       ": words are split by PCRE2, which this program was built without; install libpcre2-dev and build "
       "again");
}
void Pattern::Split(std::string_view, const std::function<void(std::string_view, bool)>&) const {}

#endif

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;

#ifdef OFL_HAVE_UTF8PROC

bool CanNormalize() { return true; }

std::string Normalized(std::string_view text, const std::string& form) {
  int options = UTF8PROC_STABLE;
  options |= form.ends_with("D") ? UTF8PROC_DECOMPOSE : UTF8PROC_COMPOSE;
  if (form.find('K') != std::string::npos) options |= UTF8PROC_COMPAT;
  std::string out;
  while (!text.empty()) {  // runs of characters, and bytes between them
    size_t valid = 0;
    while (valid < text.size()) {
      const Utf8Character c = FirstCharacter(text.substr(valid));
      if (c.code < 0) break;
      valid += c.bytes;
    }
    utf8proc_uint8_t* made = nullptr;
    const auto size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                     static_cast<utf8proc_ssize_t>(valid), &made, static_cast<utf8proc_option_t>(options));
    if (size < 0) Fail("a text cannot be normalised: ", utf8proc_errmsg(size));
    out.append(reinterpret_cast<const char*>(made), size);
    std::free(made);
    text.remove_prefix(valid);
    if (text.empty()) break;
    const int bytes = FirstCharacter(text).bytes;
    out += text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return out;
}

#else

bool CanNormalize() { return false; }

std::string Normalized(std::string_view, const std::string& form) {
  Fail("normal form ", form, " needs utf8proc, which this program was built without");
}

#endif

}  // namespace oneflow_like
