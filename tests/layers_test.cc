// The house stands on its floors: no source file includes a header of a layer above or beside its own.
//   core < sbp < ops < compiler < oneflow_like < examples, and core < actor < actor/net < oneflow_like
// actor/cuda stands on ops, and nothing on actor/cuda: programs open it when they run. Inside a layer the
// rooms stand on one another in the order of kRooms. A folder with many files is asking for rooms, and names
// in unnamed namespaces are unique in what a unity build compiles together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
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

// The rooms of a layer, from the bottom up: each may include those before it. A room is a folder; the layer's
// own name stands for the files flat in its folder.
const std::map<std::string, std::vector<std::string>> kRooms = {
    {"core", {"core", "core/system", "core/boxes", "core/device", "core/plan"}},
    {"ops", {"ops/language", "ops", "ops/oracle", "ops/cpu", "ops/cuda"}},
    {"compiler",
     {"compiler/graph", "compiler/cost", "compiler/plan", "compiler/passes", "compiler", "compiler/search"}},
    {"actor/net",
     {"actor/net/rendezvous", "actor/net/launch", "actor/net/ucx", "actor/net/shared_memory",
      "actor/net/talk", "actor/net/collectives", "actor/net/job"}},
    {"oneflow_like",
     {"oneflow_like/data", "oneflow_like/text", "oneflow_like/model", "oneflow_like/job",
      "oneflow_like/checkpoint", "oneflow_like/session", "oneflow_like/report", "oneflow_like/simulate",
      "oneflow_like/planner", "oneflow_like/generation", "oneflow_like/launch", "oneflow_like/program"}},
};
// The rooms of the public headers, which stand in oneflow_like/ itself.
const std::map<std::string, std::string> kRoomOfHeader = {
    {"weight.h", "model"},          {"model.h", "model"},          {"nn.h", "model"},
    {"experts.h", "model"},         {"updates.h", "model"},        {"build_id.h", "job"},
    {"checkpoint.h", "checkpoint"}, {"session.h", "session"},      {"simulate.h", "simulate"},
    {"calibrate.h", "simulate"},    {"plan_search.h", "planner"},  {"metrics.h", "launch"},
    {"launcher.h", "launch"},       {"interruptions.h", "launch"}, {"oneflow_like.h", "launch"},
    {"flags.h", "launch"},
};

// The room of a path in this layer, empty for none.
std::string RoomOf(const std::string& layer, const std::string& path) {
  const std::string name = path.substr(layer.size() + 1);
  const size_t end = name.find('/');
  if (end != std::string::npos) return layer + "/" + name.substr(0, end);
  if (layer != "oneflow_like") return layer;
  const auto room = kRoomOfHeader.find(name);
  return room == kRoomOfHeader.end() ? "" : layer + "/" + room->second;
}

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

// One line for each include of a room of the layer that does not stand below the file's own, and for files in
// no room.
std::vector<std::string> BadRooms(const std::string& layer, const std::string& file,
                                  const std::string& text) {
  static const std::regex kInclude("#[ \t]*include[ \t]*\"([^\"]+)\"");
  const std::vector<std::string>& rooms = kRooms.at(layer);
  auto floor = [&](const std::string& room) {
    return std::find(rooms.begin(), rooms.end(), room) - rooms.begin();
  };
  const std::string room = RoomOf(layer, file);
  if (floor(room) == std::ssize(rooms)) return {file + " stands in no room of " + layer};
  std::vector<std::string> bad;
  for (std::sregex_iterator it(text.begin(), text.end(), kInclude), end; it != end; ++it) {
    const std::string path = (*it)[1];
    if (path.rfind(layer + "/", 0) != 0 || path.ends_with(".pb.h")) continue;
    const std::string other = RoomOf(layer, path);
    if (other != room && floor(other) >= floor(room)) bad.push_back(file + " must not include " + path);
  }
  return bad;
}

// Source files of the layer, with their texts.
std::map<std::string, std::string> SourcesOf(const std::string& layer) {
  const std::filesystem::path root = OFL_SOURCE_DIR;
  std::map<std::string, std::string> sources;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / layer)) {
    if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
    std::ifstream in(entry.path());
    std::stringstream text;
    text << in.rdbuf();
    sources[std::filesystem::relative(entry.path(), root).string()] = text.str();
  }
  return sources;
}

TEST(LayersTest, RoomsStandOnOneAnother) {
  for (const auto& [layer, rooms] : kRooms) {
    std::set<std::string> seen;
    for (const auto& [file, text] : SourcesOf(layer)) {
      if (file.find("/module/") != std::string::npos) continue;  // a library of its own
      seen.insert(RoomOf(layer, file));
      for (const std::string& bad : BadRooms(layer, file, text)) ADD_FAILURE() << bad;
    }
    EXPECT_EQ(seen, std::set<std::string>(rooms.begin(), rooms.end())) << "rooms of " << layer;
  }
}

TEST(LayersTest, TheCheckCatchesAPlantedArrowBetweenRooms) {
  for (const auto& [layer, rooms] : kRooms)
    for (size_t from = 0; from < rooms.size(); ++from)
      for (size_t to = 0; to < rooms.size(); ++to) {
        const std::string line = "#include \"" + rooms[to] + "/planted.h\"\n";
        if (rooms[to] == "oneflow_like") continue;
        EXPECT_EQ(BadRooms(layer, rooms[from] + "/planted.cc", line).size(), from < to ? 1u : 0u)
            << rooms[from] << " " << rooms[to];
      }
  EXPECT_EQ(
      BadRooms("oneflow_like", "oneflow_like/model/x.cc", "#include \"oneflow_like/session.h\"\n").size(),
      1u);
  EXPECT_EQ(BadRooms("oneflow_like", "oneflow_like/new.h", "").size(), 1u) << "in no room";
  EXPECT_EQ(BadRooms("compiler", "compiler/attic/x.cc", "").size(), 1u) << "in no room";
}

// More files than this flat in a folder are asking for rooms.
TEST(LayersTest, FoldersAreSmall) {
  const std::filesystem::path root = OFL_SOURCE_DIR;
  for (const char* layer : {"oneflow_like", "compiler", "core"}) {
    std::map<std::string, int> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / layer))
      if (entry.is_regular_file())
        ++files[std::filesystem::relative(entry.path().parent_path(), root).string()];
    EXPECT_GT(files.size(), 3u) << layer;
    for (const auto& [folder, count] : files)
      EXPECT_LE(count, folder == "oneflow_like" ? 20 : 30) << folder << " has too many files; make rooms";
  }
}

// What a unity build may compile together: folders of one library.
const std::vector<std::pair<std::string, std::vector<std::string>>> kUnities = {
    {"core", {"core"}},
    {"sbp", {"sbp"}},
    {"ops", {"ops/language", "ops", "ops/oracle"}},
    {"ops/cpu", {"ops/cpu"}},
    {"compiler", {"compiler"}},
    {"actor", {"actor"}},
    {"actor/net", {"actor/net"}},
    {"actor/cuda", {"actor/cuda", "ops/cuda"}},
    {"oneflow_like/data", {"oneflow_like/data"}},
    {"oneflow_like",
     {"oneflow_like/text", "oneflow_like/model", "oneflow_like/job", "oneflow_like/checkpoint",
      "oneflow_like/session", "oneflow_like/report", "oneflow_like/simulate", "oneflow_like/planner",
      "oneflow_like/generation", "oneflow_like/launch", "oneflow_like/program"}},
};

// Names that a source file defines in unnamed namespaces. Aliases may be written again: they say the same.
std::set<std::string> HiddenNames(const std::string& text) {
  static const std::regex kType("^(?:template *<.*> *)?(?:struct|class|enum(?: class)?) (\\w+)[^;]*$");
  static const std::regex kOther("^[\\w:<>,*& \\[\\]]*[ *&](\\w+) ?(?:[(=\\[{;].*)$");
  std::set<std::string> names;
  std::istringstream lines(text);
  bool hidden = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == "namespace {") hidden = true;
    if (line == "}  // namespace") hidden = false;
    if (!hidden || line.empty() || (!std::isalpha(line[0]) && line[0] != '_')) continue;
    static const std::regex kNoName("^(?:using|namespace|(?:struct|class) \\w+;).*");
    if (std::regex_match(line, kNoName)) continue;
    std::smatch match;
    const bool found = std::regex_match(line, match, kType) || std::regex_match(line, match, kOther);
    if (found && match.str(1).rfind("__", 0) != 0) names.insert(match[1]);
  }
  return names;
}

TEST(LayersTest, NamesInUnnamedNamespacesAreUniqueInALibrary) {
  for (const auto& [library, folders] : kUnities) {
    std::map<std::string, std::string> defined;  // name -> the first file that has it
    for (const auto& [file, text] :
         SourcesOf(folders.size() > 1 ? folders[0].substr(0, folders[0].find('/')) : folders[0])) {
      const std::string folder = file.substr(0, file.rfind('/'));
      const bool inside = std::any_of(folders.begin(), folders.end(), [&](const std::string& f) {
        return folder == f || (folders.size() == 1 && f != "actor" && folder.rfind(f + "/", 0) == 0);
      });
      if (!inside || !(file.ends_with(".cc") || file.ends_with(".cu"))) continue;
      for (const std::string& name : HiddenNames(text)) {
        const auto [first, fresh] = defined.emplace(name, file);
        EXPECT_TRUE(fresh) << file << " defines '" << name << "' in an unnamed namespace, and so does "
                           << first->second;
      }
    }
    EXPECT_GT(defined.size(), 5u) << library;
  }
}

TEST(LayersTest, HiddenNamesAreFound) {
  const std::string text =
      "int Open();\nnamespace {\nstruct Row {\n  int x = 0;\n};\nclass Known;\nconstexpr int kMost = 3;\n"
      "std::vector<int> Rows(const Row& r) {\n  int local = 1;\n}\nvoid Fill(\n}  // namespace\nint Shown() "
      "{\n";
  EXPECT_EQ(HiddenNames(text), (std::set<std::string>{"Row", "kMost", "Rows", "Fill"}));
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
