// Values and gradients beside PyTorch's. Every case of cases_*.cc is run at once with the CPU's kernels; its
// operands, results and the gradients of the sum of its results times drawn weights go to one file, which
// values.py recomputes in double. Skipped where python3 (or the program that OFL_PYTHON names) lacks torch.
#include "tests/peers/values.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "ops/cpu/manifest.h"
#include "tests/ops/eager.h"

namespace oneflow_like::peers {
namespace {

using oracle::Draws;
using oracle::Tape;
using oracle::Value;

const KernelRegistry& Registry() {
  static const KernelRegistry* const registry = [] {
    auto* all = new KernelRegistry;
    AddReferenceKernels(BuiltinCatalog(), all);
    AddCpuKernels(all);
    return all;
  }();
  return *registry;
}

// Tensors in the layout of safetensors, which takes a dozen lines to read: the length of a JSON header, the
// header, the bytes.
class TensorFile {
 public:
  void Add(const std::string& name, const Value& value) {
    std::string shape;
    for (int64_t e : value.shape()) shape += Cat(shape.empty() ? "" : ",", e);
    header_ += Cat(header_.empty() ? "{" : ",", "\"", name, "\":{\"dtype\":\"", TypeOf(value.dtype()),
                   "\",\"shape\":[", shape, "],\"data_offsets\":[", bytes_.size(), ",",
                   bytes_.size() + value.bytes(), "]}");
    bytes_.append(value.data(), value.bytes());
  }
  void Write(const std::string& path) const {
    const std::string header = header_ + "}";
    const uint64_t length = header.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header << bytes_;
  }

 private:
  static const char* TypeOf(DType dtype) {
    switch (dtype) {
      case DType::kBFloat16:
        return "BF16";
      case DType::kFloat16:
        return "F16";
      case DType::kInt32:
        return "I32";
      case DType::kInt64:
        return "I64";
      case DType::kUInt8:
        return "U8";
      case DType::kBool:
        return "BOOL";
      default:
        return "F32";
    }
  }
  std::string header_, bytes_;
};

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
    file->Add(Cat(c.name, ":weight", o), weight);
    sums.push_back(sum(mul(cast(results[o], DType::kFloat32), tape->Input(weight))));
  }
  return sums.empty() ? Tensor() : add_n(sums);
}

void RunCase(const ValueCase& c, TensorFile* file) {
  SCOPED_TRACE(c.name);
  Tape tape([](const KernelSpec& spec) { return Registry().Make(spec, "cpu"); });
  Draws draws(HashName(c.name));
  std::vector<Tensor> in;
  for (size_t i = 0; i < c.in.size(); ++i) {
    in.push_back(tape.Input(Drawn(c.in[i], &draws)));
    file->Add(Cat(c.name, ":in", i), tape.At(in[i]));
  }
  std::vector<Tensor> results;
  try {
    results = c.run(in).tensors;
    for (size_t o = 0; o < results.size(); ++o) file->Add(Cat(c.name, ":out", o), tape.At(results[o]));
    Tensor loss = Weighted(c, results, &tape, &draws, file);
    if (!loss.defined()) return;
    const std::vector<Tensor> gradients = oracle::Backward(&tape, loss, in);
    for (size_t i = 0; i < in.size(); ++i) {
      if (gradients[i].defined()) file->Add(Cat(c.name, ":grad", i), tape.At(gradients[i]));
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(Values, AreThoseOfPyTorch) {
  const char* given = std::getenv("OFL_PYTHON");
  const std::string python = given != nullptr ? given : "python3";
  if (std::system(Cat(python, " -c 'import torch' 2> /dev/null").c_str()) != 0)
    GTEST_SKIP() << python << " lacks torch";
  TensorFile file;
  std::set<std::string> names;
  for (ValueCases (*part)() : {BasicCases, ReductionCases, LossCases}) {
    for (const ValueCase& c : part()) {
      EXPECT_TRUE(names.insert(c.name).second) << "two cases are named " << c.name;
      RunCase(c, &file);
    }
  }
  const std::string path = Cat(OFL_BINARY_DIR, "/values_test.safetensors");
  file.Write(path);
  EXPECT_EQ(std::system(Cat(python, " ", OFL_SOURCE_DIR, "/tests/peers/values.py ", path).c_str()), 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace oneflow_like::peers
