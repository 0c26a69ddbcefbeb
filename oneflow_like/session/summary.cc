// What a compiled session would take, hold and send, per rank: the text of --dry_run.
#include "oneflow_like/session/summary.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <tuple>

#include "actor/net/job/process_job.h"
#include "compiler/cost/collective_costs.h"
#include "compiler/graph/training.h"
#include "core/device/backend.h"
#include "core/formatted.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/model/placement.h"
#include "oneflow_like/session/plain_cores.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

namespace {

constexpr size_t kPlansAtOnce = 8;

}  // namespace

std::map<std::string, Purpose> PurposesOfVariables(const Compiled& compiled,
                                                   const std::vector<Purpose>& purposes) {
  std::map<std::string, Purpose> of_variable;
  for (size_t b = 0; b < purposes.size(); ++b)
    if (!compiled.logical.buffers[b].variable.empty())
      of_variable[compiled.logical.buffers[b].variable] = purposes[b];
  return of_variable;
}

std::vector<int64_t> VariablesByPurpose(const Compiled& compiled, const std::vector<Purpose>& purposes,
                                        const plan::Plan& plan) {
  std::vector<int64_t> bytes(kPurposes, 0);
  const std::map<std::string, Purpose> of_variable = PurposesOfVariables(compiled, purposes);
  for (const plan::Variable& v : plan.variable())
    if (!IsOnHost(v)) bytes[static_cast<int>(of_variable.at(v.name()))] += v.bytes();
  return bytes;
}

std::string HeldText(const Compiled& compiled, int buffer) {
  const int whole = WholeValueBehind(compiled.logical, buffer);
  if (whole < 0) return "";
  const Node& sum = compiled.graph.producer(whole);  // over the micro-batches, of what the user wrote
  const int part = sum.in.empty() || SumsOverTime(sum) ? whole : sum.in[0];
  return Cat(", held until ", compiled.graph.Describe(compiled.graph.value(part).producer),
             " has the whole batch");
}

namespace {

// Bytes of a rank's peak by what they are for; they add up to variables and arena. Gaps between buffers
// count as "other", like activations and scratch.
std::vector<std::pair<std::string, int64_t>> PurposesOfRank(const Compiled& compiled,
                                                            const std::vector<Purpose>& purposes,
                                                            const RankPlan& made) {
  std::vector<int64_t> bytes = VariablesByPurpose(compiled, purposes, made.plan);
  for (auto [buffer, size] : made.at_peak)
    bytes[static_cast<int>(buffer == kScratch ? Purpose::kOther : purposes[buffer])] += size;
  bytes[static_cast<int>(Purpose::kOther)] += ArenaBytes(made.plan) - made.lower_bound;
  std::vector<std::pair<std::string, int64_t>> named;
  for (int p = 0; p < kPurposes; ++p) named.push_back({Name(static_cast<Purpose>(p)), bytes[p]});
  return named;
}

using BytesOfKinds = std::map<std::string, int64_t>;

int64_t SumOf(const BytesOfKinds& kinds) {
  return std::accumulate(kinds.begin(), kinds.end(), int64_t{0},
                         [](int64_t sum, const auto& kind) { return sum + kind.second; });
}

// "attention 1.05 MB, einsum 786.43 KB"
std::string KindsText(const BytesOfKinds& kinds) {
  constexpr size_t kShown = 6;
  std::vector<std::pair<std::string, int64_t>> sorted(kinds.begin(), kinds.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.second > b.second; });
  std::string text;
  int64_t left = SumOf(kinds);
  for (size_t i = 0; i < std::min(kShown, sorted.size()); ++i) {
    text += Cat(i == 0 ? "" : ", ", sorted[i].first, " ", BytesText(sorted[i].second));
    left -= sorted[i].second;
  }
  return left > 0 ? Cat(text, ", other kinds ", BytesText(left)) : text;
}

// Bytes of a rank's peak by the block and the kind of operator that they are of; they add up to variables and
// arena.
std::vector<std::pair<std::string, int64_t>> BlocksOfRank(const Compiled& compiled,
                                                          const std::vector<Purpose>& purposes,
                                                          const RankPlan& made) {
  constexpr size_t kShown = 10;
  const Graph& graph = compiled.graph;
  const std::map<std::string, Purpose> of_variable = PurposesOfVariables(compiled, purposes);
  std::map<std::string, BytesOfKinds> of_block;  // by region, "" for none
  for (const plan::Variable& v : made.plan.variable()) {
    if (IsOnHost(v)) continue;
    of_block[graph.regions().Of(WeightOf(v.name()))][Name(of_variable.at(v.name()))] += v.bytes();
  }
  for (auto [buffer, size] : made.at_peak) {
    if (buffer == kScratch) {
      of_block[""]["scratch"] += size;
      continue;
    }
    const Node& node = graph.producer(compiled.logical.buffers[buffer].value);
    of_block[graph.regions().Of(node.name)][node.op] += size;
  }
  if (const int64_t gaps = ArenaBytes(made.plan) - made.lower_bound; gaps > 0) of_block[""]["gaps"] += gaps;
  std::map<BytesOfKinds, std::vector<std::string>> alike;
  std::vector<std::pair<std::string, int64_t>> lines;
  for (const auto& [block, kinds] : of_block) {
    if (block.empty())
      lines.push_back({Cat("beside blocks: ", KindsText(kinds)), SumOf(kinds)});
    else
      alike[kinds].push_back(block);
  }
  for (auto& [kinds, blocks] : alike) {
    std::sort(blocks.begin(), blocks.end(), [](const std::string& a, const std::string& b) {
      return std::tuple(a.size(), a) < std::tuple(b.size(), b);
    });
    const int64_t each = SumOf(kinds), count = std::ssize(blocks);
    lines.push_back(
        {Cat(BlocksText(blocks, static_cast<double>(each)), ": ", KindsText(kinds)), each * count});
  }
  std::stable_sort(lines.begin(), lines.end(), [](auto& a, auto& b) { return a.second > b.second; });
  if (lines.size() > kShown) {
    int64_t rest = 0;
    for (size_t i = kShown - 1; i < lines.size(); ++i) rest += lines[i].second;
    lines.resize(kShown - 1);
    lines.push_back({"other blocks", rest});
  }
  return lines;
}

// "block*/mlp/up" of "block11/mlp/up"
std::string WithoutNumbers(const std::string& name) {
  std::string text;
  for (const char c : name)
    if (std::isdigit(static_cast<unsigned char>(c)) == 0)
      text += c;
    else if (text.empty() || text.back() != '*')
      text += '*';
  return text;
}

// The plan in which steps run again: what it needs more of the memory that both share.
void AddRetries(const Session::Impl& session, RankSummary* s) {
  const plan::Plan plan = PlanOf(session.retries->compiled(), s->rank, PlanDetail::kOutline).plan;
  s->retry_transient_bytes = ArenaBytes(plan);
  s->host_transient_bytes = std::max(s->host_transient_bytes, ArenaBytes(plan, "host"));
  const int64_t more = s->retry_transient_bytes - s->transient_bytes;
  if (more <= 0) return;
  s->transient_bytes += more;
  s->purposes.push_back({"steps run again", more});
  s->blocks.push_back({"steps that run again with more room for experts", more});
}

// The table of what takes most of a rank's memory. Consumers that differ in numbers of their names alone, and
// come from one line, are one entry.
class ConsumerTable {
 public:
  ConsumerTable(const Compiled& compiled, const plan::Plan& plan) : compiled_(compiled) {
    for (const plan::Variable& v : plan.variable())
      if (!IsOnHost(v)) Add("variable " + v.name(), v.bytes());
    for (const plan::Actor& a : plan.actor())
      for (const plan::Kernel& k : a.kernel())
        for (const plan::Operand& o : k.out()) source_[o.buffer()] = &k;
    AddScratch(plan);
    for (const plan::Buffer& b : plan.buffer())
      if (!IsVariable(b) && b.arena() == 0) all_.push_back({"", b.slot_bytes() * b.slots(), &b});
  }

  void Add(const std::string& what, int64_t bytes) { all_.push_back({what, bytes}); }

  std::vector<std::pair<std::string, int64_t>> Largest() const {
    constexpr size_t kShown = 10;
    std::map<std::tuple<std::string, int64_t, int64_t, std::string>, size_t> known;
    std::vector<Consumer> kinds;
    for (const Consumer& c : all_) {
      const plan::Kernel* k = SourceOf(c);
      const auto [kind, fresh] = known.try_emplace(
          {WithoutNumbers(c.buffer ? c.buffer->name() : c.what), c.bytes, c.buffer ? c.buffer->slots() : 0,
           k ? Cat(k->name(), " ", k->file(), ":", k->line()) : ""},
          kinds.size());
      if (fresh)
        kinds.push_back(c);
      else
        ++kinds[kind->second].count, kinds[kind->second].last = c.buffer;
    }
    std::stable_sort(kinds.begin(), kinds.end(),
                     [](auto& a, auto& b) { return a.bytes * a.count > b.bytes * b.count; });
    if (kinds.size() > kShown) kinds.resize(kShown);
    std::vector<std::pair<std::string, int64_t>> table;
    for (const Consumer& c : kinds) table.push_back({TextOf(c), c.bytes * c.count});
    return table;
  }

 private:
  struct Consumer {
    std::string what;
    int64_t bytes;  // of each
    const plan::Buffer* buffer = nullptr;
    int64_t count = 1;
    const plan::Buffer* last = nullptr;  // of those that share the entry
  };

  // Kernels take turns in the memory of their scratch.
  void AddScratch(const plan::Plan& plan) {
    const plan::Kernel* most = nullptr;
    int number = 0;
    for (const plan::Actor& a : plan.actor())
      for (const plan::Kernel& k : a.kernel()) {
        number += k.scratch_bytes() > 0;
        if (k.scratch_bytes() > (most ? most->scratch_bytes() : 0)) most = &k;
      }
    if (most)
      Add(Cat("scratch of ", most->node(), ", the most of ", number, " kernels"), most->scratch_bytes());
  }

  const plan::Kernel* SourceOf(const Consumer& c) const {
    const auto found = c.buffer ? source_.find(c.buffer->id()) : source_.end();
    return found == source_.end() ? nullptr : found->second;
  }

  std::string TextOf(const Consumer& c) const {
    const std::string name = c.buffer ? "buffer " + c.buffer->name() : c.what;
    std::string text =
        c.count == 1 ? name : Cat(WithoutNumbers(name), ", ", c.count, " of ", BytesText(c.bytes));
    if (!c.buffer) return text;
    const plan::Kernel* k = SourceOf(c);
    text += Cat(" (", c.buffer->slots(), c.buffer->slots() == 1 ? " slot, " : " slots, ", k ? k->name() : "",
                !k || k->file().empty() ? "" : Cat(" at ", k->file(), ":", k->line()),
                HeldText(compiled_, c.buffer->id()));
    if (c.last && HeldText(compiled_, c.last->id()) != HeldText(compiled_, c.buffer->id()))
      text += Cat("; the last", HeldText(compiled_, c.last->id()));
    return text + ")";
  }

  const Compiled& compiled_;
  std::map<int, const plan::Kernel*> source_;  // by buffer
  std::vector<Consumer> all_;
};

// What the kernels of a step compute, send and copy.
void AddWork(const plan::Plan& plan, RankSummary* s) {
  for (const plan::Actor& a : plan.actor()) {
    s->collectives += a.has_collective();
    for (const plan::Kernel& k : a.kernel()) {
      s->bytes_sent += k.link_bytes() * a.acts();
      s->flops += k.flops() * a.acts();
      // Each byte is read on one side and written on the other.
      if (k.category() == kHostCopies)
        (k.name() == kFromHost ? s->bytes_from_host : s->bytes_to_host) += k.bytes() / 2 * a.acts();
    }
  }
}

// What the libraries of a GPU take, which is no part of the plan.
void AddLibraries(const Session::Impl& session, const plan::Plan& plan, ConsumerTable* consumers,
                  RankSummary* s) {
  const MemoryBesides besides = MemoryBesidesPlan(*session.model, plan);
  s->library_bytes = kCudaBytesBesides + besides.device;
  s->communicator_bytes = besides.communicators;
  if (session.retries) {
    const MemoryBesides more = MemoryBesidesPlan(
        *session.model, PlanOf(session.retries->compiled(), s->rank, PlanDetail::kOutline).plan);
    s->library_bytes += DeviceBytesOfSecondPlan(more);
    s->communicator_bytes += more.communicators;
  }
  for (const auto& [what, bytes] : besides.consumers) consumers->Add(what, bytes);
}

RankSummary Summarise(const Session::Impl& session, const RankPlan& made) {
  const Compiled& compiled = session.compiled;
  const plan::Plan& plan = made.plan;
  RankSummary s;
  s.rank = plan.rank();
  s.ranks = {s.rank};
  s.transient_bytes = ArenaBytes(plan);
  s.host_transient_bytes = ArenaBytes(plan, "host");
  for (const plan::Variable& v : plan.variable())
    (IsOnHost(v) ? s.host_persistent_bytes : s.persistent_bytes) += v.bytes();
  s.buffers = plan.buffer_size();
  s.actors = plan.actor_size();
  AddWork(plan, &s);
  ConsumerTable consumers(compiled, plan);
  if (plan.device_kind() == "cuda") {
    AddLibraries(session, plan, &consumers, &s);
    AddPlainCores(compiled.graph.catalog(), plan, &s);
  }
  s.consumers = consumers.Largest();
  const std::vector<Purpose> purposes = PurposesOf(compiled);
  s.purposes = PurposesOfRank(compiled, purposes, made);
  s.blocks = BlocksOfRank(compiled, purposes, made);
  if (s.library_bytes > 0) {
    s.purposes.back().second += s.library_bytes - s.communicator_bytes;
    s.blocks.push_back({"libraries and packing", s.library_bytes - s.communicator_bytes});
  }
  if (s.communicator_bytes > 0) {
    s.purposes.push_back({"communicators", s.communicator_bytes});
    s.blocks.push_back({"communicators", s.communicator_bytes});
  }
  if (session.retries) AddRetries(session, &s);
  s.peak_bytes = s.persistent_bytes + s.transient_bytes + s.library_bytes;
  s.feed_bytes = FeedBytes(plan, session.options.steps_in_flight + (session.retries ? 1 : 0));
  s.lower_bound_bytes = s.persistent_bytes + made.lower_bound;
  return s;
}

bool Alike(const RankSummary& a, const RankSummary& b) {
  return a.stage == b.stage && a.peak_bytes == b.peak_bytes && a.persistent_bytes == b.persistent_bytes &&
         a.host_persistent_bytes == b.host_persistent_bytes &&
         a.host_transient_bytes == b.host_transient_bytes && a.flops == b.flops && a.actors == b.actors &&
         a.buffers == b.buffers && a.collectives == b.collectives && a.bytes_sent == b.bytes_sent &&
         a.consumers == b.consumers;
}

}  // namespace

std::string BytesText(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB"};
  int u = 0;
  while (bytes >= 1000 && u < 4) {
    bytes /= 1000;
    ++u;
  }
  return Formatted(u == 0 ? "%.0f %s" : "%.2f %s", bytes, units[u]);
}

std::string PercentText(double part, double whole) {
  return Formatted("%.1f %%", whole > 0 ? 100 * part / whole : 0);
}

std::string SecondsText(double seconds) {
  const char* units[] = {"s", "ms", "us"};
  int u = 0;
  while (seconds > 0 && seconds < 1 && u < 2) {
    seconds *= 1000;
    ++u;
  }
  return Formatted("%.2f %s", seconds, units[u]);
}

std::string RangesText(const std::vector<int>& ranks) {
  std::string text;
  int shown = 0;
  for (size_t i = 0; i < ranks.size(); ++shown) {
    if (shown == 4) return Cat(text, ", ... (", ranks.size(), " ranks)");
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    text += Cat(text.empty() ? "" : ", ", ranks[i], j > i ? Cat("-", ranks[j]) : "");
    i = j + 1;
  }
  return text;
}

std::string BlocksText(const std::vector<std::string>& blocks, std::optional<double> bytes) {
  const size_t count = blocks.size();
  return count == 1 ? blocks[0]
                    : Cat(count, " blocks", bytes ? Cat(" of ", BytesText(*bytes)) : "", ", ", blocks[0],
                          count == 2 ? " and " : " to ", blocks.back());
}

RankSummary SummaryOf(const Session::Impl& session, int rank) {
  RankSummary s = Summarise(session, PlanOf(session.compiled, rank, PlanDetail::kOutline));
  s.stage = StageOf(session.compiled, rank);
  return s;
}

std::vector<RankSummary> Session::Summaries() const { return SummariesOf(*impl_); }

std::vector<RankSummary> SummariesOf(const Session::Impl& session, const std::vector<RankPlan>& known) {
  const Compiled& compiled = session.compiled;
  int world = compiled.graph.mesh().size();
  int64_t staging = 0;
  if (session.model->options.job) {
    const StagingBytes bytes = StagingOfJob();
    staging = bytes.process + (session.retries ? 2 : 1) * bytes.session;
  }
  const bool many = world > kManyRanks || (!known.empty() && std::ssize(known) < world);
  std::vector<RankSummary> all;
  // Of many ranks the first of each stage stands for the others.
  std::map<std::string, std::vector<int>> of_stage;
  std::vector<int> shown, unknown;
  std::map<int, RankSummary> summaries;
  for (const RankPlan& made : known) summaries.emplace(made.plan.rank(), Summarise(session, made));
  for (int rank = 0; rank < world; ++rank) {
    std::vector<int>& ranks = of_stage[StageOf(compiled, rank)];
    if (!many || ranks.empty()) shown.push_back(rank);
    if ((!many || ranks.empty()) && summaries.count(rank) == 0) unknown.push_back(rank);
    ranks.push_back(rank);
  }
  // A few at a time: the plans of all ranks of a large model may need more memory than there is.
  for (size_t first = 0; first < unknown.size(); first += kPlansAtOnce) {
    const auto begin = unknown.begin() + static_cast<std::ptrdiff_t>(first);
    const auto left = static_cast<size_t>(unknown.end() - begin);
    const std::vector<int> next(begin, begin + static_cast<std::ptrdiff_t>(std::min(kPlansAtOnce, left)));
    for (const RankPlan& made : PlansOf(compiled, next, 0, PlanDetail::kOutline))
      summaries.emplace(made.plan.rank(), Summarise(session, made));
  }
  for (int rank : shown) {
    RankSummary s = std::move(summaries.at(rank));
    s.stage = StageOf(compiled, s.rank);
    s.staging_bytes = staging;
    if (many) s.ranks = of_stage.at(s.stage);
    auto same =
        std::find_if(all.begin(), all.end(), [&](const RankSummary& other) { return Alike(s, other); });
    if (many || same == all.end())
      all.push_back(std::move(s));
    else
      same->ranks.push_back(s.rank);
  }
  return all;
}

// One entry of Summaries().
std::string RankText(const Session::Impl& session, const RankSummary& s) {
  const Compiled& compiled = session.compiled;
  std::string text = Cat("rank", s.ranks.size() == 1 ? " " : "s ", RangesText(s.ranks),
                         s.stage.empty() ? "" : " (" + s.stage + ")",
                         s.ranks.size() == 1 ? "" : Cat(", shown for rank ", s.rank), "\n");
  text += Cat("  peak memory   ", BytesText(s.peak_bytes), " = ", BytesText(s.persistent_bytes),
              " variables + ", BytesText(s.transient_bytes), " buffers and scratch",
              s.library_bytes > 0 ? Cat(" + ", BytesText(s.library_bytes), " of libraries",
                                        s.communicator_bytes > 0 ? ", communicators" : "", " and packing")
                                  : "",
              " (lower bound ", BytesText(s.lower_bound_bytes), ")\n");
  for (const auto& [purpose, bytes] : s.purposes) {
    if (bytes == 0) continue;
    text += Formatted("    %-16s%12s\n", purpose.c_str(), BytesText(bytes).c_str());
  }
  if (s.retry_transient_bytes > 0)
    text += Cat("  run again     ", BytesText(s.retry_transient_bytes),
                " buffers and scratch in the same memory, for steps in which experts had no room\n");
  if (s.host_persistent_bytes + s.host_transient_bytes > 0)
    text += Cat("  on the host   ", BytesText(s.host_persistent_bytes + s.host_transient_bytes), " = ",
                BytesText(s.host_persistent_bytes), " variables + ", BytesText(s.host_transient_bytes),
                " activations; copied from there ", BytesText(s.bytes_from_host), " a step, and to there ",
                BytesText(s.bytes_to_host), "\n");
  if (s.library_bytes > 0) {
    const auto host = [&](const Compiled& of) {
      return MemoryBesidesPlan(*session.model, PlanOf(of, s.rank, PlanDetail::kOutline).plan).host;
    };
    text += Cat("  host memory   ",
                BytesText(host(compiled) + (session.retries ? host(session.retries->compiled()) : 0)),
                " that its device copies to and from\n");
  }
  if (s.feed_bytes > 0)
    text += Cat("  inputs        ", BytesText(s.feed_bytes),
                " more of its process, for batches that are read ahead and of steps under way\n");
  if (s.staging_bytes > 0) {
    const int hosted = compiled.graph.mesh().size() / session.model->options.job->processes();
    text += Cat("  staging       ", BytesText(s.staging_bytes), " more of its process",
                hosted > 1 ? Cat(" of ", hosted, " ranks") : "", ", for data on its way to others\n");
  }
  text += Cat("  actors ", s.actors, ", buffers ", s.buffers, ", collectives ", s.collectives, ", sent ",
              BytesText(s.bytes_sent), " a step, ", s.flops / 1e9, " GFLOP a step",
              s.plain_flops < 0 ? "" : ", ", PlainCoresText(s.plain_flops, s.flops), "\n");
  for (const auto& [title, table] : {std::pair{"by block and kind of operator", &s.blocks},
                                     std::pair{"largest consumers", &s.consumers}}) {
    text += Cat("  ", title, "\n");
    for (const auto& [what, bytes] : *table) {
      text += Formatted("    %12s  ", BytesText(bytes).c_str()) + what + "\n";
    }
  }
  return text;
}

std::string OverlapText(const Compiled& compiled) {
  if (compiled.options.decided.overlap.value_or(Overlap()).chunks == 1) return "";
  const Overlapped all = OverlappedIn(compiled);
  const std::string second =
      compiled.logical.beside > 1 ? "two micro-batches at a time, each beside the other's messages\n" : "";
  if (all.products.empty() && all.behind.empty())
    return second + "no product is estimated to gain by chunks beside its messages\n";
  return Cat(second, all.products.size(), " products in chunks beside their messages, ", all.behind.size(),
             " gradients of weights beside sums of others\n");
}

std::string AlgorithmsText(const Compiled& compiled) {
  std::map<std::string, int> number;
  for (int n : compiled.graph.Order()) {
    const Node& node = compiled.graph.node(n);
    if (AlgorithmOf(node)) ++number[Cat(node.op, " by ", AlgorithmText(node))];
  }
  std::string text;
  for (const auto& [what, times] : number) text += Cat(text.empty() ? "" : ", ", times, " ", what);
  return text.empty() ? "" : Cat("collectives by messages: ", text, "\n");
}

std::string RecomputeText(const Compiled& compiled) {
  const Graph& graph = compiled.graph;
  const std::map<std::string, Recompute>& chosen = graph.regions().chosen();
  std::map<std::string, std::string> stage_of;  // of a region, where its first node is
  for (int n : graph.Order()) {
    const std::string region = graph.regions().Of(graph.node(n).name);
    if (chosen.count(region)) stage_of.try_emplace(region, graph.node(n).slice.str(graph.mesh()));
  }
  std::map<std::string, std::map<Recompute, int>> layers;  // by stage
  for (const auto& [region, stage] : stage_of) ++layers[stage][chosen.at(region)];
  std::string text;
  for (auto& [stage, count] : layers) {
    int all = 0, selective = 0, gather = 0, host = 0;
    for (const auto& [mode, layers_of_mode] : count) {
      all += layers_of_mode;
      if (WithoutGather(mode) == Recompute::kSelective) selective += layers_of_mode;
      if (GathersAgain(mode)) gather += layers_of_mode;
      if (mode == Recompute::kHost) host += layers_of_mode;
    }
    text += Cat("recompute: ", stage.empty() ? "" : Cat("stage ", stage, ": "), count[Recompute::kFull],
                " of ", all, " layers full, ", selective, " selective",
                gather > 0 ? Cat(", ", gather, " gather again") : "",
                host > 0 ? Cat(", ", host, " wait on the host") : "", "\n");
  }
  return text;
}

std::string Session::SummaryText() const {
  const Compiled& compiled = impl_->compiled;
  std::string text =
      Cat("session ", impl_->options.name, ": mesh ", compiled.graph.mesh().str(), ", ",
          compiled.graph.times(), " micro-batch", compiled.graph.times() == 1 ? "" : "es", " a step\n");
  double seconds = 0;
  for (const auto& [pass, s] : compiled.pass_seconds) seconds += s;
  text += Formatted("compiled in %.2f s; order of acts %016llx\n", seconds,
                    static_cast<unsigned long long>(compiled.logical.hash));
  text += Cat("estimated time of a step ", SecondsText(compiled.logical.makespan), "\n");
  for (const StageTime& stage : TimesOfStages(compiled)) {
    text += Cat(stage.stage.empty() ? "  every rank" : "  stage " + stage.stage, " computes for ",
                SecondsText(stage.seconds), Formatted(", bubble %.1f %% of the step\n", 100 * stage.bubble));
  }
  text += RecomputeText(compiled);
  if (const int64_t tile = compiled.options.decided.logits_tile; tile > 0)
    text += Cat("logits: at most ", tile, " rows at a time\n");
  text += OverlapText(compiled);
  text += AlgorithmsText(compiled);
  for (const BoxingPrice& p : PricesOfBoxing(compiled, /*gathered_alone=*/true))
    text += Cat("gathered ", BytesText(p.bytes), " a step: ", p.gathered, "\n");
  const Regions& regions = compiled.graph.regions();
  if (std::any_of(regions.all().begin(), regions.all().end(), [&](const auto& region) {
        return regions.SettingOf(region.first, compiled.options.decided.recompute) != Recompute::kNone;
      }))
    text += WaitsText(WaitLinesOf(*impl_), /*others=*/false);
  const std::vector<RankSummary> summaries = Summaries();
  if (const std::string warning = PlainCoresWarning(summaries); !warning.empty())
    text += Cat("warning: ", warning, "\n");
  for (const RankSummary& s : summaries) text += "\n" + RankText(*impl_, s);
  return text;
}

}  // namespace oneflow_like
