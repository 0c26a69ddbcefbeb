// --out and --config: a run's folder holds what it was and what it left, and its config repeats it bit for
// bit.
// ctest: programs=gpt,hello_sbp
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/system/exit_codes.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

class RunFolder : public ::testing::Test {
 protected:
  ShellOutcome Run(const std::string& program, const std::string& flags) {
    return Shell(Cat(OFL_BINARY_DIR, "/examples/", program, " ", flags));
  }
  void Refused(const std::string& flags, const std::vector<std::string>& words) {
    const ShellOutcome o = Run("gpt", kSmall + flags);
    EXPECT_EQ(o.code, kUsageError) << flags << "\n" << o.output;
    EXPECT_EQ(o.output.find("error: "), o.output.rfind("error: ")) << o.output;
    for (const std::string& word : words)
      EXPECT_NE(o.output.find(word), std::string::npos) << word << "\n" << o.output;
  }
  // Each step's line, but for times and memory.
  std::vector<std::string> Losses(const std::string& metrics) {
    std::vector<std::string> losses;
    const std::regex wanted("\"(step|loss|grad_norm|lr|held_out_loss)\": ?[^,}]*");
    for (const std::string& line : LinesOf(TextOf(metrics))) {
      std::string text;
      for (std::sregex_iterator i(line.begin(), line.end(), wanted), end; i != end; ++i)
        text += i->str() + " ";
      losses.push_back(text);
    }
    return losses;
  }
  // What gpt wrote at the end, with the prompt.
  static std::string SampleOf(const std::string& output) {
    const size_t begin = output.find("--- a sample ---\n");
    return begin == std::string::npos ? "" : output.substr(begin, output.find("a step of train") - begin);
  }
  const std::string kSmall =
      "--layers=2 --width=16 --heads=2 --context=16 --batch=8 --steps=6 --eval_batches=2 --sample_tokens=0 ";
  TestFolder folder_{"run_folder_test"};
};

// With all kinds of flags, and with several processes.
TEST_F(RunFolder, ItsConfigRepeatsTheRun) {
  const std::string settings[] = {
      "", "--seed=5 --lr=0.003 --dtype=bf16 --mesh=cpu:dp=2,pp=2 --micro_batches=2",
      "--mesh=cpu:dp=2 --processes=2 --zero=1 --nosequence_parallel", "--prompt=\"two words = three\"",
      // What is no line as it is: ends of lines, quotation marks, blanks at the end, tabs, other alphabets.
      "--sample_tokens=4 --prompt='\"a\" \\n\n--lr=5\r\n\tb ü \x01  '"};
  int number = 0;
  for (const std::string& flags : settings) {
    SCOPED_TRACE(flags);
    const std::string first = folder_ / Cat("first", number), again = folder_ / Cat("again", number);
    ++number;
    ShellOutcome o = Run("gpt", Cat(kSmall, flags, " --out=", first));
    ASSERT_EQ(o.code, 0) << o.output;
    EXPECT_NE(TextOf(first + "/build").find(OFL_VERSION), std::string::npos);
    EXPECT_NE(TextOf(first + "/config").find("--context=16\n"), std::string::npos);
    EXPECT_EQ(TextOf(first + "/config").find(first), std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(first + "/checkpoints/step-00000006"));
    std::string log;
    for (const auto& file : std::filesystem::directory_iterator(first + "/log")) log += TextOf(file.path());
    for (const char* line : {"session train is compiled", "session train is ready", "checkpoint "})
      EXPECT_NE(log.find(line), std::string::npos) << line << "\n" << log;
    EXPECT_EQ(o.output.find("session train is"), std::string::npos) << o.output;
    EXPECT_FALSE(std::filesystem::is_empty(first + "/tensorboard"));
    const std::vector<std::string> losses = Losses(first + "/metrics.jsonl");
    ASSERT_GE(losses.size(), 6u);
    EXPECT_NE(losses[0].find("\"loss\""), std::string::npos);
    const std::string sample = SampleOf(o.output);
    o = Run("gpt", Cat("--config=", first, "/config --out=", again));
    ASSERT_EQ(o.code, 0) << o.output;
    EXPECT_EQ(Losses(again + "/metrics.jsonl"), losses);
    EXPECT_EQ(TextOf(again + "/config"), TextOf(first + "/config"));
    EXPECT_EQ(SampleOf(o.output), sample);
    o = Run("gpt", Cat("--config=", first, "/config --seed=77 --out=", again, "77"));
    ASSERT_EQ(o.code, 0) << o.output;
    EXPECT_NE(Losses(again + "77/metrics.jsonl"), losses);
  }
}

// The folder of another run stays as it is; the same command goes on where the run ended.
TEST_F(RunFolder, HoldsOneRun) {
  const std::string out = folder_ / "out";
  ASSERT_EQ(Run("gpt", Cat(kSmall, "--out=", out)).code, 0);
  const std::string config = TextOf(out + "/config");
  Refused(Cat("--lr=0.5 --clip=2 --out=", out), {"--out=" + out, "another run", "--clip, --lr;"});
  EXPECT_EQ(TextOf(out + "/config"), config);
  const std::vector<std::string> losses = Losses(out + "/metrics.jsonl");
  const std::string first = folder_ / "first";
  ASSERT_EQ(Run("gpt", Cat(kSmall, "--save_every=4 --keep=0 --out=", first)).code, 0);
  std::filesystem::remove_all(first + "/checkpoints/step-00000006");
  const ShellOutcome again = Run("gpt", Cat(kSmall, "--save_every=4 --keep=0 --out=", first));
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("step-00000004"), std::string::npos) << again.output;
  EXPECT_EQ(Losses(first + "/metrics.jsonl"), losses);
  folder_.Write("file", "x");
  Refused(Cat("--out=", folder_ / "file"), {folder_ / "file", "cannot be made"});
  Refused("--out=/proc/none", {"/proc/none", "cannot be made"});
}

// Files that no run left there, though of names that one writes over or goes on from, stay as they are.
TEST_F(RunFolder, TakesNoFolderOfSomebodyElses) {
  namespace fs = std::filesystem;
  for (const char* name : {"build", "metrics.jsonl", "config"}) {
    const std::string out = folder_ / Cat("of_", name);
    fs::create_directories(out);
    folder_.Write(Cat("of_", name, "/", name), "mine\n");
    Refused("--out=" + out, {out, name});
    EXPECT_EQ(TextOf(Cat(out, "/", name)), "mine\n");
    EXPECT_FALSE(fs::exists(out + "/checkpoints"));
  }
  fs::create_directories(folder_ / "project/build");
  Refused("--out=" + folder_ / "project", {"has 'build' but no config"});
  ASSERT_EQ(Run("gpt", Cat(kSmall, "--save=", folder_ / "run/checkpoints")).code, 0);
  Refused("--out=" + folder_ / "run",
          {"run/checkpoints/step-00000006 but no config of the run that saved it"});
  EXPECT_FALSE(fs::exists(folder_ / "run/config"));
  // What has other names is in nobody's way, and stays.
  const std::string shared = folder_ / "shared";
  fs::create_directories(shared + "/log");
  fs::create_directories(shared + "/tensorboard");
  const std::vector<std::string> mine = {"notes.txt", "config.old", "log/gpt.INFO", "log/other.log",
                                         "tensorboard/events.out.tfevents.1.host.1"};
  for (const std::string& name : mine) folder_.Write("shared/" + name, "mine\n");
  for (int time = 0; time < 2; ++time) {
    const ShellOutcome o = Run("gpt", Cat(kSmall, "--out=", shared));
    EXPECT_EQ(o.code, 0) << o.output;
    for (const std::string& name : mine) EXPECT_EQ(TextOf(shared + "/" + name), "mine\n") << name;
  }
}

// A disk that is full while the folder is made leaves one that the same command can use, and another, too.
TEST_F(RunFolder, SurvivesAConfigThatCannotBeWritten) {
  const std::string command = Cat(OFL_BINARY_DIR, "/examples/gpt ", kSmall);
  for (const int blocks : {0, 1}) {  // of 512 bytes: fewer than config and build need
    const std::string out = folder_ / Cat("full", blocks);
    ShellOutcome o = Shell(Cat("ulimit -f ", blocks, "; ", command, "--out=", out));
    EXPECT_EQ(o.code, kUsageError) << o.output;
    EXPECT_NE(o.output.find(Cat("error: --out: ", out, "/config cannot be written: File too large")),
              std::string::npos)
        << o.output;
    EXPECT_FALSE(std::filesystem::exists(out + "/config"));
    o = Run("gpt", Cat(kSmall, "--lr=0.01 --out=", out));
    EXPECT_EQ(o.code, 0) << o.output;
    // Nor does one that fails later take the config away.
    const std::string config = TextOf(out + "/config");
    o = Shell(Cat("ulimit -f ", blocks, "; ", command, "--lr=0.01 --out=", out));
    EXPECT_EQ(o.code, kUsageError) << o.output;
    EXPECT_EQ(TextOf(out + "/config"), config);
    EXPECT_EQ(Run("gpt", Cat(kSmall, "--lr=0.01 --out=", out)).code, 0);
  }
}

// Whoever comes while a run is under way changes nothing.
TEST_F(RunFolder, HasOneProgramAtATime) {
  int number = 0;
  for (const char* processes : {"--mesh=cpu:dp=1", "--mesh=cpu:dp=2 --processes=2"}) {
    SCOPED_TRACE(processes);
    const std::string out = folder_ / Cat("busy", number++), command = Cat(kSmall, processes, " --out=", out);
    std::vector<std::string> flags;
    std::istringstream words(command + " --steps=1000000");
    for (std::string word; words >> word;) flags.push_back(word);
    Process run({.program = OFL_BINARY_DIR "/examples/gpt", .flags = flags, .output = folder_ / "run"});
    for (const double end = Seconds() + 60; TextOf(out + "/metrics.jsonl").empty() && Seconds() < end;)
      Sleep(0.02);
    const std::string config = TextOf(out + "/config"), metrics = TextOf(out + "/metrics.jsonl");
    ASSERT_NE(metrics, "");
    const ShellOutcome o = Run("gpt", command + " --steps=1000000");
    EXPECT_EQ(o.code, kUsageError) << o.output;
    EXPECT_NE(o.output.find("another program that has not ended writes into this folder"), std::string::npos)
        << o.output;
    EXPECT_EQ(TextOf(out + "/metrics.jsonl").rfind(metrics, 0), 0u) << "the run itself goes on writing";
    EXPECT_EQ(TextOf(out + "/config"), config);
  }
}

// A command that is refused, or only planned, can be corrected.
TEST_F(RunFolder, IsOfRunsThatBegan) {
  const std::string out = folder_ / "out", wanted = Cat(kSmall, "--out=", out);
  for (const char* flags : {"--text=/none", "--heads=5", "--processes=2 --mesh=cpu:dp=2 --text=/none",
                            "--processes=3", "--dry_run"}) {
    SCOPED_TRACE(flags);
    const ShellOutcome o = Run("gpt", Cat(wanted, " ", flags));
    EXPECT_EQ(o.code, std::string(flags) == "--dry_run" ? 0 : kUsageError) << o.output;
    EXPECT_FALSE(std::filesystem::exists(out + "/config"));
  }
  const ShellOutcome o = Run("gpt", wanted);
  EXPECT_EQ(o.code, 0) << o.output;
  // Nor does a refusal take the config of a run that was there.
  const std::string config = TextOf(out + "/config");
  EXPECT_EQ(Run("gpt", wanted + " --processes=3").code, kUsageError);
  std::filesystem::remove_all(out + "/checkpoints");
  folder_.Write("out/checkpoints", "no folder");
  EXPECT_EQ(Run("gpt", wanted).code, kUsageError);
  EXPECT_EQ(TextOf(out + "/config"), config);
}

// Programs with fewer flags have less in their folders.
TEST_F(RunFolder, OfAnyProgram) {
  const ShellOutcome o = Run("hello_sbp", Cat("--out=", folder_ / "hello"));
  EXPECT_EQ(o.code, 0) << o.output;
  EXPECT_NE(TextOf(folder_ / "hello/config").find("--seed=1\n"), std::string::npos);
}

TEST_F(RunFolder, WrongConfigsAreNamed) {
  auto config = [&](const std::string& text) { return "--config=" + folder_.Write("config", text); };
  const std::string file = folder_ / "config";
  Refused("--config=" + folder_ / "nowhere",
          {"--config=" + folder_ / "nowhere cannot be read", "No such file"});
  Refused(config(""), {file + " cannot be read: it is empty"});
  Refused(config("--lr=1e-3\n\n# said\n--nothing=5\n"), {file, "no flag --nothing"});
  Refused(config("--lr=1e-3\nlr=5\n"), {"line 2, \"lr=5\", is no flag"});
  Refused(config("--lr\n"), {"line 1, \"--lr\", is no flag"});
  Refused(config("--lr=0.1\n--lr=0.2\n"), {"line 2 gives --lr again"});
  Refused(config("--warmup=many\n"), {"--warmup=many is no int64"});
  Refused(config("--config=" + file + "\n"), {"names --config itself"});
  Refused(config("--flagfile=/none\n"), {"--flagfile takes flags from elsewhere"});
  Refused(config("--fromenv=lr\n"), {"--fromenv takes flags from elsewhere"});
  for (const char* value :
       {"\"", "\"a", "\"a\"b\"", "\"a\\\"", "\"\\q\"", "\"\\x1\"", "\"\\x00\"", "\"\\x-1\""})
    Refused(config(Cat("--prompt=", value, "\n")),
            {"line 1: the value of --prompt begins with a quotation mark"});
  Refused(config("\x1b[31m--lr=1\n"), {"line 1, \"\\x1b[31m--lr=1\", is no flag"});
  Refused(config("--dtype=fp7\n"), {"fp7"});
  for (const char* begin : {"# windows\r\n", "\xEF\xBB\xBF", "\xEF\xBB\xBF# windows\r\n"}) {
    const ShellOutcome o =
        Run("gpt", kSmall + config(Cat(begin, "--warmup=3 \r\n--peak_flops=1\r\n")) + " --dry_run");
    EXPECT_EQ(o.code, 0) << o.output;
  }
  Refused(config(std::string("\xFF\xFE-\0-\0", 6)), {file + ": it is in UTF-16; save it in UTF-8"});
}

}  // namespace
}  // namespace oneflow_like
