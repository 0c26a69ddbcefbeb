// A report to look at: one HTML file with all its scripts and figures inside, which opens in a browser
// without a network. page.html draws it from the JSON that stands in it.
#pragma once

#include <memory>
#include <string>

namespace oneflow_like {

class Job;

class Report {
 public:
  // Of a model in process `process` of a job, or alone. Process 0 writes `path`, the others their
  // measurements to <path>.process<k>. Throws Error when this process's file cannot be written; leaves it as
  // it is.
  Report(const std::string& path, const std::string& mesh, int process);
  ~Report();
  // The figures of a session that was compiled, or of one of that name again; then what its steps took.
  // Both JSON texts (figures.h). The file is whole after each. Throw Error when the disk is full. Of more
  // than kMostSessions sessions the rest are counted and not shown.
  void AddSession(const std::string& name, const std::string& figures);
  void AddMeasurements(const std::string& name, const std::string& measured);

  static constexpr size_t kMostSessions = 8;
  // Process k's file of a report.
  static std::string FileOf(const std::string& path, int process);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Once all sessions are closed, with a job: what the other processes measured becomes part of the main
// process's file, and their files go. All processes call it.
void JoinReports(const std::string& path, Job* job);

// The JSON of a written report; Throws Error when `path` is none.
std::string FiguresIn(const std::string& path);

}  // namespace oneflow_like
