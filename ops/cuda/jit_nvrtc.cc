// Compiling with NVRTC, which is opened when first needed (it is large, and programs without generated
// kernels do not need it), and loading without linking libcuda: by the runtime's cudaLibraryLoadData (12.8),
// before that by the driver's functions from cudaGetDriverEntryPoint. Compiled kernels are kept on disk by
// text, architecture and version.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <glog/logging.h>
#include <nvrtc.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "core/system/cache_folder.h"
#include "ops/cuda/jit_cache.h"
#include "ops/cuda/jit_loaded.h"

namespace oneflow_like::cuda {
namespace {

// What is called of the library.
// clang-format off
#define OFL_NVRTC_FUNCTIONS(X) \
  X(Version) X(GetErrorString) X(GetNumSupportedArchs) X(GetSupportedArchs) X(CreateProgram) X(DestroyProgram) \
  X(CompileProgram) X(GetProgramLogSize) X(GetProgramLog) X(GetCUBINSize) X(GetCUBIN) X(GetPTXSize) X(GetPTX)
// clang-format on

struct Nvrtc {
  std::string error;  // why it cannot be used
  int major = 0, minor = 0;
  std::vector<int> architectures;
#define OFL_NVRTC(name) decltype(&::nvrtc##name) name = nullptr;
  OFL_NVRTC_FUNCTIONS(OFL_NVRTC)
#undef OFL_NVRTC
};

Nvrtc OpenNvrtc() {
  Nvrtc nvrtc;
  std::string versioned = Cat("libnvrtc.so.", CUDART_VERSION / 1000);
  void* library = nullptr;
  for (const std::string& name : {versioned, std::string("libnvrtc.so")}) {
    if (library == nullptr) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    nvrtc.error = Cat("elementwise kernels are compiled at run time, which needs NVIDIA's ", versioned,
                      " in the search path of libraries");
    return nvrtc;
  }
  bool all = true;
#define OFL_NVRTC(name)                                                               \
  nvrtc.name = reinterpret_cast<decltype(nvrtc.name)>(dlsym(library, "nvrtc" #name)); \
  all = all && nvrtc.name != nullptr;
  OFL_NVRTC_FUNCTIONS(OFL_NVRTC)
#undef OFL_NVRTC
  int count = 0;
  all = all && nvrtc.Version(&nvrtc.major, &nvrtc.minor) == NVRTC_SUCCESS &&
        nvrtc.GetNumSupportedArchs(&count) == NVRTC_SUCCESS;
  if (all) {
    nvrtc.architectures.resize(static_cast<size_t>(count));
    all = count > 0 && nvrtc.GetSupportedArchs(nvrtc.architectures.data()) == NVRTC_SUCCESS;
  }
  if (!all) nvrtc.error = versioned + " is not a whole NVRTC of this version";
  return nvrtc;
}

const Nvrtc& TheNvrtc() {
  static const Nvrtc* const nvrtc = new Nvrtc(OpenNvrtc());
  return *nvrtc;
}

std::string LogOf(const Nvrtc& nvrtc, nvrtcProgram program) {
  size_t size = 0;
  if (nvrtc.GetProgramLogSize(program, &size) != NVRTC_SUCCESS || size == 0) return "";
  std::string log(size, '\0');
  if (nvrtc.GetProgramLog(program, log.data()) != NVRTC_SUCCESS) return "";
  return log.substr(0, log.find('\0'));
}

// `program` is compiled; its machine code, or PTX for a device newer than this NVRTC.
bool CodeOf(const Nvrtc& nvrtc, nvrtcProgram program, bool machine, std::string* code) {
  size_t size = 0;
  auto get_size = machine ? nvrtc.GetCUBINSize : nvrtc.GetPTXSize;
  if (get_size(program, &size) != NVRTC_SUCCESS) return false;
  code->resize(size);
  return (machine ? nvrtc.GetCUBIN : nvrtc.GetPTX)(program, code->data()) == NVRTC_SUCCESS;
}

Status Compile(const Nvrtc& nvrtc, const std::string& source, const std::string& function, int architecture,
               std::string* code) {
  int newest = *std::max_element(nvrtc.architectures.begin(), nvrtc.architectures.end());
  bool machine = std::count(nvrtc.architectures.begin(), nvrtc.architectures.end(), architecture) > 0;
  std::string target = machine ? Cat("--gpu-architecture=sm_", architecture)
                               : Cat("--gpu-architecture=compute_", std::min(architecture, newest));
  const char* options[] = {target.c_str(), kNvrtcOptions[0], kNvrtcOptions[1]};
  nvrtcProgram program;
  nvrtcResult result =
      nvrtc.CreateProgram(&program, source.c_str(), (function + ".cu").c_str(), 0, nullptr, nullptr);
  if (result != NVRTC_SUCCESS) return Status(Cat("NVRTC: ", nvrtc.GetErrorString(result)));
  result = nvrtc.CompileProgram(program, 3, options);
  Status status;
  if (result != NVRTC_SUCCESS || !CodeOf(nvrtc, program, machine, code)) {
    status = Status(Cat("NVRTC could not compile ", function, " (", nvrtc.GetErrorString(result), "):\n",
                        LogOf(nvrtc, program)));
  }
  nvrtc.DestroyProgram(&program);
  return status;
}

std::string Failed(const std::string& what, cudaError_t error) {
  return Cat(what, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error));
}

#if CUDART_VERSION >= 12080
// Loaded for all devices, when each is first used; never unloaded: the table of texts lives as long as the
// process.
class Loaded : public LoadedKernel {
 public:
  static Status Load(const std::string& code, const std::string& function,
                     std::unique_ptr<LoadedKernel>* to) {
    auto loaded = std::make_unique<Loaded>();
    loaded->code_ = code;
    cudaLibrary_t library;
    cudaError_t error =
        cudaLibraryLoadData(&library, loaded->code_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (error == cudaSuccess) error = cudaLibraryGetKernel(&loaded->kernel_, library, function.c_str());
    if (error != cudaSuccess) return Status(Failed("loading " + function, error));
    *to = std::move(loaded);
    return Status();
  }
  Status Launch(const Grid& grid, cudaStream_t stream, const void* args, size_t bytes) override {
    void* params[] = {const_cast<void*>(args)};
    cudaError_t error = cudaLaunchKernel(reinterpret_cast<const void*>(kernel_), dim3(grid.x, grid.y),
                                         dim3(grid.threads), params, grid.shared, stream);
    return error == cudaSuccess ? Status() : Status(Failed("launching a generated kernel", error));
  }

 private:
  std::string code_;
  cudaKernel_t kernel_ = nullptr;
};
#else
// Modules belong to a device's context: loaded for each device when it first launches.
class Loaded : public LoadedKernel {
 public:
  static Status Load(const std::string& code, const std::string& function,
                     std::unique_ptr<LoadedKernel>* to) {
    auto loaded = std::make_unique<Loaded>();
    loaded->code_ = code;
    loaded->name_ = function;
    if (!Find("cuModuleLoadData", &loaded->load_) || !Find("cuModuleGetFunction", &loaded->get_) ||
        !Find("cuLaunchKernel", &loaded->launch_)) {
      return Status("the driver lacks functions to load compiled kernels");
    }
    *to = std::move(loaded);
    return Status();
  }
  Status Launch(const Grid& grid, cudaStream_t stream, const void* args, size_t bytes) override {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess)
      return Status("launching a generated kernel: no current device");
    CUfunction function = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);  // streams of several threads share this kernel
      CUfunction& of_device = functions_[device];
      CUmodule module;
      if (of_device == nullptr && (load_(&module, code_.data()) != CUDA_SUCCESS ||
                                   get_(&of_device, module, name_.c_str()) != CUDA_SUCCESS)) {
        return Status(Cat("loading ", name_, " on device ", device, " failed"));
      }
      function = of_device;
    }
    void* params[] = {const_cast<void*>(args)};
    CUresult result =
        launch_(function, grid.x, grid.y, 1, grid.threads, 1, 1, static_cast<unsigned>(grid.shared),
                reinterpret_cast<CUstream>(stream), params, nullptr);
    return result == CUDA_SUCCESS ? Status() : Status(Cat("launching ", name_, ": driver error ", result));
  }

 private:
  template <typename Fn>
  static bool Find(const char* name, Fn* fn) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult how = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &how) != cudaSuccess) return false;
    *fn = reinterpret_cast<Fn>(found);
    return found != nullptr;
  }
  std::string code_, name_;
  decltype(&::cuModuleLoadData) load_ = nullptr;
  decltype(&::cuModuleGetFunction) get_ = nullptr;
  decltype(&::cuLaunchKernel) launch_ = nullptr;
  std::mutex mutex_;
  std::map<int, CUfunction> functions_;
};
#endif

}  // namespace

Status CompileAndLoad(const std::string& source, const std::string& function, int architecture,
                      std::unique_ptr<LoadedKernel>* loaded) {
  const Nvrtc& nvrtc = TheNvrtc();
  if (!nvrtc.error.empty()) return Status(nvrtc.error);
  JitCache cache(CacheFolder());
  std::string key = Cat("NVRTC ", nvrtc.major, ".", nvrtc.minor, " sm_", architecture, " ", kNvrtcOptions[0],
                        " ", kNvrtcOptions[1], "\n", source);
  if (std::optional<std::string> code = cache.Load(key)) {
    if (Loaded::Load(*code, function, loaded).ok()) return Status();
    LOG(WARNING) << "the compiled kernel in " << cache.FileOf(key)
                 << " cannot be loaded and is compiled again";
    (void)cudaGetLastError();
  }
  std::string code;
  if (Status status = Compile(nvrtc, source, function, architecture, &code); !status.ok()) return status;
  cache.Store(key, code);
  return Loaded::Load(code, function, loaded);
}

}  // namespace oneflow_like::cuda
