#include "oneflow_like/text/json_fields.h"

#include "core/error.h"
#include "oneflow_like/text/utf8.h"

namespace oneflow_like {

using nlohmann::json;

JsonField JsonField::operator[](const std::string& name) const {
  static const json kNone;
  const auto found = value.is_object() ? value.find(name) : value.end();
  return {value.is_object() && found != value.end() ? *found : kNone,
          where.empty() ? name : Cat(where, ".", name), file};
}

std::vector<JsonField> JsonField::Steps(const char* list) const {
  if (value.is_null()) return {};
  if (!(*this)["type"].Is("Sequence")) return {*this};
  const JsonField parts = (*this)[list];
  std::vector<JsonField> steps;
  for (const json& part : parts.List().value)
    steps.push_back({part, Cat(parts.where, "[", steps.size(), "]"), file});
  return steps;
}

void JsonField::Refuse(const std::string& wanted) const {
  const std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60);
  Fail(file, ": ", where, " is ", shown, ", but ", wanted);
}

const JsonField& JsonField::Object() const {
  if (!value.is_object()) Refuse("must be an object");
  return *this;
}

const JsonField& JsonField::List() const {
  if (!value.is_array()) Refuse("must be a list");
  return *this;
}

bool JsonField::Flag(bool otherwise) const {
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) Refuse("must be true or false");
  return value.get<bool>();
}

std::string JsonField::Text() const {
  if (!value.is_string()) Refuse("must be a text");
  return value.get<std::string>();
}

std::string JsonField::Character() const {
  const std::string text = Text();
  if (text.empty() || static_cast<size_t>(FirstCharacter(text).bytes) != text.size())
    Refuse("must be one character");
  return text;
}

int64_t JsonField::Count() const {
  if (!value.is_number_integer() || value < 0 || value >= kMostTokens)
    Refuse("must be a whole number from 0 on");
  return value.get<int64_t>();
}

int32_t JsonField::Token() const {
  if (!value.is_number_integer() || value < 0 || value >= kMostTokens)
    Refuse(Cat("must be a token's number, from 0 and below ", kMostTokens));
  return value.get<int32_t>();
}

}  // namespace oneflow_like
