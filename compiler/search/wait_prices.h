// Prices of recomputation: for each mode the bytes that a region keeps until its gradients read them, and the
// seconds that repeating the rest takes.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/plan/options.h"

namespace oneflow_like {

// Bytes and seconds by region, for one micro-batch on the rank that holds the largest pieces.
struct KeptOfRegions {
  std::map<std::string, double> bytes;    // values of the forward pass that the region's gradients read
  std::map<std::string, double> seconds;  // the estimated time of nodes that are repeated for them
};
// Prices the modes that the graph's regions have now. REQUIRES: a lowered, fused graph.
KeptOfRegions KeptWith(Graph graph, const CompileOptions& options);

struct WaitPrice {
  std::string region;
  Recompute chosen = Recompute::kNone;
  // The prices of each mode, computed with all regions in that mode.
  std::array<double, kRecomputeModes.size()> bytes = {}, seconds = {};
};
// Returns the prices of every region that keeps anything, in the order of the forward pass. REQUIRES: a
// lowered, fused graph in which no region has kAuto any more.
std::vector<WaitPrice> PricesOfWaits(const Graph& graph, const CompileOptions& options);

// Returns the estimated seconds of a step that keeps all; nothing if the graph's regions keep all now.
// REQUIRES: as PricesOfWaits.
std::optional<double> SecondsOfAllKept(Graph graph, const CompileOptions& options);

}  // namespace oneflow_like
