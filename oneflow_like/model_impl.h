// What a Model holds: its graph, its variables, and, once a session has run, the memory and threads of the
// ranks hosted by this process.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actor/executor.h"
#include "actor/runtime.h"
#include "actor/trace.h"
#include "compiler/graph.h"
#include "core/backend.h"
#include "oneflow_like/model.h"

namespace oneflow_like {

struct ModelImpl : std::enable_shared_from_this<ModelImpl> {
  // The graph knows its model, so that functions on Tensors find it.
  struct ModelGraph : Graph {
    ModelGraph(const Mesh& mesh, ModelImpl* owner) : Graph(&owner->catalog, mesh), owner(owner) {}
    ModelImpl* owner;
  };

  ModelImpl(Mesh mesh, const ModelOptions& options);

  // Of the ranks this process hosts: devices, store and threads, the first time.
  void Load();
  // Steps of all sessions have ended when this returns.
  void WaitIdle() const;

  // With a job, its moment on this process's steady clock that times in the traces count from.
  int64_t TraceOriginHere() const;

  ModelOptions options;
  Catalog catalog;  // the built-in operators and the user's
  ModelGraph graph;
  std::map<std::string, int> variables, inputs;  // by name, their node
  KernelRegistry registry;
  Backend* backend = nullptr;  // of devices that are not the host's, once loaded
  std::unique_ptr<Store> store;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<TraceFile> trace;              // when asked for
  std::map<const void*, StepHandle> last_steps;  // by session

 private:
  void JoinJob();
  std::unique_ptr<Device> MakeDevice(int rank);

  int64_t trace_origin = 0;  // by process 0's clock, the same on all processes
};

// The model a tensor belongs to; throws Error when it is undefined or of no model.
ModelImpl* ModelOf(const Tensor& tensor, const std::string& who);
// Where this process writes its part of a trace.
std::string TraceFileOf(const std::string& file, const Job* job);
// "Weight h0/up at gpt.cc:12"
std::string Who(const std::string& what, const std::string& name, const Here& at);
// Checks an annotation against the mesh and the shape; entry -> Sbp.
FixedSbp CheckAnnotation(const Mesh& mesh, const std::string& who, const Dims& shape,
                         const Annotation& annotation, const std::vector<int>& stage);

}  // namespace oneflow_like
