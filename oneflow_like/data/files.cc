// Mapping, unpacking and finding files.
#include "oneflow_like/data/files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/hash_bytes.h"

namespace oneflow_like {
namespace {

// Of what has an end: a file or a pipe.
void RequireReadable(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0) Fail("cannot open ", path, ": ", std::strerror(errno));
  if (S_ISDIR(about.st_mode)) Fail("cannot read ", path, ": it is a folder");
  if (S_ISCHR(about.st_mode) || S_ISBLK(about.st_mode)) Fail("cannot read ", path, ": it is a device");
}

}  // namespace

GzipReader::GzipReader(const std::string& path) : path_(path) {
  RequireReadable(path);
  errno = 0;
  file_ = gzopen(path.c_str(), "rb");
  if (file_ == nullptr) Fail("cannot open ", path, ": ", std::strerror(errno != 0 ? errno : ENOMEM));
  if (path.ends_with(".gz") && gzdirect(file_)) {
    gzclose_r(file_);
    Fail(path, " is not a gzip file, though its name ends in .gz");
  }
}

GzipReader::~GzipReader() { gzclose_r(file_); }

int64_t GzipReader::Read(char* to, int64_t bytes) {
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

std::string ReadFile(const std::string& path, int64_t limit) {
  constexpr int64_t kLeast = int64_t{1} << 12, kMost = int64_t{1} << 20;
  GzipReader reader(path);
  std::error_code error;  // a pipe has no size
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  std::string all;
  // At first as much as the file has, and one more to see that it ends there.
  for (int64_t chunk = error ? kMost : std::clamp(size + 1, kLeast, kMost);; chunk = kMost) {
    const int64_t old = all.size();
    all.resize(old + chunk);
    const int64_t got = reader.Read(all.data() + old, chunk);
    all.resize(old + got);
    if (static_cast<int64_t>(all.size()) > limit) Fail(path, " holds more than ", limit, " bytes");
    if (got < chunk) return all;
  }
}

bool IsGzip(const uint8_t* data, int64_t size) { return size >= 2 && data[0] == 0x1f && data[1] == 0x8b; }

MappedFile::MappedFile(const std::string& path) : path_(path) {
  RequireReadable(path);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) Fail("cannot open ", path, ": ", std::strerror(errno));
  struct stat about = {};
  const bool known = fstat(file, &about) == 0;
  if (known && S_ISREG(about.st_mode) && about.st_size > 0) {
    void* at = mmap(nullptr, about.st_size, PROT_READ, MAP_SHARED, file, 0);
    const int error = errno;
    close(file);
    if (at == MAP_FAILED) Fail("cannot map ", path, " of ", about.st_size, " bytes: ", std::strerror(error));
    data_ = static_cast<const uint8_t*>(at);
    size_ = about.st_size;
    return;
  }
  close(file);
  if (known && S_ISREG(about.st_mode)) return;  // empty
  read_ = ReadFile(path);
  data_ = reinterpret_cast<const uint8_t*>(read_.data());
  size_ = static_cast<int64_t>(read_.size());
}

MappedFile::~MappedFile() {
  if (read_.empty() && data_ != nullptr && size_ > 0) munmap(const_cast<uint8_t*>(data_), size_);
}

std::string ForeignFormat(const uint8_t* data, int64_t size) {
  struct Format {
    const char* name;
    std::string_view begin, later = {};
    int64_t at = 0;  // of `later`; below 0: from the end
  };
  using namespace std::string_view_literals;
  static constexpr Format kFormats[] = {
      {"zstd", "\x28\xb5\x2f\xfd"sv},
      {"xz", "\xfd\x37zXZ\0"sv},
      {"bzip2", "BZh"sv, "1AY&SY"sv, 4},  // digits of pi
      {"bzip2", "BZh"sv, "\x17\x72\x45\x38\x50\x90"sv, 4},
      {"lzip", "LZIP\1"sv},
      {"lz4", "\x04\x22\x4d\x18"sv},
      {"compress", "\x1f\x9d"sv},
      {"a zip archive", "PK\3\4"sv},
      {"a zip archive", "PK\5\6"sv},
      {"a 7z archive", "7z\xbc\xaf\x27\x1c"sv},
      {"a RAR archive", "Rar!\x1a\x07"sv},
      {"a tar archive", ""sv, "ustar\0"sv, 257},
      {"a tar archive", ""sv, "ustar  \0"sv, 257},
      {"Parquet", "PAR1"sv, "PAR1"sv, -4},
      {"Arrow", "ARROW1\0\0"sv},
      {"Feather", "FEA1"sv, "FEA1"sv, -4},
      {"Avro", "Obj\1"sv},
      {"HDF5", "\x89HDF\r\n\x1a\n"sv},
      {"an SQLite database", "SQLite format 3\0"sv},
      {"a NumPy array", "\x93NUMPY"sv},
      {"a Megatron index", "MMIDIDX\0\0"sv},
      {"a token file of llm.c", "\x88\xd8\x34\x01\1\0\0\0"sv},
      {"a token file of llm.c", "\xa1\xd9\x34\x01\7\0\0\0"sv},
      {"safetensors", ""sv, "\0\0\0\0{\""sv, 4},
      {"GGUF", "GGUF"sv, "\0\0"sv, 6},
      {"a pickle of Python", "\x80\4\x95"sv},
      {"a pickle of Python", "\x80\5\x95"sv},
      {"a JPEG", "\xff\xd8\xff"sv},
      {"a PNG", "\x89PNG\r\n\x1a\n"sv},
      {"a GIF", "GIF87a"sv},
      {"a GIF", "GIF89a"sv},
      {"a TIFF", "II*\0"sv},
      {"a TIFF", "MM\0*"sv},
      {"a WebP", "RIFF"sv, "WEBPVP8"sv, 8},
      {"a HEIF or AVIF picture or a video", "\0\0\0"sv, "ftyp"sv, 4},
      {"a PDF", "%PDF-"sv},
      {"a program", "\177ELF"sv},
  };
  const std::string_view text(reinterpret_cast<const char*>(data), static_cast<size_t>(size));
  for (const Format& format : kFormats) {
    const int64_t at = format.at < 0 ? size + format.at : format.at;
    if (text.starts_with(format.begin) && at >= 0 && at <= size &&
        text.substr(static_cast<size_t>(at)).starts_with(format.later))
      return format.name;
  }
  return "";
}

namespace {

// `pattern` whose brackets are characters like others.
std::string WithPlainBrackets(const std::string& pattern) {
  std::string plain;
  for (const char c : pattern) plain += c == '[' || c == ']' ? std::string({'\\', c}) : std::string(1, c);
  return plain;
}

std::vector<std::string> Matching(const std::string& pattern) {
  glob_t found = {};
  const int code = glob(pattern.c_str(), 0, nullptr, &found);  // sorted
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + (code == 0 ? found.gl_pathc : 0));
  globfree(&found);
  return files;
}

}  // namespace

std::vector<std::string> FilesOf(const std::string& pattern) {
  std::error_code error;  // a name that is too long, say, which reading will tell
  if (pattern.find_first_of("*?[") == std::string::npos || std::filesystem::exists(pattern, error))
    return {pattern};
  const bool brackets = pattern.find('[') != std::string::npos;
  std::vector<std::string> files;
  if (brackets) files = Matching(WithPlainBrackets(pattern));
  if (files.empty()) files = Matching(pattern);
  if (files.empty())
    Fail("no file matches ", pattern,
         brackets ? ", neither with its brackets as they are nor as a pattern, where [ab] stands for a or b"
                  : "");
  return files;
}

uint64_t HashOfSome(int64_t size, int64_t most,
                    const std::function<const void*(int64_t offset, int64_t bytes)>& at) {
  constexpr int64_t kParts = 16;
  if (size <= std::max(most, kParts)) return HashOfBytes(size > 0 ? at(0, size) : nullptr, size);
  const int64_t bytes = std::max<int64_t>(1, most / kParts);
  uint64_t hash = static_cast<uint64_t>(size);
  for (int64_t part = 0; part < kParts; ++part) {
    // Without overflow: the places of sizes up to 2^63.
    const int64_t room = size - bytes,
                  offset = room / (kParts - 1) * part + room % (kParts - 1) * part / (kParts - 1);
    hash = HashOfBytes(at(offset, bytes), bytes, hash);
  }
  return hash;
}

uint64_t HashOfSome(const void* data, int64_t size, int64_t most) {
  return HashOfSome(size, most,
                    [&](int64_t offset, int64_t) { return static_cast<const char*>(data) + offset; });
}

int64_t HashedBytes(size_t files) {
  constexpr int64_t kOfOne = int64_t{1} << 20, kOfAll = int64_t{64} << 20;
  return std::min(kOfOne, kOfAll / std::max<int64_t>(1, static_cast<int64_t>(files)));
}

std::string Shown(std::string_view part) {
  constexpr size_t kMost = 60;
  std::string shown;
  for (const char c : part.substr(0, kMost)) {
    if (c >= ' ' && c <= '~') {
      shown += c;
      continue;
    }
    constexpr char kDigits[] = "0123456789abcdef";
    shown += {'\\', 'x', kDigits[c >> 4 & 15], kDigits[c & 15]};
  }
  return part.size() > kMost ? shown + "..." : shown;
}

uint64_t LittleAt(const uint8_t* data, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | data[i];
  return value;
}

}  // namespace oneflow_like
