// Generated kernels as host C++: the same text through the host's compiler into a shared object, and one call
// per thread of the grid on the stream's thread. Shared objects are kept in $OFL_EMULATED_KERNELS, else in
// the build's folder emulated_kernels, for the next program that generates the same text: a compilation takes
// half a second, and most programs generate the kernels of the same small models.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
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
    // As a library is loaded, for each device when it first launches: not where it was compiled.
    cuda_emulator::LoadCode(reinterpret_cast<const void*>(entry_));
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

// -O1: what takes time is compiling, not running. A pack at an address that is not aligned to it ends the
// program (SIGILL), as it ends a kernel on a GPU.
constexpr const char* kCompiler =
    "g++ -std=c++20 -O1 -w -fsanitize=alignment -fsanitize-undefined-trap-on-error -fPIC -shared -nostdlib";

bool Compile(const std::string& base) {
  const std::string command = Cat(kCompiler, " -o ", base, ".so ", base, ".cc > ", base, ".log 2>&1");
  return std::system(command.c_str()) == 0;
}

// Where what is compiled of `source` is kept: .so and, written after it, .cc with the text that it is of.
std::filesystem::path KeptAs(const std::string& source) {
  const char* given = std::getenv("OFL_EMULATED_KERNELS");
  const std::filesystem::path folder = given != nullptr ? given : OFL_BINARY_DIR "/emulated_kernels";
  return folder / std::to_string(std::hash<std::string>()(source));
}

// As <base>.so; false: it is not there.
bool TakeKept(const std::string& source, const std::string& base) {
  const std::string kept = KeptAs(source).string();
  std::error_code error;
  return ReadAll(kept + ".cc") == source && std::filesystem::copy_file(kept + ".so", base + ".so", error);
}

// Others may do the same at this moment: each file is whole when it gets its name.
void Keep(const std::string& source, const std::string& base) {
  const std::filesystem::path kept = KeptAs(source);
  std::error_code error;
  std::filesystem::create_directories(kept.parent_path(), error);
  for (const char* type : {".so", ".cc"}) {
    const std::string partial =
        Cat(kept.string(), type, ".", getpid(), ".", base.substr(base.rfind('/') - 6, 6));
    if (!std::filesystem::copy_file(base + type, partial, error)) return;
    std::filesystem::rename(partial, kept.string() + type, error);
  }
}

}  // namespace

Status CompileAndLoad(const std::string& text, const std::string& function, int architecture,
                      std::unique_ptr<LoadedKernel>* loaded) {
  std::string folder = (std::filesystem::temp_directory_path() / "oneflow_like_jit_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return Status("no temporary folder for a generated kernel");
  const std::string base = folder + "/kernel";
  const std::string source = Cat("// ", kCompiler, ", ", __VERSION__, "\n", text);
  const bool kept = TakeKept(source, base);
  std::ofstream(base + ".cc") << source;
  Status status;
  if (!kept && !Compile(base)) {
    status = Status(Cat("the host's compiler could not compile ", function, ":\n", ReadAll(base + ".log")));
  } else if (void* library = dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL); library == nullptr) {
    status = Status(Cat("loading ", function, ": ", dlerror()));
  } else if (void* entry = dlsym(library, function.c_str()); entry == nullptr) {
    status = Status(Cat("the generated text has no function ", function));
  } else {
    *loaded = std::make_unique<Emulated>(reinterpret_cast<Entry>(entry));
    if (!kept) Keep(source, base);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return status;
}

}  // namespace oneflow_like::cuda
