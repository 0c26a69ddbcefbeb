#include "core/system/file_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace oneflow_like {
namespace {

// Where writing to `path` would create a file: `path`, or what a link there points to that is not there.
std::filesystem::path Followed(std::filesystem::path path) {
  std::error_code error;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(path, error); ++links)
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  return path;
}

}  // namespace

std::string WhyNotWritable(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) == 0) {
    if (S_ISDIR(found.st_mode)) return "it is a folder";
    const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0) close(fd);
    if (fd >= 0 || (errno == ENXIO && S_ISFIFO(found.st_mode))) return "";  // a pipe that nobody reads yet
    return S_ISSOCK(found.st_mode) ? "it is a socket" : std::strerror(errno);
  }
  if (errno != ENOENT) return std::strerror(errno);
  // Another process of the job may ask at this moment, so that only the one that creates the file removes it.
  const std::string created = Followed(path);
  const int fd = open(created.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return errno == EEXIST ? "" : std::strerror(errno);
  close(fd);
  unlink(created.c_str());
  return "";
}

std::string FileIdentity(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) == 0)
    return S_ISREG(found.st_mode) ? Cat(found.st_dev, ":", found.st_ino) : "";
  std::error_code error;
  // Absolute first: of a name without a folder that is not there weakly_canonical would keep the name alone.
  const std::filesystem::path whole =
      std::filesystem::weakly_canonical(std::filesystem::absolute(Followed(path), error), error);
  if (error || stat(whole.parent_path().c_str(), &found) != 0) return "";
  return Cat(found.st_dev, ":", found.st_ino, "/", whole.filename().string());
}

void RequireDistinct(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string identity = FileIdentity(outputs[i].path);
    if (identity.empty()) continue;
    for (const NamedFile& input : inputs) {
      if (FileIdentity(input.path) == identity)
        Fail(outputs[i].what, " would overwrite ", input.what, ": they are the same file; write to another");
    }
    for (size_t k = 0; k < i; ++k) {
      if (FileIdentity(outputs[k].path) == identity)
        Fail(outputs[i].what, " and ", outputs[k].what, " are the same file; write to two");
    }
  }
}

}  // namespace oneflow_like
