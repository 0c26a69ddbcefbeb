// What a Model holds: its graphs' common knowledge of variables, and, once something has been loaded, the
// memory and threads of the ranks hosted by this process.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actor/executor.h"
#include "actor/runtime.h"
#include "actor/trace.h"
#include "compiler/compile.h"
#include "compiler/graph.h"
#include "core/backend.h"
#include "oneflow_like/model.h"

namespace oneflow_like {

// A graph that knows its model, so that functions on Tensors find it.
struct GraphOfModel : Graph {
  GraphOfModel(ModelImpl* model, std::string name);
  Scope Root();
  Tensor Input(const std::string& name, const Dims& shape, DType dtype, const Annotation& sbp, int batch_axis,
               Here at);
  Tensor Find(const std::string& name, const Here& at);
  // A weight or a state: made, or found and compared with its first request.
  Tensor Variable(const std::string& who, const std::string& path, const Dims& shape, DType dtype,
                  const Initializer& init, const WeightOptions& options, const std::vector<int>& stage,
                  const Here& at);

  ModelImpl* const model;
  const std::string name;                        // for messages; empty: the model's own
  std::shared_ptr<ModelImpl> keep;               // the model, unless it is its own
  std::map<std::string, int> variables, inputs;  // by name, their node
  std::vector<Tensor> in_training;               // Scope::InTraining
};

// What the model knows of a variable, as its first request or its training made it.
struct ModelVariable {
  Node node;  // name, attributes (initialiser), line, annotation, stage; without values
  DType dtype = DType::kFloat32;
  Dims shape;
  HostTensor initial;  // what it starts as, where no initialiser draws it; else without data
  // Whether `node` says which stage it lies on: from its request on, or since the first use of a weight that
  // was requested outside any stage.
  bool settled = false;
  Layout layout;  // in the store; empty until it was asked for
};

// Steps of all sessions of one name.
struct SessionSteps {
  int64_t next = 0;
  enum class Of { kNone, kTraining, kEvaluation } of = Of::kNone;  // that has made a session of that name
};

class FolderLock;  // oneflow_like/checkpoint/safetensors.h
class Saving;      // oneflow_like/checkpoint/saving.h

// The last step of a session.
struct LastStep {
  StepHandle handle;
  std::string finite;   // output that must be finite, empty for none
  bool trains = false;  // it updates variables
};

struct ModelImpl : std::enable_shared_from_this<ModelImpl> {
  ModelImpl(Mesh mesh, const ModelOptions& options);

  // Of the ranks this process hosts: devices, store and threads, the first time.
  void Load();
  // Steps of all sessions have ended when this returns.
  void WaitIdle() const;
  // Makes room for the plan, and the variables of its rank that are not there yet.
  void Prepare(const plan::Plan& plan);
  // Loads, waits, and makes the variable where it is not there yet. Throws Error when there is none.
  ModelVariable& Require(const std::string& variable);
  // The same, without a wait for one that has been made. REQUIRES: there is one.
  const ModelVariable& Placed(const std::string& variable);

  // With a job, its moment on this process's steady clock that times in the traces count from.
  int64_t TraceOriginHere() const;

  ModelOptions options;
  const Mesh mesh;
  Catalog catalog;  // the built-in operators and the user's
  int zero_axis = -1;
  GraphOfModel graph;  // the model's own
  std::map<std::string, ModelVariable> variables;
  std::set<size_t> matched_patterns;          // of options.weights
  std::set<std::string> input_names;          // of all graphs there have been
  std::map<std::string, SessionSteps> steps;  // by name of the sessions; entries stay where they are
  KernelRegistry registry;
  Backend* backend = nullptr;  // of devices that are not the host's, once loaded
  std::unique_ptr<Store> store;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<TraceFile> trace;            // when asked for
  std::map<const void*, LastStep> last_steps;  // by session

 private:
  void JoinJob();
  int RanksHere() const;
  std::unique_ptr<Device> MakeDevice(int rank);

  int64_t trace_origin = 0;  // by process 0's clock, the same on all processes

 public:
  std::shared_ptr<FolderLock> folder_lock;  // of the folder saved in last, on the process that leads
  std::shared_ptr<Saving> saving;           // the last one, complete or under way; goes before what it reads
};

// The graph a tensor belongs to; throws Error when it is undefined or of no model.
GraphOfModel* GraphOf(const Tensor& tensor, const std::string& who);
// Where this process writes its part of a trace.
std::string TraceFileOf(const std::string& file, const Job* job);
// "Weight h0/up at gpt.cc:12"
std::string Who(const std::string& what, const std::string& name, const Here& at);
// Checks an annotation against the mesh and the shape; entry -> Sbp.
FixedSbp CheckAnnotation(const Mesh& mesh, const std::string& who, const Dims& shape,
                         const Annotation& annotation, const std::vector<int>& stage);
// Throws Error when an entry is Partial: what comes from outside is whole, it may be cut or copied.
void CheckNotPartial(const Mesh& mesh, const std::string& who, const FixedSbp& fixed);
// Throws Error for names that are no name of an input or a variable of the user's.
void CheckName(const std::string& who, const std::string& name);
// Inputs and variables are known by the names their user gave them; an operator of that name takes another.
std::string ReserveName(Graph* graph, const std::string& name);
// Throws Error for a pattern of ModelOptions::weights that no weight requested so far matches.
void RequirePatternsMatched(const std::string& who, const ModelImpl& model);

}  // namespace oneflow_like
