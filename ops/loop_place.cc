// Where each value of a loop's body lies: where a kernel finds or leaves it without a copy if it can, a state
// before a step in the kept states, a place of an x or y in the operand where its steps are the outermost
// axis, if these places are aligned as kernels expect of operands; all others in an arena whose places are
// fixed when the kernel is made.
#include <algorithm>
#include <tuple>

#include "ops/loop_impl.h"

namespace oneflow_like {
namespace {

int64_t Padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Whether the equation sums over axis 0 of both operands, and over no more than that axis of each:
// "mk,mn->kn".
bool SumsOverRows(const std::string& equation) {
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma == 0 || arrow <= comma + 1)
    return false;
  const char rows = equation[0];
  return equation[comma + 1] == rows && std::count(equation.begin(), equation.end(), rows) == 2 &&
         equation.find('.') == std::string::npos;
}

}  // namespace

Loop::Impl::Impl(const KernelSpec& of, const InnerKernels& kernels, bool make)
    : spec(of), call(BuiltinCatalog(), of.attrs, of.name) {
  const Body& body = call.body;
  FindSources();
  invariant.assign(body.values().size(), false);
  for (size_t i = call.states + call.xs.size(); i < body.inputs.size(); ++i) invariant[body.inputs[i]] = true;
  std::vector<bool> of_node;
  for (const Body::Node& node : body.nodes()) {
    of_node.push_back(std::all_of(node.in.begin(), node.in.end(), [&](int v) { return invariant[v]; }));
    for (int v : node.out) invariant[v] = of_node.back();
  }
  order = FusedNodes(body, of_node);
  FindViews();
  ChoosePlaces();
  for (const Body::Node& node : order) {
    if (root[node.out[0]] != node.out[0]) continue;  // a view
    LoopNode& inner = nodes.emplace_back();
    inner.invariant = invariant[node.out[0]];
    inner.in = node.in;
    inner.out = node.out;
    for (int v : node.in) inner.in_args.push_back(ArgOf(v));
    for (int v : node.out) inner.out_args.push_back(ArgOf(v));
    inner.together = TermOfRows(node, kernels);
    if (inner.together > 0) terms_together.insert(inner.together);
    for (size_t i = 0; inner.together > 0 && i < node.in.size(); ++i) {
      stacked[root[node.in[i]]] = true;
      TensorArg& arg = inner.in_args[i];
      arg.begin[0] = 0;
      arg.extent[0] = arg.global[0] = arg.extent[0] * kStepsTogether;
    }
    inner.spec = {node.op, node.attrs, inner.in_args, inner.out_args, spec.node, spec.line, spec.threads};
    inner_scratch = std::max(inner_scratch, Padded(kernels.scratch(inner.spec)));
    if (make) inner.kernel = kernels.make(inner.spec);
  }
  PlaceArena();
}

// --- When it is made -------------------------------------------------------------------------------

void Loop::Impl::FindSources() {
  for (const bool out : {false, true}) {
    const std::vector<LoopCall::Operand>& operands = out ? call.out : call.in;
    const std::vector<TensorArg>& args = out ? spec.out : spec.in;
    for (size_t i = 0; i < operands.size(); ++i)
      for (int axis = 0; axis < operands[i].shape.rank(); ++axis) {
        const char label = operands[i].labels[axis];
        if (label == ' ' || label == '#') continue;
        if (sources.try_emplace(label, Source{out, i, axis}).second)
          pieces[label] = {args[i].begin[axis], args[i].extent[axis]};
      }
  }
}

void Loop::Impl::FindViews() {
  for (size_t v = 0; v < call.body.values().size(); ++v) root.push_back(static_cast<int>(v));
  for (const Body::Node& node : order) {
    const OpDef* def = BuiltinCatalog().Find(node.op);
    if (def != nullptr && def->view && node.in.size() == 1 && node.out.size() == 1)
      root[node.out[0]] = root[node.in[0]];
  }
}

TensorArg Loop::Impl::ArgOf(int value) const {
  const Body::Value& v = call.body.values()[value];
  TensorArg arg{nullptr, v.dtype, v.shape, Dims(v.shape.rank(), int64_t{0}), v.shape};
  for (int axis = 0; axis < v.shape.rank(); ++axis)
    if (const auto piece = pieces.find(v.labels[axis]); piece != pieces.end())
      std::tie(arg.begin[axis], arg.extent[axis]) = piece->second;
  return arg;
}

int64_t Loop::Impl::Bytes(int value) const {
  const TensorArg arg = ArgOf(value);
  return arg.elements() * static_cast<int64_t>(SizeOf(arg.dtype));
}

// Whether the places of an operand with steps are contiguous and aligned, now and in acts with smaller
// pieces.
bool Loop::Impl::Direct(const LoopCall::Operand& operand, const Dims& extent) const {
  int64_t least = static_cast<int64_t>(SizeOf(operand.dtype));  // of which each place has a multiple
  for (int axis = 0; axis < extent.rank(); ++axis) {
    if (axis < operand.axis && extent[axis] != 1) return false;
    if (operand.labels[axis] == ' ') least *= extent[axis];
  }
  return least % 64 == 0;
}

// Bytes of a row of one place of an x or y, and the number of rows.
int64_t Loop::Impl::PlaceBytes(const LoopCall::Operand& operand, const Dims& extent, int64_t* rows) const {
  *rows = 1;
  int64_t row = static_cast<int64_t>(SizeOf(operand.dtype));
  for (int axis = 0; axis < extent.rank(); ++axis)
    if (axis != operand.axis) (axis < operand.axis ? *rows : row) *= extent[axis];
  return row;
}

// The result that is the only term of a sum and a product over the rows of two values, each of which can lie
// in a row with those of other steps; 0: it is none.
size_t Loop::Impl::TermOfRows(const Body::Node& node, const InnerKernels& kernels) const {
  if (node.op != "einsum" || !kernels.fast(node.op) || !SumsOverRows(node.attrs.Str("equation"))) return 0;
  size_t result = 0;
  for (const auto& [r, value] : copied) {
    if (value != node.out[0]) continue;
    if (result > 0 || r < call.FirstSum()) return 0;
    result = r;
  }
  if (result == 0) return 0;
  size_t sum = 0;
  for (int64_t term = static_cast<int64_t>(result - call.FirstSum()); term >= call.sums[sum]; ++sum)
    term -= call.sums[sum];
  if (call.sums[sum] != 1) return 0;
  for (const Body::Node& other : order)
    for (int v : other.in)
      if (root[v] == node.out[0]) return 0;
  for (int v : node.in) {
    const ValuePlace& at = lies[root[v]];
    if (invariant[root[v]] || at.where == ValuePlace::kState || at.where == ValuePlace::kNext) return 0;
    const LoopCall::Operand as{"", v, 0, call.body.values()[v].dtype, {}, call.body.values()[v].labels};
    if (at.where == ValuePlace::kArena && !Direct(as, ArgOf(v).extent)) return 0;
  }
  return result;
}

void Loop::Impl::ChoosePlaces() {
  const Body& body = call.body;
  stacked.assign(body.values().size(), false);
  lies.resize(body.values().size());
  const size_t first_read = call.states + call.xs.size();
  for (size_t i = 0; i < body.inputs.size(); ++i) {
    ValuePlace& at = lies[body.inputs[i]];
    if (i < call.states) {
      at = {ValuePlace::kState, i};
    } else if (i >= first_read) {
      at = {ValuePlace::kRead, i};
    } else if (Direct(call.in[i], spec.in[i].extent)) {
      at = {ValuePlace::kX, i};
    }
  }
  std::vector<bool> chosen(body.values().size(), false);
  for (int v : body.inputs) chosen[v] = true;
  for (size_t i = 0; i < call.states; ++i) {
    const size_t kept = call.FirstKept() + i;
    in_kept.push_back(call.keep && Direct(call.out[kept], spec.out[kept].extent));
  }
  for (size_t r = 0; r < body.results.size(); ++r) {
    const int value = root[body.results[r]];
    const bool state = r < call.states, sum = r >= call.FirstSum();
    const bool direct = state || (!sum && Direct(call.out[r], spec.out[r].extent));
    if (!chosen[value] && direct && !invariant[value]) {
      lies[value] = {state ? ValuePlace::kNext : ValuePlace::kY, r};
      chosen[value] = true;
    } else {
      copied.push_back({r, value});
    }
  }
}

// Values of a step share bytes where one is read for the last time before the other is written; those that
// all steps read have their own.
void Loop::Impl::PlaceArena() {
  struct Block {
    int64_t offset, bytes;
    int from, to;
  };
  const int end = static_cast<int>(nodes.size());
  std::vector<int> from(lies.size(), end + 1), to(lies.size(), -2);
  const auto use = [&](int value, int at) {
    const int v = root[value];
    from[v] = std::min(from[v], invariant[v] || stacked[v] ? -1 : at);
    to[v] = std::max(to[v], invariant[v] || stacked[v] ? end : at);
  };
  for (size_t i = 0; i < call.xs.size(); ++i) use(call.body.inputs[call.states + i], -1);
  for (int n = 0; n < end; ++n) {
    for (int v : nodes[n].in) use(v, n);
    for (int v : nodes[n].out) use(v, n);
  }
  for (const auto& [result, value] : copied) use(value, end);
  std::vector<Block> blocks;
  for (size_t v = 0; v < lies.size(); ++v) {
    if (root[v] != static_cast<int>(v) || lies[v].where != ValuePlace::kArena || to[v] < -1) continue;
    Block block{0, Padded(Bytes(static_cast<int>(v)) * (stacked[v] ? kStepsTogether : 1)), from[v], to[v]};
    for (bool moved = true; moved;) {
      moved = false;
      for (const Block& other : blocks) {
        const bool together = other.from <= block.to && block.from <= other.to;
        if (!together || other.offset >= block.offset + block.bytes ||
            block.offset >= other.offset + other.bytes)
          continue;
        block.offset = other.offset + other.bytes;
        moved = true;
      }
    }
    blocks.push_back(block);
    lies[v].offset = block.offset;
    bytes = std::max(bytes, block.offset + block.bytes);
  }
  const auto take = [&](int64_t n) {
    const int64_t at = bytes;
    bytes += Padded(n);
    return at;
  };
  for (size_t i = 0; i < call.states; ++i) other.push_back(in_kept[i] ? 0 : take(Bytes(call.body.inputs[i])));
  for (size_t i = 0; i < call.sums.size(); ++i)
    sums.push_back(
        take(ArgOf(call.out[call.FirstSum() + i].value).elements() * static_cast<int64_t>(sizeof(double))));
  inner_scratch = take(inner_scratch);  // its offset from here on
}

}  // namespace oneflow_like
