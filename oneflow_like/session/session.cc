#include "oneflow_like/session.h"

#include <glog/logging.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <tuple>

#include "actor/net/talk/job.h"
#include "core/plan/plan_values.h"
#include "core/system/host_memory.h"
#include "oneflow_like/job/agreement.h"
#include "oneflow_like/job/feeds_check.h"
#include "oneflow_like/job/memory_check.h"
#include "oneflow_like/job/replicas_check.h"
#include "oneflow_like/job/source_check.h"
#include "oneflow_like/job/stalls.h"
#include "oneflow_like/model/variables.h"
#include "oneflow_like/session/agreement_text.h"
#include "oneflow_like/session/observer.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

namespace {

constexpr int64_t kTraceRecords = 1 << 18;  // of each thread: 10 MB, and 60 MB of text
constexpr size_t kRoomForSteps = size_t{64} << 20;

// Both plans get the arenas of the larger one: they take turns in these.
void ShareArenas(plan::Plan* a, plan::Plan* b) {
  for (plan::Arena& mine : *a->mutable_arena())
    for (plan::Arena& other : *b->mutable_arena()) {
      if (mine.memory() != other.memory()) continue;
      const int64_t bytes = std::max(mine.bytes(), other.bytes());
      mine.set_bytes(bytes);
      other.set_bytes(bytes);
    }
}

}  // namespace

// --- StepResult ---

struct StepResult::State {
  std::shared_ptr<LaunchedStep> step = std::make_shared<LaunchedStep>();
  std::shared_ptr<Retries> retries;  // nullptr: the step does not run again
  std::shared_ptr<StallWatch> stalls;
  std::string session;
  std::string finite;  // output that must be finite, empty for none
  std::shared_ptr<ShownNumbers> shown;
  std::once_flag added;  // to `shown`
  std::atomic<bool> checked = false;
  double lr_factor = std::numeric_limits<double>::quiet_NaN(), data_seconds = -1;
};

void StepResult::Wait() const {
  if (!state_) Fail("this StepResult is the result of no step; Session::Run gives one");
  std::optional<StallWatch::Doing> doing;
  if (state_->stalls && (state_->retries || !state_->step->handle.Done()))
    doing.emplace(state_->stalls.get(),
                  Cat("StepResult::Wait or a read of step ", step(), " of session ", state_->session));
  if (state_->retries) state_->retries->Settle(*state_->step);
  if (!state_->step->failure.empty()) throw Error(state_->step->failure);
  const StepHandle& handle = state_->step->handle;
  Status status = handle.Wait();
  doing.reset();
  if (!status.ok()) throw Error(status.message());
  if (state_->shown) std::call_once(state_->added, [&] { state_->shown->Add(handle); });
  if (state_->finite.empty() || state_->checked) return;
  const HostTensor& loss = handle.Get(state_->finite);
  float value = loss.as<float>()[0];
  if (!std::isfinite(value))
    Fail("step ", step(), ": ", state_->finite, " is ", value,
         "; lower the learning rate, clip the gradient, or look at the data of this step");
  state_->checked = true;
}

const HostTensor& StepResult::Get(const std::string& output) const {
  Wait();
  return state_->step->handle.Get(output);
}

float StepResult::Scalar(const std::string& output) const {
  const HostTensor& t = Get(output);
  if (t.elements() != 1 || t.dtype != DType::kFloat32)
    Fail("output '", output, "' is ", Name(t.dtype), t.shape.str(), ", not one number");
  return t.as<float>()[0];
}

int64_t StepResult::step() const { return state_ ? state_->step->number : -1; }

double StepResult::lr_factor() const {
  return state_ ? state_->lr_factor : std::numeric_limits<double>::quiet_NaN();
}

double StepResult::data_seconds() const { return state_ ? state_->data_seconds : -1; }

// --- Session ---

Session::Impl::~Impl() {
  try {
    Close();
  } catch (const Error& error) {
    LOG(ERROR) << error.what();
  }
  model->last_steps.erase(this);
}

void Session::Impl::Close() {
  if (closed) return;
  closed = true;
  if (!runtime) return;
  const StallWatch::Doing doing(model->options.stalls.get(), "the end of session " + options.name);
  if (retries) {
    retries->Settle();
    (void)retries->last().Wait();
  }
  // Ended among its updates, a step would leave copies of a weight that differ.
  auto last = model->last_steps.find(this);
  if (trains && last != model->last_steps.end()) (void)last->second.handle.Wait();
  if (model->trace && model->options.job) model->trace->SetOrigin(model->TraceOriginHere());
  // What writes files may fail, and comes last.
  std::unique_ptr<Runtime> more;
  if (retries) {
    if (model->options.stalls) model->options.stalls->Remove(retries.get());
    more = retries->Close();
  }
  runtime->Close();
  if (model->options.stalls) model->options.stalls->Remove(this);
  if (model->report) {
    StepProfile rest = runtime->TakeProfile();
    if (data_steps > 0) rest.data = data_seconds;
    AddProfile(rest, &reported);
    model->report->AddClosed(*this);
  }
  if (!model->trace) return;
  int64_t missing = runtime->WriteTrace(model->trace.get());
  if (more) missing += more->WriteTrace(model->trace.get());
  LOG_IF(WARNING, missing > 0) << "trace file '" << model->trace->path() << "': " << missing
                               << " slices of session " << options.name << " did not fit";
}

void Session::Impl::Load() {
  if (runtime) return;
  VLOG(1) << "session " << options.name << ": its plans and memory are made";
  if (Job* job = model->options.job.get())
    RequireAgreement(job, "session " + options.name, AgreementText(*this));
  std::string reason;
  try {
    LoadPlans();
    // Steps allocate little, but libraries of theirs might fail in no orderly way.
    CheckAddressesFor(kRoomForSteps, "what its steps take beside their plan");
  } catch (const ShortOfMemory& error) {
    reason = error.what();
  } catch (const std::bad_alloc&) {
    reason = OutOfMemoryText();
  } catch (const std::system_error& error) {  // of a thread that the system does not start
    reason = Cat(error.what(), ": ", OutOfMemoryText());
  }
  if (reason.empty()) return;
  if (StallWatch* stalls = model->options.stalls.get()) {
    stalls->Remove(this);
    stalls->Remove(retries.get());
  }
  runtime.reset();
  FailOutOfMemory(*model, options.name, reason, [this](int rank) { return ConsumersOf(rank); });
}

std::string Session::Impl::ConsumersOf(int rank) const { return RankText(*this, SummaryOf(*this, rank)); }

void Session::Impl::LoadPlans() {
  Job* job = model->options.job.get();
  model->Load();
  model->WaitIdle();
  std::vector<plan::Plan> plans, more;
  for (RankPlan& made : PlansOf(compiled, model->store->ranks())) plans.push_back(std::move(made.plan));
  if (retries) {
    for (RankPlan& made : PlansOf(retries->compiled(), model->store->ranks()))
      more.push_back(std::move(made.plan));
    for (size_t i = 0; i < plans.size(); ++i) {
      ShareArenas(&plans[i], &more[i]);
      more[i].set_name(retries->PlanName());
    }
  }
  RequireHostMemory(*model, options.name, plans, more, options.steps_in_flight + (retries ? 1 : 0),
                    [this](int rank) { return ConsumersOf(rank); });
  for (const plan::Plan& plan : plans) {
    model->Prepare(plan);
    DumpPlan(plan, "");
  }
  for (const plan::Plan& plan : more) {
    model->Prepare(plan);
    DumpPlan(plan, "_more_room");
  }
  if (model->trace) model->trace->Start();
  if (job) job->SetWorld(compiled.graph.mesh().size());  // another model may have had another mesh
  auto first = MakeRuntime(std::move(plans), options.steps_in_flight);
  auto second = retries ? MakeRuntime(std::move(more), 1) : nullptr;  // one step in flight: they are rare
  const auto watch = [&](const void* who, const std::string& name, const Runtime* watched) {
    if (StallWatch* stalls = model->options.stalls.get())
      stalls->Add(who, {name, [watched] { return watched->ActsEnded(); },
                        [watched](double patience) { return watched->WhoWaits(patience); }});
  };
  runtime = std::move(first);
  watch(this, options.name, runtime.get());
  if (retries) {
    watch(retries.get(), retries->PlanName(), second.get());
    retries->Begin({runtime.get(), std::move(second), &model->steps[options.name].next,
                    options.steps_in_flight, job != nullptr, !job || job->process() == 0});
  }
  int64_t arenas = 0;
  for (int rank : model->store->ranks()) arenas += model->store->ArenaBytes(rank);
  VLOG(1) << "session " << options.name << " is ready: " << model->store->ranks().size() << " ranks here, "
          << arenas << " bytes for what steps compute; next is step " << model->steps[options.name].next;
}

std::unique_ptr<Runtime> Session::Impl::MakeRuntime(std::vector<plan::Plan> plans, int steps_in_flight) {
  RuntimeOptions o;
  o.steps_in_flight = steps_in_flight;
  if (!retries) o.next_step = &model->steps[options.name].next;
  if (model->trace || model->report) o.trace_records = kTraceRecords;
  o.warm_up_steps = 1;
  o.backend = model->backend;
  o.tune = model->options.tune;
  o.check_finite = model->options.check_nan;
  if (o.check_finite && model->backend)
    Fail("check_nan looks at numbers on the CPU; run the same program with a mesh of cpu devices");
  if (Job* job = model->options.job.get()) o.peers = job->peers_of_runtimes();
  return std::make_unique<Runtime>(std::move(plans), model->registry, model->store.get(),
                                   model->executor.get(), o);
}

void Session::Impl::CheckFeeds(const Feeds& feeds, const FeedPieces& pieces) {
  Job* job = model->options.job.get();
  if (!job || (checked_feeds == kStepsWithCheckedFeeds && !model->options.check_feeds)) return;
  RequireSameFeeds(job, options.name, model->steps[options.name].next, feeds, pieces);
  if (checked_feeds < kStepsWithCheckedFeeds) ++checked_feeds;
}

void Session::Impl::CheckSource(FeedSource* source) {
  Job* job = model->options.job.get();
  if (!job || source->compared) return;
  const StallWatch::Doing doing(model->options.stalls.get(),
                                Cat("Session::Run of session ", options.name,
                                    ", which compares its data with that of other processes"));
  RequireSameData(job, "session " + options.name, source->Facts());
  source->compared = true;
}

void Session::Impl::CheckVariables() {
  if (!model->options.job || checked_loads == model->loads) return;
  checked_loads = model->loads;
  std::set<std::string> names;
  for (int n : compiled.graph.Order())
    if (compiled.graph.node(n).kind == NodeKind::kVariable) names.insert(compiled.graph.node(n).name);
  RequireSameBeginnings(model.get(), options.name, names);
}

void Session::Impl::CheckReplicas() {
  const int64_t every = model->options.check_replicas, step = model->steps[options.name].next;
  if (every == 0 || !trains || step % every != 0) return;
  if (!told_replicas) {
    told_replicas = true;
    const std::string text = WithoutReplicas(model.get());
    const bool talks = !model->options.job || model->options.job->process() == 0;
    LOG_IF(WARNING, talks && !text.empty()) << text;
  }
  RequireEqualReplicas(model.get(), step);
}

void WriteDump(const std::string& file, const std::string& text) {
  errno = 0;
  std::ofstream out(file);
  out << text;
  if (!out.flush())
    throw WriteError(
        Cat("dump file ", file, " cannot be written: ", std::strerror(errno != 0 ? errno : EIO)));
}

void Session::Impl::DumpPlan(const plan::Plan& plan, const std::string& which) const {
  if (model->options.dump_dir.empty()) return;
  plan::Plan shown = plan;
  ShortenForText(&shown);
  std::string text;
  google::protobuf::TextFormat::PrintToString(shown, &text);
  WriteDump(Cat(model->options.dump_dir, "/", options.name, "/plan_rank", plan.rank(), which, ".txt"), text);
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

double Session::Impl::FeedRate(Feeds* feeds) const {
  const int64_t step = model->steps[options.name].next;
  if (!trains) return std::numeric_limits<double>::quiet_NaN();
  if (!lr_function) return FactorAt(lr_schedule, step);
  const double factor = lr_function(step);
  if (!(factor >= 0 && std::isfinite(factor)))
    Fail("session ", options.name, ": lr_function gives ", factor, " for step ", step,
         " but must give 0 or more, and a finite number");
  HostTensor value = HostTensor::Make(DType::kFloat32, {});
  value.as<float>()[0] = static_cast<float>(factor);
  (*feeds)[options.name + ":lr_factor"] = value;
  return factor;
}

FeedPieces Session::Impl::OwnPieces(const FeedPieces& pieces) const {
  FeedPieces own;
  for (const auto& [name, some] : pieces) {
    if (inputs.count(name)) own[name] = some;
    if (!inputs.count(name) && !model->input_names.count(name))
      Fail("pieces of '", name, "' are fed, which is no input of session ", options.name,
           ", nor of another graph of its model");
  }
  return own;
}

// Of a source, whose batches and samples may be larger than the inputs: the boxes alone do not show it.
void Session::Impl::CheckShapes(const FeedSource& source, const FeedPieces& pieces) const {
  for (const auto& [name, some] : pieces) {
    const auto input = inputs.find(name);
    const std::optional<Dims> fed = source.ShapeOf(name);
    if (input == inputs.end() || !fed) continue;
    const Dims& shape = compiled.graph.value(input->second).shape;
    if (*fed == shape) continue;
    const std::string what =
        Cat("input '", name, "' of session ", options.name, " is ", shape.str(), ", but its data ");
    if (shape.rank() == 0 || shape[0] != (*fed)[0])
      Fail(what, "comes in batches of ", (*fed)[0], "; give the pipeline and the input one batch");
    Fail(what, "is ", fed->str(), ", the batch first; give the samples and the input one shape");
  }
}

Feeds Session::Impl::OwnFeeds(const Feeds& feeds, const FeedPieces& pieces) const {
  Feeds own;
  std::string names;
  for (const auto& [name, value] : inputs) {
    names += Cat(names.empty() ? "'" : ", '", name, "'");
    if (FedHere(name)) continue;
    auto feed = feeds.find(name);
    // What no rank here reads may be left out.
    if (feed == feeds.end() && (pieces.count(name) || runtime->Needs()[name].empty())) continue;
    const Value& wanted = compiled.graph.value(value);
    if (feed == feeds.end())
      Fail("input '", name, "' of session ", options.name, ", ", Name(wanted.dtype), wanted.shape.str(),
           ", is missing in the feeds");
    own.insert(*feed);
  }
  for (const auto& [name, tensor] : feeds)
    if (!inputs.count(name) && !model->input_names.count(name))
      Fail("feed '", name, "' is no input of session ", options.name,
           ", nor of another graph of its model; the session's inputs are ", names.empty() ? "none" : names);
  return own;
}

FeedNeeds Session::Needs() const {
  if (!impl_) Fail("this Session was moved elsewhere");
  return impl_->NeedsHere();
}

std::vector<Box> Session::Needs(const std::string& input) const {
  const FeedNeeds needs = Needs();
  auto found = needs.find(input);
  if (found == needs.end()) Fail("session ", impl_->options.name, " has no input '", input, "'");
  return found->second;
}

// As the plans of these ranks have it (compiler/plan/partition.cc), without making them.
bool Session::Impl::FedHere(const std::string& input) const {
  return lr_function && input == options.name + ":lr_factor";
}

const FeedNeeds& Session::Impl::NeedsHere() {
  if (!needs.empty()) return needs;
  const Graph& graph = compiled.graph;
  const Job* job = model->options.job.get();
  const int hosted = graph.mesh().size() / (job ? job->processes() : 1),
            first = job ? job->process() * hosted : 0;
  std::map<std::string, std::vector<Box>> boxes;
  for (int n : graph.Order()) {  // an input that several stages read is a node on each
    const Node& node = graph.node(n);
    if (node.kind != NodeKind::kInput) continue;
    const Value& v = graph.value(node.out[0]);
    for (int rank = first; rank < first + hosted; ++rank) {
      std::vector<int> coords = graph.mesh().Coords(rank);
      if (!node.slice.Contains(coords)) continue;
      coords.insert(coords.begin(), 0);
      for (; coords[0] < (v.sbp[0].is_split() ? graph.times() : 1); ++coords[0])
        boxes[node.name].push_back(LocalBox(v.shape, v.sbp, graph.Sizes(), coords));
    }
  }
  for (const auto& [name, value] : inputs)
    if (!FedHere(name)) needs[name] = Disjoint(std::move(boxes[name]));
  return needs;
}

StepResult Session::Run(FeedSource& source, const Feeds& also) {
  if (!impl_) Fail("this Session was moved elsewhere and cannot run");
  impl_->CheckSource(&source);
  const bool first = impl_->runtime == nullptr;  // while the source, too, only begins
  const auto start = std::chrono::steady_clock::now();
  std::optional<StallWatch::Doing> doing;
  doing.emplace(impl_->model->options.stalls.get(), Cat("Session::Run of session ", impl_->options.name,
                                                        ", which waits for data from its source"));
  const FeedPieces pieces = source.Next();
  doing.reset();
  impl_->CheckShapes(source, pieces);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  StepResult result = Run(also, pieces);
  result.state_->data_seconds = waited.count();
  if (!first) impl_->data_seconds += waited.count();
  ++impl_->data_steps;
  return result;
}

StepResult Session::Run(const Feeds& feeds, const FeedPieces& pieces) {
  if (!impl_) Fail("this Session was moved elsewhere and cannot run");
  if (impl_->closed) Fail("session ", impl_->options.name, " cannot run: closed");
  const StallWatch::Doing doing(impl_->model->options.stalls.get(),
                                "Session::Run of session " + impl_->options.name);
  impl_->Load();
  impl_->model->SettleSteps(impl_.get());
  if (impl_->reads_averages) BeginAverages(impl_->model.get());
  Feeds own = impl_->OwnFeeds(feeds, pieces);
  const FeedPieces own_pieces = impl_->OwnPieces(pieces);
  const double lr_factor = impl_->FeedRate(&own);
  impl_->CheckFeeds(own, own_pieces);
  impl_->CheckVariables();
  impl_->CheckReplicas();
  // Where a write is enqueued while others of the stream wait for their turn, nobody may wait in its place:
  // the device does.
  if (impl_->model->saving && impl_->model->backend) impl_->model->saving->WaitBegun();
  StepResult result;
  result.state_ = std::make_shared<StepResult::State>();
  result.state_->retries = impl_->retries;
  StepHandle handle;  // which a step that runs again changes in its result
  if (impl_->retries) {
    std::tie(result.state_->step, handle) = impl_->retries->Launch(own, own_pieces);
  } else {
    handle = impl_->runtime->Launch(own, own_pieces);
    *result.state_->step = {handle.step(), handle, ""};
  }
  result.state_->finite = impl_->finite;
  result.state_->shown = impl_->shown;
  result.state_->stalls = impl_->model->options.stalls;
  result.state_->session = impl_->options.name;
  result.state_->lr_factor = lr_factor;
  impl_->model->last_steps[impl_.get()] = {handle, impl_->finite, impl_->trains, impl_->retries};
  return result;
}

void Session::Close() {
  if (impl_) impl_->Close();
}

SavedPlan Session::Plan() const {
  return {impl_->compiled.options.decided, MarkOf(*impl_->model),
          MachineText(impl_->compiled.options.machine), impl_->compiled.options.asked.tf32};
}

int64_t Session::next_step() const { return impl_ ? impl_->model->steps[impl_->options.name].next : 0; }

}  // namespace oneflow_like
