// The house stands on its floors: no source file includes a header of a layer above or beside its own.
//   core < sbp < ops < compiler < oneflow_like < examples, and core < actor < actor/net < oneflow_like
// actor/cuda stands on ops, and nothing on actor/cuda: programs open it when they run. Inside actor/net the
// rooms stand on one another in the order of kRooms.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

// What each layer may include besides itself.
const std::map<std::string, std::set<std::string>> kBelow = {
    {"core", {}},
    {"sbp", {"core"}},
    {"ops", {"core", "sbp"}},
    {"actor/cuda", {"core", "sbp", "ops"}},
    {"compiler", {"core", "sbp", "ops"}},
    {"actor", {"core"}},
    {"actor/net", {"core", "actor"}},
    {"oneflow_like/data", {"core"}},
    {"oneflow_like", {"core", "sbp", "ops", "compiler", "actor", "actor/net", "oneflow_like/data"}},
    {"examples",
     {"core", "sbp", "ops", "compiler", "actor", "actor/net", "oneflow_like/data", "oneflow_like"}},
};

// The rooms of actor/net, from the bottom up: each may include those before it.
const std::vector<std::string> kRooms = {"rendezvous", "launch",      "ucx", "shared_memory",
                                         "talk",       "collectives", "job"};

// The layer of a path from the top folder, empty for none: "actor/net" of "actor/net/ucx/network.h".
std::string LayerOf(const std::string& path) {
  const size_t first = path.find('/');
  if (first == std::string::npos) return "";
  const size_t second = path.find('/', first + 1);
  if (second != std::string::npos && kBelow.count(path.substr(0, second))) return path.substr(0, second);
  const std::string folder = path.substr(0, first);
  return kBelow.count(folder) ? folder : "";
}

// One line for each include that points upward, sideways, or to no layer at all. Quoted includes are ours,
// and ours alone; in angle brackets ours are recognised by their folder.
std::vector<std::string> BadIncludes(const std::string& layer, const std::string& file,
                                     const std::string& text) {
  static const std::regex kInclude("^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]");
  std::vector<std::string> bad;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, kInclude)) continue;
    std::string path = match[2];
    const std::string other = LayerOf(path);
    if (other.empty() && match[1] == "<") continue;
    if (!other.empty() && (other == layer || kBelow.at(layer).count(other) != 0)) continue;
    bad.push_back(file + ":" + std::to_string(number) + ": " + layer + " must not include " + path);
  }
  return bad;
}

bool IsSource(const std::filesystem::path& path) {
  static const std::set<std::string> kEndings = {".h", ".cc", ".cu", ".cuh", ".inc"};
  return kEndings.count(path.extension().string()) != 0;
}

TEST(LayersTest, EveryIncludePointsDown) {
  std::filesystem::path root = OFL_SOURCE_DIR;
  for (const auto& [layer, below] : kBelow) {
    int files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / layer)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      std::string name = std::filesystem::relative(entry.path(), root).string();
      if (LayerOf(name) != layer) continue;  // of a layer inside this folder
      ++files;
      std::ifstream in(entry.path());
      std::stringstream text;
      text << in.rdbuf();
      for (const std::string& bad : BadIncludes(layer, name, text.str())) ADD_FAILURE() << bad;
    }
    EXPECT_GT(files, 0) << "no source file found in " << layer;
  }
}

TEST(LayersTest, TheRoomsOfTheNetworkStandOnOneAnother) {
  const std::filesystem::path root = std::filesystem::path(OFL_SOURCE_DIR) / "actor" / "net";
  auto floor = [](const std::string& room) {
    return std::find(kRooms.begin(), kRooms.end(), room) - kRooms.begin();
  };
  static const std::regex kInclude("#[ \t]*include[ \t]*\"actor/net/([^/\"]+)/");
  int crossings = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
    const std::string room = entry.path().parent_path().filename().string();
    EXPECT_LT(floor(room), std::ssize(kRooms)) << entry.path() << " stands in no room";
    std::ifstream in(entry.path());
    std::stringstream text;
    text << in.rdbuf();
    const std::string source = text.str();
    for (std::sregex_iterator it(source.begin(), source.end(), kInclude), end; it != end; ++it) {
      EXPECT_LE(floor((*it)[1]), floor(room)) << entry.path() << " includes " << (*it)[0];
      crossings += (*it)[1] != room;
    }
  }
  EXPECT_GT(crossings, 10);
}

TEST(LayersTest, TheCheckCatchesAPlantedInclude) {
  auto count = [](const std::string& layer, const std::string& text) {
    return BadIncludes(layer, "planted.cc", text).size();
  };
  const std::string good = "#include <vector>\n#include \"core/dims.h\"\n";
  for (const auto& [layer, below] : kBelow) {
    EXPECT_EQ(count(layer, good), 0u) << layer;
    for (const auto& [other, ignored] : kBelow) {
      bool allowed = other == layer || below.count(other) != 0;
      EXPECT_EQ(count(layer, good + "  #  include \"" + other + "/x.h\"\n"), allowed ? 0u : 1u)
          << layer << " " << other;
      EXPECT_EQ(count(layer, good + "#include <" + other + "/x.h>\n"), allowed ? 0u : 1u)
          << layer << " " << other;
    }
  }
  EXPECT_EQ(BadIncludes("core", "core/dims.cc", "\n#include \"sbp/sbp.h\"\n"),
            (std::vector<std::string>{"core/dims.cc:2: core must not include sbp/sbp.h"}));
  EXPECT_EQ(count("ops", "#include \"ops/cpu/matmul.h\"\n#include \"core/plan.pb.h\"\n"), 0u);
  EXPECT_EQ(count("actor", "#include \"sbp/sbp.h\"\n"), 1u) << "actor knows nothing but core";
  EXPECT_EQ(count("compiler", "#include \"actor/runtime.h\"\n"), 1u) << "a sibling";
  EXPECT_EQ(count("ops", "#include \"helper.h\"\n"), 1u) << "ours are named by their folder";
  EXPECT_EQ(count("sbp", "#include \"tests/ops/eager.h\"\n"), 1u);
  EXPECT_EQ(count("core", "// #include \"sbp/sbp.h\"\n"), 0u) << "a comment includes nothing";
}

// The table itself: whoever may be included may not include back, or the floors would be a circle.
TEST(LayersTest, TheFloorsAreNoCircle) {
  for (const auto& [layer, below] : kBelow) {
    for (const std::string& under : below) {
      EXPECT_EQ(kBelow.at(under).count(layer), 0u) << layer << " and " << under;
      for (const std::string& deeper : kBelow.at(under))
        EXPECT_EQ(below.count(deeper), 1u) << layer << " " << deeper;
    }
  }
}

}  // namespace
