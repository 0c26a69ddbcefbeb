// Configuring the project where an optional package is absent, half there or whole, and inside another
// project (add_subdirectory). Packages are fakes of a header and a library each, given to CMake by the
// variables that find_optional of CMakeLists.txt searches for.
// ctest: seconds=30 long=330
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/processes.h"

namespace oneflow_like {
namespace {

// What is there of a package.
enum class State { kAbsent, kHeadersOnly, kLibraryOnly, kBrokenHeaders, kWrongLibrary, kWhole };
const std::map<State, std::string> kStates = {
    {State::kAbsent, "absent"},
    {State::kHeadersOnly, "headers only"},
    {State::kLibraryOnly, "library only"},
    {State::kBrokenHeaders, "headers that include what is not there"},
    {State::kWrongLibrary, "a library without the symbols"},
    {State::kWhole, "whole"},
};

struct Package {
  std::string name;    // in find_optional
  std::string header;  // what is looked for
  std::string text;    // of the header
  std::string target;  // built where the package is used; empty: none of its own
  bool headers_only = false;
};
const std::vector<Package> kPackages = {
    {"PMIX", "pmix.h", "typedef int pmix_status_t;\nenum { PMIX_SUCCESS };\n", "", true},
    {"CAF", "caf/all.hpp", "namespace caf { struct actor_system_config { actor_system_config(); }; }\n",
     "bench_caf.cc"},
    {"GLOO", "gloo/allreduce.h",
     "#include <memory>\nnamespace gloo { struct Context;\nstruct AllreduceOptions { explicit "
     "AllreduceOptions(std::shared_ptr<Context>); };\nvoid allreduce(AllreduceOptions&); }\n",
     "gloo_collectives"},
    {"PCRE2", "pcre2.h",
     "#ifndef PCRE2_CODE_UNIT_WIDTH\n#define PCRE2_CODE_UNIT_WIDTH 8\n#endif\n"
     "extern \"C\" int pcre2_config_8(unsigned, void*);\n#define pcre2_config pcre2_config_8\n"
     "#define PCRE2_CONFIG_UNICODE 9\n",
     ""},
    {"UTF8PROC", "utf8proc.h", "extern \"C\" const char* utf8proc_version(void);\n", ""},
    {"SENTENCEPIECE", "sentencepiece_processor.h",
     "namespace sentencepiece { struct SentencePieceProcessor { SentencePieceProcessor(); }; }\n",
     "text/module/sentence_pieces.cc"},
    {"MPI", "mpi.h", "extern \"C\" int MPI_Init(int*, char***);\n", "mpi_collectives"},
};

class ConfigureTest : public ::testing::Test {
 protected:
  ConfigureTest() : folder_("configure_test") {
    std::string sources;
    for (const Package& p : kPackages) {
      Put("whole/" + p.header, p.text);
      Put("broken/" + p.header, "#include <a_package_that_is_not_there.h>\n" + p.text);
      sources += "#include \"" + folder_ / ("whole/" + p.header) + "\"\n";
    }
    Put("whole/caf/config.hpp", "#define CAF_VERSION 1706\n");
    Put("broken/caf/config.hpp", "#define CAF_VERSION 1706\n");
    Put("whole.cc", sources +
                        "caf::actor_system_config::actor_system_config() {}\n"
                        "gloo::AllreduceOptions::AllreduceOptions(std::shared_ptr<Context>) {}\n"
                        "void gloo::allreduce(AllreduceOptions&) {}\n"
                        "int pcre2_config_8(unsigned, void*) { return 0; }\n"
                        "const char* utf8proc_version(void) { return \"\"; }\n"
                        "sentencepiece::SentencePieceProcessor::SentencePieceProcessor() {}\n"
                        "int MPI_Init(int*, char***) { return 0; }\n");
    Put("wrong.cc", "int nothing;\n");
    for (const std::string name : {"whole", "wrong"}) {
      const ShellOutcome o = Shell(std::string(OFL_CXX) + " -shared -fPIC -o " +
                                   folder_ / ("lib" + name + ".so") + " " + folder_ / (name + ".cc"));
      EXPECT_EQ(o.code, 0) << o.output;
    }
  }

  void Put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    folder_.Write(name, text);
  }

  // Configures `source` in folder `build`, which may have been configured before: that takes a second then.
  ShellOutcome Configure(const std::string& source, const std::string& build, const std::string& options) {
    return Shell(std::string(OFL_CMAKE) + " -S " + source + " -B " + folder_ / build + " -G '" +
                 OFL_GENERATOR + "' " + options);
  }

  std::string Options(const Package& p, State state) {
    const bool headers = state != State::kAbsent && state != State::kLibraryOnly;
    const bool library = state != State::kAbsent && state != State::kHeadersOnly;
    std::string include = "OFF", file = "OFF";
    if (headers) include = folder_ / (state == State::kBrokenHeaders ? "broken" : "whole");
    if (library) file = folder_ / (state == State::kWrongLibrary ? "libwrong.so" : "libwhole.so");
    return " -DOFL_" + p.name + "_INCLUDE=" + include + " -DOFL_" + p.name + "_LIBRARY=" + file;
  }

  static std::string Expected(const Package& p, State state) {
    const bool whole = state == State::kWhole ||
                       (p.headers_only && (state == State::kHeadersOnly || state == State::kWrongLibrary));
    return "Optional: " + p.name +
           (whole                     ? " is used"
            : state == State::kAbsent ? " is not there"
                                      : " is not used, as it is not whole");
  }

  void ExpectConfigured(const std::vector<State>& states) {
    std::string options = "-DOFL_CUDA=OFF", what;
    for (size_t i = 0; i < kPackages.size(); ++i) {
      options += Options(kPackages[i], states[i]);
      what += kPackages[i].name + ": " + kStates.at(states[i]) + "; ";
    }
    SCOPED_TRACE(what);
    const ShellOutcome o = Configure(OFL_SOURCE_DIR, "build", options);
    ASSERT_EQ(o.code, 0) << o.output;
    const std::string programs = TextOf(folder_ / "build/compile_commands.json");
    EXPECT_NE(programs.find("gpt.cc"), std::string::npos);
    for (size_t i = 0; i < kPackages.size(); ++i) {
      const std::string said = Expected(kPackages[i], states[i]);
      EXPECT_NE(o.output.find(said), std::string::npos) << said << "\n" << o.output;
      if (kPackages[i].target.empty()) continue;
      EXPECT_EQ(programs.find(kPackages[i].target) != std::string::npos, said.ends_with("is used")) << said;
    }
  }

  TestFolder folder_;
};

TEST_F(ConfigureTest, AnOptionalPackageInAnyStateBreaksNothing) {
  for (const auto& [state, name] : kStates) ExpectConfigured(std::vector<State>(kPackages.size(), state));
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 3; ++i) {
    std::vector<State> states;
    for (size_t p = 0; p < kPackages.size(); ++p)
      states.push_back(static_cast<State>(random() % kStates.size()));
    ExpectConfigured(states);
  }
}

TEST_F(ConfigureTest, ProgramsOfTheBuildThatAreMissingOrBrokenBreakNothing) {
  Put("broken_program", "#!/bin/sh\nexit 1\n");
  std::filesystem::permissions(folder_ / "broken_program", std::filesystem::perms::owner_all);
  const std::string broken = folder_ / "broken_program";
  for (const std::string& program : {std::string("OFF"), broken}) {
    const ShellOutcome o = Configure(OFL_SOURCE_DIR, "build",
                                     "-DOFL_CUDA=OFF -DOFL_CCACHE=" + program + " -DPYTHON3=" + program);
    EXPECT_EQ(o.code, 0) << o.output;
    EXPECT_EQ(TextOf(folder_ / "build/compile_commands.json").find(broken), std::string::npos)
        << "a ccache that does not run would compile";
  }
  for (const std::string& nvcc : {std::string("/nowhere/nvcc"), broken}) {
    const ShellOutcome o =
        Shell("export CUDACXX=" + nvcc + "; rm -rf " + folder_ / "build" + "; " + OFL_CMAKE + " -S " +
              OFL_SOURCE_DIR + " -B " + folder_ / "build" + " -G '" + OFL_GENERATOR + "'");
    EXPECT_EQ(o.code, 0) << o.output;
    EXPECT_NE(o.output.find("No CUDA toolkit (nvcc)"), std::string::npos) << o.output;
  }
}

// Where there is a toolkit (its compiler is tried for half a minute): its parts, one after the other, not
// there or half there. Each configuration forgets what the one before was told. Without tests and examples,
// which ask nothing of it.
using LongConfigureTest = ConfigureTest;
TEST_F(LongConfigureTest, PartsOfTheCudaToolkitInAnyStateBreakNothing) {
  std::string options = "-DOFL_TESTS=OFF -DOFL_EXAMPLES=OFF";
  const ShellOutcome first = Configure(OFL_SOURCE_DIR, "build", options);
  ASSERT_EQ(first.code, 0) << first.output;
  const auto unused = [](const std::string& text) {
    std::vector<std::string> lines = LinesOf(text);
    std::erase_if(lines, [](const std::string& l) { return l.find(" is not used") == std::string::npos; });
    return lines;
  };
  ASSERT_EQ(unused(first.output), std::vector<std::string>()) << first.output;
  if (first.output.find("Optional: CUDNN") == std::string::npos) GTEST_SKIP() << "no CUDA toolkit here";
  const std::string wrong = folder_ / "libwrong.so";
  for (const std::string part : {"CUBLASLT", "NVRTC", "CUDNN", "NCCL"}) {
    for (const std::string& state :
         std::vector<std::string>{"_INCLUDE=OFF", "_LIBRARY=OFF", "_LIBRARY=" + wrong}) {
      const ShellOutcome o = Configure(OFL_SOURCE_DIR, "build", options + " -DOFL_" + part + state);
      EXPECT_EQ(o.code, 0) << part << state << o.output;
      EXPECT_EQ(unused(o.output),
                std::vector<std::string>{"-- Optional: " + part + " is not used, as it is not whole"})
          << o.output;
      options = "-UOFL_" + part + "_*";
      const bool needed = part == "CUBLASLT" || part == "NVRTC";
      EXPECT_EQ(o.output.find("CUDA toolkit without " + part) != std::string::npos, needed) << o.output;
    }
  }
  const ShellOutcome again = Configure(OFL_SOURCE_DIR, "build", options);
  EXPECT_EQ(unused(again.output), std::vector<std::string>()) << again.output;
}

// Of the build that this test is part of: a hang costs minutes.
TEST(TestsTest, EveryTestHasATimeout) {
  int tests = 0;
  for (const std::string folder : {"/tests", "/tests/gpu"}) {
    const std::string file = TextOf(OFL_BINARY_DIR + folder + "/CTestTestfile.cmake");
    const std::regex add(R"(add_test\((?:\[=\[)?([a-z0-9_]+))");
    for (std::sregex_iterator it(file.begin(), file.end(), add), end; it != end; ++it, ++tests) {
      const std::regex limit("set_tests_properties[^a-z]+" + (*it)[1].str() + "[^a-z].*TIMEOUT \"[0-9]+\"");
      EXPECT_TRUE(std::regex_search(file, limit)) << (*it)[1];
    }
  }
  EXPECT_GT(tests, 50);
}

// build_id.cmake on a tree of its own.
class BuildIdTest : public ConfigureTest {
 protected:
  BuildIdTest() {
    for (const char* name : {"core/a.cc", "core/deep/b.h", "ops/cuda/c.cu", "core/d.proto"}) Put(name, "1\n");
    for (const char* name : {"README.md", "core/README.md", "tests/a.cc", "ops/text.cmake"}) Put(name, "1\n");
  }
  std::string Make() {
    const ShellOutcome o = Shell(std::string(OFL_CMAKE) + " -DSOURCE_DIR=" + folder_ / "" +
                                 " -DOUTPUT=" + folder_ / "build_id.cc" +
                                 " -DVERSION=1.2 -P " OFL_SOURCE_DIR "/oneflow_like/job/build_id.cmake");
    EXPECT_EQ(o.code, 0) << o.output;
    return TextOf(folder_ / "build_id.cc");
  }
  void Commit() {
    const ShellOutcome o = Shell("cd " + folder_ / "" +
                                 " && git init -q . && git add -A && git -c user.name=a -c "
                                 "user.email=a@b.c commit -qm 1 --allow-empty");
    EXPECT_EQ(o.code, 0) << o.output;
  }
};

TEST_F(BuildIdTest, ChangesWithTheSourcesOfTheLibrariesAlone) {
  std::set<std::string> ids = {Make()};
  auto changed = [&](const std::string& what) { EXPECT_TRUE(ids.insert(Make()).second) << what; };
  for (const char* name :
       {"core/a.cc", "core/deep/b.h", "ops/cuda/c.cu", "core/d.proto", "oneflow_like/new.cc"}) {
    Put(name, "2\n");
    changed(name);
  }
  std::filesystem::rename(folder_ / "core/a.cc", folder_ / "core/b.cc");
  changed("a renamed file");
  std::filesystem::remove(folder_ / "ops/cuda/c.cu");
  changed("a removed file");
  const std::string last = Make();
  const auto written = std::filesystem::last_write_time(folder_ / "build_id.cc");
  for (const char* name : {"README.md", "core/README.md", "tests/a.cc", "ops/text.cmake"}) {
    Put(name, "2\n");
    EXPECT_EQ(Make(), last) << name;
  }
  EXPECT_EQ(std::filesystem::last_write_time(folder_ / "build_id.cc"), written)
      << "compiled again for nothing";
  EXPECT_NE(last.find("{\"1.2\", \"\", "), std::string::npos) << "no repository, no commit\n" << last;
}

TEST_F(BuildIdTest, NamesTheCommitOfItsOwnRepository) {
  if (Shell("git --version").code != 0) GTEST_SKIP() << "no git";
  const std::string without = Make();
  Commit();
  const std::string first = Make();
  EXPECT_TRUE(std::regex_search(first, std::regex("\"1.2\", \"[0-9a-f]{12}\", "))) << first;
  Commit();
  EXPECT_NE(Make(), first);
  // The same sources, unpacked inside somebody's repository.
  Put("inside/core/a.cc", "1\n");
  const ShellOutcome o = Shell(std::string(OFL_CMAKE) + " -DSOURCE_DIR=" + folder_ / "inside" +
                               " -DOUTPUT=" + folder_ / "inside.cc" +
                               " -DVERSION=1.2 -P " OFL_SOURCE_DIR "/oneflow_like/job/build_id.cmake");
  EXPECT_EQ(o.code, 0) << o.output;
  EXPECT_NE(TextOf(folder_ / "inside.cc").find("{\"1.2\", \"\", "), std::string::npos);
}

// A project of a user, whose targets have the names that our folders have, on a machine without test
// packages.
class ConsumerTest : public ConfigureTest {
 protected:
  ConsumerTest() {
    Put("user/CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.22)\nproject(user CXX)\n"
        "add_subdirectory(" OFL_SOURCE_DIR
        " oneflow_like)\n"
        "foreach(name core sbp ops ops_cpu compiler actor net gpt mlp bench device_text build_id proto "
        "tests)\n"
        "  add_library(${name} STATIC user.cc)\nendforeach()\n"
        "add_executable(user user.cc)\ntarget_link_libraries(user PRIVATE oneflow_like::oneflow_like)\n");
    Put("user/user.cc",
        "#include \"oneflow_like/oneflow_like.h\"\nusing namespace oneflow_like;\n"
        "int main() {\n  Model model(Mesh::Parse(\"cpu:dp=2\"));\n"
        "  Tensor x = model.Input(\"x\", {4}, DType::kFloat32, {{\"dp\", S(0)}});\n"
        "  Session s = Evaluate({{\"sum\", sum(x)}});\n"
        "  float sum = s.Run({{\"x\", ToHost(std::vector<float>{1, 2, 3, 4}, {4})}}).Scalar(\"sum\");\n"
        "  return sum == 10 ? 0 : 1;\n}\n");
  }
  ShellOutcome ConfigureUser(const std::string& options) {
    return Configure(folder_ / "user", "user_build",
                     "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON "
                     "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DOFL_CUDA=OFF " +
                         options);
  }
};

TEST_F(ConsumerTest, AProjectMayHaveThisOneInside) {
  const ShellOutcome o = ConfigureUser("");
  ASSERT_EQ(o.code, 0) << o.output;
  const std::string commands = TextOf(folder_ / "user_build/compile_commands.json");
  EXPECT_NE(commands.find("user.cc"), std::string::npos);
  EXPECT_NE(commands.find("compiler/compile.cc"), std::string::npos);
  for (const char* ours : {"gpt_model.cc", "examples/gpt.cc", "_test.cc", "tests/bench"})
    EXPECT_EQ(commands.find(ours), std::string::npos) << ours;
}

// Without optimization and for one processor, which is most of what a build takes.
using LongConsumerTest = ConsumerTest;
TEST_F(LongConsumerTest, AProjectWithThisOneInsideIsBuiltAndRuns) {
  const ShellOutcome o =
      ConfigureUser("-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DOFL_NATIVE=ON");
  ASSERT_EQ(o.code, 0) << o.output;
  const ShellOutcome built =
      Shell(std::string(OFL_CMAKE) + " --build " + folder_ / "user_build" + " --target user --parallel 2");
  ASSERT_EQ(built.code, 0) << built.output;
  EXPECT_EQ(Shell(folder_ / "user_build/user").code, 0);
}

}  // namespace
}  // namespace oneflow_like
