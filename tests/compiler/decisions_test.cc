// Decisions as text: what is written reads back, and other text is refused or reads as some that does.
// ctest: asan=20
#include "compiler/plan/decisions.h"

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
    SavedPlan plan{.model = Name(), .machine = Name(), .tf32 = Below(2) == 1};
    Decisions& d = plan.decisions;
    const std::array meshes = {"cpu:dp=2,tp=4,pp=1", "cuda:pp=2,dp=8", "cpu+cuda:pp=2,tp=2", "cpu"};
    d.mesh = Mesh::Parse(meshes[Below(4)]);
    d.micro_batches = 1 + Below(1000);
    d.schedule = static_cast<PipelineSchedule>(Below(4));
    d.virtual_stages = 1 + Below(5);
    d.zero = Below(4);
    if (d.zero > 0 && d.mesh.rank() > 1) d.zero_axis = d.mesh.NameOf(Below(2) ? MeshAxes{0, 1} : MeshAxes{1});
    if (d.mesh.rank() < 2) d.zero = 0;
    d.recompute = kRecomputeModes[Below(5)];
    d.sequence_parallel = Below(2) == 1;
    d.context_parallel = Below(2) == 1;
    d.ulysses = Below(2) == 1;
    if (Below(2)) d.logits_tile = Below(2000);
    const std::array types = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
    if (Below(2)) d.reduce_dtype = types[Below(3)];
    if (d.reduce_dtype && d.mesh.rank() > 1 && Below(2)) d.reduce_axis = d.mesh.NameOf(MeshAxes{Below(2)});
    if (Below(2)) d.overlap = {.chunks = 1 + Below(64), .always = Below(2) == 1};
    if (d.overlap && Below(2)) d.overlap->gain = Below(1000) / 1001.;
    if (Below(2)) d.bucket = int64_t{Below(1 << 20)} << Below(40);
    if (Below(2)) d.prefetch = Below(9);
    const std::array wanted = {"", "ring", "all_reduce:tree", "all_gather:direct,reduce_scatter:ring"};
    if (Below(2)) d.algorithms = ParseWantedAlgorithms(wanted[Below(4)], "drawn");
    d.exact_groups = Below(2) == 1;
    if (Below(2)) d.zero_small = Below(5000);
    if (Below(2)) d.offload = {.optimizer = Below(2) ? 1 : 1. / (2 + Below(9)), .tables = Below(2) == 1};
    d.offload.prefetch = Below(2) ? Below(9) : d.prefetch.value_or(1);
    if (Below(2)) d.offload.small = Below(5000);
    for (int i = Below(3); i > 0; --i)
      for (int stage = 1 + Below(4); stage > 0; --stage) d.stages[Name()].push_back(Below(9));
    std::erase_if(d.stages, [](const auto& stack) { return stack.second.empty(); });
    for (int i = Below(5); i > 0; --i) d.waits[Name()] = kRecomputeModes[Below(5)];
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
    ASSERT_EQ(back.tf32, plan.tf32);
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

// Plans of older builds say nothing of messages: a session's options count there.
TEST(Decisions, WhatAnOlderPlanLacksIsLeftOpen) {
  SavedPlan plan{.decisions = {.mesh = Mesh::Parse("cpu:dp=2")}, .model = "m", .machine = "n"};
  const std::string old = ToText(plan);
  ASSERT_EQ(old.find("tf32"), std::string::npos) << old;
  plan.decisions.reduce_dtype = DType::kBFloat16;
  plan.decisions.overlap = {.chunks = 2};
  plan.decisions.bucket = 0;
  plan.decisions.prefetch = plan.decisions.offload.prefetch = 0;
  plan.decisions.algorithms = WantedAlgorithms();
  const std::string text = ToText(plan),
                    lines = "reduce_dtype bf16\noverlap 2\nbucket 0\nprefetch 0\ncollectives cheapest\n";
  ASSERT_NE(text.find(lines), std::string::npos) << text;
  EXPECT_EQ(std::string(text).replace(text.find(lines), lines.size(), ""), old);
  const Decisions d = ParseSavedPlan(old).decisions;
  EXPECT_FALSE(d.reduce_dtype || d.overlap || d.bucket || d.prefetch || d.algorithms);
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
  EXPECT_EQ(error("micro_batches 1", "micro_batches 0"), "line 5: '0' is no number from 1 to 65536");
  EXPECT_EQ(error("schedule 1f1b", "schedule fastest"),
            "line 6: 'fastest' is none of gpipe, 1f1b, interleaved, zero_bubble");
  for (const char* bad : {"zero 3\n", "zero 0 over dp\n", "zero 4 over dp\n", "zero 1 over \n"})
    EXPECT_EQ(error("zero 0\n", bad).substr(0, 7), "line 8:") << bad;
  EXPECT_EQ(error("zero 0\n", "zero 1 over cp\n").substr(0, 13), "line 8: zero:");
  EXPECT_EQ(error("zero 0\n", ""), "the plan lacks its line 'zero'");
  EXPECT_EQ(error("zero 0\n", "zero 0\nzero 1\n"),
            "line 9: 'zero' is there twice, in line 8 as well; leave one of the two out");
  EXPECT_EQ(error("zero 0\n", "zero 0\nweight tp:S0 w\n").substr(0, 19), "line 9: a cut: mesh");
  EXPECT_EQ(error("zero 0\n", "zero 0\nweight dp:P w\n"), "line 9: a weight is cut or whole, not P");
  EXPECT_EQ(error("zero 0\n", "zero 0\nwait auto w\n"),
            "line 9: 'auto' is none of none, gather, selective, selective+gather, full, host");
  for (const char* named : {"wait full w\n", "weight dp:S0 w\n", "blocks 1 w\n"})
    EXPECT_EQ(error("zero 0\n", Cat("zero 0\n", named, named)),
              Cat("line 10: '", std::string(named).substr(0, std::string(named).find(' ')),
                  " w' is there twice, in line 9 as well; leave one of the two out"));
  EXPECT_EQ(error("zero 0\n", "zero 0\nweight dp:S0,dp:S1 w\n"),
            "line 9: 'dp:S0,dp:S1' has mesh axis dp twice; leave one of the two out");
  EXPECT_EQ(error("zero 0\n", "zero 0\nulysses 0\n"),
            "line 9: 'ulysses 0' must be 'ulysses 1'; a plan without it lacks the line");
  EXPECT_EQ(error("zero 0\n", "zero 0\ncolour red\n"), "line 9: a plan does not know 'colour'");
  EXPECT_EQ(error("zero 0\n", "zero 0\nreduce_dtype i8\n"), "line 9: 'i8' is none of f32, bf16, f16");
  EXPECT_EQ(error("zero 0\n", "zero 0\nreduce_dtype bf16 over \n"), "line 9: it names no axis of sums");
  EXPECT_EQ(error("zero 0\n", "zero 0\nreduce_dtype bf16 over cp\n").substr(0, 21), "line 9: reduce_dtype:");
  EXPECT_EQ(error("zero 0\n", "zero 0\noverlap 0\n"), "line 9: '0' is no number from 1 to 64");
  for (const char* bad :
       {"4 gain", "4 gain 1", "4 gain x", "4 always always", "4 always gain 0.5", "4  always"})
    EXPECT_EQ(error("zero 0\n", Cat("zero 0\noverlap ", bad, "\n")),
              Cat("line 9: overlap is '", bad, "'; expected CHUNKS [gain NUMBER in [0, 1)] [always]"));
  EXPECT_EQ(error("zero 0\n", "zero 0\ncollectives fastest\n").substr(0, 47),
            "line 9: collectives fastest: 'fastest' is no al");
  EXPECT_EQ(error("zero 0\n", "zero 0\nprefetch -1\n"), "line 9: '-1' is no number from 0 to 1000");
  EXPECT_EQ(error("zero 0\n", "zero 0\r\n"),
            "line 8: it ends with a carriage return; lines end with a newline alone");
  EXPECT_EQ(error("zero 0\n", "zero 0\n\n"), "line 9: it is empty");
  EXPECT_EQ(error("zero 0\n", "zero 0\nend\n"), "line 10: the plan has ended before it");
  EXPECT_EQ(error("end\n", ""), "the plan lacks its last line 'end'");
  EXPECT_EQ(ErrorOf([&] { ParseSavedPlan(""); }), "it is empty");
  EXPECT_EQ(ErrorOf([&] { ParseSavedPlan(text.substr(0, text.size() - 1)); }),
            "line 11 lacks the newline at its end");
}

}  // namespace
}  // namespace oneflow_like
