// Folders of pictures, what is drawn of them, and resizing.
#include "oneflow_like/data/images.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/hash_bytes.h"
#include "core/random.h"
#include "oneflow_like/data/files.h"

namespace oneflow_like {
namespace {

constexpr int64_t kMostFileBytes = int64_t{1} << 30;
constexpr int kCropTries = 10;
constexpr double kMostRatio = 4.0 / 3;

// What programs keep beside the files of people: ".ipynb_checkpoints", "._a.jpg".
bool IsHidden(const std::filesystem::path& path) { return path.filename().string().starts_with('.'); }

bool IsPicture(const std::filesystem::path& path) {
  if (IsHidden(path)) return false;
  std::string ending = path.extension();
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

// Along one axis: which pixels an output pixel is made of, and their weights.
struct Taps {
  int first = 0;
  std::vector<float> weights;
};

// `from` pixels beginning at `begin` of `size` become `to`.
std::vector<Taps> TapsOf(double begin, double from, int size, int to) {
  const double scale = from / to, reach = std::max(1.0, scale);
  std::vector<Taps> all(to);
  for (int i = 0; i < to; ++i) {
    const double centre = begin + (i + 0.5) * scale;
    const int first = std::clamp(static_cast<int>(std::floor(centre - reach + 0.5)), 0, size - 1);
    const int last = std::clamp(static_cast<int>(std::ceil(centre + reach - 0.5)), first + 1, size);
    double sum = 0;
    std::vector<double> weights;
    for (int x = first; x < last; ++x) {
      weights.push_back(std::max(0.0, 1 - std::abs(x + 0.5 - centre) / reach));
      sum += weights.back();
    }
    all[i].first = first;
    for (double weight : weights)
      all[i].weights.push_back(static_cast<float>(sum > 0 ? weight / sum : 1.0 / weights.size()));
  }
  return all;
}

// Four floats that are multiplied and added at once: a pixel, and what follows it.
using Lanes = float __attribute__((vector_size(16)));

// One row of a picture, by channel: to[c * stride + i]. `room`: as many floats as the row has bytes, and one.
void ResizeRow(const uint8_t* row, const std::vector<Taps>& taps, float* room, float* to, int64_t stride) {
  auto end = [](const Taps& t) { return t.first + static_cast<int>(t.weights.size()); };
  const int low = std::min(taps.front().first, taps.back().first);
  const int last = std::max(end(taps.front()), end(taps.back()));
  for (int i = 3 * low; i < 3 * last; ++i) room[i] = row[i];
  room[3 * last] = 0;
  for (size_t i = 0; i < taps.size(); ++i) {
    Lanes sum = {0, 0, 0, 0};
    const float* pixel = room + 3 * taps[i].first;
    for (float weight : taps[i].weights) {
      Lanes pixels;
      std::memcpy(&pixels, pixel, sizeof pixels);
      sum += weight * pixels;
      pixel += 3;
    }
    for (int c = 0; c < 3; ++c) to[c * stride + i] = sum[c];
  }
}

}  // namespace

void Resize(const Picture& picture, const Crop& crop, int height, int width, const float mean[3],
            const float deviation[3], float* to) {
  std::vector<Taps> across = TapsOf(crop.x, crop.width, picture.width, width);
  const std::vector<Taps> down = TapsOf(crop.y, crop.height, picture.height, height);
  if (crop.flip) std::reverse(across.begin(), across.end());
  // Rows resized across, as they are first wanted; rows wanted again are near.
  int rows = 0;
  for (const Taps& taps : down) rows = std::max(rows, static_cast<int>(taps.weights.size()));
  std::vector<float> ring(static_cast<size_t>(rows) * 3 * width);
  int done = down.empty() ? 0 : down[0].first;
  std::vector<float> sum(3 * width), room(size_t{3} * picture.width + 1);
  for (int y = 0; y < height; ++y) {
    const Taps& taps = down[y];
    done = std::max(done, taps.first);
    for (; done < taps.first + static_cast<int>(taps.weights.size()); ++done)
      ResizeRow(&picture.rgb[size_t{3} * picture.width * done], across, room.data(),
                &ring[size_t{3} * width * (done % rows)], width);
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (size_t t = 0; t < taps.weights.size(); ++t) {
      const float* row = &ring[size_t{3} * width * ((taps.first + t) % rows)];
      for (int i = 0; i < 3 * width; ++i) sum[i] += taps.weights[t] * row[i];
    }
    for (int c = 0; c < 3; ++c) {
      const float scale = 1 / (255 * deviation[c]), shift = mean[c] / deviation[c];
      float* out = to + (static_cast<int64_t>(c) * height + y) * width;
      for (int x = 0; x < width; ++x) out[x] = sum[c * width + x] * scale - shift;
    }
  }
}

ImageFolder::ImageFolder(const std::string& folder, const ImageFolderOptions& options)
    : options_(options), folder_(folder) {
  namespace fs = std::filesystem;
  if (options.height < 1 || options.width < 1 || options.height > 1 << 14 || options.width > 1 << 14)
    Fail("pictures of ", folder, " are to be ", options.height, " x ", options.width,
         " pixels, must lie between 1 and ", 1 << 14);
  if (!(options.least_area > 0 && options.least_area <= 1))
    Fail("least_area of the pictures of ", folder, " is ", options.least_area, ", must lie in (0, 1]");
  for (int c = 0; c < 3; ++c)
    if (!(options.deviation[c] > 0))
      Fail("deviation ", c, " of the pictures of ", folder, " is ", options.deviation[c],
           ", must be positive");
  fields_ = {{"images", DType::kFloat32, {3, options.height, options.width}}, {"labels", DType::kInt32, {}}};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.is_directory() && !IsHidden(entry.path())) classes_.push_back(entry.path().filename());
  if (error) Fail("cannot read ", folder, ": ", error.message());
  std::sort(classes_.begin(), classes_.end());
  for (size_t c = 0; c < classes_.size(); ++c) {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder + "/" + classes_[c], error))
      if (IsPicture(entry.path())) files.push_back(entry.path());
    if (error) Fail("cannot read ", folder, "/", classes_[c], ": ", error.message());
    std::sort(files.begin(), files.end());
    for (std::string& file : files) files_.emplace_back(std::move(file), static_cast<int>(c));
  }
  if (files_.empty()) Fail(folder, " has no folders with pictures (.jpg, .jpeg, .png)");
}

std::vector<DataHash> ImageFolder::Hashes() const {
  constexpr size_t kMostAsked = 20'000;
  std::call_once(hashed_, [&] {
    for (const std::string& name : classes_) hashes_.push_back({folder_ + "/" + name});
    const size_t every = (files_.size() + kMostAsked - 1) / kMostAsked;
    for (size_t i = 0; i < files_.size(); ++i) {
      const auto& [path, label] = files_[i];
      DataHash& all = hashes_[label];
      const std::string name = path.substr(all.name.size());
      all.hash = HashOfBytes(name.data(), name.size(), all.hash);
      std::error_code error;
      const auto size = i % every == 0 ? static_cast<int64_t>(std::filesystem::file_size(path, error)) : 0;
      all.size += error ? 0 : size;
      all.hash = HashOfBytes(&size, sizeof size, all.hash);
    }
    for (size_t c = 0; c < classes_.size(); ++c)
      hashes_[c].hash = HashOfBytes(classes_[c].data(), classes_[c].size(), hashes_[c].hash);
  });
  return hashes_;
}

// As torchvision's RandomResizedCrop: area and shape are drawn until they fit, ten times at most; then what
// is in the middle.
Crop ImageFolder::Draw(const SampleId& id, int width, int height) const {
  const double w = width, h = height;
  const double wanted = static_cast<double>(options_.width) / options_.height;
  Crop middle;
  middle.width = std::min(w, h * wanted);
  middle.height = std::min(h, w / wanted);
  middle.x = (w - middle.width) / 2;
  middle.y = (h - middle.height) / 2;
  if (!options_.augment) return middle;
  const uint64_t key = RandomKey(RandomKey(id.seed, HashName("crops")), id.epoch);
  uint64_t draws = 0;
  auto uniform = [&] { return static_cast<double>(ToUniform(RandomBits(key, id.index, draws++))); };
  const bool flip = uniform() < 0.5;
  for (int i = 0; i < kCropTries; ++i) {
    const double area = w * h * (options_.least_area + (1 - options_.least_area) * uniform());
    const double ratio = wanted * std::exp((2 * uniform() - 1) * std::log(kMostRatio));
    Crop crop;
    crop.width = std::sqrt(area * ratio);
    crop.height = std::sqrt(area / ratio);
    const double x = uniform(), y = uniform();
    if (crop.width > w || crop.height > h) continue;
    crop.x = x * (w - crop.width);
    crop.y = y * (h - crop.height);
    crop.flip = flip;
    return crop;
  }
  middle.flip = flip;
  return middle;
}

void ImageFolder::Read(const SampleId& id, std::span<void* const> to) const {
  const auto& [path, label] = files_[id.index];
  std::string bytes;
  try {
    bytes = ReadFile(path, kMostFileBytes);
  } catch (const Error& error) {
    throw BrokenSample(error.what());
  }
  Crop crop;
  const Picture picture = DecodeCrop(
      reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int64_t>(bytes.size()), path,
      options_.height, options_.width, [&](int width, int height) { return Draw(id, width, height); }, &crop);
  Resize(picture, crop, options_.height, options_.width, options_.mean, options_.deviation,
         static_cast<float*>(to[0]));
  *static_cast<int32_t*>(to[1]) = label;
}

}  // namespace oneflow_like
