// Larger and odd shapes of the operators of vision, for every kind of device (kernel_cases.h).
#pragma once

#include <string>
#include <vector>

#include "ops/convolution.h"
#include "tests/ops/kernel_cases.h"

namespace oneflow_like {

using AxisPair = std::vector<int64_t>;

// All three operators of one convolution, in fp32 and 16 bits.
inline void CheckConvolution(KernelCases* cases, const Dims& x, const Dims& filter, AxisPair stride,
                             AxisPair padding, AxisPair dilation, int64_t groups, uint64_t* seed) {
  const Attrs attrs = {{"stride", stride}, {"padding", padding}, {"dilation", dilation}, {"groups", groups}};
  Dims y = x;
  for (int axis : {0, 1})
    y[axis + 1] =
        ConvolutionExtent(x[axis + 1], filter[axis + 1], stride[axis], padding[axis], dilation[axis]);
  y[3] = filter[0];
  Attrs size = attrs, window = attrs;
  size.Set("size", AxisPair{x[1], x[2]});
  window.Set("window", AxisPair{filter[1], filter[2]});
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const std::vector<DType> types = {dtype, dtype};
    cases->CheckCase({"conv2d", {x, filter}, attrs, types}, ++*seed);
    cases->CheckCase({"conv2d_grad_input", {y, filter}, size, types}, ++*seed);
    cases->CheckCase({"conv2d_grad_filter", {x, y}, window, types}, ++*seed);
  }
  Attrs wide = window;  // a filter's gradient in fp32 from narrow operands
  wide.Set("dtype", std::string("f32"));
  cases->CheckCase({"conv2d_grad_filter", {x, y}, wide, {DType::kBFloat16, DType::kBFloat16}}, ++*seed);
}

inline void ConvolutionCases(KernelCases* cases) {
  uint64_t seed = 8000;
  CheckConvolution(cases, {1, 9, 8, 32}, {48, 3, 3, 32}, {1, 1}, {1, 1}, {1, 1}, 1, &seed);
  CheckConvolution(cases, {1, 13, 12, 3}, {17, 7, 7, 3}, {2, 2}, {3, 3}, {1, 1}, 1, &seed);
  CheckConvolution(cases, {2, 6, 7, 64}, {80, 1, 1, 64}, {1, 1}, {0, 0}, {1, 1}, 1, &seed);
  CheckConvolution(cases, {2, 9, 10, 16}, {32, 1, 1, 16}, {2, 2}, {0, 0}, {1, 1}, 1, &seed);
  CheckConvolution(cases, {3, 12, 12, 6}, {8, 1, 1, 6}, {2, 2}, {0, 0}, {1, 1}, 1, &seed);
  CheckConvolution(cases, {2, 9, 8, 17}, {21, 1, 1, 17}, {3, 1}, {0, 0}, {1, 1}, 1, &seed);
  CheckConvolution(cases, {1, 7, 9, 10}, {6, 1, 1, 5}, {1, 2}, {0, 0}, {1, 1}, 2, &seed);
  CheckConvolution(cases, {2, 10, 12, 33}, {33, 3, 3, 1}, {1, 2}, {1, 1}, {1, 1}, 33, &seed);
  CheckConvolution(cases, {2, 7, 6, 32}, {64, 3, 3, 8}, {1, 1}, {1, 1}, {1, 1}, 4, &seed);
  CheckConvolution(cases, {2, 40, 50, 150}, {150, 3, 3, 1}, {1, 1}, {1, 1}, {1, 1}, 150, &seed);  // in parts
  CheckConvolution(cases, {1, 12, 13, 8}, {8, 3, 3, 8}, {1, 1}, {2, 4}, {2, 4}, 1, &seed);
  CheckConvolution(cases, {2, 7, 9, 5}, {7, 2, 3, 5}, {3, 2}, {0, 1}, {1, 1}, 1, &seed);
  CheckConvolution(cases, {2, 1, 50, 6}, {10, 1, 5, 3}, {1, 2}, {0, 2}, {1, 1}, 2, &seed);
}

inline void PoolingCases(KernelCases* cases) {
  uint64_t seed = 8200;
  for (int64_t channels : {1, 37, 64}) {
    const Dims x = {2, 17, 13, channels};
    const std::vector<std::pair<Attrs, AxisPair>> ways = {
        {{{"kernel", AxisPair{3, 3}}, {"stride", AxisPair{2, 2}}, {"padding", AxisPair{1, 1}}}, {9, 7}},
        {{{"kernel", AxisPair{4, 2}}, {"stride", AxisPair{1, 3}}, {"padding", AxisPair{2, 0}}}, {18, 4}},
        {{{"size", AxisPair{5, 4}}}, {5, 4}},
        {{{"size", AxisPair{1, 1}}}, {1, 1}},
        {{{"size", AxisPair{20, 30}}}, {20, 30}}};
    for (const auto& [attrs, y] : ways) {
      Attrs back = attrs, mean = attrs, mean_back = attrs;
      back.Set("plane", AxisPair{17, 13});
      mean.Set("count_padding", seed % 2 == 0 ? int64_t{1} : int64_t{0});
      mean_back = mean;
      mean_back.Set("plane", AxisPair{17, 13});
      const Dims to = {2, y[0], y[1], channels};
      for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        cases->CheckCase({"max_pool2d", {x}, attrs, {dtype}}, ++seed);
        cases->CheckCase({"max_pool2d_grad", {to, to}, back, {dtype, DType::kInt32}, 17 * 13}, ++seed);
        cases->CheckCase({"avg_pool2d", {x}, mean, {dtype}}, ++seed);
        cases->CheckCase({"avg_pool2d_grad", {to}, mean_back, {dtype}}, ++seed);
      }
    }
  }
}

inline void InterpolateCases(KernelCases* cases) {
  uint64_t seed = 8600;
  for (const AxisPair& size : {AxisPair{33, 30}, AxisPair{5, 7}, AxisPair{1, 40}, AxisPair{16, 15}}) {
    for (int64_t way : {0, 1, 2}) {
      Attrs attrs = {{"mode", std::string(way == 0 ? "nearest" : "bilinear")}, {"align_corners", way / 2}};
      Attrs back = attrs;
      attrs.Set("size", size);
      back.Set("plane", AxisPair{16, 15});
      for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        cases->CheckCase({"interpolate", {{2, 16, 15, 19}}, attrs, {dtype}}, ++seed);
        cases->CheckCase({"interpolate_grad", {{2, size[0], size[1], 19}}, back, {dtype}}, ++seed);
      }
    }
  }
}

inline void ChannelNormCases(KernelCases* cases) {
  using enum DType;
  uint64_t seed = 8800;
  for (DType t : {kFloat32, kBFloat16, kFloat16}) {
    for (const Dims& x : {Dims{2, 9, 17, 64}, Dims{3, 130, 30}, Dims{5, 6}}) {
      for (int64_t groups : {1, 2, 6}) {
        const Dims c = {x.back() / 6 * 6}, s = {x[0], groups};
        Dims even = x;
        even.back() = c[0];
        const Attrs attrs = {{"groups", groups}, {"eps", 1e-5}};
        cases->CheckCase({"group_norm", {even, c, c}, attrs, {t, kFloat32, kFloat32}, 4, 1, 3}, ++seed);
        cases->CheckCase(
            {"group_norm_grad", {even, even, c, s, s}, {}, {t, t, kFloat32, kFloat32, kFloat32}, 4, 0.5, 1},
            ++seed);
      }
    }
    for (const Dims& x : {Dims{3, 401, 37}, Dims{2000, 64}, Dims{70, 3, 260}, Dims{9000, 1}}) {
      const Dims c = {x.back()};
      cases->CheckCase({"channel_moments", {x, c}, {}, {t, kFloat32}}, ++seed);
      cases->CheckCase({"channel_products", {x, x, c}, {}, {t, t, kFloat32}}, ++seed);
      cases->CheckCase({"channel_products", {x, x, c}, {}, {kFloat32, t, kFloat32}}, ++seed);
      cases->CheckCase({"channel_affine", {x, c, c, c}, {}, {t, kFloat32, kFloat32, kFloat32}}, ++seed);
      cases->CheckCase({"channel_scale", {x, c}, {}, {t, kFloat32}}, ++seed);
    }
  }
}

inline void VisionCases(KernelCases* cases) {
  ConvolutionCases(cases);
  PoolingCases(cases);
  InterpolateCases(cases);
  ChannelNormCases(cases);
}

}  // namespace oneflow_like
