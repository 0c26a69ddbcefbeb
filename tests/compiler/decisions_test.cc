// Decisions as text: what is written reads back, and other text is refused or reads as some that does.
// ctest: asan=20
#include "compiler/decisions.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/error_of.h"

namespace oneflow_like {
namespace {

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}

  SavedPlan Plan() {
    SavedPlan plan{.model = Name(), .machine = Name()};
    Decisions& d = plan.decisions;
    const std::array meshes = {"cpu:dp=2,tp=4,pp=1", "cuda:pp=2,dp=8", "cpu+cuda:pp=2,tp=2", "cpu"};
    d.mesh = Mesh::Parse(meshes[Below(4)]);
    d.micro_batches = 1 + Below(1000);
    d.schedule = static_cast<PipelineSchedule>(Below(4));
    d.virtual_stages = 1 + Below(5);
    d.zero = Below(4);
    d.recompute = static_cast<Recompute>(Below(3));
    d.sequence_parallel = Below(2) == 1;
    for (int i = Below(3); i > 0; --i)
      for (int stage = 1 + Below(4); stage > 0; --stage) d.stages[Name()].push_back(Below(9));
    std::erase_if(d.stages, [](const auto& stack) { return stack.second.empty(); });
    for (int i = Below(5); i > 0; --i) d.waits[Name()] = static_cast<Recompute>(Below(3));
    for (int i = Below(6); i > 0; --i) {
      VariableCut& cut = d.cuts[Name()];
      for (int axis = 0; axis < d.mesh.rank(); ++axis) {
        if (Below(2)) continue;
        cut.fixed[1 + axis] = Below(3) == 0 ? B() : S(Below(4), Below(2) ? 1 : 64);
        if (Below(2)) cut.stored.insert(1 + axis);
      }
    }
    return plan;
  }

  // Some bytes and lines of a text exchanged, doubled, or left out.
  std::string Broken(std::string text) {
    for (int i = 1 + Below(4); i > 0 && !text.empty(); --i) {
      const size_t at = Below(static_cast<int>(text.size())), length = 1 + Below(12);
      switch (Below(4)) {
        case 0:
          text[at] = static_cast<char>(Below(256));
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(at, text.substr(Below(static_cast<int>(text.size())), length));
          break;
        default: {
          const size_t line = text.rfind('\n', at) + 1, end = text.find('\n', at);
          const std::string copy = text.substr(line, end == std::string::npos ? end : end - line + 1);
          text.insert(text.find('\n') + 1, copy);
        }
      }
    }
    return text;
  }

 private:
  int Below(int most) { return static_cast<int>(random_() % static_cast<unsigned>(most)); }
  // Any characters that a user may call a weight.
  std::string Name() {
    const std::string letters = "ab/ 0*:,\\\n\t-";
    std::string name = "w";
    for (int i = Below(12); i > 0; --i) name += letters[Below(static_cast<int>(letters.size()))];
    return name;
  }

  std::mt19937 random_;
};

// Of model and machine, which are ours, in one line.
SavedPlan OneLineEach(SavedPlan plan) {
  for (std::string* text : {&plan.model, &plan.machine}) std::erase(*text, '\n');
  return plan;
}

TEST(Decisions, ReadBackAsTheyWere) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    const SavedPlan plan = OneLineEach(Draw(seed).Plan());
    const std::string text = ToText(plan);
    const SavedPlan back = ParseSavedPlan(text);
    ASSERT_EQ(back.decisions, plan.decisions) << "seed " << seed << "\n" << text;
    ASSERT_EQ(back.model, plan.model);
    ASSERT_EQ(back.machine, plan.machine);
    ASSERT_EQ(ToText(back), text);
  }
}

TEST(Decisions, BrokenTextIsRefusedOrReadsBack) {
  int refused = 0, trials = 20'000;
  for (int seed = 0; seed < trials; ++seed) {
    Draw draw(static_cast<uint32_t>(seed));
    const std::string text = draw.Broken(ToText(OneLineEach(draw.Plan())));
    const std::string error = ErrorOf([&] {
      const SavedPlan plan = ParseSavedPlan(text);
      ASSERT_EQ(ParseSavedPlan(ToText(plan)).decisions, plan.decisions) << "seed " << seed << "\n" << text;
    });
    refused += !error.empty();
  }
  EXPECT_GT(refused, trials / 2);
}

TEST(Decisions, RefusalsSayTheLine) {
  const std::string text =
      ToText(SavedPlan{.decisions = {.mesh = Mesh::Parse("cpu:dp=2")}, .model = "m", .machine = "n"});
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    return ErrorOf([&] { ParseSavedPlan(other); });
  };
  EXPECT_EQ(error("oneflow_like plan 1", "oneflow_like plan 2"),
            "line 1: the text does not begin with \"oneflow_like plan 1\"");
  EXPECT_EQ(error("micro_batches 1", "micro_batches 0"), "line 5: '0' is no number from 1 to 1048576");
  EXPECT_EQ(error("schedule 1f1b", "schedule fastest"),
            "line 6: 'fastest' is none of gpipe, 1f1b, interleaved, zero_bubble");
  EXPECT_EQ(error("zero 0\n", ""), "the plan lacks its line 'zero'");
  EXPECT_EQ(error("zero 0\n", "zero 0\nzero 1\n"), "line 9: 'zero' is there twice");
  EXPECT_EQ(error("zero 0\n", "zero 0\nweight tp:S0 w\n").substr(0, 19), "line 9: a cut: mesh");
  EXPECT_EQ(error("zero 0\n", "zero 0\nweight dp:P w\n"), "line 9: a weight is cut or whole, not P");
  EXPECT_EQ(error("zero 0\n", "zero 0\nwait auto w\n"), "line 9: 'auto' is none of none, selective, full");
  EXPECT_EQ(error("zero 0\n", "zero 0\ncolour red\n"), "line 9: a plan does not know 'colour'");
  EXPECT_EQ(error("zero 0\n", "zero 0\r\n"),
            "line 8: it ends with a carriage return; lines end with a newline alone");
  EXPECT_EQ(error("zero 0\n", "zero 0\n\n"), "line 9: it is empty");
  EXPECT_EQ(error("zero 0\n", "zero 0\nend\n"), "line 10: the plan has ended before it");
  EXPECT_EQ(error("end\n", ""), "the plan lacks its last line 'end'");
  EXPECT_EQ(ErrorOf([&] { ParseSavedPlan(""); }), "it is empty");
  EXPECT_EQ(ErrorOf([&] { ParseSavedPlan(text.substr(0, text.size() - 1)); }), "line 11 does not end");
}

}  // namespace
}  // namespace oneflow_like
