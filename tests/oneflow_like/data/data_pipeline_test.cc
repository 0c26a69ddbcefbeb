// The pipeline: order, bound, errors, broken samples, the end, resuming, and the boxes of processes. And the
// order of samples: shuffling and mixtures.
// ctest: asan=10 waits
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "core/boxes/copy_box.h"
#include "core/random.h"
#include "oneflow_like/data/pipeline.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

// Samples that say who they are: "id" i64[3] = epoch, index, seed; "wide" i32[4, 6] counts on from the index.
// May take a while, drawn by chance, and may break.
class Numbers final : public SampleSource {
 public:
  explicit Numbers(int64_t samples, int most_micros = 0) : samples_(samples), most_micros_(most_micros) {}
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return samples_; }
  void Read(const SampleId& id, std::span<void* const> to) const override {
    ++reads;
    if (most_micros_ > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(
          RandomBits(5, static_cast<uint64_t>(reads.load()), id.index) % most_micros_));
    if (fatal == id.index) Fail("file 'x' at byte ", id.index, ": wrong");
    if (broken_every > 0 && id.index % broken_every == 0)
      FailSample("file 'y' at byte ", id.index, ": broken");
    const int64_t about[] = {id.epoch, id.index, static_cast<int64_t>(id.seed)};
    std::memcpy(to[0], about, sizeof about);
    for (int i = 0; i < 24; ++i) static_cast<int32_t*>(to[1])[i] = static_cast<int32_t>(id.index * 100 + i);
  }
  int64_t fatal = -1, broken_every = 0;
  mutable std::atomic<int64_t> reads{0};

 private:
  const std::vector<SampleField> fields_ = {{"id", DType::kInt64, {3}}, {"wide", DType::kInt32, {4, 6}}};
  const int64_t samples_;
  const int most_micros_;
};

// (epoch, index) of each row of a whole batch.
std::vector<std::pair<int64_t, int64_t>> Rows(const FeedPieces& pieces) {
  std::vector<std::pair<int64_t, int64_t>> rows;
  const FeedPiece& piece = pieces.at("id")[0];
  for (int64_t r = 0; r < piece.box.extent[0]; ++r)
    rows.push_back({piece.values.as<int64_t>()[3 * r], piece.values.as<int64_t>()[3 * r + 1]});
  return rows;
}

TEST(DataOrder, ShufflingIsAPermutationOfItsOwnForEachSeedAndEpoch) {
  for (int64_t count : {1, 2, 3, 4, 5, 7, 64, 100, 1000, 4097}) {
    std::vector<int64_t> order, other;
    for (int64_t i = 0; i < count; ++i) order.push_back(ShuffledIndex(i, count, 5, 2));
    for (int64_t i = 0; i < count; ++i) other.push_back(ShuffledIndex(i, count, 5, 3));
    if (count > 20) {
      EXPECT_NE(order, other);
    }
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(order[i], i) << count;
  }
  // Every sample comes to every place about equally often: chi squared of 16 places over 4,000 epochs.
  std::vector<int64_t> hits(16 * 16);
  for (int64_t epoch = 0; epoch < 4000; ++epoch)
    for (int64_t i = 0; i < 16; ++i) ++hits[16 * i + ShuffledIndex(i, 16, 1, epoch)];
  double chi = 0;
  for (int64_t n : hits) chi += (n - 250.0) * (n - 250.0) / 250;
  EXPECT_LT(chi, 225 + 6 * std::sqrt(2 * 225.0));
  // Of a long text neighbours do not stay neighbours.
  int close = 0;
  for (int64_t i = 0; i < 1000; ++i)
    close += std::abs(ShuffledIndex(i, int64_t{1} << 40, 1, 0) -
                      ShuffledIndex(i + 1, int64_t{1} << 40, 1, 0)) < (int64_t{1} << 30);
  EXPECT_LT(close, 20);
}

TEST(DataOrder, AMixtureKeepsItsSharesAndRepeatsNothingEarly) {
  auto a = std::make_shared<Numbers>(700), b = std::make_shared<Numbers>(5000);
  const Mixture mixture({{a, 3}, {b, 1}}, 2048);
  std::vector<int64_t> id(3);
  std::vector<int32_t> wide(24);
  void* const to[] = {id.data(), wide.data()};
  std::map<std::pair<int64_t, int64_t>, int> seen;  // of `a`
  int64_t of_a = 0;
  for (int64_t i = 0; i < 2048; ++i) {
    const int64_t before = a->reads;
    mixture.Read({1, 0, i}, to);
    if (a->reads == before) continue;
    ++of_a;
    EXPECT_EQ((++seen[{id[0], id[1]}]), 1);
  }
  EXPECT_EQ(of_a, 1536);
  EXPECT_EQ(std::count_if(seen.begin(), seen.end(), [](const auto& s) { return s.first.first == 0; }), 700);
  EXPECT_NE(ErrorOf([&] { Mixture({{a, 1}, {b, 0}}); }).find("weight 0"), std::string::npos);
  EXPECT_NE(ErrorOf([&] { Mixture({{a, 1e9}, {b, 1}}); }).find("1/1024"), std::string::npos);
}

// Shares of a block are rounded so that they add up: those that would lose most get one more.
TEST(DataOrder, SharesOfAMixtureAreRoundedByLargestRemainders) {
  std::vector<std::shared_ptr<Numbers>> sources;
  for (int i = 0; i < 3; ++i) sources.push_back(std::make_shared<Numbers>(100));
  // Of 1,024 samples 279.27, 465.45 and 279.27; 64, 479.7 and 480.3.
  using Shares = std::vector<int64_t>;
  for (const auto& [weights, shares] :
       {std::pair(Shares{3, 5, 3}, Shares{279, 466, 279}), {{640, 4797, 4803}, {64, 480, 480}}}) {
    std::vector<Mixture::Part> parts;
    for (int i = 0; i < 3; ++i) parts.push_back({sources[i], static_cast<double>(weights[i])});
    const Mixture mixture(parts, 1024);
    std::vector<int64_t> id(3);
    std::vector<int32_t> wide(24);
    void* const to[] = {id.data(), wide.data()};
    for (const auto& source : sources) source->reads = 0;
    for (int64_t i = 0; i < 1024; ++i) mixture.Read({1, 0, i}, to);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(sources[i]->reads, shares[i]) << "source " << i;
  }
}

// Each source continues where the epoch before has left it: all of its samples come before one comes again.
TEST(DataOrder, EpochsOfAMixtureContinueItsSources) {
  auto a = std::make_shared<Numbers>(700), b = std::make_shared<Numbers>(5000);
  for (int64_t samples : {2048, 1000}) {
    const Mixture mixture({{a, 3}, {b, 1}}, samples);
    std::vector<int64_t> id(3);
    std::vector<int32_t> wide(24);
    void* const to[] = {id.data(), wide.data()};
    std::map<int64_t, int> of_a, of_b;  // how often each sample came
    for (int64_t epoch = 0; epoch < 4; ++epoch)
      for (int64_t i = 0; i < samples; ++i) {
        const int64_t before = a->reads;
        mixture.Read({1, epoch, i}, to);
        ++(a->reads == before ? of_b : of_a)[id[1]];
      }
    const auto [least, most] = std::minmax_element(
        of_a.begin(), of_a.end(), [](const auto& x, const auto& y) { return x.second < y.second; });
    EXPECT_EQ(of_a.size(), 700u);
    // Blocks that the last epoch has begun may lack any samples.
    EXPECT_LE(most->second - least->second, samples == 2048 ? 1 : 2) << samples;
    for (const auto& [index, times] : of_b) EXPECT_EQ(times, 1) << samples << ", sample " << index;
  }
}

// Whatever the threads, the delays and the number of batches ahead: one order, that of one thread without
// delays.
TEST(DataPipeline, OneOrderUnderRandomDelays) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> expected;
  auto run = [&](int threads, int ahead, int micros, int64_t batch) {
    DataPipeline data(std::make_shared<Numbers>(50, micros),
                      {.batch = batch, .seed = 3, .threads = threads, .ahead = ahead});
    std::vector<std::pair<int64_t, int64_t>> all;
    for (int i = 0; i < 120 / batch; ++i)
      for (const auto& row : Rows(data.Next())) all.push_back(row);
    return all;
  };
  const auto first = run(1, 1, 0, 8);
  std::set<int64_t> epoch;
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(first[i].first, 0);
    epoch.insert(first[i].second);
  }
  EXPECT_EQ(epoch.size(), 50u) << "each sample once in an epoch";
  EXPECT_EQ(first[50].first, 1);
  for (int threads : {1, 2, 5})
    for (int ahead : {1, 2, 4})
      for (int64_t batch : {8, 1, 24})
        EXPECT_EQ(run(threads, ahead, 200, batch), first) << threads << " " << ahead;
}

TEST(DataPipeline, NoMoreBatchesAreReadThanAreAllowedAhead) {
  for (int ahead : {1, 3}) {
    auto numbers = std::make_shared<Numbers>(1000);
    DataPipeline data(numbers, {.batch = 10, .threads = 3, .ahead = ahead});
    for (int taken = 0; taken < 20; ++taken) {
      // Until it stands still, as far as it may go and no further.
      while (numbers->reads < 10 * (taken + ahead)) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQ(numbers->reads, 10 * (taken + ahead));
      data.Next();
    }
  }
}

TEST(DataPipeline, GoesAtAnyMoment) {
  for (int i = 0; i < 60; ++i) {
    auto numbers = std::make_shared<Numbers>(1000, 300);
    DataPipeline data(numbers, {.batch = 16, .threads = 1 + i % 4, .ahead = 1 + i % 3});
    FeedPieces kept;
    for (int taken = 0; taken < i % 5; ++taken) kept = data.Next();
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(40 * i));
  }
}

TEST(DataPipeline, GoesOnAtTheSameSampleOnOtherMeshes) {
  auto numbers = std::make_shared<Numbers>(37);
  DataPipeline whole(numbers, {.batch = 6, .seed = 9});
  std::vector<std::vector<std::pair<int64_t, int64_t>>> batches;
  for (int i = 0; i < 20; ++i) batches.push_back(Rows(whole.Next()));
  EXPECT_EQ(whole.position(), 120);
  for (int killed : {0, 1, 7, 13}) {
    DataPipeline before(numbers, {.batch = 6, .seed = 9});
    for (int i = 0; i < killed; ++i) before.Next();
    // Two processes hold the rows now, another batch size too would go on there.
    DataPipeline upper(
        numbers, {.batch = 6, .seed = 9, .needs = {{"id", {{{0, 0}, {4, 3}}}}}, .start = before.position()});
    DataPipeline lower(
        numbers, {.batch = 6, .seed = 9, .needs = {{"id", {{{4, 0}, {2, 3}}}}}, .start = before.position()});
    for (int i = killed; i < 20; ++i) {
      auto rows = Rows(upper.Next());
      for (const auto& row : Rows(lower.Next())) rows.push_back(row);
      EXPECT_EQ(rows, batches[i]);
    }
  }
}

// Random boxes, rows and columns cut: the same values as the whole batch has there, and nothing of other rows
// is read.
TEST(DataPipeline, BoxesHoldWhatTheWholeBatchHasThere) {
  std::mt19937 random(1);
  auto numbers = std::make_shared<Numbers>(100);
  for (int round = 0; round < 40; ++round) {
    const int64_t batch = 1 + random() % 20;
    auto cut = [&](int64_t extent) {
      const int64_t begin = random() % extent;
      return std::pair<int64_t, int64_t>{begin, 1 + random() % (extent - begin)};
    };
    std::vector<Box> boxes;
    std::vector<bool> rows(batch, false);
    for (int b = 1 + random() % 3; b > 0; --b) {
      const auto [r, nr] = cut(batch);
      const auto [i, ni] = cut(4);
      const auto [j, nj] = cut(6);
      boxes.push_back({{r, i, j}, {nr, ni, nj}});
    }
    boxes = Disjoint(boxes);
    for (const Box& box : boxes) std::fill_n(rows.begin() + box.begin[0], box.extent[0], true);
    DataPipeline whole(numbers, {.batch = batch, .start = 100 - batch, .epochs = 1});
    const FeedPiece all = whole.Next().at("wide")[0];
    numbers->reads = 0;
    auto apart = std::make_shared<Numbers>(100);
    DataPipeline part(apart, {.batch = batch, .needs = {{"wide", boxes}}, .start = 100 - batch, .epochs = 1});
    const FeedPieces pieces = part.Next();
    EXPECT_EQ(pieces.count("id"), 0u);
    ASSERT_EQ(pieces.at("wide").size(), boxes.size());
    for (const FeedPiece& piece : pieces.at("wide")) {
      HostTensor expected = HostTensor::Make(DType::kInt32, piece.box.extent);
      CopyBox(DType::kInt32, piece.box, {all.values.data.get(), all.box}, {expected.data.get(), piece.box});
      EXPECT_EQ(std::memcmp(expected.data.get(), piece.values.data.get(), expected.bytes()), 0)
          << piece.box.str();
    }
    EXPECT_EQ(apart->reads, std::count(rows.begin(), rows.end(), true));
  }
}

TEST(DataPipeline, AnErrorComesInItsTurnAndStays) {
  for (int threads : {1, 4}) {
    auto numbers = std::make_shared<Numbers>(100, 100);
    numbers->fatal = 57;
    DataPipeline data(numbers, {.batch = 10, .shuffle = false, .threads = threads, .ahead = 4});
    for (int i = 0; i < 5; ++i) EXPECT_EQ(Rows(data.Next())[0].second, 10 * i);
    for (int again = 0; again < 2; ++again)
      EXPECT_EQ(ErrorOf([&] { data.Next(); }), "file 'x' at byte 57: wrong");
    EXPECT_EQ(data.position(), 50);
  }
}

// Each thread meets one of its own.
TEST(DataPipeline, OfSeveralErrorsOfABatchTheFirstIsTold) {
  auto numbers = std::make_shared<Numbers>(20'000);
  numbers->broken_every = 500;
  for (int threads : {1, 4}) {
    DataPipeline data(numbers, {.batch = 20'000, .shuffle = false, .threads = threads});
    EXPECT_EQ(ErrorOf([&] { data.Next(); }), "file 'y' at byte 0: broken") << threads;
  }
}

TEST(DataPipeline, BrokenSamplesAreNamedAndReplacedUpToTheirShare) {
  auto numbers = std::make_shared<Numbers>(100, 50);
  numbers->broken_every = 25;  // 0, 25, 50, 75
  std::vector<std::pair<int64_t, int64_t>> before;
  for (int threads : {1, 4}) {
    DataPipeline data(numbers, {.batch = 20, .threads = threads, .broken_share = 0.04});
    std::vector<std::pair<int64_t, int64_t>> rows;
    for (int i = 0; i < 10; ++i)
      for (const auto& row : Rows(data.Next())) rows.push_back(row);
    for (const auto& row : rows) EXPECT_NE(row.second % 25, 0);
    if (threads > 1) {
      EXPECT_EQ(rows, before) << "what takes their place depends on no thread";
    }
    before = rows;
    std::vector<std::string> broken = data.broken();
    std::sort(broken.begin(), broken.end());
    ASSERT_EQ(broken.size(), 4u);
    EXPECT_EQ(broken[1], "file 'y' at byte 25: broken");
  }
  DataPipeline strict(numbers, {.batch = 100});
  EXPECT_NE(ErrorOf([&] { strict.Next(); }).find(": broken"), std::string::npos);
  DataPipeline few(numbers, {.batch = 100, .broken_share = 0.03});
  EXPECT_NE(ErrorOf([&] { few.Next(); }).find("4 samples are broken, but at most 3 of 100 may be"),
            std::string::npos);
  numbers->broken_every = 1;
  DataPipeline all(numbers, {.batch = 100, .broken_share = 1});
  EXPECT_NE(ErrorOf([&] { all.Next(); }).find(": broken"), std::string::npos);
}

TEST(DataPipeline, TheEndIsFilledAndSaid) {
  DataPipeline data(std::make_shared<Numbers>(10),
                    {.batch = 8, .shuffle = false, .epochs = 2, .fill = {{"id", -1}}, .ahead = 5});
  EXPECT_EQ(Rows(data.Next())[7], (std::pair<int64_t, int64_t>{0, 7}));
  EXPECT_EQ(data.rows(), 8);
  EXPECT_EQ(Rows(data.Next())[2], (std::pair<int64_t, int64_t>{1, 0}));
  EXPECT_TRUE(data.More());
  const FeedPieces last = data.Next();
  EXPECT_EQ(data.rows(), 4);
  EXPECT_EQ(Rows(last)[3], (std::pair<int64_t, int64_t>{1, 9}));
  EXPECT_EQ(Rows(last)[4], (std::pair<int64_t, int64_t>{-1, -1}));
  EXPECT_EQ(last.at("wide")[0].values.as<int32_t>()[24 * 4], 0);
  EXPECT_FALSE(data.More());
  EXPECT_EQ(ErrorOf([&] { data.Next(); }), "the data is at its end: 2 epochs of 10 samples");
}

TEST(DataPipeline, MistakesInOptionsAreNamed) {
  auto numbers = std::make_shared<Numbers>(10);
  auto error = [&](const DataPipelineOptions& options) {
    return ErrorOf([&] { DataPipeline(numbers, options); });
  };
  EXPECT_NE(error({}).find("batch of 0"), std::string::npos);
  EXPECT_NE(error({.batch = 1, .start = -1}).find("sample -1"), std::string::npos);
  EXPECT_NE(error({.batch = 1, .threads = 0}).find("0 threads"), std::string::npos);
  EXPECT_NE(error({.batch = 1, .threads = 1 << 30}).find("1073741824 threads"), std::string::npos);
  EXPECT_NE(error({.batch = 1, .ahead = 0}).find("0 batches ahead"), std::string::npos);
  EXPECT_NE(error({.batch = 1, .broken_share = 2}).find("broken_share of a pipeline is 2"),
            std::string::npos);
  EXPECT_NE(error({.batch = 1, .fill = {{"ids", 1}}}).find("field 'ids'"), std::string::npos);
  EXPECT_NE(error({.batch = 4, .needs = {{"x", {{{0}, {4}}}}}})
                .find("input 'x' is needed, but the data has 'id', 'wide'"),
            std::string::npos);
  EXPECT_NE(error({.batch = 4, .needs = {{"id", {{{0, 0}, {8, 3}}}}}})
                .find("input 'id' needs the box [0:8,0:3], but 4 samples of the data are i64[4,3]"),
            std::string::npos);
}

// Of a source of the user's, alone or in a mixture.
TEST(DataPipeline, SourcesThatBreakTheirContractAreNamed) {
  class Odd final : public SampleSource {
   public:
    Odd(int64_t samples, std::vector<SampleField> fields) : samples_(samples), fields_(std::move(fields)) {}
    const std::vector<SampleField>& fields() const override { return fields_; }
    int64_t samples() const override { return samples_; }
    void Read(const SampleId&, std::span<void* const>) const override {}

   private:
    const int64_t samples_;
    const std::vector<SampleField> fields_;
  };
  const SampleField x = {"x", DType::kFloat32, {2}};
  const std::tuple<std::shared_ptr<const SampleSource>, const char*> cases[] = {
      {nullptr, "is null"},
      {std::make_shared<Odd>(0, std::vector{x}), "has 0 samples, must have at least 1"},
      {std::make_shared<Odd>(-7, std::vector{x}), "has -7 samples"},
      {std::make_shared<Odd>(3, std::vector{x, {"", DType::kFloat32, {}}}), "has no name for field 1"},
      {std::make_shared<Odd>(3, std::vector{x, {"y", DType::kInt32, {}}, x}), "has two fields 'x'"},
      {std::make_shared<Odd>(3, std::vector{x, {"y", DType::kInt32, {4, -5}}}),
       "field 'y' has extents [4,-5]"}};
  for (const auto& [source, words] : cases) {
    const std::string alone = ErrorOf([&, &source = source] { DataPipeline(source, {.batch = 2}); });
    EXPECT_NE(alone.find(words), std::string::npos) << alone;
    const auto good = std::make_shared<Odd>(3, std::vector{x});
    const std::string mixed = ErrorOf([&, &source = source] { Mixture({{good, 1}, {source, 1}}); });
    EXPECT_EQ(mixed.rfind("source 1 of a mixture", 0), 0u) << mixed;
    EXPECT_NE(mixed.find(words), std::string::npos) << mixed;
  }
}

// Memory of batches is used again, but not while anybody holds it.
TEST(DataPipeline, WhatIsHeldStaysAsItIs) {
  DataPipeline data(std::make_shared<Numbers>(1000), {.batch = 4, .shuffle = false, .threads = 2});
  std::vector<FeedPieces> held;
  for (int i = 0; i < 30; ++i) {
    FeedPieces next = data.Next();
    if (i % 3 == 0) held.push_back(std::move(next));
  }
  for (size_t i = 0; i < held.size(); ++i) EXPECT_EQ(Rows(held[i])[0].second, static_cast<int64_t>(12 * i));
}

}  // namespace
}  // namespace oneflow_like
