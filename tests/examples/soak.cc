// A long run: four processes on two hosts train while lines get slow, lossy and well again and processes are
// stopped for a moment. Memory and descriptors of every process must stay what they were after a minute.
//   build/tests/soak --minutes=30
#include <gflags/gflags.h>

#include <cstdio>

#include "tests/hosts.h"
#include "tests/processes.h"

DEFINE_double(minutes, 30, "How long to train");
DEFINE_uint64(seed, 1, "Draws what happens to lines and processes");
DEFINE_string(mesh, "cpu:dp=2,pp=2", "Of the four processes");
DEFINE_int64(growth_kb, 2048, "By how much the memory of a process may grow after the first minute");

namespace oneflow_like {
namespace {

const int kProcesses = 4, kHosts = 2;

struct Usage {
  int64_t memory_kb = 0, descriptors = 0, step = 0;
};

Usage UsageOf(pid_t pid, const std::string& progress_file) {
  Usage usage;
  const std::string root = "/proc/" + std::to_string(pid);
  for (const std::string& line : LinesOf(TextOf(root + "/status")))
    if (line.rfind("VmRSS:", 0) == 0) usage.memory_kb = std::atoll(line.c_str() + 6);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/fd", error)) {
    (void)entry;
    ++usage.descriptors;
  }
  usage.step = std::atoll(TextOf(progress_file).c_str());
  return usage;
}

// Something new for one host or process, well below the peer time-out of 10 s.
void Disturb(std::mt19937_64& random, Hosts* hosts, ProcessJob& job) {
  auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const int whom = static_cast<int>(random() % kProcesses);
  if (random() % 3 == 0) {
    job[whom].Signal(SIGSTOP);
    Sleep(uniform(0.05, 1.0));
    job[whom].Signal(SIGCONT);
  } else if (hosts) {
    const bool well = random() % 3 == 0;
    hosts->SetLine(whom % kHosts, well ? Line{} : Line{uniform(0, 15), uniform(0, 0.01), uniform(20, 500)});
  }
}

std::vector<Usage> Show(ProcessJob& job, const TestFolder& folder, double minutes) {
  std::vector<Usage> all;
  std::printf("minute %5.1f", minutes);
  for (int k = 0; k < kProcesses; ++k) {
    all.push_back(UsageOf(job[k].pid(), folder / ("progress." + std::to_string(k))));
    std::printf(" | %lld KB, %lld files, step %lld", static_cast<long long>(all[k].memory_kb),
                static_cast<long long>(all[k].descriptors), static_cast<long long>(all[k].step));
  }
  std::printf("\n");
  std::fflush(stdout);
  return all;
}

int Judge(const std::vector<Usage>& first, const std::vector<Usage>& last) {
  int wrong = 0;
  auto say = [&](int k, const char* what, int64_t before, int64_t after) {
    ++wrong;
    std::printf("process %d: %s: %lld, then %lld\n", k, what, static_cast<long long>(before),
                static_cast<long long>(after));
  };
  for (int k = 0; k < kProcesses; ++k) {
    if (last[k].memory_kb > first[k].memory_kb + FLAGS_growth_kb)
      say(k, "memory has grown (KB)", first[k].memory_kb, last[k].memory_kb);
    if (last[k].descriptors > first[k].descriptors)
      say(k, "descriptors have become more", first[k].descriptors, last[k].descriptors);
    if (last[k].step <= first[k].step) say(k, "training stands still", first[k].step, last[k].step);
  }
  std::printf("%s\n", wrong ? "NOT constant" : "memory and descriptors are constant");
  return wrong != 0;
}

int Soak() {
  TestFolder folder("soak");
  std::unique_ptr<Hosts> hosts;
  const std::string why = Hosts::Unavailable();
  if (why.empty())
    hosts = std::make_unique<Hosts>(kHosts, FLAGS_seed);
  else
    std::printf("all processes on this host: %s\n", why.c_str());
  JobCommand command{.program = std::string(OFL_BINARY_DIR) + "/tests/fault_program",
                     .flags = {"--mesh=" + FLAGS_mesh},
                     .processes = kProcesses,
                     .output = folder / "process",
                     .hosts = hosts.get()};
  for (int k = 0; k < kProcesses; ++k)
    command.own_flags[k] = {"--progress_file=" + folder / ("progress." + std::to_string(k))};
  std::printf("seed %llu\n", static_cast<unsigned long long>(FLAGS_seed));
  ProcessJob job(command);
  std::mt19937_64 random(FLAGS_seed);
  const double start = Seconds();
  std::vector<Usage> first, last;
  for (int minute = 1; minute <= FLAGS_minutes; ++minute) {
    while (Seconds() < start + 60 * minute) {
      Sleep(std::uniform_real_distribution<double>(0.2, 3)(random));
      Disturb(random, hosts.get(), job);
      for (int k = 0; k < kProcesses; ++k) {
        if (!job[k].Ended()) continue;
        std::printf("process %d has ended after %.1f s\n%s", k, Seconds() - start, job.Said().c_str());
        return 1;
      }
    }
    last = Show(job, folder, (Seconds() - start) / 60);
    if (first.empty()) first = last;
  }
  return Judge(first, last);
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  if (FLAGS_minutes < 2) {
    std::fprintf(stderr,
                 "error: --minutes=%g: the first minute is what later ones are compared with: 2 at least\n",
                 FLAGS_minutes);
    return 1;
  }
  return oneflow_like::Soak();
}
