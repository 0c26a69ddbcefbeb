// Models of operators that choose and scatter, on meshes: a mixture of experts learns the same whatever is
// cut, and updates of touched rows are those of one device.
#include <cmath>
#include <map>

#include "compiler/explain.h"
#include "examples/dlrm_model.h"
#include "oneflow_like/session/session_impl.h"
#include "ops/language/sparse.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

std::vector<float> Numbers(const HostTensor& t) { return {t.as<float>(), t.as<float>() + t.elements()}; }

// Bags of words go each to the expert that its number says, and come back.
std::vector<float> LossesOfExperts(const char* mesh, const Annotation& table_cut,
                                   const Annotation& expert_cut) {
  constexpr int64_t kBags = 12, kRoom = 5, kWidth = 8, kExperts = 4;
  Model model(FullMesh(mesh));
  Scope s = model.scope();
  const Annotation batch = {{"dp", S(0)}};
  Tensor ids = model.Input("ids", {kBags, kRoom}, DType::kInt32, batch);
  Tensor lengths = model.Input("lengths", {kBags}, DType::kInt32, batch);
  Tensor expert = model.Input("expert", {kBags}, DType::kInt32, batch);
  Tensor table = s.Weight("table", {20, kWidth}, Normal(1), table_cut);
  Tensor w = s.Weight("w", {kExperts, kWidth, kWidth}, Normal(0.5), expert_cut);
  Tensor bags = embedding_bag(table, ids, lengths, Bag::kMean);
  Tensor order = argsort(expert, 0);
  Tensor ones = full(ids.graph(), {kBags}, 1, DType::kInt64);
  Tensor counts = scatter_add(full(ids.graph(), {kExperts}, 0, DType::kInt64), 0, expert, ones);
  Tensor mixed = grouped_matmul(take(bags, 0, order), w, counts);
  Tensor back = index_add(full(ids.graph(), {kBags, kWidth}, 0), 0, order, mixed);
  Tensor best = top_k(cumsum(tanh(back), 1), 2).values;
  Tensor loss = mean(square(shift(best, -1)));
  Session train = Train(loss, Sgd{.lr = 0.05});
  std::vector<float> losses;
  for (int step = 0; step < 6; ++step) {
    StepResult result = train.Run({{"ids", Ids(1, {kBags, kRoom}, 20)},
                                   {"lengths", Ids(2, {kBags}, kRoom + 1)},
                                   {"expert", Ids(3, {kBags}, kExperts)}});
    losses.push_back(result.Scalar("loss"));
  }
  return losses;
}

TEST(SparseModel, ExpertsLearnTheSameOnEveryMesh) {
  const std::vector<float> want = LossesOfExperts("cpu:dp=1", {}, {});
  EXPECT_LT(want.back(), want.front());
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2", "cpu:dp=2,tp=2"}) {
    for (int axis : {0, 1}) {
      std::vector<float> got = LossesOfExperts(mesh, {{"tp", S(axis)}}, {{"tp", S(axis)}});
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], 1e-4 * want[i]) << mesh << ", axis " << axis << ", step " << i;
    }
  }
}

// Rows and single elements added to a weight, in one pass or after partial sums have been joined.
std::vector<float> LossesOfSums(const char* mesh, const Annotation& cut) {
  constexpr int64_t kRows = 7, kIds = 12, kWidth = 4;
  Model model(FullMesh(mesh));
  Scope s = model.scope();
  const Annotation batch = {{"dp", S(0)}};
  Tensor rows = model.Input("rows", {kIds}, DType::kInt32, batch);
  Tensor places = model.Input("places", {kIds, kWidth}, DType::kInt32, batch);
  Tensor values = model.Input("values", {kIds, kWidth}, DType::kFloat32, batch);
  Tensor x = s.Weight("x", {kRows, kWidth}, Full(3), cut);
  Tensor w = s.Weight("w", {kWidth, kWidth}, Normal(1));
  Tensor src = matmul(values, w);
  Tensor y = scatter_add(index_add(x, 0, rows, src), 0, places, tanh(src));
  Session train = Train(mean(square(reshape(y, {kRows * kWidth}))), Sgd{.lr = 0.5});
  std::vector<float> losses;
  for (int step = 0; step < 4; ++step) {
    HostTensor drawn = HostTensor::Make(DType::kFloat32, {kIds, kWidth});
    for (int64_t i = 0; i < drawn.elements(); ++i)
      drawn.as<float>()[i] = static_cast<float>((i * 5 + step) % 7) / 7 - 0.4f;
    StepResult result = train.Run(
        {{"rows", Ids(1, {kIds}, kRows)}, {"places", Ids(2, {kIds, kWidth}, kRows)}, {"values", drawn}});
    losses.push_back(result.Scalar("loss"));
  }
  return losses;
}

TEST(SparseModel, SumsByIndexAddXOnceOnEveryMesh) {
  const std::vector<float> want = LossesOfSums("cpu:dp=1", {});
  EXPECT_LT(want.back(), want.front());
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2", "cpu:dp=3", "cpu:dp=2,tp=2"}) {
    for (const Annotation& cut : {Annotation{}, Annotation{{"tp", S(0)}}, Annotation{{"tp", S(1)}}}) {
      const std::vector<float> got = LossesOfSums(mesh, cut);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]) << mesh << ", step " << i;
    }
  }
}

TEST(SparseModel, TouchedRowsAreUpdatedOnEveryMesh) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:dp=2,tp=2"}) {
    for (const Annotation& cut : {Annotation{}, Annotation{{"tp", S(0)}}, Annotation{{"tp", S(1)}}}) {
      Model model(FullMesh(mesh));
      Scope s = model.scope();
      const bool by_rows = !cut.empty() && cut[0].second.axis == 0;
      Tensor table = s.Weight("table", {9, 4}, Full(2), cut);
      Tensor state = s.Weight("state", {9}, Full(1), by_rows ? cut : Annotation{});
      Tensor other = s.Weight("other", {9, 4}, Full(2), cut);
      Tensor ids = model.Input("ids", {8}, DType::kInt32, {{"dp", S(0)}});
      Tensor grad = model.Input("grad", {8, 4}, DType::kFloat32, {{"dp", S(0)}});
      TouchedRows touched = unique_rows(ids, grad);
      AdagradState adagrad = adagrad_rows(table, state, touched, {.lr = 0.1, .eps = 0});
      Tensor sgd = sgd_rows(other, touched, {.lr = 0.1});
      SessionOptions options;
      options.also = {adagrad.table, adagrad.state, sgd};
      Session session = Evaluate({}, options);
      std::vector<double> want(36, 2), want_other(36, 2), sums(9, 1);
      for (uint64_t step = 0; step < 3; ++step) {
        HostTensor rows = Ids(step, {8}, 9), values = HostTensor::Make(DType::kFloat32, {8, 4});
        std::map<int64_t, std::vector<double>> dense;
        for (int64_t i = 0; i < 32; ++i) {
          values.as<float>()[i] = static_cast<float>(i % 7) - 2.5f;
          auto& row = dense.try_emplace(rows.as<int32_t>()[i / 4], 4, 0.0).first->second;
          row[i % 4] += values.as<float>()[i];
        }
        session.Run({{"ids", rows}, {"grad", values}}).Wait();
        for (const auto& [row, gradient] : dense) {
          for (double g : gradient) sums[row] += g * g / 4;
          for (int c = 0; c < 4; ++c) {
            want[row * 4 + c] -= 0.1 * gradient[c] / std::sqrt(sums[row]);
            want_other[row * 4 + c] -= 0.1 * gradient[c];
          }
        }
      }
      const std::vector<float> got = Numbers(model.Read("table")), got_other = Numbers(model.Read("other"));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], want[i], 1e-5) << mesh << ", element " << i;
        EXPECT_NEAR(got_other[i], want_other[i], 1e-5) << mesh << ", element " << i;
      }
    }
  }
}

// --- nn::LookUp ---

struct LookUps {
  const char* mesh = "cpu:dp=1";
  int micro_batches = 1;
  bool adagrad = true;
  int64_t rows = 4096;  // of a table; few: updates are of whole tables
  int64_t batch = 64;
  DType ids = DType::kInt32;
};
struct Looked {
  std::vector<float> losses;
  std::vector<std::vector<float>> tables;
};

// Two tables, half of whose ids name few rows, and a product behind them.
Looked LookUp(const LookUps& given) {
  constexpr int64_t kTables = 2, kColumns = 5;
  Model model(FullMesh(given.mesh));
  Scope s = model.scope();
  const nn::LookUpOptions options = {.micro_batches = given.micro_batches};
  std::vector<Tensor> tables;
  for (int64_t i = 0; i < kTables; ++i)
    tables.push_back(
        s.Weight(Cat("table", i), {given.rows, kColumns}, Normal(1), nn::CutOfRows(s, given.rows, options)));
  Tensor ids = model.Input("ids", {given.batch, kTables}, DType::kInt32, {{"dp", S(0)}});
  if (given.ids != DType::kInt32) ids = cast(ids, given.ids);
  Tensor found = nn::LookUp(s / "look", tables, ids, options);
  Tensor y = matmul(reshape(found, {given.batch, kTables * kColumns}),
                    s.Weight("w", {kTables * kColumns, 3}, Normal(.5)));
  TrainOptions train_options;
  train_options.micro_batches = given.micro_batches;
  const Optimizer optimizer =
      given.adagrad ? Optimizer(Adagrad{.lr = .1, .by_rows = true}) : Optimizer(Sgd{.lr = .5});
  Session train = Train(mean(square(shift(y, -1))), optimizer, train_options);
  Looked looked;
  for (uint64_t step = 0; step < 20; ++step) {
    HostTensor rows = Ids(step, {given.batch, kTables}, static_cast<int>(given.rows));
    for (int64_t i = 0; i < given.batch; ++i) rows.as<int32_t>()[i] %= 7;
    looked.losses.push_back(train.Run({{"ids", rows}}).Scalar("loss"));
  }
  for (int64_t i = 0; i < kTables; ++i) looked.tables.push_back(Numbers(model.Read(Cat("table", i))));
  return looked;
}

TEST(LookUp, FollowsOneDevice) {
  for (bool adagrad : {false, true})
    for (int64_t rows : {4096, 96}) {
      const Looked one = LookUp({.adagrad = adagrad, .rows = rows});
      EXPECT_LT(one.losses.back(), one.losses.front());
      for (const LookUps& given : {LookUps{"cpu:tp=2"},
                                   {"cpu:tp=4"},
                                   {"cpu:tp=8"},
                                   {"cpu:dp=2,tp=2"},
                                   {"cpu:dp=2,tp=4", 2},
                                   {"cpu:tp=2", 4},
                                   {.mesh = "cpu:tp=2", .ids = DType::kInt64}}) {
        LookUps run = given;
        run.adagrad = adagrad;
        run.rows = rows;
        const Looked got = LookUp(run);
        const std::string where = Cat(run.mesh, " in ", run.micro_batches, ", ", rows, " rows");
        for (size_t i = 0; i < one.losses.size(); ++i)
          EXPECT_NEAR(got.losses[i], one.losses[i], 1e-5 * one.losses[i]) << where << ", step " << i;
        for (size_t t = 0; t < one.tables.size(); ++t)
          for (size_t i = 0; i < one.tables[t].size(); ++i)
            ASSERT_NEAR(got.tables[t][i], one.tables[t][i], 1e-4) << where << ", table " << t << ", " << i;
      }
    }
}

// Ids, rows, and gradients of rows go to other ranks once, by expected counts (n - 1)/n of them; nothing is
// summed. Where parts are not alike, ranks sum what each has.
TEST(LookUp, SendsIdsAndRows) {
  constexpr int64_t kTables = 3, kColumns = 64;
  for (int64_t batch : {1024, 1020}) {
    Model model(FullMesh("cpu:tp=8"));
    Scope s = model.scope();
    std::vector<Tensor> tables;
    for (int64_t i = 0; i < kTables; ++i)
      tables.push_back(s.Weight(Cat("table", i), {32'768, kColumns}, Normal(1), nn::CutOfRows(s, 32'768)));
    Tensor ids = model.Input("ids", {batch, kTables}, DType::kInt32, {{"dp", S(0)}});
    Tensor loss = mean(square(nn::LookUp(s / "look", tables, ids)));
    const Session train = Train(loss, Adagrad{.lr = .1, .by_rows = true});
    std::map<std::string, std::pair<int, double>> sent;  // by primitive, how many and their bytes
    for (const BoxingPrice& price : PricesOfBoxing(train.impl()->compiled)) {
      auto& [count, bytes] = sent[price.primitive];
      ++count;
      bytes += price.bytes;
    }
    if (batch == 1020) {
      EXPECT_EQ(sent["all_to_all"].second, 0);
      continue;
    }
    const double numbers = 7. / 8 * batch * kTables;  // of one for each id, that go to other ranks
    EXPECT_EQ(sent["all_to_all"].first, 3);
    EXPECT_NEAR(sent["all_to_all"].second, 4 * numbers * (1 + 2 * kColumns), 1);
    EXPECT_EQ(sent["reduce_scatter"].first, 0);
    EXPECT_LE(sent["all_reduce"].second, 1000);  // the loss
  }
}

// In a recommender, too, whose layers cut what they read otherwise: gradients are exchanged whole, not by
// table after they were taken apart, where nothing says how many rows count.
TEST(LookUp, ExchangesGradientsOfARecommender) {
  constexpr int64_t kBatch = 1024;
  examples::DlrmConfig config = {.rows = 100'000};
  config.cut = "rows";
  Model model(FullMesh("cpu:tp=8"));
  const Annotation batch = {{"dp", S(0)}};
  Tensor dense = model.Input("dense", {kBatch, config.dense}, DType::kFloat32, batch);
  Tensor ids = model.Input("ids", {kBatch, config.tables}, DType::kInt32, batch);
  TrainOptions options;
  options.parallel = {.batch = "dp", .tensor = "tp"};
  const Session train = Train(mean(square(examples::DlrmLogits(model.scope(), dense, ids, config))),
                              Adagrad{.lr = .1, .by_rows = true}, options);
  double bytes = 0;
  for (const BoxingPrice& price : PricesOfBoxing(train.impl()->compiled))
    if (price.primitive == "all_to_all") bytes += price.bytes;
  EXPECT_LT(bytes, 1.1 * 4 * (7. / 8 * kBatch) * static_cast<double>(config.tables * (1 + 2 * config.width)));
}

TEST(LookUp, SumsWherePartsAreUneven) {
  for (const LookUps& given :
       {LookUps{.mesh = "cpu:tp=2", .rows = 4095, .batch = 60}, {.mesh = "cpu:tp=8", .batch = 60}}) {
    const Looked got = LookUp(given), want = LookUp({.rows = given.rows, .batch = given.batch});
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5 * want.losses[i]) << given.mesh << ", step " << i;
  }
}

TEST(LookUp, NamesWhatDoesNotFit) {
  Model model(FullMesh("cpu:tp=2"));
  Scope s = model.scope();
  Tensor table = s.Weight("a", {8, 3}, Normal(1)), other = s.Weight("b", {9, 3}, Normal(1));
  Tensor ids = model.Input("ids", {4, 2}, DType::kInt32);
  EXPECT_NE(ErrorOf([&] {
              nn::LookUp(s / "l", {table}, ids);
            }).find("ids is [4,2] but must have a column for each of the 1 tables"),
            std::string::npos)
      << ErrorOf([&] { nn::LookUp(s / "l", {table}, ids); });
  EXPECT_NE(ErrorOf([&] {
              nn::LookUp(s / "l", {table, other}, ids);
            }).find("a table is [9,3] but another one [8,3]"),
            std::string::npos);
  Session session = Evaluate({{"y", nn::LookUp(s / "l", {table, table}, ids)}});
  HostTensor wrong = Ids(1, {4, 2}, 8);
  wrong.as<int32_t>()[5] = 8;
  const std::string error = ErrorOf([&] { session.Run({{"ids", wrong}}).Wait(); });
  EXPECT_NE(error.find("nn::LookUp 'l'"), std::string::npos) << error;
  EXPECT_NE(error.find("index 8 is outside"), std::string::npos) << error;
}

}  // namespace
}  // namespace oneflow_like
