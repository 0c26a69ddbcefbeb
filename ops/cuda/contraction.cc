// Labels to matrices. Every label is of one class: batch (in a, b and y), m (a and y), n (b and y) or k (not
// in y). Neighbouring labels of a class merge where they run on in every operand that has them. One group of
// each of m, n, k makes the matrix product, one of the rest the library's batch; what is still left over is
// looped over while that is little, and packed away otherwise.
#include "ops/cuda/contraction.h"

#include <algorithm>

namespace oneflow_like::cuda {
namespace {

enum Class { kBatch, kM, kN, kK, kClasses };

struct Group {
  int64_t extent = 1, a = 0, b = 0, y = 0;  // strides, 0 where the operand lacks it
};
using Groups = std::vector<Group>;
struct Classes {
  Groups at[kClasses];
  const Groups& operator[](Class c) const { return at[c]; }
};

// More launches than this for one product, and packing is better; of what is too large to be packed.
constexpr size_t kMostLaunches = 64, kMostUnpacked = 4096;
constexpr int64_t kPackedAlignment = 256;

Class ClassOf(const LabelAxes& l) {
  if (l.y < 0) return kK;
  if (l.a < 0) return kN;
  return l.b < 0 ? kM : kBatch;
}

int64_t StrideOf(const Dims& extent, int axis) {
  if (axis < 0 || extent[axis] == 1) return 0;
  int64_t stride = 1;
  for (int i = axis + 1; i < extent.rank(); ++i) stride *= extent[i];
  return stride;
}

void AddMerged(Groups* list, Group next) {
  if (next.extent == 1) return;
  if (!list->empty()) {
    Group& last = list->back();
    if (last.a == next.a * next.extent && last.b == next.b * next.extent && last.y == next.y * next.extent) {
      next.extent *= last.extent;
      last = next;
      return;
    }
  }
  list->push_back(next);
}

// Whether x[i j] with these strides is a matrix with one dense side, and no element stands twice.
bool Dense(int64_t rows, int64_t row_stride, int64_t columns, int64_t column_stride) {
  if (rows > 1 && row_stride == 0) return false;
  if (columns > 1 && column_stride == 0) return false;
  return rows == 1 || columns == 1 ? true : row_stride == 1 || column_stride == 1;
}

// Of a vector (one side is 1) the other side may have any stride: it is then a leading dimension.
bool Fits(const Group& m, const Group& n, const Group& k) {
  return Dense(m.extent, m.a, k.extent, k.a) && Dense(k.extent, k.b, n.extent, n.b) &&
         Dense(m.extent, m.y, n.extent, n.y);
}

struct Choice {
  Group m, n, k, batch;
  Groups rest;    // of y, looped over
  Groups summed;  // of the sum; a product that has any does not fit
};

Choice Choose(const Classes& groups) {
  Choice best;
  int at[3] = {-1, -1, -1};
  double volume = 0;
  auto pick = [](const Groups& list, int i) { return i < 0 ? Group() : list[i]; };
  int ms = static_cast<int>(groups[kM].size()), ns = static_cast<int>(groups[kN].size()),
      ks = static_cast<int>(groups[kK].size());
  for (int i = -1; i < ms; ++i) {
    for (int j = -1; j < ns; ++j) {
      for (int l = -1; l < ks; ++l) {
        Group m = pick(groups[kM], i), n = pick(groups[kN], j), k = pick(groups[kK], l);
        double size = static_cast<double>(m.extent) * n.extent * k.extent;
        if (size <= volume || !Fits(m, n, k)) continue;
        volume = size;
        best.m = m;
        best.n = n;
        best.k = k;
        at[0] = i;
        at[1] = j;
        at[2] = l;
      }
    }
  }
  best.rest = groups[kBatch];
  for (int i = 0; i < ms; ++i)
    if (i != at[0]) best.rest.push_back(groups[kM][i]);
  for (int i = 0; i < ns; ++i)
    if (i != at[1]) best.rest.push_back(groups[kN][i]);
  for (int i = 0; i < ks; ++i)
    if (i != at[2]) best.summed.push_back(groups[kK][i]);
  auto largest = std::max_element(best.rest.begin(), best.rest.end(),
                                  [](const Group& p, const Group& q) { return p.extent < q.extent; });
  if (largest != best.rest.end()) {
    best.batch = *largest;
    best.rest.erase(largest);
  }
  return best;
}

GemmDescriptor Describe(const Choice& c, const ContractionTypes& types, DType out) {
  ProductStrides p{c.m.extent, c.n.extent, c.k.extent, c.m.a, c.k.a, c.k.b, c.n.b, c.m.y, c.n.y};
  GemmDescriptor d = DescribeGemm(p);
  d.batch = c.batch.extent;
  d.stride_a = d.swapped ? c.batch.b : c.batch.a;
  d.stride_b = d.swapped ? c.batch.a : c.batch.b;
  d.stride_d = c.batch.y;
  d.in = static_cast<int32_t>(types.in);
  d.out = static_cast<int32_t>(out);
  d.tf32 = types.tf32 && types.in == DType::kFloat32;
  return d;
}

std::vector<ContractionPlan::Place> Places(const Groups& rest) {
  std::vector<ContractionPlan::Place> places{{0, 0, 0}};
  for (const Group& g : rest) {
    std::vector<ContractionPlan::Place> more;
    more.reserve(places.size() * g.extent);
    for (const auto& p : places)
      for (int64_t i = 0; i < g.extent; ++i) more.push_back({p.a + i * g.a, p.b + i * g.b, p.y + i * g.y});
    places = std::move(more);
  }
  return places;
}

size_t Count(const Groups& groups) {
  size_t n = 1;
  for (const Group& g : groups) n *= g.extent;
  return n;
}

// What all pointers of the products are multiples of, given operands that begin at 16.
int64_t AlignmentOf(const std::vector<ContractionPlan::Place>& outer, int64_t in_bytes, int64_t out_bytes) {
  int64_t bits = 16;
  for (const auto& p : outer) bits |= p.a * in_bytes | p.b * in_bytes | p.y * out_bytes;
  return bits & -bits;
}

// Row-major strides for the labels of `classes`, in this order; extents of 1 have stride 0.
std::vector<int64_t> PackedStrides(const std::vector<LabelAxes>& labels, const std::vector<Group>& groups,
                                   std::initializer_list<Class> classes, int64_t* elements) {
  std::vector<size_t> order;
  for (Class c : classes)
    for (size_t i = 0; i < labels.size(); ++i)
      if (ClassOf(labels[i]) == c) order.push_back(i);
  std::vector<int64_t> strides(labels.size(), 0);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    if (groups[order[i]].extent != 1) strides[order[i]] = stride;
    stride *= groups[order[i]].extent;
  }
  *elements = stride;
  return strides;
}

class Planner {
 public:
  Planner(const std::vector<LabelAxes>& labels, const Dims& a, const Dims& b, const ContractionTypes& types)
      : labels_(labels), types_(types) {
    Dims y;
    for (const LabelAxes& l : labels) {
      Group g;
      g.extent = std::max(l.a >= 0 ? a[l.a] : 0, l.b >= 0 ? b[l.b] : 0);
      if (l.a >= 0 && l.b >= 0 && (a[l.a] == 0 || b[l.b] == 0)) g.extent = 0;
      g.a = StrideOf(a, l.a);
      g.b = StrideOf(b, l.b);
      groups_.push_back(g);
      if (l.y >= 0) {
        while (y.rank() <= l.y) y.push_back(1);
        y[l.y] = g.extent;
      }
    }
    for (size_t i = 0; i < labels.size(); ++i) {
      groups_[i].y = StrideOf(y, labels[i].y);
      empty_ = empty_ || groups_[i].extent == 0;
    }
  }

  ContractionPlan Plan(int64_t packed_bytes, bool as_they_lie) const {
    ContractionPlan plan;
    if (empty_) return plan;
    bool takes = GemmTakes(types_.in, types_.out);
    Choice c = Choose(Merged(groups_));
    const size_t launches =
        as_they_lie && packed_bytes >= 0 && takes && c.summed.empty() && !TooSmall(c) ? Count(c.rest) : 0;
    const bool direct = launches > 0 && launches <= kMostLaunches;
    if (!direct && IsFloating(types_.in) && Pack(packed_bytes, &plan)) {
      plan.kind = ContractionPlan::kPacked;
    } else if (launches > 0 && launches <= kMostUnpacked) {
      plan = ContractionPlan();
      plan.kind = ContractionPlan::kDirect;
      Finish(c, types_.out, &plan);
    } else {
      plan = ContractionPlan();
      plan.kind = ContractionPlan::kGeneral;
      General(&plan);
    }
    return plan;
  }

 private:
  Classes Merged(const std::vector<Group>& strides) const {
    Classes merged;
    for (int c = 0; c < kClasses; ++c) {
      Groups sorted;
      for (size_t i = 0; i < labels_.size(); ++i)
        if (ClassOf(labels_[i]) == c) sorted.push_back(strides[i]);
      bool by_a = c == kK;
      std::stable_sort(sorted.begin(), sorted.end(),
                       [by_a](const Group& p, const Group& q) { return by_a ? p.a > q.a : p.y > q.y; });
      for (const Group& g : sorted) AddMerged(&merged.at[c], g);
    }
    return merged;
  }

  // Whether many launches would each do next to nothing.
  bool TooSmall(const Choice& c) const {
    double one = static_cast<double>(c.m.extent) * c.n.extent * c.k.extent * c.batch.extent;
    return c.rest.size() > 0 && one < 65536 && Count(c.rest) > 4;
  }

  void Finish(const Choice& c, DType out, ContractionPlan* plan) const {
    plan->gemm = Describe(c, types_, out);
    plan->outer = Places(c.rest);
    plan->gemm.alignment = AlignmentOf(plan->outer, SizeOf(types_.in), SizeOf(out));
  }

  // a as [batch m k], b as [batch k n], y as [batch m n]; what lies so already is not copied.
  bool Pack(int64_t packed_bytes, ContractionPlan* plan) const {
    std::vector<Group> packed = groups_;
    int64_t elements[3];
    std::vector<int64_t> to[3] = {PackedStrides(labels_, groups_, {kBatch, kM, kK}, &elements[0]),
                                  PackedStrides(labels_, groups_, {kBatch, kK, kN}, &elements[1]),
                                  PackedStrides(labels_, groups_, {kBatch, kM, kN}, &elements[2])};
    int64_t Group::*const kStride[3] = {&Group::a, &Group::b, &Group::y};
    DType out = GemmTakes(types_.in, types_.out) ? types_.out : DType::kFloat32;
    DType stored[3] = {types_.in, types_.in, types_.out}, type[3] = {types_.in, types_.in, out};
    Packing* packing[3] = {&plan->a, &plan->b, &plan->y};
    int64_t bytes = 0;
    for (int operand = 0; operand < 3; ++operand) {
      Packing& p = *packing[operand];
      p.elements = elements[operand];
      p.dtype = type[operand];
      p.needed = stored[operand] != type[operand];
      for (size_t i = 0; i < labels_.size(); ++i) {
        if (groups_[i].extent == 1 || !InPacked(operand, ClassOf(labels_[i]))) continue;
        p.needed = p.needed || groups_[i].*kStride[operand] != to[operand][i];
      }
      if (p.needed) {
        for (size_t i = 0; i < labels_.size(); ++i) {
          if (!InPacked(operand, ClassOf(labels_[i]))) continue;
          p.walk.Add(groups_[i].extent, to[operand][i], groups_[i].*kStride[operand]);
          packed[i].*kStride[operand] = to[operand][i];
        }
        bytes += (elements[operand] * static_cast<int64_t>(SizeOf(type[operand])) + kPackedAlignment - 1) /
                 kPackedAlignment * kPackedAlignment;
      }
    }
    if (bytes > packed_bytes) return false;
    Choice c = Choose(Merged(packed));
    if (!c.summed.empty() || Count(c.rest) != 1) return false;
    Finish(c, out, plan);
    return true;
  }

  static bool InPacked(int operand, Class c) {
    constexpr Class kMissing[3] = {kN, kM, kK};
    return c != kMissing[operand];
  }

  void General(ContractionPlan* plan) const {
    std::vector<size_t> order;
    for (size_t i = 0; i < labels_.size(); ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t p, size_t q) { return labels_[p].y < labels_[q].y; });
    for (size_t i : order) {
      StridedWalk& walk = labels_[i].y >= 0 ? plan->kept : plan->summed;
      walk.Add(groups_[i].extent, groups_[i].a, groups_[i].b);
    }
  }

  const std::vector<LabelAxes>& labels_;
  ContractionTypes types_;
  std::vector<Group> groups_;  // per label
  bool empty_ = false;
};

}  // namespace

ContractionPlan PlanContraction(const std::vector<LabelAxes>& labels, const Dims& a, const Dims& b,
                                const ContractionTypes& types, int64_t packed_bytes, bool as_they_lie) {
  return Planner(labels, a, b, types).Plan(packed_bytes, as_they_lie);
}

}  // namespace oneflow_like::cuda
