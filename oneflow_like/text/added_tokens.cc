#include "oneflow_like/text/added_tokens.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/text/json_text.h"
#include "oneflow_like/text/utf8.h"

namespace oneflow_like {
namespace {

using nlohmann::json;

// Unicode's White_Space.
bool IsWhiteSpace(int32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}
size_t SpaceAtBegin(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Character c = FirstCharacter(text.substr(at));
    if (!IsWhiteSpace(c.code)) break;
    at += c.bytes;
  }
  return at;
}
size_t SpaceAtEnd(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (text[begin] & 0xC0) == 0x80) --begin;
    const Utf8Character c = FirstCharacter(text.substr(begin, end - begin));
    if (!IsWhiteSpace(c.code)) break;
    end = begin;
  }
  return text.size() - end;
}

// --- Other files of a folder ---

constexpr int64_t kMostFile = 1 << 26;    // bytes
constexpr int64_t kMostBehind = 1 << 20;  // numbers behind a tokenizer's own, which take memory

class AddedReader {
 public:
  AddedReader(const Tokenizer& tokenizer, const std::string& folder)
      : tokenizer_(tokenizer), folder_(folder) {}

  // {"<pad>": 32000}
  void ReadNames() {
    const json all = FileOf("added_tokens.json");
    for (const auto& [name, id] : all.items()) Take(Number(name, id), {.content = name});
  }
  // {"added_tokens_decoder": {"32000": {"content": "<pad>", "lstrip": false, "special": true}}}
  void ReadConfig() {
    const json all = FileOf("tokenizer_config.json");
    const auto found = all.find("added_tokens_decoder");
    if (found == all.end() || found->is_null()) return;
    if (!found->is_object()) Refuse("added_tokens_decoder", *found, "must be an object");
    for (const auto& [number, about] : found->items()) {
      const std::string where = "added_tokens_decoder['" + ForTerminal(number) + "']";
      if (!about.is_object()) Refuse(where, about, "must be an object");
      const auto flag = [&, &about = about](const char* name) {
        const auto value = about.find(name);
        if (value == about.end() || value->is_null()) return false;
        if (!value->is_boolean()) Refuse(where + "." + name, *value, "must be true or false");
        return value->get<bool>();
      };
      const auto content = about.find("content");
      if (content == about.end() || !content->is_string())
        Refuse(where + ".content", content == about.end() ? json() : *content, "must be a text");
      int64_t id = -1;
      const char* end = number.data() + number.size();
      if (const auto [rest, error] = std::from_chars(number.data(), end, id);
          error != std::errc() || rest != end)
        id = -1;
      if (id < 0) Fail(path_, ": ", where, " is no number of a token");
      Take(id, {.content = content->get<std::string>(),
                .left = flag("lstrip"),
                .right = flag("rstrip"),
                .special = flag("special")});
    }
  }
  std::map<int32_t, AddedToken> taken() { return std::move(taken_); }

 private:
  [[noreturn]] void Refuse(const std::string& where, const json& value, const std::string& wanted) const {
    const std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60);
    Fail(path_, ": ", where, " is ", shown, ", but ", wanted);
  }
  json FileOf(const char* name) {
    path_ = folder_ + "/" + name;
    std::error_code error;
    if (!std::filesystem::exists(path_, error)) return json::object();
    json all = ParseJson(path_, ReadFile(path_, kMostFile));
    if (!all.is_object()) Fail(path_, ": it is no JSON object");
    return all;
  }
  int64_t Number(const std::string& name, const json& id) const {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      Refuse("'" + ForTerminal(name) + "'", id, "must be a token's number");
    return id.get<int64_t>();
  }
  // Those that the tokenizer's file has, under this number or another, are its own.
  void Take(int64_t id, AddedToken token) {
    const int64_t most = tokenizer_.vocabulary() + kMostBehind;
    if (id >= most)
      Fail(path_, ": '", ForTerminal(token.content), "' has number ", id, ", far beyond the ",
           tokenizer_.vocabulary(), " tokens of the tokenizer");
    token.id = static_cast<int32_t>(id);
    if (token.content.empty() || tokenizer_.Has(token.id) || tokenizer_.Find(token.content) >= 0) return;
    const auto [at, fresh] = taken_.emplace(token.id, token);
    if (!fresh && at->second.content != token.content)
      Fail(path_, ": token ", id, " is '", ForTerminal(token.content), "', but '",
           ForTerminal(at->second.content), "' in another file of the folder");
    at->second = std::move(token);  // the later file says more
  }

  const Tokenizer& tokenizer_;
  const std::string folder_;
  std::string path_;
  std::map<int32_t, AddedToken> taken_;
};

class AddedTokenizer final : public Tokenizer {
 public:
  AddedTokenizer(std::shared_ptr<const Tokenizer> base, std::map<int32_t, AddedToken> added)
      : base_(std::move(base)), added_(std::move(added)) {
    for (const auto& [id, token] : added_) names_.Add(token);
    // What the tokenizer puts around any text.
    const std::vector<int32_t> some = base_->Encode("a"), whole = base_->EncodeWhole("a");
    const auto at = std::search(whole.begin(), whole.end(), some.begin(), some.end());
    first_ = {whole.begin(), at};
    last_ = {at + std::min(std::ssize(some), whole.end() - at), whole.end()};
  }
  int64_t vocabulary() const override {
    return std::max<int64_t>(base_->vocabulary(), added_.rbegin()->first + 1);
  }
  std::vector<int32_t> Encode(const std::string& text) const override {
    std::vector<int32_t> out;
    names_.Split(text, [&](std::string_view part, int32_t token) {
      if (token >= 0) return out.push_back(token);
      const std::vector<int32_t> tokens = base_->Encode(std::string(part));
      out.insert(out.end(), tokens.begin(), tokens.end());
    });
    return out;
  }
  std::vector<int32_t> EncodeWhole(const std::string& text) const override {
    std::vector<int32_t> out = first_;
    const std::vector<int32_t> tokens = Encode(text);
    out.insert(out.end(), tokens.begin(), tokens.end());
    out.insert(out.end(), last_.begin(), last_.end());
    return out;
  }
  // Texts between added tokens are decoded each for itself, as they were encoded.
  std::string Decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    std::vector<int32_t> run;
    for (int32_t token : tokens) {
      const auto found = added_.find(token);
      if (found == added_.end()) {
        run.push_back(token);
        continue;
      }
      text += base_->Decode(run) + found->second.content;
      run.clear();
    }
    return text + base_->Decode(run);
  }
  int32_t Find(const std::string& name) const override {
    for (const auto& [id, token] : added_)
      if (token.content == name) return id;
    return base_->Find(name);
  }
  bool Special(int32_t token) const override {
    const auto found = added_.find(token);
    return found == added_.end() ? base_->Special(token) : found->second.special;
  }
  bool Has(int32_t token) const override { return added_.count(token) != 0 || base_->Has(token); }

 private:
  const std::shared_ptr<const Tokenizer> base_;
  const std::map<int32_t, AddedToken> added_;
  AddedTokens names_;
  std::vector<int32_t> first_, last_;
};

}  // namespace

void AddedTokens::Add(AddedToken token) {
  auto& list = by_first_[static_cast<uint8_t>(token.content[0])];
  list.push_back(std::move(token));
  std::stable_sort(list.begin(), list.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
}

void AddedTokens::Split(std::string_view text,
                        const std::function<void(std::string_view, int32_t)>& use) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = At(text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    const size_t end = at + token->content.size();
    const size_t begin = token->left ? std::max(done, at - SpaceAtEnd(text.substr(0, at))) : at;
    if (begin > done) use(text.substr(done, begin - done), -1);
    use(std::string_view(), token->id);
    done = token->right ? end + SpaceAtBegin(text.substr(end)) : end;
    at = done;
  }
  if (done < text.size()) use(text.substr(done), -1);
}

const AddedToken* AddedTokens::At(std::string_view text) const {
  for (const AddedToken& token : by_first_[static_cast<uint8_t>(text[0])])
    if (text.starts_with(token.content)) return &token;
  return nullptr;
}

std::shared_ptr<const Tokenizer> WithAddedTokens(std::shared_ptr<const Tokenizer> tokenizer,
                                                 const std::string& folder) {
  AddedReader reader(*tokenizer, folder);
  reader.ReadNames();
  reader.ReadConfig();
  std::map<int32_t, AddedToken> added = reader.taken();
  if (added.empty()) return tokenizer;
  return std::make_shared<AddedTokenizer>(std::move(tokenizer), std::move(added));
}

}  // namespace oneflow_like
