// What the three programs that measure collectives share (collectives_ours.cc, collectives_gloo.cc,
// collectives_mpi.cc): flags, cases, the values a collective must give, a meeting point in shared memory so
// that every act starts at the same moment whatever the library, and the lines they print.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace oneflow_like::peers {

// One collective of fp32 tensors. `bytes` is the tensor as users count it: all_reduce, broadcast: on each
// rank; all_gather: the gathered whole; reduce_scatter: what each rank brings; all_to_all: what each rank
// brings.
struct Case {
  std::string collective;
  int64_t bytes = 0;
};
// From --collectives and --sizes, all combinations but those of sizes that do not cut evenly between `ranks`.
std::vector<Case> Cases(int ranks);
bool MessageWanted();  // --collectives names "message" too: one small message there and back

int64_t InElements(const Case& c, int ranks);   // of one rank; only rank 0 of a broadcast brings its piece
int64_t OutElements(const Case& c, int ranks);  // of one rank
// What rank `rank` brings.
void Fill(const Case& c, int ranks, int rank, float* in);
// Ends the program, naming case and element, when `out` is not what the collective gives.
void CheckResult(const Case& c, int ranks, int rank, const float* out);

// Binds the calling thread, and those it starts from now on, to one core, in turn by process (--bind): where
// the system puts two processes is chance, and a matter of up to a factor of two. Not for Gloo, whose two
// busy threads would wait for each other's time slices.
void BindToCore(int process);

// Where the participants of one run (threads, in whatever process) meet: a file that all of them map, so all
// must be on one host. It costs the measured libraries nothing and favours none of them.
class Meeting {
 public:
  // Creates such a file and gives its name. It is to be unlinked once all have made their Meeting.
  static std::string MakeFile();
  Meeting(const std::string& file, int participants);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  void Wait();  // until all have come

 private:
  friend class Measurement;
  struct Page;
  Page* page_ = nullptr;
  const int participants_;
};

struct Result {
  int repetitions = 0;
  double median = 0, min = 0;  // seconds of the slowest participant
};

// One participant's part in measuring one act again and again:
//   while (m.Begin()) { act; m.End(); }
// How often is decided by participant 0 from the first few acts, so that it takes about --seconds.
class Measurement {
 public:
  // `times`: how often exactly; 0: decided.
  Measurement(Meeting* meeting, int participant, int times = 0);
  bool Begin();  // meets the others and starts the clock; false when it is over
  void End();
  // Participant 0, when over. Seconds are divided by `parts`.
  Result result(double parts = 1) const;

 private:
  static constexpr int kTrials = 4;
  Meeting* meeting_;
  const int participant_, times_;
  int done_ = 0;
  double start_ = 0, trial_ = 0;
};

constexpr int kRoundTrips = 50;  // of a message, in one act

// One line of JSON on standard output.
void Print(const std::string& library, int ranks, const Case& c, const Result& result);

// Ends the program with this message.
[[noreturn]] void Die(const std::string& message);

}  // namespace oneflow_like::peers
