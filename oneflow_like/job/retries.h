// Steps of a training that run again where experts had no room for all choices (nn::ExpertOverflow::kRetry).
//
// Such a step changes no variable, nor do those in flight behind it: a count in the store holds them back
// (add_updates.cc). It is an output, too, so the session learns it when it waits for the step, before as many
// steps behind it are launched as may be in flight. Then these have ended, and run again in order, each with
// its own feeds and number, in a second plan with more room over the same store, which resets the count.
//
// Several processes need not wait for a step at the same time, but must launch the same steps of both plans
// in the same order. So as many steps as may be in flight are void, from the first on: a process that has
// fewer launches the rest with the first one's feeds, and runs steps that come later with more room from the
// start. There a thread waits for each step: the program's may be waiting for another process, which needs
// this one's part of a step that runs again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "compiler/compile.h"
#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// A step that a session has launched, and how it ran last: read that of a step that may run again only once
// Retries::Settle has returned.
struct LaunchedStep {
  int64_t number = -1;
  StepHandle handle;
  std::string failure;  // Why running the step again failed; empty if it did not.
};

class Retries : public Settler {
 public:
  // `compiled`: the plan with more room.
  Retries(Compiled compiled, std::string session)
      : session_(std::move(session)), compiled_(std::move(compiled)) {}
  ~Retries() override;

  const Compiled& compiled() const { return compiled_; }
  // Name of the second plan, for connections between processes and stall reports.
  std::string PlanName() const { return session_ + " with more room"; }
  struct Begun {
    Runtime* few = nullptr;         // of the plan with less room; outlives this, or Close
    std::unique_ptr<Runtime> more;  // both count steps by themselves
    int64_t* next_step = nullptr;   // the session's
    int steps_in_flight = 1;
    bool together = false;  // with other processes
    bool tells = true;      // in the log
  };
  // Both plans are loaded.
  void Begin(Begun begun);
  // Starts the next step; Runtime::Launch says how. If as many steps are pending as may be in flight, settles
  // the oldest first. Throws Error, from then on, once the second plan has failed: what it began is not done.
  // Gives how the step runs now, too.
  std::pair<std::shared_ptr<LaunchedStep>, StepHandle> Launch(const Feeds& feeds, const FeedPieces& pieces);
  // Waits for the step, and for those before it, so that it does not run again any more. Any thread.
  void Settle(const LaunchedStep& step);
  void Settle() override;
  StepHandle last() const override;
  // Ends the second plan; no step runs again any more. Gives its runtime, closed, the first time.
  std::unique_ptr<Runtime> Close();
  int64_t count() const;  // steps that have run again, or with more room from the start

 private:
  void RequireNoFailure();
  void SettleFirst();
  void RunAgain();
  void Watch();

  const std::string session_;
  const Compiled compiled_;
  mutable std::mutex mutex_;  // results may be read on a thread of their own, and one watches
  std::condition_variable changed_;
  Begun begun_;
  std::thread watch_;
  bool closed_ = false, told_ = false;
  std::deque<std::shared_ptr<LaunchedStep>> pending_;  // Steps that may still run again, oldest first.
  std::shared_ptr<LaunchedStep> last_;
  int64_t left_ = 0;  // steps to come that run with more room
  int64_t count_ = 0;
  std::optional<StepHandle> of_more_;  // the last step of the second plan
  std::string failure_;                // of the second plan; empty: none
};

}  // namespace oneflow_like
