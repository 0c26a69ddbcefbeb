#include "compiler/graph/offload.h"

#include <charconv>
#include <set>
#include <sstream>

#include "core/error.h"

namespace oneflow_like {

Offload ParseOffload(const std::string& text, const std::string& who) {
  Offload offload;
  std::istringstream words(text);
  std::set<std::string> seen;
  const auto refuse = [&](const std::string& word) {
    Fail(who, ": '", word,
         "' is none of activations, optimizer, optimizer:SHARE (of its state, above 0 and at most 1), ",
         "weights and tables; several are joined by commas");
  };
  for (std::string word; std::getline(words, word, ',');) {
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, colon);
    if (!seen.insert(name).second) Fail(who, ": '", name, "' is there twice");
    if (colon != std::string::npos && name != "optimizer") refuse(word);
    if (name == "activations") {
      offload.activations = true;
    } else if (name == "weights") {
      offload.weights = true;
    } else if (name == "tables") {
      offload.tables = true;
    } else if (name == "optimizer") {
      offload.optimizer = 1;
      if (colon == std::string::npos) continue;
      std::istringstream share(word.substr(colon + 1));
      share.imbue(std::locale::classic());
      std::string rest;
      if (!(share >> offload.optimizer) || share >> rest ||
          !(offload.optimizer > 0 && offload.optimizer <= 1))
        refuse(word);
    } else {
      refuse(word);
    }
  }
  if (!text.empty() && (text.back() == ',' || !offload.any())) refuse("");
  return offload;
}

std::string OffloadText(const Offload& offload) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : ",") + word; };
  if (offload.activations) add("activations");
  if (offload.optimizer == 1) add("optimizer");
  char share[32];  // all its digits
  if (offload.optimizer > 0 && offload.optimizer < 1)
    add("optimizer:" + std::string(share, std::to_chars(share, share + sizeof share, offload.optimizer).ptr));
  if (offload.weights) add("weights");
  if (offload.tables) add("tables");
  return text;
}

}  // namespace oneflow_like
