// Builds in words.
#include <dnnl.h>
#include <google/protobuf/stubs/common.h>
#include <ucp/api/ucp.h>

#include "core/error.h"
#include "oneflow_like/build_id.h"
#include "ops/cpu/levels.h"

namespace oneflow_like {
namespace {

std::string OrUnknown(const std::string& text) { return text.empty() ? "unknown" : text; }

std::string OneDnnVersion() {
  const dnnl_version_t* version = dnnl_version();
  return Cat(version->major, ".", version->minor, ".", version->patch);
}

std::string UcxVersion() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return Cat(major, ".", minor, ".", release);
}

// That of the kernels which this processor runs.
std::string KernelLevel() {
  const std::vector<CpuLevel> levels = CpuLevels();
  for (auto level = levels.rbegin(); level != levels.rend(); ++level)
    if (level->supported) return level->name;
  return Cat("none: this processor is below ", levels.front().name);
}

}  // namespace

std::string Comparable(const BuildId& build) { return Cat(build.version, " (sources ", build.sources, ")"); }

std::string VersionText(const BuildId& build) {
  return Cat("oneflow_like ", build.version, "\n", "  commit    ", OrUnknown(build.commit), "\n",
             "  sources   ", build.sources, "\n", "  protobuf  ",
             google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION), "\n", "  glog      ",
             OrUnknown(build.glog), "\n", "  gflags    ", OrUnknown(build.gflags), "\n", "  oneDNN    ",
             OneDnnVersion(), "\n", "  UCX       ", UcxVersion(), "\n", "  CUDA      ",
             build.cuda.empty() ? "built without" : build.cuda, "\n", "  kernels   ", KernelLevel(), "\n");
}

}  // namespace oneflow_like
