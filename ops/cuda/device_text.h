// Headers of this project as text, for kernels that are generated and compiled at run time: there is no
// source tree then. Made by ops/cuda/device_text.cmake, without their #include and #pragma lines.
#pragma once

namespace oneflow_like::cuda {

extern const char* const kHostDeviceText;  // core/host_device.h
extern const char* const kFloat16Text;     // core/float16.h
extern const char* const kRandomText;      // core/random.h
extern const char* const kScalarText;      // ops/scalar.h

}  // namespace oneflow_like::cuda
