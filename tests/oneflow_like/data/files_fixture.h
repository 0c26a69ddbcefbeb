// What the tests of readers share: a folder of files, and files of every format.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/error_of.h"

namespace oneflow_like {

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() : folder_(testing::TempDir() + "/data_files." + std::to_string(getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  const std::string folder_;
};

// Little-endian.
template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
std::string LlmcFile(int32_t magic, int32_t version, int32_t count, const std::vector<T>& tokens) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic, header[1] = version, header[2] = count;
  return BytesOf(header) + BytesOf(tokens);
}

// Sequences of these lengths, each a document; `code` is the type of the tokens, which take `width` bytes.
inline std::string MegatronIndex(uint8_t code, int width, const std::vector<int32_t>& lengths) {
  std::vector<int64_t> pointers, documents = {0};
  int64_t at = 0;
  for (int32_t length : lengths) {
    pointers.push_back(at);
    at += int64_t{length} * width;
    documents.push_back(static_cast<int64_t>(pointers.size()));
  }
  return std::string("MMIDIDX\0\0", 9) + BytesOf<int64_t>({1}) + static_cast<char>(code) +
         BytesOf<int64_t>({static_cast<int64_t>(lengths.size()), static_cast<int64_t>(documents.size())}) +
         BytesOf(lengths) + BytesOf(pointers) + BytesOf(documents);
}

inline std::string NpyFile(const std::string& type, const std::string& shape, const std::string& values) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  header += '\n';
  return std::string("\x93NUMPY\1\0", 8) + static_cast<char>(header.size()) + '\0' + header + values;
}

inline std::string Gzip(const std::string& bytes) {
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

inline std::string IdxFile(const std::vector<int64_t>& shape, int64_t values) {
  std::string out = {0, 0, 8, static_cast<char>(shape.size())};
  for (int64_t extent : shape)
    for (int shift : {24, 16, 8, 0}) out += static_cast<char>(extent >> shift & 255);
  for (int64_t i = 0; i < values; ++i) out += static_cast<char>(i * 7 % 10);
  return out;
}

// One sentence that names the file.
inline void ExpectSays(const std::function<void()>& call, const std::string& path, const std::string& words) {
  const std::string message = ErrorOf(call);
  EXPECT_NE(message.find(path), std::string::npos) << message << " does not name " << path;
  EXPECT_NE(message.find(words), std::string::npos) << message << " does not say " << words;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

}  // namespace oneflow_like
