// The example programs as one, for a bundle that is small: it is the program whose name it is called by.
#include <cstdio>
#include <cstring>

#define OFL_PROGRAMS(X) \
  X(gpt) X(llama) X(resnet) X(vit) X(bert) X(unet) X(dlrm) X(moe) X(caption) X(insightface)

#define OFL_DECLARE(name) int MainOf_##name(int argc, char** argv);
OFL_PROGRAMS(OFL_DECLARE)

#if defined(OFL_EMULATED)
#include "tests/gpu/backend.h"
#endif

int main(int argc, char** argv) {
#if defined(OFL_EMULATED)
  oneflow_like::gpu::TestedBackend();  // for meshes of kind cuda
#endif
  const char* slash = std::strrchr(argv[0], '/');
  const char* called = slash ? slash + 1 : argv[0];
#define OFL_RUN(name) \
  if (std::strcmp(called, #name) == 0) return MainOf_##name(argc, argv);
  OFL_PROGRAMS(OFL_RUN)
  std::fprintf(stderr, "error: '%s' is none of the programs that this one is; links to it have their names\n",
               called);
  return 64;
}
