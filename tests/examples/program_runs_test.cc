// The example programs beside gpt, llama and mlp as one runs them: without data, on a mesh, saved and gone on
// with on another one; with files; and what they refuse.
// ctest: programs=examples
#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/system/exit_codes.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

using Flags = std::vector<std::string>;

struct SmallProgram {
  std::string name;
  Flags flags;                          // that make it small
  std::string measured;                 // what it says of what is held out
  std::vector<Flags> refused;           // the flags, and words of the sentence
  std::string other = "cpu:tp=2,pp=2";  // a mesh to go on with
};

const std::vector<SmallProgram> kPrograms = {
    {"resnet",
     {"--image_size=8", "--norm_parts=4"},
     "held-out accuracy",
     {{"--size=19", "tiny, 18 or 50"},
      {"--norm_parts=3", "multiple of --micro_batches=2"},
      {"--momentum=1", "[0, 1)"},
      {"--idx=a --image_size=0", "No such file"},
      {"--images=a", "a/train"},
      {"--idx=a --images=b", "one of the two"},
      {"--image_size=-1", "at least 0"},
      {"--mesh=cpu:pp=7", "7 stages", "6 layers"}}},
    {"vit",
     {"--image_size=8", "--layers=2"},
     "held-out accuracy",
     {{"--size=huge", "tiny, small or base"},
      {"--patch=3", "3 pixels do not divide pictures of 8 x 8"},
      {"--dropout=1", "[0, 1)"},
      {"--mesh=cpu:pp=3", "3 stages", "2 layers"}}},
    {"dlrm",
     {"--tables=3", "--rows=40"},
     "always guessing",
     {{"--cut=half", "--cut=half: must be rows, columns or mixed"},
      {"--optimizer=adam", "adagrad or sgd"},
      {"--clicks=a", "a"},
      {"--tables=0", "at least 1"},
      {"--mesh=cpu:pp=5", "5 stages", "4 layers"}}},
    {"moe",
     {"--layers=2", "--width=16", "--heads=2", "--context=8", "--experts=3"},
     "held-out loss",
     {{"--top_k=4", "top_k is 4"},
      {"--heads=3", "heads is 3"},
      {"--capacity=0", "more than 0"},
      {"--shared=-1", "--shared is -1"},
      {"--room=1 --capacity=1", "--room is in place of --capacity"},
      {"--room=1 --mesh=cpu:ep=2", "2 ranks of mesh axis ep do not divide the 3 experts"},
      {"--sequence_parallel", "sequences cannot be cut"},
      {"--mesh=cpu:xp=2", "xp"}},
     "cpu:ep=2,pp=2"},
    {"bert",
     {"--layers=2", "--context=8"},
     "masked tokens guessed",
     {{"--size=large", "tiny, mini, small or base"}, {"--text=a", "a"}, {"--mesh=cpu:pp=3", "2 layers"}}},
    {"caption",
     {"--image_size=8", "--layers=2"},
     "held-out loss",
     {{"--image_size=10", "multiple of the 4 pixels"},
      {"--mesh=cpu:pp=3", "caption: mesh axis pp", "2 layers"}}},
    {"unet",
     {"--image_size=8", "--width=4"},
     "guessing no noise",
     {{"--width=6", "multiple of 4"},
      {"--image_size=10", "10 x 10 pixels"},
      {"--draw_steps=0", "at least 1"},
      {"--mesh=cpu:pp=3", "3 stages"}}},
    {"insightface",
     {"--image_size=8", "--identities=40", "--sampled=12"},
     "of pairs told apart",
     {{"--sampled=3", "3 identities are sampled"},
      {"--identities=3", "faces of a batch"},
      {"--margin=2", "at most 1.5"},
      {"--identities=1", "at least 2"}}},
};

class ProgramRuns : public ::testing::TestWithParam<SmallProgram> {
 protected:
  // The exit code; what it says stays in out_ and err_.
  int Run(const Flags& more) {
    const SmallProgram& program = GetParam();
    Flags flags = {"--batch=12", "--micro_batches=2", "--steps=4", "--eval_batches=1", "--kernel_threads=1"};
    flags.insert(flags.end(), program.flags.begin(), program.flags.end());
    flags.insert(flags.end(), more.begin(), more.end());
    Process process({.program = std::string(OFL_BINARY_DIR) + "/examples/" + program.name,
                     .flags = flags,
                     .output = folder_ / "printed"});
    EXPECT_TRUE(process.WaitUntil(Seconds() + 240)) << "it hangs";
    out_ = process.out();
    err_ = process.err();
    return process.code();
  }

  TestFolder folder_{"program_runs_test"};
  std::string out_, err_;
};

TEST_P(ProgramRuns, SaveAndGoOnOnAnotherMesh) {
  const std::string log = folder_ / "log", saved = folder_ / "saved";
  ASSERT_EQ(Run({"--mesh=cpu:dp=2", "--save=" + saved, "--save_every=2", "--log_json=" + log}), 0) << err_;
  EXPECT_NE(out_.find(GetParam().measured), std::string::npos) << out_;
  const std::vector<double> one = LossesOf(log);
  ASSERT_EQ(one.size(), 4u);
  ASSERT_EQ(Run({"--mesh=" + GetParam().other, "--resume=" + saved + "/step-00000002", "--log_json=" + log}),
            0)
      << err_;
  EXPECT_NE(out_.find(GetParam().measured), std::string::npos) << out_;
  const std::vector<double> other = LossesOf(log);
  ASSERT_EQ(other.size(), 4u);
  for (int step = 2; step < 4; ++step) EXPECT_NEAR(other[step], one[step], 1e-5 * one[step]) << step;
  EXPECT_EQ(Run({"--load=" + saved, "--steps=1"}), 0) << err_;
}

TEST_P(ProgramRuns, FindTheirPlans) {
  ASSERT_EQ(Run({"--auto_mesh=2", "--recompute=none", "--zero=0", "--steps=1"}), 0) << err_;
  EXPECT_NE(out_.find("chosen: --mesh=cpu:"), std::string::npos) << out_;
  EXPECT_NE(out_.find(" --micro_batches=2\n"), std::string::npos) << out_;  // it was given
  EXPECT_NE(out_.find(GetParam().measured), std::string::npos) << out_;
}

// Mistakes that no mesh can make good are refused before a run begins.
TEST_P(ProgramRuns, RefuseInOneSentence) {
  static const std::regex kBefore("--(size|patch|optimizer|cut|text|clicks|idx|images|load)=.*");
  std::vector<Flags> refused = GetParam().refused;
  refused.push_back({"--load=a", "--load=a: there is nothing of that name"});
  for (const Flags& flags : refused) {
    Flags given;
    std::istringstream words(flags[0]);
    for (std::string flag; words >> flag;) given.push_back(flag);
    SCOPED_TRACE(flags[0]);
    const int code = Run(given);
    EXPECT_TRUE(code == kUsageError || (code == kRunError && !std::regex_match(given[0], kBefore))) << code;
    EXPECT_EQ(err_.rfind("error: ", 0), 0u) << err_;
    EXPECT_EQ(LinesOf(err_).size(), 1u) << err_;
    for (size_t i = 1; i < flags.size(); ++i)
      EXPECT_NE(err_.find(flags[i]), std::string::npos) << flags[i] << "\n" << err_;
  }
}

// Labels that are none, wherever they are: what is held out is looked at before anything is learnt.
// A message that a gradient's cast wants first and the next layer too.
TEST(Experts, InSixteenBitsAreComputedAgainOnAnyMesh) {
  for (const char* dtype : {"bf16", "fp16"})
    for (const char* mesh : {"ep=2", "ep=4", "dp=2,ep=2"})
      for (const char* mode : {"selective", "full"}) {
        const ShellOutcome o = Shell(
            Cat(OFL_BINARY_DIR, "/examples/moe --layers=2 --width=16 --heads=2 --experts=4 --context=16 ",
                "--batch=4 --dry_run --mesh=cpu:", mesh, " --dtype=", dtype, " --recompute=", mode));
        EXPECT_EQ(o.code, 0) << o.output;
      }
}

// Weights and averages that a training keeps on the host, cut in parts that micro-batches make.
TEST(Tables, OnTheHostAreEvaluated) {
  for (const char* flags :
       {"--dtype=bf16 --offload=weights", "--optimizer=sgd --average=0.9 --offload=optimizer"}) {
    const std::string all = flags, given = all.substr(0, all.find("--offload"));
    const auto held_out = [&](const std::string& more) {
      const ShellOutcome o = Shell(
          Cat(OFL_BINARY_DIR, "/examples/dlrm --steps=1 --batch=64 --eval_batches=1 --tables=4 --rows=5000 ",
              "--cut=rows --mesh=cpu:tp=2 --micro_batches=2 ", more));
      EXPECT_EQ(o.code, 0) << o.output;
      const size_t at = o.output.find("held-out loss");
      return at == std::string::npos ? std::string("none")
                                     : o.output.substr(at, o.output.find('\n', at) - at);
    };
    EXPECT_EQ(held_out(all), held_out(given));
    EXPECT_NE(held_out(all), "none");
  }
}

TEST(Clicks, OfWrongLabelsAreRefusedWithTheirLine) {
  TestFolder folder("program_runs_clicks");
  const auto run = [&](const std::string& log, const std::string& flags) {
    return Shell(Cat(OFL_BINARY_DIR,
                     "/examples/dlrm --dense=1 --tables=1 --rows=10 --batch=8 --steps=10 --clicks=", log, " ",
                     flags));
  };
  const auto lines = [](int wrong, const std::string& word, const std::string& end) {
    std::string text;
    for (int i = 0; i < 100; ++i)
      text += Cat(i > 0 ? "\n" : "", i == wrong ? word : Cat(i % 3 == 0), "\t", i, "\tw", i % 7);
    return text + end;
  };
  for (const char* end : {"", "\n", "\n\n", "\r\n\r\n"}) {
    const ShellOutcome o = run(folder.Write("good", lines(97, "+1", end)), "");
    EXPECT_EQ(o.code, 0) << o.output;
    EXPECT_NE(o.output.find("over 5 samples"), std::string::npos) << o.output;
  }
  for (const int wrong : {3, 97})  // to learn from, held out
    for (const char* word : {"-1", "2", "1.5", "x", ""}) {
      const std::string log = folder.Write("wrong", lines(wrong, word, "\n"));
      const ShellOutcome o = run(log, "");
      SCOPED_TRACE(o.output);
      EXPECT_EQ(o.code, wrong == 97 ? kUsageError : kRunError) << wrong << " " << word;
      EXPECT_NE(o.output.find(Cat("error: ", log, " at byte ")), std::string::npos) << word;
      EXPECT_NE(o.output.find(Cat("of line ", wrong + 1, " is '", word, "', ")), std::string::npos) << word;
      EXPECT_EQ(o.output.find("held-out loss"), std::string::npos);
      if (wrong == 97) {
        EXPECT_EQ(o.output.find("step "), std::string::npos);
      }
    }
  // Not measured, so not looked at.
  EXPECT_EQ(run(folder.Write("wrong", lines(97, "2", "")), "--eval_batches=0").code, 0);
}

INSTANTIATE_TEST_SUITE_P(Of, ProgramRuns, ::testing::ValuesIn(kPrograms),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace oneflow_like
