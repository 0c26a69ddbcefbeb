// How much of the exchange of gradients between two hosts is hidden behind the backward pass: gpt on
// cpu:dp=2, a process a host, one kernel thread each, on a line without a limit and on one on which the
// exchange takes about as long as the backward pass. With --products: how much faster steps of tensor
// parallelism are, on cpu:tp=2, for --overlap, over a line on which messages take half as long as the step
// without them. Needs what tests/hosts.h needs.
//   overlap_benchmark [--products] [flags of gpt ...]
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <regex>

#include "tests/hosts.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

std::vector<double> NumbersOf(const std::string& file, const std::string& key) {
  std::vector<double> all;
  std::ifstream in(file);
  const std::regex pattern("\"" + key + "\": ?([0-9.]+)");
  for (std::string line; std::getline(in, line);)
    if (std::smatch match; std::regex_search(line, match, pattern)) all.push_back(std::stod(match[1]));
  return all;
}

// By a rank in a step, as --dry_run says.
double BytesSent(const std::vector<std::string>& flags) {
  std::string command = std::string(OFL_BINARY_DIR) + "/examples/gpt --dry_run";
  for (const std::string& flag : flags) command += " '" + flag + "'";
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  for (int c; (c = fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  pclose(pipe);
  std::smatch match;
  if (!std::regex_search(text, match, std::regex("sent ([0-9.]+) ([KMG])B a step"))) return 0;
  return std::stod(match[1]) * (match[2] == "K" ? 1e3 : match[2] == "M" ? 1e6 : 1e9);
}

// Median of steps behind the first five, in seconds.
double StepSeconds(Hosts* hosts, const TestFolder& folder, const std::vector<std::string>& flags,
                   double mbit) {
  hosts->SetAllLines({.mbit = mbit});
  const std::string log = folder / ("log" + std::to_string(mbit));
  JobCommand command{.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
                     .flags = flags,
                     .processes = 2,
                     .output = folder / "out",
                     .hosts = hosts};
  command.own_flags[0].push_back("--log_json=" + log);
  ProcessJob job(command);
  if (!job.WaitUntil(Seconds() + 600)) std::printf("%s\n", job.Said().c_str());
  std::vector<double> steps = NumbersOf(log, "step_ms");
  if (steps.size() < 10) {
    std::printf("%s\n%s\n", job[0].err().c_str(), job[0].out().c_str());
    std::exit(1);
  }
  steps.erase(steps.begin(), steps.begin() + 5);
  std::sort(steps.begin(), steps.end());
  return steps[steps.size() / 2] / 1000;
}

// Steps with products in chunks beside their messages, and without, in turn.
void CompareProducts(Hosts* hosts, const TestFolder& folder, std::vector<std::string> flags) {
  flags.insert(flags.begin() + 2, {"--mesh=cpu:tp=2", "--sequence_parallel", "--dropout=0"});
  const double fast = StepSeconds(hosts, folder, flags, 0);
  const double bytes = BytesSent(flags), line = fast / 2;
  const double mbit = bytes * 8 / line / 1e6;
  flags.push_back("--link=" + std::to_string(mbit));
  std::printf("a step of %.3f s without a limit; at %.0f Mbit/s, where messages take %.3f s:\n", fast, mbit,
              line);
  for (int round = 0; round < 2; ++round)
    for (const char* overlap : {"--overlap=1", "--overlap=2", "--overlap=4"}) {
      std::vector<std::string> with = flags;
      with.push_back(overlap);
      const double slow = StepSeconds(hosts, folder, with, mbit);
      std::printf("  %s: %.3f s\n", overlap, slow);
    }
}

int Main(int argc, char** argv) {
  const bool products = argc > 1 && std::string(argv[1]) == "--products";
  Hosts hosts(2, 1);
  const TestFolder folder("overlap_benchmark");
  std::vector<std::string> flags = {"--text=" + folder.Write("text.txt", SomeText()),
                                    "--mesh=cpu:dp=2",
                                    "--layers=8",
                                    "--width=128",
                                    "--context=128",
                                    "--batch=16",
                                    "--steps=25",
                                    "--eval_batches=0",
                                    "--sample_tokens=0",
                                    "--start_timeout=60",
                                    "--kernel_threads=1",
                                    "--threads=1"};
  flags.insert(flags.end(), argv + 1 + products, argv + argc);
  if (products) {
    CompareProducts(&hosts, folder, flags);
    return 0;
  }
  const double fast = StepSeconds(&hosts, folder, flags, 0);
  const double backward = fast * 2 / 3;
  const double bytes = BytesSent(flags);
  const double mbit = bytes * 8 / backward / 1e6;
  const double slow = StepSeconds(&hosts, folder, flags, mbit);
  std::printf(
      "step %.3f s without a limit, %.3f s at %.0f Mbit/s, where the exchange takes %.3f s: %.0f %% hidden\n",
      fast, slow, mbit, backward, 100 * (1 - (slow - fast) / backward));
  return 0;
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) { return oneflow_like::Main(argc, argv); }
