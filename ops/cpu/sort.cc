// argsort, cumsum and flip. Lines along the axis are shared among the threads. The first k of a line are
// found by a threshold: once k elements are known, a later one matters only if its key is below the greatest
// of them, which a block of keys is asked at once.
#include <limits>

#include "ops/along_axis.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/sort_keys.h"

namespace oneflow_like::cpu {
namespace {

// One line of x, whose elements are `step` apart.
template <typename T>
struct Line {
  using Key = KeyOf<T>;
  const T* from;
  int64_t n, step;
  Key flip;  // all ones: the order falls

  Key At(int64_t i) const { return KeyFor(from[i * step]) ^ flip; }
  EntryOf<Key> Entry(Key key, int64_t i) const {
    return (static_cast<EntryOf<Key>>(key) << kPlaceBits<Key>) | static_cast<EntryOf<Key>>(i);
  }
};

constexpr int64_t kInserted = 16;

// Entries of room for the first k of a line of n, whichever of the functions below finds them.
int64_t RoomFor(int64_t n, int64_t k) {
  return k <= kInserted ? kInserted : std::min(2 * n, std::max<int64_t>(8 * k, 256));
}

// All of a line, where more than a quarter of it is wanted.
template <typename T>
void SortLine(const Line<T>& line, EntryOf<KeyOf<T>>* room) {
  for (int64_t i = 0; i < line.n; ++i) room[i] = line.Entry(line.At(i), i);
  SortEntries<KeyOf<T>>(room, room + line.n, line.n);
}

// body(first element, keys, count) for the keys of elements [begin, line.n), a block at a time, if the least
// of a few in a row is below what threshold() is by then.
template <typename T, typename Threshold, typename F>
void ForKeysBelow(const Line<T>& line, int64_t begin, Threshold&& threshold, F&& body) {
  using Key = KeyOf<T>;
  constexpr int64_t kBlock = 64, kFew = 16;
  Key keys[kBlock], least[kBlock / kFew];
  for (; begin < line.n; begin += kBlock) {
    const int64_t count = std::min(kBlock, line.n - begin);
    if (line.step == 1 && count == kBlock) {
      const T* from = line.from + begin;
      for (int64_t i = 0; i < kBlock; ++i) keys[i] = KeyFor(from[i]) ^ line.flip;
    } else {
      for (int64_t i = 0; i < count; ++i) keys[i] = line.At(begin + i);
      std::fill(keys + count, keys + kBlock, std::numeric_limits<Key>::max());
    }
    for (int64_t part = 0; part < kBlock / kFew; ++part) {
      Key low = keys[part * kFew];
      for (int64_t i = 1; i < kFew; ++i) low = std::min(low, keys[part * kFew + i]);
      least[part] = low;
    }
    for (int64_t part = 0; part < kBlock / kFew; ++part)
      if (least[part] < threshold()) body(begin + part * kFew, keys + part * kFew, kFew);
  }
}

// The first k of the order to `best`, k of a few: each is put where it belongs among those
// before it. REQUIRES: 0 < k <= kInserted, k <= line.n.
template <typename T>
void InsertLine(const Line<T>& line, int64_t k, EntryOf<KeyOf<T>>* best) {
  using Key = KeyOf<T>;
  auto insert = [&](EntryOf<Key> entry, int64_t held) {
    int64_t at = held;
    for (; at > 0 && best[at - 1] > entry; --at) best[at] = best[at - 1];
    best[at] = entry;
  };
  for (int64_t i = 0; i < k; ++i) insert(line.Entry(line.At(i), i), i);
  Key threshold = static_cast<Key>(best[k - 1] >> kPlaceBits<Key>);
  ForKeysBelow(
      line, k, [&] { return threshold; },
      [&](int64_t first, const Key* keys, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          if (keys[i] >= threshold) continue;
          insert(line.Entry(keys[i], first + i), k - 1);
          threshold = static_cast<Key>(best[k - 1] >> kPlaceBits<Key>);
        }
      });
}

// The same of more. REQUIRES: 0 < k < line.n.
template <typename T>
void SelectLine(const Line<T>& line, int64_t k, EntryOf<KeyOf<T>>* best) {
  using Key = KeyOf<T>;
  const int64_t most = std::min(line.n, std::max<int64_t>(4 * k, 256));
  int64_t held = 0;
  for (; held < most; ++held) best[held] = line.Entry(line.At(held), held);
  Key threshold = 0;
  auto shrink = [&] {
    std::nth_element(best, best + k - 1, best + held);
    held = k;
    threshold = static_cast<Key>(best[k - 1] >> kPlaceBits<Key>);
  };
  shrink();
  ForKeysBelow(
      line, most, [&] { return threshold; },
      [&](int64_t first, const Key* keys, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          if (keys[i] >= threshold) continue;
          if (held == most) shrink();
          if (keys[i] < threshold) best[held++] = line.Entry(keys[i], first + i);
        }
      });
  if (held > k) shrink();
  std::sort(best, best + k);
}

template <typename T>
Status Argsort(const KernelContext& context) {
  using Key = KeyOf<T>;
  const TensorArg &x = context.in[0], &y = context.out[0];
  int axis = AxisOf(context.spec);
  const AroundAxis at(x, axis);
  const int64_t k = y.extent[axis], n = at.along;
  const Key flip = context.spec.attrs.Int("descending", 0) ? ~Key{0} : Key{0};
  if (k == 0 || n == 0) return Status();
  const auto run = [&](int64_t begin, int64_t end, int part) {
    EntryOf<Key>* const room = static_cast<EntryOf<Key>*>(context.scratch) + part * RoomFor(n, k);
    for (int64_t i = begin; i < end; ++i) {
      int64_t o = i / at.inner, c = i % at.inner;
      const Line<T> line{x.as<T>() + o * n * at.inner + c, n, at.inner, flip};
      if (k <= kInserted) {
        InsertLine(line, k, room);
      } else if (k > n / 4) {
        SortLine(line, room);
      } else {
        SelectLine(line, k, room);
      }
      int64_t* to = y.as<int64_t>() + o * k * at.inner + c;
      constexpr auto kPlace = (EntryOf<Key>{1} << kPlaceBits<Key>)-1;
      for (int64_t j = 0; j < k; ++j) to[j * at.inner] = static_cast<int64_t>(room[j] & kPlace);
    }
  };
  ParallelForParts(at.outer * at.inner, RowGrain(4 * n), context.spec.threads, run);
  return Status();
}

// `columns` lines at once, whose elements follow each other `apart` elements apart; a line's own are `step`
// apart. Sums in fp64 of fp32, in i64 of integers.
template <int kMost, typename T>
void SumLines(const T* from, T* to, int64_t n, int64_t step, int64_t apart, int64_t columns, bool exclusive) {
  using Sum = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  Sum sums[kMost] = {};
  for (int64_t s = 0; s < n; ++s, from += step, to += step) {
    auto add = [&](int64_t c) {
      Sum before = sums[c], with = before + static_cast<Sum>(from[c * apart]);
      to[c * apart] = static_cast<T>(exclusive ? before : with);
      sums[c] = with;
    };
    if constexpr (kMost <= 4) {
      OFL_UNROLL(4)
      for (int64_t c = 0; c < kMost; ++c) add(c);
    } else {
      for (int64_t c = 0; c < columns; ++c) add(c);
    }
  }
}

// Dense lines four at once, as each waits for its own last sum; else 64 neighbours.
template <typename T>
Status CumsumOf(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const AroundAxis at(x, AxisOf(context.spec));
  const bool reverse = context.spec.attrs.Int("reverse", 0) != 0;
  const bool exclusive = context.spec.attrs.Int("exclusive", 0) != 0;
  if (x.elements() == 0) return Status();
  constexpr int64_t kColumns = 64;
  const int64_t n = at.along, chunks = (at.inner + kColumns - 1) / kColumns;
  const int64_t step = reverse ? -at.inner : at.inner, start = reverse ? (n - 1) * at.inner : 0;
  ParallelFor(at.outer * chunks, RowGrain(n * std::min(at.inner, kColumns)), [&](int64_t i, int64_t end) {
    while (i < end) {
      int64_t column = i % chunks * kColumns, first = i / chunks * n * at.inner + start + column;
      const T* from = x.as<T>() + first;
      T* to = y.as<T>() + first;
      bool four = at.inner == 1 && i + 4 <= end;
      if (four) {
        SumLines<4>(from, to, n, step, n, 4, exclusive);
      } else if (at.inner == 1) {
        SumLines<1>(from, to, n, step, n, 1, exclusive);
      } else {
        SumLines<kColumns>(from, to, n, step, 1, std::min(kColumns, at.inner - column), exclusive);
      }
      i += four ? 4 : 1;
    }
  });
  return Status();
}

}  // namespace

KernelPtr MakeArgsort(const KernelSpec& spec) {
  switch (spec.in[0].dtype) {
    case DType::kFloat32:
      return MakeFunctionKernel(Argsort<float>)(spec);
    case DType::kBFloat16:
      return MakeFunctionKernel(Argsort<BFloat16>)(spec);
    case DType::kFloat16:
      return MakeFunctionKernel(Argsort<Float16>)(spec);
    case DType::kInt32:
      return MakeFunctionKernel(Argsort<int32_t>)(spec);
    case DType::kInt64:
      return MakeFunctionKernel(Argsort<int64_t>)(spec);
    default:
      return MakeReference(spec);
  }
}

int64_t ArgsortScratch(const KernelSpec& spec) {
  const int axis = AxisOf(spec);
  const AroundAxis at(spec.in[0], axis);
  const int64_t entry =
      spec.in[0].dtype == DType::kInt64 ? sizeof(EntryOf<uint64_t>) : sizeof(EntryOf<uint32_t>);
  return std::clamp<int64_t>(at.outer * at.inner, 1, spec.threads) *
         RoomFor(at.along, spec.out[0].extent[axis]) * entry;
}

KernelPtr MakeCumsum(const KernelSpec& spec) {
  switch (spec.in[0].dtype) {
    case DType::kFloat32:
      return MakeFunctionKernel(CumsumOf<float>)(spec);
    case DType::kInt32:
      return MakeFunctionKernel(CumsumOf<int32_t>)(spec);
    case DType::kInt64:
      return MakeFunctionKernel(CumsumOf<int64_t>)(spec);
    default:
      return MakeReference(spec);
  }
}

Status Flip(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const AroundAxis at(x, AxisOf(context.spec));
  const int64_t size = static_cast<int64_t>(SizeOf(x.dtype)), bytes = at.inner * size;
  if (x.elements() == 0) return Status();
  ParallelFor(at.outer * at.along, RowGrain(bytes / 4), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t from = i / at.along * at.along + at.along - 1 - i % at.along;
      if (bytes == 4) {
        y.as<uint32_t>()[i] = x.as<uint32_t>()[from];
      } else {
        std::memcpy(y.as<char>() + i * bytes, x.as<char>() + from * bytes, bytes);
      }
    }
  });
  return Status();
}

}  // namespace oneflow_like::cpu
