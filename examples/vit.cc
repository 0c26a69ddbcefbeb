// Trains a Vision Transformer to name pictures, on any mesh of axes dp, tp and pp.
//   build/examples/vit --size=tiny --mesh=cpu:tp=2,pp=2 --micro_batches=4
#include <gflags/gflags.h>

#include <algorithm>
#include <string>

#include "examples/vit_huggingface.h"
#include "examples/vit_model.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/huggingface_run.h"
#include "oneflow_like/program/training_flags.h"
#include "oneflow_like/program/vision_program.h"

DEFINE_string(size, "tiny", "tiny, small or base");
DEFINE_int64(layers, 0, "blocks; 0: of the size");
DEFINE_int64(patch, 0, "pixels; 0: 16, of small pictures 4");
DEFINE_double(dropout, 0, "probability of dropping");

DECLARE_int64(image_size);

namespace oneflow_like {
namespace {

// The model's size: by the flags, or what --load_hf says, which decides alone but for the classes.
VitFolder VitOfFlags(const PictureShape& shape) {
  CheckRange<int64_t>("--layers", FLAGS_layers, 0, 10'000);
  CheckRange<int64_t>("--patch", FLAGS_patch, 0, 1 << 14);
  if (!(FLAGS_dropout >= 0 && FLAGS_dropout < 1))
    Fail("--dropout is ", FLAGS_dropout, ", must lie in [0, 1)");
  VitFolder vit;
  if (FLAGS_load_hf.empty()) {
    vit.config = VitOfSize(FLAGS_size, shape.height);
    if (FLAGS_layers > 0) vit.config.layers = FLAGS_layers;
    if (FLAGS_patch > 0) vit.config.patch = FLAGS_patch;
    vit.side = shape.height;
    vit.channels = shape.channels;
    if (const int64_t patch = vit.config.patch; shape.height % patch != 0 || shape.width % patch != 0)
      Fail("--patch=", patch, ": patches of ", patch, " pixels do not divide pictures of ", shape.height,
           " x ", shape.width);
  } else {
    for (const char* flag : {"size", "layers", "patch"})
      if (IsGiven(flag)) Fail("--", flag, ": --load_hf=", FLAGS_load_hf, " says how large the model is");
    vit = ReadVitConfig(FLAGS_load_hf);
    if (vit.side != shape.height || vit.side != shape.width || vit.channels != shape.channels)
      Fail("pictures are of ", shape.height, " x ", shape.width, " x ", shape.channels,
           ", but the model of --load_hf=", FLAGS_load_hf, " reads ", vit.side, " x ", vit.side, " x ",
           vit.channels);
  }
  vit.config.classes = shape.classes;
  vit.config.dropout = FLAGS_dropout;
  return vit;
}

VisionModel ModelOfFlags(const Launcher& launcher, const PictureShape& shape) {
  const VitFolder vit = VitOfFlags(shape);
  std::string config = VitConfigText(vit);
  std::erase(config, '\n');
  VisionModel model{.logits = [vit](Scope scope, Tensor images,
                                    bool training) { return VitLogits(scope, images, vit.config, training); },
                    .optimizer = AdamW{.lr = FLAGS_lr, .weight_decay = FLAGS_weight_decay},
                    .state = {{kConfigState, config}}};
  model.begin = [&launcher, vit](Model& model) {
    if (FLAGS_load_hf.empty()) return;
    VitFolder there = vit;
    const int64_t classes = ReadVitConfig(FLAGS_load_hf).config.classes;
    const bool other = classes != vit.config.classes;  // pictures of other things: the output begins anew
    if (other) there.config.classes = 0;
    LoadHuggingFace(launcher, model, VitFormat(there), other);
    if (other)
      launcher.Print("its output names %lld classes, and begins anew for %lld\n",
                     static_cast<long long>(classes), static_cast<long long>(vit.config.classes));
  };
  model.end = [&launcher, vit](Model& model) { SaveHuggingFace(launcher, model, VitFormat(vit)); };
  return model;
}

int TrainVit(const Launcher& launcher) {
  CheckHuggingFaceFlags();
  if (!FLAGS_load_hf.empty() && !IsGiven("image_size") && FLAGS_idx.empty())
    FLAGS_image_size = ReadVitConfig(FLAGS_load_hf).side;
  RequireHuggingFaceFolder(launcher);
  return TrainVisionModel(launcher, [&](const PictureShape& shape) { return ModelOfFlags(launcher, shape); });
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::Launcher launcher(
      &argc, &argv, "Trains a Vision Transformer to name pictures, on any mesh of axes dp, tp and pp.",
      oneflow_like::kTrainingMesh, oneflow_like::TrainingProgram);
  return launcher.Main([&] { return oneflow_like::TrainVit(launcher); });
}
