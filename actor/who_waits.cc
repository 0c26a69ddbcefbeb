#include "actor/who_waits.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "actor/profile.h"
#include "actor/step.h"
#include "core/formatted.h"

namespace oneflow_like {
namespace {

constexpr int kNamedValues = 3;

// As the user knows it: its operators and their lines.
std::string NameOfAct(const plan::Actor& actor) {
  const int n = actor.kernel_size();
  if (n == 0) return actor.name();
  const std::string first = KernelLabel(actor, actor.kernel(0));
  if (n == 1) return first;
  return Cat(n, " operators from '", first, "' to '", KernelLabel(actor, actor.kernel(n - 1)), "'");
}

// The values behind an edge, which one end writes and the other reads.
std::string ValuesBetween(const plan::Actor& writer, const plan::Actor& reader, const plan::Plan& plan) {
  std::set<int> written;
  std::vector<int> both;
  for (const plan::Kernel& k : writer.kernel())
    for (const plan::Operand& o : k.out()) written.insert(o.buffer());
  for (const plan::Kernel& k : reader.kernel())
    for (const plan::Operand& o : k.in())
      if (written.erase(o.buffer()) > 0) both.push_back(o.buffer());
  std::string text;
  for (size_t i = 0; i < both.size() && i < kNamedValues; ++i)
    for (const plan::Buffer& b : plan.buffer())
      if (b.id() == both[i]) text += Cat(text.empty() ? "'" : ", '", b.name(), "'");
  return both.size() > kNamedValues ? Cat(text, " and ", both.size() - kNamedValues, " more") : text;
}

const plan::Plan& PlanOfRank(const std::vector<plan::Plan>& plans, int rank) {
  return *std::find_if(plans.begin(), plans.end(), [&](const plan::Plan& p) { return p.rank() == rank; });
}

}  // namespace

// --- On the shard's worker ---

WaitingAct Actor::Waiting(const plan::Plan& plan) const {
  const bool under_way = shard->open(step_);
  WaitingAct wait;
  wait.rank = rank;
  const std::string where =
      spec->stream() < 0 ? (kind == Kind::kFeed ? "feed" : "fetch") : plan.stream(spec->stream()).name();
  wait.act = Cat("rank ", rank, ", ", where, under_way ? Cat(", step ", slot().state->step) : "",
                 acts > 1 ? Cat(", micro-batch ", t_) : "", ": ", NameOfAct(*spec));
  if (busy_) {
    if (kind == Kind::kCollective) {
      wait.collective = &spec->collective();
      wait.number = k_;
    } else {
      wait.what = "has been given to the device, which has not done it yet";
    }
    return wait;
  }
  for (const Port& p : ports) {
    if (!p.starved()) continue;
    const std::string values =
        p.out ? ValuesBetween(*spec, *p.peer->spec, plan) : ValuesBetween(*p.peer->spec, *spec, plan);
    const std::string peer = NameOfAct(*p.peer->spec);
    wait.what += wait.what.empty() ? "waits " : "; and ";
    if (values.empty()) {
      wait.what += Cat("for its turn behind ", peer);
    } else if (p.out) {
      wait.what += Cat("for room in ", values, ", still held by ", peer);
    } else {
      wait.what += Cat("for ", values, " from ", peer);
    }
  }
  if (wait.what.empty()) wait.what = "is about to run";
  return wait;
}

std::vector<WaitingAct> Shard::Waiting(const std::vector<plan::Plan>& plans) const {
  std::vector<WaitingAct> waits, beside;
  for (const auto& stream : streams) {
    const Actor* head = stream->head();
    if (head != nullptr && !head->busy() && stream->under_way())
      waits.push_back(head->Waiting(PlanOfRank(plans, head->rank)));
  }
  for (const auto& actor : actors) {
    if (actor->busy())
      waits.push_back(actor->Waiting(PlanOfRank(plans, actor->rank)));
    else if (actor->kind == Actor::Kind::kFetch && actor->under_way())
      beside.push_back(actor->Waiting(PlanOfRank(plans, actor->rank)));
  }
  return waits.empty() ? beside : waits;  // outputs come last, so that others say more
}

void Question::Receive() {
  std::vector<WaitingAct> waits = shard_->Waiting(*plans_);
  // Told under the lock: who asks may destroy this as soon as it has the lock.
  std::lock_guard<std::mutex> lock(mutex_);
  waits_ = std::move(waits);
  asked_ = false;
  answered_.notify_all();
}

// --- On the thread that asks ---

void Question::Post() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (asked_) return;
    asked_ = true;
  }
  shard_->worker->Post(this);
}

bool Question::Answer(std::chrono::steady_clock::time_point deadline, std::vector<WaitingAct>* waits) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!answered_.wait_until(lock, deadline, [this] { return !asked_; })) return false;
  waits->insert(waits->end(), waits_.begin(), waits_.end());
  return true;
}

namespace {

// "runs matmul ... for 3.1 s" of a worker that does not answer.
std::string KernelUnderWay(const Shard& shard, const ClockPoint& born, std::set<int>* ranks) {
  for (const auto& actor : shard.actors) ranks->insert(actor->rank);
  const Actor* actor = shard.now.actor.load(std::memory_order_acquire);
  if (actor == nullptr) return "";
  const int kernel = shard.now.kernel.load(std::memory_order_relaxed);
  const ClockPoint now = ClockPoint::Now();
  const double seconds =
      TickScale(born, now).Seconds(now.ticks - shard.now.since.load(std::memory_order_relaxed));
  const plan::Actor& spec = *actor->spec;
  return Cat("rank ", actor->rank, ": is in ",
             kernel < spec.kernel_size() ? KernelLabel(spec, spec.kernel(kernel)) : NameOfAct(spec),
             Formatted(" for %.1f s", seconds));
}

}  // namespace

std::vector<std::string> AskWhoWaits(const std::vector<std::unique_ptr<Question>>& questions, double patience,
                                     const ClockPoint& born) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::microseconds(static_cast<int64_t>(patience * 1e6));
  for (const auto& question : questions) question->Post();
  std::vector<WaitingAct> waits;
  std::vector<std::string> lines;
  std::set<int> here, silent;  // ranks
  for (const auto& question : questions) {
    for (const auto& actor : question->shard()->actors) here.insert(actor->rank);
    if (question->Answer(deadline, &waits)) continue;
    const std::string line = KernelUnderWay(*question->shard(), born, &silent);
    if (!line.empty()) lines.push_back(line);
  }
  std::stable_sort(waits.begin(), waits.end(),
                   [](const WaitingAct& a, const WaitingAct& b) { return a.rank < b.rank; });
  std::map<std::pair<int64_t, int>, int64_t> arrived;  // by collective and rank: the act
  for (const WaitingAct& w : waits)
    if (w.collective != nullptr) arrived[{w.collective->id(), w.rank}] = w.number;
  // A member that has not been told yet of the end of an act is behind one that has.
  const auto has_come = [&](const WaitingAct& w, int rank) {
    const auto there = arrived.find({w.collective->id(), rank});
    return there != arrived.end() && there->second >= w.number;
  };
  for (const WaitingAct& w : waits) {
    if (w.collective == nullptr) {
      lines.push_back(Cat(w.act, " ", w.what));
      continue;
    }
    std::string missing, elsewhere;
    for (int rank : w.collective->rank()) {
      if (here.count(rank) == 0)
        elsewhere += Cat(elsewhere.empty() ? "" : ", ", rank);
      else if (silent.count(rank) > 0)
        missing += Cat(missing.empty() ? "" : " and ", "rank ", rank, ", whose thread is in a kernel");
      else if (!has_come(w, rank))
        missing += Cat(missing.empty() ? "" : " and ", "rank ", rank);
    }
    if (missing.empty())
      missing = elsewhere.empty() ? "its data to be moved"
                                  : Cat("other processes, of ranks ", elsewhere, ", or for data on its way");
    lines.push_back(Cat(w.act, " has arrived and waits for ", missing));
  }
  return lines;
}

}  // namespace oneflow_like
