// Files of tensors: what is written is read, also by a reader of the format's own definition; and whatever is
// wrong with a file is said in one sentence that names it.
// ctest: asan=10
#include "oneflow_like/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/random.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

class Safetensors : public testing::Test {
 protected:
  Safetensors() { std::filesystem::create_directories(folder_); }
  ~Safetensors() override { std::filesystem::remove_all(folder_); }
  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }
  void Put(const std::string& path, const std::string& bytes) const {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // A file with this header and so many bytes behind it.
  std::string Make(const std::string& header, size_t bytes) const {
    std::string text(8, '\0');
    for (int i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i));
    const std::string path = PathOf("made.safetensors");
    Put(path, text + header + std::string(bytes, 'x'));
    return path;
  }

 private:
  const std::string folder_ = testing::TempDir() + "/safetensors_test." + std::to_string(getpid());
};

TEST_F(Safetensors, WhatIsWrittenIsRead) {
  const DType types[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32,
                         DType::kInt64,   DType::kUInt8,    DType::kBool};
  for (uint64_t seed = 0; seed < 60; ++seed) {
    auto draw = [&, k = uint64_t{0}](uint64_t n) mutable { return RandomBits(seed, 1, k++) % n; };
    std::vector<SafetensorsWriter::Entry> entries;
    std::vector<std::string> bytes;
    for (uint64_t t = draw(6); t > 0; --t) {
      Dims shape;
      for (uint64_t a = draw(5); a > 0; --a) shape.push_back(static_cast<int64_t>(draw(6)));
      entries.push_back({Cat("block", t, "/a \"name\"\n\xc3\xa9"), types[draw(7)], shape});
      bytes.emplace_back(shape.elements() * SizeOf(entries.back().dtype), '\0');
      for (char& b : bytes.back()) b = static_cast<char>(draw(256));
    }
    const std::string path = PathOf("a.safetensors");
    {
      SafetensorsWriter writer(path, entries, {{"who", "me"}});
      for (size_t t = entries.size(); t-- > 0;) {  // in any order, in parts
        const int64_t half = static_cast<int64_t>(bytes[t].size()) / 2;
        writer.Write(entries[t].name, half, bytes[t].data() + half,
                     static_cast<int64_t>(bytes[t].size()) - half);
        writer.Write(entries[t].name, 0, bytes[t].data(), half);
      }
      writer.Sync();
      EXPECT_EQ(writer.size(), static_cast<int64_t>(std::filesystem::file_size(path)));
    }
    const SafetensorsReader reader(path);
    EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"who", "me"}}));
    ASSERT_EQ(reader.tensors().size(), entries.size());
    for (size_t t = 0; t < entries.size(); ++t) {
      const StoredTensor& tensor = reader.Find(entries[t].name);
      EXPECT_EQ(tensor.dtype, entries[t].dtype);
      EXPECT_EQ(tensor.shape, entries[t].shape);
      std::string got(bytes[t].size(), '\0');
      reader.file().ReadAt(tensor.offset, got.data(), static_cast<int64_t>(got.size()));
      EXPECT_EQ(got, bytes[t]) << seed;
    }
  }
}

// Byte by byte, as the format is defined.
TEST_F(Safetensors, TheFormatIsTheOneOthersRead) {
  const std::string path = PathOf("a.safetensors");
  const float values[] = {1, 2, 3};
  {
    SafetensorsWriter writer(path, {{"w", DType::kFloat32, {3}}});
    writer.Write("w", 0, values, sizeof values);
  }
  const std::string text = Bytes(path);
  const size_t header = static_cast<unsigned char>(text[0]);
  EXPECT_EQ(text.substr(1, 7), std::string(7, '\0'));
  EXPECT_EQ(header % 8, 0u);
  EXPECT_EQ(text.substr(8, header), R"({"w":{"data_offsets":[0,12],"dtype":"F32","shape":[3]}} )");
  EXPECT_EQ(text.substr(8 + header), std::string(reinterpret_cast<const char*>(values), sizeof values));
}

TEST_F(Safetensors, MistakesNameTheFile) {
  auto refuse = [&](const std::string& header, size_t bytes, const std::string& wanted) {
    const std::string path = Make(header, bytes), error = ErrorOf([&] { SafetensorsReader reader(path); });
    EXPECT_EQ(error.rfind(path + ": ", 0), 0u) << error;
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  };
  refuse("{", 0, "no JSON object");
  refuse("[]", 0, "no JSON object");
  refuse(R"({"w":3})", 0, "tensor 'w' lacks dtype");
  refuse(R"({"w":{"dtype":"","shape":[],"data_offsets":[0,1]}})", 1, "is of type \"\", which is no name");
  refuse(R"({"w":{"dtype":8,"shape":[],"data_offsets":[0,1]}})", 1, "is of type 8, which is no name");
  refuse(R"({"w":{"dtype":"F64","shape":3,"data_offsets":[0,1]}})", 1, "has shape 3");
  refuse(R"({"w":{"dtype":"F64","shape":[],"data_offsets":[0,9]}})", 8, "claims bytes 0 to 9 of 8");
  refuse(R"({"w":{"dtype":"F32","shape":[2,-1],"data_offsets":[0,8]}})", 8, "-1 where a whole number");
  refuse(R"({"w":{"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,8]}})", 8,
         "more than the file");
  refuse(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8,
         "more than the file");
  refuse(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}})", 12, "takes 8 bytes but has 12");
  refuse(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", 11, "claims bytes 0 to 12 of 11");
  refuse(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[12,0]}})", 12, "claims bytes 12 to 0");
  refuse(
      R"({"v":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
      7, "'v' and 'w' overlap");
  refuse(
      R"({"v":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
      7, "'v' and 'w' overlap");
  refuse(R"({"__metadata__":{"a":1}})", 0, "__metadata__ 'a' is no text");
  const std::string path = PathOf("short");
  Put(path, "abc");
  EXPECT_EQ(ErrorOf([&] { SafetensorsReader reader(path); }),
            path + ": it has 3 bytes, which is no safetensors file");
  Put(path, std::string(8, '\xff') + "{}");
  EXPECT_NE(ErrorOf([&] { SafetensorsReader reader(path); }).find("its header claims"), std::string::npos);
  EXPECT_NE(ErrorOf([&] {
              SafetensorsReader reader(PathOf("nothing"));
            }).find("nothing: it cannot be read: No such"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] { SafetensorsReader reader("/"); }).find("no regular file"), std::string::npos);
  ASSERT_EQ(mkfifo(PathOf("pipe").c_str(), 0600), 0);
  EXPECT_EQ(ErrorOf([&] { SafetensorsReader reader(PathOf("pipe")); }),
            PathOf("pipe") + ": it is no regular file");
  EXPECT_NE(ErrorOf([&] { SafetensorsReader(Make("{}", 0)).Find("w"); }).find("there is no tensor 'w'"),
            std::string::npos);
}

// Tensors of types that are not ours, also of some that do not exist yet, stay in the file and hinder nobody.
TEST_F(Safetensors, OtherTypesAreNamedAndLeftAlone) {
  const std::string path = Make(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},
      "b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},
      "c":{"dtype":"F3_\n","shape":[1,2,3,4,5,6,7,8,9,10,11,12],"data_offsets":[16,17]},
      "d":{"dtype":"I8","shape":[0],"data_offsets":[17,17]}})",
                                17);
  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.tensors().size(), 1u);
  ASSERT_EQ(reader.others().size(), 3u);
  EXPECT_EQ(reader.others().at("a").type, "F64");
  EXPECT_EQ(reader.others().at("a").bytes, 8);
  EXPECT_EQ(reader.Find("b").shape, (Dims{2}));
  EXPECT_EQ(ErrorOf([&] { reader.Find("a"); }),
            path + ": tensor 'a' is of type \"F64\", which is not known here");
  EXPECT_EQ(ErrorOf([&] { reader.Find("c"); }),
            path + ": tensor 'c' is of type \"F3_\\n\", which is not known here");
}

// Whatever a byte of the header becomes, the file is read or refused by name, and nothing outside it is read.
TEST_F(Safetensors, EveryByteOfAHeaderMayBeWrong) {
  const std::string path = PathOf("a.safetensors");
  {
    SafetensorsWriter writer(path, {{"w", DType::kFloat32, {3, 2}}, {"v", DType::kBool, {5}}}, {{"a", "b"}});
  }
  const std::string good = Bytes(path);
  const size_t header = 8 + static_cast<unsigned char>(good[0]);
  int refused = 0, read = 0;
  for (size_t at = 0; at < header; ++at)
    for (int value : {good[at] ^ 1, good[at] ^ 2, good[at] ^ 16, good[at] ^ 128, int{'0'}, int{'"'}}) {
      std::string bad = good;
      bad[at] = static_cast<char>(value);
      Put(path, bad);
      const std::string error = ErrorOf([&] {
        const SafetensorsReader reader(path);
        for (const auto& [name, tensor] : reader.tensors()) {
          std::string bytes(tensor.bytes(), '\0');
          reader.file().ReadAt(tensor.offset, bytes.data(), tensor.bytes());
        }
      });
      error.empty() ? ++read : ++refused;
      ASSERT_TRUE(error.empty() || error.rfind(path + ": ", 0) == 0) << error;
    }
  EXPECT_GT(refused, 200);
  EXPECT_GT(read, 20);  // names, blanks
}

TEST_F(Safetensors, WhatCannotBeWrittenIsSaid) {
  EXPECT_NE(
      ErrorOf([&] { SafetensorsWriter writer(PathOf("no/such/folder"), {}); }).find("it cannot be created"),
      std::string::npos);
  EXPECT_NE(ErrorOf([&] {
              SafetensorsWriter writer(PathOf("a"), {{"w", DType::kBool, {1}}, {"w", DType::kBool, {1}}});
            }).find("two tensors are named 'w'"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] {
              SafetensorsWriter writer(PathOf("a"), {{"w", DType::kFloat32, {int64_t{1} << 50}}});
            }).find("there is no room for its"),
            std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
