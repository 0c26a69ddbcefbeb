// Estimates of whole plans from the parts of a model (plan_parts.h). The search orders candidates by them
// before it compiles any.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "oneflow_like/planner/plan_parts.h"

namespace oneflow_like {

class PlanEstimator {
 public:
  // All must outlive it. Measures the blocks of the model, so it throws what `build` throws.
  PlanEstimator(const PlanSpace& space, const Machine& machine, const BuildPlan& build);

  // The number of blocks to divide into stages; 1 for a model without nn::layers over pp.
  int64_t blocks() const;
  // Measures what estimates of these candidates need, in parallel. If a plan cannot be built, keeps the
  // reason (why_not).
  void Prepare(const std::vector<PlanCandidate>& candidates);
  // Whether recomputation or sequence parallelism changes nothing, so that a candidate with less of it is the
  // same plan. For a tp that was not prepared, recomputation is judged by the first that was.
  bool IsRepeated(const PlanCandidate& candidate) const;
  // Lower bound, over all plans, of the average bytes of weights and their state on a device.
  double LeastVariables() const;
  // Whether a rank has as much work and as many weights with the last tp prepared as with the one before, so
  // that a larger tp has nothing left to divide.
  bool Exhausted() const;
  // Returns a candidate with its estimated time and memory on the order of mesh axes that is estimated
  // fastest, then on orders that are not much slower and keep tp as close. Empty if it cannot be built.
  // REQUIRES: prepared.
  std::vector<PlanTrial> Estimate(const PlanCandidate& candidate);
  // Reason why a candidate could not be built, of the first such one; empty if all could.
  const std::string& why_not() const { return why_not_; }

 private:
  using Key = std::tuple<int, bool, Recompute>;  // tp, sequence_parallel
  struct Measured {
    std::shared_ptr<const ModelParts> few, many;
    std::map<int, std::vector<double>> messages;  // by the stride of tp; of `few`, then of `many`
  };
  struct Stage : PartAmounts {
    double messages = 0;  // seconds, which are in forward and backward, too
    double layers = 0;    // blocks, and what is before or after them and has weights
  };
  static Key KeyOf(const PlanCandidate& c);
  const std::vector<double>& MessagesAt(Measured* measured, int stride);
  std::vector<Stage> StagesOf(const PlanCandidate& c, Measured* measured, const ModelParts& parts,
                              int stride);
  const std::vector<int64_t>& Division(const PlanCandidate& c, const ModelParts& parts, size_t stack);
  PlanTrial EstimateOn(const PlanCandidate& c, Measured* measured, const ModelParts& parts);
  double Exchange(const PlanCandidate& c, const Stage& stage);
  double Bytes(const PlanCandidate& c, const std::vector<Stage>& stages, const ModelParts& parts);
  double Whole(const PlanCandidate& c, const Stage& stage);
  const std::vector<double>& Kept(const PlanCandidate& c);
  double Seconds(double bytes, const Sbp& from, const Sbp& to, int members, int stride);

  const PlanSpace& space_;
  const Machine& machine_;
  const BuildPlan& build_;
  int node_ = 0;      // of SecondsOfMessage
  int64_t most_ = 1;  // samples of a micro-batch that are measured, beside 1
  std::map<Key, Measured> measured_;
  std::map<std::pair<Key, int64_t>, ModelParts> parts_;  // by samples
  std::map<std::tuple<Key, int, int, int64_t, size_t>, std::vector<int64_t>> divisions_;
  std::map<std::tuple<PipelineSchedule, int, int, int>, std::vector<double>> kept_;
  std::map<std::tuple<double, Sbp, Sbp, int, int>, double> seconds_;
  std::string why_not_;
};

}  // namespace oneflow_like
