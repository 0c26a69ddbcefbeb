// Builds cuDNN's plans for our graphs of attention as a card would get them, without one: for described
// devices, forward and backward, in both 16-bit types, causal or not, of widths and lengths that divide
// nothing. A graph that cuDNN refuses is attention done by our own slower kernels. run.sh makes and runs this
// program.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "ops/cuda/flash_graph_cudnn.h"
#include "tests/cudnn/devices.h"

namespace oneflow_like::cuda {
namespace {

constexpr size_t kRoom = kWorkspaceBytes;

std::string NameOf(const FlashShape& s) {
  char text[160];
  std::snprintf(text, sizeof text, "%s %s%s, batch %d, %d heads of %d, %d queries, %d keys",
                s.dtype == DType::kFloat16 ? "fp16" : "bf16", s.backward ? "backward" : "forward",
                s.causal ? " causal" : "", static_cast<int>(s.batch), static_cast<int>(s.heads),
                static_cast<int>(s.width), static_cast<int>(s.queries), static_cast<int>(s.keys));
  return text;
}

std::vector<FlashShape> Shapes() {
  std::vector<FlashShape> shapes;
  auto add = [&](DType dtype, bool causal, int64_t batch, int64_t heads, int64_t queries, int64_t keys,
                 int64_t width, int64_t shift = 0) {
    for (bool backward : {false, true})
      shapes.push_back({batch, heads, queries, keys, width, dtype, backward, causal, shift, 0.125f});
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
  return shapes;
}

// Documented by cuDNN as not supported: backward beyond a width of 128 but on Hopper.
bool MayBeRefused(const FlashShape& shape, const DescribedCard& card) {
  return shape.backward && shape.width > 128 && card.capability != 900;
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
    if (WorkspaceOf(*plan.plan) + plan.part.DeltaBytes() > static_cast<int64_t>(kRoom))
      return "a part needs more than the work space";
  const size_t parts = (shape.batch == 7 && shape.backward) ? 4 : 0;
  if (parts != 0 && made.launches.size() != parts)
    return "7 sequences of which 2 fit are not done in 4 launches";
  return "";
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
    const FlashPlans made = MakeFlashPlans(shape, kRoom, target);
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
  return failed;
}

}  // namespace
}  // namespace oneflow_like::cuda

int main() {
  std::printf("cuDNN %zu\n", cudnnGetVersion());
  int failed = 0;
  for (const auto& card : oneflow_like::cuda::DescribedCards()) failed += oneflow_like::cuda::CheckCard(card);
  return failed == 0 ? 0 : 1;
}
