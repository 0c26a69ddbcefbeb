// Reports what a program waits for when nothing moves any more (--stall_seconds) or on SIGQUIT: acts and the
// values they wait for, kernels that do not end, other processes, data, or the program itself. A report ends
// nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace oneflow_like {

class Job;

// Watches one process. While this object lives, SIGQUIT prints a report and does nothing else, unless the
// program had a handler of its own before or installs one later. One object at a time handles SIGQUIT.
// Thread-safe.
class StallWatch {
  struct Call {  // of a thread of the program
    std::thread::id thread;
    std::string what;
    double since = 0;
  };

 public:
  // Logs a report when nothing has moved for `seconds`, and again after each further `seconds`; 0: only on
  // SIGQUIT. `process`: its number; -1: the only process.
  StallWatch(double seconds, int process);
  ~StallWatch();  // Stop()
  StallWatch(const StallWatch&) = delete;
  // Waits for a report in progress. No report is made afterwards.
  void Stop();

  // The job, for waits on other processes. It must outlive this object, unless Stop() is called first.
  void SetJob(Job* job);

  // A session with steps: Runtime::ActsEnded and Runtime::WhoWaits. Both are called until Remove returns.
  struct Session {
    std::string name;
    std::function<int64_t()> acts_ended;
    std::function<std::vector<std::string>(double patience)> who_waits;
  };
  void Add(const void* who, Session session);
  void Remove(const void* who);

  // The call that the program's thread is in while this lives: "Session::Run of session train, which waits
  // for data".
  class Doing {
   public:
    Doing(StallWatch* watch, const std::string& what);  // nullptr: no effect
    ~Doing();
    Doing(const Doing&) = delete;

   private:
    StallWatch* const watch_;
    std::list<Call>::iterator call_;
  };

  // The text of a report, as it is logged.
  std::string Report();

 private:
  void Watch();
  void Print(const std::string& why);
  int64_t Moves();

  const double seconds_;
  const int process_;
  int event_ = -1;  // descriptor: SIGQUIT has come, or the thread is to end
  // A lock, because any thread may call, and sessions must not be removed while they are asked.
  std::mutex mutex_;
  Job* job_ = nullptr;
  std::map<const void*, Session> sessions_;
  std::list<Call> calls_;  // the innermost of a thread last
  std::string last_call_;  // the last that ended
  double last_ended_ = 0;
  int64_t calls_begun_ = 0;
  double moved_at_ = 0;  // when something last moved, as of the last check
  int64_t moves_ = -1;
  std::thread thread_;  // last
};

}  // namespace oneflow_like
