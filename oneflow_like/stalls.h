// Waits, told when nothing moves any more (--stall_seconds) or SIGQUIT asks: acts and the values they
// wait for, kernels that do not end, other processes, data, or the program itself. Nothing ends by it.
#pragma once

#include <condition_variable>
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

// Of one process. While it lives, SIGQUIT prints a report and does nothing else, unless the program had a
// handler of its own before or installs one later. One object at a time takes SIGQUIT. All methods from any
// thread.
class StallWatch {
  struct Call {  // of a thread of the program
    std::thread::id thread;
    std::string what;
    double since = 0;
  };

 public:
  // A report is logged after `seconds` in which nothing has moved, and again after as many; 0: none but by
  // SIGQUIT. `process`: its number; -1: there is one alone.
  StallWatch(double seconds, int process);
  ~StallWatch();  // Stop()
  StallWatch(const StallWatch&) = delete;
  // Waits for a report that is being made. From here on there is none.
  void Stop();

  // Other processes that are waited for; outlives this, or Stop() comes first.
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
    Doing(StallWatch* watch, const std::string& what);  // nullptr: nobody is told
    ~Doing();
    Doing(const Doing&) = delete;

   private:
    StallWatch* const watch_;
    std::list<Call>::iterator call_;
  };

  // As it is logged.
  std::string Report();

 private:
  void Watch();
  void Print(const std::string& why);
  int64_t Moves();

  const double seconds_;
  const int process_;
  int event_ = -1;  // descriptor: SIGQUIT has come, or the thread is to end
  // A lock, since everybody may call, and who is asked must stay meanwhile.
  std::mutex mutex_;
  Job* job_ = nullptr;
  std::map<const void*, Session> sessions_;
  std::list<Call> calls_;  // the innermost of a thread last
  std::string last_call_;  // the last that ended
  double last_ended_ = 0;
  int64_t calls_begun_ = 0;
  double moved_at_ = 0;  // when something last moved, as far as was looked
  int64_t moves_ = -1;
  std::thread thread_;  // last
};

}  // namespace oneflow_like
