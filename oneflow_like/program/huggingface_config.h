// config.json of a Hugging Face folder; every mistake in it is an Error that names the file and the entry.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace oneflow_like {

// The name under which checkpoints of programs keep their model's config.json, on one line.
inline constexpr char kConfigState[] = "config.json";

class HuggingFaceConfig {
 public:
  explicit HuggingFaceConfig(const std::string& folder);
  HuggingFaceConfig(const std::string& where, const std::string& text);  // the text of one from elsewhere
  const std::string& path() const { return path_; }
  bool Has(const std::string& name) const { return all_.contains(name); }
  // From 1 to `most`. An entry that is left out, or null, is `otherwise`, and an Error where there is none.
  int64_t Number(const std::string& name, int64_t most, std::optional<int64_t> otherwise = {}) const;
  double Real(const std::string& name, std::optional<double> otherwise = {}) const;  // positive and finite
  // A number from 0 on, or a list of them; none where it is left out or null.
  std::vector<int32_t> Numbers(const std::string& name) const;
  bool Flag(const std::string& name, bool otherwise) const;
  // How many entries the object of this name has, at least one; `otherwise` where it is left out or null.
  int64_t Entries(const std::string& name, int64_t otherwise) const;
  bool Is(const std::string& name, const std::string& text) const { return At(name) == text; }
  // Throws Error unless the entry is one of these; one that is left out means the first.
  void Require(const std::string& name, std::initializer_list<nlohmann::json> possible) const;
  // The object of this name, whose entries messages call name.entry; an empty one where it is left out or
  // null.
  HuggingFaceConfig Part(const std::string& name) const;

 private:
  HuggingFaceConfig(const HuggingFaceConfig& whole, const std::string& name);
  const nlohmann::json& At(const std::string& name) const;  // null where it is left out
  [[noreturn]] void Refuse(const std::string& name, const std::string& wanted) const;

  std::string path_, prefix_;
  nlohmann::json all_;
};

}  // namespace oneflow_like
