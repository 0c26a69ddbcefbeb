// Decides which of a library's ways each piece of work is done in (Backend::OpenChoices), alike in all
// processes of a job: ranks that compute the same must compute the same bits.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/device/backend.h"

namespace oneflow_like {

// A rank hosted here, and where work may be timed for it: its compute stream, on which nothing is enqueued,
// and device memory of its plan whose contents nobody needs.
struct TimingPlace {
  int rank = 0;
  Device* device = nullptr;
  DeviceStream* stream = nullptr;
  void* scratch = nullptr;
  int64_t bytes = 0;
};

// All-gather between processes, as of DeviceCollectivesOptions; empty: a single process.
using ExchangeTexts =
    std::function<std::vector<std::string>(const std::string& what, const std::string& mine)>;

// Collective: every process calls it after loading the same plan, also one without `places` or backend. What
// an earlier run has kept stands; else the first process with the work times it, once for all ranks and cards
// of one kind. Not `tune`: the library's first proposals stand, for the rest of the process.
void DecideLibraryChoices(Backend* backend, const std::vector<TimingPlace>& places,
                          const ExchangeTexts& exchange, const std::string& plan, bool tune);

}  // namespace oneflow_like
