// Stands in for the driver (libcuda.so.1) where there is none: cuDNN hands it the kernels that it has compiled
// for a plan and asks nothing back of them. Loading succeeds and holds nothing; whatever would run something,
// or ask for a device, fails. cuInit fails, as it does without a card, which keeps NVRTC from asking further.
// cuDNN prints "Could not load symbol ..." for a function that is missing here.
typedef int Result;
enum { kOk = 0, kStub = 34, kNotSupported = 801 };
static int loaded;

Result cuInit(unsigned flags) { return flags == 0 ? kStub : kNotSupported; }
Result cuGetExportTable(const void** table, const void* id) { return table == id ? kOk : kStub; }
Result cuDriverGetVersion(int* version) { return *version = 13000, kOk; }
Result cuGetErrorString(Result error, const char** text) {
  return *text = error == kOk ? "" : "no card", kOk;
}
Result cuGetErrorName(Result error, const char** text) { return cuGetErrorString(error, text); }

#define OFL_LOADS(name) \
  Result name(void** made) { return *made = &loaded, kOk; }
OFL_LOADS(cuLibraryLoadData)
OFL_LOADS(cuLibraryGetKernel)
OFL_LOADS(cuLibraryGetModule)
OFL_LOADS(cuKernelGetFunction)
OFL_LOADS(cuModuleLoadData)
OFL_LOADS(cuModuleLoadDataEx)
OFL_LOADS(cuModuleGetFunction)

#define OFL_SAYS(name, result) \
  Result name(void) { return result; }
OFL_SAYS(cuLibraryUnload, kOk)
OFL_SAYS(cuModuleUnload, kOk)
OFL_SAYS(cuKernelSetAttribute, kOk)
OFL_SAYS(cuFuncSetAttribute, kOk)
OFL_SAYS(cuCtxGetCurrent, kNotSupported)
OFL_SAYS(cuCtxGetLimit, kNotSupported)
OFL_SAYS(cuCtxPopCurrent, kNotSupported)
OFL_SAYS(cuCtxPushCurrent, kNotSupported)
OFL_SAYS(cuStreamGetCtx, kNotSupported)
OFL_SAYS(cuLinkCreate, kNotSupported)
OFL_SAYS(cuLinkAddData, kNotSupported)
OFL_SAYS(cuLinkComplete, kNotSupported)
OFL_SAYS(cuLinkDestroy, kNotSupported)
OFL_SAYS(cuLaunchKernel, kNotSupported)
OFL_SAYS(cuLaunchKernelEx, kNotSupported)
OFL_SAYS(cuLaunchCooperativeKernel, kNotSupported)
OFL_SAYS(cuDeviceGetCount, kNotSupported)
OFL_SAYS(cuDeviceGet, kNotSupported)
OFL_SAYS(cuLibraryLoadFromFile, kNotSupported)
OFL_SAYS(cuKernelGetAttribute, kNotSupported)
OFL_SAYS(cuOccupancyMaxPotentialClusterSize, kNotSupported)
