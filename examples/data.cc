// Reading, checking and batching the examples' data.
#include "examples/data.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "core/error.h"
#include "core/random.h"

namespace oneflow_like {
namespace {

constexpr int kTokenHeader = 256;  // int32 numbers
constexpr int32_t kTokenMagic = 20240520, kTokenVersion = 1;
constexpr int64_t kVocabularyMultiple = 128;
constexpr int64_t kMaxIdxBytes = int64_t{1} << 30;

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// A file, unpacked on the way if it is gzip.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    if (std::filesystem::is_directory(path)) Fail("cannot read ", path, ": it is a folder");
    errno = 0;
    file_ = gzopen(path.c_str(), "rb");
    if (file_ == nullptr) Fail("cannot open ", path, ": ", std::strerror(errno != 0 ? errno : ENOMEM));
    if (EndsWith(path, ".gz") && gzdirect(file_)) {
      gzclose_r(file_);
      Fail(path, " is not a gzip file, though its name ends in .gz");
    }
  }
  ~Reader() { gzclose_r(file_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Up to `bytes` bytes; fewer only at the end of the file.
  int64_t Read(char* to, int64_t bytes) {
    int64_t done = 0;
    while (done < bytes) {
      int got = gzread(file_, to + done, static_cast<unsigned>(std::min<int64_t>(bytes - done, 1 << 20)));
      int code = Z_OK;
      const char* message = gzerror(file_, &code);
      if (code == Z_BUF_ERROR) Fail(path_, " is truncated: its gzip stream ends early");
      if (got < 0 || code == Z_DATA_ERROR) Fail("cannot read ", path_, ": corrupt gzip data (", message, ")");
      if (got == 0) break;
      done += got;
    }
    return done;
  }

 private:
  std::string path_;
  gzFile file_ = nullptr;
};

int32_t LittleInt32(const std::string& bytes, int64_t index) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data()) + 4 * index;
  return static_cast<int32_t>(p[0] | p[1] << 8 | p[2] << 16 | static_cast<uint32_t>(p[3]) << 24);
}

int64_t BigUint32(const unsigned char* p) {
  return int64_t{p[0]} << 24 | int64_t{p[1]} << 16 | int64_t{p[2]} << 8 | int64_t{p[3]};
}

TokenData LoadTokenFile(const std::string& path) {
  const std::string bytes = ReadFile(path);
  const int64_t size = bytes.size(), header = 4 * kTokenHeader;
  if (size < header)
    Fail(path, " is truncated: ", size, " bytes, but the header of a token file takes ", header);
  if (LittleInt32(bytes, 0) != kTokenMagic) {
    Fail(path, " is not a token file: its first number is ", LittleInt32(bytes, 0), " instead of ",
         kTokenMagic);
  }
  if (LittleInt32(bytes, 1) != kTokenVersion) {
    Fail(path, ": token file version ", LittleInt32(bytes, 1), ", but only version ", kTokenVersion,
         " is known");
  }
  const int64_t count = LittleInt32(bytes, 2);
  if (count < 0 || size != header + 2 * count) {
    Fail(path, ": its header says ", count, " tokens, but ", size - header, " bytes follow, which are ",
         (size - header) / 2.0, " tokens");
  }
  TokenData data;
  data.bytes = false;
  data.tokens.resize(count);
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data()) + header;
  uint16_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    data.tokens[i] = static_cast<uint16_t>(p[2 * i] | p[2 * i + 1] << 8);
    largest = std::max(largest, data.tokens[i]);
  }
  data.vocabulary = (largest / kVocabularyMultiple + 1) * kVocabularyMultiple;
  return data;
}

}  // namespace

std::string ReadFile(const std::string& path, int64_t limit) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  Reader reader(path);
  std::string all;
  while (true) {
    const int64_t old = all.size();
    all.resize(old + kChunk);
    const int64_t got = reader.Read(all.data() + old, kChunk);
    all.resize(old + got);
    if (static_cast<int64_t>(all.size()) > limit) Fail(path, " holds more than ", limit, " bytes");
    if (got < kChunk) return all;
  }
}

TokenData LoadTokens(const std::string& path) {
  if (EndsWith(path, ".bin")) return LoadTokenFile(path);
  const std::string text = ReadFile(path);
  TokenData data;
  data.tokens.resize(text.size());
  for (size_t i = 0; i < text.size(); ++i) data.tokens[i] = static_cast<unsigned char>(text[i]);
  return data;
}

TextSplit SplitText(TokenSpan tokens, int64_t context, const std::string& path) {
  const int64_t size = tokens.size(), sequence = context + 1;
  if (size < sequence) {
    Fail(path, " holds ", size, " tokens, but one sequence takes context + 1 = ", sequence);
  }
  const int64_t held = std::max(size / 20, sequence);
  if (size - held < sequence) return {tokens, {}};
  return {tokens.first(size - held), tokens.last(held)};
}

TokenBatch RandomBatch(TokenSpan text, int64_t batch, int64_t context, uint64_t seed, int64_t step) {
  const uint64_t key = RandomKey(seed, HashName("batches"));
  const uint64_t starts = text.size() - context;
  TokenBatch b;
  b.tokens.reserve(batch * context);
  b.targets.reserve(batch * context);
  for (int64_t row = 0; row < batch; ++row) {
    const Philox4 draw = Philox(key, row, step);
    const uint64_t start = (uint64_t{draw.v[0]} << 32 | draw.v[1]) % starts;
    for (int64_t i = 0; i < context; ++i) {
      b.tokens.push_back(text[start + i]);
      b.targets.push_back(text[start + i + 1]);
    }
  }
  b.counted = batch * context;
  return b;
}

TokenBatch ConsecutiveBatch(TokenSpan text, int64_t batch, int64_t context, int64_t index) {
  const int64_t size = text.size(), first = index * batch * context;
  TokenBatch b;
  b.tokens.resize(batch * context, 0);
  b.targets.resize(batch * context, -1);
  for (int64_t i = 0; i < batch * context && first + i + 1 < size; ++i) {
    b.tokens[i] = text[first + i];
    b.targets[i] = text[first + i + 1];
    ++b.counted;
  }
  return b;
}

IdxData LoadIdx(const std::string& path, int axes) {
  Reader reader(path);
  unsigned char magic[4];
  if (reader.Read(reinterpret_cast<char*>(magic), 4) != 4) Fail(path, " is truncated: no IDX header");
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || magic[3] != axes) {
    Fail(path, " is not an IDX file of bytes with ", axes, " axes: it begins with ", int{magic[0]}, " ",
         int{magic[1]}, " ", int{magic[2]}, " ", int{magic[3]}, " instead of 0 0 8 ", axes);
  }
  IdxData data;
  int64_t total = 1;
  for (int axis = 0; axis < axes; ++axis) {
    unsigned char extent[4];
    if (reader.Read(reinterpret_cast<char*>(extent), 4) != 4)
      Fail(path, " is truncated inside its IDX header");
    data.shape.push_back(BigUint32(extent));
    // Checked before it is multiplied or allocated: the header may say anything.
    if (data.shape.back() < 1) Fail(path, ": axis ", axis, " of its IDX header has extent 0");
    if (data.shape.back() > kMaxIdxBytes / total) {
      Fail(path, ": its IDX header asks for more than ", kMaxIdxBytes, " bytes (axis ", axis, " has extent ",
           data.shape.back(), ")");
    }
    total *= data.shape.back();
  }
  // Grown as the bytes come, so that a short file with a large header takes no more memory than it has bytes.
  while (static_cast<int64_t>(data.values.size()) < total) {
    const int64_t old = data.values.size(), want = std::min<int64_t>(total - old, 1 << 20);
    data.values.resize(old + want);
    const int64_t got = reader.Read(reinterpret_cast<char*>(data.values.data()) + old, want);
    if (got < want) Fail(path, " is truncated: ", old + got, " values, but its header says ", total);
  }
  char more;
  if (reader.Read(&more, 1) != 0) Fail(path, " holds more than the ", total, " values its header says");
  return data;
}

ImageSet LoadImages(const std::string& images_path, const std::string& labels_path, int classes) {
  IdxData images = LoadIdx(images_path, 3), labels = LoadIdx(labels_path, 1);
  if (images.shape[0] != labels.shape[0]) {
    Fail(images_path, " holds ", images.shape[0], " images, but ", labels_path, " ", labels.shape[0],
         " labels");
  }
  for (size_t i = 0; i < labels.values.size(); ++i) {
    if (labels.values[i] >= classes) {
      Fail(labels_path, ": label ", i, " is ", int{labels.values[i]}, ", but there are ", classes,
           " classes");
    }
  }
  ImageSet set;
  set.count = images.shape[0];
  set.pixels = images.shape[1] * images.shape[2];
  set.images = std::move(images.values);
  set.labels = std::move(labels.values);
  return set;
}

std::vector<int32_t> Shuffled(int64_t count, uint64_t seed, int64_t epoch) {
  const uint64_t key = RandomKey(seed, HashName("shuffle"));
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = count - 1; i > 0; --i) {
    std::swap(order[i], order[RandomBits(key, epoch, i) % static_cast<uint64_t>(i + 1)]);
  }
  return order;
}

std::string Escaped(const std::string& bytes) {
  static const char kHex[] = "0123456789abcdef";
  std::string out;
  for (unsigned char c : bytes) {
    if ((c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t') {
      out += static_cast<char>(c);
    } else {
      out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
    }
  }
  return out;
}

}  // namespace oneflow_like
