// Describes for people what actors wait for, on request from outside while steps are under way and nothing
// moves.
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

// An act that lacks a credit to begin, or a collective whose other members have not arrived.
struct WaitingAct {
  int rank = 0;
  std::string act;   // "rank 1, link dp, step 7, micro-batch 0: all_reduce h0/up gpt.cc:45"
  std::string what;  // "waits for ..."; empty for a collective at which its rank has arrived
  const plan::Collective* collective = nullptr;
  int64_t number = 0;  // of the collective's act since the start
};

// A message with which one shard's worker is asked; it receives it between acts or when woken.
class Question final : public Message {
 public:
  // All arguments must outlive the question.
  Question(const Shard* shard, const std::vector<plan::Plan>* plans) : shard_(shard), plans_(plans) {}

  // Called by the asking thread; does nothing if the last message has not been received yet.
  void Post();
  // Waits until `deadline`; returns whether there is an answer, and the answer.
  bool Answer(std::chrono::steady_clock::time_point deadline, std::vector<WaitingAct>* waits);
  const Shard* shard() const { return shard_; }

  void Receive() override;

 private:
  const Shard* const shard_;
  const std::vector<plan::Plan>* const plans_;
  std::mutex mutex_;  // a lock, because the asking thread has no mailbox
  std::condition_variable answered_;
  bool asked_ = false;
  std::vector<WaitingAct> waits_;
};

// Asks all workers; one that has not answered after `patience` seconds is in a kernel, which is named.
// Returns lines by rank. `born`: an earlier moment.
std::vector<std::string> AskWhoWaits(const std::vector<std::unique_ptr<Question>>& questions, double patience,
                                     const ClockPoint& born);

}  // namespace oneflow_like
