#include "actor/net/collectives/process_group.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

using wire::GroupHeader;
using wire::GroupMessage;
using wire::PieceAddress;

const Box& BoxOf(const std::vector<Box>& boxes, int act) { return boxes[boxes.size() == 1 ? 0 : act]; }

bool AddOnce(std::vector<int>* list, int process) {
  if (std::find(list->begin(), list->end(), process) != list->end()) return false;
  list->push_back(process);
  return true;
}

}  // namespace

ProcessGroup::ProcessGroup(GroupHost* host, ProcessGroupSpec spec) : host_(host), spec_(std::move(spec)) {
  const GroupShape& shape = spec_.shape;
  const int me = host_->process(), my_node = shape.node_of_process[me];
  for (int process : shape.process) {
    if (process == me || shape.node_of_process[process] != my_node) continue;
    if (AddOnce(&node_peers_, process)) members_of_peer_.push_back(0);
    ++members_of_peer_[std::find(node_peers_.begin(), node_peers_.end(), process) - node_peers_.begin()];
  }
  addresses_.resize(node_peers_.size());
  ops_.resize(spec_.ops.size());
  for (size_t i = 0; i < spec_.ops.size(); ++i) {
    ops_[i].resize(spec_.ops[i].size());
    for (size_t k = 0; k < ops_[i].size(); ++k) {
      Op& op = ops_[i][k];
      op.plan = &spec_.ops[i][k];
      op.box = op.plan->box;
      op.come.resize(op.plan->terms.size());
      op.come_ok.resize(op.plan->terms.size());
      op.terms.reserve(shape.process.size() + 1);
      op.staging.reserve(3);
      op.sent.group = op.received.group = this;
      op.sent.op = op.received.op = &op;
    }
  }
  for (const plan::Piece& piece : spec_.pieces) {
    in_box_.emplace_back();
    out_box_.emplace_back();
    for (const plan::Box& box : piece.in()) in_box_.back().push_back(ToBox(box));
    for (const plan::Box& box : piece.out()) out_box_.back().push_back(ToBox(box));
  }
  in_.resize(spec_.pieces.size());
  out_.resize(spec_.pieces.size());
}

ProcessGroup::~ProcessGroup() = default;

void ProcessGroup::Arrive(ProcessMember* member) {
  if (failed_) return member->End(false);
  if (arrived_ == 0) Begin(member->micro_batch_);
  member->arrived_ = true;
  for (int i = 0; i < spec_.operands; ++i) {
    in_[PieceOf(i, member->me_)] = member->in(i);
    out_[PieceOf(i, member->me_)] = member->out(i);
  }
  ok_ = ok_ && member->ok_;
  if (++arrived_ < local_members()) return;
  host_->CollectiveBegins();
  TellArrived();
  CheckReady();
}

void ProcessGroup::Begin(int micro_batch) {
  micro_batch_ = micro_batch;
  ok_ = true;
  for (Op& op : ops()) {
    op.next = 0;
    op.receiving = op.combined = op.done = false;
    op.ok = true;
    op.sends_left = 0;
    op.terms.clear();
    std::fill(op.come_ok.begin(), op.come_ok.end(), 0);
  }
  ops_done_ = 0;
  first_open_ = 0;
  // What came before us. Applying it cannot begin or end the act, as not all of our members are here.
  for (size_t i = 0; i < early_.size();) {
    if (early_[i].header.act != act_) {
      ++i;
      continue;
    }
    Early e = std::move(early_[i]);
    early_.erase(early_.begin() + static_cast<long>(i));
    Apply(e.from, e.header, e.addresses.data(), std::move(e.data));
  }
}

void ProcessGroup::Deliver(int from, const GroupHeader& header, const PieceAddress* addresses,
                           std::unique_ptr<Incoming> data) {
  if (failed_) return;
  if (header.act == act_ && arrived_ > 0) {
    Apply(from, header, addresses, std::move(data));
    return;
  }
  Early early{from, header, {}, std::move(data)};
  early.addresses.assign(addresses, addresses + header.pieces);
  early_.push_back(std::move(early));
}

void ProcessGroup::Apply(int from, const GroupHeader& header, const PieceAddress* addresses,
                         std::unique_ptr<Incoming> data) {
  switch (header.kind) {
    case GroupMessage::kArrived: {
      char* base = host_->region()->base(from);
      for (int i = 0; i < header.pieces; ++i) {
        in_[addresses[i].piece] = addresses[i].in < 0 ? nullptr : base + addresses[i].in;
        out_[addresses[i].piece] = addresses[i].out < 0 ? nullptr : base + addresses[i].out;
      }
      ok_ = ok_ && header.ok;
      const auto peer = std::find(node_peers_.begin(), node_peers_.end(), from) - node_peers_.begin();
      addresses_[peer] += header.pieces;
      if (addresses_[peer] == members_of_peer_[peer] * spec_.operands) node_arrived_.push_back(from);
      CheckReady();
      break;
    }
    case GroupMessage::kWorked:
      ok_ = ok_ && header.ok;
      AddOnce(&node_worked_, from);
      CheckEnded();
      break;
    case GroupMessage::kRing:
      break;
    case GroupMessage::kData: {
      size_t term = 0;
      Op* op = OpFor(from, header.chunk, &term);
      if (op == nullptr || op->come_ok[term] != 0) {
        LOG(ERROR) << spec_.actor << ": process " << from << " sent chunk " << header.chunk
                   << ", which nobody here awaits";
        return;
      }
      op->come_ok[term] = header.ok ? 1 : 2;
      op->come[term] = std::move(data);
      if (ready_) Advance(op);
      break;
    }
  }
}

ProcessGroup::Op* ProcessGroup::OpFor(int from, int chunk, size_t* term) {
  std::vector<Op>& all = ops();
  auto at = std::lower_bound(all.begin(), all.end(), chunk,
                             [](const Op& op, int wanted) { return op.plan->chunk < wanted; });
  for (; at != all.end() && at->plan->chunk == chunk; ++at) {
    for (size_t i = 0; i < at->plan->terms.size(); ++i) {
      if (at->plan->terms[i].process == from) {
        *term = i;
        return &*at;
      }
    }
  }
  return nullptr;
}

void ProcessGroup::TellArrived() {
  if (node_peers_.empty()) return;
  struct {
    GroupHeader header;
    PieceAddress address[wire::kMostPieces];
  } message{};
  message.header = {GroupMessage::kArrived, ok_, spec_.instance, spec_.id, act_, ClockNow(), 0, 0};
  int& pieces = message.header.pieces;
  auto send = [&] {
    for (int peer : node_peers_)
      host_->SendInNode(peer, &message, sizeof(GroupHeader) + pieces * sizeof(PieceAddress));
    pieces = 0;
  };
  const char* base = host_->region()->base(host_->process());
  auto offset = [&](const char* p) { return p == nullptr ? int64_t{-1} : static_cast<int64_t>(p - base); };
  for (const auto& [index, member] : local_)
    for (int i = 0; i < spec_.operands; ++i) {
      if (pieces == wire::kMostPieces) send();
      message.address[pieces++] = {PieceOf(i, index), offset(member->in(i)), offset(member->out(i))};
    }
  send();
}

void ProcessGroup::TellWorked() {
  const GroupHeader header{GroupMessage::kWorked, ok_, spec_.instance, spec_.id, act_, ClockNow(), 0, 0};
  for (int peer : node_peers_) host_->SendInNode(peer, &header, sizeof header);
}

// All members have the same counts. Where what made them has failed they are any numbers, and the act fails,
// too: messages that have other sizes than are awaited do not matter.
void ProcessGroup::CountRows() {
  const auto* counts = reinterpret_cast<const int32_t*>(local_.begin()->second->in(spec_.operands));
  for (Op& op : ops())
    if (op.plan->count >= 0) op.box = CutAtCount(op.plan->box, spec_.rows, counts[op.plan->count]).moved;
}

void ProcessGroup::ClearRowsBehind(const Op* op) {
  const int64_t rows = op->box.begin[spec_.rows] + op->box.extent[spec_.rows];
  const Box behind = CutAtCount(op->plan->box, spec_.rows, rows).behind;
  from_.clear();
  for (int member : op->plan->outs) from_.push_back(OutPiece(op, member));
  CombineBox(spec_.dtype, Reduce::kSum, behind, nullptr, 0, from_.data(), static_cast<int>(from_.size()));
}

void ProcessGroup::CheckReady() {
  if (ready_ || arrived_ < local_members() || node_arrived_.size() < node_peers_.size()) return;
  ready_ = true;
  advancing_ = true;
  if (spec_.counted) CountRows();
  for (Op& op : ops()) {
    op.ok = ok_;
    Advance(&op);
  }
  advancing_ = false;
  CheckWorked();
}

void ProcessGroup::Retry() {
  if (!ready_ || failed_) return;
  bool before = advancing_;
  advancing_ = true;
  std::vector<Op>& all = ops();
  for (size_t i = first_open_; i < all.size(); ++i) Advance(&all[i]);
  advancing_ = before;
  CheckWorked();
}

bool ProcessGroup::IsOldest(const Op* op) {
  std::vector<Op>& all = ops();
  while (first_open_ < all.size() && all[first_open_].done) ++first_open_;
  return first_open_ < all.size() && &all[first_open_] == op;
}

// One more buffer for the op, or nullptr. Were each of many ops to hold its first, none would find a second
// and the oldest would be done one after the other.
char* ProcessGroup::TakeStaging(Op* op) {
  const bool oldest = IsOldest(op), first = op->staging.empty();
  if (first && !oldest && staged_ >= host_->staged_ops()) {
    host_->AwaitStaging(this);
    return nullptr;
  }
  char* buffer = host_->TakeStaging(this, oldest);
  if (buffer == nullptr) return nullptr;
  if (first) ++staged_;
  op->staging.push_back(buffer);
  return buffer;
}

// As far as it goes now.
void ProcessGroup::Advance(Op* op) {
  if (op->done || op->receiving || op->sends_left > 0) return;
  while (op->next < op->plan->terms.size()) {
    if (failed_ || !BringTerm(op)) return;
  }
  if (failed_) return;
  if (!op->combined && !Combine(op)) return;
  if (op->sends_left == 0) EndOp(op);
}

void ProcessGroup::AddSources(const Op* op, const ChunkOp::Term& term, std::vector<Piece>* terms) const {
  for (int member : term.sources) {
    const int piece = PieceOf(op->plan->operand, member);
    terms->push_back({in_[piece], BoxOf(in_box_[piece], micro_batch_)});
  }
}

Piece ProcessGroup::OutPiece(const Op* op, int member) const {
  const int piece = PieceOf(op->plan->operand, member);
  return {out_[piece], BoxOf(out_box_[piece], micro_batch_)};
}

// Where the box lies in the piece, when it lies there without gaps.
const void* ProcessGroup::Contiguous(const Piece& piece, const Box& box) const {
  const int rank = box.begin.rank();
  bool inner_whole = true;  // axes after this one are whole in the piece
  for (int a = rank - 1; a >= 0; --a) {
    if (!inner_whole && box.extent[a] != 1) return nullptr;
    if (box.extent[a] != piece.box.extent[a]) inner_whole = false;
  }
  int64_t offset = 0;
  for (int a = 0; a < rank; ++a) offset = offset * piece.box.extent[a] + box.begin[a] - piece.box.begin[a];
  return static_cast<const char*>(piece.data) + offset * static_cast<int64_t>(SizeOf(spec_.dtype));
}

// A type that is rounded after each addition in pairs, and once where many are added at a time: which terms
// are added at a time must not depend on what the network does.
bool ProcessGroup::RoundsSums() const {
  return spec_.dtype == DType::kBFloat16 || spec_.dtype == DType::kFloat16;
}

// The terms so far into `to`; the op's list of terms stays.
void ProcessGroup::Fold(Op* op, const Piece* to, int num_to) {
  Reduce reduce = spec_.reduce == Reduce::kNone ? Reduce::kSum : spec_.reduce;  // kNone: at most one term
  CombineBox(spec_.dtype, reduce, op->box, op->terms.data(), static_cast<int>(op->terms.size()), to, num_to);
}

// One more staging buffer of this op, or nullptr. What is there already is added up first, so that two do for
// any number of terms.
char* ProcessGroup::TakeRoom(Op* op) {
  if (op->staging.size() == 2) {
    Piece sum{op->staging[0], op->box};
    Fold(op, &sum, 1);
    op->terms.assign(1, sum);
    for (size_t i = 0; i < op->next; ++i) op->come[i].reset();
    host_->GiveStaging(this, op->staging[1]);
    op->staging.pop_back();
  }
  return TakeStaging(op);
}

void ProcessGroup::GiveRoom(Op* op) {
  if (!op->staging.empty()) --staged_;
  for (char* buffer : op->staging) host_->GiveStaging(this, buffer);
  op->staging.clear();
}

// The next term: false when it has not come, is on its way, or there is no room for it.
bool ProcessGroup::BringTerm(Op* op) {
  return op->plan->terms[op->next].process < 0 ? BringSources(op) : BringMessage(op);
}

bool ProcessGroup::BringSources(Op* op) {
  const ChunkOp::Term& term = op->plan->terms[op->next];
  if (op->ok && (term.apart || AllStaged(op))) {
    Piece sum{TakeRoom(op), op->box};
    if (sum.data == nullptr) return false;
    from_.clear();
    AddSources(op, term, &from_);
    CombineBox(spec_.dtype, spec_.reduce, op->box, from_.data(), static_cast<int>(from_.size()), &sum, 1);
    op->terms.push_back(sum);
  } else {
    AddSources(op, term, &op->terms);
  }
  ++op->next;
  return true;
}

bool ProcessGroup::BringMessage(Op* op) {
  if (op->come_ok[op->next] == 0) return false;
  Incoming* incoming = op->come[op->next].get();
  const int64_t bytes = op->box.elements() * static_cast<int64_t>(SizeOf(spec_.dtype));
  const int64_t came = incoming == nullptr ? 0 : static_cast<int64_t>(incoming->bytes());
  if (!op->ok || op->come_ok[op->next] == 2 || came != bytes) {
    op->ok = false;
    op->come[op->next].reset();
    ++op->next;
    return true;
  }
  if (bytes == 0) {  // no row of it
    op->terms.push_back({nullptr, op->box});
    ++op->next;
    return true;
  }
  if (incoming->data() != nullptr && !AllStaged(op)) {  // small: read where it is
    op->terms.push_back({const_cast<void*>(incoming->data()), op->box});
    ++op->next;
    return true;
  }
  char* to = nullptr;
  if (op->plan->terms.size() == 1 && !op->plan->outs.empty()) {
    Piece out = OutPiece(op, op->plan->outs[0]);
    to = static_cast<char*>(const_cast<void*>(Contiguous(out, op->box)));
  }
  if (to == nullptr) to = TakeRoom(op);
  if (to == nullptr) return false;
  op->receive_to = to;
  op->receive_since = ClockNow();
  op->receiving = true;
  ++transfers_;
  op->asking = true;
  incoming->Receive(to, &op->received);
  op->asking = false;
  return !op->receiving;
}

void ProcessGroup::Received(Op* op, bool ok) {
  --transfers_;
  op->receiving = false;
  op->come[op->next].reset();
  if (failed_) return GiveRoom(op);
  const ChunkOp& plan = *op->plan;
  host_->Pulled(plan.terms[op->next].process, op->box.elements() * static_cast<int64_t>(SizeOf(spec_.dtype)),
                ClockNow() - op->receive_since);
  op->ok = op->ok && ok;
  op->terms.push_back({op->receive_to, op->box});
  ++op->next;
  if (!op->asking) Advance(op);  // else BringTerm goes on
}

// All terms are here: writes the pieces of this node and starts the sends. False when there is no room.
bool ProcessGroup::Combine(Op* op) {
  const ChunkOp& plan = *op->plan;
  const size_t bytes = op->box.elements() * SizeOf(spec_.dtype);
  const void* send = nullptr;
  std::vector<Piece>& to = to_;
  to.clear();
  if (op->ok) {
    for (int member : plan.outs) to.push_back(OutPiece(op, member));
    if (!plan.sends.empty() && bytes > 0) {
      if (op->terms.size() == 1) {
        // A single buffer of ours holds nothing but the box; a piece may hold more around it.
        send = op->terms[0].box == op->box ? op->terms[0].data : Contiguous(op->terms[0], op->box);
      }
      for (size_t i = 0; send == nullptr && i < to.size(); ++i) send = Contiguous(to[i], op->box);
      if (send == nullptr) {
        char* buffer = TakeStaging(op);
        if (buffer == nullptr) return false;
        to.push_back({buffer, op->box});
        send = buffer;
      }
    }
    Fold(op, to.data(), static_cast<int>(to.size()));
    if (plan.count >= 0) ClearRowsBehind(op);
    // What is sent from a piece leaves the terms' room to others.
    if (std::find(op->staging.begin(), op->staging.end(), send) == op->staging.end()) GiveRoom(op);
  }
  op->combined = true;
  GroupHeader header{GroupMessage::kData, op->ok, spec_.instance, spec_.id, act_, ClockNow(), plan.chunk, 0};
  // One more than there are, so that the op does not end inside the loop.
  op->sends_left = 1;
  for (int process : plan.sends) {
    const size_t sent = op->ok ? bytes : 0;
    if (sent > 0) {
      ++op->sends_left;
      ++transfers_;
    }
    host_->network()->Send(process, Network::kCollective, &header, sizeof header, sent > 0 ? send : nullptr,
                           sent, sent > 0 ? &op->sent : nullptr);
  }
  --op->sends_left;
  return true;
}

void ProcessGroup::Sent(Op* op, bool ok) {
  --transfers_;
  op->ok = op->ok && ok;
  if (--op->sends_left > 0) return;
  if (failed_) return GiveRoom(op);
  EndOp(op);
}

void ProcessGroup::EndOp(Op* op) {
  if (op->done) return;
  op->done = true;
  ok_ = ok_ && op->ok;
  for (auto& incoming : op->come) incoming.reset();
  ++ops_done_;
  GiveRoom(op);
  host_->OldestEnded();
  if (!advancing_) CheckWorked();
}

void ProcessGroup::CheckWorked() {
  if (!ready_ || worked_ || failed_ || advancing_ || ops_done_ < static_cast<int>(ops().size())) return;
  worked_ = true;
  TellWorked();
  CheckEnded();
}

void ProcessGroup::CheckEnded() {
  if (!worked_ || node_worked_.size() < node_peers_.size()) return;
  const bool ok = ok_;
  ready_ = worked_ = false;
  arrived_ = 0;
  node_arrived_.clear();
  node_worked_.clear();
  std::fill(addresses_.begin(), addresses_.end(), 0);
  ++act_;
  host_->CollectiveEnds();
  for (const auto& [index, member] : local_) member->End(ok);
  host_->OldestEnded();
}

void ProcessGroup::Fail() {
  if (failed_) return;
  failed_ = true;
  Drop();
  for (auto& list : ops_) {
    for (Op& op : list) {
      for (size_t i = 0; i < op.come.size(); ++i) {
        if (!op.receiving || i != op.next) op.come[i].reset();
      }
      if (!op.receiving && op.sends_left == 0) GiveRoom(&op);
    }
  }
  for (const auto& [index, member] : local_) {
    if (member->arrived_) member->End(false);
  }
}

void ProcessGroup::Drop() { early_.clear(); }

std::vector<int> ProcessGroup::Awaited() const {
  std::vector<int> awaited;
  if (arrived_ < local_members()) return awaited;
  if (!ready_ || worked_) {
    for (int peer : node_peers_) {
      const std::vector<int>& heard = ready_ ? node_worked_ : node_arrived_;
      if (std::find(heard.begin(), heard.end(), peer) == heard.end()) AddOnce(&awaited, peer);
    }
    return awaited;
  }
  for (const Op& op : ops_[ops_.size() == 1 ? 0 : micro_batch_]) {
    if (op.done) continue;
    if (op.combined) {
      for (int process : op.plan->sends) AddOnce(&awaited, process);
      continue;
    }
    for (size_t i = op.next; i < op.plan->terms.size(); ++i) {
      if (op.plan->terms[i].process >= 0 && op.come_ok[i] == 0) AddOnce(&awaited, op.plan->terms[i].process);
    }
  }
  std::sort(awaited.begin(), awaited.end());
  return awaited;
}

}  // namespace oneflow_like
