// The data of a Model: the variables that its graphs share, and, once something has been loaded, the memory
// and threads of the ranks hosted by this process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actor/executor.h"
#include "actor/runtime.h"
#include "actor/trace.h"
#include "compiler/compile.h"
#include "compiler/graph/graph.h"
#include "compiler/plan/decisions.h"
#include "core/device/backend.h"
#include "oneflow_like/model.h"

namespace oneflow_like {

// Blocks of a graph, divided over the stages of a mesh axis.
struct BlockStack {
  struct Block {
    std::string path;
    int64_t x = -1;          // the value that enters it, as the block before left it
    int begin = 0, end = 0;  // its nodes
    int move = -1;           // the node that brings x to its stage, where that is another one
  };
  std::string name;  // path of the first block: the same in all graphs
  int axis = 0;      // of the mesh
  int rounds = 1;    // over its stages
  int64_t of = 0;    // blocks of the whole model: more than there are here with Pipeline::most_blocks
  bool by_cost = false;
  bool by_options = false;         // as Pipeline::layers says
  std::vector<int64_t> per_stage;  // blocks, as the graph was built
  std::vector<Block> blocks;
};

struct ModelVariable;

// A graph that knows its model, so that functions on Tensors find it.
struct GraphOfModel : Graph {
  GraphOfModel(ModelImpl* model, std::string name);
  Scope Root();
  Tensor Input(const std::string& name, const Dims& shape, DType dtype, const Annotation& sbp, int batch_axis,
               Here at);
  Tensor Find(const std::string& name, const Here& at);
  // Creates a weight or a state, or finds it and compares it with its first request. `said`: the options
  // before patterns overrode them.
  Tensor Variable(const std::string& who, const std::string& path, const Dims& shape, DType dtype,
                  const Initializer& init, const WeightOptions& options, const WeightOptions& said,
                  const std::vector<int>& stage, const Here& at, bool state = false);
  Tensor Request(const std::string& who, const ModelVariable& made);
  // RunningScope.
  void Enter(const Scope& scope, RunningScope::Of of);
  void Leave();

  ModelImpl* const model;
  const std::string name;                        // for messages; empty: the model's own
  std::shared_ptr<ModelImpl> keep;               // the model, unless it is its own
  std::map<std::string, int> variables, inputs;  // by name, their node
  std::vector<Tensor> in_training;               // Scope::InTraining
  std::map<std::string, Tensor> shown;           // Scope::Output
  std::vector<Tensor> no_room;                   // Training::no_room
  std::vector<BlockStack> stacks;
  std::map<int, int> moves;  // nodes of to_stage_of, and the value whose stage they are for; -1: to_stage's
  // Nodes made while a scope with a stage ran, and that scope's coordinates: they do not follow their
  // operands along the axes where it has one. Updates of variables are among them, although they follow the
  // variable.
  std::map<int, std::vector<int>> standing;

 protected:
  Place PlaceOf(const std::vector<Tensor>& in) override;

 private:
  struct Running {
    std::string path;
    std::vector<int> stage;
    bool block = false;
  };
  // ScopeOf(name), or around the outermost block that has ended and contains it.
  std::string ScopeOutsideEnded(const std::string& name) const;

  std::vector<Running> running_;  // outermost first
  std::set<std::string> ended_;   // paths of blocks that no longer run
};

// A variable of the model, as its first request or its training created it.
struct ModelVariable {
  Node node;  // name, attributes (initialiser), line, annotation, stage; without values
  DType dtype = DType::kFloat32;
  Dims shape;
  HostTensor initial;  // initial value, if no initialiser draws it; else without data
  // Whether the stage of `node` is known: from its request on, or, for a weight requested outside any stage,
  // since its first use.
  bool settled = false;
  Layout layout;          // in the store; empty until first requested
  std::string origin;     // where its values were loaded from; empty: from nowhere
  bool compared = false;  // before its first step, with its copies in other processes
  bool state = false;     // of Scope::State
  bool on_host = false;   // a session that was made has it there
  Attrs said;             // options of `node` as code said them, before patterns overrode them
  VariableCut left_out;   // an annotation in code that AutoCuts::kAll does not follow
};

// Steps of all sessions of one name.
struct SessionSteps {
  int64_t next = 0;
  enum class Of { kNone, kTraining, kEvaluation } of = Of::kNone;  // kind of the sessions of that name
  std::vector<std::string> weights = {};                           // TrainOptions::weights of a training
  bool averages = false;                                           // whether it keeps averages of them
  bool averaged = false;                                           // whether they have been updated
};

struct SaveFolder;      // oneflow_like/checkpoint/team.h
class SessionObserver;  // oneflow_like/session/observer.h

// A save under way reads variables (checkpoint/saving.h).
class SaveUnderWay {
 public:
  virtual ~SaveUnderWay() = default;  // stops, complete or not
  // Waits until steps may be launched on devices with memory of their own.
  virtual void WaitBegun() = 0;
  // Waits until code other than steps may change variables.
  virtual void WaitCopied() = 0;
};

// Lets steps run again that lacked room for experts (job/retries.h).
class Settler {
 public:
  virtual ~Settler() = default;
  // Waits for steps in flight and lets them run again, if they must: variables are then what the last step
  // leaves.
  virtual void Settle() = 0;
  virtual StepHandle last() const = 0;  // how the last step ran last
};

// The last step of a session.
struct LastStep {
  StepHandle handle;
  std::string finite;                     // output that must be finite, empty for none
  bool trains = false;                    // it updates variables
  std::shared_ptr<Settler> settler = {};  // of a session whose steps may run again
};

struct ModelImpl : std::enable_shared_from_this<ModelImpl> {
  ModelImpl(Mesh mesh, const ModelOptions& options);

  // Creates devices, store and threads of the ranks that this process hosts, the first time.
  void Load();
  // Waits until the steps of all sessions have ended.
  void WaitIdle();
  // Settles the steps of all sessions but this one, before something reads what they write.
  void SettleSteps(const void* but = nullptr);
  // Allocates memory for the plan, and creates the variables of its rank that do not exist yet.
  void Prepare(const plan::Plan& plan);
  // Loads, waits for steps, and creates the variable if it does not exist yet. Throws Error for an unknown
  // name.
  ModelVariable& Require(const std::string& variable);
  // The same, without waiting if it exists already. REQUIRES: the name is known.
  const ModelVariable& Placed(const std::string& variable);

  // With a job, the origin of the times in its traces, on this process's steady clock.
  int64_t TraceOriginHere() const;

  ModelOptions options;
  const Mesh mesh;
  Catalog catalog;          // the built-in operators and the user's
  Machine machine;          // that plans are made for
  int devices_of_node = 0;  // there, without a job: neighbours that reach each other's memory; 0: all
  WantedAlgorithms algorithms;
  int64_t device_bytes = 0;  // memory of one of its devices, where a topology file says it; 0: unknown
  MeshAxes zero_axes;
  GraphOfModel graph;  // the model's own
  std::map<std::string, ModelVariable> variables;
  std::set<size_t> matched_patterns;          // of options.weights
  std::set<std::string> input_names;          // of all graphs there have been
  StageCuts stages;                           // of stacks that were divided by cost
  bool cuts_chosen = false;                   // with ModelOptions::auto_cuts
  std::string cuts_text;                      // Model::CutsText
  std::function<std::string()> cut_reasons;   // Model::CutReasons; on process 0, until memory is allocated
  std::map<std::string, SessionSteps> steps;  // by name of the sessions; entries stay where they are
  KernelRegistry registry;
  int kernel_threads = 1;      // that any process of the job gives a kernel: plans have scratch for so many
  Backend* backend = nullptr;  // of devices that are not the host's, once loaded
  bool groups_share_devices = false;  // placement.h's GroupsShareDevices, once loaded
  std::unique_ptr<Store> store;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<TraceFile> trace;            // when asked for
  std::shared_ptr<SessionObserver> report;     // likewise
  std::map<const void*, LastStep> last_steps;  // by session
  int64_t loads = 0;                           // how often variables were loaded from files

 private:
  void JoinJob();
  int KernelThreadsHere(int runtime_threads) const;
  int CoresHere() const;  // this process's share of its host's
  int RanksHere() const;
  std::unique_ptr<Device> MakeDevice(int rank);

  int64_t trace_origin = 0;  // by process 0's clock, the same on all processes

 public:
  std::shared_ptr<SaveFolder> save_folder;  // the folder saved in last
  std::shared_ptr<SaveUnderWay> saving;     // the last one, complete or under way; destroyed before what it
                                            // reads
};

// The report of ModelOptions::report_file, of a model on `mesh`, in process `process` of a job or in a single
// process (0). Throws Error when this process's file cannot be written; does not change the file yet.
// report/report.cc has it.
std::shared_ptr<SessionObserver> OpenReport(const std::string& file, const std::string& mesh, int process);
// The graph a tensor belongs to; throws Error when it is undefined or of no model.
GraphOfModel* GraphOf(const Tensor& tensor, const std::string& who);
// The file of this process's part of a trace.
std::string TraceFileOf(const std::string& file, const Job* job);
// "weight 'h0/up' at gpt.cc:12", or "weight 'h0/weight' of nn::Linear 'h0' at gpt.cc:12"
std::string Who(const std::string& what, const std::string& name, const Here& at);
// Checks an annotation against the mesh and the shape; entry -> Sbp.
FixedSbp CheckAnnotation(const Mesh& mesh, const std::string& who, const Dims& shape,
                         const Annotation& annotation, const std::vector<int>& stage);
// Throws Error when an entry is Partial: values from outside the graph can be cut or copied only.
void CheckNotPartial(const Mesh& mesh, const std::string& who, const FixedSbp& fixed);
// Throws Error for names that an input or a variable of the user cannot have.
void CheckName(const std::string& who, const std::string& name);
// Inputs and variables keep the names that the user gave them; an operator with the same name gets another.
std::string ReserveName(Graph* graph, const std::string& name);
// Throws Error for a pattern of ModelOptions::weights that no weight requested so far matches.
void RequirePatternsMatched(const std::string& who, const ModelImpl& model);

}  // namespace oneflow_like
