// Compiles plans of one lowered graph that differ in how values wait for their gradients, each once, and
// keeps the time and memory of each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "compiler/plan/decisions.h"

namespace oneflow_like {

// What each of the regions left open does, in the order of CandidatePool::regions.
using Assignment = std::vector<Recompute>;
// Bytes that a rank needs in addition to its plan.
using BytesBeside = std::function<int64_t(const plan::Plan&)>;

struct Candidate {
  Assignment assignment;
  double seconds = 0;          // estimated, of a step
  std::vector<int64_t> bytes;  // by stage, of its first rank
  int64_t peak = 0;            // the largest of these
};

class CandidatePool {
 public:
  // `graph` is one that is lowered and fused. `beside` may be empty.
  CandidatePool(Graph graph, CompileOptions options, BytesBeside beside);

  // Compiles those that are not known yet, in parallel.
  void Add(const std::vector<Assignment>& assignments);
  // Adds the first candidate, which keeps most, and returns what it was compiled to.
  Compiled AddFirst();
  // The graph, with a choice for each region.
  Graph GraphWith(const Assignment& assignment) const;
  Waits WaitsOf(const Assignment& assignment) const;

  const Graph& graph() const { return graph_; }
  const CompileOptions& options() const { return options_; }
  // Those with Recompute::kAuto, in the order in which the forward pass comes to them.
  const std::vector<std::string>& regions() const { return regions_; }
  // The modes that a search may give to a region, ordered from the one that keeps most to the one that keeps
  // least. Modes that repeat messages are left out if repeating frees no memory, or if
  // Training::gather_again is false; if it is true, modes that could repeat messages and do not are left out.
  // The last one, of values that wait on the host, is open on machines that say how fast copies are.
  const std::vector<Recompute>& modes() const { return modes_; }
  const std::vector<int>& ranks() const { return ranks_; }  // the first of each stage
  const std::vector<Candidate>& all() const { return all_; }
  const Candidate& Of(const Assignment& a) const { return all_[index_.at(a)]; }
  size_t size() const { return all_.size(); }
  bool Knows(const Assignment& a) const { return index_.count(a) != 0; }

  // Returns bytes by rank; on a large mesh, for the first rank of each stage only.
  const std::map<int, int64_t>& BytesOfRanks(const Candidate& candidate) const;
  int64_t PeakOfAllRanks(const Candidate& candidate) const;

 private:
  std::vector<Recompute> OpenModes() const;
  bool SendsAgain() const;  // whether there are messages to repeat
  Compiled CompileWith(const Assignment& assignment) const;
  int64_t BytesOf(const plan::Plan& plan) const;
  void Judge(const Compiled& compiled, Candidate* candidate) const;

  const Graph graph_;
  const CompileOptions options_;
  const BytesBeside beside_;
  const PlanDetail detail_;
  const std::vector<std::string> regions_;
  const std::vector<Recompute> modes_;
  std::vector<int> ranks_;
  std::vector<Candidate> all_;
  std::map<Assignment, int64_t> index_;
  mutable std::map<Assignment, std::map<int, int64_t>> of_ranks_;
};

}  // namespace oneflow_like
