// Trains a residual network to name pictures, on any mesh of axes dp, tp and pp.
//   build/examples/resnet --size=18 --mesh=cpu:dp=2,pp=2 --micro_batches=4 --norm_parts=8
#include <gflags/gflags.h>

#include <string>

#include "examples/resnet_model.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/training_flags.h"
#include "oneflow_like/program/vision_program.h"

DEFINE_string(size, "tiny", "tiny, 18 or 50");
DEFINE_int64(norm_parts, 1, "of the batch, each with its norms");
DEFINE_double(momentum, 0.9, "of SGD");

namespace oneflow_like {
namespace {

VisionModel ResNetOfFlags(const PictureShape& shape) {
  ResNetConfig config = ResNetOfSize(FLAGS_size, shape.height);
  config.classes = shape.classes;
  if (!(FLAGS_momentum >= 0 && FLAGS_momentum < 1))
    Fail("--momentum is ", FLAGS_momentum, ", must lie in [0, 1)");
  CheckRange<int64_t>("--norm_parts", FLAGS_norm_parts, 1, FLAGS_batch);
  if (FLAGS_batch % FLAGS_norm_parts != 0 ||
      (FLAGS_norm_parts > 1 && FLAGS_norm_parts % FLAGS_micro_batches != 0))
    Fail("--norm_parts=", FLAGS_norm_parts, ": must divide --batch=", FLAGS_batch,
         ", and be 1 or a multiple of --micro_batches=", FLAGS_micro_batches);
  config.norm_parts = FLAGS_norm_parts;
  return {.logits = [config](Scope scope, Tensor images,
                             bool training) { return ResNetLogits(scope, images, config, training); },
          .optimizer = Sgd{.lr = FLAGS_lr, .momentum = FLAGS_momentum, .weight_decay = FLAGS_weight_decay}};
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::SetDefault("lr", "0.1");
  oneflow_like::SetDefault("clip", "0");
  oneflow_like::SetDefault("weight_decay", "0.0005");
  oneflow_like::Launcher launcher(
      &argc, &argv, "Trains a residual network to name pictures, on any mesh of axes dp, tp and pp.",
      oneflow_like::kTrainingMesh, oneflow_like::TrainingProgram);
  return launcher.Main([&] { return oneflow_like::TrainVisionModel(launcher, oneflow_like::ResNetOfFlags); });
}
