// Regions: units of a model, such as a layer, that the compiler recomputes, gathers and frees as a whole.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace oneflow_like {

// The part of a region's forward pass that is recomputed for its gradient instead of being kept.
enum class Recompute : uint8_t {
  kNone,
  kSelective,  // all but the results of products, attention, convolutions and messages
  kFull,       // everything: only what enters the region is kept
};
const char* Name(Recompute recompute);  // "none", "selective", "full"

// Whether a node of that name is below the path: "block0" of "block0/mlp/gelu".
bool Within(const std::string& path, const std::string& name);

// The regions by the path of their scopes. A region may have a setting of its own; otherwise the session's
// applies. A node within two regions belongs to the outer one.
class Regions {
 public:
  // Throws Error if a region within another has a setting of its own.
  void Add(const std::string& path, std::optional<Recompute> recompute);
  // The region of a node with that name; empty for none.
  std::string Of(const std::string& node) const;
  const std::map<std::string, std::optional<Recompute>>& all() const { return all_; }

 private:
  std::map<std::string, std::optional<Recompute>> all_;
};

}  // namespace oneflow_like
