// Combining and moving on a device, on the emulator: the bits of CombineBox for random boxes, any number of
// pieces, in place; and permutations of every element size at every alignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "ops/cuda/combine.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/reduce.h"
#include "tests/ops/cuda_bench.h"
#include "tests/ops/kernel_cases.h"

namespace oneflow_like::cuda {
namespace {

int64_t Draw(std::mt19937_64* random, int64_t n) {
  return static_cast<int64_t>((*random)() % static_cast<uint64_t>(n));
}

// A piece around `box`, or just it.
Operand PieceAround(std::mt19937_64* random, DType dtype, const Dims& global, const Box& box) {
  Dims begin = box.begin, extent = box.extent;
  for (int axis = 0; axis < global.rank(); ++axis) {
    if (Draw(random, 3) != 0) continue;
    int64_t before = Draw(random, begin[axis] + 1);
    extent[axis] += before + Draw(random, global[axis] - begin[axis] - extent[axis] + 1);
    begin[axis] -= before;
  }
  Operand piece(dtype, global, begin, extent);
  piece.Draw(random, -3, 3, dtype == DType::kBool ? 2 : 100);
  return piece;
}

Box DrawBox(std::mt19937_64* random, Dims* global) {
  const int64_t widths[] = {1, 5, 16, 32, 80};
  Box box;
  for (int64_t axis = 0, rank = Draw(random, 4); axis < rank; ++axis) {
    int64_t extent = axis == rank - 1 ? widths[Draw(random, 5)] : 1 + Draw(random, 6);
    int64_t before = axis == rank - 1 ? 16 * Draw(random, 2) : Draw(random, 3);
    global->push_back(before + extent + (axis == rank - 1 ? 16 * Draw(random, 2) : Draw(random, 3)));
    box.begin.push_back(before);
    box.extent.push_back(extent);
  }
  return box;
}

void CheckCombine(uint64_t seed, DType dtype, Reduce reduce, int sources, int targets, bool in_place) {
  std::mt19937_64 random(seed);
  Dims global;
  Box box = DrawBox(&random, &global);
  const std::string what =
      Cat("seed ", seed, ": ", Name(dtype), " ", Name(reduce), " of ", box.str(), " in ", global.str(), ", ",
          sources, " sources, ", targets, " targets", in_place ? ", in place" : "");
  Operands pieces;
  for (int i = 0; i < sources + targets; ++i) pieces.push_back(PieceAround(&random, dtype, global, box));
  if (in_place) pieces[static_cast<size_t>(sources)] = pieces[static_cast<size_t>(Draw(&random, sources))];
  // In place: the first target is a source's memory, in both runs.
  int shared = -1;
  if (in_place) {
    for (int i = 0; i < sources; ++i) {
      if (pieces[static_cast<size_t>(i)].memory == pieces[static_cast<size_t>(sources)].memory &&
          pieces[static_cast<size_t>(i)].arg.extent == pieces[static_cast<size_t>(sources)].arg.extent &&
          pieces[static_cast<size_t>(i)].arg.begin == pieces[static_cast<size_t>(sources)].arg.begin) {
        shared = i;
      }
    }
  }
  CudaBench bench({.devices = 1});
  Operands host = pieces;
  std::vector<Piece> on_host, on_device;
  for (size_t i = 0; i < pieces.size(); ++i) {
    size_t memory = in_place && i == static_cast<size_t>(sources) ? static_cast<size_t>(shared) : i;
    Box held{pieces[i].arg.begin, pieces[i].arg.extent};
    on_host.push_back({host[memory].memory.data(), held});
    size_t bytes = pieces[i].memory.size();
    void* device = memory == i ? bench.Allocate(bytes) : on_device[memory].data;
    if (memory == i) bench.CopyIn(device, pieces[i].memory.data(), bytes);
    on_device.push_back({device, held});
  }
  std::span<const Piece> all(on_device);
  CombineBox(dtype, reduce, box, on_host.data(), sources, on_host.data() + sources, targets);
  LaunchCombine(bench.launch.stream, dtype, reduce, box, all.first(static_cast<size_t>(sources)),
                all.subspan(static_cast<size_t>(sources)), 4);
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::vector<char> got(pieces[i].memory.size()), want(got.size());
    bench.CopyOut(got.data(), on_device[i].data, got.size());
    std::copy_n(static_cast<const char*>(on_host[i].data), want.size(), want.data());
    ASSERT_EQ(got, want) << what << ", piece " << i;
  }
}

TEST(CudaCombine, HasTheBitsOfTheHost) {
  using enum DType;
  uint64_t seed = 100;
  for (DType dtype : {kFloat32, kBFloat16, kFloat16, kInt32, kInt64, kUInt8, kBool}) {
    for (Reduce reduce : {Reduce::kSum, Reduce::kMax, Reduce::kMin}) {
      for (int sources : {0, 1, 2, 3, 8, 9, 20}) {
        for (int targets : {1, 2, 9}) CheckCombine(++seed, dtype, reduce, sources, targets, false);
      }
    }
  }
}

TEST(CudaCombine, InPlace) {
  uint64_t seed = 2000;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32}) {
    for (int sources : {2, 5, 12}) {
      for (int targets : {1, 10, 20}) {
        for (int trial = 0; trial < 3; ++trial)
          CheckCombine(++seed, dtype, Reduce::kSum, sources, targets, true);
      }
    }
  }
}

TEST(CudaCombine, CopiesBitsAsTheyAre) {
  // Signalling NaNs too: a copy is no arithmetic.
  CudaBench bench({.devices = 1});
  std::vector<uint16_t> bits(65536), back(65536);
  std::iota(bits.begin(), bits.end(), 0);
  Box box = Box::Whole({65536});
  void* from = bench.Allocate(131072);
  bench.CopyIn(from, bits.data(), 131072);
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Piece source{from, box}, targets[2] = {{bench.Allocate(131072), box}, {bench.Allocate(131072), box}};
    LaunchCombine(bench.launch.stream, dtype, Reduce::kNone, box, {&source, 1}, targets, 4);
    for (const Piece& target : targets) {
      bench.CopyOut(back.data(), target.data, 131072);
      EXPECT_EQ(back, bits) << Name(dtype);
    }
  }
}

// --- Movers --------------------------------------------------------------------------------------

const KernelRegistry& Registry() {
  static const KernelRegistry* const registry = [] {
    auto* all = new KernelRegistry;
    AddReferenceKernels(BuiltinCatalog(), all);
    AddMoveKernels(all);
    AddReduceKernels(all);
    return all;
  }();
  return *registry;
}

// The same bits as the reference kernel, with operands `shift` bytes past an aligned address.
void CheckMove(const std::string& op, const Attrs& attrs, Operands in, const Operands& out, int64_t shift,
               const std::string& what) {
  Operands want = out, got = out;
  for (Operands* to : {&want, &got}) {
    KernelSpec spec;
    spec.name = op;
    spec.attrs = attrs;
    for (Operand& o : in) spec.in.push_back(o.Arg());
    for (Operand& o : *to) spec.out.push_back(o.Arg());
    KernelContext context{spec, spec.in, spec.out};
    if (to == &want) {
      ASSERT_TRUE(Registry().Make(spec, "reference")->Run(context).ok());
    } else {
      CudaBench bench({.devices = 1});
      std::unique_ptr<Kernel> kernel = Registry().Make(spec, "cuda");
      ASSERT_TRUE(bench.Run(dynamic_cast<CudaKernel*>(kernel.get()), context, shift).ok());
    }
  }
  for (size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(got[i].memory, want[i].memory) << op << " " << attrs.str() << what;
}

TEST(CudaMove, PermutationsOfEverySize) {
  using enum DType;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const int64_t widths[] = {1, 2, 7, 16, 33, 64};
    int rank = 1 + static_cast<int>(Draw(&random, 4));
    Dims x;
    for (int axis = 0; axis < rank; ++axis)
      x.push_back(axis < rank - 2 ? 1 + Draw(&random, 4) : widths[Draw(&random, 6)]);
    std::vector<int64_t> order(static_cast<size_t>(rank));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    Dims y;
    for (int64_t axis : order) y.push_back(x[static_cast<int>(axis)]);
    const DType types[] = {kBool, kBFloat16, kFloat32, kInt64};
    DType dtype = types[Draw(&random, 4)];
    Operand from(dtype, x);
    from.Draw(&random, -1, 1, dtype == kBool ? 2 : 1000);
    int64_t shift = Draw(&random, 2) * static_cast<int64_t>(SizeOf(dtype));
    CheckMove("transpose", {{"order", order}}, {from}, {Operand(dtype, y)}, shift,
              Cat(" of ", x.str(), " ", Name(dtype), ", ", shift, " bytes past alignment, seed ", seed));
  }
}

TEST(CudaMove, RunsAlongAnAxis) {
  using enum DType;
  for (uint64_t seed = 100; seed < 130; ++seed) {
    std::mt19937_64 random(seed);
    const DType types[] = {kBool, kFloat16, kFloat32, kInt64};
    DType dtype = types[Draw(&random, 4)];
    int64_t axis = Draw(&random, 3), before = Draw(&random, 9), after = 8 * Draw(&random, 3);
    Dims x{1 + Draw(&random, 4), 1 + Draw(&random, 20), 8 * (1 + Draw(&random, 5))}, y = x;
    y[static_cast<int>(axis)] += before + after;
    Operand small(dtype, x), large(dtype, y);
    for (Operand* o : {&small, &large}) o->Draw(&random, -1, 1, dtype == kBool ? 2 : 1000);
    const std::string what = Cat(" between ", x.str(), " and ", y.str(), " ", Name(dtype), ", seed ", seed);
    CheckMove("pad", {{"axis", axis}, {"before", before}, {"after", after}}, {small}, {large}, 0, what);
    CheckMove("slice", {{"axis", axis}, {"begin", before}, {"end", before + x[static_cast<int>(axis)]}},
              {large}, {small}, 0, what);
  }
}

// --- Reductions: tall, wide and in parts; the same bits for any number of multiprocessors

TEST(CudaReduce, TheOrderFollowsFromTheShapeAlone) {
  for (Dims shape : {Dims{3000, 40}, Dims{40, 3000}, Dims{2, 20000}, Dims{20000, 3}}) {
    for (int64_t axis : {0, 1}) {
      std::mt19937_64 random(17);
      Operand x(DType::kFloat32, shape);
      x.Draw(&random, -1, 1, 2);
      std::vector<char> first;
      for (int multiprocessors : {1, 4, 132}) {
        Operand y(DType::kFloat32, {shape[1 - static_cast<int>(axis)]});
        KernelSpec spec;
        spec.name = "sum";
        spec.attrs = {{"axes", std::vector<int64_t>{axis}}};
        spec.in = {x.Arg()};
        spec.out = {y.Arg()};
        CudaBench bench({.devices = 1});
        bench.launch.multiprocessors = multiprocessors;
        std::unique_ptr<Kernel> kernel = Registry().Make(spec, "cuda");
        ASSERT_TRUE(bench.Run(dynamic_cast<CudaKernel*>(kernel.get()), {spec, spec.in, spec.out}).ok());
        if (first.empty()) first = y.memory;
        EXPECT_EQ(y.memory, first) << "sum of " << shape.str() << " over axis " << axis << ", seed 17";
      }
    }
  }
}

// Of a matrix within a larger one, both ways, in parts and not.
TEST(CudaReduce, SumsOfMatrices) {
  struct {
    int64_t results, terms, apart;  // what lies beside each other, and elements from one row to the next
    bool columns;
  } cases[] = {{768, 3000, 768, true}, {768, 129, 776, true}, {24, 20000, 24, true},    {7, 300, 13, true},
               {1, 50, 8, true},       {70, 300, 304, false}, {3, 20000, 20000, false}, {5, 1, 1, false}};
  for (const auto& c : cases)
    for (DType in : {DType::kBFloat16, DType::kFloat16, DType::kFloat32})
      for (DType out : {in, DType::kFloat32}) {
        const std::string what = Cat(c.results, " sums of ", c.terms, " ", Name(in), ", ", c.apart,
                                     c.columns ? " apart, columns" : " apart, rows", ", seed 23");
        std::mt19937_64 random(23);
        Operand x(in, {c.columns ? c.terms : c.results, c.apart}), y(out, {c.results});
        x.Draw(&random, -1, 1, 2);
        CudaBench bench({.devices = 1});
        const size_t bytes = static_cast<size_t>(x.arg.elements()) * SizeOf(in);
        void *from = bench.Allocate(bytes), *to = bench.Allocate(c.results * SizeOf(out));
        bench.CopyIn(from, x.memory.data(), bytes);
        SummedMatrix matrix{from, in, c.results, c.terms, 1, c.apart};
        if (!c.columns) std::swap(matrix.to_next_result, matrix.to_next_term);
        LaunchMatrixSums(matrix, to, out, bench.launch);
        bench.CopyOut(y.memory.data(), to, c.results * SizeOf(out));
        cuda_emulator::CheckGuards();
        for (int64_t i = 0; i < c.results; ++i) {
          double sum = 0;
          for (int64_t j = 0; j < c.terms; ++j)
            sum += x.At(i * matrix.to_next_result + j * matrix.to_next_term);
          const double rounding = out == DType::kFloat32 ? 1e-6 : out == DType::kFloat16 ? 1e-3 : 8e-3;
          ASSERT_NEAR(y.At(i), sum, 1e-3 + rounding * std::abs(sum)) << what << ", sum " << i;
        }
      }
}

TEST(CudaReduce, ArgmaxWithNaNsAndTies) {
  const float nan = NAN, inf = INFINITY;
  std::vector<std::vector<float>> rows = {{nan, 5, 7}, {5, nan, 7},   {-inf, nan, nan},
                                          {2, 2, 1},   {1, inf, inf}, {nan, nan, nan}};
  for (int64_t width : {3, 300}) {  // by a thread, by a block
    Operand x(DType::kFloat32, {static_cast<int64_t>(rows.size()), width}),
        y(DType::kInt64, {static_cast<int64_t>(rows.size())});
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t c = 0; c < width; ++c) {
        StoreFloat(x.Arg(), static_cast<int64_t>(r) * width + c,
                   c < 3 ? rows[r][static_cast<size_t>(c)] : -100.0 - static_cast<double>(c));
      }
    }
    CheckMove("argmax", {{"axis", int64_t{1}}}, {x}, {y}, 0, Cat(" of rows of ", width));
  }
}

}  // namespace
}  // namespace oneflow_like::cuda
