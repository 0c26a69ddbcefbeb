// The public header costs its users little: preprocessed, it adds few lines to the standard headers that it
// includes, and nothing of protobuf.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <string>

namespace {

std::string Output(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 1 << 16> part;
  while (size_t n = fread(part.data(), 1, part.size(), pipe.get())) text.append(part.data(), n);
  return text;
}

const std::string kCompile = std::string("g++ -std=c++20 -I" OFL_SOURCE_DIR " -I" OFL_BINARY_DIR " ");

int64_t Lines(const std::string& source) {
  const std::string text = Output(kCompile + "-E -P " + source);
  return std::count(text.begin(), text.end(), '\n');
}

TEST(PublicHeader, AddsFewLinesAndNoProtobuf) {
  const std::string header = OFL_SOURCE_DIR "/oneflow_like/oneflow_like.h";
  const std::string all = Output(kCompile + "-M " + header);
  ASSERT_NE(all.find("model.h"), std::string::npos) << "g++ does not preprocess the header: " << all;
  EXPECT_EQ(all.find("protobuf"), std::string::npos) << all;
  EXPECT_EQ(all.find(".pb.h"), std::string::npos) << all;
  EXPECT_EQ(all.find("actor/runtime.h"), std::string::npos) << "the inside of the runtime";

  // The standard headers that ours include, in a file of their own.
  std::set<std::string> standard;
  static const std::regex kName("[^\\s\\\\]+"), kInclude("^#include (<[^>]+>)");
  for (std::sregex_iterator name(all.begin(), all.end(), kName), end; name != end; ++name) {
    const std::string path = name->str();
    if (path.rfind(OFL_SOURCE_DIR, 0) != 0 && path.rfind(OFL_BINARY_DIR, 0) != 0) continue;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      std::smatch found;
      if (std::regex_search(line, found, kInclude)) standard.insert(found[1]);
    }
  }
  ASSERT_GT(standard.size(), 5u);
  const std::string file = testing::TempDir() + "/standard_headers.cc";
  {
    std::ofstream out(file);
    for (const std::string& name : standard) out << "#include " << name << "\n";
  }
  const int64_t ours = Lines(header), theirs = Lines(file);
  EXPECT_GT(theirs, 1000);
  EXPECT_LE(ours - theirs, 8000) << ours << " lines, " << theirs << " of them of standard headers";
  RecordProperty("lines", std::to_string(ours - theirs));
}

}  // namespace
