// Files of tensors in the safetensors format, as Hugging Face's library of that name defines it: eight bytes
// with the size of a header, the header in JSON (name -> type, shape, place), and the tensors' bytes,
// row-major and little-endian, without gaps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"

namespace oneflow_like {

struct StoredTensor {
  DType dtype = DType::kFloat32;
  Dims shape;
  int64_t offset = 0;  // of its first byte in the file
  int64_t bytes() const { return shape.elements() * static_cast<int64_t>(SizeOf(dtype)); }
};

// A tensor of a type that this library does not have (F64, I8, ...).
struct OtherTensor {
  std::string type;  // its name in the file
  int64_t offset = 0, bytes = 0;
};

// An open file, closed by the destructor. Every Error names the file.
class File {
 public:
  enum Mode { kRead, kCreate };
  File(std::string path, Mode mode);
  ~File();
  File(const File&) = delete;

  int64_t size() const;
  void ReadAt(int64_t offset, void* to, int64_t bytes) const;  // exactly `bytes`; a shorter file is an
                                                               // Error
  void WriteAt(int64_t offset, const void* from, int64_t bytes);
  void Reserve(int64_t bytes);  // allocates space, so that later writes cannot run out of it
  void Sync();
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  int fd_ = -1;
};

// Reads a whole file; one of more than `most` bytes is an Error.
std::string ReadText(const std::string& path, int64_t most);

class SafetensorsReader {
 public:
  // Reads the header. Throws Error for an invalid file: a header that is longer than the file or than 100 MB,
  // invalid JSON, a tensor outside the file, tensors that overlap.
  explicit SafetensorsReader(const std::string& path);

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::map<std::string, OtherTensor>& others() const { return others_; }
  const StoredTensor& Find(const std::string& name) const;  // throws Error, also for one of the others
  const File& file() const { return file_; }

 private:
  File file_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, OtherTensor> others_;
  std::map<std::string, std::string> metadata_;
};

// Creates a file of these tensors and allocates its space at once; bytes may be written in any order. In the
// file the tensors with the largest elements come first, so that each begins at a multiple of its elements'
// size, because other readers access the bytes in place.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::kFloat32;
    Dims shape;
  };
  SafetensorsWriter(const std::string& path, std::vector<Entry> entries,
                    const std::map<std::string, std::string>& metadata = {});
  // `offset` in bytes from the tensor's first.
  void Write(const std::string& name, int64_t offset, const void* from, int64_t bytes);
  void Sync() { file_.Sync(); }
  int64_t size() const { return size_; }

 private:
  File file_;
  std::map<std::string, StoredTensor> tensors_;
  int64_t size_ = 0;
};

// "F32", "BF16", ...: the format's name of a type.
const char* SafetensorsName(DType dtype);

// Keeps a folder to one program while it lives, by a lock of the file `name` in it. When another program has
// the lock, the constructor throws an Error that names the folder and continues with `otherwise`.
class FolderLock {
 public:
  FolderLock(std::string folder, const std::string& name, const std::string& otherwise);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  const std::string& folder() const { return folder_; }

 private:
  const std::string folder_;
  int fd_ = -1;
};

// Makes a rename or a new file in the folder durable.
void SyncFolder(const std::string& folder);

}  // namespace oneflow_like
