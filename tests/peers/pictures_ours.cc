// How many pictures a second a pipeline of ours reads, decodes, crops, flips, resizes to 224 x 224 and puts
// into batches of 64. peers/pictures.py has it run beside torchvision.
//   ours_pictures FOLDER THREADS SECONDS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "oneflow_like/data/images.h"
#include "oneflow_like/data/pipeline.h"

using namespace oneflow_like;

int main(int argc, char** argv) try {
  if (argc != 4) Fail("ours_pictures takes a folder, a number of threads and seconds");
  constexpr int64_t kBatch = 64;
  const int threads = std::atoi(argv[2]);
  const double seconds = std::atof(argv[3]);
  DataPipeline data(std::make_shared<ImageFolder>(argv[1], ImageFolderOptions{}),
                    {.batch = kBatch, .threads = threads, .ahead = 4});
  for (int i = 0; i < 4; ++i) data.Next();
  const auto start = std::chrono::steady_clock::now();
  double passed = 0;
  int64_t batches = 0;
  for (; passed < seconds; ++batches) {
    data.Next();
    passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::printf("%.1f\n", static_cast<double>(batches * kBatch) / passed);
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
