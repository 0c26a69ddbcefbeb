#include "oneflow_like/program/picture_data.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "oneflow_like/data/idx.h"
#include "oneflow_like/data/images.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/program.h"

DEFINE_int64(batch, 64, "pictures of one step");
DEFINE_double(weight_decay, 0.05, "of filters and products");
DEFINE_int64(eval_batches, 1000, "of held-out pictures; 0: none");
DEFINE_string(idx, "", "folder of MNIST's four .gz files");
DEFINE_string(images, "", "folder: train/CLASS/*.jpg, val/CLASS/*.png");
DEFINE_int64(image_size, 0, "pixels; 0: 32, of --images 224");

namespace oneflow_like {
namespace {

PictureData OpenIdx() {
  constexpr int kClasses = 10;
  auto open = [&](const std::string& which) {
    const std::string path = FLAGS_idx + "/" + which;
    return std::make_shared<IdxImages>(path + "-images-idx3-ubyte.gz", path + "-labels-idx1-ubyte.gz",
                                       kClasses);
  };
  const auto train = open("train"), held_out = open("t10k");
  if (train->height() != held_out->height() || train->width() != held_out->width())
    Fail("--idx=", FLAGS_idx, ": training pictures are of ", train->height(), " x ", train->width(),
         " pixels, those of t10k of ", held_out->height(), " x ", held_out->width());
  return {
      Cat(FLAGS_idx, ": ", train->samples(), " pictures to learn from, ", held_out->samples(), " held out"),
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
    return std::make_shared<ImageFolder>(FLAGS_images + "/" + which, options);
  };
  const auto train = open("train", true), held_out = open("val", false);
  const auto classes = static_cast<int64_t>(train->classes().size());
  return {Cat(FLAGS_images, ": ", train->samples(), " pictures of ", classes, " classes, ",
              held_out->samples(), " held out"),
          train,
          held_out,
          {side, side, 3, classes, train->classes()},
          train->classes() == held_out->classes()};
}

}  // namespace

void CheckPictureFlags(const Launcher& launcher) {
  CheckTrainingFlags("pictures");
  CheckRange("--weight_decay", FLAGS_weight_decay, 0.0, 1e30);
  CheckRange<int64_t>("--image_size", FLAGS_image_size, 0, 1 << 14);
  if (!FLAGS_idx.empty() && !FLAGS_images.empty())
    Fail("--idx and --images both give the pictures: give one of the two");
  if (!FLAGS_idx.empty() && FLAGS_image_size > 0)
    Fail("--image_size=", FLAGS_image_size, ": pictures of --idx stay as large as they are");
  std::vector<Launcher::FlagFile> inputs;
  if (!FLAGS_idx.empty())
    for (const char* which : {"train", "t10k"})
      for (const char* what : {"-images-idx3-ubyte.gz", "-labels-idx1-ubyte.gz"})
        inputs.push_back({"idx", FLAGS_idx + "/" + which + what});
  launcher.CheckFiles(inputs, {{"log_json", FLAGS_log_json}});
  RequireFolders(launcher);
}

PictureData OpenPictures(SyntheticImages::Options train, SyntheticImages::Options held_out,
                         const PictureScale& scale) {
  if (!FLAGS_idx.empty()) return OpenIdx();
  const int64_t side = FLAGS_image_size > 0 ? FLAGS_image_size : FLAGS_images.empty() ? 32 : 224;
  if (!FLAGS_images.empty()) return OpenFolder(side, scale);
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
