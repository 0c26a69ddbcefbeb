// Pictures: JPEG and PNG files, decoded and augmented as torchvision's training does.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "oneflow_like/data/source.h"

namespace oneflow_like {

// Rows of RGB bytes, from the top.
struct Picture {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
};

// Decodes a JPEG or a PNG, recognised by its first bytes, to the pixels that Pillow, torchvision and OpenCV
// make of it: grey becomes RGB, transparency is dropped whatever it is, of 16 bits the upper 8 are taken, and
// neither gAMA nor a profile changes a colour. The rotation that EXIF asks for is ignored, as torchvision's
// decoders do by default. If the format allows it, a picture is decoded at a half, a quarter or an eighth of
// its size, but not below `least` pixels along either side; 0: full size. Messages begin with `name`, and
// give the format and, if known, the byte. Throws BrokenSample for a picture that is truncated, corrupt, or
// of more than 2^26 pixels or than its file has room for, and Error for a format that this build does not
// support.
Picture Decode(const uint8_t* data, int64_t size, const std::string& name, int least = 0);

// A rectangle of a picture, and whether it is mirrored.
struct Crop {
  double x = 0, y = 0, width = 0, height = 0;
  bool flip = false;
};
// Says what is wanted of a picture of that size.
using DrawCrop = std::function<Crop(int width, int height)>;

// What Resize needs to make `height` x `width` pixels of the crop that is drawn, and *crop where it lies in
// that: of a JPEG those rows and columns that the crop covers, exactly as the whole picture has them, or the
// whole picture decoded smaller, as long as the crop keeps `height` x `width` pixels. Rows below them are not
// looked at, so what is wrong there is not found. Errors are Decode's.
Picture DecodeCrop(const uint8_t* data, int64_t size, const std::string& name, int height, int width,
                   const DrawCrop& draw, Crop* crop);

// to[3, height, width] = (the crop, scaled to [0, 1], - mean) / deviation, by channel. Each pixel is the mean
// of what it covers, weighted by a triangle (bilinear with antialiasing).
void Resize(const Picture& picture, const Crop& crop, int height, int width, const float mean[3],
            const float deviation[3], float* to);

struct ImageFolderOptions {
  int height = 224, width = 224;
  // For training: a random crop of at least `least_area` of the picture, its aspect at most 3:4 or
  // 4:3 off, drawn anew each epoch, and half of them flipped. Otherwise the largest centred crop of that
  // shape.
  bool augment = true;
  double least_area = 0.08;
  float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};
};

// Pictures in folders, one for each class, in the order of their names; names that begin with a dot are
// passed over. Fields: "images" f32[3, height, width] and "labels" i32[]. A file is read when its sample is.
class ImageFolder final : public SampleSource {
 public:
  // Throws Error for a folder without pictures (.jpg, .jpeg, .png, in any case).
  ImageFolder(const std::string& folder, const ImageFolderOptions& options);
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return static_cast<int64_t>(files_.size()); }
  void Read(const SampleId& id, std::span<void* const> to) const override;
  // Of each class: the names of its files and, of up to 20,000 files of all, evenly chosen, their sizes.
  std::vector<DataHash> Hashes() const override;
  const std::vector<std::string>& classes() const { return classes_; }

 private:
  Crop Draw(const SampleId& id, int width, int height) const;

  const ImageFolderOptions options_;
  std::vector<SampleField> fields_;
  std::vector<std::string> classes_;
  std::vector<std::pair<std::string, int>> files_;  // and their class
  const std::string folder_;
  mutable std::once_flag hashed_;  // asking for sizes takes seconds
  mutable std::vector<DataHash> hashes_;
};

}  // namespace oneflow_like
