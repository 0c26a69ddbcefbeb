// The checked arguments of Train or Evaluate. Together with Decisions they determine the whole session.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/decisions.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

struct Asked {
  std::string who;  // "Train at gpt.cc:12"
  GraphOfModel* source = nullptr;
  SessionOptions options;
  Decisions given;                     // decisions that the options make; Decide makes the others
  std::map<std::string, int> fetched;  // values by output
  // Of a training, else of an evaluation.
  std::optional<Training> training = {};
  int loss = -1;
  SourceLine line = {};
  std::vector<std::string> weights = {};  // TrainOptions::weights
  bool check_finite = false;              // of the loss
  std::string averages = {};              // EvaluateOptions::weights

  ModelImpl& model() const { return *source->model; }
};

Asked AskedOf(Tensor loss, const Optimizer& optimizer, const TrainOptions& options, const SourceLine& line);
Asked AskedOf(const std::map<std::string, Tensor>& outputs, const EvaluateOptions& options,
              const SourceLine& line);

// The graph that is compiled: forward nodes, fetches and for a training its train node, with blocks, weights
// and regions as the decisions say; of these the stages, cuts, waits and tiles of logits count. Throws Error
// for what the options say of it.
Graph GraphOf(const Asked& asked, const Decisions& decisions);
// Parts of the tokens of a step: micro-batches, times devices that the batch and sequences are cut over.
int64_t PartsOfTokens(const Asked& asked, const Graph& graph);
// What is assumed of the devices of a model's sessions, and of the links between them.
Machine MachineOf(const ModelImpl& model);
// Whether products in fp32 round to TF32: if that was asked for (ModelOptions::tf32), on GPUs, and not where
// a session's products are in 16 bits.
bool RoundsToTf32(const ModelImpl& model, DType dtype);
// Gives the outermost level of links the bandwidth of ModelOptions::link. With a job that level joins hosts,
// which share `devices` equally.
void SetLink(const ModelOptions& options, int devices, Topology* topology);
// Of a graph of GraphOf.
CompileOptions CompileOptionsOf(const Asked& asked, const Decisions& decisions, const Graph& graph);

}  // namespace oneflow_like
