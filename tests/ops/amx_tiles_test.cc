// AMX's tiles: what PlainTiles compute, and that AmxTiles' instructions do the same bit by bit, on a
// processor with AMX or under TileEmulator. This file is compiled for AMX, but nothing else that it includes
// has code for it.
#include "ops/cpu/amx_tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/float16.h"
#include "tests/ops/tile_emulator.h"

namespace oneflow_like::cpu {
namespace {

struct Operands {
  std::vector<BFloat16> a, b;  // [rows][2 pairs], [pairs][columns][2]
  std::vector<float> c;        // [rows][columns]
};

Operands Draw(int rows, int columns, int pairs, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto drawn = [&](size_t n) {
    std::vector<BFloat16> x(n);
    for (BFloat16& v : x) v = ToBFloat16(normal(random));
    return x;
  };
  Operands o = {drawn(2 * rows * pairs), drawn(2 * pairs * columns), std::vector<float>(rows * columns)};
  for (float& v : o.c) v = normal(random);
  return o;
}

// c + twice a b, by way of every register, with rows of c 80 bytes apart in the end.
template <typename T>
std::vector<float> Product(const Operands& o, int rows, int columns, int pairs) {
  TileShapes shapes;
  for (int i : {0, 7}) shapes.Set(i, rows, 4 * columns);
  for (int i : {1, 6}) shapes.Set(i, rows, 4 * pairs);
  for (int i : {2, 5}) shapes.Set(i, pairs, 4 * columns);
  for (int i : {3, 4}) shapes.Set(i, 16, 64);
  std::vector<float> result(20 * rows, -1.0f);
  T tiles(shapes);
  tiles.template Load<7>(o.c.data(), 4 * columns);
  tiles.template Load<1>(o.a.data(), 4 * pairs);
  tiles.template Load<5>(o.b.data(), 4 * columns);
  tiles.template AddProduct<7, 1, 5>();
  tiles.template Load<6>(o.a.data(), 4 * pairs);
  tiles.template Load<2>(o.b.data(), 4 * columns);
  tiles.template AddProduct<7, 6, 2>();
  tiles.template Zero<3>();
  tiles.template Store<7>(result.data(), 80);
  return result;
}

TEST(AmxTiles, PlainOnesMultiply) {
  const Operands o = Draw(13, 9, 7, 1);
  const std::vector<float> got = Product<PlainTiles>(o, 13, 9, 7);
  for (int i = 0; i < 13; ++i)
    for (int j = 0; j < 9; ++j) {
      double want = o.c[i * 9 + j];
      for (int k = 0; k < 14; ++k)
        want += 2.0 * ToFloat(o.a[i * 14 + k]) * ToFloat(o.b[(k / 2 * 9 + j) * 2 + k % 2]);
      EXPECT_NEAR(got[20 * i + j], want, 1e-5 * (1 + std::abs(want))) << i << " " << j;
    }
  for (int i = 0; i < 13; ++i)
    for (int j = 9; j < 20; ++j) EXPECT_EQ(got[20 * i + j], -1.0f);
}

TEST(AmxTiles, NumbersBelowTheNormalRangeAreZero) {
  Operands o = {std::vector<BFloat16>(2), std::vector<BFloat16>(2), {1e-39f}};
  o.a[0] = ToBFloat16(1e-39f);  // times 1e30 it would be seen
  o.b[0] = ToBFloat16(1e30f);
  o.a[1] = ToBFloat16(1e-30f);
  o.b[1] = ToBFloat16(1e-9f);
  EXPECT_EQ(Product<PlainTiles>(o, 1, 1, 1)[0], 0.0f);
}

TEST(AmxTilesDeath, ShapesThatDoNotAgree) {
  TileShapes shapes = TileShapes::Full();
  shapes.Set(2, 15, 64);
  EXPECT_DEATH((PlainTiles(shapes).AddProduct<0, 1, 2>()), "do not agree");
  EXPECT_DEATH((PlainTiles(TileShapes::Full()).AddProduct<0, 1, 1>()), "do not agree");
  shapes.Set(2, 17, 64);
  EXPECT_DEATH(PlainTiles{shapes}, "no processor takes");
  EXPECT_DEATH(PlainTiles(TileShapes()).Zero<0>(), "without a shape");
}

#if defined(OFL_AMX_INSTRUCTIONS)

TEST(AmxTiles, InstructionsDoTheSame) {
  std::unique_ptr<TileEmulator> emulator;
  if (!MayUseTiles()) emulator = std::make_unique<TileEmulator>();
  for (const auto& [rows, columns, pairs] : {std::tuple{16, 16, 16}, {1, 1, 1}, {13, 9, 7}, {16, 3, 16}}) {
    const Operands o = Draw(rows, columns, pairs, 7 * rows + columns);
    const std::vector<float> want = Product<PlainTiles>(o, rows, columns, pairs),
                             got = Product<AmxTiles>(o, rows, columns, pairs);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
        << rows << " " << columns << " " << pairs;
  }
  EXPECT_EQ(TileEmulator::products(), emulator ? 8 : 0);
}

#endif

}  // namespace
}  // namespace oneflow_like::cpu
