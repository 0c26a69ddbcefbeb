// Pictures for programs that learn from them: MNIST's files, folders of JPEGs and PNGs, or synthetic ones,
// and the flags that choose between them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/program/program.h"
#include "oneflow_like/program/synthetic.h"
#include "oneflow_like/program/training_flags.h"

namespace oneflow_like {

// Values of the flags of these names. A program sets its own defaults here before it makes its Launcher.
struct PictureFlags {
  std::string idx, images;
  int64_t image_size = 0;
  double weight_decay = 0.05;
};
PictureFlags& picture_flags();  // of this process

FlagGroup PictureGroup();  // "pictures"

struct PictureShape {
  int64_t height = 0, width = 0, channels = 0, classes = 0;
  std::vector<std::string> names = {};  // names of the classes; empty if the data has none
};

// A colour in [0, 1] becomes (colour - mean) / deviation, by channel.
struct PictureScale {
  float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};
};

struct PictureData {
  std::string name;  // a description for people
  std::shared_ptr<const SampleSource> train, held_out;
  PictureShape shape;        // classes are those of `train`
  bool same_classes = true;  // whether `held_out` has the same classes
};

// Throws Error for flags that contradict each other, and for files and folders that
// cannot be written.
void CheckPictureFlags(const Launcher& launcher);

// Opens the pictures of --idx, or of --images scaled by `scale`; without these flags, synthetic pictures of
// --image_size as `train` and `held_out` describe them. Throws Error for files that are missing or broken.
PictureData OpenPictures(SyntheticImages::Options train, SyntheticImages::Options held_out,
                         const PictureScale& scale = {});

// Reorders [n, height * width] or [n, channels, height, width] to [n, height, width, channels].
Tensor ChannelsLast(Tensor images, const PictureShape& shape);

struct PictureInputs {
  Tensor images, labels;  // [n height width channels], [n]
};
// Adds inputs "images" and "labels", cut over dp, to a Model or a ModelGraph.
template <typename Graph>
PictureInputs InputsOf(Graph& graph, const PictureData& data) {
  Tensor images = graph.Input("images", BatchOf(data.train->fields()[0].shape), DType::kFloat32,
                              CutBatch(graph.scope().mesh()));
  Tensor labels =
      graph.Input("labels", {training_flags().batch}, DType::kInt32, CutBatch(graph.scope().mesh()));
  return {ChannelsLast(images, data.shape), labels};
}

}  // namespace oneflow_like
