// libFuzzer on config.json and the index of tensors cut into several files (run.sh).
#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "tests/fuzz/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static oneflow_like::FuzzedReaders readers(std::filesystem::temp_directory_path());
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  readers.Config(bytes);
  readers.Shards(bytes);
  return 0;
}
