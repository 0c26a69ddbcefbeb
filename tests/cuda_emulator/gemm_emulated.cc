// Matrix products of the emulator: loops that read the descriptor cuBLASLt would get, element by element as
// its documentation defines it.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "core/float16.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/product_choices.h"
#include "ops/scalar.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/state.h"

namespace oneflow_like::cuda {
namespace {

float Read(const void* from, DType type, int64_t at) {
  if (type == DType::kBFloat16) return ToFloat(static_cast<const BFloat16*>(from)[at]);
  if (type == DType::kFloat16) return ToFloat(static_cast<const Float16*>(from)[at]);
  return static_cast<const float*>(from)[at];
}

void Write(void* to, DType type, int64_t at, float value) {
  if (type == DType::kBFloat16) {
    static_cast<BFloat16*>(to)[at] = ToBFloat16(value);
  } else if (type == DType::kFloat16) {
    static_cast<Float16*>(to)[at] = ToFloat16(value);
  } else {
    static_cast<float*>(to)[at] = value;
  }
}

// `i`: of the vector, with the batch's stride.
float Finish(const GemmDescriptor& g, const GemmOperands& p, int64_t i, int64_t at_aux, float sum) {
  DType out = static_cast<DType>(g.out);
  switch (g.epilogue) {
    case Epilogue::kBias:
      return sum + Read(p.bias, out, i);
    case Epilogue::kGeluBias: {
      float x = sum + Read(p.bias, out, i);
      if (g.ld_aux > 0) Write(p.aux, out, at_aux, x);
      return scalar::Gelu()(x);
    }
    case Epilogue::kGeluGrad:
    case Epilogue::kGeluGradBias:
      return scalar::GeluGrad()(sum, Read(p.aux, out, at_aux));
    case Epilogue::kBiasGradA:
    case Epilogue::kNone:
      break;
  }
  return sum;
}

// Matrix `batch` of an operand: rows of `columns` neighbours.
std::vector<float> Rows(const void* from, DType type, int64_t at, int64_t rows, int64_t columns,
                        int64_t to_next_row, int64_t to_next_column) {
  std::vector<float> matrix(rows * columns);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      matrix[i * columns + j] = Read(from, type, at + i * to_next_row + j * to_next_column);
  return matrix;
}

// N neighbours of a column of a product: terms are added one by one, from the first. a: rows of `m`.
template <int N>
[[gnu::no_sanitize("alignment")]] void Sum(const float* a, int64_t m, const float* b, int64_t k, float* to) {
  float sum[N] = {};
  for (int64_t l = 0; l < k; ++l)
    for (int i = 0; i < N; ++i) sum[i] += a[l * m + i] * b[l];
  std::copy_n(sum, N, to);
}

void Multiply(const GemmDescriptor& g, const GemmOperands& p) {
  DType in = static_cast<DType>(g.in), out = static_cast<DType>(g.out);
  std::vector<float> total(g.epilogue == Epilogue::kGeluGradBias ? g.m : 0), column(g.m);
  for (int64_t batch = 0; batch < g.batch; ++batch) {
    int64_t at_d = batch * g.stride_d;
    const std::vector<float> a = Rows(p.a, in, batch * g.stride_a, g.k, g.m, g.transposed_a ? 1 : g.lda,
                                      g.transposed_a ? g.lda : 1),
                             b = Rows(p.b, in, batch * g.stride_b, g.n, g.k, g.transposed_b ? 1 : g.ldb,
                                      g.transposed_b ? g.ldb : 1);
    for (int64_t j = 0; j < g.n; ++j) {
      int64_t done = 0;
      for (; done + 16 <= g.m; done += 16) Sum<16>(&a[done], g.m, &b[j * g.k], g.k, &column[done]);
      for (; done < g.m; ++done) Sum<1>(&a[done], g.m, &b[j * g.k], g.k, &column[done]);
      for (int64_t i = 0; i < g.m; ++i) {
        float sum = column[i];
        if (g.adds_c) sum += Read(p.c, out, at_d + i + j * g.ldd);
        float value = Finish(g, p, batch * g.stride_bias + i, i + j * g.ld_aux, sum);
        if (!total.empty()) total[i] += value;
        Write(p.d, out, at_d + i + j * g.ldd, value);
      }
    }
  }
  for (size_t i = 0; i < total.size(); ++i) Write(p.bias, out, i, total[i]);
  if (g.epilogue != Epilogue::kBiasGradA) return;
  for (int64_t batch = 0; batch < g.batch; ++batch)
    for (int64_t i = 0; i < g.m; ++i) {
      float sum = 0;
      for (int64_t l = 0; l < g.k; ++l)
        sum += Read(p.a, in, batch * g.stride_a + (g.transposed_a ? l + i * g.lda : i + l * g.lda));
      Write(p.bias, out, batch * g.stride_bias + i, sum);
    }
}

constexpr int kProposals = 3;
std::atomic<bool> epilogues_refused{false};
std::atomic<cuda_emulator::Refused> products_refused{cuda_emulator::Refused::kNone};
std::array<std::atomic<int64_t>, kProposals> proposal_nanoseconds = {};
std::atomic<int> proposals_timed{1};
std::atomic<int64_t> bias_grad_nanoseconds{0}, batch_nanoseconds{0};
std::atomic<bool> proposals_spoiled{false};

// On the thread of the stream.
void Spend(int64_t proposal, const GemmDescriptor& g) {
  int64_t more = g.epilogue == Epilogue::kBiasGradA ? bias_grad_nanoseconds.load() : 0;
  if (g.batch > 1) more += batch_nanoseconds;
  cuda_emulator::ThisThread().running->stated +=
      std::chrono::nanoseconds(proposal_nanoseconds[proposal] + more);
}

void Spoil(const GemmDescriptor& g, const GemmOperands& p) {
  const DType out = static_cast<DType>(g.out);
  Write(p.d, out, g.m - 1, Read(p.d, out, g.m - 1) * 2 + 1);
}

class EmulatedGemm : public Gemm {
 public:
  explicit EmulatedGemm(const GemmDescriptor& descriptor) : what_(descriptor) {
    if (what_.choice == kDecided) Choices().Want(what_);
  }
  const GemmDescriptor& descriptor() const override { return what_; }

  Status Check() override {
    using cuda_emulator::Refused;
    if (what_.choice >= kProposals) return Status("no algorithm");
    if (int device = 0; proposal_ < 0 && cudaGetDevice(&device) == cudaSuccess) {
      proposal_ = std::min<int64_t>(ProposalFor(what_, device), kProposals - 1);
      if (what_.choice == kDecided) Choices().Settle(WorkOf(what_, device));
    }
    bool interleaved = what_.batch > 1 && what_.stride_d < what_.ldd * what_.n;
    if (products_refused == Refused::kAll || (products_refused == Refused::kInterleaved && interleaved))
      return Status("no algorithm");
    bool plain = what_.epilogue == Epilogue::kNone && !what_.adds_c;
    return plain || !epilogues_refused ? Status() : Status("no algorithm");
  }

  Status Launch(const GemmOperands& operands, const LaunchContext& launch) override {
    if (Status status = Check(); !status.ok()) return status;
    const GemmDescriptor& g = what_;
    bool fits =
        g.lda >= (g.transposed_a ? g.k : g.m) && g.ldb >= (g.transposed_b ? g.n : g.k) && g.ldd >= g.m;
    fits = fits && g.m > 0 && g.n > 0 && g.k > 0 && g.batch > 0 && (g.batch == 1 || g.stride_d > 0);
    // Kernels of Hopper load matrices by maps whose strides have no sign.
    fits = fits && g.stride_a >= 0 && g.stride_b >= 0;
    if (!fits) return Status("the library refuses a leading dimension or an extent");
    for (const void* p : {operands.a, operands.b, static_cast<const void*>(operands.d)})
      if (reinterpret_cast<uintptr_t>(p) % g.alignment != 0)
        return Status("an operand is less aligned than promised");
    if (g.adds_c && operands.c == nullptr) return Status("there is no c to add");
    cuda_emulator::LoadCode(this);  // each algorithm has its own
    cuda_emulator::Enqueue(launch.stream, [g, operands, proposal = proposal_] {
      if (const int delay = cuda_emulator::TheWorld().tf32_delay_us; g.tf32 && delay > 0)
        std::this_thread::sleep_for(std::chrono::microseconds(delay));
      Multiply(g, operands);
      if (proposals_spoiled && proposal > 0) Spoil(g, operands);
      Spend(proposal, g);
    });
    return Status();
  }

 private:
  GemmDescriptor what_;
  int64_t proposal_ = -1;  // settled when it is first asked for
};

}  // namespace

GemmLibrary DescribeGemmLibrary() { return {"emulated", proposals_timed}; }

std::unique_ptr<Gemm> MakeGemm(const GemmDescriptor& descriptor) {
  return std::make_unique<EmulatedGemm>(descriptor);
}

}  // namespace oneflow_like::cuda

namespace cuda_emulator {
void RefuseEpilogues(bool refuse) { oneflow_like::cuda::epilogues_refused = refuse; }
void RefuseProducts(Refused which) { oneflow_like::cuda::products_refused = which; }
void SetBiasGradTime(double seconds) {
  oneflow_like::cuda::bias_grad_nanoseconds = std::llround(1e9 * seconds);
}
void SetBatchTime(double seconds) { oneflow_like::cuda::batch_nanoseconds = std::llround(1e9 * seconds); }
void SpoilProposals(bool spoil) { oneflow_like::cuda::proposals_spoiled = spoil; }
void SetProposalTimes(const std::vector<double>& seconds) {
  using namespace oneflow_like::cuda;
  proposals_timed = std::clamp(static_cast<int>(seconds.size()), 1, kProposals);
  for (int i = 0; i < kProposals; ++i)
    proposal_nanoseconds[i] =
        seconds.empty() ? 0 : std::llround(1e9 * seconds[std::min<size_t>(i, seconds.size() - 1)]);
}
}  // namespace cuda_emulator
