#include "oneflow_like/model.h"

#include <algorithm>
#include <set>

#include "actor/net/talk/job.h"
#include "compiler/passes/passes.h"
#include "core/one_line.h"
#include "core/random.h"
#include "core/system/host_memory.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/model/placement.h"
#include "oneflow_like/model/topology_file.h"
#include "oneflow_like/model/variables.h"
#include "oneflow_like/text/utf8.h"
#include "ops/cpu/manifest.h"
#include "ops/language/numbers.h"
#include "ops/manifest.h"

namespace oneflow_like {
namespace {

// A topology may have times of the user's operators, so that its file alone does not tell which there are.
void RequireKnownKernels(const Machine& machine, const Catalog& catalog, const KernelRegistry& registry,
                         const std::string& file) {
  if (machine.kernels.empty()) return;
  const std::vector<std::string> operators = catalog.names();
  std::set<std::string> known(operators.begin(), operators.end());
  known.insert(kCollectiveWork);
  for (const std::string& name : operators) known.insert(registry.Cost(name, "cpu").measured_as);
  for (const MeasuredKernel& kernel : machine.kernels)
    if (known.count(kernel.name) == 0 && !registry.Has(kernel.name, "cpu") &&
        !registry.Has(kernel.name, "reference"))  // of boxing, such as accumulate
      Fail(
          "topology file '", file, "': kernel ", OnOneLine(kernel.name),
          " is not known: there is no operator of that name; correct or remove the line, or add the operator "
          "to ModelOptions::operators");
}

}  // namespace

ModelImpl::ModelImpl(Mesh mesh, const ModelOptions& options)
    : options(options), mesh(std::move(mesh)), catalog(BuiltinCatalog()), graph(this, "") {
  CheckModelNumbers("ModelOptions::", options);
  if (options.zero.stage < 1 || options.zero.stage > 3)
    Fail("ModelOptions::zero: stage is ", options.zero.stage, ", must be 1, 2 or 3");
  CheckRange("ModelOptions::zero: prefetch", options.zero.prefetch, 0, kMostAhead);
  CheckRange<int64_t>("ModelOptions::zero: small", options.zero.small, 0, INT64_MAX);
  CheckRange("ModelOptions::offload: optimizer", options.offload.optimizer, 0.0, 1.0);
  CheckRange("ModelOptions::offload: prefetch", options.offload.prefetch, 0, kMostAhead);
  CheckRange<int64_t>("ModelOptions::offload: small", options.offload.small, 0, INT64_MAX);
  CheckRange("ModelOptions::link: bandwidth", options.link.bandwidth, 0.0, 1e15);
  CheckRange<int64_t>("ModelOptions::zero: bucket_bytes", options.zero.bucket_bytes, 0, INT64_MAX);
  machine = MachineOf(this->mesh);
  algorithms = ParseWantedAlgorithms(options.collectives, "ModelOptions::collectives");
  if (!algorithms.empty() && this->mesh.kind() != "cpu")
    Fail("ModelOptions::collectives is ", options.collectives, ", but on mesh ", this->mesh.str(),
         " NCCL chooses how collectives are done");
  if (!options.topology.empty()) {
    machine = ReadTopology(options.topology);
    RequireDevices(machine, this->mesh.size());
    devices_of_node = machine.threads > 0 ? machine.topology.links[0].devices : 1;
    device_bytes = static_cast<int64_t>(machine.memory_bytes);
  }
  if (!options.zero.axis.empty()) zero_axes = this->mesh.AxesOrFail(options.zero.axis, "ModelOptions::zero");
  for (const OpDef& def : options.operators) {
    if (catalog.Find(def.name))
      Fail("operator '", def.name, "' of ModelOptions::operators: there is one of that name");
    if (const std::string lacks = LackOf(def); !lacks.empty())
      Fail("operator '", def.name, "' of ModelOptions::operators lacks ", lacks);
    catalog.Add(def);
  }
  AddReferenceKernels(catalog, &registry);
  AddBoxingKernels(&registry);
  AddCpuKernels(&registry);
  if (options.kernels) options.kernels(&registry);
  RequireKnownKernels(machine, catalog, registry, options.topology);
  RuntimeThreads(options, RanksHere(), 1);
  kernel_threads = KernelThreadsHere(RuntimeThreads(options, RanksHere(), CoresHere()));
  if (options.job) JoinJob();
  if (!options.trace_file.empty())
    trace = std::make_unique<TraceFile>(TraceFileOf(options.trace_file, options.job.get()));
  if (!options.report_file.empty())
    report = OpenReport(options.report_file, this->mesh.str(), options.job ? options.job->process() : 0);
}

int ModelImpl::CoresHere() const { return oneflow_like::CoresHere(options.job.get()); }

int ModelImpl::KernelThreadsHere(int runtime_threads) const {
  return options.kernel_threads > 0 ? options.kernel_threads : std::max(1, CoresHere() / runtime_threads);
}

int ModelImpl::RanksHere() const { return mesh.size() / (options.job ? options.job->processes() : 1); }

void ModelImpl::JoinJob() {
  Job* job = options.job.get();
  if (mesh.size() % job->processes() != 0)
    Fail("mesh ", mesh.str(), " has ", mesh.size(), " devices, which ", job->processes(),
         " processes cannot share equally");
  job->SetWorld(mesh.size());
  for (const std::string& threads : job->AllGather("threads of a kernel", std::to_string(kernel_threads)))
    kernel_threads = std::max(kernel_threads, std::stoi(threads));
  if (options.trace_file.empty() && options.report_file.empty()) return;
  std::vector<std::string> clocks = job->AllGather("start of the trace", std::to_string(ClockNow()));
  trace_origin = std::stoll(clocks[0]);
}

std::string TraceFileOf(const std::string& file, const Job* job) {
  return job ? Cat(file, ".process", job->process()) : file;
}

int64_t ModelImpl::TraceOriginHere() const {
  return trace_origin - options.job->network()->OffsetTo(0).offset_ns;
}

std::unique_ptr<Device> ModelImpl::MakeDevice(int rank) {
  Job* job = options.job.get();
  if (mesh.KindOf(rank) == "cpu") return MakeHostDevice(rank, job ? job->region() : nullptr);
  std::vector<int> numbers = options.devices;
  if (numbers.empty()) {
    for (int d = 0; d < backend->device_count(); ++d) numbers.push_back(d);
  }
  for (int d : numbers) {
    if (d < 0 || d >= backend->device_count()) {
      throw UsageError(Cat("mesh ", mesh.str(), ": device ", d,
                           " of --devices does not exist, this host has ", backend->device_count(), " ",
                           backend->kind(), " devices, numbered from 0"));
    }
  }
  const int number = numbers[DeviceOf(*this, rank, static_cast<int64_t>(numbers.size()))];
  return backend->MakeDevice(rank, number, job ? job->region() : nullptr);
}

void ModelImpl::Load() {
  if (store) return;
  cut_reasons = nullptr;
  for (const std::string& kind : mesh.kinds()) {
    if (kind == "cpu") continue;
    try {
      backend = OpenBackend(kind);
    } catch (const Error& error) {  // which plans that are only compiled do not meet
      throw UsageError(Cat("mesh ", mesh.str(), ": ", error.what()));
    }
    backend->AddKernels(&registry);
  }
  groups_share_devices = GroupsShareDevices(*this);
  Job* job = options.job.get();
  std::vector<int> ranks;
  std::vector<std::unique_ptr<Device>> devices;
  int hosted = RanksHere(), first = job ? job->process() * hosted : 0;
  std::set<std::string> hardware;
  for (int r = first; r < first + hosted; ++r) {
    ranks.push_back(r);
    devices.push_back(MakeDevice(r));
    hardware.insert(devices.back()->hardware());
  }
  hardware.erase("");
  int threads = RuntimeThreads(options, hosted, CoresHere());
  // A call of the library of a group of devices may wait for the other members: each has a thread of its own.
  if (hardware.size() > 1) threads = hosted;
  // OpenMP ends the process where it cannot start a thread. Those that allocate reserve addresses for it.
  constexpr size_t kStack = size_t{8} << 20, kHeap = size_t{64} << 20, kSpare = size_t{64} << 20;
  CheckAddressesFor(kSpare + threads * (kHeap + kStack * KernelThreadsHere(threads)), "its threads");
  store = std::make_unique<Store>(ranks, std::move(devices));
  executor = MakeThreadExecutor(threads, KernelThreadsHere(threads));
}

void ModelImpl::SettleSteps(const void* but) {
  for (auto& [session, step] : last_steps) {
    if (session == but || !step.settler) continue;
    step.settler->Settle();
    step.handle = step.settler->last();
  }
}

void ModelImpl::WaitIdle() {
  SettleSteps();
  for (const auto& [session, step] : last_steps) (void)step.handle.Wait();
}

GraphOfModel::GraphOfModel(ModelImpl* model, std::string name)
    : Graph(&model->catalog, model->mesh), model(model), name(std::move(name)) {}

GraphOfModel* GraphOf(const Tensor& tensor, const std::string& who) {
  if (tensor.defined() && tensor.graph()->outer() != nullptr)
    Fail(who,
         ": its tensor is a value of a loop's body, which lies as the loop's operands do; call it outside");
  auto* graph = dynamic_cast<GraphOfModel*>(tensor.graph());
  if (!graph) Fail(who, ": the tensor is undefined or belongs to no model");
  return graph;
}

std::string Who(const std::string& what, const std::string& name, const Here& at) {
  const SourceLine line(at);
  return Cat(what, " '", name, "'", line.function.empty() ? "" : " of " + line.function, " at ", line.str());
}

FixedSbp CheckAnnotation(const Mesh& mesh, const std::string& who, const Dims& shape,
                         const Annotation& annotation, const std::vector<int>& stage) {
  FixedSbp fixed;
  for (const auto& [name, sbp] : annotation) {
    const MeshAxes axes = mesh.AxesOrFail(name, who);
    for (int axis : axes) {
      if (fixed.count(1 + axis)) Fail(who, ": mesh axis ", mesh.axis_name(axis), " is annotated twice");
      if (!stage.empty() && stage[axis] != Slice::kFree)
        Fail(who, ": mesh axis ", mesh.axis_name(axis),
             " is the pipeline axis here and cannot also cut the tensor");
    }
    if (sbp.is_split() && sbp.grain < 1)
      Fail(who, ": ", name, ":S", sbp.axis, " has the grain ", sbp.grain, ", must be at least 1");
    if (sbp.is_split() && (sbp.axis < 0 || sbp.axis >= shape.rank()))
      Fail(who, ": ", name, ":", sbp.str(), " cuts axis ", sbp.axis, " but the shape is ", shape.str());
    for (int axis : axes) fixed[1 + axis] = sbp;
  }
  return fixed;
}

void CheckName(const std::string& who, const std::string& name) {
  if (name.empty()) Fail(who, ": it needs a name");
  if (name.find(':') != std::string::npos)
    Fail(who, ": names with a ':' are those of optimizer state; leave it out");
  if (!IsUtf8(name)) Fail(who, ": its name is no text in UTF-8, which checkpoints need");
}

void CheckNotPartial(const Mesh& mesh, const std::string& who, const FixedSbp& fixed) {
  for (const auto& [entry, sbp] : fixed)
    if (sbp.is_partial())
      Fail(who, ": ", mesh.axis_name(entry - 1), ":", sbp.str(),
           " is a partial value, which only an operator can give; use B or S");
}

std::string ReserveName(Graph* graph, const std::string& name) {
  if (graph->UniqueName(name) == name) return name;
  std::string other;
  for (int n = 0; n < graph->num_nodes(); ++n) {
    Node& node = graph->node(n);
    if (node.name == name) node.name = other = graph->UniqueName(name);
    if (node.attrs.Has("draws_of") && node.attrs.Str("draws_of") == name) node.attrs.Set("draws_of", other);
  }
  return name;
}

namespace {

// What an operator's result may be held to.
FixedSbp Holdable(const Mesh& mesh, const std::string& who, Tensor x, const Annotation& sbp,
                  const Slice& slice) {
  FixedSbp fixed = CheckAnnotation(mesh, who, x.shape(), sbp, slice.fixed);
  for (const auto& [entry, s] : fixed)
    if (s.is_partial() && s.fold != Reduce::kSum)
      Fail(who, ": ", mesh.axis_name(entry - 1), ":", s.str(),
           " cannot be held, only sums stay partial behind an operator; use B, S or P");
  return fixed;
}

// The number of this mesh axis, which has stage `index`.
int StageAxis(const Mesh& mesh, const std::string& who, const std::string& axis, int index) {
  const int a = mesh.AxisOrFail(axis, who);
  if (index < 0 || index >= mesh.axis_size(a))
    Fail(who, ": stage ", index, " is outside axis ", axis, " of extent ", mesh.axis_size(a));
  return a;
}

Tensor AnnotatedIdentity(Tensor x, const std::string& who, const Annotation& sbp, const Here& at) {
  Graph* graph = GraphOf(x, who);
  std::vector<Tensor> out = graph->AddNode("identity", {x}, {}, SourceLine(at));
  Node& node = graph->node(graph->value(out[0].id()).producer);
  node.fixed = Holdable(graph->mesh(), who, x, sbp, node.slice);
  return out[0];
}

}  // namespace

Scope Scope::operator/(const std::string& name) const {
  Scope s = *this;
  s.path_ = path_.empty() ? name : path_ + "/" + name;
  return s;
}

GraphBuilder* Scope::graph() const { return graph_; }

void Scope::InTraining(Tensor assigned, Here at) const {
  const std::string who = Cat("InTraining at ", SourceLine(at).str());
  if (!graph_ || GraphOf(assigned, who) != graph_)
    Fail(who, ": the tensor belongs to another graph than the Scope");
  graph_->in_training.push_back(assigned);
}

void Scope::Output(const std::string& name, Tensor shown, Here at) const {
  const std::string who = Cat("Output at ", SourceLine(at).str());
  if (!graph_ || GraphOf(shown, who) != graph_)
    Fail(who, ": the tensor belongs to another graph than the Scope");
  graph_->shown.emplace(Path(name), shown);
}

const Mesh& Scope::mesh() const {
  if (!graph_) Fail("a Scope that was never given a value has no mesh; start from Model::scope()");
  return graph_->mesh();
}

Scope Scope::Stage(const std::string& axis, int index, Here at) const {
  Scope s = *this;
  s.stage_[StageAxis(mesh(), Who("stage", axis, at), axis, index)] = index;
  return s;
}

Scope Scope::Everywhere(const std::string& axis, Here at) const {
  Scope s = *this;
  s.stage_[mesh().AxisOrFail(axis, Who("everywhere", axis, at))] = kEverywhere;
  return s;
}

const Scope& Scope::Region(std::optional<Recompute> recompute, Here at) const {
  const std::string who = Who("region", path_, at);
  if (path_.empty()) Fail(who, ": the root scope is no region; name a scope below it");
  try {
    graph_->regions().Add(path_, recompute);
  } catch (const Error& error) {
    Fail(who, ": ", error.what());
  }
  return *this;
}

RunningScope::RunningScope(const Scope& scope, Of of) : graph_(scope.graph_) {
  if (!graph_) Fail("a Scope that was never given a value cannot run; start from Model::scope()");
  graph_->Enter(scope, of);
}

RunningScope::~RunningScope() { graph_->Leave(); }

void GraphOfModel::Enter(const Scope& scope, RunningScope::Of of) {
  Running now{scope.path_, scope.stage_, of == RunningScope::Of::kBlock};
  const auto block =
      std::find_if(running_.rbegin(), running_.rend(), [](const Running& other) { return other.block; });
  if (block != running_.rend()) {
    const bool within = block->path.empty() || now.path == block->path || Within(block->path, now.path);
    if (!within) now = {running_.back().path, running_.back().stage, false};
    for (size_t a = 0; a < now.stage.size(); ++a)
      if (now.stage[a] == Slice::kFree) now.stage[a] = block->stage[a];
  }
  if (now.block) ended_.erase(now.path);
  running_.push_back(std::move(now));
}

void GraphOfModel::Leave() {
  const Running& last = running_.back();
  if (last.block && !last.path.empty()) ended_.insert(last.path);
  running_.pop_back();
}

std::string GraphOfModel::ScopeOutsideEnded(const std::string& name) const {
  if (!ended_.empty())
    for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
      if (const std::string path = name.substr(0, slash); ended_.count(path)) return ScopeOf(path);
  return ScopeOf(name);
}

// Within the scope that runs an operator has the scope of an operand that is there: a projection's bias
// is added in "block0/attention", not in "block0".
Graph::Place GraphOfModel::PlaceOf(const std::vector<Tensor>& in) {
  Place place = Graph::PlaceOf(in);
  const Running* here = running_.empty() ? nullptr : &running_.back();
  const std::string below = here && !here->path.empty() ? here->path + "/" : "";
  place.scope = below;
  std::pair<bool, int> best{false, -1};
  for (const Tensor& t : in) {
    if (ClaimOf(t.id()) <= best) continue;
    std::string scope = ScopeOutsideEnded(t.name());
    if (!scope.empty() && scope.starts_with(below)) place.scope = std::move(scope), best = ClaimOf(t.id());
  }
  standing.erase(num_nodes());
  // An operator without operands has the stage of its readers.
  for (int a = 0; here && !in.empty() && a < mesh().rank(); ++a) {
    if (here->stage[a] == Slice::kFree) continue;
    place.slice.fixed[a] = here->stage[a] == Scope::kEverywhere ? Slice::kFree : here->stage[a];
    place.placed = true;
    standing[num_nodes()] = here->stage;
  }
  return place;
}

Scope GraphOfModel::Root() {
  Scope s;
  s.graph_ = this;
  s.stage_.assign(mesh().rank(), Slice::kFree);
  return s;
}

Tensor GraphOfModel::Input(const std::string& name, const Dims& shape, DType dtype, const Annotation& sbp,
                           int batch_axis, Here at) {
  std::string who = Who("input", name, at);
  CheckName(who, name);
  RequireExtents(who, shape);
  NeedType(who, dtype);
  if (inputs.count(name)) Fail(who, ": the graph already has an input of that name");
  if (variables.count(name)) Fail(who, ": the graph already has a weight of that name");
  if (batch_axis < -1 || batch_axis >= shape.rank())
    Fail(who, ": batch_axis is ", batch_axis, " but the shape is ", shape.str());
  Node node;
  node.op = "input";
  node.name = ReserveName(this, name);
  node.line = SourceLine(at);
  node.fixed = CheckAnnotation(mesh(), who, shape, sbp, {});
  CheckNotPartial(mesh(), who, node.fixed);
  if (batch_axis >= 0) node.fixed[0] = S(batch_axis);
  int id = AddRaw(node, {{name, dtype, shape}});
  inputs[name] = id;
  model->input_names.insert(name);
  return Tensor(this, this->node(id).out[0]);
}

Tensor GraphOfModel::Find(const std::string& wanted, const Here& at) {
  std::string close;
  size_t most = 0;
  for (int v = 0; v < num_values(); ++v) {
    const std::string& name = value(v).name;
    if (name == wanted && alive(value(v).producer)) return Tensor(this, v);
    const size_t alike =
        std::mismatch(name.begin(), name.end(), wanted.begin(), wanted.end()).first - name.begin();
    if (alike > most) close = name, most = alike;
  }
  Fail("Find at ", SourceLine(at).str(), ": the graph has no tensor '", wanted, "'",
       close.empty() ? "" : Cat("; the closest is '", close, "'"));
}

Tensor ModelGraph::Find(const std::string& name, Here at) const { return impl_->Find(name, at); }
Tensor Model::Find(const std::string& name, Here at) const { return impl_->graph.Find(name, at); }

Scope ModelGraph::scope() const { return impl_->Root(); }
GraphBuilder* ModelGraph::builder() const { return impl_.get(); }
Tensor ModelGraph::Input(const std::string& name, const Dims& shape, DType dtype, const Annotation& sbp,
                         int batch_axis, Here at) {
  return impl_->Input(name, shape, dtype, sbp, batch_axis, at);
}

Model::Model(Mesh mesh, const ModelOptions& options)
    : impl_(std::make_shared<ModelImpl>(std::move(mesh), options)) {}
Model::~Model() = default;

const Mesh& Model::mesh() const { return impl_->mesh; }
Scope Model::scope() const { return impl_->graph.Root(); }
GraphBuilder* Model::builder() const { return &impl_->graph; }
Tensor Model::Input(const std::string& name, const Dims& shape, DType dtype, const Annotation& sbp,
                    int batch_axis, Here at) {
  return impl_->graph.Input(name, shape, dtype, sbp, batch_axis, at);
}

ModelGraph Model::NewGraph(const std::string& name) {
  ModelGraph graph;
  graph.impl_ = std::make_shared<GraphOfModel>(impl_.get(), name);
  graph.impl_->keep = impl_;
  return graph;
}

std::string Model::WeightsMark() const { return MarkOf(*impl_); }
const std::string& Model::CutsText() const { return impl_->cuts_text; }
std::string Model::CutReasons() const { return impl_->cut_reasons ? impl_->cut_reasons() : ""; }

int64_t Model::next_step(const std::string& session) const {
  auto found = impl_->steps.find(session);
  return found == impl_->steps.end() ? 0 : found->second.next;
}

void Model::SetNextStep(const std::string& session, int64_t step) {
  if (step < 0)
    Fail("SetNextStep: session ", session, " cannot continue with step ", step, ", the first is 0");
  if (Job* job = impl_->options.job.get()) {
    const std::vector<std::string> all =
        job->AllGather("next step of session " + session, std::to_string(step));
    for (size_t p = 0; p < all.size(); ++p)
      if (all[p] != all[0])
        Fail("SetNextStep: session ", session, " continues with step ", all[0],
             " on process 0 but with step ", all[p], " on process ", p);
  }
  impl_->SettleSteps();
  impl_->steps[session].next = step;
}

std::map<std::string, int64_t> Model::NextSteps() const {
  std::map<std::string, int64_t> all;
  for (const auto& [name, steps] : impl_->steps) all[name] = steps.next;
  return all;
}

std::vector<Tensor> gradients(Tensor y, const std::vector<Tensor>& x, Here at) {
  const std::string who = Cat("gradients at ", SourceLine(at).str());
  Graph* graph = GraphOf(y, who);
  std::vector<int> values;
  for (size_t i = 0; i < x.size(); ++i) {
    if (GraphOf(x[i], who) != graph) Fail(who, ": x ", i, " belongs to another graph than y");
    if (!IsFloating(x[i].dtype()))
      Fail(who, ": x ", i, ", '", x[i].name(), "', is ", Name(x[i].dtype()), ", which has no gradient");
    values.push_back(x[i].id());
  }
  std::vector<Tensor> found;
  try {
    found = GradientsOf(graph, y.id(), values);
  } catch (const Error& error) {
    Fail(who, ": ", error.what());
  }
  for (size_t i = 0; i < found.size(); ++i)
    if (!found[i].defined())
      Fail(who, ": '", y.name(), "' does not depend on x ", i, ", '", x[i].name(),
           "', through operators that have a gradient");
  return found;
}

Tensor annotate(Tensor x, const Annotation& sbp, Here at) {
  return AnnotatedIdentity(x, Who("annotate", x.defined() ? x.name() : "", at), sbp, at);
}

Tensor annotate(Tensor x, const Annotation& sbp, const AnnotateOptions& options, Here at) {
  Tensor y = annotate(x, sbp, at);
  const std::string who = Who("annotate", x.name(), at);
  Graph& graph = *GraphOf(x, who);
  if (!options.gradient.empty() && !IsFloating(x.dtype()))
    Fail(who, ": `gradient` is given, but a tensor of ", Name(x.dtype()), " has none");
  Node& node = graph.node(graph.value(y.id()).producer);
  node.gradient = Holdable(graph.mesh(), who + ": gradient", x, options.gradient, node.slice);
  return y;
}

Tensor to_stage(Tensor x, const std::string& axis, int index, Here at) {
  std::string who = Who("to_stage", x.defined() ? x.name() : "", at);
  Tensor y = AnnotatedIdentity(x, who, {}, at);
  Graph& graph = *GraphOf(x, who);
  Node& node = graph.node(graph.value(y.id()).producer);
  node.slice.fixed[StageAxis(graph.mesh(), who, axis, index)] = index;
  node.placed = true;
  GraphOf(x, who)->moves[graph.value(y.id()).producer] = -1;
  return y;
}

Tensor to_stage_of(Tensor x, Tensor other, Here at) {
  const std::string who = Who("to_stage_of", x.defined() ? x.name() : "", at);
  const Graph& graph = *GraphOf(x, who);
  if (GraphOf(other, who) != &graph) Fail(who, ": both tensors must be of one graph");
  const std::vector<int> wanted = graph.producer(other.id()).slice.fixed;
  for (int a = 0; a < graph.mesh().rank(); ++a)
    if (wanted[a] != Slice::kFree && graph.producer(x.id()).slice.fixed[a] != wanted[a]) {
      x = to_stage(x, graph.mesh().axis_name(a), wanted[a], at);
      GraphOf(x, who)->moves[graph.value(x.id()).producer] = other.id();
    }
  return x;
}

}  // namespace oneflow_like
