// Regions: units of a model, such as a layer, that the compiler recomputes, gathers and frees as a whole.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace oneflow_like {

// The part of a region's forward pass that is repeated for its gradient instead of being kept.
enum class Recompute : uint8_t {
  kNone,
  kGather,           // messages whose operands take fewer bytes than their results, or are kept anyway
  kSelective,        // all but the results of products, attention, convolutions and messages
  kSelectiveGather,  // kSelective, and messages as with kGather
  kFull,             // everything: only what enters the region is kept
  kHost,             // nothing: what is kept waits in the memory of the host (ModelOptions::offload)
  kAuto,  // one of these, which the compiler chooses so that the plan fits in memory (choose_recompute.cc)
};
// "none", "gather", "selective", "selective+gather", "full", "host", "auto"
const char* Name(Recompute recompute);
// All but kAuto.
inline constexpr std::array kRecomputeModes = {Recompute::kNone,      Recompute::kGather,
                                               Recompute::kSelective, Recompute::kSelectiveGather,
                                               Recompute::kFull,      Recompute::kHost};
// Whether messages are repeated of which only the results are repeated otherwise: kGather, kSelectiveGather.
bool GathersAgain(Recompute recompute);
// The same with messages repeated, and without: kNone and kGather, kSelective and kSelectiveGather. Both
// return the others as they are.
Recompute WithGather(Recompute recompute);
Recompute WithoutGather(Recompute recompute);

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

  // Makes a choice for a region that has kAuto. REQUIRES: a region of `all`.
  void Choose(const std::string& path, Recompute recompute) { chosen_[path] = recompute; }
  const std::map<std::string, Recompute>& chosen() const { return chosen_; }
  // What holds for a region: the choice made for it, else its own setting, else `otherwise`, the session's.
  Recompute SettingOf(const std::string& path, Recompute otherwise) const;

 private:
  std::map<std::string, std::optional<Recompute>> all_;
  std::map<std::string, Recompute> chosen_;
};

}  // namespace oneflow_like
