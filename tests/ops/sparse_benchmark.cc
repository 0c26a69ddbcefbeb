// Kernels that choose, sort and add by index on the CPU, a row each. tests/peers/sparse_torch.py prints the
// same rows of PyTorch.
//   build/tests/sparse_benchmark [threads] [batch] [bf16] [only=REGEX]
// The batch and the type are not asked for here.
#include "tests/ops/kernel_bench.h"

namespace oneflow_like {
namespace {

using enum DType;
using Acts = KernelBench::Acts;
using Operand = KernelBench::Operand;

Attrs Axis(int64_t axis) { return {{"axis", axis}}; }

void Orders(const KernelBench& bench) {
  struct Case {
    int64_t lines, length, k;
  };
  for (const Case& c :
       std::vector<Case>{{8192, 64, 8}, {1024, 1000, 5}, {64, 32000, 50}, {256, 4096, 4096}}) {
    const std::string name = Cat(c.k == c.length ? "sort " : "top_k ", c.lines, " x ", c.length,
                                 c.k == c.length ? "" : Cat(", ", c.k));
    if (!bench.Wanted(name)) continue;
    Acts acts;
    const Operand* x = acts.Add(kFloat32, {c.lines, c.length});
    const Attrs attrs = {{"axis", int64_t{1}}, {"k", c.k}, {"descending", int64_t{1}}};
    const Operand* indices = bench.Then(&acts, "argsort", {x}, attrs)[0];
    bench.Then(&acts, "take_along_axis", {x, indices}, Axis(1));
    bench.Row(name, acts);
  }
  if (const std::string name = "cumsum 1024 x 4096"; bench.Wanted(name)) {
    Acts acts;
    bench.Then(&acts, "cumsum", {acts.Add(kFloat32, {1024, 4096})},
               {{"axis", int64_t{1}}, {"reverse", int64_t{0}}, {"exclusive", int64_t{0}}});
    bench.Row(name, acts);
  }
}

void Takes(const KernelBench& bench) {
  auto take = [&](const std::string& name, const std::string& op, const Dims& x, const Dims& ids,
                  int64_t axis) {
    if (!bench.Wanted(name)) return;
    Acts acts;
    const Operand *from = acts.Add(kFloat32, x), *at = acts.Add(kInt64, ids, x[static_cast<int>(axis)]);
    bench.Then(&acts, op, {from, at}, Axis(axis));
    bench.Row(name, acts);
  };
  take("take 10^6 of 10^6", "take", {1000000}, {1000000}, 0);
  take("take 16384 rows of 50000 x 128", "take", {50000, 128}, {16384}, 0);
  take("take 500 of 512 x 1000", "take", {512, 1000}, {500}, 1);
  take("take_along 1024 x 1000", "take_along_axis", {1024, 1000}, {1024, 1000}, 1);
  take("take_along 1000 x 1024, axis 0", "take_along_axis", {1000, 1024}, {1000, 1024}, 0);
}

// As the compiler makes of scatter_add and index_add: sums by index that begin at x. Maxima are the same
// kernel.
void Scatters(const KernelBench& bench) {
  auto scatter = [&](const std::string& name, const std::string& op, const Dims& x, const Dims& ids,
                     const Dims& source, int64_t axis) {
    if (!bench.Wanted(name)) return;
    Acts acts;
    const int64_t extent = x[static_cast<int>(axis)];
    const Operand *to = acts.Add(kFloat32, x), *at = acts.Add(kInt64, ids, extent),
                  *from = acts.Add(kFloat32, source);
    bench.Then(&acts, op, {at, from, to}, {{"axis", axis}, {"extent", extent}});
    bench.Row(name, acts);
  };
  scatter("scatter_add 10^6 to 10^6", "scatter_sum", {1000000}, {1000000}, {1000000}, 0);
  scatter("scatter_add 10^6 to 1000", "scatter_sum", {1000}, {1000000}, {1000000}, 0);
  scatter("scatter_add 1024 x 1000", "scatter_sum", {1024, 1000}, {1024, 1000}, {1024, 1000}, 1);
  scatter("scatter_add 1000 x 1024, axis 0", "scatter_sum", {1000, 1024}, {1000, 1024}, {1000, 1024}, 0);
  scatter("index_add 16384 to 50000 x 128", "index_sum", {50000, 128}, {16384}, {16384, 128}, 0);
  scatter("index_add 16384 to 64 x 256", "index_sum", {64, 256}, {16384}, {16384, 256}, 0);
  scatter("scatter_max 10^6 to 1000", "scatter_max", {1000}, {1000000}, {1000000}, 0);
  scatter("index_max 16384 to 50000 x 128", "index_max", {50000, 128}, {16384}, {16384, 128}, 0);
}

// Bags of 20 ids of a table that no cache holds; all of the ids count.
void Bags(const KernelBench& bench) {
  const int64_t rows = 200000, width = 64, bags = 2048, room = 20;
  auto ids = [&](Acts* acts) {
    const Operand *named = acts->Add(kInt64, {bags, room}, rows), *lengths = acts->Add(kInt64, {bags});
    std::fill_n(lengths->arg.as<int64_t>(), bags, room);
    return std::vector<const Operand*>{named, lengths};
  };
  for (const std::string mode : {"sum", "mean", "max"}) {
    const std::string name = "embedding_bag " + mode;
    if (!bench.Wanted(name)) continue;
    Acts acts;
    std::vector<const Operand*> in = {acts.Add(kFloat32, {rows, width})};
    for (const Operand* operand : ids(&acts)) in.push_back(operand);
    bench.Then(&acts, "embedding_bag", in, {{"mode", mode}});
    bench.Row(name, acts);
  }
  for (const std::string mode : {"sum", "mean"}) {
    const std::string name = "embedding_bag dtable " + mode;
    if (!bench.Wanted(name)) continue;
    Acts acts;
    std::vector<const Operand*> in = ids(&acts);
    in.push_back(acts.Add(kFloat32, {bags, width}));
    bench.Then(&acts, "embedding_bag_grad", in, {{"mode", mode}, {"rows", rows}});
    bench.Row(name, acts);
  }
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  using namespace oneflow_like;
  const KernelBench bench(KernelBenchOptions(argc, argv));
  Orders(bench);
  Takes(bench);
  Scatters(bench);
  Bags(bench);
}
