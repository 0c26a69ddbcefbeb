// Generated kernels as host C++: the same text through the host's compiler into a shared object, and one call
// per thread of the grid on the stream's thread.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "ops/cuda/jit_loaded.h"

namespace oneflow_like::cuda {
namespace {

using Entry = void (*)(const void* args, unsigned block, unsigned blocks, unsigned thread, unsigned threads);

class Emulated : public LoadedKernel {
 public:
  explicit Emulated(Entry entry) : entry_(entry) {}
  Status Launch(const Grid& grid, cudaStream_t stream, const void* args, size_t bytes) override {
    // Words: the arguments hold pointers.
    std::vector<uint64_t> copy(bytes / 8);
    std::copy_n(static_cast<const char*>(args), bytes, reinterpret_cast<char*>(copy.data()));
    cuda_emulator::Enqueue(stream, [entry = entry_, grid, copy] {
      for (unsigned block = 0; block < grid.x; ++block) {
        for (unsigned thread = 0; thread < grid.threads; ++thread) {
          entry(copy.data(), block, grid.x, thread, grid.threads);
        }
      }
    });
    return Status();
  }

 private:
  Entry entry_;
};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Status CompileAndLoad(const std::string& source, const std::string& function, int architecture,
                      std::unique_ptr<LoadedKernel>* loaded) {
  std::string folder = (std::filesystem::temp_directory_path() / "oneflow_like_jit_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return Status("no temporary folder for a generated kernel");
  std::string base = folder + "/" + function;
  std::ofstream(base + ".cc") << source;
  // -O1: what takes time is compiling, not running. A pack at an address that is not aligned to it ends the
  // program (SIGILL), as it ends a kernel on a GPU.
  std::string command =
      Cat("g++ -std=c++20 -O1 -w -fsanitize=alignment -fsanitize-undefined-trap-on-error -fPIC -shared -o ",
          base, ".so ", base, ".cc > ", base, ".log 2>&1");
  Status status;
  if (std::system(command.c_str()) != 0) {
    status = Status(Cat("the host's compiler could not compile ", function, ":\n", ReadAll(base + ".log")));
  } else if (void* library = dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL); library == nullptr) {
    status = Status(Cat("loading ", function, ": ", dlerror()));
  } else if (void* entry = dlsym(library, function.c_str()); entry == nullptr) {
    status = Status(Cat("the generated text has no function ", function));
  } else {
    cuda_emulator::LoadCode(entry);
    *loaded = std::make_unique<Emulated>(reinterpret_cast<Entry>(entry));
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return status;
}

}  // namespace oneflow_like::cuda
