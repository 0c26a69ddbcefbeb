// Makes the actors of one rank's plan, and checks what the acting path relies on.
#include "actor/loading.h"

#include <algorithm>
#include <set>
#include <utility>

#include "actor/load_actor.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

// The host has one stream for all work without an order. An asynchronous device has two, one for copies in
// and one for copies out, because a copy in would wait for the copies out before it.
RankStreams MakeStreams(const plan::Plan& plan, Device* device, Shard* shard) {
  RankStreams streams;
  for (const plan::Stream& spec : plan.stream()) {
    auto stream = std::make_unique<Stream>();
    stream->shard = shard;
    stream->device = device->MakeStream(spec.name());
    streams.ordered.push_back(stream.get());
    shard->streams.push_back(std::move(stream));
  }
  const auto unordered = [&](const std::string& name) {
    shard->unordered_streams.push_back(device->MakeStream(name));
    return shard->unordered_streams.back().get();
  };
  streams.feeds = unordered("feeds");
  streams.fetches = streams.feeds->synchronous() ? streams.feeds : unordered("fetches");
  return streams;
}

// An asynchronous device may do updates that follow each other in one launch, unless credits of one have to
// go before the next: what they read they give back together. The slots of gradients are not missed before
// the next step's.
int LastOfUpdates(const BuffersById& buffers, const Actor& actor, int kernel) {
  auto updates = [&](int k) {
    const auto& out = actor.spec->kernel(k).out();
    return !out.empty() && std::all_of(out.begin(), out.end(), [&](const plan::Operand& operand) {
      auto found = buffers.find(operand.buffer());
      return found != buffers.end() && IsVariable(*found->second);
    });
  };
  while (kernel >= 0 && kernel + 1 < actor.spec->kernel_size() && updates(kernel) && updates(kernel + 1) &&
         actor.spec->kernel(kernel).name() == actor.spec->kernel(kernel + 1).name()) {
    ++kernel;
  }
  return kernel;
}

struct EdgeEnd {
  Actor* actor = nullptr;
  int port = 0;
};
struct EdgeEnds {
  EdgeEnd writer, reader;
};

// Gives an actor its ports, announced by position: in the order of the kernels they follow. Adds them to the
// ends of edges.
void AddPorts(const BuffersById& buffers, Actor* actor, std::map<int, EdgeEnds>* edges) {
  std::vector<std::pair<Port, int>> ports;  // and their edges
  const auto add = [&](const plan::Port& port, bool out) {
    Port p;
    p.out = out;
    p.credits = port.credits();
    p.period = std::max(1, port.period());
    // An act that ends later than it starts announces its ports when it ends, and not after a kernel.
    p.kernel = actor->kind == Actor::Kind::kKernels ? port.kernel() : 0;
    if (!out && !actor->synchronous) p.kernel = LastOfUpdates(buffers, *actor, p.kernel);
    if (actor->acts % p.period != 0) {
      Fail("actor ", actor->spec->name(), " has ", actor->acts, " acts, which edge ", port.edge(),
           " shares by ", p.period);
    }
    ports.push_back({std::move(p), port.edge()});
  };
  for (const plan::Port& port : actor->spec->in()) add(port, false);
  for (const plan::Port& port : actor->spec->out()) add(port, true);
  std::stable_sort(ports.begin(), ports.end(),
                   [](const auto& a, const auto& b) { return a.first.kernel < b.first.kernel; });
  for (auto& [port, edge] : ports) {
    EdgeEnd& end = port.out ? (*edges)[edge].writer : (*edges)[edge].reader;
    if (end.actor != nullptr) Fail("edge ", edge, " has two ", port.out ? "writers" : "readers");
    end = {actor, static_cast<int>(actor->ports.size())};
    actor->ports.push_back(std::move(port));
  }
}

void Connect(int rank, const std::map<int, EdgeEnds>& edges) {
  for (const auto& [edge, ends] : edges) {
    if (ends.writer.actor == nullptr || ends.reader.actor == nullptr) {
      const Actor* there = ends.writer.actor != nullptr ? ends.writer.actor : ends.reader.actor;
      Fail("edge ", edge, " of ", there->spec->name(), " has no ", ends.writer.actor ? "reader" : "writer",
           " on rank ", rank);
    }
    Port& writer = ends.writer.actor->ports[ends.writer.port];
    Port& reader = ends.reader.actor->ports[ends.reader.port];
    writer.peer = ends.reader.actor;
    writer.peer_port = ends.reader.port;
    reader.peer = ends.writer.actor;
    reader.peer_port = ends.writer.port;
  }
}

void LoadStream(const plan::Stream& spec, const std::map<int, Actor*>& actors, Stream* stream) {
  std::map<int, int> entries;
  for (int id : spec.actor()) {
    auto found = actors.find(id);
    if (found == actors.end()) Fail("stream ", spec.name(), " names actor ", id, ", which is not there");
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
    if (count != actors.at(id)->acts) {
      Fail("stream ", spec.name(), " has ", count, " entries of ", actors.at(id)->spec->name(),
           ", which has ", actors.at(id)->acts, " acts");
    }
  }
  stream->Loaded();
}

std::set<int> ReadBuffers(const plan::Plan& plan) {
  std::set<int> read;
  for (const plan::Actor& actor : plan.actor())
    for (const plan::Kernel& kernel : actor.kernel())
      for (const plan::Operand& operand : kernel.in()) read.insert(operand.buffer());
  return read;
}

// Counts the slots of buffers that actors use. A single slot is taken once it is written; counting starts
// where the answer is not known.
void CountSlots(const plan::Plan& plan, const BuffersById& buffers, const std::map<int, Actor*>& actors,
                std::vector<std::unique_ptr<BufferCount>>* counts) {
  std::map<int, BufferCount*> known;
  const auto count_of = [&](const plan::Buffer& buffer) {
    BufferCount*& count = known[buffer.id()];
    if (count == nullptr) {
      count = counts->emplace_back(std::make_unique<BufferCount>()).get();
      count->rank = plan.rank();
      count->id = buffer.id();
      count->full = buffer.full();
      count->peak = buffer.slots() <= 1 ? 1 : buffer.full();
    }
    return count;
  };
  const auto add = [&](const plan::Operand& operand, std::vector<Counted>* uses, bool write) {
    const plan::Buffer& buffer = *buffers.at(operand.buffer());
    BufferCount* count = count_of(buffer);
    if (IsVariable(buffer) || buffer.slots() <= 1) return;
    if (std::any_of(uses->begin(), uses->end(), [&](const Counted& c) { return c.buffer == count; })) return;
    uses->push_back({count, static_cast<int>(count->read.size()), std::max(1, operand.period())});
    if (!write) count->read.push_back(0);
  };
  const std::set<int> read = ReadBuffers(plan);
  for (const auto& [id, actor] : actors) {
    for (const plan::Kernel& kernel : actor->spec->kernel()) {
      for (const plan::Operand& operand : kernel.in()) add(operand, &actor->reads, false);
      for (const plan::Operand& operand : kernel.out()) add(operand, &actor->writes, true);
    }
    // What nobody reads is given up when its writer ends.
    for (const plan::Kernel& kernel : actor->spec->kernel())
      for (const plan::Operand& operand : kernel.out())
        if (!read.count(operand.buffer())) add(operand, &actor->reads, false);
  }
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

}  // namespace

DeviceStream* LoadPlan(const plan::Plan& plan, const LoadContext& context, Shard* shard) {
  BuffersById buffers;
  for (const plan::Buffer& buffer : plan.buffer()) buffers[buffer.id()] = &buffer;
  const RankStreams streams = MakeStreams(plan, context.store->device(plan.rank()), shard);
  std::map<int, Actor*> actors;
  std::map<int, EdgeEnds> edges;
  for (const plan::Actor& spec : plan.actor()) {
    if (actors.count(spec.id())) Fail("two actors have the id ", spec.id());
    shard->actors.push_back(LoadActor(plan, spec, buffers, context, streams, shard));
    Actor* actor = actors[spec.id()] = shard->actors.back().get();
    AddPorts(buffers, actor, &edges);
  }
  Connect(plan.rank(), edges);
  for (int i = 0; i < plan.stream_size(); ++i) LoadStream(plan.stream(i), actors, streams.ordered[i]);
  for (const auto& [id, actor] : actors) {
    if (actor->stream == nullptr && actor->spec->stream() >= 0) {
      Fail("actor ", actor->spec->name(), " is in no stream's order");
    }
    shard->acts_per_step += actor->acts;
  }
  CountSlots(plan, buffers, actors, context.counts);
  for (const auto& [id, actor] : actors)
    if (!actor->synchronous) MakeLaunches(actor);
  for (const auto& [id, actor] : actors) {
    if (!actor->synchronous) FindEvents(actor);
    actor->Loaded();
  }
  for (int i = 0; i < plan.stream_size(); ++i)
    if (plan.stream(i).kind() == plan::COMPUTE) return streams.ordered[i]->device.get();
  return nullptr;
}

}  // namespace oneflow_like
