// Follows every part of the tensor along its ways and adds up what each link carries.
#include "sbp/collective_cost.h"

#include <glog/logging.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "core/error.h"

namespace oneflow_like {
namespace {

constexpr Primitive kChosenFor[] = {Primitive::kAllReduce, Primitive::kReduceScatter, Primitive::kAllGather,
                                    Primitive::kBroadcast};

// A part of the tensor: where it is summed, or who has it, and which of the two phases it has.
struct Part {
  int root = 0;
  double share = 0;
  bool up = false, down = false;
};

std::vector<Part> PartsOf(Primitive primitive, CollectiveAlgorithm algorithm,
                          const std::vector<Participant>& group) {
  const bool reduces = primitive != Primitive::kAllGather && primitive != Primitive::kBroadcast;
  const bool hands_out = primitive != Primitive::kReduceScatter;
  const bool all_reduce = reduces && hands_out;
  if (primitive == Primitive::kBroadcast || (all_reduce && algorithm == CollectiveAlgorithm::kStar))
    return {{0, 1, reduces, hands_out}};
  double members = 0;
  for (const Participant& p : group) members += p.members;
  std::vector<Part> parts;
  for (size_t i = 0; i < group.size(); ++i) {
    const bool whole = all_reduce && algorithm == CollectiveAlgorithm::kDirect;
    parts.push_back(
        {static_cast<int>(i), whole ? 1 : group[i].members / members, reduces, hands_out && !whole});
  }
  return parts;
}

// The links of a group, and what they carry in one phase.
class Traffic {
 public:
  Traffic(const std::vector<Participant>& group, const LinkLevels& levels, const std::vector<double>& beside)
      : group_(group), levels_(levels), beside_(beside) {
    const auto [low, high] = std::minmax_element(group.begin(), group.end());
    used_ = 1 + static_cast<size_t>(levels.LevelJoining(low->device, high->device));
    for (size_t level = 0; level < used_; ++level) {
      const int inside = level == 0 ? 1 : std::max(1, levels.topology.links[level - 1].devices);
      std::map<int64_t, int> number;
      for (size_t i = 0; i < group.size(); ++i) {
        const int64_t unit = levels.IsShared(level) ? group[i].device / inside : static_cast<int64_t>(i);
        link_of_.push_back(number.try_emplace(unit, static_cast<int>(number.size())).first->second);
      }
    }
    carried_.resize(2 * link_of_.size());
  }

  size_t levels() const { return used_; }
  int LevelOf(int from, int to) const { return levels_.LevelJoining(group_[from].device, group_[to].device); }
  double LatencyOf(int level) const { return levels_.topology.links[level].latency; }

  void Send(int from, int to, int level, double share) {
    carried_[2 * At(level, from)] += share;
    carried_[2 * At(level, to) + 1] += share;
  }
  // Seconds for each byte of the tensor, by level; then nothing is carried.
  void AddBusiest(std::vector<double>* seconds) {
    for (size_t level = 0; level < used_; ++level) {
      double busiest = 0;
      for (size_t i = 0; i < group_.size(); ++i) {
        const double together = levels_.IsShared(level) ? 1 / Beside(level) : group_[i].members;
        for (int direction : {0, 1})
          busiest = std::max(
              busiest, carried_[2 * At(static_cast<int>(level), static_cast<int>(i)) + direction] / together);
      }
      (*seconds)[level] += busiest / levels_.topology.links[level].bandwidth;
    }
    std::fill(carried_.begin(), carried_.end(), 0.0);
  }

 private:
  size_t At(int level, int participant) const {
    const size_t first = level * group_.size();
    return first + link_of_[first + participant];
  }
  double Beside(size_t level) const { return level < beside_.size() ? beside_[level] : 1; }

  const std::vector<Participant>& group_;
  const LinkLevels& levels_;
  const std::vector<double>& beside_;
  size_t used_ = 1;
  std::vector<int> link_of_;     // by level and participant
  std::vector<double> carried_;  // by level and link: out, in
};

// The longest sum of latencies on a way to the root, of which `way` gives the next and `step` the latency.
double Longest(const std::vector<int>& way, const std::vector<double>& step) {
  std::vector<double> known(way.size(), -1);
  double longest = 0;
  std::vector<int> path;
  for (size_t i = 0; i < way.size(); ++i) {
    int at = static_cast<int>(i);
    for (; at >= 0 && known[at] < 0; at = way[at]) path.push_back(at);
    double latency = at < 0 ? 0 : known[at];
    for (; !path.empty(); path.pop_back()) known[path.back()] = latency += step[path.back()];
    longest = std::max(longest, known[i]);
  }
  return longest;
}

AlgorithmCost CostOf(CollectiveAlgorithm algorithm, int unit, const std::vector<Part>& parts,
                     const std::vector<Participant>& group, const LinkLevels& levels, Traffic* traffic) {
  AlgorithmCost cost;
  cost.algorithm = algorithm;
  cost.unit = unit;
  cost.links.assign(traffic->levels(), 0);
  const int n = static_cast<int>(group.size());
  std::vector<int> all(n), units;
  std::iota(all.begin(), all.end(), 0);
  for (const Participant& p : group)
    if (unit > 0) units.push_back(static_cast<int>(p.device / unit));
  std::vector<double> added(n, 0), step(n, 0);
  for (const bool up : {true, false}) {
    double latency = 0;
    for (const Part& part : parts) {
      if (!(up ? part.up : part.down)) continue;
      const std::vector<int> way = WayTo(algorithm, units, all, part.root);
      for (int i = 0; i < n; ++i) {
        step[i] = 0;
        if (way[i] < 0) continue;
        const int level = traffic->LevelOf(i, way[i]);
        step[i] = traffic->LatencyOf(level);
        up ? traffic->Send(i, way[i], level, part.share) : traffic->Send(way[i], i, level, part.share);
        if (up) added[way[i]] += part.share;
      }
      latency = std::max(latency, Longest(way, step));
    }
    cost.latency += latency;
    traffic->AddBusiest(&cost.links);
  }
  cost.sums = *std::max_element(added.begin(), added.end()) / levels.topology.memory_bandwidth;
  return cost;
}

// Units of a level that divide the group: several, of which one at least has several participants.
bool Divides(int unit, const std::vector<Participant>& group) {
  std::set<int64_t> units;
  for (const Participant& p : group) units.insert(p.device / std::max(1, unit));
  return unit > 0 && units.size() > 1 && units.size() < group.size();
}

}  // namespace

double AlgorithmCost::seconds(double bytes) const {
  double busiest = 0;
  for (double link : links) busiest = std::max(busiest, link);
  return latency + bytes * (sums + busiest);
}

bool HasAlgorithm(Primitive primitive, CollectiveAlgorithm algorithm) {
  if (std::find(std::begin(kChosenFor), std::end(kChosenFor), primitive) == std::end(kChosenFor))
    return false;
  if (algorithm == CollectiveAlgorithm::kTwoTrips) return primitive == Primitive::kAllReduce;
  return algorithm != CollectiveAlgorithm::kStar || primitive != Primitive::kBroadcast;
}

std::vector<AlgorithmCost> CostsOfCollective(Primitive primitive, const std::vector<Participant>& group,
                                             const LinkLevels& levels, const std::vector<double>& beside) {
  std::vector<AlgorithmCost> costs;
  if (group.size() < 2) return costs;
  Traffic traffic(group, levels, beside);
  for (CollectiveAlgorithm algorithm : kCollectiveAlgorithms) {
    if (!HasAlgorithm(primitive, algorithm)) continue;
    const std::vector<Part> parts = PartsOf(primitive, algorithm, group);
    if (algorithm != CollectiveAlgorithm::kTwoLevel) {
      costs.push_back(CostOf(algorithm, 0, parts, group, levels, &traffic));
      continue;
    }
    for (size_t level = 0; level + 1 < traffic.levels(); ++level)
      if (const int unit = levels.topology.links[level].devices; Divides(unit, group))
        costs.push_back(CostOf(algorithm, unit, parts, group, levels, &traffic));
  }
  return costs;
}

WantedAlgorithms ParseWantedAlgorithms(const std::string& text, const std::string& who) {
  WantedAlgorithms wanted;
  std::string names;
  for (CollectiveAlgorithm a : kCollectiveAlgorithms) names += Cat(names.empty() ? "" : ", ", Name(a));
  std::stringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const size_t colon = item.find(':');
    const std::string name = colon == std::string::npos ? item : item.substr(colon + 1);
    CollectiveAlgorithm algorithm;
    if (!ParseCollectiveAlgorithm(name, &algorithm))
      Fail(who, ": '", name, "' is no algorithm of collectives; there are ", names);
    std::string kinds;
    bool known = false;
    for (Primitive p : kChosenFor) {
      kinds += Cat(kinds.empty() ? "" : ", ", Name(p));
      if (colon != std::string::npos && item.substr(0, colon) != Name(p)) continue;
      known = true;
      if (colon != std::string::npos && !HasAlgorithm(p, algorithm))
        Fail(who, ": ", Name(p), " cannot be done by ", name);
      if (HasAlgorithm(p, algorithm) && !wanted.emplace(p, algorithm).second)
        Fail(who, ": ", Name(p), " is given two algorithms, ", Name(wanted[p]), " and ", name);
    }
    if (!known)
      Fail(who, ": '", item.substr(0, colon), "' is no collective with algorithms of its own; there are ",
           kinds);
  }
  if (!text.empty() && (text.back() == ',' || wanted.empty()))
    Fail(who, ": a name is missing; write one of ", names, ", or all_reduce:ring,all_gather:direct");
  return wanted;
}

std::string ToText(const WantedAlgorithms& wanted) {
  std::string text;
  for (const auto& [primitive, algorithm] : wanted)
    text += Cat(text.empty() ? "" : ",", Name(primitive), ":", Name(algorithm));
  return text;
}

const AlgorithmCost& Choose(const std::vector<AlgorithmCost>& costs, double bytes,
                            std::optional<CollectiveAlgorithm> wanted) {
  CHECK(!costs.empty());
  const bool there = wanted && std::any_of(costs.begin(), costs.end(),
                                           [&](const AlgorithmCost& c) { return c.algorithm == *wanted; });
  const AlgorithmCost* best = nullptr;
  for (const AlgorithmCost& cost : costs) {
    if (there && cost.algorithm != *wanted) continue;
    // Equal but for rounding: the first.
    if (best == nullptr || cost.seconds(bytes) < best->seconds(bytes) * (1 - 1e-9)) best = &cost;
  }
  return *best;
}

}  // namespace oneflow_like
