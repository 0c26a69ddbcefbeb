// Attributes: the named constants of an operator or kernel ("axis", "eps", ...). They print and parse as
// `axis=1 eps=1e-05 equation="mk,kn->mn" shape=[2,3]`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/dims.h"

namespace oneflow_like {

using Attr = std::variant<int64_t, double, std::string, std::vector<int64_t>>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Attr>> init) : map_(init) {}

  bool Has(const std::string& name) const { return map_.count(name) != 0; }
  void Set(const std::string& name, Attr value) { map_[name] = std::move(value); }
  // REQUIRES: the attribute is there and of that type (an int64 is also read as a double). The two-argument
  // forms give `otherwise` when it is absent.
  int64_t Int(const std::string& name) const;
  int64_t Int(const std::string& name, int64_t otherwise) const;
  double Float(const std::string& name) const;
  double Float(const std::string& name, double otherwise) const;
  const std::string& Str(const std::string& name) const;
  std::string Str(const std::string& name, const std::string& otherwise) const;
  const std::vector<int64_t>& Ints(const std::string& name) const;
  Dims GetDims(const std::string& name) const;

  const std::map<std::string, Attr>& map() const { return map_; }
  bool operator==(const Attrs& other) const { return map_ == other.map_; }
  std::string str() const;                      // sorted by name, separated by one space
  static Attrs Parse(const std::string& text);  // throws Error

 private:
  std::map<std::string, Attr> map_;
};

}  // namespace oneflow_like
