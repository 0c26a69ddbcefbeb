// Models of operators that choose and scatter, on meshes: a mixture of experts learns the same whatever is
// cut, and updates of touched rows are those of one device.
#include <cmath>
#include <map>

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

}  // namespace
}  // namespace oneflow_like
