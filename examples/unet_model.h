// A U-Net that says which part of a noisy picture is noise (Ho et al. 2020), written once, as if for one
// device; examples/unet.cc trains it and draws pictures with it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "oneflow_like/data/source.h"
#include "oneflow_like/oneflow_like.h"

namespace examples {

using namespace oneflow_like;

struct UnetConfig {
  int64_t width = 16;    // channels at full size; twice as many at half of it, four times at a quarter
  int64_t groups = 4;    // of group norms
  int64_t times = 1000;  // how noisy a picture may be: 0 hardly, times - 1 nothing but noise
};

// How much of a picture's square is left at each time: a cosine (Nichol and Dhariwal 2021).
std::vector<double> RemainingSquares(int64_t times);

// noisy f32[n h w c], time i32[n] -> f32[n h w c]. The way down is on the first stage of mesh axis pp, the
// way up on the last, of two at most; within blocks filters are cut over tp. Throws Error for pictures whose
// sides 4 does not divide, and for more stages.
Tensor UnetNoise(Scope scope, Tensor noisy, Tensor time, const UnetConfig& config);

// Pictures of a source, whose first field they are (in [0, 1], or about [-1, 1] as `shift` and `scale` make
// them), with noise. Fields: "noisy" and "noise", of the picture's shape, and "time" i32[]. Drawn anew in
// each epoch.
class NoisyPictures final : public SampleSource {
 public:
  NoisyPictures(std::shared_ptr<const SampleSource> pictures, int64_t times, float shift, float scale);
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return pictures_->samples(); }
  void Read(const SampleId& id, std::span<void* const> to) const override;
  std::vector<DataHash> Hashes() const override { return pictures_->Hashes(); }

 private:
  const std::shared_ptr<const SampleSource> pictures_;
  const std::vector<double> remaining_;
  const float shift_, scale_;
  const std::vector<SampleField> fields_;
};

}  // namespace examples
