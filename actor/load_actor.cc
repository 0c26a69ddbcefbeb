#include "actor/load_actor.h"

#include <algorithm>

#include "core/device/parallel_for.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

// Where the arena of what `name` names begins.
char* const* ArenaOf(const plan::Plan& plan, const LoadContext& context, int arena, const std::string& name) {
  if (arena < 0 || arena >= plan.arena_size())
    Fail("'", name, "' lies in arena ", arena, " of a plan with ", plan.arena_size());
  return context.arenas[arena];
}

OperandPlace PlaceOf(const plan::Plan& plan, const LoadContext& context, const BuffersById& buffers,
                     const plan::Operand& operand, const plan::Actor& actor) {
  auto found = buffers.find(operand.buffer());
  if (found == buffers.end())
    Fail("actor ", actor.name(), " names buffer ", operand.buffer(), ", which is not there");
  const plan::Buffer& buffer = *found->second;
  OperandPlace place;
  if (IsVariable(buffer)) {
    auto variable = context.variables->find(buffer.variable());
    if (variable == context.variables->end()) {
      Fail("actor ", actor.name(), " uses variable '", buffer.variable(), "', which rank ", plan.rank(),
           " does not have");
    }
    place.base = &variable->second;
  } else {
    place.base = ArenaOf(plan, context, buffer.arena(), buffer.name());
    place.offset.assign(buffer.offset().begin(), buffer.offset().end());
    if (place.offset.size() < static_cast<size_t>(std::max(1, buffer.slots())))
      Fail("buffer '", buffer.name(), "' of ", buffer.slots(), " slots lies at ", place.offset.size(),
           " places");
    for (int64_t offset : place.offset) {
      const int64_t room = plan.arena(buffer.arena()).bytes();
      if (offset >= 0 && offset + buffer.slot_bytes() <= room) continue;
      Fail("buffer '", buffer.name(), "' ends at byte ", offset + buffer.slot_bytes(), " of an arena of ",
           room);
    }
  }
  place.period = std::max(1, operand.period());
  place.skip = operand.skip();
  for (const plan::Box& box : operand.box()) place.boxes.push_back(ToBox(box));
  if (place.boxes.size() > 1 && static_cast<int>(place.boxes.size()) != actor.acts()) {
    Fail("actor ", actor.name(), " has ", actor.acts(), " acts but ", place.boxes.size(), " boxes of '",
         buffer.name(), "'");
  }
  return place;
}

void LoadKernel(const plan::Plan& plan, const LoadContext& context, const BuffersById& buffers,
                const plan::Kernel& kernel, Actor* actor, KernelCall* call) {
  call->spec = ToSpec(kernel);
  call->inputs = kernel.in_size();
  const auto add = [&](const plan::Operand& operand) {
    call->place.push_back(PlaceOf(plan, context, buffers, operand, *actor->spec));
  };
  for (const plan::Operand& operand : kernel.in()) add(operand);
  for (const plan::Operand& operand : kernel.out()) {
    add(operand);
    const plan::Buffer& buffer = *buffers.at(operand.buffer());
    if (IsVariable(buffer)) actor->variables.push_back(buffer.variable());
  }
  call->args = call->spec.in;
  call->args.insert(call->args.end(), call->spec.out.begin(), call->spec.out.end());
  if (kernel.scratch_bytes() > 0) {
    call->scratch_base = ArenaOf(plan, context, 0, kernel.node());
    call->scratch_offset = kernel.scratch_offset();
  }
  if (actor->kind != Actor::Kind::kKernels) return;
  // Objects of libraries are for a number of threads, that of the team which will run them.
  call->spec.threads =
      std::clamp(actor->shard->worker->kernel_threads(), 1, std::max(1, plan.kernel_threads()));
  const TeamSize team(call->spec.threads);
  call->kernel = context.registry->Make(call->spec, plan.device_kind());
}

// Every box that is read lies in one piece of what is needed.
void FindPieces(Actor* actor, const std::vector<Box>& needs) {
  std::vector<Box> boxes = actor->kernels[0].place[0].boxes;
  const TensorArg& arg = actor->kernels[0].args[0];
  if (boxes.empty()) boxes.push_back({arg.begin, arg.extent});
  for (const Box& box : boxes) {
    auto holds = [&](const Box& need) { return box.Intersect(need) == box; };
    const auto at = std::find_if(needs.begin(), needs.end(), holds);
    actor->fed.push_back(box.empty() ? -1 : static_cast<int>(at - needs.begin()));
  }
}

void LoadHostTensor(const plan::Plan& plan, const LoadContext& context, Actor* actor) {
  bool feed = actor->kind == Actor::Kind::kFeed;
  const std::string& name = feed ? actor->spec->feed() : actor->spec->fetch();
  const auto& index = feed ? *context.inputs : *context.outputs;
  auto found = index.find(name);
  if (found == index.end())
    Fail("plan '", plan.name(), "' has no ", feed ? "input" : "output", " '", name, "'");
  actor->host_tensor = found->second;
  const HostTensor& tensor = (feed ? *context.input_tensors : *context.output_tensors)[found->second];
  KernelCall& call = actor->kernels[0];
  if (call.args.size() != 1 || call.inputs != (feed ? 0 : 1)) {
    Fail("actor ", actor->spec->name(), " must ", feed ? "write" : "read", " one operand");
  }
  const TensorArg& arg = call.args[0];
  if (arg.dtype != tensor.dtype || arg.global != tensor.shape) {
    Fail("actor ", actor->spec->name(), " moves ", Name(arg.dtype), arg.global.str(), " but '", name, "' is ",
         Name(tensor.dtype), tensor.shape.str());
  }
  if (feed) FindPieces(actor, (*context.needs)[found->second]);
  if (!actor->synchronous) {
    actor->staging = actor->device->AllocateHost(std::max<size_t>(1, arg.elements() * SizeOf(arg.dtype)),
                                                 Cat(feed ? "input '" : "output '", name, "'"));
  }
}

void JoinCollective(const plan::Plan& plan, Collectives* collectives, Actor* actor) {
  const KernelCall& call = actor->kernels[0];
  const plan::Collective& collective = actor->spec->collective();
  const int operands = OperandsOf(collective), counts = collective.counts() > 0 ? 1 : 0;
  for (const auto& [end, given] : {std::pair(call.in().size(), counts), std::pair(call.out().size(), 0)})
    if ((end != 0 || given != 0) && static_cast<int>(end) != operands + given)
      Fail("collective ", actor->spec->name(), " has ", end, " operands but pieces of ", operands,
           given != 0 ? " and counts" : "");
  if (counts != 0)
    if (const TensorArg& arg = call.in().back();
        arg.dtype != DType::kInt32 || arg.elements() != collective.counts())
      Fail("collective ", actor->spec->name(), " reads ", arg.elements(), " counts of ", Name(arg.dtype),
           " where it has ", collective.counts(), " of i32");
  for (const TensorArg& arg : call.args)
    if (!(counts != 0 && &arg == &call.in().back()) && arg.dtype != call.args[0].dtype)
      Fail("collective ", actor->spec->name(), " moves ", Name(call.args[0].dtype), " and ", Name(arg.dtype),
           " at a time");
  actor->pieces.resize(call.args.size());
  CollectiveSpec spec;
  spec.plan = plan.name();
  spec.actor = actor->spec->name();
  spec.dtype = call.args.empty() ? DType::kFloat32 : call.args[0].dtype;
  spec.acts = actor->acts;
  spec.positions.assign(actor->spec->position().begin(), actor->spec->position().end());
  spec.worker = actor->shard->worker;
  spec.device = actor->device;
  spec.stream = actor->device_stream;
  spec.listener = actor;
  actor->member = collectives->Join(spec, collective);
}

}  // namespace

std::unique_ptr<Actor> LoadActor(const plan::Plan& plan, const plan::Actor& spec, const BuffersById& buffers,
                                 const LoadContext& context, const RankStreams& streams, Shard* shard) {
  auto owned = std::make_unique<Actor>();
  Actor* actor = owned.get();
  actor->spec = &spec;
  actor->rank = plan.rank();
  actor->shard = shard;
  actor->device = context.store->device(plan.rank());
  actor->acts = spec.acts();
  if (spec.acts() < 1) Fail("actor ", spec.name(), " has ", spec.acts(), " acts in a step");
  actor->kind = !spec.feed().empty()    ? Actor::Kind::kFeed
                : !spec.fetch().empty() ? Actor::Kind::kFetch
                : spec.has_collective() ? Actor::Kind::kCollective
                                        : Actor::Kind::kKernels;
  if (actor->kind != Actor::Kind::kKernels && spec.kernel_size() != 1) {
    Fail("actor ", spec.name(), " moves data and needs one kernel, not ", spec.kernel_size());
  }
  if (spec.stream() >= plan.stream_size()) {
    Fail("actor ", spec.name(), " is of stream ", spec.stream(), " of ", plan.stream_size());
  }
  actor->device_stream = spec.stream() >= 0                   ? streams.ordered[spec.stream()]->device.get()
                         : actor->kind == Actor::Kind::kFetch ? streams.fetches
                                                              : streams.feeds;
  actor->synchronous = actor->device_stream->synchronous();
  actor->kernels.resize(spec.kernel_size());
  for (int i = 0; i < spec.kernel_size(); ++i)
    LoadKernel(plan, context, buffers, spec.kernel(i), actor, &actor->kernels[i]);
  if (actor->kind == Actor::Kind::kFeed || actor->kind == Actor::Kind::kFetch)
    LoadHostTensor(plan, context, actor);
  if (actor->kind == Actor::Kind::kCollective) JoinCollective(plan, context.collectives, actor);
  return owned;
}

}  // namespace oneflow_like
