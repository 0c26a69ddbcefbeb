// How this folder uses oneDNN: primitives whose scratch is given to them.
#pragma once

#include <cstdint>
#include <dnnl.hpp>
#include <string>

#include "core/system/host_memory.h"

namespace oneflow_like::cpu {

const dnnl::engine& HostEngine();

inline dnnl::primitive_attr OwnScratch() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// Called before a primitive is made: the library does not survive it when its code finds no memory. Throws
// ShortOfMemory.
inline void CheckRoomForCode(const char* of) {
  constexpr size_t kMost = size_t{16} << 20;
  CheckAddressesFor(kMost, of);
}

template <typename Description>
int64_t ScratchOf(const Description& description) {
  return static_cast<int64_t>(description.scratchpad_desc().get_size());
}

// Whether it is meant to be fast, and takes no memory when it runs, as those do that call a general product.
template <typename Description>
bool IsOwn(const Description& description) {
  const std::string name = description.impl_info_str();
  return name.find("ref") == std::string::npos && name.find("gemm") == std::string::npos;
}

}  // namespace oneflow_like::cpu
