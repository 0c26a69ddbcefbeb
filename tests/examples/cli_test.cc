// The example programs met with wrong flags and broken files: one clear sentence, exit code 64, no crash. And
// the little they must do when all is well.
// ctest: seconds=30 programs=examples
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/one_line.h"
#include "core/system/exit_codes.h"
#include "oneflow_like/data/files.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

struct Outcome {
  int code = -1;  // exit code; -1 when a signal ended it
  std::string out, err;
};

class CliTest : public ::testing::Test {
 protected:
  CliTest() {
    folder_ = std::filesystem::temp_directory_path().string() + "/cli_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the quick brown fox " + std::to_string(i * 7919) + "\n";
    text_ = Write("text.txt", text);
  }
  ~CliTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  Outcome Run(const std::string& program, const std::vector<std::string>& flags) {
    const std::string out = folder_ + "/stdout", err = folder_ + "/stderr";
    const pid_t child = fork();
    if (child == 0) {
      const std::string path = std::string(OFL_BINARY_DIR) + "/examples/" + program;
      std::vector<char*> argv = {const_cast<char*>(path.c_str())};
      for (const std::string& flag : flags) argv.push_back(const_cast<char*>(flag.c_str()));
      argv.push_back(nullptr);
      if (!freopen(out.c_str(), "w", stdout) || !freopen(err.c_str(), "w", stderr)) _exit(126);
      execv(path.c_str(), argv.data());
      _exit(127);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(out), ReadFile(err)};
  }

  // A tiny GPT on the test's own text; later flags win.
  Outcome Gpt(const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--text=" + text_, "--layers=2",       "--width=16",
                                      "--heads=2",       "--context=8",      "--batch=4",
                                      "--steps=2",       "--eval_batches=2", "--sample_tokens=4"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Run("gpt", flags);
  }

  // The exit code, and on stderr exactly one line, "error: ...", with all the words.
  static void ExpectError(const Outcome& o, const std::vector<std::string>& words, int code = kUsageError) {
    EXPECT_EQ(o.code, code) << o.err;
    std::istringstream lines(o.err);
    std::string line, more;
    std::getline(lines, line);
    EXPECT_EQ(line.rfind("error: ", 0), 0u) << o.err;
    EXPECT_FALSE(std::getline(lines, more)) << o.err;
    for (const std::string& word : words)
      EXPECT_NE(line.find(word), std::string::npos) << word << " | " << line;
  }

  // What one process refuses ends the others by an error of another process; the first to end gives the code.
  static bool Refused(int code, const std::string& processes) {
    return code == kUsageError || (processes != "--processes=1" && code == kRunError);
  }

  std::string folder_, text_;
};

TEST_F(CliTest, WrongMeshes) {
  ExpectError(Gpt({"--mesh=cpu:dp=2,xp=2"}), {"xp"});
  ExpectError(Gpt({"--mesh=cpu:dp=0"}), {"dp", "0"});
  ExpectError(Gpt({"--mesh=cpu:dp=-3"}), {"dp", "-3"});
  ExpectError(Gpt({"--mesh=cpu:dp=2,dp=2"}), {"dp"});
  ExpectError(Gpt({"--mesh=tpu:dp=2"}), {"tpu"});
  ExpectError(Gpt({"--mesh=cpu:dp"}), {"dp"});
  ExpectError(Gpt({"--mesh=cpu:dp=two"}), {"two"});
  ExpectError(Gpt({"--mesh=cpu:pp=3"}), {"pp", "3", "2 layers"});
  ExpectError(Gpt({"--zero=1", "--zero_axis=zz"}),
              {"--zero_axis=zz: mesh cpu:", "no axis zz, its axes are dp, tp, pp"});
  ExpectError(Gpt({"--reduce_dtype=bf16", "--reduce_axis=zz"}),
              {"--reduce_axis=zz: mesh cpu:", "no axis zz"});
  ExpectError(Gpt({"--stages=1,1"}), {"--stages=1,1 has 2 numbers but mesh axis pp has 1 stage; it needs 1"});
  ExpectError(Gpt({"--stages=1,2", "--mesh=cpu:pp=2"}), {"--stages=1,2 sums to 3 but there are 2 layers"});
  ExpectError(Gpt({"--stages=0,2", "--mesh=cpu:pp=2"}), {"--stages=0,2 has 0 layers for a stage"});
  ExpectError(Gpt({"--reduce_dtype=half"}), {"--reduce_dtype=half", "fp32, bf16 or fp16"});
  ExpectError(Gpt({"--reduce_dtype=fp16", "--dtype=bf16"}),
              {"--reduce_dtype=fp16", "--dtype=bf16", "use bf16"});
  ExpectError(Run("mlp", {"--mesh=cpu:pp=2"}), {"pp"});
  ExpectError(Run("hello_sbp", {"--mesh=cpu:tp=3"}), {"3"});
}

// A misspelt flag, by a letter too few, too many, or two exchanged, is answered with the flag that was meant.
// Values of flags are not looked at.
TEST_F(CliTest, MisspeltFlagsAreAnsweredWithTheNearest) {
  for (const std::string flag : {"micro_batches", "sequence_parallel", "temperature", "save_every"})
    for (size_t at : {size_t{1}, flag.size() / 2, flag.size() - 2}) {
      std::string fewer = flag, more = flag, swapped = flag;
      fewer.erase(at, 1);
      more.insert(at, 1, 'q');
      std::swap(swapped[at], swapped[at + 1]);
      for (const std::string& wrong : {fewer, more, swapped})
        ExpectError(Gpt({"--" + wrong + "=1"}), {"no flag --" + wrong + ";", "did you mean --" + flag + "?"});
    }
  ExpectError(Gpt({"--laod", "x"}), {"no flag --laod; did you mean --load?"});
  ExpectError(Run("mlp", {"-epoch=3"}), {"no flag --epoch; did you mean --epochs?"});
  EXPECT_EQ(Gpt({"--prompt", "--mehs", "--dry_run"}).code, 0);
  const Outcome other = Gpt({"--wholly_unknown=1"});
  EXPECT_EQ(other.code, kUsageError);
  EXPECT_NE(other.err.find("wholly_unknown"), std::string::npos) << other.err;
}

// The norm of clipping reads shards as they are in each copy of a model: hosts exchange sums of shards alone.
TEST_F(CliTest, ClippingSendsNoMoreBetweenHosts) {
  const std::string hosts = testing::TempDir() + "/cli_test.hosts";
  std::ofstream(hosts) << "memory_bytes 64e9\nmemory_bandwidth 1e10\nflops_fp32 5e10\nflops_16bit 5e10\n"
                          "level host devices 4 latency 2e-6 bandwidth 1e10\n"
                          "level cluster devices 0 latency 1e-6 bandwidth 1e6\n";
  const Outcome o = Gpt({"--layers=4", "--width=128", "--heads=4", "--context=32", "--batch=48",
                         "--micro_batches=3", "--mesh=cpu:replica=2,dp=4", "--zero=3", "--reduce_dtype=bf16",
                         "--reduce_axis=replica", "--topology=" + hosts, "--dry_run", "--explain"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("{time:B,replica:P,dp:S0} -> {time:B,replica:B,dp:S0}"), std::string::npos) << o.out;
  EXPECT_EQ(o.out.find(" routed of "), std::string::npos) << o.out;
}

TEST_F(CliTest, DevicesAreInTheOrderOfAxes) {
  for (const auto& [given, mesh] : {std::pair{"cpu:dp=2,pp=2", "mesh cpu:dp=2,tp=1,pp=2,"},
                                    std::pair{"cpu:tp=2,dp=2", "mesh cpu:pp=1,tp=2,dp=2,"},
                                    std::pair{"cpu:pp=2,dp=2,tp=2", "mesh cpu:pp=2,dp=2,tp=2,"}}) {
    const Outcome o = Gpt({std::string("--mesh=") + given, "--dry_run"});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_NE(o.out.find(mesh), std::string::npos) << o.out;
  }
}

// The program finds its plan and trains with it, in one process or several; the flags that it prints repeat
// it.
TEST_F(CliTest, FindsItsPlan) {
  const auto line_with = [](const Outcome& o, const std::string& word) {
    for (const std::string& line : LinesOf(o.out))
      if (line.find(word) != std::string::npos) return line.substr(line.find(word) + word.size());
    return std::string();
  };
  const Outcome one = Gpt({"--auto_mesh=4"});
  ASSERT_EQ(one.code, 0) << one.err;
  const std::string chosen = line_with(one, "chosen: "), loss = line_with(one, "last loss ").substr(0, 6);
  ASSERT_NE(chosen, "") << one.out;
  const Outcome two = Gpt({"--auto_mesh=4", "--processes=2"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(line_with(two, "chosen: "), chosen);
  EXPECT_EQ(line_with(two, "last loss ").substr(0, 6), loss);
  std::vector<std::string> flags;
  std::istringstream words(chosen);
  for (std::string flag; words >> flag;) flags.push_back(flag);
  const Outcome again = Gpt(flags);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(line_with(again, "last loss ").substr(0, 6), loss);
  const Outcome kept = Gpt({"--auto_mesh=4", "--mesh=cpu:tp=2", "--zero=0", "--recompute=full", "--dry_run"});
  EXPECT_EQ(kept.code, 0) << kept.err;
  const std::string plan = line_with(kept, "chosen: ");
  EXPECT_NE(plan.find("tp=2"), std::string::npos) << plan;
  EXPECT_NE(plan.find("--recompute=full"), std::string::npos) << plan;
  EXPECT_EQ(plan.find("--zero"), std::string::npos) << plan;
  // Over a line of 8 Mbit/s it pays to exchange little.
  const Outcome slow = Gpt({"--auto_mesh=4", "--link=8", "--dry_run"});
  EXPECT_NE(line_with(slow, "chosen: ").substr(0, 16), chosen.substr(0, 16)) << slow.out << slow.err;
}

// It chooses what weights are cut along, in one process or several, and trains as without.
TEST_F(CliTest, ChoosesCutsOfWeights) {
  const auto last_loss = [](const Outcome& o) {
    const size_t at = o.out.find("last loss ");
    return at == std::string::npos ? "" : o.out.substr(at, 16);
  };
  const auto cuts = [](const Outcome& o) {
    const size_t begin = o.out.find("weights as chosen for cpu:dp=2,tp=2,pp=1");
    return begin == std::string::npos ? "" : o.out.substr(begin, o.out.find("by estimate") - begin);
  };
  const Outcome plain = Gpt({"--mesh=cpu:dp=2,tp=2"}), one = Gpt({"--auto", "--mesh=cpu:dp=2,tp=2"}),
                two = Gpt({"--auto", "--mesh=cpu:dp=2,tp=2", "--processes=2"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(cuts(plain), "");
  EXPECT_NE(cuts(one), "") << one.out;
  EXPECT_EQ(cuts(one), cuts(two));
  EXPECT_NE(last_loss(one), "");
  EXPECT_EQ(last_loss(one), last_loss(plain));
  EXPECT_EQ(last_loss(one), last_loss(two));
  // Along an axis of one device nothing is cut.
  const std::string file = folder_ + "/of_two";
  const auto wide = [this](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--width=128", "--dry_run"});
    return Gpt(flags);
  };
  EXPECT_EQ(wide({"--auto", "--mesh=cpu:tp=2", "--save_plan=" + file}).code, 0);
  const std::string of_one = std::regex_replace(ReadFile(file), std::regex("tp=2"), "tp=1");
  EXPECT_NE(of_one.find("weight tp:S"), std::string::npos) << of_one;
  const Outcome flat = wide({"--plan=" + Write("of_one", of_one)});
  EXPECT_NE(flat.out.find("a device:\n  whole: "), std::string::npos) << flat.out << flat.err;
  const Outcome why = Gpt({"--auto", "--mesh=cpu:tp=2", "--dry_run", "--explain"});
  EXPECT_EQ(why.code, 0) << why.err;
  EXPECT_NE(why.out.find("take longer (-: shorter) if they were whole"), std::string::npos) << why.out;
}

// What was decided is kept in a file, and taken again without a search, on one process or several; what
// contradicts it is refused. A run that goes on keeps its plan.
TEST_F(CliTest, KeepsAPlan) {
  const auto line_with = [](const std::string& text, const std::string& word) {
    const size_t at = text.find(word);
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  const std::string file = folder_ + "/plan", save = folder_ + "/run", again = "--plan=" + file;
  const std::vector<std::string> search = {"--auto_mesh=4", "--auto", "--recompute=auto",
                                           "--memory_budget=400000"};
  std::vector<std::string> first = search;
  first.insert(first.end(), {"--save_plan=" + file, "--dry_run"});
  const Outcome found = Gpt(first), repeated = Gpt({again, "--dry_run"});
  ASSERT_EQ(found.code, 0) << found.err;
  ASSERT_EQ(repeated.code, 0) << repeated.err;
  const std::string acts = line_with(found.out, "order of acts ");
  EXPECT_NE(acts, "");
  EXPECT_EQ(line_with(repeated.out, "order of acts "), acts);
  EXPECT_EQ(repeated.out.find("plans,"), std::string::npos) << repeated.out;
  const Outcome one = Gpt({"--mesh=cpu:dp=1"}), two = Gpt({again, "--processes=2"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(line_with(two.out, "last loss ").substr(0, 16), line_with(one.out, "last loss ").substr(0, 16));
  const std::string other = folder_ + "/other";
  EXPECT_EQ(Gpt({again, "--save_plan=" + other, "--dry_run"}).code, 0);
  EXPECT_EQ(ReadFile(other), ReadFile(file));
  ExpectError(Gpt({again, "--mesh=cpu:dp=3"}), {"--mesh=cpu:dp=3 contradicts --plan=", "cpu:"});
  ExpectError(Gpt({again, "--mesh=cuda"}), {"--mesh=cuda contradicts"});
  for (const char* flag : {"--auto", "--auto_mesh=4", "--recompute=auto"})
    ExpectError(Gpt({again, flag, "--memory_budget=1000000"}), {" searches for a plan and --plan="});
  for (const char* flag : {"--stages=2,1", "--schedule=gpipe", "--virtual_stages=7", "--offload=activations",
                           "--logits_tile=7", "--recompute=full"})
    ExpectError(Gpt({again, flag}), {Cat(flag, " contradicts --plan=")});
  ExpectError(Gpt({again, "--offload=activations"}), {"which has none; leave"});
  ExpectError(Gpt({again, "--width=32"}), {"--plan=", "a model of", "this model has"});
  ExpectError(Gpt({"--plan=" + folder_ + "/none"}), {"--plan=", "/none"});
  ExpectError(Gpt({"--plan=" + folder_}), {"--plan="});
  ExpectError(Gpt({"--plan=" + text_}), {"is no plan of --save_plan: line 1"});
  ExpectError(Gpt({"--save_plan=" + folder_ + "/no/plan", "--dry_run"}),
              {"--save_plan=", "cannot be written"});
  ExpectError(Gpt({again, "--save_plan=" + file, "--dry_run"}), {"--save_plan=", "--plan="});
  // What gathers again is a part of it, whatever --context_parallel means by itself.
  const std::vector<std::string> cut = {"--mesh=cpu:cp=2", "--context_parallel", "--dry_run"};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), cut.begin(), cut.end());
    return Gpt(flags);
  };
  std::set<std::string> acts_of_both;
  for (const auto& [flag, says] : {std::pair("--gather_again", "gather"), {"--gather_again=false", "none"}}) {
    const std::string kept = folder_ + "/" + says, plan = "--plan=" + kept;
    const Outcome made = with({flag, "--save_plan=" + kept});
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_NE(ReadFile(kept).find(Cat("\nrecompute ", says, "\n")), std::string::npos);
    acts_of_both.insert(line_with(made.out, "order of acts "));
    EXPECT_EQ(line_with(with({plan}).out, "order of acts "), line_with(made.out, "order of acts "));
    EXPECT_EQ(with({plan, flag}).code, 0);
    const bool gathers = says == std::string("gather");
    ExpectError(with({plan, gathers ? "--gather_again=false" : "--gather_again"}),
                {Cat("--gather_again=", gathers ? "false" : "true", " contradicts --plan="),
                 gathers ? "which has true" : "which has false"});
  }
  EXPECT_EQ(acts_of_both.size(), 2u);
  EXPECT_EQ(acts_of_both.count(line_with(with({}).out, "order of acts ")), 1u);
  EXPECT_EQ(line_with(with({}).out, "order of acts "),
            line_with(with({"--gather_again"}).out, "order of acts "));
  // So are overlap and algorithms of messages; and of another machine it says what differs.
  const std::string ring = folder_ + "/ring", of_ring = "--plan=" + ring;
  EXPECT_EQ(with({"--collective=ring", "--overlap=2", "--save_plan=" + ring}).code, 0);
  EXPECT_NE(ReadFile(ring).find("\noverlap 2\n"), std::string::npos) << ReadFile(ring);
  EXPECT_NE(ReadFile(ring).find("\ncollectives all_reduce:ring,"), std::string::npos) << ReadFile(ring);
  const Outcome same = with({of_ring, "--collective=ring", "--save_plan=" + other});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(same.out.find("was decided for"), std::string::npos) << same.out;
  EXPECT_EQ(ReadFile(other), ReadFile(ring));
  EXPECT_EQ(with({of_ring, "--save_plan=" + other}).code, 0);
  EXPECT_EQ(ReadFile(other), ReadFile(ring));
  ExpectError(with({of_ring, "--collective=direct"}),
              {"--collective=direct contradicts --plan=", "which has all_reduce:ring,"});
  EXPECT_NE(with({of_ring, "--link=8"})
                .out.find(Cat(
                    of_ring,
                    " was decided for another machine than this run's; only that one has 0 devices by 5e+09 "
                    "bytes/s in 5e-06 s; only this one has 0 devices by 1e+06 bytes/s in 5e-06 s. This run "
                    "chooses")),
            std::string::npos)
      << with({of_ring, "--link=8"}).out;
  std::vector<std::string> run = search;
  run.push_back("--save=" + save);
  EXPECT_EQ(Gpt(run).code, 0);
  run.insert(run.end(), {"--resume=" + save, "--steps=3"});
  const Outcome more = Gpt(run);
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_NE(more.out.find("the plan is that of the run that goes on"), std::string::npos) << more.out;
  std::vector<std::string> less = run;
  less.insert(less.end(), {"--memory_budget=300000", "--steps=4", "--dry_run"});
  const Outcome tight = Gpt(less);
  for (const char* words :
       {"was found within 400000 bytes", "--memory_budget=300000; another plan is searched for"})
    EXPECT_NE(tight.out.find(words), std::string::npos) << tight.out;
  run.insert(run.end(), {"--mesh=cpu:tp=4", "--steps=4"});
  const Outcome otherwise = Gpt(run);
  EXPECT_EQ(otherwise.code, 0) << otherwise.err;
  EXPECT_NE(otherwise.out.find("another plan is searched for"), std::string::npos) << otherwise.out;
}

TEST_F(CliTest, CutsOfSequencesNeedTheirAxes) {
  for (const auto& [flag, axis] : {std::pair("--context_parallel", "cp"), {"--ulysses", "sp"}})
    ExpectError(Gpt({flag}), {Cat(flag, " cuts sequences over mesh axis ", axis, ", which the mesh cpu:dp=1"),
                              Cat("give it in --mesh, for example cpu:", axis, "=2")});
}

// A flag that says what the plan has is no contradiction.
TEST_F(CliTest, EveryFlagOfAPlanMayBeRepeated) {
  const auto acts = [](const Outcome& o) {
    const size_t at = o.out.find("order of acts ");
    return at == std::string::npos ? o.err : o.out.substr(at, o.out.find('\n', at) - at);
  };
  const std::string plan = "--plan=" + folder_ + "/plan", save = "--save_plan=" + folder_ + "/plan";
  const std::vector<std::vector<std::string>> given = {
      {"--mesh=cpu:pp=2", "--stages=1,3"},
      {"--mesh=cpu:pp=2", "--micro_batches=2", "--schedule=gpipe"},
      {"--mesh=cpu:pp=2", "--micro_batches=2", "--schedule=interleaved", "--virtual_stages=2",
       "--stages=1,1,1,1"},
      {"--mesh=cpu:dp=2", "--zero=1", "--zero_axis=dp", "--recompute=selective"},
      {"--mesh=cpu:dp=2,tp=2", "--zero=2", "--zero_axis=tp*dp", "--sequence_parallel"},
      {"--mesh=cpu:dp=2", "--zero_axis=dp", "--zero=3", "--prefetch=2", "--gather_again"},
      {"--mesh=cpu:dp=1", "--offload=activations,optimizer:0.5", "--recompute=full", "--logits_tile=16"},
      {"--mesh=cpu:dp=2", "--overlap=2", "--bucket=1MB", "--reduce_dtype=bf16", "--reduce_axis=dp"},
      {"--mesh=cpu:cp=2", "--context_parallel"},
      {"--mesh=cpu:sp=2", "--ulysses"}};
  for (const std::vector<std::string>& flags : given) {
    std::vector<std::string> all = {"--layers=4", "--dry_run"};
    all.insert(all.end(), flags.begin(), flags.end());
    all.push_back(save);
    const std::string made = acts(Gpt(all)), text = ReadFile(folder_ + "/plan");
    EXPECT_EQ(made.find("order of acts "), 0u) << made;
    all.back() = plan;
    EXPECT_EQ(acts(Gpt(all)), made) << flags[1];
    // The plan alone, and with each flag: blocks that the plan moves to another stage keep a copy more, so
    // there acts differ.
    const bool moves = flags[1] == "--stages=1,3";
    for (const std::string& flag : flags) {
      const std::string other = folder_ + "/other";
      const Outcome again = Gpt({"--layers=4", "--dry_run", plan, flag, "--save_plan=" + other});
      EXPECT_EQ(again.code, 0) << flag << again.err;
      EXPECT_EQ(ReadFile(other), text) << flag;
      if (!moves) EXPECT_EQ(acts(again), made) << flag;
    }
    if (!moves) continue;
    EXPECT_NE(text.find("\nblocks 1,3 block0\n"), std::string::npos) << text;
    ExpectError(Gpt({"--layers=4", plan, "--stages=2,2"}),
                {"--stages=2,2 contradicts " + plan + ", which has 1,3;"});
  }
}

// Flags beside a search hold in the plan that it finds, also where they make no difference there: the same
// flags with --plan in place of the search give the same plan.
TEST_F(CliTest, FlagsBesideASearchAgreeWithItsPlan) {
  const std::string file = folder_ + "/plan", other = folder_ + "/other";
  using Flags = std::vector<std::string>;
  const std::vector<std::pair<Flags, Flags>> all = {
      {{"--auto_mesh=4"}, {"--prefetch=3", "--zero_axis=dp"}},
      {{"--auto_mesh=2"}, {"--mesh=cpu:tp=2", "--prefetch=0", "--bucket=1MB", "--gather_again=false"}},
      {{"--auto_mesh=2", "--recompute=auto"}, {"--mesh=cpu", "--gather_again", "--memory_budget=160000"}},
      {{"--recompute=auto"}, {"--mesh=cpu:tp=2", "--gather_again", "--memory_budget=160000"}},
      {{"--recompute=auto", "--auto"}, {"--mesh=cpu:tp=2", "--gather_again", "--memory_budget=180000"}}};
  for (const auto& [search, flags] : all) {
    Flags first = search, again = flags;
    first.insert(first.end(), flags.begin(), flags.end());
    first.insert(first.end(), {"--save_plan=" + file, "--dry_run"});
    again.insert(again.end(), {"--plan=" + file, "--save_plan=" + other, "--dry_run"});
    const Outcome found = Gpt(first);
    ASSERT_EQ(found.code, 0) << flags[0] << found.err;
    const Outcome repeated = Gpt(again);
    ASSERT_EQ(repeated.code, 0) << flags[0] << repeated.err;
    EXPECT_EQ(ReadFile(other), ReadFile(file)) << flags[0];
  }
}

// What stands in a plan and cannot be is refused by the number of its line, with what it says.
TEST_F(CliTest, EditedPlansAreRefusedByLine) {
  const std::string file = folder_ + "/plan";
  ASSERT_EQ(Gpt({"--mesh=cpu:dp=2,tp=2", "--save_plan=" + file, "--dry_run"}).code, 0);
  const std::string text = ReadFile(file);
  const auto error = [&](const std::string& from, const std::string& to, const std::string& says) {
    std::string edited = text;
    edited.replace(edited.find("\n" + from) + 1, from.size(), to);
    const std::string plan = "--plan=" + Write("edited", edited);
    ExpectError(Gpt({plan}), {plan, says});
  };
  const auto added = [&](const std::string& line, const std::string& says) {
    error("end\n", line + "\nend\n", ": line 16: " + says);
  };
  added("blocks 1,1 block0",
        "blocks 1,1 block0 divides blocks over stages, but the mesh cpu:dp=2,tp=2,pp=1 has one");
  added("context_parallel 1",
        "context_parallel 1 cuts sequences over mesh axis cp, which the mesh cpu:dp=2,tp=2,pp=1 of line 4 "
        "lacks");
  added("ulysses 1", "ulysses 1 cuts sequences over mesh axis sp");
  added("ulysses 0", "'ulysses 0' must be 'ulysses 1'");
  added("zero 0", "'zero' is there twice, in line 8 as well");
  added("wait full block7", "wait full block7: the model has no region of that name");
  added("weight tp:S0 block7/mlp/up", "weight tp:S0 block7/mlp/up: the model has no weight of that name");
  added("weight tp:S2 block0/mlp/up",
        "weight tp:S2 block0/mlp/up cuts dimension 2 of a weight of shape [16,64], whose last is 1");
  added("weight pp:S0 block0/mlp/up", "weight pp:S0 block0/mlp/up: pp divides a model into stages");
  added("weight tp:S0,tp:S1 block0/mlp/up", "'tp:S0,tp:S1' has mesh axis tp twice");
  error("virtual_stages 1\n", "virtual_stages 2\n",
        ": line 7: virtual_stages 2 divides blocks over stages in rounds, but the mesh cpu:dp=2,tp=2,pp=1 "
        "has one");
  error("micro_batches 1\n", std::string("micro_batches 1\0\n", 17), "line 5: it has a byte 0");
  const std::string marked = Write("edited", "\xef\xbb\xbf" + text);
  ExpectError(Gpt({"--plan=" + marked}),
              {"line 1: there is something before or behind \"oneflow_like plan 1\""});
  error("zero 0\n", "zero 1 over pp\n", ": line 8: zero 1 over pp: pp divides a model into stages");
  error("zero 0\n", "zero 1 over cp\n", "line 8: zero: mesh cpu:dp=2,tp=2,pp=1 has no axis cp");
  error("micro_batches 1\n", "micro_batches 65537\n", "line 5: '65537' is no number from 1 to 65536");
  error("overlap 1\n", "overlap 65\n", "line 12: '65' is no number from 1 to 64");
  error("prefetch 1\n", "prefetch 1001\n", "line 14: '1001' is no number from 0 to 1000");
  error("mesh cpu:dp=2", "mesh cpu:dp=70000", ": line 4: mesh cpu:dp=70000,tp=2,pp=1: 140000 devices");
  error("mesh cpu:dp=2", "mesh tpu:dp=2", "line 4: mesh tpu:dp=2,tp=2,pp=1: device kind \"tpu\"");
  ASSERT_EQ(Gpt({"--mesh=cpu:pp=2", "--save_plan=" + file, "--dry_run"}).code, 0);
  for (const auto& [blocks, says] : {std::pair("2", "has numbers of 1 stages and rounds, but there are 2"),
                                     {"2,1", "divides 3 blocks, but the model has 2"}})
    ExpectError(Gpt({"--plan=" + Write("edited", std::regex_replace(ReadFile(file), std::regex("blocks 1,1"),
                                                                    Cat("blocks ", blocks)))}),
                {Cat(": line 16: blocks ", blocks, " block0 ", says)});
}

// Processes that cannot share the devices of a mesh that a plan has, or that is searched for.
TEST_F(CliTest, ProcessesThatDoNotDivideAPlanAreRefusedByItsFlag) {
  const std::string file = folder_ + "/plan";
  ASSERT_EQ(Gpt({"--mesh=cpu:dp=2,tp=2", "--save_plan=" + file, "--dry_run"}).code, 0);
  for (const std::string& chosen : {"--plan=" + file, std::string("--auto_mesh=4")})
    ExpectError(Gpt({chosen, "--processes=3"}),
                {chosen + " has 4 devices, which 3 processes cannot share equally"});
}

// What a plan of any origin says of its machine is printed, but commands no terminal.
TEST_F(CliTest, AMachineIsPrintedWithoutControlCharacters) {
  const std::string file = folder_ + "/plan";
  ASSERT_EQ(Gpt({"--save_plan=" + file, "--dry_run"}).code, 0);
  std::string text = ReadFile(file);
  text.insert(text.find("\nmachine ") + 9, "\x1b[31mof others, ");
  const Outcome o = Gpt({"--plan=" + Write("edited", text), "--dry_run"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("another machine than this run's; only that one has \\x1b[31mof others. This run"),
            std::string::npos)
      << o.out.substr(0, 500);
}

// --tf32 is in the share on plain cores, in simulations and in plans, and where it changes nothing a sentence
// says so.
TEST_F(CliTest, Tf32IsInEstimatesAndPlans) {
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--width=64", "--context=32", "--dry_run"});
    const Outcome o = Gpt(flags);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  };
  const auto has = [](const std::string& text, const std::string& words) {
    return text.find(words) != std::string::npos;
  };
  const std::string gpu = "--mesh=cuda:dp=2", rounded = folder_ + "/rounded", whole = folder_ + "/whole";
  const std::string plain = with({gpu, "--save_plan=" + whole}),
                    tensor = with({gpu, "--tf32", "--save_plan=" + rounded});
  EXPECT_TRUE(has(plain, "% by linear at ")) << plain;
  EXPECT_FALSE(has(tensor, "% by linear at ")) << tensor;
  EXPECT_TRUE(has(tensor, "% by attention at ")) << tensor;
  for (const std::string& text : {plain, tensor}) EXPECT_FALSE(has(text, "--tf32")) << text;
  EXPECT_FALSE(has(ReadFile(whole), "tf32")) << ReadFile(whole);
  EXPECT_TRUE(has(ReadFile(rounded), "\ntf32 1\n")) << ReadFile(rounded);
  const std::string other = "it: products take other times, so another plan may be faster\n";
  EXPECT_TRUE(has(with({"--plan=" + rounded}), "was decided with --tf32 and this run is without " + other));
  EXPECT_TRUE(
      has(with({"--plan=" + whole, "--tf32"}), "was decided without --tf32 and this run is with " + other));
  EXPECT_FALSE(has(with({"--plan=" + rounded, "--tf32"}), "was decided"));
  EXPECT_FALSE(has(with({"--plan=" + whole}), "was decided"));
  EXPECT_TRUE(has(with({"--mesh=cpu:dp=2", "--tf32"}),
                  "warning: --tf32 changes nothing on cpu:dp=2,tp=1,pp=1: only GPUs round to TF32\n"));
  EXPECT_TRUE(has(with({gpu, "--tf32", "--dtype=bf16"}),
                  "warning: --tf32 changes nothing: products and convolutions are in bf16\n"));
}

// A pipe that nobody writes, or a file without an end, would never be read.
TEST_F(CliTest, WhatIsNoRegularFileIsNotRead) {
  const std::string pipe = folder_ + "/pipe", huge = Write("huge", "");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::resize_file(huge, int64_t{1} << 36);
  for (const char* flag : {"--plan=", "--topology="})
    for (const auto& [path, why] : {std::pair(pipe, "it is a pipe"),
                                    {folder_, "it is a folder"},
                                    {std::string("/dev/zero"), "it is a device"},
                                    {huge, "it has 68719476736 bytes, and may have at most "},
                                    {folder_ + "/none", "No such file"}})
      ExpectError(Gpt({flag + path}), {path, Cat("cannot be read: ", why)});
}

TEST_F(CliTest, AMachineIsDescribedWithItsCopiesToHosts) {
  const std::string file = folder_ + "/plan";
  const Outcome o = Gpt({"--mesh=cuda", "--topology=" OFL_SOURCE_DIR "/examples/topologies/h100.txt",
                         "--dry_run", "--save_plan=" + file});
  EXPECT_EQ(o.code, 0) << o.err;
  const std::string text = ReadFile(file);
  EXPECT_NE(text.find(", copies to hosts by 5.5e+10 bytes/s in 1e-05 s\nmesh cuda"), std::string::npos)
      << text;
}

// A plan keeps how messages are sent. One of an older build says nothing of that, and flags decide.
TEST_F(CliTest, APlanKeepsHowMessagesAreSent) {
  const auto acts = [](const Outcome& o) {
    const size_t at = o.out.find("order of acts ");
    return at == std::string::npos ? "" : o.out.substr(at, o.out.find('\n', at) - at);
  };
  const std::string file = folder_ + "/plan", plan = "--plan=" + file, again = folder_ + "/again";
  const std::vector<std::string> messages = {"--reduce_dtype=bf16", "--reduce_axis=dp", "--overlap=2",
                                             "--bucket=64KiB", "--prefetch=2"};
  std::vector<std::string> first = {"--mesh=cpu:dp=2,tp=2", "--zero=3", "--save_plan=" + file, "--dry_run"};
  first.insert(first.end(), messages.begin(), messages.end());
  const Outcome made = Gpt(first);
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string text = ReadFile(file),
                    lines = "reduce_dtype bf16 over dp\noverlap 2\nbucket 65536\nprefetch 2\n";
  ASSERT_NE(text.find(lines), std::string::npos) << text;
  const Outcome repeated = Gpt({plan, "--save_plan=" + again, "--dry_run"});
  EXPECT_EQ(repeated.code, 0) << repeated.err;
  EXPECT_EQ(acts(repeated), acts(made));
  EXPECT_EQ(ReadFile(again), text);
  for (const std::string& flag : messages)
    EXPECT_EQ(acts(Gpt({plan, flag, "--dry_run"})), acts(made)) << flag;
  EXPECT_EQ(Gpt({plan, "--bucket=65536", "--dry_run"}).code, 0);
  for (const auto& [flag, says] : {std::pair("--reduce_dtype=fp32", "has bf16"),
                                   {"--reduce_axis=tp", "has dp"},
                                   {"--overlap=1", "has 2"},
                                   {"--bucket=25MB", "has 65536"},
                                   {"--prefetch=1", "has 2"}})
    ExpectError(Gpt({plan, flag}), {Cat(flag, " contradicts ", plan, ", which ", says)});
  std::string older = text;
  older.erase(older.find(lines), lines.size());
  const std::string old = "--plan=" + Write("old", older);
  first = {old, "--dry_run"};
  first.insert(first.end(), messages.begin(), messages.end());
  EXPECT_EQ(acts(Gpt(first)), acts(made));
  EXPECT_NE(acts(Gpt({old, "--dry_run"})), acts(made));
  for (const std::string& flag : {old, std::string("--mesh=cpu:dp=2")})
    ExpectError(Gpt({flag, "--reduce_axis=dp"}), {"--reduce_axis=dp says where --reduce_dtype applies"});
}

// A run that cannot be resumed as the command says was refused, not begun: nothing but one sentence is
// printed.
TEST_F(CliTest, ResumesThatDoNotFitAreRefused) {
  const auto refused = [&](const Outcome& o, const std::vector<std::string>& words) {
    ExpectError(o, words);
    EXPECT_EQ(o.out, "");
  };
  const std::string run = folder_ + "/run", resume = "--resume=" + run;
  ASSERT_EQ(Gpt({"--save=" + run}).code, 0);
  for (const char* processes : {"--processes=1", "--processes=2"}) {
    const std::string mesh = processes == std::string("--processes=1") ? "--mesh=cpu" : "--mesh=cpu:dp=2";
    const std::string out = folder_ + "/out" + processes;
    refused(Gpt({resume, "--width=32", "--clip=2", processes, mesh, "--out=" + out}),
            {"--clip=2 differs from --clip=1 of the saved run; ",
             "--width=32 differs from --width=16 of the saved run; ", "does not fit the model: '",
             " more differ"});
    EXPECT_FALSE(std::filesystem::exists(out + "/config")) << "the corrected command may use the folder";
    refused(Gpt({"--save=" + run, processes, mesh}), {"--save=", "checkpoints already", "--resume="});
    refused(Gpt({resume, "--seed=7", processes, mesh}), {"--seed=7 differs from --seed=1"});
    refused(Gpt({resume + "/step-00000009", processes, mesh}), {"no such checkpoint", "step-00000002"});
    refused(Gpt({"--load=" + run, "--layers=3", processes, mesh}),
            {"does not fit the model: it lacks 'block2/"});
  }
}

// What a resumed run computes otherwise than the saved one is reported, or refused where it is another model
// although its weights have the same shapes.
TEST_F(CliTest, ResumedExpertsSayWhatDiffers) {
  const std::string run = folder_ + "/run", resume = "--resume=" + run;
  const auto moe = [&](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--layers=1", "--width=16",  "--heads=2", "--context=8",
                                      "--batch=4",  "--experts=4", "--steps=2", "--eval_batches=0"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Run("moe", flags);
  };
  ASSERT_EQ(moe({"--save=" + run}).code, 0);
  ExpectError(moe({resume, "--steps=3", "--top_k=1"}), {"--top_k=1 differs from --top_k=2 of the saved run; "
                                                        "a run keeps it: repeat the value, or begin another "
                                                        "run with --load=" +
                                                        run});
  EXPECT_EQ(moe({"--load=" + run, "--steps=3", "--top_k=1"}).code, 0);
  const Outcome o = moe({resume, "--steps=3", "--capacity=2", "--balance=0.1"});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* line : {"\n--capacity=2 differs from --capacity=1.25 of the saved run\n",
                           "\n--balance=0.1 differs from --balance=0.01 of the saved run\n"})
    EXPECT_NE(o.out.find(line), std::string::npos) << o.out;
  EXPECT_EQ(o.out.find("--top_k"), std::string::npos) << o.out;
}

// Devices that repeat what others compute are mentioned, by the axis that divides little of the work.
TEST_F(CliTest, WarnsOfAMeshAxisThatDividesLittle) {
  const std::string words = "warning: neither data nor weights are cut over mesh axis ";
  for (const auto& [mesh, axis] :
       {std::pair("--mesh=cpu:cp=2", "cp: its 2"), {"--mesh=cpu:dp=2,sp=3", "sp: its 3"}}) {
    const Outcome o = Gpt({mesh, "--dry_run"});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_NE(o.out.find(Cat(words, axis, " devices repeat ")), std::string::npos) << o.out;
    EXPECT_NE(o.out.find(" of the work of products and attention\n"), std::string::npos) << o.out;
  }
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--mesh=cpu:cp=2", "--context_parallel"},
        {"--mesh=cpu:sp=2", "--ulysses"},
        {"--mesh=cpu:dp=2,tp=2,pp=2"},
        {"--mesh=cpu:cp=2", "--zero=1", "--zero_axis=cp"},
        {"--mesh=cpu:cp=2", "--width=128", "--context=128"}}) {  // cost finds a use for the last one
    std::vector<std::string> all = flags;
    all.push_back("--dry_run");
    const Outcome o = Gpt(all);
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(o.out.find(words), std::string::npos) << flags[0] << o.out;
  }
}

// A plan says over which axes sequences are cut, whichever flags are given; one that says otherwise is
// refused.
TEST_F(CliTest, APlanKeepsHowSequencesAreCut) {
  const auto acts = [](const Outcome& o) {
    const size_t at = o.out.find("order of acts ");
    return at == std::string::npos ? "" : o.out.substr(at, o.out.find('\n', at) - at);
  };
  const std::string whole = folder_ + "/whole";
  ASSERT_EQ(Gpt({"--mesh=cpu:cp=2,sp=2", "--save_plan=" + whole, "--dry_run"}).code, 0);
  const std::vector<std::vector<std::string>> all = {
      {"--context_parallel"}, {"--ulysses"}, {"--context_parallel", "--ulysses"}};
  for (const std::vector<std::string>& cuts : all) {
    std::string name = "cut", line = "sequence_parallel 0\n";
    for (const std::string& flag : cuts) {
      name += flag;
      line += flag.substr(2) + " 1\n";
    }
    const std::string file = folder_ + "/" + name, plan = "--plan=" + file;
    std::vector<std::string> first = {"--mesh=cpu:cp=2,sp=2", "--save_plan=" + file, "--dry_run"};
    first.insert(first.end(), cuts.begin(), cuts.end());
    const Outcome made = Gpt(first), again = Gpt({plan, "--dry_run"});
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_NE(acts(made), "");
    EXPECT_EQ(acts(again), acts(made)) << name;
    EXPECT_NE(ReadFile(file).find(line), std::string::npos) << ReadFile(file);
    const std::string other = file + "_again";
    EXPECT_EQ(Gpt({plan, "--save_plan=" + other, "--dry_run"}).code, 0);
    EXPECT_EQ(ReadFile(other), ReadFile(file));
    std::vector<std::string> repeated = {plan, "--dry_run"};
    repeated.insert(repeated.end(), cuts.begin(), cuts.end());
    EXPECT_EQ(acts(Gpt(repeated)), acts(made));
    for (const std::string& flag : cuts) {
      ExpectError(Gpt({plan, flag + "=false"}), {flag + "=false contradicts " + plan, "has true"});
      ExpectError(Gpt({"--plan=" + whole, flag}), {flag + "=true contradicts --plan=" + whole, "has false"});
    }
    ExpectError(Run("resnet", {plan}), {plan + " is for a program that has " + cuts[0] + ","});
  }
}

// Without --logits_tile a budget decides; a plan keeps what was decided.
TEST_F(CliTest, LogitsInTilesWhereMemoryAsks) {
  const std::vector<std::string> large = {"--context=256", "--batch=8", "--dropout=0", "--dry_run"};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), large.begin(), large.end());
    return Gpt(flags);
  };
  const auto tiles = [](const Outcome& o) {
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out.find("logits: at most 512 rows at a time") != std::string::npos;
  };
  const std::string plan = folder_ + "/plan";
  EXPECT_FALSE(tiles(with({})));
  EXPECT_TRUE(tiles(with({"--logits_tile=512"})));
  EXPECT_FALSE(tiles(with({"--memory_budget=20000000"})));
  const std::string tight = "--memory_budget=7500000";
  EXPECT_TRUE(tiles(with({tight, "--save_plan=" + plan})));
  EXPECT_TRUE(tiles(with({"--plan=" + plan})));
  EXPECT_NE(ReadFile(plan).find("\nlogits_tile 512\n"), std::string::npos) << ReadFile(plan);
  ExpectError(with({"--plan=" + plan, "--logits_tile=0"}),
              {"--logits_tile=0 contradicts --plan=", "which has 512"});
  EXPECT_NE(with({tight, "--logits_tile=0"}).code, 0);
  for (const char* value : {"-1", "some", "5x", "2000000", ""})
    ExpectError(Gpt({Cat("--logits_tile=", value)}),
                {Cat("--logits_tile=", value, ": must be auto, or a number of tokens")});
}

// On one device, too, what is computed again need not be copied to the host.
TEST_F(CliTest, FlagsOfAPlanOnTheHostChooseWhatIsComputedAgain) {
  const std::string plan = folder_ + "/plan",
                    host = std::string(OFL_SOURCE_DIR) + "/examples/topologies/h100.txt";
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--text=", "--layers=4", "--context=128", "--width=512", "--heads=8",
                               "--dtype=bf16", "--batch=16", "--memory_budget=700000000", "--recompute=auto",
                               "--simulate", "--topology=" + host, "--save_plan=" + plan});
    const Outcome o = Gpt(flags);
    EXPECT_EQ(o.code, 0) << o.err;
    std::smatch step;
    EXPECT_TRUE(std::regex_search(o.out, step, std::regex("simulated: a step takes ([0-9.]+) ms"))) << o.out;
    return std::pair(o.out, step.empty() ? 0 : std::stod(step[1]));
  };
  const auto [found, fastest] = with({"--mesh=cuda", "--auto_mesh=1"});
  EXPECT_NE(found.find("--offload=activations"), std::string::npos) << found;
  EXPECT_NE(found.find("these flags search again, and may find a slower plan"), std::string::npos) << found;
  const auto [again, seconds] =
      with({"--mesh=cuda:dp=1", "--micro_batches=1", "--offload=activations,optimizer"});
  EXPECT_LE(seconds, 1.03 * fastest) << again;
  EXPECT_NE(ReadFile(plan).find("\nwait full block0\n"), std::string::npos) << ReadFile(plan);
}

// Flags that say how another one works are refused where that one is not given.
TEST_F(CliTest, FlagsThatNeedOthers) {
  ExpectError(Gpt({"--mesh=cpu:dp=2", "--zero_axis=dp"}), {"--zero_axis=dp says over what --zero cuts"});
  ExpectError(Gpt({"--prefetch=2"}), {"--prefetch=2 says how early --zero=3", "--zero is 0"});
  ExpectError(Gpt({"--mesh=cpu:dp=2", "--zero=2", "--prefetch=2"}), {"--prefetch=2", "--zero is 2"});
  ExpectError(Gpt({"--keep=2"}), {"--keep=2 says how many checkpoints of --save"});
  EXPECT_EQ(Gpt({"--mesh=cpu:dp=2", "--zero=3", "--prefetch=2", "--zero_axis=dp", "--dry_run"}).code, 0);
  // A search may choose the stage.
  EXPECT_EQ(Gpt({"--auto_mesh=2", "--prefetch=2", "--dry_run"}).code, 0);
}

// The axis of --reduce_axis need not be there before a search: it may make it, or not.
TEST_F(CliTest, SearchesMakeTheAxisOfNarrowSums) {
  const std::string topology = folder_ + "/hosts", plan = folder_ + "/plan";
  std::ofstream(topology) << "device a\nmemory_bandwidth 2e12\nflops_fp32 2e13\nflops_16bit 3e14\n"
                             "overhead 1e-6\nlevel host devices 4 latency 3e-6 bandwidth 2e11\n"
                             "level cluster devices 0 latency 12e-6 bandwidth 2e9\n";
  const std::vector<std::string> narrow = {"--reduce_dtype=bf16", "--reduce_axis=replica", "--dry_run"};
  std::vector<std::string> search = {"--width=256",           "--heads=4",
                                     "--context=64",          "--batch=32",
                                     "--dtype=bf16",          "--zero=3",
                                     "--auto_mesh=16",        "--micro_batches=2",
                                     "--recompute=none",      "--mesh=cpu:dp=16,tp=1,pp=1",
                                     "--topology=" + topology};
  const auto with = [](std::vector<std::string> flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  const Outcome wide = Gpt(with(search, {"--dry_run"})), found = Gpt(with(search, narrow));
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_NE(found.out.find("chosen: --mesh=\"cpu:replica=4,shard=4"), std::string::npos) << found.out;
  const auto sent = [](const Outcome& o) {
    const size_t at = o.out.find(", sent ");
    return at == std::string::npos ? 0.0 : std::stod(o.out.substr(at + 7));
  };
  EXPECT_GT(sent(found), 0);
  EXPECT_LT(sent(found), sent(wide));
  const Outcome without = Gpt(with({"--auto_mesh=2", "--save_plan=" + plan}, narrow));
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_NE(without.out.find("has no replica of --reduce_axis: gradients are summed in fp32"),
            std::string::npos)
      << without.out;
  EXPECT_EQ(Gpt(with({"--plan=" + plan}, narrow)).code, 0);
  ExpectError(Gpt(with({"--auto_mesh=2", "--reduce_dtype=bf16"}, {"--reduce_axis=xp"})),
              {"--reduce_axis=xp with --auto_mesh", "no axis xp"});
}

// Flags that are fine one by one, of a model that cannot be built or compiled: the command is to be
// corrected.
TEST_F(CliTest, ModelsThatFlagsContradictAreRefused) {
  for (const char* processes : {"--processes=1", "--processes=2"}) {
    const auto refused = [&](std::vector<std::string> flags, const std::vector<std::string>& words) {
      flags.push_back(processes);
      ExpectError(Gpt(flags), words);
    };
    refused({"--mesh=cpu:pp=2", "--virtual_stages=8", "--micro_batches=4"},
            {"2 stages", "8 times", "2 layers"});
    refused({"--mesh=cpu:dp=2", "--virtual_stages=2"}, {"--virtual_stages=2", "pp=1 is one stage"});
    refused({"--mesh=cpu+cuda"}, {"no axis pp that divides it", "for example cpu+cuda:pp=2"});
    refused({"--mesh=cpu:dp=2", "--micro_batches=9"}, {"micro_batches=9", "batch=4"});
    refused({"--mesh=cpu:dp=2", "--stages=1,1"}, {"2 numbers", "1 stage; it needs 1"});
    refused({"--mesh=cpu:dp=2", "--recompute=auto"}, {"memory_budget"});
    refused({"--mesh=cpu:dp=2", "--zero=2", "--zero_axis=xp"}, {"xp"});
  }
}

TEST_F(CliTest, SaysWhyItFindsNoPlan) {
  ExpectError(Gpt({"--auto_mesh=-1"}), {"--auto_mesh", "-1"});
  ExpectError(Gpt({"--auto_mesh=70000"}), {"--auto_mesh", "70000"});
  ExpectError(Gpt({"--auto_mesh=8192", "--batch=8192", "--mesh=cpu:dp=8192"}),
              {"the extent of dp is 8192", "at most 4096"});
  ExpectError(Gpt({"--auto_mesh=4", "--mesh=cpu:tp=3"}), {"4 devices", "tp=3"});
  ExpectError(Gpt({"--auto_mesh=4", "--mesh=cpu:cp=2", "--context_parallel"}), {"cp"});
  ExpectError(Gpt({"--auto_mesh=4", "--stages=1,1"}), {"--stages"});
  ExpectError(Gpt({"--auto_mesh=3", "--mesh=cpu:dp=3"}), {"batch of 4", "dp=3"});
  ExpectError(Gpt({"--auto_mesh=4", "--memory_budget=1000"}),
              {"no plan of 4 devices fits", "more than", "1.00 KB", "(--recompute=auto)"}, kRunError);
  ExpectError(Gpt({"--auto_mesh=1", "--memory_budget=1KB", "--recompute=auto"}),
              {"no plan of 1 device fits", "more than the 1.00 KB there are; take more devices or a smaller"},
              kRunError);
  const Outcome shared = Gpt({"--auto_mesh=2", "--memory_budget=1000", "--processes=2"});
  EXPECT_EQ(shared.code, kRunError) << shared.err;
  EXPECT_NE(shared.err.find("no plan of 2 devices fits"), std::string::npos) << shared.err;
  ExpectError(Gpt({"--auto_mesh=4", "--mesh=cpu+cuda"}),
              {"--mesh=cpu+cuda: --auto_mesh finds plans for devices of one kind"});
  for (const auto& [flag, axis] : {std::pair("--ulysses", "sp"), {"--context_parallel", "cp"}})
    ExpectError(Gpt({"--auto_mesh=4", flag}),
                {Cat(flag, " cuts sequences over mesh axis ", axis, ", and --auto_mesh=4 finds")});
  ExpectError(Gpt({"--auto_mesh=4", "--mesh=cpu:pp=1", "--virtual_stages=2"}),
              {"--virtual_stages=2", "pp=1 is one stage"});
  ExpectError(Gpt({"--auto_mesh=3", "--processes=2"}), {"3 devices", "2 processes"});
  ExpectError(
      Gpt({"--auto_mesh=4", "--elastic=dp", "--processes=2", "--restarts=1", "--save=" + folder_ + "/e"}),
      {"--elastic=dp", "--auto_mesh=4"});
}

// --auto_mesh chooses recomputation unless it is given, for all layers alike; with "auto" for each of them,
// which takes no longer.
TEST_F(CliTest, AutoMeshChoosesRecomputation) {
  auto plan = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--auto_mesh=2", "--dry_run", "--context=64", "--layers=4"});
    const Outcome found = Gpt(flags);
    EXPECT_EQ(found.code, 0) << found.err;
    const size_t chosen = found.out.find("chosen: ");
    EXPECT_NE(chosen, std::string::npos) << found.out;
    if (chosen == std::string::npos) return std::pair(found.out, found.out);
    const std::string all = found.out.substr(0, found.out.find('\n', chosen));
    return std::pair(all, all.substr(chosen));
  };
  const std::string all = plan({}).first;
  EXPECT_EQ(plan({"--recompute=auto"}).first, all);
  EXPECT_NE(plan({"--recompute=full"}).first, all);
  EXPECT_EQ(Gpt({"--auto_mesh=2", "--logits_tile=16", "--dry_run"}).code, 0);  // which is the chosen plan's
  std::smatch most;  // with less than the first plan takes another is chosen
  ASSERT_TRUE(std::regex_search(all, most, std::regex("([0-9.]+) (K|M)B  .*\n"))) << all;
  const auto bytes = static_cast<int64_t>(std::stod(most[1]) * (most[2] == "K" ? 950 : 950'000));
  const std::string budget = Cat("--memory_budget=", bytes);
  const auto milliseconds = [](const std::string& text) {
    std::smatch first;
    return std::regex_search(text, first, std::regex("\n *([0-9.]+) (us|ms) "))
               ? std::stod(first[1]) * (first[2] == "us" ? 1e-3 : 1)
               : -1;
  };
  const double each = milliseconds(plan({budget, "--recompute=auto"}).first);
  EXPECT_GT(each, 0);
  EXPECT_LE(each, milliseconds(plan({budget}).first));
  EXPECT_NE(plan({budget}).first, all);
}

TEST_F(CliTest, WrongNumbers) {
  ExpectError(Gpt({"--heads=3"}), {"heads", "3", "16"});
  ExpectError(Gpt({"--heads=0"}), {"heads"});
  ExpectError(Gpt({"--layers=0"}), {"layers"});
  ExpectError(Gpt({"--width=-16"}), {"width", "-16"});
  ExpectError(Gpt({"--batch=0"}), {"batch"});
  ExpectError(Gpt({"--context=0"}), {"context"});
  ExpectError(Gpt({"--steps=-1"}), {"steps"});
  ExpectError(Gpt({"--micro_batches=5"}), {"micro_batches", "5", "4"});
  ExpectError(Gpt({"--dropout=1"}), {"dropout", "1"});
  ExpectError(Gpt({"--lr=-1"}), {"lr", "-1"});
  ExpectError(Gpt({"--lr=nan"}), {"lr", "NaN"});
  ExpectError(Gpt({"--clip=-1"}), {"clip", "-1"});
  ExpectError(Gpt({"--schedule=fastest"}), {"schedule", "fastest"});
  ExpectError(Gpt({"--recompute=some"}), {"--recompute=some", "none, selective, full or auto"});
  ExpectError(Gpt({"--recompute=auto"}), {"--recompute=auto", "--memory_budget", "--topology"});
  for (const char* size : {"some", "-1", "25XB", "25MB more", "9999999TB", "99999999999999999999"})
    for (const char* flag : {"--bucket", "--memory_budget"})
      ExpectError(Gpt({Cat(flag, "=", size)}), {flag, size, "25MB"});
  ExpectError(Run("mlp", {"--epochs=0"}), {"epochs"});
  ExpectError(Run("mlp", {"--batch=0"}), {"batch"});
}

// A budget below what the plan without recomputation needs; several processes choose the same.
TEST_F(CliTest, RecomputesWhatMakesThePlanFit) {
  auto peak = [](const std::string& text) {  // of the fullest rank, as an error names it
    std::smatch found;
    EXPECT_TRUE(std::regex_search(text, found, std::regex("needs (?:at least )?(\\d+) bytes"))) << text;
    return found.empty() ? 0 : std::stoll(found[1]);
  };
  const std::vector<std::string> shape = {"--mesh=cpu:dp=2", "--layers=4", "--width=16", "--context=64",
                                          "--batch=8"};
  auto gpt = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), shape.begin(), shape.end());
    return Gpt(flags);
  };
  const int64_t kept = peak(gpt({"--memory_budget=1"}).err),
                least = peak(gpt({"--memory_budget=1", "--recompute=auto"}).err);
  ASSERT_LT(least, kept);
  const std::string budget = Cat("--memory_budget=", (least + kept) / 2);
  EXPECT_EQ(gpt({budget}).code, kRunError);
  const Outcome dry = gpt({budget, "--recompute=auto", "--dry_run"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_NE(dry.out.find("recompute: "), std::string::npos) << dry.out;
  EXPECT_NE(dry.out.find(" of 4 layers full, "), std::string::npos) << dry.out;
  const std::string log = folder_ + "/recomputed", other = folder_ + "/kept";
  EXPECT_EQ(gpt({"--log_json=" + other}).code, 0);
  for (const char* processes : {"--processes=1", "--processes=2"}) {
    const Outcome run = gpt({budget, "--recompute=auto", processes, "--log_json=" + log});
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(LossesOf(log), LossesOf(other)) << processes;
  }
}

TEST_F(CliTest, UnknownFlagsAndWrongTypes) {
  for (const char* flag : {"--layerz=2", "--layers=two", "--layers=1.5", "--steps="}) {
    const Outcome o = Gpt({flag});
    EXPECT_EQ(o.code, kUsageError) << flag;
    EXPECT_NE(o.err.find(std::string(flag).substr(2, 5)), std::string::npos) << o.err;
  }
}

TEST_F(CliTest, WrongTexts) {
  ExpectError(Gpt({"--text=" + folder_ + "/none.txt"}), {"none.txt", "No such file"});
  ExpectError(Gpt({"--text=" + folder_}), {"folder"});
  ExpectError(Gpt({"--text=/dev/zero"}), {"/dev/zero", "a device"});
  ExpectError(Gpt({"--text=" + std::string(300, 'x')}), {"cannot open xxx", "too long"});
  ExpectError(Gpt({"--text=" + Write("short.txt", "12345678")}), {"short.txt", "8 tokens", "9"});
  ExpectError(Gpt({"--text=" + Write("empty.txt", "")}), {"empty.txt", "0 tokens"});
  ExpectError(Gpt({"--text=" + Write("plain.gz", "not packed")}), {"plain.gz", "gzip"});
  const std::string half_header("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xab", 12);
  ExpectError(Gpt({"--text=" + Write("cut.gz", half_header)}), {"cut.gz", "truncated"});
  ExpectError(Gpt({"--text=" + Write("cut.bin", "xx")}), {"cut.bin", "truncated"});
  ExpectError(Gpt({"--text=" + Write("magic.bin", std::string(2000, 'x'))}), {"magic.bin", "20240520"});
}

TEST_F(CliTest, WrongImages) {
  ExpectError(Run("mlp", {"--data_dir=" + folder_}), {"train-images-idx3-ubyte.gz", "No such file"});
  Write("train-images-idx3-ubyte.gz", "no gzip");
  ExpectError(Run("mlp", {"--data_dir=" + folder_}), {"train-images-idx3-ubyte.gz", "gzip"});
}

TEST_F(CliTest, LogThatCannotBeWritten) {
  ExpectError(Gpt({"--log_json=" + folder_ + "/none/log.json"}),
              {"--log_json=", "none/log.json", "No such file"});
  ExpectError(Gpt({"--log_json=" + folder_}), {folder_, "folder"});
}

// As on a disk that becomes full: the reason is the system's.
TEST_F(CliTest, FilesThatCannotGrowAreNamedWithTheReason) {
  const std::pair<const char*, const char*> outputs[] = {{"--log_json=", "log file"},
                                                         {"--trace=", "trace file"},
                                                         {"--report=", "report"},
                                                         {"--dump_dir=", "dump file"}};
  for (const auto& [flag, what] : outputs) {
    SCOPED_TRACE(flag);
    const ShellOutcome o =
        Shell(Cat("trap '' XFSZ; ulimit -f 8; ", OFL_BINARY_DIR, "/examples/gpt --text=", text_,
                  " --layers=4 --width=16 --heads=2 --context=8 --batch=4 --steps=100 --eval_batches=0 "
                  "--sample_tokens=0 ",
                  flag, folder_, "/grows"));
    EXPECT_EQ(o.code, kRunError) << o.output;
    const size_t error = o.output.find("error: ");
    ASSERT_NE(error, std::string::npos) << o.output;
    EXPECT_NE(o.output.find(what, error), std::string::npos) << o.output;
    EXPECT_NE(o.output.find("File too large", error), std::string::npos) << o.output;
    std::filesystem::remove_all(folder_ + "/grows");
  }
}

// Every output with everything that can be wrong with it; nobody trains first, and nothing is touched.
TEST_F(CliTest, OutputsThatCannotBeWrittenAreRefusedAtTheStart) {
  const std::string old = "precious\n", kept = Write("kept", old);
  const std::string link = folder_ + "/link";
  std::filesystem::create_hard_link(kept, folder_ + "/hard_link");
  std::filesystem::create_symlink(kept, link);
  std::filesystem::create_symlink(folder_ + "/nothing_yet", folder_ + "/early_link");
  for (const std::string processes : {"--processes=1", "--processes=2"}) {
    const std::vector<std::string> all = {processes, "--mesh=cpu:dp=2", "--steps=3"};
    auto refused = [&](std::vector<std::string> flags, const std::vector<std::string>& words) {
      SCOPED_TRACE(processes + " " + ::testing::PrintToString(flags));
      flags.insert(flags.end(), all.begin(), all.end());
      const Outcome o = Gpt(flags);
      EXPECT_TRUE(Refused(o.code, processes)) << o.code;
      for (const std::string& word : words)
        EXPECT_NE(o.err.find(word), std::string::npos) << word << "\n" << o.err;
      EXPECT_EQ(ReadFile(kept), old);
      EXPECT_EQ(o.out.find("steps in"), std::string::npos) << o.out;
      for (const char* name : {"/nothing_yet", "/t.json", "/new", "/new.process0", "/new.process1"})
        EXPECT_FALSE(std::filesystem::exists(folder_ + name)) << name;
    };
    for (const std::string output : {"--log_json=", "--trace=", "--report="}) {
      refused({output + folder_ + "/none/t.json"}, {"none/t.json", "No such file"});
      refused({output + folder_}, {"folder"});
      refused({output + folder_ + "/kept/t.json"}, {"kept/t.json", "Not a directory"});
      for (const std::string name : {"/kept", "/./kept", "/link", "/hard_link"})
        refused({"--text=" + kept, output + folder_ + name}, {output, name, "--text=", "same file"});
    }
    for (const std::string name : {"/kept", "/link", "/hard_link"})
      refused({"--log_json=" + kept, "--trace=" + folder_ + name}, {"--log_json=", "--trace=", "same file"});
    refused({"--topology=" + kept, "--trace=" + folder_ + "/hard_link"},
            {"--topology=" + kept, "--trace=", "same file"});
    const std::string config = Write("config", "--seed=1\n");
    refused({"--config=" + config, "--log_json=" + config},
            {"--config=" + config, "--log_json=", "same file"});
    EXPECT_EQ(ReadFile(config), "--seed=1\n");
    refused({"--log_json=" + folder_ + "/new", "--trace=" + folder_ + "/./new"}, {"same file"});
    refused({"--log_json=" + folder_ + "/early_link", "--trace=" + folder_ + "/nothing_yet"}, {"same file"});
  }
  for (const std::string name :
       {"train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"}) {
    const std::string data = Write(name + "-ubyte.gz", old);
    ExpectError(Run("mlp", {"--data_dir=" + folder_, "--log_json=" + data}),
                {name, "--data_dir=", "same file"});
    EXPECT_EQ(ReadFile(Write("copy", TextOf(data))), old);
  }
  // The part of the trace that a process writes, and the logs of --processes.
  const std::string part = Write("t.json.process1", old), log = Write("process1.log", old);
  const Outcome parts =
      Gpt({"--processes=2", "--mesh=cpu:dp=2", "--text=" + part, "--trace=" + folder_ + "/t.json"});
  EXPECT_TRUE(Refused(parts.code, "--processes=2")) << parts.code;
  EXPECT_NE(parts.err.find("same file"), std::string::npos) << parts.err;
  EXPECT_EQ(ReadFile(part), old);
  ExpectError(Gpt({"--processes=2", "--mesh=cpu:dp=2", "--text=" + log, "--log_dir=" + folder_}),
              {"process1.log", "--text=", "same file"});
  EXPECT_EQ(ReadFile(log), old);
}

// Inputs below folders and patterns are as safe as those that a flag names.
TEST_F(CliTest, OutputsMayNotBeWhatFoldersAndPatternsHold) {
  namespace fs = std::filesystem;
  const std::string old = "precious\n";
  for (const char* sub : {"their_hf", "pictures/train/cat", "pictures/val/cat", "texts"})
    fs::create_directories(folder_ + "/" + sub);
  ASSERT_EQ(Gpt({"--save=" + folder_ + "/run", "--save_hf=" + folder_ + "/hf"}).code, 0);
  const std::string step = "run/step-00000002";
  auto refused = [&](const std::string& program, const std::string& input, const std::string& file,
                     const std::vector<std::string>& outputs) {
    const std::string path = folder_ + "/" + file, before = fs::exists(path) ? TextOf(path) : "";
    for (const std::string& output : outputs) {
      SCOPED_TRACE(Cat(program, " ", input, " ", output, " ", file));
      ExpectError(Run(program, {input, output + path}),
                  {"would overwrite", input.substr(0, input.find('='))});
      EXPECT_EQ(fs::exists(path) ? TextOf(path) : "", before);
    }
  };
  const std::vector<std::string> all = {"--trace=", "--report=", "--log_json="},
                                 of_any = {"--trace=", "--report="};
  for (const char* file : {"hf/model.safetensors", "hf/config.json", "hf/tokenizer.json"})
    refused("gpt", "--load_hf=" + folder_ + "/hf", file, all);
  Write("their_hf/model.safetensors", old);
  for (const char* file : {"their_hf/model.safetensors", "their_hf/config.json", "their_hf/tokenizer.json"})
    for (const char* program : {"gpt", "llama", "vit", "generate"})
      refused(program, "--load_hf=" + folder_ + "/their_hf", file, of_any);
  for (const std::string& file :
       {step + "/model.safetensors.index.json", step + "/model-00001-of-00001.safetensors"})
    for (const char* input : {"--load=", "--resume="}) {
      refused("gpt", input + folder_ + "/run", file, all);
      refused("gpt", input + folder_ + "/" + step, file, all);
      if (input == std::string("--load=")) refused("generate", input + folder_ + "/run", file, of_any);
    }
  refused("gpt", "--load=" + folder_ + "/hf/model.safetensors", "hf/model.safetensors", all);
  Write("pictures/train/cat/1.png", old);
  for (const char* program : {"resnet", "vit", "unet"})
    for (const char* file : {"pictures/train/cat/1.png", "pictures/val/cat/2.jpg"})
      refused(program, "--images=" + folder_ + "/pictures", file, all);
  const std::string prompts = Write("prompts.txt", old), words = Write("words.model", old);
  refused("generate", "--prompts=" + prompts, "prompts.txt", of_any);
  refused("generate", "--tokenizer=" + words, "words.model", of_any);
  // Patterns, Megatron's second file, and logs, which are opened early.
  for (const char* name :
       {"texts/1.txt", "texts/t.bin", "texts/t.idx", "texts/gpt.log", "texts/process0.log"})
    Write(name, old);
  for (const char* program : {"gpt", "bert"}) {
    refused(program, "--text=" + folder_ + "/texts/*.txt", "texts/1.txt", all);
    refused(program, "--text=" + folder_ + "/texts/t.bin", "texts/t.idx", all);
  }
  refused("dlrm", "--clicks=" + folder_ + "/texts/[0-9].txt", "texts/1.txt", all);
  for (const std::string processes : {"--processes=1", "--processes=2"}) {
    ExpectError(Gpt({processes, "--mesh=cpu:dp=2", "--text=" + folder_ + "/texts/*.log",
                     "--log_dir=" + folder_ + "/texts"}),
                {"the log ", ".log", "--text=", "same file"});
    for (const char* name : {"texts/gpt.log", "texts/process0.log"})
      EXPECT_EQ(TextOf(folder_ + "/" + name), old) << name;
  }
  // What lies beside them is nobody's input.
  const Outcome o = Gpt({"--load=" + folder_ + "/run", "--trace=" + folder_ + "/run/trace.json",
                         "--log_json=" + folder_ + "/run/metrics.jsonl"});
  EXPECT_EQ(o.code, 0) << o.err;
}

// Every flag with every control character: what is printed of it is on one line and commands no terminal.
TEST_F(CliTest, ValuesOfFlagsArePrintedOnOneLine) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);  // which gets what is not refused
  const Outcome config = Gpt({"--out=" + folder_ + "/out", "--steps=1"});
  ASSERT_EQ(config.code, 0) << config.err;
  const std::regex flag("--([a-z0-9_]+)=(.*)");
  int refused = 0;
  for (const std::string& line : LinesOf(TextOf(folder_ + "/out/config"))) {
    std::smatch parts;
    ASSERT_TRUE(std::regex_match(line, parts, flag)) << line;
    const std::string name = parts[1];
    if (name == "prompt") continue;  // may have lines
    for (const std::string& value :
         {std::string("1\n2"), std::string("a,\nb=\x1b[31m"), folder_ + "/a\r\n/b"}) {
      if (name == "out" || (name == "save" && value[0] != '/') || name == "dump_dir" || name == "tensorboard")
        continue;
      SCOPED_TRACE(Cat("--", name, "=", OnOneLine(value)));
      const Outcome o = Gpt({Cat("--", name, "=", value), "--dry_run"});
      if (o.code == 0) continue;
      ++refused;
      EXPECT_EQ(o.code, kUsageError);
      ExpectError(o, {});
      EXPECT_EQ(o.err.find('\x1b'), std::string::npos) << OnOneLine(o.err);
      EXPECT_EQ(o.err.find('\r'), std::string::npos) << OnOneLine(o.err);
    }
  }
  EXPECT_GT(refused, 100);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--no\nsuch=1"},
                                             {"--no\x1bsuch"},
                                             {"wo\nrd"},
                                             {"--steps", "1\n2"},
                                             {"--text=a\nb", "--steps=x\ny"},
                                             {"--dry_run=\n"},
                                             {"--prompt=a\nb", "--mesh=cpu:\n=2"},
                                             {"--text=" + folder_ + "/a\nb"}}) {
    SCOPED_TRACE(::testing::PrintToString(words));
    const Outcome o = Gpt(words);
    ExpectError(o, {});
    EXPECT_EQ(o.err.find('\x1b'), std::string::npos);
  }
  // Lines of our own stay, also beside a prompt of several.
  const Outcome table = Gpt({"--prompt=a\nb", "--memory_budget=1000"});
  EXPECT_EQ(table.code, kRunError);
  EXPECT_GT(LinesOf(table.err).size(), 2u) << table.err;
  ExpectError(Run("checkpoint", {"list", folder_ + "/a\nb"}), {"a\\nb"}, 1);
  for (const std::string processes : {"--processes=2", "--restarts=1"})
    ExpectError(Gpt({processes, "--save=" + folder_ + "/s", "--mesh=cpu:\ndp=2"}), {"\\ndp"});
  std::filesystem::current_path(before);
}

// A limit on the size of files, as a shell or a batch system sets: a sentence, an exit code, and the
// checkpoint from before is whole.
TEST_F(CliTest, ASaveBeyondTheSizeOfFilesLeavesTheFormerOne) {
  const std::string gpt =
      Cat(OFL_BINARY_DIR, "/examples/gpt --text=", text_,
          " --layers=2 --width=16 --heads=2 --context=8 --batch=4 --eval_batches=0 --sample_tokens=0 "
          "--save_every=2 --mesh=cpu:dp=2 ");
  for (const std::string processes : {"", "--processes=2 --shared_memory=false "})
    for (int blocks : {1, 20}) {  // of 512 or 1024 bytes
      SCOPED_TRACE(Cat(processes, blocks));
      const std::string run = Cat(folder_, "/run", blocks, processes.empty() ? "" : "p");
      ASSERT_EQ(Shell(Cat(gpt, processes, "--steps=2 --save=", run)).code, 0);
      const ShellOutcome o =
          Shell(Cat("ulimit -f ", blocks, "; ", gpt, processes, "--steps=4 --save=", run, " --resume=", run));
      EXPECT_EQ(o.code, kRunError) << o.output;
      EXPECT_NE(o.output.find("error: "), std::string::npos) << o.output;
      EXPECT_NE(o.output.find("File too large"), std::string::npos) << o.output;
      EXPECT_EQ(Shell(Cat(OFL_BINARY_DIR, "/examples/checkpoint verify ", run, "/step-00000002")).code, 0);
      EXPECT_FALSE(std::filesystem::exists(run + "/step-00000004"));
      EXPECT_EQ(Shell(Cat(gpt, processes, "--steps=4 --save=", run, " --resume=", run)).code, 0);
    }
  ShellOutcome o = Shell(Cat("ulimit -f 1; ", gpt, "--steps=2 --processes=2"));
  EXPECT_EQ(o.code, kLostPeer) << o.output;
  EXPECT_NE(o.output.find("(ulimit -f)"), std::string::npos) << o.output;
  EXPECT_EQ(Shell(Cat("ulimit -f 100000; ", gpt, "--steps=2 --processes=2 --save=", folder_, "/shared")).code,
            0);
  const std::string big = folder_ + "/run20";
  o = Shell(Cat("ulimit -f 1; ", OFL_BINARY_DIR, "/examples/checkpoint convert ", big, " ", folder_,
                "/to.safetensors"));
  EXPECT_EQ(o.code, 1) << o.output;
  EXPECT_NE(o.output.find("File too large"), std::string::npos) << o.output;
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/to.safetensors"));
}

// Address space is bounded by shells and batch systems, too: shared memory takes a part of what there is.
TEST_F(CliTest, ProcessesShareABoundedAddressSpace) {
  const ShellOutcome o =
      Shell(Cat("ulimit -v 8000000; ", OFL_BINARY_DIR, "/examples/gpt --text=", text_,
                " --layers=2 --width=16 --heads=2 --context=8 --batch=4 --steps=2 --eval_batches=0 "
                "--sample_tokens=0 --mesh=cpu:dp=2 --processes=2"));
  EXPECT_EQ(o.code, 0) << o.output;
}

TEST_F(CliTest, WhatIsRefusedOrOnlyCompiledLeavesOldFilesAsTheyWere) {
  const std::string old = "of the last run\n", log = Write("log", old), trace = Write("trace", old);
  const std::vector<std::string> outputs = {"--log_json=" + log, "--trace=" + trace};
  const std::vector<std::vector<std::string>> harmless = {{"--dry_run"},
                                                          {"--heads=3"},
                                                          {"--text=" + folder_ + "/none"},
                                                          {"--memory_budget=1"},
                                                          {"--mesh=cpu:pp=3"},
                                                          {"--dropout=2"},
                                                          {"--help"},
                                                          {"--version"}};
  for (std::vector<std::string> flags : harmless) {
    SCOPED_TRACE(flags[0]);
    const bool good = flags[0] == "--dry_run" || flags[0] == "--help" || flags[0] == "--version";
    flags.insert(flags.end(), outputs.begin(), outputs.end());
    const Outcome o = Gpt(flags);
    EXPECT_EQ(o.code, good ? 0 : flags[0] == "--memory_budget=1" ? kRunError : kUsageError) << o.err;
    EXPECT_EQ(ReadFile(log), old);
    EXPECT_EQ(ReadFile(trace), old);
  }
  const Outcome o = Gpt(outputs);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(ReadFile(log).find(old), std::string::npos);
  EXPECT_EQ(ReadFile(trace).find(old), std::string::npos);
}

// As `>`, `2>`, `<` and `>&-` of a shell.
TEST_F(CliTest, StandardOutputThatIsFullClosedOrAFileOfAFlag) {
  const std::string gpt = std::string(OFL_BINARY_DIR) +
                          "/examples/gpt --layers=1 --width=16 --heads=2 --context=8 "
                          "--batch=4 --steps=3 --eval_batches=0 --sample_tokens=0 --text=" +
                          text_ + " ";
  auto shell = [&](const std::string& command) {
    const int status = std::system((command + " 2>" + folder_ + "/err").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  for (const std::string processes : {"", "--mesh=cpu:dp=2 --processes=2 "}) {
    for (const std::string what : {"", "--dry_run ", "--help ", "--version "}) {
      SCOPED_TRACE(processes + what);
      EXPECT_EQ(shell(gpt + processes + what + ">/dev/full"), 1);
      const std::string said = ReadFile(folder_ + "/err");
      EXPECT_NE(said.find("standard output: No space left"), std::string::npos) << said;
      EXPECT_EQ(shell(gpt + processes + what + ">/dev/null"), 0) << ReadFile(folder_ + "/err");
      for (const std::string closed : {">&-", "<&-", "<&- >&-", "<&- >&- 2>&-"}) {
        const std::string log = folder_ + "/log.json";
        EXPECT_EQ(std::system((gpt + processes + what + "--log_json=" + log + " " + closed).c_str()), 0)
            << closed;
        if (!what.empty()) continue;
        const std::vector<std::string> lines = LinesOf(ReadFile(log));
        EXPECT_EQ(lines.size(), 3u) << closed;
        for (const std::string& line : lines)
          EXPECT_EQ(line.rfind("{\"step\":", 0), 0u) << closed << "\n" << line;
      }
    }
    SCOPED_TRACE(processes);
    const std::string both = Write("both", "");
    for (const std::string output : {"--log_json=", "--trace=", "--report="}) {
      const int code = shell(gpt + processes + output + both + " >" + both);
      EXPECT_TRUE(Refused(code, processes.empty() ? "--processes=1" : "--processes=2")) << output << code;
      const std::string said = ReadFile(folder_ + "/err");
      EXPECT_NE(said.find("standard output are the same file"), std::string::npos) << said;
    }
  }
  EXPECT_EQ(shell(gpt + "--log_json=/dev/full >/dev/null"), 1);
  EXPECT_NE(ReadFile(folder_ + "/err").find("No space left"), std::string::npos);
  EXPECT_EQ(shell(gpt + "--trace=/dev/full >/dev/null"), 1);
  EXPECT_NE(ReadFile(folder_ + "/err").find("No space left"), std::string::npos);
}

// The common flags by group, each group whole, and all flags; a group that a program lacks is named.
TEST_F(CliTest, HelpShowsCommonFlagsAndWholeGroups) {
  for (const std::string program : {"gpt", "llama", "generate", "resnet", "vit", "dlrm", "moe", "bert",
                                    "caption", "insightface", "unet", "mlp", "hello_sbp"}) {
    const Outcome o = Run(program, {"--help"});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(o.err, "");
    const std::vector<std::string> lines = LinesOf(o.out);
    for (const std::string& line : lines) EXPECT_LE(line.size(), 110u) << line;
    for (const char* word : {"  --mesh ", "  --processes ", "  --trace ", "  --log_dir ", "Several processes",
                             "more: --help=processes)", "--help=GROUP", "--helpfull"})
      EXPECT_NE(o.out.find(word), std::string::npos) << word << "\n" << o.out;
    for (const char* word :
         {"--logtostderr", "--flagfile", "--peer_timeout", "00000", ".cc", "/home", OFL_SOURCE_DIR, "type:"})
      EXPECT_EQ(o.out.find(word), std::string::npos) << word << "\n" << o.out;
    const Outcome group = Run(program, {"--help=processes"});
    EXPECT_EQ(group.code, 0);
    EXPECT_NE(group.out.find("  --peer_timeout       Sets after how many seconds"), std::string::npos)
        << group.out;
    EXPECT_EQ(group.out.find("  --mesh "), std::string::npos) << group.out;
    const Outcome full = Run(program, {"--helpfull"});
    EXPECT_EQ(full.code, 0);
    for (const char* word : {"  --mesh ", "  --peer_timeout ", "  --logtostderr ", "  --flagfile "})
      EXPECT_NE(full.out.find(word), std::string::npos) << word << "\n" << full.out;
    EXPECT_EQ(full.out.find(OFL_SOURCE_DIR), std::string::npos);
  }
  const std::string gpt = Run("gpt", {"--help"}).out;
  for (const char* word :
       {"\nModel (2 more: --help=model)\n", "Drops values with this probability in training. (0.1)",
        "Sets how many sequences one step takes", "--micro_batches"})
    EXPECT_NE(gpt.find(word), std::string::npos) << word << "\n" << gpt;
  EXPECT_LT(gpt.find("--micro_batches"), gpt.find("--mesh"));
  ExpectError(Run("gpt", {"--help=pictures"}),
              {"--help=pictures: this program has no group of flags", "model, text, huggingface, training"});
}

TEST_F(CliTest, CheckpointsAreListedVerifiedComparedAndConverted) {
  const std::string run = folder_ + "/run", one = folder_ + "/one.safetensors", hf = folder_ + "/hf";
  ASSERT_EQ(Gpt({"--mesh=cpu:tp=2", "--save=" + run, "--save_every=1"}).code, 0);
  const Outcome list = Run("checkpoint", {"list", run});
  EXPECT_EQ(list.code, 0) << list.err;
  for (const char* word :
       {"step-00000002", "cpu:dp=1,tp=2,pp=1", "block1/attention/q ", "2 pieces", "train 2"})
    EXPECT_NE(list.out.find(word), std::string::npos) << word << "\n" << list.out;
  EXPECT_EQ(Run("checkpoint", {"verify", run}).code, 0);
  EXPECT_EQ(Run("checkpoint", {"diff", run, run + "/step-00000002"}).code, 0);
  EXPECT_EQ(Run("checkpoint", {"diff", run, run + "/step-00000001"}).code, 1);
  EXPECT_EQ(Run("checkpoint", {"diff", run, folder_ + "/none"}).code, 2);
  EXPECT_EQ(Run("checkpoint", {"convert", run, hf, "--format=huggingface", "--model=gpt2"}).code, 0);
  EXPECT_EQ(Run("checkpoint", {"convert", hf, one, "--model=gpt2"}).code, 0);
  EXPECT_EQ(Run("checkpoint", {"diff", run, one, "--weights_only"}).code, 0);
  ExpectError(Run("checkpoint", {"convert", run, one}), {"one.safetensors", "there already"}, kRunError);
  std::string file = run + "/step-00000002/model-00001-of-00001.safetensors", bytes = ReadFile(file);
  bytes.back() ^= 1;
  Write("run/step-00000002/model-00001-of-00001.safetensors", bytes);
  const Outcome damaged = Run("checkpoint", {"verify", run});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_NE(damaged.out.find(file + ": tensor '"), std::string::npos) << damaged.out;
}

TEST_F(CliTest, CheckpointSaysWhatIsWrongWithItsFlags) {
  const std::string none = folder_ + "/none", there = folder_ + "/text.txt", to = folder_ + "/to";
  ExpectError(Run("checkpoint", {}), {"list, verify, diff or convert"}, kRunError);
  ExpectError(Run("checkpoint", {"lst", none}), {"'lst' is no command"}, kRunError);
  ExpectError(Run("checkpoint", {"list"}), {"list takes 1 path, but 0 are given"}, kRunError);
  ExpectError(Run("checkpoint", {"verify", none, none}), {"verify takes 1 path, but 2 are given"}, kRunError);
  ExpectError(Run("checkpoint", {"convert", none}), {"convert takes 2 paths, but 1 is given"}, kRunError);
  ExpectError(Run("checkpoint", {"list", none}), {none, "no such file or folder"}, kRunError);
  ExpectError(Run("checkpoint", {"list", folder_}), {folder_, "no complete checkpoint"}, kRunError);
  ExpectError(Run("checkpoint", {"list", there}), {there, "no safetensors file"}, kRunError);
  ExpectError(Run("checkpoint", {"list", none, "--dtype=bf16"}), {"--dtype is not for list"}, kRunError);
  ExpectError(Run("checkpoint", {"convert", there, to, "--dtype=int4"}), {"--dtype=int4", "bf16"}, kRunError);
  ExpectError(Run("checkpoint", {"convert", there, to, "--format=onnx"}), {"--format=onnx"}, kRunError);
  ExpectError(Run("checkpoint", {"convert", there, to, "--format=huggingface"}), {"--model=gpt2"}, kRunError);
  ExpectError(Run("checkpoint", {"convert", there, to, "--model=bart"}),
              {"--model=bart", "gpt2, llama or vit"}, kRunError);
  EXPECT_FALSE(std::filesystem::exists(to));
  EXPECT_EQ(Run("checkpoint", {"list", none, "--dtypes=bf16"}).code, 1);
  const Outcome help = Run("checkpoint", {"--help"});
  EXPECT_EQ(help.code, 0) << help.err;
  for (const char* word : {"checkpoint verify PATH", "\nCheckpoints\n", "  --weights_only ", "--helpfull"})
    EXPECT_NE(help.out.find(word), std::string::npos) << word << "\n" << help.out;
  for (const char* word : {"  --mesh ", "Several processes", "--logtostderr", OFL_SOURCE_DIR})
    EXPECT_EQ(help.out.find(word), std::string::npos) << word << "\n" << help.out;
  EXPECT_LE(LinesOf(help.out).size(), 30u) << help.out;
}

// Silent when all is well; the lines of a start by a flag, or in a file.
TEST_F(CliTest, LogsAsMuchAsItIsTold) {
  const std::string logs = folder_ + "/logs";
  const std::vector<std::string> lines = {"process 0 of 1", "session train is compiled",
                                          "session train is ready"};
  struct Case {
    std::vector<std::string> flags;
    bool printed, kept;
  };
  for (const Case& c :
       {Case{{}, false, false}, Case{{"--v=1"}, true, false},
        Case{{"--v=1", "--minloglevel=1"}, false, false}, Case{{"--log_dir=" + logs}, false, true},
        Case{{"--log_dir=" + logs, "--v=0"}, false, false}}) {
    std::filesystem::remove_all(logs);
    const Outcome o = Gpt(c.flags);
    EXPECT_EQ(o.code, 0) << o.err;
    const std::string kept = TextOf(logs + "/gpt.log");
    for (const std::string& line : lines) {
      SCOPED_TRACE(line + " | " + (c.flags.empty() ? "" : c.flags.back()));
      EXPECT_EQ(o.err.find(line) != std::string::npos, c.printed) << o.err;
      EXPECT_EQ(kept.find(line) != std::string::npos, c.kept) << kept;
    }
  }
}

TEST_F(CliTest, VersionNamesTheBuildAndItsLibraries) {
  const Outcome o = Run("gpt", {"--version"});
  EXPECT_EQ(o.code, 0) << o.err;
  const std::vector<std::string> lines = LinesOf(o.out);
  ASSERT_GE(lines.size(), 9u) << o.out;
  EXPECT_EQ(lines[0], "oneflow_like " OFL_VERSION);
  auto expect = [&](const std::string& pattern) {
    EXPECT_TRUE(
        std::any_of(lines.begin(), lines.end(),
                    [&](const std::string& line) { return std::regex_match(line, std::regex(pattern)); }))
        << pattern << "\n"
        << o.out;
  };
  expect("  commit +([0-9a-f]{12}|unknown)");
  expect("  sources +[0-9a-f]{12}");
  for (const std::string library : {"protobuf", "glog", "gflags", "oneDNN", "UCX"})
    expect("  " + library + " +[0-9]+[.][0-9]+.*");
  expect("  CUDA +(built without|toolkit [0-9].*)");
  expect("  kernels +(that of the build|x86-64-v[2-4].*)");
}

TEST_F(CliTest, LossThatIsNoNumberIsReportedWithItsStep) {
  ExpectError(Gpt({"--lr=1e30", "--warmup=0", "--clip=0", "--steps=20"}), {"loss", "step"}, kRunError);
}

TEST_F(CliTest, DryRunOfAMeshLargerThanTheMachine) {
  const Outcome o = Gpt({"--dry_run", "--mesh=cpu:dp=16,tp=2,pp=2", "--batch=64", "--micro_batches=4"});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* word : {"peak", "actors", "buffers", "collectives", "sent", "estimated time of a step",
                           "stage pp=1 computes", "bubble", "weights", "optimizer state", "stash"}) {
    EXPECT_NE(o.out.find(word), std::string::npos) << word << "\n" << o.out;
  }
}

// What would take all of a machine's memory, or hours, is refused by a number that is said.
TEST_F(CliTest, MeshesBeyondWhatCanBePlannedAreRefused) {
  const std::string topology = std::string("--topology=") + OFL_SOURCE_DIR + "/examples/topologies/a100.txt";
  ExpectError(Gpt({"--dry_run", "--mesh=cpu:dp=16385", "--batch=16385"}),
              {"16385 devices along axis dp", "at most 16384"});
  ExpectError(Gpt({"--dry_run", "--mesh=cpu:tp=65536", "--batch=65536"}),
              {"65536 devices along axis tp", "at most 16384"});
  ExpectError(Gpt({"--dry_run", "--mesh=cpu:dp=1048576", "--batch=1048576"}),
              {"1048576 devices", "at most 65536"});
  ExpectError(Gpt({"--dry_run", "--mesh=cpu:dp=512,tp=129", "--batch=512"}),
              {"66048 devices", "at most 65536"});
  ExpectError(Gpt({"--simulate", topology, "--mesh=cpu:dp=4097", "--batch=4097"}),
              {"4097 devices along axis dp", "processors with --topology", "at most 4096"});
  const Outcome o = Gpt({"--dry_run", "--mesh=cpu:dp=4097", "--batch=4097"});
  EXPECT_EQ(o.code, 0) << o.err;
}

// A search through the plans of a large model takes minutes; what no plan can do without is known at once.
TEST_F(CliTest, BudgetsBelowTheVariablesAreRefusedAtOnce) {
  const std::vector<std::string> large = {"--dry_run", "--layers=24", "--width=32",
                                          "--heads=2", "--batch=16",  "--micro_batches=8"};
  const auto gpt = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), large.begin(), large.end());
    return Gpt(flags);
  };
  for (const std::string mesh : {"--mesh=cpu:dp=2,tp=2,pp=4", "--mesh=cpu:dp=2,tp=2,pp=4 --zero=1"}) {
    std::vector<std::string> flags = {mesh.substr(0, mesh.find(' ')), "--memory_budget=1000"};
    if (mesh.find(' ') != std::string::npos) flags.push_back(mesh.substr(mesh.find(' ') + 1));
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), flags.begin(), flags.end());
      return gpt(more);
    };
    for (const bool cuts : {false, true}) {
      SCOPED_TRACE(Cat(mesh, cuts ? " --auto" : ""));
      const Outcome o = with(cuts ? std::vector<std::string>{"--recompute=auto", "--auto"}
                                  : std::vector<std::string>{"--recompute=auto"});
      ExpectError(o,
                  {"no plan fits in the budget of 1000 bytes", "weights and optimizer state take",
                   cuts ? "whatever they are cut along" : "however much is computed again"},
                  kRunError);
    }
  }
  ExpectError(Gpt({"--dry_run", "--auto_mesh=16", "--batch=16", "--memory_budget=1000"}),
              {"no plan of 16 devices fits", "weights and optimizer state take", "about", "1.00 KB"},
              kRunError);
}

TEST_F(CliTest, ExplainSaysWhatIsSentAndWhy) {
  const Outcome o = Gpt({"--explain", "--dry_run", "--mesh=cpu:dp=2,tp=2"});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* word : {"all_reduce", "wanted by", "gpt_model.cc:", "rank", "of the mean"}) {
    EXPECT_NE(o.out.find(word), std::string::npos) << word << "\n" << o.out;
  }
}

// --- --simulate ---

TEST_F(CliTest, SimulatesMachinesThatAreNotThere) {
  const std::string topologies = OFL_SOURCE_DIR "/examples/topologies/";
  for (const char* name : {"v100", "v100_pcie", "a100", "h100", "h100_cluster", "h200"}) {
    const std::string trace = folder_ + "/trace.json";
    const std::vector<std::string> flags = {"--simulate",
                                            "--mesh=cuda:dp=4,tp=4,pp=2",
                                            "--micro_batches=2",
                                            "--batch=16",
                                            "--dtype=bf16",
                                            "--layers=2",
                                            "--topology=" + topologies + name + ".txt",
                                            "--trace=" + trace};
    const Outcome o = Run("gpt", flags);
    EXPECT_EQ(o.code, 0) << o.err;
    for (const char* word : {"simulated: a step takes ", " tokens/s; MFU ", "computes", "messages", "bubble",
                             "pp=0", "pp=1", "weights "})
      EXPECT_NE(o.out.find(word), std::string::npos) << word << "\n" << o.out;
    EXPECT_NE(ReadFile(trace).find("\"ph\":\"X\""), std::string::npos);
    EXPECT_EQ(Run("gpt", flags).out, o.out);
  }
}

TEST_F(CliTest, RefusesWhatItCannotSimulate) {
  const std::string good =
      "memory_bandwidth 1e12\nflops_fp32 1e13\nflops_16bit 1e14\nlevel node devices 4 latency 1e-6 "
      "bandwidth ";
  const std::string fits = "--topology=" + Write("fits", good + "1e11\n");
  ExpectError(Gpt({"--simulate"}), {"--simulate", "--topology"});
  ExpectError(Gpt({"--simulate", "--topology=/nowhere"}), {"/nowhere", "cannot be read"});
  ExpectError(Gpt({"--simulate", "--topology=" + folder_}), {folder_, "cannot be read"});
  ExpectError(Gpt({"--simulate", "--topology=" + Write("unknown", good + "1e11\nspeed 3\n")}),
              {"unknown:5", "'speed' is not known"});
  ExpectError(Gpt({"--simulate", "--topology=" + Write("zero", good + "0\n")}),
              {"zero:4", "bandwidth", "at least 1e-12"});
  ExpectError(Gpt({"--simulate", "--topology=" + Write("empty", "")}), {"empty", "memory_bandwidth"});
  ExpectError(Gpt({"--simulate", fits, "--mesh=cpu:dp=2,tp=2,pp=2"}), {"4 devices", "mesh has 8"});
  ExpectError(Gpt({"--simulate", fits, "--processes=2", "--mesh=cpu:dp=3"}), {"3 devices", "2 processes"});
}

TEST_F(CliTest, RefusesToCalibrateWhatItCannotMeasure) {
  const std::string file = folder_ + "/here.txt";
  ExpectError(Gpt({"--calibrate=/nowhere/here.txt"}), {"--calibrate=/nowhere/here.txt", "cannot be written"});
  ExpectError(Gpt({"--calibrate=" + folder_}), {"--calibrate=" + folder_, "cannot be written"});
  ExpectError(Gpt({"--calibrate=" + file, "--mesh=tpu:dp=2"}), {"\"tpu\" does not exist", "cpu or cuda"});
  ExpectError(Gpt({"--calibrate=" + file, "--mesh=cpu+cuda:pp=2"}),
              {"--calibrate measures devices of one kind", "cpu and cuda"});
  ExpectError(Gpt({"--calibrate=" + file, "--calibrate_models=0"}),
              {"--calibrate_models is 0", "at least 1"});
  for (const std::string flag : {"--simulate", "--dry_run"})
    ExpectError(Gpt({"--calibrate=" + file, flag}), {"--calibrate=" + file, "leave out " + flag});
  EXPECT_FALSE(std::filesystem::exists(file)) << "an error leaves no file";
}

TEST_F(CliTest, TrainsLogsMeasuresAndWrites) {
  const std::string log = folder_ + "/log.json";
  const Outcome o = Gpt({"--log_json=" + log, "--steps=5", "--mesh=cpu:dp=2,tp=2,pp=2", "--micro_batches=2",
                         "--peak_flops=1e9"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("held-out loss"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("--- a sample ---"), std::string::npos) << o.out;
  std::istringstream lines(ReadFile(log));
  std::string line;
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(std::getline(lines, line)) << step;
    EXPECT_EQ(line.rfind("{\"step\":" + std::to_string(step) + ",\"loss\":", 0), 0u) << line;
    for (const char* key :
         {"\"lr\":", "\"grad_norm\":", "\"tokens_per_s\":", "\"tokens_per_s_per_device\":", "\"step_ms\":",
          "\"data_ms\":", "\"mfu\":", "\"memory_bytes\":", "\"host_bytes\":"})
      EXPECT_NE(line.find(key), std::string::npos) << key;
  }
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(line.rfind("{\"step\":5,\"held_out_loss\":", 0), 0u) << line;
  EXPECT_FALSE(std::getline(lines, line));
}

// What is held out is measured once, however much of the last batch it fills.
TEST_F(CliTest, HeldOutTokensAreCountedOnce) {
  for (const char* batch : {"--batch=4", "--batch=7"}) {
    const Outcome o = Gpt({"--mesh=cpu", batch, "--steps=1", "--sample_tokens=0", "--eval_batches=1000"});
    std::smatch held_out, counted;
    ASSERT_TRUE(std::regex_search(o.out, held_out, std::regex("(\\d+) held out"))) << o.out << o.err;
    ASSERT_TRUE(std::regex_search(o.out, counted, std::regex("held-out loss [0-9.]+ over (\\d+) tokens")))
        << o.out;
    EXPECT_EQ(std::stoll(counted[1]), std::stoll(held_out[1]) - 1) << o.out;
  }
}

TEST_F(CliTest, TensorBoardsFilesAreOfTheMainProcessAlone) {
  for (const char* processes : {"--processes=1", "--processes=2"}) {
    const std::string board = folder_ + "/board" + processes, file = Write("file", "x");
    const Outcome o = Gpt({"--mesh=cpu:dp=2", processes, "--tensorboard=" + board});
    EXPECT_EQ(o.code, 0) << o.err;
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(board)) {
      EXPECT_NE(ReadFile(entry.path()).find("held_out_loss"), std::string::npos);
      ++files;
    }
    EXPECT_EQ(files, 1);
    const Outcome refused = Gpt({"--mesh=cpu:dp=2", processes, "--tensorboard=" + file + "/board"});
    EXPECT_TRUE(Refused(refused.code, processes)) << refused.code;
    EXPECT_NE(refused.err.find("--tensorboard="), std::string::npos) << refused.err;
  }
}

TEST_F(CliTest, ATraceIsWrittenAndTheRunEndsWithWhereTimeWent) {
  const std::string trace = folder_ + "/trace.json";
  const Outcome o = Gpt({"--mesh=cpu:dp=2", "--trace=" + trace});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* word : {"a step of train: ", "matmul", "attention", "other kernels", "boxing", "waiting",
                           "runtime", "gpt_model.cc:"}) {
    EXPECT_NE(o.out.find(word), std::string::npos) << word << "\n" << o.out;
  }
  const std::string text = ReadFile(trace);
  for (const char* word : {"\"cat\":\"train\"", "\"cat\":\"eval\"", "einsum gpt_model.cc:", "\"rank 1\""})
    EXPECT_NE(text.find(word), std::string::npos) << word;
  const std::string nowhere = folder_ + "/no/trace.json";
  ExpectError(Gpt({"--trace=" + nowhere}), {nowhere, "No such file"});
}

// Several processes. processes_test compares more meshes with one device; here one mesh with itself.
class ProcessesCliTest : public CliTest {
 protected:
  std::vector<double> Losses(const std::vector<std::string>& more) {
    const std::string log = folder_ + "/log.json";
    std::vector<std::string> flags = {"--log_json=" + log, "--steps=5", "--micro_batches=2"};
    flags.insert(flags.end(), more.begin(), more.end());
    last_ = Gpt(flags);
    EXPECT_EQ(last_.code, 0) << last_.out << last_.err;
    return LossesOf(log);
  }

  // Two processes as torchrun starts them, each with a flag of its own. All must end with `code`, or where it
  // is 0 with kRunError or kUsageError; gives what process k wrote to standard error.
  std::vector<std::string> FailTogether(const std::string& name, const std::vector<std::string>& own,
                                        const std::vector<std::string>& all = {}, int code = 0) {
    JobCommand command{.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
                       .flags = {"--text=" + text_, "--layers=2", "--width=16", "--heads=2", "--context=8",
                                 "--batch=4", "--steps=3", "--eval_batches=0", "--sample_tokens=0"},
                       .processes = static_cast<int>(own.size()),
                       .output = folder_ + "/" + name};
    command.flags.insert(command.flags.end(), all.begin(), all.end());
    for (size_t k = 0; k < own.size(); ++k) {
      if (!own[k].empty()) command.own_flags[static_cast<int>(k)] = {own[k]};
    }
    ProcessJob job(command);
    EXPECT_TRUE(job.WaitUntil(Seconds() + 60)) << name << " hangs\n" << job.Said();
    std::vector<std::string> said;
    for (int k = 0; k < job.count(); ++k) {
      const int ended = job[k].code();
      EXPECT_TRUE(code != 0 ? ended == code : ended == kRunError || ended == kUsageError) << ended << "\n"
                                                                                          << job.Said();
      said.push_back(job[k].err());
    }
    return said;
  }

  static void ExpectWords(const std::vector<std::string>& said, const std::vector<std::string>& words) {
    for (size_t k = 0; k < said.size(); ++k) {
      EXPECT_NE(said[k].find("error: "), std::string::npos) << "process " << k << ": " << said[k];
      for (const std::string& word : words)
        EXPECT_NE(said[k].find(word), std::string::npos) << word << " | process " << k << ": " << said[k];
    }
  }

  Outcome last_;
};

// Token shards by a pattern; a run that ends early goes on at the same sample on another mesh, and each of
// its processes reads the rows of its ranks alone.
TEST_F(ProcessesCliTest, ShardsAreReadByPatternAndGoOnOnAnotherMesh) {
  for (int shard = 0; shard < 3; ++shard) {
    std::vector<int32_t> header(256, 0);
    header[0] = 20240520, header[1] = 1, header[2] = 70;
    std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
    for (int i = 0; i < 70; ++i) bytes += {static_cast<char>((shard * 70 + i) * 37 % 120), 0};
    Write("shard_" + std::to_string(shard) + ".bin", bytes);
  }
  const std::string text = "--text=" + folder_ + "/shard_*.bin", kept = folder_ + "/kept";
  const std::vector<double> whole = Losses({text});
  EXPECT_NE(last_.out.find("200 tokens to learn from, 10 held out, vocabulary 128"), std::string::npos)
      << last_.out;
  Losses({text, "--save=" + kept, "--save_every=3"});
  std::filesystem::remove_all(kept + "/step-00000005");
  const std::vector<double> rest =
      Losses({text, "--resume=" + kept, "--processes=2", "--mesh=cpu:dp=2,tp=2", "--data_threads=2"});
  ASSERT_EQ(rest.size(), whole.size()) << last_.out;
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(rest[i], whole[i], 2e-4) << i;
  Write("shard_1.bin", "cut");
  ExpectError(Gpt({text}), {"shard_1.bin is truncated at byte 3"});
  ExpectError(Gpt({"--text=" + folder_ + "/none_*.bin"}), {"no file matches"});
}

// Llama without any data: one curve on every mesh, from checkpoints of another, and through Hugging Face's
// folders; and on a text.
TEST_F(ProcessesCliTest, LlamaLearnsOnAnyMeshAndGoesOnFromWhatItLeft) {
  const std::string log = folder_ + "/log.json", kept = folder_ + "/kept", hf = folder_ + "/hf";
  auto losses = [&](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--log_json=" + log, "--steps=4", "--layers=2",      "--batch=4",
                                      "--context=16",      "--tied",    "--eval_batches=1"};
    flags.insert(flags.end(), more.begin(), more.end());
    last_ = Run("llama", flags);
    EXPECT_EQ(last_.code, 0) << last_.out << last_.err;
    return LossesOf(log);
  };
  const std::vector<double> one = losses({"--save=" + kept, "--save_every=2", "--save_hf=" + hf});
  EXPECT_NEAR(one[0], std::log(256), 0.2);
  EXPECT_NE(last_.out.find("held-out loss"), std::string::npos) << last_.out;
  for (const std::vector<std::string>& run : std::vector<std::vector<std::string>>{
           {"--mesh=cpu:dp=2,tp=2,pp=2", "--micro_batches=2", "--zero=2", "--recompute=full"},
           {"--mesh=cpu:pp=2", "--micro_batches=4", "--schedule=zero_bubble", "--stages=1,1"},
           {"--mesh=cpu:tp=2", "--sequence_parallel", "--gather_again", "--processes=2"},
           {"--mesh=cpu:dp=2,cp=2", "--context_parallel"},
           {"--mesh=cpu:sp=2", "--ulysses"},
           {"--mesh=cpu:tp=2,cp=2,sp=2", "--context_parallel", "--ulysses", "--sequence_parallel"}})
    EXPECT_LE(CurveDifference(losses(run), one), 1e-5) << run[0];
  // Keys and values come between processes, once more or once: no bit changes.
  const std::vector<std::string> cut = {"--mesh=cpu:cp=2", "--context_parallel", "--processes=2"};
  std::vector<std::string> kept_whole = cut;
  kept_whole.push_back("--gather_again=false");
  EXPECT_EQ(losses(cut), losses(kept_whole));
  std::filesystem::remove_all(kept + "/step-00000004");
  EXPECT_LE(CurveDifference(losses({"--resume=" + kept, "--mesh=cpu:tp=2"}), one), 1e-5);
  EXPECT_LE(CurveDifference(losses({"--qkv_bias", "--text=" + text_}),
                            losses({"--mesh=cpu:dp=2", "--qkv_bias", "--text=" + text_})),
            1e-5);
  const Outcome loaded = Run("llama", {"--load_hf=" + hf, "--steps=1", "--batch=4", "--log_json=" + log});
  EXPECT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_LT(LossesOf(log)[0], one[0] - 0.05) << "it begins with what was learnt";
  ExpectError(Run("llama", {"--load_hf=" + hf, "--size=8b"}), {"--size", "--load_hf=", "how large"});
  ExpectError(Run("llama", {"--load_hf=" + hf, "--context=17"}), {"--context=17", "16 positions"});
  ExpectError(Run("llama", {"--size=2b"}), {"--size=2b", "tiny, 160m, 1b, 8b, 70b, mixtral_tiny"});
  ExpectError(Run("llama", {"--mesh=cpu:pp=5"}), {"pp has 5 stages", "4 layers"});
}

TEST_F(ProcessesCliTest, ProcessesLearnWhatOneDoesOnTheSameMesh) {
  for (const std::string mesh : {"--mesh=cpu:dp=2", "--mesh=cpu:tp=2", "--mesh=cpu:pp=2"}) {
    EXPECT_LE(CurveDifference(Losses({mesh, "--processes=2"}), Losses({mesh})), 1e-6) << mesh;
  }
  const std::string mesh = "--mesh=cpu:dp=2,tp=2";
  const std::vector<double> alone = Losses({mesh});
  const Outcome one = last_;
  for (const std::string processes : {"--processes=2", "--processes=4"}) {
    EXPECT_LE(CurveDifference(Losses({mesh, processes}), alone), 1e-6) << processes;
    // Sample and held-out loss as well, said once.
    const size_t sample = one.out.find("--- a sample"), end = one.out.find("a step of train");
    ASSERT_NE(sample, std::string::npos) << one.out;
    EXPECT_NE(last_.out.find(one.out.substr(sample, end - sample)), std::string::npos) << last_.out;
    const size_t held_out = last_.out.find("held-out loss");
    EXPECT_NE(held_out, std::string::npos) << last_.out;
    EXPECT_EQ(held_out, last_.out.rfind("held-out loss")) << last_.out;
  }
}

TEST_F(ProcessesCliTest, TheProfileIsOfAllProcesses) {
  const std::string said = "on average of 4 (without the first, in which libraries warm up), over 4 threads";
  (void)Losses({"--mesh=cpu:pp=4", "--layers=4", "--batch=8", "--processes=4", "--threads=1"});
  EXPECT_NE(last_.out.find(said), std::string::npos) << last_.out;
}

TEST_F(ProcessesCliTest, DryRunIsPrintedOnce) {
  const Outcome o = Gpt({"--dry_run", "--processes=2", "--mesh=cpu:dp=2"});
  EXPECT_EQ(o.code, 0) << o.err;
  const size_t at = o.out.find("session train");
  EXPECT_NE(at, std::string::npos) << o.out;
  EXPECT_EQ(at, o.out.rfind("session train")) << o.out;
  // 16 MiB, and three chunks of half one for the session's own.
  EXPECT_NE(o.out.find("staging       18.35 MB more of its process, "), std::string::npos) << o.out;
  const Outcome four = Gpt({"--dry_run", "--processes=2", "--mesh=cpu:dp=4"});
  EXPECT_NE(four.out.find(" MB more of its process of 2 ranks, "), std::string::npos) << four.out;
  const Outcome alone = Gpt({"--dry_run", "--mesh=cpu:dp=2"});
  EXPECT_EQ(alone.out.find("staging"), std::string::npos) << alone.out;
}

TEST_F(ProcessesCliTest, FlagsThatDifferAreNamed) {
  ExpectWords(FailTogether("trace", {"", "--trace=" + folder_ + "/t.json"}, {"--mesh=cpu:dp=2"}),
              {"option --trace: process 0 has none, process 1 has " + folder_ + "/t.json"});
  ExpectWords(FailTogether("calibrate", {"", "--calibrate=" + folder_ + "/c.txt"}, {"--mesh=cpu:dp=2"}),
              {"option --calibrate: process 0 has none, process 1 has " + folder_ + "/c.txt"});
  ExpectWords(FailTogether("dry", {"--dry_run", "", ""}, {"--mesh=cpu:dp=3"}),
              {"option --dry_run: process 0 has true, process 1 has false"});
  ExpectWords(FailTogether("budget", {"", "", "--memory_budget=7"}, {"--mesh=cpu:dp=3"}),
              {"option --memory_budget: process 0 has 0, process 2 has 7"});
  ExpectWords(FailTogether("patience", {"--peer_timeout=20", "--peer_timeout=30"}, {"--mesh=cpu:dp=2"}),
              {"option --peer_timeout: process 0 has 20, process 1 has 30"});
}

TEST_F(ProcessesCliTest, AnErrorThatAllMakeIsPrintedOnce) {
  for (const std::string mesh : {"cpu:zp=3", "cpu:dp=4"}) {
    const Outcome o = Gpt({"--processes=3", "--mesh=" + mesh});
    EXPECT_EQ(o.code, kUsageError);
    const size_t at = o.err.find("error: mesh cpu:");
    EXPECT_NE(at, std::string::npos) << o.err;
    EXPECT_EQ(at, o.err.rfind("error: mesh cpu:")) << o.err;
  }
}

// By name, before anything has begun: also what none of them would have missed, such as another text.
TEST_F(ProcessesCliTest, FlagsOfTheProgramThatDifferAreNamed) {
  const std::string other = Write("other.txt", std::string(9000, 'x'));
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"seed", "1", "7"},       {"width", "16", "32"},   {"layers", "2", "3"},
      {"lr", "0.001", "0.002"}, {"steps", "3", "4"},     {"save", "", folder_ + "/saved"},
      {"text", text_, other},   {"prompt", "a", "a\nb"}, {"micro_batches", "1", "2"}};
  int number = 0;
  for (const auto& [flag, first, second] : cases) {
    SCOPED_TRACE(flag);
    const std::string shown = second == "a\nb" ? "a\\nb" : second;
    ExpectWords(
        FailTogether(Cat("differ", number++), {Cat("--", flag, "=", first), Cat("--", flag, "=", second)},
                     {"--mesh=cpu:dp=2"}, kUsageError),
        {Cat("different flags: option --", flag, ": process 0 has ", first.empty() ? "none" : first,
             ", process 1 has ", shown)});
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/saved"));
  ExpectWords(FailTogether("mesh", {"--mesh=cpu:dp=2", "--mesh=cpu:tp=2"}, {}, kUsageError),
              {"option --mesh: process 0 has cpu:dp=2, process 1 has cpu:tp=2"});
  ExpectWords(FailTogether("out", {"--out=" + folder_ + "/a", ""}, {"--mesh=cpu:dp=2"}, kUsageError),
              {"option --out: process 0 has " + folder_ + "/a, process 1 has none"});
}

// Told apart by what whoever started it should do: mend the command, look into the run, or start it again.
// interrupt_test has 75.
TEST_F(ProcessesCliTest, ExitCodesTellWhatHappened) {
  FailTogether("usage", {"", ""}, {"--mesh=cpu:dp=2", "--stages=one"}, kUsageError);
  FailTogether("flags", {"--peer_timeout=20", "--peer_timeout=30"}, {"--mesh=cpu:dp=2"}, kUsageError);
  const std::vector<std::string> diverges = {"--lr=1e30", "--warmup=0", "--clip=0", "--steps=20"};
  std::vector<std::string> run = diverges;
  run.push_back("--mesh=cpu:dp=3");
  FailTogether("run", {"", "", ""}, run, kRunError);
  for (const char* processes : {"--processes=1", "--processes=2"}) {
    run = diverges;
    run.insert(run.end(), {"--mesh=cpu:dp=2", processes});
    EXPECT_EQ(Gpt(run).code, kRunError) << processes;
    EXPECT_EQ(Gpt({"--mesh=cpu:dp=2", processes, "--heads=3"}).code, kUsageError) << processes;
  }
  // Alone of what it takes: it gives up.
  JobCommand command{.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
                     .flags = {"--text=" + text_, "--layers=2", "--width=16", "--heads=2", "--context=8",
                               "--batch=6", "--steps=1000000", "--mesh=cpu:dp=3", "--peer_timeout=4"},
                     .processes = 3,
                     .output = folder_ + "/lost"};
  const std::string log = folder_ + "/lost.json";
  command.own_flags[0] = {"--log_json=" + log};
  for (int victim = 0; victim < 3; ++victim) {
    std::filesystem::remove(log);
    ProcessJob job(command);
    while (LossesOf(log).size() < 3 && !job[0].Ended()) Sleep(0.01);
    job[victim].Signal(SIGKILL);
    ASSERT_TRUE(job.WaitUntil(Seconds() + 120)) << job.Said();
    for (int k = 0; k < 3; ++k)
      EXPECT_EQ(job[k].code(), k == victim ? 128 + SIGKILL : kLostPeer) << victim << "\n" << job.Said();
  }
}

TEST_F(ProcessesCliTest, AMeshThatProcessesCannotShareIsRefused) {
  for (const std::string& said : FailTogether("three", {"", ""}, {"--mesh=cpu:dp=3"})) {
    EXPECT_NE(said.find("has 3 devices, which 2 processes cannot share equally"), std::string::npos) << said;
  }
}

TEST_F(ProcessesCliTest, AnErrorOfOneProcessEndsAllWithItsMessage) {
  ExpectWords(FailTogether("text", {"", "--text=" + folder_ + "/none.txt"}, {"--mesh=cpu:dp=2"}),
              {"none.txt", "No such file"});
  ExpectWords(FailTogether("loss", {"", ""},
                           {"--mesh=cpu:dp=2", "--lr=1e30", "--warmup=0", "--clip=0", "--steps=20"}),
              {"loss is", "step "});
  const Outcome o = Gpt({"--processes=2", "--mesh=cpu:dp=2", "--log_json=" + folder_ + "/none/log.json"});
  EXPECT_TRUE(Refused(o.code, "--processes=2")) << o.code;
  EXPECT_NE(o.err.find("error: --log_json="), std::string::npos) << o.err;
}

TEST_F(ProcessesCliTest, WrongFlagsAreReportedOnce) {
  ExpectError(Gpt({"--processes=0"}), {"--processes", "0"});
  ExpectError(Gpt({"--processes=2", "--peer_timeout=0"}), {"--peer_timeout", "0"});
  ExpectError(Gpt({"--processes=2", "nonsense"}), {"nonsense"});
  ExpectError(Gpt({"--processes=2", "--network=lo,nosuch0"}),
              {"--network=lo,nosuch0", "'nosuch0'", "has ", "lo"});
  for (const std::string& said : FailTogether("both", {"--processes=2", "--processes=2"})) {
    EXPECT_NE(said.find("torchrun has started this one as one of 2"), std::string::npos) << said;
  }
}

TEST_F(ProcessesCliTest, WhatProcessesPrintIsAlsoInTheLogFolder) {
  const Outcome o = Gpt({"--processes=2", "--mesh=cpu:dp=2", "--log_dir=" + folder_ + "/logs"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(TextOf(folder_ + "/logs/process0.log").find("held-out loss"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/logs/process1.log"));
}

TEST_F(ProcessesCliTest, TracesBecomeOne) {
  const std::string trace = folder_ + "/trace.json";
  const Outcome o = Gpt({"--processes=2", "--mesh=cpu:dp=2,tp=2", "--trace=" + trace});
  EXPECT_EQ(o.code, 0) << o.err;
  const std::string text = ReadFile(trace);
  for (const char* word :
       {"\"cat\":\"train\"", "\"cat\":\"eval\"", "\"rank 0\"", "\"rank 1\"", "\"rank 2\"", "\"rank 3\""})
    EXPECT_NE(text.find(word), std::string::npos) << word;
  EXPECT_EQ(text.rfind("[\n", 0), 0u);
  EXPECT_EQ(text.substr(text.size() - 4), "}\n]\n");
  // Acts of one collective overlap in time on all ranks, which they do on one clock alone: within a second.
  double first[4] = {1e30, 1e30, 1e30, 1e30};
  for (const std::string& line : LinesOf(text)) {
    const size_t pid = line.find("\"pid\":"), ts = line.find("\"ts\":");
    if (line.find("\"ph\":\"X\"") == std::string::npos) continue;
    double& earliest = first[std::stoi(line.substr(pid + 6))];
    earliest = std::min(earliest, std::stod(line.substr(ts + 5)));
  }
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_NEAR(first[rank], first[0], 1e6) << "microseconds, rank " << rank;
  for (int k = 0; k < 2; ++k) EXPECT_FALSE(std::filesystem::exists(trace + ".process" + std::to_string(k)));
}

TEST_F(ProcessesCliTest, AReportHasWhatAllProcessesMeasured) {
  const std::string report = folder_ + "/report.html", dry = folder_ + "/dry.html";
  const Outcome o = Gpt({"--processes=2", "--mesh=cpu:dp=2", "--steps=3", "--report=" + report});
  EXPECT_EQ(o.code, 0) << o.err;
  const std::string text = ReadFile(report);
  for (const char* word : {"\"name\":\"train\"", "\"process\":0", "\"process\":1"})
    EXPECT_NE(text.find(word), std::string::npos) << word;
  EXPECT_FALSE(std::filesystem::exists(report + ".process1"));
  EXPECT_EQ(Gpt({"--dry_run", "--mesh=cpu:dp=64,tp=2", "--batch=64", "--report=" + dry}).code, 0);
  EXPECT_NE(ReadFile(dry).find("\"mesh\":\"cpu:dp=64,tp=2"), std::string::npos);
}

TEST_F(CliTest, HelloSbpShowsEverySignature) {
  const Outcome o = Run("hello_sbp", {});
  EXPECT_EQ(o.code, 0) << o.out << o.err;
  for (const char* signature : {"B B->B", "S1 S0->P", "S0 B->S0", "B S1->S1", "P B->P", "B P->P"}) {
    EXPECT_NE(o.out.find(signature), std::string::npos) << signature << "\n" << o.out;
  }
}

// Settings under which OpenMP gives kernels fewer threads than they ask for, or others.
TEST_F(CliTest, OpenMPsSettingsChangeNoNumber) {
  auto held_out = [&](const std::string& threads) {
    const Outcome o =
        Gpt({"--width=64", "--context=16", "--batch=16", "--steps=4", "--kernel_threads=" + threads});
    std::smatch loss;
    EXPECT_TRUE(std::regex_search(o.out, loss, std::regex("held-out loss ([0-9.]+)"))) << o.out << o.err;
    return loss.empty() ? 0 : std::stod(loss[1]);
  };
  const double wanted = held_out("1");
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, const char*>>{{"OMP_THREAD_LIMIT", "1"},
                                                        {"OMP_THREAD_LIMIT", "3"},
                                                        {"OMP_MAX_ACTIVE_LEVELS", "0"},
                                                        {"OMP_DYNAMIC", "true"},
                                                        {"OMP_NUM_THREADS", "3"}}) {
    ASSERT_EQ(setenv(name, value, 1), 0);
    for (const char* threads : {"2", "5"})
      EXPECT_NEAR(held_out(threads), wanted, 1e-3) << name << "=" << value << ", " << threads << " threads";
    ASSERT_EQ(unsetenv(name), 0);
  }
}

}  // namespace
}  // namespace oneflow_like
