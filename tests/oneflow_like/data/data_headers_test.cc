// Files whose headers lie, are empty, cut short or of another machine's byte order: every reader says so in a
// sentence with file and byte, and takes no memory for what a file has no room for.
// ctest: asan=10
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "oneflow_like/data/clicks.h"
#include "oneflow_like/data/idx.h"
#include "oneflow_like/data/images.h"
#include "oneflow_like/data/tokens.h"
#include "tests/oneflow_like/data/files_fixture.h"
#include "tests/oneflow_like/data/pictures.h"

namespace {
std::atomic<size_t> largest{0};  // of all requests for memory
}

void* operator new(size_t bytes) {
  for (size_t old = largest; bytes > old && !largest.compare_exchange_weak(old, bytes);) {
  }
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
// Inlined, GCC would warn that they free what they did not allocate.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace oneflow_like {
namespace {

constexpr size_t kMostMemory = 3 << 20;  // IDX and gzip are read by the megabyte

class DataHeadersTest : public FilesTest {
 protected:
  struct Reader {
    std::string file, good;
    std::function<void(const std::string& path)> read;
  };

  void SetUp() override {
    Write("m.bin", BytesOf<uint16_t>({1, 2, 3, 4, 5}));
    auto tokens = [](const std::string& path) {
      const Tokens all = Tokens::Open(path);
      std::vector<int32_t> to(all.size());
      all.Read(0, all.size(), to.data());
      TokenRows(all, {.context = 1});
    };
    auto pictures = [](const std::string& path) {
      const ImageFolder set(std::filesystem::path(path).parent_path().parent_path(),
                            {.height = 4, .width = 4, .augment = false});
      std::vector<float> image(48);
      int32_t label;
      void* const to[] = {image.data(), &label};
      set.Read({1, 0, 0}, to);
    };
    const std::vector<uint16_t> narrow = {1, 2, 3, 4, 5};
    const std::vector<uint32_t> wide = {1, 2, 3, 4, 5};
    llmc_ = {"a.bin", LlmcFile(20240520, 1, 5, narrow), tokens};
    llmc_wide_ = {"b.bin", LlmcFile(20240801, 7, 5, wide), tokens};
    megatron_ = {"m.idx", MegatronIndex(8, 2, {2, 3}), tokens};
    npy_ = {"n.npy", NpyFile("<u2", "(5,)", BytesOf(narrow)), tokens};
    idx_ = {"idx", IdxFile({3, 2, 2}, 12), [](const std::string& path) { LoadIdx(path, 3); }};
    png_ = {"pngs/a/1.png", PngOf(Smooth(9, 6)), pictures};
    jpeg_ = {"jpegs/a/1.jpg", "", pictures};
#ifdef OFL_HAVE_JPEG
    jpeg_.good = JpegOf(Smooth(24, 17));
#endif
  }

  // One sentence with the file and the words, and hardly any memory.
  void ExpectRefused(const Reader& reader, const std::string& bytes, const std::string& words) {
    const std::string path = Write(reader.file, bytes);
    largest = 0;
    ExpectSays([&] { reader.read(path); }, folder_ + "/" + reader.file.substr(0, reader.file.rfind('.')),
               words);
    EXPECT_LE(largest, kMostMemory) << reader.file << ", " << words;
  }
  std::vector<Reader> Readers() const {
    std::vector<Reader> all = {llmc_, llmc_wide_, megatron_, npy_, idx_, png_};
    if (!jpeg_.good.empty()) all.push_back(jpeg_);
    return all;
  }

  Reader llmc_, llmc_wide_, megatron_, npy_, idx_, png_, jpeg_;
};

std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 255);
  return out;
}
std::string With(std::string bytes, size_t at, const std::string& part) {
  return bytes.replace(at, part.size(), part);
}
std::string Turned(std::string bytes, size_t at, size_t count) {
  std::reverse(bytes.begin() + at, bytes.begin() + at + count);
  return bytes;
}

TEST_F(DataHeadersTest, GoodOnesAreRead) {
  for (const Reader& reader : Readers())
    EXPECT_EQ(ErrorOf([&] { reader.read(Write(reader.file, reader.good)); }), "") << reader.file;
}

TEST_F(DataHeadersTest, EmptyAndCutFilesNameTheByte) {
  for (const Reader& reader : Readers()) {
    ExpectRefused(reader, "", "byte");
    for (size_t size = 1; size + 12 < reader.good.size(); size += 1 + size / 16)
      ExpectRefused(reader, reader.good.substr(0, size), "byte");
  }
  ExpectSays([&] { ClickLog(Write("clicks", ""), {}); }, folder_ + "/clicks", "has no line");
  for (const char* name : {"t.txt", "u.gz"}) {
    const std::string path = Write(name, name[0] == 'u' ? Gzip("") : "");
    ExpectSays([&] { TokenRows(Tokens::Open(path), {.context = 4}); }, path, "holds 0 tokens");
  }
}

TEST_F(DataHeadersTest, CountsBeyondTheFileTakeNoMemory) {
  for (uint64_t count :
       {uint64_t{6}, uint64_t{1} << 20, uint64_t{1} << 30, uint64_t{INT32_MAX}, uint64_t{UINT32_MAX}}) {
    SCOPED_TRACE(count);
    for (const Reader& reader : {llmc_, llmc_wide_})
      ExpectRefused(reader, With(reader.good, 8, Little(count, 4)), "at byte 8");
    for (size_t axis : {0, 1, 2})
      ExpectRefused(idx_, With(idx_.good, 4 + 4 * axis, BigEndian(static_cast<uint32_t>(count))), "byte");
    ExpectRefused(npy_, NpyFile("<u2", Cat("(", count, ",)"), "1234567890"), "at byte 10");
    ExpectRefused(npy_, NpyFile("<u8", Cat("(", count, ", ", count, ")"), "1234567890"), "at byte 10");
  }
  for (uint64_t count : {uint64_t{7}, uint64_t{1} << 31, uint64_t{1} << 40, uint64_t{1} << 59,
                         uint64_t{INT64_MAX}, uint64_t{UINT64_MAX}}) {
    SCOPED_TRACE(count);
    for (size_t at : {18, 26})
      ExpectRefused(megatron_, With(megatron_.good, at, Little(count, 8)), "at byte 18");
    ExpectRefused(megatron_, With(megatron_.good, 42, Little(count, 8)), "at byte 42");  // a pointer
  }
  for (uint64_t length : {uint64_t{3}, uint64_t{1} << 20, uint64_t{INT32_MAX}})
    ExpectRefused(megatron_, With(megatron_.good, 34, Little(length, 4)), "at byte ");
  for (uint64_t length : {uint64_t{1} << 20, uint64_t{INT32_MAX}, uint64_t{UINT32_MAX}})
    ExpectRefused(npy_, With(With(npy_.good, 6, Little(2, 1)), 8, Little(length, 4)), "header is to end at");
}

TEST_F(DataHeadersTest, PicturesBeyondTheFileTakeNoMemory) {
  for (uint32_t side : {2000u, 8000u, 65000u}) {
    const std::string size = BigEndian(side) + BigEndian(side) + std::string({8, 2, 0, 0, 0});
    ExpectRefused(png_, With(png_.good, 8, PngChunk("IHDR", size)), "the picture says it has");
    if (jpeg_.good.empty()) continue;
    const size_t frame = jpeg_.good.find("\xff\xc0");
    const std::string half = BigEndian(side).substr(2);
    ExpectRefused(jpeg_, With(jpeg_.good, frame + 5, half + half), "the picture says it has");
  }
}

TEST_F(DataHeadersTest, TheOtherByteOrderIsRefused) {
  for (const Reader& reader : {llmc_, llmc_wide_})
    ExpectRefused(reader, Turned(reader.good, 0, 4), "at byte 0: the magic number is big-endian");
  ExpectRefused(megatron_, Turned(megatron_.good, 9, 8), "at byte 9: its numbers are big-endian");
  ExpectRefused(npy_, NpyFile(">u2", "(5,)", "1234567890"), "at byte 10: its numbers are big-endian");
  ExpectRefused(idx_, Turned(idx_.good, 0, 4), "at byte 0 it begins with 3 8 0 0");
  for (size_t axis : {0, 1, 2}) ExpectRefused(idx_, Turned(idx_.good, 4 + 4 * axis, 4), "byte");
  const std::string size = Little(9, 4) + Little(6, 4) + std::string({8, 2, 0, 0, 0});
  ExpectRefused(png_, With(png_.good, 8, PngChunk("IHDR", size)), "a broken PNG");
}

}  // namespace
}  // namespace oneflow_like
