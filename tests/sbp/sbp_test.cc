// The SBP algebra against its definition: cuts, nested cuts, canonical grains; meshes, slices, and their
// messages.
#include "sbp/sbp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "core/error.h"
#include "sbp/mesh.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

TEST(SbpTest, TextReadsBack) {
  std::set<std::string> texts;
  for (const Sbp& sbp : {B(), S(0), S(1), S(7, 64), P(), P(Reduce::kMax), P(Reduce::kMin)}) {
    EXPECT_EQ(ParseSbp(sbp.str()), sbp) << sbp.str();
    texts.insert(sbp.str());
  }
  EXPECT_EQ(texts, (std::set<std::string>{"B", "S0", "S1", "S7/64", "P", "Pmax", "Pmin"}));
  for (const char* text : {"", "S", "S-1", "S8", "S1/", "S1/0", "S1/x", "S 1", "Q", "Pmean", "BB", "S1 "}) {
    EXPECT_NE(ErrorOf([&] { ParseSbp(text); }), "") << text;
  }
}

TEST(SbpTest, OrderTellsAllApart) {
  std::set<Sbp> all = {B(), S(0), S(1), S(0, 2), P(), P(Reduce::kMax), P(Reduce::kMin), S(0)};
  EXPECT_EQ(all.size(), 7u);
}

TEST(CutTest, BalancedInWholeGrainsAndComplete) {
  for (int64_t extent = 0; extent <= 40; ++extent) {
    for (int64_t parts = 1; parts <= 7; ++parts) {
      for (int64_t grain = 1; grain <= 9; ++grain) {
        SCOPED_TRACE(Cat("extent ", extent, " parts ", parts, " grain ", grain));
        int64_t at = 5, most = 0, least = extent + 1, before = extent + grain;
        for (int64_t i = 0; i < parts; ++i) {
          Interval part = Cut({5, extent}, parts, i, grain);
          ASSERT_EQ(part.begin, at);
          ASSERT_GE(part.extent, 0);
          at += part.extent;
          ASSERT_TRUE(at == 5 + extent || (at - 5) % grain == 0) << "cut point " << at - 5;
          int64_t grains = (part.extent + grain - 1) / grain;
          ASSERT_LE(grains, before) << "first parts are the larger ones";
          before = grains;
          most = std::max(most, grains);
          least = std::min(least, grains);
        }
        ASSERT_EQ(at, 5 + extent);
        ASSERT_LE(most - least, 1);
      }
    }
  }
}

TEST(CutTest, ShortLastGrainAndEmptyParts) {
  auto cut = [](int64_t extent, int64_t parts, int64_t grain) {
    std::string text;
    for (int64_t i = 0; i < parts; ++i)
      text += std::to_string(Cut({0, extent}, parts, i, grain).extent) + " ";
    return text;
  };
  EXPECT_EQ(cut(10, 3, 1), "4 3 3 ");
  EXPECT_EQ(cut(512, 3, 64), "192 192 128 ");
  EXPECT_EQ(cut(10, 2, 4), "8 2 ");
  EXPECT_EQ(cut(2, 4, 1), "1 1 0 0 ");
  EXPECT_EQ(cut(7, 3, 100), "7 0 0 ");
  EXPECT_EQ(cut(0, 2, 1), "0 0 ");
}

// Calls f(coords) for every coordinate on axes of these sizes.
template <typename F>
void ForEachCoords(const std::vector<int>& sizes, F&& f) {
  std::vector<int> coords(sizes.size(), 0);
  while (true) {
    f(coords);
    int i = static_cast<int>(sizes.size()) - 1;
    for (; i >= 0; --i) {
      if (++coords[i] < sizes[i]) break;
      coords[i] = 0;
    }
    if (i < 0) return;
  }
}

TEST(LocalBoxTest, NestsOuterAxisFirst) {
  NdSbp sbp = {S(0), B(), S(0), S(1)};
  std::vector<int> sizes = {2, 3, 2, 2};
  // 7 rows: 4 and 3; then 2 2 and 2 1.
  EXPECT_EQ(LocalBox({7, 5}, sbp, sizes, {0, 2, 1, 0}).str(), "[2:4,0:3]");
  EXPECT_EQ(LocalBox({7, 5}, sbp, sizes, {1, 0, 1, 1}).str(), "[6:7,3:5]");
  EXPECT_EQ(LocalBox({7, 5}, {P(), B()}, {2, 2}, {1, 1}).str(), "[0:7,0:5]");
  EXPECT_EQ(LocalBox({}, {B()}, {2}, {1}).str(), "[]");
}

TEST(LocalBoxTest, PiecesCoverEveryElementOnce) {
  for (int seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 draw(seed);
    Dims shape;
    for (int most : {14, 9, 6}) shape.push_back(static_cast<int64_t>(draw() % most));
    std::vector<int> sizes;
    NdSbp sbp;
    for (int i = 0; i < 3; ++i) {
      sizes.push_back(1 + draw() % 4);
      sbp.push_back(draw() % 4 == 0 ? B() : S(draw() % 3, 1 + draw() % 3));
    }
    std::vector<int> held(shape.elements(), 0);
    int copies = 1;
    for (int i = 0; i < 3; ++i) copies *= sbp[i].is_split() ? 1 : sizes[i];
    ForEachCoords(sizes, [&](const std::vector<int>& coords) {
      Box box = LocalBox(shape, sbp, sizes, coords);
      for (int64_t a = 0; a < box.extent[0]; ++a) {
        for (int64_t b = 0; b < box.extent[1]; ++b) {
          for (int64_t c = 0; c < box.extent[2]; ++c) {
            ++held[((box.begin[0] + a) * shape[1] + box.begin[1] + b) * shape[2] + box.begin[2] + c];
          }
        }
      }
    });
    for (int count : held) ASSERT_EQ(count, copies);
  }
}

TEST(CanonicalTest, KeepsEveryCutPoint) {
  int changed = 0;
  for (int seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 draw(seed);
    std::vector<int> sizes = {1 + static_cast<int>(draw() % 3), 1 + static_cast<int>(draw() % 3),
                              1 + static_cast<int>(draw() % 2)};
    Dims shape = {2, static_cast<int64_t>(draw() % 50)};
    if (draw() % 3 == 0) shape[1] = 24 * (draw() % 5);
    Sbp written = S(1, 1 + draw() % 12);
    Sbp canonical = Canonical(written, shape, sizes[0] * sizes[1] * sizes[2]);
    changed += canonical != written;
    // Cut by any of the mesh axes, alone and nested.
    for (int chosen = 1; chosen < 8; ++chosen) {
      NdSbp first, second;
      for (int i = 0; i < 3; ++i) {
        first.push_back(chosen >> i & 1 ? written : B());
        second.push_back(chosen >> i & 1 ? canonical : B());
      }
      ForEachCoords(sizes, [&](const std::vector<int>& coords) {
        ASSERT_EQ(LocalBox(shape, first, sizes, coords), LocalBox(shape, second, sizes, coords))
            << written.str() << " and " << canonical.str() << " of " << shape.str();
      });
    }
  }
  EXPECT_GT(changed, 300);
}

TEST(CanonicalTest, DropsGrainsWithoutEffect) {
  EXPECT_EQ(Canonical(S(0, 64), {512}, 2), S(0));
  EXPECT_EQ(Canonical(S(0, 64), {512}, 8), S(0));
  EXPECT_EQ(Canonical(S(0, 64), {512}, 3), S(0, 64));
  EXPECT_EQ(Canonical(S(0, 64), {512}, 16), S(0, 64));
  EXPECT_EQ(Canonical(S(0, 64), {1}, 3), S(0));
  EXPECT_EQ(Canonical(S(0, 64), {10}, 3), Canonical(S(0, 80), {10}, 3));
  EXPECT_EQ(Canonical(B(), {10}, 3), B());
  EXPECT_EQ(Canonical(P(), {}, 3), P());
}

TEST(PlainTest, KeepsEveryPiece) {
  int changed = 0;
  for (int seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 draw(seed);
    std::vector<int> sizes;
    NdSbp written;
    for (int i = 0; i < 3; ++i) {
      sizes.push_back(1 + draw() % 4);
      written.push_back(draw() % 4 == 0 ? B() : S(draw() % 2, 1 + draw() % 12));
    }
    const Dims shape = {static_cast<int64_t>(12 * (draw() % 5)), static_cast<int64_t>(draw() % 50)};
    const NdSbp plain = Plain(shape, written, sizes);
    EXPECT_EQ(Plain(shape, plain, sizes), plain);
    changed += plain != written;
    ForEachCoords(sizes, [&](const std::vector<int>& coords) {
      ASSERT_EQ(LocalBox(shape, written, sizes, coords), LocalBox(shape, plain, sizes, coords));
    });
  }
  EXPECT_GT(changed, 300);
  EXPECT_EQ(Plain({512}, {S(0, 256)}, {2}), NdSbp{S(0)});
  EXPECT_EQ(Plain({512}, {S(0, 128)}, {3}), NdSbp{S(0, 128)});
  EXPECT_EQ(Plain({512}, {S(0, 64), S(0, 64)}, {4, 2}), (NdSbp{S(0), S(0)}));
  EXPECT_EQ(Plain({96}, {S(0, 64), S(0, 2)}, {2, 2}), (NdSbp{S(0, 64), S(0, 2)}));
}

TEST(MeshTest, ParsesAndPrints) {
  for (const char* text : {"cpu", "cuda", "cpu:dp=2", "cpu:dp=2,tp=2", "cuda:pp=4,dp=2,tp=8", "cpu:a_1=1"}) {
    EXPECT_EQ(Mesh::Parse(text).str(), text);
    EXPECT_EQ(Mesh::Parse(text), Mesh::Parse(text));
  }
  EXPECT_EQ(Mesh::Parse("cpu").size(), 1);
  EXPECT_EQ(Mesh::Parse("cpu").rank(), 0);
  Mesh mesh = Mesh::Parse("cuda:dp=2,tp=3");
  EXPECT_EQ(mesh.kind(), "cuda");
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.axis_name(1), "tp");
  EXPECT_EQ(mesh.axis_size(1), 3);
  EXPECT_EQ(mesh.FindAxis("tp"), 1);
  EXPECT_EQ(mesh.FindAxis("pp"), -1);
  EXPECT_FALSE(mesh == Mesh::Parse("cuda:tp=3,dp=2"));
  EXPECT_FALSE(mesh == Mesh::Parse("cpu:dp=2,tp=3"));
}

TEST(MeshTest, LastAxisRunsFastest) {
  Mesh mesh = Mesh::Parse("cpu:dp=2,tp=3");
  EXPECT_EQ(mesh.Device({1, 0}), 3);
  EXPECT_EQ(mesh.Coords(5), (std::vector<int>{1, 2}));
  for (int i = 0; i < mesh.size(); ++i) EXPECT_EQ(mesh.IndexOf(mesh.Device(mesh.Coords(i))), i);
  EXPECT_EQ(mesh.IndexOf(6), -1);
  Mesh other("cpu", {{"dp", 2}, {"tp", 2}}, {7, 5, 3, 1});
  EXPECT_EQ(other.Device({0, 1}), 5);
  EXPECT_EQ(other.IndexOf(3), 2);
  EXPECT_EQ(other.IndexOf(0), -1);
  EXPECT_TRUE(Mesh("cpu", {{"dp", 2}}, {0, 1}) == Mesh::Parse("cpu:dp=2"));
  EXPECT_FALSE(Mesh("cpu", {{"dp", 2}}, {1, 0}) == Mesh::Parse("cpu:dp=2"));
}

// However its devices are ordered a mesh has them in that order, and equals those alone that have it too.
TEST(MeshTest, EveryOrderOfDevicesIsAMeshOfItsOwn) {
  std::vector<int> order = {0, 1, 2, 3};
  std::vector<std::pair<std::vector<int>, Mesh>> meshes;
  do {
    meshes.emplace_back(order, Mesh("cpu", {{"dp", 2}, {"tp", 2}}, order));
  } while (std::next_permutation(order.begin(), order.end()));
  for (const auto& [devices, mesh] : meshes) {
    for (int i = 0; i < mesh.size(); ++i) {
      EXPECT_EQ(mesh.Device(mesh.Coords(i)), devices[i]);
      EXPECT_EQ(mesh.IndexOf(devices[i]), i);
    }
    for (const auto& [others, other] : meshes) EXPECT_EQ(mesh == other, devices == others);
  }
  EXPECT_EQ(meshes[0].second, Mesh::Parse("cpu:dp=2,tp=2"));
}

TEST(MeshTest, NamesStandForSeveralAxes) {
  const Mesh mesh = Mesh::Parse("cuda:replica=4,dp=8,tp=2; fsdp=replica*dp, ep = fsdp*tp");
  EXPECT_EQ(mesh.str(), "cuda:replica=4,dp=8,tp=2;fsdp=replica*dp,ep=replica*dp*tp");
  EXPECT_EQ(Mesh::Parse(mesh.str()), mesh);
  EXPECT_FALSE(Mesh::Parse("cuda:replica=4,dp=8,tp=2") == mesh);
  EXPECT_EQ(mesh.size(), 64);
  EXPECT_EQ(mesh.FindAxes("fsdp"), (MeshAxes{0, 1}));
  EXPECT_EQ(mesh.FindAxes("ep"), (MeshAxes{0, 1, 2}));
  EXPECT_EQ(mesh.FindAxes("tp"), MeshAxes{2});
  EXPECT_EQ(mesh.FindAxes("replica*tp"), (MeshAxes{0, 2}));
  EXPECT_EQ(mesh.FindAxes("fsdp*tp"), mesh.FindAxes("ep"));
  EXPECT_EQ(mesh.FindAxes("tp*replica"), (MeshAxes{0, 2}));
  for (const char* none : {"", "pp", "dp*dp", "fsdp*dp", "dp*", "*dp", "dp tp"})
    EXPECT_TRUE(mesh.FindAxes(none).empty()) << none;
  EXPECT_EQ(mesh.FindAxis("fsdp"), -1);
  EXPECT_EQ(mesh.SizeAlong(mesh.FindAxes("fsdp")), 32);
  EXPECT_EQ(mesh.NameOf(mesh.FindAxes("ep")), "replica*dp*tp");
  EXPECT_EQ(Mesh(mesh.kind(), {{"replica", 4}, {"dp", 8}, {"tp", 2}}, {}, mesh.groups()), mesh);
  EXPECT_EQ(
      ErrorOf([&] { mesh.AxisOrFail("fsdp", "--elastic"); }),
      "--elastic: fsdp of mesh " + mesh.str() + " stands for several axes, replica*dp, where one is needed");
  EXPECT_EQ(ErrorOf([&] { mesh.AxesOrFail("dp*dp", "x"); }), "x: dp*dp: axis dp is there twice");
}

TEST(MeshTest, WrongGroupsAreNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {"g=tp*dp", "g=tp*dp: axes are in the order of the mesh, where dp comes before tp"},
      {"g=dp*dp", "g=dp*dp: axis dp is there twice"},
      {"a=dp,g=a*dp", "g=a*dp: axis dp is there twice"},
      {"g=g", "g=g: there is no axis g"},
      {"g=h,h=dp", "g=h: there is no axis h"},
      {"g=cp", "g=cp: there is no axis cp"},
      {"g=", "g=: there is no axis \"\""},
      {"g=dp*", "g=dp*: there is no axis \"\""},
      {"dp=tp", "dp=tp: dp is an axis, a group needs a name of its own"},
      {"g=dp,g=tp", "g=tp: g is named twice"},
      {"time=dp", "time=dp: \"time\" cannot be the name of axes"},
      {"g=time*dp", "g=time*dp: there is no axis time"},
      {"2g=dp", "2g=dp: \"2g\" cannot be the name of axes"},
      {"=dp", "=dp: \"\" cannot be the name of axes"},
      {"g=tp*pp", "g=tp*pp: pp is the axis of pipeline stages, which cut no tensor; leave it out"}};
  for (const auto& [group, why] : wrong)
    EXPECT_EQ(ErrorOf([&] { Mesh::Parse(Cat("cpu:dp=2,tp=2,pp=2;", group)); }),
              Cat("mesh cpu:dp=2,tp=2,pp=2: group ", why));
  for (const char* text : {"cpu:dp=2;", "cpu:dp=2;g", "cpu:dp=2;g=dp,", "cpu:dp=2;;g=dp"})
    EXPECT_EQ(ErrorOf([&] { Mesh::Parse(text); }).find("mesh cpu:dp=2"), 0u) << text;
}

TEST(MeshTest, ErrorsSayWhatIsWrong) {
  auto parse = [](const std::string& text) { return ErrorOf([&] { Mesh::Parse(text); }); };
  EXPECT_EQ(parse("cpu:dp=0"), "mesh cpu:dp=0: axis dp has extent 0, must be at least 1");
  EXPECT_EQ(parse("cpu:dp=-2"), "mesh cpu:dp=-2: axis dp has extent -2, must be at least 1");
  EXPECT_EQ(parse("cpu:dp=2,dp=2"), "mesh cpu:dp=2,dp=2: axis dp is named twice");
  EXPECT_EQ(parse("tpu:dp=2"), "mesh tpu:dp=2: device kind \"tpu\" does not exist, it must be cpu or cuda");
  EXPECT_EQ(parse("cpu:time=2"),
            "mesh cpu:time=2: an axis cannot be named time, which is the axis of micro-batches");
  for (const char* text :
       {"", ":", "cpu:", "cpu:dp", "cpu:dp=", "cpu:dp=x", "cpu:dp=2,", "cpu:=2", "cpu:dp=2 ", "cpu:2dp=2",
        "cpu:dp=99999999999", "cpu:dp=65536,tp=65536", "cpu dp=2", "cpu:d p=2"}) {
    EXPECT_EQ(parse(text).find(Cat("mesh ", text)), 0u) << text << " gives " << parse(text);
  }
  EXPECT_EQ(ErrorOf([] {
              Mesh("cpu", {{"dp", 2}}, {0});
            }),
            "mesh cpu:dp=2: 1 devices are listed, but its axes hold 2");
  EXPECT_EQ(ErrorOf([] { Mesh("cpu", {{"dp", 2}}, {4, 4}); }), "mesh cpu:dp=2: device 4 is listed twice");
  EXPECT_EQ(ErrorOf([] { Mesh::Parse("cpu:dp=2,tp=2").AxisOrFail("pp", "weight w"); }),
            "weight w: mesh cpu:dp=2,tp=2 has no axis pp, its axes are dp, tp");
  EXPECT_EQ(ErrorOf([] { Mesh().AxisOrFail("pp", "weight w"); }),
            "weight w: mesh cpu has no axis pp, it has no axes");
}

TEST(SliceTest, ContainsAndPrints) {
  Mesh mesh = Mesh::Parse("cpu:pp=2,dp=2");
  Slice stage{{1, Slice::kFree}};
  EXPECT_TRUE(stage.Contains({1, 0}));
  EXPECT_FALSE(stage.Contains({0, 0}));
  EXPECT_EQ(stage.str(mesh), "pp=1");
  EXPECT_EQ(WholeMesh(mesh).str(mesh), "");
  EXPECT_TRUE(WholeMesh(mesh).Contains({1, 1}));
  EXPECT_EQ((Layout{stage, {S(0), B(), P()}}.str(mesh, 4)), "{time:S0,dp:P}@pp=1");
  EXPECT_EQ((Layout{WholeMesh(mesh), {B(), B(), S(0, 4)}}.str(mesh, 1)), "{pp:B,dp:S0/4}");
}

}  // namespace
}  // namespace oneflow_like
