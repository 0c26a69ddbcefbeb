#include "compiler/choice_network.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace oneflow_like {

// One round: all members but those that are held, exactly.
class Elimination {
 public:
  explicit Elimination(const ChoiceNetwork& network)
      : extents_(network.costs_.size()),
        width_(network.costs_.size()),
        of_(network.costs_.size()),
        beside_(network.costs_.size()),
        key_(network.costs_.size()) {
    for (size_t m = 0; m < network.costs_.size(); ++m) {
      extents_[m] = static_cast<int>(network.costs_[m].size());
      key_[m] = width_[m] = WidthOf(extents_[m]);
      Add({{static_cast<int>(m)}, network.costs_[m]});
    }
    for (const ChoiceNetwork::Pair& pair : network.pairs_) {
      Add({{pair.a, pair.b}, pair.costs});
      Join(pair.a, pair.b);
    }
  }

  // Replaces `picks` of all members but those that are held, which `held` counts. Returns how many are.
  int Run(int64_t most_entries, std::vector<int>* picks, std::vector<int>* held) {
    for (int m = 0; m < static_cast<int>(extents_.size()); ++m)
      if (extents_[m] == 1) Fix(m, (*picks)[m] = 0);
    for (int m = 0; m < static_cast<int>(extents_.size()); ++m)
      if (extents_[m] > 1) queue_.insert({key_[m], m});
    int count = 0;
    while (!queue_.empty()) {
      const auto [width, m] = *queue_.begin();
      if (width <= WidthOf(most_entries)) {
        Eliminate(m);
        continue;
      }
      const int hold = Widest(*held);
      ++(*held)[hold];
      ++count;
      Fix(hold, (*picks)[hold]);
    }
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
      size_t at = 0;
      for (int m : step->scope) at = at * extents_[m] + (*picks)[m];
      (*picks)[step->member] = step->best[at];
    }
    return count;
  }

 private:
  // Costs of choices of the members in `scope`, the last one's side by side.
  struct Factor {
    std::vector<int> scope;
    std::vector<double> costs;
  };
  // An eliminated member: its best choice by the choices of its neighbours.
  struct Step {
    int member;
    std::vector<int> scope;
    std::vector<uint16_t> best;
  };

  void Add(Factor factor) {
    for (int m : factor.scope) of_[m].push_back(static_cast<int>(factors_.size()));
    factors_.push_back(std::move(factor));
  }

  // The size of a table in units that add up: all machines compare the same whole numbers.
  static int64_t WidthOf(int64_t extent) {
    return std::llround(65536 * std::log2(static_cast<double>(extent)));
  }

  void Join(int a, int b) {
    if (!beside_[a].insert(b).second) return;
    beside_[b].insert(a);
    SetKey(a, key_[a] + width_[b]);
    SetKey(b, key_[b] + width_[a]);
  }

  void SetKey(int member, int64_t key) {
    const bool waits = queue_.erase({key_[member], member}) > 0;
    key_[member] = key;
    if (waits) queue_.insert({key, member});
  }

  // The factors that a member is in; it and they leave the network.
  std::vector<Factor> Take(int member) {
    std::vector<Factor> taken;
    for (int f : std::exchange(of_[member], {})) {
      for (int m : factors_[f].scope)
        if (m != member) std::erase(of_[m], f);
      taken.push_back(std::move(factors_[f]));
    }
    queue_.erase({key_[member], member});
    for (int m : std::exchange(beside_[member], {})) {
      beside_[m].erase(member);
      SetKey(m, key_[m] - width_[member]);
    }
    return taken;
  }

  // The member with the most neighbours for how often it was held.
  int Widest(const std::vector<int>& held) const {
    int widest = -1;
    double most = -1;
    for (const auto& [width, m] : queue_) {
      const double each = static_cast<double>(width - width_[m]) / (1 + held[m]);
      if (each > most) most = each, widest = m;
    }
    return widest;
  }

  void Fix(int member, int choice) {
    for (const Factor& factor : Take(member)) {
      if (factor.scope.size() == 1) continue;
      Factor rest;
      size_t inner = 1;
      bool behind = false;
      for (int m : factor.scope) {
        if (m != member) rest.scope.push_back(m);
        if (behind) inner *= extents_[m];
        behind = behind || m == member;
      }
      const size_t block = inner * extents_[member];
      for (size_t outer = 0; outer < factor.costs.size(); outer += block) {
        const auto begin = factor.costs.begin() + static_cast<std::ptrdiff_t>(outer + choice * inner);
        rest.costs.insert(rest.costs.end(), begin, begin + static_cast<std::ptrdiff_t>(inner));
      }
      Add(std::move(rest));
    }
  }

  // Where a factor's costs are as the neighbours' choices run.
  struct Cursor {
    const double* costs;
    std::vector<size_t> strides;  // by neighbour
    size_t own = 0;               // the stride of the eliminated member
    size_t at = 0;
  };

  Cursor CursorOf(const Factor& factor, int member, const std::vector<int>& neighbours) const {
    Cursor cursor{factor.costs.data(), std::vector<size_t>(neighbours.size(), 0)};
    size_t stride = 1;
    for (auto m = factor.scope.rbegin(); m != factor.scope.rend(); ++m) {
      if (*m == member) {
        cursor.own = stride;
      } else {
        const auto place = std::lower_bound(neighbours.begin(), neighbours.end(), *m);
        cursor.strides[place - neighbours.begin()] = stride;
      }
      stride *= extents_[*m];
    }
    return cursor;
  }

  void Eliminate(int member) {
    const std::vector<int> neighbours(beside_[member].begin(), beside_[member].end());
    const std::vector<Factor> factors = Take(member);
    std::vector<Cursor> cursors;
    for (const Factor& factor : factors) cursors.push_back(CursorOf(factor, member, neighbours));
    size_t entries = 1;
    for (int m : neighbours) entries *= extents_[m];
    Step step{member, neighbours, std::vector<uint16_t>(entries)};
    Factor rest{neighbours, std::vector<double>(entries)};
    std::vector<int> choice(neighbours.size(), 0);
    for (size_t entry = 0; entry < entries; ++entry) {
      double least = 0;
      for (int c = 0; c < extents_[member]; ++c) {
        double sum = 0;
        for (const Cursor& cursor : cursors) sum += cursor.costs[cursor.at + c * cursor.own];
        if (c == 0 || sum < least) least = sum, step.best[entry] = static_cast<uint16_t>(c);
      }
      rest.costs[entry] = least;
      for (size_t i = neighbours.size(); i-- > 0;) {  // the next choices of the neighbours
        for (Cursor& cursor : cursors) cursor.at += cursor.strides[i];
        if (++choice[i] < extents_[neighbours[i]]) break;
        for (Cursor& cursor : cursors) cursor.at -= cursor.strides[i] * choice[i];
        choice[i] = 0;
      }
    }
    steps_.push_back(std::move(step));
    if (!neighbours.empty()) Add(std::move(rest));
    for (size_t a = 0; a < neighbours.size(); ++a)
      for (size_t b = a + 1; b < neighbours.size(); ++b) Join(neighbours[a], neighbours[b]);
  }

  std::vector<int> extents_;
  std::vector<int64_t> width_;  // WidthOf(extents_)
  std::vector<Factor> factors_;
  std::vector<std::vector<int>> of_;   // factors by member
  std::vector<std::set<int>> beside_;  // neighbours by member
  std::vector<int64_t> key_;           // by member: the width of the table that eliminates it
  std::set<std::pair<int64_t, int>> queue_;
  std::vector<Step> steps_;
};

int ChoiceNetwork::AddMember(std::vector<double> costs) {
  costs_.push_back(std::move(costs));
  return members() - 1;
}

void ChoiceNetwork::AddPair(int a, int b, std::vector<double> costs) {
  pairs_.push_back({a, b, std::move(costs)});
}

double ChoiceNetwork::CostOf(const std::vector<int>& picks) const {
  double sum = 0;
  for (size_t m = 0; m < costs_.size(); ++m) sum += costs_[m][picks[m]];
  for (const Pair& pair : pairs_) sum += pair.costs[picks[pair.a] * costs_[pair.b].size() + picks[pair.b]];
  return sum;
}

// One member after another, the others as they are.
std::vector<int> ChoiceNetwork::Improved(std::vector<int> picks) const {
  constexpr int kSweeps = 6;
  std::vector<std::vector<int>> of(costs_.size());
  for (size_t p = 0; p < pairs_.size(); ++p)
    for (int m : {pairs_[p].a, pairs_[p].b}) of[m].push_back(static_cast<int>(p));
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    bool changed = false;
    for (int m = 0; m < members(); ++m) {
      std::vector<double> sums = costs_[m];
      for (int p : of[m]) {
        const Pair& pair = pairs_[p];
        const size_t row = costs_[pair.b].size();
        for (size_t c = 0; c < sums.size(); ++c)
          sums[c] += pair.a == m ? pair.costs[c * row + picks[pair.b]] : pair.costs[picks[pair.a] * row + c];
      }
      const int best = static_cast<int>(std::min_element(sums.begin(), sums.end()) - sums.begin());
      if (sums[best] >= sums[picks[m]]) continue;
      picks[m] = best;
      changed = true;
    }
    if (!changed) break;
  }
  return picks;
}

std::vector<int> ChoiceNetwork::Solve(int64_t most_entries) const {
  constexpr int kRounds = 24, kPatience = 3;
  std::vector<int> picks = Improved(std::vector<int>(costs_.size(), 0)), held(costs_.size(), 0);
  double least = CostOf(picks);
  for (int round = 0, since = 0; round < kRounds && since < kPatience; ++round, ++since) {
    std::vector<int> now = picks;
    const int holds = Elimination(*this).Run(most_entries, &now, &held);
    const double cost = CostOf(now);
    if (cost < least * (1 - 1e-9)) since = -1;
    if (cost < least) least = cost, picks = std::move(now);
    if (holds == 0) break;
  }
  return picks;
}

}  // namespace oneflow_like
