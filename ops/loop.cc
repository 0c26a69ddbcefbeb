// Running a scan on a rank's pieces, one step after another.
#include "ops/loop.h"

#include <algorithm>

#include "ops/loop_impl.h"

namespace oneflow_like {

// --- In an act -------------------------------------------------------------------------------------

// Pieces of acts may be smaller than those that the arena was made for.
void Loop::Impl::SetExtents(const KernelContext& context) {
  bool same = true;
  for (auto& [label, piece] : pieces) {
    const Source& source = sources.at(label);
    const TensorArg& arg = source.out ? context.out[source.operand] : context.in[source.operand];
    const std::pair<int64_t, int64_t> now = {arg.begin[source.axis], arg.extent[source.axis]};
    same = same && piece == now;
    piece = now;
  }
  if (same) return;
  for (LoopNode& node : nodes) {
    for (size_t i = 0; i < node.in.size(); ++i) node.in_args[i] = ArgOf(node.in[i]);
    for (size_t i = 0; i < node.out.size(); ++i) node.out_args[i] = ArgOf(node.out[i]);
  }
}

// Where the state is after a step: among the kept states, or by turns in the result and in a second place.
char* Loop::Impl::StateAfter(const KernelContext& context, size_t state, int64_t step) const {
  const int64_t left = call.steps - 1 - step;
  char* last = context.out[state].as<char>();
  if (left == 0) return last;
  if (!in_kept[state]) return left % 2 == 0 ? last : Arena(context, other[state]);
  return Kept(context, state, step + 1);
}

char* Loop::Impl::Kept(const KernelContext& context, size_t state, int64_t step) const {
  const TensorArg& last = context.out[state];
  const int64_t size = last.elements() * static_cast<int64_t>(SizeOf(last.dtype));
  return context.out[call.FirstKept() + state].as<char>() + Position(step) * size;
}

char* Loop::Impl::Place(const KernelContext& context, const ValuePlace& at, int64_t step) const {
  const auto place_of = [&](const LoopCall::Operand& operand, const TensorArg& arg) {
    int64_t rows = 0;
    const int64_t row = PlaceBytes(operand, arg.extent, &rows);
    return arg.as<char>() + Position(step) * row;
  };
  switch (at.where) {
    case ValuePlace::kState:
      return step == 0 ? context.in[at.number].as<char>() : StateAfter(context, at.number, step - 1);
    case ValuePlace::kX:
      return place_of(call.in[at.number], context.in[at.number]);
    case ValuePlace::kRead:
      return context.in[at.number].as<char>();
    case ValuePlace::kNext:
      return StateAfter(context, at.number, step);
    case ValuePlace::kY:
      return place_of(call.out[at.number], context.out[at.number]);
    case ValuePlace::kArena:
      break;
  }
  return Arena(context, at.offset);
}

char* Loop::Impl::Data(const KernelContext& context, int value, int64_t step) const {
  const int v = root[value];
  char* data = Place(context, lies[v], step);
  if (!stacked[v] || lies[v].where != ValuePlace::kArena) return data;
  const int64_t first = step / kStepsTogether * kStepsTogether,
                end = std::min(call.steps, first + kStepsTogether);
  return data + (call.reverse ? end - 1 - step : step - first) * Bytes(v);  // by position, as in operands
}

// Writes the value that is a result of the body to where the loop's result has it, or adds it there.
Status Loop::Impl::Put(const KernelContext& context, LoopDevice* device, size_t r, int value, int64_t step) {
  TensorArg arg = ArgOf(value);
  arg.data = Data(context, value, step);
  const int64_t all = arg.elements() * static_cast<int64_t>(SizeOf(arg.dtype));
  if (r < call.states) return device->Copy(StateAfter(context, r, step), all, arg.data, all, 1, all);
  if (r < call.FirstSum()) {
    int64_t rows = 0;
    const int64_t row = PlaceBytes(call.out[r], context.out[r].extent, &rows);
    return device->Copy(context.out[r].as<char>() + Position(step) * row, row * call.steps, arg.data, row,
                        rows, row);
  }
  size_t sum = 0;
  int64_t term = static_cast<int64_t>(r - call.FirstSum());
  while (term >= call.sums[sum]) term -= call.sums[sum++];
  return device->Add(reinterpret_cast<double*>(Arena(context, sums[sum])), arg, step == 0 && term == 0);
}

Status Loop::Impl::RunNodes(const KernelContext& context, LoopDevice* device, bool of_invariants) {
  for (LoopNode& node : nodes) {
    if (node.invariant != of_invariants || node.together > 0) continue;
    Status status =
        device->Run(node.kernel.get(), {node.spec, node.in_args, node.out_args, Arena(context, inner_scratch),
                                        context.step, context.time, context.times, context.seed});
    if (!status.ok()) return Status(Cat("in its ", node.spec.name, ": ", status.message()));
  }
  return Status();
}

// The products of the steps up to the last one of those that go together.
Status Loop::Impl::RunTogether(const KernelContext& context, LoopDevice* device, int64_t last) {
  const int64_t first = last / kStepsTogether * kStepsTogether;
  for (LoopNode& node : nodes) {
    if (node.together == 0) continue;
    for (size_t i = 0; i < node.in.size(); ++i) {
      TensorArg& arg = node.in_args[i];
      arg = ArgOf(node.in[i]);
      arg.data = Data(context, node.in[i], call.reverse ? last : first);
      arg.begin[0] = 0;
      arg.extent[0] = arg.global[0] = arg.extent[0] * (last + 1 - first);
    }
    node.out_args[0].data = Data(context, node.out[0], last);
    Status status =
        device->Run(node.kernel.get(), {node.spec, node.in_args, node.out_args, Arena(context, inner_scratch),
                                        context.step, context.time, context.times, context.seed});
    if (status.ok()) status = Put(context, device, node.together, node.out[0], first);
    if (!status.ok()) return status;
  }
  return Status();
}

Status Loop::Impl::Step(const KernelContext& context, LoopDevice* device, int64_t step) {
  for (size_t i = 0; call.keep && i < call.states; ++i) {
    if (in_kept[i] && step > 0) continue;
    const int64_t size = context.in[i].elements() * static_cast<int64_t>(SizeOf(context.in[i].dtype));
    Status status = device->Copy(Kept(context, i, step), size, Place(context, {ValuePlace::kState, i}, step),
                                 size, 1, size);
    if (!status.ok()) return status;
  }
  for (size_t i = call.states; i < call.states + call.xs.size(); ++i) {
    const int v = call.body.inputs[i];
    if (lies[v].where != ValuePlace::kArena) continue;
    int64_t rows = 0;
    const int64_t row = PlaceBytes(call.in[i], context.in[i].extent, &rows);
    Status status = device->Copy(Data(context, v, step), row, context.in[i].as<char>() + Position(step) * row,
                                 row * call.steps, rows, row);
    if (!status.ok()) return status;
  }
  for (LoopNode& node : nodes) {
    if (node.together > 0) continue;
    for (size_t i = 0; i < node.in.size(); ++i) node.in_args[i].data = Data(context, node.in[i], step);
    for (size_t i = 0; i < node.out.size(); ++i) node.out_args[i].data = Data(context, node.out[i], step);
  }
  if (step == 0) {
    if (Status status = RunNodes(context, device, true); !status.ok()) return status;
  }
  return RunNodes(context, device, false);
}

Status Loop::Impl::Run(const KernelContext& context, LoopDevice* device) {
  SetExtents(context);
  Status status;
  for (int64_t step = 0; step < call.steps && status.ok(); ++step) {
    status = Step(context, device, step);
    for (const auto& [result, value] : copied)
      if (status.ok() && !terms_together.count(result)) status = Put(context, device, result, value, step);
    if (status.ok() && (step + 1 == call.steps || (step + 1) % kStepsTogether == 0))
      status = RunTogether(context, device, step);
  }
  for (size_t i = 0; i < sums.size() && status.ok(); ++i)
    status = device->Round(context.out[call.FirstSum() + i],
                           reinterpret_cast<const double*>(Arena(context, sums[i])));
  return status;
}

// ---------------------------------------------------------------------------------------------------

Loop::Loop(const KernelSpec& spec, const InnerKernels& kernels)
    : impl_(std::make_unique<Impl>(spec, kernels, true)) {}
Loop::~Loop() = default;

Status Loop::Run(const KernelContext& context, LoopDevice* device) { return impl_->Run(context, device); }

std::vector<Kernel*> Loop::kernels() const {
  std::vector<Kernel*> kernels;
  for (const LoopNode& node : impl_->nodes) kernels.push_back(node.kernel.get());
  return kernels;
}

int64_t Loop::Scratch(const KernelSpec& spec, const InnerKernels& kernels) {
  return Impl(spec, kernels, false).bytes;
}

}  // namespace oneflow_like
