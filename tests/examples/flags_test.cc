// Every flag of the example programs has a sentence, and the tables of docs/flags.md are those of the
// entries. `flags_test --update` writes the tables into the page.
// ctest: seconds=5 programs=examples
#include <gflags/gflags.h>
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

#include "core/error.h"
#include "tests/processes.h"

DEFINE_bool(update, false, "write the tables into docs/flags.md instead of comparing them");

namespace oneflow_like {
namespace {

// Those of examples/.
std::vector<std::string> Programs() {
  std::vector<std::string> programs;
  for (const auto& entry : std::filesystem::directory_iterator(OFL_SOURCE_DIR "/examples"))
    if (entry.path().extension() == ".cc" && TextOf(entry.path()).find("\nint main(") != std::string::npos)
      programs.push_back(entry.path().stem());
  std::sort(programs.begin(), programs.end());
  return programs;
}
const std::vector<std::string> kPrograms = Programs();
constexpr char kPage[] = OFL_SOURCE_DIR "/docs/flags.md";

// The tables of a program, by the names of their groups.
std::map<std::string, std::string> TablesOf(const std::string& program) {
  const ShellOutcome o = Shell(Cat(OFL_BINARY_DIR "/examples/", program, " --help=markdown"));
  EXPECT_EQ(o.code, 0) << program << o.output;
  std::map<std::string, std::string> tables;
  const std::regex name("`--help=(\\w+)`");
  for (size_t begin = o.output.find("#### "); begin < o.output.size();) {
    const size_t end = std::min(o.output.find("\n#### ", begin), o.output.size() - 1);
    std::string table = o.output.substr(begin, end - begin);
    table.resize(table.find_last_not_of('\n') + 1);
    std::smatch group;
    EXPECT_TRUE(std::regex_search(table, group, name)) << table;
    tables[group[1]] = table + "\n";
    begin = end + 1;
  }
  return tables;
}

// The rows of a table: flag, default, sentence.
std::vector<std::vector<std::string>> RowsOf(const std::string& table) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : LinesOf(table)) {
    if (!line.starts_with("| `--")) continue;
    std::vector<std::string> cells;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, '|');)
      cells.push_back(std::regex_replace(cell, std::regex("^ | $|`"), ""));
    rows.push_back({cells.at(1), cells.at(2), cells.at(3)});
  }
  return rows;
}

// A sentence begins with one of these; a new one is added here when a flag needs it.
const std::set<std::string> kVerbs = {
    "Adds",     "Allows",  "Begins",     "Chooses",     "Compares", "Compiles", "Computes", "Continues",
    "Converts", "Cuts",    "Discards",   "Distributes", "Divides",  "Draws",    "Drops",    "Finds",
    "Freezes",  "Gathers", "Gives",      "Joins",       "Keeps",    "Learns",   "Lets",     "Limits",
    "Lists",    "Makes",   "Measures",   "Multiplies",  "Names",    "Plans",    "Orders",   "Prints",
    "Raises",   "Reads",   "Recomputes", "Refuses",     "Reports",  "Requires", "Runs",     "Saves",
    "Scales",   "Seeds",   "Sends",      "Sets",        "Starts",   "States",   "Stops",    "Takes",
    "Trains",   "Updates", "Uses",       "Weighs",      "Writes"};

TEST(Flags, EachHasASentenceWithAVerb) {
  int flags = 0;
  for (const std::string& program : kPrograms)
    for (const auto& [group, table] : TablesOf(program))
      for (const auto& row : RowsOf(table)) {
        const std::string& sentence = row[2];
        EXPECT_EQ(kVerbs.count(sentence.substr(0, sentence.find(' '))), 1u)
            << program << row[0] << ": " << sentence;
        EXPECT_TRUE(sentence.ends_with('.')) << program << row[0] << ": " << sentence;
        EXPECT_GE(std::count(sentence.begin(), sentence.end(), ' '), 3)
            << program << row[0] << ": " << sentence;
        ++flags;
      }
  EXPECT_GT(flags, 300);
}

TEST(Flags, MoeListsNoFlagsOfSamplesWhichItDoesNotWrite) {
  const auto has = [](const std::string& program, const std::string& flag) {
    return TablesOf(program).at("text").find("`--" + flag + "`") != std::string::npos;
  };
  for (const char* flag : {"sample_tokens", "temperature", "prompt"}) {
    EXPECT_TRUE(has("gpt", flag)) << flag;
    EXPECT_FALSE(has("moe", flag)) << flag;
  }
}

// Defaults that differ from those of the same group in gpt.
std::string TableOfDefaults(const std::map<std::string, std::map<std::string, std::string>>& tables) {
  std::string text = "| program | defaults |\n|---|---|\n";
  for (const std::string& program : kPrograms) {
    std::string differ;
    for (const auto& [group, table] : tables.at(program)) {
      const auto of_gpt = tables.at("gpt").find(group);
      if (group == "model" || of_gpt == tables.at("gpt").end()) continue;
      std::map<std::string, std::string> others;  // a program may lack some
      for (const auto& row : RowsOf(of_gpt->second)) others[row[0]] = row[1];
      for (const auto& row : RowsOf(table))
        if (row[1] != others.at(row[0]))
          differ += Cat(differ.empty() ? "" : " ", "`", row[0], "=", row[1], "`");
    }
    if (!differ.empty()) text += Cat("| `", program, "` | ", differ, " |\n");
  }
  return text;
}

// The page with the tables that its marks ask for: <!-- gpt: model text -->, <!-- defaults --> and <!-- end
// -->.
TEST(Flags, TablesOfThePageAreThoseOfTheEntries) {
  std::map<std::string, std::map<std::string, std::string>> tables;
  for (const std::string& program : kPrograms) tables[program] = TablesOf(program);
  const std::string page = TextOf(kPage);
  std::string wanted;
  std::set<std::string> shown;
  bool inside = false;
  const std::regex mark("<!-- (\\w+): ([\\w ]+) -->");
  for (const std::string& line : LinesOf(page)) {
    if (line == "<!-- end -->") inside = false;
    if (!inside) wanted += line + "\n";
    std::smatch asked;
    if (line == "<!-- defaults -->") {
      wanted += "\n" + TableOfDefaults(tables) + "\n";
      inside = true;
    } else if (std::regex_match(line, asked, mark)) {
      inside = true;
      std::istringstream groups(asked[2]);
      for (std::string group; groups >> group;) {
        ASSERT_EQ(tables.at(asked[1]).count(group), 1u) << line;
        wanted += "\n" + tables[asked[1]][group];
        shown.insert(group == "model" ? asked[1].str() + " model" : group);
      }
      wanted += "\n";
    }
  }
  for (const auto& [program, groups] : tables)
    for (const auto& [group, table] : groups)
      EXPECT_EQ(shown.count(group == "model" ? program + " model" : group), 1u)
          << kPage << " lacks group " << group << " of " << program;
  if (FLAGS_update) std::ofstream(kPage) << wanted;
  EXPECT_EQ(FLAGS_update ? TextOf(kPage) : page, wanted) << "flags_test --update writes the tables";
}

}  // namespace
}  // namespace oneflow_like
