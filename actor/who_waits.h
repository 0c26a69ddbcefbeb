// Waits of actors, told for people: asked from outside while steps are under way and nothing moves.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actor/actor.h"

namespace oneflow_like {

// An act that has not begun for want of a credit, or a collective whose other members have not come.
struct WaitingAct {
  int rank = 0;
  std::string act;   // "rank 1, link dp, step 7, micro-batch 0: all_reduce h0/up gpt.cc:45"
  std::string what;  // "waits for ..."; empty of a collective that its rank has arrived at
  const plan::Collective* collective = nullptr;
  int64_t number = 0;  // of the collective's act since the start
};

// One shard's worker is asked by a message, which it receives between acts or asleep.
class Question final : public Message {
 public:
  // All stay as long as the question.
  Question(const Shard* shard, const std::vector<plan::Plan>* plans) : shard_(shard), plans_(plans) {}

  // The thread that asks: unless the last one is still on its way.
  void Post();
  // Whether there is an answer to it by `deadline`; the answer then.
  bool Answer(std::chrono::steady_clock::time_point deadline, std::vector<WaitingAct>* waits);
  const Shard* shard() const { return shard_; }

  void Receive() override;

 private:
  const Shard* const shard_;
  const std::vector<plan::Plan>* const plans_;
  std::mutex mutex_;  // a lock, since who asks has no mailbox
  std::condition_variable answered_;
  bool asked_ = false;
  std::vector<WaitingAct> waits_;
};

// Asks all; a worker that has not answered after `patience` seconds is in a kernel, which is named. Lines by
// rank. `born`: a moment before.
std::vector<std::string> AskWhoWaits(const std::vector<std::unique_ptr<Question>>& questions, double patience,
                                     const ClockPoint& born);

}  // namespace oneflow_like
