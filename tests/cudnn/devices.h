// Devices as cuDNN writes them down (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, 9.8 and later). NVIDIA makes
// such texts on a card; these were written by hand from the cards' data sheets and the limits of their
// compute capabilities (CUDA C++ Programming Guide). cuDNN names the member when one is missing
// (CUDNN_LOGLEVEL_DBG=1), and ignores members that it does not know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oneflow_like::cuda {

struct DescribedCard {
  const char* name;
  int capability;  // 900: sm_90
  int multiprocessors;
  int64_t l2_bytes, shared_bytes, memory_bytes;  // shared: of a block that asks for it
  int64_t clock_khz, memory_clock_khz, memory_bus_bits;
};

inline std::vector<DescribedCard> DescribedCards() {
  return {{"NVIDIA A100-SXM4-80GB", 800, 108, 41943040, 166912, 85028765696, 1410000, 1593000, 5120},
          {"NVIDIA H100 80GB HBM3", 900, 132, 52428800, 232448, 85029158912, 1980000, 2619000, 5120},
          {"NVIDIA B200", 1000, 148, 132644864, 232448, 191513755648, 1965000, 3996000, 8192}};
}

inline std::string JsonOf(const DescribedCard& card) {
  auto number = [](const char* name, int64_t value) {
    return std::string(",\"") + name + "\":" + std::to_string(value);
  };
  return std::string("{\"deviceName\":\"") + card.name + "\"" + number("cudaDeviceId", 0) +
         number("deviceVer", card.capability) + number("driverVer", 13000) + number("isTccDriver", 0) +
         number("pciDeviceId", 0) + number("multiProcessorCount", card.multiprocessors) +
         number("l2CacheSize", card.l2_bytes) + number("totalGlobalMem", card.memory_bytes) +
         number("smClockRateKHz", card.clock_khz) + number("memClockRateKHz", card.memory_clock_khz) +
         number("memoryBusWidth", card.memory_bus_bits) + number("maxSharedMemoryPerBlock", 49152) +
         number("maxSharedMemoryPerBlockOptin", card.shared_bytes) +
         number("reservedSharedMemoryPerBlock", 1024) + number("oversizedSharedMemoryPerBlock", 0) +
         number("maxCtasPerSM", 32) + number("maxThreadsPerSM", 2048) + number("maxRegistersPerSM", 65536) +
         number("maxThreadsPerBlock", 1024) + number("regsPerBlock", 65536) + number("warpSize", 32) +
         number("supportCoopLaunch", 1) +
         ",\"maxBlockSize\":[1024,1024,64],\"maxGridSize\":[2147483647,65535,65535]}";
}

}  // namespace oneflow_like::cuda
