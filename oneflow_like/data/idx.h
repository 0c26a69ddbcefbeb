// IDX files (LeCun's format of MNIST), plain or gzip: pictures and labels that fit into memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oneflow_like/data/source.h"

namespace oneflow_like {

// Bytes: magic 0 0 8 <axes>, big-endian extents, values.
struct IdxData {
  std::vector<int64_t> shape;
  std::vector<uint8_t> values;
};
// Throws Error with file and offset for a file that is missing, truncated, corrupt or implausible, and for
// another number of axes.
IdxData LoadIdx(const std::string& path, int axes);

// Pictures with a label each. Fields: "images" f32[height * width], scaled to [0, 1], and "labels" i32[].
class IdxImages final : public SampleSource {
 public:
  // Throws Error when the files do not belong together, and for a label that is not below `classes`.
  IdxImages(const std::string& images_path, const std::string& labels_path, int classes);
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return static_cast<int64_t>(labels_.size()); }
  void Read(const SampleId& id, std::span<void* const> to) const override;
  std::vector<DataHash> Hashes() const override;
  int64_t pixels() const { return fields_[0].shape[0]; }  // of one picture
  int64_t height() const { return height_; }
  int64_t width() const { return pixels() / height_; }
  int label(int64_t index) const { return labels_[index]; }

 private:
  std::vector<SampleField> fields_;
  std::string names_[2];
  int64_t height_ = 1;
  std::vector<uint8_t> images_, labels_;
};

}  // namespace oneflow_like
