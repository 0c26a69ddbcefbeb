// Values and gradients beside PyTorch's. Every case of cases_*.cc is run at once with the CPU's kernels; its
// operands, results and the gradients of the sum of its results times drawn weights go to one file, which
// values.py recomputes in double. Skipped where python3 (or the program that OFL_PYTHON names) lacks torch.
#include "tests/peers/values.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "ops/cpu/manifest.h"
#include "tests/ops/cpu_registry.h"
#include "tests/ops/eager.h"
#include "tests/ops/with_scratch.h"
#include "tests/peers/tensor_file.h"

namespace oneflow_like::peers {
namespace {

using oracle::Draws;
using oracle::Tape;
using oracle::Value;

void Keep(const std::string& name, const Value& value, TensorFile* file) {
  file->Add(name, value.dtype(), value.shape(), value.data());
}

Value Drawn(const ValueInput& input, Draws* draws) {
  Value value(input.dtype, input.shape);
  for (int64_t i = 0; i < value.elements(); ++i) {
    const double x = input.low + (input.high - input.low) * draws->Uniform();
    value.Set(i, IsFloating(input.dtype) ? x : std::floor(x));
  }
  return value;
}

// The sum of all floating results, each element times a weight that is written down.
Tensor Weighted(const ValueCase& c, const std::vector<Tensor>& results, Tape* tape, Draws* draws,
                TensorFile* file) {
  std::vector<Tensor> sums;
  for (size_t o = 0; o < results.size(); ++o) {
    if (!IsFloating(results[o].dtype())) continue;
    const Value weight = Drawn(F(results[o].shape(), -1, 1), draws);
    Keep(Cat(c.name, ":weight", o), weight, file);
    sums.push_back(sum(mul(cast(results[o], DType::kFloat32), tape->Input(weight))));
  }
  return sums.empty() ? Tensor() : add_n(sums);
}

void RunCase(const ValueCase& c, TensorFile* file) {
  SCOPED_TRACE(c.name);
  Tape tape([](const KernelSpec& spec) { return MakeWithScratch(CpuRegistry(), spec); });
  Draws draws(HashName(c.name));
  std::vector<Tensor> in;
  for (size_t i = 0; i < c.in.size(); ++i) {
    in.push_back(tape.Input(Drawn(c.in[i], &draws)));
    Keep(Cat(c.name, ":in", i), tape.At(in[i]), file);
  }
  std::vector<Tensor> results;
  try {
    results = c.run(in).tensors;
    for (size_t o = 0; o < results.size(); ++o) Keep(Cat(c.name, ":out", o), tape.At(results[o]), file);
    Tensor loss = Weighted(c, results, &tape, &draws, file);
    if (!loss.defined()) return;
    const std::vector<Tensor> gradients = oracle::Backward(&tape, loss, in);
    for (size_t i = 0; i < in.size(); ++i) {
      if (gradients[i].defined()) Keep(Cat(c.name, ":grad", i), tape.At(gradients[i]), file);
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(Values, AreThoseOfPyTorch) {
  const std::string python = PythonWithTorch();
  if (python.empty()) GTEST_SKIP() << "python3, or what OFL_PYTHON names, lacks torch";
  TensorFile file;
  std::set<std::string> names;
  for (ValueCases (*part)() : {BasicCases, ReductionCases, LossCases, VisionCases, SparseCases, ComposedCases,
                               LanguageCases, LinearAlgebraCases, RecurrentCases}) {
    for (const ValueCase& c : part()) {
      EXPECT_TRUE(names.insert(c.name).second) << "two cases are named " << c.name;
      RunCase(c, &file);
    }
  }
  const std::string path = Cat(OFL_BINARY_DIR, "/values_test.safetensors");
  file.Write(path);
  EXPECT_EQ(std::system(Cat(python, " -B ", OFL_SOURCE_DIR, "/tests/peers/values.py ", path).c_str()), 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace oneflow_like::peers
