// Products that are added up over micro-batches (Accumulates, ops/equation.h), of any kind of device: beside
// the sum of the reference kernel's products, which do not add. The result's memory before the first
// micro-batch, and behind it, is as if nobody had written there.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "ops/equation.h"
#include "tests/ops/kernel_cases.h"

namespace oneflow_like {

using MakeKernelFn = std::function<std::unique_ptr<Kernel>(const KernelSpec&)>;

// A product of operands of `dtype` to fp32, of which acts have as many of `rows` as the batch has left.
struct AccumulateCase {
  std::string op, equation;
  Dims a, b;
  DType dtype;
  int64_t bias_rank = 0;
  bool steps = false;  // where a library could do all at once

  std::string str() const {
    return Cat(op, " ", equation, " of ", Name(dtype), " ", a.str(), " ", b.str(), steps ? " by steps" : "");
  }
  Attrs attributes() const {
    Attrs attrs = {{"equation", equation}, {"dtype", std::string("f32")}};
    if (bias_rank > 0) attrs.Set("bias_rank", bias_rank);
    if (steps) attrs.Set("steps", int64_t{1});
    return attrs;
  }
};

// A step of three acts and the next step's first two. `rows`: of each act, of the outer axis of a and b,
// which is summed; 0 has nothing to add. Empty: all.
inline void CheckAccumulates(const AccumulateCase& c, const std::vector<int64_t>& rows,
                             const MakeKernelFn& make, uint64_t seed) {
  const std::string what = Cat(c.str(), ", seed ", seed);
  std::mt19937_64 random(seed);
  const Attrs plain = c.attributes();
  Operands got = OutputsOf({c.op, {c.a, c.b}, plain, {c.dtype, c.dtype}}), want = got;
  Operands whole = {Operand(c.dtype, c.a), Operand(c.dtype, c.b)};
  KernelSpec spec;
  spec.name = c.op;
  spec.attrs = plain;
  spec.attrs.Set(kAccumulates, int64_t{1});
  for (const Operand& o : whole) spec.in.push_back(o.arg);
  for (const Operand& o : got) spec.out.push_back(o.arg);
  std::unique_ptr<Kernel> kernel = make(spec);
  std::vector<double> sum;
  for (int act = 0; act < 5; ++act) {
    const int64_t time = act % 3;
    Operands in;
    for (const Dims& shape : {c.a, c.b}) {
      Dims extent = shape;
      if (!rows.empty()) extent[0] = rows[static_cast<size_t>(act) % rows.size()];
      in.emplace_back(c.dtype, shape, Dims(shape.rank(), 0), extent);
      in.back().Draw(&random, -1.5, 1.5, 4);
    }
    KernelSpec now = spec;
    now.in = {in[0].Arg(), in[1].Arg()};
    for (size_t i = 0; i < got.size(); ++i) now.out[i] = got[i].Arg();
    const Status status = kernel->Run({now, now.in, now.out, nullptr, act / 3, time, 3, 77});
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    KernelSpec reference = now;
    reference.attrs = plain;
    for (size_t i = 0; i < want.size(); ++i) reference.out[i] = want[i].Arg();
    ASSERT_TRUE(BuiltinCatalog().Get(c.op).reference({reference, reference.in, reference.out}).ok()) << what;
    sum.resize(static_cast<size_t>(want[0].arg.elements()));
    for (size_t i = 0; i < sum.size(); ++i) {
      const double term = want[0].At(static_cast<int64_t>(i));
      sum[i] = time == 0 ? term : sum[i] + term;
      StoreFloat(want[0].Arg(), static_cast<int64_t>(i), sum[i]);
    }
    for (size_t i = 0; i < got.size(); ++i)
      ExpectClose(Cat(what, ", act ", act, ", output ", i), &got[i], &want[i], 2);
    for (const Operand& o : got) ASSERT_FALSE(o.WrittenBehind()) << what;
  }
}

// The same of the gradients of a head in tiles: dw is added up over tiles and over acts, dx is each act's.
// Acts have 20 rows, in three tiles, and fewer.
inline void CheckAccumulatesHead(DType dtype, const MakeKernelFn& make, uint64_t seed) {
  using enum DType;
  constexpr int64_t kRows = 20, kHidden = 16, kClasses = 24;
  const OpDef& def = BuiltinCatalog().Get("linear_cross_entropy_grad");
  const Attrs plain = {{"tile", int64_t{8}}, {"dw", int64_t{1}}, {"dx", int64_t{1}}};
  std::mt19937_64 random(seed);
  Operand w(dtype, {kClasses, kHidden}), got(kFloat32, {kClasses, kHidden}), want = got;
  w.Draw(&random, -1, 1, 4);
  std::vector<double> sum(static_cast<size_t>(kClasses * kHidden));
  std::unique_ptr<Kernel> kernel;
  for (int act = 0; act < 5; ++act) {
    const int64_t rows = std::vector<int64_t>{20, 19, 1, 0, 20}[static_cast<size_t>(act)], time = act % 3;
    const Dims row = {rows}, whole = {kRows};
    Operands in = {Operand(dtype, {kRows, kHidden}, {0, 0}, {rows, kHidden}), w,
                   Operand(kInt64, whole, {0}, row), Operand(kFloat32, whole, {0}, row),
                   Operand(kFloat32, whole, {0}, row)};
    for (Operand& o : in)
      if (&o != &in[1]) o.Draw(&random, 1, 2, kClasses);
    Operand dx(dtype, {kRows, kHidden}, {0, 0}, {rows, kHidden}), want_dx = dx;
    KernelSpec spec{.name = def.name, .attrs = plain};
    for (Operand& o : in) spec.in.push_back(o.Arg());
    KernelSpec reference = spec;
    reference.out = {want.Arg(), want_dx.Arg()};
    std::vector<char> scratch(static_cast<size_t>(def.scratch(reference)) + 64);
    void* const room = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
    ASSERT_TRUE(ReferenceKernel(def)(reference)->Run({reference, reference.in, reference.out, room}).ok());
    for (size_t i = 0; i < sum.size(); ++i) {
      const double term = want.At(static_cast<int64_t>(i));
      sum[i] = time == 0 ? term : sum[i] + term;
      StoreFloat(want.Arg(), static_cast<int64_t>(i), sum[i]);
    }
    spec.attrs.Set(kAccumulates, int64_t{1});
    spec.out = {got.Arg(), dx.Arg()};
    if (!kernel) kernel = make(spec);
    const Status status = kernel->Run({spec, spec.in, spec.out, nullptr, act / 3, time, 3, 77});
    const std::string what = Cat("a head in ", Name(dtype), ", act ", act);
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    ExpectClose(what + ", dw", &got, &want, 2);
    ExpectClose(what + ", dx", &dx, &want_dx, 2);
    ASSERT_FALSE(got.WrittenBehind() || dx.WrittenBehind()) << what;
  }
}

// Every kind of contraction, in every type; `with_bias`: gradients of biases, too.
inline void AccumulateCases(const MakeKernelFn& make, bool with_bias) {
  uint64_t seed = 70;
  const auto check = [&](const std::string& op, const std::string& equation, const Dims& a, const Dims& b,
                         int64_t bias_rank) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
      for (bool steps : {false, true}) {
        if (steps && bias_rank == 0) continue;
        const AccumulateCase c{op, equation, a, b, dtype, bias_rank, steps};
        CheckAccumulates(c, {}, make, ++seed);
        const Equation e = ParseEquation(op, equation);
        if (e.a[0] == e.b[0] && !HasLabel(e.y, e.a[0]) && a[0] > 1)
          CheckAccumulates(c, {a[0], a[0] - 1, 1, 0, a[0]}, make, ++seed);
      }
  };
  check("einsum", "bsw,bshd->whd", {3, 7, 20}, {3, 7, 4, 5}, 0);
  check("einsum", "bshd,bsw->hdw", {3, 7, 4, 5}, {3, 7, 20}, 0);
  check("einsum", "amk,amn->kn", {4, 16, 64}, {4, 16, 72}, 0);
  check("einsum", "amk,amn->nk", {4, 16, 64}, {4, 16, 72}, 0);  // stored transposed
  check("einsum", "mk,mn->kn", {203, 3}, {203, 150}, 0);        // few rows
  check("einsum", "mk,mn->kn", {1, 40}, {1, 33}, 0);
  check("einsum", "bsv,bsw->vw", {2, 33, 19}, {2, 33, 40}, 0);
  check("einsum", "sdb,tdb->stb", {9, 16, 12}, {8, 16, 12}, 0);  // permuted
  check("einsum", "kab,kba->ab", {30, 5, 6}, {30, 6, 5}, 0);
  check("einsum", "mkl,lkn->mn", {8, 3, 9}, {9, 3, 10}, 0);  // the sum does not merge
  check("einsum", "mkl,kln->mn", {8, 3, 9}, {3, 9, 10}, 0);
  check("einsum", "amk,akn->man", {3, 8, 9}, {3, 9, 10}, 0);
  check("einsum", "i,i->", {70}, {70}, 0);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    CheckAccumulatesHead(dtype, make, ++seed);
  if (!with_bias) return;
  check("linear_grad_weight", "mk,mn->kn", {24, 16}, {24, 32}, 1);
  check("linear_grad_weight", "amk,amn->kn", {2, 3, 5}, {2, 3, 7}, 1);
  check("linear_grad_weight", "bsw,bshd->whd", {2, 3, 8}, {2, 3, 2, 4}, 2);
  check("linear_grad_weight", "bshd,bsw->hdw", {2, 3, 2, 4}, {2, 3, 8}, 1);
}

}  // namespace oneflow_like
