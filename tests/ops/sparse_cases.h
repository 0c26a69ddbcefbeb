// Larger and odd cases of the operators of ops/language/sparse.h for the fast kernels of every kind of
// device: lines longer than a tile, ties, NaNs, rows that very many indices name, pieces that begin inside
// the whole, and data that make no sense.
#pragma once

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/ops/kernel_cases.h"

namespace oneflow_like {

class SparseCases {
 public:
  explicit SparseCases(KernelCases* cases) : cases_(*cases) {}

  void Order() {
    uint64_t seed = 8000;
    auto sort = [](int64_t axis, int64_t k, int64_t descending) {
      return Attrs{{"axis", axis}, {"k", k}, {"descending", descending}};
    };
    using enum DType;
    for (int64_t descending : {0, 1}) {
      for (int64_t k : {0, 1, 10, 16, 17, 700, 2500}) {
        cases_.CheckCase({"argsort", {{2, 2500}}, sort(1, k, descending)}, ++seed);
        for (DType type : {kInt32, kInt64, kFloat16, kBFloat16})  // many ties
          cases_.CheckCase({"argsort", {{1, 2500}}, sort(1, k, descending), {type}, 30, -1, 1}, ++seed);
      }
      cases_.CheckCase({"argsort", {{2, 513, 3}}, sort(1, 513, descending)}, ++seed);
      cases_.CheckCase({"argsort", {{1100, 4}}, sort(0, 9, descending)}, ++seed);
      cases_.CheckCase({"argsort", {{40, 1}}, sort(1, 1, descending)}, ++seed);
      cases_.CheckCase({"argsort", {{130, 8}}, sort(1, 8, descending)}, ++seed);
      cases_.CheckCase({"argsort", {{700, 5}}, sort(0, 9, descending)}, ++seed);
    }
    std::mt19937_64 random(8500);
    Operand odd(kFloat32, {700});
    odd.Draw(&random, -2, 2, 4);
    const float values[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 3e38f};
    for (int64_t i = 0; i < 700; i += 5) odd.Arg().as<float>()[i] = values[i / 5 % 7];
    for (int64_t k : {1, 7, 16, 20, 150, 700}) {
      for (int64_t descending : {0, 1})
        cases_.Check(Cat("argsort of NaNs and zeros, k ", k, ", seed 8500"), "argsort",
                     sort(0, k, descending), {odd}, {Operand(kInt64, {k})});
    }
  }

  void SumsAndFlips() {
    uint64_t seed = 8600;
    using enum DType;
    for (int64_t reverse : {0, 1}) {
      for (int64_t exclusive : {0, 1}) {
        auto attrs = [=](int64_t axis) {
          return Attrs{{"axis", axis}, {"reverse", reverse}, {"exclusive", exclusive}};
        };
        cases_.CheckCase({"cumsum", {{3, 3001}}, attrs(1)}, ++seed);
        cases_.CheckCase({"cumsum", {{301, 70}}, attrs(0)}, ++seed);
        cases_.CheckCase({"cumsum", {{2, 90, 1100}}, attrs(1)}, ++seed);
        cases_.CheckCase({"cumsum", {{5, 260, 3}}, attrs(1), {kInt64}, 1000}, ++seed);
        cases_.CheckCase({"cumsum", {{2, 700}}, attrs(1), {kInt32}, 1000}, ++seed);
        cases_.CheckCase({"cumsum", {{2, 70}}, attrs(1), {kFloat16}}, ++seed);
      }
    }
    for (DType type : {kFloat32, kInt64, kBFloat16, kBool}) {
      for (int64_t axis : {0, 1, 2})
        cases_.CheckCase({"flip", {{7, 33, 5}}, {{"axis", axis}}, {type}, 2}, ++seed);
    }
  }

  void ByIndex() {
    uint64_t seed = 8700;
    using enum DType;
    for (DType type : {kFloat32, kBFloat16, kInt32, kInt64}) {
      for (int64_t limit : {33, 36}) {  // 36: some index is outside, and both kernels say so
        cases_.CheckCase({"take", {{7, 33, 8}, {5, 9}}, {{"axis", int64_t{1}}}, {type, kInt64}, limit},
                         ++seed);
        cases_.CheckCase({"take", {{7, 33}, {50}}, {{"axis", int64_t{1}}}, {type, kInt32}, limit}, ++seed);
        Attrs along = {{"axis", int64_t{1}}}, batched = {{"axis", int64_t{1}}, {"batched", int64_t{1}}};
        cases_.CheckCase({"take", {{7, 33, 8}, {7, 40}}, batched, {type, kInt64}, limit}, ++seed);
        cases_.CheckCase({"take", {{7, 33}, {7, 50}}, batched, {type, kInt32}, limit}, ++seed);
        cases_.CheckCase({"take_along_axis", {{7, 33, 8}, {7, 40, 8}}, along, {type, kInt32}, limit}, ++seed);
      }
    }
    for (DType type : {kFloat32, kBFloat16, kFloat16, kInt32, kInt64}) {
      for (int64_t limit : {3, 90, 99}) {
        auto at = [&](int64_t axis) {
          Attrs attrs = {{"axis", axis}, {"extent", int64_t{90}}};
          if (SizeOf(type) == 2) attrs.Set("dtype", "f32");
          return attrs;
        };
        const DType to = SizeOf(type) == 2 ? kFloat32 : type;  // of the sums, and of what they begin at
        cases_.CheckCase({"index_sum", {{700}, {700, 40}}, at(0), {kInt64, type}, limit}, ++seed);
        cases_.CheckCase({"index_sum", {{700}, {700, 40}, {90, 40}}, at(0), {kInt64, type, to}, limit},
                         ++seed);
        cases_.CheckCase({"index_sum", {{300}, {3, 300, 5}, {3, 90, 5}}, at(1), {kInt32, type, to}, limit},
                         ++seed);
        cases_.CheckCase({"scatter_sum", {{3000}, {3000}, {90}}, at(0), {kInt64, type, to}, limit}, ++seed);
        cases_.CheckCase({"scatter_sum", {{200, 40}, {200, 40}, {90, 40}}, at(0), {kInt32, type, to}, limit},
                         ++seed);
        cases_.CheckCase({"index_sum", {{300}, {3, 300, 5}}, at(1), {kInt32, type}, limit}, ++seed);
        Attrs batched = at(1);
        batched.Set("batched", int64_t{1});
        cases_.CheckCase({"index_sum", {{3, 300}, {3, 300, 5}}, batched, {kInt32, type}, limit}, ++seed);
        cases_.CheckCase({"index_sum", {{5, 300}, {5, 300}, {5, 90}}, batched, {kInt64, type, to}, limit},
                         ++seed);
        cases_.CheckCase({"index_sum", {{2, 300}, {3, 2, 300}}, at(1), {kInt32, type}, limit}, ++seed);
        cases_.CheckCase({"scatter_sum", {{3000}, {3000}}, at(0), {kInt64, type}, limit}, ++seed);
        cases_.CheckCase({"scatter_sum", {{3, 300, 5}, {3, 300, 5}}, at(1), {kInt32, type}, limit}, ++seed);
        cases_.CheckCase({"scatter_sum", {{200, 40}, {200, 40}}, at(0), {kInt32, type}, limit}, ++seed);
      }
    }
    std::mt19937_64 random(8790);  // a range of the axis that is indexed
    Operand x(kFloat32, {4, 60, 7}, {1, 20, 2}, {2, 15, 4}), ids(kInt32, {50}),
        y(kFloat32, {4, 50, 7}, {1, 0, 2}, {2, 50, 4});
    for (Operand* o : {&x, &ids, &y}) o->Draw(&random, -1, 1, 60);
    cases_.Check("take from rows 20 to 35, seed 8790", "take", {{"axis", int64_t{1}}}, {x, ids}, {y});
    cases_.Check("index_sum to rows 20 to 35, seed 8790", "index_sum",
                 {{"axis", int64_t{1}}, {"extent", int64_t{60}}}, {ids, y}, {x});
    cases_.Check("index_sum to rows 20 to 35 of x, seed 8790", "index_sum",
                 {{"axis", int64_t{1}}, {"extent", int64_t{60}}}, {ids, y, x}, {x});
  }

  void MaximaByIndex() {
    uint64_t seed = 9500;
    using enum DType;
    const Attrs at[] = {{{"axis", int64_t{0}}}, {{"axis", int64_t{1}}}};
    for (DType type : {kFloat32, kBFloat16, kFloat16, kInt32, kInt64}) {
      for (int64_t limit : {3, 90, 99}) {  // 99: some index is outside
        cases_.CheckCase({"index_max", {{700}, {700, 40}, {90, 40}}, at[0], {kInt64, type, type}, limit},
                         ++seed);
        cases_.CheckCase({"index_max", {{300}, {3, 300, 5}, {3, 90, 5}}, at[1], {kInt32, type, type}, limit},
                         ++seed);
        cases_.CheckCase({"index_max", {{2, 300}, {3, 2, 300}, {3, 90}}, at[1], {kInt32, type, type}, limit},
                         ++seed);
        cases_.CheckCase({"scatter_max", {{3000}, {3000}, {90}}, at[0], {kInt64, type, type}, limit}, ++seed);
        cases_.CheckCase(
            {"scatter_max", {{200, 40}, {200, 40}, {90, 40}}, at[0], {kInt32, type, type}, limit}, ++seed);
        cases_.CheckCase(
            {"scatter_max", {{3, 300, 5}, {3, 300, 5}, {3, 90, 5}}, at[1], {kInt32, type, type}, limit},
            ++seed);
      }
      std::mt19937_64 random(++seed);  // a range of the axis that is indexed
      Operand x(type, {4, 60, 7}, {1, 20, 2}, {2, 15, 4}), ids(kInt32, {50}),
          src(type, {4, 50, 7}, {1, 0, 2}, {2, 50, 4});
      for (Operand* o : {&x, &ids, &src}) o->Draw(&random, -1, 1, 60);
      cases_.Check(Cat("index_max in rows 20 to 35, seed ", seed), "index_max", at[1], {ids, src, x}, {x});
      if (!IsFloating(type)) continue;
      const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -1.0f, 2.0f};
      for (int64_t i = 0; i < src.arg.elements(); i += 3) StoreFloat(src.Arg(), i, odd[i / 3 % 7]);
      for (int64_t i = 0; i < x.arg.elements(); i += 4) StoreFloat(x.Arg(), i, odd[i / 4 % 7]);
      cases_.Check(Cat("index_max of NaNs and infinities, seed ", seed), "index_max", at[1], {ids, src, x},
                   {x});
    }
  }

  // More states than a block has threads, classes that occur often, too few places, and data that make no
  // sense.
  void Spellings() {
    using enum DType;
    uint64_t seed = 9700;
    const Attrs blank = {{"blank", int64_t{2}}};
    struct Lengths {
      std::vector<int64_t> places, targets;
      int64_t wrong = -1;  // a target in place of one of the second sample
    };
    const std::vector<Lengths> all = {
        {{40, 31, 0, 17, 40}, {20, 9, 0, 0, 5}},  {{40, 2, 5, 40, 33}, {2, 3, 0, 40, 70}},
        {{40, 41, 3, 4, 5}, {1, 1, 1, 1, 1}},     {{40, 31, 3, 4, 5}, {1, -1, 1, 1, 1}},
        {{40, 31, 3, 4, 5}, {1, 71, 1, 1, 1}},    {{40, 31, 3, 4, 5}, {1, 9, 1, 1, 1}, 2},
        {{40, 31, 3, 4, 5}, {1, 9, 1, 1, 1}, 11}, {{40, 31, 3, 4, 5}, {1, 4, 1, 1, 1}, 11}};
    for (const Lengths& lengths : all) {
      for (DType type : {kFloat32, kBFloat16}) {
        std::mt19937_64 random(++seed);
        Operand log_probs(type, {5, 40, 11}), targets(kInt64, {5, 70}), places(kInt32, {5}),
            counts(kInt64, {5}), dloss(kFloat32, {5}), loss(kFloat32, {5});
        for (Operand* o : {&log_probs, &targets, &dloss}) o->Draw(&random, -2, 0, 8);
        for (int64_t i = 0; i < 350; ++i)  // 3 to 10, each several times; the second sample has the wrong one
          targets.Arg().as<int64_t>()[i] =
              i == 75 && lengths.wrong >= 0 ? lengths.wrong : LoadInt(targets.Arg(), i) + 3;
        for (int64_t i = 0; i < 5; ++i) {
          places.Arg().as<int32_t>()[i] = static_cast<int32_t>(lengths.places[i]);
          counts.Arg().as<int64_t>()[i] = lengths.targets[i];
        }
        const std::string what = Cat(" in ", Name(type), ", seed ", seed);
        cases_.Check("ctc_loss" + what, "ctc_loss", blank, {log_probs, targets, places, counts}, {loss});
        cases_.Check("ctc_loss_grad" + what, "ctc_loss_grad", blank,
                     {log_probs, targets, places, counts, dloss}, {log_probs});
      }
    }
  }

  void Bags() {
    uint64_t seed = 8800;
    using enum DType;
    for (const char* mode : {"sum", "mean", "max"}) {
      const Attrs attrs = {{"mode", mode}};
      for (int64_t width : {1, 37, 128, 300}) {
        for (int64_t limit : {int64_t{9}, width == 37 ? int64_t{12} : int64_t{9}}) {  // 12: too long
          cases_.CheckCase(
              {"embedding_bag", {{30, width}, {33, 9}, {33}}, attrs, {kFloat32, kInt32, kInt64}, limit},
              ++seed);
        }
      }
      cases_.CheckCase({"embedding_bag", {{30, 40}, {33, 9}, {33}}, attrs, {kBFloat16, kInt64, kInt32}, 9},
                       ++seed);
      cases_.CheckCase({"embedding_bag", {{4, 40}, {33, 9}, {33}}, attrs, {kFloat32, kInt64, kInt32}, 9},
                       ++seed);
    }
    const Attrs sum = {{"mode", "sum"}, {"rows", int64_t{9}}},
                mean = {{"mode", "mean"}, {"rows", int64_t{9}}};
    for (int64_t width : {1, 36, 300}) {
      Dims ids{33, 9}, lengths{33}, dy{33, width};
      for (const Attrs& attrs : {sum, mean})
        cases_.CheckCase({"embedding_bag_grad", {ids, lengths, dy}, attrs, {kInt32, kInt32, kFloat32}, 9},
                         ++seed);
      cases_.CheckCase(
          {"embedding_bag_grad", {ids, lengths, dy, ids}, sum, {kInt64, kInt32, kFloat32, kFloat32}, 9},
          ++seed);
      cases_.CheckCase({"embedding_bag_weights_grad",
                        {{9, width}, ids, lengths, dy},
                        {},
                        {kFloat32, kInt32, kInt64, kFloat32},
                        9},
                       ++seed);
    }
    PiecesOfBags();
    GreatestOfBags();
  }

  void TouchedRows() {
    using enum DType;
    uint64_t seed = 8900;
    for (DType type : {kInt32, kInt64}) {
      for (int64_t limit : {1, 200, 100000}) {
        for (DType grad : {kFloat32, kBFloat16})
          cases_.CheckCase({"unique_rows", {{2100}, {2100, 9}}, {}, {type, grad}, limit}, ++seed);
        cases_.CheckCase({"unique_rows", {{700}, {700, 1}}, {}, {type, kFloat32}, limit}, ++seed);
      }
      std::mt19937_64 random(++seed);
      Operand ids(type, {900}), grad(kFloat32, {900, 5});
      for (Operand* o : {&ids, &grad}) o->Draw(&random, -1, 1, 300);
      for (int64_t i = 0; i < 900; i += 3) StoreFloat(ids.Arg(), i, -static_cast<double>(i));
      StoreFloat(ids.Arg(), 0, -1);
      cases_.Check(Cat("unique_rows with ids of no row, seed ", seed), "unique_rows", {}, {ids, grad},
                   {Operand(type, {900}), Operand(kFloat32, {900, 5})});
    }
    Updates();
  }

  // way: of grouped products in 16 bits ("gemm_choice"); -1: the usual one.
  void Experts(int64_t way = -1) {
    way_ = way;
    using enum DType;
    uint64_t seed = 9100;
    const std::vector<std::vector<int64_t>> all = {{40, 0, 33, 7, 20}, {0, 0, 130, 0, 0}, {0, 0, 0, 0, 0},
                                                   {100, 1, 1, 1, 27}, {40, -3, 0, 0, 0}, {60, 60, 11, 0, 0}};
    for (const std::vector<int64_t>& numbers : all) {
      for (DType type : {kFloat32, kBFloat16}) {
        std::mt19937_64 random(++seed);
        Operand x(type, {130, 70}), w(type, {5, 70, 45}), v(type, {5, 45, 70}), y(type, {130, 45}),
            counts(kInt64, {5});
        for (Operand* o : {&x, &w, &v, &y}) o->Draw(&random, -1, 1, 4);
        for (int64_t e = 0; e < 5; ++e) counts.Arg().as<int64_t>()[e] = numbers[e];
        const std::string what = Cat(" of ", Name(type), ", seed ", seed);
        cases_.Check("grouped_matmul" + what, "grouped_matmul", Grouped({}), {x, w, counts}, {y});
        cases_.Check("grouped_matmul transposed" + what, "grouped_matmul",
                     Grouped({{"transposed", int64_t{1}}}), {x, v, counts}, {y});
        const Attrs experts = {{"experts", int64_t{5}}};
        cases_.Check("gradient of grouped_matmul" + what, "grouped_matmul_grad_weight", Grouped(experts),
                     {x, y, counts}, {w});
        // Experts 1 to 4 of rows 30 to 100.
        Operand px(type, {130, 70}, {30, 0}, {70, 70}), pw(type, {5, 70, 45}, {1, 0, 0}, {3, 70, 45}),
            py(type, {130, 45}, {30, 0}, {70, 45});
        for (Operand* o : {&px, &pw, &py}) o->Draw(&random, -1, 1, 4);
        cases_.Check("grouped_matmul of pieces" + what, "grouped_matmul", Grouped({}), {px, pw, counts},
                     {py});
        cases_.Check("gradient of grouped_matmul of pieces" + what, "grouped_matmul_grad_weight",
                     Grouped(experts), {px, py, counts}, {pw});
      }
    }
    for (DType type : {kFloat32, kBFloat16, kFloat16})
      for (bool packed : {false, true}) ExpertsOfRanks(type, packed ? 48 : 50, packed ? 40 : 35, ++seed);
    for (int trial = 0; trial < 24; ++trial) DrawnExperts(++seed);
  }

  // Pools of more choices than a warp has lanes, experts that are full, that none chooses, that all choose;
  // weights that are equal, and none; then the rows, whole and in pieces along each axis that may be cut.
  void Routes() {
    using enum DType;
    uint64_t seed = 9300;
    for (int64_t room : {1, 7, 90})
      for (int64_t chosen : {1, 3, 5})  // of 5 experts
        for (DType type : {kInt32, kInt64})
          for (DType of_weights : {kFloat32, kBFloat16, kBool}) {  // bool: none
            const bool error = room == 90 && chosen > 1;
            const Attrs attrs = {{"experts", int64_t{5}}, {"room", room}, {"error", int64_t{error}}};
            Case c{"route", {{3, 45, 2}}, attrs, {type}, chosen, 0, 1};
            if (of_weights != kBool) {
              c.in.push_back(c.in[0]);
              c.dtypes.push_back(of_weights);
            }
            cases_.CheckCase(c, ++seed);
          }
    const Attrs full = {{"experts", int64_t{5}}, {"room", int64_t{7}}, {"error", int64_t{1}}};
    cases_.CheckCase({"route", {{3, 45, 2}}, full, {kInt32}, 5}, ++seed);
    cases_.CheckCase({"route", {{3, 45, 2}}, {{"experts", 5}, {"room", 7}, {"error", 0}}, {kInt64}, 6},
                     ++seed);  // some expert does not exist
    OddWeights();
    RankRoutes();
    for (DType type : {kFloat32, kBFloat16, kFloat16})
      for (int64_t width : {1, 37, 600}) RoutedRows(type, width, ++seed);
  }

 private:
  Attrs Grouped(Attrs attrs) const {
    if (way_ >= 0) attrs.Set("gemm_choice", way_);
    return attrs;
  }

  // Counts that leave rows over, give all to one expert, or one to each; rows of nobody are NaN. Extents are
  // odd, or whole packs, and reach beyond one tile and beyond what a tile loads ahead; parts share matrices.
  void DrawnExperts(uint64_t seed) {
    using enum DType;
    std::mt19937_64 random(seed);
    const auto draw = [&](const auto&... of) {
      const auto all = {of...};
      return all.begin()[random() % all.size()];
    };
    const DType type = draw(kFloat32, kBFloat16, kFloat16), result = draw(type, kFloat32);
    const bool odd = draw(false, false, true);
    const int parts = draw(1, 1, 5, 34), way = draw(0, 1, 2);
    const bool one = parts == 1;  // the reference of many takes its time
    const int experts = one ? draw(1, 3, 8, 45) : draw(2, 7),
              rows = one          ? draw(1, 40, 129, 290)
                     : parts == 5 ? draw(3, 70)
                                  : draw(0, 1, 9),
              k = odd ? draw(1, 31, one ? 201 : 31) : draw(8, 136, one ? 200 : 8),
              m = odd ? draw(1, 33, one ? 145 : 33) : draw(8, 48, one ? 264 : 136);
    const auto of_parts = [&](Dims dims) {
      return parts == 1         ? dims
             : dims.rank() == 1 ? Dims{1, parts, dims[0]}
                                : Dims{1, parts, dims[0], dims[1]};
    };
    const auto of_experts = [&](int down, int across) {
      return parts == 1 ? Dims{experts, down, across} : Dims{1, experts, down, across};
    };
    Operand counts(kInt64, of_parts({experts})), x(type, of_parts({rows, k})), y(result, of_parts({rows, m})),
        dy(type, of_parts({rows, m})), w(type, of_experts(k, m)), v(type, of_experts(m, k)),
        dw(result, of_experts(k, m));
    for (Operand* o : {&x, &w, &v, &dy}) o->Draw(&random, -1, 1, 4);
    for (int part = 0; part < parts; ++part) {
      int left = rows;
      const int all = static_cast<int>(random() % experts);
      for (int e = 0; e < experts; ++e) {
        const int wanted = way == 0   ? static_cast<int>(random() % (1 + 2 * rows / experts))
                           : way == 1 ? (e == all ? rows : 0)
                                      : 1;
        const int given = std::min(left, wanted);
        counts.Arg().as<int64_t>()[part * experts + e] = given;
        left -= given;
      }
      for (Operand* o : {&x, &dy}) {
        const int64_t width = o == &x ? k : m, behind = (part + 1) * rows * width;
        for (int64_t i = behind - left * width; i < behind; ++i) StoreFloat(o->Arg(), i, NAN);
      }
    }
    const std::string what =
        Cat(" of ", Name(type), " to ", Name(result), ", ", parts, " x ", rows, " rows, ", experts,
            " experts, ", k, " x ", m, ", way ", way, ", seed ", seed);
    cases_.Check("grouped_matmul" + what, "grouped_matmul", Grouped({}), {x, w, counts}, {y});
    cases_.Check("grouped_matmul transposed" + what, "grouped_matmul", Grouped({{"transposed", int64_t{1}}}),
                 {x, v, counts}, {y});
    cases_.Check("gradient of grouped_matmul" + what, "grouped_matmul_grad_weight",
                 Grouped({{"experts", int64_t{experts}}}), {x, dy, counts}, {dw});
  }

  // Two ranks of three experts each, with three parts; of the second rank some parts have no rows.
  void ExpertsOfRanks(DType type, int64_t k, int64_t m, uint64_t seed) {
    using enum DType;
    std::mt19937_64 random(seed);
    Operand x(type, {2, 3, 40, k}), w(type, {2, 3, k, m}), v(type, {2, 3, m, k}), y(type, {2, 3, 40, m}),
        counts(kInt32, {2, 3, 3}), dw(kFloat32, {2, 3, k, m});
    for (Operand* o : {&x, &w, &v, &y}) o->Draw(&random, -1, 1, 4);
    const int32_t numbers[] = {20, 0, 20, 3, 30, 1, 0, 0, 40, 0, 0, 0, 17, 0, 9, 0, 40, 0};
    std::copy(std::begin(numbers), std::end(numbers), counts.Arg().as<int32_t>());
    const std::string what = Cat(" of ranks, ", Name(type), ", ", k, " x ", m, ", seed ", seed);
    cases_.Check("grouped_matmul" + what, "grouped_matmul", Grouped({}), {x, w, counts}, {y});
    cases_.Check("grouped_matmul transposed" + what, "grouped_matmul", Grouped({{"transposed", int64_t{1}}}),
                 {x, v, counts}, {y});
    cases_.Check("gradient of grouped_matmul" + what, "grouped_matmul_grad_weight",
                 Grouped({{"experts", int64_t{3}}}), {x, y, counts}, {dw});
    // The second rank and part alone.
    Operand px(type, {2, 3, 40, k}, {1, 1, 0, 0}, {1, 1, 40, k}),
        py(type, {2, 3, 40, m}, {1, 1, 0, 0}, {1, 1, 40, m}),
        pw(type, {2, 3, k, m}, {1, 0, 0, 0}, {1, 3, k, m}), pc(kInt32, {2, 3, 3}, {1, 1, 0}, {1, 1, 3}),
        pdw(kFloat32, {2, 3, k, m}, {1, 0, 0, 0}, {1, 3, k, m});
    for (Operand* o : {&px, &py, &pw}) o->Draw(&random, -1, 1, 4);
    std::copy(numbers + 12, numbers + 15, pc.Arg().as<int32_t>());
    cases_.Check("grouped_matmul of pieces" + what, "grouped_matmul", Grouped({}), {px, pw, pc}, {py});
    cases_.Check("gradient of grouped_matmul of pieces" + what, "grouped_matmul_grad_weight",
                 Grouped({{"experts", int64_t{3}}}), {px, py, pc}, {pdw});
  }

  // Ranks that are full, that none chooses, that all choose; then their rows by expert, there and back.
  void RankRoutes() {
    using enum DType;
    uint64_t seed = 9600;
    for (int64_t room : {1, 9, 30, 200})
      for (int64_t chosen : {1, 4, 6})  // of 6 experts
        for (int64_t ranks : {1, 2, 3})
          for (DType of_weights : {kFloat32, kBFloat16, kBool}) {  // bool: none
            const Attrs attrs = {
                {"experts", int64_t{6}}, {"ranks", ranks}, {"room", room}, {"error", int64_t{room == 200}}};
            Case c{"route_ranks", {{3, 45, 2}}, attrs, {ranks == 2 ? kInt64 : kInt32}, chosen, 0, 1};
            if (of_weights != kBool) {
              c.in.push_back(c.in[0]);
              c.dtypes.push_back(of_weights);
            }
            cases_.CheckCase(c, ++seed);
          }
    const Attrs full = {{"experts", int64_t{6}}, {"ranks", int64_t{3}}, {"room", int64_t{9}}, {"error", 1}};
    cases_.CheckCase({"route_ranks", {{3, 45, 2}}, full, {kInt32}, 6}, ++seed);
    for (int64_t room : {1, 20, 100})
      cases_.CheckCase(
          {"sort_choices", {{3, 2, 41, 2}}, {{"experts", int64_t{6}}, {"room", room}}, {kFloat32}, 4, 0, 7.9},
          ++seed);
    std::mt19937_64 random(++seed);
    Operand kept(kFloat32, {2, 3, 37, 2}), slots(kInt32, {2, 3, 50}), places(kInt32, {2, 3, 37, 2}),
        counts(kInt32, {2, 3, 2});
    kept.Draw(&random, 0, 4.9, 4);
    {
      KernelSpec spec;
      spec.name = "sort_choices";
      spec.attrs = {{"experts", int64_t{4}}, {"room", int64_t{50}}};
      spec.in = {kept.Arg()};
      spec.out = {slots.Arg(), places.Arg(), counts.Arg()};
      ASSERT_TRUE(ReferenceInner().make(spec)->Run({spec, spec.in, spec.out}).ok());
    }
    for (DType type : {kFloat32, kBFloat16}) {
      Operand x(type, {2, 3, 37, 70}), y(type, {2, 3, 50, 70}), weights(kFloat32, {2, 3, 37, 2});
      for (Operand* o : {&x, &y, &weights}) o->Draw(&random, -1, 1, 4);
      const std::string what = Cat(" at ranks, ", Name(type), ", seed ", seed);
      cases_.Check("take_rows" + what, "take_rows", {}, {x, slots, places}, {y});
      cases_.Check("return_rows with weights" + what, "return_rows", {}, {y, slots, places, weights}, {x});
      Operand dots(kFloat32, {2, 3, 37, 2});
      cases_.Check("dot_rows" + what, "dot_rows", {}, {x, y, slots, places}, {dots});
    }
  }

  // NaNs, infinities and zeros of both signs.
  void OddWeights() {
    using enum DType;
    std::mt19937_64 random(9380);
    Operand chosen(kInt32, {2, 45, 2}), weights(kFloat32, {2, 45, 2});
    for (Operand* o : {&chosen, &weights}) o->Draw(&random, 0, 1, 3);
    const float values[] = {NAN, -INFINITY, INFINITY, 0.0f, -0.0f, 1e-40f, -1};
    for (int64_t i = 0; i < 180; ++i)
      if (i % 3 > 0) weights.Arg().as<float>()[i] = values[i % 7];
    for (int64_t room : {3, 20, 29})
      cases_.Check(Cat("route by odd weights, room ", room, ", seed 9380"), "route",
                   {{"experts", int64_t{3}}, {"room", room}, {"error", int64_t{0}}}, {chosen, weights},
                   {Operand(kInt32, {2, 3, room}), Operand(kInt32, {2, 45, 2}), Operand(kInt32, {2, 3})});
  }

  // 3 pools of 45 tokens, of which each chooses 2 of 5 experts with room for 20.
  void RoutedRows(DType type, int64_t width, uint64_t seed) {
    using enum DType;
    std::mt19937_64 random(seed);
    Operands tables = {Operand(kInt32, {3, 5, 20}), Operand(kInt32, {3, 45, 2}), Operand(kInt32, {3, 5})};
    {
      Operand chosen(kInt32, {3, 45, 2});
      chosen.Draw(&random, 0, 1, 5);
      KernelSpec spec;
      spec.name = "route";
      spec.attrs = {{"experts", int64_t{5}}, {"room", int64_t{20}}, {"error", int64_t{0}}};
      spec.in = {chosen.Arg()};
      for (Operand& table : tables) spec.out.push_back(table.Arg());
      ASSERT_TRUE(ReferenceInner().make(spec)->Run({spec, spec.in, spec.out}).ok());
    }
    Operand &slots = tables[0], &places = tables[1];
    Operand x(type, {3, 45, width}), y(type, {5, 3, 20, width}), weights(kFloat32, {3, 45, 2});
    for (Operand* o : {&x, &y, &weights}) o->Draw(&random, -1, 1, 4);
    const std::string what = Cat(" of ", Name(type), ", width ", width, ", seed ", seed);
    cases_.Check("take_rows" + what, "take_rows", {}, {x, slots, places}, {y});
    cases_.Check("take_rows with weights" + what, "take_rows", {}, {x, slots, places, weights}, {y});
    cases_.Check("return_rows" + what, "return_rows", {}, {y, slots, places}, {x});
    cases_.Check("return_rows with weights" + what, "return_rows", {}, {y, slots, places, weights}, {x});
    Operand dots(kFloat32, {3, 45, 2});
    cases_.Check("dot_rows" + what, "dot_rows", {}, {x, y, slots, places}, {dots});
    // Pool 1; tokens 10 to 40; experts 1 to 4; slots 5 to 17.
    auto piece = [](const Operand& of, const Dims& begin, const Dims& extent) {
      Operand part(of.arg.dtype, of.arg.global, begin, extent);
      ForEachIndex(extent, [&](const Dims& index) {
        Dims at = index;
        for (int a = 0; a < at.rank(); ++a) at[a] += begin[a];
        const auto size = static_cast<int64_t>(SizeOf(of.arg.dtype));
        std::memcpy(part.memory.data() + OffsetOf(extent, index) * size,
                    of.memory.data() + OffsetOf(of.arg.global, at) * size, size);
      });
      return part;
    };
    const Operand px = piece(x, {1, 10, 0}, {1, 30, width}), pp = piece(places, {1, 10, 0}, {1, 30, 2}),
                  pw = piece(weights, {1, 10, 0}, {1, 30, 2}), ps = piece(slots, {1, 1, 5}, {1, 3, 12}),
                  py = piece(y, {1, 1, 5, 0}, {3, 1, 12, width});
    cases_.Check("take_rows of pieces" + what, "take_rows", {}, {px, ps, pp, pw}, {py});
    cases_.Check("return_rows of pieces" + what, "return_rows", {}, {py, ps, pp, pw}, {px});
    cases_.Check("dot_rows of pieces" + what, "dot_rows", {}, {px, py, ps, pp},
                 {Operand(kFloat32, {3, 45, 2}, {1, 10, 0}, {1, 30, 2})});
  }

  // A range of rows and columns of the table, of bags and of their ids.
  void PiecesOfBags() {
    using enum DType;
    std::mt19937_64 random(8850);
    Operand table(kFloat32, {12, 50}, {3, 16}, {6, 20}), ids(kInt32, {20, 12}, {4, 3}, {11, 6}),
        lengths(kInt32, {20}, {4}, {11}), weights(kFloat32, {20, 12}, {4, 3}, {11, 6}),
        y(kFloat32, {20, 50}, {4, 16}, {11, 20});
    for (Operand* o : {&table, &ids, &lengths, &weights, &y}) o->Draw(&random, -1, 1, 12);
    for (const char* mode : {"sum", "mean", "max"}) {
      const Attrs attrs = {{"mode", mode}, {"rows", int64_t{12}}};
      cases_.Check(Cat("pieces of bags by ", mode), "embedding_bag", attrs, {table, ids, lengths}, {y});
      if (std::string(mode) != "max")
        cases_.Check(Cat("gradient of pieces of bags by ", mode), "embedding_bag_grad", attrs,
                     {ids, lengths, y}, {table});
    }
    const Attrs attrs = {{"mode", "sum"}, {"rows", int64_t{12}}};
    cases_.Check("weighted pieces of bags", "embedding_bag", attrs, {table, ids, lengths, weights}, {y});
    cases_.Check("gradient of weighted pieces of bags", "embedding_bag_grad", attrs,
                 {ids, lengths, y, weights}, {table});
    cases_.Check("gradient of weights of pieces", "embedding_bag_weights_grad", {}, {table, ids, lengths, y},
                 {weights});
    // Padding may be anything.
    for (int64_t i = 0; i < 66; ++i)
      if (i % 6 + 3 >= lengths.At(i / 6)) ids.Arg().as<int32_t>()[i] = i % 2 ? -7 : 1 << 30;
    cases_.Check("bags with odd padding", "embedding_bag", attrs, {table, ids, lengths}, {y});
    cases_.Check("gradient of bags with odd padding", "embedding_bag_grad", attrs, {ids, lengths, y},
                 {table});
  }

  void GreatestOfBags() {
    using enum DType;
    for (int64_t width : {5, 70}) {
      std::mt19937_64 random(8860 + width);
      Operand table(kFloat32, {8, width}), ids(kInt64, {33, 9}), lengths(kInt32, {33}),
          y(kFloat32, {33, width});
      for (Operand* o : {&ids, &lengths, &y}) o->Draw(&random, -1, 1, 8);
      table.Draw(&random, 0, 3, 4);
      for (int64_t i = 0; i < 8 * width; ++i) StoreFloat(table.Arg(), i, std::floor(table.At(i)));  // ties
      KernelSpec spec;
      spec.name = "embedding_bag";
      spec.attrs = {{"mode", "max"}};
      spec.in = {table.Arg(), ids.Arg(), lengths.Arg()};
      Operand greatest = y;
      spec.out = {greatest.Arg()};
      ASSERT_TRUE(BuiltinCatalog().Get("embedding_bag").reference({spec, spec.in, spec.out}).ok());
      cases_.Check(Cat("gradient of bags by max of width ", width), "embedding_bag_max_grad", {},
                   {table, ids, lengths, greatest, y}, {table});
    }
  }

  void Updates() {
    using enum DType;
    uint64_t seed = 9000;
    struct List {
      std::vector<int64_t> rows;
      const char* what;
    };
    std::vector<List> lists = {{{1, 7, 20, 33, 34, 59, -1, -1}, "rising rows"},
                               {{-1, -1}, "no rows"},
                               {{1, 20, 20}, "a row twice"},
                               {{1, -1, 20}, "rows after the end"},
                               {{5, 60}, "a row outside"}};
    lists.push_back({std::vector<int64_t>(60), "all rows"});
    std::iota(lists.back().rows.begin(), lists.back().rows.end(), 0);
    for (const List& list : lists) {
      const auto n = static_cast<int64_t>(list.rows.size());
      std::mt19937_64 random(++seed);
      Operand table(kFloat32, {60, 40}, {20, 10}, {30, 25}), rows(kInt64, {n}),
          values(kFloat32, {n, 40}, {0, 10}, {n, 25}), squares(kFloat32, {n}),
          state(kFloat32, {60}, {20}, {30}), factor(kFloat32, {});
      for (Operand* o : {&table, &values, &squares, &state, &factor}) o->Draw(&random, 0.1, 2, 4);
      for (int64_t i = 0; i < n; ++i) rows.Arg().as<int64_t>()[i] = list.rows[i];
      const Attrs attrs = {{"lr", 0.1},
                           {"weight_decay", 0.01},
                           {"eps", 1e-3},
                           {"schedule", "cosine"},
                           {"warmup", int64_t{2}},
                           {"total", int64_t{10}}};
      cases_.Check(Cat("sgd_rows of ", list.what), "sgd_rows", attrs, {table, rows, values}, {table});
      cases_.Check(Cat("adagrad_rows of ", list.what), "adagrad_rows", attrs, {table, rows, values, state},
                   {table});
      cases_.Check(Cat("add_squares_to_rows of ", list.what), "add_squares_to_rows", attrs,
                   {state, rows, squares}, {state});
      for (bool finite : {true, false}) {
        Operand flag(kBool, {});
        *flag.Arg().as<bool>() = finite;
        cases_.Check(Cat("sgd_rows with switches of ", list.what), "sgd_rows", attrs,
                     {table, rows, values, factor, flag}, {table});
        cases_.Check(Cat("adagrad_rows with switches of ", list.what), "adagrad_rows", attrs,
                     {table, rows, values, state, factor, flag}, {table});
        cases_.Check(Cat("add_squares_to_rows with switches of ", list.what), "add_squares_to_rows", attrs,
                     {state, rows, squares, factor, flag}, {state});
      }
    }
  }

  KernelCases& cases_;
  int64_t way_ = -1;
};

}  // namespace oneflow_like
