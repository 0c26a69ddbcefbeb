// What cmake --install leaves: a project of somebody else's (tests/consumer) is built against it and trains,
// wherever it was moved to; what is missing there is named. Of the build that this test is part of, without
// the CUDA backend.
// ctest: seconds=20 long=150 programs=gpt,oneflow_like
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/processes.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// Lines as CMake wraps them in an error, joined again.
std::string Joined(const std::string& text) { return std::regex_replace(text, std::regex("\\s+"), " "); }

class InstallTest : public ::testing::Test {
 protected:
  // Installed once, then moved: nothing in it may depend on where it was.
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TestFolder>("install_test");
    const ShellOutcome o = Shell(OFL_CMAKE
                                 " -DOFL_INSTALL_NATIVE=ON -DCMAKE_INSTALL_COMPONENT=library"
                                 " -DCMAKE_INSTALL_PREFIX=" +
                                 *folder_ / "first" + " -P " OFL_BINARY_DIR "/cmake_install.cmake");
    ASSERT_EQ(o.code, 0) << o.output;
    fs::create_directories(*folder_ / "moved");
    fs::rename(*folder_ / "first", prefix());
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string prefix() { return *folder_ / "moved/here"; }

  static std::vector<fs::path> Files() {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(prefix()))
      if (entry.is_regular_file()) files.push_back(entry.path());
    return files;
  }
  static ShellOutcome Configure(const std::string& source, const std::string& build,
                                const std::string& options) {
    return Shell(OFL_CMAKE " -S " + source + " -B " + *folder_ / build +
                 " -G '" OFL_GENERATOR "' -DCMAKE_CXX_COMPILER=" OFL_CXX " -DCMAKE_PREFIX_PATH=" + prefix() +
                 " " + options);
  }

  static std::unique_ptr<TestFolder> folder_;
};
std::unique_ptr<TestFolder> InstallTest::folder_;

TEST_F(InstallTest, NoFileOfTextNamesAPathOfThisMachine) {
  size_t texts = 0;
  for (const fs::path& file : Files()) {
    if (file.extension() == ".a") continue;
    const std::string text = TextOf(file);
    ++texts;
    for (const std::string& path :
         {std::string(OFL_SOURCE_DIR), std::string(OFL_BINARY_DIR), *folder_ / "", std::string("/usr/")})
      EXPECT_EQ(text.find(path), std::string::npos) << file << " names " << path;
  }
  EXPECT_GT(texts, 30u);
}

// The public headers and those for operators of the user's own, and what they include.
TEST_F(InstallTest, HasTheHeadersThatItsHeadersIncludeAndNoOthers) {
  const fs::path include = prefix() + "/include/oneflow_like";
  std::set<std::string> included = {"oneflow_like/oneflow_like.h",
                                    "oneflow_like/build_id.h",
                                    "oneflow_like/simulate.h",
                                    "oneflow_like/plan_search.h",
                                    "oneflow_like/calibrate.h",
                                    "ops/oracle.h",
                                    "ops/reference.h",
                                    "ops/cuda/kernel.h",
                                    "core/device/parallel_for.h",
                                    "core/random.h",
                                    "oneflow_like/text/tokenizers.h",
                                    "oneflow_like/text/utf8.h",
                                    "oneflow_like/generation/generator.h"};
  for (const char* name : {"source", "pipeline", "tokens", "images", "idx", "clicks", "files", "token_files"})
    included.insert(std::string("oneflow_like/data/") + name + ".h");
  for (const char* name :
       {"program", "training_flags", "language_model", "language_flags", "vision_program", "picture_data",
        "data", "synthetic", "huggingface_config", "huggingface_run", "precision"})
    included.insert(std::string("oneflow_like/program/") + name + ".h");
  for (const char* name :
       {"oneflow_like/checkpoint/tools.h", "oneflow_like/checkpoint/reader.h", "oneflow_like/job/agreement.h",
        "core/one_line.h", "core/system/text_lines.h", "sbp/boxing.h"})
    included.insert(name);
  std::set<std::string> headers;
  for (const fs::path& file : Files()) {
    if (file.extension() != ".h") continue;
    headers.insert(fs::relative(file, include));
    const std::string text = TextOf(file);
    const std::regex line("#include \"([^\"]+)\"");
    for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it)
      included.insert((*it)[1]);
  }
  EXPECT_EQ(headers, included);
}

TEST_F(InstallTest, TheExamplesIncludeInstalledHeadersAlone) {
  const fs::path include = prefix() + "/include/oneflow_like";
  int includes = 0;
  for (const auto& entry : fs::directory_iterator(OFL_SOURCE_DIR "/examples")) {
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    const std::string text = TextOf(entry.path());
    const std::regex line("#include \"([^\"]+)\"");
    for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it, ++includes)
      EXPECT_TRUE((*it)[1].str().starts_with("examples/") || fs::exists(include / (*it)[1].str()))
          << entry.path() << " includes " << (*it)[1];
  }
  EXPECT_GT(includes, 100);
}

TEST_F(InstallTest, AProjectOfSomebodyElsesTrains) {
  const ShellOutcome o =
      Configure(OFL_SOURCE_DIR "/tests/consumer", "consumer", "-DCMAKE_BUILD_TYPE=Release");
  ASSERT_EQ(o.code, 0) << o.output;
  const ShellOutcome built = Shell(OFL_CMAKE " --build " + *folder_ / "consumer");
  ASSERT_EQ(built.code, 0) << built.output;
  const ShellOutcome ran = Shell(*folder_ / "consumer/consumer " + *folder_ / "rows.csv");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("axis d is 3 in x but 2 in c"), std::string::npos) << ran.output;
}

TEST_F(InstallTest, AVersionThatDoesNotFitIsRefused) {
  const std::string version = OFL_VERSION;
  const int major = std::stoi(version), minor = std::stoi(version.substr(version.find('.') + 1));
  auto find = [&](const std::string& wanted) {
    folder_->Write("CMakeLists.txt",
                   "cmake_minimum_required(VERSION 3.22)\nproject(p CXX)\nfind_package(oneflow_like " +
                       wanted + " REQUIRED)\nmessage(STATUS \"found ${oneflow_like_VERSION}\")\n");
    return Configure(*folder_ / "", "version", "");
  };
  auto dotted = [](int a, int b) { return std::to_string(a) + "." + std::to_string(b); };
  for (const std::string& fits : {std::string(), dotted(major, minor), version}) {
    const ShellOutcome o = find(fits);
    EXPECT_EQ(o.code, 0) << fits << o.output;
    EXPECT_NE(o.output.find("found " + version), std::string::npos) << o.output;
  }
  std::vector<std::string> others = {dotted(major, minor + 1), dotted(major + 1, 0),
                                     dotted(major, minor) + ".99"};
  if (minor > 0) others.push_back(dotted(major, minor - 1));
  for (const std::string& other : others) {
    const ShellOutcome o = find(other);
    EXPECT_NE(o.code, 0) << other << o.output;
    EXPECT_NE(Joined(o.output).find("version \"" + other + "\""), std::string::npos) << o.output;
    EXPECT_NE(o.output.find("version: " + version), std::string::npos) << o.output;
  }
}

// Alone and together: every library that is not there, and the package that has it.
TEST_F(InstallTest, WhatItNeedsAndIsNotThereIsNamed) {
  const std::map<std::string, std::string> kMissing = {
      {"-DOFL_GLOG=OFF", "glog (libgoogle-glog-dev)"},
      {"-DOFL_GFLAGS=OFF", "gflags (libgflags-dev)"},
      {"-DOFL_DNNL=OFF", "dnnl (libdnnl-dev)"},
      {"-DOFL_UCP=OFF", "ucp (libucx-dev)"},
      {"-DOFL_TBB=OFF", "tbb (libtbb-dev)"},
      {"-DOFL_UCS=OFF", "ucs (libucx-dev)"},
      {"-DCMAKE_DISABLE_FIND_PACKAGE_Protobuf=ON", "protobuf (libprotobuf-dev)"},
      {"-DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON", "OpenMP (g++)"},
      {"-DCMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON", "zlib (zlib1g-dev)"},
  };
  std::string all, named;
  for (const auto& [option, package] : kMissing) {
    fs::remove_all(*folder_ / "missing");
    const ShellOutcome o = Configure(OFL_SOURCE_DIR "/tests/consumer", "missing", option);
    EXPECT_NE(o.code, 0) << option;
    EXPECT_NE(Joined(o.output).find("needs what is not installed here: " + package), std::string::npos)
        << o.output;
    all += option + " ";
  }
  fs::remove_all(*folder_ / "missing");
  const ShellOutcome o = Configure(OFL_SOURCE_DIR "/tests/consumer", "missing", all);
  EXPECT_NE(o.code, 0);
  for (const auto& [option, package] : kMissing)
    EXPECT_NE(Joined(o.output).find(package), std::string::npos) << package << o.output;
}

TEST_F(InstallTest, AnotherVersionOfProtobufIsRefused) {
  fs::create_directories(*folder_ / "other/google/protobuf/stubs");
  folder_->Write("other/google/protobuf/stubs/common.h", "#define GOOGLE_PROTOBUF_VERSION 3006001\n");
  folder_->Write("other/google/protobuf/service.h", "\n");
  const ShellOutcome o = Configure(OFL_SOURCE_DIR "/tests/consumer", "other_build",
                                   "-DProtobuf_INCLUDE_DIR=" + *folder_ / "other");
  EXPECT_NE(o.code, 0);
  EXPECT_NE(Joined(o.output).find("but protobuf 3.6.1 is installed here"), std::string::npos) << o.output;
}

// Kernels for the building machine alone go nowhere by mistake.
TEST_F(InstallTest, ABuildForThisProcessorIsNotInstalled) {
  const std::string cache = TextOf(OFL_BINARY_DIR "/CMakeCache.txt");
  if (cache.find("OFL_NATIVE:BOOL=ON") == std::string::npos) GTEST_SKIP() << "a build for all processors";
  const ShellOutcome o = Shell(OFL_CMAKE " --install " OFL_BINARY_DIR " --prefix " + *folder_ / "refused");
  EXPECT_NE(o.code, 0);
  EXPECT_NE(Joined(o.output).find("configure with -DOFL_NATIVE=OFF"), std::string::npos) << o.output;
  EXPECT_FALSE(fs::exists(*folder_ / "refused"));
}

// The default build is for other machines, too, and installing it is not refused.
TEST_F(InstallTest, TheDefaultBuildIsInstalled) {
  const ShellOutcome o = Configure(OFL_SOURCE_DIR, "default", "-DOFL_CUDA=OFF");
  ASSERT_EQ(o.code, 0) << o.output;
  int kernels = 0;
  for (const std::string& line : LinesOf(TextOf(*folder_ / "default/compile_commands.json")))
    if (line.find("\"command\"") != std::string::npos &&
        line.find("oneflow_like_ops_cpu") != std::string::npos) {
      EXPECT_EQ(line.find("-march=native"), std::string::npos) << line;
      ++kernels;
    }
  EXPECT_GT(kernels, 4);
  EXPECT_EQ(TextOf(*folder_ / "default/cmake_install.cmake").find("OFL_INSTALL_NATIVE"), std::string::npos);
}

// Whatever program is added to examples/ is installed with the others.
TEST_F(InstallTest, EveryProgramIsInstalled) {
  const std::string rules = TextOf(OFL_BINARY_DIR "/examples/cmake_install.cmake");
  int programs = 0;
  for (const auto& entry : fs::directory_iterator(OFL_SOURCE_DIR "/examples")) {
    if (entry.path().extension() != ".cc") continue;
    if (TextOf(entry.path()).find("\nint main(") == std::string::npos) continue;
    ++programs;
    const std::string name = entry.path().stem();
    EXPECT_NE(rules.find("/libexec/oneflow_like\" TYPE EXECUTABLE FILES \"" OFL_BINARY_DIR "/examples/" +
                         name + "\")"),
              std::string::npos)
        << name;
  }
  EXPECT_GE(programs, 13);
}

ShellOutcome Carry(const std::string& programs, const std::string& folder) {
  return Shell(OFL_CMAKE " -Dprograms='" + programs + "' -Dlibraries=" + folder + " -Dnotices=" + folder +
               "/notices -P " OFL_SOURCE_DIR "/cmake/carry.cmake");
}

// Each library that gpt needs, and each that those need.
TEST_F(InstallTest, TheArchiveCarriesAllLibrariesButTheSystems) {
  const std::string gpt = OFL_BINARY_DIR "/examples/gpt", folder = *folder_ / "carried";
  const ShellOutcome o = Carry(gpt, folder);
  ASSERT_EQ(o.code, 0) << o.output;
  const ShellOutcome needed = Shell("LD_LIBRARY_PATH=" + folder + " ldd " + gpt);
  ASSERT_EQ(needed.code, 0) << needed.output;
  const std::regex line("(lib[^ ]+) => ([^ ]+)"), system("lib(c|m|dl|rt|pthread|gcc_s|stdc[+][+])[.]so.*");
  int carried = 0;
  for (std::sregex_iterator it(needed.output.begin(), needed.output.end(), line), end; it != end; ++it) {
    const bool here = (*it)[2].str().rfind(folder + "/", 0) == 0;
    EXPECT_NE(here, std::regex_match((*it)[1].str(), system)) << it->str();
    carried += here;
  }
  EXPECT_GE(carried, 5) << needed.output;
}

TEST_F(InstallTest, TheArchiveIsNotMadeWithoutALibrary) {
  folder_->Write("gone.cc", "int gone() { return 0; }\n");
  folder_->Write("user.cc", "int gone();\nint main() { return gone(); }\n");
  const std::string library = *folder_ / "libgone.so", program = *folder_ / "user";
  const ShellOutcome built = Shell(OFL_CXX " -shared -fPIC -Wl,-soname,libgone.so -o " + library + " " +
                                   *folder_ / "gone.cc" + " && " OFL_CXX " -o " + program + " " +
                                   *folder_ / "user.cc" + " " + library + " && rm " + library);
  ASSERT_EQ(built.code, 0) << built.output;
  const ShellOutcome o = Carry(program, *folder_ / "without");
  EXPECT_NE(o.code, 0) << o.output;
  EXPECT_NE(Joined(o.output).find("cannot carry libraries that are not found here: "), std::string::npos)
      << o.output;
  EXPECT_NE(o.output.find("libgone.so"), std::string::npos) << o.output;
}

// What a package is built from needs no test packages and no native instructions.
TEST_F(InstallTest, ABuildWithoutTestsNeedsNoTestPackagesAndRunsOnOtherMachines) {
  const ShellOutcome o = Configure(OFL_SOURCE_DIR, "package",
                                   "-DOFL_TESTS=OFF -DOFL_CUDA=OFF -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON "
                                   "-DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON");
  ASSERT_EQ(o.code, 0) << o.output;
  const std::string commands = TextOf(*folder_ / "package/compile_commands.json");
  EXPECT_EQ(commands.find("-march=native"), std::string::npos);
  EXPECT_EQ(commands.find("_test.cc"), std::string::npos);
  if (commands.find("-march=x86-64-v2") != std::string::npos) {
    for (const char* level : {"-march=x86-64-v3", "-march=x86-64-v4", "-mavx512bf16"})
      EXPECT_NE(commands.find(level), std::string::npos) << level;
  }
  // The packages that find_package asks for are those that the .deb depends on.
  const std::string depends = TextOf(*folder_ / "package/cmake/DEPENDENCIES");
  const std::string source = TextOf(OFL_SOURCE_DIR "/cmake/dependencies.cmake");
  const std::regex package("lib[a-z-]+-dev|zlib1g-dev");
  int packages = 0;
  for (std::sregex_iterator it(source.begin(), source.end(), package), end; it != end; ++it) {
    if (it->str() == "libc6-dev") continue;  // g++ depends on it
    EXPECT_NE(depends.find(it->str()), std::string::npos) << it->str();
    ++packages;
  }
  EXPECT_GE(packages, 6);
}

// The programs of examples/ and that of docs/your_own_program.md need nothing that is not installed; they
// learn as those that were built here.
using LongInstallTest = InstallTest;
TEST_F(LongInstallTest, TheProgramsOfTheExamplesAreBuiltAgainstIt) {
  const fs::path project = *folder_ / "programs";
  fs::create_directories(project / "examples");
  std::string programs;
  for (const auto& entry : fs::directory_iterator(OFL_SOURCE_DIR "/examples")) {
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    fs::copy(entry.path(), project / "examples");
    if (TextOf(entry.path()).find("\nint main(") != std::string::npos)
      programs += " " + entry.path().stem().string();
  }
  EXPECT_GE(std::count(programs.begin(), programs.end(), ' '), 13) << programs;
  folder_->Write("programs/CMakeLists.txt", R"cmake(
cmake_minimum_required(VERSION 3.22)
project(programs CXX)
find_package(oneflow_like REQUIRED)
set(programs)cmake" + programs + R"cmake()
list(TRANSFORM programs REPLACE "(.+)" "${CMAKE_CURRENT_SOURCE_DIR}/examples/\\1.cc" OUTPUT_VARIABLE mains)
file(GLOB sources ${CMAKE_CURRENT_SOURCE_DIR}/examples/*.cc)
list(REMOVE_ITEM sources ${mains})
add_library(models STATIC ${sources})
target_include_directories(models PUBLIC .)
target_link_libraries(models PUBLIC oneflow_like::oneflow_like)
foreach(program ${programs})
  add_executable(${program} examples/${program}.cc)
  target_link_libraries(${program} PRIVATE models)
endforeach()
)cmake");
  const ShellOutcome o = Configure(project, "programs/build", "-DCMAKE_BUILD_TYPE=Debug");
  ASSERT_EQ(o.code, 0) << o.output;
  const ShellOutcome built = Shell(OFL_CMAKE " --build " + *folder_ / "programs/build" + " --parallel 2");
  ASSERT_EQ(built.code, 0) << built.output;
  const std::string train = "/gpt --text=" OFL_SOURCE_DIR
                            "/README.md --layers=2 --width=16 --heads=2 --context=16 --batch=4 --steps=3 "
                            "--eval_batches=0 --sample_tokens=0 --mesh=cpu:dp=2,tp=2 --log_json=";
  ASSERT_EQ(Shell(*folder_ / "programs/build" + train + *folder_ / "theirs").code, 0);
  ASSERT_EQ(Shell(OFL_BINARY_DIR "/examples" + train + *folder_ / "ours").code, 0);
  EXPECT_EQ(LossesOf(*folder_ / "theirs").size(), 3u);
  EXPECT_EQ(LossesOf(*folder_ / "theirs"), LossesOf(*folder_ / "ours"));
}

TEST_F(LongInstallTest, AProgramOfOnesOwnIsBuiltAgainstIt) {
  const ShellOutcome o =
      Configure(OFL_SOURCE_DIR "/tests/own_program", "spirals", "-DCMAKE_BUILD_TYPE=Debug");
  ASSERT_EQ(o.code, 0) << o.output;
  const ShellOutcome built = Shell(OFL_CMAKE " --build " + *folder_ / "spirals");
  ASSERT_EQ(built.code, 0) << built.output;
  const ShellOutcome ran = Shell(*folder_ / "spirals/spirals --mesh=cpu:dp=2,tp=2");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find(" of 1000 points right"), std::string::npos) << ran.output;
}

// README's operator is the one that was compiled here, and so is its kernel for GPUs.
TEST_F(InstallTest, ReadmeShowsTheConsumersOperator) {
  const std::string readme = TextOf(OFL_SOURCE_DIR "/oneflow_like/README.md");
  for (const char* file : {"distance.cc", "distance.cu"}) {
    const std::string source = TextOf(std::string(OFL_SOURCE_DIR "/tests/consumer/") + file);
    const std::string mark = "// [operator]\n";
    const size_t begin = source.find(mark), end = source.rfind(mark);
    ASSERT_LT(begin, end) << file;
    const std::string shown = source.substr(begin + mark.size(), end - begin - mark.size());
    EXPECT_NE(readme.find("```cpp\n" + shown + "```"), std::string::npos) << shown;
  }
}

}  // namespace
}  // namespace oneflow_like
