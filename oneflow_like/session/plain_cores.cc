#include "oneflow_like/session/plain_cores.h"

#include <algorithm>
#include <map>

#include "core/plan/plan_values.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/session/summary.h"
#include "ops/tf32.h"

namespace oneflow_like {
namespace {

constexpr double kWorthAWarning = 0.01;  // of a rank's operations
constexpr size_t kNamed = 4;             // operators in a warning

}  // namespace

void AddPlainCores(const Catalog& catalog, const plan::Plan& plan, RankSummary* summary) {
  std::map<std::string, double> by;
  double all = 0;
  for (const plan::Actor& actor : plan.actor())
    for (const plan::Kernel& kernel : actor.kernel()) {
      const OpDef* def = catalog.Find(kernel.name());
      if (def == nullptr || !def->cuda_unit || kernel.flops() == 0) continue;
      const KernelSpec spec = ToSpec(kernel);
      const ComputeUnit unit = def->cuda_unit(spec);
      if (unit.kind != ComputeUnit::Kind::kPlain) continue;
      const std::string line = spec.line.str();
      const double flops = kernel.flops() * actor.acts();
      by[Cat(kernel.name(), line.empty() ? "" : " at ", line, ", as ", unit.why)] += flops;
      all += flops;
    }
  summary->plain_flops = all;
  summary->on_plain_cores.assign(by.begin(), by.end());
  std::stable_sort(summary->on_plain_cores.begin(), summary->on_plain_cores.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
}

std::string PlainCoresText(double plain_flops, double flops) {
  return plain_flops < 0 ? "" : PercentText(plain_flops, flops) + " of them on plain cores";
}

std::string PlainCoresWarning(const std::vector<RankSummary>& summaries) {
  const auto share = [](const RankSummary& s) { return s.flops > 0 ? s.plain_flops / s.flops : 0; };
  const auto worst =
      std::max_element(summaries.begin(), summaries.end(),
                       [&](const RankSummary& a, const RankSummary& b) { return share(a) < share(b); });
  if (worst == summaries.end() || share(*worst) <= kWorthAWarning) return "";
  std::string who;
  const auto& all = worst->on_plain_cores;
  for (size_t i = 0; i < std::min(kNamed, all.size()); ++i)
    who += Cat(i == 0 ? "" : "; ", PercentText(all[i].second, worst->flops), " by ", all[i].first);
  if (all.size() > kNamed) who += Cat("; the rest by ", all.size() - kNamed, " more");
  return Cat("rank ", worst->rank, " does ", PercentText(worst->plain_flops, worst->flops),
             " of its operations on plain cores, far slower than on tensor cores: ", who);
}

std::string UnusedTf32(const Session& session) {
  const Session::Impl& impl = *session.impl();
  if (!impl.model->options.tf32) return "";
  const Graph& graph = impl.compiled.graph;
  for (int n : graph.Order())
    if (MayRoundToTf32(graph.node(n).attrs)) return "";
  if (impl.options.dtype != DType::kFloat32)
    return Cat("--tf32 changes nothing: products and convolutions are in ", Name(impl.options.dtype));
  if (!impl.compiled.options.asked.tf32)
    return Cat("--tf32 changes nothing on ", graph.mesh().str(), ": only GPUs round to TF32");
  return "--tf32 changes nothing: the model has no product or convolution in fp32 that may be rounded";
}

}  // namespace oneflow_like
