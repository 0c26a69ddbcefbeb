// A report: one HTML file that contains its scripts and figures, so a browser shows it without a network.
// page.html draws it from the JSON in the file.
#pragma once

#include <memory>
#include <string>

namespace oneflow_like {

class Job;

class Report {
 public:
  // The report of a model in process `process` of a job, or in a single process (0). Process 0 writes `path`,
  // the others their measurements to <path>.process<k>. Throws Error when this process's file cannot be
  // written; does not change the file yet.
  Report(const std::string& path, const std::string& mesh, int process);
  ~Report();
  // Add the figures of a compiled session (again for one of the same name), and later its measurements; both
  // are JSON texts (figures.h). The file is complete after each call. Throw Error when the disk is full.
  // Sessions beyond kMostSessions are counted but not shown.
  void AddSession(const std::string& name, const std::string& figures);
  void AddMeasurements(const std::string& name, const std::string& measured);

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
