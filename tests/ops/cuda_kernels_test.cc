// Every CUDA kernel, run by the emulator, against the reference kernel of its operator: the operator oracle
// (every sample, type, varied shape and a share of the signatures), the larger cases that the CPU's kernels
// have to pass too, and the kernels of boxing. Each operand is a block of device memory of its own, guarded;
// what a kernel does not write stays NaN; a second run, with the threads of a block in the other order, must
// give the same bits.
// ctest: seconds=50 shards=3 long=80 asan=250 tsan=1000
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "actor/cuda/backend.h"
#include "ops/cuda/convolution_library.h"
#include "ops/cuda/library_use.h"
#include "ops/manifest.h"
#include "ops/oracle/check.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/gpu/device_kernels.h"
#include "tests/ops/accumulate_cases.h"
#include "tests/ops/kernel_cases.h"
#include "tests/ops/matrix_cases.h"
#include "tests/ops/sparse_cases.h"
#include "tests/ops/vision_cases.h"
#include "tests/sanitized.h"

extern "C" oneflow_like::Backend* OflBackend();

namespace oneflow_like {
namespace {

using cuda_emulator::Order;

// With ThreadSanitizer, which tells races between the threads of a block, and with AddressSanitizer, which
// tells reads beside operands: a device so small that blocks come to a second row or tile, and no pieces,
// since they take the same paths.
gpu::DeviceKernels& Kernels() {
  static auto* kernels = [] {
    cuda_emulator::Reset(
        {.devices = 1, .multiprocessors = kSanitized ? 1 : 4, .order = Order::kForward, .at_once = true});
    return new gpu::DeviceKernels(OflBackend(), 0, true);
  }();
  return *kernels;
}

std::unique_ptr<Kernel> MakeOnDevice(const KernelSpec& spec) { return Kernels().Make(spec); }

KernelCases& Cases() {
  static auto* cases = new KernelCases({
      [](const std::string& name) { return Kernels().registry().Has(name, "cuda"); },
      MakeOnDevice,
      [](const std::string&, const std::function<void()>& run) {
        cuda_emulator::SetOrder(Order::kReverse);
        run();
        cuda_emulator::SetOrder(Order::kForward);
      },
      true,
  });
  return *cases;
}

// --- Operator by operator

using oracle::ReferenceOf;

std::vector<std::string> OperatorsWithKernels() {
  std::vector<std::string> names;
  for (const std::string& name : BuiltinCatalog().names()) {
    if (!oracle::IsBareView(BuiltinCatalog().Get(name))) names.push_back(name);
  }
  return names;
}

class CudaOperator : public testing::TestWithParam<std::string> {
 protected:
  const OpDef& def() const { return BuiltinCatalog().Get(GetParam()); }
};

TEST_P(CudaOperator, HasAKernel) { EXPECT_TRUE(Kernels().registry().Has(GetParam(), "cuda")); }

// Whole tensors in every type that the operator takes: every sample, or the first one and of the others what
// they are in, since a generated kernel is compiled for each.
void CheckTypes(const OpDef& def, bool of_every_sample) {
  oracle::Report report;
  for (const Sample& sample : def.samples) {
    for (DType dtype :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32, DType::kInt64, DType::kBool}) {
      Sample changed = sample;
      changed.dtypes = oracle::InputTypes(sample);
      std::replace(changed.dtypes.begin(), changed.dtypes.end(), DType::kFloat32, dtype);
      if (dtype == DType::kBool) changed.limit = 2;
      if (dtype != DType::kFloat32 && changed.dtypes == oracle::InputTypes(sample)) continue;
      if (dtype != DType::kFloat32 && !of_every_sample && &sample != &def.samples[0]) continue;
      try {
        oracle::InferSample(def, changed);
      } catch (const Error&) {
        continue;  // the operator does not take this type
      }
      oracle::Trial trial = oracle::MakeTrial(def, changed, ReferenceOf(def), false);
      std::vector<oracle::Value> out[2];
      for (const oracle::Value& v : trial.out) out[0].emplace_back(v.dtype(), v.shape());
      out[1] = out[0];
      ++report.cases;
      for (int again : {0, 1}) {
        cuda_emulator::SetOrder(again ? Order::kReverse : Order::kForward);
        Status status;
        try {
          status = oracle::RunWhole(def, changed.attrs, trial.in, &out[again], MakeOnDevice);
        } catch (const Error& error) {
          status = Status(error.what());
        }
        if (status.ok() != trial.status.ok())
          report.Fail(Cat(trial.text, ": \"", status.message(), "\" but the reference says \"",
                          trial.status.message(), "\""));
      }
      if (!trial.status.ok()) continue;
      for (size_t o = 0; o < trial.out.size(); ++o) {
        const std::string what = Cat(trial.text, ", output ", o);
        oracle::Compare(what, out[0][o], trial.out[o], false, &report, trial.partial);
        if (std::memcmp(out[0][o].data(), out[1][o].data(), out[0][o].bytes()) != 0)
          report.Fail(what + " has other bits in a second run");
      }
    }
  }
  EXPECT_GT(report.cases, 0) << "no sample ran";
  EXPECT_EQ(report.failed, 0) << report.str();
}

TEST_P(CudaOperator, AgreesInEveryType) { CheckTypes(def(), false); }

void CheckPieces(const OpDef& def, const oracle::CheckOptions& options) {
  if (kSanitized) GTEST_SKIP() << "for the build without sanitizers";
  cuda_emulator::SetOrder(Order::kAlternate);
  oracle::Report report = oracle::CheckOperator(def, ReferenceOf(def), MakeOnDevice, options);
  cuda_emulator::SetOrder(Order::kForward);
  EXPECT_EQ(report.failed, 0) << report.str();
}

// All signatures of the operator's samples; of each with another extent or type one that is drawn here, and
// all with the long tests.
TEST_P(CudaOperator, AgreesOnPieces) {
  CheckPieces(def(), {.every_type = false, .most_pairs = 40, .pairs_of_variant = 0, .cuts_of_variant = 1});
}
class LongCudaOperator : public CudaOperator {};
TEST_P(LongCudaOperator, AgreesInEveryType) { CheckTypes(def(), true); }
TEST_P(LongCudaOperator, AgreesOnPieces) { CheckPieces(def(), {.most_pairs = 40, .pairs_of_variant = 2}); }

std::string NameOf(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Catalog, CudaOperator, testing::ValuesIn(OperatorsWithKernels()), NameOf);
INSTANTIATE_TEST_SUITE_P(Catalog, LongCudaOperator, testing::ValuesIn(OperatorsWithKernels()), NameOf);

// --- Larger cases
TEST(CudaKernels, TableSamples) { Cases().TableSamples(); }
TEST(CudaKernels, Products) { Cases().Products(); }
// By the library, and where it refuses to add, or to multiply at all.
TEST(CudaKernels, ProductsAddUpOverMicroBatches) {
  AccumulateCases(MakeOnDevice, true);
  cuda_emulator::RefuseEpilogues(true);
  AccumulateCases(MakeOnDevice, true);
  cuda_emulator::RefuseEpilogues(false);
  cuda_emulator::RefuseProducts(cuda_emulator::Refused::kAll);
  AccumulateCases(MakeOnDevice, true);
  cuda_emulator::RefuseProducts(cuda_emulator::Refused::kNone);
}
TEST(CudaKernels, LaterActsMayBeSmaller) { Cases().LaterActsMayBeSmaller(); }
TEST(CudaKernels, ElementwiseShapes) { Cases().ElementwiseShapes(); }
TEST(CudaKernels, ElementwiseFunctions) { Cases().ElementwiseFunctions(); }
TEST(CudaKernels, ReductionsAndShapes) { Cases().ReductionsAndShapes(); }
TEST(CudaKernels, RowsOperators) { Cases().RowsOperators(); }
TEST(CudaKernels, CrossEntropyIgnoresNegativeTargetsAndCutClasses) {
  Cases().CrossEntropyIgnoresNegativeTargetsAndCutClasses();
}
TEST(CudaKernels, EmbeddingRowsAndColumns) { Cases().EmbeddingRowsAndColumns(); }
TEST(CudaKernels, Within) { Cases().Within(); }
TEST(CudaKernels, Order) { SparseCases(&Cases()).Order(); }
TEST(CudaKernels, SumsAndFlips) { SparseCases(&Cases()).SumsAndFlips(); }
TEST(CudaKernels, ByIndex) { SparseCases(&Cases()).ByIndex(); }
TEST(CudaKernels, MaximaByIndex) { SparseCases(&Cases()).MaximaByIndex(); }
TEST(CudaKernels, Spellings) { SparseCases(&Cases()).Spellings(); }
TEST(CudaKernels, Matrices) { MatrixCases(&Cases()); }
TEST(CudaKernels, Bags) { SparseCases(&Cases()).Bags(); }
TEST(CudaKernels, TouchedRows) { SparseCases(&Cases()).TouchedRows(); }
TEST(CudaKernels, Experts) { SparseCases(&Cases()).Experts(); }
TEST(CudaKernels, ExpertsByWarpgroups) { SparseCases(&Cases()).Experts(1); }
TEST(CudaKernels, Routes) { SparseCases(&Cases()).Routes(); }
TEST(CudaKernels, Attention) { Cases().Attention(); }
TEST(CudaKernels, MaskedAttention) { Cases().MaskedAttention(); }
TEST(CudaKernels, Rope) { Cases().Rope(); }
TEST(CudaKernels, Vision) {
  const int64_t before = cuda::Counted(cuda::LibraryUse::kConvolution);
  VisionCases(&Cases());
  EXPECT_GT(cuda::Counted(cuda::LibraryUse::kConvolution), before);
}
TEST(CudaKernels, ConvolutionsByOurOwnKernel) {
  cuda::SetConvolutionLibrary(false);
  const int64_t before = cuda::Counted(cuda::LibraryUse::kConvolution);
  ConvolutionCases(&Cases());
  EXPECT_EQ(cuda::Counted(cuda::LibraryUse::kConvolution), before);
  cuda::SetConvolutionLibrary(true);
}
TEST(CudaKernels, UpdatesInPlaceAndApart) { Cases().UpdatesInPlaceAndApart(); }
TEST(CudaKernels, DropoutByGlobalPosition) { Cases().DropoutByGlobalPosition(); }
TEST(CudaKernels, FusedChains) { Cases().FusedChains(); }
TEST(CudaKernels, ManyLiveValues) { Cases().ManyLiveValues(); }

// --- Boxing: the bits of the reference kernels

struct BoxingCase {
  std::string name;
  Attrs attrs;
  Dims global;
  Box in, out;
  int64_t time;
};

void CheckBoxing(const BoxingCase& c, DType dtype, uint64_t seed) {
  const std::string what = Cat(c.name, " ", c.attrs.str(), " ", Name(dtype), " of ", c.global.str(),
                               ", time ", c.time, ", seed ", seed);
  std::mt19937_64 random(seed);
  Operand in(dtype, c.global, c.in.begin, c.in.extent), out(dtype, c.global, c.out.begin, c.out.extent);
  in.Draw(&random, -3, 3, dtype == DType::kBool ? 2 : 1000);
  out.Draw(&random, -3, 3, dtype == DType::kBool ? 2 : 1000);  // what accumulate adds to
  KernelRegistry reference;
  AddBoxingKernels(&reference);
  std::string bits[2];
  for (int device : {0, 1}) {
    Operand to = out;
    KernelSpec spec;
    spec.name = c.name;
    spec.attrs = c.attrs;
    spec.in = {in.Arg()};
    spec.out = {to.Arg()};
    std::unique_ptr<Kernel> kernel = device ? MakeOnDevice(spec) : reference.Make(spec, "cpu");
    Status status = kernel->Run({spec, spec.in, spec.out, nullptr, 3, c.time, 4, 77});
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    bits[device].assign(to.memory.begin(), to.memory.end());
  }
  EXPECT_EQ(bits[0], bits[1]) << what;
}

TEST(CudaBoxing, HasTheBitsOfTheHost) {
  std::vector<BoxingCase> cases;
  for (const char* fold : {"sum", "max", "min"}) {
    for (int64_t time : {0, 2}) {
      Attrs attrs = {{"fold", std::string(fold)}};
      for (Dims shape : {Dims{7, 33}, Dims{1}, Dims{0, 4}, Dims{3, 5, 64}, Dims{}}) {
        const Box whole = Box::Whole(shape);
        cases.push_back({"accumulate", attrs, shape, whole, whole, time});
        for (int64_t keep : {0, 1}) {
          attrs.Set("keep", keep);
          for (const char* name : {"local_slice", "time_slice", "keep"})
            cases.push_back({name, attrs, shape, whole, whole, time});
        }
      }
      attrs.Set("keep", int64_t{1});
      const Dims shape{20, 9, 50};
      const Box boxes[] = {{{0, 0, 0}, {20, 9, 50}},
                           {{3, 0, 0}, {6, 9, 50}},
                           {{3, 2, 5}, {6, 4, 21}},
                           {{8, 0, 30}, {12, 9, 20}}};
      for (const Box& part : boxes) cases.push_back({"time_gather", attrs, shape, part, boxes[0], time});
      cases.push_back({"time_gather", attrs, shape, {{3, 0, 0}, {0, 9, 50}}, boxes[0], time});
      for (const Box& from : boxes) {
        for (const Box& to : boxes) {
          for (const char* name : {"local_slice", "time_slice", "keep"})
            cases.push_back({name, attrs, shape, from, to, time});
        }
      }
    }
  }
  uint64_t seed = 7000;
  for (const BoxingCase& c : cases) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32, DType::kInt64}) {
      CheckBoxing(c, dtype, ++seed);
    }
  }
}

TEST(CudaBoxing, EveryKernelOfTheHostIsThere) {
  for (const char* name : {"accumulate", "local_slice", "time_slice", "time_gather", "keep"})
    EXPECT_TRUE(Kernels().registry().Has(name, "cuda")) << name;
}

}  // namespace
}  // namespace oneflow_like
