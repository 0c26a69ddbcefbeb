// Opens backend libraries. OFL_CUDA_LIBRARY_DIR is where the build puts liboneflow_like_cuda.so; a build that
// found no toolkit does not define it.
#include "core/backend.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <map>
#include <mutex>

#include "core/error.h"

namespace oneflow_like {
namespace {

struct Opened {
  std::mutex mutex;  // ranks of one process may ask at the same time
  std::map<std::string, Backend*> backends;
};

Opened& GetOpened() {
  static Opened* opened = new Opened;  // outlives whatever asks at exit
  return *opened;
}

#ifdef OFL_CUDA_LIBRARY_DIR

constexpr char kLibrary[] = "liboneflow_like_cuda.so";

std::string FolderOfProgram() {
  char path[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return ".";
  std::string text(path, static_cast<size_t>(length));
  return text.substr(0, text.find_last_of('/'));
}

// Next to the program, where an installed or bundled one has its libraries, where it was built; then wherever
// the system looks.
Backend* OpenCuda() {
  const std::string here = FolderOfProgram();
  const std::string folders[] = {here, here + "/../lib", OFL_CUDA_LIBRARY_DIR};
  void* library = nullptr;
  std::string looked;
  for (const std::string& folder : folders) {
    std::string path = folder + "/" + kLibrary;
    looked += Cat(looked.empty() ? "" : ", ", folder);
    if (access(path.c_str(), F_OK) != 0) continue;
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) Fail("a cuda mesh needs ", kLibrary, ", which cannot be loaded: ", dlerror());
    break;
  }
  if (library == nullptr) library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    Fail("a cuda mesh needs ", kLibrary, ", which is in none of ", looked, ", nor anywhere the system looks");
  }
  auto* entry = reinterpret_cast<Backend* (*)()>(dlsym(library, "OflBackend"));
  if (entry == nullptr) Fail("a cuda mesh needs ", kLibrary, ", but the one found is not of this program");
  return entry();  // throws Error where there is no driver or device
}

#else

Backend* OpenCuda() {
  Fail(
      "a cuda mesh needs a program built with the CUDA toolkit; this one was built without, so take a cpu "
      "mesh or "
      "build again where nvcc is found");
}

#endif

}  // namespace

Backend* OpenBackend(const std::string& kind) {
  Opened& opened = GetOpened();
  std::lock_guard<std::mutex> lock(opened.mutex);
  if (auto found = opened.backends.find(kind); found != opened.backends.end()) return found->second;
  if (kind != "cuda") Fail("there are no devices of kind '", kind, "': a mesh is of cpu or cuda");
  return opened.backends[kind] = OpenCuda();
}

void SetBackend(const std::string& kind, Backend* backend) {
  Opened& opened = GetOpened();
  std::lock_guard<std::mutex> lock(opened.mutex);
  if (backend == nullptr) {
    opened.backends.erase(kind);
  } else {
    opened.backends[kind] = backend;
  }
}

}  // namespace oneflow_like
