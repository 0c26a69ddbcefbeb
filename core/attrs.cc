// Attributes: typed access, and a text form that reads back exactly.
#include "core/attrs.h"

#include <cctype>
#include <charconv>
#include <cstring>

#include "core/error.h"
#include "core/hash_bytes.h"

namespace oneflow_like {
namespace {

const char* TypeName(const Attr& attr) {
  constexpr const char* kNames[] = {"an integer", "a real number", "a string", "a list of integers", "bytes"};
  return kNames[attr.index()];
}

const Attr& Find(const std::map<std::string, Attr>& map, const std::string& name) {
  auto found = map.find(name);
  if (found == map.end()) Fail("attribute ", name, " is missing");
  return found->second;
}

template <typename T>
const T& Get(const std::map<std::string, Attr>& map, const std::string& name) {
  const Attr& attr = Find(map, name);
  const T* value = std::get_if<T>(&attr);
  if (value == nullptr) Fail("attribute ", name, " is ", TypeName(attr), ", not ", TypeName(Attr(T{})));
  return *value;
}

// The shortest digits that read back as the same number, always marked as real: 1 prints as 1.0.
std::string PrintReal(double value) {
  char digits[64];
  auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value);
  std::string text(digits, end);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // "inf" and "nan" hold an n
  return text;
}

bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/' || c == '-';
}

bool IsRealWord(const std::string& text) { return text == "inf" || text == "nan"; }

std::string PrintString(const std::string& value) {
  bool plain = !value.empty() && !IsRealWord(value) &&
               (std::isalpha(static_cast<unsigned char>(value[0])) || value[0] == '_');
  for (char c : value) plain = plain && IsWordCharacter(c);
  if (plain) return value;
  std::string text = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text + "\"";
}

std::string Print(const Attr& attr) {
  if (const auto* integer = std::get_if<int64_t>(&attr)) return std::to_string(*integer);
  if (const auto* real = std::get_if<double>(&attr)) return PrintReal(*real);
  if (const auto* text = std::get_if<std::string>(&attr)) return PrintString(*text);
  if (const auto* blob = std::get_if<Blob>(&attr)) return blob->str();
  std::string list;
  for (int64_t value : std::get<std::vector<int64_t>>(attr))
    list += (list.empty() ? "" : ",") + std::to_string(value);
  return "[" + list + "]";
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  bool AtEnd() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ == text_.size();
  }

  std::string ParseName() {
    size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '=' && !std::isspace(static_cast<unsigned char>(text_[at_])))
      ++at_;
    std::string name = text_.substr(begin, at_ - begin);
    if (name.empty() || at_ == text_.size() || text_[at_] != '=') {
      Fail("attributes \"", text_, "\": name=value was expected at \"", text_.substr(begin), "\"");
    }
    ++at_;
    return name;
  }

  Attr ParseValue(const std::string& name) {
    if (at_ < text_.size() && text_[at_] == '"') return ParseQuoted(name);
    if (at_ < text_.size() && text_[at_] == '[') return ParseList(name);
    size_t begin = at_;
    while (at_ < text_.size() && !std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    return word.starts_with('%') ? ParseBlob(name, word) : ParseWord(name, word);
  }

 private:
  std::string ParseQuoted(const std::string& name) {
    std::string value;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        value += text_[at_] == 'n' ? '\n' : text_[at_];
      } else {
        value += text_[at_];
      }
    }
    if (at_ == text_.size()) Fail("attribute ", name, ": the closing quote is missing");
    ++at_;
    RequireSeparator(name);
    return value;
  }

  std::vector<int64_t> ParseList(const std::string& name) {
    size_t close = text_.find(']', at_);
    if (close == std::string::npos) Fail("attribute ", name, ": the closing bracket is missing");
    const char *next = text_.data() + at_ + 1, *end = text_.data() + close;
    std::vector<int64_t> values;
    auto skip_spaces = [&] {
      while (next != end && *next == ' ') ++next;
    };
    for (skip_spaces(); next != end; skip_spaces()) {
      if (!values.empty()) {
        if (*next != ',') FailList(name, close);
        ++next;
        skip_spaces();
      }
      int64_t value = 0;
      auto [after, error] = std::from_chars(next, end, value);
      if (error != std::errc()) FailList(name, close);
      values.push_back(value);
      next = after;
    }
    at_ = close + 1;
    RequireSeparator(name);
    return values;
  }

  [[noreturn]] void FailList(const std::string& name, size_t close) {
    Fail("attribute ", name, ": ", text_.substr(at_, close + 1 - at_),
         " is not a list of integers such as [2,3]");
  }

  Attr ParseBlob(const std::string& name, const std::string& word) {
    const char *begin = word.data() + 1, *end = word.data() + word.size();
    size_t size = 0;
    uint64_t hash = 0;
    auto as_size = std::from_chars(begin, end, size);
    bool good = as_size.ec == std::errc() && as_size.ptr != end && *as_size.ptr == '/';
    auto as_hash = good ? std::from_chars(as_size.ptr + 1, end, hash, 16) : as_size;
    if (!good || as_hash.ec != std::errc() || as_hash.ptr != end)
      Fail("attribute ", name, ": ", word,
           " is not a number of bytes and a hash such as %96/7d0c1f3a52e68b94");
    return Blob::Known(size, hash);
  }

  Attr ParseWord(const std::string& name, const std::string& word) {
    if (word.empty()) Fail("attribute ", name, " has no value");
    const char *begin = word.data(), *end = begin + word.size();
    int64_t integer = 0;
    auto as_integer = std::from_chars(begin, end, integer);
    if (as_integer.ec == std::errc() && as_integer.ptr == end) return integer;
    bool numeric = IsRealWord(word) || !std::isalpha(static_cast<unsigned char>(word[0]));
    if (numeric && word[0] != '_') {
      double real = 0;
      auto as_real = std::from_chars(begin, end, real);
      if (as_real.ec == std::errc() && as_real.ptr == end) return real;
      Fail("attribute ", name, ": \"", word,
           "\" is neither a number nor a word (quote a string that is no word)");
    }
    for (char c : word) {
      if (!IsWordCharacter(c)) Fail("attribute ", name, ": the string ", word, " must be quoted");
    }
    return word;
  }

  void RequireSeparator(const std::string& name) {
    if (at_ < text_.size() && !std::isspace(static_cast<unsigned char>(text_[at_]))) {
      Fail("attribute ", name, ": a space was expected before \"", text_.substr(at_), "\"");
    }
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

Blob::Blob(const void* bytes, size_t size) : size_(size), hash_(HashOfBytes(bytes, size)) {
  auto copy = std::make_shared<char[]>(size);
  if (size > 0) std::memcpy(copy.get(), bytes, size);
  bytes_ = std::move(copy);
}

std::string Blob::str() const {
  char digits[17];
  for (int i = 15; i >= 0; --i) digits[15 - i] = "0123456789abcdef"[(hash_ >> (4 * i)) & 15];
  digits[16] = 0;
  return Cat("%", size_, "/", digits);
}

int64_t Attrs::Int(const std::string& name) const { return Get<int64_t>(map_, name); }
int64_t Attrs::Int(const std::string& name, int64_t otherwise) const {
  return Has(name) ? Int(name) : otherwise;
}

double Attrs::Float(const std::string& name) const {
  const Attr& attr = Find(map_, name);
  if (const auto* integer = std::get_if<int64_t>(&attr)) return static_cast<double>(*integer);
  return Get<double>(map_, name);
}
double Attrs::Float(const std::string& name, double otherwise) const {
  return Has(name) ? Float(name) : otherwise;
}

const std::string& Attrs::Str(const std::string& name) const { return Get<std::string>(map_, name); }
std::string Attrs::Str(const std::string& name, const std::string& otherwise) const {
  return Has(name) ? Str(name) : otherwise;
}

const std::vector<int64_t>& Attrs::Ints(const std::string& name) const {
  return Get<std::vector<int64_t>>(map_, name);
}

Dims Attrs::GetDims(const std::string& name) const {
  const std::vector<int64_t>& values = Ints(name);
  return Dims(values.begin(), values.end());
}

const Blob& Attrs::Bytes(const std::string& name) const { return Get<Blob>(map_, name); }

std::string Attrs::str() const {
  std::string text;
  for (const auto& [name, value] : map_) text += (text.empty() ? "" : " ") + name + "=" + Print(value);
  return text;
}

Attrs Attrs::Parse(const std::string& text) {
  Attrs attrs;
  Parser parser(text);
  while (!parser.AtEnd()) {
    std::string name = parser.ParseName();
    if (attrs.Has(name)) Fail("attribute ", name, " is given twice");
    attrs.Set(name, parser.ParseValue(name));
  }
  return attrs;
}

}  // namespace oneflow_like
