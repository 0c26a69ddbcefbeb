#include "compiler/search/choice_network.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/hash_bytes.h"

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
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step)
      (*picks)[step->member] = BestOf(*step, *picks);
    return count;
  }

 private:
  // Costs of choices of the members in `scope`, the last one's side by side.
  struct Factor {
    std::vector<int> scope;
    std::vector<double> costs;
  };
  // An eliminated member, and the factors that it was in.
  struct Step {
    int member;
    std::vector<Factor> factors;
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

  // Where a factor's costs are as choices of a scope run.
  struct Cursor {
    const double* costs;
    std::vector<size_t> strides;  // by place in the scope
    size_t own = 0;               // the stride of the eliminated member
    size_t end = 0;               // behind the last place that has a stride
    size_t at = 0;
  };

  Cursor CursorOf(const Factor& factor, int member, const std::vector<int>& scope) const {
    Cursor cursor{factor.costs.data(), std::vector<size_t>(scope.size(), 0)};
    size_t stride = 1;
    for (auto m = factor.scope.rbegin(); m != factor.scope.rend(); ++m) {
      if (*m == member) {
        cursor.own = stride;
      } else {
        const size_t place = std::find(scope.begin(), scope.end(), *m) - scope.begin();
        cursor.strides[place] = stride;
        cursor.end = std::max(cursor.end, place + 1);
      }
      stride *= extents_[*m];
    }
    return cursor;
  }

  // Fills the table of a scope that is not empty: for its members' choices the least sum of all cursors that
  // a choice of the eliminated member gives. Costs that do not change with the scope's last members
  // are summed before they run.
  class Table {
   public:
    Table(std::vector<int> extents, std::vector<Cursor> cursors, int choices, double* to)
        : extents_(std::move(extents)),
          cursors_(std::move(cursors)),
          sums_(extents_.size(), std::vector<double>(choices, 0)),
          row_(extents_.back()),
          to_(to) {
      AddCursors(0, &sums_[0]);
      Fill(0);
    }

   private:
    // Those that end at the place.
    void AddCursors(size_t end, std::vector<double>* sums) const {
      for (const Cursor& cursor : cursors_)
        for (size_t c = 0; cursor.end == end && c < sums->size(); ++c)
          (*sums)[c] += cursor.costs[cursor.at + c * cursor.own];
    }

    void Fill(size_t place) {
      if (place + 1 == extents_.size()) return FillRow();
      for (int choice = 0; choice < extents_[place]; ++choice) {
        sums_[place + 1] = sums_[place];
        AddCursors(place + 1, &sums_[place + 1]);
        Fill(place + 1);
        for (Cursor& cursor : cursors_) cursor.at += cursor.strides[place];
      }
      for (Cursor& cursor : cursors_) cursor.at -= cursor.strides[place] * extents_[place];
    }

    void FillRow() {
      const size_t width = row_.size();
      double* const least = std::exchange(to_, to_ + width);
      for (size_t c = 0; c < sums_.back().size(); ++c) {
        std::fill(row_.begin(), row_.end(), sums_.back()[c]);
        for (const Cursor& cursor : cursors_) {
          if (cursor.end != extents_.size()) continue;
          const double* const costs = cursor.costs + cursor.at + c * cursor.own;
          if (const size_t stride = cursor.strides.back(); stride == 1)
            for (size_t i = 0; i < width; ++i) row_[i] += costs[i];
          else
            for (size_t i = 0; i < width; ++i) row_[i] += costs[i * stride];
        }
        for (size_t i = 0; i < width; ++i) least[i] = c == 0 ? row_[i] : std::min(least[i], row_[i]);
      }
    }

    const std::vector<int> extents_;  // by place in the scope
    std::vector<Cursor> cursors_;
    std::vector<std::vector<double>> sums_;  // by place: of cursors that end there, by the member's choice
    std::vector<double> row_;                // by the last one's choice
    double* to_;
  };

  void Eliminate(int member) {
    std::vector<int> scope(beside_[member].begin(), beside_[member].end());
    const auto widest =
        std::max_element(scope.begin(), scope.end(), [&](int a, int b) { return extents_[a] < extents_[b]; });
    if (!scope.empty()) std::rotate(widest, widest + 1, scope.end());  // long rows
    Step step{member, Take(member)};
    if (!scope.empty()) {
      std::vector<int> extents;
      std::vector<Cursor> cursors;
      size_t entries = 1;
      for (int m : scope) extents.push_back(extents_[m]), entries *= extents_[m];
      for (const Factor& factor : step.factors) cursors.push_back(CursorOf(factor, member, scope));
      Factor rest{scope, std::vector<double>(entries)};
      Table(std::move(extents), std::move(cursors), extents_[member], rest.costs.data());
      Add(std::move(rest));
    }
    steps_.push_back(std::move(step));
    for (size_t a = 0; a < scope.size(); ++a)
      for (size_t b = a + 1; b < scope.size(); ++b) Join(scope[a], scope[b]);
  }

  // The member's best choice, those of its neighbours given.
  int BestOf(const Step& step, const std::vector<int>& picks) const {
    int best = 0;
    double least = 0;
    for (int c = 0; c < extents_[step.member]; ++c) {
      double sum = 0;
      for (const Factor& factor : step.factors) {
        size_t at = 0;
        for (int m : factor.scope) at = at * extents_[m] + (m == step.member ? c : picks[m]);
        sum += factor.costs[at];
      }
      if (c == 0 || sum < least) least = sum, best = c;
    }
    return best;
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

// By member, the number of its kind. Members of a kind have the same costs, and the same beside them along so
// many steps (colour refinement: Weisfeiler and Leman 1968).
std::vector<int> ChoiceNetwork::Kinds(int steps) const {
  const auto hash_of = [](const auto& numbers, uint64_t before) {
    return HashOfBytes(numbers.data(), numbers.size() * sizeof(numbers[0]), before);
  };
  std::vector<uint64_t> hashes, tables;
  for (const std::vector<double>& costs : costs_) hashes.push_back(hash_of(costs, costs.size()));
  for (const Pair& pair : pairs_) tables.push_back(hash_of(pair.costs, pair.costs.size()));
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<uint64_t>> beside(costs_.size());
    for (size_t p = 0; p < pairs_.size(); ++p) {
      const auto& [a, b, costs] = pairs_[p];
      beside[a].push_back(hash_of(std::array{tables[p], hashes[b]}, /*before=*/1));
      beside[b].push_back(hash_of(std::array{tables[p], hashes[a]}, /*before=*/2));
    }
    for (size_t m = 0; m < beside.size(); ++m) {
      std::sort(beside[m].begin(), beside[m].end());
      hashes[m] = hash_of(beside[m], hashes[m]);
    }
  }
  std::vector<int> kinds;
  std::map<uint64_t, int> numbers;
  for (uint64_t hash : hashes)
    kinds.push_back(numbers.try_emplace(hash, static_cast<int>(numbers.size())).first->second);
  return kinds;
}

// The network in which the members of a kind take the same choice: a member for each kind.
ChoiceNetwork ChoiceNetwork::OfKinds(const std::vector<int>& kinds) const {
  ChoiceNetwork shared;
  const auto add = [](const std::vector<double>& costs, std::vector<double>* sums) {
    sums->resize(costs.size(), 0);
    for (size_t i = 0; i < costs.size(); ++i) (*sums)[i] += costs[i];
  };
  for (int kind : kinds) shared.costs_.resize(std::max<size_t>(shared.costs_.size(), kind + 1));
  for (int m = 0; m < members(); ++m) add(costs_[m], &shared.costs_[kinds[m]]);
  std::map<std::pair<int, int>, size_t> known;
  for (const Pair& pair : pairs_) {
    const int a = kinds[pair.a], b = kinds[pair.b];
    if (std::vector<double>& own = shared.costs_[a]; a == b) {
      for (size_t c = 0; c < own.size(); ++c) own[c] += pair.costs[c * own.size() + c];
      continue;
    }
    const auto [at, fresh] = known.try_emplace({a, b}, shared.pairs_.size());
    if (fresh) shared.pairs_.push_back({a, b, {}});
    add(pair.costs, &shared.pairs_[at->second].costs);
  }
  return shared;
}

std::vector<int> ChoiceNetwork::Solve(int64_t most_entries) const {
  std::vector<int> picks(costs_.size(), 0);
  for (int steps : {2, 4, 8}) {  // from few kinds to many
    const std::vector<int> kinds = Kinds(steps);
    const ChoiceNetwork shared = OfKinds(kinds);
    if (shared.members() == members()) break;
    std::vector<int> of_kinds(shared.members());
    for (int m = 0; m < members(); ++m) of_kinds[kinds[m]] = picks[m];
    of_kinds = shared.BestFrom(std::move(of_kinds), most_entries);
    for (int m = 0; m < members(); ++m) picks[m] = of_kinds[kinds[m]];
  }
  return BestFrom(std::move(picks), most_entries);
}

std::vector<int> ChoiceNetwork::BestFrom(std::vector<int> picks, int64_t most_entries) const {
  constexpr int kRounds = 24, kPatience = 3;
  picks = Improved(std::move(picks));
  std::vector<int> held(costs_.size(), 0);
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
