// matmul and einsum. Every label of the two operands and the result belongs to one class: batch (in all
// three), m (a and y), n (b and y) or k (a and b). Neighbouring labels of a class merge where they run on in
// every operand that has them; one group of each class makes the matrix product, others are looped over, or
// summed over by the product. The plan is made when the kernel is, and again only when an act brings other
// extents.
//
// A product goes by panels, in any type and layout, but for two kinds: of few rows, and in bf16 where the
// machine multiplies it faster than fp32 but has no AMX (NarrowProduct).
#include <algorithm>
#include <vector>

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/few_rows.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/matrix_product.h"
#include "ops/cpu/narrow_product.h"
#include "ops/cpu/panel_product.h"
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

struct Plan {
  GroupList groups[kClasses];
  Group m, n, k;    // of the product
  GroupList outer;  // looped over: parts of y
  int64_t outer_count = 1;
  SummedAxis summed[kMaxLabels];  // what the product sums over beside k
  int summed_axes = 0;
  double volume = 0;   // m n k
  bool dense = false;  // each matrix has one dense side

  ProductLayout layout() const { return {m.extent, n.extent, k.extent, m.a, k.a, k.b, n.b, m.y, n.y}; }
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

// Elements with none next to them are read at an eighth of the speed.
void Choose(Plan* plan) {
  const Group none;
  const GroupList &ms = plan->groups[kM], &ns = plan->groups[kN], &ks = plan->groups[kK];
  int best[3] = {-1, -1, -1};
  double most = 0;
  for (int i = -1; i < ms.size; ++i) {
    for (int j = -1; j < ns.size; ++j) {
      for (int l = -1; l < ks.size; ++l) {
        const Group &m = i < 0 ? none : ms.at[i], &n = j < 0 ? none : ns.at[j], &k = l < 0 ? none : ks.at[l];
        const double volume = static_cast<double>(m.extent) * n.extent * k.extent;
        const bool dense = Dense(m, m.a, k, k.a) && Dense(k, k.b, n, n.b) && Dense(m, m.y, n, n.y);
        const double worth = dense ? volume : volume / 8;
        if (worth <= most) continue;
        most = worth;
        plan->volume = volume;
        plan->dense = dense;
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
  for (int i = 0; i < ms.size; ++i) {
    if (i != best[0]) plan->outer.Add(ms.at[i]);
  }
  for (int i = 0; i < ns.size; ++i) {
    if (i != best[1]) plan->outer.Add(ns.at[i]);
  }
  for (int i = 0; i < ks.size; ++i) {
    if (i != best[2]) plan->summed[plan->summed_axes++] = {ks.at[i].extent, ks.at[i].a, ks.at[i].b};
  }
  for (int i = 0; i < plan->outer.size; ++i) plan->outer_count *= plan->outer.at[i].extent;
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

class Contraction : public Kernel {
 public:
  // Plans; Load then makes what runs.
  Contraction(const KernelSpec& spec, std::vector<LabelAxes> labels)
      : labels_(std::move(labels)),
        strides_(labels_.size()),
        accumulates_(Accumulates(spec.attrs)),
        threads_(spec.threads),
        dtype_(spec.in[0].dtype),
        result_(spec.out[0].dtype) {
    Prepare(spec.in[0].extent, spec.in[1].extent);
    const int64_t slot = std::max(ProductOf(false).bytes(), kLeastPanelBytes),
                  few = FewRowsBytes(plan_.layout());
    const ProductLayout l = plan_.layout();
    slots_ = static_cast<int>(std::min<int64_t>(
        threads_,
        std::max<int64_t>(plan_.outer_count, PanelParts(l.m, l.n, ProductOf(false).depth(), threads_))));
    slots_ = std::max(1, slots_);
    scratch_ = slots_ * slot;
    if (HasFew()) scratch_ = std::max(scratch_, few * std::min<int64_t>(threads_, plan_.outer_count));
    if (dtype_ == DType::kBFloat16 && FitsNarrow())
      scratch_ = std::max(scratch_, NarrowProduct::MostBytes(plan_.layout(), threads_));
    slot_ = slot;
  }

  int64_t scratch() const { return scratch_; }

  void Load() {
    for (bool add : {false, true})
      if (!add || accumulates_) narrow_[add] = MakeNarrow(add);
  }

  Status Run(const KernelContext& context) override {
    const TensorArg &a = context.in[0], &b = context.in[1], &y = context.out[0];
    if (a.extent != a_ || b.extent != b_) {
      Prepare(a.extent, b.extent);
      Load();
    }
    if (y.elements() == 0) return Status();
    const bool add = accumulates_ && context.time > 0;
    if (empty_sum_) {
      if (add) return Status();
      FillZero(y.data, y.elements() * static_cast<int64_t>(SizeOf(y.dtype)));
      return Status();
    }
    const Pieces pieces = {a.as<char>(), b.as<char>(), y.as<char>(), static_cast<char*>(context.scratch)};
    if (HasFew() && FewSlots() * FewRowsBytes(plan_.layout()) <= scratch_) {
      RunFew(pieces, add);
    } else if (narrow_[add]) {
      ForOuter(0, plan_.outer_count, pieces,
               [&](const Pieces& at) { narrow_[add]->Run(at.a, at.b, at.y, pieces.scratch); });
    } else {
      RunPanelProducts(pieces, add);
    }
    return Status();
  }

 private:
  struct Pieces {
    const char *a, *b;
    char *y, *scratch;
  };

  MatrixProduct ProductOf(bool add) const {
    return {plan_.layout(), {plan_.summed, static_cast<size_t>(plan_.summed_axes)}, dtype_, result_, add};
  }

  // Whether the plan is one that bf16 products serve: large ones, and no sum over products, which would round
  // in between.
  bool FitsNarrow() const { return plan_.dense && plan_.summed_axes == 0 && plan_.volume >= 32768; }
  std::unique_ptr<NarrowProduct> MakeNarrow(bool add) const {
    if (HasTiles() || !NarrowProduct::Worthwhile(dtype_) || !FitsNarrow() || HasFew() || empty_sum_)
      return nullptr;
    return NarrowProduct::Make(plan_.layout(), result_, add, scratch_);
  }

  bool HasFew() const { return plan_.summed_axes == 0 && HasFewRows(plan_.layout(), dtype_); }
  // How many of them run at a time.
  int64_t FewSlots() const { return Spread() ? std::min<int64_t>(threads_, plan_.outer_count) : 1; }
  void RunFew(const Pieces& pieces, bool add) const {
    const ProductLayout layout = plan_.layout();
    const int64_t bytes = FewRowsBytes(layout);
    ParallelForParts(plan_.outer_count, Spread() ? 1 : plan_.outer_count, threads_,
                     [&](int64_t begin, int64_t end, int part) {
                       ForOuter(begin, end, pieces, [&](const Pieces& at) {
                         RunFewRows(layout, dtype_, at.a, at.b, result_, at.y, add,
                                    pieces.scratch + part * bytes);
                       });
                     });
  }

  // Many products share the threads; few and large ones use them all, one after another.
  bool Spread() const {
    return plan_.outer_count > 1 && (plan_.outer_count >= threads_ || plan_.volume < 5e5);
  }
  void RunPanelProducts(const Pieces& pieces, bool add) const {
    const MatrixProduct product = ProductOf(add);
    const bool spread = Spread();
    const int64_t grain =
        spread ? static_cast<int64_t>(std::max(1.0, 1e5 / std::max(1.0, plan_.volume))) : plan_.outer_count;
    ParallelForParts(plan_.outer_count, grain, slots_, [&](int64_t begin, int64_t end, int part) {
      ForOuter(begin, end, pieces, [&](const Pieces& at) {
        product.Run(at.a, at.b, at.y, spread ? 1 : slots_, pieces.scratch + part * slot_, slot_);
      });
    });
  }

  // run(operands of one product) for some of them.
  template <typename F>
  void ForOuter(int64_t begin, int64_t end, const Pieces& pieces, F&& run) const {
    const int64_t size = static_cast<int64_t>(SizeOf(dtype_)), size_y = static_cast<int64_t>(SizeOf(result_));
    for (int64_t i = begin; i < end; ++i) {
      int64_t oa = 0, ob = 0, oy = 0;
      Offsets(plan_.outer, i, &oa, &ob, &oy);
      run(Pieces{pieces.a + oa * size, pieces.b + ob * size, pieces.y + oy * size_y, pieces.scratch});
    }
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
    plan_ = MakePlan(labels_, strides_);
  }

  std::vector<LabelAxes> labels_;
  std::vector<Group> strides_;  // per label
  Plan plan_;
  Dims a_, b_;  // extents the plan is for
  bool empty_sum_ = false;
  bool accumulates_;
  int threads_;
  DType dtype_, result_;
  int64_t scratch_ = 0, slot_ = 0;            // stated; of a thread, for products by panels
  int slots_ = 1;                             // of these
  std::unique_ptr<NarrowProduct> narrow_[2];  // the second adds to its result
};

// Operands of one type, the result of that or fp32.
bool SameFloating(const KernelSpec& spec) {
  DType dtype = spec.in[0].dtype;
  DType result = spec.out[0].dtype;
  return IsFloating(dtype) && spec.in[1].dtype == dtype && (result == dtype || result == DType::kFloat32);
}

// Null where the reference kernel runs.
std::unique_ptr<Contraction> PlanMatmul(const KernelSpec& spec) {
  const Dims &a = spec.in[0].global, &b = spec.in[1].global, &y = spec.out[0].global;
  if (!SameFloating(spec) || a.rank() < 2 || b.rank() < 2) return nullptr;
  return std::make_unique<Contraction>(spec, MatmulLabels(a, b, y));
}

std::unique_ptr<Contraction> PlanEinsum(const KernelSpec& spec) {
  if (!SameFloating(spec)) return nullptr;
  if (Accumulates(spec.attrs) && spec.out[0].dtype != DType::kFloat32) return nullptr;
  std::vector<LabelAxes> labels = EinsumLabels(spec.attrs.Str("equation"));
  for (const LabelAxes& l : labels) {
    // A label of one operand alone is a plain sum, not a product.
    if (l.y < 0 && (l.a < 0 || l.b < 0)) return nullptr;
  }
  return std::make_unique<Contraction>(spec, std::move(labels));
}

KernelPtr Loaded(std::unique_ptr<Contraction> kernel, const KernelSpec& spec) {
  if (!kernel) return MakeReference(spec);
  kernel->Load();
  return kernel;
}

}  // namespace

KernelPtr MakeMatmul(const KernelSpec& spec) { return Loaded(PlanMatmul(spec), spec); }
KernelPtr MakeEinsum(const KernelSpec& spec) { return Loaded(PlanEinsum(spec), spec); }
int64_t MatmulScratch(const KernelSpec& spec) {
  const auto kernel = PlanMatmul(spec);
  return kernel ? kernel->scratch() : ReferenceScratch(spec);
}
int64_t EinsumScratch(const KernelSpec& spec) {
  const auto kernel = PlanEinsum(spec);
  return kernel ? kernel->scratch() : ReferenceScratch(spec);
}

}  // namespace oneflow_like::cpu
