// What a Session holds: the compiled graph, and the runtime once a step has been asked for.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "compiler/compile.h"
#include "oneflow_like/model_impl.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

struct Session::Impl {
  std::shared_ptr<ModelImpl> model;  // first, so that it goes last
  Compiled compiled;
  SessionOptions options;
  std::set<std::string> outputs;
  std::map<std::string, int> inputs;  // by name, their value in the compiled graph
  std::string finite;                 // output that must be finite, empty for none
  std::string input_graph;  // with a job: GraphLines before compilation, which all processes must have alike
  std::unique_ptr<Runtime> runtime;
  bool closed = false;
  int64_t checked_feeds = 0;                   // how many steps of this session were compared
  std::function<double(int64_t)> lr_function;  // of learning rates that are fed
  bool trains = false;                         // its steps update variables
  bool told_replicas = false;                  // what has none
  FeedNeeds needs;                             // empty: not looked for yet
  double data_seconds = 0;                     // waited for sources since a profile was taken
  int64_t data_steps = 0;                      // that were fed from sources since then
  Schedule lr_schedule;
  double lr = 0;  // of the optimizer; 0: it names no single one
  // With a report: what TakeProfile took from the runtime, all together.
  StepProfile reported;

  ~Impl();  // Close(); an Error is logged
  // Ends steps in flight and writes the trace, the first time. Throws Error when that file cannot be written.
  void Close();
  // Of the feeds, those of this session's inputs; others of the model are left out, so that one Feeds serves
  // training and evaluation. Throws Error for an input without a feed and a feed that no graph has.
  Feeds OwnFeeds(const Feeds& feeds, const FeedPieces& pieces) const;
  FeedPieces OwnPieces(const FeedPieces& pieces) const;
  const FeedNeeds& NeedsHere();
  // The factor on learning rates of the next step, which is fed where lr_function gives it. REQUIRES: loaded.
  double FeedRate(Feeds* feeds) const;
  // Plans of the ranks hosted here, their memory, kernels and actors; the first time.
  void Load();
  // Of the next step, with a job: all processes must feed the same.
  void CheckFeeds(const Feeds& feeds, const FeedPieces& pieces);
  // Every ModelOptions::check_replicas steps.
  void CheckReplicas();
  void DumpPlan(const plan::Plan& plan) const;
};

// The same as Session::Summaries.
std::vector<RankSummary> SummariesOf(const Session::Impl& session);
// Of one rank, alone.
RankSummary SummaryOf(const Session::Impl& session, int rank);
// Of a rank in SummaryText: its memory, its largest consumers and what it sends. The same in every process.
std::string RankText(const Session::Impl& session, const RankSummary& summary);

// What ProfileText gives.
std::string ToText(const StepProfile& profile, const std::string& session);

}  // namespace oneflow_like
