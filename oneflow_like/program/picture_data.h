// Pictures for the programs that learn from them: MNIST's files, folders of JPEGs and PNGs, or synthetic
// ones; and the flags that choose.
#pragma once

#include <gflags/gflags_declare.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/program.h"
#include "oneflow_like/program/synthetic.h"
#include "oneflow_like/program/training_flags.h"

DECLARE_string(idx);
DECLARE_string(images);
DECLARE_double(weight_decay);

namespace oneflow_like {

struct PictureShape {
  int64_t height = 0, width = 0, channels = 0, classes = 0;
  std::vector<std::string> names = {};  // of the classes, where the data name them
};

// What a colour in [0, 1] becomes: (colour - mean) / deviation, by channel.
struct PictureScale {
  float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};
};

struct PictureData {
  std::string name;  // for people
  std::shared_ptr<const SampleSource> train, held_out;
  PictureShape shape;        // classes: of train
  bool same_classes = true;  // are those of held_out
};

// Throws Error for flags that are out of range or contradict each other, and for files and folders that
// cannot be written.
void CheckPictureFlags(const Launcher& launcher);

// The pictures that --idx or --images, scaled so, name, else these, of --image_size. Throws Error for files
// that are missing or broken.
PictureData OpenPictures(SyntheticImages::Options train, SyntheticImages::Options held_out,
                         const PictureScale& scale = {});

// [n height * width] or [n channels height width] -> [n height width channels].
Tensor ChannelsLast(Tensor images, const PictureShape& shape);

struct PictureInputs {
  Tensor images, labels;  // [n height width channels], [n]
};
// Of a Model or ModelGraph; inputs "images" and "labels", cut over dp.
template <typename Graph>
PictureInputs InputsOf(Graph& graph, const PictureData& data) {
  Tensor images =
      graph.Input("images", BatchOf(data.train->fields()[0].shape), DType::kFloat32, {{"dp", S(0)}});
  Tensor labels = graph.Input("labels", {FLAGS_batch}, DType::kInt32, {{"dp", S(0)}});
  return {ChannelsLast(images, data.shape), labels};
}

}  // namespace oneflow_like
