// What is on the disk when a checkpoint gets its name, so that a power cut at any later moment leaves it
// whole. The calls of the system by which this program writes are recorded on their way.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "oneflow_like/checkpoint.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/thread_job.h"

namespace {

struct Call {
  enum Kind { kWrite, kSync, kRename } kind;
  std::string path, to;
};
std::mutex calls_mutex;  // processes of a job are threads here
std::vector<Call> calls;

std::string PathOf(int fd) {
  char path[4096];
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return std::string(path, length > 0 ? length : 0);
}

void Add(Call call) {
  std::lock_guard<std::mutex> lock(calls_mutex);
  calls.push_back(std::move(call));
}

template <typename F>
F* Next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// The system's, which the libraries of this program come to by way of these.
extern "C" {
ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  static auto* const next = Next<decltype(pwrite)>("pwrite");
  const ssize_t written = next(fd, from, bytes, offset);
  Add({Call::kWrite, PathOf(fd), ""});
  return written;
}
int fsync(int fd) {
  static auto* const next = Next<decltype(fsync)>("fsync");
  const int result = next(fd);
  Add({Call::kSync, PathOf(fd), ""});
  return result;
}
int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("rename");
  Add({Call::kRename, from, to});
  return next(from, to);
}
}

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// The place in `calls` of the last one of a kind before `end`; -1: there is none.
int LastOf(Call::Kind kind, const std::string& path, int end) {
  for (int i = end - 1; i >= 0; --i)
    if (calls[i].kind == kind && calls[i].path == path) return i;
  return -1;
}

void SaveOnce(const std::string& folder, std::shared_ptr<Job> job) {
  Model model(FullMesh("cpu:dp=2"), {.zero = {"dp"}, .job = job});
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32);
  Tensor w = model.scope().Weight("w", {3, 4}, Normal(1));
  Session train = Train(mean(square(matmul(x, w))), Adam{});
  train.Run({{"x", Floats(0, {4, 3})}}).Wait();
  Save(model, folder).Wait();
}

TEST(CheckpointOrder, ANameIsGivenToWhatIsOnTheDisk) {
  for (int processes : {1, 2}) {
    const std::string folder =
        fs::canonical(testing::TempDir()).string() + "/checkpoint_order_test." + std::to_string(getpid());
    calls.clear();
    if (processes == 1) SaveOnce(folder, nullptr);
    for (const std::string& error : RunProcesses(processes > 1 ? processes : 0,
                                                 [&](std::shared_ptr<Job> job) { SaveOnce(folder, job); }))
      EXPECT_EQ(error, "");
    const std::string path = folder + "/step-00000001";
    int named = -1;
    for (size_t i = 0; i < calls.size(); ++i)
      if (calls[i].kind == Call::kRename && calls[i].to == path) named = static_cast<int>(i);
    ASSERT_GE(named, 0);
    const std::string partial = calls[named].path;
    int last_write = -1, files = 0;
    for (const auto& entry : fs::directory_iterator(path)) {
      const std::string was = partial + "/" + entry.path().filename().string();
      const int written = LastOf(Call::kWrite, was, named), synced = LastOf(Call::kSync, was, named);
      EXPECT_GE(written, 0) << was;
      EXPECT_GT(synced, written) << was << " is written and not made last";
      last_write = std::max(last_write, written);
      ++files;
    }
    EXPECT_EQ(files, processes + 1);  // and the index
    EXPECT_GT(LastOf(Call::kSync, partial, named), last_write) << "the names of the files are not made last";
    EXPECT_GT(LastOf(Call::kSync, folder, static_cast<int>(calls.size())), named)
        << "the checkpoint's own name is not made last";
    fs::remove_all(folder);
  }
}

}  // namespace
}  // namespace oneflow_like
