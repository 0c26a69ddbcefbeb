// Plain and packed files, IDX files and click logs: what is read, and what is said of files that are missing,
// truncated, corrupt or absurd.
// ctest: asan=10
#include <cmath>
#include <random>

#include "oneflow_like/data/clicks.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/data/idx.h"
#include "tests/oneflow_like/data/files_fixture.h"

namespace oneflow_like {
namespace {

using DataFilesTest = FilesTest;

// Bytes that deflate cannot shorten, so that a cut or a flipped bit always meets data.
std::string Noise(int64_t size) {
  std::mt19937 random(7);
  std::string out(size, 0);
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

TEST_F(DataFilesTest, PlainAndPackedAreReadAlike) {
  const std::string bytes = Noise(3000000);  // more than one chunk
  EXPECT_EQ(ReadFile(Write("plain.txt", bytes)), bytes);
  EXPECT_EQ(ReadFile(Write("packed.gz", Gzip(bytes))), bytes);
  const MappedFile mapped(folder_ + "/plain.txt");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(mapped.data()), mapped.size()), bytes);
  EXPECT_EQ(MappedFile(Write("empty", "")).size(), 0);
}

// What a file says goes to terminals and logs in messages: on one line, and without its control characters.
TEST_F(DataFilesTest, MessagesShowPartsOfFilesAsPlainText) {
  EXPECT_EQ(Shown("a b~"), "a b~");
  EXPECT_EQ(Shown(std::string("\n\x1b[31m\0\xff", 8)), "\\x0a\\x1b[31m\\x00\\xff");
  EXPECT_EQ(Shown(std::string(61, 'x')), std::string(60, 'x') + "...");
  const ClickLog log(Write("c.tsv", "\x1b[31m\t1\n"), {.dense = 1, .categorical = 0});
  float label, dense;
  int32_t ids;
  void* const to[] = {&label, &dense, &ids};
  ExpectSays([&] { log.Read({1, 0, 0}, to); }, "c.tsv", "is '\\x1b[31m', not a number");
}

TEST_F(DataFilesTest, PatternsNameFilesInOrder) {
  for (const char* name : {"b_10.bin", "b_02.bin", "a.bin", "b_01.txt"}) Write(name, "");
  EXPECT_EQ(FilesOf(folder_ + "/b_*.bin"),
            (std::vector<std::string>{folder_ + "/b_02.bin", folder_ + "/b_10.bin"}));
  EXPECT_EQ(FilesOf(folder_ + "/none"), (std::vector<std::string>{folder_ + "/none"}));
  EXPECT_EQ(FilesOf(Write("odd[1].bin", "")), (std::vector<std::string>{folder_ + "/odd[1].bin"}));
  ExpectSays([&] { FilesOf(folder_ + "/c*"); }, folder_ + "/c*", "no file matches");
}

// Names with characters of patterns: as they are, where that finds something, and else as patterns.
TEST_F(DataFilesTest, BracketsMayBePartsOfNames) {
  using Files = std::vector<std::string>;
  const auto in = [&](const Files& names) {
    Files paths;
    for (const std::string& name : names) paths.push_back(folder_ + "/" + name);
    return paths;
  };
  for (const char* name :
       {"folder[1]/a.txt", "folder[1]/b.txt", "folder1/c.txt", "x]/[/d.txt", "e1.txt", "e2.txt"})
    Write(name, "");
  EXPECT_EQ(FilesOf(folder_ + "/folder[1]/*.txt"), in({"folder[1]/a.txt", "folder[1]/b.txt"}));
  EXPECT_EQ(FilesOf(folder_ + "/folder[1]/?.txt"), in({"folder[1]/a.txt", "folder[1]/b.txt"}));
  EXPECT_EQ(FilesOf(folder_ + "/folder[1]/c.*"), in({"folder1/c.txt"})) << "only the pattern finds it";
  EXPECT_EQ(FilesOf(folder_ + "/x]/[/*"), in({"x]/[/d.txt"}));
  EXPECT_EQ(FilesOf(folder_ + "/e[12].txt"), in({"e1.txt", "e2.txt"}));
  EXPECT_EQ(FilesOf(folder_ + "/e[!1].txt"), in({"e2.txt"}));
  for (const char* nothing : {"folder[1]/*.bin", "folder[2]/*.txt", "e[3].txt"})
    ExpectSays([&] { FilesOf(folder_ + "/" + nothing); }, nothing,
               "neither with its brackets as they are nor as a pattern");
  EXPECT_EQ(ErrorOf([&] { FilesOf(folder_ + "/none*"); }).find("brackets"), std::string::npos);
}

TEST_F(DataFilesTest, MistakesOfPackedFiles) {
  const std::string missing = folder_ + "/none.txt", packed = Gzip(Noise(100000));
  std::string flipped = packed;
  for (size_t i = packed.size() / 2; i < packed.size() / 2 + 64; ++i) flipped[i] ^= 0x5a;
  auto says = [&](const std::string& path, const std::string& words, int64_t limit = 4000000) {
    ExpectSays([&] { ReadFile(path, limit); }, path, words);
  };
  says(missing, "No such file");
  says(folder_, "folder");
  says(Write("truncated.gz", packed.substr(0, packed.size() / 2)), "truncated");
  says(Write("no_end.gz", packed.substr(0, packed.size() - 4)), "truncated");
  says(Write("corrupt.gz", flipped), "corrupt");
  says(Write("other.gz", "this is no gzip file"), "not a gzip file");
  says(Write("empty.gz", ""), "not a gzip file");
  says(Write("large.gz", Gzip(std::string(5000000, 'x'))), "more than 4000000 bytes");
}

TEST_F(DataFilesTest, ReadsIdx) {
  const IdxData data = LoadIdx(Write("a.gz", Gzip(IdxFile({3, 2, 2}, 12))), 3);
  EXPECT_EQ(data.shape, (std::vector<int64_t>{3, 2, 2}));
  ASSERT_EQ(data.values.size(), 12u);
  EXPECT_EQ(data.values[11], 77 % 10);
}

TEST_F(DataFilesTest, IdxErrors) {
  struct Case {
    const char* name;
    std::string bytes;
    const char* words;
  };
  const std::string good = IdxFile({3, 2, 2}, 12);
  for (const Case& c : {
           Case{"empty", "", "truncated"},
           Case{"magic", "x" + good.substr(1), "120 0 8 3 instead of 0 0 8 3"},
           Case{"type", std::string("\0\0\x0d\3", 4) + good.substr(4), "0 0 13 3"},
           Case{"axes", IdxFile({12}, 12), "0 0 8 1 instead of 0 0 8 3"},
           Case{"header", good.substr(0, 9), "truncated inside its IDX header"},
           Case{"short", IdxFile({3, 2, 2}, 11), "11 values, but its header says 12"},
           Case{"long", IdxFile({3, 2, 2}, 13), "more than the 12 values"},
           Case{"nothing", IdxFile({3, 0, 2}, 0), "axis 1"},
           Case{"absurd", IdxFile({4294967295, 4294967295, 4294967295}, 12), "4294967295"},
           Case{"product", IdxFile({60000, 65535, 65535}, 12), "axis 1 has extent 65535"},
           Case{"within_limit", IdxFile({1 << 10, 1 << 10, 1 << 10}, 12), "truncated at byte 28: 12 values"},
       }) {
    for (bool packed : {false, true}) {
      const std::string path =
          packed ? Write(std::string(c.name) + ".gz", Gzip(c.bytes)) : Write(c.name, c.bytes);
      ExpectSays([&] { LoadIdx(path, 3); }, path, c.words);
    }
  }
  const std::string packed = Gzip(IdxFile({30, 28, 28}, 30 * 784));
  const std::string truncated = Write("cut.gz", packed.substr(0, packed.size() / 2));
  ExpectSays([&] { LoadIdx(truncated, 3); }, truncated, "truncated");
}

TEST_F(DataFilesTest, EveryPrefixOfAnIdxFileIsRefused) {
  const std::string good = IdxFile({3, 2, 2}, 12);
  for (size_t size = 0; size < good.size(); ++size)
    ExpectSays([&] { LoadIdx(Write("idx", good.substr(0, size)), 3); }, folder_ + "/idx", "truncated");
}

TEST_F(DataFilesTest, ImagesAndLabelsAgree) {
  const std::string images = Write("images.gz", Gzip(IdxFile({20, 2, 3}, 120)));
  const std::string labels = Write("labels.gz", Gzip(IdxFile({20}, 20)));
  const IdxImages set(images, labels, 10);
  EXPECT_EQ(set.samples(), 20);
  EXPECT_EQ(set.pixels(), 6);
  EXPECT_EQ(set.label(7), 9);
  float image[6];
  int32_t label = 0;
  void* const to[] = {image, &label};
  set.Read({1, 0, 7}, to);
  EXPECT_EQ(label, 9);
  EXPECT_EQ(image[1], 43 * 7 % 10 * (1.0f / 255.0f));
  ExpectSays([&] { IdxImages(images, labels, 9); }, labels, "at byte 15: label 7 is 9");
  const std::string fewer = Write("fewer.gz", Gzip(IdxFile({19}, 19)));
  ExpectSays([&] { IdxImages(images, fewer, 10); }, fewer, "20 images");
}

struct Click {
  float label = -1, dense[2] = {-1, -1};
  int32_t ids[3] = {-1, -1, -1};
};
Click ClickAt(const ClickLog& log, int64_t index) {
  Click click;
  void* const to[] = {&click.label, click.dense, click.ids};
  log.Read({1, 0, index}, to);
  return click;
}

TEST_F(DataFilesTest, ClicksAreNumbersAndHashedWords) {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += std::to_string(i % 2) + "\t" + std::to_string(i) + "\t" + (i % 3 ? "-2" : "") + "\tw" +
            std::to_string(i % 5) + "\tw0\t" + (i % 7 ? "x" : "") +
            (i == 199 ? ""
             : i % 10 ? "\n"
                      : "\r\n");
  // Cut at any line, two files are one log; some editors begin a text with a byte order mark.
  const size_t cut = text.find('\n', text.size() / 3) + 1;
  Write("a.tsv", "\xEF\xBB\xBF" + text.substr(0, cut));
  Write("b.tsv", text.substr(cut));
  const ClickLog log(folder_ + "/*.tsv", {.dense = 2, .categorical = 3, .buckets = 100000});
  ASSERT_EQ(log.samples(), 200);
  const Click first = ClickAt(log, 0);
  for (int64_t i = 0; i < 200; ++i) {
    const Click click = ClickAt(log, i);
    EXPECT_EQ(click.label, i % 2);
    EXPECT_EQ(click.dense[0], std::log1p(static_cast<float>(i)));
    EXPECT_EQ(click.dense[1], 0);
    EXPECT_EQ(click.ids[0] == first.ids[0], i % 5 == 0) << i;
    EXPECT_EQ(click.ids[1], first.ids[1]);
    EXPECT_EQ(click.ids[2] == first.ids[2], i % 7 == 0) << i;
    for (int32_t id : click.ids) EXPECT_TRUE(id >= 0 && id < 100000);
    EXPECT_NE(click.ids[0], click.ids[1]) << "a word is another in another column";
  }
}

// A number as people and programs write it; what is none, or no label, names file, byte and line.
TEST_F(DataFilesTest, NumbersOfClicks) {
  struct Case {
    const char* word;
    float is;  // NaN: no number
  };
  for (const Case& c :
       {Case{"0", 0},        {"1", 1},         {"+1", 1},    {"-0", 0},        {"0.25", 0.25f}, {".5", 0.5f},
        {"1.", 1},           {"1e0", 1},       {"1e-50", 0}, {"+1e-400", NAN}, {"", NAN},       {"+", NAN},
        {"+-1", NAN},        {"++1", NAN},     {"1 ", NAN},  {" 1", NAN},      {"1e99", NAN},   {"nan", NAN},
        {"inf", NAN},        {"-inf", NAN},    {"1,0", NAN}, {"0x1", NAN},     {"-1", -1},      {"2", 2},
        {"1.0001", 1.0001f}, {"-1e-3", -1e-3f}}) {
    SCOPED_TRACE(c.word);
    const bool number = !std::isnan(c.is), label = number && c.is >= 0 && c.is <= 1;
    const std::string path = Write("n.tsv", Cat("0\t1\ta\n", c.word, "\t", c.word, "\ta\n"));
    const ClickLog log(path, {.dense = 1, .categorical = 1});
    ASSERT_EQ(log.samples(), 2);
    if (label) {
      const Click click = ClickAt(log, 1);
      EXPECT_EQ(click.label, c.is);
      EXPECT_EQ(click.dense[0], std::log1p(c.is));
    } else {
      ExpectSays([&] { ClickAt(log, 1); }, path,
                 Cat("at byte 6: column 1 of line 2 is '", c.word, "', ",
                     number ? "but a label must lie in [0, 1]: 1 for a click, 0 for none" : "not a number"));
    }
    // Behind the label any number will do.
    const ClickLog dense(Write("d.tsv", Cat("1\t", c.word, "\ta")), {.dense = 1, .categorical = 1});
    EXPECT_EQ(ErrorOf([&] { ClickAt(dense, 0); }).empty(), number || *c.word == 0);
  }
}

TEST_F(DataFilesTest, BlankLinesAtTheEndAreNone) {
  for (const char* end : {"", "\n", "\r\n", "\n\n", "\n\r\n\n", "\r\n\r\n"}) {
    Write("a/1.tsv", Cat("1\t2\ta\n0\t3\tb", end));
    Write("a/2.tsv", Cat("0\t4\tc", end));
    const ClickLog log(folder_ + "/a/*", {.dense = 1, .categorical = 1});
    ASSERT_EQ(log.samples(), 3);
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_EQ(ClickAt(log, i).dense[0], std::log1p(static_cast<float>(i + 2)));
  }
  ExpectSays([&] { ClickLog(Write("blank.tsv", "\n\r\n\n"), {}); }, "blank.tsv", "has no line");
}

TEST_F(DataFilesTest, BrokenClicksAreNamed) {
  const std::string path = Write("c.tsv", "1\t2\ta\n1\tzwei\ta\n1\t2\n\n\t2\ta\n1\t1e99\ta\n1\tnan\ta");
  const ClickLog log(path, {.dense = 1, .categorical = 1});
  ASSERT_EQ(log.samples(), 7);
  const std::pair<int, const char*> broken[] = {{1, "at byte 8: column 2 of line 2 is 'zwei', not a number"},
                                                {2, "at byte 15: line 3 has 2 columns, must have 3"},
                                                {3, "at byte 19: line 4 has 1 columns"},
                                                {4, "at byte 20: column 1 of line 5 is ''"},
                                                {5, "column 2 of line 6 is '1e99'"},
                                                {6, "column 2 of line 7 is 'nan'"}};
  for (auto [line, words] : broken) ExpectSays([&, line = line] { ClickAt(log, line); }, path, words);
  ExpectSays([&] { ClickLog(Write("e.tsv", ""), {}); }, "e.tsv", "has no line");
  ExpectSays([&] { ClickLog(Write("e.tsv", "\xEF\xBB\xBF"), {}); }, "e.tsv", "has no line");
  ExpectSays([&] { ClickLog(Write("z.tsv", Gzip("1")), {}); }, "z.tsv", "gzip");
  ExpectSays([&] { ClickLog(Write("z.tsv", "\x28\xb5\x2f\xfd..."), {}); }, "z.tsv", "this is zstd");
}

}  // namespace
}  // namespace oneflow_like
