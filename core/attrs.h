// Attributes: the named constants of an operator or kernel ("axis", "eps", ...). They print and parse as
// `axis=1 eps=1e-05 equation="mk,kn->mn" shape=[2,3] values=%96/7d0c1f3a52e68b94`.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/dims.h"

namespace oneflow_like {

// Bytes too many to print: texts show their number and hash ("%96/7d0c1f3a52e68b94"). A Blob that was read
// from a text has no bytes. Copies share the bytes.
class Blob {
 public:
  Blob() = default;
  Blob(const void* bytes, size_t size);
  static Blob Known(size_t size, uint64_t hash) { return Blob(size, hash); }  // without its bytes
  size_t size() const { return size_; }
  uint64_t hash() const { return hash_; }
  const char* data() const { return bytes_.get(); }  // nullptr: without its bytes
  bool operator==(const Blob& other) const { return size_ == other.size_ && hash_ == other.hash_; }
  std::string str() const;

 private:
  Blob(size_t size, uint64_t hash) : size_(size), hash_(hash) {}
  std::shared_ptr<const char[]> bytes_;
  size_t size_ = 0;
  uint64_t hash_ = 0;
};

using Attr = std::variant<int64_t, double, std::string, std::vector<int64_t>, Blob>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Attr>> init) : map_(init) {}

  bool Has(const std::string& name) const { return map_.count(name) != 0; }
  void Set(const std::string& name, Attr value) { map_[name] = std::move(value); }
  // REQUIRES: the attribute is present and has that type (an int64 is also read as a double). The
  // two-argument forms return `otherwise` when it is absent.
  int64_t Int(const std::string& name) const;
  int64_t Int(const std::string& name, int64_t otherwise) const;
  double Float(const std::string& name) const;
  double Float(const std::string& name, double otherwise) const;
  const std::string& Str(const std::string& name) const;
  std::string Str(const std::string& name, const std::string& otherwise) const;
  const std::vector<int64_t>& Ints(const std::string& name) const;
  Dims GetDims(const std::string& name) const;
  const Blob& Bytes(const std::string& name) const;

  const std::map<std::string, Attr>& map() const { return map_; }
  bool operator==(const Attrs& other) const { return map_ == other.map_; }
  std::string str() const;                      // sorted by name, separated by one space
  static Attrs Parse(const std::string& text);  // throws Error

 private:
  std::map<std::string, Attr> map_;
};

}  // namespace oneflow_like
