// planned >= observed in every kernel of the CPU: tests/ops/scratch_cases.h. Run once more as if the
// processor had no AVX-512 (tests/CMakeLists.txt): the library then has other primitives.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ops/cpu/manifest.h"
#include "tests/ops/scratch_cases.h"

namespace oneflow_like {
namespace {

KernelRegistry Kernels() {
  KernelRegistry registry;
  AddReferenceKernels(BuiltinCatalog(), &registry);
  AddCpuKernels(&registry);
  return registry;
}

TEST(Scratch, NoKernelTakesMoreThanItStates) {
  const int before = ParallelThreads();
  SetParallelThreads(3);
  const KernelRegistry registry = Kernels();
  ScratchCases cases(registry);
  cases.Run();
  EXPECT_GT(cases.cases(), 1500);
  SetParallelThreads(before);
}

// More threads than a plan was made for use no more scratch than it has.
TEST(Scratch, AKernelUsesNoMoreThreadsThanItStates) {
  const int before = ParallelThreads();
  const KernelRegistry registry = Kernels();
  Operand a(DType::kFloat16, {300, 260}), b(DType::kFloat16, {260, 130}), y(DType::kFloat16, {300, 130});
  KernelSpec spec;
  spec.name = "matmul";
  spec.in = {a.Arg(), b.Arg()};
  spec.out = {y.Arg()};
  WithScratch one(registry, spec, "cpu");
  SetParallelThreads(4);
  EXPECT_TRUE(one.Run({spec, spec.in, spec.out}).ok());
  SetParallelThreads(before);
}

// What the tests above would see.
TEST(Scratch, MemoryOfAKernelsOwnIsSeen) {
  if (!kCountsAllocations) GTEST_SKIP() << "sanitizers have functions of their own";
  static std::vector<float> own;
  KernelRegistry registry;
  registry.Add("exp", "cpu", [](const KernelContext& context) {
    own.assign(static_cast<size_t>(context.in[0].elements()), 0.0f);
    return Status();
  });
  registry.Add("tanh", "cpu", [](const KernelSpec& spec) {
    own.assign(static_cast<size_t>(spec.in[0].elements()), 0.0f);
    return MakeFunctionKernel([](const KernelContext&) { return Status(); })(spec);
  });
  registry.Add(
      "sin", "cpu",
      [](const KernelContext& context) {
        static_cast<char*>(context.scratch)[64] = 0;
        return Status();
      },
      [](const KernelSpec&) -> int64_t { return 64; });
  Operand x(DType::kFloat32, {8000});
  KernelSpec spec;
  spec.in = spec.out = {x.Arg()};
  spec.name = "exp";
  EXPECT_NONFATAL_FAILURE((void)CountedKernel(registry, spec).Run({spec, spec.in, spec.out}),
                          "allocated in a run of exp");
  std::vector<float>().swap(own);
  spec.name = "tanh";
  EXPECT_NONFATAL_FAILURE(CountedKernel(registry, spec), "allocated when a kernel of tanh is made");
  spec.name = "sin";
  EXPECT_EQ(CountedKernel(registry, spec).Run({spec, spec.in, spec.out}).message(),
            "sin wrote behind its scratch");
}

// Statements are for all acts of a plan, the longest and shorter ones.
TEST(Scratch, ShorterPiecesNeedNoMore) {
  const KernelRegistry registry = Kernels();
  for (const auto& [op, shapes] :
       std::vector<std::pair<std::string, std::vector<Dims>>>{{"matmul", {{130, 300}, {300, 200}}},
                                                              {"channel_moments", {{8193, 5}, {5}}},
                                                              {"argsort", {{900}}},
                                                              {"unique_rows", {{400}, {400, 3}}}}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      int64_t most = 0;
      for (int64_t rows = 1; rows <= shapes[0][0]; ++rows) {
        std::vector<Dims> shorter = shapes;
        shorter[0][0] = rows;
        if (op == "unique_rows") shorter[1][0] = rows;
        KernelSpec spec;
        spec.name = op;
        Attrs attrs;
        if (op == "argsort")
          attrs = {{"axis", int64_t{0}}, {"descending", int64_t{0}}, {"k", std::min<int64_t>(rows, 90)}};
        std::vector<DType> types(shapes.size(), dtype);
        if (op == "channel_moments") types[1] = DType::kFloat32;
        if (op == "unique_rows") types[0] = DType::kInt32;
        Case c{op, shorter, attrs, types};
        spec.attrs = attrs;
        for (size_t i = 0; i < shorter.size(); ++i)
          spec.in.push_back({nullptr, types[i], shorter[i], Dims(shorter[i].rank(), 0), shorter[i]});
        for (Operand& o : OutputsOf(c)) spec.out.push_back(o.Arg());
        const int64_t bytes = registry.Scratch(spec, "cpu");
        ASSERT_GE(bytes, most) << op << " of " << rows << " rows states less than of fewer";
        most = bytes;
      }
    }
  }
}

}  // namespace
}  // namespace oneflow_like
