#include "oneflow_like/generation/generator.h"

#include <algorithm>
#include <cstring>

#include "oneflow_like/model/limits.h"

namespace oneflow_like {

struct Generator::Impl {
  GeneratorOptions options;
  int64_t slots = 0, used = 0;  // of each sequence; those that hold something, or padding
  std::vector<int64_t> lengths;
  std::vector<int32_t> slot_positions;  // [sequences slots]
  Session prefill, decode;

  // tokens[i] go to the next slots of sequence i; the first skip[i] are padding.
  HostTensor Step(Session& session, const std::vector<std::vector<int32_t>>& tokens,
                  const std::vector<int64_t>& skip);
};

namespace {

const std::string kInputs = "generate_";  // before their names: weights have others

// Reads the next `piece` tokens of all sequences.
Session MakeStep(Model& model, const NextLogits& logits, const GeneratorOptions& o, int64_t slots,
                 int64_t piece, const std::string& name) {
  ModelGraph graph = model.NewGraph(name);
  Annotation cut;
  if (!model.mesh().FindAxes(o.batch).empty()) cut = {{o.batch, S(0)}};
  auto input = [&](const std::string& what, const Dims& shape) {
    return shape.rank() == 0 ? graph.Input(kInputs + what, shape, DType::kInt32, {}, -1)
                             : graph.Input(kInputs + what, shape, DType::kInt32, cut);
  };
  nn::Cache cache;
  cache.slots = slots;
  cache.begin = input("begin", {});
  cache.positions = input("positions", {o.sequences, piece});
  cache.slot_positions = input("slot_positions", {o.sequences, slots});
  cache.name = o.session.name;
  cache.batch = o.batch;
  cache.dtype = o.cache_dtype;
  EvaluateOptions options;
  static_cast<SessionOptions&>(options) = o.session;
  options.name = name;
  options.weights = o.weights;
  Tensor next = logits(graph.scope(), input("tokens", {o.sequences, piece}), cache);
  return Evaluate({{"logits", next}}, options);
}

template <typename T>
HostTensor HostCopy(const std::vector<T>& values, const Dims& shape) {
  HostTensor t = HostTensor::Make(DType::kInt32, shape);
  std::memcpy(t.data.get(), values.data(), t.bytes());
  return t;
}

}  // namespace

Generator::Generator(Model& model, const NextLogits& logits, const GeneratorOptions& options) {
  GeneratorOptions o = options;
  if (o.session.name.empty()) o.session.name = "generate";
  CheckRange<int64_t>("generator: sequences", o.sequences, 1, 1 << 20);
  CheckRange<int64_t>("generator: length", o.length, 1, 1 << 30);
  CheckRange<int64_t>("generator: chunk", o.chunk, 1, 1 << 20);
  if (o.session.micro_batches != 1)
    Fail("generator: micro_batches is ", o.session.micro_batches, ", but caches are written once a step");
  o.chunk = std::min(o.chunk, o.length);
  // A prompt's first chunk may be almost empty.
  const int64_t slots = o.length + o.chunk - 1;
  const std::string name = o.session.name;
  impl_.reset(new Impl{o,
                       slots,
                       0,
                       {},
                       {},
                       MakeStep(model, logits, o, slots, o.chunk, name + "_prefill"),
                       MakeStep(model, logits, o, slots, 1, name + "_decode")});
}

Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;
const GeneratorOptions& Generator::options() const { return impl_->options; }
Session& Generator::prefill() { return impl_->prefill; }
Session& Generator::decode() { return impl_->decode; }
int64_t Generator::held(int64_t sequence) const { return impl_->lengths.at(sequence); }
bool Generator::Full() const {
  const std::vector<int64_t>& lengths = impl_->lengths;
  return std::any_of(lengths.begin(), lengths.end(), [&](int64_t n) { return n >= impl_->options.length; });
}

HostTensor Generator::Impl::Step(Session& session, const std::vector<std::vector<int32_t>>& tokens,
                                 const std::vector<int64_t>& skip) {
  const int64_t rows = options.sequences, piece = std::ssize(tokens[0]);
  std::vector<int32_t> all, positions;
  for (int64_t i = 0; i < rows; ++i) {
    all.insert(all.end(), tokens[i].begin(), tokens[i].end());
    for (int64_t t = 0; t < piece; ++t) {
      const bool padding = t < skip[i];
      const auto position = static_cast<int32_t>(padding ? 0 : lengths[i]++);
      positions.push_back(position);
      if (!padding) slot_positions[i * slots + used + t] = position;
    }
  }
  const std::vector<int32_t> begin = {static_cast<int32_t>(used)};
  used += piece;
  return session
      .Run({{kInputs + "tokens", HostCopy(all, {rows, piece})},
            {kInputs + "positions", HostCopy(positions, {rows, piece})},
            {kInputs + "begin", HostCopy(begin, {})},
            {kInputs + "slot_positions", HostCopy(slot_positions, {rows, slots})}})
      .Get("logits");
}

HostTensor Generator::Prefill(const std::vector<std::vector<int32_t>>& prompts) {
  Impl& g = *impl_;
  if (std::ssize(prompts) != g.options.sequences)
    Fail("generator: ", prompts.size(), " prompts are given, but it was made for ", g.options.sequences);
  int64_t longest = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) Fail("generator: prompt ", i, " is empty, but must have a token to begin with");
    longest = std::max<int64_t>(longest, std::ssize(prompts[i]));
  }
  if (longest > g.options.length)
    Fail("generator: a prompt has ", longest, " tokens, but sequences have room for ", g.options.length);
  g.used = 0;
  g.lengths.assign(g.options.sequences, 0);
  g.slot_positions.assign(g.options.sequences * g.slots, nn::kEmptySlot);
  const int64_t chunk = g.options.chunk, padded = (longest + chunk - 1) / chunk * chunk;
  HostTensor logits;
  for (int64_t first = 0; first < padded; first += chunk) {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<int64_t> skip;
    for (const std::vector<int32_t>& prompt : prompts) {
      const int64_t before = padded - std::ssize(prompt);  // the padding of its row
      skip.push_back(std::clamp<int64_t>(before - first, 0, chunk));
      tokens.emplace_back(skip.back(), 0);
      tokens.back().insert(tokens.back().end(), prompt.begin() + (first + skip.back() - before),
                           prompt.begin() + (first + chunk - before));
    }
    logits = g.Step(g.prefill, tokens, skip);
  }
  return logits;
}

HostTensor Generator::Decode(const std::vector<int32_t>& tokens) {
  Impl& g = *impl_;
  if (g.used == 0) Fail("generator: Decode before Prefill: there is no sequence to go on with");
  if (std::ssize(tokens) != g.options.sequences)
    Fail("generator: ", tokens.size(), " tokens are given, but it was made for ", g.options.sequences,
         " sequences");
  if (Full()) Fail("generator: a sequence has ", g.options.length, " tokens, and there is no room for more");
  std::vector<std::vector<int32_t>> columns;
  for (int32_t token : tokens) columns.push_back({token});
  return g.Step(g.decode, columns, std::vector<int64_t>(tokens.size(), 0));
}

namespace {

// The tokens to read again when some sequence is full: of that one the last half, of others all that it
// held and what was drawn since. So what a sequence is has nothing to do with its neighbours.
std::vector<std::vector<int32_t>> WithoutFirstHalf(const Generator& generator,
                                                   const std::vector<std::vector<int32_t>>& texts,
                                                   const std::vector<bool>& ended) {
  const int64_t length = generator.options().length;
  std::vector<std::vector<int32_t>> ends;
  for (size_t i = 0; i < texts.size(); ++i) {
    const int64_t held = generator.held(static_cast<int64_t>(i));
    const int64_t keep = ended[i] ? 1 : held < length ? held + 1 : std::max<int64_t>(1, length / 2);
    ends.emplace_back(texts[i].end() - std::min<int64_t>(keep, std::ssize(texts[i])), texts[i].end());
  }
  return ends;
}

}  // namespace

std::vector<std::vector<int32_t>> Generate(Generator& generator,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options) {
  const Sampler sampler(options.sampling);
  const int64_t rows = generator.options().sequences;
  std::vector<std::vector<int32_t>> texts = prompts;
  std::vector<bool> ended(prompts.size(), false);
  HostTensor logits = generator.Prefill(prompts);
  const int64_t classes = logits.shape.back();
  int64_t open = options.tokens > 0 ? rows : 0;
  for (int64_t made = 0; open > 0; ++made) {
    std::vector<int32_t> next(rows, 0);  // of a sequence that has ended any token
    for (int64_t i = 0; i < rows; ++i) {
      if (ended[i]) continue;
      const float* of_row = logits.as<float>() + i * classes;
      next[i] = sampler.Draw({of_row, static_cast<size_t>(classes)}, texts[i], i);
      const bool stops = options.stop.count(next[i]) != 0;
      if (!stops) texts[i].push_back(next[i]);
      if (!stops && options.on_token) options.on_token(i, next[i]);
      ended[i] = stops || made + 1 == options.tokens;
      if (!ended[i]) continue;
      --open;
      if (options.on_end) options.on_end(i);
    }
    if (open == 0) break;
    logits = generator.Full() ? generator.Prefill(WithoutFirstHalf(generator, texts, ended))
                              : generator.Decode(next);
  }
  for (size_t i = 0; i < texts.size(); ++i)
    texts[i].erase(texts[i].begin(), texts[i].begin() + std::ssize(prompts[i]));
  return texts;
}

}  // namespace oneflow_like
