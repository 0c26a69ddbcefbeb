#include "oneflow_like/session/budget.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/device/backend.h"
#include "oneflow_like/model/placement.h"

namespace oneflow_like {

void SetBudget(const std::string& who, const ModelImpl& model, const Graph& graph, CompileOptions* options) {
  if (!options->training) return;
  const Recompute otherwise = options->training->recompute;
  const auto& regions = graph.regions().all();
  const bool chosen =
      otherwise == Recompute::kAuto || std::any_of(regions.begin(), regions.end(), [&](const auto& region) {
        return graph.regions().SettingOf(region.first, otherwise) == Recompute::kAuto;
      });
  if (!chosen) return;
  options->memory_budget = model.options.memory_budget > 0 ? model.options.memory_budget : model.device_bytes;
  if (options->memory_budget == 0)
    Fail(who, ": recompute=auto recomputes what makes the plan fit, but nothing says in how many bytes; set ",
         "ModelOptions::memory_budget (--memory_budget=BYTES of a device), or ModelOptions::topology "
         "(--topology=FILE) to a file with memory_bytes");
  const std::vector<std::string> kinds = model.mesh.kinds();
  if (std::find(kinds.begin(), kinds.end(), "cuda") == kinds.end()) return;
  options->bytes_beside_plan = [&model](const plan::Plan& plan) {
    return plan.device_kind() == "cuda" ? kCudaBytesBesides + MemoryBesidesPlan(model, plan).device
                                        : int64_t{0};
  };
}

bool IsLarge(const Graph& graph) {
  constexpr int kNodes = 2500;  // a GPT of about 18 layers; 200 of its plans take some ten seconds
  return graph.num_nodes() > kNodes;
}

void CheckVariables(const std::string& who, ModelImpl* model, const Graph& placed,
                    const CompileOptions& options) {
  const int64_t budget = options.memory_budget > 0 ? options.memory_budget : model->options.memory_budget;
  const bool cuts_are_open = model->options.auto_cuts != AutoCuts::kNone && !model->cuts_chosen;
  if (budget == 0 || (options.memory_budget == 0 && !cuts_are_open)) return;
  const Mesh& mesh = placed.mesh();
  double all = 0;  // bytes, of all devices
  for (int n = 0; n < placed.num_nodes(); ++n) {
    const Node& node = placed.node(n);
    if (!placed.alive(n) || node.kind != NodeKind::kVariable) continue;
    const Value& value = placed.value(node.out[0]);
    double copies = 1;
    // Where nothing is said the compiler may cut it, but along the batch's axis.
    for (int a = 0; a < mesh.rank() && !cuts_are_open; ++a) {
      const auto fixed = node.fixed.find(1 + a);
      const bool whole = fixed != node.fixed.end() ? !fixed->second.is_split() : a == options.roles.batch;
      if (whole && a != options.zero_axis && node.slice.fixed[a] == Slice::kFree) copies *= mesh.axis_size(a);
    }
    all += copies * static_cast<double>(value.shape.elements()) * static_cast<double>(SizeOf(value.dtype));
  }
  const auto each = static_cast<int64_t>(std::ceil(all / mesh.size()));
  if (each <= budget) return;
  if (model->options.compiled) *model->options.compiled = true;  // as where a plan does not fit
  throw OverBudget(
      Cat(who, ": no plan fits in the budget of ", budget, " bytes: weights and optimizer state take ", each,
          " of a device on average over ", mesh.str(),
          cuts_are_open ? ", whatever they are cut along" : ", however much is computed again",
          "; give each device more, or take more devices or a smaller model"),
      {}, each, false);
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

void CheckBudget(const std::string& who, const Session& session) {
  const Session::Impl& impl = *session.impl();
  const bool chosen = impl.compiled.options.memory_budget > 0;
  const int64_t budget = chosen ? impl.compiled.options.memory_budget : impl.model->options.memory_budget;
  if (budget == 0) return;
  std::vector<int> ranks;
  RankSummary shown;
  for (const RankSummary& s : session.Summaries()) {
    if (s.peak_bytes <= budget) continue;
    if (s.peak_bytes > shown.peak_bytes) shown = s;
    ranks.push_back(s.rank);
  }
  if (ranks.empty()) return;
  if (chosen) ranks = {shown.rank};
  // The least of these cuts of weights is not that of others.
  const bool cuts_are_open = impl.model->options.auto_cuts != AutoCuts::kNone && !impl.model->cuts_chosen;
  throw OverBudget(
      Cat(who, ": session ", impl.options.name, " needs ", chosen && !cuts_are_open ? "at least " : "",
          shown.peak_bytes, " bytes on rank ", shown.rank, " but the budget is ", budget,
          chosen ? AgainText(impl.compiled.graph, impl.compiled.options.training->recompute) : "",
          "; what it holds:\n", RankText(impl, shown)),
      ranks, shown.peak_bytes, chosen);
}

}  // namespace oneflow_like
