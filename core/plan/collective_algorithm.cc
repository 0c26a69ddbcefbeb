#include "core/plan/collective_algorithm.h"

#include <algorithm>
#include <map>

namespace oneflow_like {
namespace {

// Positions in `among` from the root's on, round about.
std::vector<int> RoundFrom(const std::vector<int>& among, int root) {
  std::vector<int> round(among.size());
  const auto at = std::find(among.begin(), among.end(), root) - among.begin();
  for (size_t i = 0; i < round.size(); ++i) round[i] = static_cast<int>((at + i) % round.size());
  return round;
}

// The first of [first, end) of the round is the root of the others: neighbours stay together, so that few
// steps leave a unit.
void TreeBelow(const std::vector<int>& round, const std::vector<int>& among, size_t first, size_t end,
               std::vector<int>* way) {
  const size_t middle = first + 1 + (end - first) / 2;
  for (const auto& [from, to] : {std::pair{first + 1, std::min(middle, end)}, {middle, end}}) {
    if (from >= to) continue;
    (*way)[round[from]] = among[round[first]];
    TreeBelow(round, among, from, to, way);
  }
}

// In each unit one speaks for the others: who stands in it as the root does in its own, so that the shares of
// a unit's members go over the links of different members.
void TwoLevelWay(const std::vector<int>& unit, const std::vector<int>& among, int root,
                 std::vector<int>* way) {
  std::map<int, int> size;
  std::vector<int> place(unit.size());
  for (size_t i = 0; i < unit.size(); ++i) place[i] = size[unit[i]]++;
  const auto turn = [&](int i) {
    const int of = size[unit[i]];
    return (place[i] - place[root] % of + of) % of;
  };
  std::map<int, int> speaker;
  for (int i : among) {
    auto [at, fresh] = speaker.try_emplace(unit[i], i);
    if (!fresh && turn(i) < turn(at->second)) at->second = i;
  }
  for (size_t i = 0; i < among.size(); ++i) {
    const int speaks = speaker[unit[among[i]]];
    (*way)[i] = speaks == among[i] ? root : speaks;
  }
}

}  // namespace

const char* Name(CollectiveAlgorithm algorithm) {
  static const char* const names[] = {"direct", "two_trips", "ring", "tree", "two_level", "star"};
  return names[static_cast<int>(algorithm)];
}

bool ParseCollectiveAlgorithm(const std::string& name, CollectiveAlgorithm* algorithm) {
  for (CollectiveAlgorithm a : kCollectiveAlgorithms)
    if (name == Name(a)) {
      *algorithm = a;
      return true;
    }
  return false;
}

std::vector<int> WayTo(CollectiveAlgorithm algorithm, const std::vector<int>& unit,
                       const std::vector<int>& among, int root) {
  std::vector<int> way(among.size(), root);
  const std::vector<int> round = RoundFrom(among, root);
  switch (algorithm) {
    case CollectiveAlgorithm::kDirect:
    case CollectiveAlgorithm::kTwoTrips:
      break;
    case CollectiveAlgorithm::kRing:
      for (size_t i = 0; i < round.size(); ++i) way[round[i]] = among[round[(i + 1) % round.size()]];
      break;
    case CollectiveAlgorithm::kTree:
      TreeBelow(round, among, 0, round.size(), &way);
      break;
    case CollectiveAlgorithm::kTwoLevel:
      if (!unit.empty()) TwoLevelWay(unit, among, root, &way);
      break;
    case CollectiveAlgorithm::kStar:
      for (size_t i = 1; i < among.size(); ++i) way[i] = among[0];
      break;
  }
  way[round[0]] = -1;
  return way;
}

}  // namespace oneflow_like
