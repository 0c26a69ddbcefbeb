// README.md and docs/ say what is there: each message that they explain is one of ours; each link leads
// somewhere; each header is named by its folder. Their commands: docs_commands_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>
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

// All literals of the sources, adjacent ones joined as the compiler does.
std::string Literals() {
  std::string all;
  for (const char* folder : {"actor", "compiler", "core", "examples", "oneflow_like", "ops", "sbp"})
    for (const auto& entry : fs::recursive_directory_iterator(Cat(OFL_SOURCE_DIR, "/", folder)))
      if (entry.path().extension() == ".cc" || entry.path().extension() == ".h")
        all += std::regex_replace(TextOf(entry.path()), std::regex("\"\\s*\n\\s*\""), "");
  return all;
}

TEST(Docs, MessagesAreOurs) {
  const std::string literals = Literals();
  int messages = 0;
  for (const std::string& line : LinesOf(TextOf(OFL_SOURCE_DIR "/docs/troubleshooting.md"))) {
    if (line.rfind("| `", 0) != 0) continue;
    std::string message = line.substr(3, line.find("` ", 3) - 3);
    message = message.substr(0, message.find('`'));
    ++messages;
    int parts = 0;
    for (size_t begin = 0; begin < message.size();) {
      const size_t end = std::min(message.find("…", begin), message.size());
      std::string part = message.substr(begin, end - begin);
      while (!part.empty() && std::isspace(static_cast<unsigned char>(part.back()))) part.pop_back();
      while (!part.empty() && std::isspace(static_cast<unsigned char>(part.front()))) part.erase(0, 1);
      if (part.size() > 4) {
        EXPECT_TRUE(Has(literals, part)) << "no source says \"" << part << "\"";
        ++parts;
      }
      begin = end + std::strlen("…");
    }
    EXPECT_GT(parts, 0) << line;
  }
  EXPECT_GT(messages, 10);
}

// Of a page, without blocks of code.
std::string WithoutBlocks(const std::string& page) {
  std::string text;
  bool inside = false;
  for (const std::string& line : LinesOf(page)) {
    if (line.rfind("```", 0) == 0) inside = !inside;
    if (!inside) text += line + "\n";
  }
  return text;
}

// As web pages name a title.
std::string AnchorOf(const std::string& title) {
  std::string anchor;
  for (char c : title) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(c));
    if (c == ' ') anchor += '-';
  }
  return anchor;
}

TEST(Docs, LinksLeadSomewhere) {
  std::vector<std::string> pages;
  for (const auto& entry : fs::recursive_directory_iterator(OFL_SOURCE_DIR)) {
    const std::string path = entry.path();
    if (entry.path().extension() == ".md" && !Has(path, "/build") && !Has(path, "/.")) pages.push_back(path);
  }
  ASSERT_GT(pages.size(), 10u);
  int links = 0;
  const std::regex link("\\]\\(([^)#:]*)(#([^)]*))?\\)");
  for (const std::string& page : pages) {
    const std::string text = WithoutBlocks(TextOf(page));
    for (std::sregex_iterator i(text.begin(), text.end(), link), end; i != end; ++i, ++links) {
      const std::string file = (*i)[1], anchor = (*i)[3];
      const fs::path target = file.empty() ? fs::path(page) : fs::path(page).parent_path() / file;
      EXPECT_TRUE(fs::exists(target)) << page << ": " << file;
      if (anchor.empty()) continue;
      bool found = false;
      for (const std::string& line : LinesOf(TextOf(target)))
        found = found || (line.rfind('#', 0) == 0 &&
                          AnchorOf(line.substr(std::min(line.size(), line.find(' ') + 1))) == anchor);
      EXPECT_TRUE(found) << page << ": " << file << "#" << anchor;
    }
  }
  EXPECT_GT(links, 30);
}

// Of the libraries, by name or by its folder's name for all of a folder.
TEST(Docs, FoldersNameTheirHeaders) {
  int headers = 0;
  for (const char* folder : {"core", "sbp", "ops", "compiler", "actor", "oneflow_like"}) {
    for (const auto& entry : fs::recursive_directory_iterator(Cat(OFL_SOURCE_DIR "/", folder))) {
      if (entry.path().extension() != ".h") continue;
      ++headers;
      // The nearest folder that has notes speaks of it, or of the folder that it lies in below that one.
      std::string name = entry.path().stem();
      fs::path where = entry.path().parent_path();
      for (; !fs::exists(where / "README.md"); where = where.parent_path()) name = where.filename();
      const std::regex word("\\b" + name + "\\b");
      EXPECT_TRUE(std::regex_search(TextOf(where / "README.md"), word)) << entry.path() << " in " << where;
    }
  }
  EXPECT_GT(headers, 100);
}

}  // namespace
}  // namespace oneflow_like
