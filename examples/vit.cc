// Trains a Vision Transformer to name pictures, on any mesh of axes dp, tp and pp.
//   build/examples/vit --size=tiny --mesh=cpu:tp=2,pp=2 --micro_batches=4
#include <gflags/gflags.h>

#include <string>

#include "examples/training_flags.h"
#include "examples/vision_program.h"
#include "examples/vit_model.h"
#include "oneflow_like/limits.h"

DEFINE_string(size, "tiny", "tiny, small or base");
DEFINE_int64(layers, 0, "blocks; 0: of the size");
DEFINE_int64(patch, 0, "pixels; 0: 16, of small pictures 4");
DEFINE_double(dropout, 0, "probability of dropping");

namespace oneflow_like {
namespace {

VisionModel VitOfFlags(const PictureShape& shape) {
  CheckRange<int64_t>("--layers", FLAGS_layers, 0, 10'000);
  CheckRange<int64_t>("--patch", FLAGS_patch, 0, 1 << 14);
  if (!(FLAGS_dropout >= 0 && FLAGS_dropout < 1))
    Fail("--dropout is ", FLAGS_dropout, ", must lie in [0, 1)");
  VitConfig config = VitOfSize(FLAGS_size, shape.height);
  config.classes = shape.classes;
  config.dropout = FLAGS_dropout;
  if (FLAGS_layers > 0) config.layers = FLAGS_layers;
  if (FLAGS_patch > 0) config.patch = FLAGS_patch;
  return {.logits = [config](Scope scope, Tensor images,
                             bool training) { return VitLogits(scope, images, config, training); },
          .optimizer = AdamW{.lr = FLAGS_lr, .weight_decay = FLAGS_weight_decay}};
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::Launcher launcher(
      &argc, &argv, "Trains a Vision Transformer to name pictures, on any mesh of axes dp, tp and pp.",
      oneflow_like::kTrainingMesh);
  return launcher.Main([&] { return oneflow_like::TrainVisionModel(launcher, oneflow_like::VitOfFlags); });
}
