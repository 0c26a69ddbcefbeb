#include "oneflow_like/program/huggingface_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "oneflow_like/checkpoint/safetensors.h"
#include "oneflow_like/text/json_text.h"

namespace oneflow_like {

using nlohmann::json;

constexpr int64_t kMostConfig = 1 << 24;  // bytes; 20,000 names of classes take 2 million

HuggingFaceConfig::HuggingFaceConfig(const std::string& folder)
    : HuggingFaceConfig(folder + "/config.json", ReadText(folder + "/config.json", kMostConfig)) {}

struct JsonObject {
  json entries;
};

namespace {

// The entry of this name; null where it is left out.
const json& EntryOf(const JsonObject& all, const std::string& name) {
  static const json kNone;
  const auto found = all.entries.find(name);
  return found == all.entries.end() ? kNone : *found;
}

}  // namespace

ConfigValue::ConfigValue(double value) : text(json(value).dump()) {}
ConfigValue::ConfigValue(const char* value) : text(json(value).dump()) {}
ConfigValue ConfigValue::EmptyList() {
  ConfigValue list(nullptr);
  list.text = "[]";
  return list;
}

HuggingFaceConfig::HuggingFaceConfig(const std::string& where, const std::string& text)
    : path_(where), text_(text) {
  json all = ParseJson(path_, text);
  if (!all.is_object()) Fail(path_, ": it is no JSON object");
  all_ = std::make_shared<const JsonObject>(std::move(all));
}

HuggingFaceConfig::HuggingFaceConfig(const HuggingFaceConfig& whole, const std::string& name)
    : path_(whole.path_), text_(whole.text_), prefix_(whole.prefix_ + name + ".") {
  json all = EntryOf(*whole.all_, name);
  if (all.is_null()) all = json::object();
  if (!all.is_object()) whole.Refuse(name, "must be an object");
  all_ = std::make_shared<const JsonObject>(std::move(all));
}

bool HuggingFaceConfig::Has(const std::string& name) const { return all_->entries.contains(name); }
bool HuggingFaceConfig::Says(const std::string& name) const { return !EntryOf(*all_, name).is_null(); }
bool HuggingFaceConfig::Is(const std::string& name, const std::string& text) const {
  return EntryOf(*all_, name) == text;
}

HuggingFaceConfig HuggingFaceConfig::Part(const std::string& name) const { return {*this, name}; }

void HuggingFaceConfig::Refuse(const std::string& name, const std::string& wanted) const {
  const std::string shown =
      EntryOf(*all_, name).dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60);
  Fail(path_, ": ", prefix_, name, " is ", shown, ", but ", wanted);
}

int64_t HuggingFaceConfig::Number(const std::string& name, int64_t most,
                                  std::optional<int64_t> otherwise) const {
  const json& value = EntryOf(*all_, name);
  if (value.is_null() && otherwise) return *otherwise;
  if (!Has(name)) Fail(path_, ": it lacks ", prefix_, name);
  if (!value.is_number_integer() || value < 1 || value > most)
    Refuse(name, Cat("must be a whole number from 1 to ", most));
  return value.get<int64_t>();
}

double HuggingFaceConfig::Real(const std::string& name, std::optional<double> otherwise) const {
  const json& value = EntryOf(*all_, name);
  if (value.is_null() && otherwise) return *otherwise;
  if (!Has(name)) Fail(path_, ": it lacks ", prefix_, name);
  if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>()))
    Refuse(name, "must be a number above 0");
  return value.get<double>();
}

double HuggingFaceConfig::RealOrZero(const std::string& name, double otherwise) const {
  const json& value = EntryOf(*all_, name);
  return value.is_number() && value.get<double>() == 0 ? 0 : Real(name, otherwise);
}

std::vector<double> HuggingFaceConfig::Reals(const std::string& name, size_t count, double otherwise) const {
  const json& list = EntryOf(*all_, name);
  if (list.is_null()) return std::vector<double>(count, otherwise);
  if (!list.is_array() || list.size() != count || std::any_of(list.begin(), list.end(), [](const json& one) {
        return !one.is_number() || !std::isfinite(one.get<double>());
      }))
    Refuse(name, Cat("must be a list of ", count, " numbers"));
  return list.get<std::vector<double>>();
}

std::optional<std::string> HuggingFaceConfig::Text(const std::string& name) const {
  const json& value = EntryOf(*all_, name);
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

std::vector<int32_t> HuggingFaceConfig::Numbers(const std::string& name) const {
  std::vector<int32_t> numbers;
  const json& value = EntryOf(*all_, name);
  const json list = value.is_array() ? value : value.is_null() ? json::array() : json::array({value});
  for (const json& number : list) {
    if (!number.is_number_integer() || number < INT32_MIN || number > INT32_MAX)
      Refuse(name, "must be a token's number, or a list of such");
    if (number >= 0) numbers.push_back(number.get<int32_t>());
  }
  return numbers;
}

bool HuggingFaceConfig::Flag(const std::string& name, bool otherwise) const {
  const json& value = EntryOf(*all_, name);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) Refuse(name, "must be true or false");
  return value.get<bool>();
}

int64_t HuggingFaceConfig::Entries(const std::string& name, int64_t otherwise) const {
  const json& value = EntryOf(*all_, name);
  if (value.is_null()) return otherwise;
  if (!value.is_object() || value.empty()) Refuse(name, "must be an object with an entry or more");
  return static_cast<int64_t>(value.size());
}

void HuggingFaceConfig::Require(const std::string& name, std::initializer_list<ConfigValue> possible) const {
  if (!Has(name)) return;
  std::string wanted;
  for (const ConfigValue& value : possible) {
    if (EntryOf(*all_, name) == json::parse(value.text)) return;
    wanted += Cat(wanted.empty() ? "" : " or ", value.text);
  }
  Refuse(name, Cat("the model of this program needs ", wanted));
}

void HuggingFaceConfig::RequireEach(const std::string& name, const std::string& text) const {
  const json& all = EntryOf(*all_, name);
  if (all.is_array() && std::any_of(all.begin(), all.end(), [&](const json& one) { return one != text; }))
    Refuse(name, Cat("the model of this program needs \"", text, "\" in each layer"));
}

std::optional<HuggingFaceConfig> ConfigIn(const FolderFiles& files, const std::string& where) {
  const auto found = files.find(kConfigFile);
  if (found == files.end()) return std::nullopt;
  return HuggingFaceConfig(Cat(where, ": ", kConfigFile), found->second);
}

std::string ChangedConfig(const HuggingFaceConfig& theirs, const std::string& before,
                          const std::string& now) {
  using nlohmann::ordered_json;
  ordered_json text = ordered_json::parse(theirs.text());
  const ordered_json was = ordered_json::parse(before), is = ordered_json::parse(now);
  for (const auto& [name, value] : is.items())
    if (const auto old = was.find(name); old == was.end() || *old != value) text[name] = value;
  return text.dump(2) + "\n";
}

std::vector<int32_t> EndsOfText(const HuggingFaceConfig& config, const std::string& folder) {
  std::vector<int32_t> ends = config.Numbers("eos_token_id");
  const std::string path = folder + "/" + kGenerationFile;
  if (std::error_code error; !std::filesystem::exists(path, error)) return ends;
  for (int32_t end : HuggingFaceConfig(path, ReadText(path, kMostConfig)).Numbers("eos_token_id"))
    if (std::find(ends.begin(), ends.end(), end) == ends.end()) ends.push_back(end);
  return ends;
}

}  // namespace oneflow_like
