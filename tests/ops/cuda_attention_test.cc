// Attention of 16-bit operands by our tile on tensor cores (ops/cuda/attention_tensor.cu), on the emulator,
// beside the reference kernel: every width of instances, drawn uses of all options, dropout's masks to the
// element, tiles that must not be read, extents below the plan's. The library is switched off. A second run,
// with the threads of a block in the other order, must give the same bits. A failure prints its seed.
// ctest: seconds=8 long=12
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "actor/cuda/backend.h"
#include "ops/attention_library.h"
#include "ops/cuda/attention_shape.h"
#include "ops/cuda/flash.h"
#include "ops/manifest.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/gpu/device_kernels.h"
#include "tests/ops/kernel_cases.h"

extern "C" oneflow_like::Backend* OflBackend();

namespace oneflow_like {
namespace {

using cuda_emulator::Order;
using enum DType;

constexpr double kHidden = -std::numeric_limits<double>::infinity();

gpu::DeviceKernels& Kernels() {
  static auto* kernels = [] {
    cuda_emulator::Reset({.devices = 1, .multiprocessors = 4, .order = Order::kForward, .at_once = true});
    cuda::SetFlash(false);
    return new gpu::DeviceKernels(OflBackend(), 0, true);
  }();
  return *kernels;
}

struct Use {
  DType dtype = kFloat16;
  int64_t batch = 1, queries = 64, keys = 64, heads = 1, key_heads = 1, width = 16, value_width = 16;
  bool causal = false;
  int64_t window = 0;
  double dropout = 0;
  int64_t query_begin = 0, key_begin = 0;  // of pieces: of as many queries and keys more, a batch and a head
  std::string masks = {};
  std::vector<Dims> mask_shapes = {};

  std::string str() const {
    std::string text =
        Cat(Name(dtype), " of ", batch, " x ", heads, "/", key_heads, " heads, ", queries, " queries from ",
            query_begin, ", ", keys, " keys from ", key_begin, ", widths ", width, " and ", value_width,
            ", causal ", causal, ", window ", window, ", dropout ", dropout, ", masks ", masks);
    for (const Dims& shape : mask_shapes) text += " " + shape.str();
    return text;
  }
  Attrs attrs() const {
    Attrs attrs = {{"causal", int64_t{causal}}, {"dropout", dropout}, {"scale", 0.0}, {"key", int64_t{17}}};
    if (window > 0) attrs.Set("window", window);
    if (!masks.empty()) attrs.Set("masks", masks);
    return attrs;
  }
  bool pieces() const { return query_begin > 0 || key_begin > 0; }
  Operand Queries(int64_t of_width) const {
    const int64_t one = pieces() ? 1 : 0, group = one * (heads / key_heads);
    return Operand(dtype, {batch + one, queries + 2 * query_begin, heads + group, of_width},
                   {one, query_begin, group, 0}, {batch, queries, heads, of_width});
  }
  Operand Keys(int64_t of_width) const {
    const int64_t one = pieces() ? 1 : 0;
    return Operand(dtype, {batch + one, keys + 2 * key_begin, key_heads + one, of_width},
                   {one, key_begin, one, 0}, {batch, keys, key_heads, of_width});
  }
  Operand Lse() const { return Operand(kFloat32, {batch, heads, queries}); }
};

// The operands of both operators. Forward: q, k, v, masks; backward: do, q, k, v, o, lse, masks.
struct Data {
  Operands forward, backward, results, slopes;
};

class Checker {
 public:
  Checker() { AddReferenceKernels(BuiltinCatalog(), &reference_); }

  Status Run(bool fast, const std::string& op, const Attrs& attrs, Operands* in, Operands* out) {
    KernelSpec spec;
    spec.name = op;
    spec.attrs = attrs;
    for (Operand& o : *in) spec.in.push_back(o.Arg());
    for (Operand& o : *out) spec.out.push_back(o.Arg());
    const std::unique_ptr<Kernel> kernel = fast ? Kernels().Make(spec) : MakeWithScratch(reference_, spec);
    return kernel->Run({spec, spec.in, spec.out, nullptr, 3, 0, 1, 77});
  }

  // `in`: of the device, `same`: what they stand for, of the reference.
  void Check(const std::string& what, const std::string& op, const Attrs& attrs, Operands in, Operands same,
             const Operands& out) {
    Operands got = out, want = out, again = out;
    ASSERT_TRUE(Run(false, op, attrs, &same, &want).ok()) << what;
    const Status status = Run(true, op, attrs, &in, &got);
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    cuda_emulator::SetOrder(Order::kReverse);
    ASSERT_TRUE(Run(true, op, attrs, &in, &again).ok()) << what;
    cuda_emulator::SetOrder(Order::kForward);
    for (size_t i = 0; i < out.size(); ++i) {
      const bool narrow = out[i].arg.dtype != kFloat32;
      const bool gradient = op == "attention_grad";
      if (gradient && i == 3) {
        ExpectSlopes(what, in[5].arg.elements() * in[2].arg.extent[1], in[0].arg.extent[3], &got[i],
                     &want[i]);
      } else if (gradient) {
        ExpectGradient(Cat(op, " ", what, " output ", i), &got[i], &want[i]);
      } else {
        ExpectClose(Cat(op, " ", what, " output ", i), &got[i], &want[i], narrow ? 2 : 4);
      }
      EXPECT_EQ(got[i].memory, again[i].memory) << what << " has other bits in a second run";
    }
  }

  // Probabilities and slopes are rounded to 16 bits as operands of products. An element may be what is left
  // of terms as large as the tensor's greatest elements (of first keys under a causal mask, of one query): of
  // these two roundings, of the root mean square four, of the element eight.
  static void ExpectGradient(const std::string& what, Operand* got, Operand* want) {
    const int64_t n = want->arg.elements();
    double greatest = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      greatest = std::max(greatest, std::abs(want->At(i)));
      squares += want->At(i) * want->At(i);
    }
    const double unit = want->arg.dtype == kBFloat16 ? 0x1p-9 : 0x1p-11,
                 floor = unit * (2 * greatest +
                                 4 * std::sqrt(squares / static_cast<double>(std::max<int64_t>(n, 1))));
    for (int64_t i = 0; i < n; ++i)
      ASSERT_LE(std::abs(got->At(i) - want->At(i)), floor + 8 * unit * std::abs(want->At(i)))
          << what << ", element " << i << " of " << n << ": " << got->At(i) << " but the reference has "
          << want->At(i);
  }

  // The gradient of a bias, in fp32. Over the keys of a query slopes add up to 0 but for the rounding of o,
  // and so may what is left be small beside its terms. Each is a dot of as many products as values are wide,
  // all below 3, and has errors of its own.
  static void ExpectSlopes(const std::string& what, int64_t scores, int64_t width, Operand* got,
                           Operand* want) {
    const int64_t n = want->arg.elements();
    const double bound = 1e-6 * std::sqrt(static_cast<double>(scores / n * width));
    for (int64_t i = 0; i < n; ++i)
      ASSERT_LE(std::abs(got->At(i) - want->At(i)), bound + 4e-5 * std::abs(want->At(i)))
          << what << ", gradient of the bias, element " << i << ": " << got->At(i)
          << " but the reference has " << want->At(i);
  }

  Data Draw(const Use& use, uint64_t seed) {
    std::mt19937_64 random(seed);
    Operand q = use.Queries(use.width), o = use.Queries(use.value_width), dout = o, k = use.Keys(use.width),
            v = use.Keys(use.value_width), lse = use.Lse();
    for (Operand* x : {&q, &k, &v, &dout}) x->Draw(&random, -1.5, 1.5, 4);
    Data data;
    data.forward = {q, k, v};
    data.backward = {dout, q, k, v, o, lse};
    data.results = {o, lse};
    data.slopes = {q, k, v};
    const bool bias = use.masks.starts_with("bias");
    for (size_t i = 0; i < use.mask_shapes.size(); ++i) {
      Operand mask(bias && i == 0 ? kFloat32 : i % 2 == 0 ? kInt32 : kInt64, use.mask_shapes[i]);
      DrawMask(use, bias && i == 0, i - (bias ? 1 : 0), &random, &mask);
      data.forward.push_back(mask);
      data.backward.push_back(mask);
      if (bias && i == 0) data.slopes.push_back(mask);
    }
    return data;
  }

  // Positions run with the index, documents in runs, with some out of order; a bias hides some keys, too.
  static void DrawMask(const Use& use, bool bias, size_t number, std::mt19937_64* random, Operand* mask) {
    mask->Draw(random, -1, 1, 4);
    const int64_t length = mask->arg.extent.back();
    const bool documents = use.masks.find("positions") == std::string::npos || number > 1;
    for (int64_t i = 0; i < mask->arg.elements(); ++i) {
      const bool odd = (*random)() % 16 == 0;
      const int64_t at = i % length;
      if (bias) {
        if (odd && use.mask_shapes[0].elements() > 1) StoreFloat(mask->Arg(), i, kHidden);
      } else {
        StoreFloat(mask->Arg(), i,
                   static_cast<double>(documents ? at / 40 + (odd ? 7 : 0) : at - (odd ? 50 : 0)));
      }
    }
  }

  void CheckUse(const Use& use, uint64_t seed) {
    const std::string what = Cat(use.str(), ", seed ", seed);
    Data data = Draw(use, seed);
    Check(what, "attention", use.attrs(), data.forward, data.forward, data.results);
    if (testing::Test::HasFatalFailure()) return;
    CheckGradient(what, use, data, data.forward);
  }

  // With o and the log-sum-exp that the reference has of `same`.
  void CheckGradient(const std::string& what, const Use& use, Data data, Operands same) {
    Operands out = data.results;
    ASSERT_TRUE(Run(false, "attention", use.attrs(), &same, &out).ok());
    data.backward[4] = out[0];
    data.backward[5] = out[1];
    Operands of_reference = data.backward;
    for (size_t i = 0; i < 3; ++i) of_reference[1 + i] = same[i];
    Attrs attrs = use.attrs();
    if (use.masks.starts_with("bias")) attrs.Set("bias_grad", int64_t{1});
    Check(what, "attention_grad", attrs, data.backward, of_reference, data.slopes);
  }

 private:
  KernelRegistry reference_;
};

Checker& TheChecker() {
  static auto* checker = new Checker;
  return *checker;
}

TEST(CudaAttentionTile, EveryWidthOfInstances) {
  uint64_t seed = 100;
  for (const auto& [width, value_width] : std::vector<std::pair<int64_t, int64_t>>{{32, 32},
                                                                                   {1, 3},
                                                                                   {40, 64},
                                                                                   {64, 64},
                                                                                   {80, 96},
                                                                                   {33, 70},
                                                                                   {128, 128},
                                                                                   {100, 101},
                                                                                   {136, 136},
                                                                                   {130, 20},
                                                                                   {24, 257}})
    for (DType dtype : {kFloat16, kBFloat16}) {
      Use use = {.dtype = dtype,
                 .queries = 70,
                 .keys = 69,
                 .heads = 2,
                 .width = width,
                 .value_width = value_width,
                 .causal = true,
                 .dropout = 0.2};
      TheChecker().CheckUse(use, ++seed);
    }
}

TEST(CudaAttentionTile, FixedUses) {
  const std::string documents = "query_documents key_documents", positions = "query_positions key_positions";
  const Use uses[] = {
      {.batch = 2, .queries = 130, .keys = 130, .heads = 4, .key_heads = 2, .causal = true, .window = 40},
      {.queries = 1, .keys = 200, .heads = 4, .causal = true},
      {.queries = 3, .keys = 100, .heads = 6, .key_heads = 2, .causal = true, .dropout = 0.4},
      {.queries = 150, .keys = 70, .causal = true},  // the first queries see no key
      {.queries = 150, .keys = 150, .window = 30},
      {.queries = 100, .keys = 100, .causal = true, .dropout = 0.3, .query_begin = 33, .key_begin = 12},
      {.queries = 65,
       .keys = 80,
       .causal = true,
       .window = 20,
       .dropout = 0.3,
       .query_begin = 7,
       .key_begin = 3},
      {.queries = 90, .keys = 64, .causal = true, .query_begin = 64, .key_begin = 128},
      {.batch = 2, .queries = 140, .keys = 200, .masks = documents, .mask_shapes = {{2, 140}, {2, 200}}},
      {.batch = 2,
       .queries = 200,
       .keys = 140,
       .causal = true,
       .masks = documents,
       .mask_shapes = {{200}, {2, 140}}},
      {.queries = 140,
       .keys = 200,
       .causal = true,
       .window = 20,
       .masks = positions,
       .mask_shapes = {{140}, {1, 200}}},
      {.queries = 70, .keys = 200, .causal = true, .masks = "query_positions", .mask_shapes = {{70}}},
      {.queries = 70, .keys = 200, .window = 9, .masks = "key_positions", .mask_shapes = {{200}}},
      {.queries = 130,
       .keys = 100,
       .causal = true,
       .window = 50,
       .dropout = 0.2,
       .masks = positions + " " + documents,
       .mask_shapes = {{130}, {100}, {130}, {1, 100}}},
  };
  uint64_t seed = 200;
  for (const Use& use : uses) TheChecker().CheckUse(use, ++seed);
}

// Every broadcast of a bias and its gradient, heads in groups.
TEST(CudaAttentionTile, Biases) {
  const Use plain = {.batch = 2, .queries = 70, .keys = 68, .heads = 4, .key_heads = 2, .masks = "bias"};
  uint64_t seed = 300;
  for (int which = 0; which < 16; ++which) {
    Use use = plain;
    use.dtype = which % 3 == 0 ? kBFloat16 : kFloat16;
    use.causal = which % 2 == 1;
    use.dropout = which % 4 == 2 ? 0.25 : 0;
    use.mask_shapes = {{which & 1 ? 2 : 1, which & 2 ? 4 : 1, which & 4 ? 70 : 1, which & 8 ? 68 : 1}};
    TheChecker().CheckUse(use, ++seed);
  }
  Use fewer = plain, documents = plain, wide = plain;
  fewer.mask_shapes = {{68}};
  documents.masks = "bias query_documents key_documents";
  documents.mask_shapes = {{4, 70, 68}, {70}, {2, 68}};
  wide.width = wide.value_width = 160;
  wide.mask_shapes = {{70, 68}};
  for (const Use& use : {fewer, documents, wide}) TheChecker().CheckUse(use, ++seed);
}

Use DrawUse(std::mt19937_64* random) {
  const auto one_of = [&](std::initializer_list<int64_t> values) {
    return values.begin()[(*random)() % values.size()];
  };
  Use use;
  do {
    use = {};
    use.dtype = one_of({0, 0, 1}) ? kBFloat16 : kFloat16;
    use.batch = one_of({1, 2});
    use.queries = one_of({1, 2, 17, 63, 64, 65, 100, 129, 190});
    use.keys = one_of({1, 5, 32, 64, 70, 96, 129, 190});
    use.key_heads = one_of({1, 2});
    use.heads = use.key_heads * one_of({1, 2, 3});
    use.width = one_of({1, 3, 8, 16, 24, 33, 64, 72, 100, 128, 136});
    use.value_width = one_of({1, 0}) ? use.width : one_of({5, 16, 40, 96, 130});
    // Of one or two elements and few queries all sums may cancel, and no element shows how large terms are.
  } while (use.batch * use.heads * use.queries * use.keys * (use.width + use.value_width) > 1'500'000 ||
           (std::min(use.width, use.value_width) < 3 && use.queries < 17));
  use.causal = one_of({0, 1, 1});
  use.window = one_of({0, 0, 1, 20, 70});
  use.dropout = one_of({0, 0, 1}) ? 0.3 : 0;
  // Of queries that see one key slopes are 0, or with dropout what the rounding of o leaves.
  if (use.keys == 1 || use.window == 1) use.dropout = 0;
  if (one_of({0, 0, 1})) {
    use.query_begin = one_of({0, 3, 64});
    use.key_begin = one_of({0, 4, 5});
  }
  const auto row = [&](int64_t length) { return one_of({0, 1}) ? Dims{length} : Dims{use.batch, length}; };
  const auto add = [&](const char* name, const Dims& shape) {
    use.masks += (use.masks.empty() ? "" : " ") + std::string(name);
    use.mask_shapes.push_back(shape);
  };
  if (one_of({0, 0, 1}))
    add("bias",
        {one_of({1, use.batch}), one_of({1, use.heads}), one_of({1, use.queries}), one_of({1, use.keys})});
  const bool placed = (use.causal || use.window > 0) && one_of({0, 0, 1});
  if (placed) add("query_positions", row(use.queries));
  if (placed) add("key_positions", row(use.keys));
  if (one_of({0, 0, 1})) {
    add("query_documents", row(use.queries));
    add("key_documents", row(use.keys));
  }
  return use;
}

void DrawnUses(uint64_t seed, int count) {
  for (int i = 0; i < count && !testing::Test::HasFatalFailure(); ++i) {
    std::mt19937_64 random(seed + i);
    TheChecker().CheckUse(DrawUse(&random), seed + i);
  }
}
TEST(CudaAttentionTile, DrawnUses) { DrawnUses(1000, 30); }
TEST(LongCudaAttentionTile, DrawnUses) { DrawnUses(2000, 400); }

// Probabilities are all equal, and the identity shows which were kept: v of the reference's draws forward, do
// in the gradient of v.
TEST(CudaAttentionTile, DropsWhatTheHostDrops) {
  struct Piece {
    int64_t queries, keys, query_begin, key_begin;
  };
  for (const Piece& piece :
       {Piece{64, 64, 0, 0}, {96, 64, 5, 8}, {64, 96, 3, 0}, {33, 65, 0, 0}, {64, 64, 1, 2}}) {
    Use use = {.dtype = kBFloat16,
               .batch = 2,
               .queries = piece.queries,
               .keys = piece.keys,
               .heads = 4,
               .key_heads = 2,
               .width = 8,
               .value_width = piece.keys,
               .dropout = 0.4,
               .query_begin = piece.query_begin,
               .key_begin = piece.key_begin};
    Data data = TheChecker().Draw(use, 1);
    const auto fill = [](Operand* x, bool identity) {
      const Dims& extent = x->arg.extent;
      for (int64_t i = 0; i < x->arg.elements(); ++i) {
        const int64_t position = i / (extent[2] * extent[3]) % extent[1];
        StoreFloat(x->Arg(), i, identity && i % extent[3] == position ? 1 : 0);
      }
    };
    fill(&data.forward[0], false);
    fill(&data.forward[1], false);
    fill(&data.forward[2], true);
    Operands want = data.results, got = data.results;
    ASSERT_TRUE(TheChecker().Run(false, "attention", use.attrs(), &data.forward, &want).ok());
    ASSERT_TRUE(TheChecker().Run(true, "attention", use.attrs(), &data.forward, &got).ok());
    EXPECT_EQ(want[0].memory, got[0].memory) << use.str();
    use.value_width = use.queries;
    Data back = TheChecker().Draw(use, 1);
    for (Operand* x : {&back.backward[1], &back.backward[2], &back.backward[3], &back.backward[4]})
      fill(x, false);
    fill(&back.backward[0], true);
    for (int64_t i = 0; i < back.backward[5].arg.elements(); ++i) StoreFloat(back.backward[5].Arg(), i, 0.5);
    Operands want_slopes = back.slopes, slopes = back.slopes;
    ASSERT_TRUE(TheChecker().Run(false, "attention_grad", use.attrs(), &back.backward, &want_slopes).ok());
    ASSERT_TRUE(TheChecker().Run(true, "attention_grad", use.attrs(), &back.backward, &slopes).ok());
    for (int64_t i = 0; i < slopes[2].arg.elements(); ++i)
      ASSERT_EQ(want_slopes[2].At(i) != 0, slopes[2].At(i) != 0) << use.str() << ", element " << i;
  }
}

// Where bits of all heads do not fit at once, groups of heads follow each other, and what comes to a bias
// from each is added up.
TEST(CudaAttentionTile, DropsInParts) {
  Use use = {.dtype = kBFloat16,
             .batch = 2,
             .queries = 70,
             .keys = 68,
             .heads = 4,
             .key_heads = 2,
             .causal = true,
             .dropout = 0.3,
             .masks = "bias"};
  uint64_t seed = 350;
  for (const Dims& bias : {Dims{70, 68}, {2, 1, 70, 68}, {4, 1, 1}, {2, 4, 70, 68}}) {
    use.mask_shapes = {bias};
    // A bit for each of 128 by 128 scores of a head.
    EXPECT_EQ(TensorAttentionBytes(false, false, true, 2, 4, 2, 70, 68) -
                  TensorAttentionBytes(false, false, false, 2, 4, 2, 70, 68),
              2 * 4 * 128 * 128 / 8);
    for (int64_t bytes : {1, 2 * 2 * 128 * 128 / 8, 3 * 2 * 128 * 128 / 8}) {
      cuda::SetMostDropoutBytes(bytes);
      TheChecker().CheckUse(use, ++seed);
    }
    cuda::SetMostDropoutBytes(std::numeric_limits<int64_t>::max());
  }
  // Beyond the work space, one group of heads.
  const int64_t long_group = 4 * (int64_t{1} << 34) / 8;
  EXPECT_EQ(TensorAttentionBytes(false, false, true, 1, 8, 2, 1 << 17, 1 << 17) -
                TensorAttentionBytes(false, false, false, 1, 8, 2, 1 << 17, 1 << 17),
            long_group);
  EXPECT_EQ(TensorAttentionBytes(true, false, true, 8, 16, 16, 4096, 4096), kStreamWorkspaceBytes);
}

// Keys, values, queries and their gradients in tiles that nobody sees are NaN: if a product had them, so
// would its result be.
TEST(CudaAttentionTile, EmptyTilesAreNotRead) {
  struct Tiles {
    Use use;
    std::vector<int64_t> queries, keys;        // tiles of 64 that are NaN
    std::vector<int64_t> of_queries, of_keys;  // documents of tiles
  };
  const std::string documents = "query_documents key_documents";
  const Use plain = {.queries = 256, .keys = 256, .causal = true};
  Use piece = plain, window = plain, of_documents = plain, both = plain;
  piece.queries = 64;
  piece.query_begin = 96;  // queries 96 to 159 see 96 keys more
  piece.keys = 256;
  window.queries = 64;
  window.window = 60;
  of_documents.causal = false;
  of_documents.masks = both.masks = documents;
  of_documents.mask_shapes = both.mask_shapes = {{256}, {256}};
  Use biased = plain, lengths = plain;
  biased.batch = lengths.batch = 2;
  biased.causal = lengths.causal = false;
  biased.heads = 2;
  biased.masks = lengths.masks = "bias";
  biased.mask_shapes = {{2, 256, 256}};
  lengths.mask_shapes = {{2, 1, 1, 256}};
  // Whether a bias hides tile k of keys from tile q of queries, of head or sequence `of`.
  const auto hides = [](int64_t of, int64_t q, int64_t k) {
    return k == 2 || q == 1 || (of == 1 && k == q % 2);
  };
  const Tiles all[] = {
      {piece, {}, {3}, {}, {}},
      {window, {}, {0, 1}, {}, {}},
      {of_documents, {3}, {2}, {1, 2, 3, 9}, {3, 2, 7, 1}},
      {both, {0}, {3}, {9, 1, 1, 2}, {1, 1, 2, 1}},
      {biased, {1}, {2}, {}, {}},
      {lengths, {}, {2}, {}, {}},
  };
  uint64_t seed = 400;
  for (const Tiles& c : all) {
    Data data = TheChecker().Draw(c.use, ++seed);
    const auto fill_documents = [](const std::vector<int64_t>& of, Operand* x) {
      for (int64_t i = 0; i < x->arg.elements(); ++i)
        StoreFloat(x->Arg(), i, static_cast<double>(of[i / 64]));
    };
    for (Operands* in : {&data.forward, &data.backward}) {
      if (c.of_queries.empty()) continue;
      fill_documents(c.of_queries, &(*in)[in->size() - 2]);
      fill_documents(c.of_keys, &(*in)[in->size() - 1]);
    }
    for (Operands* in : {&data.forward, &data.backward}) {
      if (c.use.masks != "bias") continue;
      Operand& bias = in->back();
      const bool of_rows = bias.arg.extent[bias.arg.extent.rank() - 2] == 256;
      for (int64_t i = 0; i < bias.arg.elements(); ++i) {
        const int64_t row = i / 256, q = of_rows ? row % 256 / 64 : 0, of = of_rows ? row / 256 : row;
        if (hides(of, q, i % 256 / 64)) StoreFloat(bias.Arg(), i, kHidden);
      }
    }
    const Data clean = data;
    const auto poison = [](const std::vector<int64_t>& tiles, Operand* x) {
      const int64_t row = x->arg.extent[2] * x->arg.extent[3];
      for (int64_t b = 0; b < x->arg.extent[0]; ++b)
        for (int64_t tile : tiles)
          for (int64_t i = 0; i < 64 * row; ++i)
            StoreFloat(x->Arg(), (b * x->arg.extent[1] + tile * 64) * row + i, NAN);
    };
    for (int i : {1, 2}) poison(c.keys, &data.forward[i]);
    poison(c.queries, &data.forward[0]);
    for (int i : {2, 3}) poison(c.keys, &data.backward[i]);
    for (int i : {0, 1}) poison(c.queries, &data.backward[i]);
    const std::string what = Cat("with tiles nobody sees, ", c.use.str(), ", seed ", seed);
    TheChecker().Check(what, "attention", c.use.attrs(), data.forward, clean.forward, data.results);
    Operands out = data.results, same = clean.forward;
    ASSERT_TRUE(TheChecker().Run(false, "attention", c.use.attrs(), &same, &out).ok());
    Operands want = clean.backward;
    for (Operands* in : {&want, &data.backward}) (*in)[4] = out[0], (*in)[5] = out[1];
    Attrs attrs = c.use.attrs();
    if (c.use.masks == "bias") attrs.Set("bias_grad", int64_t{1});
    TheChecker().Check(what, "attention_grad", attrs, data.backward, want, data.slopes);
  }
}

// A kernel made for the plan's extents runs acts that are smaller, none included.
TEST(CudaAttentionTile, LaterActsMayBeSmaller) {
  const auto use_of = [](int64_t batch) {
    return Use{.dtype = kFloat16,
               .batch = batch,
               .queries = 70,
               .keys = 90,
               .heads = 4,
               .key_heads = 2,
               .causal = true,
               .dropout = 0.2,
               .masks = "query_documents key_documents",
               .mask_shapes = {{batch, 70}, {batch, 90}}};
  };
  Data plan = TheChecker().Draw(use_of(3), 1);
  KernelSpec spec;
  spec.name = "attention";
  spec.attrs = use_of(3).attrs();
  for (Operand& o : plan.forward) spec.in.push_back(o.Arg());
  for (Operand& o : plan.results) spec.out.push_back(o.Arg());
  const std::unique_ptr<Kernel> kernel = Kernels().Make(spec);
  for (int64_t batch : {2, 0, 3, 1}) {
    Data act = TheChecker().Draw(use_of(batch), 500 + batch);
    Operands want = act.results;
    ASSERT_TRUE(TheChecker().Run(false, "attention", spec.attrs, &act.forward, &want).ok());
    std::vector<TensorArg> in, out;
    for (Operand& o : act.forward) in.push_back(o.Arg());
    for (Operand& o : act.results) out.push_back(o.Arg());
    ASSERT_TRUE(kernel->Run({spec, in, out, nullptr, 3, 0, 1, 77}).ok());
    for (size_t i = 0; i < out.size(); ++i)
      ExpectClose(Cat("attention of ", batch, " of 3, output ", i), &act.results[i], &want[i]);
  }
}

}  // namespace
}  // namespace oneflow_like
