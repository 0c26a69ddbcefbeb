// A function that host and device code share.
#pragma once

#if defined(__CUDACC__)
#define OFL_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define OFL_HOST_DEVICE inline __attribute__((always_inline))
#endif
