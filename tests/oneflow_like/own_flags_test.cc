// A program that defines `out`, `seed` and `steps` itself, by gflags' macros: it is linked, its flags count
// where the Launcher has some of these names, and a group that has them is refused by name. Entries of its
// own reach their fields, and are refused outside their ranges.
#include <gflags/gflags.h>
#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "core/system/exit_codes.h"
#include "oneflow_like/program/language_flags.h"

DEFINE_string(out, "kept.txt", "file of the program");
DEFINE_int32(seed, 5, "seed of the program");
DEFINE_int64(steps, 7, "steps of the program");

namespace oneflow_like {
namespace {

struct Flags {
  int64_t hidden = 64;
  double rate = 0.5;
  std::string shape = "ring";
  bool loud = false;
} flags;

FlagGroup OwnGroup() {
  return {"own",
          "Own",
          {{"hidden", &flags.hidden, "Sets the width of the hidden layer.", RangeOf(1, 4096), kCommon},
           {"rate", &flags.rate, "Sets the rate of the own model.", RangeBelow(0, 1)},
           {"shape", &flags.shape, "Chooses the shape of the data.", ChoiceOf({"ring", "moon"}), kKept},
           {"loud", &flags.loud, "Prints more than it has to."}}};
}

// Runs `body` with a launcher that has these arguments and groups; returns its exit code.
template <typename Body>
int WithLauncher(std::vector<std::string> arguments, const std::vector<FlagGroup>& groups, const Body& body) {
  arguments.insert(arguments.begin(), "own_flags_test");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  int argc = static_cast<int>(pointers.size());
  char** argv = pointers.data();
  Launcher launcher(&argc, &argv, "Tests flags.", "cpu:dp=1", {}, groups);
  body(launcher);
  return 0;
}

void ExpectRefused(const std::vector<std::string>& arguments, const std::vector<FlagGroup>& groups,
                   const std::string& sentence) {
  std::string pattern = "error: " + sentence;  // whose signs mean themselves
  for (char& c : pattern)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '.';
  EXPECT_EXIT(exit(WithLauncher(arguments, groups, [](const Launcher&) {})),
              testing::ExitedWithCode(kUsageError), pattern);
}

TEST(OwnFlags, TheProgramsFlagsCount) {
  WithLauncher(
      {"--out=mine", "--seed=-3", "--steps=9", "--hidden=32", "--rate=0.25", "--loud", "--threads=2"},
      {OwnGroup()}, [](const Launcher& launcher) {
        EXPECT_EQ(FLAGS_out, "mine");
        EXPECT_EQ(FLAGS_seed, -3);
        EXPECT_EQ(FLAGS_steps, 9);
        EXPECT_EQ(flags.hidden, 32);
        EXPECT_EQ(flags.rate, 0.25);
        EXPECT_TRUE(flags.loud);
        EXPECT_EQ(launcher.model_options().seed, 1u) << "the Launcher's own keeps its default";
        EXPECT_EQ(launcher.model_options().threads, 2);
        EXPECT_TRUE(IsGiven("hidden"));
        EXPECT_FALSE(IsGiven("shape"));
        EXPECT_FALSE(IsGiven("context")) << "a flag of a group that nobody asked for";
      });
}

TEST(OwnFlags, AGroupWithANameOfTheProgramIsRefused) {
  ExpectRefused({}, TrainingGroups(),
                "the program defines a flag --steps itself and asks for the group 'training', which has one "
                "of this name; rename the program's flag");
  static std::string shape;
  ExpectRefused({}, {OwnGroup(), {"other", "Other", {{"shape", &shape, "Chooses the shape of the data."}}}},
                "the program asks for two groups of flags that both have --shape, the second one is 'other'");
}

TEST(OwnFlags, ValuesOutsideTheirRangesAreRefused) {
  ExpectRefused({"--hidden=0"}, {OwnGroup()}, "--hidden is 0, must be at least 1");
  ExpectRefused({"--hidden=4097"}, {OwnGroup()}, "--hidden is 4097, must be at most 4096");
  ExpectRefused({"--rate=1"}, {OwnGroup()}, "--rate is 1, must lie in [0, 1)");
  ExpectRefused({"--rate=nan"}, {OwnGroup()}, "--rate is NaN, must lie in [0, 1)");
  ExpectRefused({"--shape=star"}, {OwnGroup()}, "--shape=star: must be ring or moon");
  ExpectRefused({"--hiden=3"}, {OwnGroup()}, "there is no flag --hiden; did you mean --hidden?");
}

TEST(OwnFlags, WhatIsKnownOfThem) {
  RegisterFlags(OwnGroup());
  RegisterFlags(OwnGroup());  // again, the same: nothing happens
  EXPECT_EQ(FlagsWith(kKept),
            (std::vector<std::pair<std::string, std::string>>{{"shape", "ring"}, {"tf32", "false"}}));
  const std::string table = FlagTables({OwnGroup()});
  EXPECT_NE(table.find("| `--shape` | `ring` | Chooses the shape of the data. | yes |  |\n"),
            std::string::npos)
      << table;
}

}  // namespace
}  // namespace oneflow_like
