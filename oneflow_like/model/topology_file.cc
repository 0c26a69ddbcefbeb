// Reads and writes topology files: words and numbers, a fact a line.
#include "oneflow_like/model/topology_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <locale>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "core/system/file_check.h"
#include "core/system/text_lines.h"

namespace oneflow_like {
namespace {

std::string AmountNames() {
  std::string names;
  for (const NamedAmount& amount : kAmounts) names += Cat(", ", amount.name);
  return names;
}

class TopologyFile {
 public:
  explicit TopologyFile(const std::string& path) : path_(path) {}

  Machine Read() {
    constexpr int64_t kMost = 16 << 20;
    if (const std::string why = WhyNotReadable(path_, kMost); !why.empty())
      Fail("topology file '", path_, "' cannot be read: ", why, "; examples/topologies has some");
    std::ifstream in(path_);
    if (!in) Fail("topology file '", path_, "' cannot be read; examples/topologies has some");
    machine_.topology.links.clear();
    machine_.overhead = 0;
    TextLines lines(in, path_);
    for (std::string line; lines.Next(&line);) {
      line_ = lines.number();
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
    if (key == "host") return ReadHost();
    if (key == "collective") return ReadCollective();
    if (key == "kernel") return ReadKernel();
    if (!known_.insert(key).second) Refuse(key, " is given a second time");
    Efficiency& e = machine_.efficiency;
    const std::map<std::string, double*> numbers = {
        {"memory_bytes", &machine_.memory_bytes}, {"memory_bandwidth", &machine_.topology.memory_bandwidth},
        {"flops_fp32", &machine_.flops},          {"flops_tf32", &machine_.tf32_flops},
        {"flops_16bit", &machine_.narrow_flops},  {"overhead", &machine_.overhead},
        {"product_efficiency", &e.product},       {"attention_efficiency", &e.attention},
        {"half_extent", &e.half_extent},          {"message", &machine_.message},
        {"process_work", &machine_.process_work}, {"process_message", &machine_.process_message},
        {"cache_bytes", &machine_.cache_bytes}};
    if (key == "device") {
      if (!(words_ >> machine_.name)) Refuse("device has no name");
    } else if (key == "threads") {
      machine_.threads = static_cast<int>(Number(key, 1, 4096, true));
    } else if (auto number = numbers.find(key); number != numbers.end()) {
      const bool part = key.ends_with("_efficiency"),
                 may_be_zero = key == "overhead" || key == "half_extent" || key.ends_with("message");
      *number->second = key == "memory_bytes" || key == "cache_bytes"
                            ? Number(key, 1, 1e18)
                            : Number(key, may_be_zero ? 0 : kSmallest, part ? 1 : kLargest);
    } else if (key == "crowded_work" || key == "core_turn") {
      Refuse(key, " is a fact of earlier versions, as threads now share cores evenly; remove the line, or ",
             "calibrate again");
    } else {
      std::string all = "device, threads, level, host, collective, kernel";
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

  // host latency S bandwidth B
  void ReadHost() {
    if (machine_.host.known) Refuse("host is given a second time");
    HostLink host{.latency = -1, .bandwidth = -1, .known = true};
    for (std::string word; words_ >> word;) {
      if (word != "latency" && word != "bandwidth")
        Refuse("'", word, "' is not known of host; write host latency SECONDS bandwidth BYTES_PER_SECOND");
      if (word == "latency")
        host.latency = Number("latency of host", 0, 1e3);
      else
        host.bandwidth = Number("bandwidth of host", kSmallest, kLargest);
    }
    if (host.latency < 0 || host.bandwidth < 0) Refuse("host needs latency and bandwidth");
    machine_.host = host;
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

  // kernel NAME TYPE [threads N [crowded]] [overlap] call S flop S byte S [left S right S ...]
  void ReadKernel() {
    MeasuredKernel kernel;
    std::string type, word;
    if (!(words_ >> kernel.name >> type))
      Refuse(
          "kernel needs an operator and a type; write kernel NAME TYPE call S flop S byte S, of a host's "
          "cores threads N behind the type, and crowded behind N where all cores were busy");
    const std::string who = Cat("kernel ", kernel.name);
    if (!ParseDType(type, &kernel.dtype) || !IsFloating(kernel.dtype))
      Refuse(who, " is of type '", type, "', which is none of f32, bf16, f16");
    std::set<std::string> given;
    kernel.threads = 0;
    while (words_ >> word) {
      if (word == "crowded") {
        kernel.crowded = true;
      } else if (word == "overlap") {
        kernel.overlap = true;
      } else if (word == "threads") {
        kernel.threads = static_cast<int>(Number("threads of " + who, 1, 4096, true));
      } else {
        const auto amount = std::find_if(std::begin(kAmounts), std::end(kAmounts),
                                         [&](const NamedAmount& known) { return word == known.name; });
        if (amount == std::end(kAmounts))
          Refuse("'", word, "' is not known of a kernel; there are threads, crowded, overlap", AmountNames());
        if (!given.insert(word).second) Refuse(who, " is given ", word, " a second time");
        kernel.each.*amount->value = Number(Cat(word, " of ", who), 0, 1e6);
      }
    }
    if (kernel.threads == 0 && kernel.crowded) Refuse(who, " lacks threads, as cores are crowded");
    for (const NamedAmount& amount : kAmounts)
      if (amount.of_all && given.count(amount.name) == 0) Refuse(who, " lacks ", amount.name);
    for (const MeasuredKernel& other : machine_.kernels)
      if (other.name == kernel.name && other.dtype == kernel.dtype && other.threads == kernel.threads &&
          other.crowded == kernel.crowded)
        Refuse(who, " ", type, kernel.threads > 0 ? Cat(" of ", kernel.threads, " threads") : "",
               kernel.crowded ? ", crowded," : "", " is given a second time");
    machine_.kernels.push_back(std::move(kernel));
  }

  double Number(const std::string& what, double least, double most, bool whole = false) {
    std::string word;
    if (!(words_ >> word)) Refuse(what, " has no number");
    std::istringstream text(word);
    text.imbue(std::locale::classic());
    double number = 0;
    std::string rest;
    if (!(text >> number) || text >> rest || !std::isfinite(number) ||
        (whole && number != std::floor(number)))
      Refuse(what, " is '", word, "', which is no ", whole ? "whole " : "", "number");
    if (number < least || number > most)
      Refuse(what, " is ", word, ", must be at least ", least, " and at most ", most);
    return number;
  }

  void Check() const {
    for (const char* key : {"memory_bandwidth", "flops_fp32", "flops_16bit"})
      if (known_.count(key) == 0) Fail("topology file '", path_, "' does not say ", key);
    if (machine_.threads > 0 && machine_.tf32_flops > 0)
      Fail("topology file '", path_, "' describes a host of ", machine_.threads,
           " cores, which do not round to TF32; leave out flops_tf32");
    if (machine_.topology.links.empty())
      Fail("topology file '", path_, "' has no level, which says what joins its devices");
    for (const MeasuredKernel& kernel : machine_.kernels) {
      if (kernel.threads > 0 && machine_.threads == 0)
        Fail("topology file '", path_, "' has kernels of a host's cores (kernel ", kernel.name,
             "), and does not say threads, how many cores there are");
      if (kernel.threads == 0 && machine_.threads > 0)
        Fail("topology file '", path_, "' describes a host of ", machine_.threads, " cores, and kernel ",
             kernel.name, " lacks threads, of how many its time is");
    }
  }

  static constexpr double kSmallest = 1e-12, kLargest = 1e30;
  const std::string path_;
  std::istringstream words_;  // of the line, still to be read
  int line_ = 0;
  std::set<std::string> known_;
  Machine machine_;
};

}  // namespace

Machine ReadTopology(const std::string& path) { return TopologyFile(path).Read(); }

std::string TopologyText(const Machine& machine) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  const auto number = [](double value) {  // the fewest digits that are read back as the same number
    char digits[32];
    return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  };
  const auto fact = [&](const char* key, double value) { text << key << " " << number(value) << "\n"; };
  if (!machine.name.empty()) text << "device " << machine.name << "\n";
  if (machine.memory_bytes > 0) fact("memory_bytes", machine.memory_bytes);
  fact("memory_bandwidth", machine.topology.memory_bandwidth);
  fact("flops_fp32", machine.flops);
  if (machine.tf32_flops > 0) fact("flops_tf32", machine.tf32_flops);
  fact("flops_16bit", machine.narrow_flops);
  fact("overhead", machine.overhead);
  fact("product_efficiency", machine.efficiency.product);
  fact("attention_efficiency", machine.efficiency.attention);
  fact("half_extent", machine.efficiency.half_extent);
  if (machine.threads > 0) text << "threads " << machine.threads << "\n";
  fact("message", machine.message);
  fact("process_message", machine.process_message);
  fact("process_work", machine.process_work);
  if (machine.cache_bytes > 0) fact("cache_bytes", machine.cache_bytes);
  if (machine.host.known)
    text << "host latency " << number(machine.host.latency) << " bandwidth " << number(machine.host.bandwidth)
         << "\n";
  for (size_t l = 0; l < machine.topology.links.size(); ++l) {
    const Topology::Link& link = machine.topology.links[l];
    text << "level " << (l == 0 ? "inside" : Cat("outside", l)) << " devices " << link.devices << " latency "
         << number(link.latency) << " bandwidth " << number(link.bandwidth)
         << (l < machine.shared.size() && machine.shared[l] ? " shared" : "") << "\n";
  }
  for (const MeasuredCollective& c : machine.collectives) {
    text << "collective " << Name(c.primitive) << " members " << c.members << " per_unit " << c.per_unit;
    for (const auto& [bytes, seconds] : c.points) text << " " << number(bytes) << ":" << number(seconds);
    text << "\n";
  }
  for (const MeasuredKernel& k : machine.kernels) {
    text << "kernel " << k.name << " " << Name(k.dtype);
    if (k.threads > 0) text << " threads " << k.threads;
    if (k.crowded) text << " crowded";
    if (k.overlap) text << " overlap";
    for (const NamedAmount& amount : kAmounts)
      if (k.each.*amount.value != 0 || amount.of_all)
        text << " " << amount.name << " " << number(k.each.*amount.value);
    text << "\n";
  }
  return text.str();
}

void RequireDevices(const Machine& machine, int devices) {
  const int joined = machine.topology.links.back().devices;
  if (joined != 0 && joined < devices)
    Fail("the topology joins ", joined, " devices but the mesh has ", devices,
         "; take a smaller mesh, or a topology whose outermost level has more devices");
}

}  // namespace oneflow_like
