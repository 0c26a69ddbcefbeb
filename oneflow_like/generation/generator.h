// Text generation: a language model reads prompts and adds token after token. Reading prompts (prefill) and
// adding a token (decode) are two graphs over one model's variables; both write keys and values in place into
// caches (nn::Cache), so a token costs one token's work, however long the text is.
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
  int64_t sequences = 1;  // in parallel; mesh axis `batch` cuts them
  int64_t length = 256;   // most tokens of a sequence, its prompt included
  int64_t chunk = 256;    // tokens of each prompt that a prefill step reads
  std::string batch = "dp";
  // Options of both sessions; `name` is the prefix of their names and of the graphs'. Default "generate".
  SessionOptions session = {};
  std::string weights = {};  // EvaluateOptions::weights: "average" generates with averages of weights
  // Type of the caches; bf16 halves them.
  DType cache_dtype = DType::kFloat32;
};

// A batch of sequences, each of which grows by one token with each Decode. Belongs to the model's thread. In
// a job all processes make the same calls.
//
// Prompts end in the same slot: shorter ones begin later, and no query sees the slots before them. A prompt's
// positions count from 0 wherever its slots are.
class Generator {
 public:
  // Adds states "<path>/<session name>_k" and "_v" to the model. Throws Error.
  Generator(Model& model, const NextLogits& logits, const GeneratorOptions& options);
  ~Generator();
  Generator(Generator&&) noexcept;

  // Clears the caches and reads prompts[i] as sequence i, at least one token and at most options.length.
  // Returns the logits after each, f32[sequences, 1, vocabulary].
  HostTensor Prefill(const std::vector<std::vector<int32_t>>& prompts);
  // Appends tokens[i] to sequence i and returns the logits after it. Throws Error when a sequence is full.
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
  int64_t tokens = 100;  // most tokens after each prompt
  SamplingOptions sampling;
  std::set<int32_t> stop;  // a sequence ends with one of these, which is not part of it
  // Called on all processes for every token as soon as it is drawn, sequence by sequence.
  std::function<void(int64_t sequence, int32_t token)> on_token;
  // Called when a sequence has ended.
  std::function<void(int64_t sequence)> on_end;
};

// The tokens that follow each of the prompts, one for each of the generator's sequences. A sequence that
// reaches the generator's length continues after its last half has been read again. Throws Error for a prompt
// that is empty or longer than that length.
std::vector<std::vector<int32_t>> Generate(Generator& generator,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options);

}  // namespace oneflow_like
