// One collective of one runtime, on this process: its acts one after another, each made of chunk ops. All on
// the network's thread, except its creation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actor/collective.h"
#include "actor/net/collectives/collective_plan.h"
#include "actor/net/shared_memory/shared_region.h"
#include "actor/net/ucx/network.h"
#include "core/boxes/copy_box.h"

namespace oneflow_like {

class ProcessGroup;
class ProcessMember;

// Shared by the groups of a process.
class GroupHost {
 public:
  virtual ~GroupHost() = default;
  virtual Network* network() = 0;
  virtual SharedRegion* region() = 0;  // nullptr: every process is a node
  // To a process of the same node.
  virtual void SendInNode(int peer, const void* message, size_t bytes) = 0;
  virtual int process() const = 0;
  // Staging for an op of the group's act under way; nullptr: Retry() is called on the group when there may be
  // some.
  virtual char* TakeStaging(ProcessGroup* group, bool oldest_op) = 0;
  // The number of ops that may hold staging at a time such that none lacks what another one keeps.
  virtual int staged_ops() const = 0;
  // Requests a call of the group's Retry() when staging is returned or an op has ended.
  virtual void AwaitStaging(ProcessGroup* group) = 0;
  virtual void GiveStaging(ProcessGroup* group, char* buffer) = 0;
  // Called when an op or an act of the group has ended: another may be the oldest now, and find room.
  virtual void OldestEnded() = 0;
  // For the monitor: all members here have arrived; they have been told of the end; large data has arrived.
  virtual void CollectiveBegins() = 0;
  virtual void CollectiveEnds() = 0;
  virtual void Pulled(int process, int64_t bytes, int64_t ns) = 0;
};

namespace wire {
// Headers of messages on Network::kCollective. Both ends run the same build (compared at the start). kRing:
// there is a message in the inbox (inbox.h).
enum class GroupMessage : int32_t { kArrived, kWorked, kData, kRing };
struct GroupHeader {
  GroupMessage kind;
  int32_t ok;        // kArrived: of the members; kWorked, kData: nothing failed
  int64_t instance;  // the runtime
  int64_t group;
  int64_t act;     // since the start
  int64_t sent;    // when, by the sender's clock
  int32_t chunk;   // kData
  int32_t pieces;  // kArrived: number of PieceAddress that follow
};
struct PieceAddress {
  int64_t piece;    // ProcessGroupSpec::pieces
  int64_t in, out;  // offsets in the sender's region; -1: none
};
constexpr int kMostPieces = 40;  // that fit in a header; more are sent in several messages
}  // namespace wire

struct ProcessGroupSpec {
  int64_t instance = 0, id = 0;
  std::string plan, actor, primitive;
  DType dtype = DType::kFloat32;
  Reduce reduce = Reduce::kNone;
  GroupShape shape;
  std::vector<std::vector<ChunkOp>> ops;  // one list, or one for each micro-batch
  int operands = 1;
  bool counted = false;             // members bring counts behind their operands
  int rows = 0;                     // the axis of what is counted
  std::vector<plan::Piece> pieces;  // of the first operand by member, then of the next
  std::vector<int64_t> positions;   // of the acts of a step in the order of the job
};

class ProcessGroup {
 public:
  ProcessGroup(GroupHost* host, ProcessGroupSpec spec);
  ~ProcessGroup();

  void Join(int member, ProcessMember* m) { local_[member] = m; }
  const ProcessGroupSpec& spec() const { return spec_; }
  int local_members() const { return static_cast<int>(local_.size()); }

  void Arrive(ProcessMember* member);
  void Deliver(int from, const wire::GroupHeader& header, const wire::PieceAddress* addresses,
               std::unique_ptr<Incoming> data);
  void Retry();  // called when there may be staging again
  // Allows no further act: the act under way ends with ok = false, except for transfers that the network
  // still has.
  void Fail();
  void Drop();  // forgets messages that arrived early
  int transfers() const { return transfers_; }
  int64_t acts_done() const { return act_; }
  bool under_way() const { return arrived_ > 0; }
  // The processes for which the act under way waits; empty if it waits only for this one.
  std::vector<int> Awaited() const;

 private:
  struct Op;
  struct SendDone final : Transfer {
    ProcessGroup* group;
    Op* op;
    void TransferDone(bool ok) override { group->Sent(op, ok); }
  };
  struct ReceiveDone final : Transfer {
    ProcessGroup* group;
    Op* op;
    void TransferDone(bool ok) override { group->Received(op, ok); }
  };
  struct Op {
    const ChunkOp* plan = nullptr;
    Box box;          // of the act: the plan's, or of that the rows that are counted
    size_t next = 0;  // next term to collect
    bool receiving = false, combined = false, done = false, ok = true;
    bool asking = false;  // inside Receive, which may call back at once
    int sends_left = 0;
    std::vector<Piece> terms;
    std::vector<char*> staging;                   // held
    std::vector<std::unique_ptr<Incoming>> come;  // by term; kept while its data is read
    std::vector<char> come_ok;  // by term: 0 missing, 1 arrived, 2 arrived without data: it failed
    char* receive_to = nullptr;
    int64_t receive_since = 0;
    SendDone sent;
    ReceiveDone received;
  };
  struct Early {
    int from;
    wire::GroupHeader header;
    std::vector<wire::PieceAddress> addresses;
    std::unique_ptr<Incoming> data;
  };

  std::vector<Op>& ops() { return ops_[ops_.size() == 1 ? 0 : micro_batch_]; }
  void Begin(int micro_batch);
  void Apply(int from, const wire::GroupHeader& header, const wire::PieceAddress* addresses,
             std::unique_ptr<Incoming> data);
  int PieceOf(int operand, int member) const {
    return operand * static_cast<int>(spec_.shape.process.size()) + member;
  }
  void CountRows();
  void ClearRowsBehind(const Op* op);
  void TellArrived();
  void TellWorked();
  void CheckReady();
  void Advance(Op* op);
  bool BringTerm(Op* op);
  bool BringSources(Op* op);
  bool BringMessage(Op* op);
  bool RoundsSums() const;
  void Fold(Op* op, const Piece* to, int num_to);
  char* TakeRoom(Op* op);
  void GiveRoom(Op* op);
  bool Combine(Op* op);
  void Received(Op* op, bool ok);
  void Sent(Op* op, bool ok);
  void EndOp(Op* op);
  void CheckWorked();
  void CheckEnded();
  void AddSources(const Op* op, const ChunkOp::Term& term, std::vector<Piece>* terms) const;
  Piece OutPiece(const Op* op, int member) const;
  const void* Contiguous(const Piece& piece, const Box& box) const;
  bool IsOldest(const Op* op);
  char* TakeStaging(Op* op);
  bool AllStaged(const Op* op) const { return RoundsSums() && op->plan->terms.size() > 2; }
  Op* OpFor(int from, int chunk, size_t* term);

  GroupHost* const host_;
  const ProcessGroupSpec spec_;
  std::map<int, ProcessMember*> local_;
  std::vector<int> node_peers_;  // other processes of this node with members
  std::vector<int> members_of_peer_;
  std::vector<std::vector<Op>> ops_;
  std::vector<std::vector<Box>> in_box_, out_box_;  // by piece, by act (one: all acts)

  // The act under way.
  int64_t act_ = 0;  // its number: acts ended so far
  int micro_batch_ = 0;
  int arrived_ = 0;                              // local members
  std::vector<int> node_arrived_, node_worked_;  // peers' processes whose message has arrived
  std::vector<int> addresses_;                   // addresses received, by peer of this node
  bool ready_ = false, ok_ = true, worked_ = false, failed_ = false;
  bool advancing_ = false;  // in the loop over ops: the act does not end before all have been checked
  int ops_done_ = 0;
  size_t first_open_ = 0;  // all ops before it are done
  int staged_ = 0;         // ops that hold staging
  int transfers_ = 0;
  std::vector<char*> in_, out_;  // by piece, of members of this node
  std::vector<Early> early_;
  std::vector<Piece> from_, to_;  // scratch
};

class ProcessMember final : public CollectiveMember {
 public:
  ProcessMember(Network* network, const CollectiveSpec& spec, int me, int operands)
      : network_(network), idle_work_(network->idle_work()), spec_(spec), me_(me) {
    arrive_.member = done_.member = this;
    in_.reserve(operands + 1);
    out_.reserve(operands);
  }
  void Arrive(Pieces in, Pieces out, int micro_batch, bool ok) override {
    in_.assign(in.begin(), in.end());
    out_.assign(out.begin(), out.end());
    micro_batch_ = micro_batch;
    ok_ = ok;
    if (idle_work_ != nullptr && spec_.worker->idle_work() == idle_work_.get()) {
      network_->PostSoon(&arrive_);
    } else {
      network_->Post(&arrive_);
    }
  }
  void set_group(std::shared_ptr<ProcessGroup> group) { group_ = std::move(group); }

 private:
  friend class ProcessGroup;
  struct Arrived : Message {
    ProcessMember* member;
    void Receive() override { member->group_->Arrive(member); }
  };
  struct Done : Message {
    ProcessMember* member;
    bool ok = true;
    void Receive() override { member->spec_.listener->CollectiveDone(ok); }
  };
  void End(bool ok) {
    arrived_ = false;
    done_.ok = ok;
    spec_.worker->Post(&done_);
  }

  Network* const network_;
  const std::shared_ptr<IdleWork> idle_work_;
  const CollectiveSpec spec_;
  const int me_;
  std::shared_ptr<ProcessGroup> group_;
  Arrived arrive_;
  Done done_;
  char* in(int operand) const {
    return operand < int(in_.size()) ? static_cast<char*>(in_[operand]) : nullptr;
  }
  char* out(int operand) const {
    return operand < int(out_.size()) ? static_cast<char*>(out_[operand]) : nullptr;
  }
  std::vector<void*> in_, out_;  // by operand; empty when it has no such end; in_: then counts
  int micro_batch_ = 0;
  bool ok_ = true;
  bool arrived_ = false;  // of the network's thread: arrived, and not told of the end yet
};

}  // namespace oneflow_like
