// Finding NCCL and its functions. Left out where there is no NCCL to build with.
#if defined(OFL_HAVE_NCCL)

#include "actor/cuda/nccl_library.h"

#include <dlfcn.h>

namespace oneflow_like::cuda {
namespace {

// 2.14: communicators that do not block.
constexpr int kOldest = 21400;

struct Found {
  NcclLibrary library{};
  std::string why;  // it is not there; empty: it is
};

Found Find() {
  Found found;
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    found.why = Cat("libnccl.so.2 cannot be opened: ", dlerror());
    return found;
  }
  auto get = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
    if (*function == nullptr && found.why.empty()) found.why = Cat("libnccl.so.2 has no function ", name);
  };
  NcclLibrary& nccl = found.library;
  get("ncclGetVersion", &nccl.GetVersion);
  get("ncclGetUniqueId", &nccl.GetUniqueId);
  get("ncclGetErrorString", &nccl.GetErrorString);
  get("ncclGetLastError", &nccl.GetLastError);
  get("ncclCommInitRankConfig", &nccl.CommInitRankConfig);
  get("ncclCommGetAsyncError", &nccl.CommGetAsyncError);
  get("ncclCommFinalize", &nccl.CommFinalize);
  get("ncclCommDestroy", &nccl.CommDestroy);
  get("ncclCommAbort", &nccl.CommAbort);
  get("ncclGroupStart", &nccl.GroupStart);
  get("ncclGroupEnd", &nccl.GroupEnd);
  get("ncclAllReduce", &nccl.AllReduce);
  get("ncclReduceScatter", &nccl.ReduceScatter);
  get("ncclAllGather", &nccl.AllGather);
  get("ncclSend", &nccl.Send);
  get("ncclRecv", &nccl.Recv);
  nccl.CommSplit = reinterpret_cast<decltype(nccl.CommSplit)>(dlsym(handle, "ncclCommSplit"));
  if (!found.why.empty()) return found;
  int version = 0;
  if (nccl.GetVersion(&version) != ncclSuccess || version < kOldest) {
    found.why = Cat("libnccl.so.2 is version ", version / 10000, ".", version % 10000 / 100,
                    ", and 2.14 or newer is needed");
  }
  return found;
}

}  // namespace

std::string NcclLibrary::Say(ncclResult_t result, ncclComm_t comm) const {
  std::string text = GetErrorString(result), last = GetLastError(comm);
  return last.empty() ? text : Cat(text, ": ", last);
}

const NcclLibrary* FindNccl(std::string* why) {
  static const Found* found = new Found(Find());
  if (why != nullptr) *why = found->why;
  return found->why.empty() ? &found->library : nullptr;
}

const NcclLibrary& OpenNccl() {
  std::string why;
  const NcclLibrary* library = FindNccl(&why);
  if (library == nullptr) Fail("ranks on several GPUs need NCCL, but ", why);
  return *library;
}

}  // namespace oneflow_like::cuda

#endif
