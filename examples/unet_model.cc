#include "examples/unet_model.h"

#include <algorithm>
#include <cmath>

#include "core/random.h"

namespace examples {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Net {
  UnetConfig config;
  Tensor time;  // f32[n 4 * width]: what it makes of the time

  Tensor Norm(Scope s, Tensor x) const { return silu(nn::GroupNorm(s, x, config.groups)); }

  Tensor Conv(Scope s, Tensor x, int64_t filters, int64_t kernel, const Annotation& cut = {},
              int64_t stride = 1) const {
    Tensor filter = s.Weight("weight", {filters, kernel, kernel, x.shape().back()},
                             KaimingNormal({.in = {1, 2, 3}, .out = {0}}), cut);
    return conv2d(x, filter, {.stride = {stride}, .padding = {kernel / 2}}) +
           s.Weight("bias", {filters}, Zeros());
  }

  Tensor Block(Scope s, Tensor x, int64_t width) const {
    return s.Region().Run([&] {
      Tensor y = Conv(s / "first", Norm(s / "norm1", x), width, 3, "tp:S0");
      y = y + reshape(nn::Linear(s / "time", to_stage_of(time, y), width), {x.shape()[0], 1, 1, width});
      y = Conv(s / "last", Norm(s / "norm2", y), width, 3, "tp:S3");
      return y + (x.shape().back() == width ? x : Conv(s / "shortcut", x, width, 1));
    });
  }
};

// f32[times, width]: sines and cosines of falling frequencies.
HostTensor Waves(int64_t times, int64_t width) {
  HostTensor waves = HostTensor::Make(DType::kFloat32, {times, width});
  for (int64_t t = 0; t < times; ++t)
    for (int64_t i = 0; i < width; ++i) {
      const double angle = static_cast<double>(t) *
                           std::pow(1e4, -2.0 * static_cast<double>(i / 2) / static_cast<double>(width));
      waves.as<float>()[t * width + i] = static_cast<float>(i % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  return waves;
}

Tensor Double(Tensor x) { return interpolate(x, 2 * x.shape()[1], 2 * x.shape()[2]); }

}  // namespace

std::vector<double> RemainingSquares(int64_t times) {
  std::vector<double> squares;
  for (int64_t t = 0; t < times; ++t) {
    const double part = static_cast<double>(t + 1) / static_cast<double>(times);
    squares.push_back(std::max(1e-4, std::pow(std::cos(0.5 * kPi * (part + 0.008) / 1.008), 2)));
  }
  return squares;
}

Tensor UnetNoise(Scope scope, Tensor noisy, Tensor time, const UnetConfig& c) {
  const Dims shape = noisy.shape();
  if (shape[1] % 4 != 0 || shape[2] % 4 != 0)
    Fail("unet: pictures are of ", shape[1], " x ", shape[2], " pixels, whose sides 4 must divide");
  const int axis = scope.mesh().AxisOrFail("pp", "unet"), stages = scope.mesh().axis_size(axis);
  if (stages > 2) Fail("unet: mesh axis pp has ", stages, " stages, but the model has two: down and up");
  const Scope down = scope.Stage("pp", 0) / "down", up = scope.Stage("pp", stages - 1) / "up";
  const int64_t w = c.width;
  Tensor waves = gather(constant(noisy.graph(), Waves(c.times, w)), time);
  Tensor hidden = silu(nn::Linear(down / "time1", waves, 4 * w));
  const Net net = {c, silu(nn::Linear(down / "time2", hidden, 4 * w))};
  Tensor full_size = net.Block(down / "full", net.Conv(down / "begin", noisy, w, 3), w);
  Tensor half = net.Block(down / "half", net.Conv(down / "to_half", full_size, 2 * w, 3, {}, 2), 2 * w);
  Tensor x = net.Block(down / "quarter", net.Conv(down / "to_quarter", half, 4 * w, 3, {}, 2), 4 * w);
  auto above = [&](Tensor y) { return to_stage(y, "pp", stages - 1); };
  x = net.Block(up / "half", concat({Double(above(x)), above(half)}, 3), 2 * w);
  x = net.Block(up / "full", concat({Double(x), above(full_size)}, 3), w);
  return net.Conv(up / "end", net.Norm(up / "norm", x), shape[3], 3);
}

NoisyPictures::NoisyPictures(std::shared_ptr<const SampleSource> pictures, int64_t times, float shift,
                             float scale)
    : pictures_(std::move(pictures)),
      remaining_(RemainingSquares(times)),
      shift_(shift),
      scale_(scale),
      fields_{{"noisy", DType::kFloat32, pictures_->fields()[0].shape},
              {"noise", DType::kFloat32, pictures_->fields()[0].shape},
              {"time", DType::kInt32, {}}} {}

void NoisyPictures::Read(const SampleId& id, std::span<void* const> to) const {
  std::vector<std::vector<char>> others;  // the picture's other fields, which nobody reads
  std::vector<void*> fields = {to[0]};
  for (size_t i = 1; i < pictures_->fields().size(); ++i) {
    others.emplace_back(pictures_->fields()[i].bytes());
    fields.push_back(others.back().data());
  }
  pictures_->Read(id, fields);
  const uint64_t key = RandomKey(id.seed + id.epoch, HashName("noisy pictures"));
  const int64_t pixels = fields_[0].shape.elements();
  const int64_t time = RandomBits(key, id.index, 2 * pixels) % static_cast<int64_t>(remaining_.size());
  const double left = std::sqrt(remaining_[time]), added = std::sqrt(1 - remaining_[time]);
  auto *noisy = static_cast<float*>(to[0]), *noise = static_cast<float*>(to[1]);
  for (int64_t i = 0; i < pixels; ++i) {
    // Box and Muller 1958.
    const double radius =
        std::sqrt(-2 * std::log(1 - static_cast<double>(ToUniform(RandomBits(key, id.index, 2 * i)))));
    noise[i] = static_cast<float>(
        radius * std::cos(2 * kPi * static_cast<double>(ToUniform(RandomBits(key, id.index, 2 * i + 1)))));
    noisy[i] =
        static_cast<float>(left * static_cast<double>((noisy[i] + shift_) * scale_) + added * noise[i]);
  }
  *static_cast<int32_t*>(to[2]) = static_cast<int32_t>(time);
}

}  // namespace examples
