// attention with groups of heads and masks against softmax of scores that are written out, rope against
// complex numbers, and what both refuse.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <functional>
#include <string>
#include <vector>

#include "core/device/kernel.h"
#include "ops/attention_library.h"
#include "ops/language/functional.h"
#include "ops/op.h"
#include "ops/oracle/gradient.h"
#include "ops/rope.h"
#include "tests/error_of.h"

namespace oneflow_like::oracle {
namespace {

Value Draw(const Dims& shape, uint64_t seed) {
  Draws draws(seed);
  Value value(DType::kFloat32, shape);
  for (int64_t i = 0; i < value.elements(); ++i) value.Set(i, draws.Uniform() * 2 - 1);
  return value;
}

Value Integers(const Dims& shape, const std::vector<int64_t>& of, DType dtype = DType::kInt32) {
  Value value(dtype, shape);
  for (int64_t i = 0; i < value.elements(); ++i) value.Set(i, static_cast<double>(of[i]));
  return value;
}

void ExpectNear(const Value& got, const Value& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  for (int64_t i = 0; i < want.elements(); ++i)
    ASSERT_NEAR(got.Get(i), want.Get(i), tolerance) << what << ", element " << i;
}

// --- Attention

using Sees = std::function<bool(int64_t b, int64_t s, int64_t t)>;

// Scores as a matrix, heads of keys repeated, masked scores far below all others.
Tensor Written(Tape* tape, Tensor q, Tensor k, Tensor v, const Sees& sees, Tensor bias) {
  int64_t batch = q.shape()[0], queries = q.shape()[1], keys = k.shape()[1];
  int64_t group = q.shape()[2] / k.shape()[2];
  auto repeated = [&](Tensor x) {
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < q.shape()[2]; ++h) heads.push_back(slice(x, 2, h / group, h / group + 1));
    return concat(heads, 2);
  };
  Value mask(DType::kFloat32, {batch, 1, queries, keys});
  for (int64_t i = 0; i < mask.elements(); ++i)
    mask.Set(i, sees(i / keys / queries, i / keys % queries, i % keys) ? 0 : -1e9);
  Tensor scores = scale(einsum("bshd,bthd->bhst", q, repeated(k)), 1 / std::sqrt(double(q.shape()[3])));
  scores = add(scores, tape->Input(mask));
  if (bias.defined()) scores = add(scores, bias);
  return einsum("bhst,bthe->bshe", softmax(scores), repeated(v));
}

struct Use {
  Dims q = {2, 5, 4, 6}, k = {2, 5, 2, 6};
  int64_t value_width = 6;
  AttentionOptions options;
  Sees sees = [](int64_t, int64_t s, int64_t t) { return t <= s; };
};

void ExpectAsWritten(Tape* tape, const Use& use, const std::string& what) {
  Dims v_shape = use.k;
  v_shape[3] = use.value_width;
  Tensor q = tape->Input(Draw(use.q, 1)), k = tape->Input(Draw(use.k, 2)), v = tape->Input(Draw(v_shape, 3));
  Tensor got = attention(q, k, v, use.options);
  ExpectNear(tape->At(got), tape->At(Written(tape, q, k, v, use.sees, use.options.bias)), 2e-6, what);
}

TEST(Attention, HeadsOfQueriesShareThoseOfKeys) {
  Tape tape;
  ExpectAsWritten(&tape, {}, "2 of 4");
  ExpectAsWritten(&tape, {.k = {2, 5, 1, 6}, .value_width = 3}, "1 of 4, values of another width");
}

TEST(Attention, WindowAndPositions) {
  Tape tape;
  ExpectAsWritten(
      &tape,
      {.options = {.window = 2}, .sees = [](int64_t, int64_t s, int64_t t) { return t <= s && t > s - 2; }},
      "window of 2");
  ExpectAsWritten(&tape,
                  {.options = {.causal = false, .window = 3},
                   .sees = [](int64_t, int64_t s, int64_t t) { return t > s - 3; }},
                  "window, not causal");
  const std::vector<int64_t> queries = {7, 3, 1, 9, 4}, keys = {0, 4, 1, 2, 6, 0, 1, 5, 2, 3};
  Use use;
  use.options.query_positions = tape.Input(Integers({5}, queries));
  use.options.key_positions = tape.Input(Integers({2, 5}, keys, DType::kInt64));
  use.sees = [&](int64_t b, int64_t s, int64_t t) { return keys[b * 5 + t] <= queries[s]; };
  ExpectAsWritten(&tape, use, "positions");
}

TEST(Attention, DocumentsAndBias) {
  Tape tape;
  const std::vector<int64_t> of = {3, 3, 8, 8, 8, 1, 1, 1, 1, 2};
  Use use;
  use.options.query_documents = use.options.key_documents = tape.Input(Integers({2, 5}, of));
  use.sees = [&](int64_t b, int64_t s, int64_t t) { return t <= s && of[b * 5 + s] == of[b * 5 + t]; };
  ExpectAsWritten(&tape, use, "documents");
  for (const Dims& shape : {Dims{2, 4, 5, 5}, Dims{4, 1, 5}, Dims{5, 5}, Dims{2, 1, 1, 5}, Dims{1}}) {
    use.options.bias = tape.Input(Draw(shape, 4));
    ExpectAsWritten(&tape, use, "documents and a bias of " + shape.str());
  }
}

// Queries 0 and 2 belong to documents without keys.
TEST(Attention, AQueryThatSeesNothingGivesZeroAndPassesNothing) {
  Tape tape;
  Tensor x = tape.Input(Draw({1, 3, 2, 4}, 5)), bias = tape.Input(Draw({3, 3}, 6));
  Tensor documents = tape.Input(Integers({3}, {4, 1, 4})), keys = tape.Input(Integers({3}, {1, 1, 1}));
  Attrs attrs = {{"causal", 0}, {"masks", std::string("bias query_documents key_documents")}};
  std::vector<Tensor> in = {x, x, x, bias, documents, keys};
  std::vector<Tensor> out = Apply(&tape, "attention", in, attrs);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(tape.At(out[0]).Get(i), 0);
    EXPECT_EQ(tape.At(out[0]).Get(16 + i), 0);
    EXPECT_NE(tape.At(out[0]).Get(8 + i), 0);
  }
  attrs.Set("bias_grad", int64_t{1});
  Tensor dout = tape.Input(Draw({1, 3, 2, 4}, 7));
  in = {dout, x, x, x, out[0], out[1], bias, documents, keys};
  std::vector<Tensor> slopes = Apply(&tape, "attention_grad", in, attrs);
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(tape.At(slopes[0]).Get(i) == 0, i / 8 != 1) << i;
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(tape.At(slopes[3]).Get(i) == 0, i / 3 != 1) << i;
}

// Uses without groups and masks are what they were: graphs, plans and checkpoints name them by these.
TEST(Attention, PlainUsesKeepTheirAttributes) {
  Tape tape;
  Tensor x = tape.Input(Draw({1, 3, 2, 4}, 8));
  attention(x, x, x, {.dropout = 0.1});
  EXPECT_EQ(tape.nodes().back().attrs.str().find("window"), std::string::npos);
  EXPECT_EQ(tape.nodes().back().attrs.str().find("masks"), std::string::npos);
  EXPECT_EQ(tape.nodes().back().in.size(), 3u);
}

TEST(Attention, WrongUses) {
  Tape tape;
  auto x = [&](const Dims& shape) { return tape.Input(Draw(shape, 9)); };
  auto n = [&](const Dims& shape) {
    return tape.Input(Integers(shape, std::vector<int64_t>(shape.elements())));
  };
  Tensor q = x({2, 5, 4, 6}), k = x({2, 5, 2, 6});
  auto error = [&](const AttentionOptions& options) { return ErrorOf([&] { attention(q, k, k, options); }); };
  EXPECT_EQ(
      ErrorOf([&] {
        attention(q, x({2, 5, 3, 6}), x({2, 5, 3, 6}));
      }),
      "attention: axis h has 4 heads in q but 3 in k; heads of queries share those of keys in equal groups");
  EXPECT_EQ(
      ErrorOf([&] { attention(k, q, q); }),
      "attention: axis h has 2 heads in q but 4 in k; heads of queries share those of keys in equal groups");
  EXPECT_EQ(ErrorOf([&] { attention(q, k, x({2, 5, 4, 6})); }), "attention: axis h is 2 in k but 4 in v");
  EXPECT_EQ(error({.window = -3}), "attention: window is -3 but must be the number of keys, or 0 for all");
  EXPECT_EQ(error({.bias = n({5, 5})}), "attention: bias is i32 but must be f32; cast it");
  EXPECT_EQ(error({.bias = x({1, 2, 4, 5, 5})}), "attention: bias has 5 axes but at most 4, [b h s t]");
  EXPECT_EQ(error({.bias = x({5, 4})}), "attention: axis t is 5 in k but 4 in bias");
  EXPECT_EQ(error({.bias = x({2, 5, 5})}), "attention: axis (h g) of bias is 2 but must be 4");
  Tensor hidden = less(x({5, 4}), x({5, 4}));
  EXPECT_NE(
      error({.mask = hidden}).find(": mask [5,4] is not broadcast to the scores [b h s t], here [2,4,5,5]"),
      std::string::npos);
  EXPECT_NE(error({.mask = less(x({2, 5, 5}), x({2, 5, 5}))})
                .find(": mask [2,5,5] is not broadcast to the scores [b h s t], here [2,4,5,5]"),
            std::string::npos);
  Tensor empty = x({2, 5, 2, 0});
  EXPECT_NE(ErrorOf([&] { attention(empty, empty, empty); }).find(": q [2,5,2,0] has heads of width 0"),
            std::string::npos);
  EXPECT_EQ(error({.query_positions = x({5})}), "attention: query_positions is f32 but must be i32 or i64");
  EXPECT_EQ(error({.key_positions = n({2, 5, 1})}),
            "attention: key_positions has 3 axes but must have 1 or 2, [t] or [b t]");
  EXPECT_EQ(error({.query_positions = n({1, 5})}), "attention: axis b is 2 in q but 1 in query_positions");
  EXPECT_EQ(error({.key_positions = n({4})}), "attention: axis t is 5 in k but 4 in key_positions");
  EXPECT_EQ(error({.causal = false, .query_positions = n({5})}),
            "attention: positions are given, but neither causal nor a window, which compare them");
  EXPECT_EQ(error({.query_documents = n({5})}),
            "attention: query_documents are given without key_documents, but one is compared with the other");
  EXPECT_EQ(error({.key_documents = n({5})}),
            "attention: key_documents are given without query_documents, but one is compared with the other");
  EXPECT_EQ(error({.query_positions = n({5}), .key_positions = n({5})}), "");
}

// --- Rope

TEST(Rope, TurnsPairsAsComplexNumbers) {
  for (bool interleaved : {false, true}) {
    Tape tape;
    Value x = Draw({1, 3, 2, 8}, 10);
    const int64_t at[] = {0, 5, 1000000};
    RopeOptions options{.base = 100, .interleaved = interleaved, .dims = 6, .scale = 2};
    Tensor y = rope(tape.Input(x), tape.Input(Integers({3}, {0, 5, 1000000})), options);
    for (int64_t row = 0; row < 6; ++row) {
      for (int64_t i = 0; i < 3; ++i) {
        int64_t first = row * 8 + (interleaved ? 2 * i : i), second = first + (interleaved ? 1 : 3);
        auto turn = std::polar(1.0, at[row / 2] / 2.0 * std::pow(100.0, -2.0 * i / 6));
        std::complex<double> want = std::complex<double>(x.Get(first), x.Get(second)) * turn;
        EXPECT_NEAR(tape.At(y).Get(first), want.real(), 1e-6) << row << " " << i;
        EXPECT_NEAR(tape.At(y).Get(second), want.imag(), 1e-6) << row << " " << i;
      }
      for (int64_t d = 6; d < 8; ++d) EXPECT_EQ(tape.At(y).Get(row * 8 + d), x.Get(row * 8 + d));
    }
  }
}

// By wavelengths, as Llama 3.1 is described: longer than length / low_turns stretched, shorter than
// length / high_turns not.
TEST(Rope, StretchesLongWavesOnly) {
  const Attrs attrs = {
      {"base", 500000.0}, {"trained_length", 8192}, {"factor", 8.0}, {"low_turns", 1.0}, {"high_turns", 4.0}};
  RopeTurns turns = TurnsOf(attrs, 128);
  int kept = 0, stretched = 0, between = 0;
  for (int64_t i = 0; i < 64; ++i) {
    double plain = std::pow(500000.0, -i / 64.0), wave = 2 * M_PI / plain, got = turns.Frequency(i);
    if (wave < 8192 / 4.0) {
      EXPECT_NEAR(got, plain, 1e-12 * plain);
      ++kept;
    } else if (wave > 8192) {
      EXPECT_NEAR(got, plain / 8, 1e-12 * plain);
      ++stretched;
    } else {
      double smooth = (8192 / wave - 1) / 3;
      EXPECT_NEAR(got, (1 - smooth) * plain / 8 + smooth * plain, 1e-12 * plain);
      ++between;
    }
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(stretched, 20);
  EXPECT_GT(between, 2);
}

TEST(Rope, WrongUses) {
  Tape tape;
  Tensor x = tape.Input(Draw({2, 3, 2, 6}, 11)), at = tape.Input(Integers({3}, {0, 1, 2}));
  auto error = [&](const RopeOptions& options) { return ErrorOf([&] { rope(x, at, options); }); };
  const auto said = [](const std::string& error) { return error.substr(error.find(": ") + 2); };
  EXPECT_EQ(said(ErrorOf([&] { rope(at, at); })), "x is i32 but must be of a floating type; cast it");
  EXPECT_EQ(said(ErrorOf([&] { rope(x, x); })), "positions is f32 but must be i32 or i64");
  EXPECT_EQ(ErrorOf([&] {
              rope(x, tape.Input(Integers({4}, {0, 1, 2, 3})));
            }),
            "rope: axis s is 3 in x but 4 in positions");
  EXPECT_EQ(ErrorOf([&] { rope(x, tape.Input(Integers({}, {0}))); }),
            "rope: positions have 0 axes but must have 1 or 2, [s] or [b s]");
  EXPECT_EQ(ErrorOf([&] {
              rope(tape.Input(Draw({3, 2, 6}, 1)), at);
            }),
            "rope: x has 3 axes, but needs 4 (x[b s h d])");
  EXPECT_EQ(ErrorOf([&] {
              rope(tape.Input(Draw({2, 3, 2, 5}, 1)), at);
            }),
            "rope: axis d is rotated in pairs, but 5 is not an even number of elements");
  EXPECT_EQ(error({.dims = 3}), "rope: axis d is rotated in pairs, but 3 is not an even number of elements");
  EXPECT_EQ(error({.dims = 8}), "rope: dims is 8 but must be in [0, 6], axis d of x");
  EXPECT_EQ(error({.base = 0}), "rope: base is 0 but must be greater than 0");
  EXPECT_EQ(error({.scale = -1}), "rope: scale is -1 but must be greater than 0");
  EXPECT_EQ(error({.trained_length = -5}), "rope: trained_length is -5 but must be 0 or more");
  EXPECT_EQ(error({.trained_length = 64, .factor = 0}), "rope: factor is 0 but must be greater than 0");
  EXPECT_EQ(error({.trained_length = 64, .low_turns = 4, .high_turns = 4}),
            "rope: low_turns is 4 but must be less than high_turns, which is 4");
}

// --- What the gradient takes where a GPU's library computes it

// Of attention of 16 sequences and 1024 tokens, 12 heads of width 64 that share 4 of keys.
KernelSpec GradientSpec() {
  KernelSpec spec;
  spec.name = "attention_grad";
  const Dims query = {16, 1024, 12, 64}, key = {16, 1024, 4, 64}, lse = {16, 12, 1024};
  for (const Dims& extent : {query, query, key, key, query})
    spec.in.push_back({nullptr, DType::kBFloat16, extent, Dims(4, int64_t{0}), extent});
  spec.in.push_back({nullptr, DType::kFloat32, lse, Dims(3, int64_t{0}), lse});
  for (const Dims& extent : {query, key, key})
    spec.out.push_back({nullptr, DType::kBFloat16, extent, Dims(4, int64_t{0}), extent});
  return spec;
}

TEST(AttentionOnCuda, ScratchIsStatedInABuildWithoutItsKernels) {
  KernelRegistry registry;
  AddReferenceKernels(BuiltinCatalog(), &registry);
  ASSERT_FALSE(registry.Has("attention_grad", "cuda"));
  const int64_t heads = 16 * 12, scores = heads * 1024 * 1024 * 2, rows = heads * 1024 * 4,
                keys = heads * 1024 * 64 * 2 * 2;
  KernelSpec spec = GradientSpec();
  EXPECT_EQ(registry.Scratch(spec, "cuda"), scores + rows + keys + (1 << 20));
  EXPECT_NE(registry.Scratch(spec, "reference"), registry.Scratch(spec, "cuda"));

  KernelSpec solve;
  solve.name = "solve";
  solve.threads = 2;
  for (const Dims& extent : {Dims{3, 40, 40}, Dims{3, 40, 5}})
    solve.in.push_back({nullptr, DType::kFloat32, extent, Dims(3, int64_t{0}), extent});
  solve.out = {solve.in[1]};
  EXPECT_GT(registry.Scratch(solve, "reference"), 0);
  EXPECT_EQ(registry.Scratch(solve, "cuda"), registry.Scratch(solve, "reference"));

  KernelSpec drops = spec, wide = spec, biased = spec, small = spec, packed = spec;
  drops.attrs.Set("dropout", 0.1);
  wide.in[1].dtype = DType::kFloat32;
  biased.attrs.Set("masks", std::string("bias"));
  packed.attrs.Set("masks", std::string("query_documents key_documents"));
  for (const Dims& rows : {Dims{16, 1024}, Dims{1024}})
    packed.in.push_back({nullptr, DType::kInt32, rows, Dims(rows.rank(), int64_t{0}), rows});
  EXPECT_EQ(registry.Scratch(packed, "cuda"), registry.Scratch(spec, "cuda") + 16 * 1024 * 1024 * 2);
  packed.in[6] = packed.in[7];  // the same of all sequences
  EXPECT_EQ(registry.Scratch(packed, "cuda"), registry.Scratch(spec, "cuda") + 1024 * 1024 * 2);
  small.in[1].extent[0] = small.in[2].extent[0] = 4;  // the stream's work space is enough
  for (const KernelSpec& other : {drops, wide, biased, small}) EXPECT_EQ(registry.Scratch(other, "cuda"), 0);
}

TEST(AttentionOnCuda, ScratchIsForAsMuchAsFits) {
  constexpr int64_t kMost = kMostLibraryAttentionBytes;
  // 40 sequences of 12 heads of 4096 queries and keys take 403 MB each: 5 fit, 8 launches of 5.
  EXPECT_EQ(LibraryAttentionGradScratch(40, 12, 12, 4096, 4096, 64),
            LibraryAttentionGradBytes(5, 12, 12, 4096, 4096, 64));
  // One sequence does not fit: 8 groups of 4 heads, three at a time.
  EXPECT_EQ(LibraryAttentionGradScratch(2, 32, 8, 8192, 8192, 128),
            LibraryAttentionGradBytes(1, 12, 3, 8192, 8192, 128));
  // A group does not fit.
  EXPECT_EQ(LibraryAttentionGradScratch(1, 32, 1, 8192, 8192, 128), 0);
  for (int64_t batch : {1, 2, 3, 7, 100})
    for (int64_t groups : {1, 2, 5, 8})
      for (int64_t tokens : {64, 1000, 4096, 16384, 65536}) {
        const int64_t bytes = LibraryAttentionGradScratch(batch, 3 * groups, groups, tokens, tokens, 64);
        EXPECT_LE(bytes, kMost);
        const int64_t least = LibraryAttentionGradBytes(1, 3, 1, tokens, tokens, 64);
        EXPECT_EQ(bytes == 0, least > kMost) << tokens;
      }
}

}  // namespace
}  // namespace oneflow_like::oracle
