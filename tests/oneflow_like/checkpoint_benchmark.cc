// What a save costs: GPT-2 124M with Adam's state (1.5 GB) against writing as many bytes to the same disk, in
// turn; step times with and without a save; and how the process's memory grows.
//   build/tests/checkpoint_benchmark [folder] [layers]
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "oneflow_like/checkpoint/safetensors.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 5, kSteps = 12;

double Seconds(const std::function<void()>& what) {
  const auto begin = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// "RssAnon:" or "VmHWM:" of this process, in MB.
double Memory(const std::string& what) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(what, 0) == 0) return std::atof(line.c_str() + what.size()) / 1024;
  return 0;
}

double WriteAsMuch(const std::string& path, int64_t bytes, const std::vector<char>& block) {
  return Seconds([&] {
    File file(path, File::kCreate);
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(block.size()))
      file.WriteAt(at, block.data(), std::min<int64_t>(block.size(), bytes - at));
    file.Sync();
  });
}

void Run(const std::string& folder, int64_t layers) {
  SmallGpt given;
  given.batch = 2;
  given.context = 128;
  given.layers = layers;
  given.width = 768;
  given.heads = 12;
  given.vocabulary = 50257;
  given.model_options.kernel_threads = 2;
  GptProgram program(given);
  Session train = program.MakeTrain();
  train.Run(program.MakeFeeds(0)).Wait();
  int64_t bytes = 0;
  for (const auto& info : program.model().impl()->store->Variables(0)) bytes += info.bytes;
  std::printf("%.2f GB of variables\n", bytes / 1e9);
  const std::vector<char> block(4 << 20, 'x');
  std::vector<double> raw, saved;
  for (int round = 0; round < kRounds; ++round) {
    raw.push_back(WriteAsMuch(folder + "/raw", bytes, block));
    fs::remove(folder + "/raw");
    saved.push_back(Seconds([&] { Save(program.model(), folder + "/saved").Wait(); }));
    fs::remove_all(folder + "/saved");
  }
  std::printf("as many bytes and fsync: median %.2f s; a save: median %.2f s, %.2f of it\n", Median(raw),
              Median(saved), Median(saved) / Median(raw));
  std::vector<double> plain, around, begun;
  const double before = Memory("RssAnon:");
  double most = before;
  for (int step = 1; step <= 3 * kSteps; ++step) {
    const bool save = step % kSteps == 0;
    const double seconds = Seconds([&] {
      if (save) begun.push_back(Seconds([&] { Save(program.model(), Cat(folder, "/during"), {.keep = 1}); }));
      train.Run(program.MakeFeeds(step)).Wait();
    });
    most = std::max(most, Memory("RssAnon:"));
    (save ? around : plain).push_back(seconds);
  }
  std::printf(
      "a step: median %.2f s, worst %.2f s; with a save begun before it: median %.2f s, worst %.2f s\n",
      Median(plain), *std::max_element(plain.begin(), plain.end()), Median(around),
      *std::max_element(around.begin(), around.end()));
  std::printf("Save itself: median %.3f s\n", Median(begun));
  std::printf("anonymous memory: %.0f MB before, at most %.0f MB while saving\n", before, most);
  train.Close();
  Save(program.model(), folder + "/last").Wait();
  GptProgram other(given);
  Session again = other.MakeTrain();
  const double compiled = Memory("RssAnon:");
  const double seconds = Seconds([&] { Load(other.model(), folder + "/last"); });
  std::printf("loading: %.2f s, %.0f MB beside the variables\n", seconds,
              Memory("RssAnon:") - compiled - bytes / 1048576.0);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "checkpoint_benchmark.tmp";
  std::filesystem::create_directories(folder);
  oneflow_like::Run(folder, argc > 2 ? std::atoll(argv[2]) : 12);
  return 0;
}
