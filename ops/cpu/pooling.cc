// Pooling, a line of results at a time, channels along the vector lanes. Gradients are written by the line of
// x: every element gathers what the windows that have it give, so nothing is zeroed first and no two threads
// write one element.
#include "ops/pooling.h"

#include "ops/cpu/kernels.h"
#include "ops/cpu/vectors.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

typedef int32_t Places __attribute__((vector_size(64), aligned(4), may_alias));

template <typename Lanes>
Places LoadPlaces(const int32_t* from, Lanes lanes) {
  if constexpr (std::is_same_v<Lanes, FullVector>) return *reinterpret_cast<const Places*>(from);
  Places all = {};
  std::memcpy(&all, from, lanes * sizeof(int32_t));
  return all;
}
template <typename Lanes>
void StorePlaces(Places value, Lanes lanes, int32_t* to) {
  std::memcpy(to, &value, lanes * sizeof(int32_t));
}

// body(n, line, column) for every position of a plane [n, rows, columns], in parallel by lines.
// `work`: elements that a position reads and writes.
template <typename F>
void ForPositions(int64_t batch, int64_t rows, int64_t columns, int64_t work, F&& body) {
  ParallelFor(batch * rows, RowGrain(columns * work), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      for (int64_t column = 0; column < columns; ++column) body(line / rows, line % rows, column);
    }
  });
}

// to[c] = what f(position(row, column), c, lanes, &sum) adds up over a window, for all channels.
template <typename T, typename P, typename F>
void SumPositions(const PoolShape& s, PoolRange rows, PoolRange columns, T* to, P&& position, F&& f) {
  ForVectorGroups(s.channels, [&](int64_t c, auto group, auto lanes) {
    Vector total[group.value] = {};
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (int64_t column = columns.begin; column < columns.end; ++column) {
        auto at = position(row, column);
        for (int v = 0; v < group.value; ++v) f(at, c + 16 * v, lanes, &total[v]);
      }
    }
    for (int v = 0; v < group.value; ++v) StoreVector(total[v], lanes, to + c + 16 * v);
  });
}

template <typename T>
Status MaxPool(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const PoolShape s = ShapeOfPool(context.spec.attrs, x, y);
  ForPositions(s.batch, s.rows.out, s.columns.out, 4 * s.channels, [&](int64_t n, int64_t p, int64_t q) {
    const T* plane = x.as<T>() + n * s.rows.in * s.columns.in * s.channels;
    const int64_t to = ((n * s.rows.out + p) * s.columns.out + q) * s.channels;
    const PoolRange rows = s.rows.Window(p), columns = s.columns.Window(q);
    ForVectorGroups(s.channels, [&](int64_t c, auto group, auto lanes) {
      constexpr int G = group.value;
      int64_t first = rows.begin * s.columns.in + columns.begin;
      Vector greatest[G];
      Places where[G];
      for (int v = 0; v < G; ++v) {
        greatest[v] = LoadVector(plane + first * s.channels + c + 16 * v, lanes);
        where[v] = Places{} + static_cast<int32_t>(first);
      }
      for (int64_t h = rows.begin; h < rows.end; ++h) {
        for (int64_t w = columns.begin; w < columns.end; ++w) {
          int64_t at = h * s.columns.in + w;
          for (int v = 0; v < G; ++v) {
            Vector value = LoadVector(plane + at * s.channels + c + 16 * v, lanes);
            auto taken = (value > greatest[v]) | (value != value);
            greatest[v] = taken ? value : greatest[v];
            where[v] = taken ? Places{} + static_cast<int32_t>(at) : where[v];
          }
        }
      }
      for (int v = 0; v < G; ++v) {
        StoreVector(greatest[v], lanes, y.as<T>() + to + c + 16 * v);
        StorePlaces(where[v], lanes, context.out[1].as<int32_t>() + to + c + 16 * v);
      }
    });
  });
  return Status();
}

template <typename T>
Status MaxPoolGrad(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &at = context.in[1], &dx = context.out[0];
  const PoolShape s = ShapeOfPool(context.spec.attrs, dx, dy);
  ForPositions(s.batch, s.rows.in, s.columns.in, 2 * s.channels, [&](int64_t n, int64_t h, int64_t w) {
    const int64_t here = h * s.columns.in + w, plane = n * s.rows.out * s.columns.out;
    T* to = dx.as<T>() + (n * s.rows.in * s.columns.in + here) * s.channels;
    const PoolRange rows = s.rows.Results(h), columns = s.columns.Results(w);
    SumPositions(
        s, rows, columns, to,
        [&](int64_t p, int64_t q) { return (plane + p * s.columns.out + q) * s.channels; },
        [&](int64_t from, int64_t c, auto lanes, Vector* sum) {
          auto mine = LoadPlaces(at.as<int32_t>() + from + c, lanes) == Places{} + static_cast<int32_t>(here);
          *sum += mine ? LoadVector(dy.as<T>() + from + c, lanes) : Vector{};
        });
  });
  return Status();
}

template <typename T>
Status AvgPool(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const PoolShape s = ShapeOfPool(context.spec.attrs, x, y);
  ForPositions(s.batch, s.rows.out, s.columns.out, 4 * s.channels, [&](int64_t n, int64_t p, int64_t q) {
    const T* plane = x.as<T>() + n * s.rows.in * s.columns.in * s.channels;
    T* to = y.as<T>() + ((n * s.rows.out + p) * s.columns.out + q) * s.channels;
    const PoolRange rows = s.rows.Window(p), columns = s.columns.Window(q);
    const float share = s.Share(p, q);
    SumPositions(
        s, rows, columns, to,
        [&](int64_t h, int64_t w) { return plane + (h * s.columns.in + w) * s.channels; },
        [&](const T* from, int64_t c, auto lanes, Vector* sum) {
          *sum += LoadVector(from + c, lanes) * share;
        });
  });
  return Status();
}

template <typename T>
Status AvgPoolGrad(const KernelContext& context) {
  const TensorArg &dy = context.in[0], &dx = context.out[0];
  const PoolShape s = ShapeOfPool(context.spec.attrs, dx, dy);
  ForPositions(s.batch, s.rows.in, s.columns.in, 2 * s.channels, [&](int64_t n, int64_t h, int64_t w) {
    const int64_t plane = n * s.rows.out * s.columns.out;
    T* to = dx.as<T>() + ((n * s.rows.in + h) * s.columns.in + w) * s.channels;
    const PoolRange rows = s.rows.Results(h), columns = s.columns.Results(w);
    struct Part {
      const T* from;
      float share;
    };
    SumPositions(
        s, rows, columns, to,
        [&](int64_t p, int64_t q) {
          return Part{dy.as<T>() + (plane + p * s.columns.out + q) * s.channels, s.Share(p, q)};
        },
        [&](const Part& part, int64_t c, auto lanes, Vector* sum) {
          *sum += LoadVector(part.from + c, lanes) * part.share;
        });
  });
  return Status();
}

}  // namespace

KernelPtr MakeMaxPool2d(const KernelSpec& spec) {
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(MaxPool<decltype(t)>)(spec); });
}
KernelPtr MakeMaxPool2dGrad(const KernelSpec& spec) {
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(MaxPoolGrad<decltype(t)>)(spec); });
}
KernelPtr MakeAvgPool2d(const KernelSpec& spec) {
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(AvgPool<decltype(t)>)(spec); });
}
KernelPtr MakeAvgPool2dGrad(const KernelSpec& spec) {
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(AvgPoolGrad<decltype(t)>)(spec); });
}

}  // namespace oneflow_like::cpu
