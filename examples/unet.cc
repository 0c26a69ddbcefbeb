// Trains a U-Net to take noise out of pictures, and draws new ones with it: a small diffusion model, on any
// mesh of axes dp, tp and pp.
//   build/examples/unet --idx=/usr/share/datasets/fashion-mnist --samples=samples.png
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/random.h"
#include "examples/unet_model.h"
#include "oneflow_like/program/picture_data.h"
#include "oneflow_like/program/program.h"
#ifdef OFL_HAVE_PNG
#include <png.h>
#endif

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  int64_t width = 16, draw_steps = 50;
  std::string samples;
} flags;

FlagGroup ModelGroup() {
  return {"model",
          "Model",
          {{"width", &flags.width, "Sets the number of channels at full size, a multiple of 4.",
            RangeOf(4, 1 << 12), kCommon | kKept},
           {"samples", &flags.samples, "Writes a PNG of 8 rows of 8 drawn pictures to this file.", kAnyValue,
            kCommon},
           {"draw_steps", &flags.draw_steps, "Draws a picture from noise in this many steps.",
            RangeOf(1, 1000)}}};
}

constexpr int64_t kAcross = 8;  // samples in a row, and rows

template <typename Graph>
Tensor Guess(Graph& graph, const PictureData& data, const UnetConfig& config, int64_t batch) {
  Dims shape = {batch};
  for (int64_t extent : data.train->fields()[0].shape) shape.push_back(extent);
  Tensor noisy = graph.Input("noisy", shape, DType::kFloat32, CutBatch(graph.scope().mesh()));
  Tensor time = graph.Input("time", {batch}, DType::kInt32, CutBatch(graph.scope().mesh()));
  return UnetNoise(graph.scope(), ChannelsLast(noisy, data.shape), time, config);
}

template <typename Graph>
Tensor Loss(Graph& graph, const PictureData& data, const UnetConfig& config) {
  Tensor guess = Guess(graph, data, config, training_flags().batch);
  Tensor noise = graph.Input("noise", BatchOf(data.train->fields()[0].shape), DType::kFloat32,
                             CutBatch(graph.scope().mesh()));
  return mean(square(guess - to_stage_of(ChannelsLast(noise, data.shape), guess)));
}

void WritePng(const std::string& path, const std::vector<uint8_t>& bytes, int64_t height, int64_t width,
              int64_t channels) {
#ifdef OFL_HAVE_PNG
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  if (!png_image_write_to_file(&image, path.c_str(), 0, bytes.data(), 0, nullptr))
    Fail("--samples=", path, ": ", image.message);
#else
  Fail("--samples=", path, ": this build was made without libpng (libpng-dev)");
#endif
}

// Denoising diffusion implicit models (Song et al. 2021), without noise on the way: a picture, at each time,
// is guessed from its noise, and made as noisy as it is at the time before.
std::vector<float> Draw(const Launcher& launcher, Model& model, const PictureData& data,
                        const UnetConfig& config, uint64_t seed) {
  constexpr int64_t kSamples = kAcross * kAcross;
  ModelGraph graph = model.NewGraph("draw");
  Session session =
      Evaluate({{"noise", Guess(graph, data, config, kSamples)}}, EvaluateOptionsOfFlags("draw"));
  const Dims field = data.train->fields()[0].shape;
  const int64_t pixels = field.elements();
  Dims shape = {kSamples};
  for (int64_t extent : field) shape.push_back(extent);
  std::vector<float> x(kSamples * pixels);
  const uint64_t key = RandomKey(seed, HashName("samples"));
  for (size_t i = 0; i < x.size(); ++i)  // nearly normal: twelve uniform numbers
    for (int k = 0; k < 12; ++k) x[i] += ToUniform(RandomBits(key, k, i)) - 0.5f;
  const std::vector<double> left = RemainingSquares(config.times);
  for (int64_t step = flags.draw_steps; step-- > 0;) {
    auto time = [&](int64_t s) { return (s + 1) * config.times / flags.draw_steps - 1; };
    const double now = left[time(step)], next = step > 0 ? left[time(step - 1)] : 1;
    const std::vector<int32_t> times(kSamples, static_cast<int32_t>(time(step)));
    const HostTensor noise =
        session.Run({{"noisy", ToHost(x, shape)}, {"time", ToHost(times, {kSamples})}}).Get("noise");
    const bool last = field.rank() == 1;  // else channels stand first in x
    const int64_t plane = data.shape.height * data.shape.width, channels = data.shape.channels;
    for (int64_t i = 0; i < kSamples; ++i)
      for (int64_t p = 0; p < plane; ++p)
        for (int64_t c = 0; c < channels; ++c) {
          float& value = x[i * pixels + (last ? p * channels + c : c * plane + p)];
          const double guess = static_cast<double>(noise.as<float>()[i * pixels + p * channels + c]);
          const double clean = std::clamp(
              (static_cast<double>(value) - std::sqrt(1 - now) * guess) / std::sqrt(now), -1.0, 1.0);
          value = static_cast<float>(std::sqrt(next) * clean + std::sqrt(1 - next) * guess);
        }
  }
  session.Close();
  return x;
}

void WriteSamples(const Launcher& launcher, Model& model, const PictureData& data, const UnetConfig& config,
                  uint64_t seed) {
  if (flags.samples.empty()) return;
  const std::vector<float> x = Draw(launcher, model, data, config, seed);
  if (!launcher.main_process()) return;
  const auto& [height, width, channels, classes, names] = data.shape;
  const bool last = data.train->fields()[0].shape.rank() == 1;
  std::vector<uint8_t> bytes(x.size());
  for (int64_t i = 0; i < kAcross * kAcross; ++i)
    for (int64_t y = 0; y < height; ++y)
      for (int64_t column = 0; column < width; ++column)
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t from = last ? (y * width + column) * channels + c : (c * height + y) * width + column;
          const int64_t to = ((i / kAcross * height + y) * kAcross * width + i % kAcross * width + column);
          const float value = x[i * height * width * channels + from];
          bytes[to * channels + c] = static_cast<uint8_t>(std::clamp(127.5f * (value + 1), 0.0f, 255.0f));
        }
  WritePng(flags.samples, bytes, kAcross * height, kAcross * width, channels);
  launcher.Print("%lld samples in %s\n", static_cast<long long>(kAcross * kAcross), flags.samples.c_str());
}

void MeasureHeldOut(const Launcher& launcher, Model& model, const PictureData& data, const UnetConfig& config,
                    Metrics& metrics) {
  if (training_flags().eval_batches == 0) return;
  ModelGraph graph = model.NewGraph("eval");
  Session eval = Evaluate({{"loss", Loss(graph, data, config)}}, EvaluateOptionsOfFlags("eval"));
  double loss = 0;
  int64_t batches = 0;
  ForEachHeldOut(launcher, eval, data.held_out, {}, [&](const StepResult& result, int64_t rows) {
    if (rows < training_flags().batch) return;  // the mean would be over what is no picture, too
    loss += static_cast<double>(result.Scalar("loss"));
    ++batches;
  });
  eval.Close();
  if (batches == 0) return;
  const double mean = loss / static_cast<double>(batches);
  metrics.Add(model.next_step(), {{"held_out_loss", mean}});
  launcher.Print("held-out loss %.4f; guessing no noise: 1\n", mean);
}

int TrainUnet(const Launcher& launcher) {
  CheckPictureFlags(launcher);
  if (flags.width % 4 != 0) Fail("--width is ", flags.width, ", must be a multiple of 4");
  launcher.CheckFiles({}, {{"samples", flags.samples}, {"log_json", training_flags().log_json}});
  const UnetConfig config = {.width = flags.width};
  const Mesh mesh = launcher.mesh(kAxes, kTrainingMesh, kMoreAxes);
  SyntheticImages::Options synthetic = {.seed = SeedOfFlags()}, held_out = synthetic;
  held_out.first = synthetic.samples;
  held_out.samples = 1024;
  PictureData data = OpenPictures(synthetic, held_out);
  // To about [-1, 1]: pixels of MNIST's files are in [0, 1], those of folders up to 2.6 from 0.
  const bool positive = !picture_flags().idx.empty();
  const float shift = positive ? -0.5f : 0, scale = positive ? 2 : picture_flags().images.empty() ? 1 : 0.4f;
  for (auto* source : {&data.train, &data.held_out})
    *source = std::make_shared<NoisyPictures>(*source, config.times, shift, scale);
  return TrainProgram(
      launcher, mesh,
      {.about = data.name,
       .samples = data.train,
       .held_out = data.held_out,
       .unit = "pictures",
       .loss = [&](Model& model) { return Loss(model, data, config); },
       .optimizer = AdamW{.lr = training_flags().lr, .weight_decay = picture_flags().weight_decay},
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .end =
           [&](Model& model, Metrics& metrics) {
             MeasureHeldOut(launcher, model, data, config, metrics);
             WriteSamples(launcher, model, data, config, SeedOfFlags());
           }});
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().unit = "pictures";
  training_flags().steps = 2000;
  picture_flags().weight_decay = 0;
  return ProgramMain(
      argc, argv, "Trains a small diffusion model of pictures, on any mesh of axes dp, tp and pp.",
      {ModelGroup(), PictureGroup()}, [](const Launcher& launcher) { return TrainUnet(launcher); });
}
