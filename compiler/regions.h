// Regions: units of a model, such as a layer, that the compiler computes again, gathers and frees as one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace oneflow_like {

// How much of a region's forward pass is computed again for its gradient in place of being kept until then.
enum class Recompute : uint8_t {
  kNone,
  kSelective,  // what no product, attention, convolution or message makes, from what is kept anyway
  kFull,       // everything: only what enters the region is kept
};
const char* Name(Recompute recompute);  // "none", "selective", "full"

// Whether a node of that name is below the path: "block0" of "block0/mlp/gelu".
bool Within(const std::string& path, const std::string& name);

// By the path of their scopes. A region may have an answer of its own; where it has none the session's
// counts. A node within two is of the outer one.
class Regions {
 public:
  // Throws Error where a region within another has an answer of its own.
  void Add(const std::string& path, std::optional<Recompute> recompute);
  // The region that a node of that name is in, empty for none.
  std::string Of(const std::string& node) const;
  const std::map<std::string, std::optional<Recompute>>& all() const { return all_; }

 private:
  std::map<std::string, std::optional<Recompute>> all_;
};

}  // namespace oneflow_like
