// Writes on: a language model that reads prompts and adds token after token. Reading prompts (prefill) and
// adding a token (decode) are two graphs over one model's variables; keys and values of what was read stay in
// caches (nn::Cache) that both write in place, so a token costs one token's work, however long the text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "oneflow_like/generation/sampling.h"
#include "oneflow_like/nn.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

// The logits after the last of these tokens, f32[b, 1, vocabulary]: tokens i32[b, s] are the next piece of
// sequences whose earlier tokens are in the cache (GptNext of examples/gpt_model.h).
using NextLogits = std::function<Tensor(Scope scope, Tensor tokens, const nn::Cache& cache)>;

struct GeneratorOptions {
  int64_t sequences = 1;  // at once; mesh axis `batch` cuts them
  int64_t length = 256;   // tokens of one, its prompt included
  int64_t chunk = 256;    // tokens of each prompt that a prefill step reads
  std::string batch = "dp";
  // Of the sessions; `name` is the prefix of theirs and of the graphs'. Default "generate".
  SessionOptions session = {};
  // Of what caches keep; bf16 halves them.
  DType cache_dtype = DType::kFloat32;
};

// Sequences side by side, all of them one token longer with each Decode. Belongs to the model's thread. In a
// job all processes make the same calls.
//
// Prompts end together: shorter ones begin later, in slots that nothing sees before them. A prompt's
// positions count from 0 wherever its slots are.
class Generator {
 public:
  // Adds states "<path>/<session name>_k" and "_v" to the model. Throws Error.
  Generator(Model& model, const NextLogits& logits, const GeneratorOptions& options);
  ~Generator();
  Generator(Generator&&) noexcept;

  // Forgets everything and reads prompts[i] as sequence i, at least one token and at most options.length. The
  // logits after each, f32[sequences, 1, vocabulary].
  HostTensor Prefill(const std::vector<std::vector<int32_t>>& prompts);
  // tokens[i] is the next of sequence i. The logits behind it. Throws Error when a sequence is full.
  HostTensor Decode(const std::vector<int32_t>& tokens);
  int64_t held(int64_t sequence) const;  // tokens read so far
  bool Full() const;                     // whether a sequence has no room for another token
  const GeneratorOptions& options() const;
  Session& prefill();  // for profiles
  Session& decode();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct GenerateOptions {
  int64_t tokens = 100;  // at most so many behind each prompt
  SamplingOptions sampling;
  std::set<int32_t> stop;  // a sequence ends with one of these, which is not part of it
  // Called for every token, sequence by sequence, as soon as it is drawn. On all processes.
  std::function<void(int64_t sequence, int32_t token)> on_token;
  // Called when a sequence has ended.
  std::function<void(int64_t sequence)> on_end;
};

// The tokens that follow each of the prompts, one for each of the generator's sequences. A sequence that reaches the
// generator's length is read anew from its last half, and goes on. Throws Error for a prompt that is empty or
// longer than that.
std::vector<std::vector<int32_t>> Generate(Generator& generator,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options);

}  // namespace oneflow_like
