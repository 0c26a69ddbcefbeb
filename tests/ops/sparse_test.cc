// The functions of ops/language/sparse.h: values worked out by hand, gradients of those that are made of
// others, an expert layer and a sparse update against loops written here, and what wrong uses are told.
#include "ops/language/sparse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/ops/eager.h"

namespace oneflow_like::oracle {
namespace {

using Numbers = std::vector<double>;

class Sparse : public testing::Test {
 protected:
  Tensor Floats(const Dims& shape, const Numbers& values) { return Give(&tape_, shape, values); }
  Tensor Ids(const Dims& shape, const Numbers& values) { return Give(&tape_, shape, values, DType::kInt64); }
  Tensor Counted(const Dims& shape) {  // 0, 1, 2, ...
    Numbers values;
    for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(static_cast<double>(i));
    return Floats(shape, values);
  }
  // The gradient of x where the gradient of y is `dy`.
  Numbers Gradient(Tensor y, const Numbers& dy, Tensor x) {
    Dims shape = y.shape();
    return Read(Backward(&tape_, mul(y, Floats(shape, dy)), {x})[0]);
  }

  Tape tape_;
};

TEST_F(Sparse, Order) {
  Tensor x = Floats({2, 4}, {3, 1, 2, 1, -1, 5, -7, 5});
  Sorted rising = sort(x), falling = sort(x, -1, true);
  EXPECT_EQ(Read(rising.values), (Numbers{1, 1, 2, 3, -7, -1, 5, 5}));
  EXPECT_EQ(Read(rising.indices), (Numbers{1, 3, 2, 0, 2, 0, 1, 3}));
  EXPECT_EQ(Read(falling.values), (Numbers{3, 2, 1, 1, 5, 5, -1, -7}));
  EXPECT_EQ(Read(falling.indices), (Numbers{0, 2, 1, 3, 1, 3, 0, 2}));
  EXPECT_EQ(Read(argsort(x, 0)), (Numbers{1, 0, 1, 0, 0, 1, 0, 1}));
  EXPECT_EQ(Read(argmin(x)), (Numbers{1, 2}));
  EXPECT_EQ(Read(argmin(x, 0)), (Numbers{1, 0, 1, 0}));
  Sorted two = top_k(x, 2), least = top_k(x, 1, 0, false);
  EXPECT_EQ(Read(two.values), (Numbers{3, 2, 5, 5}));
  EXPECT_EQ(Read(two.indices), (Numbers{0, 2, 1, 3}));
  EXPECT_EQ(Read(least.values), (Numbers{-1, 1, -7, 1}));
  EXPECT_EQ(Gradient(two.values, {1, 2, 3, 4}, x), (Numbers{1, 0, 2, 0, 0, 3, 0, 4}));
  EXPECT_EQ(top_k(x, 0).values.shape(), (Dims{2, 0}));
}

TEST_F(Sparse, ANaNIsTheGreatest) {
  Tensor x = Floats({6}, {NAN, 1, INFINITY, -0.0, 0, -INFINITY});
  EXPECT_EQ(Read(argsort(x)), (Numbers{5, 3, 4, 1, 2, 0}));
  EXPECT_EQ(Read(argsort(x, 0, true)), (Numbers{0, 2, 1, 3, 4, 5}));
  EXPECT_EQ(Read(top_k(x, 1).indices), (Numbers{0}));
}

TEST_F(Sparse, RunningSums) {
  Tensor x = Floats({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Read(cumsum(x, 1)), (Numbers{1, 3, 6, 4, 9, 15}));
  EXPECT_EQ(Read(cumsum(x, 0)), (Numbers{1, 2, 3, 5, 7, 9}));
  EXPECT_EQ(Read(cumsum(x, -1, {.reverse = true})), (Numbers{6, 5, 3, 15, 11, 6}));
  EXPECT_EQ(Read(cumsum(x, 1, {.exclusive = true})), (Numbers{0, 1, 3, 0, 4, 9}));
  EXPECT_EQ(Read(cumsum(x, 1, {.reverse = true, .exclusive = true})), (Numbers{5, 3, 0, 11, 6, 0}));
  Tensor whole = Ids({2}, {0x1p52, 1});
  EXPECT_EQ(Read(cumsum(whole, 0)), (Numbers{0x1p52, 0x1p52 + 1}));
}

TEST_F(Sparse, ByIndex) {
  Tensor x = Counted({2, 3});
  EXPECT_EQ(Read(take(x, 1, Ids({2, 2}, {2, 0, 0, 1}))), (Numbers{2, 0, 0, 1, 5, 3, 3, 4}));
  EXPECT_EQ(take(x, 1, Ids({2, 2}, {2, 0, 0, 1})).shape(), (Dims{2, 2, 2}));
  EXPECT_EQ(Read(take(x, -2, Ids({}, {1}))), (Numbers{3, 4, 5}));
  EXPECT_EQ(Read(take_along_axis(x, Ids({2, 2}, {2, 2, 0, 1}), 1)), (Numbers{2, 2, 3, 4}));
  Tensor sums = scatter_add(x, 1, Ids({2, 2}, {2, 2, 0, 1}), Floats({2, 2}, {10, 20, 30, 40}));
  EXPECT_EQ(Read(sums), (Numbers{0, 1, 32, 33, 44, 5}));
  Tensor rows = index_add(x, 0, Ids({3}, {1, 0, 1}), Counted({3, 3}));
  EXPECT_EQ(Read(rows), (Numbers{3, 5, 7, 9, 12, 15}));
  Tensor columns = index_add(x, 1, Ids({2}, {2, 2}), Counted({2, 2}));
  EXPECT_EQ(Read(columns), (Numbers{0, 1, 3, 3, 4, 10}));
  Tensor counts = scatter_add(full(&tape_, {4}, 0, DType::kInt64), 0, Ids({5}, {3, 1, 3, 3, 0}),
                              full(&tape_, {5}, 1, DType::kInt64));
  EXPECT_EQ(Read(counts), (Numbers{1, 1, 0, 3}));
  // The gradient of what is added comes from where it went.
  Tensor src = Counted({2, 2});
  Tensor y = scatter_add(x, 1, Ids({2, 2}, {2, 2, 0, 1}), src);
  EXPECT_EQ(Gradient(y, {1, 2, 3, 4, 5, 6}, src), (Numbers{3, 3, 4, 5}));
}

TEST_F(Sparse, Bags) {
  Tensor table = Floats({3, 2}, {1, 10, 2, -20, 4, 30});
  Tensor ids = Ids({4, 3}, {0, 2, 77, 1, 1, 2, -5, -5, -5, 2, 0, 0}), lengths = Ids({4}, {2, 3, 0, 1});
  EXPECT_EQ(Read(embedding_bag(table, ids, lengths)), (Numbers{5, 40, 8, -10, 0, 0, 4, 30}));
  Numbers mean = Read(embedding_bag(table, ids, lengths, Bag::kMean));
  EXPECT_NEAR(mean[2], 8.0 / 3, 1e-6);
  EXPECT_EQ(mean[0], 2.5);
  EXPECT_EQ(mean[4], 0);
  Tensor greatest = embedding_bag(table, ids, lengths, Bag::kMax);
  EXPECT_EQ(Read(greatest), (Numbers{4, 30, 4, 30, 0, 0, 4, 30}));
  EXPECT_EQ(Gradient(greatest, {1, 2, 3, 4, 5, 6, 7, 8}, table), (Numbers{0, 0, 0, 0, 11, 14}));
  Tensor weights = Floats({4, 3}, {1, 0.5, 9, 2, 3, -1, 9, 9, 9, 4, 9, 9});
  Tensor weighted = embedding_bag(table, ids, lengths, weights);
  EXPECT_EQ(Read(weighted), (Numbers{3, 25, 6, -130, 0, 0, 16, 120}));
  const Numbers dy = {1, 0, 0, 1, 1, 1, 1, 1};
  EXPECT_EQ(Gradient(weighted, dy, table), (Numbers{1, 0, 0, 5, 4.5, 3}));
  EXPECT_EQ(Gradient(weighted, dy, weights), (Numbers{1, 4, 0, -20, -20, 30, 0, 0, 0, 34, 0, 0}));
}

// Rows and values, then an update of those rows, are the dense gradient and update.
TEST_F(Sparse, TouchedRows) {
  Tensor ids = Ids({6}, {4, 1, -1, 4, 0, 4}), grad = Counted({6, 2});
  TouchedRows touched = unique_rows(ids, grad);
  EXPECT_EQ(Read(touched.rows), (Numbers{0, 1, 4, -1, -1, -1}));
  EXPECT_EQ(Read(touched.values), (Numbers{8, 9, 2, 3, 16, 19, 0, 0, 0, 0, 0, 0}));
  Tensor table = full(&tape_, {5, 2}, 100), state = full(&tape_, {5}, 3);
  EXPECT_EQ(Read(sgd_rows(table, touched, {.lr = 0.5})),
            (Numbers{96, 95.5, 99, 98.5, 100, 100, 100, 100, 92, 90.5}));
  EXPECT_EQ(Read(sgd_rows(table, touched, {.lr = 0.5, .weight_decay = 0.01})),
            (Numbers{95.5, 95, 98.5, 98, 100, 100, 100, 100, 91.5, 90}));
  AdagradState updated = adagrad_rows(table, state, touched, {.lr = 0.5, .eps = 0});
  Numbers sums = Read(updated.state), rows = Read(updated.table);
  EXPECT_EQ(sums, (Numbers{3 + 72.5, 3 + 6.5, 3, 3, 3 + 308.5}));
  EXPECT_NEAR(rows[1], 100 - 0.5 * 9 / std::sqrt(75.5), 1e-5);
  EXPECT_NEAR(rows[8], 100 - 0.5 * 16 / std::sqrt(311.5), 1e-5);
  EXPECT_EQ(rows[4], 100);
}

TEST_F(Sparse, Experts) {
  Tensor x = Floats({5, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  Tensor w = Floats({3, 2, 1}, {1, 1, 50, 50, 1, -1});
  Tensor y = grouped_matmul(x, w, Ids({3}, {2, 0, 2}));
  EXPECT_EQ(Read(y), (Numbers{3, 7, -1, -1, 0}));
  EXPECT_EQ(Gradient(y, {1, 2, 3, 4, 5}, x), (Numbers{1, 1, 2, 2, 3, -3, 4, -4, 0, 0}));
  EXPECT_EQ(Gradient(y, {1, 2, 3, 4, 5}, w), (Numbers{7, 10, 0, 0, 43, 50}));
}

// Of one pool: four tokens choose two of three experts each, which have room for two.
TEST_F(Sparse, RoutesServeFirstChoicesFirst) {
  Tensor chosen = Ids({1, 4, 2}, {0, 1, 0, 1, 0, 2, 1, 0});
  const Routes routes = route(chosen, 3, 2);
  EXPECT_EQ(Read(routes.counts), (Numbers{4, 3, 1}));
  EXPECT_EQ(Read(routes.slots), (Numbers{0, 2, 6, 1, 5, -1}));  // token * 2 + j
  EXPECT_EQ(Read(routes.places), (Numbers{0, 3, 1, -1, -1, 4, 2, -1}));
}

TEST_F(Sparse, RoutesKeepTheGreatestWeights) {
  Tensor chosen = Ids({1, 4, 2}, {0, 1, 0, 1, 0, 2, 1, 0});
  Tensor weights = Floats({1, 4, 2}, {0.5, 0.9, 0.25, 0.9, 0.5, 0.1, 0.1, 0.75});
  const Routes routes = route(chosen, 3, 2, {.weights = weights});
  EXPECT_EQ(Read(routes.counts), (Numbers{4, 3, 1}));
  // Expert 0 keeps 0.75 and, of two of 0.5, the first; expert 1 both of 0.9.
  EXPECT_EQ(Read(routes.slots), (Numbers{0, 7, 1, 3, 5, -1}));
  EXPECT_EQ(Read(routes.places), (Numbers{0, 2, -1, 3, -1, 4, -1, 1}));
}

TEST_F(Sparse, RowsGoToExpertsAndBack) {
  Tensor x = Floats({1, 3, 2}, {1, 2, 3, 4, 5, 6});
  const Routes routes = route(Ids({1, 3, 2}, {0, 1, 1, 0, 1, 0}), 2, 2);  // token 2's choices have no room
  Tensor weights = Floats({1, 3, 2}, {10, 1, 100, 1000, 7, 7});
  Tensor rows = take_rows(x, routes);
  EXPECT_EQ(rows.shape(), (Dims{2, 1, 2, 2}));
  EXPECT_EQ(Read(rows), (Numbers{1, 2, 3, 4, 3, 4, 5, 6}));
  Tensor y = return_rows(rows, routes, weights);
  EXPECT_EQ(Read(y), (Numbers{10, 20, 3300, 4400, 35, 42}));
  EXPECT_EQ(Gradient(y, {1, 1, 1, 1, 1, 1}, x), (Numbers{10, 10, 1100, 1100, 7, 7}));
  EXPECT_EQ(Gradient(y, {1, 0, 0, 1, 1, 1}, weights), (Numbers{1, 0, 4, 4, 11, 0}));
  EXPECT_EQ(Read(take_rows(x, routes, weights)), (Numbers{10, 20, 3000, 4000, 300, 400, 35, 42}));
}

// Of one pool: four tokens choose two of four experts each, which two ranks share.
TEST_F(Sparse, TokensGoToARankOnce) {
  Tensor chosen = Ids({1, 4, 2}, {0, 1, 1, 2, 3, 2, 0, 3});
  const RankRoutes all = route_ranks(chosen, 4, 2, 8);
  EXPECT_EQ(Read(all.chosen), (Numbers{2, 2, 2, 2}));
  EXPECT_EQ(Read(all.kept), (Numbers{1, 2, 2, 3, 4, 3, 1, 4}));
  EXPECT_EQ(Read(all.routes.counts), (Numbers{3, 3}));
  EXPECT_EQ(Read(all.routes.slots), (Numbers{0, 2, 6, -1, 3, 4, 7, -1}));  // token * 2 + j
  EXPECT_EQ(Read(all.routes.places), (Numbers{0, -1, 1, 4, 5, -1, 2, 6}));
  // Room for three choices of a rank: each drops its least.
  Tensor weights = Floats({1, 4, 2}, {0.5, 0.25, 0.9, 0.9, 0.125, 0.75, 0.5, 0.5});
  const RankRoutes some = route_ranks(chosen, 4, 2, 3, {.weights = weights});
  EXPECT_EQ(Read(some.chosen), (Numbers{2, 2, 2, 2}));
  EXPECT_EQ(Read(some.kept), (Numbers{1, 0, 2, 3, 0, 3, 1, 4}));
  EXPECT_EQ(Read(some.routes.slots), (Numbers{0, 2, 6, 3, 5, 7}));
  EXPECT_EQ(Read(some.routes.places), (Numbers{0, -1, 1, 3, -1, 4, 2, 5}));
}

// Rank 1 of two, of experts 2 and 3: rows whose choices are 2 and 3, 0 and 3, none, 2.
TEST_F(Sparse, RanksSortTheirRowsByExpert) {
  Tensor kept = Floats({2, 1, 4, 2}, {1, 2, 2, 4, 0, 1, 4, 3, 3, 4, 1, 4, 0, 0, 3, 0});
  const Routes runs = sort_choices(kept, 4, 4);
  EXPECT_EQ(Read(runs.counts), (Numbers{2, 2, 2, 2}));
  EXPECT_EQ(Read(runs.slots), (Numbers{0, 5, 1, 2, 0, 6, 1, 3}));
  EXPECT_EQ(Read(runs.places), (Numbers{0, 2, 3, -1, -1, 1, -1, -1, 0, 2, -1, 3, -1, -1, 1, -1}));
  Tensor x = Floats({2, 1, 4, 1}, {1, 2, 3, 4, 5, 6, 7, 8});
  Tensor weights = Floats({2, 1, 4, 2}, {1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10});
  Tensor rows = take_rows(x, runs);
  EXPECT_EQ(Read(rows), (Numbers{1, 3, 1, 2, 5, 8, 5, 6}));
  Tensor y = return_rows(rows, runs, weights);
  EXPECT_EQ(Read(y), (Numbers{11, 2, 30, 0, 55, 60, 0, 8}));
  EXPECT_EQ(Gradient(y, Numbers(8, 1), x), (Numbers{11, 1, 10, 0, 11, 10, 0, 1}));
  Tensor same = exchange(x, Give(&tape_, {1, 2}, {4, 4}, DType::kInt32));
  EXPECT_EQ(Read(same), Read(x));
  EXPECT_EQ(Gradient(same, {1, 2, 3, 4, 5, 6, 7, 8}, x), (Numbers{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(Sparse, ExpertsOfRanks) {
  Tensor x = Floats({2, 2, 2, 1}, {1, 2, 3, 4, 5, 6, 7, 8});
  Tensor w = Floats({2, 2, 1, 1}, {1, 10, 100, 1000});
  Tensor counts = Ids({2, 2, 2}, {1, 1, 0, 2, 2, 0, 0, 1});
  Tensor y = grouped_matmul(x, w, counts);
  EXPECT_EQ(Read(y), (Numbers{1, 20, 30, 40, 500, 600, 7000, 0}));
  EXPECT_EQ(Gradient(y, Numbers(8, 1), x), (Numbers{1, 10, 10, 10, 100, 100, 1000, 0}));
  EXPECT_EQ(Gradient(y, Numbers(8, 1), w), (Numbers{1, 9, 11, 7}));
}

TEST_F(Sparse, ShapeAndPosition) {
  Tensor x = Counted({2, 3});
  EXPECT_EQ(Read(tril(x)), (Numbers{0, 0, 0, 3, 4, 0}));
  EXPECT_EQ(Read(tril(x, 1)), (Numbers{0, 1, 0, 3, 4, 5}));
  EXPECT_EQ(Read(triu(x, 1)), (Numbers{0, 1, 2, 0, 0, 5}));
  EXPECT_EQ(Read(triu(x, -100)), Read(x));
  EXPECT_EQ(Read(tril(x, -2)), Numbers(6, 0));
  EXPECT_EQ(Gradient(tril(x), {1, 2, 3, 4, 5, 6}, x), (Numbers{1, 0, 0, 4, 5, 0}));
  EXPECT_EQ(Read(flip(x, {0, -1})), (Numbers{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(Read(flip(x, {1})), (Numbers{2, 1, 0, 5, 4, 3}));
  EXPECT_EQ(Read(roll(x, 1, 1)), (Numbers{2, 0, 1, 5, 3, 4}));
  EXPECT_EQ(Read(roll(x, -4, 1)), (Numbers{1, 2, 0, 4, 5, 3}));
  EXPECT_EQ(Gradient(roll(x, 1, 1), {1, 2, 3, 4, 5, 6}, x), (Numbers{2, 3, 1, 5, 6, 4}));
  EXPECT_EQ(Read(repeat(x, {2})), (Numbers{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5}));
  EXPECT_EQ(Read(repeat(x, {2, 1, 1})), (Numbers{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(repeat(x, {2, 3, 0}).shape(), (Dims{2, 6, 0}));
  EXPECT_EQ(Gradient(repeat(x, {2}), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, x),
            (Numbers{5, 7, 9, 17, 19, 21}));
  EXPECT_EQ(Read(repeat_interleave(x, 2, 1)), (Numbers{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}));
  EXPECT_EQ(Read(repeat_interleave(x, 2, 0)), (Numbers{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5}));
  EXPECT_EQ(Read(stack({x, neg(x)}, -1)), (Numbers{0, 0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5}));
  EXPECT_EQ(stack({x, x, x}).shape(), (Dims{3, 2, 3}));
  EXPECT_EQ(unsqueeze(x, -1).shape(), (Dims{2, 3, 1}));
  EXPECT_EQ(squeeze(unsqueeze(x, 1), 1).shape(), (Dims{2, 3}));
  EXPECT_EQ(Read(arange(&tape_, 1, 8, 3)), (Numbers{1, 4, 7}));
  EXPECT_EQ(Read(arange(&tape_, 2, -1, -1, DType::kInt64)), (Numbers{2, 1, 0}));
  EXPECT_EQ(arange(&tape_, 3, 3).shape(), Dims{0});
}

// --- What wrong uses are told ---

// A table: a mistake, and the words it gets.
TEST_F(Sparse, WrongUsesAreNamed) {
  Tensor x = Counted({2, 3}), ids = Ids({2}, {0, 1}), table = Counted({4, 2}),
         bags = Ids({2, 3}, Numbers(6, 0));
  Tensor w = Counted({2, 3, 5});
  struct Use {
    std::function<void()> run;
    const char* what;
  };
  const std::vector<Use> uses = {
      {[&] { top_k(x, 4); }, "k is 4 but axis 1 has 3 elements; k must be in [0, 3]"},
      {[&] { top_k(x, -1, 0); }, "k is -1 but axis 0 has 2 elements; k must be in [0, 2]"},
      {[&] { sort(x, 2); }, "axis 2 does not exist, its operand [2,3] has 2 axes"},
      {[&] {
         sort(Give(&tape_, {2}, {0, 1}, DType::kBool));
       },
       "its operands are bool but must be numbers"},
      {[&] { cumsum(x, -3); }, "axis -3 does not exist, its operand [2,3] has 2 axes"},
      {[&] { take(x, 1, x); }, "ids is f32 but must be i32 or i64"},
      {[&] {
         take(Give(&tape_, {2}, {0, 1}, DType::kBool), 0, ids);
       },
       "x is bool but must be numbers"},
      {[&] { take_along_axis(x, ids, 1); }, "ids [2] has 1 axis but x [2,3] has 2"},
      {[&] {
         take_along_axis(x, Ids({3, 1}, {0, 0, 0}), 1);
       },
       "axis 0 of ids [3,1] is 3 but of x [2,3] is 2; only axis 1 may differ"},
      {[&] {
         scatter_add(x, 1, Ids({2, 1}, {0, 0}), Ids({2, 1}, {0, 0}));
       },
       "x is f32 but src is i64"},
      {[&] {
         index_add(x, 0, ids, Counted({2, 4}));
       },
       "x is [2,3] but src [2,4] by ids [2] adds to [2,4]"},
      {[&] {
         index_add(x, 0, ids, Counted({3, 3}));
       },
       "ids is [2] but src [3,3] is [3] from axis 0 on"},
      {[&] { embedding_bag(table, ids, ids); },
       "ids [2] has 1 axis but needs 2: bags, padded to the longest"},
      {[&] {
         embedding_bag(table, bags, Ids({3}, {0, 0, 0}));
       },
       "axis b is 2 in ids but 3 in lengths"},
      {[&] {
         Apply(&tape_, "embedding_bag", {table, bags, ids, x}, {{"mode", "mean"}});
       },
       "mode is \"mean\" but weights need the mode sum"},
      {[&] {
         sgd_rows(table, {ids, Counted({2, 2})}, {.lr = -1});
       },
       "lr is -1 but must be 0 or more"},
      {[&] {
         sgd_rows(table, {ids, Counted({2, 3})});
       },
       "axis d is 2 in table but 3 in values"},
      {[&] {
         grouped_matmul(x, w, Ids({3}, {1, 1, 0}));
       },
       "axis e is 2 in w but 3 in counts"},
      {[&] {
         grouped_matmul(Counted({2, 4}), w, ids);
       },
       "axis k is 4 in x but 3 in w"},
      {[&] {
         route(Ids({1, 2, 1}, {0, 1}), 0, 4);
       },
       "experts is 0 but must be at least 1"},
      {[&] {
         route(Ids({1, 2, 1}, {0, 1}), 2, 0);
       },
       "room is 0 but must be at least 1"},
      {[&] {
         route(Ids({1, 2, 1}, {0, 1}), 1 << 20, 1 << 20);
       },
       "are more than the 2147483647 places that a table can number"},
      {[&] {
         take_rows(Counted({1, 2, 3}), {Ids({1, 1, 2}, {0, 1}), Ids({1, 2, 1}, {0, 1}), Tensor()});
       },
       "slots is i64 but must be i32, as route makes it"},
      {[&] {
         take_rows(Counted({2, 2, 3}), route(Ids({1, 2, 1}, {0, 1}), 2, 1));
       },
       "axis p is 2 in x but 1 in slots"},
      {[&] { tril(ids); }, "its operand [2] has 1 axis but needs at least 2"},
      {[&] {
         flip(x, {1, -1});
       },
       "axis 1 is named twice"},
      {[&] { repeat(x, {-1}); }, "times of axis 1 is -1 but must be 0 or more"},
      {[&] {
         stack({x, ids});
       },
       "part 1 is [2,3] but part 2 is [2]"},
      {[&] { squeeze(x, 0); }, "axis 0 is 2 but must be 1"},
      {[&] { unsqueeze(x, 3); }, "axis 3 does not exist, its result of [2,3] has 3 axes"},
      {[&] { arange(&tape_, 0, 5, 0); }, "from 0 to 5 by steps of 0 there is no end"},
      {[&] {
         argmin(Counted({2, 0}));
       },
       "axis 1 is 0 but must be at least 1 to have a least element"}};
  for (const Use& use : uses) {
    std::string said = ErrorOf(use.run);
    EXPECT_NE(said.find(use.what), std::string::npos)
        << "\"" << said << "\" instead of \"" << use.what << "\"";
  }
}

TEST_F(Sparse, WrongDataAreNamed) {
  Tensor x = Counted({2, 3}), table = Counted({4, 2});
  struct Use {
    std::function<void()> run;
    const char* what;
  };
  const std::vector<Use> uses = {{[&] {
                                    take(x, 1, Ids({2}, {0, 3}));
                                  },
                                  "index 3 is outside [0, 3)"},
                                 {[&] {
                                    scatter_add(x, 0, Ids({1, 3}, {0, 1, -1}), Counted({1, 3}));
                                  },
                                  "index -1 is outside [0, 2)"},
                                 {[&] {
                                    embedding_bag(table, Ids({1, 2}, {1, 4}), Ids({1}, {2}));
                                  },
                                  "id 4 is outside the table of 4 rows"},
                                 {[&] {
                                    embedding_bag(table, Ids({1, 2}, {1, 1}), Ids({1}, {3}));
                                  },
                                  "a bag has length 3 but ids has room for 2"},
                                 {[&] {
                                    sgd_rows(table, {Ids({2}, {3, 4}), Counted({2, 2})});
                                  },
                                  "row 4 is outside the table of 4 rows"},
                                 {[&] {
                                    sgd_rows(table, {Ids({2}, {3, 3}), Counted({2, 2})});
                                  },
                                  "rows do not rise, as unique_rows gives them"},
                                 {[&] {
                                    grouped_matmul(x, Counted({2, 3, 1}), Ids({2}, {1, 2}));
                                  },
                                  "counts add up to more than the 2 rows of x"},
                                 {[&] {
                                    grouped_matmul(x, Counted({2, 3, 1}), Ids({2}, {1, -2}));
                                  },
                                  "expert 1 has a count of -2"},
                                 {[&] {
                                    route(Ids({1, 2, 1}, {0, 2}), 2, 1);
                                  },
                                  "index 2 is outside [0, 2)"},
                                 {[&] {
                                    route(Ids({2, 2, 1}, {0, 1, 1, 1}), 2, 1, {.may_drop = false});
                                  },
                                  "expert 1 is chosen 2 times in pool 1 but has room for 1"}};
  for (const Use& use : uses) {
    std::string said = ErrorOf(use.run);
    EXPECT_NE(said.find(use.what), std::string::npos)
        << "\"" << said << "\" instead of \"" << use.what << "\"";
  }
}

}  // namespace
}  // namespace oneflow_like::oracle
