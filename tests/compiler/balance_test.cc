// No rank idles while another computes: the largest piece of products and attention in an act is close to the
// least that any legal signatures of these operators give, on many meshes and numbers of micro-batches. Also:
// the work that the estimator counts for a rank is that of the boxes it holds, and that of all ranks adds up.
#include <gtest/gtest.h>

#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

bool IsHeavy(const Graph& graph, int n) {
  const OpDef* def = graph.catalog().Find(graph.node(n).op);
  return def != nullptr && (def->category == "matmul" || def->category == "attention");
}

// How the weight that a value is another form of (or that itself) is annotated along an entry; B: no weight,
// or not cut.
Sbp AnnotationOf(const Graph& graph, int value, int entry) {
  const Node* node = &graph.producer(value);
  while (node->op != "variable") {
    if (node->in.size() != 1) return B();
    node = &graph.producer(node->in[0]);
  }
  auto fixed = node->fixed.find(entry);
  return fixed == node->fixed.end() || node->stored.count(entry) ? B() : fixed->second;
}

// Flops of the busiest rank in one act at the best of all signatures: every combination over the mesh axes of
// those that read weights as annotated, with the time axis as it is.
class Best {
 public:
  Best(const Graph& graph, int n) : graph_(graph), node_(graph.node(n)), rule_(graph.RuleOf(n)) {
    LocalWork work(graph, n, rule_);
    std::vector<Sbp> in, out;
    for (const NdSbp& want : node_.want) in.push_back(want[0]);
    for (int v : node_.out) out.push_back(graph.value(v).sbp[0]);
    work.Cut(in, out, graph.times(), 0);
    Try(1, {}, n, in, out);
  }
  double flops() const { return flops_; }

 private:
  void Try(int entry, const std::vector<Signature>& chosen, int n, const std::vector<Sbp>& time_in,
           const std::vector<Sbp>& time_out) {
    const std::vector<int> sizes = graph_.Sizes();
    if (entry == static_cast<int>(sizes.size())) {
      LocalWork work(graph_, n, rule_);
      work.Cut(time_in, time_out, sizes[0], 0);
      for (size_t i = 0; i < chosen.size(); ++i)
        if (!chosen[i].in.empty()) work.Cut(chosen[i].in, chosen[i].out, sizes[1 + i], 0);
      flops_ = std::min(flops_, work.work().flops);
      return;
    }
    std::vector<Signature> legal(1);  // nothing to choose
    if (sizes[entry] > 1 && node_.slice.fixed[entry - 1] == Slice::kFree) legal = Legal(entry);
    for (const Signature& s : legal) {
      bool compatible = true;
      for (const Signature& other : chosen)
        compatible = compatible && (s.in.empty() || other.in.empty() || Compatible(s, other));
      if (!compatible) continue;
      std::vector<Signature> more = chosen;
      more.push_back(s);
      Try(entry + 1, more, n, time_in, time_out);
    }
  }

  std::vector<Signature> Legal(int entry) const {
    std::vector<Signature> all = Signatures(rule_, {}, graph_.Parts()), kept;
    for (const Signature& s : all) {
      bool as_annotated = !s.expanded;
      for (size_t i = 0; i < node_.in.size(); ++i) {
        Sbp wanted = AnnotationOf(graph_, node_.in[i], entry);
        as_annotated = as_annotated && (!wanted.is_split() || wanted == s.in[i]);
      }
      if (as_annotated) kept.push_back(s);
    }
    return kept.empty() ? all : kept;
  }

  const Graph& graph_;
  const Node& node_;
  BoundRule rule_;
  double flops_ = 1e300;
};

struct Case {
  const char* mesh;
  int batch, micro_batches;
};

TEST(Balance, LargestPieceIsCloseToTheLeastPossible) {
  const Case cases[] = {{"cpu:tp=2", 8, 8},       {"cpu:dp=2,tp=2", 12, 4},     {"cpu:dp=3", 7, 1},
                        {"cpu:tp=4", 8, 8},       {"cpu:dp=2", 8, 1},           {"cpu:dp=2", 8, 4},
                        {"cpu:dp=2", 8, 8},       {"cpu:dp=2", 7, 1},           {"cpu:dp=2", 7, 3},
                        {"cpu:dp=3", 8, 2},       {"cpu:dp=3", 9, 3},           {"cpu:dp=4", 8, 2},
                        {"cpu:dp=4", 8, 8},       {"cpu:dp=4", 6, 1},           {"cpu:dp=8", 16, 2},
                        {"cpu:dp=8", 8, 2},       {"cpu:tp=2", 8, 1},           {"cpu:tp=2", 7, 3},
                        {"cpu:tp=2", 1, 1},       {"cpu:tp=4", 8, 1},           {"cpu:tp=4", 6, 4},
                        {"cpu:tp=4", 5, 5},       {"cpu:dp=2,tp=2", 8, 2},      {"cpu:dp=2,tp=2", 8, 8},
                        {"cpu:dp=3,tp=2", 12, 4}, {"cpu:dp=3,tp=2", 7, 2},      {"cpu:dp=2,tp=4", 6, 3},
                        {"cpu:tp=2,pp=2", 8, 8},  {"cpu:dp=2,pp=2", 8, 4},      {"cpu:dp=2,pp=2", 12, 8},
                        {"cpu:tp=4,pp=2", 8, 8},  {"cpu:dp=2,tp=2,pp=2", 8, 4}, {"cpu:dp=3,tp=2,pp=2", 9, 3}};
  EXPECT_GE(std::size(cases), 30u);
  for (const Case& c : cases) {
    // The GPT of the examples' defaults, shortened.
    GptProgram program({.mesh = c.mesh,
                        .micro_batches = c.micro_batches,
                        .batch = c.batch,
                        .context = 128,
                        .layers = 2,
                        .width = 128,
                        .heads = 4,
                        .vocabulary = 256,
                        .dropout = 0});
    Session session = program.MakeTrain();
    const Compiled& compiled = session.impl()->compiled;
    const Graph& graph = compiled.graph;
    CostModel cost(graph, compiled.options.machine);
    double largest = 0, least = 0;
    std::string worst;
    for (int n : graph.Order()) {
      if (!IsHeavy(graph, n)) continue;
      double here = cost.WorkAt(n, std::vector<int>(1 + graph.mesh().rank(), 0)).flops;
      double best = Best(graph, n).flops();
      largest += here;
      least += best;
      if (here > 1.1 * best) worst += Cat("\n  ", graph.Describe(n), ": ", here / best, " times the least");
    }
    EXPECT_GT(least, 0);
    EXPECT_LE(largest, 1.1 * least) << c.mesh << " batch " << c.batch << " in " << c.micro_batches
                                    << " micro-batches:" << worst;
  }
}

}  // namespace
}  // namespace oneflow_like
