// What a compiled session would hold and send, per rank: the text of --dry_run.
#include <algorithm>
#include <map>

#include "actor/net/job/join.h"
#include "core/backend.h"
#include "oneflow_like/placement.h"
#include "oneflow_like/session_impl.h"

namespace oneflow_like {

namespace {

constexpr int kManyRanks = 64;

RankSummary Summarise(const ModelImpl& model, const Compiled& compiled, int rank) {
  RankPlan made = PlanOf(compiled, rank);
  const plan::Plan& plan = made.plan;
  RankSummary s;
  s.rank = rank;
  s.ranks = {rank};
  s.transient_bytes = plan.transient_bytes();
  s.registers = plan.buffer_size();
  s.actors = plan.actor_size();
  std::vector<std::pair<std::string, int64_t>> consumers;
  for (const plan::Variable& v : plan.variable()) {
    s.persistent_bytes += v.bytes();
    consumers.push_back({"variable " + v.name(), v.bytes()});
  }
  std::map<int, std::string> source;  // buffer -> where it comes from
  for (const plan::Actor& a : plan.actor()) {
    s.collectives += a.has_collective();
    for (const plan::Kernel& k : a.kernel()) {
      s.bytes_sent += k.link_bytes() * a.acts();
      s.flops += k.flops() * a.acts();
      for (const plan::Operand& o : k.out())
        source[o.buffer()] = Cat(k.name(), k.file().empty() ? "" : Cat(" at ", k.file(), ":", k.line()));
      if (k.scratch_bytes() > 0) consumers.push_back({"scratch of " + k.node(), k.scratch_bytes()});
    }
  }
  for (const plan::Buffer& b : plan.buffer())
    if (b.space() == plan::TRANSIENT)
      consumers.push_back({Cat("register ", b.name(), " (", b.slots(),
                               b.slots() == 1 ? " slot, " : " slots, ", source[b.id()], ")"),
                           b.slot_bytes() * b.slots()});
  if (plan.device_kind() == "cuda") {
    const MemoryBesides besides = MemoryBesidesPlan(model, plan);
    s.library_bytes = kCudaBytesBesides + besides.device;
    consumers.insert(consumers.end(), besides.consumers.begin(), besides.consumers.end());
  }
  std::stable_sort(consumers.begin(), consumers.end(), [](auto& a, auto& b) { return a.second > b.second; });
  if (consumers.size() > 10) consumers.resize(10);
  s.consumers = std::move(consumers);
  s.peak_bytes = s.persistent_bytes + s.transient_bytes + s.library_bytes;
  s.lower_bound_bytes = s.persistent_bytes + made.lower_bound;
  return s;
}

std::string StageOf(const Compiled& compiled, int rank) {
  const Mesh& mesh = compiled.graph.mesh();
  std::vector<int> coords = mesh.Coords(rank);
  Slice slice = WholeMesh(mesh);
  for (const Segment& s : compiled.logical.segments)
    for (int a = 0; a < mesh.rank(); ++a)
      if (s.slice.fixed[a] != Slice::kFree) slice.fixed[a] = coords[a];
  return slice.str(mesh);
}

bool Alike(const RankSummary& a, const RankSummary& b) {
  return a.stage == b.stage && a.peak_bytes == b.peak_bytes && a.persistent_bytes == b.persistent_bytes &&
         a.actors == b.actors && a.registers == b.registers && a.collectives == b.collectives &&
         a.bytes_sent == b.bytes_sent && a.consumers == b.consumers;
}

std::string Bytes(double bytes) {
  char text[32];
  const char* units[] = {"B", "KB", "MB", "GB", "TB"};
  int u = 0;
  while (bytes >= 1000 && u < 4) {
    bytes /= 1000;
    ++u;
  }
  snprintf(text, sizeof(text), u == 0 ? "%.0f %s" : "%.2f %s", bytes, units[u]);
  return text;
}

// "0-3, 8"; of many only the first few, and how many there are.
std::string Ranges(const std::vector<int>& ranks) {
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

}  // namespace

std::vector<RankSummary> Session::Summaries() const {
  const Compiled& compiled = impl_->compiled;
  int world = compiled.graph.mesh().size();
  int64_t staging = 0;
  if (impl_->model->options.job) {
    const StagingBytes bytes = StagingOfJob();
    staging = bytes.process + bytes.session;
  }
  std::vector<RankSummary> all;
  std::map<std::string, size_t> by_stage;
  for (int rank = 0; rank < world; ++rank) {
    std::string stage = StageOf(compiled, rank);
    if (world > kManyRanks) {
      auto [it, fresh] = by_stage.try_emplace(stage, all.size());
      if (!fresh) {
        all[it->second].ranks.push_back(rank);
        continue;
      }
    }
    RankSummary s = Summarise(*impl_->model, compiled, rank);
    s.stage = stage;
    s.staging_bytes = staging;
    auto same =
        std::find_if(all.begin(), all.end(), [&](const RankSummary& other) { return Alike(s, other); });
    if (same == all.end() || world > kManyRanks)
      all.push_back(std::move(s));
    else
      same->ranks.push_back(rank);
  }
  return all;
}

std::string Session::SummaryText() const {
  const Compiled& compiled = impl_->compiled;
  std::string text =
      Cat("session ", impl_->options.name, ": mesh ", compiled.graph.mesh().str(), ", ",
          compiled.graph.times(), " micro-batch", compiled.graph.times() == 1 ? "" : "es", " a step\n");
  double seconds = 0;
  for (const auto& [pass, s] : compiled.pass_seconds) seconds += s;
  char line[96];
  snprintf(line, sizeof(line), "compiled in %.2f s; order of acts %016llx\n", seconds,
           static_cast<unsigned long long>(compiled.logical.hash));
  text += line;
  for (const RankSummary& s : Summaries()) {
    text += Cat("\nrank", s.ranks.size() == 1 ? " " : "s ", Ranges(s.ranks),
                s.stage.empty() ? "" : " (" + s.stage + ")",
                s.ranks.size() == 1 ? "" : Cat(", shown for rank ", s.rank), "\n");
    text += Cat("  peak memory   ", Bytes(s.peak_bytes), " = ", Bytes(s.persistent_bytes), " variables + ",
                Bytes(s.transient_bytes), " registers and scratch",
                s.library_bytes > 0 ? " + " + Bytes(s.library_bytes) + " of libraries and packing" : "",
                " (lower bound ", Bytes(s.lower_bound_bytes), ")\n");
    if (s.library_bytes > 0)
      text +=
          Cat("  host memory   ", Bytes(MemoryBesidesPlan(*impl_->model, PlanOf(compiled, s.rank).plan).host),
              " that its device copies to and from\n");
    if (s.staging_bytes > 0) {
      const int hosted = compiled.graph.mesh().size() / impl_->model->options.job->processes();
      text += Cat("  staging       ", Bytes(s.staging_bytes), " more of its process",
                  hosted > 1 ? Cat(" of ", hosted, " ranks") : "", ", for data on its way to others\n");
    }
    text += Cat("  actors ", s.actors, ", registers ", s.registers, ", collectives ", s.collectives,
                ", sent ", Bytes(s.bytes_sent), " a step, ", s.flops / 1e9, " GFLOP a step\n");
    text += "  largest consumers\n";
    for (const auto& [what, bytes] : s.consumers) {
      snprintf(line, sizeof(line), "    %12s  ", Bytes(bytes).c_str());
      text += line + what + "\n";
    }
  }
  return text;
}

}  // namespace oneflow_like
