// Members that each take one of their choices, such that the sum of costs is least: costs of choices, and of
// pairs of choices of two members. Pure numbers; no graph.
#pragma once

#include <cstdint>
#include <vector>

namespace oneflow_like {

class ChoiceNetwork {
 public:
  // The member's number; `costs` of its choices, at least one.
  int AddMember(std::vector<double> costs);
  // Adds costs of pairs: [choice of a][choice of b], row by row. REQUIRES: a and b differ.
  void AddPair(int a, int b, std::vector<double> costs);

  int members() const { return static_cast<int>(costs_.size()); }
  double CostOf(const std::vector<int>& picks) const;

  // A choice for each member. Members are eliminated one after another (Bertele and Brioschi 1972), which is
  // exact as long as no table needs more than `most_entries`. Where one would, some members are held to what
  // they have, the others are chosen exactly, and others are held in the next round; the rounds end when they
  // gain nothing. Members with the same surroundings, as those of repeated blocks, share one choice at first;
  // what counts as surroundings grows, and in the end each takes its own. The same on every machine: limits
  // count entries and rounds.
  std::vector<int> Solve(int64_t most_entries = 1 << 16) const;

 private:
  struct Pair {
    int a, b;
    std::vector<double> costs;
  };
  friend class Elimination;

  std::vector<int> Kinds(int steps) const;
  ChoiceNetwork OfKinds(const std::vector<int>& kinds) const;
  std::vector<int> Improved(std::vector<int> picks) const;
  std::vector<int> BestFrom(std::vector<int> picks, int64_t most_entries) const;

  std::vector<std::vector<double>> costs_;
  std::vector<Pair> pairs_;
};

}  // namespace oneflow_like
