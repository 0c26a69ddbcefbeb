#include "compiler/machine.h"

#include <algorithm>

#include "core/plan.pb.h"

namespace oneflow_like {
namespace {

double Elements(const plan::Operand& operand) {
  double elements = 1;
  if (operand.box_size() > 0)
    for (int64_t extent : operand.box(0).extent()) elements *= static_cast<double>(extent);
  return elements;
}

// The smallest of the extents m, n and k of a product: all of them together over the largest operand.
double SmallestExtent(const plan::Kernel& kernel) {
  double largest = 1;
  for (const auto* operands : {&kernel.in(), &kernel.out()})
    for (const plan::Operand& operand : *operands) largest = std::max(largest, Elements(operand));
  return kernel.flops() / 2 / largest;
}

}  // namespace

double SecondsOf(const DescribedMachine& machine, const plan::Kernel& kernel) {
  DType type = DType::kFloat32;
  for (const plan::Operand& operand : kernel.in())
    if (const auto of = static_cast<DType>(operand.dtype()); IsFloating(of) && SizeOf(of) < SizeOf(type))
      type = of;
  const Efficiency& e = machine.efficiency;
  double reached = 1;
  if (const std::string& what = kernel.category();
      what == "matmul" || what == "convolution" || what == "attention") {
    const double extent = SmallestExtent(kernel);
    reached = what == "attention" ? e.attention : e.product;
    if (e.half_extent > 0) reached *= extent / (extent + e.half_extent);
  }
  const Work work{kernel.flops() == 0 ? 0 : kernel.flops() / reached, kernel.bytes()};
  return SecondsOf(machine, work, type) + machine.overhead;
}

BoxingLoad LoadOf(const DescribedMachine& machine, const Graph& graph, const Node& node) {
  const LinkLevels levels{machine.topology, machine.shared};
  BoxingLoad all;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const Value& v = graph.value(node.in[i]);
    const BoxingLoad one = LoadOfBoxingStep(graph.mesh(), graph.times(), v.shape, SizeOf(v.dtype),
                                            graph.LayoutOf(node.in[i]), graph.LayoutOf(node.out[i]), levels);
    all.latency = std::max(all.latency, one.latency);
    all.copies += one.copies;
    all.links.resize(std::max(all.links.size(), one.links.size()));
    for (size_t l = 0; l < one.links.size(); ++l) all.links[l] += one.links[l];
  }
  return all;
}

}  // namespace oneflow_like
