// Running a scan on a rank's pieces: where each value of the body lies, and the steps one after another. A
// value lies where a kernel finds or leaves it without a copy if it can: a state before a step in the kept
// states, a place of an x or y in the operand where its steps are the outermost axis, if these places are
// aligned as kernels expect of operands; all others in an arena whose places are fixed when the kernel is made.
#include "ops/loop.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace oneflow_like {
namespace {

int64_t Padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct Lies {
  enum Where : uint8_t { kArena, kState, kX, kRead, kNext, kY } where = kArena;
  size_t number = 0;  // of the state, x, read value or y
  int64_t offset = 0;
};

// Steps whose rows go through one product.
constexpr int64_t kStepsTogether = 16;

// Whether the equation sums over axis 0 of both operands, and over no more than that axis of each: "mk,mn->kn".
bool SumsOverRows(const std::string& equation) {
  const size_t comma = equation.find(','), arrow = equation.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma == 0 || arrow <= comma + 1) return false;
  const char rows = equation[0];
  return equation[comma + 1] == rows && std::count(equation.begin(), equation.end(), rows) == 2 &&
         equation.find('.') == std::string::npos;
}

struct InnerNode {
  KernelSpec spec;
  std::unique_ptr<Kernel> kernel;
  std::vector<int> in, out;  // values
  std::vector<TensorArg> in_args, out_args;
  bool invariant = false;
  size_t together = 0;  // the result whose term it gives for several steps; 0: it runs in every step
};

}  // namespace

struct Loop::Impl {
  // Without kernels it tells the scratch alone.
  Impl(const KernelSpec& spec, const InnerKernels& kernels, bool make);

  // --- When it is made ---
  void FindSources();
  void FindViews();
  void ChoosePlaces();
  void PlaceArena();
  bool Direct(const LoopCall::Operand& operand, const Dims& extent) const;
  size_t TermOfRows(const Body::Node& node, const InnerKernels& kernels) const;
  TensorArg ArgOf(int value) const;
  int64_t Bytes(int value) const;
  int64_t PlaceBytes(const LoopCall::Operand& operand, const Dims& extent, int64_t* rows) const;

  // --- In an act ---
  Status Run(const KernelContext& context, LoopDevice* device);
  void SetExtents(const KernelContext& context);
  Status Step(const KernelContext& context, LoopDevice* device, int64_t step);
  Status RunNodes(const KernelContext& context, LoopDevice* device, bool invariant);
  Status RunTogether(const KernelContext& context, LoopDevice* device, int64_t last);
  Status Put(const KernelContext& context, LoopDevice* device, size_t result, int value, int64_t step);
  char* Place(const KernelContext& context, const Lies& lies, int64_t step) const;
  char* Data(const KernelContext& context, int value, int64_t step) const;
  char* StateAfter(const KernelContext& context, size_t state, int64_t step) const;
  char* Kept(const KernelContext& context, size_t state, int64_t step) const;
  int64_t Position(int64_t step) const { return call.reverse ? call.steps - 1 - step : step; }
  char* Arena(const KernelContext& context, int64_t offset) const {
    return static_cast<char*>(context.scratch) + offset;
  }

  const KernelSpec& spec;  // while it is made
  LoopCall call;
  std::vector<Body::Node> order;
  std::vector<bool> invariant;  // by value: the same in every step
  std::vector<InnerNode> nodes;
  std::vector<int> root;                     // by value: that whose bytes it has
  std::vector<Lies> lies;                    // by root
  std::vector<bool> stacked;                 // by root: those of several steps lie in a row
  std::vector<std::pair<size_t, int>> copied;  // results, in order, that are values which lie elsewhere
  std::set<size_t> terms_together;   // of copied
  std::vector<bool> in_kept;         // by state: it lies where it is kept
  std::vector<int64_t> sums, other;  // offsets of sums, of the states' second place
  int64_t inner_scratch = 0, bytes = 0;
  struct Source {
    bool out = false;
    size_t operand = 0;
    int axis = 0;
  };
  std::map<char, Source> sources;                         // of labels: where their pieces can be seen
  std::map<char, std::pair<int64_t, int64_t>> pieces;     // begin and extent in this act
};

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
    InnerNode& inner = nodes.emplace_back();
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
    inner.spec = {node.op,   node.attrs, inner.in_args, inner.out_args,
                  spec.node, spec.line,  spec.threads};
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

// Whether the places of an operand with steps are contiguous and aligned, now and in acts with smaller pieces.
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

// The result that is the only term of a sum and a product over the rows of two values, each of which can lie in a
// row with those of other steps; 0: it is none.
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
    const Lies& at = lies[root[v]];
    if (invariant[root[v]] || at.where == Lies::kState || at.where == Lies::kNext) return 0;
    const LoopCall::Operand as{"", v, 0, call.body.values()[v].dtype, {}, call.body.values()[v].labels};
    if (at.where == Lies::kArena && !Direct(as, ArgOf(v).extent)) return 0;
  }
  return result;
}

void Loop::Impl::ChoosePlaces() {
  const Body& body = call.body;
  stacked.assign(body.values().size(), false);
  lies.resize(body.values().size());
  const size_t first_read = call.states + call.xs.size();
  for (size_t i = 0; i < body.inputs.size(); ++i) {
    Lies& at = lies[body.inputs[i]];
    if (i < call.states) {
      at = {Lies::kState, i};
    } else if (i >= first_read) {
      at = {Lies::kRead, i};
    } else if (Direct(call.in[i], spec.in[i].extent)) {
      at = {Lies::kX, i};
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
      lies[value] = {state ? Lies::kNext : Lies::kY, r};
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
    if (root[v] != static_cast<int>(v) || lies[v].where != Lies::kArena || to[v] < -1) continue;
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
  for (size_t i = 0; i < call.states; ++i)
    other.push_back(in_kept[i] ? 0 : take(Bytes(call.body.inputs[i])));
  for (size_t i = 0; i < call.sums.size(); ++i)
    sums.push_back(take(ArgOf(call.out[call.FirstSum() + i].value).elements() *
                        static_cast<int64_t>(sizeof(double))));
  inner_scratch = take(inner_scratch);  // its offset from here on
}

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
  for (InnerNode& node : nodes) {
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

char* Loop::Impl::Place(const KernelContext& context, const Lies& at, int64_t step) const {
  const auto place_of = [&](const LoopCall::Operand& operand, const TensorArg& arg) {
    int64_t rows = 0;
    const int64_t row = PlaceBytes(operand, arg.extent, &rows);
    return arg.as<char>() + Position(step) * row;
  };
  switch (at.where) {
    case Lies::kState:
      return step == 0 ? context.in[at.number].as<char>() : StateAfter(context, at.number, step - 1);
    case Lies::kX:
      return place_of(call.in[at.number], context.in[at.number]);
    case Lies::kRead:
      return context.in[at.number].as<char>();
    case Lies::kNext:
      return StateAfter(context, at.number, step);
    case Lies::kY:
      return place_of(call.out[at.number], context.out[at.number]);
    case Lies::kArena:
      break;
  }
  return Arena(context, at.offset);
}

char* Loop::Impl::Data(const KernelContext& context, int value, int64_t step) const {
  const int v = root[value];
  char* data = Place(context, lies[v], step);
  if (!stacked[v] || lies[v].where != Lies::kArena) return data;
  const int64_t first = step / kStepsTogether * kStepsTogether, end = std::min(call.steps, first + kStepsTogether);
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
  for (InnerNode& node : nodes) {
    if (node.invariant != of_invariants || node.together > 0) continue;
    Status status = device->Run(node.kernel.get(),
                                {node.spec, node.in_args, node.out_args, Arena(context, inner_scratch),
                                 context.step, context.time, context.times, context.seed});
    if (!status.ok()) return status;
  }
  return Status();
}

// The products of the steps up to the last one of those that go together.
Status Loop::Impl::RunTogether(const KernelContext& context, LoopDevice* device, int64_t last) {
  const int64_t first = last / kStepsTogether * kStepsTogether;
  for (InnerNode& node : nodes) {
    if (node.together == 0) continue;
    for (size_t i = 0; i < node.in.size(); ++i) {
      TensorArg& arg = node.in_args[i];
      arg = ArgOf(node.in[i]);
      arg.data = Data(context, node.in[i], call.reverse ? last : first);
      arg.begin[0] = 0;
      arg.extent[0] = arg.global[0] = arg.extent[0] * (last + 1 - first);
    }
    node.out_args[0].data = Data(context, node.out[0], last);
    Status status = device->Run(node.kernel.get(),
                                {node.spec, node.in_args, node.out_args, Arena(context, inner_scratch),
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
    Status status = device->Copy(Kept(context, i, step), size, Place(context, {Lies::kState, i}, step), size,
                                 1, size);
    if (!status.ok()) return status;
  }
  for (size_t i = call.states; i < call.states + call.xs.size(); ++i) {
    const int v = call.body.inputs[i];
    if (lies[v].where != Lies::kArena) continue;
    int64_t rows = 0;
    const int64_t row = PlaceBytes(call.in[i], context.in[i].extent, &rows);
    Status status = device->Copy(Data(context, v, step), row, context.in[i].as<char>() + Position(step) * row,
                                 row * call.steps, rows, row);
    if (!status.ok()) return status;
  }
  for (InnerNode& node : nodes) {
    if (node.together > 0) continue;
    for (size_t i = 0; i < node.in.size(); ++i) node.in_args[i].data = Data(context, node.in[i], step);
    for (size_t i = 0; i < node.out.size(); ++i) node.out_args[i].data = Data(context, node.out[i], step);
  }
  if (step == 0) {
    Status status = RunNodes(context, device, true);
    if (!status.ok()) return status;
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
  for (const InnerNode& node : impl_->nodes) kernels.push_back(node.kernel.get());
  return kernels;
}

int64_t Loop::Scratch(const KernelSpec& spec, const InnerKernels& kernels) {
  return Impl(spec, kernels, false).bytes;
}

}  // namespace oneflow_like
