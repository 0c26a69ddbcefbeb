// The figures of a report (report.h) as JSON texts, which page.html draws.
#pragma once

#include <string>

#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

// The figures of a compiled session: memory of each rank over a step, communication, the schedule by
// estimated times, the logical graph and estimated times of operators. Identical ranks appear once; long
// lists are truncated, with a count of the omitted entries.
std::string ReportFigures(const Session::Impl& session);

// Measurements of this process: the profile, and the acts of one step. REQUIRES: the runtime has been closed.
std::string ReportMeasurements(const Session::Impl& session);

}  // namespace oneflow_like
