// config.json of a Hugging Face folder; every mistake in it is an Error that names the file and the entry.
// What it has beside what our models need goes with it where it is written again.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "oneflow_like/checkpoint/huggingface.h"

namespace oneflow_like {

class HuggingFaceConfig {
 public:
  explicit HuggingFaceConfig(const std::string& folder);
  HuggingFaceConfig(const std::string& where, const std::string& text);  // the text of one from elsewhere
  const std::string& path() const { return path_; }
  const std::string& text() const { return text_; }  // of the whole file
  bool Has(const std::string& name) const { return all_.contains(name); }
  // Whether the entry is there and something else than null.
  bool Says(const std::string& name) const { return !At(name).is_null(); }
  // From 1 to `most`. An entry that is left out, or null, is `otherwise`, and an Error where there is none.
  int64_t Number(const std::string& name, int64_t most, std::optional<int64_t> otherwise = {}) const;
  double Real(const std::string& name, std::optional<double> otherwise = {}) const;  // positive and finite
  double RealOrZero(const std::string& name, double otherwise) const;                // finite, not negative
  // A list of `count` finite numbers; `otherwise`, as often, where it is left out or null.
  std::vector<double> Reals(const std::string& name, size_t count, double otherwise) const;
  // The tokens that an entry names: a number from 0 on, or a list of them. None where it is left out or null;
  // a number below 0, with which people say so, too, is none either.
  std::vector<int32_t> Numbers(const std::string& name) const;
  bool Flag(const std::string& name, bool otherwise) const;
  std::optional<std::string> Text(const std::string& name) const;  // none: it is no text
  // How many entries the object of this name has, at least one; `otherwise` where it is left out or null.
  int64_t Entries(const std::string& name, int64_t otherwise) const;
  bool Is(const std::string& name, const std::string& text) const { return At(name) == text; }
  // Throws Error unless the entry is one of these; one that is left out means the first.
  void Require(const std::string& name, std::initializer_list<nlohmann::json> possible) const;
  // Throws Error where the entry is a list that has anything but this text.
  void RequireEach(const std::string& name, const std::string& text) const;
  // The object of this name, whose entries messages call name.entry; an empty one where it is left out or
  // null.
  HuggingFaceConfig Part(const std::string& name) const;

 private:
  HuggingFaceConfig(const HuggingFaceConfig& whole, const std::string& name);
  const nlohmann::json& At(const std::string& name) const;  // null where it is left out
  [[noreturn]] void Refuse(const std::string& name, const std::string& wanted) const;

  std::string path_, text_, prefix_;
  nlohmann::json all_;
};

// The config.json among a folder's files, which are of `where`; none: there is none.
std::optional<HuggingFaceConfig> ConfigIn(const FolderFiles& files, const std::string& where);

// The text of a config.json for a model that `now` describes, which is one that our programs write: `theirs`
// with those entries of `now` that `before`, what our programs write of the model in `theirs`, has otherwise.
// So what was not understood stays, and what says the same in other words.
std::string ChangedConfig(const HuggingFaceConfig& theirs, const std::string& before, const std::string& now);

// The tokens that end a text: eos_token_id of config.json, and of the folder's generation_config.json, if
// there is one.
std::vector<int32_t> EndsOfText(const HuggingFaceConfig& config, const std::string& folder);

}  // namespace oneflow_like
