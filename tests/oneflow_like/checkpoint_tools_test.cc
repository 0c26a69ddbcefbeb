// What the program `checkpoint` does: it lists, finds every damaged byte and every planted difference, and
// converts without ever leaving a half file.
// ctest: asan=10
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <sstream>

#include "examples/gpt_huggingface.h"
#include "oneflow_like/checkpoint/tools.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/variable_sources.h"

namespace oneflow_like {

using namespace examples;
namespace {

namespace fs = std::filesystem;

class CheckpointTools : public testing::Test {
 protected:
  CheckpointTools() { fs::create_directories(folder_); }
  ~CheckpointTools() override { fs::remove_all(folder_); }

  std::string Verify(const std::string& path, bool wanted) {
    std::ostringstream out;
    EXPECT_EQ(VerifyFiles(path, out), wanted) << out.str();
    return out.str();
  }
  std::string Diff(const std::string& a, const std::string& b, bool equal) {
    std::ostringstream out;
    EXPECT_EQ(DiffVariables(*OpenSource(a, nullptr), *OpenSource(b, nullptr), out), equal) << out.str();
    return out.str();
  }
  static void ExpectWord(const std::string& text, const std::string& word) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }

  const std::string folder_ = testing::TempDir() + "/checkpoint_tools_test." + std::to_string(getpid());
  const std::string run_ = folder_ + "/run/step-00000007";
};

Tensors Some() {
  return {{"block0/up", RandomTensor(1, DType::kFloat32, {6, 40})},
          {"block0/down", RandomTensor(2, DType::kBFloat16, {40, 6})},
          {"flags", RandomTensor(3, DType::kBool, {7})},
          {"scale", RandomTensor(4, DType::kFloat32, {})},
          {"train:adam_m/block0/up", RandomTensor(5, DType::kFloat32, {6, 40})},
          {"train:updates", RandomTensor(6, DType::kInt64, {1})}};
}

// --- list ---

TEST_F(CheckpointTools, ListShowsEverything) {
  MakeCheckpoint(run_, Some(), 4, 2);
  for (const std::string& path : {run_, folder_ + "/run"}) {
    std::ostringstream out;
    ListVariables(path, nullptr, out);
    for (const char* word :
         {"step-00000007\n", "mesh       cpu:tp=4\n", "seed       5\n", "next step  train 7\n",
          "state      epoch=3\n", "block0/down             bf16  [40,6]  4 pieces", "scale   ", "1 piece ",
          "i64   [1]", "6 tensors, 2419 bytes (0.0 MiB)\n"})
      ExpectWord(out.str(), word);
  }
  std::ostringstream out;
  ListVariables(run_ + "/model-0.safetensors", nullptr, out);
  ExpectWord(out.str(), "block0/down@[0,0]");
  for (const char* nothing : {"/nowhere", ""}) {
    std::ostringstream none;
    EXPECT_NE(ErrorOf([&] { ListVariables(folder_ + nothing, nullptr, none); }), "") << nothing;
  }
}

// --- verify ---

TEST_F(CheckpointTools, EveryFlippedBitOfDataIsFoundAndNamed) {
  MakeCheckpoint(run_, Some(), 3, 2);
  ExpectWord(Verify(run_, true), "6 tensors, 0.0 MiB, every checksum fits");
  for (int f = 0; f < 2; ++f) {
    const std::string path = Cat(run_, "/model-", f, ".safetensors"), good = BytesOf(path);
    std::map<std::string, StoredTensor> tensors = SafetensorsReader(path).tensors();
    for (uint64_t k = 0; k < 200; ++k) {
      std::string bad = good;
      auto at = std::next(tensors.begin(), RandomBits(f, 3, k) % tensors.size());
      const uint64_t bit = RandomBits(f, 4, k) % (8 * at->second.bytes());
      bad[at->second.offset + bit / 8] ^= static_cast<char>(1 << bit % 8);
      PutBytes(path, bad);
      EXPECT_EQ(Verify(run_, false),
                Cat(path, ": tensor '", at->first, "' is damaged: the checksum of its bytes 0 to ",
                    at->second.bytes(), " does not fit\n"));
    }
    PutBytes(path, good);
  }
}

TEST_F(CheckpointTools, EveryDamagedTensorIsNamedWithItsFirstWrongBytes) {
  const int64_t n = 3 * kChecksumBytes / 4 + 100;
  MakeCheckpoint(run_, {{"a", RandomTensor(1, DType::kFloat32, {n})},
                        {"b", RandomTensor(2, DType::kFloat32, {n})},
                        {"c", RandomTensor(3, DType::kFloat32, {5})}});
  const std::string path = run_ + "/model-0.safetensors";
  const SafetensorsReader reader(path);
  std::string bad = BytesOf(path);
  for (int64_t at : {kChecksumBytes + 5, 2 * kChecksumBytes}) bad[reader.Find("a").offset + at] ^= 1;
  bad[reader.Find("b").offset + 4 * n - 1] ^= 1;
  PutBytes(path, bad);
  EXPECT_EQ(Verify(run_, false), Cat(path, ": tensor 'a' is damaged: the checksum of its bytes ",
                                     kChecksumBytes, " to ", 2 * kChecksumBytes, " does not fit\n", path,
                                     ": tensor 'b' is damaged: the checksum of its bytes ",
                                     3 * kChecksumBytes, " to ", 4 * n, " does not fit\n"));
}

TEST_F(CheckpointTools, WrongFilesAreTold) {
  MakeCheckpoint(run_, Some(), 3, 2);
  const std::string path = run_ + "/model-0.safetensors", good = BytesOf(path);
  // Whatever a byte of the header becomes: found, or all that is read is still right.
  const size_t header = 8 + static_cast<unsigned char>(good[0]) + 256 * static_cast<unsigned char>(good[1]);
  const std::string whole = folder_ + "/whole.safetensors";
  PutBytes(whole, good);
  int found = 0;
  for (size_t at = 0; at < header; ++at) {
    std::string bad = good;
    bad[at] ^= static_cast<char>(1 << RandomBits(1, 5, at) % 8);
    PutBytes(path, bad);
    std::ostringstream out;
    if (!VerifyFiles(run_, out)) {
      ++found;
      ExpectWord(out.str(), path);
    } else {
      const Tensors all = ReadAll(*OpenSource(run_, nullptr));
      for (const auto& [name, tensor] : Some()) EXPECT_TRUE(SameBytes(all.at(name), tensor)) << name;
      EXPECT_EQ(SafetensorsReader(path).metadata(), SafetensorsReader(whole).metadata()) << at;
    }
  }
  EXPECT_GT(found, 200);
  std::string otherwise = good;
  otherwise[good.find("oneflow_like")] = 'x';
  PutBytes(path, otherwise);
  EXPECT_EQ(Verify(run_, false), path +
                                     ": the metadata in its header are 'format': 'xneflow_like', but a "
                                     "save writes 'format': 'oneflow_like'\n");
  PutBytes(path, good.substr(0, good.size() - 1));
  ExpectWord(Verify(run_, false), path + ": tensor '");
  PutBytes(path, good + "x");
  ExpectWord(Verify(run_, false), path + ": it has 1 bytes behind its last tensor");
  fs::remove(path);
  fs::remove(run_ + "/model-1.safetensors");
  const std::string both = Verify(run_, false);
  for (const char* file : {"0", "1"})
    ExpectWord(both, Cat(run_, "/model-", file, ".safetensors: it cannot be read: No such file"));
  EXPECT_EQ(std::count(both.begin(), both.end(), '\n'), 2);

  fs::remove_all(run_);
  MakeCheckpoint(run_, Some());
  PutBytes(run_ + "/extra", "x");
  ExpectWord(Verify(run_, true), "note: " + run_ + "/extra: the index does not name this file");
  CheckpointIndex index = CheckpointIndex::Read(run_);
  index.variables.erase("flags");
  index.variables.at("scale").dtype = DType::kInt32;
  index.variables.at("train:updates").pieces[0].key = "updates";
  PutBytes(run_ + "/" + CheckpointIndex::kFile, index.ToJson());
  const std::string said = Verify(run_, false);
  ExpectWord(said, "note: " + path + ": the index does not name tensor 'flags'");
  ExpectWord(said, path + ": tensor 'scale' is f32[], but the index says i32[]");
  ExpectWord(said, path + ": there is no tensor 'updates' in it");
  std::string text = BytesOf(run_ + "/" + CheckpointIndex::kFile);
  PutBytes(run_ + "/" + CheckpointIndex::kFile, text.substr(0, text.size() / 2));
  ExpectWord(ErrorOf([&] { Verify(run_, false); }), "index.json: it is no JSON object");
}

TEST_F(CheckpointTools, FilesWithoutChecksumsAreRead) {
  TensorSource source(Some());
  const std::string path = folder_ + "/some.safetensors";
  WriteTensors(source, path, {});
  ExpectWord(Verify(path, true), "6 tensors can be read; they have no checksums");
  PutBytes(path, BytesOf(path) + "xyz");
  ExpectWord(Verify(path, false), "3 bytes behind its last tensor");
}

// --- diff ---

TEST_F(CheckpointTools, DiffFindsPlantedDifferences) {
  MakeCheckpoint(run_, Some(), 3, 2);
  const std::string other = folder_ + "/other/step-00000007";
  MakeCheckpoint(other, Some(), 2);  // pieces do not matter
  EXPECT_EQ(Diff(run_, other, true), "6 tensors are equal, 0 differ, 0 are only on one side\n");
  for (uint64_t k = 0; k < 40; ++k) {
    Tensors changed = Some();
    HostTensor& up = changed.at("block0/up");
    const int64_t at = static_cast<int64_t>(RandomBits(1, 1, k) % up.elements());
    up.as<float>()[(at + 1) % up.elements()] += 1;
    up.as<float>()[at] -= 2;
    fs::remove_all(other);
    MakeCheckpoint(other, changed, 1 + static_cast<int>(k % 4));
    const std::string said = Diff(run_, other, false);
    ExpectWord(said, Cat("block0/up: f32[6,40], largest difference 2 at [", at / 40, ",", at % 40, "] ("));
    ExpectWord(said, "2 of 240 elements differ\n5 tensors are equal, 1 differ, 0 are only on one side\n");
  }
  Tensors changed = Some();
  changed.erase("scale");
  changed["new"] = RandomTensor(1, DType::kBool, {2});
  changed["flags"] = RandomTensor(1, DType::kBool, {8});
  changed["train:updates"].as<int64_t>()[0] += 1;
  changed["block0/up"].as<float>()[239] = NAN;
  fs::remove_all(other);
  MakeCheckpoint(other, changed);
  const std::string said = Diff(run_, other, false);
  for (const std::string& word : {Cat("scale: only in ", run_, "\n"), Cat("new: only in ", other, "\n"),
                                  std::string("flags: shapes [7] and [8]\n"),
                                  std::string("train:updates: i64[1], largest difference 1 at [0]"),
                                  std::string("block0/up: f32[6,40], largest difference +infinity at [5,39]"),
                                  std::string("and NaN), 1 of"),
                                  std::string("2 tensors are equal, 3 differ, 2 are only on one side\n")})
    ExpectWord(said, word);
}

TEST_F(CheckpointTools, DiffOfTypesComparesNumbers) {
  MakeCheckpoint(run_, Some());
  auto narrow = std::make_shared<ConvertedSource>(
      OpenSource(run_, nullptr), Conversion{.dtype = DType::kBFloat16, .weights_only = true});
  const std::string path = folder_ + "/narrow.safetensors";
  WriteOneFile(*narrow, path);
  const std::string said = Diff(run_, path, false);
  ExpectWord(said, "block0/up: f32 and bf16[6,40], largest difference 0.00");
  ExpectWord(said, "train:updates: only in " + run_);
  EXPECT_EQ(said.find("block0/down"), std::string::npos) << said;
}

// --- convert ---

TEST_F(CheckpointTools, ConvertMakesOneFileThatHasEverything) {
  MakeCheckpoint(run_, Some(), 3, 2);
  const std::string path = folder_ + "/one.safetensors";
  WriteOneFile(*OpenSource(folder_ + "/run", nullptr), path);
  const Tensors read = ReadAll(*OpenSource(path, nullptr));
  ASSERT_EQ(read.size(), Some().size());
  for (const auto& [name, tensor] : Some()) EXPECT_TRUE(SameBytes(read.at(name), tensor)) << name;
  // Every tensor begins at a multiple of its elements' size.
  const SafetensorsReader file(path);
  for (const auto& [name, tensor] : file.tensors())
    EXPECT_EQ(tensor.offset % static_cast<int64_t>(SizeOf(tensor.dtype)), 0) << name;
}

TEST_F(CheckpointTools, ConvertLeavesWhatIsThereAndNothingHalf) {
  MakeCheckpoint(run_, Some());
  auto files = [&] { return std::distance(fs::directory_iterator(folder_), {}); };
  const std::string path = folder_ + "/precious";
  PutBytes(path, "old");
  fs::create_symlink("nowhere", folder_ + "/link");
  const auto before = files();
  auto convert = [&](const std::string& to) {
    return ErrorOf([&] { WriteOneFile(*OpenSource(run_, nullptr), to); });
  };
  EXPECT_EQ(convert(path), path + ": it is there already");
  EXPECT_EQ(convert(folder_ + "/link"), folder_ + "/link: it is there already");
  EXPECT_EQ(convert(folder_ + "/run/"), folder_ + "/run/: it is there already");
  ExpectWord(convert(folder_ + "/no/file"), folder_ + "/no/file: there is no folder ");
  EXPECT_EQ(BytesOf(path), "old");
  const std::string file = run_ + "/model-0.safetensors";
  std::string bad = BytesOf(file);
  bad.back() ^= 1;
  PutBytes(file, bad);
  ExpectWord(convert(folder_ + "/new"), "is damaged");
  EXPECT_EQ(files(), before);
}

TEST_F(CheckpointTools, ACheckpointOfAGptBecomesGpt2AndComesBack) {
  Tensors weights, all;
  for (const NameRow& row :
       Gpt2Names({.layers = 2, .width = 24, .heads = 4, .context = 10, .vocabulary = 33}).rows)
    for (const NameRow::Variable& variable : row.ours)
      weights.emplace(variable.name,
                      RandomTensor(all.size() + weights.size(), DType::kFloat32, variable.shape));
  all = weights;
  for (const auto& [name, tensor] : weights) all.emplace("train:adam_m/" + name, tensor);
  MakeCheckpoint(run_, all, 4, 3);
  const ModelFormat gpt2 = Gpt2Format();
  const std::string folder = folder_ + "/gpt2", file = folder_ + "/back.safetensors";
  gpt2.write(OpenSource(run_, nullptr), {}, folder);
  ExpectWord(Verify(folder, true), "28 tensors can be read");
  WriteOneFile(*OpenSource(folder, &gpt2), file);
  std::ostringstream out;
  ConvertedSource ours(OpenSource(run_, nullptr), {.weights_only = true});
  EXPECT_TRUE(DiffVariables(ours, *OpenSource(file, &gpt2), out)) << out.str();
  ExpectWord(out.str(), "36 tensors are equal");
  std::ostringstream list;
  ListVariables(folder, nullptr, list);
  ExpectWord(list.str(), "transformer.h.1.attn.c_attn.weight");
}

}  // namespace
}  // namespace oneflow_like
