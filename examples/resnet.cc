// Trains a residual network to name pictures, on any mesh of axes dp, tp and pp.
//   build/examples/resnet --size=18 --mesh=cpu:dp=2,pp=2 --micro_batches=4 --norm_parts=8
#include <string>

#include "examples/resnet_model.h"
#include "oneflow_like/program/training_flags.h"
#include "oneflow_like/program/vision_program.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  std::string size = "tiny";
  int64_t norm_parts = 1;
  double momentum = 0.9;
} flags;

FlagGroup ModelGroup() {
  return {"model",
          "Model",
          {{"size", &flags.size, "Chooses the network: tiny, 18 or 50.", kAnyValue, kCommon | kKept},
           {"norm_parts", &flags.norm_parts,
            "Sets the number of parts of the batch that batch norm treats separately.", RangeOf(1, 1 << 20),
            kKept},
           {"momentum", &flags.momentum, "Sets the momentum of SGD.", RangeBelow(0, 1), kKept}}};
}

VisionModel ResNetOfFlags(const PictureShape& shape) {
  ResNetConfig config = ResNetOfSize(flags.size, shape.height);
  config.classes = shape.classes;
  if (training_flags().batch % flags.norm_parts != 0 ||
      (flags.norm_parts > 1 && flags.norm_parts % training_flags().micro_batches != 0))
    Fail("--norm_parts=", flags.norm_parts, ": must divide --batch=", training_flags().batch,
         ", and be 1 or a multiple of --micro_batches=", training_flags().micro_batches);
  config.norm_parts = flags.norm_parts;
  return {.logits = [config](Scope scope, Tensor images,
                             bool training) { return ResNetLogits(scope, images, config, training); },
          .optimizer = Sgd{.lr = training_flags().lr,
                           .momentum = flags.momentum,
                           .weight_decay = picture_flags().weight_decay}};
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().unit = "pictures";
  training_flags().eval_batches = 1000;
  training_flags().lr = 0.1;
  training_flags().clip = 0;
  picture_flags().weight_decay = 0.0005;
  return ProgramMain(argc, argv,
                     "Trains a residual network to name pictures, on any mesh of axes dp, tp and pp.",
                     {ModelGroup(), PictureGroup()},
                     [](const Launcher& launcher) { return TrainVisionModel(launcher, ResNetOfFlags); });
}
