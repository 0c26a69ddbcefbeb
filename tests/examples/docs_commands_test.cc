// Every command in README.md, docs/ and the folders' READMEs runs, at a size that takes a moment; what a test
// cannot run names the file that does. Blocks of code without a language are commands; other blocks say what
// they are.
// ctest: seconds=330 long=250 programs=examples
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Those that users read. Notes in tests/ are about measurements and machines with a GPU.
std::vector<std::string> Pages() {
  std::vector<std::string> pages = {"README.md"};
  for (const char* folder : {"actor", "compiler", "core", "docs", "examples", "oneflow_like", "ops", "sbp"})
    for (const auto& entry : fs::recursive_directory_iterator(Cat(OFL_SOURCE_DIR "/", folder)))
      if (entry.path().extension() == ".md") pages.push_back(entry.path().lexically_relative(OFL_SOURCE_DIR));
  std::sort(pages.begin() + 1, pages.end());
  return pages;
}

// Blocks of a page that begin with ```<language>, each as its lines.
std::vector<std::vector<std::string>> BlocksOf(const std::string& page, const std::string& language) {
  std::vector<std::vector<std::string>> blocks;
  bool inside = false, wanted = false;
  for (const std::string& line : LinesOf(TextOf(Cat(OFL_SOURCE_DIR "/", page)))) {
    if (line.rfind("```", 0) == 0) {
      inside = !inside;
      wanted = inside && line == "```" + language;
      if (wanted) blocks.emplace_back();
    } else if (wanted) {
      blocks.back().push_back(line);
    }
  }
  return blocks;
}

std::string WithoutComment(std::string line) {
  const size_t said = line.find(" # ");
  if (said != std::string::npos) line.resize(said);
  line.resize(line.find_last_not_of(' ') + 1);
  return line;
}

// A line each, but for lines that go on (\) and loops.
std::vector<std::string> CommandsOf(const std::vector<std::string>& block) {
  std::vector<std::string> commands;
  std::string command;
  bool loop = false;
  for (const std::string& whole : block) {
    const std::string line = WithoutComment(whole);
    if (line.empty()) continue;
    command += command.empty() ? line : "\n" + line;
    loop = (loop || line.rfind("for ", 0) == 0) && line.rfind("done", 0) != 0;
    if (loop || line.back() == '\\') continue;
    commands.push_back(command);
    command.clear();
  }
  if (!command.empty()) commands.push_back(command);
  return commands;
}

// Commands that a test starts elsewhere, under conditions of its own: the file of the tests that has `text`.
struct Elsewhere {
  const char *command, *file, *text;
};
const Elsewhere kElsewhere[] = {
    {"./tests/run.sh", ".ci/run", "exec ./tests/run.sh --ci"},
    {"cmake -S . -B build/release -G Ninja -DOFL_TESTS=OFF", "tests/package.sh", "-G Ninja -DOFL_TESTS=OFF"},
    {"cmake --build build/release", "tests/package.sh", "cmake --build \"$build\""},
    {"cmake --install build/release --prefix /opt/oneflow_like", "tests/install_test.cc",
     "cmake_install.cmake"},
    // By hand: they are about programs for GPUs, which take minutes to build, and a machine with one.
    {"tests/gpu/bundle.sh --check", "tests/gpu/bundle.sh", "--check) check=yes"},
    {"tar xJf gpu_bundle.tar.xz && gpu_bundle/run.sh", "tests/gpu/bundle.sh", "./run.sh --only=ops"},
    {"nvidia-cuda-mps-control -d", "tests/gpu/run.sh", "nvidia-cuda-mps-control -d"},
    {"echo quit | nvidia-cuda-mps-control", "tests/gpu/run.sh",
     "echo quit | timeout 10 nvidia-cuda-mps-control"},
    {"export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2 NCCL_MIN_CTAS=1",
     "tests/gpu/run.sh", "export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2"},
};

// The command at a size that takes a moment. Commands for a GPU, or of a model of hundreds of millions of
// weights, are compiled and not run.
std::string Small(const std::string& command) {
  const auto is = [&](const char* program) { return Has(command + " ", Cat("examples/", program, " ")); };
  const bool gpt = is("gpt"), llama = is("llama"), hf = Has(command, "--load_hf=");
  std::string more;
  if (Has(command, "=cuda:") || Has(command, "+cuda:") || Has(command, "--size=160m")) more += " --dry_run";
  if (gpt && !Has(command, "--layers=")) more += " --layers=2 --width=16 --heads=4 --context=16 --batch=8";
  if (llama && !Has(command, "--size=") && !hf) more += " --layers=2 --context=16 --batch=8";
  if ((gpt || llama) && !Has(command, "--save=")) more += " --steps=2";
  if (gpt || llama) more += " --eval_batches=1 --sample_tokens=0";
  if (is("generate")) {
    more += " --tokens=4";
    // A token that the small model's tokenizer, bytes, has.
    return std::regex_replace(command, std::regex("--stop='[^']*'"), "--stop=7") + more;
  }
  if (Has(command, "--calibrate=")) more += " --calibrate_models=1";
  if (is("mlp")) more += " --epochs=1 --hidden=8";
  for (const char* program : {"resnet", "vit", "dlrm", "moe", "bert", "caption", "insightface", "unet"})
    if (is(program)) more += " --steps=1 --batch=8 --eval_batches=1";
  if (is("dlrm")) more += " --rows=100";
  if (is("insightface")) more += " --identities=64 --sampled=16";
  return command + more;
}

// A folder with the programs, data, and stand-ins for launchers of other machines, each of which starts
// processes here with the variables that it gives them.
class DocsCommands : public ::testing::Test {
 protected:
  DocsCommands() {
    fs::create_symlink(OFL_BINARY_DIR, folder_ / "build");
    for (const char* name : {"examples", "install.sh", "README.md"})
      fs::create_symlink(OFL_SOURCE_DIR "/" + std::string(name), folder_ / name);
    WriteData();
    fs::create_directory(folder_ / "bin");
    // What examples/run.sh would install and build is there.
    StandIn("cmake", "");
    StandIn("dpkg-query", "echo ' installed'");
    StandIn("ssh", "exec sh -c \"$2\"");
    StandIn("scontrol", "echo \"scontrol $*\"");
    const std::string processes = R"(while [ $# -gt 0 ]; do
  case $1 in
    -n) count=$2; shift ;;
    -N | -H) shift ;;
    --nproc_per_node=*) here=${1#*=} ;;
    --nnodes=*) nodes=${1#*=} ;;
    --node_rank=*) node=${1#*=} ;;
    --master_port=*) port=${1#*=} ;;
    -*) ;;
    *) break ;;
  esac
  shift
done
started=
)";
    const std::string wait = R"( "$@" & started="$started $!"; done
trap 'kill -USR1 $started' USR1
code=0
for process in $started; do
  wait $process
  ended=$?
  if [ $ended -gt 128 ]; then wait $process; ended=$?; fi  # a signal ends the first one
  [ $ended -eq 0 ] || code=$ended
done
exit $code)";
    StandIn("srun", Cat("count=4\n", processes,
                        "for k in $(seq 0 $((count - 1))); do env SLURM_PROCID=$k SLURM_LOCALID=$k "
                        "SLURM_NTASKS=$count SLURM_STEP_ID=0 SLURM_STEP_NODELIST=here SLURM_JOB_ID=",
                        getpid(), wait));
    StandIn("torchrun",
            Cat(processes,
                "for k in $(seq 0 $((here - 1))); do env RANK=$((node * here + k)) LOCAL_RANK=$k "
                "LOCAL_WORLD_SIZE=$here WORLD_SIZE=$((nodes * here)) MASTER_ADDR=127.0.0.1 MASTER_PORT=$port",
                wait));
    if (Shell("command -v mpirun").code != 0)
      StandIn("mpirun", Cat(processes,
                            "for k in $(seq 0 $((count - 1))); do env RANK=$k WORLD_SIZE=$count "
                            "MASTER_ADDR=127.0.0.1 MASTER_PORT=",
                            FreePort(), wait));
  }

  void StandIn(const std::string& name, const std::string& script) {
    fs::permissions(folder_.Write("bin/" + name, "#!/bin/sh\n" + script + "\n"), fs::perms::owner_all);
  }

  ShellOutcome Run(const std::string& command) {
    return Shell(Cat("cd ", folder_ / ".", " && PATH=", folder_ / "bin", ":$PATH && ", command));
  }

  TestFolder folder_{"docs_commands_test"};

 private:
  void WriteData() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += Cat("the quick brown fox ", i * 7919, "\n");
    folder_.Write("book.txt", text);
    // Tokens as llm.c keeps them: 256 numbers before them, of which the first three count, then 16 bits each.
    std::vector<int32_t> header(256, 0);
    header[0] = 20240520, header[1] = 1, header[2] = 4000;
    std::string tokens(reinterpret_cast<const char*>(header.data()), 1024);
    for (int i = 0; i < 4000; ++i) tokens += {static_cast<char>(i * i % 251), '\0'};
    folder_.Write("book.bin", tokens);
    folder_.Write("questions.txt", "Who?\nWhy?\n");
    std::string clicks;
    for (int row = 0; row < 64; ++row) {
      clicks += std::to_string(row % 3 == 0);
      for (int i = 0; i < 39; ++i)
        clicks += Cat("\t", i < 13 ? std::to_string(row * i) : Cat("w", row * i % 7));
      clicks += "\n";
    }
    folder_.Write("day_0", clicks);
    fs::create_directory(folder_ / "shards");
    fs::copy(folder_ / "book.bin", folder_ / "shards/train_0.bin");
  }
};

// Of the programs, each page with a folder of checkpoints of its own.
TEST_F(DocsCommands, OfProgramsRun) {
  for (const char* folder_of : {"Llama-3.2-1B", "Qwen2-0.5B --qkv_bias"})
    ASSERT_EQ(Run(Cat("build/examples/llama --layers=2 --steps=1 --context=16 --eval_batches=0 "
                      "--sample_tokens=0 --save_hf=",
                      folder_of))
                  .code,
              0);
  int commands = 0;
  for (const std::string& page : Pages()) {
    if (page.rfind("docs/", 0) == 0)
      for (const char* left : {"run", "first", "second"}) fs::remove_all(folder_ / left);
    if (page == "examples/README.md") Run(Small("build/examples/gpt --save=run --save_every=50"));
    for (const auto& block : BlocksOf(page, ""))
      for (const std::string& command : CommandsOf(block)) {
        if (command.rfind("build/examples/", 0) != 0) continue;
        if (Has(command, "=card.txt")) continue;  // measures a GPU: tests/gpu/run.sh does both
        const ShellOutcome o = Run(Small(command));
        const bool tells = Has(command, "checkpoint diff ");  // 1: there are differences
        EXPECT_EQ(o.code, tells ? 1 : 0) << page << ":\n" << Small(command) << "\n" << o.output;
        ++commands;
      }
  }
  EXPECT_GT(commands, 30);
}

class LongDocsCommands : public DocsCommands {};

// Of all models, and what is simulated on the machine that was measured.
TEST_F(LongDocsCommands, OfCalibrationRuns) {
  int commands = 0;
  for (const std::string& page : Pages())
    for (const auto& block : BlocksOf(page, ""))
      for (const std::string& command : CommandsOf(block)) {
        if (!Has(command, "=here.txt")) continue;
        const ShellOutcome o = Run(command);
        EXPECT_EQ(o.code, 0) << page << ":\n" << command << "\n" << o.output;
        ++commands;
      }
  EXPECT_GE(commands, 2);
}

// Of launchers and shells: with the same losses as one process, where they train.
TEST_F(DocsCommands, OfLaunchersRun) {
  const std::string small =
      "build/examples/gpt --layers=2 --width=16 --heads=4 --context=16 --batch=8 --eval_batches=0 "
      "--sample_tokens=0 --warmup=1 ";
  ASSERT_EQ(Run(Cat(small, "--mesh=cpu:dp=2,tp=2 --steps=2 --log_json=alone")).code, 0);
  const std::vector<double> alone = LossesOf(folder_ / "alone");
  ASSERT_EQ(alone.size(), 2u);
  std::string environment = "ONEFLOW_LIKE_TOKEN=0123456789abcdef0123456789abcdef HOME=" + folder_ / "." +
                            "; export "
                            "ONEFLOW_LIKE_TOKEN HOME; ";
  folder_.Write(".oneflow_like_token", "0123456789abcdef0123456789abcdef");
  int commands = 0;
  for (const std::string& page : Pages())
    for (const auto& block : BlocksOf(page, ""))
      for (const std::string& command : CommandsOf(block)) {
        const bool launches = std::regex_search(command, std::regex("^(mpirun|srun|torchrun|for n in)"));
        if (!launches) continue;
        ++commands;
        fs::remove(folder_ / "log");
        std::string there = std::regex_replace(command, std::regex("build/examples/gpt "),
                                               small + "--steps=2 --log_json=log ");
        there = std::regex_replace(there, std::regex("29500"), std::to_string(FreePort()));
        there = std::regex_replace(there, std::regex("MASTER_ADDR=host0"), "MASTER_ADDR=127.0.0.1");
        if (Has(command, "node_rank=$n")) there = Cat("for n in 0 1; do ", there, " & done; wait");
        if (Has(there, "mpirun ")) {  // a real one, in a container of one host
          there = std::regex_replace(there, std::regex("-H \\S+ "), "");
          there =
              std::regex_replace(there, std::regex("mpirun "), "mpirun --allow-run-as-root --oversubscribe ");
        }
        const ShellOutcome o = Run(environment + there);
        EXPECT_EQ(o.code, 0) << page << ":\n" << there << "\n" << o.output;
        const std::vector<double> losses = LossesOf(folder_ / "log");
        ASSERT_EQ(losses.size(), alone.size()) << there << "\n" << o.output;
        for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(losses[i], alone[i], 1e-5) << there;
      }
  EXPECT_GE(commands, 6);
}

// A script of Slurm that goes on until all is done, whole.
TEST_F(DocsCommands, ScriptsRun) {
  int scripts = 0;
  for (const std::string& page : Pages())
    for (const auto& block : BlocksOf(page, "bash")) {
      ASSERT_EQ(block.at(0), "#!/bin/bash") << page;
      std::string script;
      for (const std::string& line : block) script += line + "\n";
      EXPECT_TRUE(Has(script, "--steps=100000 --save=run ")) << script;
      script = std::regex_replace(
          script, std::regex("--steps=100000 --save=run --save_every=500"),
          "--steps=$STEPS --save=run --layers=2 --width=16 --heads=4 --context=16 --batch=8 "
          "--eval_batches=0 --sample_tokens=0 --log_json=log");
      folder_.Write("script", script);
      // Warned before the end of its time it asks to be started again; then it ends.
      const ShellOutcome warned =
          Run("touch log; { STEPS=1000000 bash script & script=$!; "
              "while [ $(grep -c loss log) -lt 3 ] && kill -0 $script; do sleep 0.05; done; "
              "kill -USR1 $script; wait $script; }");
      EXPECT_EQ(warned.code, 75) << warned.output;
      EXPECT_TRUE(Has(warned.output, "scontrol requeue")) << warned.output;
      const ShellOutcome o = Run("STEPS=$(($(grep -c loss log) + 2)) bash script");
      EXPECT_EQ(o.code, 0) << o.output;
      EXPECT_TRUE(Has(o.output, "going on from run/")) << o.output;
      EXPECT_FALSE(Has(o.output, "scontrol")) << o.output;
      ++scripts;
    }
  EXPECT_EQ(scripts, 1);
}

TEST_F(DocsCommands, TheFirstScriptRuns) {
  const ShellOutcome o =
      Run("./examples/run.sh --steps=2 --width=16 --context=16 --layers=2 --sample_tokens=4");
  EXPECT_EQ(o.code, 0) << o.output;
  EXPECT_TRUE(Has(o.output, "on cpu:dp=2,tp=2,pp=2")) << o.output;
  EXPECT_TRUE(Has(o.output, "a sample")) << o.output;
}

// In a network of its own.
TEST_F(DocsCommands, OfFirewallsRun) {
  std::string rules;
  for (const std::string& page : Pages())
    for (const auto& block : BlocksOf(page, ""))
      for (const std::string& command : CommandsOf(block))
        if (command.rfind("nft ", 0) == 0) rules += command + " && ";
  ASSERT_TRUE(Has(rules, "drop"));
  if (Run("unshare -n nft list ruleset").code != 0)
    GTEST_SKIP() << "no nft here, or no right to a network of its own";
  folder_.Write("rules", rules + "nft list ruleset");
  const ShellOutcome o = Run("unshare -n sh rules");
  EXPECT_EQ(o.code, 0) << o.output;
  EXPECT_TRUE(Has(o.output, "dport { 29500, 32768-60999 }")) << o.output;
}

// Whatever is none of these has a place where it runs.
TEST_F(DocsCommands, NoneIsForgotten) {
  const std::regex here("^(build/examples/|mpirun |srun |torchrun |for n in |nft |\\./examples/run\\.sh)");
  const std::regex language("^```(cpp|cmake|text|yaml|bash)?$");
  int blocks = 0;
  for (const std::string& page : Pages()) {
    bool inside = false;
    for (const std::string& line : LinesOf(TextOf(Cat(OFL_SOURCE_DIR "/", page)))) {
      if (line.rfind("```", 0) != 0) continue;
      const bool begins = !std::exchange(inside, !inside);
      EXPECT_TRUE(!begins || std::regex_match(line, language)) << page << ": " << line;
    }
    EXPECT_FALSE(inside) << page;
    for (const auto& block : BlocksOf(page, "")) {
      ++blocks;
      for (const std::string& command : CommandsOf(block)) {
        if (std::regex_search(command, here)) continue;
        const auto* found = std::find_if(std::begin(kElsewhere), std::end(kElsewhere),
                                         [&](const Elsewhere& e) { return command == e.command; });
        if (found == std::end(kElsewhere)) {
          ADD_FAILURE() << page << ": no test runs\n" << command;
          continue;
        }
        EXPECT_TRUE(Has(TextOf(Cat(OFL_SOURCE_DIR "/", found->file)), found->text))
            << command << ": " << found->file << " does not say " << found->text;
      }
    }
  }
  EXPECT_GT(blocks, 10);
}

}  // namespace
}  // namespace oneflow_like
