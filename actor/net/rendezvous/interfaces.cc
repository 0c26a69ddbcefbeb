#include "actor/net/rendezvous/interfaces.h"

#include <filesystem>
#include <set>
#include <sstream>

#include "core/error.h"

namespace oneflow_like {
namespace {

std::set<std::string> DevicesOfThisHost() {
  std::set<std::string> names;
  for (const char* folder : {"/sys/class/net", "/sys/class/infiniband"}) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder, none))
      names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace

// UCX ignores names it does not know when others are usable, and a misspelt one should not go unnoticed.
void CheckNetworkDevices(const std::string& devices) {
  std::set<std::string> there = DevicesOfThisHost();
  std::istringstream names(devices);
  for (std::string name; std::getline(names, name, ',');) {
    if (there.count(name.substr(0, name.find(':'))) != 0) continue;
    std::string all;
    for (const std::string& known : there) all += (all.empty() ? "" : ", ") + known;
    Fail("network device '", name, "' does not exist on this host, which has ", all);
  }
}

}  // namespace oneflow_like
