// HuggingFaceConfig: reads config.json of a Hugging Face folder. Every mistake in the file is an Error that
// names the file and the entry. Entries that our models do not need are kept when the file is written again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oneflow_like/checkpoint/huggingface.h"

namespace oneflow_like {

struct JsonObject;  // hides nlohmann's JSON, which programs need not have

// A value that an entry may have, as JSON.
struct ConfigValue {
  ConfigValue(std::nullptr_t) : text("null") {}
  ConfigValue(bool value) : text(value ? "true" : "false") {}
  ConfigValue(int value) : text(std::to_string(value)) {}
  ConfigValue(int64_t value) : text(std::to_string(value)) {}
  ConfigValue(double value);
  ConfigValue(const char* value);
  static ConfigValue EmptyList();
  std::string text;
};

class HuggingFaceConfig {
 public:
  explicit HuggingFaceConfig(const std::string& folder);
  // Reads `text`, which comes from `where`.
  HuggingFaceConfig(const std::string& where, const std::string& text);
  const std::string& path() const { return path_; }
  const std::string& text() const { return text_; }  // the whole file
  bool Has(const std::string& name) const;
  // Returns whether the entry exists and is not null.
  bool Says(const std::string& name) const;
  // Return the value of an entry. If the entry is missing or null they return `otherwise`, and throw Error
  // without it. Number: an integer from 1 to `most`.
  int64_t Number(const std::string& name, int64_t most, std::optional<int64_t> otherwise = {}) const;
  double Real(const std::string& name, std::optional<double> otherwise = {}) const;  // positive and finite
  double RealOrZero(const std::string& name, double otherwise) const;                // finite, not negative
  // Returns a list of `count` finite numbers; `count` times `otherwise` if the entry is missing or null.
  std::vector<double> Reals(const std::string& name, size_t count, double otherwise) const;
  // Returns the tokens that an entry names: a number from 0 on, or a list of such numbers. Returns none if
  // the entry is missing, null or negative, which also means none.
  std::vector<int32_t> Numbers(const std::string& name) const;
  bool Flag(const std::string& name, bool otherwise) const;
  std::optional<std::string> Text(const std::string& name) const;  // nothing if the entry is not a text
  // Returns the number of entries of the object of this name, at least one; `otherwise` if it is missing or
  // null.
  int64_t Entries(const std::string& name, int64_t otherwise) const;
  bool Is(const std::string& name, const std::string& text) const;
  // Throws Error unless the entry has one of these values; a missing entry means the first one.
  void Require(const std::string& name, std::initializer_list<ConfigValue> possible) const;
  // Throws Error if the entry is a list with an element other than this text.
  void RequireEach(const std::string& name, const std::string& text) const;
  // Returns the object of this name, whose entries messages call name.entry; an empty one if it is missing or
  // null.
  HuggingFaceConfig Part(const std::string& name) const;

 private:
  HuggingFaceConfig(const HuggingFaceConfig& whole, const std::string& name);
  [[noreturn]] void Refuse(const std::string& name, const std::string& wanted) const;

  std::string path_, text_, prefix_;
  std::shared_ptr<const JsonObject> all_;
};

// Returns the config.json among the files of folder `where`, or nothing if there is none.
std::optional<HuggingFaceConfig> ConfigIn(const FolderFiles& files, const std::string& where);

// Returns the text of a config.json for a changed model. `theirs` is the file that was read, `before` the
// text that our programs would write for that model, and `now` the text for the changed one. The result is
// `theirs` with the entries in which `now` differs from `before`, so entries that our programs do not know,
// or write in another form, are kept.
std::string ChangedConfig(const HuggingFaceConfig& theirs, const std::string& before, const std::string& now);

// Returns the tokens that end a text: eos_token_id of config.json and of the folder's generation_config.json,
// if it exists.
std::vector<int32_t> EndsOfText(const HuggingFaceConfig& config, const std::string& folder);

}  // namespace oneflow_like
