// What the fuzzers have reached and found, again: every file of corpus/ is read or refused by an Error that
// names it, the files named valid_* are read, those named found_* refused. And what is too large to lie
// there.
// ctest: asan=10
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "examples/gpt_huggingface.h"
#include "oneflow_like/data/files.h"
#include "tests/fuzz/data_readers.h"
#include "tests/fuzz/readers.h"

namespace oneflow_like {

using namespace examples;
namespace {

namespace fs = std::filesystem;

class FuzzCorpus : public testing::Test {
 protected:
  using Reader = std::function<std::string(const std::string&)>;

  // Files of the corpus whose names begin with `valid` must be read.
  void ReadAll(const std::string& corpus, const std::string& valid, const Reader& read) {
    int were_valid = 0;
    for (const auto& entry : fs::directory_iterator(OFL_SOURCE_DIR "/tests/fuzz/corpus/" + corpus)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes(std::istreambuf_iterator<char>(file), {});
      SCOPED_TRACE(entry.path());
      std::string error;
      ASSERT_NO_THROW(error = read(bytes));
      const std::string name = entry.path().filename();
      if (name.rfind("found_", 0) == 0) {
        EXPECT_NE(error, "");
      }
      if (name.rfind(valid, 0) != 0) continue;
      ++were_valid;
      if (error.find("made without") != error.npos || error.find("built without") != error.npos) continue;
      EXPECT_EQ(error, "");
    }
    EXPECT_GE(were_valid, 1) << corpus;
  }

  FuzzedReaders readers_{testing::TempDir()};
  const Reader safetensors_ = [this](const std::string& bytes) { return readers_.Safetensors(bytes); };
  const Reader index_ = [this](const std::string& bytes) { return readers_.Index(bytes); };
  const Reader index_with_checksum_ = [this](const std::string& bytes) {
    return readers_.IndexWithChecksum(bytes);
  };
  const Reader config_ = [this](const std::string& bytes) { return readers_.Config(bytes); };
  const Reader shards_ = [this](const std::string& bytes) { return readers_.Shards(bytes); };
};

TEST_F(FuzzCorpus, EveryFileIsReadOrRefusedByName) {
  ReadAll("safetensors", "valid_", safetensors_);
  ReadAll("index", "valid_", index_);
  ReadAll("index", "valid_", index_with_checksum_);
  ReadAll("huggingface", "valid_config", config_);
  ReadAll("huggingface", "valid_shards", shards_);
}

TEST_F(FuzzCorpus, EveryFileOfDataIsReadOrRefusedByName) {
  FuzzedData data(testing::TempDir());
  for (const std::string& kind : FuzzedData::Kinds())
    ReadAll(kind, "valid_", [&](const std::string& bytes) { return data.Read(kind, bytes); });
}

// A header of as many lists as a stack has no room for.
TEST_F(FuzzCorpus, DeepListsAreRefused) {
  const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
  const std::string header = R"({"w":{"dtype":)" + deep + "}}";
  std::string size(8, '\0');
  for (int i = 0; i < 8; ++i) size[i] = static_cast<char>(header.size() >> (8 * i));
  const std::string errors[] = {readers_.Safetensors(size + header),
                                readers_.Index(R"({"checksum":)" + deep + "}"),
                                readers_.Config(R"({"model_type":)" + deep + "}"),
                                readers_.Shards(R"({"weight_map":{"n":)" + deep + "}}")};
  for (const std::string& error : errors)
    EXPECT_NE(error.find(": its JSON is nested more than 64 deep"), std::string::npos) << error;
}

}  // namespace
}  // namespace oneflow_like
