#include "compiler/plan/lifetimes.h"

#include <glog/logging.h>

#include <algorithm>
#include <tuple>

#include "core/plan/plan_values.h"

namespace oneflow_like {

namespace {

constexpr int kNever = -1, kAlways = 1 << 30;

// A buffer in an actor: from which of its kernels to which.
struct Use {
  int actor, first, last, period;
};

struct Uses {
  std::vector<std::vector<Use>> writers, readers;  // by buffer's id
};

// By actor and act of a step. In the compute stream: where the first kernel stands, twice. In another stream:
// the earliest start and the latest proven end of the act, whose kernels are not told apart. In none: none.
using ActSpans = std::vector<std::vector<Span>>;

// By an actor's id its number in the plan.
std::vector<int> NumbersOf(const plan::Plan& plan) {
  int most = -1;
  for (const plan::Actor& actor : plan.actor()) most = std::max(most, actor.id());
  std::vector<int> numbers(most + 1, -1);
  for (int i = 0; i < plan.actor_size(); ++i) numbers[plan.actor(i).id()] = i;
  return numbers;
}

Uses UsesOf(const plan::Plan& plan) {
  int most = -1;
  for (const plan::Buffer& b : plan.buffer()) most = std::max(most, b.id());
  Uses uses;
  uses.writers.resize(most + 1);
  uses.readers.resize(most + 1);
  const auto add = [](std::vector<std::vector<Use>>* of, int a, int k, const plan::Operand& o) {
    for (Use& u : (*of)[o.buffer()])
      if (u.actor == a) {
        u.last = k;
        return;
      }
    (*of)[o.buffer()].push_back({a, k, k, std::max(1, o.period())});
  };
  for (int a = 0; a < plan.actor_size(); ++a)
    for (int k = 0; k < plan.actor(a).kernel_size(); ++k) {
      for (const plan::Operand& o : plan.actor(a).kernel(k).in()) add(&uses.readers, a, k, o);
      for (const plan::Operand& o : plan.actor(a).kernel(k).out()) add(&uses.writers, a, k, o);
    }
  return uses;
}

// Whether an actor is in a stream beside the compute stream.
bool IsBeside(const plan::Plan& plan, int actor) {
  return plan.actor(actor).stream() >= 0 && !InStream(plan, actor, plan::COMPUTE);
}

// Where the compute stream stands, at least, when all edges have let an act begin: also those that no operand
// stands behind. `acts`: of streams beside, those that come before it.
int AnnouncedBefore(const plan::Plan& plan, const std::vector<int>& numbers, const ActSpans& acts, int a,
                    int act) {
  int position = kNever;
  for (const plan::Port& in : plan.actor(a).in()) {
    const int writer = numbers[in.peer()];
    const bool computes = InStream(plan, writer, plan::COMPUTE);
    for (const plan::Port& out : plan.actor(writer).out()) {
      if (out.edge() != in.edge()) continue;
      const int last = (act / in.period() + 1 - in.credits()) * out.period() - 1;
      if (last >= 0 && last < std::ssize(acts[writer]))
        position = std::max(position, acts[writer][last].begin + (computes ? out.kernel() : 0));
    }
  }
  return position;
}

// Where the compute stream stands, at most, before an edge from an act beside it has let it go on, or another
// act beside it, which has ended when the stream goes on.
int AwaitedBy(const plan::Plan& plan, const std::vector<int>& numbers, const ActSpans& acts, int a, int act) {
  int position = kAlways;
  for (const plan::Port& out : plan.actor(a).out()) {
    const int reader = numbers[out.peer()];
    const bool computes = InStream(plan, reader, plan::COMPUTE);
    for (const plan::Port& in : plan.actor(reader).in()) {
      // A result that is announced before the last kernel does not prove that the act has ended.
      if (in.edge() != out.edge() || out.kernel() + 1 < plan.actor(a).kernel_size()) continue;
      const int first = (act / out.period() + in.credits()) * in.period();
      if (first < std::ssize(acts[reader]))
        position = std::min(position, computes ? acts[reader][first].begin - 1 : acts[reader][first].end);
    }
  }
  return position;
}

// Adds the acts of the streams beside.
void BoundActsBeside(const plan::Plan& plan, const std::vector<int>& numbers, const Uses& uses,
                     ActSpans* acts) {
  std::vector<bool> carried(uses.writers.size());  // variables: they were written in the step before
  for (const plan::Buffer& b : plan.buffer()) carried[b.id()] = IsVariable(b);
  std::vector<std::tuple<int, int, int>> order;  // position in the order of the job, actor, act
  for (int a = 0; a < plan.actor_size(); ++a)
    for (int act = 0; IsBeside(plan, a) && act < plan.actor(a).acts(); ++act)
      order.push_back({plan.actor(a).position(act), a, act});
  std::sort(order.begin(), order.end());
  // Where the last act of the stream started, at least.
  std::vector<int> running(plan.stream_size(), kNever);
  for (auto [_, a, act] : order) {
    int& start = running[plan.actor(a).stream()];
    for (const plan::Kernel& kernel : plan.actor(a).kernel())
      for (const plan::Operand& o : kernel.in()) {
        if (carried[o.buffer()]) continue;
        for (const Use& w : uses.writers[o.buffer()]) {
          const int written = (act / std::max(1, o.period()) + 1) * w.period - 1;
          if (written < std::ssize((*acts)[w.actor]))
            start = std::max(start, (*acts)[w.actor][written].begin +
                                        (InStream(plan, w.actor, plan::COMPUTE) ? w.first : 0));
        }
      }
    start = std::max(start, AnnouncedBefore(plan, numbers, *acts, a, act));
    (*acts)[a].push_back({start, kAlways});
  }
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    auto [_, a, act] = *it;
    int& end = (*acts)[a][act].end;
    for (const plan::Kernel& kernel : plan.actor(a).kernel())
      for (const plan::Operand& o : kernel.out()) {
        if (carried[o.buffer()]) continue;
        for (const Use& r : uses.readers[o.buffer()]) {
          const int read = act / std::max(1, o.period()) * r.period;
          if (read < std::ssize((*acts)[r.actor]))
            end = std::min(end, (*acts)[r.actor][read].end - InStream(plan, r.actor, plan::COMPUTE));
        }
      }
    end = std::min(end, AwaitedBy(plan, numbers, *acts, a, act));
  }
}

Lifetime LifetimeOf(const plan::Plan& plan, const ActSpans& acts, const std::vector<Use>& writers,
                    const std::vector<Use>& readers) {
  if (writers.size() != 1) return {};
  const Use& w = writers[0];
  if (plan.actor(w.actor).stream() < 0) return {};
  const auto kernel = [&](const Use& use, int number) {
    return InStream(plan, use.actor, plan::COMPUTE) ? number : 0;
  };
  Lifetime life;
  for (int message = 0; message < std::ssize(acts[w.actor]) / w.period; ++message) {
    Span span{acts[w.actor][message * w.period].begin + kernel(w, w.first),
              acts[w.actor][(message + 1) * w.period - 1].end + kernel(w, w.last)};
    if (span.begin == kNever) return life;
    for (const Use& r : readers) {
      const int read = (message + 1) * r.period - 1;
      if (read >= std::ssize(acts[r.actor])) return life;
      span.end = std::max(span.end, acts[r.actor][read].end + kernel(r, r.last));
    }
    if (span.end >= kAlways) return life;
    life.messages.push_back(span);
  }
  life.bounded = true;
  return life;
}

}  // namespace

bool InStream(const plan::Plan& plan, int actor, plan::StreamKind kind) {
  const int stream = plan.actor(actor).stream();
  return stream >= 0 && plan.stream(stream).kind() == kind;
}

Lifetimes FindLifetimes(const plan::Plan& plan) {
  const std::vector<int> numbers = NumbersOf(plan);
  Lifetimes found;
  found.starts.resize(plan.actor_size());
  ActSpans acts(plan.actor_size());
  for (const plan::Stream& stream : plan.stream()) {
    if (stream.kind() != plan::COMPUTE) continue;
    CHECK_EQ(found.positions, 0) << "positions are of one stream, and plan " << plan.name()
                                 << " has two that compute";
    for (int id : stream.actor()) {
      const int a = numbers[id];
      found.starts[a].push_back(found.positions);
      acts[a].push_back({found.positions, found.positions});
      found.positions += std::max(1, plan.actor(a).kernel_size());
    }
  }
  const Uses uses = UsesOf(plan);
  BoundActsBeside(plan, numbers, uses, &acts);
  found.buffers.resize(uses.writers.size());
  for (const plan::Buffer& b : plan.buffer())
    if (!IsVariable(b))
      found.buffers[b.id()] = LifetimeOf(plan, acts, uses.writers[b.id()], uses.readers[b.id()]);
  return found;
}

}  // namespace oneflow_like
