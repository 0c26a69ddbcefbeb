// Opens backend libraries. A build that found no toolkit does not define OFL_CUDA_BUILT.
#include "core/device/backend.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "core/error.h"
#include "core/system/open_library.h"

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

#ifdef OFL_CUDA_BUILT

constexpr char kLibrary[] = "liboneflow_like_cuda.so";

Backend* OpenCuda() {
  const std::string who = "a cuda mesh";
  void* library = OpenLibrary(who, kLibrary, RTLD_NOW | RTLD_LOCAL);
  auto* entry = reinterpret_cast<Backend* (*)()>(FunctionOf(library, who, kLibrary, "OflBackend"));
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
