// A report: one HTML file that contains its scripts and figures, so a browser shows it without a network.
// page.html draws it from the JSON in the file.
#pragma once

#include <memory>
#include <string>

#include "oneflow_like/session/observer.h"

namespace oneflow_like {

class Job;

class Report : public SessionObserver {
 public:
  // The report of a model in process `process` of a job, or in a single process (0). Process 0 writes `path`,
  // the others their measurements to <path>.process<k>. Throws Error when this process's file cannot be
  // written; does not change the file yet.
  Report(const std::string& path, const std::string& mesh, int process);
  ~Report() override;
  // Add the figures of a compiled session, and later its measurements (figures.h). The file is complete after
  // each call. Throw Error when the disk is full. Sessions beyond kMostSessions are counted but not shown.
  void AddCompiled(const Session::Impl& session) override;
  void AddClosed(const Session::Impl& session) override;

  static constexpr size_t kMostSessions = 8;
  // Process k's file of a report.
  static std::string FileOf(const std::string& path, int process);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Called once all sessions of a job are closed: moves the other processes' measurements into the main
// process's file and removes their files. Collective.
void JoinReports(const std::string& path, Job* job);

// The JSON of a written report. Throws Error when `path` is not one.
std::string FiguresIn(const std::string& path);

}  // namespace oneflow_like
