// The CPU kernels of each level that this processor has, against the reference kernels, and those of AMX with
// its tiles emulated; which level is picked; that a level's code stays its own.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/cpu/levels.h"
#include "ops/cpu/manifest.h"
#include "tests/ops/kernel_cases.h"
#include "tests/ops/scratch_cases.h"
#include "tests/ops/sparse_cases.h"
#include "tests/ops/tile_emulator.h"
#include "tests/ops/vision_cases.h"

namespace oneflow_like {
namespace {

// Calls test(level) for each that this machine runs: that of AMX on any processor with the level below, where
// its instructions are emulated.
template <typename F>
void ForEachLevel(F&& test) {
  bool below = false;
  for (const CpuLevel& level : CpuLevels()) {
    std::unique_ptr<TileEmulator> emulator;
    if (!level.supported && below && level.name.ends_with("AMX") && TileEmulator::Works())
      emulator = std::make_unique<TileEmulator>();
    below = level.supported;
    if (level.supported || emulator) test(level);
  }
}

// A kernel that notes its operator in `on_tiles` if it multiplied emulated tiles.
class NotesTiles : public Kernel {
 public:
  NotesTiles(std::string name, std::unique_ptr<Kernel> kernel, std::set<std::string>* on_tiles)
      : name_(std::move(name)), kernel_(std::move(kernel)), on_tiles_(*on_tiles) {}
  Status Run(const KernelContext& context) override {
    const int64_t before = TileEmulator::products();
    Status status = kernel_->Run(context);
    if (TileEmulator::products() > before) on_tiles_.insert(name_);
    return status;
  }

 private:
  const std::string name_;
  const std::unique_ptr<Kernel> kernel_;
  std::set<std::string>& on_tiles_;
};

TEST(CpuLevels, EachOfThisProcessorIsRight) {
  int levels = 0;
  ForEachLevel([&](const CpuLevel& level) {
    ++levels;
    SCOPED_TRACE(level.name);
    KernelRegistry registry;
    AddReferenceKernels(BuiltinCatalog(), &registry);
    level.add(&registry);
    std::set<std::string> on_tiles;
    KernelCases cases({[&](const std::string& name) { return registry.Has(name, "cpu"); },
                       [&](const KernelSpec& spec) {
                         return std::make_unique<NotesTiles>(spec.name, MakeWithScratch(registry, spec),
                                                             &on_tiles);
                       }});
    cases.TableSamples();
    cases.Products();
    cases.ElementwiseShapes();
    cases.ReductionsAndShapes();
    cases.RowsOperators();
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      cases.Attention(dtype);
      cases.CausalAttentionAtTheEdgesOfTiles(dtype);
      cases.AttentionToGrowingKeys(dtype);
    }
    cases.MaskedAttention();
    cases.UpdatesInPlaceAndApart();
    SparseCases(&cases).Order();
    VisionCases(&cases);
    std::set<std::string> expected;
    if (level.name.ends_with("AMX") && !level.supported)
      expected = {"matmul", "einsum", "attention", "attention_grad"};
    EXPECT_EQ(on_tiles, expected);
  });
  EXPECT_GE(levels, 1);
}

// What a kernel states must be the same for all: plans are made on any machine.
TEST(CpuLevels, EachTakesTheScratchThatAllState) {
  const int before = ParallelThreads();
  SetParallelThreads(3);
  StatedScratch stated;
  ForEachLevel([&](const CpuLevel& level) {
    SCOPED_TRACE(level.name);
    KernelRegistry registry;
    AddReferenceKernels(BuiltinCatalog(), &registry);
    level.add(&registry);
    const StatedScratch here = ScratchCases(registry).Run();
    if (stated.empty()) stated = here;
    EXPECT_EQ(here, stated);
  });
  SetParallelThreads(before);
}

// At the level with AMX: they are made on its tiles, and right.
TEST(CpuLevels, ProductsInBf16OnTilesHaveTheSameBitsOnAnyNumberOfThreads) {
  struct Product {
    const char* equation;
    Dims a, b, y;
    DType result;
  };
  const std::vector<Product> products = {
      {"mk,kn->mn", {70, 600}, {600, 90}, {70, 90}, DType::kBFloat16},
      {"mk,nk->mn", {130, 1024}, {300, 1024}, {130, 300}, DType::kBFloat16},  // rows that share sets
      {"km,kn->mn", {301, 50}, {301, 550}, {50, 550}, DType::kFloat32},       // the left operand is kept
      {"km,kn->mn", {95, 200}, {95, 33}, {200, 33}, DType::kBFloat16}};
  const int before = ParallelThreads();
  KernelRegistry reference;
  AddReferenceKernels(BuiltinCatalog(), &reference);
  ForEachLevel([&](const CpuLevel& level) {
    if (!level.name.ends_with("AMX")) return;
    KernelRegistry registry;
    level.add(&registry);
    for (const Product& p : products) {
      std::mt19937_64 random(3);
      Operand a(DType::kBFloat16, p.a), b(DType::kBFloat16, p.b);
      a.Draw(&random, -1, 1, 1);
      b.Draw(&random, -1, 1, 1);
      std::vector<std::vector<char>> results;
      for (int threads : {1, 3, 4}) {
        SetParallelThreads(threads);
        Operand y(p.result, p.y);
        KernelSpec spec;
        spec.name = "einsum";
        spec.attrs = {{"equation", std::string(p.equation)}};
        spec.in = {a.Arg(), b.Arg()};
        spec.out = {y.Arg()};
        spec.threads = threads;
        const int64_t tiles = TileEmulator::products();
        EXPECT_TRUE(MakeWithScratch(registry, spec)->Run({spec, spec.in, spec.out}).ok());
        EXPECT_TRUE(MayUseTiles() || TileEmulator::products() > tiles) << p.equation;
        results.push_back(y.memory);
        if (threads > 1) continue;
        Operand want(p.result, p.y);
        spec.out = {want.Arg()};
        EXPECT_TRUE(MakeWithScratch(reference, spec)->Run({spec, spec.in, spec.out}).ok());
        ExpectClose(p.equation, &y, &want);
      }
      EXPECT_EQ(results[1], results[0]) << p.equation;
      EXPECT_EQ(results[2], results[0]) << p.equation;
    }
  });
  SetParallelThreads(before);
}

// Flags of /proc/cpuinfo, which the compiler's own functions do not read.
TEST(CpuLevels, TheHighestThatTheProcessorHasIsPicked) {
  if (CpuLevels().size() == 1) GTEST_SKIP() << "a build of one level";
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string word; file >> word;) flags.insert(word);
  std::string expected = "x86-64-v2";
  if (flags.count("avx2") && flags.count("fma") && flags.count("bmi2")) expected = "x86-64-v3";
  if (flags.count("avx512vl") && flags.count("avx512bw") && flags.count("avx512dq")) expected = "x86-64-v4";
  if (expected == "x86-64-v4" && flags.count("avx512_bf16")) expected = "x86-64-v4 with bf16";
  if (expected == "x86-64-v4 with bf16" && flags.count("amx_bf16") && flags.count("amx_tile") &&
      MayUseTiles())
    expected += " and AMX";
  EXPECT_EQ(ChosenCpuLevel().name, expected);
}

// A level shows its entry and nothing else: whatever else it showed, the linker could take for everybody.
TEST(CpuLevels, ALevelShowsItsEntryAlone) {
  if (CpuLevels().size() == 1) GTEST_SKIP() << "a build of one level";
  for (const char* level : {"V3", "V4", "V4Bf16", "V4Amx"}) {
    const std::string command = std::string("nm --defined-only --extern-only " OFL_LEVELS) + level + ".o";
    FILE* pipe = popen(command.c_str(), "r");
    std::vector<std::string> names;
    char line[4096];
    while (fgets(line, sizeof line, pipe)) names.emplace_back(line);
    EXPECT_EQ(pclose(pipe), 0) << command;
    ASSERT_EQ(names.size(), 1u) << command;
    EXPECT_NE(names[0].find(std::string("AddCpuKernels") + level), std::string::npos) << names[0];
  }
}

}  // namespace
}  // namespace oneflow_like
