// The figures of a report (report.h) as JSON texts, which page.html draws.
#pragma once

#include <string>

#include "oneflow_like/session_impl.h"

namespace oneflow_like {

// Of a compiled session: memory of each rank over a step, communication, the schedule by estimated times, the
// logical graph and estimated times of operators. Ranks that are alike appear once, and lists are cut off
// where a page would become too long to read; what is left out is counted.
std::string ReportFigures(const Session::Impl& session);

// Measurements of this process: the profile, and the acts of one step. REQUIRES: the runtime has been closed.
std::string ReportMeasurements(const Session::Impl& session);

// Adds a part of a session's steps to what was measured of others.
void AddProfile(const StepProfile& part, StepProfile* sum);

}  // namespace oneflow_like
