#include "examples/caption_model.h"

namespace examples {

Tensor CaptionLogits(Scope scope, Tensor images, Tensor shown, Tensor tokens, const CaptionConfig& c,
                     bool training) {
  CheckLlama(c.text, scope.mesh(), "caption");
  const Scope eye = scope.Everywhere("pp") / "eye";
  Tensor seen = nn::LayerNorm(eye / "norm", VitTokens(eye, images, c.eye, training), c.eye.norm_eps);
  seen = nn::Linear(eye / "into_text", seen, c.text.width, {.init = TruncatedNormal(0.02)});
  seen = annotate(seen * reshape(shown, {shown.shape()[0], 1, 1}), {{"dp", S(0)}, {"pp", S(0)}});
  return LlamaLogits(scope / "text", tokens, c.text, {}, nullptr, seen);
}

}  // namespace examples
