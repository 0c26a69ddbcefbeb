// group_norm and its gradient, channels along the vector lanes whatever the width of a group. Sums per
// channel are taken in one pass, in at most 32 fixed bands of rows for each sample, and joined to groups in
// double; the rows are then written with a centre, a factor and an offset for each channel of the sample.
// Forward one sample follows the other, so that its rows are still in a cache when they are read again.
#include <cmath>

#include "core/device/scratch.h"
#include "ops/cpu/channel_bands.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/streaming.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kNormBands = 32;

struct Layout {
  int64_t batch, rows, channels, groups, width;  // rows: of one sample; width: channels of a group
  Bands bands;
  Layout(const TensorArg& x, const TensorArg& statistic)
      : batch(x.extent[0]),
        rows(1),
        channels(x.extent.back()),
        groups(statistic.extent[1]),
        width(groups > 0 ? channels / groups : 0),
        bands(0, 1) {
    for (int axis = 1; axis + 1 < x.extent.rank(); ++axis) rows *= x.extent[axis];
    bands = Bands(rows, kNormBands);
  }
  double count() const { return static_cast<double>(std::max<int64_t>(1, rows * width)); }
};

// Samples [begin, end).
struct Samples {
  int64_t begin, end;
};

// Sums of every band of every sample, and the numbers that a sample's channels are normalised with.
struct NormRoom {
  float* sums;                              // [sample][band][two sums][channel]
  double* totals;                           // [sample][two sums][channel]
  float *centre, *factor, *slope, *offset;  // [sample][channel]
  int64_t bytes;
  NormRoom(const Layout& l, void* memory = nullptr) {
    Scratch scratch(memory);
    sums = scratch.Take<float>(l.batch * Bands::Most(l.rows, kNormBands) * 2 * l.channels);
    totals = scratch.Take<double>(l.batch * 2 * l.channels);
    for (float** numbers : {&centre, &factor, &slope, &offset})
      *numbers = scratch.Take<float>(l.batch * l.channels);
    bytes = scratch.bytes();
  }

  float* Of(const Layout& l, int64_t n, int64_t band) const {
    return sums + (n * l.bands.count + band) * 2 * l.channels;
  }

  // f(n, first row, rows, sums) fills the two sums of a band.
  template <typename F>
  void Fill(const Layout& l, const Samples& samples, F&& f) const {
    ParallelFor((samples.end - samples.begin) * l.bands.count, RowGrain(l.bands.length * l.channels),
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i) {
                    int64_t n = samples.begin + i / l.bands.count, band = i % l.bands.count;
                    int64_t first = band * l.bands.length;
                    f(n, first, std::min(l.bands.length, l.rows - first), Of(l, n, band));
                  }
                });
  }

  // Both sums of each channel of a sample: [2][channels].
  double* Totals(const Layout& l, int64_t n) const {
    double* to = totals + n * 2 * l.channels;
    JoinBands(Of(l, n, 0), l.bands.count, 2 * l.channels, 2 * l.channels, to);
    return to;
  }

  // Sum `which` of a channel of a sample.
  double Total(const Layout& l, int64_t n, int64_t channel, int which) const {
    double total = 0;
    for (int64_t band = 0; band < l.bands.count; ++band)
      total += sums[((n * l.bands.count + band) * 2 + which) * l.channels + channel];
    return total;
  }
};

// The first result's rows of some samples: what f(n, row)(c, lanes, &vector) makes of every row.
template <typename T, typename F>
void WriteRows(const Layout& l, const Samples& samples, const KernelContext& context, F&& f) {
  const bool stream = Streams(context.out[0], context.in);
  const int64_t first = samples.begin * l.rows, count = (samples.end - samples.begin) * l.rows;
  ParallelFor(count, RowGrain(l.channels), [&](int64_t begin, int64_t end) {
    for (int64_t i = first + begin; i < first + end; ++i)
      WriteRow(context.out[0].as<T>() + i * l.channels, l.channels, stream, f(i / l.rows, i));
    if (stream) EndStream();
  });
}

template <typename T>
struct GroupNorm {
  static Status Run(const KernelContext& context) {
    const Layout l(context.in[0], context.out[1]);
    const NormRoom room(l, context.scratch);
    // A thread for each sample, or all threads for one after the other.
    const int64_t threads = ParallelThreads(), size = l.rows * l.channels;
    const bool apart = l.batch % threads == 0 || l.batch >= 4 * threads || size < threads * kGrain;
    ParallelFor(l.batch, apart ? RowGrain(size) : l.batch, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) Normalise(context, l, room, n);
    });
    return Status();
  }

 private:
  static void Normalise(const KernelContext& context, const Layout& l, const NormRoom& room, int64_t n) {
    const T* x = context.in[0].as<T>();
    float *centre = room.centre + n * l.channels, *factor = room.factor + n * l.channels;
    const Samples one{n, n + 1};
    const bool one_by_one = OneByOne(l.channels, context.in[0].elements() * static_cast<int64_t>(sizeof(T)));
    Guess(l, x + n * l.rows * l.channels, centre);
    room.Fill(l, one, [&](int64_t, int64_t first, int64_t rows, float* sums) {
      SumMoments(x + (n * l.rows + first) * l.channels, centre, rows, l.channels, one_by_one, sums);
    });
    const double* totals = room.Totals(l, n);
    for (int64_t g = 0; g < l.groups; ++g) JoinGroup(context, l, n, g, totals, centre, factor);
    const float* beta = context.in[2].as<float>();
    WriteRows<T>(l, one, context, [=, &l](int64_t, int64_t row) {
      const T* from = x + row * l.channels;
      return [=](int64_t c, auto lanes, Vector* to) {
        Vector away = LoadVector(from + c, lanes) - LoadVector(centre + c, lanes);
        *to = away * LoadVector(factor + c, lanes) + LoadVector(beta + c, lanes);
      };
    });
  }

  // About the mean of each group, from up to eight rows of it, for each of its channels: sums about it keep
  // their digits in one pass.
  static void Guess(const Layout& l, const T* rows, float* centre) {
    const int64_t taken = std::min<int64_t>(8, l.rows);
    std::fill_n(centre, l.channels, 0.0f);
    for (int64_t i = 0; i < taken; ++i) {
      const T* row = rows + i * l.rows / taken * l.channels;
      ForVectors(l.channels, [&](int64_t c, auto lanes) {
        StoreVector(LoadVector(centre + c, lanes) + LoadVector(row + c, lanes), lanes, centre + c);
      });
    }
    const float share = 1 / static_cast<float>(std::max<int64_t>(1, taken * l.width));
    for (int64_t g = 0; g < l.groups; ++g) {
      float *group = centre + g * l.width, total = 0;
      for (int64_t c = 0; c < l.width; ++c) total += group[c];
      std::fill_n(group, l.width, total * share);
    }
  }

  // Statistics of a group from the sums about the guess; centre and factor of its channels.
  static void JoinGroup(const KernelContext& context, const Layout& l, int64_t n, int64_t g,
                        const double* totals, float* centre, float* factor) {
    if (l.width == 0) return Empty(context, n * l.groups + g);
    const int64_t first = g * l.width, last = first + l.width;
    double total = 0, squares = 0;
    for (int64_t c = first; c < last; ++c) {
      total += totals[c];
      squares += totals[l.channels + c];
    }
    const double beside = total / l.count();  // the guess
    const float mean = static_cast<float>(centre[first] + beside);
    const double variance = std::max(0.0, squares / l.count() - beside * beside);
    const double rstd = 1 / std::sqrt(variance + context.spec.attrs.Float("eps"));
    context.out[1].as<float>()[n * l.groups + g] = mean;
    context.out[2].as<float>()[n * l.groups + g] = static_cast<float>(rstd);
    std::fill_n(centre + first, l.width, mean);
    const float* gamma = context.in[1].as<float>();
    for (int64_t c = first; c < last; ++c) factor[c] = static_cast<float>(rstd * gamma[c]);
  }

  // Statistics of a group without channels.
  static void Empty(const KernelContext& context, int64_t group) {
    context.out[1].as<float>()[group] = 0;
    context.out[2].as<float>()[group] = static_cast<float>(1 / std::sqrt(context.spec.attrs.Float("eps")));
  }
};

template <typename T>
struct GroupNormGrad {
  static Status Run(const KernelContext& context) {
    const TensorArg &dy = context.in[0], &x = context.in[1];
    const Layout l(x, context.in[3]);
    const NormRoom room(l, context.scratch);
    const float* means = context.in[3].as<float>();
    for (int64_t i = 0; i < l.batch * l.groups; ++i)
      std::fill_n(room.centre + i * l.width, l.width, means[i]);
    const Samples all{0, l.batch};
    const bool one_by_one = OneByOne(l.channels, 2 * x.elements() * static_cast<int64_t>(sizeof(T)));
    room.Fill(l, all, [&](int64_t n, int64_t first, int64_t rows, float* sums) {
      int64_t at = (n * l.rows + first) * l.channels;
      SumProducts(dy.as<T>() + at, x.as<T>() + at, room.centre + n * l.channels, rows, l.channels, one_by_one,
                  sums);
    });
    ParallelFor(l.channels, RowGrain(2 * l.batch * l.bands.count), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) JoinChannel(context, l, room, c);
    });
    ParallelFor(l.batch * l.groups, RowGrain(l.width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) JoinGroup(context, l, room, i / l.groups, i % l.groups);
    });
    // dx = rstd gamma dy + slope (x - mean) + offset
    WriteRows<T>(l, all, context, [&](int64_t n, int64_t row) {
      const float *centre = room.centre + n * l.channels, *factor = room.factor + n * l.channels,
                  *slope = room.slope + n * l.channels, *offset = room.offset + n * l.channels;
      const T *by = dy.as<T>() + row * l.channels, *from = x.as<T>() + row * l.channels;
      return [=](int64_t c, auto lanes, Vector* to) {
        Vector away = LoadVector(from + c, lanes) - LoadVector(centre + c, lanes);
        *to = LoadVector(by + c, lanes) * LoadVector(factor + c, lanes);
        *to += away * LoadVector(slope + c, lanes) + LoadVector(offset + c, lanes);
      };
    });
    return Status();
  }

 private:
  // dgamma and dbeta of a channel. Leaves the sums of each sample for JoinGroup.
  static void JoinChannel(const KernelContext& context, const Layout& l, const NormRoom& room, int64_t c) {
    const float* rstds = context.in[4].as<float>();
    double dgamma = 0, dbeta = 0;
    for (int64_t n = 0; n < l.batch; ++n) {
      double total = room.Total(l, n, c, 0), products = room.Total(l, n, c, 1);
      room.offset[n * l.channels + c] = static_cast<float>(total);
      room.slope[n * l.channels + c] = static_cast<float>(products);
      dgamma += products * rstds[n * l.groups + c / l.width];
      dbeta += total;
    }
    context.out[1].as<float>()[c] = static_cast<float>(dgamma);
    context.out[2].as<float>()[c] = static_cast<float>(dbeta);
  }

  static void JoinGroup(const KernelContext& context, const Layout& l, const NormRoom& room, int64_t n,
                        int64_t g) {
    const float* gamma = context.in[2].as<float>();
    const double rstd = context.in[4].as<float>()[n * l.groups + g];
    float *slope = room.slope + n * l.channels, *offset = room.offset + n * l.channels;
    double total = 0, products = 0;
    for (int64_t c = g * l.width; c < (g + 1) * l.width; ++c) {
      total += gamma[c] * static_cast<double>(offset[c]);
      products += gamma[c] * static_cast<double>(slope[c]);
    }
    for (int64_t c = g * l.width; c < (g + 1) * l.width; ++c) {
      room.factor[n * l.channels + c] = static_cast<float>(rstd * gamma[c]);
      offset[c] = static_cast<float>(-rstd * total / l.count());
      slope[c] = static_cast<float>(-rstd * rstd * rstd * products / l.count());
    }
  }
};

// x, and what has its type, in one floating type; all else fp32.
bool MixedGroups(const KernelSpec& spec, size_t x, std::initializer_list<const TensorArg*> alike) {
  DType dtype = spec.in[x].dtype;
  auto fits = [&](const TensorArg& arg) {
    bool same = &arg == &spec.in[x] || std::find(alike.begin(), alike.end(), &arg) != alike.end();
    return arg.dtype == (same ? dtype : DType::kFloat32);
  };
  return std::all_of(spec.in.begin(), spec.in.end(), fits) &&
         std::all_of(spec.out.begin(), spec.out.end(), fits);
}

}  // namespace

KernelPtr MakeGroupNorm(const KernelSpec& spec) {
  if (!MixedGroups(spec, 0, {&spec.out[0]})) return MakeReference(spec);
  return DispatchFloating(spec.in[0].dtype,
                          [&](auto t) { return MakeFunctionKernel(GroupNorm<decltype(t)>::Run)(spec); });
}
KernelPtr MakeGroupNormGrad(const KernelSpec& spec) {
  if (!MixedGroups(spec, 1, {&spec.in[0], &spec.out[0]})) return MakeReference(spec);
  return DispatchFloating(spec.in[1].dtype,
                          [&](auto t) { return MakeFunctionKernel(GroupNormGrad<decltype(t)>::Run)(spec); });
}
int64_t GroupNormScratch(const KernelSpec& spec) { return NormRoom(Layout(spec.in[0], spec.out[1])).bytes; }
int64_t GroupNormGradScratch(const KernelSpec& spec) {
  return NormRoom(Layout(spec.in[1], spec.in[3])).bytes;
}

}  // namespace oneflow_like::cpu
