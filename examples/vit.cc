// Trains a Vision Transformer to name pictures, on any mesh of axes dp, tp and pp.
//   build/examples/vit --size=tiny --mesh=cpu:tp=2,pp=2 --micro_batches=4
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/vit_huggingface.h"
#include "examples/vit_model.h"
#include "oneflow_like/program/huggingface_run.h"
#include "oneflow_like/program/training_flags.h"
#include "oneflow_like/program/vision_program.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  std::string size = "tiny";
  int64_t layers = 0, patch = 0;
  double dropout = 0;
} flags;

FlagGroup ModelGroup() {
  return {"model",
          "Model",
          {{"size", &flags.size, "Chooses the model: tiny, small or base.", kAnyValue, kCommon | kKept},
           {"layers", &flags.layers, "Sets the number of blocks; 0 takes that of --size.", RangeOf(0, 10'000),
            kCommon | kKept},
           {"patch", &flags.patch,
            "Sets the pixels along a side of a patch; 0 means 16, and 4 for small pictures.",
            RangeOf(0, 1 << 14), kKept},
           {"dropout", &flags.dropout, "Drops values with this probability in training.", RangeBelow(0, 1),
            kKept}}};
}

// The model's size: by the flags, or what --load_hf says, which decides alone but for the classes. What no
// flag says is that of the model that the run begins with.
VitFolder VitOfFlags(const PictureShape& shape, const HuggingFaceConfig* theirs) {
  VitFolder vit;
  if (hugging_face_flags().load_hf.empty()) {
    vit.config = VitOfSize(flags.size, shape.height);
    if (flags.layers > 0) vit.config.layers = flags.layers;
    if (flags.patch > 0) vit.config.patch = flags.patch;
    if (theirs) vit.config.norm_eps = ReadVitConfig(*theirs).config.norm_eps;
    vit.side = shape.height;
    vit.channels = shape.channels;
    if (const int64_t patch = vit.config.patch; shape.height % patch != 0 || shape.width % patch != 0)
      Fail("--patch=", patch, ": patches of ", patch, " pixels do not divide pictures of ", shape.height,
           " x ", shape.width);
  } else {
    for (const char* flag : {"size", "layers", "patch"})
      if (IsGiven(flag))
        Fail("--", flag, ": --load_hf=", hugging_face_flags().load_hf, " says how large the model is");
    vit = ReadVitConfig(*theirs);
    if (vit.side != shape.height || vit.side != shape.width || vit.channels != shape.channels)
      Fail("pictures are of ", shape.height, " x ", shape.width, " x ", shape.channels,
           ", but the model of --load_hf=", hugging_face_flags().load_hf, " reads ", vit.side, " x ",
           vit.side, " x ", vit.channels);
  }
  vit.config.classes = shape.classes;
  vit.config.dropout = flags.dropout;
  return vit;
}

// What the model that the run begins with calls its classes, beside those of the data.
struct Classes {
  bool same = true;                 // row i of its output is what the data call i
  std::string other;                // else: how they differ
  std::vector<std::string> labels;  // to be written; empty: as it has them
};
Classes CompareClasses(const HuggingFaceConfig& theirs, const PictureShape& shape) {
  const int64_t classes = ReadVitConfig(theirs).config.classes;
  if (classes != shape.classes)
    return {false, Cat("names ", classes, " classes, and begins anew for ", shape.classes), shape.names};
  const std::vector<std::string> labels = VitLabels(theirs);
  if (labels.empty()) return {.labels = shape.names};
  // Names of another kind (WordNet's numbers, say) are taken to be in the model's order.
  if (labels == shape.names ||
      !std::is_permutation(labels.begin(), labels.end(), shape.names.begin(), shape.names.end()))
    return {};
  return {false, "names the classes in another order, and begins anew", shape.names};
}

VisionModel ModelOfFlags(const Launcher& launcher, const PictureShape& shape, const ModelFiles& files) {
  const HuggingFaceConfig* theirs = files.config ? &*files.config : nullptr;
  VitFolder vit = VitOfFlags(shape, theirs);
  const Classes classes = theirs ? CompareClasses(*theirs, shape) : Classes{.labels = shape.names};
  vit.labels = classes.labels;
  const std::string config = VitConfigText(vit, theirs);
  std::string line = config;
  std::erase(line, '\n');
  VisionModel model{
      .logits = [vit](Scope scope, Tensor images,
                      bool training) { return VitLogits(scope, images, vit.config, training); },
      .optimizer = AdamW{.lr = training_flags().lr, .weight_decay = picture_flags().weight_decay},
      .state = {{kConfigFile, line}},
      .files = files.others};
  VitFolder there = vit;
  if (!classes.same) there.config.classes = 0;  // pictures of other things: the output begins anew
  const std::shared_ptr<VariableSource> weights = OpenHuggingFace(launcher, VitFormat(there));
  model.begin = [&launcher, weights, classes](Model& model) {
    LoadHuggingFace(launcher, model, weights, !classes.same);
    if (weights && !classes.same) launcher.Print("its output %s\n", classes.other.c_str());
  };
  model.end = [&launcher, vit, config, others = files.others](Model& model) {
    SaveHuggingFace(launcher, model, VitFormat(vit), config, others);
  };
  return model;
}

// As the folder's reader of pictures scales them; where it has none, as this program does.
PictureScale ScaleIn(const ModelFiles& files) {
  PictureScale scale;
  const char* const name = "preprocessor_config.json";
  const auto found = files.others.find(name);
  if (found == files.others.end()) return scale;
  const HuggingFaceConfig reader(files.where + "/" + name, found->second);
  const bool normalizes = reader.Flag("do_normalize", true);
  const double one = reader.Flag("do_rescale", true) ? 255 * reader.Real("rescale_factor", 1.0 / 255) : 255;
  const std::vector<double> mean = reader.Reals("image_mean", 3, 0.5),
                            deviation = reader.Reals("image_std", 3, 0.5);
  for (int c = 0; c < 3; ++c) {
    if (normalizes && !(deviation[c] > 0))
      Fail(reader.path(), ": image_std is ", deviation[c], ", must be more than 0");
    scale.mean[c] = static_cast<float>(normalizes ? mean[c] / one : 0);
    scale.deviation[c] = static_cast<float>(normalizes ? deviation[c] / one : 1 / one);
  }
  return scale;
}

int TrainVit(const Launcher& launcher) {
  CheckHuggingFaceFlags();
  const ModelFiles files = FilesOfBeginning(launcher);
  if (!hugging_face_flags().load_hf.empty() && !IsGiven("image_size") && picture_flags().idx.empty())
    picture_flags().image_size = ReadVitConfig(*files.config).side;
  RequireHuggingFaceFolder(launcher);
  return TrainVisionModel(
      launcher, [&](const PictureShape& shape) { return ModelOfFlags(launcher, shape, files); },
      ScaleIn(files));
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().unit = "pictures";
  training_flags().eval_batches = 1000;
  return ProgramMain(argc, argv,
                     "Trains a Vision Transformer to name pictures, on any mesh of axes dp, tp and pp.",
                     {ModelGroup(), PictureGroup(), HuggingFaceGroup()},
                     [](const Launcher& launcher) { return TrainVit(launcher); });
}
