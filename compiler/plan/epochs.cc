#include "compiler/plan/epochs.h"

#include <algorithm>
#include <set>

namespace oneflow_like {

namespace {

constexpr int kNoEpoch = 1 << 30;

// Nodes that read a variable, itself or a view of it, or write it.
std::vector<int> UsersOf(const Graph& graph, const std::vector<int>& order, const std::vector<int>& root,
                         int variable) {
  std::vector<int> users;
  const auto is = [&](int v) { return root[v] == variable; };
  for (int n : order) {
    const Node& node = graph.node(n);
    if (Runs(graph, n) && (std::any_of(node.in.begin(), node.in.end(), is) ||
                           std::any_of(node.out.begin(), node.out.end(), is)))
      users.push_back(n);
  }
  return users;
}

// Nodes from which one of `from` is reached, or the other way round.
std::set<int> Reached(const std::vector<int>& from, const std::vector<std::vector<Dependency>>& next) {
  std::set<int> reached(from.begin(), from.end());
  std::vector<int> todo = from;
  while (!todo.empty()) {
    const int n = todo.back();
    todo.pop_back();
    for (auto [m, whole] : next[n])
      if (reached.insert(m).second) todo.push_back(m);
  }
  return reached;
}

// `users`: of a variable that each micro-batch writes.
[[noreturn]] void RefuseWholeWithin(const Graph& graph, const Dependencies& waits,
                                    const std::vector<int>& root, const std::vector<int>& users) {
  const std::set<int> behind = Reached(users, waits.after), ahead = Reached(users, waits.before);
  int writer = users.back();
  for (int n : users)
    if (graph.WritesEach(n)) writer = n;
  const std::string& variable = graph.producer(root[graph.node(writer).out[0]]).name;
  for (int n : ahead)
    for (auto [b, whole] : waits.before[n])
      if (whole && behind.count(b))
        Fail(graph.DescribeForUser(writer), ": variable '", variable, "' is written in each of ",
             graph.times(), " micro-batches, but between a reader of it and this stands ",
             graph.DescribeForUser(graph.value(graph.node(b).in[0]).producer),
             ", which is of the whole batch; use micro_batch_sum or micro_batch_mean there, or leave out "
             "each_micro_batch");
  Fail(graph.DescribeForUser(writer), ": variable '", variable,
       "' is read within micro-batches and once for all of them; leave out each_micro_batch");
}

// Makes nodes that are not settled as early as what they wait for allows; returns the last epoch of these.
int MakeEarly(const Dependencies& waits, const std::vector<bool>& settled, std::vector<int>* epoch) {
  int last = 0;
  for (int n : waits.order) {
    if (settled[n]) continue;
    for (auto [b, whole] : waits.before[n]) (*epoch)[n] = std::max((*epoch)[n], (*epoch)[b] + whole);
    last = std::max(last, (*epoch)[n]);
  }
  return last;
}

// Gives the nodes the latest epoch that one of them has. False: they all had it.
bool JoinEpochs(const std::vector<int>& nodes, std::vector<int>* epoch) {
  int last = 0;
  for (int n : nodes) last = std::max(last, (*epoch)[n]);
  bool changed = false;
  for (int n : nodes) {
    changed = changed || (*epoch)[n] < last;
    (*epoch)[n] = last;
  }
  return changed;
}

// Whether a node does a part of the work on each micro-batch.
bool WorksOnEach(const Graph& graph, int n, Phase part) {
  const Node& node = graph.node(n);
  return Runs(graph, n) && !IsEnd(node) && node.rate != Rate::kOnce && node.phase != Phase::kUpdate &&
         IsGradient(node.phase) == IsGradient(part);
}

// Nodes that end in writes of variables, in each micro-batch, and that nothing else waits for: where they
// lie on an earlier stage, that makes no chunk of it.
std::vector<bool> LeadToWrites(const Graph& graph, const Dependencies& waits) {
  std::vector<bool> lead(graph.num_nodes(), false);
  for (auto it = waits.order.rbegin(); it != waits.order.rend(); ++it) {
    const auto& readers = waits.after[*it];
    lead[*it] =
        WorksOnEach(graph, *it, Phase::kForward) && (graph.WritesEach(*it) || !readers.empty()) &&
        std::all_of(readers.begin(), readers.end(), [&](const Dependency& r) { return lead[r.node]; });
  }
  return lead;
}

// The chunk of gradient `n`; `last`: of the forward pass.
int ChunkOfGradient(const Graph& graph, const Dependencies& waits, const std::vector<int>& chunk, int n,
                    int last) {
  const Slice& slice = graph.node(n).slice;
  int of_gradients = last + 1, of_forward = -1;
  for (auto [b, whole] : waits.before[n]) {
    const Slice& from = graph.node(b).slice;
    if (WorksOnEach(graph, b, Phase::kBackward))
      of_gradients = std::min(of_gradients, std::max(0, chunk[b] - (from < slice ? 1 : 0)));
    else if (WorksOnEach(graph, b, Phase::kForward) && from == slice)
      of_forward = std::max(of_forward, chunk[b]);
  }
  if (of_gradients <= last) return of_gradients;
  return of_forward < 0 ? last : of_forward;
}

}  // namespace

Dependencies FindDependencies(const Graph& graph) {
  Dependencies waits;
  waits.order = graph.Order();
  waits.before.resize(graph.num_nodes());
  waits.after.resize(graph.num_nodes());
  for (int n : waits.order) {
    if (!Runs(graph, n)) continue;
    const auto depend = [&](int b, bool whole) {
      if (!Runs(graph, b)) return;
      whole = whole && graph.node(b).rate == Rate::kEachAct;
      waits.before[n].push_back({b, whole});
      waits.after[b].push_back({n, whole});
    };
    for (int v : graph.node(n).in) {
      v = graph.BehindViews(v);
      // A reader of what an update left in its variable waits for the update, not for the variable alone.
      depend(graph.value(v).producer, graph.value(v).sbp[0].is_broadcast());
    }
    for (int b : graph.node(n).after) depend(b, graph.node(n).rate == Rate::kOnce);
  }
  return waits;
}

std::vector<bool> FindConstants(const Graph& graph, const Dependencies& waits) {
  std::vector<bool> constant(graph.num_nodes(), false);
  for (int n : waits.order)
    constant[n] =
        graph.node(n).kind != NodeKind::kInput &&
        std::all_of(waits.before[n].begin(), waits.before[n].end(), [&](auto b) { return constant[b.node]; });
  return constant;
}

// One more than the epoch of a node that is needed whole, and else at least that of the nodes that are waited
// for. Between two epochs values are held for all micro-batches, so what leads to an update is as late as it
// can be (a forward pass whose loss divides by a number of tokens is in the epoch of that loss, the counting
// in one of its own) and the update as early, but for what it computes from variables alone, which comes with
// its readers; then the rest likewise. Readers and writer of a variable that each micro-batch writes are of
// one epoch, as the next micro-batch reads what this one writes.
std::vector<int> FindEpochs(const Graph& graph, const Dependencies& waits, const std::vector<int>& root) {
  std::vector<int> epoch(graph.num_nodes(), 0);
  std::vector<bool> settled(graph.num_nodes(), false);
  std::vector<std::vector<int>> together;
  for (int n : waits.order) {
    settled[n] = !Runs(graph, n) || graph.node(n).kind == NodeKind::kInput;
    if (graph.WritesEach(n))
      together.push_back(UsersOf(graph, waits.order, root, root[graph.node(n).out[0]]));
  }
  for (bool changed = true; changed;) {
    MakeEarly(waits, settled, &epoch);
    changed = false;
    for (const std::vector<int>& users : together) {
      for (int n : users)
        if (epoch[n] > std::ssize(waits.order)) RefuseWholeWithin(graph, waits, root, users);
      changed |= JoinEpochs(users, &epoch);
    }
  }
  for (const std::vector<int>& users : together)
    for (int n : users) settled[n] = true;
  const std::vector<bool> constant = FindConstants(graph, waits);
  for (int n : waits.order)
    settled[n] = settled[n] || (graph.node(n).phase == Phase::kUpdate && !constant[n]);
  for (auto it = waits.order.rbegin(); it != waits.order.rend(); ++it) {
    int late = kNoEpoch;
    for (auto [r, whole] : waits.after[*it])
      if (settled[r]) late = std::min(late, epoch[r] - whole);
    if (settled[*it] || late == kNoEpoch) continue;
    epoch[*it] = late;
    settled[*it] = true;
  }
  const int last = MakeEarly(waits, settled, &epoch);
  for (auto it = waits.order.rbegin(); it != waits.order.rend(); ++it) {
    if (settled[*it]) continue;
    epoch[*it] = last;
    for (auto [r, whole] : waits.after[*it]) epoch[*it] = std::min(epoch[*it], epoch[r] - whole);
  }
  return epoch;
}

// From where work comes back to an earlier stage it is another chunk of that stage. The backward pass goes
// the same way back. Nodes that wait for inputs alone come with the first that reads them.
std::vector<int> FindChunks(const Graph& graph, const Dependencies& waits) {
  std::vector<int> chunk(graph.num_nodes(), 0);
  std::vector<bool> carried(graph.num_nodes(), false);
  int last = 0;
  const std::vector<bool> written = LeadToWrites(graph, waits);
  for (int n : waits.order) {
    if (!WorksOnEach(graph, n, Phase::kForward)) continue;
    for (auto [b, whole] : waits.before[n]) {
      if (!WorksOnEach(graph, b, Phase::kForward)) continue;
      const bool back = graph.node(n).slice < graph.node(b).slice && !written[n];
      chunk[n] = std::max(chunk[n], chunk[b] + back);
      carried[n] = carried[n] || carried[b] || graph.node(n).slice != graph.node(b).slice;
    }
    last = std::max(last, chunk[n]);
  }
  if (last == 0) return chunk;
  for (auto it = waits.order.rbegin(); it != waits.order.rend(); ++it) {
    if (!WorksOnEach(graph, *it, Phase::kForward) || carried[*it]) continue;
    int first = last;
    for (auto [r, whole] : waits.after[*it])
      if (WorksOnEach(graph, r, Phase::kForward)) first = std::min(first, chunk[r]);
    chunk[*it] = std::max(chunk[*it], first);
  }
  for (int n : waits.order)
    if (WorksOnEach(graph, n, Phase::kBackward)) chunk[n] = ChunkOfGradient(graph, waits, chunk, n, last);
  return chunk;
}

}  // namespace oneflow_like
