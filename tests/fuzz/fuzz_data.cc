// libFuzzer on one of the readers of data, which -DOFL_FUZZED names (run.sh).
#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "tests/fuzz/data_readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static oneflow_like::FuzzedData readers(std::filesystem::temp_directory_path());
  readers.Read(OFL_FUZZED, std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
