// Formats numbers for --dry_run and --explain.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "compiler/explain.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

std::string BytesText(double bytes);                 // "1.50 MB"
std::string SecondsText(double seconds);             // "1.50 ms"
std::string PercentText(double part, double whole);  // "1.5 %"; of nothing "0.0 %"
std::string RangesText(
    const std::vector<int>& ranks);  // "0-3, 8"; of many the first few and how many there are
// The effect of --overlap, in one line; empty if it was not requested.
std::string OverlapText(const Compiled& compiled);
// By which algorithms the collectives are done whose ranks send each other messages; empty if none do.
std::string AlgorithmsText(const Compiled& compiled);
// What the compiler chose to recompute, a line for each stage; empty if that was not left to it.
std::string RecomputeText(const Compiled& compiled);

// "block3"; "4 blocks, block0 to block3"; with the bytes of each "4 blocks of 1.50 MB, block0 to block3"
std::string BlocksText(const std::vector<std::string>& blocks, std::optional<double> bytes = {});

// A way in which the values of a block may wait for its gradients.
struct WaitWay {
  Recompute mode = Recompute::kNone;
  double saves = 0;  // bytes of a micro-batch on the rank with the largest pieces, compared with keeping all
  double takes = 0;  // seconds of that rank in a step, by estimate, if nothing else runs meanwhile
  bool operator==(const WaitWay&) const = default;
};
// Blocks for which all ways are worth the same.
struct WaitLine {
  std::vector<std::string> blocks;
  double keeps = 0;  // bytes of a micro-batch
  WaitWay chosen;
  std::vector<WaitWay> others;  // possible ways that were not chosen
};
// What was decided but for what has lines of its own (waits, cuts of weights), as a saved plan says it; one
// line.
std::string DecidedText(const Decisions& decisions);
// Runs passes at the first call of a session. Empty: no training, or nothing is in a block.
std::vector<WaitLine> WaitLinesOf(const Session::Impl& session);
// A line each, with or without the other ways.
std::string WaitsText(const std::vector<WaitLine>& lines, bool others);
const char* Described(Recompute mode);  // "computed again"

// By name; `purposes` are PurposesOf(compiled).
std::map<std::string, Purpose> PurposesOfVariables(const Compiled& compiled,
                                                   const std::vector<Purpose>& purposes);
// Bytes of the plan's variables, by Purpose.
std::vector<int64_t> VariablesByPurpose(const Compiled& compiled, const std::vector<Purpose>& purposes,
                                        const plan::Plan& plan);
// ", held until mean 'm' at model.cc:12 has the whole batch"; empty for a buffer that is not.
std::string HeldText(const Compiled& compiled, int buffer);

}  // namespace oneflow_like
