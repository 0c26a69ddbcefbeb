// interpolate and its gradient, a line at a time, channels along the vector lanes. Where rows and columns
// come from is settled first, in scratch: neither is ever cut. The gradient adds up the rows that read
// a line, each a run of memory, and then the columns of their sum, which a cache holds.
#include "ops/interpolate.h"

#include <cstring>

#include "core/device/scratch.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/vectors.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

ResizeSource* TakeSources(const ResizeAxis& axis, Scratch* scratch) {
  ResizeSource* sources = scratch->Take<ResizeSource>(axis.out);
  for (int64_t p = 0; sources != nullptr && p < axis.out; ++p) sources[p] = axis.Source(p);
  return sources;
}

struct ResizeRoom {
  ResizeSource *rows, *columns;
  int64_t bytes;
  explicit ResizeRoom(const ResizeShape& s, void* memory = nullptr) {
    Scratch scratch(memory);
    rows = TakeSources(s.rows, &scratch);
    columns = TakeSources(s.columns, &scratch);
    bytes = scratch.bytes();
  }
};

template <typename T>
struct Interpolate {
  static Status Run(const KernelContext& context) {
    const TensorArg &x = context.in[0], &y = context.out[0];
    const ResizeShape s = ShapeOfResize(context.spec.attrs, x, y);
    const ResizeRoom room(s, context.scratch);
    const int64_t line = s.columns.out * s.channels;
    ParallelFor(s.batch * s.rows.out, RowGrain(4 * line), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const ResizeSource row = room.rows[i % s.rows.out];
        const T* plane = x.as<T>() + i / s.rows.out * s.rows.in * s.columns.in * s.channels;
        const T* first = plane + row.first * s.columns.in * s.channels;
        const T* second = plane + row.second * s.columns.in * s.channels;
        T* to = y.as<T>() + i * line;
        for (int64_t q = 0; q < s.columns.out; ++q, to += s.channels)
          s.rows.bilinear ? Mix(first, second, row.weight, room.columns[q], s.channels, to)
                          : Take(first, room.columns[q].first, s.channels, to);
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
};

// The results that read a row (or column) of x, and its weights in them.
struct Share {
  int64_t result;
  float part;
};
struct Shares {
  int64_t* begin;  // per row, and the end
  Share* all;

  // Each result has two rows at most.
  Shares(const ResizeAxis& axis, Scratch* scratch)
      : begin(scratch->Take<int64_t>(axis.in + 1)), all(scratch->Take<Share>(2 * axis.out)) {
    if (begin == nullptr) return;
    int64_t count = 0;
    for (int64_t i = 0; i < axis.in; ++i) {
      begin[i] = count;
      ResizeRange range = axis.Results(i);
      for (int64_t p = range.begin; p < range.end; ++p) {
        float part = axis.Part(i, p);
        if (part != 0) all[count++] = {p, part};
      }
    }
    begin[axis.in] = count;
  }
  const Share* Begin(int64_t i) const { return all + begin[i]; }  // of row i; the end of row i - 1
};

// The shares, and for each thread the rows of dy that read a line of dx, added up.
struct ResizeGradRoom {
  Scratch scratch;
  Shares rows, columns;
  float* lines;
  int64_t line;  // floats of one
  ResizeGradRoom(const ResizeShape& s, int threads, void* memory = nullptr)
      : scratch(memory),
        rows(s.rows, &scratch),
        columns(s.columns, &scratch),
        line((s.columns.out * s.channels + 15) / 16 * 16) {
    lines = scratch.Take<float>(std::clamp<int64_t>(s.batch * s.rows.in, 1, threads) * line);
  }
};

template <typename T>
struct InterpolateGrad {
  static Status Run(const KernelContext& context) {
    const TensorArg &dy = context.in[0], &dx = context.out[0];
    const ResizeShape s = ShapeOfResize(context.spec.attrs, dx, dy);
    const int threads = context.spec.threads;
    const ResizeGradRoom room(s, threads, context.scratch);
    const int64_t line = s.columns.in * s.channels, length = s.columns.out * s.channels;
    ParallelForParts(
        s.batch * s.rows.in, RowGrain(4 * line), threads, [&](int64_t begin, int64_t end, int part) {
          float* const sum = room.lines + part * room.line;
          for (int64_t i = begin; i < end; ++i) {
            const T* plane = dy.as<T>() + i / s.rows.in * s.rows.out * length;
            AddRows(room.rows, plane, length, i % s.rows.in, sum);
            for (int64_t w = 0; w < s.columns.in; ++w)
              AddColumns(room.columns, sum, s.channels, w, dx.as<T>() + i * line + w * s.channels);
          }
        });
    return Status();
  }

 private:
  static void AddRows(const Shares& rows, const T* plane, int64_t length, int64_t h, float* sum) {
    const Share *begin = rows.Begin(h), *end = rows.Begin(h + 1);
    ForVectorGroups(length, [&](int64_t c, auto group, auto lanes) {
      Vector total[group.value] = {};
      for (const Share* row = begin; row != end; ++row) {
        const T* from = plane + row->result * length + c;
        for (int v = 0; v < group.value; ++v) total[v] += LoadVector(from + 16 * v, lanes) * row->part;
      }
      for (int v = 0; v < group.value; ++v) StoreVector(total[v], lanes, sum + c + 16 * v);
    });
  }

  static void AddColumns(const Shares& columns, const float* sum, int64_t channels, int64_t w, T* to) {
    const Share *begin = columns.Begin(w), *end = columns.Begin(w + 1);
    ForVectorGroups(channels, [&](int64_t c, auto group, auto lanes) {
      Vector total[group.value] = {};
      for (const Share* column = begin; column != end; ++column) {
        const float* from = sum + column->result * channels + c;
        for (int v = 0; v < group.value; ++v) total[v] += LoadVector(from + 16 * v, lanes) * column->part;
      }
      for (int v = 0; v < group.value; ++v) StoreVector(total[v], lanes, to + c + 16 * v);
    });
  }
};

}  // namespace

KernelPtr MakeInterpolate(const KernelSpec& spec) {
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(Interpolate<decltype(t)>::Run)(spec); });
}
KernelPtr MakeInterpolateGrad(const KernelSpec& spec) {
  return DispatchFloating(
      spec.in[0].dtype, [&](auto t) { return MakeFunctionKernel(InterpolateGrad<decltype(t)>::Run)(spec); });
}
int64_t InterpolateScratch(const KernelSpec& spec) {
  return ResizeRoom(ShapeOfResize(spec.attrs, spec.in[0], spec.out[0])).bytes;
}
int64_t InterpolateGradScratch(const KernelSpec& spec) {
  return ResizeGradRoom(ShapeOfResize(spec.attrs, spec.out[0], spec.in[0]), spec.threads).scratch.bytes();
}

}  // namespace oneflow_like::cpu
