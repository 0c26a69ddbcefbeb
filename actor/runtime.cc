// The user's side of the runtime: loads plans, launches steps, closes.
#include "actor/runtime.h"

#include <glog/logging.h>

#include <algorithm>
#include <mutex>
#include <tuple>

#include "actor/actor.h"
#include "actor/device_collectives.h"
#include "actor/library_choices.h"
#include "actor/loading.h"
#include "actor/peer_steps.h"
#include "actor/store.h"
#include "actor/who_waits.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {

Status StepHandle::State::Wait() {
  if (!done.Done()) {
    Status stuck = executor->Await(&done);
    if (!stuck.ok()) {
      SetError(Cat("the step has stalled: ", describe_stall ? describe_stall() : stuck.message()));
      done.Signal();
    }
  }
  return status();
}

void StepHandle::State::SetError(const std::string& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_.empty()) error_ = message;
}

Status StepHandle::State::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return Status(error_);
}

void StepHandle::State::Reset(int64_t next_step, int64_t next_launch) {
  step = next_step;
  launch = next_launch;
  done.Reset();
  std::lock_guard<std::mutex> lock(mutex_);
  error_.clear();
}

Status StepHandle::Wait() const {
  return state_ == nullptr ? Status("the handle is of no step") : state_->Wait();
}
bool StepHandle::Done() const { return state_ == nullptr || state_->done.Done(); }
int64_t StepHandle::step() const { return state_ == nullptr ? -1 : state_->step; }

const HostTensor& StepHandle::Get(const std::string& output) const {
  CHECK(state_ != nullptr && state_->done.Done()) << "read before Wait()";
  auto found = state_->names.find(output);
  if (found == state_->names.end()) {
    std::string known;
    for (const auto& [name, index] : state_->names) known += Cat(known.empty() ? "" : ", ", "'", name, "'");
    Fail("the step has no output '", output, "'; its outputs are ", known.empty() ? "none" : known);
  }
  return state_->results[found->second];
}

struct Runtime::Impl {
  std::vector<plan::Plan> plans;
  Store* store = nullptr;
  Executor* executor = nullptr;
  RunState run;
  // In this order: a member goes before its collectives, the link before what it tells.
  std::unique_ptr<PeerSteps> peers;
  std::unique_ptr<PeerLink> link;
  std::unique_ptr<Collectives> local;
  std::unique_ptr<Collectives> of_devices;
  Collectives* collectives = nullptr;  // the devices', the link's, or `local`
  std::vector<std::unique_ptr<Shard>> shards;
  std::vector<std::unique_ptr<BufferCount>> counts;
  std::map<std::string, int> inputs, outputs;
  std::vector<HostTensor> input_tensors, output_tensors;  // types and shapes, no data
  std::vector<std::vector<Box>> needs;                    // by input: what ranks here read; disjoint
  int64_t launched = 0;
  int64_t own_steps = 0;
  int64_t* next_step = &own_steps;  // number of the next launch's step
  bool closed = false;
  const ClockPoint born = ClockPoint::Now();
  // Left when closed.
  StepProfile profile;
  Backend* backend = nullptr;
  BackendCounts counted;  // when a profile was last taken
  StepProfile Collect(const ClockPoint& until);
  std::vector<TraceBuffer> traces;
  ClockPoint closed_at;

  void AddHostTensors(const plan::Plan& plan);
  void Load(const KernelRegistry& registry, const RuntimeOptions& options);
  void MakeCollectives(Peers* others, Backend* backend);
  bool OnDevices() const;  // whether any process's part of the plan is on asynchronous devices
  ExchangeTexts ExchangeOfLink();
  void DecideChoices(const std::map<int, DeviceStream*>& streams, bool tune);
  int64_t ElementsOfPeers() const;
  void FindNeeds();
  void CheckFeeds(const Feeds& feeds, const FeedPieces& pieces) const;
  void CopyFeeds(const Feeds& feeds, const FeedPieces& pieces, StepSlot* slot) const;
  std::shared_ptr<StepHandle::State> TakeState(StepSlot* slot);
  std::string DescribeStall() const;
  std::string PlanName() const { return plans.empty() ? "" : plans[0].name(); }
  bool InFlight() const;
  void KeepMeasurements();

  // A lock, since who asks is a thread of its own: held while it asks, so that shards stay.
  mutable std::mutex asking;
  std::vector<std::unique_ptr<Question>> questions;
};

void Runtime::Impl::AddHostTensors(const plan::Plan& plan) {
  auto add = [&](const auto& fetches, std::map<std::string, int>* index, std::vector<HostTensor>* tensors) {
    for (const plan::Fetch& fetch : fetches) {
      HostTensor tensor{ToDType(fetch.dtype()), ToDims(fetch.global()), nullptr};
      auto [at, added] = index->emplace(fetch.name(), static_cast<int>(tensors->size()));
      if (added) {
        tensors->push_back(tensor);
        continue;
      }
      const HostTensor& there = (*tensors)[at->second];
      if (there.dtype != tensor.dtype || there.shape != tensor.shape) {
        Fail("'", fetch.name(), "' is ", Name(tensor.dtype), tensor.shape.str(), " in the plan of rank ",
             plan.rank(), " but ", Name(there.dtype), there.shape.str(), " in another rank's");
      }
    }
  };
  add(plan.input(), &inputs, &input_tensors);
  add(plan.output(), &outputs, &output_tensors);
}

// Of the outputs of a step: each element is delivered once, so what is not fetched here comes from the
// others.
int64_t Runtime::Impl::ElementsOfPeers() const {
  int64_t elements = 0;
  for (const HostTensor& output : output_tensors) elements += output.elements();
  for (const auto& shard : shards) {
    for (const auto& actor : shard->actors) {
      if (actor->kind != Actor::Kind::kFetch) continue;
      for (const Box& box : actor->kernels[0].place[0].boxes) elements -= box.elements();
      if (actor->kernels[0].place[0].boxes.empty()) elements -= actor->kernels[0].args[0].elements();
    }
  }
  return elements;
}

void Runtime::Impl::FindNeeds() {
  needs.resize(input_tensors.size());
  for (const plan::Plan& plan : plans)
    for (const plan::Actor& actor : plan.actor()) {
      auto input = inputs.find(actor.feed());
      if (input == inputs.end() || actor.kernel_size() != 1 || actor.kernel(0).out_size() != 1) continue;
      for (const plan::Box& box : actor.kernel(0).out(0).box()) needs[input->second].push_back(ToBox(box));
    }
  for (std::vector<Box>& boxes : needs) boxes = Disjoint(std::move(boxes));
}

ExchangeTexts Runtime::Impl::ExchangeOfLink() {
  if (link == nullptr) return {};
  return [this](const std::string& what, const std::string& mine) { return link->Exchange(what, mine); };
}

void Runtime::Impl::MakeCollectives(Peers* others, Backend* backend) {
  if (others != nullptr) {
    peers = std::make_unique<PeerSteps>(&run);
    link = others->Connect(PlanName(), peers.get());
    peers->SetLink(link.get());
    run.peers = peers.get();
    collectives = link->collectives();
  } else {
    local = MakeLocalCollectives();
    collectives = local.get();
  }
  if (!OnDevices()) return;
  DeviceCollectivesOptions options;
  this->backend = backend;
  if (backend != nullptr) counted = backend->Counts();
  options.plan = PlanName();
  options.ranks = store->ranks();
  for (int rank : options.ranks) options.devices.push_back(store->device(rank));
  options.backend = backend;
  options.host = collectives;
  for (const plan::Plan& plan : plans) {
    const auto links = std::count_if(plan.stream().begin(), plan.stream().end(),
                                     [](const plan::Stream& s) { return s.kind() == plan::LINK; });
    options.link_streams = std::max(options.link_streams, static_cast<int>(links));
  }
  options.exchange = ExchangeOfLink();
  of_devices = MakeDeviceCollectives(std::move(options));
  collectives = of_devices.get();
  if (peers != nullptr) peers->SetCollectives(of_devices.get());
}

bool Runtime::Impl::OnDevices() const {
  const std::string kinds = plans.empty() ? "" : plans[0].device_kinds();
  return !kinds.empty() && kinds != "cpu";
}

void Runtime::Impl::Load(const KernelRegistry& registry, const RuntimeOptions& options) {
  for (const plan::Plan& plan : plans) AddHostTensors(plan);
  FindNeeds();
  {
    std::lock_guard<std::mutex> lock(store->impl()->launch_mutex);
    if (store->impl()->last != nullptr) (void)store->impl()->last->Wait();
    for (const plan::Plan& plan : plans) store->Prepare(plan, registry);
  }
  for (int i = 0; i < executor->workers(); ++i)
    shards.push_back(std::make_unique<Shard>(&run, executor->worker(i)));
  MakeCollectives(options.peers, options.backend);
  std::map<int, DeviceStream*> computing;  // by rank
  const std::vector<int>& ranks = store->ranks();
  for (const plan::Plan& plan : plans) {
    auto at = std::find(ranks.begin(), ranks.end(), plan.rank());
    Store::Impl::Rank& rank = store->impl()->At(plan.rank());
    LoadContext context;
    context.registry = &registry;
    context.store = store;
    context.collectives = collectives;
    context.inputs = &inputs;
    context.outputs = &outputs;
    context.input_tensors = &input_tensors;
    context.output_tensors = &output_tensors;
    context.needs = &needs;
    context.counts = &counts;
    for (const plan::Arena& arena : plan.arena()) context.arenas.push_back(&rank.arenas[arena.memory()].base);
    context.variables = &rank.addresses;
    computing[plan.rank()] = LoadPlan(plan, context, shards[(at - ranks.begin()) % shards.size()].get());
  }
  if (OnDevices()) DecideChoices(computing, options.tune);
  if (peers != nullptr) peers->Expect(ElementsOfPeers());
  collectives->CheckComplete();
  std::erase_if(shards, [](const auto& shard) { return shard->acts_per_step == 0; });
}

// Nothing in an arena lasts beyond a step, so that what is timed may lie there.
void Runtime::Impl::DecideChoices(const std::map<int, DeviceStream*>& streams, bool tune) {
  std::lock_guard<std::mutex> lock(store->impl()->launch_mutex);
  if (store->impl()->last != nullptr) (void)store->impl()->last->Wait();
  std::vector<TimingPlace> places;
  for (const auto& [rank, stream] : streams) {
    Device* device = store->device(rank);
    if (backend == nullptr || stream == nullptr || device->kind() != backend->kind()) continue;
    places.push_back({rank, device, stream, store->Arena(rank), store->ArenaBytes(rank)});
  }
  DecideLibraryChoices(backend, places, ExchangeOfLink(), PlanName(), tune);
}

// Of all shards, before they go.
void Runtime::Impl::KeepMeasurements() {
  closed_at = ClockPoint::Now();
  if (InFlight() && run.ended >= run.warm_up_steps) {  // the steps that are cut off
    int64_t since = closed_at.ticks;
    for (const auto& slot : run.slots) {
      if (slot->state != nullptr && !slot->state->done.Done()) since = std::min(since, slot->launched_ticks);
    }
    run.wall_ticks += closed_at.ticks - std::max(since, run.last_end);
  }
  profile = Collect(closed_at);
  for (auto& shard : shards) traces.push_back(std::move(shard->trace));
}

Runtime::Runtime(std::vector<plan::Plan> plans, const KernelRegistry& registry, Store* store,
                 Executor* executor, const RuntimeOptions& options)
    : impl_(std::make_unique<Impl>()) {
  CHECK_GE(options.steps_in_flight, 1);
  impl_->plans = std::move(plans);
  impl_->store = store;
  impl_->executor = executor;
  if (options.next_step != nullptr) impl_->next_step = options.next_step;
  impl_->run.steps_in_flight = options.steps_in_flight;
  impl_->run.warm_up_steps = options.warm_up_steps;
  impl_->run.check_finite = options.check_finite;
  if (!impl_->plans.empty()) {
    impl_->run.times = std::max(1, impl_->plans[0].times());
    impl_->run.seed = impl_->plans[0].seed();
  }
  impl_->Load(registry, options);
  for (const auto& shard : impl_->shards)
    impl_->questions.push_back(std::make_unique<Question>(shard.get(), &impl_->plans));
  for (auto& shard : impl_->shards) shard->trace = TraceBuffer(options.trace_records);
  for (int i = 0; i < options.steps_in_flight; ++i) {
    auto slot = std::make_unique<StepSlot>();
    slot->feeds.resize(impl_->needs.size());
    for (size_t input = 0; input < impl_->needs.size(); ++input)
      for (const Box& box : impl_->needs[input])
        slot->feeds[input].push_back({box, HostTensor::Make(impl_->input_tensors[input].dtype, box.extent)});
    impl_->run.slots.push_back(std::move(slot));
  }
}

Runtime::~Runtime() { Close(); }

void Runtime::Impl::CheckFeeds(const Feeds& feeds, const FeedPieces& pieces) const {
  auto text = [](const HostTensor& t) { return Cat(Name(t.dtype), t.shape.str()); };
  auto index_of = [&](const std::string& name) {
    auto found = inputs.find(name);
    if (found != inputs.end()) return found->second;
    std::string known;
    for (const auto& [input, index] : inputs) known += Cat(known.empty() ? "'" : ", '", input, "'");
    Fail("feed '", name, "' is no input of plan '", PlanName(), "'; its inputs are ",
         known.empty() ? "none" : known);
  };
  for (const auto& [name, some] : pieces) {
    const int index = index_of(name);
    if (feeds.count(name) != 0) Fail("input '", name, "' is fed twice: whole and in pieces");
    const std::string wrong =
        WrongPieces(input_tensors[index].dtype, input_tensors[index].shape, needs[index], some);
    if (!wrong.empty()) Fail("input '", name, "': ", wrong);
  }
  for (const auto& [name, tensor] : feeds) {
    const HostTensor& wanted = input_tensors[index_of(name)];
    if (tensor.dtype != wanted.dtype || tensor.shape != wanted.shape) {
      Fail("feed '", name, "' is ", text(tensor), " but the input is ", text(wanted));
    }
    if (tensor.data == nullptr && tensor.bytes() > 0) Fail("feed '", name, "' holds no data");
  }
  for (const auto& [name, index] : inputs) {
    if (feeds.count(name) + pieces.count(name) == 0 && !needs[index].empty()) {
      Fail("input '", name, "' of plan '", PlanName(), "', ", text(input_tensors[index]),
           ", is missing in the feeds");
    }
  }
}

// A state that nobody holds any more is used again, and so is a result that nobody holds.
std::shared_ptr<StepHandle::State> Runtime::Impl::TakeState(StepSlot* slot) {
  std::shared_ptr<StepHandle::State> state = std::move(slot->state);
  bool last_of_store = state != nullptr && store->impl()->last == state;
  if (last_of_store) store->impl()->last = nullptr;
  if (state == nullptr || state.use_count() > 1) {
    state = std::make_shared<StepHandle::State>();
    state->executor = executor;
    state->names = outputs;
    state->results.resize(output_tensors.size());
    state->describe_stall = [this] {
      std::string text = DescribeStall();
      run.SetError(Cat("the step has stalled: ", text));
      return text;
    };
  }
  for (size_t i = 0; i < state->results.size(); ++i) {
    HostTensor& result = state->results[i];
    if (result.data != nullptr && result.data.use_count() == 1) continue;
    result = HostTensor::Make(output_tensors[i].dtype, output_tensors[i].shape);
  }
#if !defined(__SANITIZE_THREAD__)                       // which does not know fences
  std::atomic_thread_fence(std::memory_order_acquire);  // after what another thread did before it let go
#endif
  return state;
}

void Runtime::Impl::CopyFeeds(const Feeds& feeds, const FeedPieces& pieces, StepSlot* slot) const {
  auto copy = [&](const std::string& name, const Box& box, const HostTensor& values) {
    for (const FeedPiece& held : slot->feeds[inputs.at(name)]) {
      const Box both = held.box.Intersect(box);
      if (!both.empty())
        CopyBox(values.dtype, both, {values.data.get(), box}, {held.values.data.get(), held.box});
    }
  };
  for (const auto& [name, tensor] : feeds) copy(name, Box::Whole(tensor.shape), tensor);
  for (const auto& [name, some] : pieces)
    for (const FeedPiece& piece : some) copy(name, piece.box, piece.values);
}

FeedNeeds Runtime::Needs() const {
  FeedNeeds needs;
  for (const auto& [name, index] : impl_->inputs) needs[name] = impl_->needs[index];
  return needs;
}

FeedPieces Runtime::FeedsOf(const StepHandle& step) const {
  FeedPieces pieces;
  for (const auto& slot : impl_->run.slots) {  // by its state: numbers come again (SetNextStep)
    if (slot->state == nullptr || slot->state != step.state_) continue;
    for (const auto& [name, index] : impl_->inputs)
      if (!slot->feeds[index].empty()) pieces[name] = slot->feeds[index];
    return pieces;
  }
  CHECK(false) << "step " << step.step() << " is not in flight";
  return pieces;
}

StepHandle Runtime::Launch(const Feeds& feeds, const FeedPieces& pieces) {
  Impl& impl = *impl_;
  if (impl.closed) Fail("plan '", impl.PlanName(), "' cannot run: closed");
  impl.CheckFeeds(feeds, pieces);
  Store::Impl& store = *impl.store->impl();
  std::lock_guard<std::mutex> lock(store.launch_mutex);
  if (store.owner != this && store.last != nullptr) (void)store.last->Wait();
  int index = static_cast<int>(impl.launched % impl.run.steps_in_flight);
  StepSlot& slot = *impl.run.slots[index];
  if (slot.state != nullptr) {
    Status before = slot.state->Wait();
    if (!before.ok()) impl.run.SetError(before.message());
  }
  std::string error = impl.run.error();
  if (!error.empty()) throw Error(error);

  std::shared_ptr<StepHandle::State> state = impl.TakeState(&slot);
  state->Reset(*impl.next_step, impl.launched);
  impl.CopyFeeds(feeds, pieces, &slot);
  slot.state = state;
  slot.watch = store.watch;
  slot.launched_ticks = Ticks();
  slot.shards_left.store(static_cast<int>(impl.shards.size()), std::memory_order_relaxed);
  slot.unexplained.store(false, std::memory_order_relaxed);
  store.owner = this;
  store.last = state;
  ++impl.launched;
  ++*impl.next_step;
  if (impl.peers != nullptr) impl.peers->Launched(&slot);
  if (impl.shards.empty()) impl.peers != nullptr ? impl.peers->ActsEnded(&slot) : state->done.Signal();
  for (auto& shard : impl.shards) shard->PostLaunch(index);
  return StepHandle(std::move(state));
}

void Runtime::Close() {
  Impl& impl = *impl_;
  if (impl.closed) return;
  impl.closed = true;
  if (impl.peers != nullptr) impl.peers->Drain();
  impl.run.cancelled = true;
  impl.collectives->Cancel();
  if (!impl.shards.empty()) {
    // First nothing acts any more; then what was on its way between workers has come home: a collective's
    // word to go, and the word that it is done which may follow. No step need complete for that.
    std::atomic<int> left(static_cast<int>(impl.shards.size()));
    Completion all;
    for (auto& shard : impl.shards) shard->PostAbandon(&left, &all);
    Status status = impl.executor->Await(&all);
    CHECK(status.ok()) << status.message();
    std::vector<std::unique_ptr<Question>> questions;  // the fences see to those on their way
    {
      std::lock_guard<std::mutex> lock(impl.asking);
      questions.swap(impl.questions);
    }
    impl.collectives->Quiesce();
    impl.executor->Fence();
    impl.executor->Fence();
  }
  if (impl.peers != nullptr) impl.peers->Close();
  impl.KeepMeasurements();
  std::string why = impl.peers != nullptr ? impl.run.error() : "";
  if (why.empty()) why = "closed";
  for (auto& slot : impl.run.slots) {
    if (slot->state == nullptr || slot->state->done.Done()) continue;
    slot->state->SetError(why);
    slot->state->done.Signal();
  }
  impl.run.slots.clear();
  impl.shards.clear();
  impl.of_devices.reset();
  impl.local.reset();
  impl.link.reset();
  std::lock_guard<std::mutex> lock(impl.store->impl()->launch_mutex);
  if (impl.store->impl()->owner == this) {
    impl.store->impl()->owner = nullptr;
    impl.store->impl()->last = nullptr;
  }
}

std::string Runtime::Impl::DescribeStall() const {
  std::string text;
  auto add = [&](const Actor& actor) { text += Cat(text.empty() ? "" : "; ", actor.Describe()); };
  for (const auto& shard : shards) {
    for (const auto& stream : shard->streams) {
      if (stream->head() != nullptr) add(*stream->head());
    }
    for (const auto& actor : shard->actors) {
      if (actor->stream == nullptr) add(*actor);
    }
  }
  return text;
}

bool Runtime::Impl::InFlight() const {
  return std::any_of(run.slots.begin(), run.slots.end(),
                     [](const auto& slot) { return slot->state != nullptr && !slot->state->done.Done(); });
}

std::vector<std::string> Runtime::WhoWaits(double patience) const {
  std::lock_guard<std::mutex> lock(impl_->asking);
  return AskWhoWaits(impl_->questions, patience, impl_->born);
}

int64_t Runtime::ActsEnded() const {
  std::lock_guard<std::mutex> lock(impl_->asking);
  int64_t acts = 0;
  for (const auto& question : impl_->questions)
    acts += question->shard()->now.acts.load(std::memory_order_relaxed);
  return acts;
}

int64_t Runtime::next_step() const { return *impl_->next_step; }

void Runtime::SetNextStep(int64_t step) { *impl_->next_step = step; }

std::map<std::pair<int, int>, int> Runtime::PeakSlots() const {
  std::map<std::pair<int, int>, int> peaks;
  for (const auto& count : impl_->counts) {
    peaks[{count->rank, count->id}] = count->peak.load(std::memory_order_relaxed);
  }
  return peaks;
}

void Runtime::Record(bool on) { impl_->run.recording = on; }

std::vector<ActRecord> Runtime::TakeRecords() {
  std::vector<ActRecord> records;
  for (auto& shard : impl_->shards) {
    std::lock_guard<std::mutex> lock(shard->records_mutex);
    records.insert(records.end(), shard->records.begin(), shard->records.end());
    shard->records.clear();
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const ActRecord& a, const ActRecord& b) { return a.start < b.start; });
  return records;
}

StepProfile Runtime::TakeProfile() {
  Impl& impl = *impl_;
  if (impl.closed) return std::exchange(impl.profile, StepProfile());
  for (const auto& slot : impl.run.slots) {
    if (slot->state != nullptr) (void)slot->state->Wait();
  }
  return impl.Collect(ClockPoint::Now());
}

StepProfile Runtime::Impl::Collect(const ClockPoint& until) {
  StepProfile collected = CollectProfile(&run, shards, TickScale(born, until));
  if (of_devices == nullptr || backend == nullptr) return collected;
  const BackendCounts now = backend->Counts();
  collected.devices = now;
  for (int64_t BackendCounts::*count :
       {&BackendCounts::library_products, &BackendCounts::library_attention,
        &BackendCounts::library_convolutions, &BackendCounts::graph_launches, &BackendCounts::lone_launches,
        &BackendCounts::graph_nodes, &BackendCounts::graph_nanoseconds,
        &BackendCounts::graph_wait_nanoseconds, &BackendCounts::recording_nanoseconds,
        &BackendCounts::lone_nanoseconds})
    collected.devices.*count -= counted.*count;
  counted = now;
  return collected;
}

int64_t Runtime::WriteTrace(TraceFile* file) const {
  CHECK(impl_->closed);
  return file->Add(impl_->plans, impl_->traces, TickScale(impl_->born, impl_->closed_at));
}

std::vector<TracedAct> Runtime::TracedActs(int64_t* missing) const {
  CHECK(impl_->closed);
  const TickScale scale(impl_->born, impl_->closed_at);
  std::vector<TracedAct> acts;
  *missing = 0;
  for (const TraceBuffer& buffer : impl_->traces) {
    *missing += buffer.dropped();
    for (const TraceRecord& r : buffer)
      if (r.kernel < 0)
        acts.push_back(
            {r.rank, r.actor, r.act, r.step, scale.Nanoseconds(r.start), scale.Nanoseconds(r.end)});
  }
  std::stable_sort(acts.begin(), acts.end(), [](const TracedAct& a, const TracedAct& b) {
    return std::tie(a.rank, a.start) < std::tie(b.rank, b.start);
  });
  return acts;
}

}  // namespace oneflow_like
