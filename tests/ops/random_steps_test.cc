// Operators that draw: the fast kernels draw what the reference kernels do in every step and for every seed,
// and other steps and seeds draw something else.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "core/random.h"
#include "ops/cpu/manifest.h"
#include "ops/op.h"
#include "tests/ops/with_scratch.h"

namespace oneflow_like {
namespace {

struct Use {
  std::string op;
  Attrs attrs;
  std::vector<Dims> in;
};

// The first output, in fp32.
std::vector<float> Draw(const KernelRegistry& registry, const Use& use, int64_t step, uint64_t seed) {
  KernelSpec spec;
  spec.name = use.op;
  spec.attrs = use.attrs;
  OpCall call{use.op, use.op, use.in, {}, &use.attrs};
  std::vector<std::vector<float>> in, out;
  for (const Dims& shape : use.in) {
    in.emplace_back(shape.elements());
    for (size_t i = 0; i < in.back().size(); ++i)
      in.back()[i] = 2 * ToUniform(RandomBits(in.size(), 0, i)) - 1;
    spec.in.push_back({in.back().data(), DType::kFloat32, shape, Dims(shape.rank(), 0), shape});
    call.dtypes.push_back(DType::kFloat32);
  }
  const Inferred inferred = Infer(BuiltinCatalog().Get(use.op), call);
  for (const auto& operand : inferred.rule.out) {
    const Dims& shape = operand.shape;
    out.emplace_back(shape.elements());
    spec.out.push_back({out.back().data(), DType::kFloat32, shape, Dims(shape.rank(), 0), shape});
  }
  const Status status =
      MakeWithScratch(registry, spec)
          ->Run(
              {.spec = spec, .in = spec.in, .out = spec.out, .scratch = nullptr, .step = step, .seed = seed});
  EXPECT_TRUE(status.ok()) << status.message();
  return out[0];
}

TEST(RandomSteps, EveryStepAndSeedDrawsItsOwnAndAllKernelsAlike) {
  KernelRegistry reference, fast;
  AddReferenceKernels(BuiltinCatalog(), &reference);
  AddReferenceKernels(BuiltinCatalog(), &fast);
  AddCpuKernels(&fast);
  const Dims x{2, 40, 3, 8}, lse{2, 3, 40};
  const Attrs attention{{"causal", int64_t{1}}, {"dropout", 0.3}, {"scale", 0.0}, {"key", int64_t{3}}};
  const Attrs dropout{{"p", 0.3}, {"key", int64_t{3}}};
  for (const Use& use :
       {Use{"attention", attention, {x, x, x}}, Use{"attention_grad", attention, {x, x, x, x, x, lse}},
        Use{"dropout", dropout, {x}}}) {
    SCOPED_TRACE(use.op);
    std::set<std::vector<float>> different;
    for (int64_t step : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{1} << 33}) {
      for (uint64_t seed : {1, 2}) {
        const std::vector<float> slow = Draw(reference, use, step, seed), quick = Draw(fast, use, step, seed);
        double worst = 0;
        for (size_t i = 0; i < slow.size(); ++i)
          worst = std::max<double>(worst, std::abs(slow[i] - quick[i]) / (1 + std::abs(slow[i])));
        EXPECT_LE(worst, 2e-5) << "step " << step << ", seed " << seed;
        different.insert(quick);
        EXPECT_EQ(Draw(fast, use, step, seed), quick) << "the same once more";
      }
    }
    EXPECT_EQ(different.size(), 8u) << "some steps or seeds draw the same";
  }
}

}  // namespace
}  // namespace oneflow_like
