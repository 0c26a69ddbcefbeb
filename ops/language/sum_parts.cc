// T slices of a value give it T gradients, each a pad of what its reader gave to the whole shape: their sum
// would move T whole tensors and keep them all. Together they are one concat of what the readers gave.
#include "ops/language/sum_parts.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/language/functional.h"

namespace oneflow_like {

namespace {

// The gradient of one slice: rows [begin, end) of an axis.
struct Rows {
  int64_t begin, end;
  Tensor tensor;
};

// An axis, and the distance of a slice's neighbours along it. Slices with a step that are as long as they can
// be are columns of that axis seen as [extent / step, step].
using Along = std::pair<int, int64_t>;

Dims Split(const Dims& shape, int axis, int64_t outer, int64_t inner) {
  Dims split;
  for (int i = 0; i < shape.rank(); ++i) {
    split.push_back(i == axis ? outer : shape[i]);
    if (i == axis) split.push_back(inner);
  }
  return split;
}

// The operand of a pad as rows of its result. False: it is no such pad.
bool AsRows(const Tensor& part, Along* along, Rows* rows) {
  const std::optional<GraphBuilder::Made> pad = part.graph()->MadeBy(part.id());
  if (!pad || pad->op != "pad") return false;
  const Tensor x = pad->in[0];
  const int axis = static_cast<int>(pad->attrs.Int("axis"));
  const int64_t step = pad->attrs.Int("step", 1), before = pad->attrs.Int("before"), count = x.shape()[axis];
  const Dims whole = part.shape();
  *along = {axis, step};
  if (count == 0) return false;
  *rows = {before, before + count, x};
  if (step == 1) return true;
  if (before >= step || count * step != whole[axis] || whole.rank() == Dims::kMaxRank) return false;
  *rows = {before, before + 1, x};  // reshaped once it is needed
  return true;
}

// Rows from `begin` to `end` of what lies in `rows`.
Tensor Cut(const Rows& rows, int axis, int64_t begin, int64_t end) {
  if (begin == rows.begin && end == rows.end) return rows.tensor;
  return slice(rows.tensor, axis, begin - rows.begin, end - rows.begin);
}

// Rows that do not overlap, sorted, one after another from `begin` to `end`.
Tensor Join(const std::vector<Rows>& rows, int axis, int64_t begin, int64_t end) {
  std::vector<Tensor> parts;
  std::map<int64_t, Tensor> zeros;  // by number of rows
  const Tensor like = rows[0].tensor;
  auto fill = [&](int64_t count) {
    if (count == 0) return;
    Tensor& gap = zeros[count];
    Dims shape = like.shape();
    shape[axis] = count;
    if (!gap.defined()) gap = full(like.graph(), shape, 0, like.dtype());
    parts.push_back(gap);
  };
  for (const Rows& r : rows) {
    fill(r.begin - begin);
    parts.push_back(r.tensor);
    begin = r.end;
  }
  fill(end - begin);
  return parts.size() == 1 ? parts[0] : concat(parts, axis);
}

// In as few layers as possible, each of rows that do not overlap.
std::vector<std::vector<Rows>> Layers(const std::vector<Rows>& sorted) {
  std::vector<std::vector<Rows>> layers;
  std::set<std::pair<int64_t, size_t>> ends;  // of the layers' last rows
  for (const Rows& r : sorted) {
    size_t layer = layers.size();
    if (!ends.empty() && ends.begin()->first <= r.begin) {
      layer = ends.begin()->second;
      ends.erase(ends.begin());
    } else {
      layers.emplace_back();
    }
    layers[layer].push_back(r);
    ends.insert({r.end, layer});
  }
  return layers;
}

// Adds the sum of rows that overlap, sorted, to `apart`: between neighbouring ends of rows the sum of those
// that lie there. Where many lie upon each other that would be a great number of pieces (T windows of w rows
// are cut into T w), so there layers are added as a whole.
void AddOverlaid(const std::vector<Rows>& sorted, int axis, std::vector<Rows>* apart) {
  std::set<int64_t> marks;
  for (const Rows& r : sorted) marks.insert({r.begin, r.end});
  const std::vector<int64_t> at(marks.begin(), marks.end());
  std::vector<std::vector<const Rows*>> between(at.size() - 1);
  const size_t most = 4 * sorted.size();
  size_t pieces = 0;
  for (const Rows& r : sorted)
    for (size_t i = std::lower_bound(at.begin(), at.end(), r.begin) - at.begin();
         at[i] != r.end && pieces <= most; ++i, ++pieces)
      between[i].push_back(&r);
  if (pieces > most) {
    std::vector<Tensor> layers;
    for (const std::vector<Rows>& layer : Layers(sorted))
      layers.push_back(Join(layer, axis, at[0], at.back()));
    apart->push_back({at[0], at.back(), add_n(layers)});
    return;
  }
  for (size_t i = 0; i < between.size(); ++i) {
    std::vector<Tensor> terms;
    for (const Rows* r : between[i]) terms.push_back(Cut(*r, axis, at[i], at[i + 1]));
    apart->push_back({at[i], at[i + 1], terms.size() == 1 ? terms[0] : add_n(terms)});
  }
}

// The sum of rows of an axis of `extent`.
Tensor Together(std::vector<Rows> rows, int axis, int64_t extent) {
  std::stable_sort(rows.begin(), rows.end(), [](const Rows& a, const Rows& b) { return a.begin < b.begin; });
  std::vector<Rows> apart;
  for (size_t i = 0; i < rows.size();) {
    int64_t end = rows[i].end;
    size_t next = i + 1;
    for (; next < rows.size() && rows[next].begin < end; ++next) end = std::max(end, rows[next].end);
    if (next == i + 1) {
      apart.push_back(rows[i]);
    } else {
      AddOverlaid({rows.begin() + static_cast<long>(i), rows.begin() + static_cast<long>(next)}, axis,
                  &apart);
    }
    i = next;
  }
  return Join(apart, axis, 0, extent);
}

Tensor Together(std::vector<Rows> rows, const Along& along, const Dims& whole) {
  const auto [axis, step] = along;
  if (step == 1) return Together(std::move(rows), axis, whole[axis]);
  for (Rows& column : rows)
    column.tensor = reshape(column.tensor, Split(column.tensor.shape(), axis, whole[axis] / step, 1));
  return reshape(Together(std::move(rows), axis + 1, step), whole);
}

}  // namespace

Tensor SumOfParts(const std::vector<Tensor>& parts) {
  const Dims whole = parts[0].shape();
  std::map<Along, std::vector<Rows>> slices;
  std::map<Along, size_t> first;  // the place of each among the terms
  std::vector<Tensor> terms;
  for (const Tensor& part : parts) {
    Along along;
    Rows rows;
    if (!AsRows(part, &along, &rows)) {
      terms.push_back(part);
      continue;
    }
    if (first.try_emplace(along, terms.size()).second) terms.push_back(part);
    slices[along].push_back(rows);
  }
  for (auto& [along, rows] : slices)
    if (rows.size() > 1) terms[first.at(along)] = Together(std::move(rows), along, whole);
  return terms.size() == 1 ? terms[0] : add_n(terms);
}

}  // namespace oneflow_like
