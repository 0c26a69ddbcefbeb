// Reads topology files: words and numbers, a fact a line.
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "core/file_check.h"
#include "oneflow_like/simulate.h"

namespace oneflow_like {
namespace {

class TopologyFile {
 public:
  explicit TopologyFile(const std::string& path) : path_(path) {}

  DescribedMachine Read() {
    std::ifstream in(path_);
    if (!in) Fail("topology file '", path_, "' cannot be read; examples/topologies has some");
    machine_.topology.links.clear();
    machine_.overhead = 0;
    for (std::string line; std::getline(in, line);) {
      ++line_;
      line = line.substr(0, line.find('#'));
      words_ = std::istringstream(line);
      if (std::string key; words_ >> key) ReadFact(key);
    }
    if (in.bad()) Fail("topology file '", path_, "' cannot be read to its end");
    Check();
    return machine_;
  }

 private:
  template <typename... Args>
  [[noreturn]] void Refuse(const Args&... args) const {
    Fail(path_, ":", line_, ": ", args...);
  }

  void ReadFact(const std::string& key) {
    if (key == "level") return ReadLevel();
    if (key == "collective") return ReadCollective();
    if (!known_.insert(key).second) Refuse(key, " is given a second time");
    Efficiency& e = machine_.efficiency;
    const std::map<std::string, double*> numbers = {
        {"memory_bytes", &machine_.memory_bytes}, {"memory_bandwidth", &machine_.topology.memory_bandwidth},
        {"flops_fp32", &machine_.flops},          {"flops_16bit", &machine_.narrow_flops},
        {"overhead", &machine_.overhead},         {"product_efficiency", &e.product},
        {"attention_efficiency", &e.attention},   {"half_extent", &e.half_extent}};
    if (key == "device") {
      if (!(words_ >> machine_.name)) Refuse("device has no name");
    } else if (key == "threads") {
      machine_.threads = static_cast<int>(Number(key, 1, 4096, true));
    } else if (auto number = numbers.find(key); number != numbers.end()) {
      const bool part = key.ends_with("_efficiency"), may_be_zero = key == "overhead" || key == "half_extent";
      *number->second = Number(key, may_be_zero ? 0 : kSmallest, part ? 1 : kLargest);
    } else {
      std::string all = "device, threads, level, collective";
      for (const auto& [name, where] : numbers) all += ", " + name;
      Refuse("'", key, "' is not known here; facts are ", all);
    }
    if (std::string more; words_ >> more) Refuse("'", more, "' stands behind ", key, ", which has one value");
  }

  // level NAME devices N latency S bandwidth B [shared]
  void ReadLevel() {
    std::string name, word;
    if (!(words_ >> name)) Refuse("level has no name");
    Topology::Link link;
    link.latency = -1;
    link.bandwidth = -1;
    link.devices = -1;
    bool shared = false;
    while (words_ >> word) {
      if (word == "devices") {
        link.devices = static_cast<int>(Number("devices of level " + name, 0, 1 << 24, true));
      } else if (word == "latency") {
        link.latency = Number("latency of level " + name, 0, 1e3);
      } else if (word == "bandwidth") {
        link.bandwidth = Number("bandwidth of level " + name, kSmallest, kLargest);
      } else if (word == "shared") {
        shared = true;
      } else {
        Refuse("'", word, "' is not known of a level; write level NAME devices N latency SECONDS bandwidth ",
               "BYTES_PER_SECOND, and shared where all devices inside have one link together");
      }
    }
    if (link.devices < 0 || link.latency < 0 || link.bandwidth < 0)
      Refuse("level ", name, " needs devices, latency and bandwidth");
    std::vector<Topology::Link>& links = machine_.topology.links;
    if (!links.empty() && links.back().devices == 0)
      Refuse("level ", name, " stands outside of one that joins all devices (devices 0)");
    if (!links.empty() && link.devices != 0 &&
        (link.devices <= links.back().devices || link.devices % links.back().devices != 0))
      Refuse("level ", name, " joins ", link.devices, " devices, which must be several times the ",
             links.back().devices, " of the level inside");
    links.push_back(link);
    machine_.shared.push_back(shared);
  }

  // collective NAME members N per_unit K BYTES:SECONDS BYTES:SECONDS ...
  void ReadCollective() {
    std::string name, word;
    words_ >> name;
    MeasuredCollective measured;
    std::string known;
    for (Primitive p : {Primitive::kAllReduce, Primitive::kReduceScatter, Primitive::kAllGather,
                        Primitive::kAllToAll, Primitive::kBroadcast, Primitive::kSend}) {
      known += Cat(known.empty() ? "" : ", ", oneflow_like::Name(p));
      if (name == oneflow_like::Name(p)) measured.primitive = p, word = name;
    }
    if (word.empty()) Refuse("collective '", name, "' is not known; there are ", known);
    const auto count = [&](const char* what) {
      if (!(words_ >> word) || word != what)
        Refuse("collective ", name, " lacks ", what, "; write collective ", name,
               " members N per_unit K BYTES:SECONDS BYTES:SECONDS ...");
      return static_cast<int>(Number(Cat(what, " of collective ", name), 1, 1 << 24, true));
    };
    measured.members = count("members");
    measured.per_unit = count("per_unit");
    if (measured.members < 2 || measured.members % measured.per_unit != 0)
      Refuse("collective ", name, " has ", measured.members,
             " members, which must be at least 2 and several times ", "its per_unit ", measured.per_unit);
    while (words_ >> word) {
      const size_t colon = word.find(':');
      if (colon == std::string::npos) Refuse("'", word, "' of collective ", name, " is not BYTES:SECONDS");
      std::istringstream rest = std::exchange(words_, std::istringstream(word.replace(colon, 1, " ")));
      const double bytes = Number("bytes of collective " + name, 0, kLargest);
      const double seconds = Number("seconds of collective " + name, kSmallest, kLargest);
      if (!measured.points.empty() && bytes <= measured.points.back().first)
        Refuse("collective ", name, " has ", bytes, " bytes behind ", measured.points.back().first,
               "; they must rise");
      measured.points.push_back({bytes, seconds});
      words_ = std::move(rest);
    }
    if (measured.points.size() < 2) Refuse("collective ", name, " needs at least two BYTES:SECONDS");
    for (const MeasuredCollective& other : machine_.collectives)
      if (other.primitive == measured.primitive && other.members == measured.members &&
          other.per_unit == measured.per_unit)
        Refuse("collective ", name, " of ", measured.members, " members, ", measured.per_unit,
               " in a unit, is given a second time");
    machine_.collectives.push_back(std::move(measured));
  }

  double Number(const std::string& what, double least, double most, bool whole = false) {
    std::string word;
    if (!(words_ >> word)) Refuse(what, " has no number");
    std::istringstream text(word);
    double number = 0;
    std::string rest;
    if (!(text >> number) || text >> rest || !std::isfinite(number) ||
        (whole && number != std::floor(number)))
      Refuse(what, " is '", word, "', which is no ", whole ? "whole " : "", "number");
    if (number < least || number > most)
      Refuse(what, " is ", word, ", must be ", least == kSmallest ? "more than 0" : Cat("at least ", least),
             " and at most ", most);
    return number;
  }

  void Check() const {
    for (const char* key : {"memory_bandwidth", "flops_fp32", "flops_16bit"})
      if (known_.count(key) == 0) Fail("topology file '", path_, "' does not say ", key);
    if (machine_.topology.links.empty())
      Fail("topology file '", path_, "' has no level, which says what joins its devices");
  }

  static constexpr double kSmallest = 1e-12, kLargest = 1e30;
  const std::string path_;
  std::istringstream words_;  // of the line, still to be read
  int line_ = 0;
  std::set<std::string> known_;
  DescribedMachine machine_;
};

}  // namespace

DescribedMachine ReadTopology(const std::string& path) { return TopologyFile(path).Read(); }

}  // namespace oneflow_like
