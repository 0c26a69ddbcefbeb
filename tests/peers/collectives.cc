// The meeting point, the clock and the expected values of the programs that measure collectives.
#include "tests/peers/collectives.h"

#include <fcntl.h>
#include <gflags/gflags.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <sstream>

DEFINE_string(collectives, "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,message",
              "what to measure, separated by commas");
DEFINE_string(sizes, "4096,65536,1048576,67108864", "bytes of the tensors, separated by commas");
DEFINE_double(seconds, 0.2, "about how long to measure one case");
DEFINE_bool(bind, true, "bind each process to a core, where there are several processes");

namespace oneflow_like::peers {
namespace {

constexpr int kMaxParticipants = 64, kMaxRepetitions = 1000, kMinRepetitions = 5;
constexpr double kDeadline = 120;   // seconds until a participant that waits gives up
constexpr double kWakeUp = 150e-6;  // seconds from the last one's coming to the common start

double Now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

std::vector<std::string> Parts(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

float ValueOf(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 5) % 17); }

float ExpectedAt(const Case& c, int ranks, int rank, int64_t i) {
  const int64_t block = c.bytes / 4 / ranks;
  if (c.collective == "all_gather") return ValueOf(static_cast<int>(i / block), i % block);
  if (c.collective == "all_to_all") return ValueOf(static_cast<int>(i / block), rank * block + i % block);
  if (c.collective == "broadcast") return ValueOf(0, i);
  const int64_t at = c.collective == "reduce_scatter" ? rank * block + i : i;
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += ValueOf(r, at);
  return sum;
}

}  // namespace

void Die(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::_Exit(1);
}

std::vector<Case> Cases(int ranks) {
  static const std::vector<std::string> kKnown = {"all_reduce", "all_gather", "reduce_scatter",
                                                  "broadcast",  "all_to_all", "message"};
  std::vector<Case> cases;
  for (const std::string& collective : Parts(FLAGS_collectives)) {
    if (std::find(kKnown.begin(), kKnown.end(), collective) == kKnown.end())
      Die("--collectives: '" + collective + "' is none of those measured here");
    if (collective == "message") continue;
    for (const std::string& size : Parts(FLAGS_sizes)) {
      const int64_t bytes = std::atoll(size.c_str());
      if (bytes <= 0 || bytes % (4 * ranks) != 0)
        Die("--sizes: '" + size + "' is not a number of bytes that " + std::to_string(ranks) +
            " ranks can share evenly in elements of 4");
      cases.push_back({collective, bytes});
    }
  }
  return cases;
}

bool MessageWanted() {
  const std::vector<std::string> parts = Parts(FLAGS_collectives);
  return std::find(parts.begin(), parts.end(), "message") != parts.end();
}

int64_t InElements(const Case& c, int ranks) {
  return c.bytes / 4 / (c.collective == "all_gather" ? ranks : 1);
}

int64_t OutElements(const Case& c, int ranks) {
  return c.bytes / 4 / (c.collective == "reduce_scatter" ? ranks : 1);
}

void Fill(const Case& c, int ranks, int rank, float* in) {
  for (int64_t i = 0; i < InElements(c, ranks); ++i) in[i] = ValueOf(rank, i);
}

void CheckResult(const Case& c, int ranks, int rank, const float* out) {
  for (int64_t i = 0; i < OutElements(c, ranks); ++i) {
    const float wanted = ExpectedAt(c, ranks, rank, i);
    if (out[i] == wanted) continue;
    std::ostringstream text;
    text << c.collective << " of " << c.bytes << " bytes over " << ranks << " ranks: element " << i
         << " of rank " << rank << " is " << out[i] << ", should be " << wanted;
    Die(text.str());
  }
}

void BindToCore(int process) {
  if (!FLAGS_bind) return;
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) Die("the cores of this process are not known");
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  CPU_ZERO(&one);
  CPU_SET(cores[process % cores.size()], &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) Die("a process cannot be bound to a core");
}

struct Meeting::Page {
  alignas(64) std::atomic<int> arrived;
  alignas(64) std::atomic<int> generation;
  alignas(64) std::atomic<int> repetitions;
  double start;  // of the act after this meeting
  double seconds[kMaxParticipants][kMaxRepetitions];
};

std::string Meeting::MakeFile() {
  std::string name = "/tmp/collectives-XXXXXX";
  const int fd = mkstemp(name.data());
  if (fd < 0 || ftruncate(fd, sizeof(Page)) != 0) Die("cannot make the file " + name);
  close(fd);
  return name;
}

Meeting::Meeting(const std::string& file, int participants) : participants_(participants) {
  if (participants > kMaxParticipants)
    Die("at most " + std::to_string(kMaxParticipants) + " participants, not " + std::to_string(participants));
  const int fd = open(file.c_str(), O_RDWR);
  if (fd < 0) Die("cannot open " + file + ": are all processes on one host?");
  void* page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  close(fd);
  if (page == MAP_FAILED) Die("cannot map " + file);
  page_ = static_cast<Page*>(page);  // a new file is all zeros
}

Meeting::~Meeting() { munmap(page_, sizeof(Page)); }

// Waiting sleeps: a thread that spun here, yielding or not, would keep the measured libraries' own threads
// from the cores they need to end the act. As those who sleep wake up late, all agree on a moment to start
// at; where cores are too few for everybody to be awake at it, they go as they come.
void Meeting::Wait() {
  const int generation = page_->generation.load(std::memory_order_acquire);
  if (page_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == participants_) {
    page_->arrived.store(0, std::memory_order_relaxed);
    page_->start = participants_ <= sysconf(_SC_NPROCESSORS_ONLN) ? Now() + kWakeUp : 0;
    page_->generation.store(generation + 1, std::memory_order_release);
    syscall(SYS_futex, &page_->generation, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  const double deadline = Now() + kDeadline;
  while (page_->generation.load(std::memory_order_acquire) == generation) {
    const timespec second{1, 0};
    syscall(SYS_futex, &page_->generation, FUTEX_WAIT, generation, &second, nullptr, 0);
    if (Now() > deadline) Die("another participant did not come");
  }
  while (Now() < page_->start) {
  }
}

Measurement::Measurement(Meeting* meeting, int participant, int times)
    : meeting_(meeting), participant_(participant), times_(times) {}

bool Measurement::Begin() {
  if (times_ == 0 && done_ == kTrials && participant_ == 0) {
    const double wanted = FLAGS_seconds / std::max(trial_, 1e-9);
    meeting_->page_->repetitions.store(
        static_cast<int>(std::clamp<double>(wanted, kMinRepetitions, kMaxRepetitions)));
  }
  meeting_->Wait();
  const int repetitions =
      times_ > 0 ? times_ : (done_ < kTrials ? kTrials + 1 : kTrials + meeting_->page_->repetitions.load());
  if (done_ == repetitions) return false;
  start_ = Now();
  return true;
}

void Measurement::End() {
  const double seconds = Now() - start_;
  if (times_ == 0 && done_ < kTrials)
    trial_ = done_ < 2 ? seconds : std::min(trial_, seconds);  // the first is cold
  else if (times_ == 0)
    meeting_->page_->seconds[participant_][done_ - kTrials] = seconds;
  ++done_;
}

Result Measurement::result(double parts) const {
  const Meeting::Page& page = *meeting_->page_;
  Result result;
  result.repetitions = page.repetitions.load();
  std::vector<double> slowest(result.repetitions, 0);
  for (int i = 0; i < result.repetitions; ++i)
    for (int p = 0; p < meeting_->participants_; ++p) slowest[i] = std::max(slowest[i], page.seconds[p][i]);
  std::sort(slowest.begin(), slowest.end());
  result.median = slowest[slowest.size() / 2] / parts;
  result.min = slowest[0] / parts;
  return result;
}

void Print(const std::string& library, int ranks, const Case& c, const Result& result) {
  std::printf(
      "{\"library\": \"%s\", \"ranks\": %d, \"collective\": \"%s\", \"bytes\": %lld, \"repetitions\": %d, "
      "\"median\": %.4g, \"min\": %.4g}\n",
      library.c_str(), ranks, c.collective.c_str(), static_cast<long long>(c.bytes), result.repetitions,
      result.median, result.min);
  std::fflush(stdout);
}

}  // namespace oneflow_like::peers
