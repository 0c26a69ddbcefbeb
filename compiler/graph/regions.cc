#include "compiler/graph/regions.h"

#include "core/error.h"

namespace oneflow_like {

bool Within(const std::string& path, const std::string& name) {
  return name.size() > path.size() && name[path.size()] == '/' && name.compare(0, path.size(), path) == 0;
}

const char* Name(Recompute recompute) {
  const char* names[] = {"none", "gather", "selective", "selective+gather", "full", "host", "auto"};
  return names[static_cast<int>(recompute)];
}

bool GathersAgain(Recompute recompute) { return recompute != WithoutGather(recompute); }

Recompute WithGather(Recompute recompute) {
  return recompute == Recompute::kNone        ? Recompute::kGather
         : recompute == Recompute::kSelective ? Recompute::kSelectiveGather
                                              : recompute;
}

Recompute WithoutGather(Recompute recompute) {
  return recompute == Recompute::kGather            ? Recompute::kNone
         : recompute == Recompute::kSelectiveGather ? Recompute::kSelective
                                                    : recompute;
}

void Regions::Add(const std::string& path, std::optional<Recompute> recompute) {
  for (const auto& [other, says] : all_)
    if ((recompute && Within(other, path)) || (says && Within(path, other)))
      Fail("region '", Within(other, path) ? path : other,
           "' says recompute=", Name(Within(other, path) ? *recompute : *says), ", but lies within region '",
           Within(other, path) ? other : path,
           "', which is computed again as a whole or not at all; say it there");
  std::optional<Recompute>& mine = all_[path];
  if (recompute) mine = recompute;
}

Recompute Regions::SettingOf(const std::string& path, Recompute otherwise) const {
  if (auto chosen = chosen_.find(path); chosen != chosen_.end()) return chosen->second;
  return all_.at(path).value_or(otherwise);
}

std::string Regions::Of(const std::string& node) const {
  if (all_.empty()) return "";
  for (size_t slash = node.find('/'); slash != std::string::npos; slash = node.find('/', slash + 1))
    if (std::string path = node.substr(0, slash); all_.count(path)) return path;
  return "";
}

}  // namespace oneflow_like
