// Values of a JSON file, each read as what it has to be.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace oneflow_like {

// A value and its path in the file. What reads it as something else than it is throws Error, which names file
// and path. `value` and `file` must outlive it.
struct JsonField {
  const nlohmann::json& value;
  std::string where;  // "model.vocab"; empty: the whole file
  const std::string& file;

  // The field of that name; null where there is none.
  JsonField operator[](const std::string& name) const;
  // Parts of a sequence, which are in the field `list`, or the one step that this is; none of null.
  std::vector<JsonField> Steps(const char* list) const;
  bool Is(const char* text) const { return value == text; }

  // Throws Error: "<file>: <where> is <value>, but <wanted>".
  [[noreturn]] void Refuse(const std::string& wanted) const;
  // Itself.
  const JsonField& Object() const;
  const JsonField& List() const;
  bool Flag(bool otherwise = false) const;  // otherwise: where it is null
  std::string Text() const;
  std::string Character() const;
  int64_t Count() const;
  int32_t Token() const;
};

constexpr int32_t kMostTokens = 1 << 28;

}  // namespace oneflow_like
