// The data of a Session: the compiled graph, and the runtime once a step has been requested.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "compiler/compile.h"
#include "compiler/search/wait_prices.h"
#include "oneflow_like/job/retries.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/session.h"
#include "oneflow_like/session/shown.h"

namespace oneflow_like {

struct Session::Impl {
  std::shared_ptr<ModelImpl> model;  // first, so that it is destroyed last
  Compiled compiled;
  SessionOptions options;
  // Of a training: computes, by running passes, what each way for values to wait would keep and repeat. The
  // Impl must outlive it.
  std::function<std::vector<WaitPrice>()> wait_prices = {};
  std::function<std::optional<double>()> all_kept = {};  // SecondsOfAllKept
  std::string next_waits = {};                           // Decided::next_waits
  std::set<std::string> outputs = {};
  std::map<std::string, int> inputs = {};  // by name, their value in the compiled graph
  std::string finite = {};                 // output that must be finite, empty for none
  std::string input_graph =
      {};  // with a job: GraphLines before compilation, which all processes must have alike
  std::unique_ptr<Runtime> runtime;
  bool closed = false;
  int64_t checked_feeds = 0;                   // steps of this session whose feeds were compared
  int64_t checked_loads = -1;                  // ModelImpl::loads when its variables were
  std::function<double(int64_t)> lr_function;  // of learning rates that are fed
  bool trains = false;                         // its steps update variables
  bool told_replicas = false;                  // has logged what has no replica
  FeedNeeds needs;                             // empty: not looked for yet
  double data_seconds = 0;                     // waited for sources since a profile was taken
  int64_t data_steps = 0;                      // that were fed from sources since then
  Schedule lr_schedule;
  double lr = 0;                // of the optimizer; 0: it names no single one
  bool reads_averages = false;  // in place of weights
  // With a report: the sum of all that TakeProfile took from the runtime.
  StepProfile reported;
  // Results of steps add to it, and may outlive the session.
  std::shared_ptr<ShownNumbers> shown = std::make_shared<ShownNumbers>();
  std::shared_ptr<Retries> retries;  // where steps may run again; results share it

  ~Impl();  // Close(); an Error is logged
  // Ends steps in flight and writes the trace, the first time. Throws Error when that file cannot be written.
  void Close();
  // The feeds of this session's inputs; those of the model's other inputs are left out, so that one Feeds
  // serves training and evaluation. Throws Error for an input without a feed and a feed that no graph has.
  Feeds OwnFeeds(const Feeds& feeds, const FeedPieces& pieces) const;
  void CheckShapes(const FeedSource& source, const FeedPieces& pieces) const;
  FeedPieces OwnPieces(const FeedPieces& pieces) const;
  // Whether the session feeds this input itself (FeedRate): no data has it.
  bool FedHere(const std::string& input) const;
  const FeedNeeds& NeedsHere();
  // The factor on learning rates of the next step, which is fed where lr_function gives it. REQUIRES: loaded.
  double FeedRate(Feeds* feeds) const;
  // Creates the plans of the ranks hosted here, their memory, kernels and actors; the first time.
  void Load();
  void LoadPlans();
  // Creates a runtime of plans that have been prepared.
  std::unique_ptr<Runtime> MakeRuntime(std::vector<plan::Plan> plans, int steps_in_flight);
  // What fills a rank's memory, for the sentence of a plan that does not fit.
  std::string ConsumersOf(int rank) const;
  // Checks the next step's feeds in a job: all processes must feed the same.
  void CheckFeeds(const Feeds& feeds, const FeedPieces& pieces);
  // Checks, once for each source, that other processes read the same.
  void CheckSource(FeedSource* source);
  // Checks, before the first step and the first after something was loaded, that copies of variables in
  // several processes are equal.
  void CheckVariables();
  // Checks replicas every ModelOptions::check_replicas steps.
  void CheckReplicas();
  void DumpPlan(const plan::Plan& plan, const std::string& which) const;
};

// The same as Session::Summaries. Plans that the caller has made already are not made again; if these are of
// the first rank of each stage alone, that rank stands for the stage.
std::vector<RankSummary> SummariesOf(const Session::Impl& session, const std::vector<RankPlan>& made = {});
// The same for a single rank.
RankSummary SummaryOf(const Session::Impl& session, int rank);
// A rank's part of SummaryText: its memory, its largest consumers and its traffic. The same in every process.
std::string RankText(const Session::Impl& session, const RankSummary& summary);

// A file of ModelOptions::dump_dir. Throws WriteError.
void WriteDump(const std::string& file, const std::string& text);

// Adds the profile of a part of a session's steps to `sum`.
void AddProfile(const StepProfile& part, StepProfile* sum);

// The text of ProfileText.
std::string ToText(const StepProfile& profile, const std::string& session);

}  // namespace oneflow_like
