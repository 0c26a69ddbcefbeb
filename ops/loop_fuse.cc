// Elementwise operators of a loop's body that are computed together. Units (a node, or nodes that are joined)
// are joined along edges where no path from one to the other leads through a third.
#include <algorithm>
#include <map>
#include <numeric>

#include "ops/fused.h"
#include "ops/loop.h"

namespace oneflow_like {
namespace {

constexpr size_t kMostSteps = 24;  // as compiler/passes/fuse.cc joins

class BodyFuser {
 public:
  BodyFuser(const Body& body, const std::vector<bool>& invariant)
      : body_(body), invariant_(invariant), unit_(body.nodes().size()) {
    std::iota(unit_.begin(), unit_.end(), 0);
  }

  std::vector<Body::Node> Run() {
    const std::vector<Body::Node>& nodes = body_.nodes();
    for (size_t n = 0; n < nodes.size(); ++n) {
      if (!MayJoin(nodes[n])) continue;
      for (int v : nodes[n].in) {
        const int from = body_.values()[v].producer;
        if (from < 0 || unit_[from] == unit_[n] || !MayJoin(nodes[from])) continue;
        if (body_.values()[v].shape == ShapeOf(nodes[n]) && invariant_[from] == invariant_[n])
          Join(unit_[from], unit_[n]);
      }
    }
    return Emit();
  }

 private:
  const Dims& ShapeOf(const Body::Node& node) const { return body_.values()[node.out[0]].shape; }

  bool MayJoin(const Body::Node& node) const {
    const OpDef* def = BuiltinCatalog().Find(node.op);
    if (def == nullptr || node.op == "fused") return false;
    std::vector<DType> in, out;
    for (int v : node.in) in.push_back(body_.values()[v].dtype);
    for (int v : node.out) out.push_back(body_.values()[v].dtype);
    return Fusible(*def, in, out);
  }

  // Makes one unit of two, if no third one reads of them what they read of it.
  void Join(int a, int b) {
    const auto inside = [&](int n) { return unit_[n] == a || unit_[n] == b; };
    const int nodes = static_cast<int>(unit_.size());
    int members = 0;
    for (int n = 0; n < nodes; ++n) members += inside(n);
    if (static_cast<size_t>(members) > kMostSteps) return;
    std::vector<bool> after(unit_.size(), false);  // by unit: reads of them
    for (bool changed = true; changed;) {
      changed = false;
      for (int n = 0; n < nodes; ++n)
        for (int v : body_.nodes()[n].in) {
          const int from = body_.values()[v].producer;
          if (from < 0 || !(inside(from) || after[unit_[from]])) continue;
          if (inside(n) && after[unit_[from]]) return;
          if (inside(n) || after[unit_[n]]) continue;
          after[unit_[n]] = changed = true;
        }
    }
    for (int& u : unit_)
      if (u == b) u = a;
  }

  std::vector<Body::Node> Emit() const {
    std::map<int, std::vector<int>> members;
    for (size_t n = 0; n < unit_.size(); ++n) members[unit_[n]].push_back(static_cast<int>(n));
    std::vector<bool> done(unit_.size(), false);
    std::vector<Body::Node> nodes;
    while (!members.empty()) {
      const auto ready = std::find_if(members.begin(), members.end(), [&](const auto& unit) {
        return std::all_of(unit.second.begin(), unit.second.end(), [&](int n) {
          const std::vector<int>& in = body_.nodes()[n].in;
          return std::all_of(in.begin(), in.end(), [&](int v) {
            const int from = body_.values()[v].producer;
            return from < 0 || done[from] || unit_[from] == unit.first;
          });
        });
      });
      nodes.push_back(ready->second.size() == 1 ? body_.nodes()[ready->second[0]] : Fused(ready->second));
      for (int n : ready->second) done[n] = true;
      members.erase(ready);
    }
    return nodes;
  }

  bool ReadOutside(int value, const std::vector<int>& members) const {
    if (std::count(body_.results.begin(), body_.results.end(), value) > 0) return true;
    for (size_t n = 0; n < unit_.size(); ++n) {
      const std::vector<int>& in = body_.nodes()[n].in;
      if (std::count(in.begin(), in.end(), value) > 0 && unit_[n] != unit_[members[0]]) return true;
    }
    return false;
  }

  Body::Node Fused(const std::vector<int>& members) const {
    Body::Node fused{"fused", {}, {}, {}};
    std::map<int, int> number;  // of a value in the program
    for (int n : members)
      for (int v : body_.nodes()[n].in) {
        const int from = body_.values()[v].producer;
        if (from >= 0 && unit_[from] == unit_[n]) continue;
        if (number.try_emplace(v, static_cast<int>(fused.in.size())).second) fused.in.push_back(v);
      }
    std::vector<FusedStep> steps;
    std::vector<int64_t> outputs;
    for (int n : members) {
      const Body::Node& node = body_.nodes()[n];
      std::vector<int> values;  // of its operands and steps, in the program
      for (int v : node.in) values.push_back(number.at(v));
      const int operands = static_cast<int>(values.size());
      for (FusedStep& step : StepsOf(BuiltinCatalog().Get(node.op), node.attrs, operands, "scan")) {
        for (int& value : step.args) value = values[value];
        values.push_back(static_cast<int>(fused.in.size() + steps.size()));
        steps.push_back(std::move(step));
      }
      number[node.out[0]] = values.back();
      if (!ReadOutside(node.out[0], members)) continue;
      outputs.push_back(number[node.out[0]]);
      fused.out.push_back(node.out[0]);
    }
    fused.attrs.Set("program", FusedProgram(steps));
    fused.attrs.Set("outputs", outputs);
    return fused;
  }

  const Body& body_;
  const std::vector<bool>& invariant_;
  std::vector<int> unit_;  // by node
};

}  // namespace

std::vector<Body::Node> FusedNodes(const Body& body, const std::vector<bool>& invariant) {
  return BodyFuser(body, invariant).Run();
}

}  // namespace oneflow_like
