#include "oneflow_like/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "oneflow_like/text/json_text.h"
#include "oneflow_like/text/utf8.h"

namespace oneflow_like {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMostHeader = 100'000'000;  // as the format's own library
constexpr int64_t kAlignment = 64;            // of the first tensor: the header is padded with blanks

[[noreturn]] void FailWith(const std::string& path, const std::string& what) { Fail(path, ": ", what); }

bool ParseName(const std::string& text, DType* dtype) {
  for (DType d : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32, DType::kInt64,
                  DType::kUInt8, DType::kBool})
    if (text == SafetensorsName(d)) {
      *dtype = d;
      return true;
    }
  return false;
}

// A whole number of a header that is at least 0.
int64_t WholeNumber(const json& value, const std::string& path, const std::string& tensor) {
  if (!value.is_number_integer() || value < 0 || value > INT64_MAX)
    FailWith(path,
             Cat("tensor '", tensor, "' has ", value.dump().substr(0, 40), " where a whole number is meant"));
  return value.get<int64_t>();
}

// Where a tensor's bytes lie in the file.
struct ByteRange {
  int64_t begin = 0, end = 0;
};

// What every entry has, whatever its type.
ByteRange ByteRangeOf(const json& entry, const std::string& path, const std::string& name, int64_t data,
                      int64_t size) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets"))
    FailWith(path, Cat("tensor '", name, "' lacks dtype, shape or data_offsets"));
  const json &dtype = entry["dtype"], &offsets = entry["data_offsets"];
  if (!dtype.is_string() || dtype.get_ref<const std::string&>().empty())
    FailWith(path, Cat("tensor '", name, "' is of type ", dtype.dump().substr(0, 40), ", which is no name"));
  if (!entry["shape"].is_array())
    FailWith(path, Cat("tensor '", name, "' has shape ", entry["shape"].dump().substr(0, 60)));
  if (!offsets.is_array() || offsets.size() != 2)
    FailWith(path, Cat("tensor '", name, "' has data_offsets ", offsets.dump().substr(0, 60)));
  const int64_t begin = WholeNumber(offsets[0], path, name), end = WholeNumber(offsets[1], path, name);
  if (begin > end || end > size - data)
    FailWith(path, Cat("tensor '", name, "' claims bytes ", begin, " to ", end, " of ", size - data,
                       " in the file"));
  return {data + begin, data + end};
}

StoredTensor ToTensor(DType dtype, const json& shape, const ByteRange& at, const std::string& path,
                      const std::string& name, int64_t size) {
  StoredTensor tensor{dtype, {}, at.begin};
  if (shape.size() > Dims::kMaxRank)
    FailWith(path, Cat("tensor '", name, "' has shape ", shape.dump().substr(0, 60), "; up to ",
                       Dims::kMaxRank, " axes are possible"));
  int64_t elements = 1;
  for (const json& extent : shape) {
    const int64_t e = WholeNumber(extent, path, name);
    if (e != 0 && elements > size / e)
      FailWith(path, Cat("tensor '", name, "' has shape ", shape.dump().substr(0, 60),
                         ", more than the file holds"));
    elements *= e;
    tensor.shape.push_back(e);
  }
  if (at.end - at.begin != tensor.bytes())
    FailWith(path, Cat("tensor '", name, "' of shape ", tensor.shape.str(), " takes ", tensor.bytes(),
                       " bytes but has ", at.end - at.begin));
  return tensor;
}

void CheckApart(const std::string& path, std::vector<std::pair<ByteRange, std::string>> tensors) {
  std::erase_if(tensors, [](const auto& tensor) { return tensor.first.begin == tensor.first.end; });
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  for (size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i - 1].first.end > tensors[i].first.begin)
      FailWith(path, Cat("tensors '", tensors[i - 1].second, "' and '", tensors[i].second, "' overlap"));
}

}  // namespace

const char* SafetensorsName(DType dtype) {
  static const char* const names[] = {"F32", "BF16", "F16", "I32", "I64", "U8", "BOOL"};
  return names[static_cast<int>(dtype)];
}

// --- File ---

File::File(std::string path, Mode mode) : path_(std::move(path)) {
  // A pipe of that name would keep us waiting for its writer.
  fd_ = mode == kRead ? open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)
                      : open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0)
    FailWith(path_, Cat("it cannot be ", mode == kRead ? "read" : "created", ": ", std::strerror(errno)));
  struct stat found;
  if (fstat(fd_, &found) != 0 || !S_ISREG(found.st_mode)) {
    close(fd_);
    FailWith(path_, "it is no regular file");
  }
}

File::~File() { close(fd_); }

int64_t File::size() const {
  struct stat found;
  if (fstat(fd_, &found) != 0) FailWith(path_, std::strerror(errno));
  return found.st_size;
}

void File::ReadAt(int64_t offset, void* to, int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = pread(fd_, static_cast<char*>(to) + done, bytes - done, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailWith(path_, Cat("it cannot be read at byte ", offset + done, ": ", std::strerror(errno)));
    if (n == 0) FailWith(path_, Cat("it ends at byte ", offset + done, ", before byte ", offset + bytes));
    done += n;
  }
}

void File::WriteAt(int64_t offset, const void* from, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = pwrite(fd_, static_cast<const char*>(from) + done, bytes - done, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      FailWith(path_, Cat("it cannot be written at byte ", offset + done, ": ", std::strerror(errno)));
    done += n;
  }
}

void File::Reserve(int64_t bytes) {
  if (bytes == 0) return;
  int error = posix_fallocate(fd_, 0, bytes);
  if (error == EOPNOTSUPP || error == EINVAL) error = ftruncate(fd_, bytes) == 0 ? 0 : errno;
  if (error != 0) FailWith(path_, Cat("there is no room for its ", bytes, " bytes: ", std::strerror(error)));
}

void File::Sync() {
  if (fsync(fd_) != 0) FailWith(path_, Cat("it cannot be made last: ", std::strerror(errno)));
}

// --- FolderLock ---

FolderLock::FolderLock(std::string folder, const std::string& name, const std::string& otherwise)
    : folder_(std::move(folder)) {
  const std::string path = folder_ + "/" + name;
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) FailWith(path, Cat("it cannot be made: ", std::strerror(errno)));
  // Where the file system knows no locks, nothing keeps them apart.
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(fd_);
  FailWith(folder_, otherwise);
}

FolderLock::~FolderLock() { close(fd_); }

void SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) FailWith(folder, std::strerror(errno));
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  if (error != 0 && error != EINVAL) FailWith(folder, Cat("it cannot be made last: ", std::strerror(error)));
}

std::string ReadText(const std::string& path, int64_t most) {
  const File file(path, File::kRead);
  const int64_t size = file.size();
  if (size > most) FailWith(path, Cat("it has ", size, " bytes, but at most ", most, " are meant"));
  std::string text(size, '\0');
  file.ReadAt(0, text.data(), size);
  return text;
}

// --- Reading ---

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(path, File::kRead) {
  const int64_t size = file_.size();
  if (size < kLengthBytes) FailWith(path, Cat("it has ", size, " bytes, which is no safetensors file"));
  unsigned char raw[kLengthBytes];
  file_.ReadAt(0, raw, kLengthBytes);
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) length = length << 8 | raw[i];
  if (length > kMostHeader || static_cast<int64_t>(length) > size - kLengthBytes)
    FailWith(path, Cat("its header claims ", length, " bytes of ", size,
                       "; it is no safetensors file, or a piece of one"));
  std::string text(length, '\0');
  file_.ReadAt(kLengthBytes, text.data(), static_cast<int64_t>(length));
  const json header = ParseJson(path, text);
  if (!header.is_object()) FailWith(path, "its header is no JSON object");
  std::vector<std::pair<ByteRange, std::string>> extents;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      const ByteRange at = ByteRangeOf(entry, path, name, kLengthBytes + static_cast<int64_t>(length), size);
      extents.push_back({at, name});
      const std::string type = entry["dtype"];
      if (DType dtype; ParseName(type, &dtype))
        tensors_[name] = ToTensor(dtype, entry["shape"], at, path, name, size);
      else
        others_[name] = {type, at.begin, at.end - at.begin};
      continue;
    }
    if (!entry.is_object()) FailWith(path, "its __metadata__ is no JSON object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) FailWith(path, Cat("__metadata__ '", key, "' is no text"));
      metadata_[key] = value.get<std::string>();
    }
  }
  CheckApart(path, std::move(extents));
}

const StoredTensor& SafetensorsReader::Find(const std::string& name) const {
  if (const auto other = others_.find(name); other != others_.end())
    FailWith(file_.path(), Cat("tensor '", name, "' is of type ",
                               json(other->second.type).dump().substr(0, 40), ", which is not known here"));
  auto found = tensors_.find(name);
  if (found == tensors_.end()) FailWith(file_.path(), Cat("there is no tensor '", name, "' in it"));
  return found->second;
}

// --- Writing ---

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Entry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path, File::kCreate) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return SizeOf(a.dtype) > SizeOf(b.dtype); });
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t end = 0;
  for (const Entry& entry : entries) {
    StoredTensor tensor{entry.dtype, entry.shape, end};
    end += tensor.bytes();
    if (!IsUtf8(entry.name)) FailWith(path, "the name of a tensor is no text in UTF-8");
    if (!tensors_.emplace(entry.name, tensor).second)
      FailWith(path, Cat("two tensors are named '", entry.name, "'"));
    header[entry.name] = {{"dtype", SafetensorsName(entry.dtype)},
                          {"shape", std::vector<int64_t>(entry.shape.begin(), entry.shape.end())},
                          {"data_offsets", {tensor.offset, end}}};
  }
  std::string text = header.dump();
  const int64_t data =
      (kLengthBytes + static_cast<int64_t>(text.size()) + kAlignment - 1) / kAlignment * kAlignment;
  text.resize(data - kLengthBytes, ' ');
  size_ = data + end;
  for (auto& [name, tensor] : tensors_) tensor.offset += data;
  file_.Reserve(size_);
  unsigned char raw[kLengthBytes];
  for (int i = 0; i < kLengthBytes; ++i) raw[i] = static_cast<unsigned char>(text.size() >> (8 * i));
  file_.WriteAt(0, raw, kLengthBytes);
  file_.WriteAt(kLengthBytes, text.data(), static_cast<int64_t>(text.size()));
}

void SafetensorsWriter::Write(const std::string& name, int64_t offset, const void* from, int64_t bytes) {
  file_.WriteAt(tensors_.at(name).offset + offset, from, bytes);
}

}  // namespace oneflow_like
