#include "oneflow_like/program/picture_data.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "oneflow_like/data/idx.h"
#include "oneflow_like/data/images.h"
#include "oneflow_like/program/program.h"

namespace oneflow_like {

PictureFlags& picture_flags() {
  static auto* flags = new PictureFlags;  // gflags keeps pointers to the fields
  return *flags;
}

FlagGroup PictureGroup() {
  PictureFlags& f = picture_flags();
  return {"pictures",
          "Pictures",
          {{"images", &f.images, "Learns from the pictures in train/CLASS and val/CLASS of this folder.",
            kAnyValue, kCommon},
           {"idx", &f.idx, "Learns from MNIST's four .gz files in this folder.", kAnyValue, kCommon},
           {"image_size", &f.image_size,
            "Scales pictures to this many pixels along a side; 0 means 32, and 224 for --images.",
            RangeOf(0, 1 << 14)},
           {"weight_decay", &f.weight_decay, "Sets the weight decay of filters and matrices.",
            RangeOf(0, 1e30), kKept}}};
}

namespace {

PictureData OpenIdx() {
  constexpr int kClasses = 10;
  auto open = [&](const std::string& which) {
    const std::string path = picture_flags().idx + "/" + which;
    return std::make_shared<IdxImages>(path + "-images-idx3-ubyte.gz", path + "-labels-idx1-ubyte.gz",
                                       kClasses);
  };
  const auto train = open("train"), held_out = open("t10k");
  if (train->height() != held_out->height() || train->width() != held_out->width())
    Fail("--idx=", picture_flags().idx, ": training pictures are of ", train->height(), " x ", train->width(),
         " pixels, those of t10k of ", held_out->height(), " x ", held_out->width());
  return {Cat(picture_flags().idx, ": ", train->samples(), " pictures to learn from, ", held_out->samples(),
              " held out"),
          train,
          held_out,
          {train->height(), train->width(), 1, kClasses}};
}

PictureData OpenFolder(int64_t side, const PictureScale& scale) {
  const int pixels = static_cast<int>(side);
  auto open = [&](const char* which, bool augment) {
    ImageFolderOptions options{.height = pixels, .width = pixels, .augment = augment};
    std::copy(std::begin(scale.mean), std::end(scale.mean), options.mean);
    std::copy(std::begin(scale.deviation), std::end(scale.deviation), options.deviation);
    return std::make_shared<ImageFolder>(picture_flags().images + "/" + which, options);
  };
  const auto train = open("train", true), held_out = open("val", false);
  const auto classes = static_cast<int64_t>(train->classes().size());
  return {Cat(picture_flags().images, ": ", train->samples(), " pictures of ", classes, " classes, ",
              held_out->samples(), " held out"),
          train,
          held_out,
          {side, side, 3, classes, train->classes()},
          train->classes() == held_out->classes()};
}

}  // namespace

void CheckPictureFlags(const Launcher& launcher) {
  CheckTrainingFlags();
  if (!picture_flags().idx.empty() && !picture_flags().images.empty())
    Fail("--idx and --images both give the pictures: give one of the two");
  if (!picture_flags().idx.empty() && picture_flags().image_size > 0)
    Fail("--image_size=", picture_flags().image_size, ": pictures of --idx stay as large as they are");
  std::vector<Launcher::FlagFile> inputs;
  if (!picture_flags().idx.empty())
    for (const char* which : {"train", "t10k"})
      for (const char* what : {"-images-idx3-ubyte.gz", "-labels-idx1-ubyte.gz"})
        inputs.push_back({"idx", picture_flags().idx + "/" + which + what});
  launcher.CheckFiles(inputs, {{"log_json", training_flags().log_json}});
  RequireFolders(launcher);
}

PictureData OpenPictures(SyntheticImages::Options train, SyntheticImages::Options held_out,
                         const PictureScale& scale) {
  if (!picture_flags().idx.empty()) return OpenIdx();
  const int64_t side = picture_flags().image_size > 0   ? picture_flags().image_size
                       : picture_flags().images.empty() ? 32
                                                        : 224;
  if (!picture_flags().images.empty()) return OpenFolder(side, scale);
  for (SyntheticImages::Options* options : {&train, &held_out}) options->height = options->width = side;
  return {Cat("synthetic pictures of ", train.classes, " classes"),
          std::make_shared<SyntheticImages>(train),
          std::make_shared<SyntheticImages>(held_out),
          {side, side, train.channels, train.classes}};
}

Tensor ChannelsLast(Tensor images, const PictureShape& shape) {
  const int64_t batch = images.shape()[0];
  return images.shape().rank() == 2 ? reshape(images, {batch, shape.height, shape.width, shape.channels})
                                    : transpose(images, {0, 2, 3, 1});
}

}  // namespace oneflow_like
