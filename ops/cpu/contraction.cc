// matmul and einsum through oneDNN's sgemm. Every label of the two operands and the result belongs to one
// class: batch (in all three), m (a and y), n (b and y) or k (a and b). Neighbouring labels of a class merge
// where they run on in every operand that has them; one group of each class makes the matrix product, the
// others are looped over. The plan is made when the kernel is, and again only when an act brings other
// extents.
//
// Where the machine multiplies bf16 faster than fp32 (NarrowProduct), operands in bf16 are multiplied as they
// are. Two cases go through buffers of the kernel's own: other operands of 16-bit types, which are widened,
// and layouts no product fits (a batch label innermost), which are permuted to [batch m k], [batch k n] ->
// [batch m n].
#include <dnnl.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/convert.h"
#include "ops/cpu/few_rows.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/narrow_product.h"
#include "ops/equation.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

enum Class { kBatch, kM, kN, kK, kClasses };

struct Group {
  int64_t extent = 1, a = 0, b = 0, y = 0;  // strides, 0 where the operand lacks it
};

constexpr int kMaxLabels = 3 * Dims::kMaxRank;

struct GroupList {
  int size = 0;
  Group at[kMaxLabels];
  void Add(const Group& g) { at[size++] = g; }
};

// One matrix as oneDNN wants it: row-major, 'N', or stored transposed, 'T'.
struct Matrix {
  char trans;
  int64_t ld;
};
Matrix MatrixOf(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  if (column_stride == 1 || columns == 1)
    return {'N', std::max({rows == 1 ? columns : row_stride, columns, int64_t{1}})};
  return {'T', std::max({column_stride, rows, int64_t{1}})};
}

struct Plan {
  GroupList groups[kClasses];
  Group m, n, k;            // of the product
  GroupList outer, summed;  // looped over: parts of y, and parts of the sum
  int64_t outer_count = 1, summed_count = 1;
  double volume = 0;  // m n k
};

// Whether x[i j], with these strides, is a matrix with one dense side.
bool Dense(const Group& i, int64_t si, const Group& j, int64_t sj) {
  return i.extent == 1 || j.extent == 1 || si == 1 || sj == 1;
}

void AddMerged(GroupList* list, Group next) {
  if (list->size > 0) {
    Group& last = list->at[list->size - 1];
    if (last.a == next.a * next.extent && last.b == next.b * next.extent && last.y == next.y * next.extent) {
      next.extent *= last.extent;
      last = next;
      return;
    }
  }
  list->Add(next);
}

void Choose(Plan* plan) {
  const Group none;
  const GroupList &ms = plan->groups[kM], &ns = plan->groups[kN], &ks = plan->groups[kK];
  int best[3] = {-1, -1, -1};
  plan->volume = 0;
  for (int i = -1; i < ms.size; ++i) {
    for (int j = -1; j < ns.size; ++j) {
      for (int l = -1; l < ks.size; ++l) {
        const Group &m = i < 0 ? none : ms.at[i], &n = j < 0 ? none : ns.at[j], &k = l < 0 ? none : ks.at[l];
        double volume = static_cast<double>(m.extent) * n.extent * k.extent;
        if (volume <= plan->volume) continue;
        if (!Dense(m, m.a, k, k.a) || !Dense(k, k.b, n, n.b) || !Dense(m, m.y, n, n.y)) continue;
        plan->volume = volume;
        plan->m = m;
        plan->n = n;
        plan->k = k;
        best[0] = i;
        best[1] = j;
        best[2] = l;
      }
    }
  }
  plan->outer = plan->groups[kBatch];
  plan->summed = GroupList();
  for (int i = 0; i < ms.size; ++i) {
    if (i != best[0]) plan->outer.Add(ms.at[i]);
  }
  for (int i = 0; i < ns.size; ++i) {
    if (i != best[1]) plan->outer.Add(ns.at[i]);
  }
  for (int i = 0; i < ks.size; ++i) {
    if (i != best[2]) plan->summed.Add(ks.at[i]);
  }
  plan->outer_count = plan->summed_count = 1;
  for (int i = 0; i < plan->outer.size; ++i) plan->outer_count *= plan->outer.at[i].extent;
  for (int i = 0; i < plan->summed.size; ++i) plan->summed_count *= plan->summed.at[i].extent;
}

Class ClassOf(const LabelAxes& l) {
  if (l.y < 0) return kK;
  if (l.a < 0) return kN;
  return l.b < 0 ? kM : kBatch;
}

int64_t ExtentOf(const LabelAxes& l, const Dims& a, const Dims& b) { return l.a >= 0 ? a[l.a] : b[l.b]; }

// Groups of one list of labels, in this order, with these strides per label.
Plan MakePlan(const std::vector<LabelAxes>& labels, const std::vector<Group>& strides) {
  Plan plan;
  for (int c = 0; c < kClasses; ++c) {
    Group sorted[kMaxLabels];
    int count = 0;
    for (size_t i = 0; i < labels.size(); ++i) {
      if (ClassOf(labels[i]) == c && strides[i].extent != 1) sorted[count++] = strides[i];
    }
    bool by_a = c == kK;
    std::stable_sort(sorted, sorted + count,
                     [by_a](const Group& p, const Group& q) { return by_a ? p.a > q.a : p.y > q.y; });
    for (int i = 0; i < count; ++i) AddMerged(&plan.groups[c], sorted[i]);
  }
  Choose(&plan);
  return plan;
}

void Offsets(const GroupList& list, int64_t index, int64_t* a, int64_t* b, int64_t* y) {
  for (int i = list.size - 1; i >= 0; --i) {
    const Group& g = list.at[i];
    int64_t at = index % g.extent;
    index /= g.extent;
    *a += at * g.a;
    *b += at * g.b;
    *y += at * g.y;
  }
}

ProductLayout LayoutOf(const Group& m, const Group& n, const Group& k) {
  return {m.extent, n.extent, k.extent, m.a, k.a, k.b, n.b, m.y, n.y};
}

void Product(const Group& m, const Group& n, const Group& k, const float* a, const float* b, float* y,
             bool add) {
  if (const ProductLayout layout = LayoutOf(m, n, k); HasFewRows(layout, DType::kFloat32))
    return RunFewRows(layout, DType::kFloat32, a, b, DType::kFloat32, y, add);
  Matrix ma = MatrixOf(m.extent, k.extent, m.a, k.a), mb = MatrixOf(k.extent, n.extent, k.b, n.b);
  bool by_rows = n.y == 1 || n.extent == 1;  // else y is stored transposed: y^T = b^T a^T
  float beta = add ? 1.0f : 0.0f;
  if (by_rows) {
    int64_t ld = std::max({m.extent == 1 ? n.extent : m.y, n.extent, int64_t{1}});
    dnnl_sgemm(ma.trans, mb.trans, m.extent, n.extent, k.extent, 1.0f, a, ma.ld, b, mb.ld, beta, y, ld);
  } else {
    Matrix ta = MatrixOf(k.extent, m.extent, k.a, m.a), tb = MatrixOf(n.extent, k.extent, n.b, k.b);
    int64_t ld = std::max({n.y, m.extent, int64_t{1}});
    dnnl_sgemm(tb.trans, ta.trans, n.extent, m.extent, k.extent, 1.0f, b, tb.ld, a, ta.ld, beta, y, ld);
  }
}

void RunPlan(const Plan& plan, const float* a, const float* b, float* y, bool add) {
  auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t oa = 0, ob = 0, oy = 0;
      Offsets(plan.outer, i, &oa, &ob, &oy);
      for (int64_t s = 0; s < plan.summed_count; ++s) {
        int64_t sa = oa, sb = ob, sy = oy;
        Offsets(plan.summed, s, &sa, &sb, &sy);
        Product(plan.m, plan.n, plan.k, a + sa, b + sb, y + sy, add || s > 0);
      }
    }
  };
  // Many products share the threads; few and large ones use them all, one after another.
  bool spread = plan.outer_count >= ParallelThreads() || plan.volume < 5e5;
  if (plan.outer_count > 1 && spread) {
    int64_t grain = static_cast<int64_t>(std::max(1.0, 1e5 / std::max(1.0, plan.volume * plan.summed_count)));
    ParallelFor(plan.outer_count, grain, run);
  } else {
    run(0, plan.outer_count);
  }
}

class Contraction : public Kernel {
 public:
  Contraction(const KernelSpec& spec, std::vector<LabelAxes> labels) : labels_(std::move(labels)) {
    strides_.resize(labels_.size());
    dtype_ = spec.in[0].dtype;
    widen_ = dtype_ != DType::kFloat32;
    Prepare(spec.in[0].extent, spec.in[1].extent);
    // A permutation pays when it makes products of a useful size from tiny ones.
    double whole = 1;
    for (size_t i = 0; i < labels_.size(); ++i) {
      if (ClassOf(labels_[i]) != kBatch) whole *= static_cast<double>(strides_[i].extent);
    }
    permute_ = plan_.volume < 4096 && whole >= 8 * plan_.volume;
    result_ = spec.out[0].dtype;
    accumulates_ = Accumulates(spec.attrs);
    narrow_ = NarrowProduct::Worthwhile(spec.in[0].dtype) && FitsNarrow();
    most_[0] = spec.in[0].elements();
    most_[1] = spec.in[1].elements();
    most_[2] = result_ == DType::kFloat32 ? 0 : spec.out[0].elements();
    few_rows_ = FitsFew();
    if (widen_ && !narrow_ && !few_rows_) MakeWide();
    if (permute_) {
      for (int i = 0; i < 2; ++i) packed_[i].resize(spec.in[i].elements());
      packed_[2].resize(spec.out[0].elements());
      if (accumulates_) fresh_.resize(spec.out[0].elements());
      Prepare(spec.in[0].extent, spec.in[1].extent);
    }
  }

  Status Run(const KernelContext& context) override {
    const TensorArg &a = context.in[0], &b = context.in[1], &y = context.out[0];
    if (a.extent != a_ || b.extent != b_) Prepare(a.extent, b.extent);
    if (y.elements() == 0) return Status();
    const bool add = accumulates_ && context.time > 0;
    if (empty_sum_) {
      if (add) return Status();
      FillZero(y.data, y.elements() * static_cast<int64_t>(SizeOf(y.dtype)));
      return Status();
    }
    if (few_rows_) {
      RunFew(a, b, y, add);
      return Status();
    }
    if (narrow_ && RunNarrow(a, b, y, add)) return Status();
    if (widen_ && wide_[0].empty()) MakeWide();  // an act of few rows, made for more
    const float* from[2] = {Widened(a, 0), Widened(b, 1)};
    float* to = wide_[2].empty() ? y.as<float>() : wide_[2].data();
    if (permute_) {
      for (int i = 0; i < 2; ++i)
        PermuteCopy(packed_[i].data(), from[i], pack_extent_[i], pack_stride_[i], 4);
      RunPlan(plan_, packed_[0].data(), packed_[1].data(), packed_[2].data(), false);
      float* const back = add ? fresh_.data() : to;
      PermuteCopy(back, packed_[2].data(), pack_extent_[2], pack_stride_[2], 4);
      if (add) Add(back, y.elements(), to);
    } else {
      RunPlan(plan_, from[0], from[1], to, add);
    }
    if (to != y.data) {
      DispatchFloating(y.dtype, [&](auto t) {
        using T = decltype(t);
        ParallelFor(y.elements(), kGrain,
                    [&](int64_t i, int64_t end) { Narrow(to + i, end - i, y.as<T>() + i); });
      });
    }
    return Status();
  }

 private:
  // Whether the plan is one that bf16 products serve: large ones, and no sum over products, which would round
  // in between.
  bool FitsNarrow() const { return !permute_ && plan_.summed_count == 1 && plan_.volume >= 32768; }

  void MakeWide() {
    for (int i = 0; i < 3; ++i) wide_[i].resize(most_[i]);
  }

  // Operands of 16-bit types as they are, and few rows: what is widened would be read twice.
  bool FitsFew() const {
    return widen_ && !permute_ && plan_.summed_count == 1 &&
           HasFewRows(LayoutOf(plan_.m, plan_.n, plan_.k), dtype_);
  }
  void RunFew(const TensorArg& a, const TensorArg& b, const TensorArg& y, bool add) {
    const int64_t size = static_cast<int64_t>(SizeOf(a.dtype)),
                  size_y = static_cast<int64_t>(SizeOf(y.dtype));
    for (int64_t i = 0; i < plan_.outer_count; ++i) {
      int64_t oa = 0, ob = 0, oy = 0;
      Offsets(plan_.outer, i, &oa, &ob, &oy);
      RunFewRows(LayoutOf(plan_.m, plan_.n, plan_.k), a.dtype, a.as<char>() + oa * size,
                 b.as<char>() + ob * size, y.dtype, y.as<char>() + oy * size_y, add);
    }
  }

  // False where there is no fast product; the operands are then widened.
  bool RunNarrow(const TensorArg& a, const TensorArg& b, const TensorArg& y, bool add) {
    Narrow16& narrow = narrow_products_[add];
    if (!narrow.tried) {
      const Group &m = plan_.m, &n = plan_.n, &k = plan_.k;
      if (FitsNarrow()) narrow.product = NarrowProduct::Make(LayoutOf(m, n, k), result_, add);
      if (!narrow.product) MakeWide();
      narrow.tried = true;
    }
    if (!narrow.product) return false;
    int64_t size = static_cast<int64_t>(SizeOf(a.dtype)), size_y = static_cast<int64_t>(SizeOf(y.dtype));
    for (int64_t i = 0; i < plan_.outer_count; ++i) {
      int64_t oa = 0, ob = 0, oy = 0;
      Offsets(plan_.outer, i, &oa, &ob, &oy);
      narrow.product->Run(a.as<char>() + oa * size, b.as<char>() + ob * size, y.as<char>() + oy * size_y);
    }
    return true;
  }

  static void Add(const float* from, int64_t elements, float* to) {
    ParallelFor(elements, kGrain, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) to[i] += from[i];
    });
  }

  const float* Widened(const TensorArg& x, int which) {
    if (!widen_) return x.as<float>();
    float* to = wide_[which].data();
    DispatchFloating(x.dtype, [&](auto t) {
      using T = decltype(t);
      ParallelFor(x.elements(), kGrain,
                  [&](int64_t i, int64_t end) { Widen(x.as<T>() + i, end - i, to + i); });
    });
    return to;
  }

  // Row-major strides of every label in each operand, and the plan.
  void Prepare(const Dims& a, const Dims& b) {
    a_ = a;
    b_ = b;
    empty_sum_ = false;
    Dims y;
    for (size_t i = 0; i < labels_.size(); ++i) {
      const LabelAxes& l = labels_[i];
      Group& g = strides_[i];
      g = Group();
      g.extent = ExtentOf(l, a, b);
      if (l.a >= 0 && l.b >= 0) g.extent = std::max(a[l.a], b[l.b]);
      if (l.a >= 0 && a[l.a] != 1) g.a = InnerOf(a, l.a);
      if (l.b >= 0 && b[l.b] != 1) g.b = InnerOf(b, l.b);
      if (l.y < 0 && g.extent == 0) empty_sum_ = true;
    }
    for (size_t axis = 0;; ++axis) {  // y's extents by axis, then its strides
      auto label = std::find_if(labels_.begin(), labels_.end(),
                                [&](const LabelAxes& l) { return l.y == static_cast<int>(axis); });
      if (label == labels_.end()) break;
      y.push_back(strides_[label - labels_.begin()].extent);
    }
    for (size_t i = 0; i < labels_.size(); ++i) {
      if (labels_[i].y >= 0) strides_[i].y = InnerOf(y, labels_[i].y);
    }
    if (permute_) Pack(y);
    plan_ = MakePlan(labels_, strides_);
    for (Narrow16& narrow : narrow_products_) narrow = Narrow16();
    few_rows_ = FitsFew();
  }

  // Replaces the strides by those of [batch m k], [batch k n], [batch m n], and says how to copy there and
  // back.
  void Pack(const Dims& y) {
    static constexpr Class kOrder[3][3] = {{kBatch, kM, kK}, {kBatch, kK, kN}, {kBatch, kM, kN}};
    int64_t Group::*const kStride[3] = {&Group::a, &Group::b, &Group::y};
    std::vector<Group>& g = strides_;
    for (int operand = 0; operand < 3; ++operand) {
      Dims extent, stride;
      int order[kMaxLabels], count = 0;
      for (Class c : kOrder[operand]) {
        for (size_t i = 0; i < labels_.size(); ++i) {
          if (ClassOf(labels_[i]) == c) order[count++] = static_cast<int>(i);
        }
      }
      for (int i = 0; i < count; ++i) {
        extent.push_back(g[order[i]].extent);
        stride.push_back(g[order[i]].*kStride[operand]);
      }
      for (int i = 0; i < count; ++i) g[order[i]].*kStride[operand] = InnerOf(extent, i);
      if (operand == 2) {
        extent = stride = y;
        for (size_t i = 0; i < labels_.size(); ++i) {
          if (labels_[i].y >= 0) stride[labels_[i].y] = g[i].y;
        }
      }
      pack_extent_[operand] = extent;
      pack_stride_[operand] = stride;
    }
  }

  std::vector<LabelAxes> labels_;
  std::vector<Group> strides_;  // per label
  Plan plan_;
  Dims a_, b_;  // extents the plan is for
  bool empty_sum_ = false, widen_ = false, permute_ = false;
  bool narrow_ = false;    // bf16 operands are multiplied as they are
  bool few_rows_ = false;  // 16-bit operands by RunFewRows
  bool accumulates_ = false;
  DType dtype_ = DType::kFloat32, result_ = DType::kFloat32;
  struct Narrow16 {
    std::unique_ptr<NarrowProduct> product;  // made by the thread that runs it
    bool tried = false;                      // whether it was asked for
  };
  Narrow16 narrow_products_[2];  // of the plan; the second adds to its result
  int64_t most_[3] = {};         // elements of the plan's operands, as far as they need buffers
  Dims pack_extent_[3], pack_stride_[3];
  std::vector<float> wide_[3], packed_[3];
  std::vector<float> fresh_;  // a permuted product that is to be added
};

// Operands of one type, the result of that or fp32.
bool SameFloating(const KernelSpec& spec) {
  DType dtype = spec.in[0].dtype;
  DType result = spec.out[0].dtype;
  return IsFloating(dtype) && spec.in[1].dtype == dtype && (result == dtype || result == DType::kFloat32);
}

}  // namespace

KernelPtr MakeMatmul(const KernelSpec& spec) {
  const Dims &a = spec.in[0].global, &b = spec.in[1].global, &y = spec.out[0].global;
  if (!SameFloating(spec) || a.rank() < 2 || b.rank() < 2) return MakeReference(spec);
  return std::make_unique<Contraction>(spec, MatmulLabels(a, b, y));
}

KernelPtr MakeEinsum(const KernelSpec& spec) {
  if (!SameFloating(spec)) return MakeReference(spec);
  if (Accumulates(spec.attrs) && spec.out[0].dtype != DType::kFloat32) return MakeReference(spec);
  std::vector<LabelAxes> labels = EinsumLabels(spec.attrs.Str("equation"));
  for (const LabelAxes& l : labels) {
    // A label of one operand alone is a plain sum, not a product.
    if (l.y < 0 && (l.a < 0 || l.b < 0)) return MakeReference(spec);
  }
  return std::make_unique<Contraction>(spec, std::move(labels));
}

}  // namespace oneflow_like::cpu
