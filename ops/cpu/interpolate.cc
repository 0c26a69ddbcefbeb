// interpolate and its gradient, a line at a time, channels along the vector lanes. Where rows and columns
// come from is settled when the kernel is made: neither is ever cut. The gradient adds up the rows that read
// a line, each a run of memory, and then the columns of their sum, which a cache holds.
#include "ops/interpolate.h"

#include <vector>

#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/vectors.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

std::vector<ResizeSource> SourcesOf(const ResizeAxis& axis) {
  std::vector<ResizeSource> sources;
  for (int64_t p = 0; p < axis.out; ++p) sources.push_back(axis.Source(p));
  return sources;
}

template <typename T>
class Interpolate : public Kernel {
 public:
  explicit Interpolate(const KernelSpec& spec) {
    ResizeShape s = ShapeOfResize(spec.attrs, spec.in[0], spec.out[0]);
    rows_ = SourcesOf(s.rows);
    columns_ = SourcesOf(s.columns);
  }

  Status Run(const KernelContext& context) override {
    const TensorArg &x = context.in[0], &y = context.out[0];
    const ResizeShape s = ShapeOfResize(context.spec.attrs, x, y);
    const int64_t line = s.columns.out * s.channels;
    ParallelFor(s.batch * s.rows.out, RowGrain(4 * line), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const ResizeSource row = rows_[i % s.rows.out];
        const T* plane = x.as<T>() + i / s.rows.out * s.rows.in * s.columns.in * s.channels;
        const T* first = plane + row.first * s.columns.in * s.channels;
        const T* second = plane + row.second * s.columns.in * s.channels;
        T* to = y.as<T>() + i * line;
        for (int64_t q = 0; q < s.columns.out; ++q, to += s.channels)
          s.rows.bilinear ? Mix(first, second, row.weight, columns_[q], s.channels, to)
                          : Take(first, columns_[q].first, s.channels, to);
      }
    });
    return Status();
  }

 private:
  static void Take(const T* line, int64_t column, int64_t channels, T* to) {
    std::memcpy(to, line + column * channels, channels * sizeof(T));
  }
  static void Mix(const T* first, const T* second, float weight, const ResizeSource& column, int64_t channels,
                  T* to) {
    const int64_t left = column.first * channels, right = column.second * channels;
    ForVectors(channels, [&](int64_t c, auto lanes) {
      auto along = [&](const T* line) {
        return LoadVector(line + left + c, lanes) * (1 - column.weight) +
               LoadVector(line + right + c, lanes) * column.weight;
      };
      StoreVector(along(first) * (1 - weight) + along(second) * weight, lanes, to + c);
    });
  }

  std::vector<ResizeSource> rows_, columns_;
};

// The results that read a row (or column) of x, and its weights in them.
struct Share {
  int64_t result;
  float part;
};
struct Shares {
  std::vector<int64_t> begin;  // per row, and the end
  std::vector<Share> all;

  explicit Shares(const ResizeAxis& axis) {
    for (int64_t i = 0; i < axis.in; ++i) {
      begin.push_back(static_cast<int64_t>(all.size()));
      ResizeRange range = axis.Results(i);
      for (int64_t p = range.begin; p < range.end; ++p) {
        float part = axis.Part(i, p);
        if (part != 0) all.push_back({p, part});
      }
    }
    begin.push_back(static_cast<int64_t>(all.size()));
  }
  const Share* Begin(int64_t i) const { return all.data() + begin[i]; }  // of row i; the end of row i - 1
};

// The rows of dy that read a line of dx, added up.
struct SummedRows {
  std::vector<float> line;
};

template <typename T>
class InterpolateGrad : public Kernel {
 public:
  explicit InterpolateGrad(const KernelSpec& spec)
      : rows_(ShapeOfResize(spec.attrs, spec.out[0], spec.in[0]).rows),
        columns_(ShapeOfResize(spec.attrs, spec.out[0], spec.in[0]).columns) {}

  Status Run(const KernelContext& context) override {
    const TensorArg &dy = context.in[0], &dx = context.out[0];
    const ResizeShape s = ShapeOfResize(context.spec.attrs, dx, dy);
    const int64_t line = s.columns.in * s.channels, length = s.columns.out * s.channels;
    ParallelFor(s.batch * s.rows.in, RowGrain(4 * line), [&](int64_t begin, int64_t end) {
      std::vector<float>& sum = OfThread<SummedRows>()->line;
      if (static_cast<int64_t>(sum.size()) < length) sum.resize(length);
      for (int64_t i = begin; i < end; ++i) {
        const T* plane = dy.as<T>() + i / s.rows.in * s.rows.out * length;
        AddRows(plane, length, i % s.rows.in, sum.data());
        for (int64_t w = 0; w < s.columns.in; ++w)
          AddColumns(sum.data(), s.channels, w, dx.as<T>() + i * line + w * s.channels);
      }
    });
    return Status();
  }

 private:
  void AddRows(const T* plane, int64_t length, int64_t h, float* sum) const {
    const Share *begin = rows_.Begin(h), *end = rows_.Begin(h + 1);
    ForVectorGroups(length, [&](int64_t c, auto group, auto lanes) {
      Vector total[group.value] = {};
      for (const Share* row = begin; row != end; ++row) {
        const T* from = plane + row->result * length + c;
        for (int v = 0; v < group.value; ++v) total[v] += LoadVector(from + 16 * v, lanes) * row->part;
      }
      for (int v = 0; v < group.value; ++v) StoreVector(total[v], lanes, sum + c + 16 * v);
    });
  }

  void AddColumns(const float* sum, int64_t channels, int64_t w, T* to) const {
    const Share *begin = columns_.Begin(w), *end = columns_.Begin(w + 1);
    ForVectorGroups(channels, [&](int64_t c, auto group, auto lanes) {
      Vector total[group.value] = {};
      for (const Share* column = begin; column != end; ++column) {
        const float* from = sum + column->result * channels + c;
        for (int v = 0; v < group.value; ++v) total[v] += LoadVector(from + 16 * v, lanes) * column->part;
      }
      for (int v = 0; v < group.value; ++v) StoreVector(total[v], lanes, to + c + 16 * v);
    });
  }

  Shares rows_, columns_;
};

}  // namespace

KernelPtr MakeInterpolate(const KernelSpec& spec) {
  return DispatchFloating(spec.in[0].dtype, [&](auto t) -> KernelPtr {
    return std::make_unique<Interpolate<decltype(t)>>(spec);
  });
}
KernelPtr MakeInterpolateGrad(const KernelSpec& spec) {
  return DispatchFloating(spec.in[0].dtype, [&](auto t) -> KernelPtr {
    return std::make_unique<InterpolateGrad<decltype(t)>>(spec);
  });
}

}  // namespace oneflow_like::cpu
