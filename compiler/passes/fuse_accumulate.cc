// Products that make a weight's gradient sum it over the micro-batches.
// Needs: lowered boxing. Leaves: in place of a product in the backward pass and of the accumulate that alone
// reads it, the product with attribute "accumulates" (ops/equation.h): each micro-batch's product is added
// where those before are, so it is neither written by itself nor read again. Only sums in fp32: no term is
// rounded to 16 bits. The library may add in another order than before, so last bits differ.
//
// The product is still Partial over time by its rule, but what it leaves is the sum, B (SumsOverTime). Like
// an accumulate it reads its result, which no operand says.
#include <map>

#include "compiler/passes/passes.h"
#include "ops/equation.h"

namespace oneflow_like {

namespace {

// The product whose result `sum` alone reads, and which can be the one to add it up; -1: none.
int ProductOfSum(const Graph& graph, int sum, const std::vector<std::vector<int>>& readers) {
  const Node& node = graph.node(sum);
  if (node.primitive != Primitive::kAccumulate || !IsGradient(node.phase) || !node.after.empty()) return -1;
  const Value &term = graph.value(node.in[0]), &total = graph.value(node.out[0]);
  const Node& product = graph.node(term.producer);
  const OpDef* def = graph.catalog().Find(product.op);
  if (def == nullptr || !def->accumulates) return -1;
  if (term.output != 0 || term.dtype != DType::kFloat32 || readers[node.in[0]].size() != 1) return -1;
  NdSbp summed = term.sbp;
  if (summed[0] != P()) return -1;
  summed[0] = B();
  const bool alike = product.slice == node.slice && product.phase == node.phase &&
                     product.rate == Rate::kEachAct && total.sbp == summed;
  return alike ? term.producer : -1;
}

}  // namespace

void FuseAccumulate(Graph* graph, const CompileOptions& options) {
  if (!options.asked.fuse) return;
  const std::vector<std::vector<int>> readers = graph->Readers();
  std::map<int, int> instead;  // of nodes that leave
  for (int sum : graph->Order()) {
    if (graph->node(sum).kind != NodeKind::kPrimitive) continue;
    const int n = ProductOfSum(*graph, sum, readers);
    if (n < 0) continue;
    const int total = graph->node(sum).out[0];
    Node& product = graph->node(n);
    product.attrs.Set(kAccumulates, int64_t{1});
    product.name = graph->value(total).name;
    product.out[0] = total;
    if (product.why.empty()) product.why = "product, added to those of earlier micro-batches";
    graph->value(total).producer = n;
    graph->value(total).output = 0;
    graph->Remove(sum);
    graph->SettleRate(n);
    instead[sum] = n;
  }
  for (int n = 0; n < graph->num_nodes() && !instead.empty(); ++n)
    for (int& before : graph->node(n).after)
      if (const auto at = instead.find(before); at != instead.end()) before = at->second;
}

}  // namespace oneflow_like
