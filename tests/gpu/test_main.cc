// main() of the GPU tests: exits with 2, having said why in one sentence, when there is no GPU to test.
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>

#include "tests/gpu/backend.h"

DECLARE_int32(device);

namespace {

std::string& Figure() {
  static std::string figure;
  return figure;
}

}  // namespace

void oneflow_like::gpu::SetFigure(const std::string& figure) { Figure() = figure; }

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  try {
    oneflow_like::Backend* backend = oneflow_like::gpu::TestedBackend();
    std::printf("device: %s\n", backend->Describe(FLAGS_device).c_str());
  } catch (const std::exception& error) {
    std::printf("no GPU to test: %s\n", error.what());
    return 2;
  }
  const int result = RUN_ALL_TESTS();
  if (!Figure().empty()) std::printf("figure: %s\n", Figure().c_str());
  return result;
}
