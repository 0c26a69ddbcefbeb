// Files of data: mapped into memory, or read whole with gzip unpacked. Every Error names the file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

struct gzFile_s;  // of zlib

namespace oneflow_like {

// A file's bytes, mapped read-only: they are read on first access, and shared by all processes of a host. The
// file must not be truncated while it is mapped. A file that is not regular (a pipe) is read into memory.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws Error
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  const std::string path_;
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
  std::string read_;  // if it cannot be mapped
};

// Reads a file from begin to end, decompressed if it is gzip.
class GzipReader {
 public:
  explicit GzipReader(const std::string& path);  // throws Error; a name ending in .gz must hold gzip
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  // Up to `bytes` bytes; fewer only at the end of the file. Throws Error.
  int64_t Read(char* to, int64_t bytes);

 private:
  const std::string path_;
  gzFile_s* file_ = nullptr;
};

// The bytes of a file; gzip is recognised by content and decompressed, and a file named *.gz must be gzip.
// Throws Error when the contents exceed `limit` bytes.
std::string ReadFile(const std::string& path, int64_t limit = int64_t{4} << 30);

// Whether `data` begins as a gzip file does.
bool IsGzip(const uint8_t* data, int64_t size);

// The format that `data` begins as, if it is one that programs pack, store or send data in and that is no
// text
// ("zstd", "a zip archive", "Parquet", "a JPEG", "a NumPy array"); empty: another one. gzip is not among
// them, since it is unpacked.
std::string ForeignFormat(const uint8_t* data, int64_t size);

// The files that match a shell pattern (*, ?, [a-z]), sorted by name; the path itself if it has no wildcard
// or if there is a file of that name. Brackets mean themselves where that finds a file, as in
// "folder[1]/*.txt". Throws Error when none matches.
std::vector<std::string> FilesOf(const std::string& pattern);

// A hash of `size` bytes that `at` gives parts of (valid until its next call), looking at no more than `most`
// of them: at all, or at 16 parts, evenly from the first byte to the last.
uint64_t HashOfSome(int64_t size, int64_t most,
                    const std::function<const void*(int64_t offset, int64_t bytes)>& at);
uint64_t HashOfSome(const void* data, int64_t size, int64_t most);
// Bytes of each of so many files that are looked at to compare them: 1 MiB, and 64 MiB of all together.
int64_t HashedBytes(size_t files);

// A part of a file as a message shows it: its first 60 bytes, those that are not printable ASCII as
// hexadecimal escapes.
std::string Shown(std::string_view part);

// Unsigned numbers of 1 to 8 bytes; little-endian.
uint64_t LittleAt(const uint8_t* data, int bytes);

}  // namespace oneflow_like
