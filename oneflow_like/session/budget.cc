#include "oneflow_like/session/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/device/backend.h"
#include "oneflow_like/model/placement.h"

namespace oneflow_like {

Budget BudgetOf(const Asked& asked, const Graph& graph) {
  const ModelImpl& model = asked.model();
  Budget budget{.bytes = model.options.memory_budget};
  budget.cuts = model.options.auto_cuts != AutoCuts::kNone && !model.cuts_chosen;
  if (model.mesh.Has("cuda"))
    budget.beside = [&model, retries = asked.training &&
                                       !asked.training->no_room.empty()](const plan::Plan& plan) -> int64_t {
      if (plan.device_kind() != "cuda") return 0;
      const MemoryBesides besides = MemoryBesidesPlan(model, plan);
      // The second plan, which searches do not make, has groups like the first one's.
      return kCudaBytesBesides + besides.device + (retries ? DeviceBytesOfSecondPlan(besides) : 0);
    };
  if (!asked.training) return budget;
  const Recompute otherwise = asked.training->recompute;
  const auto& regions = graph.regions().all();
  budget.waits =
      otherwise == Recompute::kAuto || std::any_of(regions.begin(), regions.end(), [&](const auto& region) {
        return graph.regions().SettingOf(region.first, otherwise) == Recompute::kAuto;
      });
  if (!budget.waits) return budget;
  if (budget.bytes == 0) budget.bytes = model.device_bytes;
  if (budget.bytes == 0)
    Fail(asked.who,
         ": recompute=auto recomputes what makes the plan fit, but nothing says in how many bytes; set ",
         "ModelOptions::memory_budget (--memory_budget=BYTES of a device), or ModelOptions::topology "
         "(--topology=FILE) to a file with memory_bytes");
  return budget;
}

double HopeBetween(const std::vector<Verdict>& alike, int64_t memory) {
  double hope = std::numeric_limits<double>::infinity();
  for (const Verdict& fits : alike) {
    if (fits.bytes > memory) continue;
    hope = std::min(hope, fits.seconds);
    for (const Verdict& more : alike)
      if (more.bytes > memory)
        hope = std::min(hope, more.seconds + static_cast<double>(more.bytes - memory) /
                                                 static_cast<double>(more.bytes - fits.bytes) *
                                                 (fits.seconds - more.seconds));
  }
  return hope;
}

bool IsLarge(const Graph& graph) {
  constexpr int kNodes = 2500;  // a GPT of about 18 layers; 200 of its plans take some ten seconds
  return graph.num_nodes() > kNodes;
}

void CheckVariables(const Asked& asked, const Budget& budget, const Graph& placed,
                    const CompileOptions& options) {
  if (budget.bytes == 0 || !(budget.waits || budget.cuts)) return;
  const Mesh& mesh = placed.mesh();
  const MeshAxes zero_axes = ZeroAxes(options.decided);
  double all = 0;  // bytes, of all devices
  for (int n = 0; n < placed.num_nodes(); ++n) {
    const Node& node = placed.node(n);
    if (!placed.alive(n) || node.kind != NodeKind::kVariable) continue;
    const Value& value = placed.value(node.out[0]);
    double copies = 1;
    // Where nothing is said the compiler may cut it, but along the batch's axis.
    for (int a = 0; a < mesh.rank() && !budget.cuts; ++a) {
      const auto fixed = node.fixed.find(1 + a);
      const bool whole =
          fixed != node.fixed.end() ? !fixed->second.is_split() : HasAxis(options.asked.roles.batch, a);
      if (whole && !HasAxis(zero_axes, a) && node.slice.fixed[a] == Slice::kFree) copies *= mesh.axis_size(a);
    }
    all += copies * static_cast<double>(value.shape.elements()) * static_cast<double>(SizeOf(value.dtype));
  }
  if (asked.model().options.offload.any()) return;  // a part of them lies on the host
  const auto each = static_cast<int64_t>(std::ceil(all / mesh.size()));
  if (each <= budget.bytes) return;
  if (asked.model().options.compiled) *asked.model().options.compiled = true;  // as where a plan does not fit
  Fail(asked.who, ": no plan fits in the budget of ", budget.bytes,
       " bytes: weights and optimizer state take ", each, " of a device on average over ", mesh.str(),
       budget.cuts ? ", whatever they are cut along" : ", however much is computed again",
       "; give each device more, or take more devices or a smaller model");
}

namespace {

// What the compiler was free to compute again, behind "the budget is 100".
std::string AgainText(const Graph& graph, Recompute otherwise) {
  const auto& regions = graph.regions().all();
  int64_t all = 0, open = 0;
  std::set<std::string> there;  // in this session
  for (int n : graph.Order()) there.insert(graph.regions().Of(graph.node(n).name));
  for (const auto& [path, says] : regions) {
    if (there.count(path) == 0) continue;
    ++all;
    open += says.value_or(otherwise) == Recompute::kAuto;
  }
  if (open == 0)
    return ", and nothing can be computed again: no operator is in a block (nn::layers, Scope::Region)";
  if (open == all) return ", however much is computed again";
  return Cat(", however much is computed again of ", open, " of the ", all,
             " blocks; the others say themselves what is");
}

}  // namespace

void CheckBudget(const Asked& asked, const Budget& budget, int tried, const Session& session) {
  if (budget.bytes == 0) return;
  const Compiled& compiled = session.impl()->compiled;
  if (compiled.graph.mesh().size() <= kManyRanks) {  // most plans fit, which few ranks tell
    const std::vector<int> alike = FirstAlike(compiled.graph, compiled.logical);
    bool over = false;
    for (int rank = 0; rank < std::ssize(alike); ++rank)
      over = over || (alike[rank] == rank && SummaryOf(*session.impl(), rank).peak_bytes > budget.bytes);
    if (!over) return;
  }
  RankSummary shown;
  for (const RankSummary& s : session.Summaries())
    if (s.peak_bytes > std::max(budget.bytes, shown.peak_bytes)) shown = s;
  if (shown.peak_bytes == 0) return;
  // The least of these cuts of weights is not that of others.
  Fail(asked.who, ": session ", asked.options.name, " needs ",
       budget.waits && !budget.cuts ? "at least " : "", shown.peak_bytes, " bytes on rank ", shown.rank,
       " but the budget is ", budget.bytes,
       budget.waits ? AgainText(session.impl()->compiled.graph, asked.training->recompute) : "",
       "; what it holds:\n", RankText(*session.impl(), shown),
       tried > 0 ? Cat("\nOf the ", tried, " choices of what its weights are cut along over ",
                       asked.model().mesh.str(), " that were tried this is the smallest.")
                 : "");
}

}  // namespace oneflow_like
