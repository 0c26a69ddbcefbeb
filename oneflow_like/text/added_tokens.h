// Tokens that stand in a text under their names ("<|eot_id|>"): cut out of it before a tokenizer's model sees
// the rest. Other files of a folder may add some to those of a tokenizer's own file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "oneflow_like/data/tokens.h"

namespace oneflow_like {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool left = false, right = false;  // take white space beside them
  bool special = false;
};

class AddedTokens {
 public:
  void Add(AddedToken token);  // REQUIRES: it has a content
  // Calls use(text, -1) and use("", token) for the parts of a text in order: the first token to begin, and of
  // those the longest.
  void Split(std::string_view text, const std::function<void(std::string_view, int32_t)>& use) const;

 private:
  const AddedToken* At(std::string_view text) const;
  std::array<std::vector<AddedToken>, 256> by_first_;
};

// `tokenizer` with the tokens that the folder's added_tokens.json and tokenizer_config.json have behind its
// own; itself where there are none. Throws Error, naming the file and the entry.
std::shared_ptr<const Tokenizer> WithAddedTokens(std::shared_ptr<const Tokenizer> tokenizer,
                                                 const std::string& folder);

}  // namespace oneflow_like
