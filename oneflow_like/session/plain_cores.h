// Operations on a GPU's plain cores, which are slower than its tensor cores by an order of magnitude: shares
// for summaries, profiles and simulations, and who has them.
#pragma once

#include <string>
#include <vector>

#include "core/plan.pb.h"
#include "oneflow_like/session.h"
#include "ops/op.h"

namespace oneflow_like {

// Sets plain_flops and on_plain_cores from a plan for a cuda device, by the units that entries of the catalog
// state (OpDef::cuda_unit). REQUIRES: `summary` has its flops.
void AddPlainCores(const Catalog& catalog, const plan::Plan& plan, RankSummary* summary);

// "0.3 % of them on plain cores"; empty where there are no tensor cores.
std::string PlainCoresText(double plain_flops, double flops);
// Of the rank with the largest share: who has most of its operations there, with line, share and reason.
// Empty if no rank has more than a hundredth there.
std::string PlainCoresWarning(const std::vector<RankSummary>& summaries);
// Why ModelOptions::tf32 changes nothing in this session; empty if it does, or was not asked for.
std::string UnusedTf32(const Session& session);

}  // namespace oneflow_like
