// Products and attention of the CUDA backend on the emulator: the layout arithmetic of matrix products by
// itself, every kind of contraction plan, epilogues, and attention by the library's stand-in and by the own
// kernels, all against plain loops or the reference kernels. Draws come from a seed that a failure prints.
// ctest: asan=25
#include <glog/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "core/random.h"
#include "ops/cuda/contraction.h"
#include "ops/cuda/flash.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/library_use.h"
#include "ops/cuda/product_choices.h"
#include "ops/op.h"
#include "ops/reference.h"
#include "ops/scalar.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/ops/with_scratch.h"

namespace oneflow_like::cuda {
namespace {

// A stream of device 0 with its work space, and memory that lives as long.
class Bench {
 public:
  Bench() {
    cuda_emulator::Reset({.at_once = true});
    EXPECT_EQ(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking), cudaSuccess);
    launch.workspace = Device(kWorkspaceBytes);
    launch.workspace_bytes = kWorkspaceBytes;
    launch.multiprocessors = 4;
    launch.number = 1;
    ActState act{3, 0};
    launch.act = static_cast<ActState*>(Upload(&act, sizeof act));
    Fault fault;
    launch.fault = static_cast<Fault*>(Upload(&fault, sizeof fault));
  }
  ~Bench() {
    cudaStreamSynchronize(launch.stream);
    for (void* p : held_) cudaFree(p);
    cudaStreamDestroy(launch.stream);
  }
  void* Device(size_t bytes) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, bytes > 0 ? bytes : 1), cudaSuccess);
    held_.push_back(p);
    return p;
  }
  void* Upload(const void* from, size_t bytes) {
    void* p = Device(bytes);
    EXPECT_EQ(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return p;
  }
  void Download(void* to, const void* from, size_t bytes) {
    EXPECT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  }

  LaunchContext launch;

 private:
  std::vector<void*> held_;
};

struct Tensor {
  TensorArg arg;
  std::vector<char> memory;
  Tensor(DType dtype, const Dims& global) : Tensor(dtype, global, Dims(global.rank(), 0), global) {}
  Tensor(DType dtype, const Dims& global, const Dims& begin, const Dims& extent) {
    arg.dtype = dtype;
    arg.global = global;
    arg.begin = begin;
    arg.extent = extent;
    memory.assign(extent.elements() * SizeOf(dtype), '\x5a');
  }
  TensorArg Arg() {
    arg.data = memory.data();
    return arg;
  }
  void Draw(std::mt19937_64* random) {
    std::uniform_real_distribution<double> real(-1.5, 1.5);
    for (int64_t i = 0; i < arg.elements(); ++i) StoreFloat(Arg(), i, real(*random));
  }
  double At(int64_t i) { return LoadFloat(Arg(), i); }
};
using Tensors = std::vector<Tensor>;

const KernelRegistry& Registry() {
  static const KernelRegistry* const registry = [] {
    auto* all = new KernelRegistry;
    AddReferenceKernels(BuiltinCatalog(), all);
    AddProductKernels(all);
    AddLinearKernels(all);
    AddAttentionKernels(all);
    return all;
  }();
  return *registry;
}

KernelSpec SpecOf(const std::string& op, const Attrs& attrs, const Tensors& in, const Tensors& out) {
  KernelSpec spec;
  spec.name = op;
  spec.attrs = attrs;
  for (const Tensor& x : in) spec.in.push_back(x.arg);
  for (const Tensor& x : out) spec.out.push_back(x.arg);
  for (TensorArg& x : spec.in) x.data = nullptr;
  for (TensorArg& x : spec.out) x.data = nullptr;
  return spec;
}

void RunReference(const std::string& op, const Attrs& attrs, Tensors* in, Tensors* out) {
  KernelSpec spec = SpecOf(op, attrs, *in, *out);
  std::vector<TensorArg> ins, outs;
  for (Tensor& x : *in) ins.push_back(x.Arg());
  for (Tensor& x : *out) outs.push_back(x.Arg());
  Status status =
      MakeWithScratch(Registry(), spec, "reference")->Run({spec, ins, outs, nullptr, 3, 0, 1, 77});
  ASSERT_TRUE(status.ok()) << status.message();
}

void RunCuda(Kernel* kernel, const std::string& op, const Attrs& attrs, Tensors* in, Tensors* out) {
  Bench bench;
  KernelSpec spec = SpecOf(op, attrs, *in, *out);
  std::vector<TensorArg> ins, outs;
  std::map<std::vector<char>, void*> integers;  // equal ones are one operand
  for (Tensor& x : *in) {
    ins.push_back(x.arg);
    void*& known = integers[x.memory];
    if (IsFloating(x.arg.dtype) || known == nullptr) known = bench.Upload(x.memory.data(), x.memory.size());
    ins.back().data = known;
  }
  for (Tensor& x : *out) {
    outs.push_back(x.arg);
    outs.back().data = bench.Device(x.memory.size());
  }
  std::unique_ptr<Kernel> own;
  if (!kernel) {
    own = Registry().Make(spec, "cuda");
    kernel = own.get();
  }
  void* const scratch = bench.Device(Registry().Scratch(spec, "cuda"));
  Status status =
      static_cast<CudaKernel*>(kernel)->Launch({spec, ins, outs, scratch, 0, 0, 1, 77}, bench.launch);
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < out->size(); ++i)
    bench.Download((*out)[i].memory.data(), outs[i].data, (*out)[i].memory.size());
}

double Tolerance(DType dtype) {
  if (dtype == DType::kBFloat16) return 1.0 / 100;
  return dtype == DType::kFloat16 ? 1.0 / 500 : 2e-5;
}

void ExpectClose(const std::string& what, Tensor* got, Tensor* want, bool rounds_slopes = false) {
  int64_t n = want->arg.elements();
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += std::isfinite(want->At(i)) ? want->At(i) * want->At(i) : 0;
  double rms = n > 0 ? std::sqrt(squares / n) : 0, tolerance = Tolerance(want->arg.dtype);
  // KernelCases' (kernel_cases.h) for a gradient whose probabilities and slopes are rounded to bf16, too.
  if (rounds_slopes && want->arg.dtype == DType::kBFloat16) tolerance = 2.0 / 128;
  for (int64_t i = 0; i < n; ++i) {
    double g = got->At(i), w = want->At(i);
    if (g == w) continue;
    ASSERT_LE(std::abs(g - w), tolerance * (std::abs(w) + rms))
        << what << ", element " << i << " of " << n << ": " << g << " but the reference has " << w;
  }
}

void CheckOp(const std::string& what, const std::string& op, const Attrs& attrs, Tensors in,
             const Tensors& out) {
  Tensors got = out, want = out;
  const int64_t before = Counted(LibraryUse::kAttention);
  RunReference(op, attrs, &in, &want);
  RunCuda(nullptr, op, attrs, &in, &got);
  const bool own_gradient = op == "attention_grad" && Counted(LibraryUse::kAttention) == before;
  for (size_t i = 0; i < out.size(); ++i)
    ExpectClose(Cat(what, " output ", i), &got[i], &want[i], own_gradient);
}

// --- Layouts

// The descriptor, read as the library's documentation defines it, names the right elements and no others.
TEST(CudaProduct, DescriptorsOfAllLayouts) {
  const int64_t extents[] = {1, 2, 5};
  for (int64_t m : extents)
    for (int64_t n : extents)
      for (int64_t k : extents)
        for (int layout = 0; layout < 16; ++layout) {
          int64_t pad = layout & 8 ? 3 : 0;
          ProductStrides p{m, n, k};
          bool ta = layout & 1, tb = layout & 2, ty = layout & 4;
          p.a_m = ta ? 1 : k + pad;
          p.a_k = ta ? m + pad : 1;
          p.b_k = tb ? 1 : n + pad;
          p.b_n = tb ? k + pad : 1;
          p.y_m = ty ? 1 : n + pad;
          p.y_n = ty ? m + pad : 1;
          GemmDescriptor d = DescribeGemm(p);
          std::string what = Cat("m ", m, " n ", n, " k ", k, " layout ", layout);
          ASSERT_EQ(d.m * d.n, m * n) << what;
          ASSERT_EQ(d.k, k) << what;
          EXPECT_GE(d.ldd, d.m) << what;
          EXPECT_GE(d.lda, d.transposed_a ? d.k : d.m) << what;
          EXPECT_GE(d.ldb, d.transposed_b ? d.n : d.k) << what;
          for (int64_t i = 0; i < d.m; ++i)
            for (int64_t j = 0; j < d.n; ++j) {
              int64_t row = d.swapped ? j : i, column = d.swapped ? i : j;
              ASSERT_EQ(i + j * d.ldd, row * p.y_m + column * p.y_n) << what;
              for (int64_t l = 0; l < d.k; ++l) {
                int64_t in_a = d.transposed_a ? l + i * d.lda : i + l * d.lda;
                int64_t in_b = d.transposed_b ? j + l * d.ldb : l + j * d.ldb;
                ASSERT_EQ(d.swapped ? in_b : in_a, row * p.a_m + l * p.a_k) << what;
                ASSERT_EQ(d.swapped ? in_a : in_b, l * p.b_k + column * p.b_n) << what;
              }
            }
        }
}

ContractionPlan::Kind KindOf(const std::string& equation, Dims a, Dims b, int64_t room = int64_t{1} << 24,
                             ContractionTypes types = {DType::kFloat32, DType::kFloat32}) {
  return PlanContraction(EinsumLabels(equation), a, b, types, room).kind;
}

TEST(CudaProduct, PlansOfContractions) {
  using Plan = ContractionPlan;
  // A model's products go to the library as they lie, in one launch.
  for (const char* equation :
       {"bsw,whd->bshd", "bshd,hdw->bsw", "bsw,bshd->whd", "bsw,kw->bsk", "abmk,abmn->kn"}) {
    std::string text = equation;
    std::vector<LabelAxes> labels = EinsumLabels(text);
    size_t comma = text.find(','), arrow = text.find("->");
    auto extents = [](const std::string& of) {
      Dims dims;
      for (char c : of) dims.push_back(2 + c % 7);
      return dims;
    };
    Plan plan = PlanContraction(labels, extents(text.substr(0, comma)),
                                extents(text.substr(comma + 1, arrow - comma - 1)),
                                {DType::kBFloat16, DType::kBFloat16}, 1 << 20);
    EXPECT_EQ(plan.kind, Plan::kDirect) << equation;
    EXPECT_EQ(plan.outer.size(), 1u) << equation;
    EXPECT_EQ(plan.gemm.batch, 1) << equation;
  }
  Plan batched = PlanContraction(EinsumLabels("bhst,bthd->bshd"), {2, 3, 90, 110}, {2, 110, 3, 64},
                                 {DType::kFloat32, DType::kFloat32}, 1 << 20);
  EXPECT_EQ(batched.kind, Plan::kDirect);
  EXPECT_EQ(batched.gemm.batch, 3);
  EXPECT_EQ(batched.outer.size(), 2u);
  EXPECT_EQ(KindOf("sdb,tdb->stb", {9, 16, 12}, {8, 16, 12}), Plan::kPacked);
  EXPECT_EQ(KindOf("mkl,lkn->mn", {8, 3, 9}, {9, 3, 10}), Plan::kPacked);
  EXPECT_EQ(KindOf("mkl,lkn->mn", {8, 3, 9}, {9, 3, 10}, 16), Plan::kGeneral);
  // Batches of both operands and of one, which are no neighbours in the result: packed, or, of operands too
  // large for that, a call for each of those that are fewer, unless each call would do next to nothing.
  for (const auto& [experts, rows, room, kind] :
       {std::tuple(60, 64, int64_t{1} << 24, Plan::kDirect),
        std::tuple(65, 64, int64_t{1} << 24, Plan::kPacked), std::tuple(65, 64, int64_t{16}, Plan::kDirect),
        std::tuple(65, 2, int64_t{16}, Plan::kGeneral)}) {
    const Plan plan = PlanContraction(EinsumLabels("gsec,gsm->egcm"), {70, 16, experts, rows}, {70, 16, 8},
                                      {DType::kBFloat16, DType::kBFloat16}, room);
    EXPECT_EQ(plan.kind, kind) << experts << " experts, " << rows << " rows, room " << room;
    if (kind != Plan::kDirect) continue;
    ASSERT_EQ(plan.outer.size(), static_cast<size_t>(experts));
    EXPECT_EQ(plan.gemm.batch, 70);
    EXPECT_FALSE(plan.a.needed || plan.b.needed || plan.y.needed);
    for (int64_t e = 0; e < experts; ++e) {
      EXPECT_EQ(plan.outer[e].a, e * rows);
      EXPECT_EQ(plan.outer[e].b, 0);
      EXPECT_EQ(plan.outer[e].y, e * 70 * rows * 8);
    }
  }
  EXPECT_EQ(KindOf("abk,nk->bn", {3, 5, 2}, {7, 2}), Plan::kPacked);
  EXPECT_EQ(KindOf("mk,kn->mn", {4, 0}, {0, 3}), Plan::kZero);
  EXPECT_EQ(KindOf("mk,kn->mn", {64, 64}, {64, 64}, 1 << 20, {DType::kFloat32, DType::kBFloat16}),
            Plan::kPacked);
}

// --- Kernels

TEST(CudaProduct, MatmulAndEinsum) {
  struct Case {
    std::string op;
    Dims a, b;
    std::string equation;
  };
  const std::vector<Case> cases = {{"matmul", {67, 129}, {129, 33}},
                                   {"matmul", {3, 17, 31}, {31, 45}},
                                   {"matmul", {5, 1, 8, 9}, {3, 9, 7}},
                                   {"matmul", {1, 1}, {1, 1}},
                                   {"matmul", {4, 0}, {0, 5}},
                                   {"matmul", {0, 4}, {4, 5}},
                                   {"matmul", {1, 300}, {300, 1}},
                                   {"matmul", {2, 3, 4, 5}, {2, 3, 5, 6}},
                                   {"matmul", {8, 9}, {3, 9, 7}},
                                   {"matmul", {2, 1, 4, 5}, {1, 3, 5, 6}},
                                   {"einsum", {3, 7, 20}, {20, 4, 5}, "bsw,whd->bshd"},
                                   {"einsum", {3, 7, 4, 5}, {4, 5, 20}, "bshd,hdw->bsw"},
                                   {"einsum", {3, 7, 20}, {3, 7, 4, 5}, "bsw,bshd->whd"},
                                   {"einsum", {9, 20}, {20, 13}, "mk,kn->nm"},
                                   {"einsum", {40, 9}, {40, 13}, "km,kn->mn"},
                                   {"einsum", {2, 9, 3, 4}, {2, 11, 3, 4}, "bshd,bthd->bhst"},
                                   {"einsum", {2, 3, 9, 11}, {2, 11, 3, 4}, "bhst,bthd->bshd"},
                                   {"einsum", {9, 16, 12}, {8, 16, 12}, "sdb,tdb->stb"},
                                   {"einsum", {30, 5, 6}, {30, 6, 5}, "kab,kba->ab"},
                                   {"einsum", {3, 8, 9}, {3, 9, 10}, "amk,akn->man"},
                                   {"einsum", {8, 3, 9}, {9, 3, 10}, "mkl,lkn->mn"},
                                   {"einsum", {5, 6, 7}, {7, 9}, "jik,kn->ijn"},
                                   {"einsum", {7}, {9}, "i,j->ij"},
                                   {"einsum", {70}, {70}, "i,i->"},
                                   {"einsum", {3, 5, 2}, {7, 2}, "abk,nk->bn"},
                                   {"einsum", {3, 5}, {3, 5}, "ij,ij->"},
                                   {"einsum", {6}, {7, 6}, "k,nk->n"},
                                   {"einsum", {0, 7, 20}, {20, 4, 5}, "bsw,whd->bshd"}};
  uint64_t seed = 100;
  for (const Case& c : cases) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (DType result : {dtype, DType::kFloat32, DType::kFloat16}) {
        std::mt19937_64 random(++seed);
        Attrs attrs;
        if (!c.equation.empty()) attrs.Set("equation", c.equation);
        attrs.Set("dtype", std::string(Name(result)));
        OpCall call{c.op, c.op, {c.a, c.b}, {dtype, dtype}, &attrs};
        Tensors in = {Tensor(dtype, c.a), Tensor(dtype, c.b)};
        for (Tensor& x : in) x.Draw(&random);
        Tensors out = {Tensor(result, Infer(BuiltinCatalog().Get(c.op), call).rule.out[0].shape)};
        CheckOp(Cat(c.op, " ", c.equation, " ", c.a.str(), " ", c.b.str(), " ", Name(dtype), " to ",
                    Name(result), ", seed ", seed),
                c.op, attrs, in, out);
      }
    }
  }
}

// What the library refuses is copied first, or done without it; and the log says so, once for each kind.
class Warnings : public google::LogSink {
 public:
  Warnings() { google::AddLogSink(this); }
  ~Warnings() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int, const google::LogMessageTime&,
            const char* message, size_t length) override {
    if (severity == google::GLOG_WARNING) said.emplace_back(message, length);
  }
  std::vector<std::string> said;
};

TEST(CudaProduct, WhatTheLibraryRefuses) {
  using cuda_emulator::Refused;
  const Attrs heads = {{"equation", std::string("bhst,bthd->bshd")}},
              plain = {{"equation", std::string("mk,kn->nm")}};
  struct {
    Refused refused;
    const Attrs& attrs;
    Dims a, b, y;
    const char* said;
  } cases[] = {{Refused::kInterleaved,
                heads,
                {2, 3, 9, 8},
                {2, 8, 3, 4},
                {2, 9, 3, 4},
                "its operands are copied first"},
               {Refused::kAll, heads, {2, 3, 9, 8}, {2, 8, 3, 4}, {2, 9, 3, 4}, "done by a slow loop"},
               {Refused::kAll, plain, {9, 20}, {20, 13}, {13, 9}, "done by a slow loop"}};
  Warnings warnings;
  for (const auto& c : cases) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      cuda_emulator::RefuseProducts(c.refused);
      for (int i = 0; i < 2; ++i) {
        CheckOp(Cat(c.attrs.str(), ", refused: ", c.said), "einsum", c.attrs,
                {Tensor(dtype, c.a), Tensor(dtype, c.b)}, {Tensor(dtype, c.y)});
      }
      cuda_emulator::RefuseProducts(Refused::kNone);
    }
    EXPECT_NE(
        std::find_if(warnings.said.begin(), warnings.said.end(),
                     [&](const std::string& text) { return text.find("no algorithm") != std::string::npos; }),
        warnings.said.end());
  }
  EXPECT_EQ(warnings.said.size(), 4u) << "heads and plain, of two types each";
}

// It is recorded and never run: its operands would be some 32 MiB.
TEST(CudaProduct, TheLogTellsOfALongLoop) {
  const auto said_of = [](int64_t columns, const std::string& equation) {
    Warnings warnings;
    const auto operand = [](const Dims& shape) {
      TensorArg arg;
      arg.dtype = DType::kBFloat16;
      arg.global = arg.extent = shape;
      arg.begin = Dims(shape.rank(), 0);
      return arg;
    };
    KernelSpec spec;
    spec.name = "einsum";
    spec.line = SourceLine("model.cc", 12);
    spec.attrs.Set("equation", equation);
    spec.in = {operand({1024, 16, columns}), operand({1024, 16, columns})};
    spec.out = {operand({1024, 1024, columns})};
    const std::unique_ptr<Kernel> kernel = Registry().Make(spec, "cuda");
    Bench bench;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(cudaStreamBeginCapture(bench.launch.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      EXPECT_TRUE(static_cast<CudaKernel*>(kernel.get())
                      ->Launch({spec, spec.in, spec.out, nullptr, 3, 0, 1, 77}, bench.launch)
                      .ok());
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(cudaStreamEndCapture(bench.launch.stream, &graph), cudaSuccess);
      cudaGraphDestroy(graph);
    }
    return warnings.said;
  };
  const std::vector<std::string> said = said_of(1024, "sdb,tdb->stb");
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0],
            "einsum sdb,tdb->stb of bf16 to bf16 at model.cc:12: done by a slow loop, since operands of "
            "[1024,16,1024] and [1024,16,1024] do not lie as matrices do, and are too large to be copied");
  EXPECT_TRUE(said_of(8, "sdb,tdb->stb").empty()) << "they are copied";
}

TEST(CudaProduct, LaterActsMayBeSmaller) {
  std::mt19937_64 random(5);
  Tensors in = {Tensor(DType::kFloat32, {8, 6, 10}), Tensor(DType::kFloat32, {10, 7})};
  Tensors out = {Tensor(DType::kFloat32, {8, 6, 7})};
  std::unique_ptr<Kernel> kernel = Registry().Make(SpecOf("matmul", {}, in, out), "cuda");
  in[1].Draw(&random);
  for (int64_t rows : {3, 0, 2, 8}) {
    Tensors piece = {Tensor(DType::kFloat32, {8, 6, 10}, {0, 0, 0}, {rows, 6, 10}), in[1]};
    Tensors got = {Tensor(DType::kFloat32, {8, 6, 7}, {0, 0, 0}, {rows, 6, 7})}, want = got;
    piece[0].Draw(&random);
    RunReference("matmul", {}, &piece, &want);
    RunCuda(kernel.get(), "matmul", {}, &piece, &got);
    ExpectClose(Cat("matmul of ", rows, " rows, seed 5"), &got[0], &want[0]);
  }
}

// While proposals are timed their operands lie in memory that is just large enough; what is written beside it
// the guards tell.
TEST(CudaProduct, ProposalsAreTimedWithinTheirScratch) {
  Bench bench;
  cuda_emulator::SetProposalTimes({300, 100, 200});
  std::vector<GemmDescriptor> products = {
      DescribeGemm({.m = 9, .n = 16, .k = 12, .a_m = 12, .a_k = 1, .b_k = 16, .b_n = 1, .y_m = 16, .y_n = 1}),
      DescribeGemm({.m = 9, .n = 16, .k = 12, .a_m = 1, .a_k = 9, .b_k = 1, .b_n = 12, .y_m = 20, .y_n = 1}),
      DescribeGemm({.m = 9, .n = 16, .k = 12, .a_m = 15, .a_k = 1, .b_k = 1, .b_n = 14, .y_m = 1, .y_n = 9})};
  products.push_back(products[0]);  // batches one after another, and each between the next one's rows
  products.back().batch = 3;
  products.back().stride_a = products.back().lda * 12;
  products.back().stride_b = 12 * 9;
  products.back().stride_d = 16 * 9;
  products.push_back(products[0]);
  products.back().batch = 2;
  products.back().ldd = 32;
  products.back().stride_d = 16;
  for (Epilogue epilogue : {Epilogue::kBias, Epilogue::kGeluBias, Epilogue::kGeluGrad,
                            Epilogue::kGeluGradBias, Epilogue::kBiasGradA}) {
    products.push_back(products[0]);
    products.back().epilogue = epilogue;
    if (epilogue != Epilogue::kBias && epilogue != Epilogue::kBiasGradA) products.back().ld_aux = 16;
    products.back().adds_c = epilogue == Epilogue::kBias;
  }
  using enum DType;
  for (const auto& [in, out] : {std::pair(kBFloat16, kFloat32), std::pair(kFloat16, kFloat16)})
    for (GemmDescriptor product : products) {
      product.in = static_cast<int32_t>(in);
      product.out = static_cast<int32_t>(out);
      SCOPED_TRACE(WorkOf(product, 0));
      std::map<int64_t, double> seconds;
      for (size_t bytes = 256; seconds.empty() && bytes < 10000; bytes += 256) {
        void* scratch = nullptr;
        ASSERT_EQ(cudaMalloc(&scratch, bytes), cudaSuccess);
        seconds = TimeProposals(product, bench.launch, scratch, static_cast<int64_t>(bytes));
        cuda_emulator::CheckGuards();
        ASSERT_EQ(cudaFree(scratch), cudaSuccess);
      }
      std::vector<int64_t> numbers, expected = {0, 1, 2};
      for (const auto& [number, each] : seconds) numbers.push_back(number);
      if (product.epilogue == Epilogue::kBiasGradA)
        for (int64_t number : {0, 1, 2}) expected.push_back(kSumsApart + number);
      EXPECT_EQ(numbers, expected);
      EXPECT_EQ(FastestProposal(seconds), 1);
    }
  Choices().Forget();
}

// A way whose results are others than the first one's is not taken, however fast; the next one neither.
TEST(CudaProduct, WhatDoesNotAgreeIsNotTaken) {
  Bench bench;
  cuda_emulator::SetProposalTimes({300, 100, 200});
  GemmDescriptor product =
      DescribeGemm({.m = 9, .n = 16, .k = 12, .a_m = 12, .a_k = 1, .b_k = 16, .b_n = 1, .y_m = 16, .y_n = 1});
  product.epilogue = Epilogue::kBiasGradA;
  for (const bool adds : {false, true}) {
    product.adds_c = adds;
    void* scratch = bench.Device(8192);
    cuda_emulator::SpoilProposals(false);
    EXPECT_EQ(FastestProposal(TimeProposals(product, bench.launch, scratch, 8192)), 1);
    cuda_emulator::SpoilProposals(true);
    EXPECT_EQ(FastestProposal(TimeProposals(product, bench.launch, scratch, 8192)), 0);
    cuda_emulator::SetBiasGradTime(1000);  // of the sums apart the first proposal is as it should be
    EXPECT_EQ(FastestProposal(TimeProposals(product, bench.launch, scratch, 8192)), kSumsApart);
    cuda_emulator::SetBiasGradTime(0);
  }
}

// Several products as one batch, beside the fastest way of one as often, in memory that is just large enough.
TEST(CudaProduct, SeveralInOneCallAreTimed) {
  Bench bench;
  GemmDescriptor batch =
      DescribeGemm({.m = 9, .n = 16, .k = 12, .a_m = 1, .a_k = 9, .b_k = 16, .b_n = 1, .y_m = 16, .y_n = 1});
  ASSERT_TRUE(batch.swapped);
  batch.batch = 3;
  batch.stride_a = 16 * 12 + 128;
  batch.stride_d = 16 * 9 + 128;
  batch.in = static_cast<int32_t>(DType::kBFloat16);
  for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kBias, Epilogue::kBiasGradA})
    for (const bool adds : {false, true}) {
      batch.epilogue = epilogue;
      batch.stride_bias = epilogue == Epilogue::kNone ? 0 : 128;
      batch.adds_c = adds;
      SCOPED_TRACE(TogetherWorkOf(batch, 0));
      const auto timed = [&](double more, bool spoil = false) {
        cuda_emulator::SetProposalTimes({300, 100, 200});
        cuda_emulator::SetBatchTime(more);
        cuda_emulator::SpoilProposals(spoil);
        std::map<int64_t, double> seconds;
        for (size_t bytes = 256; seconds.empty() && bytes < 20000; bytes += 256) {
          void* scratch = nullptr;
          EXPECT_EQ(cudaMalloc(&scratch, bytes), cudaSuccess);
          seconds = TimeTogether(batch, bench.launch, scratch, static_cast<int64_t>(bytes));
          cuda_emulator::CheckGuards();
          EXPECT_EQ(cudaFree(scratch), cudaSuccess);
        }
        return seconds;
      };
      const std::map<int64_t, double> seconds = timed(0);
      std::vector<int64_t> numbers, expected = {0, 1, 2, 3};
      for (const auto& [number, each] : seconds) numbers.push_back(number);
      if (epilogue == Epilogue::kBiasGradA)
        for (int64_t number : {1, 2, 3}) expected.push_back(kSumsApart + number);
      ASSERT_EQ(numbers, expected);
      EXPECT_NEAR(seconds.at(0), 300, 1) << "the fastest one three times";
      EXPECT_NEAR(seconds.at(2), 100, 1);
      EXPECT_EQ(FastestProposal(seconds), 2);
      EXPECT_EQ(FastestProposal(timed(197)), 0) << "297 of 300 seconds are not worth it";
      EXPECT_EQ(FastestProposal(timed(190)), 2);
      EXPECT_EQ(FastestProposal(timed(0, true)), 1) << "all but the library's first are wrong";
    }
}

TEST(CudaProduct, FarSlowerWaysRunTwice) {
  Bench bench;
  cuda_emulator::SetProposalTimes({3, 1, 2});
  GemmDescriptor product =
      DescribeGemm({.m = 9, .n = 16, .k = 12, .a_m = 12, .a_k = 1, .b_k = 16, .b_n = 1, .y_m = 16, .y_n = 1});
  void* memory = bench.Device(8192);
  const GemmOperands operands = {memory, memory, nullptr, memory, nullptr, nullptr, bench.launch.workspace};
  std::vector<std::unique_ptr<Gemm>> proposals;
  std::vector<int> runs(3);
  const auto way = [&](int64_t proposal) {
    product.choice = proposal;
    proposals.push_back(MakeGemm(product));
    return [&, proposal, made = proposals.back().get()] {
      ++runs[proposal];
      return made->Launch(operands, bench.launch).ok();
    };
  };
  const auto refused = [] { return false; };
  const std::vector<double> seconds = TimeInTurn({way(0), way(1), way(2), refused}, bench.launch.stream);
  ASSERT_EQ(seconds.size(), 4u);
  EXPECT_NEAR(seconds[0], 3, 0.1);
  EXPECT_NEAR(seconds[1], 1, 0.1);
  EXPECT_NEAR(seconds[2], 2, 0.1);
  EXPECT_TRUE(std::isinf(seconds[3]));
  EXPECT_GT(runs[0], 2) << "all others are compared with the first";
  EXPECT_GT(runs[1], 2);
  EXPECT_EQ(runs[2], 2);
  EXPECT_TRUE(TimeInTurn({refused, refused}, bench.launch.stream).empty());
}

// Grouped products want a choice between two ways where their types and extents have two, which are timed,
// and agree, in memory that is just large enough. What is decided is taken by kernels made before and after.
TEST(CudaProduct, GroupedProductsAreTimedInBothWays) {
  Bench bench;
  bench.launch.architecture = 90;
  cuda_emulator::SetProposalTimes({300, 100, 200});  // there are choices
  KernelRegistry registry;
  AddGroupedMatmulKernels(&registry);
  using enum DType;
  const auto want = [&](const char* name, const Attrs& attrs, DType type, DType result, int64_t k,
                        int64_t m) {
    const auto whole = [](DType dtype, const Dims& shape) {
      return TensorArg{nullptr, dtype, shape, Dims(shape.rank(), 0), shape};
    };
    KernelSpec spec;
    spec.name = spec.node = name;
    spec.attrs = attrs;
    const bool gradient = spec.name == "grouped_matmul_grad_weight";
    const Dims matrices = attrs.Int("transposed", 0) != 0 ? Dims{3, m, k} : Dims{3, k, m};
    spec.in = {whole(type, {100, k}), gradient ? whole(type, {100, m}) : whole(type, matrices),
               whole(kInt32, {3})};
    spec.out = {gradient ? whole(result, matrices) : whole(result, {100, m})};
    return registry.Make(spec, "cuda");
  };
  const Attrs across = {{"transposed", int64_t{1}}}, experts = {{"experts", int64_t{3}}};
  std::vector<KernelPtr> kernels;
  kernels.push_back(want("grouped_matmul", {}, kBFloat16, kBFloat16, 72, 40));
  kernels.push_back(want("grouped_matmul", across, kFloat16, kFloat16, 72, 40));
  kernels.push_back(want("grouped_matmul_grad_weight", experts, kBFloat16, kFloat32, 72, 40));
  kernels.push_back(want("grouped_matmul", {}, kBFloat16, kBFloat16, 72, 40));  // the first again
  kernels.push_back(want("grouped_matmul", {}, kBFloat16, kBFloat16, 72, 39));  // these three have one way
  kernels.push_back(want("grouped_matmul", {}, kFloat32, kFloat32, 72, 40));
  kernels.push_back(want("grouped_matmul", {{"gemm_choice", int64_t{1}}}, kBFloat16, kBFloat16, 72, 48));
  const std::vector<LibraryChoice> open = Choices().Open(0);
  ASSERT_EQ(open.size(), 3u);
  for (const LibraryChoice& choice : open) {
    SCOPED_TRACE(choice.work);
    EXPECT_EQ(choice.proposal, -1);
    const ChoosableWork* work = Choices().Find(choice.work, 0);
    ASSERT_NE(work, nullptr);
    std::map<int64_t, double> seconds;
    for (size_t bytes = 4096; seconds.empty() && bytes < 200000; bytes += 4096) {
      void* scratch = nullptr;
      ASSERT_EQ(cudaMalloc(&scratch, bytes), cudaSuccess);
      seconds = work->time(bench.launch, scratch, static_cast<int64_t>(bytes));
      cuda_emulator::CheckGuards();
      ASSERT_EQ(cudaFree(scratch), cudaSuccess);
    }
    EXPECT_EQ(seconds.size(), 2u);
  }
  cuda_emulator::SpoilWarpgroups(true);  // what is wrong is not taken, however fast
  void* scratch = nullptr;
  ASSERT_EQ(cudaMalloc(&scratch, 200000), cudaSuccess);
  EXPECT_EQ(Choices().Find(open[0].work, 0)->time(bench.launch, scratch, 200000).size(), 1u);
  Choices().Decide({{open[0].work, 1}}, false);
  EXPECT_EQ(Choices().Open(0).size(), 2u);
  EXPECT_EQ(Choices().Decided(open[0].work), 1);
  Choices().Forget();
}

// y[m n] = x[m k] w[k n] and what follows it, through the descriptor.
TEST(CudaProduct, Epilogues) {
  const int64_t m = 9, n = 16, k = 12;
  for (Epilogue epilogue : {Epilogue::kBias, Epilogue::kGeluBias, Epilogue::kGeluGrad,
                            Epilogue::kGeluGradBias, Epilogue::kBiasGradA}) {
    Bench bench;
    std::mt19937_64 random(static_cast<int>(epilogue));
    using enum DType;
    Tensor x(kFloat32, {m, k}), w(kFloat32, {k, n}), bias(kFloat32, {n}), aux(kFloat32, {m, n}),
        y(kFloat32, {m, n});
    for (Tensor* t : {&x, &w, &bias, &aux}) t->Draw(&random);
    GemmDescriptor d = DescribeGemm({m, n, k, k, 1, n, 1, n, 1});
    ASSERT_TRUE(d.swapped);
    d.epilogue = epilogue;
    if (epilogue != Epilogue::kBias && epilogue != Epilogue::kBiasGradA) d.ld_aux = n;
    GemmOperands p;
    p.a = bench.Upload(w.memory.data(), w.memory.size());
    p.b = bench.Upload(x.memory.data(), x.memory.size());
    p.bias = bench.Upload(bias.memory.data(), bias.memory.size());
    p.aux = bench.Upload(aux.memory.data(), aux.memory.size());
    p.d = bench.Device(y.memory.size());
    p.workspace = bench.launch.workspace;
    ASSERT_TRUE(MakeGemm(d)->Launch(p, bench.launch).ok());
    Tensor got_bias = bias, got_aux = aux;
    bench.Download(y.memory.data(), p.d, y.memory.size());
    bench.Download(got_bias.memory.data(), p.bias, bias.memory.size());
    bench.Download(got_aux.memory.data(), p.aux, aux.memory.size());
    for (int64_t j = 0; j < n; ++j) {
      float column = 0, weights = 0;
      for (int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += x.At(i * k + l) * w.At(l * n + j);
        float expected = sum, before = sum + bias.At(j);
        if (epilogue == Epilogue::kBias) expected = before;
        if (epilogue == Epilogue::kGeluBias) {
          expected = scalar::Gelu()(before);
          EXPECT_NEAR(got_aux.At(i * n + j), before, 1e-5);
        }
        if (d.ld_aux > 0 && epilogue != Epilogue::kGeluBias)
          expected = scalar::GeluGrad()(sum, aux.At(i * n + j));
        column += expected;
        EXPECT_NEAR(y.At(i * n + j), expected, 2e-5) << static_cast<int>(epilogue) << " " << i << " " << j;
      }
      for (int64_t l = 0; l < k; ++l) weights += w.At(l * n + j);
      if (epilogue != Epilogue::kGeluGradBias && epilogue != Epilogue::kBiasGradA) continue;
      EXPECT_NEAR(got_bias.At(j), epilogue == Epilogue::kBiasGradA ? weights : column, 1e-4);
    }
  }
}

// However A lies, also within wider rows: op(A) summed over K.
TEST(CudaProduct, SumsApartOfAllLayouts) {
  const int64_t m = 9, n = 16, k = 300, wider = 3;
  for (const bool across : {false, true})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Bench bench;
      std::mt19937_64 random(31);
      Tensor x(dtype, {k, m}), dy(dtype, across ? Dims{n, k + wider} : Dims{k, n + wider}),
          dw(DType::kFloat32, {m, n}), sums(DType::kFloat32, {n});
      x.Draw(&random);
      dy.Draw(&random);
      const int64_t to_next_n = across ? k + wider : 1, to_next_k = across ? 1 : n + wider;
      GemmDescriptor d = DescribeGemm({m, n, k, 1, m, to_next_k, to_next_n, n, 1});
      ASSERT_TRUE(d.swapped);
      ASSERT_EQ(d.transposed_a, across);
      d.epilogue = Epilogue::kBiasGradA;
      d.choice = kSumsApart + 1;
      d.in = static_cast<int32_t>(dtype);
      d.alignment = 2;
      GemmOperands p;
      p.a = bench.Upload(dy.memory.data(), dy.memory.size());
      p.b = bench.Upload(x.memory.data(), x.memory.size());
      p.d = bench.Device(dw.memory.size());
      p.bias = bench.Device(sums.memory.size());
      p.workspace = bench.launch.workspace;
      ASSERT_TRUE(MakeProduct(d)->Launch(p, bench.launch).ok());
      bench.Download(dw.memory.data(), p.d, dw.memory.size());
      bench.Download(sums.memory.data(), p.bias, sums.memory.size());
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0, product = 0;
        for (int64_t l = 0; l < k; ++l) {
          sum += dy.At(l * to_next_k + j * to_next_n);
          product += x.At(l * m) * dy.At(l * to_next_k + j * to_next_n);
        }
        EXPECT_NEAR(sums.At(j), sum, 1e-4) << "across " << across << ", sum " << j << ", seed 31";
        EXPECT_NEAR(dw.At(j), product, 1e-4) << "across " << across << ", product " << j << ", seed 31";
      }
    }
}

// That one launch of the kernel enqueues. The bench ends here, so the next begins with an emulator that is
// empty.
int64_t OperationsOf(const std::string& op, const Attrs& attrs, Tensors& in, Tensors& out) {
  Bench bench;
  std::vector<TensorArg> args[2];
  for (bool result : {false, true})
    for (Tensor& x : result ? out : in) {
      args[result].push_back(x.arg);
      args[result].back().data = bench.Upload(x.memory.data(), x.memory.size());
    }
  KernelSpec spec = SpecOf(op, attrs, in, out);
  std::unique_ptr<Kernel> kernel = Registry().Make(spec, "cuda");
  const int64_t before = cuda_emulator::GetCounts().operations;
  EXPECT_TRUE(static_cast<CudaKernel*>(kernel.get())
                  ->Launch({spec, args[0], args[1], nullptr, 0, 0, 1, 77}, bench.launch)
                  .ok());
  return cuda_emulator::GetCounts().operations - before;
}

// In one launch where the library takes the piece, else by steps; with the reference's results.
TEST(CudaProduct, ProductsWithWhatFollows) {
  struct Case {
    std::string op, equation;
    std::vector<Dims> in;
    Attrs attrs;
    bool one_launch;
  };
  const std::vector<Case> cases = {
      {"linear", "amk,kn->amn", {{3, 5, 20}, {20, 16}, {16}}, {{"bias", 1}}, true},
      {"linear", "amk,kn->amn", {{3, 5, 20}, {20, 13}, {13}}, {{"bias", 1}}, true},
      {"linear", "amk,kn->amn", {{3, 5, 20}, {20, 16}, {16}}, {{"bias", 1}, {"gelu", 1}, {"pre", 1}}, true},
      {"linear", "amk,kn->amn", {{3, 5, 20}, {20, 16}, {16}}, {{"bias", 1}, {"gelu", 1}}, true},
      {"linear", "amk,kn->amn", {{3, 5, 20}, {20, 13}, {13}}, {{"bias", 1}, {"gelu", 1}, {"pre", 1}}, false},
      {"linear", "bsw,whd->bshd", {{3, 7, 20}, {20, 4, 5}, {4, 5}}, {{"bias", 1}}, true},
      {"linear", "bsw,whd->bshd", {{3, 7, 20}, {20, 4, 5}, {5}}, {{"bias", 1}}, false},
      {"linear",
       "bshd,hdw->bsw",
       {{3, 7, 4, 5}, {4, 5, 20}, {20}, {3, 7, 20}},
       {{"bias", 1}, {"residual", 1}},
       true},
      {"linear", "bshd,whd->bsw", {{3, 7, 4, 5}, {20, 4, 5}, {3, 7, 20}}, {{"residual", 1}}, true},
      {"linear", "bhst,bthd->bshd", {{2, 3, 9, 11}, {2, 11, 3, 4}, {3, 4}}, {{"bias", 1}}, false},
      {"linear", "mk,kn->mn", {{4, 0}, {0, 8}, {8}}, {{"bias", 1}, {"gelu", 1}, {"pre", 1}}, false},
      {"linear_grad_gelu", "amn,kn->amk", {{3, 5, 20}, {16, 20}, {3, 5, 16}}, {}, true},
      {"linear_grad_gelu", "amn,kn->amk", {{3, 5, 20}, {15, 20}, {3, 5, 15}}, {}, false},
      {"linear_grad_weight", "amk,amn->kn", {{3, 5, 20}, {3, 5, 13}}, {{"bias_rank", 1}}, true},
      {"linear_grad_weight", "bsw,bshd->whd", {{3, 7, 20}, {3, 7, 4, 5}}, {{"bias_rank", 2}}, true},
      {"linear_grad_weight", "bshd,bsw->hdw", {{3, 7, 4, 5}, {3, 7, 20}}, {{"bias_rank", 1}}, true},
      {"linear_grad_weight", "sbk,bsn->kn", {{7, 3, 20}, {3, 7, 13}}, {{"bias_rank", 1}}, false},
      {"linear_grad_weight", "amk,amn->kn", {{3, 0, 20}, {3, 0, 13}}, {{"bias_rank", 1}}, false}};
  uint64_t seed = 300;
  for (const Case& c : cases) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      std::mt19937_64 random(++seed);
      Attrs attrs = c.attrs;
      attrs.Set("equation", c.equation);
      if (c.op == "linear_grad_weight") attrs.Set("dtype", std::string("f32"));
      OpCall call{c.op, c.op, c.in, {}, &attrs};
      Tensors in, out;
      for (const Dims& shape : c.in) {
        in.emplace_back(dtype, shape);
        in.back().Draw(&random);
        call.dtypes.push_back(dtype);
      }
      const bool gelu = attrs.Has("gelu") || c.op == "linear_grad_gelu";
      Inferred inferred = Infer(BuiltinCatalog().Get(c.op), call);
      for (size_t o = 0; o < inferred.dtypes.size(); ++o)
        out.emplace_back(inferred.dtypes[o], inferred.rule.out[o].shape);
      std::string what = Cat(c.op, " ", attrs.str(), " ", Name(dtype), ", seed ", seed);
      CheckOp(what, c.op, attrs, in, out);
      if (HasFatalFailure()) return;
      EXPECT_EQ(OperationsOf(c.op, attrs, in, out) == 1, c.one_launch && (dtype != DType::kFloat32 || !gelu))
          << what;
      cuda_emulator::RefuseEpilogues(true);
      CheckOp(what + ", refused by the library", c.op, attrs, in, out);
      cuda_emulator::RefuseEpilogues(false);
      if (c.op == "linear_grad_weight") {
        attrs.Set("gemm_choice", kSumsApart + 1);
        CheckOp(what + ", sums apart", c.op, attrs, in, out);
        if (c.one_launch) {
          EXPECT_EQ(OperationsOf(c.op, attrs, in, out), 2) << what << ", sums apart";
        }
      }
      attrs.Set("steps", int64_t{1});
      CheckOp(what + ", by steps", c.op, attrs, in, out);
    }
  }
}

TEST(CudaProduct, Tf32IsOffUnlessAskedFor) {
  ContractionTypes types{DType::kFloat32, DType::kFloat32};
  EXPECT_EQ(PlanContraction(EinsumLabels("mk,kn->mn"), {4, 4}, {4, 4}, types, 0).gemm.tf32, 0);
  types.tf32 = true;
  EXPECT_EQ(PlanContraction(EinsumLabels("mk,kn->mn"), {4, 4}, {4, 4}, types, 0).gemm.tf32, 1);
}

// --- Attention

struct AttentionCase {
  int64_t queries, begin, s, keys, width;
  bool causal;
  double dropout;
  int64_t group = 1, window = 0;
};

void CheckAttention(const AttentionCase& a, DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string what = Cat("attention ", Name(dtype), " of ", a.s, " queries from ", a.begin, " and ", a.keys,
                         " keys, width ", a.width, ", causal ", a.causal, ", dropout ", a.dropout, ", group ",
                         a.group, ", window ", a.window, ", seed ", seed);
  auto piece = [&](int64_t whole, int64_t begin, int64_t extent, int64_t group) {
    return Tensor(dtype, {3, whole, 4 * group, a.width}, {1, begin, group, 0},
                  {2, extent, 2 * group, a.width});
  };
  Tensor q = piece(a.queries, a.begin, a.s, a.group), k = piece(a.keys, 0, a.keys, 1), v = k, dout = q;
  Tensor lse(DType::kFloat32, {3, 4 * a.group, a.queries}, {1, a.group, a.begin}, {2, 2 * a.group, a.s});
  for (Tensor* x : {&q, &k, &v, &dout}) x->Draw(&random);
  Attrs attrs = {{"causal", int64_t{a.causal}}, {"dropout", a.dropout}, {"scale", 0.0}, {"key", int64_t{17}}};
  if (a.window != 0) attrs.Set("window", a.window);
  CheckOp(what, "attention", attrs, {q, k, v}, {q, lse});
  Tensors in = {q, k, v}, out = {q, lse};
  RunReference("attention", attrs, &in, &out);
  CheckOp("gradient of " + what, "attention_grad", attrs, {dout, q, k, v, out[0], out[1]}, {q, k, v});
}

const AttentionCase kCases[] = {
    {70, 0, 70, 70, 64, true, 0},
    {70, 0, 70, 70, 64, true, 0.2},
    {65, 0, 65, 65, 16, false, 0},
    {5, 0, 5, 100, 24, true, 0},
    {1, 0, 1, 1, 3, true, 0},
    {50, 15, 30, 50, 32, true, 0.3},
    {32, 0, 32, 64, 80, true, 0},
    {10, 0, 0, 10, 8, true, 0},
    {33, 0, 33, 34, 300, false, 0.5},
    {100, 64, 36, 100, 40, true, 0},
    {3, 0, 3, 3, 5, false, 0},
    {40, 0, 40, 20, 8, false, 0},
    // Heads that share keys, and windows.
    {70, 0, 70, 70, 16, true, 0, 3},
    {20, 0, 20, 45, 24, false, 0, 2},
    {1, 0, 1, 60, 16, true, 0, 4},
    {70, 0, 70, 70, 16, true, 0, 1, 20},
    {40, 0, 40, 70, 16, true, 0, 2, 11},
    {1, 0, 1, 60, 16, true, 0, 2, 8},
    {90, 20, 30, 90, 16, true, 0, 2},
    {90, 0, 30, 90, 16, true, 0, 1, 12},
    {90, 31, 1, 90, 8, true, 0},
    {30, 0, 30, 30, 8, true, 0, 1, 30},
    {30, 0, 30, 30, 8, false, 0, 1, 9},
};

TEST(CudaAttention, OwnKernels) {
  SetFlash(false);
  uint64_t seed = 4000;
  for (const AttentionCase& a : kCases) {
    CheckAttention(a, DType::kFloat32, ++seed);
    CheckAttention(a, DType::kBFloat16, ++seed);
  }
  CheckAttention(kCases[0], DType::kFloat16, ++seed);
  SetFlash(true);
}

TEST(CudaAttention, ByTheLibraryWhereItTakesTheShape) {
  uint64_t seed = 5000;
  for (const AttentionCase& a : kCases) {
    ++seed;
    const int64_t before = Counted(LibraryUse::kAttention);
    CheckAttention(a, seed % 2 ? DType::kFloat16 : DType::kBFloat16, seed);
    const bool ends = !a.causal || a.begin + a.keys - a.queries >= 0;  // the first query sees a key
    const bool takes = a.dropout == 0 && a.s > 0 && a.width % 8 == 0 && a.width <= 128 && ends &&
                       (a.window == 0 || a.causal);
    EXPECT_EQ(Counted(LibraryUse::kAttention) - before, takes ? 2 : 0)
        << a.s << " queries, " << a.keys << " keys, group " << a.group << ", window " << a.window;
  }
}

// Documents, or positions, that queries and keys have in common: the library gets a mask.
void CheckMasked(bool documents, bool of_batch, bool causal, int64_t window, int64_t group, bool same,
                 DType dtype) {
  const std::string what = Cat(documents ? "documents" : "positions", " ", of_batch, " causal ", causal,
                               " window ", window, " group ", group, " same ", same, " ", Name(dtype));
  std::mt19937_64 random(900);
  const int64_t batch = 3, tokens = 37, width = 16;
  Tensor q(dtype, {batch, tokens, 2 * group, width}), k(dtype, {batch, tokens, 2, width}), v = k, dout = q;
  for (Tensor* x : {&q, &k, &v, &dout}) x->Draw(&random);
  Tensor lse(DType::kFloat32, {batch, 2 * group, tokens});
  Tensor rows(DType::kInt32, of_batch ? Dims{batch, tokens} : Dims{tokens});
  for (int64_t i = 0; i < rows.arg.elements(); ++i)
    StoreFloat(rows.Arg(), i, documents ? i % tokens / (5 + i / tokens * 4) : (i * 7 + i / tokens) % tokens);
  Tensor other = rows;
  if (!same) StoreFloat(other.Arg(), 0, 90);
  Attrs attrs = {{"causal", int64_t{causal}}, {"dropout", 0.0}, {"scale", 0.0}, {"key", int64_t{17}}};
  attrs.Set("masks",
            std::string(documents ? "query_documents key_documents" : "query_positions key_positions"));
  if (window != 0) attrs.Set("window", window);
  const int64_t before = Counted(LibraryUse::kAttention);
  CheckOp(what, "attention", attrs, {q, k, v, rows, other}, {q, lse});
  Tensors in = {q, k, v, rows, other}, out = {q, lse};
  RunReference("attention", attrs, &in, &out);
  CheckOp("gradient of " + what, "attention_grad", attrs, {dout, q, k, v, out[0], out[1], rows, other},
          {q, k, v});
  EXPECT_EQ(Counted(LibraryUse::kAttention) - before, same ? 2 : 0) << what;
}

TEST(CudaAttention, MasksOfOperandsByTheLibrary) {
  for (bool of_batch : {false, true})
    for (DType dtype : {DType::kBFloat16, DType::kFloat16})
      for (bool same : {true, false}) {
        CheckMasked(true, of_batch, false, 0, 1, same, dtype);
        CheckMasked(true, of_batch, true, 0, 3, same, dtype);
        CheckMasked(true, of_batch, true, 9, 1, same, dtype);
        CheckMasked(true, of_batch, false, 9, 2, same, dtype);
        CheckMasked(false, of_batch, true, 0, 2, same, dtype);
        CheckMasked(false, of_batch, true, 8, 1, same, dtype);
        CheckMasked(false, of_batch, false, 8, 1, same, dtype);
      }
}

TEST(CudaAttention, WhatTheLibraryMayTake) {
  FlashShape shape{2, 3, 64, 64, 64, 3, 64, DType::kBFloat16, false, true, 0, 0, 0, 0.125f};
  EXPECT_TRUE(MayFlash(shape));
  FlashShape wide = shape, odd = shape, full = shape, shifted = shape, empty = shape;
  wide.width = 264;
  odd.width = 20;
  full.dtype = DType::kFloat32;
  shifted.shift = 5;
  empty.batch = 0;
  for (const FlashShape& s : {wide, odd, full, shifted, empty}) EXPECT_FALSE(MayFlash(s));
  shifted.keys = 69;  // the last query sees the last key
  EXPECT_TRUE(MayFlash(shifted));
  FlashShape window = shape;
  window.window = 9;
  EXPECT_TRUE(MayFlash(window));
  window.causal = false;
  EXPECT_FALSE(MayFlash(window));
}

}  // namespace
}  // namespace oneflow_like::cuda
