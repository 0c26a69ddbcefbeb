#include "core/system/file_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <set>

#include "core/error.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// Where writing to `path` would create a file: `path`, or what a link there points to that is not there.
fs::path Followed(fs::path path) {
  std::error_code error;
  for (int links = 0; links < 40 && fs::is_symlink(path, error); ++links)
    path = path.parent_path() / fs::read_symlink(path, error);
  return path;
}

bool IsOneOfNames(const std::string& name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* n) { return name == n; });
}
bool StartsAsOneOf(const std::string& name, std::initializer_list<const char*> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const char* b) { return name.starts_with(b); });
}
bool EndsAsOneOf(const std::string& name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* e) { return name.ends_with(e); });
}

constexpr int kDeepest = 2;

// Whether programs read a file of that name, so many folders below one that a flag names: of checkpoints and
// models there or a folder below, pictures in the folder of their class.
bool IsReadFromFolders(std::string name, int depth) {
  if (IsOneOfNames(name, {"config.json", "generation_config.json", "special_tokens_map.json",
                          "added_tokens.json", "merges.txt"}) ||
      StartsAsOneOf(name, {"tokenizer", "vocab", "chat_template"}) ||
      EndsAsOneOf(name, {".safetensors", ".safetensors.index.json", ".model", ".tiktoken", ".jinja",
                         "processor_config.json"}))
    return depth <= kDeepest;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return depth == kDeepest && EndsAsOneOf(name, {".jpg", ".jpeg", ".png"});
}

// How many folders below `folder` writing to `path` would write: 1 directly in it, 0 not below it.
int DepthIn(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  int depth = 0;
  for (fs::path at = fs::weakly_canonical(fs::absolute(Followed(path), error), error);
       at.has_relative_path();) {
    at = at.parent_path();
    ++depth;
    if (fs::equivalent(at, folder, error)) return depth;
  }
  return 0;
}

// Files and folders that are read through links in a folder.
struct Linked {
  std::vector<fs::path> folders;  // to which links directly in the folder point
  std::set<std::string> files;    // identities
};

// Adds what is `depth` folders below the one that a flag names. Pictures can be many, so that only links are
// looked up, or with `hard_links` every file.
void AddLinked(const fs::path& folder, int depth, bool hard_links, Linked* linked) {
  std::error_code error, none;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const bool link = entry->is_symlink(none);
    if (depth < kDeepest && entry->is_directory(none)) {
      if (link) linked->folders.push_back(entry->path());
      AddLinked(entry->path(), depth + 1, hard_links, linked);
    } else if ((link || hard_links) && IsReadFromFolders(entry->path().filename().string(), depth)) {
      linked->files.insert(FileIdentity(entry->path()));
    }
  }
}

bool HasHardLinks(const NamedFile& file) {
  struct stat found;
  return stat(file.path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink > 1;
}

// Whether writing `output` would write what is read from the folder, which may be there or not.
bool WritesInto(const NamedFile& output, const std::string& folder, const Linked& linked) {
  const std::string name = Followed(output.path).filename().string();
  const auto is_read = [&](const fs::path& at, int above) {
    const int depth = DepthIn(output.path, at);
    return depth > 0 && IsReadFromFolders(name, above + depth);
  };
  return is_read(folder, 0) || linked.files.contains(FileIdentity(output.path)) ||
         std::any_of(linked.folders.begin(), linked.folders.end(),
                     [&](const fs::path& at) { return is_read(at, 1); });
}

std::string Reason(int error) { return std::strerror(error != 0 ? error : EIO); }

// 0, or the system's number.
int WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    done += static_cast<size_t>(n);
  }
  return 0;
}

// A new file in the folder of `path`, under a name that nobody has. -1: none, errno says why.
int CreateBeside(const fs::path& path, fs::path* beside) {
  int fd = -1;
  for (int i = 0; fd < 0 && i < 100; ++i) {
    *beside = path.parent_path() / Cat(".", path.filename().string(), ".", getpid(), ".", i, ".new");
    fd = open(beside->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno != EEXIST) return -1;
  }
  return fd;
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

std::string WhyNotReadable(const std::string& path, int64_t most) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0 || access(path.c_str(), R_OK) != 0) return std::strerror(errno);
  if (S_ISDIR(found.st_mode)) return "it is a folder";
  if (S_ISFIFO(found.st_mode)) return "it is a pipe, and must be a regular file";
  if (S_ISCHR(found.st_mode) || S_ISBLK(found.st_mode)) return "it is a device, and must be a regular file";
  if (!S_ISREG(found.st_mode)) return "it is no regular file";
  if (found.st_size > most) return Cat("it has ", found.st_size, " bytes, and may have at most ", most);
  return "";
}

std::string FileIdentity(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) == 0)
    return S_ISREG(found.st_mode) ? Cat(found.st_dev, ":", found.st_ino) : "";
  std::error_code error;
  // Absolute first: of a name without a folder that is not there weakly_canonical would keep the name alone.
  const fs::path whole = fs::weakly_canonical(fs::absolute(Followed(path), error), error);
  if (error || stat(whole.parent_path().c_str(), &found) != 0) return "";
  return Cat(found.st_dev, ":", found.st_ino, "/", whole.filename().string());
}

void ReportFileSizeLimit() {
  struct sigaction now = {};
  if (sigaction(SIGXFSZ, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL)
    std::signal(SIGXFSZ, SIG_IGN);
}

void RequireDistinct(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs) {
  std::map<std::string, Linked> folders;  // by the inputs that are some
  const bool hard_links = std::any_of(outputs.begin(), outputs.end(), HasHardLinks);
  for (const NamedFile& input : inputs) {
    std::error_code error;
    if (fs::is_directory(input.path, error) && folders.try_emplace(input.path).second)
      AddLinked(input.path, 1, hard_links, &folders[input.path]);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string identity = FileIdentity(outputs[i].path);
    if (identity.empty()) continue;
    for (const NamedFile& input : inputs) {
      if (FileIdentity(input.path) == identity)
        Fail(outputs[i].what, " would overwrite ", input.what, ": they are the same file; write to another");
      const auto folder = folders.find(input.path);
      if (folder != folders.end() && WritesInto(outputs[i], input.path, folder->second))
        Fail(outputs[i].what, " would overwrite what ", input.what, " reads; write elsewhere");
    }
    for (size_t k = 0; k < i; ++k) {
      if (FileIdentity(outputs[k].path) == identity)
        Fail(outputs[i].what, " and ", outputs[k].what, " are the same file; write to two");
    }
  }
}

void ReplaceFile(const std::string& path, const std::string& text, const std::string& what) {
  const fs::path to = Followed(path);
  const bool kept = !FileIdentity(path).empty();  // or there is nothing that could be lost
  fs::path beside;
  int fd = kept ? CreateBeside(to, &beside) : -1;
  const bool denied = errno == EACCES || errno == EPERM || errno == EROFS;
  if (kept && fd < 0 && !denied) throw WriteError(Cat(what, " cannot be written: ", Reason(errno)));
  const bool direct = fd < 0;
  if (direct) fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) throw WriteError(Cat(what, " cannot be written: ", Reason(errno)));
  int error = WriteAll(fd, text);
  if (!direct) {
    struct stat former;
    if (error == 0 && stat(to.c_str(), &former) == 0) (void)fchmod(fd, former.st_mode & 07777);
    if (error == 0 && fsync(fd) != 0) error = errno;
  }
  if (close(fd) != 0 && error == 0) error = errno;
  if (!direct && error == 0 && std::rename(beside.c_str(), to.c_str()) != 0) error = errno;
  if (!direct && error != 0) unlink(beside.c_str());
  if (error != 0) throw WriteError(Cat(what, " cannot be written: ", Reason(error)));
}

}  // namespace oneflow_like
