// Makes the actors of one rank's plan, and checks what the acting path relies on.
#include "actor/loading.h"

#include <algorithm>
#include <set>

#include "core/device/parallel_for.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

class Loader {
 public:
  Loader(const plan::Plan& plan, const LoadContext& context, Shard* shard)
      : plan_(plan), context_(context), shard_(shard), device_(context.store->device(plan.rank())) {
    for (const plan::Buffer& buffer : plan.buffer()) buffers_[buffer.id()] = &buffer;
  }

  void Load() {
    MakeStreams();
    for (const plan::Actor& actor : plan_.actor()) LoadActor(actor);
    Connect();
    for (int i = 0; i < plan_.stream_size(); ++i) LoadStream(plan_.stream(i), streams_[i]);
    for (auto& [id, actor] : actors_) {
      if (actor->stream == nullptr && actor->spec->stream() >= 0) {
        Fail("actor ", actor->spec->name(), " is in no stream's order");
      }
      shard_->acts_per_step += actor->acts;
      Count(actor);
      if (!actor->synchronous) MakeLaunches(actor);
    }
    for (auto& [id, actor] : actors_) {
      if (!actor->synchronous) FindEvents(actor);
      actor->Loaded();
    }
  }

 private:
  void LoadActor(const plan::Actor& spec) {
    auto owned = std::make_unique<Actor>();
    Actor* actor = owned.get();
    if (!actors_.emplace(spec.id(), actor).second) Fail("two actors have the id ", spec.id());
    shard_->actors.push_back(std::move(owned));
    actor->spec = &spec;
    actor->rank = plan_.rank();
    actor->shard = shard_;
    actor->device = device_;
    actor->acts = spec.acts();
    if (spec.acts() < 1) Fail("actor ", spec.name(), " has ", spec.acts(), " acts in a step");
    actor->kind = !spec.feed().empty()    ? Actor::Kind::kFeed
                  : !spec.fetch().empty() ? Actor::Kind::kFetch
                  : spec.has_collective() ? Actor::Kind::kCollective
                                          : Actor::Kind::kKernels;
    if (actor->kind != Actor::Kind::kKernels && spec.kernel_size() != 1) {
      Fail("actor ", spec.name(), " moves data and needs one kernel, not ", spec.kernel_size());
    }
    if (spec.stream() >= plan_.stream_size()) {
      Fail("actor ", spec.name(), " is of stream ", spec.stream(), " of ", plan_.stream_size());
    }
    actor->device_stream = spec.stream() >= 0                   ? streams_[spec.stream()]->device.get()
                           : actor->kind == Actor::Kind::kFetch ? fetches_
                                                                : feeds_;
    actor->synchronous = actor->device_stream->synchronous();
    actor->kernels.resize(spec.kernel_size());
    for (int i = 0; i < spec.kernel_size(); ++i) LoadKernel(spec.kernel(i), actor, &actor->kernels[i]);
    if (actor->kind == Actor::Kind::kFeed || actor->kind == Actor::Kind::kFetch) LoadHostTensor(actor);
    if (actor->kind == Actor::Kind::kCollective) LoadCollective(actor);
    AddPorts(actor);
  }

  void LoadKernel(const plan::Kernel& kernel, Actor* actor, KernelCall* call) {
    call->spec = ToSpec(kernel);
    call->inputs = kernel.in_size();
    for (const plan::Operand& operand : kernel.in()) call->place.push_back(Place(operand, *actor->spec));
    for (const plan::Operand& operand : kernel.out()) {
      call->place.push_back(Place(operand, *actor->spec));
      const plan::Buffer& buffer = *buffers_.at(operand.buffer());
      if (IsVariable(buffer)) actor->variables.push_back(buffer.variable());
    }
    call->args = call->spec.in;
    call->args.insert(call->args.end(), call->spec.out.begin(), call->spec.out.end());
    if (kernel.scratch_bytes() > 0) {
      call->scratch_base = Arena(0, kernel.node());
      call->scratch_offset = kernel.scratch_offset();
    }
    if (actor->kind != Actor::Kind::kKernels) return;
    // Objects of libraries are for a number of threads, that of the team which will run them.
    call->spec.threads = std::clamp(shard_->worker->kernel_threads(), 1, std::max(1, plan_.kernel_threads()));
    const TeamSize team(call->spec.threads);
    call->kernel = context_.registry->Make(call->spec, plan_.device_kind());
  }

  // Where the arena of what `name` names begins.
  char* const* Arena(int arena, const std::string& name) const {
    if (arena < 0 || arena >= plan_.arena_size())
      Fail("'", name, "' lies in arena ", arena, " of a plan with ", plan_.arena_size());
    return context_.arenas[arena];
  }

  OperandPlace Place(const plan::Operand& operand, const plan::Actor& actor) {
    auto found = buffers_.find(operand.buffer());
    if (found == buffers_.end())
      Fail("actor ", actor.name(), " names buffer ", operand.buffer(), ", which is not there");
    const plan::Buffer& buffer = *found->second;
    OperandPlace place;
    if (IsVariable(buffer)) {
      auto variable = context_.variables->find(buffer.variable());
      if (variable == context_.variables->end()) {
        Fail("actor ", actor.name(), " uses variable '", buffer.variable(), "', which rank ", plan_.rank(),
             " does not have");
      }
      place.base = &variable->second;
    } else {
      place.base = Arena(buffer.arena(), buffer.name());
      place.offset.assign(buffer.offset().begin(), buffer.offset().end());
      if (place.offset.size() < static_cast<size_t>(std::max(1, buffer.slots())))
        Fail("buffer '", buffer.name(), "' of ", buffer.slots(), " slots lies at ", place.offset.size(),
             " places");
      for (int64_t offset : place.offset) {
        const int64_t room = plan_.arena(buffer.arena()).bytes();
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

  void LoadHostTensor(Actor* actor) {
    bool feed = actor->kind == Actor::Kind::kFeed;
    const std::string& name = feed ? actor->spec->feed() : actor->spec->fetch();
    const auto& index = feed ? *context_.inputs : *context_.outputs;
    auto found = index.find(name);
    if (found == index.end())
      Fail("plan '", plan_.name(), "' has no ", feed ? "input" : "output", " '", name, "'");
    actor->host_tensor = found->second;
    const HostTensor& tensor = (feed ? *context_.input_tensors : *context_.output_tensors)[found->second];
    KernelCall& call = actor->kernels[0];
    if (call.args.size() != 1 || call.inputs != (feed ? 0 : 1)) {
      Fail("actor ", actor->spec->name(), " must ", feed ? "write" : "read", " one operand");
    }
    const TensorArg& arg = call.args[0];
    if (arg.dtype != tensor.dtype || arg.global != tensor.shape) {
      Fail("actor ", actor->spec->name(), " moves ", Name(arg.dtype), arg.global.str(), " but '", name,
           "' is ", Name(tensor.dtype), tensor.shape.str());
    }
    if (feed) FindPieces(actor, (*context_.needs)[found->second]);
    if (!actor->synchronous) {
      actor->staging = device_->AllocateHost(std::max<size_t>(1, arg.elements() * SizeOf(arg.dtype)),
                                             Cat(feed ? "input '" : "output '", name, "'"));
    }
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

  void LoadCollective(Actor* actor) {
    const KernelCall& call = actor->kernels[0];
    const int operands = OperandsOf(actor->spec->collective());
    for (size_t end : {call.in().size(), call.out().size()})
      if (end != 0 && static_cast<int>(end) != operands)
        Fail("collective ", actor->spec->name(), " has ", end, " operands but pieces of ", operands);
    for (const TensorArg& arg : call.args)
      if (arg.dtype != call.args[0].dtype)
        Fail("collective ", actor->spec->name(), " moves ", Name(call.args[0].dtype), " and ",
             Name(arg.dtype), " at a time");
    actor->pieces.resize(call.args.size());
    CollectiveSpec spec;
    spec.plan = plan_.name();
    spec.actor = actor->spec->name();
    spec.dtype = call.args.empty() ? DType::kFloat32 : call.args[0].dtype;
    spec.acts = actor->acts;
    spec.worker = shard_->worker;
    spec.device = device_;
    spec.stream = actor->device_stream;
    spec.listener = actor;
    actor->member = context_.collectives->Join(spec, actor->spec->collective());
  }

  void AddPorts(Actor* actor) {
    auto add = [&](const plan::Port& port, bool out) {
      Port p;
      p.out = out;
      p.credits = port.credits();
      p.period = std::max(1, port.period());
      // What ends later than it starts announces at its end, whatever the plan says of kernels.
      p.kernel = actor->kind == Actor::Kind::kKernels ? port.kernel() : 0;
      if (!out && !actor->synchronous) p.kernel = LastOfUpdates(*actor, p.kernel);
      if (actor->acts % p.period != 0) {
        Fail("actor ", actor->spec->name(), " has ", actor->acts, " acts, which edge ", port.edge(),
             " shares by ", p.period);
      }
      actor->ports.push_back(p);
      edges_.push_back(port.edge());
    };
    edges_.clear();
    for (const plan::Port& port : actor->spec->in()) add(port, false);
    for (const plan::Port& port : actor->spec->out()) add(port, true);
    // Announced by position: the ports stand in the order of the kernels they follow.
    std::vector<int> order(edges_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return actor->ports[a].kernel < actor->ports[b].kernel; });
    std::vector<Port> sorted;
    for (int i : order) {
      Ends& ends = ends_[edges_[i]];
      End& end = actor->ports[i].out ? ends.writer : ends.reader;
      if (end.actor != nullptr)
        Fail("edge ", edges_[i], " has two ", actor->ports[i].out ? "writers" : "readers");
      end = {actor, static_cast<int>(sorted.size())};
      sorted.push_back(std::move(actor->ports[i]));
    }
    actor->ports = std::move(sorted);
  }

  // An asynchronous device may do updates that follow each other in one launch, unless credits of one have to
  // go before the next: what they read they give back together. The slots of gradients are not missed before
  // the next step's.
  int LastOfUpdates(const Actor& actor, int kernel) {
    auto updates = [&](int k) {
      const auto& out = actor.spec->kernel(k).out();
      return !out.empty() && std::all_of(out.begin(), out.end(), [&](const plan::Operand& operand) {
        auto found = buffers_.find(operand.buffer());
        return found != buffers_.end() && IsVariable(*found->second);
      });
    };
    while (kernel >= 0 && kernel + 1 < actor.spec->kernel_size() && updates(kernel) && updates(kernel + 1) &&
           actor.spec->kernel(kernel).name() == actor.spec->kernel(kernel + 1).name()) {
      ++kernel;
    }
    return kernel;
  }

  void Connect() {
    for (auto& [edge, ends] : ends_) {
      if (ends.writer.actor == nullptr || ends.reader.actor == nullptr) {
        const Actor* there = ends.writer.actor != nullptr ? ends.writer.actor : ends.reader.actor;
        Fail("edge ", edge, " of ", there->spec->name(), " has no ", ends.writer.actor ? "reader" : "writer",
             " on rank ", plan_.rank());
      }
      Port& writer = ends.writer.actor->ports[ends.writer.port];
      Port& reader = ends.reader.actor->ports[ends.reader.port];
      writer.peer = ends.reader.actor;
      writer.peer_port = ends.reader.port;
      reader.peer = ends.writer.actor;
      reader.peer_port = ends.writer.port;
    }
  }

  // Of the host one stream for all that is in no order; of an asynchronous device one for what comes in and
  // one for what goes out, since a copy in would wait for the copies out before it.
  void MakeStreams() {
    for (const plan::Stream& spec : plan_.stream()) {
      auto stream = std::make_unique<Stream>();
      stream->shard = shard_;
      stream->device = device_->MakeStream(spec.name());
      streams_.push_back(stream.get());
      shard_->streams.push_back(std::move(stream));
    }
    feeds_ = MakeUnordered("feeds");
    fetches_ = feeds_->synchronous() ? feeds_ : MakeUnordered("fetches");
  }

  DeviceStream* MakeUnordered(const std::string& name) {
    shard_->unordered_streams.push_back(device_->MakeStream(name));
    return shard_->unordered_streams.back().get();
  }

  // Where credits of an actor on an asynchronous stream go to another stream, its kernels up to there are
  // launched together.
  void MakeLaunches(Actor* actor) {
    std::map<int, bool> ends;  // by kernel: whether another stream waits for it
    for (const Port& port : actor->ports) {
      if (port.peer->device_stream != actor->device_stream) ends[port.kernel] = true;
    }
    bool one = actor->kind != Actor::Kind::kKernels;
    ends.try_emplace(one ? 0 : static_cast<int>(actor->kernels.size()) - 1, false);
    for (auto [kernel, awaited] : ends) {
      KernelLaunch launch;
      launch.end = static_cast<size_t>(kernel) + 1;
      if (!one) launch.segment = actor->device_stream->MakeSegment();
      if (awaited) launch.event = actor->device_stream->MakeEvent();
      actor->launches.push_back(std::move(launch));
    }
  }

  void FindEvents(Actor* actor) {
    for (Port& port : actor->ports) {
      if (port.peer->device_stream == actor->device_stream) continue;
      const Port& there = port.peer->ports[port.peer_port];
      for (const KernelLaunch& launch : port.peer->launches) {
        if (static_cast<int>(launch.end) == there.kernel + 1) port.after = launch.event.get();
      }
    }
  }

  void LoadStream(const plan::Stream& spec, Stream* stream) {
    std::map<int, int> entries;
    for (int id : spec.actor()) {
      auto found = actors_.find(id);
      if (found == actors_.end()) Fail("stream ", spec.name(), " names actor ", id, ", which is not there");
      Actor* actor = found->second;
      if (actor->stream != nullptr && actor->stream != stream) {
        Fail("actor ", actor->spec->name(), " is in two streams");
      }
      if (actor->device_stream != stream->device.get()) {
        Fail("actor ", actor->spec->name(), " says it is of stream ", actor->spec->stream(), ", not of ",
             spec.name());
      }
      actor->stream = stream;
      stream->order.push_back(actor);
      ++entries[id];
    }
    for (auto [id, count] : entries) {
      if (count != actors_[id]->acts) {
        Fail("stream ", spec.name(), " has ", count, " entries of ", actors_[id]->spec->name(),
             ", which has ", actors_[id]->acts, " acts");
      }
    }
    stream->Loaded();
  }

  // A single slot is taken once it is written; counting starts where the answer is not known.
  BufferCount* CountOf(const plan::Operand& operand) {
    const plan::Buffer& buffer = *buffers_.at(operand.buffer());
    BufferCount*& count = counts_[buffer.id()];
    if (count == nullptr) {
      auto made = std::make_unique<BufferCount>();
      count = made.get();
      made->rank = plan_.rank();
      made->id = buffer.id();
      made->full = buffer.full();
      made->peak = buffer.slots() <= 1 ? 1 : buffer.full();
      context_.counts->push_back(std::move(made));
    }
    return IsVariable(buffer) || buffer.slots() <= 1 ? nullptr : count;
  }

  void Count(Actor* actor) {
    auto add = [&](const plan::Operand& operand, bool write) {
      BufferCount* count = CountOf(operand);
      if (count == nullptr) return;
      std::vector<Counted>& list = write ? actor->writes : actor->reads;
      if (std::any_of(list.begin(), list.end(), [&](const Counted& c) { return c.buffer == count; })) return;
      list.push_back({count, static_cast<int>(count->read.size()), std::max(1, operand.period())});
      if (!write) count->read.push_back(0);
    };
    for (const plan::Kernel& kernel : actor->spec->kernel()) {
      for (const plan::Operand& operand : kernel.in()) add(operand, false);
      for (const plan::Operand& operand : kernel.out()) add(operand, true);
    }
    // What nobody reads is given up when its writer ends.
    for (const plan::Kernel& kernel : actor->spec->kernel()) {
      for (const plan::Operand& operand : kernel.out()) {
        if (!HasReader(operand.buffer())) add(operand, false);
      }
    }
  }

  bool HasReader(int buffer) {
    if (read_buffers_.empty()) {
      read_buffers_.insert(-1);
      for (const plan::Actor& actor : plan_.actor()) {
        for (const plan::Kernel& kernel : actor.kernel()) {
          for (const plan::Operand& operand : kernel.in()) read_buffers_.insert(operand.buffer());
        }
      }
    }
    return read_buffers_.count(buffer) != 0;
  }

  struct End {
    Actor* actor = nullptr;
    int port = 0;
  };
  struct Ends {
    End writer, reader;
  };

  const plan::Plan& plan_;
  const LoadContext& context_;
  Shard* const shard_;
  Device* const device_;
  std::vector<Stream*> streams_;  // by number
  DeviceStream *feeds_ = nullptr, *fetches_ = nullptr;
  std::vector<int> edges_;  // of the ports just added
  std::map<int, const plan::Buffer*> buffers_;
  std::map<int, Actor*> actors_;
  std::map<int, Ends> ends_;
  std::map<int, BufferCount*> counts_;
  std::set<int> read_buffers_;
};

}  // namespace

void LoadPlan(const plan::Plan& plan, const LoadContext& context, Shard* shard) {
  Loader(plan, context, shard).Load();
}

}  // namespace oneflow_like
