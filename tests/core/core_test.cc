// The vocabulary: types, boxes, attributes, random numbers, parallel loops, moving boxes, kernels, host
// memory, files to write to.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <locale>
#include <map>
#include <new>
#include <random>
#include <thread>

#include "core/attrs.h"
#include "core/boxes/copy_box.h"
#include "core/device/device.h"
#include "core/device/kernel.h"
#include "core/device/parallel_for.h"
#include "core/dims.h"
#include "core/dtype.h"
#include "core/float16.h"
#include "core/one_line.h"
#include "core/random.h"
#include "core/system/file_check.h"
#include "tests/error_of.h"
#include "tests/processes.h"

namespace {
std::atomic<int64_t> new_calls{0};
}

// Counts every allocation of this program, for the promises of "no allocation". Not inlined, or the compiler
// takes malloc and delete for a mismatched pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++new_calls;
  void* block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace oneflow_like {
namespace {

constexpr DType kAllTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32,
                               DType::kInt64,   DType::kUInt8,    DType::kBool};

TEST(DTypeTest, NamesReadBack) {
  for (DType dtype : kAllTypes) {
    DType read = dtype == DType::kBool ? DType::kFloat32 : DType::kBool;
    EXPECT_TRUE(ParseDType(Name(dtype), &read));
    EXPECT_EQ(read, dtype);
  }
  DType read;
  EXPECT_FALSE(ParseDType("f64", &read));
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2u);
  EXPECT_EQ(SizeOf(DType::kInt64), 8u);
  EXPECT_TRUE(IsFloating(DType::kFloat16));
  EXPECT_FALSE(IsFloating(DType::kInt32));
}

TEST(DimsTest, HoldsEightAxesAndPrints) {
  Dims dims(8, 2);
  EXPECT_EQ(dims.elements(), 256);
  EXPECT_EQ(ErrorOf([&] { dims.push_back(3); }), "a tensor has at most 8 axes, but 9 were given");
  EXPECT_EQ((Dims{8, 64}).str(), "[8,64]");
  EXPECT_EQ(Dims().str(), "[]");
  EXPECT_EQ(Dims().elements(), 1);
  EXPECT_NE((Dims{1, 2}), (Dims{1, 2, 0}));
}

TEST(DimsTest, BoxesIntersect) {
  Box a{{0, 2}, {4, 4}}, b{{3, 0}, {9, 3}};
  EXPECT_EQ(a.str(), "[0:4,2:6]");
  EXPECT_EQ(a.Intersect(b).str(), "[3:4,2:3]");
  EXPECT_TRUE(a.Intersect(Box{{4, 2}, {1, 1}}).empty());
  EXPECT_TRUE(a.Intersect(Box{{9, 9}, {1, 1}}).empty());
}

// Messages, flags that repeat a plan and names of files are the same in a program with decimal commas.
TEST(ErrorTest, CatWritesNumbersAlikeInAnyLocale) {
  struct Commas : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const auto text = [] {
    return Cat(1.5, " ", 123456.0f, " ", 1234567, " ", -2.5e-9, " ", Dims{1024, 3}.str());
  };
  const std::string usual = text();
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Commas));
  const std::string with_commas = text();
  std::locale::global(before);
  EXPECT_EQ(usual, "1.5 123456 1234567 -2.5e-09 [1024,3]");
  EXPECT_EQ(with_commas, usual);
}

TEST(ErrorTest, SourceLineIsBaseNameAndLine) {
  EXPECT_EQ(SourceLine("gpt.cc", 31).str(), "gpt.cc:31");
  EXPECT_EQ(SourceLine().str(), "");
  EXPECT_EQ(SourceLine(SourceLocation::current()).file, "core_test.cc");
}

TEST(AttrsTest, PrintsSortedAndParses) {
  Attrs attrs{
      {"eps", 1e-5}, {"axis", int64_t{1}}, {"equation", "mk,kn->mn"}, {"shape", std::vector<int64_t>{2, 3}}};
  EXPECT_EQ(attrs.str(), "axis=1 eps=1e-05 equation=\"mk,kn->mn\" shape=[2,3]");
  EXPECT_EQ(Attrs::Parse(attrs.str()), attrs);
  EXPECT_EQ(Attrs::Parse("").map().size(), 0u);
}

TEST(AttrsTest, RoundTripIsExact) {
  using Integers = std::numeric_limits<int64_t>;
  using Reals = std::numeric_limits<double>;
  std::vector<Attr> values;
  for (int64_t integer : {int64_t{0}, Integers::min(), Integers::max()}) values.emplace_back(integer);
  for (double real :
       {1.0, -0.0, 0.1, 1e300, 1e22, Reals::denorm_min(), Reals::infinity(), -Reals::infinity()}) {
    values.emplace_back(real);
  }
  for (const char* text :
       {"", "word", "blocks/0.attn-q", "inf", "-3", "12", "two words", "quote \" backslash \\ line\nend]="}) {
    std::string value = text;
    values.emplace_back(value);
  }
  values.emplace_back(std::vector<int64_t>{});
  values.emplace_back(std::vector<int64_t>{-1, 0, 7});
  const int seed = 20240611;
  std::mt19937_64 draw(seed);
  for (int i = 0; i < 1000; ++i) {
    double real = std::bit_cast<double>(draw());
    if (!std::isnan(real)) values.emplace_back(real);
    std::string text;
    for (int length = static_cast<int>(draw() % 6); length > 0; --length)
      text += " \"\\a=[],1.n\n"[draw() % 11];
    values.emplace_back(text);
  }
  Attrs all;
  for (size_t i = 0; i < values.size(); ++i) {
    all.Set("a" + std::to_string(i), values[i]);
    Attrs one;
    one.Set("x", values[i]);
    EXPECT_EQ(Attrs::Parse(one.str()), one) << one.str() << " seed " << seed;
  }
  EXPECT_EQ(Attrs::Parse(all.str()), all) << "seed " << seed;
  EXPECT_TRUE(std::signbit(Attrs::Parse("x=-0.0").Float("x")));
  EXPECT_TRUE(std::isnan(Attrs::Parse("x=nan").Float("x")));
  all = Attrs();
  all.Set("x", 1.0);
  EXPECT_EQ(all.str(), "x=1.0");
}

TEST(AttrsTest, TypesAreKept) {
  Attrs attrs = Attrs::Parse("i=2 r=2.0 s=two l=[4,5]");
  EXPECT_EQ(attrs.Int("i"), 2);
  EXPECT_EQ(attrs.Float("i"), 2.0);
  EXPECT_EQ(attrs.Float("r"), 2.0);
  EXPECT_EQ(attrs.Str("s"), "two");
  EXPECT_EQ(attrs.GetDims("l"), (Dims{4, 5}));
  EXPECT_EQ(attrs.Int("absent", 9), 9);
  EXPECT_EQ(attrs.Str("absent", "x"), "x");
  EXPECT_EQ(ErrorOf([&] { attrs.Int("absent"); }), "attribute absent is missing");
  EXPECT_EQ(ErrorOf([&] { attrs.Int("r"); }), "attribute r is a real number, not an integer");
}

TEST(AttrsTest, RefusesGarbage) {
  for (const char* text : {"axis", "=1", "a=", "a=\"open", "a=[1,2", "a=[1 2]", "a=[1,]", "a=[,1]", "a=1x",
                           "a=1 a=2", "a=b,c", "a=\"x\"y", "a=[1]2", "a=99999999999999999999x", "a=+"}) {
    EXPECT_NE(ErrorOf([&] { Attrs::Parse(text); }), "no error") << text;
  }
}

TEST(RandomTest, KnownAnswers) {
  auto expect = [](Philox4 got, std::array<uint32_t, 4> want) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got.v[i], want[i]) << i;
  };
  const uint64_t ones = ~uint64_t{0};
  expect(Philox(0, 0, 0), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect(Philox(ones, ones, ones), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect(Philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  EXPECT_EQ(HashName(""), 0xcbf29ce484222325u);
  EXPECT_EQ(HashName("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(RandomBits(7, 3, 13), Philox(7, 3, 3).v[1]);
  EXPECT_LT(ToUniform(0xFFFFFFFFu), 1.0f);
}

// Eight elements have the halves of one block, lower ones first.
TEST(RandomTest, DropBitsAreHalvesOfABlock) {
  const Philox4 block = Philox(7, 5, 3);
  for (uint64_t i = 0; i < 8; ++i)
    EXPECT_EQ(DropBits(7, 3, 5 * 8 + i), i % 2 == 0 ? block.v[i / 2] & 0xFFFF : block.v[i / 2] >> 16) << i;
}

// What is dropped is p within 2^-17 and what is kept is divided by its own share, so that expectations are
// exact; of p below 1 something is always kept.
TEST(RandomTest, DropRulesRoundToSixteenBits) {
  for (double p : {0.0, 1e-9, 0.0001, 0.001, 0.1, 0.25, 0.5, 0.9, 0.999, 0.99999, 1 - 1e-9}) {
    const DropRule rule = DropRuleOf(p);
    EXPECT_LT(rule.least, 65536u) << p;
    EXPECT_NEAR(rule.least / 65536.0, p, p < 0.9999 ? 1.0 / 131072 : 1.0 / 65536) << p;
    EXPECT_DOUBLE_EQ(rule.scale * (65536 - rule.least), 65536) << p;
  }
  EXPECT_EQ(DropRuleOf(0).least, 0u);
  EXPECT_EQ(DropRuleOf(0).scale, 1);
  EXPECT_EQ(DropRuleOf(0.5).scale, 2);
}

// Shares of what is kept, neighbours of every distance within a block, and of one element over steps.
TEST(RandomTest, DroppingKeepsItsShare) {
  constexpr int64_t kDraws = 1 << 20;
  for (double p : {0.001, 0.1, 0.5, 0.999}) {
    const DropRule rule = DropRuleOf(p);
    const double share = 1 - rule.least / 65536.0;
    std::vector<char> kept(kDraws);
    int64_t by_index = 0, by_step = 0;
    for (int64_t i = 0; i < kDraws; ++i) {
      by_index += kept[i] = DropBits(11, 2, i) >= rule.least;
      by_step += DropBits(11, i, 2) >= rule.least;
    }
    const auto deviation = [](double of) { return 5 * std::sqrt(kDraws * of * (1 - of)); };
    EXPECT_NEAR(by_index, kDraws * share, deviation(share)) << p;
    EXPECT_NEAR(by_step, kDraws * share, deviation(share)) << p;
    for (int64_t distance = 1; distance <= 16; ++distance) {
      int64_t both = 0;
      for (int64_t i = 0; i + distance < kDraws; ++i) both += kept[i] && kept[i + distance];
      EXPECT_NEAR(both, (kDraws - distance) * share * share, 2 * deviation(share * share))
          << p << " " << distance;
    }
  }
}

TEST(Float16Test, EveryValueReadsBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    Float16 half{static_cast<uint16_t>(bits)};
    BFloat16 brain{static_cast<uint16_t>(bits)};
    if (std::isnan(ToFloat(half))) {
      EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(ToFloat(half)))));
    } else {
      ASSERT_EQ(ToFloat16(ToFloat(half)).bits, bits);
    }
    if (std::isnan(ToFloat(brain))) {
      EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(ToFloat(brain)))));
    } else {
      ASSERT_EQ(ToBFloat16(ToFloat(brain)).bits, bits);
    }
  }
}

TEST(Float16Test, RoundsToNearestEven) {
  EXPECT_EQ(ToFloat(Float16{0x3C01}), 1.0f + 1.0f / 1024);
  EXPECT_EQ(ToFloat16(1.0f + 1.0f / 2048).bits, 0x3C00);
  EXPECT_EQ(ToFloat16(1.0f + 3.0f / 2048).bits, 0x3C02);
  EXPECT_EQ(ToFloat16(65519.0f).bits, 0x7BFF);
  EXPECT_EQ(ToFloat16(65520.0f).bits, 0x7C00);
  EXPECT_EQ(ToFloat16(1e9f).bits, 0x7C00);
  EXPECT_EQ(ToFloat16(std::ldexp(1.0f, -24)).bits, 1);
  EXPECT_EQ(ToFloat16(std::ldexp(1.0f, -25)).bits, 0);  // a tie, to even
  EXPECT_EQ(ToFloat16(-std::ldexp(1.5f, -24)).bits, 0x8002);
  EXPECT_EQ(ToBFloat16(1.0f + 1.0f / 256).bits, 0x3F80);
  EXPECT_EQ(ToBFloat16(1.0f + 3.0f / 256).bits, 0x3F82);
}

TEST(ParallelForTest, RangesCoverOnceAndRespectTheGrain) {
  for (int threads : {1, 2, 3, 7}) {
    SetParallelThreads(threads);
    EXPECT_EQ(ParallelThreads(), threads);
    for (int64_t n : {0, 1, 2, 5, 16, 1000}) {
      for (int64_t grain : {0, 1, 3, 300, 5000}) {
        std::vector<std::atomic<int>> seen(n);
        std::vector<int64_t> begins(n + 1), ends(n + 1);
        std::atomic<int> ranges{0};
        ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
          int at = ranges++;
          begins[at] = begin;
          ends[at] = end;
          for (int64_t i = begin; i < end; ++i) ++seen[i];
        });
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(seen[i], 1) << "index " << i << " of " << n << " grain " << grain;
        ASSERT_LE(ranges, threads);
        for (int i = 0; i < ranges; ++i) {
          EXPECT_GT(ends[i], begins[i]);
          EXPECT_TRUE(ends[i] == n || ends[i] - begins[i] >= grain);
        }
      }
    }
  }
}

TEST(ParallelForTest, RunsInlineWhenOneRangeSufficesOrInsideATeam) {
  SetParallelThreads(2);
  std::thread::id here = std::this_thread::get_id(), there;
  ParallelFor(10, 10, [&](int64_t, int64_t) { there = std::this_thread::get_id(); });
  EXPECT_EQ(here, there);
  std::atomic<int> inner{0}, outer{0};
  ParallelFor(2, 1, [&](int64_t, int64_t) {
    ++outer;
    ParallelFor(100, 1, [&](int64_t begin, int64_t end) { inner += end - begin == 100 ? 1 : 1000; });
  });
  EXPECT_EQ(inner, outer);
}

TEST(ParallelForTest, FlushesDenormalsInTheWholeTeam) {
  std::atomic<int> kept{0}, ran{0};
  std::thread([&] {
    SetParallelThreads(3);
    FlushDenormals();
#pragma omp parallel
    {
      volatile float tiny = std::numeric_limits<float>::min();
      volatile float less = tiny * 0.25f;
      kept += less != 0.0f;
      ++ran;
    }
  }).join();
  EXPECT_EQ(kept, 0);
  EXPECT_GE(ran, 1);
}

// A tensor piece in memory with a border of canaries around it.
struct Buffer {
  Buffer(DType dtype, const Box& box) : bytes(box.elements() * SizeOf(dtype)), data(bytes + 128, 0x5A) {
    piece = {data.data() + 64, box};
  }
  bool BorderIntact() const {
    for (size_t i = 0; i < 64; ++i) {
      if (data[i] != 0x5A || data[64 + bytes + i] != 0x5A) return false;
    }
    return true;
  }
  size_t bytes;
  std::vector<uint8_t> data;
  Piece piece;
};

int64_t OffsetOf(const Box& box, const Dims& at) {
  int64_t offset = 0;
  for (int i = 0; i < at.rank(); ++i) offset = offset * box.extent[i] + at[i] - box.begin[i];
  return offset;
}

double ReadElement(DType dtype, const Piece& piece, int64_t i) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(piece.data)[i];
    case DType::kBFloat16:
      return ToFloat(static_cast<const BFloat16*>(piece.data)[i]);
    case DType::kFloat16:
      return ToFloat(static_cast<const Float16*>(piece.data)[i]);
    case DType::kInt32:
      return static_cast<const int32_t*>(piece.data)[i];
    case DType::kInt64:
      return static_cast<double>(static_cast<const int64_t*>(piece.data)[i]);
    default:
      return static_cast<const uint8_t*>(piece.data)[i];
  }
}

void WriteElement(DType dtype, const Piece& piece, int64_t i, double value) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(piece.data)[i] = static_cast<float>(value);
      break;
    case DType::kBFloat16:
      static_cast<BFloat16*>(piece.data)[i] = ToBFloat16(static_cast<float>(value));
      break;
    case DType::kFloat16:
      static_cast<Float16*>(piece.data)[i] = ToFloat16(static_cast<float>(value));
      break;
    case DType::kInt32:
      static_cast<int32_t*>(piece.data)[i] = static_cast<int32_t>(value);
      break;
    case DType::kInt64:
      static_cast<int64_t*>(piece.data)[i] = static_cast<int64_t>(value);
      break;
    default:
      static_cast<uint8_t*>(piece.data)[i] = static_cast<uint8_t>(value);
  }
}

template <typename F>
void ForEachIndex(const Box& box, F&& f) {
  if (box.empty()) return;
  Dims at = box.begin;
  while (true) {
    f(at);
    int i = at.rank() - 1;
    for (; i >= 0; --i) {
      if (++at[i] < box.begin[i] + box.extent[i]) break;
      at[i] = box.begin[i];
    }
    if (i < 0) return;
  }
}

class BoxDraw {
 public:
  explicit BoxDraw(int seed) : draw_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(draw_() % static_cast<uint64_t>(n)); }
  Box DrawBox() {
    Box box;
    for (int64_t rank = Below(5); rank > 0; --rank) {
      box.begin.push_back(3 + Below(4));
      box.extent.push_back(Below(12) == 0 ? 0 : 1 + Below(7));
    }
    // Long runs as well, past one block of the combining loop.
    if (box.extent.rank() > 0 && Below(4) == 0) box.extent.back() = 1000 + Below(1200);
    return box;
  }
  Box Around(const Box& box) {
    Box piece = box;
    for (int i = 0; i < box.extent.rank(); ++i) {
      if (Below(2) == 0) continue;
      int64_t before = Below(3), after = Below(3);
      piece.begin[i] -= before;
      piece.extent[i] += before + after;
    }
    return piece;
  }

 private:
  std::mt19937_64 draw_;
};

double Combine(Reduce reduce, double a, double b) {
  return reduce == Reduce::kSum ? a + b : reduce == Reduce::kMax ? std::max(a, b) : std::min(a, b);
}

TEST(CopyBoxTest, CopiesAndCombinesLikeTheDefinition) {
  for (int seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    BoxDraw draw(seed);
    DType dtype = kAllTypes[draw.Below(7)];
    Reduce reduce = std::array{Reduce::kSum, Reduce::kMax, Reduce::kMin}[draw.Below(3)];
    Box box = draw.DrawBox();
    int num_from = 1 + static_cast<int>(draw.Below(4)), num_to = 1 + static_cast<int>(draw.Below(3));
    std::vector<Buffer> from, to;
    std::vector<Piece> from_pieces, to_pieces;
    for (int i = 0; i < num_from; ++i) {
      from.emplace_back(dtype, draw.Around(box));
      from_pieces.push_back(from[i].piece);
      for (int64_t e = 0; e < from[i].piece.box.elements(); ++e) {
        WriteElement(dtype, from[i].piece, e,
                     static_cast<double>(draw.Below(dtype == DType::kBool ? 2 : 50)));
      }
    }
    for (int i = 0; i < num_to; ++i) {
      to.emplace_back(dtype, draw.Around(box));
      to_pieces.push_back(to[i].piece);
      for (int64_t e = 0; e < to[i].piece.box.elements(); ++e) WriteElement(dtype, to[i].piece, e, 1);
    }
    int64_t before = new_calls;
    CombineBox(dtype, reduce, box, from_pieces.data(), num_from, to_pieces.data(), num_to);
    EXPECT_EQ(new_calls, before) << "allocations";
    for (const Buffer& buffer : to) {
      ASSERT_TRUE(buffer.BorderIntact());
      ForEachIndex(buffer.piece.box, [&](const Dims& at) {
        double want = 1;  // outside the box nothing changes
        Box point{at, Dims(at.rank(), 1)};
        if (box.Intersect(point) == point) {
          want = ReadElement(dtype, from_pieces[0], OffsetOf(from_pieces[0].box, at));
          for (int i = 1; i < num_from; ++i) {
            want =
                Combine(reduce, want, ReadElement(dtype, from_pieces[i], OffsetOf(from_pieces[i].box, at)));
          }
          if (dtype == DType::kBool) want = std::min(want, 1.0);
        }
        ASSERT_EQ(ReadElement(dtype, buffer.piece, OffsetOf(buffer.piece.box, at)), want)
            << Name(dtype) << " " << Name(reduce) << " box " << box.str() << " at " << at.str();
      });
    }
  }
}

TEST(CopyBoxTest, NoSourceWritesTheIdentity) {
  auto identity = [](DType dtype, Reduce reduce) {
    Buffer buffer(dtype, Box::Whole({3}));
    CombineBox(dtype, reduce, Box::Whole({3}), nullptr, 0, &buffer.piece, 1);
    EXPECT_TRUE(buffer.BorderIntact());
    return ReadElement(dtype, buffer.piece, 2);
  };
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : kAllTypes) EXPECT_EQ(identity(dtype, Reduce::kSum), 0) << Name(dtype);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(identity(dtype, Reduce::kMax), -inf) << Name(dtype);
    EXPECT_EQ(identity(dtype, Reduce::kMin), inf) << Name(dtype);
  }
  EXPECT_EQ(identity(DType::kInt32, Reduce::kMax), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(identity(DType::kInt32, Reduce::kMin), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(identity(DType::kUInt8, Reduce::kMax), 0);
  EXPECT_EQ(identity(DType::kUInt8, Reduce::kMin), 255);
  EXPECT_EQ(identity(DType::kBool, Reduce::kMin), 1);
}

TEST(CopyBoxTest, SixteenBitSumsAreRoundedOnce) {
  // 256 + 1 + 1 is 258 in bf16 when rounded once, 256 when rounded after each addition.
  BFloat16 big = ToBFloat16(256), one = ToBFloat16(1), sum{};
  Box box = Box::Whole({1});
  Piece from[] = {{&big, box}, {&one, box}, {&one, box}}, to{&sum, box};
  CombineBox(DType::kBFloat16, Reduce::kSum, box, from, 3, &to, 1);
  EXPECT_EQ(ToFloat(sum), 258.0f);
}

// Of drawn numbers the sum in fp32, rounded to the nearest: truncating would lose half a unit on average.
TEST(CopyBoxTest, SixteenBitSumsAreRoundedToTheNearest) {
  constexpr int kElements = 3000, kSources = 3;
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    bool bf16 = dtype == DType::kBFloat16;
    std::vector<std::vector<uint16_t>> terms(kSources + 1, std::vector<uint16_t>(kElements));
    std::vector<Piece> pieces;
    Box box = Box::Whole({kElements});
    for (int s = 0; s <= kSources; ++s) {
      for (int i = 0; i < kElements; ++i) {
        float drawn = 2 * ToUniform(RandomBits(3, s, i)) - 1;
        terms[s][i] = bf16 ? ToBFloat16(drawn).bits : ToFloat16(drawn).bits;
      }
      pieces.push_back({terms[s].data(), box});
    }
    auto number = [&](uint16_t bits) { return bf16 ? ToFloat(BFloat16{bits}) : ToFloat(Float16{bits}); };
    std::vector<float> want(kElements);
    for (int i = 0; i < kElements; ++i)
      for (int s = 0; s < kSources; ++s) want[i] += number(terms[s][i]);
    CombineBox(dtype, Reduce::kSum, box, pieces.data(), kSources, &pieces[kSources], 1);
    for (int i = 0; i < kElements; ++i) {
      uint16_t bits = terms[kSources][i];
      double error = std::abs(number(bits) - double{want[i]});
      for (int step : {-1, 1}) {  // neither neighbour is nearer
        float neighbour = number(static_cast<uint16_t>(bits + step));
        if (std::isnan(neighbour)) continue;  // next to 0
        EXPECT_LE(error, std::abs(neighbour - double{want[i]})) << Name(dtype) << " element " << i;
      }
    }
  }
}

TEST(CopyBoxTest, SumsInTheGivenOrder) {
  float a = 1e8f, b = -1e8f, c = 1.0f, sum = 0;
  Box box = Box::Whole({1});
  Piece forward[] = {{&a, box}, {&b, box}, {&c, box}}, backward[] = {{&c, box}, {&b, box}, {&a, box}},
        to{&sum, box};
  CombineBox(DType::kFloat32, Reduce::kSum, box, forward, 3, &to, 1);
  EXPECT_EQ(sum, 1.0f);
  CombineBox(DType::kFloat32, Reduce::kSum, box, backward, 3, &to, 1);
  EXPECT_EQ(sum, 0.0f);
}

TEST(CopyBoxTest, ADestinationMayBeASource) {
  std::vector<float> a(3000, 1), b(3000, 2);
  Box box = Box::Whole({3000});
  Piece pieces[] = {{a.data(), box}, {b.data(), box}};
  CombineBox(DType::kFloat32, Reduce::kSum, box, pieces, 2, pieces, 2);
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(a[i] == 3 && b[i] == 3) << i;
}

TEST(CopyBoxTest, MaximumKeepsNaN) {
  float nan = std::numeric_limits<float>::quiet_NaN(), one = 1, result = 0;
  Box box = Box::Whole({});
  Piece first[] = {{&nan, box}, {&one, box}}, last[] = {{&one, box}, {&nan, box}}, to{&result, box};
  for (Reduce reduce : {Reduce::kMax, Reduce::kMin}) {
    for (const Piece* from : {first, last}) {
      result = 0;
      CombineBox(DType::kFloat32, reduce, box, from, 2, &to, 1);
      EXPECT_TRUE(std::isnan(result)) << Name(reduce);
    }
  }
}

TEST(CopyBoxTest, ReductionsReadBack) {
  for (Reduce reduce : {Reduce::kNone, Reduce::kSum, Reduce::kMax, Reduce::kMin}) {
    EXPECT_EQ(ParseReduce(Name(reduce)), reduce);
  }
  EXPECT_NE(ErrorOf([] { ParseReduce("mean"); }), "no error");
}

Status Good(const KernelContext&) { return Status(); }
Status Bad(const KernelContext&) { return Status("bad"); }

TEST(KernelRegistryTest, FallsBackToTheReference) {
  KernelRegistry registry;
  registry.Add("f", "reference", Good);
  registry.Add("f", "cuda", Bad);
  KernelSpec spec{.name = "f"};
  KernelContext context{.spec = spec};
  EXPECT_TRUE(registry.Make(spec, "cpu")->Run(context).ok());
  EXPECT_EQ(registry.Make(spec, "cuda")->Run(context).message(), "bad");
  EXPECT_TRUE(registry.Has("f", "cuda"));
  EXPECT_FALSE(registry.Has("f", "cpu"));
  KernelSpec absent{.name = "g", .node = "g.3"};
  EXPECT_EQ(ErrorOf([&] { registry.Make(absent, "cpu"); }),
            "there is no kernel g (for g.3) for device kind cpu, nor a reference kernel");
}

// Whose memory the host cannot read.
TEST(KernelRegistryTest, AReferenceIsNotForOtherDevices) {
  KernelRegistry registry;
  registry.Add("f", "reference", Good);
  KernelSpec spec{.name = "f", .node = "f.3"};
  spec.line = SourceLine("gpt.cc", 31);
  EXPECT_NE(registry.Make(spec, "cpu"), nullptr);
  for (const char* kind : {"cuda", "other"})
    EXPECT_EQ(ErrorOf([&] {
                registry.Make(spec, kind);
              }).find(Cat("there is no kernel f (for f.3) at gpt.cc:31 for device kind ", kind)),
              0u)
        << kind;
}

TEST(HostDeviceTest, CountsWhatItHolds) {
  std::unique_ptr<Device> device = MakeHostDevice(3);
  EXPECT_EQ(device->kind(), "cpu");
  EXPECT_EQ(device->index(), 3);
  HostMemoryStats before = GetHostMemoryStats();
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{5} << 20}) {
    std::unique_ptr<Memory> memory = device->Allocate(bytes, "test");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0u);
    EXPECT_EQ(memory->bytes(), bytes);
    HostMemoryStats now = GetHostMemoryStats();
    EXPECT_EQ(now.bytes - before.bytes, static_cast<int64_t>(bytes));
    EXPECT_EQ(now.blocks - before.blocks, 1);
    std::vector<uint8_t> in(bytes, 7), out(bytes);
    device->CopyIn(memory->data(), in.data(), bytes);
    device->CopyOut(out.data(), memory->data(), bytes);
    EXPECT_EQ(in, out);
  }
  HostMemoryStats after = GetHostMemoryStats();
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(after.blocks, before.blocks);
  EXPECT_EQ(after.allocations, before.allocations + 4);
}

TEST(HostDeviceTest, LargeBlocksLeaveNothingMapped) {
  auto mapped = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * sysconf(_SC_PAGESIZE);
  };
  std::unique_ptr<Device> device = MakeHostDevice(0);
  (void)device->Allocate(size_t{3} << 20, "test");
  const int64_t before = mapped();
  for (size_t k = 0; k < 400; ++k) (void)device->Allocate((size_t{2} << 20) + k * 9000, "test");
  EXPECT_LE(mapped() - before, int64_t{32} << 20);
}

// So that large pages can be mapped, whatever the system does with odd sizes.
TEST(HostDeviceTest, LargeBlocksBeginAtALargePage) {
  constexpr size_t kLargePage = size_t{2} << 20;
  std::vector<std::unique_ptr<Memory>> held;
  std::unique_ptr<Device> device = MakeHostDevice(0);
  for (size_t bytes : {kLargePage, kLargePage + 4096, 3 * kLargePage / 2, 2 * kLargePage + 1}) {
    held.push_back(device->Allocate(bytes, "test"));
    auto* data = static_cast<uint8_t*>(held.back()->data());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kLargePage, 0u) << bytes;
    EXPECT_EQ(data[0] + data[bytes - 1], 0);
    data[0] = data[bytes - 1] = 1;
  }
}

TEST(HostDeviceTest, RefusesMoreThanThereIs) {
  HostMemoryStats before = GetHostMemoryStats();
  for (size_t bytes : {size_t{1} << 50, ~size_t{0}}) {
    std::string error = ErrorOf([&] { MakeHostDevice(2)->Allocate(bytes, "the arena"); });
    EXPECT_EQ(error.find("device cpu:2 has no memory for the arena: " + std::to_string(bytes) +
                         " bytes are needed, "),
              0u)
        << error;
    EXPECT_NE(error.find(" bytes are free"), std::string::npos) << error;
  }
  EXPECT_EQ(GetHostMemoryStats().bytes, before.bytes);
}

Status Throws(const KernelContext&) { throw std::runtime_error("library said no"); }

// Gives what it is asked for and remembers what that was.
class RecordingSource : public MemorySource {
 public:
  struct Block : Memory {
    explicit Block(size_t bytes) : held(bytes) {}
    void* data() override { return held.data(); }
    size_t bytes() const override { return held.size(); }
    std::vector<char> held;
  };
  std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) override {
    asked.push_back(what);
    auto block = std::make_unique<Block>(bytes);
    last = block->data();
    return block;
  }
  std::vector<std::string> asked;
  void* last = nullptr;
};

TEST(HostDeviceTest, TakesMemoryFromASourceAndCountsIt) {
  RecordingSource source;
  std::unique_ptr<Device> device = MakeHostDevice(1, &source);
  HostMemoryStats before = GetHostMemoryStats();
  {
    std::unique_ptr<Memory> block = device->Allocate(3000, "the arena");
    EXPECT_EQ(block->data(), source.last);
    EXPECT_EQ(block->bytes(), 3000u);
    EXPECT_EQ(GetHostMemoryStats().bytes, before.bytes + 3000);
    EXPECT_EQ(GetHostMemoryStats().blocks, before.blocks + 1);
  }
  EXPECT_EQ(GetHostMemoryStats().bytes, before.bytes);
  EXPECT_EQ(GetHostMemoryStats().blocks, before.blocks);
  EXPECT_EQ(GetHostMemoryStats().allocations, before.allocations + 1);
  std::string error = ErrorOf([&] { device->Allocate(size_t{1} << 60, "the weights"); });
  EXPECT_NE(error.find("device cpu:1 has no memory for the weights"), std::string::npos) << error;
  EXPECT_EQ(source.asked, std::vector<std::string>{"the arena"}) << "what cannot be had is not asked for";
}

TEST(HostDeviceTest, StreamRunsHereAndNow) {
  std::unique_ptr<DeviceStream> stream = MakeHostDevice(0)->MakeStream("compute");
  EXPECT_TRUE(stream->synchronous());
  KernelSpec spec{.name = "f", .node = "f.1"};
  KernelContext context{.spec = spec};
  EXPECT_TRUE(stream->Run(*MakeFunctionKernel(Good)(spec), context).ok());
  EXPECT_EQ(stream->Run(*MakeFunctionKernel(Bad)(spec), context).message(), "bad");
  EXPECT_EQ(stream->Run(*MakeFunctionKernel(Throws)(spec), context).message(), "f.1: library said no");
  bool done = false;
  stream->NotifyWhenDone([&](Status status) { done = status.ok(); });
  EXPECT_TRUE(done);
}

// A link says from its own folder where it leads.
TEST(FileCheckTest, LinksLeadToFilesThatAreNotThereYet) {
  namespace fs = std::filesystem;
  TestFolder folder("core_test");
  fs::create_directories(folder / "a/b");
  fs::create_directories(folder / "c");
  fs::create_symlink("../../c/new", folder / "a/b/second");
  const std::string link = folder / "a/link";
  for (const auto& [target, file] :
       std::vector<std::pair<std::string, std::string>>{{"new", "a/new"},
                                                        {"b/new", "a/b/new"},
                                                        {"../c/new", "c/new"},
                                                        {folder / "c/new", "c/new"},
                                                        {"b/second", "c/new"}}) {
    SCOPED_TRACE(target);
    fs::create_symlink(target, link);
    EXPECT_EQ(WhyNotWritable(link), "");
    EXPECT_FALSE(fs::exists(folder / file)) << "it is only looked at";
    EXPECT_EQ(FileIdentity(link), FileIdentity(folder / file));
    fs::remove(link);
  }
  fs::create_symlink("none/new", link);
  EXPECT_EQ(WhyNotWritable(link), std::strerror(ENOENT));
}

// Of a file that is not there yet, in every spelling, also of a name alone.
TEST(FileCheckTest, SpellingsOfOneFileAreEqual) {
  namespace fs = std::filesystem;
  TestFolder folder("core_test");
  fs::create_directories(folder / "a");
  const fs::path before = fs::current_path();
  fs::current_path(folder / ".");
  for (const char* name : {"new", "a/new"}) {
    SCOPED_TRACE(name);
    const std::string identity = FileIdentity(folder / name);
    EXPECT_NE(identity, "");
    for (const std::string& spelling : {std::string(name), Cat("./", name), Cat("a/../", name)})
      EXPECT_EQ(FileIdentity(spelling), identity) << spelling;
  }
  EXPECT_NE(FileIdentity("new"), FileIdentity("a/new"));
  EXPECT_THROW(RequireDistinct({}, {{"--x=new", "new"}, {"--y=new", "new"}}), Error);
  fs::current_path(before);
}

// As mkfifo makes it: who writes waits for who reads.
TEST(FileCheckTest, APipeMayBeReadLater) {
  TestFolder folder("core_test");
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(WhyNotWritable(pipe), "") << "nobody reads it yet";
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  EXPECT_EQ(WhyNotWritable(pipe), "");
  char byte;
  EXPECT_EQ(read(reader, &byte, 1), 0) << "nothing was written";
  close(reader);
  const std::string socket_file = folder / "socket";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_file.c_str(), sizeof address.sun_path - 1);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(WhyNotWritable(socket_file), "it is a socket");
  close(listener);
  EXPECT_EQ(FileIdentity(pipe), "");
}

// What programs read from a folder that a flag names is an input, by its name and by links to it; other files
// in the folder are not.
TEST(FileCheckTest, WhatIsReadFromAFolderIsNotWritten) {
  namespace fs = std::filesystem;
  TestFolder folder("core_test");
  for (const char* sub : {"hf/additional_chat_templates", "run/step-00000100", "set/train/cat", "set/val/cat",
                          "blobs", "elsewhere", "pets/dog"})
    fs::create_directories(folder / sub);
  folder.Write("blobs/abc", "x");
  fs::create_symlink("../blobs/abc", folder / "hf/model-00001-of-00002.safetensors");
  fs::create_symlink("hf", folder / "link");
  fs::create_symlink("../hf/tokenizer.json", folder / "elsewhere/link.json");
  for (const char* picture : {"pets/1.jpg", "pets/2.png", "pets/dog/3.jpg", "set/val/cat/4.jpg"})
    folder.Write(picture, "x");
  fs::create_symlink("../../../pets/1.jpg", folder / "set/train/cat/linked.jpg");
  fs::create_hard_link(folder / "set/val/cat/4.jpg", folder / "elsewhere/4");
  fs::create_symlink("../../pets/dog", folder / "set/train/dog");
  fs::create_symlink("../blobs", folder / "run/step-00000200");
  const std::vector<NamedFile> inputs = {{"--load_hf=hf", folder / "hf"},
                                         {"--resume=run", folder / "run"},
                                         {"--images=set/train", folder / "set/train"},
                                         {"--images=set/val", folder / "set/val"}};
  const auto said = [&](const std::string& output) {
    try {
      RequireDistinct(inputs, {{"--trace=" + output, folder / output}});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const auto& [output, input] : std::map<std::string, std::string>{
           {"hf/model.safetensors", "--load_hf=hf"},
           {"hf/model.safetensors.index.json", "--load_hf=hf"},
           {"hf/config.json", "--load_hf=hf"},
           {"hf/generation_config.json", "--load_hf=hf"},
           {"hf/../hf/./tokenizer.json", "--load_hf=hf"},
           {"hf/tokenizer.model", "--load_hf=hf"},
           {"hf/merges.txt", "--load_hf=hf"},
           {"hf/tokenizer_config.json", "--load_hf=hf"},
           {"hf/vocab.json", "--load_hf=hf"},
           {"hf/chat_template.jinja", "--load_hf=hf"},
           {"hf/additional_chat_templates/tools.jinja", "--load_hf=hf"},
           {"hf/qwen.tiktoken", "--load_hf=hf"},
           {"hf/preprocessor_config.json", "--load_hf=hf"},
           {"link/config.json", "--load_hf=hf"},
           {"elsewhere/link.json", "--load_hf=hf"},
           {"blobs/abc", "--load_hf=hf"},
           {"run/step-00000100/model.safetensors.index.json", "--resume=run"},
           {"run/step-00000100/model-00001-of-00001.safetensors", "--resume=run"},
           {"set/train/cat/1.jpg", "--images=set/train"},
           {"set/val/cat/1.PNG", "--images=set/val"},
           {"pets/1.jpg", "--images=set/train"},
           {"pets/dog/3.jpg", "--images=set/train"},
           {"pets/dog/new.jpg", "--images=set/train"},
           {"elsewhere/4", "--images=set/val"},
           {"blobs/model-00001-of-00001.safetensors", "--resume=run"}})
    EXPECT_EQ(said(output),
              Cat("--trace=", output, " would overwrite what ", input, " reads; write elsewhere"));
  for (const char* output : {"hf/trace.json", "hf/metrics.jsonl", "run/log", "run/metrics.jsonl",
                             "set/train/trace.json", "set/samples.png", "set/train/samples.png", "blobs/def",
                             "pets/2.png", "pets/dog/notes.txt", "config.json", "elsewhere/config.json"})
    EXPECT_EQ(said(output), "") << output;
}

// The file is the one from before, or the new one, whatever fails; what it was besides its contents stays.
TEST(FileCheckTest, AReplacedFileIsWholeOrTheFormerOne) {
  namespace fs = std::filesystem;
  TestFolder folder("core_test");
  const std::string file = folder / "config", link = folder / "link";
  const auto entries = [&] {
    return std::distance(fs::directory_iterator(folder / "."), fs::directory_iterator());
  };
  ReplaceFile(file, "first", "--out");
  EXPECT_EQ(TextOf(file), "first");
  fs::permissions(file, fs::perms(0640));
  fs::create_symlink("config", link);
  ReplaceFile(link, "second", "--out");
  EXPECT_EQ(TextOf(file), "second");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(fs::status(file).permissions(), fs::perms(0640));
  EXPECT_EQ(entries(), 2) << "nothing is left beside it";
  const std::string large(100000, 'x');
  const pid_t child = fork();
  if (child == 0) {
    ReportFileSizeLimit();
    const rlimit limit = {5000, 5000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
    for (const std::string& path : {file, folder / "new"}) {
      try {
        ReplaceFile(path, large, "--out: " + path);
        _exit(2);
      } catch (const WriteError& error) {
        if (error.what() != Cat("--out: ", path, " cannot be written: File too large")) _exit(3);
      }
    }
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "exit code " << WEXITSTATUS(status) << ", signal " << WTERMSIG(status);
  EXPECT_EQ(TextOf(file), "second");
  EXPECT_FALSE(fs::exists(folder / "new"));
  EXPECT_EQ(entries(), 2);
  EXPECT_THROW(ReplaceFile(folder / "none/file", "x", "--out"), WriteError);
  EXPECT_THROW(ReplaceFile(folder / ".", "x", "--out"), WriteError);
  ReplaceFile("/dev/null", "x", "--out");  // as it is
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(OneLineTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(OnOneLine("a b~ \xc3\xbc\\"), "a b~ \xc3\xbc\\");
  EXPECT_EQ(OnOneLine(std::string("a\nb\r\t\x1b[31m\0\x7f", 12)), "a\\nb\\r\\t\\x1b[31m\\x00\\x7f");
}

}  // namespace
}  // namespace oneflow_like
