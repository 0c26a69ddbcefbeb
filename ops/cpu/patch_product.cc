// With positions p of results, windows w, channels c of x and k of results, a group's products are
//   forward          y[p k] = patch[p (w c)] filter[k (w c)]^T
//   grad_filter      filter[k (w c)] = y[p k]^T patch[p (w c)]
//   grad_input       x[p c] = patch[p (w k)] filter[(w k) c], patches of y
// For a gradient of x the rows of x are taken apart by their place within a stride (and columns likewise):
// only windows of one kind reach each.
#include "ops/cpu/patch_product.h"

#include <numeric>

#include "ops/cpu/matrix_panels.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

// Position p meets element j of a window at p * stride + offset + j * dilation, if that is in [0, extent).
struct PatchAxis {
  int64_t extent = 0, positions = 0, windows = 0;
  int64_t stride = 1, offset = 0, dilation = 1;
};

// Rows gathered from images, one for each position: [(rows, columns) of the window, channels].
template <typename T>
struct PatchRows {
  const T* images;   // at the group's first channel
  int64_t channels;  // of the group
  int64_t pitch;     // of all groups: from one column to the next
  PatchAxis rows, columns;

  // to[i][0 .. count) = elements [first, first + count) of the row of position + i, in fp32.
  void Fill(int64_t position, int64_t number, int64_t first, int64_t count, float* to, int64_t to_row) const {
    const int64_t per_row = columns.windows * channels;
    const Element start = {first / per_row, first % per_row / channels, first % channels};
    int64_t q = position % columns.positions, p = position / columns.positions % rows.positions;
    const T* image = images + position / columns.positions / rows.positions * ImageSize();
    for (int64_t i = 0; i < number; ++i, to += to_row) {
      FillPatch(image, p * rows.stride + rows.offset, q * columns.stride + columns.offset, start, count, to);
      if (++q < columns.positions) continue;
      q = 0;
      if (++p < rows.positions) continue;
      p = 0;
      image += ImageSize();
    }
  }

 private:
  struct Element {
    int64_t row, column, channel;  // of the window
  };

  int64_t ImageSize() const { return rows.extent * columns.extent * pitch; }

  // The window's element 0 lies at this row and column.
  void FillPatch(const T* image, int64_t row, int64_t column, Element at, int64_t count, float* to) const {
    for (int64_t run; count > 0; ++at.row, at.column = at.channel = 0, to += run, count -= run) {
      run = std::min(count, (columns.windows - at.column) * channels - at.channel);
      const int64_t h = row + at.row * rows.dilation;
      if (h < 0 || h >= rows.extent) {
        std::fill_n(to, run, 0.0f);
      } else {
        FillRow(image + h * columns.extent * pitch, column, at, run, to);
      }
    }
  }

  void FillRow(const T* line, int64_t column, Element at, int64_t count, float* to) const {
    if (columns.dilation == 1 && channels == pitch) {  // side by side
      const int64_t begin = (column + at.column) * channels + at.channel;
      const int64_t low = std::clamp<int64_t>(-begin, 0, count),
                    high = std::clamp(columns.extent * channels - begin, low, count);
      std::fill(to, to + low, 0.0f);
      Widen(line + begin + low, high - low, to + low);
      std::fill(to + high, to + count, 0.0f);
      return;
    }
    for (int64_t run; count > 0; ++at.column, at.channel = 0, to += run, count -= run) {
      run = std::min(count, channels - at.channel);
      const int64_t w = column + at.column * columns.dilation;
      if (w < 0 || w >= columns.extent) {
        std::fill_n(to, run, 0.0f);
      } else {
        Widen(line + w * pitch + at.channel, run, to);
      }
    }
  }
};

template <typename T>
class PatchLeft : public LeftPanels {
 public:
  explicit PatchLeft(const PatchRows<T>& patches) : patches_(patches) {}
  PanelBlock Read(int64_t m, int64_t rows, int64_t k, int64_t depth, float* room) const override {
    patches_.Fill(m, rows, k, depth, room, depth);
    return {room, depth, 1};
  }

 private:
  const PatchRows<T>& patches_;
};

template <typename T>
class PatchRight : public RightPanels {
 public:
  explicit PatchRight(const PatchRows<T>& patches) : patches_(patches) {}
  PanelBlock Read(int64_t k, int64_t depth, int64_t n, int64_t columns, float* room) const override {
    const int64_t width = (columns + 15) / 16 * 16;
    patches_.Fill(k, depth, n, columns, room, width);
    for (int64_t i = 0; i < depth && columns < width; ++i)
      std::fill(room + i * width + columns, room + (i + 1) * width, 0.0f);
    return {room, width, 1};
  }

 private:
  const PatchRows<T>& patches_;
};

// Windows of an axis that reach the elements r, r + stride, ... of x: first, first + step, ..., `count` of
// them.
struct PhaseWindows {
  int64_t first = 0, step = 1, count = 0;
  PhaseWindows(const ConvolutionAxis& axis, int64_t r) {
    step = axis.stride / std::gcd(axis.stride, axis.dilation);
    for (; first < std::min(step, axis.window); ++first) {
      if ((r + axis.padding - first * axis.dilation) % axis.stride != 0) continue;
      count = (axis.window - first + step - 1) / step;
      return;
    }
  }
  // Where y is met: x's element r + q * stride by window first + j * step.
  PatchAxis Axis(const ConvolutionAxis& axis, int64_t r) const {
    return {.extent = axis.out,
            .positions = (axis.in - r + axis.stride - 1) / axis.stride,
            .windows = count,
            .stride = 1,
            .offset = (r + axis.padding - first * axis.dilation) / axis.stride,
            .dilation = -step * axis.dilation / axis.stride};
  }
};

// A filter's elements for one kind of windows: [(rows, columns, k) c].
template <typename T>
class FilterRight : public RightPanels {
 public:
  FilterRight(const ConvolutionShape& s, const T* filter, const PhaseWindows& rows,
              const PhaseWindows& columns)
      : s_(s), filter_(filter), rows_(rows), columns_(columns) {}
  PanelBlock Read(int64_t k, int64_t depth, int64_t n, int64_t columns, float* room) const override {
    const int64_t width = (columns + 15) / 16 * 16;
    for (int64_t i = 0; i < depth; ++i) {
      const int64_t window = (k + i) / s_.out, out = (k + i) % s_.out;
      const int64_t r = rows_.first + window / columns_.count * rows_.step,
                    c = columns_.first + window % columns_.count * columns_.step;
      CopyPanelRow(filter_ + ((out * s_.rows.window + r) * s_.columns.window + c) * s_.in + n, columns, width,
                   room + i * width);
    }
    return {room, width, 1};
  }

 private:
  const ConvolutionShape& s_;
  const T* filter_;
  const PhaseWindows &rows_, &columns_;
};

// The elements of x of one phase.
template <typename Y>
class PhaseResult : public ProductResult {
 public:
  PhaseResult(const ConvolutionShape& s, Y* x, int64_t row, int64_t column, const PatchAxis& rows,
              const PatchAxis& columns)
      : s_(s), x_(x), row_(row), column_(column), rows_(rows.positions), columns_(columns.positions) {}
  float* Row(int64_t m) const override { return reinterpret_cast<float*>(x_) + m * row(); }
  int64_t row() const override { return s_.groups * s_.in; }
  void Store(int64_t m, int64_t rows, int64_t n, int64_t columns, const float* from,
             int64_t from_row) const override {
    for (int64_t i = m; i < m + rows; ++i, from += from_row) {
      const int64_t image = i / (rows_ * columns_), h = row_ + i / columns_ % rows_ * s_.rows.stride,
                    w = column_ + i % columns_ * s_.columns.stride;
      Narrow(from, columns, x_ + ((image * s_.rows.in + h) * s_.columns.in + w) * row() + n);
    }
  }

 private:
  const ConvolutionShape& s_;
  Y* x_;
  int64_t row_, column_, rows_, columns_;
};

PatchAxis ForwardAxis(const ConvolutionAxis& axis) {
  return {axis.in, axis.out, axis.window, axis.stride, -axis.padding, axis.dilation};
}

// The matrix of a group's results, [p k], and its filters, [k (w c)].
ProductLayout ForwardLayout(const ConvolutionShape& s) {
  const int64_t depth = s.rows.window * s.columns.window * s.in;
  return {s.batch * s.rows.out * s.columns.out, s.out, depth, 0, 0, 1, depth, s.groups * s.out, 1};
}
ProductLayout GradFilterLayout(const ConvolutionShape& s) {
  const int64_t width = s.rows.window * s.columns.window * s.in;
  return {s.out, width, s.batch * s.rows.out * s.columns.out, 1, s.groups * s.out, 0, 0, width, 1};
}

// One group.
template <typename T, typename Y>
class PatchGroup {
 public:
  PatchGroup(const PatchProduct& p, int threads, void* scratch, int64_t room)
      : s_(p.shape), in_place_(std::is_same_v<Y, float>), threads_(threads), scratch_(scratch), room_(room) {}

  void Forward(const T* x, const T* filter, Y* y) const {
    const MatrixProduct matrix{.layout = ForwardLayout(s_)};
    const PatchRows<T> patches = Patches(x);
    const PatchLeft<T> left(patches);
    const MatrixRight<T> right(matrix, filter);
    const MatrixResult<Y> to(matrix, y);
    Multiply(matrix.layout, left, right, to, in_place_);
  }

  void GradFilter(const T* x, Y* filter, const T* y) const {
    const MatrixProduct matrix{.layout = GradFilterLayout(s_)};
    const PatchRows<T> patches = Patches(x);
    const MatrixLeft<T> left(matrix, y);
    const PatchRight<T> right(patches);
    const MatrixResult<Y> to(matrix, filter);
    Multiply(matrix.layout, left, right, to, in_place_);
  }

  void GradInput(Y* x, const T* filter, const T* y) const {
    for (int64_t r = 0; r < std::min(s_.rows.stride, s_.rows.in); ++r)
      for (int64_t c = 0; c < std::min(s_.columns.stride, s_.columns.in); ++c) GradPhase(x, filter, y, r, c);
  }

 private:
  PatchRows<T> Patches(const T* x) const {
    return {x, s_.in, s_.groups * s_.in, ForwardAxis(s_.rows), ForwardAxis(s_.columns)};
  }

  void GradPhase(Y* x, const T* filter, const T* y, int64_t r, int64_t c) const {
    const PhaseWindows rows(s_.rows, r), columns(s_.columns, c);
    const PatchRows<T> patches = {y, s_.out, s_.groups * s_.out, rows.Axis(s_.rows, r),
                                  columns.Axis(s_.columns, c)};
    const PhaseResult<Y> to(s_, x, r, c, patches.rows, patches.columns);
    const int64_t positions = s_.batch * patches.rows.positions * patches.columns.positions,
                  depth = rows.count * columns.count * s_.out;
    if (depth == 0) {  // no window reaches them
      const float zeros[64] = {};
      for (int64_t n = 0; n < s_.in; n += 64)
        to.Store(0, positions, n, std::min<int64_t>(64, s_.in - n), zeros, 0);
      return;
    }
    const PatchLeft<T> left(patches);
    const FilterRight<T> right(s_, filter, rows, columns);
    Multiply({positions, s_.in, depth}, left, right, to,
             in_place_ && s_.rows.stride == 1 && s_.columns.stride == 1);
  }

  void Multiply(const ProductLayout& l, const LeftPanels& left, const RightPanels& right,
                const ProductResult& to, bool in_place) const {
    RunPanels({l.m, l.n, l.k, l.k, &left, &right, &to, in_place, false}, threads_, scratch_, room_);
  }

  const ConvolutionShape& s_;
  const bool in_place_;
  const int threads_;
  void* const scratch_;
  const int64_t room_;
};

}  // namespace

// Of a group's product, or of the largest for one kind of windows.
ProductLayout PatchProduct::layout() const {
  const ConvolutionShape& s = shape;
  const int64_t window = s.rows.window * s.columns.window;
  if (kind == ConvolutionKind::kForward) return ForwardLayout(s);
  if (kind == ConvolutionKind::kGradFilter) return GradFilterLayout(s);
  return {s.batch * s.rows.in * s.columns.in, s.in, window * s.out};
}

int64_t PatchProduct::bytes() const {
  const ProductLayout l = layout();
  const bool apart =
      kind == ConvolutionKind::kGradInput && (shape.rows.stride > 1 || shape.columns.stride > 1);
  const int64_t bytes = PanelBytes(l.m, l.n, l.k, result == DType::kFloat32 && !apart);
  return (std::max(bytes, kLeastPanelBytes) + 63) / 64 * 64;
}

int PatchProduct::slots(int threads) const {
  const ProductLayout l = layout();
  return static_cast<int>(
      std::min<int64_t>(threads, std::max<int64_t>({shape.groups, PanelParts(l.m, l.n, l.k, threads), 1})));
}

void PatchProduct::Run(void* x, void* filter, void* y, int threads, void* scratch, int64_t room) const {
  const ConvolutionShape& s = shape;
  const int64_t filters = s.out * s.rows.window * s.columns.window * s.in;  // of a group
  DispatchFloating(dtype, [&](auto t) {
    using T = decltype(t);
    const auto run = [&](auto to) {
      using Y = decltype(to);
      const bool spread = s.groups > threads;
      ParallelForParts(s.groups, spread ? 1 : s.groups, threads, [&](int64_t begin, int64_t end, int part) {
        const PatchGroup<T, Y> group(*this, spread ? 1 : threads, static_cast<char*>(scratch) + part * room,
                                     room);
        for (int64_t g = begin; g < end; ++g) {
          const int64_t in = g * s.in, out = g * s.out, at = g * filters;
          if (kind == ConvolutionKind::kForward)
            group.Forward(static_cast<const T*>(x) + in, static_cast<const T*>(filter) + at,
                          static_cast<Y*>(y) + out);
          if (kind == ConvolutionKind::kGradFilter)
            group.GradFilter(static_cast<const T*>(x) + in, static_cast<Y*>(filter) + at,
                             static_cast<const T*>(y) + out);
          if (kind == ConvolutionKind::kGradInput)
            group.GradInput(static_cast<Y*>(x) + in, static_cast<const T*>(filter) + at,
                            static_cast<const T*>(y) + out);
        }
      });
    };
    if (result == DType::kFloat32) return run(float{});
    run(t);
  });
}

}  // namespace oneflow_like::cpu
