// How fast pipelines are alone: rows of tokens, and JPEGs of 500 x 375 pixels augmented to 224 x 224. The
// argument is the number of threads; items are samples.
//   build/tests/data_pipeline_benchmark
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "oneflow_like/data/images.h"
#include "oneflow_like/data/pipeline.h"
#include "oneflow_like/data/tokens.h"
#include "tests/oneflow_like/data/pictures.h"

namespace oneflow_like {
namespace {

constexpr int kPictures = 256;

// Files of this program, which go with it.
class Files {
 public:
  Files() : folder_(std::filesystem::temp_directory_path() / ("data_benchmark." + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_ + "/pictures/a");
    std::ofstream text(folder_ + "/text");
    for (int i = 0; i < 1 << 20; ++i) text << "the quick brown fox " << i << "\n";
#ifdef OFL_HAVE_JPEG
    for (int i = 0; i < kPictures; ++i)
      std::ofstream(folder_ + "/pictures/a/" + std::to_string(i) + ".jpg") << JpegOf(Smooth(500, 375, i), 90);
#endif
  }
  ~Files() { std::filesystem::remove_all(folder_); }
  const std::string& folder() const { return folder_; }

 private:
  const std::string folder_;
};

const Files& TheFiles() {
  static const Files files;
  return files;
}

void Take(benchmark::State& state, std::shared_ptr<const SampleSource> source, int64_t batch) {
  DataPipeline data(std::move(source),
                    {.batch = batch, .threads = static_cast<int>(state.range(0)), .ahead = 4});
  data.Next();
  for (auto _ : state) benchmark::DoNotOptimize(data.Next());
  state.SetItemsProcessed(state.iterations() * batch);
}

void TokenRowsOf1024(benchmark::State& state) {
  Take(state,
       std::make_shared<TokenRows>(Tokens::Open(TheFiles().folder() + "/text"),
                                   TokenRowsOptions{.context = 1024}),
       256);
}
BENCHMARK(TokenRowsOf1024)->Arg(1)->Arg(2)->UseRealTime();

#ifdef OFL_HAVE_JPEG
void Jpegs(benchmark::State& state) {
  Take(state, std::make_shared<ImageFolder>(TheFiles().folder() + "/pictures", ImageFolderOptions{}), 64);
}
BENCHMARK(Jpegs)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
#endif

}  // namespace
}  // namespace oneflow_like

BENCHMARK_MAIN();
