// The examples' loaders: what they read, and what they say of files that are missing, truncated, corrupt or
// absurd.
#include "examples/data.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "examples/step_log.h"

namespace oneflow_like {
namespace {

class DataTest : public ::testing::Test {
 protected:
  DataTest() {
    folder_ = std::filesystem::temp_directory_path().string() + "/data_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  ~DataTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string folder_;
};

std::string Gzip(const std::string& bytes) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&z, bytes.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = bytes.size();
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = out.size();
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

// Bytes that deflate cannot shorten, so that a cut or a flipped bit always meets data.
std::string Noise(int64_t size) {
  std::string out;
  for (int32_t value : Shuffled(size, 7, 0)) out += static_cast<char>(value * 37 + (value >> 8));
  return out;
}

std::string BigEndian(int64_t value) {
  std::string out;
  for (int shift : {24, 16, 8, 0}) out += static_cast<char>(value >> shift & 255);
  return out;
}

std::string Idx(const std::vector<int64_t>& shape, int64_t values) {
  std::string out = {0, 0, 8, static_cast<char>(shape.size())};
  for (int64_t extent : shape) out += BigEndian(extent);
  for (int64_t i = 0; i < values; ++i) out += static_cast<char>(i % 10);
  return out;
}

std::string TokenFile(int32_t magic, int32_t version, int32_t count, const std::vector<uint16_t>& tokens) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic, header[1] = version, header[2] = count;
  return std::string(reinterpret_cast<const char*>(header.data()), 1024) +
         std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
}

// The message of the Error that `call` throws; every one of them is a single sentence that names the file.
std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "nothing was thrown";
}

#define EXPECT_SAYS(call, path, words)                            \
  do {                                                            \
    const std::string message = MessageOf([&] { call; });         \
    EXPECT_NE(message.find(path), std::string::npos) << message;  \
    EXPECT_NE(message.find(words), std::string::npos) << message; \
  } while (false)

TEST_F(DataTest, ReadsPlainAndGzippedTextAlike) {
  const std::string bytes = Noise(3000000);  // more than one chunk
  EXPECT_EQ(ReadFile(Write("plain.txt", bytes)), bytes);
  EXPECT_EQ(ReadFile(Write("packed.gz", Gzip(bytes))), bytes);
  const TokenData data = LoadTokens(Write("text.txt", "A\xff"));
  EXPECT_EQ(data.tokens, (std::vector<uint16_t>{65, 255}));
  EXPECT_EQ(data.vocabulary, 256);
  EXPECT_TRUE(data.bytes);
}

TEST_F(DataTest, TextErrors) {
  const std::string missing = folder_ + "/none.txt";
  EXPECT_SAYS(LoadTokens(missing), missing, "No such file");
  EXPECT_SAYS(LoadTokens(folder_), folder_, "folder");
  const std::string packed = Gzip(Noise(100000));
  const std::string truncated = Write("truncated.gz", packed.substr(0, packed.size() / 2));
  EXPECT_SAYS(LoadTokens(truncated), truncated, "truncated");
  const std::string no_end = Write("no_end.gz", packed.substr(0, packed.size() - 4));
  EXPECT_SAYS(LoadTokens(no_end), no_end, "truncated");
  std::string flipped = packed;
  for (size_t i = packed.size() / 2; i < packed.size() / 2 + 64; ++i) flipped[i] ^= 0x5a;
  const std::string corrupt = Write("corrupt.gz", flipped);
  EXPECT_SAYS(LoadTokens(corrupt), corrupt, "corrupt");
  const std::string other = Write("other.gz", "this is no gzip file");
  EXPECT_SAYS(LoadTokens(other), other, "not a gzip file");
  const std::string empty = Write("empty.gz", "");
  EXPECT_SAYS(LoadTokens(empty), empty, "not a gzip file");
  const std::string large = Write("large.gz", Gzip(std::string(5000000, 'x')));
  EXPECT_SAYS(ReadFile(large, 4000000), large, "more than 4000000 bytes");
}

TEST_F(DataTest, ReadsTokenFiles) {
  const TokenData data = LoadTokens(Write("a.bin", TokenFile(20240520, 1, 3, {1, 50256, 7})));
  EXPECT_EQ(data.tokens, (std::vector<uint16_t>{1, 50256, 7}));
  EXPECT_EQ(data.vocabulary, 50304);
  EXPECT_FALSE(data.bytes);
  EXPECT_EQ(LoadTokens(Write("b.bin", TokenFile(20240520, 1, 1, {128}))).vocabulary, 256);
  EXPECT_EQ(LoadTokens(Write("c.bin", TokenFile(20240520, 1, 1, {127}))).vocabulary, 128);
}

TEST_F(DataTest, TokenFileErrors) {
  struct Case {
    const char* name;
    std::string bytes;
    const char* words;
  };
  for (const Case& c : {
           Case{"empty.bin", "", "header"},
           Case{"short.bin", std::string(1023, '\0'), "1023 bytes"},
           Case{"magic.bin", TokenFile(20240521, 1, 1, {1}), "20240521 instead of 20240520"},
           Case{"version.bin", TokenFile(20240520, 2, 1, {1}), "version 2"},
           Case{"truncated.bin", TokenFile(20240520, 1, 3, {1, 2}), "3 tokens, but 4 bytes"},
           Case{"longer.bin", TokenFile(20240520, 1, 1, {1, 2}), "1 tokens, but 4 bytes"},
           Case{"negative.bin", TokenFile(20240520, 1, -1, {}), "-1 tokens"},
           Case{"absurd.bin", TokenFile(20240520, 1, 2147483647, {1}), "2147483647 tokens"},
           Case{"odd.bin", TokenFile(20240520, 1, 1, {1}) + "x", "1 tokens, but 3 bytes"},
       }) {
    const std::string path = Write(c.name, c.bytes);
    EXPECT_SAYS(LoadTokens(path), path, c.words);
  }
}

TEST_F(DataTest, SplitHoldsOutTheEnd) {
  const std::vector<uint16_t> tokens(1000, 3);
  const TextSplit split = SplitText(tokens, 9, "t");
  EXPECT_EQ(split.held_out.size(), 50u);
  EXPECT_EQ(split.train.size(), 950u);
  EXPECT_EQ(split.held_out.data(), split.train.data() + 950);
  EXPECT_EQ(SplitText(tokens, 99, "t").held_out.size(), 100u);  // at least one sequence
  EXPECT_EQ(SplitText(tokens, 700, "t").held_out.size(), 0u);   // nothing would be left
  EXPECT_EQ(SplitText(tokens, 999, "t").train.size(), 1000u);
  EXPECT_SAYS(SplitText(tokens, 1000, "story.txt"), "story.txt",
              "1000 tokens, but one sequence takes context + 1 = 1001");
}

TEST_F(DataTest, RandomBatchDependsOnSeedAndStepAlone) {
  std::vector<uint16_t> text(5000);
  for (size_t i = 0; i < text.size(); ++i) text[i] = i;
  const TokenBatch batch = RandomBatch(text, 6, 16, 1, 3);
  ASSERT_EQ(batch.tokens.size(), 6u * 16u);
  for (int row = 0; row < 6; ++row) {
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(batch.tokens[row * 16 + i], batch.tokens[row * 16] + i);
      EXPECT_EQ(batch.targets[row * 16 + i], batch.tokens[row * 16 + i] + 1);
    }
  }
  EXPECT_EQ(RandomBatch(text, 6, 16, 1, 3).tokens, batch.tokens);
  EXPECT_NE(RandomBatch(text, 6, 16, 1, 4).tokens, batch.tokens);
  EXPECT_NE(RandomBatch(text, 6, 16, 2, 3).tokens, batch.tokens);
  // A row does not depend on how many there are.
  const TokenBatch fewer = RandomBatch(text, 2, 16, 1, 3);
  EXPECT_TRUE(std::equal(fewer.tokens.begin(), fewer.tokens.end(), batch.tokens.begin()));
  // Every start is reached, the last included: a text of context + 2 tokens has two.
  std::set<int32_t> starts;
  for (int step = 0; step < 50; ++step)
    starts.insert(RandomBatch(TokenSpan(text).first(18), 1, 16, 1, step).tokens[0]);
  EXPECT_EQ(starts, (std::set<int32_t>{0, 1}));
}

TEST_F(DataTest, ConsecutiveBatchesCountEveryTargetOnce) {
  std::vector<uint16_t> text(101);
  for (size_t i = 0; i < text.size(); ++i) text[i] = i;
  std::vector<int32_t> seen;
  int64_t counted = 0;
  for (int64_t index = 0;; ++index) {
    const TokenBatch batch = ConsecutiveBatch(text, 3, 8, index);
    if (batch.counted == 0) break;
    counted += batch.counted;
    for (size_t i = 0; i < batch.targets.size(); ++i) {
      if (batch.targets[i] < 0) continue;
      EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
      seen.push_back(batch.targets[i]);
    }
  }
  EXPECT_EQ(counted, 100);
  ASSERT_EQ(seen.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[i], i + 1);
}

TEST_F(DataTest, ReadsIdx) {
  const IdxData data = LoadIdx(Write("a.gz", Gzip(Idx({3, 2, 2}, 12))), 3);
  EXPECT_EQ(data.shape, (std::vector<int64_t>{3, 2, 2}));
  ASSERT_EQ(data.values.size(), 12u);
  EXPECT_EQ(data.values[11], 1);
}

TEST_F(DataTest, IdxErrors) {
  struct Case {
    const char* name;
    std::string bytes;
    const char* words;
  };
  const std::string good = Idx({3, 2, 2}, 12);
  for (const Case& c : {
           Case{"empty", "", "truncated"},
           Case{"magic", "x" + good.substr(1), "120 0 8 3 instead of 0 0 8 3"},
           Case{"type", std::string("\0\0\x0d\3", 4) + good.substr(4), "0 0 13 3"},
           Case{"axes", Idx({12}, 12), "0 0 8 1 instead of 0 0 8 3"},
           Case{"header", good.substr(0, 9), "truncated inside its IDX header"},
           Case{"short", Idx({3, 2, 2}, 11), "11 values, but its header says 12"},
           Case{"long", Idx({3, 2, 2}, 13), "more than the 12 values"},
           Case{"nothing", Idx({3, 0, 2}, 0), "axis 1"},
           Case{"absurd", Idx({4294967295, 4294967295, 4294967295}, 12), "4294967295"},
           Case{"product", Idx({60000, 65535, 65535}, 12), "axis 1 has extent 65535"},
           Case{"within_limit", Idx({1 << 10, 1 << 10, 1 << 10}, 12), "truncated: 12 values"},
       }) {
    for (bool packed : {false, true}) {
      const std::string path =
          packed ? Write(std::string(c.name) + ".gz", Gzip(c.bytes)) : Write(c.name, c.bytes);
      EXPECT_SAYS(LoadIdx(path, 3), path, c.words);
    }
  }
  const std::string packed = Gzip(Idx({30, 28, 28}, 30 * 784));
  const std::string truncated = Write("cut.gz", packed.substr(0, packed.size() / 2));
  EXPECT_SAYS(LoadIdx(truncated, 3), truncated, "truncated");
}

TEST_F(DataTest, ImagesAndLabelsAgree) {
  const std::string images = Write("images.gz", Gzip(Idx({20, 2, 3}, 120)));
  const std::string labels = Write("labels.gz", Gzip(Idx({20}, 20)));
  const ImageSet set = LoadImages(images, labels, 10);
  EXPECT_EQ(set.count, 20);
  EXPECT_EQ(set.pixels, 6);
  EXPECT_EQ(set.labels[19], 9);
  EXPECT_SAYS(LoadImages(images, labels, 9), labels, "label 9 is 9");
  const std::string fewer = Write("fewer.gz", Gzip(Idx({19}, 19)));
  EXPECT_SAYS(LoadImages(images, fewer, 10), fewer, "20 images");
}

TEST_F(DataTest, ShuffledIsAPermutation) {
  std::vector<int32_t> order = Shuffled(1000, 5, 2);
  EXPECT_EQ(order, Shuffled(1000, 5, 2));
  EXPECT_NE(order, Shuffled(1000, 5, 3));
  EXPECT_NE(order, Shuffled(1000, 6, 2));
  std::sort(order.begin(), order.end());
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[i], i);
  EXPECT_TRUE(Shuffled(0, 1, 0).empty());
}

TEST_F(DataTest, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(Escaped("a\n\tb\x1b[2J\x07\xc3"), "a\n\tb\\x1b[2J\\x07\\xc3");
}

TEST_F(DataTest, StepLogWritesOneObjectPerStepAtOnce) {
  const std::string path = folder_ + "/log.json";
  StepLog log(path);
  log.Write(0, 0.1f, "tokens_per_s", 1000, 12.5);
  EXPECT_EQ(ReadFile(path), "{\"step\":0,\"loss\":0.100000001,\"tokens_per_s\":1000.0,\"step_ms\":12.500}\n");
  log.Write(1, 2.0f, "tokens_per_s", 1, 1);
  EXPECT_EQ(ReadFile(path).substr(ReadFile(path).find('\n') + 1),
            "{\"step\":1,\"loss\":2,\"tokens_per_s\":1.0,\"step_ms\":1.000}\n");
  const std::string nowhere = folder_ + "/none/log.json";
  StepLog lost(nowhere);  // its folder may still be made before the first line
  EXPECT_SAYS(lost.Write(0, 0.1f, "tokens_per_s", 1000, 12.5), nowhere, "No such file");
}

TEST_F(DataTest, StepLogOfARunThatGoesOnKeepsTheStepsBefore) {
  const std::string path = folder_ + "/log.json";
  auto write = [&](int64_t first, int64_t end) {
    StepLog log(path);
    for (int64_t step = first; step < end; ++step) log.Write(step, 1, "tokens_per_s", 1, 1);
    return ReadFile(path);
  };
  const std::string whole = write(0, 12);
  EXPECT_EQ(write(9, 12), whole);
  EXPECT_EQ(write(12, 15), whole + write(12, 15).substr(whole.size()));
  EXPECT_EQ(write(0, 12), whole);
  std::ofstream(path) << whole << "{\"step\":12,\"lo";  // killed while it wrote
  EXPECT_EQ(write(12, 12), whole + "{\"step\":12,\"lo");
  EXPECT_EQ(write(13, 14).substr(0, whole.size() + 10), whole + "{\"step\":13");
  std::ofstream(path) << "something else\n";
  EXPECT_EQ(write(5, 6).rfind("{\"step\":5", 0), 0u);
  std::filesystem::remove(path);
  EXPECT_EQ(write(5, 6).rfind("{\"step\":5", 0), 0u);
}

TEST_F(DataTest, StepLogReportsAFullDisk) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  StepLog log("/dev/full");
  EXPECT_SAYS(log.Write(0, 1, "tokens_per_s", 1, 1), "/dev/full", "No space left");
}

}  // namespace
}  // namespace oneflow_like
