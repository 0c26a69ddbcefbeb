// Writes after reads.
// Needs: lowered boxing, fused operators: the readers named must be nodes that stay. Leaves: an update comes
// after every other reader of the variables it replaces (Node::after). Between steps the loop-carried edges
// of the plan do the same. What an update gives lies in its variable, so others read a copy, made right
// behind the update; but what an update of a part gives, a large variable of which little has changed,
// operators on its slice read where it lies, and the update of the next step waits for them. A reader of a
// variable's old value that needs what an update gives reads a copy as well: the difference of new and old
// value would have to be both before and after the update. So do assigns that would each have to come after
// the other, as two that swap variables.
#include <algorithm>
#include <map>
#include <set>

#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

class Orderer {
 public:
  explicit Orderer(Graph* graph) : graph_(*graph) {}

  void Run() {
    for (int n : graph_.Order())
      for (auto [out, in] : InPlace(n)) writer_[graph_.node(n).in[in]] = n;
    const std::vector<int> order = graph_.Order();
    std::vector<bool> late(graph_.num_nodes(), false);  // needs what an update gives
    for (int n : order) {
      for (int v : graph_.node(n).in) late[n] = late[n] || IsResult(v) || late[graph_.value(v).producer];
    }
    for (int n : order) CopyVariables(n, late[n]);
    readers_ = graph_.Readers();
    for (int n : order) CopyResults(n);
    readers_ = graph_.Readers();
    for (int n : graph_.Order())
      for (auto [out, in] : InPlace(n)) ComeAfterReaders(n, graph_.node(n).in[in]);
  }

 private:
  std::vector<std::pair<int, int>> InPlace(int n) const { return graph_.InPlace(n); }

  // A copy of value `v` for node `reader`, of its phase.
  int AddCopy(int v, const Node& reader, const std::string& why) {
    Node copy = NodeLike(reader, "copy");
    copy.slice = graph_.producer(v).slice;
    copy.why = why;
    return graph_.value(graph_.AddReader(std::move(copy), v, ".copy")).producer;
  }

  // Whether an update leaves the value in its variable.
  bool IsResult(int v) const {
    for (auto [out, in] : InPlace(graph_.value(v).producer))
      if (graph_.value(v).output == out) return true;
    return false;
  }

  // Other updates, of variables whose old value update `n` reads: they come after it.
  std::set<int> Later(int n) const {
    std::set<int> later;
    if (InPlace(n).empty()) return later;
    for (int v : graph_.node(n).in) {
      auto writer = writer_.find(graph_.BehindViews(v));
      if (writer != writer_.end() && writer->second != n) later.insert(writer->second);
    }
    return later;
  }
  // Whether update `to` must come after update `from`.
  bool Follows(int from, int to) const {
    std::set<int> seen;
    std::vector<int> todo = {from};
    while (!todo.empty()) {
      int n = todo.back();
      todo.pop_back();
      for (int m : Later(n)) {
        if (m == to) return true;
        if (seen.insert(m).second) todo.push_back(m);
      }
    }
    return false;
  }

  // Copies of the old values that `n` cannot read where they are, but for those it replaces itself.
  void CopyVariables(int n, bool late) {
    if (graph_.IsView(n)) return;
    std::set<size_t> own;
    for (auto [out, in] : InPlace(n)) own.insert(in);
    for (size_t i = 0; i < graph_.node(n).in.size(); ++i) {
      int value = graph_.node(n).in[i];
      auto writer = writer_.find(graph_.BehindViews(value));
      if (own.count(i) || writer == writer_.end() || writer->second == n) continue;
      if (!late && (own.empty() || !Follows(writer->second, n))) continue;
      auto [copy, fresh] = copies_.try_emplace(value, -1);
      if (fresh) {
        int id = AddCopy(value, graph_.node(n), "the old value of a variable, read after it is written");
        copy->second = graph_.node(id).out[0];
      }
      graph_.node(n).in[i] = copy->second;
    }
  }

  // Whether `reader` may read the variable itself after update `n`.
  bool ReadsInPlace(int n, int reader) const {
    const Node& node = graph_.node(reader);
    const OpDef* def = graph_.catalog().Find(graph_.node(n).op);
    return def && def->writes_part && !graph_.WritesEach(n) && node.kind == NodeKind::kOperator &&
           !graph_.IsView(reader) && InPlace(reader).empty() && node.slice == graph_.node(n).slice;
  }

  void CopyResults(int n) {
    for (auto [out, in] : InPlace(n)) {
      int value = graph_.node(n).out[out], copy = -1;
      for (int r : readers_[value]) {
        if (ReadsInPlace(n, r)) continue;
        for (size_t i = 0; i < graph_.node(r).in.size(); ++i) {
          if (graph_.node(r).in[i] != value) continue;
          if (copy < 0) {
            copy = AddCopy(value, graph_.node(n), "what is read of an update");
            graph_.node(copy).after = {n};
          }
          graph_.node(r).in[i] = graph_.node(copy).out[0];
        }
      }
    }
  }

  void ComeAfterReaders(int n, int variable) {
    std::vector<int> look = {variable};
    while (!look.empty()) {  // through views: they have the variable's bytes
      int v = look.back();
      look.pop_back();
      for (int r : readers_[v]) {
        std::vector<int>& after = graph_.node(n).after;
        if (r != n && std::find(after.begin(), after.end(), r) == after.end()) after.push_back(r);
        if (graph_.IsView(r)) look.push_back(graph_.node(r).out[0]);
      }
    }
  }

  Graph& graph_;
  std::map<int, int> writer_;  // by variable
  std::map<int, int> copies_;  // of their old values and views of them
  std::vector<std::vector<int>> readers_;
};

}  // namespace

void OrderWrites(Graph* graph, const CompileOptions&) { Orderer(graph).Run(); }

}  // namespace oneflow_like
