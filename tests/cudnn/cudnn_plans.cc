// Builds cuDNN's plans for our graphs of attention as a card would get them, without one: for described
// devices, forward and backward, in both 16-bit types, causal or not, of widths and lengths that divide
// nothing. A graph that cuDNN refuses is attention done by our own slower kernels. run.sh makes and runs this
// program.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "ops/attention_library.h"
#include "ops/cuda/convolution_graph_cudnn.h"
#include "ops/cuda/flash_graph_cudnn.h"
#include "tests/cudnn/devices.h"

namespace oneflow_like::cuda {
namespace {

// As on a card: the stream's work space, or the scratch that the plan gives to a gradient.
size_t RoomOf(const FlashShape& s) {
  const int64_t stated =
      s.backward ? LibraryAttentionGradScratch(s.batch, s.heads, s.key_heads, s.queries, s.keys, s.width) : 0;
  return std::max(static_cast<size_t>(stated), kWorkspaceBytes);
}

const char* TypeName(DType dtype) {
  return dtype == DType::kFloat16 ? "fp16" : dtype == DType::kBFloat16 ? "bf16" : "fp32";
}

std::string NameOf(const FlashShape& s) {
  char text[160];
  std::snprintf(text, sizeof text,
                "%s %s%s, batch %d, %d heads of %d, %d of keys, %d queries, %d keys, window %d",
                TypeName(s.dtype), s.backward ? "backward" : "forward", s.causal ? " causal" : "",
                static_cast<int>(s.batch), static_cast<int>(s.heads), static_cast<int>(s.width),
                static_cast<int>(s.key_heads), static_cast<int>(s.queries), static_cast<int>(s.keys),
                static_cast<int>(s.window));
  return text;
}

std::vector<FlashShape> Shapes() {
  std::vector<FlashShape> shapes;
  auto add = [&](DType dtype, bool causal, int64_t batch, int64_t heads, int64_t queries, int64_t keys,
                 int64_t width, int64_t shift = 0, int64_t group = 1, int64_t window = 0, int64_t masks = 0) {
    for (bool backward : {false, true})
      shapes.push_back({batch, heads, queries, keys, width, heads / group, keys, dtype, backward, causal,
                        shift, window, masks, 0.125f});
  };
  const DType kTypes[] = {DType::kBFloat16, DType::kFloat16};
  for (DType dtype : kTypes) {
    for (bool causal : {false, true}) {
      for (int64_t width : {64, 128}) add(dtype, causal, 2, 12, 1024, 1024, width);
      add(dtype, causal, 2, 3, 77, 77, 64);
    }
  }
  for (int64_t width : {8, 40, 80, 96}) add(DType::kBFloat16, true, 2, 3, 77, 77, width);
  add(DType::kFloat16, true, 2, 3, 1023, 1023, 256);
  add(DType::kBFloat16, true, 1, 6, 256, 1024, 64, 768);  // the mask is shifted
  add(DType::kBFloat16, false, 2, 4, 200, 1000, 64);
  add(DType::kBFloat16, true, 2, 3, 1, 1, 64);
  add(DType::kBFloat16, true, 7, 25, 1023, 1023,
      64);  // backward in parts of 2 sequences, and one that is left
  add(DType::kBFloat16, true, 1, 25, 4095, 4095, 64);  // in parts of some heads
  // Heads that share keys, as in Llama 160m, Llama 1b, Llama 8B, Qwen 2 7B, Falcon; in parts of whole groups.
  add(DType::kBFloat16, true, 16, 12, 1024, 1024, 64, 0, 3);
  add(DType::kFloat16, true, 4, 32, 1024, 1024, 64, 0, 4);
  add(DType::kBFloat16, true, 1, 32, 8192, 8192, 128, 0, 4);
  add(DType::kBFloat16, true, 1, 28, 8192, 8192, 128, 0, 7);
  add(DType::kBFloat16, true, 1, 71, 2048, 2048, 64, 0, 71);
  add(DType::kFloat16, true, 2, 14, 1023, 1023, 64, 0, 7);
  add(DType::kBFloat16, true, 2, 32, 2048, 2048, 96, 0, 4);
  add(DType::kBFloat16, true, 1, 32, 2047, 2047, 160, 0, 4);
  add(DType::kBFloat16, true, 1, 16, 2048, 2048, 256, 0, 16);
  add(DType::kBFloat16, false, 8, 6, 1370, 1370, 64);  // ViT, patches of 14
  add(DType::kBFloat16, false, 2, 5, 963, 963, 72);
  add(DType::kBFloat16, false, 2, 6, 77, 77, 40, 0, 2);
  add(DType::kBFloat16, true, 2, 8, 1, 1024, 128, 1023, 4);  // one query behind a cache
  // Masks that operands say: padding, packed documents.
  add(DType::kBFloat16, false, 16, 12, 512, 512, 64, 0, 1, 0, 16);
  add(DType::kFloat16, false, 4, 3, 77, 77, 64, 0, 1, 0, 1);
  add(DType::kBFloat16, false, 1, 32, 4096, 4096, 128, 0, 4, 0, 1);
  add(DType::kBFloat16, true, 2, 28, 2048, 2048, 128, 0, 7, 0, 2);
  add(DType::kBFloat16, true, 2, 12, 1000, 1000, 64, 0, 1, 200, 2);
  // Windows.
  add(DType::kBFloat16, true, 2, 32, 4096, 4096, 128, 0, 4, 1024);
  add(DType::kFloat16, true, 2, 3, 333, 333, 64, 0, 1, 100);
  add(DType::kBFloat16, true, 2, 8, 16, 1024, 64, 1008, 2, 256);
  return shapes;
}

// Documented by cuDNN as not supported: backward beyond a width of 128 but on Hopper.
bool MayBeRefused(const FlashShape& shape, const DescribedCard& card) {
  return shape.backward && shape.width > 128 && card.capability != 900;
}

std::string WrongBytesOf(const FlashPlan& plan, size_t room) {
  const FlashShape& s = plan.part.shape;
  const int64_t bytes = WorkspaceOf(*plan.plan) + plan.part.DeltaBytes();
  if (bytes > static_cast<int64_t>(room)) return "a part needs more than the work space";
  if (!s.backward) return "";
  const int64_t stated = LibraryAttentionGradBytes(s.batch, s.heads, s.key_heads, s.queries, s.keys, s.width);
  if (stated < bytes || stated > bytes + bytes / 100 + (1 << 20))
    return Cat("a part needs ", bytes, " bytes, stated are ", stated);
  return "";
}

// Every query of every head once, in parts whose log-sum-exps lie as declared. Empty, or what is wrong.
std::string WrongIn(const FlashPlans& made, const FlashShape& shape) {
  std::vector<int> done(static_cast<size_t>(shape.batch * shape.heads), 0);
  for (const FlashLaunch& launch : made.launches) {
    const FlashPart& part = made.plans.at(static_cast<size_t>(launch.plan)).part;
    const int64_t lse = (launch.batch * shape.heads + launch.head) * shape.queries * 4;
    if (lse % part.lse_alignment != 0) return "a part's log-sum-exps are less aligned than declared";
    for (int64_t b = 0; b < part.shape.batch; ++b)
      for (int64_t h = 0; h < part.shape.heads; ++h)
        ++done.at(static_cast<size_t>((launch.batch + b) * shape.heads + launch.head + h));
  }
  for (int times : done)
    if (times != 1) return "the parts do not cover each head once";
  for (const FlashPlan& plan : made.plans)
    if (std::string wrong = WrongBytesOf(plan, RoomOf(shape)); !wrong.empty()) return wrong;
  const FlashShape& s = shape;
  const int64_t whole = LibraryAttentionGradBytes(s.batch, s.heads, s.key_heads, s.queries, s.keys, s.width);
  const bool at_once = !s.backward || whole <= kMostLibraryAttentionBytes;
  if (at_once != (made.launches.size() == 1))
    return Cat("its ", whole, " bytes are done in ", made.launches.size(), " launches");
  return "";
}

// --- Convolutions

struct ConvolutionCase {
  int64_t batch, side, in, out, window, stride, groups = 1, dilation = 1;
  DType dtype = DType::kBFloat16;
};

std::vector<ConvolutionCase> ConvolutionCases() {
  const auto kF32 = DType::kFloat32, kF16 = DType::kFloat16;
  return {
      {64, 224, 3, 64, 7, 2},  // ResNet-50
      {64, 56, 64, 64, 1, 1},
      {64, 56, 64, 64, 3, 1},
      {64, 56, 64, 256, 1, 1},
      {64, 56, 256, 128, 1, 1},
      {64, 56, 128, 128, 3, 2},
      {64, 56, 256, 512, 1, 2},
      {64, 28, 512, 256, 1, 1},
      {64, 14, 256, 256, 3, 1},
      {64, 7, 512, 512, 3, 1},
      {64, 7, 2048, 512, 1, 1},
      {32, 224, 3, 768, 16, 16},  // ViT's patches
      {16, 64, 128, 128, 3, 1},
      {16, 64, 4, 128, 3, 1},  // U-Net
      {16, 64, 128, 4, 3, 1},
      {32, 56, 96, 96, 3, 1, 96},
      {32, 56, 128, 128, 3, 1, 32},
      {8, 33, 48, 40, 3, 1, 1, 2},
      {8, 31, 5, 7, 3, 2},
      {64, 28, 1, 32, 3, 1},
      {64, 28, 256, 256, 3, 1, 1, 1, kF16},
      {64, 28, 256, 256, 3, 1, 1, 1, kF32},
      {64, 224, 3, 64, 7, 2, 1, 1, kF32},
      {32, 56, 96, 96, 3, 1, 96, 1, kF32},
      {8, 217, 3, 195, 7, 7},  // of sizes that divide nothing
      {8, 221, 3, 704, 13, 13},
      {8, 57, 3, 33, 7, 2},
      {8, 57, 33, 64, 3, 1},
      {8, 57, 48, 96, 5, 3, 8},
      {8, 57, 48, 96, 3, 1, 3},
      {8, 57, 32, 48, 3, 1, 1, 4},
      {8, 55, 48, 48, 3, 2, 1, 2},
      {8, 57, 32, 64, 1, 2},
      {8, 114, 16, 32, 4, 2},
      {8, 57, 3, 33, 7, 2, 1, 1, kF16},
      {8, 57, 48, 96, 3, 1, 3, 1, kF16},
  };
}

LibraryConvolution ConvolutionOf(const ConvolutionCase& c, ConvolutionKind kind, bool wide) {
  const int64_t padding = c.window == c.stride ? 0 : c.dilation * (c.window / 2);
  const ConvolutionAxis axis = {
      c.side,   c.window, ConvolutionExtent(c.side, c.window, c.stride, padding, c.dilation),
      c.stride, padding,  c.dilation};
  return {kind,
          {c.batch, c.groups, c.in / c.groups, c.out / c.groups, axis, axis},
          c.dtype,
          wide ? DType::kFloat32 : c.dtype};
}

bool OnTensorCores(const CudnnDescriptor& plan) {
  CudnnDescriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  int64_t count = 0;
  const auto get = [&](const CudnnDescriptor& from, cudnnBackendAttributeName_t what, CudnnDescriptor* to) {
    cudnnBackendDescriptor_t raw = to->raw();
    return cudnnBackendGetAttribute(from.raw(), what, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw) ==
           CUDNN_STATUS_SUCCESS;
  };
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  if (!get(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &config) ||
      !get(config, CUDNN_ATTR_ENGINECFG_ENGINE, &engine) ||
      cudnnBackendGetAttribute(engine.raw(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) != CUDNN_STATUS_SUCCESS)
    return false;
  return std::find(notes, notes + count, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) != notes + count;
}

// OpDef::cuda_unit of convolutions (ops/convolution.cc): on plain cores are those in whole fp32, and those
// whose channels are groups of their own in any type; of the others most are on tensor cores, by TF32, too.
int CheckUnits(const DescribedCard& card, const CudnnTarget& target) {
  struct Way {
    const char* name;
    DType dtype;
    bool tf32;
    int all = 0, tensor = 0;
  } ways[] = {
      {"fp32", DType::kFloat32, false}, {"TF32", DType::kFloat32, true}, {"bf16", DType::kBFloat16, false}};
  int failed = 0;
  for (const ConvolutionCase& c : ConvolutionCases()) {
    if (c.dtype != DType::kBFloat16) continue;  // each in all types
    for (auto kind : {ConvolutionKind::kForward, ConvolutionKind::kGradInput, ConvolutionKind::kGradFilter})
      for (Way& way : ways) {
        ConvolutionCase in = c;
        in.dtype = way.dtype;
        LibraryConvolution asked = ConvolutionOf(in, kind, false);
        asked.tf32 = way.tf32;
        const ConvolutionPlan made = MakeConvolutionPlan(asked, kWorkspaceBytes, target);
        const bool tensor = made.plan && OnTensorCores(*made.plan);
        const bool single = c.groups > 1 && c.groups == c.in && c.groups == c.out;
        if (single && tensor)
          std::printf("FAILED %s: a convolution of single channels is on tensor cores in %s\n", card.name,
                      way.name);
        failed += single && tensor;
        way.all += !single, way.tensor += !single && tensor;
      }
  }
  for (const Way& way : ways) {
    const bool plain = way.dtype == DType::kFloat32 && !way.tf32;
    const bool good = plain ? way.tensor == 0 : 2 * way.tensor > way.all;
    std::printf("%s%s: of %d convolutions in %s, %d are on tensor cores\n", good ? "" : "FAILED ", card.name,
                way.all, way.name, way.tensor);
    failed += !good;
  }
  return failed;
}

int CheckConvolutions(const DescribedCard& card, const CudnnTarget& target) {
  int built = 0, failed = 0, widened = 0;
  for (const ConvolutionCase& c : ConvolutionCases()) {
    for (auto kind : {ConvolutionKind::kForward, ConvolutionKind::kGradInput, ConvolutionKind::kGradFilter}) {
      for (bool wide : {false, true}) {
        if (wide && (kind != ConvolutionKind::kGradFilter || c.dtype == DType::kFloat32)) continue;
        const LibraryConvolution asked = ConvolutionOf(c, kind, wide);
        const ConvolutionPlan made = MakeConvolutionPlan(asked, kWorkspaceBytes, target);
        ++(made.plan ? built : failed);
        widened += made.plan && made.widen;
        if (made.plan) continue;
        std::printf(
            "FAILED %s: convolution %d, %d of %d x %d, %d to %d channels, window %d, stride %d, groups %d, "
            "dilation %d, %s to %s: %s\n",
            card.name, static_cast<int>(kind), static_cast<int>(c.batch), static_cast<int>(c.side),
            static_cast<int>(c.side), static_cast<int>(c.in), static_cast<int>(c.out),
            static_cast<int>(c.window), static_cast<int>(c.stride), static_cast<int>(c.groups),
            static_cast<int>(c.dilation), TypeName(asked.dtype), TypeName(asked.result),
            made.refused.c_str());
      }
    }
  }
  std::printf("%s: %d convolutions have plans, %d of them are widened afterwards, %d failed\n", card.name,
              built, widened, failed);
  return failed;
}

int CheckCard(const DescribedCard& card) {
  CudnnTarget target;
  std::string why;
  target.device = DescribedDevice(JsonOf(card), &why);
  if (!target.device) {
    std::printf("FAILED %s cannot be described: %s\n", card.name, why.c_str());
    return 1;
  }
  int failed = 0, built = 0, refused = 0;
  const auto start = std::chrono::steady_clock::now();
  for (const FlashShape& shape : Shapes()) {
    const FlashPlans made = MakeFlashPlans(shape, RoomOf(shape), target);
    if (made.plans.empty() && MayBeRefused(shape, card)) {
      ++refused;
      continue;
    }
    const std::string wrong = made.plans.empty() ? made.refused : WrongIn(made, shape);
    ++(wrong.empty() ? built : failed);
    if (!wrong.empty()) std::printf("FAILED %s: %s: %s\n", card.name, NameOf(shape).c_str(), wrong.c_str());
  }
  std::printf("%s (sm_%d): %d graphs have plans, %d are refused as documented, %d failed, %.0f s\n",
              card.name, card.capability / 10, built, refused, failed,
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return failed + CheckConvolutions(card, target) + CheckUnits(card, target);
}

}  // namespace
}  // namespace oneflow_like::cuda

int main() {
  std::printf("cuDNN %zu\n", cudnnGetVersion());
  int failed = 0;
  for (const auto& card : oneflow_like::cuda::DescribedCards()) failed += oneflow_like::cuda::CheckCard(card);
  return failed == 0 ? 0 : 1;
}
