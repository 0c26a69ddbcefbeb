// Reading and checking IDX files.
#include "oneflow_like/data/idx.h"

#include <algorithm>

#include "oneflow_like/data/files.h"

namespace oneflow_like {
namespace {

constexpr int64_t kMaxIdxBytes = int64_t{1} << 30;

int64_t BigUint32(const unsigned char* p) {
  return int64_t{p[0]} << 24 | int64_t{p[1]} << 16 | int64_t{p[2]} << 8 | int64_t{p[3]};
}

}  // namespace

IdxData LoadIdx(const std::string& path, int axes) {
  GzipReader reader(path);
  unsigned char magic[4];
  if (const int64_t got = reader.Read(reinterpret_cast<char*>(magic), 4); got != 4)
    Fail(path, " is truncated at byte ", got, ": no IDX header");
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || magic[3] != axes) {
    Fail(path, " is not an IDX file of bytes with ", axes, " axes: at byte 0 it begins with ", int{magic[0]},
         " ", int{magic[1]}, " ", int{magic[2]}, " ", int{magic[3]}, " instead of 0 0 8 ", axes);
  }
  IdxData data;
  int64_t total = 1;
  for (int axis = 0; axis < axes; ++axis) {
    unsigned char extent[4];
    if (reader.Read(reinterpret_cast<char*>(extent), 4) != 4)
      Fail(path, " is truncated inside its IDX header, which takes ", 4 + 4 * axes, " bytes");
    data.shape.push_back(BigUint32(extent));
    // Checked before it is multiplied or allocated: the header may say anything.
    if (data.shape.back() < 1)
      Fail(path, " at byte ", 4 + 4 * axis, ": axis ", axis, " of its IDX header has extent 0");
    if (data.shape.back() > kMaxIdxBytes / total) {
      Fail(path, " at byte ", 4 + 4 * axis, ": its IDX header asks for more than ", kMaxIdxBytes,
           " bytes (axis ", axis, " has extent ", data.shape.back(), ")");
    }
    total *= data.shape.back();
  }
  // Grown as the bytes come, so that a short file with a large header takes no more memory than it has bytes.
  while (static_cast<int64_t>(data.values.size()) < total) {
    const int64_t old = data.values.size(), want = std::min<int64_t>(total - old, 1 << 20);
    data.values.resize(old + want);
    const int64_t got = reader.Read(reinterpret_cast<char*>(data.values.data()) + old, want);
    if (got < want)
      Fail(path, " is truncated at byte ", 4 + 4 * axes + old + got, ": ", old + got,
           " values, but its header says ", total);
  }
  char more;
  if (reader.Read(&more, 1) != 0) Fail(path, " holds more than the ", total, " values its header says");
  return data;
}

IdxImages::IdxImages(const std::string& images_path, const std::string& labels_path, int classes) {
  IdxData images = LoadIdx(images_path, 3), labels = LoadIdx(labels_path, 1);
  if (images.shape[0] != labels.shape[0]) {
    Fail(images_path, " holds ", images.shape[0], " images, but ", labels_path, " ", labels.shape[0],
         " labels");
  }
  for (size_t i = 0; i < labels.values.size(); ++i) {
    if (labels.values[i] >= classes) {
      Fail(labels_path, " at byte ", 8 + i, ": label ", i, " is ", int{labels.values[i]}, ", but there are ",
           classes, " classes");
    }
  }
  fields_ = {{"images", DType::kFloat32, {images.shape[1] * images.shape[2]}}, {"labels", DType::kInt32, {}}};
  names_[0] = images_path;
  names_[1] = labels_path;
  height_ = std::max<int64_t>(1, images.shape[1]);
  images_ = std::move(images.values);
  labels_ = std::move(labels.values);
}

std::vector<DataHash> IdxImages::Hashes() const {
  std::vector<DataHash> hashes;
  for (const auto* values : {&images_, &labels_}) {
    const auto size = static_cast<int64_t>(values->size());
    hashes.push_back({names_[hashes.size()], size, HashOfSome(values->data(), size, HashedBytes(2))});
  }
  return hashes;
}

void IdxImages::Read(const SampleId& id, std::span<void* const> to) const {
  const uint8_t* from = &images_[id.index * pixels()];
  auto* image = static_cast<float*>(to[0]);
  for (int64_t i = 0; i < pixels(); ++i) image[i] = from[i] * (1.0f / 255.0f);
  *static_cast<int32_t*>(to[1]) = labels_[id.index];
}

}  // namespace oneflow_like
