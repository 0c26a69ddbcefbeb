// Files of tokens: what is read of them, the rows that are cut from them, and what is said of those that are
// cut short, lie, or are of another machine.
// ctest: asan=10
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "oneflow_like/data/files.h"
#include "oneflow_like/data/token_files.h"
#include "oneflow_like/data/tokens.h"
#include "tests/oneflow_like/data/files_fixture.h"

namespace oneflow_like {
namespace {

using DataTokensTest = FilesTest;

std::vector<int32_t> All(const Tokens& tokens) {
  std::vector<int32_t> all(tokens.size());
  tokens.Read(0, tokens.size(), all.data());
  return all;
}

// The same tokens in every format that has room for them.
std::map<std::string, std::string> FilesWith(const std::vector<int32_t>& tokens) {
  const std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
  const std::vector<uint32_t> wide(tokens.begin(), tokens.end());
  const std::vector<int64_t> longs(tokens.begin(), tokens.end());
  const int32_t count = static_cast<int32_t>(tokens.size());
  const std::string shape = "(" + std::to_string(count) + ",)";
  return {
      {"a.bin", LlmcFile(20240520, 1, count, narrow)},   {"b.bin", LlmcFile(20240801, 7, count, wide)},
      {"c.npy", NpyFile("<u2", shape, BytesOf(narrow))}, {"d.npy", NpyFile("<u4", shape, BytesOf(wide))},
      {"e.npy", NpyFile("<i8", shape, BytesOf(longs))},  {"f.npy", NpyFile("<i4", shape, BytesOf(tokens))}};
}

TEST_F(DataTokensTest, EveryFormatGivesTheSameTokens) {
  const std::vector<int32_t> tokens = {1, 50256, 7, 0, 65535};
  for (const auto& [name, bytes] : FilesWith(tokens)) {
    const Tokens read = Tokens::Open(Write(name, bytes));
    EXPECT_EQ(All(read), tokens) << name;
    EXPECT_EQ(read.Vocabulary(), 65536) << name;
    EXPECT_FALSE(read.text());
    EXPECT_EQ(All(read.Part(1, 4)), (std::vector<int32_t>{50256, 7, 0})) << name;
  }
}

TEST_F(DataTokensTest, MegatronsDocumentsAreKnown) {
  Write("m.bin", BytesOf<uint16_t>({1, 2, 3, 4, 5, 6}));
  const std::string index = Write("m.idx", MegatronIndex(8, 2, {2, 1, 3}));
  for (const std::string& path : {folder_ + "/m.bin", index, folder_ + "/m.*"}) {
    const Tokens read = Tokens::Open(path);
    EXPECT_EQ(All(read), (std::vector<int32_t>{1, 2, 3, 4, 5, 6})) << path;
    EXPECT_EQ(read.documents(), (std::vector<int64_t>{0, 2, 3})) << path;
    EXPECT_EQ(read.Part(1, 6).documents(), (std::vector<int64_t>{0, 1, 2})) << path;
  }
}

TEST_F(DataTokensTest, TextIsItsBytes) {
  const std::string text = "A\xff\n";
  for (const std::string& path : {Write("t.txt", text), Write("t.gz", Gzip(text)), Write("u", Gzip(text))}) {
    const Tokens read = Tokens::Open(path);
    EXPECT_EQ(All(read), (std::vector<int32_t>{65, 255, 10})) << path;
    EXPECT_EQ(read.Vocabulary(), 256);
    EXPECT_TRUE(read.text());
  }
  const ByteTokenizer tokenizer;
  EXPECT_EQ(All(Tokens::Open(folder_ + "/t.txt", &tokenizer)), (std::vector<int32_t>{65, 255, 10}));
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text)), text);
}

// Shards of odd sizes, empty ones among them, read across their borders.
TEST_F(DataTokensTest, ShardsAreOneText) {
  std::mt19937 random(3);
  std::vector<int32_t> whole;
  for (int s = 0; s < 9; ++s) {
    std::vector<uint16_t> shard(random() % 40 * (s % 3 != 1));
    for (uint16_t& token : shard) token = static_cast<uint16_t>(random() % 5000);
    Write("shard_0" + std::to_string(s) + ".bin",
          LlmcFile(20240520, 1, static_cast<int32_t>(shard.size()), shard));
    whole.insert(whole.end(), shard.begin(), shard.end());
  }
  const Tokens read = Tokens::Open(folder_ + "/shard_*.bin");
  ASSERT_EQ(All(read), whole);
  for (int i = 0; i < 300; ++i) {
    const int64_t begin = random() % whole.size(), count = random() % (whole.size() - begin + 1);
    std::vector<int32_t> some(count);
    read.Read(begin, count, some.data());
    ASSERT_TRUE(std::equal(some.begin(), some.end(), whole.begin() + begin)) << begin << " " << count;
  }
}

TEST_F(DataTokensTest, MistakesNameFileAndOffset) {
  const std::vector<uint16_t> one = {1}, two = {1, 2};
  const std::string npy = NpyFile("<u2", "(2,)", BytesOf(two));
  struct Case {
    const char* name;
    std::string bytes;
    const char* words;
  };
  for (const Case& c : {
           Case{"empty.bin", "", "truncated at byte 0"},
           Case{"short.bin", std::string(1023, '\0'), "truncated at byte 1023"},
           Case{"magic.bin", LlmcFile(20240521, 1, 1, one), "20240521 instead of 20240520"},
           Case{"endian.bin", LlmcFile(__builtin_bswap32(20240520), 1, 1, one), "big-endian"},
           Case{"version.bin", LlmcFile(20240520, 2, 1, one), "at byte 4: token file version 2"},
           Case{"mixed.bin", LlmcFile(20240801, 1, 1, one), "only version 7"},
           Case{"cut.bin", LlmcFile(20240520, 1, 3, two), "3 tokens, but 4 bytes"},
           Case{"longer.bin", LlmcFile(20240520, 1, 1, two), "1 tokens, but 4 bytes"},
           Case{"negative.bin", LlmcFile<uint16_t>(20240520, 1, -1, {}), "-1 tokens"},
           Case{"absurd.bin", LlmcFile(20240801, 7, 2147483647, one), "2147483647 tokens"},
           Case{"odd.bin", LlmcFile(20240520, 1, 1, one) + "x", "1 tokens, but 3 bytes"},
           Case{"several.npz", "PK", "unpack it and name the .npy files"},
           Case{"no.npy", std::string(100, 'x'), "not an .npy file"},
           Case{"big.npy", NpyFile(">u2", "(2,)", BytesOf(two)), "big-endian"},
           Case{"floats.npy", NpyFile("<f4", "(1,)", BytesOf(two)), "'<f4', not integers"},
           Case{"type.npy", NpyFile("\n\x1b[3", "(2,)", BytesOf(two)), "'\\x0a\\x1b[3', not integers"},
           Case{"shape.npy", NpyFile("<u2", "(3,)", BytesOf(two)), "shape '(3,)'"},
           Case{"huge.npy", NpyFile("<u2", "(4611686018427387904, 4)", BytesOf(two)), "shape"},
           Case{"header.npy", npy.substr(0, 60), "truncated at byte 60"},
       })
    ExpectSays([&] { Tokens::Open(Write(c.name, c.bytes)); }, folder_ + "/" + c.name, c.words);
  ExpectSays([&] { Tokens::Open(folder_ + "/none.txt"); }, "none.txt", "No such file");
  ExpectSays([&] { Tokens::Open(folder_ + "/none*.bin"); }, "none*.bin", "no file matches");
  ExpectSays([&] { Tokens::Open(folder_); }, folder_, "folder");
  const Tokens far = Tokens::Open(Write("far.npy", NpyFile("<i4", "(2,)", BytesOf<int32_t>({1, -5}))));
  ExpectSays([&] { All(far); }, "far.npy", "at byte 132: token -5");
}

// Of a text in UTF-8 the mark is left out, as in prompts; one in UTF-16 is refused.
TEST_F(DataTokensTest, AMarkOfByteOrderIsNoPartOfAText) {
  using namespace std::string_literals;
  EXPECT_EQ(All(Tokens::Open(Write("marked.txt", "\xef\xbb\xbfhi"))), (std::vector<int32_t>{'h', 'i'}));
  EXPECT_EQ(All(Tokens::Open(Write("plain.txt", "\xef\xbbhi"))).size(), 4u);
  for (const std::string& text : {"\xff\xfeh\0i\0"s, "\xfe\xff\0h\0i"s})
    ExpectSays([&] { Tokens::Open(Write("wide.txt", text)); }, folder_ + "/wide.txt", "save it in UTF-8");
}

// What is packed or stored in another way is no text, whatever its name says, in gzip neither; texts that
// begin nearly so are.
TEST_F(DataTokensTest, OtherFormatsAreNotLearntAsText) {
  using namespace std::string_literals;
  const std::string zip = "PK\3\4\x14\0\0\0"s,
                    tar = std::string(257, 'a') + "ustar\00000"s + std::string(300, '\0');
  struct Case {
    std::string bytes, is;
  };
  const std::vector<Case> cases = {
      {"\x28\xb5\x2f\xfd\x24\0"s, "zstd"},
      {"\xfd\x37zXZ\0\0\4"s, "xz"},
      {"BZh91AY&SY\x12\x34"s, "bzip2"},
      {"BZh1\x17\x72\x45\x38\x50\x90\0\0\0\0"s, "bzip2"},
      {"\x04\x22\x4d\x18\x64\x40"s, "lz4"},
      {zip + "words.txt", "a zip archive"},
      {"PK\5\6"s + std::string(18, '\0'), "a zip archive"},
      {tar, "a tar archive"},
      {"PAR1\x15\4\x15 PAR1"s, "Parquet"},
      {"ARROW1\0\0..."s, "Arrow"},
      {"\x89HDF\r\n\x1a\n"s, "HDF5"},
      {NpyFile("<u2", "(2,)", "abcd"), "a NumPy array"},
      {MegatronIndex(8, 2, {2, 1}), "a Megatron index"},
      {LlmcFile<uint16_t>(20240520, 1, 2, {1, 2}), "a token file of llm.c"},
      {LlmcFile<uint32_t>(20240801, 7, 2, {1, 2}), "a token file of llm.c"},
      {"\x40\0\0\0\0\0\0\0{\"a\":{}}"s, "safetensors"},
      {"\x80\4\x95\7\0"s, "a pickle of Python"},
      {"\x89PNG\r\n\x1a\n"s, "a PNG"},
      {"%PDF-1.7\n"s, "a PDF"},
  };
  int number = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.is);
    for (const char* ending : {".zst", ".txt", "", ".npy.zst", ".parquet"}) {
      const std::string name = Cat("f", number++, ending);
      ExpectSays([&] { Tokens::Open(Write(name, c.bytes)); }, name,
                 Cat("at byte 0: it is ", c.is, ", not a text"));
    }
    for (const char* ending : {".gz", ".npy.gz", ".bin.gz", ""}) {
      const std::string name = Cat("f", number++, ending);
      ExpectSays([&] { Tokens::Open(Write(name, Gzip(c.bytes))); }, name,
                 Cat("it is ", c.is, " inside gzip, not a text"));
    }
  }
  ExpectSays([&] { Tokens::Open(Write("twice.gz", Gzip(Gzip("a text")))); }, "twice.gz",
             "it is gzip inside gzip");
  ExpectSays([&] { Tokens::Open(Write("tokens", NpyFile("<u2", "(1,)", "ab"))); }, "tokens", "name it *.npy");
  for (const std::string& text :
       {"PK is short for"s, "BZh is no word"s, "PAR1 is a hole"s, "GIF8 and PDF"s,
        std::string(257, 'a') + "ustar is a format", "RIFF or WEBP"s, "xz"s, "(\xb5"s, ""s}) {
    EXPECT_EQ(Tokens::Open(Write("t", text)).size(), std::ssize(text)) << text;
    EXPECT_EQ(Tokens::Open(Write("t.gz", Gzip(text))).size(), std::ssize(text)) << text;
  }
}

// What a run must not overwrite: Megatron's two files are read as one.
TEST_F(DataTokensTest, TheFilesOfAPatternAreKnown) {
  for (const char* name : {"m.bin", "m.idx", "n.idx", "n.bin", "o.bin", "p.txt"}) Write(name, "");
  const auto in = [&](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(folder_ + "/" + name);
    return paths;
  };
  EXPECT_EQ(TokenFilesOf(folder_ + "/m.bin"), in({"m.bin", "m.idx"}));
  EXPECT_EQ(TokenFilesOf(folder_ + "/n.idx"), in({"n.idx", "n.bin"}));
  EXPECT_EQ(TokenFilesOf(folder_ + "/[op].*"), in({"o.bin", "p.txt"}));
}

TEST_F(DataTokensTest, MegatronsMistakesNameFileAndOffset) {
  Write("m.bin", BytesOf<uint16_t>({1, 2, 3}));
  const std::string good = MegatronIndex(8, 2, {2, 1});
  auto changed = [&](size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    return bytes;
  };
  struct Case {
    std::string bytes;
    const char* words;
  };
  for (const Case& c :
       {Case{"", "truncated at byte 0"}, Case{changed(0, 'x'), "at byte 0"},
        Case{changed(9, 2), "at byte 9: index version 2"}, Case{changed(17, 7), "at byte 17: type 7"},
        Case{changed(18, 9), "at byte 18"}, Case{changed(25, 127), "at byte 18"},
        Case{changed(34, 1), "sequence 1 begins at byte 4"},
        Case{changed(37, -1), "at byte 34: sequence 0 has the length"},
        Case{changed(38, 9), "m.bin has 6 bytes"}, Case{changed(66, 9), "document 1"},
        Case{good.substr(0, good.size() - 1), "only 47 bytes follow"}})
    ExpectSays([&] { Tokens::Open(Write("m.idx", c.bytes)); }, folder_ + "/m.", c.words);
}

// Every prefix of a small file, and every byte of a header changed: read or refused by name, never past the
// end.
TEST_F(DataTokensTest, EveryPrefixAndEveryChangedHeaderIsReadOrRefused) {
  std::vector<int32_t> tokens(37);
  for (int i = 0; i < 37; ++i) tokens[i] = i * 1000;
  std::map<std::string, std::string> files = FilesWith(tokens);
  files["m.idx"] = MegatronIndex(4, 4, {10, 20, 7});
  Write("m.bin", BytesOf(tokens));
  int read = 0, refused = 0;
  auto attempt = [&](const std::string& name, const std::string& bytes) {
    const std::string path = Write(name, bytes);
    const std::string error = ErrorOf([&] { All(Tokens::Open(path)); });
    EXPECT_TRUE(error.empty() || error.find(folder_ + "/" + name.substr(0, 1)) != std::string::npos) << error;
    ++(error.empty() ? read : refused);
  };
  std::mt19937 random(5);
  for (const auto& [name, bytes] : files) {
    for (size_t size = 0; size < bytes.size(); size += size < 40 || size > bytes.size() - 40 ? 1 : 13) {
      const int before = refused;
      attempt(name, bytes.substr(0, size));
      EXPECT_EQ(refused, before + 1) << name << " of " << size << " bytes was read";
    }
    const size_t header = name.ends_with("bin") ? 12 : std::min<size_t>(bytes.size(), 140);
    for (size_t at = 0; at < header; ++at)
      for (int value : {0, 1, 255, static_cast<int>(random() % 256)}) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(value);
        attempt(name, changed);
      }
    attempt(name, bytes);
  }
  EXPECT_GT(read, 10);
  EXPECT_GT(refused, 1000);
}

// Bytes changed, cut out and doubled by a seed; longer in the tier Long.
void Fuzz(const std::string& folder, const std::map<std::string, std::string>& files, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    std::mt19937 random(round);
    for (const auto& [name, good] : files) {
      std::string bytes = good;
      for (int i = random() % 4; i >= 0; --i) {
        const size_t at = random() % (bytes.size() + 1), count = random() % 9;
        if (random() % 3 == 0)
          bytes.insert(at, bytes.substr(random() % (bytes.size() + 1), count));
        else if (random() % 2 == 0)
          bytes.erase(at, count);
        else if (at < bytes.size())
          bytes[at] = static_cast<char>(random());
        if (bytes.empty()) bytes = "x";
      }
      const std::string path = folder + "/" + name;
      std::ofstream(path, std::ios::binary) << bytes;
      const std::string error = ErrorOf([&] {
        const Tokens tokens = Tokens::Open(path);
        All(tokens);
        if (tokens.size() > 4) TokenRows(tokens, {.context = 3, .documents = true}).samples();
      });
      ASSERT_TRUE(error.empty() || error.find(folder + "/" + name.substr(0, 1)) != std::string::npos)
          << error;
    }
  }
}

TEST_F(DataTokensTest, AnyBytesAreReadOrRefused) {
  std::map<std::string, std::string> files = FilesWith({1, 2, 3, 400, 5, 6, 7});
  files["m.idx"] = MegatronIndex(8, 2, {3, 4});
  Write("m.bin", BytesOf<uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  Fuzz(folder_, files, 300);
}

Tokens Count(const std::string& path, int tokens) {
  std::vector<uint16_t> all(tokens);
  for (int i = 0; i < tokens; ++i) all[i] = static_cast<uint16_t>(i);
  std::ofstream(path, std::ios::binary) << LlmcFile(20240520, 1, tokens, all);
  return Tokens::Open(path);
}

struct Row {
  std::vector<int32_t> tokens, targets, positions, documents;
};
Row RowOf(const TokenRows& rows, int64_t context, const SampleId& id) {
  Row row;
  for (auto* part : {&row.tokens, &row.targets, &row.positions, &row.documents}) part->resize(context);
  void* const to[] = {row.tokens.data(), row.targets.data(), row.positions.data(), row.documents.data()};
  rows.Read(id, {to, rows.fields().size()});
  return row;
}

TEST_F(DataTokensTest, RowsFollowEachOtherAndLeaveOutLessThanOne) {
  for (int size : {9, 10, 16, 17, 64, 65, 100})
    for (int64_t context : {1, 3, 8}) {
      const TokenRows rows(Count(folder_ + "/n.bin", size), {.context = context});
      ASSERT_EQ(rows.samples(), (size - 1) / context);
      for (int64_t epoch : {0, 1, 5}) {
        int32_t next = RowOf(rows, context, {7, epoch, 0}).tokens[0];
        EXPECT_LT(next, context);
        for (int64_t i = 0; i < rows.samples(); ++i) {
          const Row row = RowOf(rows, context, {7, epoch, i});
          for (int64_t t = 0; t < context; ++t, ++next) {
            ASSERT_EQ(row.tokens[t], next);
            ASSERT_EQ(row.targets[t], next + 1);
          }
        }
        EXPECT_GE(next + context, size - 1);
      }
    }
}

// What is left out at both ends differs between epochs, so that all tokens come sooner or later.
TEST_F(DataTokensTest, RowsBeginWhereverTheyCan) {
  for (int size : {9, 10, 17, 21, 64})
    for (int64_t context : {3, 8}) {
      const TokenRows rows(Count(folder_ + "/n.bin", size), {.context = context});
      std::set<int32_t> begins, expected;
      for (int64_t epoch = 0; epoch < 300; ++epoch)
        begins.insert(RowOf(rows, context, {7, epoch, 0}).tokens[0]);
      for (int32_t begin = 0; begin + rows.samples() * context + 1 <= size; ++begin) expected.insert(begin);
      EXPECT_EQ(begins, expected) << size << " tokens, context " << context;
    }
}

TEST_F(DataTokensTest, TheTailHasEveryTargetOnce) {
  for (int size : {2, 5, 17, 100}) {
    const TokenRows rows(Count(folder_ + "/n.bin", size), {.context = 8, .tail = true});
    std::vector<int32_t> seen;
    for (int64_t i = 0; i < rows.samples(); ++i) {
      const Row row = RowOf(rows, 8, {1, 0, i});
      for (int t = 0; t < 8; ++t)
        if (row.targets[t] >= 0) seen.push_back(row.targets[t]);
    }
    ASSERT_EQ(static_cast<int>(seen.size()), size - 1);
    for (int i = 0; i < size - 1; ++i) EXPECT_EQ(seen[i], i + 1);
  }
  EXPECT_NE(ErrorOf([&] {
              TokenRows(Count(folder_ + "/n.bin", 8), {.context = 8}, "story");
            }).find("story holds 8 tokens, but one sequence takes context + 1 = 9"),
            std::string::npos);
}

// Against the obvious way: the document of each token, looked up alone.
TEST_F(DataTokensTest, DocumentsOfARowKnowNothingOfEachOther) {
  std::mt19937 random(11);
  for (int round = 0; round < 30; ++round) {
    const int size = 40 + random() % 100;
    const int64_t context = 2 + random() % 20;
    std::vector<uint16_t> all(size);
    for (uint16_t& token : all) token = random() % 6 == 0 ? 0 : 1 + random() % 90;
    std::ofstream(folder_ + "/d.bin", std::ios::binary) << LlmcFile(20240520, 1, size, all);
    Tokens tokens = Tokens::Open(folder_ + "/d.bin");
    tokens.CutDocumentsAt(0);
    std::vector<int> document(size, 0);
    for (int i = 1; i < size; ++i) document[i] = document[i - 1] + (all[i - 1] == 0);
    const TokenRows rows(tokens, {.context = context, .documents = true});
    // Where the first row begins in the text: rows of any text of that size begin there.
    const TokenRows plain(Count(folder_ + "/c.bin", size), {.context = context});
    const int64_t shift = RowOf(plain, context, {3, 2, 0}).tokens[0];
    for (int64_t i = 0; i < rows.samples(); ++i) {
      const Row row = RowOf(rows, context, {3, 2, i});
      for (int64_t t = 0, position = 0; t < context; ++t, ++position) {
        const int64_t at = shift + i * context + t;
        if (t > 0 && document[at] != document[at - 1]) position = 0;
        ASSERT_EQ(row.tokens[t], all[at]);
        ASSERT_EQ(row.documents[t], document[at] - document[shift + i * context]);
        ASSERT_EQ(row.positions[t], position);
        ASSERT_EQ(row.targets[t], document[at + 1] == document[at] ? all[at + 1] : -1);
      }
    }
  }
}

}  // namespace
}  // namespace oneflow_like
