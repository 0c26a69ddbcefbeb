// What the examples do with texts.
// ctest: asan=10
#include "oneflow_like/program/data.h"

#include "oneflow_like/data/files.h"
#include "tests/oneflow_like/data/files_fixture.h"

namespace oneflow_like {
namespace {

using DataTest = FilesTest;

TEST_F(DataTest, SplitHoldsOutTheEnd) {
  const std::string path = Write("t.txt", std::string(1000, 'x'));
  auto split = [&](int64_t context) {
    const TextSplit text = OpenText(path, context);
    return std::pair<int64_t, int64_t>{text.train.size(), text.held_out.size()};
  };
  EXPECT_EQ(split(9), (std::pair<int64_t, int64_t>{950, 50}));
  EXPECT_EQ(split(99), (std::pair<int64_t, int64_t>{900, 100})) << "at least one sequence";
  EXPECT_EQ(split(700), (std::pair<int64_t, int64_t>{1000, 0})) << "nothing would be left";
  EXPECT_EQ(split(999), (std::pair<int64_t, int64_t>{1000, 0}));
  ExpectSays([&] { split(1000); }, path, "1000 tokens, but one sequence takes context + 1 = 1001");
}

TEST_F(DataTest, VocabulariesOfTokenFilesAreExactAndTablesRounded) {
  for (auto [token, rows] : {std::pair{50256, 50304}, {127, 128}, {128, 256}}) {
    const std::string path =
        Write("t.bin", LlmcFile<uint16_t>(20240520, 1, 2, {1, static_cast<uint16_t>(token)}));
    EXPECT_EQ(OpenText(path, 1).vocabulary, token + 1);
    EXPECT_EQ(RoundedVocabulary(token + 1), rows);
  }
  EXPECT_EQ(OpenText(Write("t.txt", "ab"), 1).vocabulary, 256);
}

TEST_F(DataTest, LearnableRowsFollowTheirRuleButForNoise) {
  for (int64_t tokens : {2, 61, 256}) {
    const LearnableRows rows(500, tokens, 10, 100), later(500, tokens, 13, 100);
    std::vector<int32_t> in(500), out(500), again(500), next(500);
    void* const to[] = {in.data(), out.data()};
    rows.Read({.seed = 3, .index = 4}, to);
    int odd = 0;
    for (int t = 0; t < 500; ++t) {
      ASSERT_TRUE(0 <= out[t] && out[t] < tokens) << out[t];
      if (t > 0) {
        ASSERT_EQ(in[t], out[t - 1]) << t;
      }
      odd += out[t] != (5 * in[t] + 3) % tokens;
    }
    EXPECT_NEAR(odd / 500.0, (1 - 1.0 / tokens) / 8, 0.05) << tokens;
    void* const same[] = {again.data(), next.data()};
    later.Read({.seed = 3, .epoch = 2, .index = 1}, same);
    EXPECT_EQ(again, in) << "row 14, whatever it is counted from";
    later.Read({.seed = 4, .index = 1}, same);
    EXPECT_NE(again, in) << "another seed";
  }
}

TEST_F(DataTest, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(Escaped("a\n\tb\x1b[2J\x07\xc3"), "a\n\tb\\x1b[2J\\x07\\xc3");
}

}  // namespace
}  // namespace oneflow_like
