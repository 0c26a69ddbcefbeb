// README.md and docs/ say what is there: each command of a program runs, at a size that takes a moment; each
// message that they explain is one of ours; each link leads somewhere; each header is named by its folder.
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

std::vector<std::string> Pages() {
  std::vector<std::string> pages;
  for (const auto& entry : fs::directory_iterator(OFL_SOURCE_DIR "/docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  std::sort(pages.begin(), pages.end());
  pages.insert(pages.begin(), OFL_SOURCE_DIR "/README.md");
  pages.push_back(OFL_SOURCE_DIR "/examples/README.md");
  return pages;
}

// Lines of blocks of no language that begin with a program of examples/, without what is said of them.
std::vector<std::string> CommandsOf(const std::string& page) {
  std::vector<std::string> commands;
  bool inside = false, plain = false;
  for (std::string line : LinesOf(TextOf(page))) {
    if (line.rfind("```", 0) == 0) {
      inside = !inside;
      plain = line == "```";
    } else if (inside && plain && line.rfind("build/examples/", 0) == 0) {
      if (const size_t said = line.find("  #"); said != std::string::npos) line.resize(said);
      if (const size_t said = line.find(" # "); said != std::string::npos) line.resize(said);
      commands.push_back(line);
    }
  }
  return commands;
}

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
  if (is("mlp")) more += " --epochs=1 --hidden=8";
  for (const char* program : {"resnet", "vit", "dlrm", "moe", "bert", "insightface", "unet"})
    if (is(program)) more += " --steps=1 --batch=8 --eval_batches=1";
  if (is("dlrm")) more += " --rows=100";
  if (is("insightface")) more += " --identities=64 --sampled=16";
  return command + more;
}

TEST(Docs, CommandsRun) {
  const TestFolder folder("docs_test");
  fs::create_symlink(OFL_BINARY_DIR, folder / "build");
  fs::create_symlink(OFL_SOURCE_DIR "/examples", folder / "examples");
  std::string text;
  for (int i = 0; i < 400; ++i) text += Cat("the quick brown fox ", i * 7919, "\n");
  folder.Write("book.txt", text);
  // Tokens as llm.c keeps them: 256 numbers before them, of which the first three count, then 16 bits each.
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 4000;
  std::string tokens(reinterpret_cast<const char*>(header.data()), 1024);
  for (int i = 0; i < 4000; ++i) tokens += {static_cast<char>(i * i % 251), '\0'};
  folder.Write("book.bin", tokens);
  folder.Write("questions.txt", "Who?\nWhy?\n");
  std::string clicks;
  for (int row = 0; row < 64; ++row) {
    clicks += std::to_string(row % 3 == 0);
    for (int i = 0; i < 39; ++i)
      clicks += Cat("\t", i < 13 ? std::to_string(row * i) : Cat("w", row * i % 7));
    clicks += "\n";
  }
  folder.Write("day_0", clicks);
  fs::create_directory(folder / "shards");
  fs::copy(folder / "book.bin", folder / "shards/train_0.bin");
  const auto run = [&](const std::string& command) {
    return Shell(Cat("cd ", folder / ".", " && ", command));
  };
  for (const char* folder_of : {"Llama-3.2-1B", "Qwen2-0.5B --qkv_bias"})
    ASSERT_EQ(
        run(Cat("build/examples/llama --layers=2 --steps=1 --context=16 --eval_batches=0 --sample_tokens=0 "
                "--save_hf=",
                folder_of))
            .code,
        0);
  int commands = 0;
  for (const std::string& page : Pages()) {
    if (Has(page, "/docs/")) fs::remove_all(folder / "run");  // each of these begins anew
    if (Has(page, "/examples/")) run(Small("build/examples/gpt --save=run --save_every=50"));
    for (const std::string& command : CommandsOf(page)) {
      const ShellOutcome o = run(Small(command));
      const bool tells = Has(command, "checkpoint diff ");  // 1: there are differences
      EXPECT_EQ(o.code, tells ? 1 : 0) << page << ":\n" << Small(command) << "\n" << o.output;
      ++commands;
    }
  }
  EXPECT_GT(commands, 30);
}

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
