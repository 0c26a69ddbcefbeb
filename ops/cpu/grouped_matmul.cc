// grouped_matmul and the gradient of its matrices by one dnnl_sgemm for each expert. Many small groups share
// the threads, few large ones use them all, one after another. Operands of 16-bit types are widened into
// buffers of the kernel's own.
#include <dnnl.h>

#include <cstring>
#include <vector>

#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/groups.h"

namespace oneflow_like::cpu {
namespace {

struct ExpertRows {
  int64_t expert, begin, end;  // rows
};

// Operands in fp32, and the groups of an act.
class Grouped : public Kernel {
 public:
  Grouped(const KernelSpec& spec, int64_t experts) : groups_(experts) {
    const TensorArg* operands[] = {&spec.in[0], &spec.in[1], &spec.out[0]};
    for (int i = 0; i < 3; ++i) {
      if (operands[i]->dtype != DType::kFloat32) wide_[i].resize(operands[i]->elements());
    }
  }

 protected:
  const float* Widened(const TensorArg& x, int which) {
    if (x.dtype == DType::kFloat32) return x.as<float>();
    float* to = wide_[which].data();
    DispatchFloating(x.dtype, [&](auto t) {
      using T = decltype(t);
      ParallelFor(x.elements(), kGrain,
                  [&](int64_t i, int64_t end) { Widen(x.as<T>() + i, end - i, to + i); });
    });
    return to;
  }
  float* Result(const TensorArg& y) { return wide_[2].empty() ? y.as<float>() : wide_[2].data(); }
  void NarrowResult(const TensorArg& y) {
    if (wide_[2].empty()) return;
    const float* from = wide_[2].data();
    DispatchFloating(y.dtype, [&](auto t) {
      using T = decltype(t);
      ParallelFor(y.elements(), kGrain,
                  [&](int64_t i, int64_t end) { Narrow(from + i, end - i, y.as<T>() + i); });
    });
  }

  // body(group) for all experts held here; `flops` of a row.
  template <typename F>
  void ForEach(const TensorArg& counts, const TensorArg& x, const TensorArg& w, double flops, F body) {
    int64_t n = 0;
    ForGroups(counts, x, w.begin[0], w.extent[0], [&](int64_t e, int64_t begin, int64_t end) {
      groups_[n++] = {e, begin, end};
    });
    int64_t rows = n > 0 ? groups_[n - 1].end - groups_[0].begin : 0;
    bool spread =
        n >= 2 * ParallelThreads() && flops * static_cast<double>(rows) < 2e7 * static_cast<double>(n);
    if (!spread) {
      for (int64_t i = 0; i < n; ++i) body(groups_[i]);
      return;
    }
    ParallelFor(n, 1, [&](int64_t low, int64_t high) {
      for (int64_t i = low; i < high; ++i) body(groups_[i]);
    });
  }
  const std::vector<ExpertRows>& groups() const { return groups_; }

 private:
  std::vector<ExpertRows> groups_;
  std::vector<float> wide_[3];
};

class RowsProduct : public Grouped {
 public:
  explicit RowsProduct(const KernelSpec& spec)
      : Grouped(spec, spec.in[1].extent[0]), transposed_(spec.attrs.Int("transposed", 0) != 0) {}

  Status Run(const KernelContext& context) override {
    const TensorArg &x = context.in[0], &w = context.in[1], &counts = context.in[2], &y = context.out[0];
    Status checked = CheckCounts(counts, x.global[0]);
    const int64_t k = x.extent[1], m = y.extent[1], experts = w.extent[0];
    if (!checked.ok() || y.elements() == 0) return checked;
    const float *a = Widened(x, 0), *b = Widened(w, 1);
    float* to = Result(y);
    ForEach(counts, x, w, 2.0 * static_cast<double>(k) * static_cast<double>(m), [&](const ExpertRows& g) {
      const int64_t rows = g.end - g.begin;
      if (rows == 0) return;
      if (k == 0) {
        std::memset(to + g.begin * m, 0, rows * m * sizeof(float));
        return;
      }
      dnnl_sgemm('N', transposed_ ? 'T' : 'N', rows, m, k, 1.0f, a + g.begin * k, k, b + g.expert * k * m,
                 transposed_ ? k : m, 0.0f, to + g.begin * m, m);
    });
    // Rows of experts that are held elsewhere, and of none.
    const int64_t first = experts > 0 ? groups()[0].begin : 0,
                  last = experts > 0 ? groups()[experts - 1].end : 0;
    FillZero(to, first * m * static_cast<int64_t>(sizeof(float)));
    FillZero(to + last * m, (y.extent[0] - last) * m * static_cast<int64_t>(sizeof(float)));
    NarrowResult(y);
    return checked;
  }

 private:
  bool transposed_;
};

class GradWeight : public Grouped {
 public:
  explicit GradWeight(const KernelSpec& spec) : Grouped(spec, spec.out[0].extent[0]) {}

  Status Run(const KernelContext& context) override {
    const TensorArg &x = context.in[0], &dy = context.in[1], &counts = context.in[2], &dw = context.out[0];
    Status checked = CheckCounts(counts, x.global[0]);
    const int64_t k = x.extent[1], m = dy.extent[1];
    if (!checked.ok() || dw.elements() == 0) return checked;
    const float *a = Widened(x, 0), *b = Widened(dy, 1);
    float* to = Result(dw);
    ForEach(counts, x, dw, 2.0 * static_cast<double>(k) * static_cast<double>(m), [&](const ExpertRows& g) {
      const int64_t rows = g.end - g.begin;
      if (rows == 0) {
        std::memset(to + g.expert * k * m, 0, k * m * sizeof(float));
        return;
      }
      dnnl_sgemm('T', 'N', k, m, rows, 1.0f, a + g.begin * k, k, b + g.begin * m, m, 0.0f,
                 to + g.expert * k * m, m);
    });
    NarrowResult(dw);
    return checked;
  }
};

}  // namespace

KernelPtr MakeGroupedMatmul(const KernelSpec& spec) { return std::make_unique<RowsProduct>(spec); }
KernelPtr MakeGroupedMatmulGradWeight(const KernelSpec& spec) { return std::make_unique<GradWeight>(spec); }

}  // namespace oneflow_like::cpu
