#include "oneflow_like/session.h"

#include <glog/logging.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>

#include "actor/net/talk/job.h"
#include "core/plan_values.h"
#include "oneflow_like/agreement.h"
#include "oneflow_like/auto_cuts.h"
#include "oneflow_like/blocks.h"
#include "oneflow_like/budget.h"
#include "oneflow_like/checkpoint/saving.h"
#include "oneflow_like/feeds_check.h"
#include "oneflow_like/limits.h"
#include "oneflow_like/memory_check.h"
#include "oneflow_like/replicas_check.h"
#include "oneflow_like/report/figures.h"
#include "oneflow_like/session_impl.h"
#include "oneflow_like/stalls.h"
#include "oneflow_like/variables.h"

namespace oneflow_like {

namespace {

constexpr int64_t kTraceRecords = 1 << 18;  // of each thread: 10 MB, and 60 MB of text

}  // namespace

// --- StepResult ---

struct StepResult::State {
  StepHandle handle;
  std::shared_ptr<StallWatch> stalls;
  std::string session;
  std::string finite;  // output that must be finite, empty for none
  bool checked = false;
  double lr_factor = std::numeric_limits<double>::quiet_NaN(), data_seconds = -1;
};

void StepResult::Wait() const {
  if (!state_) Fail("this StepResult is the result of no step; Session::Run gives one");
  std::optional<StallWatch::Doing> doing;
  if (state_->stalls && !state_->handle.Done())
    doing.emplace(state_->stalls.get(),
                  Cat("StepResult::Wait or a read of step ", step(), " of session ", state_->session));
  Status status = state_->handle.Wait();
  doing.reset();
  if (!status.ok()) throw Error(status.message());
  if (state_->finite.empty() || state_->checked) return;
  const HostTensor& loss = state_->handle.Get(state_->finite);
  float value = loss.as<float>()[0];
  if (!std::isfinite(value))
    Fail("step ", state_->handle.step(), ": ", state_->finite, " is ", value,
         "; lower the learning rate, clip the gradient, or look at the data of this step");
  state_->checked = true;
}

const HostTensor& StepResult::Get(const std::string& output) const {
  Wait();
  return state_->handle.Get(output);
}

float StepResult::Scalar(const std::string& output) const {
  const HostTensor& t = Get(output);
  if (t.elements() != 1 || t.dtype != DType::kFloat32)
    Fail("output '", output, "' is ", Name(t.dtype), t.shape.str(), ", not one number");
  return t.as<float>()[0];
}

int64_t StepResult::step() const { return state_ ? state_->handle.step() : -1; }

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
  // Ended among its updates, a step would leave copies of a weight that differ.
  auto last = model->last_steps.find(this);
  if (trains && last != model->last_steps.end()) (void)last->second.handle.Wait();
  runtime->Close();
  if (model->options.stalls) model->options.stalls->Remove(this);
  if (model->report) {
    StepProfile rest = runtime->TakeProfile();
    if (data_steps > 0) rest.data = data_seconds;
    AddProfile(rest, &reported);
    model->report->AddMeasurements(options.name, ReportMeasurements(*this));
  }
  if (!model->trace) return;
  if (model->options.job) model->trace->SetOrigin(model->TraceOriginHere());
  int64_t missing = runtime->WriteTrace(model->trace.get());
  LOG_IF(WARNING, missing > 0) << "trace file '" << model->trace->path() << "': " << missing
                               << " slices of session " << options.name << " did not fit";
}

void Session::Impl::Load() {
  if (runtime) return;
  VLOG(1) << "session " << options.name << ": its plans and memory are made";
  Job* job = model->options.job.get();
  if (job) RequireAgreement(*this);
  model->Load();
  model->WaitIdle();
  std::vector<plan::Plan> plans;
  for (RankPlan& made : PlansOf(compiled, model->store->ranks())) plans.push_back(std::move(made.plan));
  RequireHostMemory(*this, plans);
  for (const plan::Plan& plan : plans) {
    model->Prepare(plan);
    DumpPlan(plan);
  }
  RuntimeOptions o;
  o.steps_in_flight = options.steps_in_flight;
  o.next_step = &model->steps[options.name].next;
  if (model->trace) model->trace->Start();
  if (model->trace || model->report) o.trace_records = kTraceRecords;
  o.warm_up_steps = 1;
  o.backend = model->backend;
  o.check_finite = model->options.check_nan;
  if (o.check_finite && model->backend)
    Fail("check_nan looks at numbers on the CPU; run the same program with a mesh of cpu devices");
  if (job) {
    job->SetWorld(compiled.graph.mesh().size());  // another model may have had another mesh
    o.peers = job->peers_of_runtimes();
  }
  runtime = std::make_unique<Runtime>(std::move(plans), model->registry, model->store.get(),
                                      model->executor.get(), o);
  if (StallWatch* stalls = model->options.stalls.get())
    stalls->Add(this, {options.name, [this] { return runtime->ActsEnded(); },
                       [this](double patience) { return runtime->WhoWaits(patience); }});
  int64_t arenas = 0;
  for (int rank : model->store->ranks()) arenas += model->store->ArenaBytes(rank);
  VLOG(1) << "session " << options.name << " is ready: " << model->store->ranks().size() << " ranks here, "
          << arenas << " bytes for what steps compute; next is step " << model->steps[options.name].next;
}

void Session::Impl::CheckFeeds(const Feeds& feeds, const FeedPieces& pieces) {
  Job* job = model->options.job.get();
  if (!job || (checked_feeds == kStepsWithCheckedFeeds && !model->options.check_feeds)) return;
  RequireSameFeeds(job, options.name, runtime->next_step(), feeds, pieces);
  if (checked_feeds < kStepsWithCheckedFeeds) ++checked_feeds;
}

void Session::Impl::CheckReplicas() {
  const int64_t every = model->options.check_replicas, step = runtime->next_step();
  if (every == 0 || !trains || step % every != 0) return;
  if (!told_replicas) {
    told_replicas = true;
    const std::string text = WithoutReplicas(model.get());
    const bool talks = !model->options.job || model->options.job->process() == 0;
    LOG_IF(WARNING, talks && !text.empty()) << text;
  }
  RequireEqualReplicas(model.get(), step);
}

namespace {

void WriteDump(const std::string& file, const std::string& text) {
  errno = 0;
  std::ofstream out(file);
  out << text;
  if (!out.flush())
    throw WriteError(
        Cat("dump file ", file, " cannot be written: ", std::strerror(errno != 0 ? errno : EIO)));
}

}  // namespace

void Session::Impl::DumpPlan(const plan::Plan& plan) const {
  if (model->options.dump_dir.empty()) return;
  plan::Plan shown = plan;
  ShortenForText(&shown);
  std::string text;
  google::protobuf::TextFormat::PrintToString(shown, &text);
  WriteDump(Cat(model->options.dump_dir, "/", options.name, "/plan_rank", plan.rank(), ".txt"), text);
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

double Session::Impl::FeedRate(Feeds* feeds) const {
  const int64_t step = runtime->next_step();
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

// Of a source, whose batches may be larger than the inputs: the boxes alone do not show it.
void Session::Impl::CheckBatch(int64_t batch, const FeedPieces& pieces) const {
  if (batch == 0) return;
  for (const auto& [name, some] : pieces) {
    const auto input = inputs.find(name);
    if (input == inputs.end()) continue;
    const Dims& shape = compiled.graph.value(input->second).shape;
    if (shape.rank() == 0 || shape[0] != batch)
      Fail("input '", name, "' of session ", options.name, " is ", shape.str(),
           ", but its data comes in batches of ", batch, "; give the pipeline and the input one batch");
  }
}

Feeds Session::Impl::OwnFeeds(const Feeds& feeds, const FeedPieces& pieces) const {
  Feeds own;
  std::string names;
  for (const auto& [name, value] : inputs) {
    names += Cat(names.empty() ? "'" : ", '", name, "'");
    if (lr_function && name == options.name + ":lr_factor") continue;  // FeedRate
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

// As the plans of these ranks have it (compiler/partition.cc), without making them.
const FeedNeeds& Session::Impl::NeedsHere() {
  if (!needs.empty()) return needs;
  const Graph& graph = compiled.graph;
  const Job* job = model->options.job.get();
  const int hosted = graph.mesh().size() / (job ? job->processes() : 1),
            first = job ? job->process() * hosted : 0;
  for (const auto& [name, value] : inputs) {
    const Value& v = graph.value(value);
    std::vector<Box> boxes;
    for (int rank = first; rank < first + hosted; ++rank) {
      std::vector<int> coords = graph.mesh().Coords(rank);
      if (!graph.producer(value).slice.Contains(coords)) continue;
      coords.insert(coords.begin(), 0);
      for (; coords[0] < (v.sbp[0].is_split() ? graph.times() : 1); ++coords[0])
        boxes.push_back(LocalBox(v.shape, v.sbp, graph.Sizes(), coords));
    }
    needs[name] = Disjoint(std::move(boxes));
  }
  return needs;
}

StepResult Session::Run(FeedSource& source, const Feeds& also) {
  if (!impl_) Fail("this Session was moved elsewhere and cannot run");
  const bool first = impl_->runtime == nullptr;  // while the source, too, only begins
  const auto start = std::chrono::steady_clock::now();
  std::optional<StallWatch::Doing> doing;
  doing.emplace(impl_->model->options.stalls.get(), Cat("Session::Run of session ", impl_->options.name,
                                                        ", which waits for data from its source"));
  const FeedPieces pieces = source.Next();
  doing.reset();
  impl_->CheckBatch(source.batch(), pieces);
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
  Feeds own = impl_->OwnFeeds(feeds, pieces);
  const FeedPieces own_pieces = impl_->OwnPieces(pieces);
  const double lr_factor = impl_->FeedRate(&own);
  impl_->CheckFeeds(own, own_pieces);
  impl_->CheckReplicas();
  // Where a write is enqueued while others of the stream wait for their turn, nobody may wait in its place.
  if (impl_->model->saving && impl_->model->backend) impl_->model->saving->WaitCopied();
  StepResult result;
  result.state_ = std::make_shared<StepResult::State>();
  result.state_->handle = impl_->runtime->Launch(own, own_pieces);
  result.state_->finite = impl_->finite;
  result.state_->stalls = impl_->model->options.stalls;
  result.state_->session = impl_->options.name;
  result.state_->lr_factor = lr_factor;
  impl_->model->last_steps[impl_.get()] = {result.state_->handle, impl_->finite, impl_->trains};
  return result;
}

void Session::Close() {
  if (impl_) impl_->Close();
}

int64_t Session::next_step() const { return impl_ ? impl_->model->steps[impl_->options.name].next : 0; }

// --- Train, Evaluate ---

namespace {

DumpFn Dumper(const ModelImpl& model, const std::string& session) {
  if (model.options.dump_dir.empty()) return {};
  std::string folder = model.options.dump_dir + "/" + session;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) Fail("dump folder ", folder, " cannot be made: ", error.message());
  if (model.options.job && model.options.job->process() != 0) return {};  // the same there
  return [folder](int number, const std::string& pass, const std::string& text) {
    std::string file = Cat(folder, "/", number < 10 ? "0" : "", number, "_", pass, ".txt");
    WriteDump(file, text);
  };
}

void CheckRoles(const ModelImpl& model, const Graph& graph, const std::string& who, const Parallel& roles) {
  std::map<std::string, std::string> role_of;  // by axis
  auto check = [&](const std::string& role, const std::string& name) {
    if (name.empty()) return;
    const std::string what = Cat(who, ": parallel.", role);
    const int axis = model.mesh.AxisOrFail(name, what);
    if (auto [other, fresh] = role_of.emplace(name, role); !fresh)
      Fail(what, " is mesh axis ", name, ", which parallel.", other->second, " is too; an axis has one role");
    bool cut = false;
    for (int n = 0; n < graph.num_nodes(); ++n) {
      const Node& node = graph.node(n);
      if (!graph.alive(n)) continue;
      if (node.slice.fixed[axis] != Slice::kFree)
        Fail(what, " is mesh axis ", name, ", along which ", graph.Describe(n), " is on one pipeline stage");
      auto fixed = node.fixed.find(1 + axis);
      cut = cut || (node.kind == NodeKind::kInput && fixed != node.fixed.end() && fixed->second.is_split());
    }
    if (role == "context" && !cut)
      Fail(what, " is mesh axis ", name, ", but no input is cut along it; annotate the sequence axis of ",
           "inputs, as {{\"", name, "\", S(1)}}");
  };
  check("batch", roles.batch);
  check("tensor", roles.tensor);
  check("context", roles.context);
}

void CheckOptions(const ModelImpl& model, const Graph& graph, const std::string& who,
                  const SessionOptions& options) {
  CheckRange(Cat(who, ": micro_batches"), options.micro_batches, 1, kMostMicroBatches);
  CheckRange(Cat(who, ": steps_in_flight"), options.steps_in_flight, 1, kMostStepsInFlight);
  CheckRoles(model, graph, who, options.parallel);
  if (model.options.check_nan && options.dtype == DType::kFloat16)
    Fail(who,
         ": gradients in fp16 overflow by design and steps that do are skipped, so check_nan would stop "
         "at the first; use bf16 or fp32 to look for what is not finite");
  CheckRange(Cat(who, ": overlap.chunks"), options.overlap.chunks, 1, kMostChunks);
  if (!(options.overlap.gain >= 0 && options.overlap.gain < 1))
    Fail(who, ": overlap.gain is ", options.overlap.gain, " but must lie in [0, 1)");
  if (!IsFloating(options.dtype)) Fail(who, ": dtype is ", Name(options.dtype), ", must be f32, bf16 or f16");
  for (int n = 0; n < graph.num_nodes(); ++n) {
    const Node& node = graph.node(n);
    auto batch = node.fixed.find(0);
    if (node.kind != NodeKind::kInput || batch == node.fixed.end()) continue;
    int64_t extent = graph.value(node.out[0]).shape[batch->second.axis];
    if (options.micro_batches > std::max<int64_t>(1, extent))
      Fail(who, ": micro_batches is ", options.micro_batches, " but input '", node.name, "' has a batch of ",
           extent);
  }
}

// The outermost level of links as the user says; with a job it is between hosts.
void SetLink(const ModelImpl& model, Topology* topology) {
  const double bandwidth = model.options.link.bandwidth;
  if (bandwidth <= 0) return;
  if (const std::shared_ptr<Job>& job = model.options.job) {
    const std::vector<PeerInfo>& peers = job->peers();
    const auto here = std::count_if(peers.begin(), peers.end(),
                                    [&](const PeerInfo& peer) { return peer.host_key == peers[0].host_key; });
    if (here == std::ssize(peers)) return;  // one host has all
    const int devices = model.mesh.size() / job->processes() * static_cast<int>(here);
    if (topology->links.size() == 1) topology->links.push_back(topology->links[0]);
    topology->links[0].devices = devices;
  }
  topology->links.back().bandwidth = bandwidth;
}

// CompileOptions::nodes: the processes of the job, or without one what the described devices are.
std::vector<int> NodesOf(const ModelImpl& model) {
  const int world = model.mesh.size();
  std::vector<int> nodes(world, 0);
  if (const std::shared_ptr<Job>& job = model.options.job) {
    const std::vector<int> node_of_process = NodeOfProcess(job.get());
    const int ranks = world / job->processes();
    for (int rank = 0; rank < world; ++rank) nodes[rank] = node_of_process[rank / ranks] * ranks;
  } else if (const int devices = model.devices_of_node; devices > 0) {
    for (int rank = 0; rank < world; ++rank) nodes[rank] = rank / devices * devices;
  }
  const bool one = std::count(nodes.begin(), nodes.end(), nodes[0]) == world;
  return one ? std::vector<int>() : nodes;
}

CompileOptions ToCompileOptions(const ModelImpl& model, const SessionOptions& options) {
  CompileOptions c;
  c.name = options.name;
  c.times = options.micro_batches;
  c.schedule = options.schedule;
  c.exact_groups = options.exact_groups;
  c.seed = model.options.seed;
  c.dtype = options.dtype;
  c.machine = model.machine;
  SetLink(model, &c.machine.topology);
  c.nodes = NodesOf(model);
  c.algorithms = model.algorithms;
  c.overlap = options.overlap;
  c.roles = {model.mesh.FindAxis(options.parallel.batch), model.mesh.FindAxis(options.parallel.tensor),
             model.mesh.FindAxis(options.parallel.context)};
  c.zero_axis = model.zero_axis;
  c.zero_stage = model.options.zero.stage;
  c.zero_prefetch = model.options.zero.prefetch;
  c.zero_small = model.options.zero.small;
  c.bucket_bytes = model.options.zero.bucket_bytes;
  c.fuse = !model.options.check_nan;
  return c;
}

// Sessions of one name share their step number, which must mean one thing.
void CheckStepsOf(const std::string& who, const ModelImpl& model, const std::string& session,
                  SessionSteps::Of of) {
  auto steps = model.steps.find(session);
  if (steps == model.steps.end() || steps->second.of == SessionSteps::Of::kNone || steps->second.of == of)
    return;
  const bool training = of == SessionSteps::Of::kTraining;
  Fail(who, ": session ", session, " is ", training ? "a training" : "an evaluation",
       " but an earlier one of that ", "name is ", training ? "an evaluation" : "a training",
       ", and both would count its steps; give it another ", "name");
}

// The session that `finish` gives. While it is over the budget, blocks move off stages that are; where none
// can, the first refusal stands; but of those that name the least there can be, the one that names less.
Session FitBudget(GraphOfModel* source, const std::function<Session()>& finish) {
  std::optional<OverBudget> refusal;
  while (true) {
    try {
      return finish();
    } catch (const OverBudget& over) {
      if (!refusal || (over.least && over.bytes < refusal->bytes)) refusal = over;
      if (!MoveBlocksOff(source, over.ranks)) throw *refusal;
    }
  }
}

// A session of the graph's nodes that the fetches and `roots` need. `who` is the user's Train or Evaluate:
// what cannot be compiled is reported with both lines, the call's and the node's.
Session Finish(const std::string& who, ModelImpl* model, Graph graph, const SessionOptions& options,
               const std::map<std::string, int>& fetched, std::vector<int> roots,
               const std::optional<Training>& training, const std::string& finite) {
  RequirePatternsMatched(who, *model);
  const SessionSteps::Of of = training ? SessionSteps::Of::kTraining : SessionSteps::Of::kEvaluation;
  CheckStepsOf(who, *model, options.name, of);
  for (const auto& [name, value] : fetched) roots.push_back(graph.AddFetch(name, value));
  for (const Tensor& tensor : options.also) roots.push_back(graph.value(tensor.id()).producer);
  graph.KeepOnly(roots);
  CheckOptions(*model, graph, who, options);
  std::string input_graph;
  std::vector<ModelVariable> state;
  WholeFn whole = [&](const Graph& g) {
    state = NewState(Cat("session ", options.name), *model, g);
    if (model->options.job) input_graph = GraphLines(g);
  };
  CompileOptions compile = ToCompileOptions(*model, options);
  compile.training = training;
  SetBudget(who, *model, graph, &compile);
  std::unique_ptr<Session::Impl> impl;
  try {
    Compiled compiled = Compile(std::move(graph), compile, Dumper(*model, options.name), whole);
    impl.reset(new Session::Impl{model->shared_from_this(),
                                 std::move(compiled),
                                 options,
                                 {},
                                 {},
                                 finite,
                                 std::move(input_graph),
                                 nullptr});
  } catch (const WriteError& error) {
    throw WriteError(Cat(who, ": ", error.what()));
  } catch (const Error& error) {
    Fail(who, ": ", error.what());
  }
  impl->trains = of == SessionSteps::Of::kTraining;
  for (int n : impl->compiled.graph.Order()) {
    const Node& node = impl->compiled.graph.node(n);
    if (node.kind == NodeKind::kInput) impl->inputs[node.name] = node.out[0];
    if (node.kind == NodeKind::kFetch) impl->outputs.insert(node.name);
  }
  Session session(std::move(impl));
  if (model->options.compiled) *model->options.compiled = true;
  CheckBudget(who, session);
  if (model->report && (!model->options.job || model->options.job->process() == 0))
    model->report->AddSession(options.name, ReportFigures(*session.impl()));
  VLOG(1) << "session " << options.name << " is compiled: " << session.impl()->compiled.graph.Order().size()
          << " nodes on " << model->mesh.str();
  for (ModelVariable& variable : state) model->variables.emplace(variable.node.name, std::move(variable));
  model->steps[options.name].of = of;
  return session;
}

// The graph of Finish as far as the compiler brings it before it chooses signatures.
Graph PlacedGraph(const std::string& who, const ModelImpl& model, Graph graph, const SessionOptions& options,
                  const std::map<std::string, int>& fetched, std::vector<int> roots,
                  const CompileOptions& compile) {
  RequirePatternsMatched(who, model);
  for (const auto& [name, value] : fetched) roots.push_back(graph.AddFetch(name, value));
  for (const Tensor& tensor : options.also) roots.push_back(graph.value(tensor.id()).producer);
  graph.KeepOnly(roots);
  CheckOptions(model, graph, who, options);
  graph.set_times(options.micro_batches);
  try {
    for (const Pass& pass : Passes()) {
      pass.run(&graph, compile);
      if (pass.leaves == Level::kPlaced) break;
    }
  } catch (const Error& error) {
    Fail(who, ": ", error.what());
  }
  return graph;
}

[[noreturn]] void FailTaken(const std::string& who, const std::string& name) {
  Fail(who, ": the session gives an output '", name, "' of its own; name yours otherwise");
}

void AddOutputs(const GraphOfModel* graph, const std::string& who, const SessionOptions& options,
                const std::map<std::string, Tensor>& outputs, std::map<std::string, int>* fetched) {
  for (const auto& [name, tensor] : outputs) {
    const GraphOfModel* of = GraphOf(tensor, Cat(who, ": output '", name, "'"));
    if (of != graph)
      Fail(who, ": output '", name, "' belongs to another ", of->model == graph->model ? "graph" : "model");
    if (!fetched->emplace(name, tensor.id()).second) FailTaken(who, name);
  }
  for (const Tensor& tensor : options.also)
    if (GraphOf(tensor, Cat(who, ": SessionOptions::also")) != graph)
      Fail(who, ": '", tensor.name(), "' of SessionOptions::also belongs to another graph");
}

// The values that a session computes: its outputs and SessionOptions::also.
std::map<std::string, int> Roots(std::map<std::string, int> fetched, const SessionOptions& options) {
  for (size_t i = 0; i < options.also.size(); ++i) fetched[Cat("also ", i)] = options.also[i].id();
  return fetched;
}

// Nodes that a value is computed from, its own among them.
std::set<int> Ancestors(const Graph& graph, const std::vector<int>& values) {
  std::set<int> seen;
  std::vector<int> todo;
  for (int v : values) todo.push_back(graph.value(v).producer);
  while (!todo.empty()) {
    const int n = todo.back();
    todo.pop_back();
    if (!seen.insert(n).second) continue;
    for (int v : graph.node(n).in) todo.push_back(graph.value(v).producer);
  }
  return seen;
}

// Of what layers keep, that which belongs to a training of these values: it shares an operator with them and
// needs no other input.
std::vector<Tensor> KeptByLayers(const GraphOfModel& graph, const std::map<std::string, int>& roots) {
  std::vector<int> values;
  for (const auto& [name, value] : roots) values.push_back(value);
  const std::set<int> trained = Ancestors(graph, values);
  std::vector<Tensor> kept;
  for (const Tensor& tensor : graph.in_training) {
    bool fed = true, shared = false;
    for (int n : Ancestors(graph, {tensor.id()})) {
      const bool there = trained.count(n) != 0;
      fed = fed && (there || graph.node(n).kind != NodeKind::kInput);
      shared = shared || (there && graph.node(n).kind == NodeKind::kOperator);
    }
    if (fed && shared) kept.push_back(tensor);
  }
  return kept;
}

}  // namespace

Tensor Updated(Tensor variable, Here at) {
  const std::string who = Cat("Updated at ", SourceLine(at).str());
  Graph& graph = *GraphOf(variable, who);
  const Node from = graph.producer(variable.id());
  if (from.kind != NodeKind::kVariable)
    Fail(who, ": '", variable.name(), "' is not a variable, only what Scope::Weight and Scope::State give is one");
  Node node;
  node.op = "updated";
  node.name = graph.UniqueName("updated/" + from.name);
  node.in = {variable.id()};
  node.line = SourceLine(at);
  node.slice = from.slice;
  node.placed = from.placed;
  node.phase = Phase::kUpdate;
  const std::string name = node.name;
  int id = graph.AddRaw(std::move(node), {{name, variable.dtype(), variable.shape()}});
  return Tensor(&graph, graph.node(id).out[0]);
}

Session Train(Tensor loss, const Optimizer& optimizer, const TrainOptions& user_options, Here at) {
  TrainOptions options = user_options;
  if (options.name.empty()) options.name = "train";
  std::string who = Cat("Train at ", SourceLine(at).str());
  GraphOfModel* source = GraphOf(loss, who);
  CheckOptimizer(who, optimizer, options.lr_schedule);
  if (!(options.clip_norm >= 0))
    Fail(who, ": clip_norm is ", options.clip_norm, ", must be 0 (no clipping) or more");
  for (double bound : {options.skip.above, options.skip.times})
    if (!(bound >= 0)) Fail(who, ": a bound of TrainOptions::skip is ", bound, ", must be 0 (none) or more");
  if (options.lr_function && options.lr_schedule != Schedule{})
    Fail(who, ": both lr_schedule and lr_function are given; leave one out");
  std::map<std::string, int> fetched{{"loss", loss.id()}};
  AddOutputs(source, who, options, options.outputs, &fetched);
  const bool skips = options.skip.above > 0 || options.skip.times > 0;
  if (options.clip_norm > 0 && fetched.count("grad_norm"))
    FailTaken(who, "grad_norm");  // add_updates gives it
  if (skips && fetched.count("skipped")) FailTaken(who, "skipped");
  for (const Tensor& tensor : KeptByLayers(*source, Roots(fetched, options))) options.also.push_back(tensor);
  Training training{optimizer,    options.lr_schedule, options.clip_norm,
                    options.skip, options.recompute,   static_cast<bool>(options.lr_function)};
  const auto finish = [&] {
    Graph graph = SessionGraph(source, Roots(fetched, options));
    const int train = graph.AddTrain(loss.id(), SourceLine(at));
    const bool scalar = graph.value(loss.id()).dtype == DType::kFloat32;
    return Finish(who, source->model, std::move(graph), options, fetched, {train}, training,
                  options.check_finite && scalar ? "loss" : "");
  };
  CompileOptions compile = ToCompileOptions(*source->model, options);
  compile.training = training;
  const auto placed = [&] {
    Graph graph = SessionGraph(source, Roots(fetched, options));
    const int train = graph.AddTrain(loss.id(), SourceLine(at));
    return PlacedGraph(who, *source->model, std::move(graph), options, fetched, {train}, compile);
  };
  Session session = WithCutsChosen(source->model, compile, placed, [&] { return FitBudget(source, finish); });
  session.impl()->lr_function = options.lr_function;
  session.impl()->lr_schedule = options.lr_schedule;
  if (optimizer.numbers.Has("lr")) session.impl()->lr = optimizer.numbers.Float("lr");
  return session;
}

Session Evaluate(const std::map<std::string, Tensor>& outputs, const SessionOptions& user_options, Here at) {
  SessionOptions options = user_options;
  if (options.name.empty()) options.name = "eval";
  std::string who = Cat("Evaluate at ", SourceLine(at).str());
  if (outputs.empty() && options.also.empty()) Fail(who, ": no outputs are asked for");
  GraphOfModel* source =
      outputs.empty() ? GraphOf(options.also[0], Cat(who, ": SessionOptions::also"))
                      : GraphOf(outputs.begin()->second, Cat(who, ": output '", outputs.begin()->first, "'"));
  std::map<std::string, int> fetched;
  AddOutputs(source, who, options, outputs, &fetched);
  const auto finish = [&] {
    return Finish(who, source->model, SessionGraph(source, Roots(fetched, options)), options, fetched, {}, {},
                  "");
  };
  const CompileOptions compile = ToCompileOptions(*source->model, options);
  const auto placed = [&] {
    return PlacedGraph(who, *source->model, SessionGraph(source, Roots(fetched, options)), options, fetched,
                       {}, compile);
  };
  return WithCutsChosen(source->model, compile, placed, [&] { return FitBudget(source, finish); });
}

}  // namespace oneflow_like
