// Convolutions, pooling, resizing and norms of channels.
#include "ops/language/volumes.h"
#include "tests/peers/values.h"

namespace oneflow_like::peers {
namespace {

// A table: a case after the other.
void AddConvolutions(ValueCases* cases) {
  const ValueInput plane = F({2, 9, 11, 6}), line = F({3, 13, 6});
  const ValueCases more = {
      {"conv2d", {plane, F({8, 3, 2, 6})}, [](ValueIn x) { return conv2d(x[0], x[1]); }},
      {"conv2d/stride",
       {plane, F({8, 3, 2, 6})},
       [](ValueIn x) {
         return conv2d(x[0], x[1], {.stride = {2, 3}});
       }},
      {"conv2d/padding",
       {plane, F({8, 3, 2, 6})},
       [](ValueIn x) {
         return conv2d(x[0], x[1], {.padding = {2, 1}});
       }},
      {"conv2d/dilation",
       {plane, F({8, 3, 2, 6})},
       [](ValueIn x) {
         return conv2d(x[0], x[1], {.dilation = {2, 4}});
       }},
      {"conv2d/groups",
       {plane, F({9, 3, 3, 2})},
       [](ValueIn x) { return conv2d(x[0], x[1], {.groups = 3}); }},
      {"conv2d/depthwise",
       {plane, F({12, 3, 3, 1})},
       [](ValueIn x) { return conv2d(x[0], x[1], {.padding = {1}, .groups = 6}); }},
      {"conv2d/points",
       {F({2, 12, 12, 32}), F({16, 1, 1, 32})},
       [](ValueIn x) { return conv2d(x[0], x[1]); }},
      {"conv2d/all",
       {plane, F({4, 2, 3, 3})},
       [](ValueIn x) {
         return conv2d(x[0], x[1], {.stride = {3, 2}, .padding = {1, 4}, .dilation = {3, 2}, .groups = 2});
       }},
      {"conv1d", {line, F({8, 4, 6})}, [](ValueIn x) { return conv1d(x[0], x[1]); }},
      {"conv1d/all",
       {line, F({4, 3, 3})},
       [](ValueIn x) {
         return conv1d(x[0], x[1], {.stride = {3}, .padding = {2}, .dilation = {2}, .groups = 2});
       }},
      {"conv2d_transpose",
       {F({2, 5, 4, 8}), F({8, 3, 2, 6})},
       [](ValueIn x) { return conv2d_transpose(x[0], x[1]); }},
      {"conv2d_transpose/stride",
       {F({2, 5, 4, 8}), F({8, 3, 4, 6})},
       [](ValueIn x) {
         return conv2d_transpose(x[0], x[1], {.stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 2}});
       }},
      {"conv2d_transpose/all",
       {F({2, 5, 4, 8}), F({8, 3, 2, 5})},
       [](ValueIn x) {
         return conv2d_transpose(x[0], x[1],
                                 {.stride = {3, 2},
                                  .padding = {2, 1},
                                  .dilation = {2, 3},
                                  .output_padding = {2, 1},
                                  .groups = 4});
       }},
      {"conv1d_transpose",
       {F({3, 7, 6}), F({6, 4, 5})},
       [](ValueIn x) { return conv1d_transpose(x[0], x[1]); }},
      {"conv1d_transpose/all",
       {F({3, 7, 6}), F({6, 4, 5})},
       [](ValueIn x) {
         return conv1d_transpose(
             x[0], x[1],
             {.stride = {3}, .padding = {1}, .dilation = {2}, .output_padding = {2}, .groups = 2});
       }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddPooling(ValueCases* cases) {
  const ValueInput plane = F({2, 9, 11, 5}), line = F({3, 13, 5});
  const PoolOptions windows = {.kernel = {3, 4}, .stride = {2, 3}, .padding = {1, 2}};
  const PoolOptions in_line = {.kernel = {4}, .stride = {3}, .padding = {2}};
  PoolOptions elements = windows, elements_in_line = in_line;
  elements.count_include_pad = elements_in_line.count_include_pad = false;
  const ValueCases more = {
      {"max_pool2d", {plane}, [](ValueIn x) { return max_pool2d(x[0]); }},
      {"max_pool2d/windows", {plane}, [=](ValueIn x) { return max_pool2d(x[0], windows); }},
      {"max_pool2d/ties",  // whole numbers, through which a gradient flows
       {I({2, 9, 11, 5}, 3), plane},
       [=](ValueIn x) {
         return max_pool2d(cast(x[0], DType::kFloat32) + (x[1] - stop_gradient(x[1])), windows);
       }},
      {"max_pool1d", {line}, [](ValueIn x) { return max_pool1d(x[0]); }},
      {"max_pool1d/windows", {line}, [=](ValueIn x) { return max_pool1d(x[0], in_line); }},
      {"avg_pool2d", {plane}, [](ValueIn x) { return avg_pool2d(x[0]); }},
      {"avg_pool2d/windows", {plane}, [=](ValueIn x) { return avg_pool2d(x[0], windows); }},
      {"avg_pool2d/elements", {plane}, [=](ValueIn x) { return avg_pool2d(x[0], elements); }},
      {"avg_pool1d", {line}, [](ValueIn x) { return avg_pool1d(x[0]); }},
      {"avg_pool1d/windows", {line}, [=](ValueIn x) { return avg_pool1d(x[0], in_line); }},
      {"avg_pool1d/elements", {line}, [=](ValueIn x) { return avg_pool1d(x[0], elements_in_line); }},
      {"adaptive_max_pool2d", {plane}, [](ValueIn x) { return adaptive_max_pool2d(x[0], 4, 3); }},
      {"adaptive_avg_pool2d", {plane}, [](ValueIn x) { return adaptive_avg_pool2d(x[0], 4, 3); }},
      {"adaptive_avg_pool2d/one", {plane}, [](ValueIn x) { return adaptive_avg_pool2d(x[0], 1, 1); }},
      {"adaptive_avg_pool2d/more", {plane}, [](ValueIn x) { return adaptive_avg_pool2d(x[0], 12, 16); }},
      {"adaptive_max_pool1d", {line}, [](ValueIn x) { return adaptive_max_pool1d(x[0], 5); }},
      {"adaptive_avg_pool1d", {line}, [](ValueIn x) { return adaptive_avg_pool1d(x[0], 5); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddResizing(ValueCases* cases) {
  struct Size {
    const char* name;
    int64_t rows, columns;
  };
  struct Mode {
    const char* name;
    InterpolateOptions options;
  };
  const Size sizes[] = {{"/more", 13, 16}, {"/fewer", 3, 4}, {"/twice", 14, 18}, {"/one", 1, 1}};
  const Mode modes[] = {{"interpolate/nearest", {}},
                        {"interpolate/bilinear", {.mode = ResizeMode::kBilinear}},
                        {"interpolate/corners", {.mode = ResizeMode::kBilinear, .align_corners = true}}};
  for (const Mode& mode : modes) {
    for (const Size& size : sizes)
      cases->push_back({std::string(mode.name) + size.name, {F({2, 7, 9, 3})}, [=](ValueIn x) {
                          return interpolate(x[0], size.rows, size.columns, mode.options);
                        }});
  }
}

ValueResults AllOf(const BatchNorm& norm) { return std::vector<Tensor>{norm.y, norm.mean, norm.variance}; }

void AddNorms(ValueCases* cases) {
  const ValueInput plane = F({3, 5, 4, 6}), channels = F({6});
  const ValueCases more = {
      {"group_norm", {plane, channels, channels}, [](ValueIn x) { return group_norm(x[0], 3, x[1], x[2]); }},
      {"group_norm/one",
       {plane, channels, channels},
       [](ValueIn x) { return group_norm(x[0], 1, x[1], x[2]); }},
      {"group_norm/instance",
       {F({3, 20, 6}, 30, 31), channels, channels},
       [](ValueIn x) { return group_norm(x[0], 6, x[1], x[2], 1e-3); }},
      {"batch_norm",
       {plane, channels, channels},
       [](ValueIn x) { return AllOf(batch_norm(x[0], x[1], x[2])); }},
      {"batch_norm/far",
       {F({30, 6}, 5, 6), channels, channels},
       [](ValueIn x) { return AllOf(batch_norm(x[0], x[1], x[2], 1e-3)); }},
      {"batch_norm_eval",
       {plane, channels, channels, channels, F({6}, 0.2, 2)},
       [](ValueIn x) { return batch_norm_eval(x[0], x[1], x[2], x[3], x[4]); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddVolumes(ValueCases* cases) {
  const ValueInput x = F({2, 7, 6, 5, 4});
  const ValueCases more = {
      {"conv3d", {x, F({3, 3, 2, 3, 4})}, [](ValueIn x) { return conv3d(x[0], x[1]); }},
      {"conv3d/one", {x, F({3, 1, 2, 3, 4})}, [](ValueIn x) { return conv3d(x[0], x[1], {.stride = {2}}); }},
      {"conv3d/all",
       {x, F({6, 3, 2, 3, 2})},
       [](ValueIn x) {
         return conv3d(x[0], x[1],
                       {.stride = {2, 1, 3}, .padding = {3, 1, 2}, .dilation = {2, 3, 1}, .groups = 2});
       }},
      {"conv3d_transpose", {x, F({4, 3, 2, 3, 5})}, [](ValueIn x) { return conv3d_transpose(x[0], x[1]); }},
      {"conv3d_transpose/all",
       {F({2, 4, 3, 2, 4}), F({4, 3, 2, 3, 3})},
       [](ValueIn x) {
         return conv3d_transpose(x[0], x[1],
                                 {.stride = {3, 1, 2},
                                  .padding = {2, 1, 0},
                                  .dilation = {2, 3, 1},
                                  .output_padding = {2, 0, 1},
                                  .groups = 2});
       }},
      {"max_pool3d", {x}, [](ValueIn x) { return max_pool3d(x[0]); }},
      {"max_pool3d/all",
       {x},
       [](ValueIn x) {
         return max_pool3d(x[0], {.kernel = {3, 2, 3}, .stride = {1, 2, 2}, .padding = {1, 1, 0}});
       }},
      {"max_pool3d/ties",  // of zeros
       {x},
       [](ValueIn x) { return max_pool3d(relu(x[0] - 1), {.kernel = {3}, .stride = {2}}); }},
      {"avg_pool3d",
       {x},
       [](ValueIn x) {
         return avg_pool3d(x[0], {.kernel = {3, 2, 3}, .stride = {1}});
       }},
      {"avg_pool3d/padding",
       {x},
       [](ValueIn x) {
         return avg_pool3d(x[0], {.kernel = {3, 2, 3}, .stride = {2}, .padding = {1}});
       }},
      {"avg_pool3d/without_padding",
       {x},
       [](ValueIn x) {
         return avg_pool3d(x[0],
                           {.kernel = {3, 2, 3}, .stride = {2}, .padding = {1}, .count_include_pad = false});
       }},
      {"adaptive_max_pool3d", {x}, [](ValueIn x) { return adaptive_max_pool3d(x[0], 3, 6, 2); }},
      {"adaptive_avg_pool3d", {x}, [](ValueIn x) { return adaptive_avg_pool3d(x[0], 3, 4, 1); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddSampling(ValueCases* cases) {
  const ValueInput x = F({3, 6, 5, 4}), grid = F({3, 4, 7, 2}, -1.4, 1.4);
  const WindowOptions windows = {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}};
  const auto sampled = [](GridOptions options) {
    return [options](ValueIn x) { return grid_sample(x[0], x[1], options); };
  };
  const ResizeMode nearest = ResizeMode::kNearest;
  const ValueCases more = {
      {"unfold/windows", {x}, [](ValueIn x) { return unfold(x[0], WindowOptions{}); }},
      {"unfold/all", {x}, [windows](ValueIn x) { return unfold(x[0], windows); }},
      {"fold", {F({3, 5, 4, 12})}, [](ValueIn x) { return fold(x[0], 6, 5, WindowOptions{}); }},
      {"fold/all", {F({3, 3, 7, 18})}, [windows](ValueIn x) { return fold(x[0], 6, 5, windows); }},
      {"grid_sample", {x, grid}, sampled({})},
      {"grid_sample/corners", {x, grid}, sampled({.align_corners = true})},
      {"grid_sample/border", {x, grid}, sampled({.border = true})},
      {"grid_sample/border_corners", {x, grid}, sampled({.border = true, .align_corners = true})},
      {"grid_sample/nearest", {x, grid}, sampled({.mode = nearest})},
      {"grid_sample/nearest_border",
       {x, grid},
       sampled({.mode = nearest, .border = true, .align_corners = true})},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

}  // namespace

ValueCases VisionCases() {
  ValueCases cases;
  AddConvolutions(&cases);
  AddPooling(&cases);
  AddResizing(&cases);
  AddNorms(&cases);
  AddVolumes(&cases);
  AddSampling(&cases);
  return cases;
}

}  // namespace oneflow_like::peers
