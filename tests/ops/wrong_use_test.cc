// Wrong use of every operator: ranks, types, extents and attributes that are drawn at random. Each call is
// either taken, and then its reference kernel runs or refuses its data, or it is an Error of one short
// sentence that begins with the function that was called, and its line. Nothing else may happen: no crash, no
// other exception, no huge allocation.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <limits>

#include "ops/language/expressions.h"
#include "ops/language/linear_algebra.h"
#include "ops/language/losses.h"
#include "ops/language/sparse.h"
#include "ops/language/volumes.h"
#include "ops/oracle/gradient.h"

namespace oneflow_like::oracle {
namespace {

constexpr int64_t kMost = 20'000;  // elements of a tensor that is computed
constexpr double kMostWork = 2e6;  // of a rule, counted in elements of its space
constexpr int64_t kLong = std::numeric_limits<int64_t>::max();

class Chance {
 public:
  explicit Chance(uint64_t seed) : seed_(seed) {}
  int64_t Below(int64_t limit) { return static_cast<int64_t>(RandomBits(seed_, 77, count_++) % limit); }
  bool One(int64_t in) { return Below(in) == 0; }
  template <typename T>
  T Of(const std::vector<T>& all) {
    return all[Below(std::ssize(all))];
  }
  // Mostly small, sometimes absurd.
  int64_t Number() {
    static const std::vector<int64_t> absurd = {-kLong - 1,       -(int64_t{1} << 40), -100, int64_t{1} << 20,
                                                int64_t{1} << 31, int64_t{1} << 40,    kLong};
    return One(6) ? Of(absurd) : Below(9) - 3;
  }
  double Real() {
    static const std::vector<double> odd = {NAN, INFINITY, -INFINITY, 0, -1, 1e300, 1e-300};
    return One(3) ? Of(odd) : static_cast<double>(Below(5)) / 2;
  }
  std::vector<int64_t> Numbers() {
    std::vector<int64_t> all(Below(4));
    for (int64_t& n : all) n = Number();
    return all;
  }
  int64_t Extent() { return One(40) ? Of<int64_t>({int64_t{1} << 33, int64_t{1} << 47}) : Below(5); }
  Dims Shape() {
    std::vector<int64_t> shape(Below(5));
    for (int64_t& extent : shape) extent = Extent();
    return Dims(shape.begin(), shape.end());
  }
  DType Type() {
    return Of<DType>({DType::kFloat32, DType::kFloat32, DType::kFloat32, DType::kInt32, DType::kInt64,
                      DType::kBool, DType::kBFloat16, DType::kFloat16, DType::kUInt8});
  }

 private:
  uint64_t seed_, count_ = 0;
};

// The wrong that a call did; empty: none. `who`: what its message begins with.
std::string Wrong(const std::string& who, const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    const std::string what = error.what();
    if (!what.starts_with(who)) return "begins otherwise: " + what;
    if (what.find('\n') != std::string::npos) return "is of several lines: " + what;
    if (what.size() > 400) return "is long: " + what;
    if (what.size() < who.size() + 8) return "says nothing: " + what;
    return "";
  } catch (const std::exception& error) {
    return Cat("is not an Error but ", error.what());
  }
}

// Infers, and computes what is small, of zeros and ones.
class Graph : public GraphBuilder {
 public:
  Tensor Input(const Dims& shape, DType dtype) {
    values_.push_back({dtype, shape});
    names_.push_back(Cat("input", values_.size()));
    return Tensor(this, static_cast<int>(values_.size()) - 1);
  }
  std::vector<Tensor> AddNode(const std::string& op, const std::vector<Tensor>& in, const Attrs& given,
                              const SourceLine& line) override {
    const OpDef& def = BuiltinCatalog().Get(op);
    Attrs attrs = given;
    if (def.random && !attrs.Has("key")) attrs.Set("key", int64_t{1});
    OpCall call{op, line.Who(op), {}, {}, &attrs};
    Sample sample{.attrs = attrs};
    for (const Tensor& t : in) {
      if (!t.defined()) Fail(call.who, ": operand ", call.shapes.size(), " is undefined");
      call.shapes.push_back(t.shape());
      call.dtypes.push_back(t.dtype());
    }
    const Inferred inferred = Infer(def, call);
    sample.in = call.shapes;
    sample.dtypes = call.dtypes;
    Run(def, sample, inferred);
    std::vector<Tensor> out;
    for (size_t o = 0; o < inferred.rule.out.size(); ++o)
      out.push_back(Input(inferred.rule.out[o].shape, inferred.dtypes[o]));
    return out;
  }
  // The reference kernel may refuse the data, but not crash on it.
  static void Run(const OpDef& def, Sample sample, const Inferred& inferred) {
    if (!ReferenceKernel(def) || inferred.rule.Volume() > kMostWork) return;
    for (const auto* operands : {&inferred.rule.in, &inferred.rule.out})
      for (const BoundRule::Operand& operand : *operands)
        if (operand.shape.elements() > kMost) return;
    sample.limit = 3;
    MakeTrial(def, sample, ReferenceKernel(def), false);
  }
  const Dims& ShapeOf(int id) const override { return values_[id].second; }
  DType DTypeOf(int id) const override { return values_[id].first; }
  const std::string& NameOf(int id) const override { return names_[id]; }

 private:
  std::deque<std::pair<DType, Dims>> values_;
  std::deque<std::string> names_;
};

// --- Entries of the catalog ------------------------------------------------------------------------

// A sample with one to three things wrong with it.
Sample Spoilt(Sample sample, Chance* chance) {
  sample.dtypes = InputTypes(sample);
  for (int64_t spoil = 1 + chance->Below(3); spoil > 0; --spoil) {
    const int64_t inputs = std::ssize(sample.in);
    const int64_t input = inputs > 0 ? chance->Below(inputs) : 0;
    switch (chance->Below(inputs > 0 ? 8 : 2)) {
      case 0: {  // a number of an attribute
        if (sample.attrs.map().empty()) break;
        auto attr = sample.attrs.map().begin();
        std::advance(attr, chance->Below(std::ssize(sample.attrs.map())));
        const std::string name = attr->first;
        if (std::holds_alternative<int64_t>(attr->second))
          sample.attrs.Set(name, chance->Number());
        else if (std::holds_alternative<double>(attr->second))
          sample.attrs.Set(name, chance->Real());
        else if (std::holds_alternative<std::vector<int64_t>>(attr->second)) {
          std::vector<int64_t> list = std::get<std::vector<int64_t>>(attr->second);
          if (list.empty() || chance->One(3))
            list = chance->Numbers();
          else
            list[chance->Below(std::ssize(list))] = chance->Number();
          sample.attrs.Set(name, list);
        } else if (std::holds_alternative<std::string>(attr->second)) {
          sample.attrs.Set(name, std::string(chance->One(2) ? "" : "wrong"));
        }
        break;
      }
      case 1: {  // one input more
        sample.in.push_back(chance->Shape());
        sample.dtypes.push_back(chance->Type());
        break;
      }
      case 2:
        sample.in.erase(sample.in.begin() + input);
        sample.dtypes.erase(sample.dtypes.begin() + input);
        break;
      case 3:
        sample.dtypes[input] = chance->Type();
        break;
      case 4:
        sample.in[input] = chance->Shape();
        break;
      case 5:
        if (sample.in[input].rank() > 0)
          sample.in[input][chance->Below(sample.in[input].rank())] = chance->Extent();
        break;
      case 6:
        sample.in[input].push_back(chance->Extent());
        break;
      case 7:
        if (sample.in[input].rank() > 0)
          sample.in[input] = Dims(sample.in[input].begin(), sample.in[input].end() - 1);
        break;
    }
  }
  return sample;
}

TEST(WrongUse, OfEntriesOfTheCatalog) {
  for (const std::string& name : BuiltinCatalog().names()) {
    const OpDef& def = BuiltinCatalog().Get(name);
    for (size_t s = 0; s < def.samples.size(); ++s)
      for (uint64_t seed = 0; seed < 60; ++seed) {
        Chance chance(HashName(name) + 1000 * s + seed);
        const Sample sample = Spoilt(def.samples[s], &chance);
        const std::string text = SampleText(def, sample);
        SCOPED_TRACE(text);
        Attrs attrs = sample.attrs;
        if (def.random && !attrs.Has("key")) attrs.Set("key", int64_t{1});
        const std::string wrong = Wrong(name, [&] {
          Sample used = sample;
          used.attrs = attrs;
          const Inferred inferred = Infer(def, {name, name, used.in, used.dtypes, &attrs});
          Graph::Run(def, used, inferred);
        });
        EXPECT_EQ(wrong, "") << text;
      }
  }
}

// --- Functions -------------------------------------------------------------------------------------

// Draws arguments of functions.
struct Any {
  Graph* graph;
  Chance* chance;
  Tensor Of(const Dims& shape, DType dtype) { return graph->Input(shape, dtype); }
  // Mostly floating and of that rank.
  Tensor T(int rank) {
    std::vector<int64_t> shape(rank);
    for (int64_t& extent : shape) extent = 1 + chance->Below(4);
    if (chance->One(8)) return Of(chance->Shape(), chance->Type());
    if (rank > 0 && chance->One(6)) shape[chance->Below(rank)] = 0;
    return Of(Dims(shape.begin(), shape.end()), chance->One(8) ? chance->Type() : DType::kFloat32);
  }
  Tensor I(int rank) {
    Tensor t = T(rank);
    return chance->One(8) ? t : Of(t.shape(), chance->One(2) ? DType::kInt32 : DType::kInt64);
  }
  int64_t N() { return chance->Number(); }
  double R() { return chance->Real(); }
  std::vector<int64_t> L() { return chance->Numbers(); }
  Dims D() {
    const std::vector<int64_t> list = L();
    return Dims(list.begin(), list.end());
  }
  bool B() { return chance->One(2); }
};

struct Use {
  const char* name;
  std::function<void(Any&)> call;
};

const std::vector<Use>& Uses() {
  static const auto* const uses = new std::vector<Use>{
      {"sum", [](Any& a) { sum(a.T(2), a.L(), a.B()); }},
      {"mean", [](Any& a) { mean(a.T(3), a.L(), a.B()); }},
      {"max", [](Any& a) { max(a.T(2), a.L(), a.B()); }},
      {"prod", [](Any& a) { prod(a.T(2), a.L(), a.B()); }},
      {"var", [](Any& a) { var(a.T(2), a.L(), a.B(), a.N()); }},
      {"logsumexp", [](Any& a) { logsumexp(a.T(2), a.L(), a.B()); }},
      {"norm", [](Any& a) { norm(a.T(2), a.R(), a.L(), a.B()); }},
      {"any", [](Any& a) { any(a.Of(a.chance->Shape(), DType::kBool), a.L(), a.B()); }},
      {"argmax", [](Any& a) { argmax(a.T(2), a.N()); }},
      {"sum_to", [](Any& a) { sum_to(a.T(2), a.D()); }},
      {"broadcast_to", [](Any& a) { broadcast_to(a.T(2), a.D()); }},
      {"reshape", [](Any& a) { reshape(a.T(2), a.D()); }},
      {"transpose", [](Any& a) { transpose(a.T(2), a.L()); }},
      {"slice", [](Any& a) { slice(a.T(2), a.N(), a.N(), a.N(), a.N()); }},
      {"concat",
       [](Any& a) {
         concat({a.T(2), a.T(2), a.T(2)}, a.N());
       }},
      {"split", [](Any& a) { split(a.T(2), a.N(), a.N()); }},
      {"pad", [](Any& a) { pad(a.T(2), a.N(), a.N(), a.N()); }},
      {"gather", [](Any& a) { gather(a.T(2), a.I(1)); }},
      {"pick", [](Any& a) { pick(a.T(2), a.I(1)); }},
      {"one_hot", [](Any& a) { one_hot(a.I(1), a.N()); }},
      {"full", [](Any& a) { full(a.graph, a.D(), a.R(), a.chance->Type()); }},
      {"uniform", [](Any& a) { uniform(a.graph, a.D(), a.R(), a.R()); }},
      {"normal", [](Any& a) { normal(a.graph, a.D(), a.R(), a.R()); }},
      {"softmax", [](Any& a) { softmax(a.T(2)); }},
      {"cross_entropy", [](Any& a) { cross_entropy(a.T(2), a.I(1)); }},
      {"layer_norm", [](Any& a) { layer_norm(a.T(2), a.T(1), a.T(1), a.R()); }},
      {"rms_norm", [](Any& a) { rms_norm(a.T(2), a.T(1), a.R()); }},
      {"embedding", [](Any& a) { embedding(a.T(2), a.I(2)); }},
      {"attention",
       [](Any& a) {
         AttentionOptions options{.causal = a.B(), .dropout = a.R(), .scale = a.R(), .window = a.N()};
         if (a.B()) options.bias = a.T(4);
         if (a.chance->One(3)) options.query_positions = a.I(2), options.key_positions = a.I(2);
         if (a.chance->One(3)) options.query_documents = a.I(2);
         if (a.chance->One(3)) options.key_documents = a.I(2);
         attention(a.T(4), a.T(4), a.T(4), options);
       }},
      {"rope",
       [](Any& a) {
         rope(a.T(4), a.I(1),
              {.base = a.R(),
               .interleaved = a.B(),
               .dims = a.N(),
               .scale = a.R(),
               .trained_length = a.N(),
               .factor = a.R(),
               .low_turns = a.R(),
               .high_turns = a.R()});
       }},
      {"dropout", [](Any& a) { dropout(a.T(2), a.R()); }},
      {"prelu", [](Any& a) { prelu(a.T(2), a.T(1), a.N()); }},
      {"elu", [](Any& a) { elu(a.T(2), a.R()); }},
      {"cast", [](Any& a) { cast(a.T(2), a.chance->Type()); }},
      {"matmul", [](Any& a) { matmul(a.T(2), a.T(2)); }},
      {"add", [](Any& a) { add(a.T(2), a.T(2)); }},
      {"where", [](Any& a) { where(a.T(2), a.T(2), a.T(2)); }},
      {"select", [](Any& a) { select(a.T(2), a.N(), a.N()); }},
      {"sort", [](Any& a) { sort(a.T(2), a.N(), a.B()); }},
      {"argsort", [](Any& a) { argsort(a.T(2), a.N(), a.B()); }},
      {"top_k", [](Any& a) { top_k(a.T(2), a.N(), a.N(), a.B()); }},
      {"cumsum",
       [](Any& a) {
         cumsum(a.T(2), a.N(), {a.B(), a.B()});
       }},
      {"take", [](Any& a) { take(a.T(2), a.N(), a.I(1)); }},
      {"take_along_axis", [](Any& a) { take_along_axis(a.T(2), a.I(2), a.N()); }},
      {"batched_take", [](Any& a) { batched_take(a.T(2), a.I(2), a.N()); }},
      {"scatter_add", [](Any& a) { scatter_add(a.T(2), a.N(), a.I(2), a.T(2)); }},
      {"index_add", [](Any& a) { index_add(a.T(2), a.N(), a.I(1), a.T(2)); }},
      {"scatter_max", [](Any& a) { scatter_max(a.T(2), a.N(), a.I(2), a.T(2)); }},
      {"scatter_min", [](Any& a) { scatter_min(a.T(2), a.N(), a.I(2), a.T(2)); }},
      {"index_max", [](Any& a) { index_max(a.T(2), a.N(), a.I(1), a.T(2)); }},
      {"index_min", [](Any& a) { index_min(a.T(2), a.N(), a.I(1), a.T(2)); }},
      {"segment_softmax", [](Any& a) { segment_softmax(a.T(2), a.I(1), a.N(), a.N()); }},
      {"embedding_bag",
       [](Any& a) { embedding_bag(a.T(2), a.I(2), a.I(1), a.B() ? Bag::kMax : Bag::kMean); }},
      {"embedding_bag", [](Any& a) { embedding_bag(a.T(2), a.I(2), a.I(1), a.T(2)); }},
      {"embedding_in_parts", [](Any& a) { embedding_in_parts(a.T(2), a.I(2)); }},
      {"unique_rows", [](Any& a) { unique_rows(a.I(1), a.T(2)); }},
      {"unique_rows", [](Any& a) { unique_rows(a.I(1), a.T(2), a.N()); }},
      {"grouped_matmul", [](Any& a) { grouped_matmul(a.T(2), a.T(3), a.I(1)); }},
      {"grouped_matmul", [](Any& a) { grouped_matmul(a.T(4), a.T(4), a.I(3), a.B() ? 1 : a.R()); }},
      {"route", [](Any& a) { route(a.I(3), a.N(), a.N(), {a.B() ? a.T(3) : Tensor(), a.B()}); }},
      {"route_ranks",
       [](Any& a) { route_ranks(a.I(3), a.N(), a.N(), a.N(), {a.B() ? a.T(3) : Tensor(), a.B()}); }},
      {"exchange", [](Any& a) { exchange(a.T(4), a.I(2), a.B() ? 1 : a.R()); }},
      {"sort_choices", [](Any& a) { sort_choices(a.T(4), a.N(), a.N()); }},
      {"take_rows", [](Any& a) { take_rows(a.T(3), {a.I(3), a.I(3), Tensor()}, a.B() ? a.T(3) : Tensor()); }},
      {"return_rows",
       [](Any& a) { return_rows(a.T(4), {a.I(3), a.I(3), Tensor()}, a.B() ? a.T(3) : Tensor()); }},
      {"tril", [](Any& a) { tril(a.T(2), a.N()); }},
      {"triu", [](Any& a) { triu(a.T(2), a.N()); }},
      {"flip", [](Any& a) { flip(a.T(2), a.L()); }},
      {"roll", [](Any& a) { roll(a.T(2), a.N(), a.N()); }},
      {"repeat", [](Any& a) { repeat(a.T(2), a.L()); }},
      {"repeat_interleave", [](Any& a) { repeat_interleave(a.T(2), a.N(), a.N()); }},
      {"stack",
       [](Any& a) {
         stack({a.T(2), a.T(2)}, a.N());
       }},
      {"squeeze", [](Any& a) { squeeze(a.T(2), a.N()); }},
      {"unsqueeze", [](Any& a) { unsqueeze(a.T(2), a.N()); }},
      {"arange", [](Any& a) { arange(a.graph, a.R(), a.R(), a.R(), a.chance->Type()); }},
      {"conv2d",
       [](Any& a) {
         conv2d(a.T(4), a.T(4), {a.L(), a.L(), a.L(), a.N()});
       }},
      {"conv2d",
       [](Any& a) {
         conv2d(a.T(4), a.T(4), {{1 + a.chance->Below(3)}, {a.N()}, {1 + a.chance->Below(2)}, a.N()});
       }},
      {"conv1d",
       [](Any& a) {
         conv1d(a.T(3), a.T(3), {{a.N()}, {a.N()}, {a.N()}, a.N()});
       }},
      {"conv2d_transpose",
       [](Any& a) {
         conv2d_transpose(a.T(4), a.T(4), {a.L(), {a.N()}, {a.N()}, {a.N()}, a.N()});
       }},
      {"conv1d_transpose",
       [](Any& a) {
         conv1d_transpose(a.T(3), a.T(3), {{a.N()}, {a.N()}, {a.N()}, {a.N()}, a.N()});
       }},
      {"max_pool2d",
       [](Any& a) {
         max_pool2d(a.T(4), {a.L(), a.L(), a.L(), a.B()});
       }},
      {"avg_pool2d",
       [](Any& a) {
         avg_pool2d(a.T(4), {{a.N()}, {a.N()}, {a.N()}, a.B()});
       }},
      {"max_pool1d",
       [](Any& a) {
         max_pool1d(a.T(3), {{a.N()}, {a.N()}, {a.N()}, a.B()});
       }},
      {"adaptive_max_pool2d", [](Any& a) { adaptive_max_pool2d(a.T(4), a.N(), a.N()); }},
      {"adaptive_avg_pool1d", [](Any& a) { adaptive_avg_pool1d(a.T(3), a.N()); }},
      {"interpolate",
       [](Any& a) {
         interpolate(a.T(4), a.N(), a.N(), {a.B() ? ResizeMode::kBilinear : ResizeMode::kNearest, a.B()});
       }},
      {"conv3d",
       [](Any& a) {
         conv3d(a.T(5), a.T(5), {a.L(), a.L(), a.L(), a.N()});
       }},
      {"conv3d",
       [](Any& a) {
         conv3d(a.T(5), a.T(5), {{1 + a.chance->Below(3)}, {a.N()}, {1 + a.chance->Below(2)}, 1});
       }},
      {"conv3d_transpose",
       [](Any& a) {
         conv3d_transpose(a.T(5), a.T(5), {{1 + a.chance->Below(3)}, {a.N()}, {a.N()}, {a.N()}, a.N()});
       }},
      {"max_pool3d",
       [](Any& a) {
         max_pool3d(a.T(5), {a.L(), a.L(), a.L(), a.B()});
       }},
      {"avg_pool3d",
       [](Any& a) {
         avg_pool3d(a.T(5), {{a.N()}, {a.N()}, {a.N()}, a.B()});
       }},
      {"adaptive_max_pool3d", [](Any& a) { adaptive_max_pool3d(a.T(5), a.N(), a.N(), a.N()); }},
      {"adaptive_avg_pool3d", [](Any& a) { adaptive_avg_pool3d(a.T(5), a.N(), a.N(), a.N()); }},
      {"unfold",
       [](Any& a) {
         unfold(a.T(4), WindowOptions{{a.N()}, {a.N()}, {a.N()}, {a.N()}});
       }},
      {"fold",
       [](Any& a) {
         fold(a.T(4), a.N(), a.N(), WindowOptions{{a.N()}, {1 + a.chance->Below(2)}, a.L(), {1}});
       }},
      {"grid_sample",
       [](Any& a) {
         grid_sample(a.T(4), a.T(4), {a.B() ? ResizeMode::kBilinear : ResizeMode::kNearest, a.B(), a.B()});
       }},
      {"fft", [](Any& a) { fft(a.T(2), a.N()); }},
      {"ifft", [](Any& a) { ifft(a.Of({a.chance->Extent(), 2}, DType::kFloat32), a.N()); }},
      {"rfft", [](Any& a) { rfft(a.T(2), a.N()); }},
      {"irfft", [](Any& a) { irfft(a.Of({a.chance->Extent(), 2}, DType::kFloat32), a.N(), a.N()); }},
      {"cholesky", [](Any& a) { cholesky(a.T(3), a.R()); }},
      {"triangular_solve",
       [](Any& a) {
         triangular_solve(a.T(2), a.T(2), {a.B(), a.B()});
       }},
      {"solve", [](Any& a) { solve(a.T(2), a.T(2), a.R()); }},
      {"qr", [](Any& a) { qr(a.T(2)); }},
      {"group_norm", [](Any& a) { group_norm(a.T(4), a.N(), a.T(1), a.T(1), a.R()); }},
      {"batch_norm", [](Any& a) { batch_norm(a.T(4), a.T(1), a.T(1), a.R()); }},
      {"batch_norm_eval", [](Any& a) { batch_norm_eval(a.T(4), a.T(1), a.T(1), a.T(1), a.T(1), a.R()); }},
      {"min", [](Any& a) { min(a.T(2), a.L(), a.B()); }},
      {"stddev", [](Any& a) { stddev(a.T(2), a.L(), a.B(), a.N()); }},
      {"all", [](Any& a) { all(a.Of(a.chance->Shape(), DType::kBool), a.L(), a.B()); }},
      {"masked_mean",
       [](Any& a) { masked_mean(a.T(2), a.Of(a.chance->Shape(), DType::kBool), a.L(), a.B()); }},
      {"argmin", [](Any& a) { argmin(a.T(2), a.N()); }},
      {"micro_batch_sum", [](Any& a) { micro_batch_sum(a.T(2), a.L(), a.B()); }},
      {"micro_batch_mean", [](Any& a) { micro_batch_mean(a.T(2), a.L(), a.B()); }},
      {"einsum",
       [](Any& a) {
         einsum("...ij,jk,k->...ik", {a.T(3), a.T(2), a.T(1)});
       }},
      {"einsum", [](Any& a) { einsum("ij->ji", {a.T(2)}); }},
      {"add", [](Any& a) { a.T(2) + (a.B() ? 0.5 : a.R()); }},
      {"sub", [](Any& a) { (a.B() ? 0.5 : a.R()) - a.T(2); }},
      {"mul", [](Any& a) { a.T(2) * (a.B() ? 0.5 : a.R()); }},
      {"div", [](Any& a) { (a.B() ? 0.5 : a.R()) / a.T(2); }},
      {"maximum", [](Any& a) { maximum(a.T(2), a.R()); }},
      {"clamp", [](Any& a) { clamp(a.T(2), a.R(), a.R()); }},
      {"pow", [](Any& a) { pow(a.T(2), a.R()); }},
      {"less", [](Any& a) { less(a.T(2), a.R()); }},
      {"remainder", [](Any& a) { remainder(a.T(2), a.R()); }},
      {"nan_to_num", [](Any& a) { nan_to_num(a.T(2), {.nan = a.R(), .infinity = a.R()}); }},
      {"where", [](Any& a) { where(a.Of(a.chance->Shape(), DType::kBool), a.R(), a.R()); }},
      {"floor_divide", [](Any& a) { floor_divide(a.T(2), a.R()); }},
      {"operator[]", [](Any& a) { a.T(2)[a.N()]; }},
      {"arange_like", [](Any& a) { arange_like(a.T(2), a.N()); }},
      {"zeros", [](Any& a) { zeros(a.T(2), a.D()); }},
      {"truncated_normal", [](Any& a) { truncated_normal(a.graph, a.D(), a.R(), a.R()); }},
      {"mse_loss", [](Any& a) { mse_loss(a.T(2), a.T(2)); }},
      {"l1_loss", [](Any& a) { l1_loss(a.T(2), a.T(2)); }},
      {"huber_loss", [](Any& a) { huber_loss(a.T(2), a.T(2), a.R()); }},
      {"smooth_l1_loss", [](Any& a) { smooth_l1_loss(a.T(2), a.T(2), a.R()); }},
      {"hinge_loss", [](Any& a) { hinge_loss(a.T(2), a.T(2)); }},
      {"bce_loss", [](Any& a) { bce_loss(a.T(2), a.T(2)); }},
      {"bce_with_logits_loss",
       [](Any& a) { bce_with_logits_loss(a.T(2), a.T(2), a.B() ? a.T(1) : Tensor()); }},
      {"kl_div_loss", [](Any& a) { kl_div_loss(a.T(2), a.T(2), a.B()); }},
      {"nll_loss", [](Any& a) { nll_loss(a.T(2), a.I(1)); }},
      {"cross_entropy",
       [](Any& a) {
         CrossEntropyOptions options{.label_smoothing = a.R(), .z_loss = a.R(), .ignore_index = a.N()};
         if (a.B()) options.class_weights = a.T(1);
         cross_entropy(a.T(2), a.I(1), options);
       }},
      {"linear_cross_entropy",
       [](Any& a) {
         CrossEntropyOptions options{.label_smoothing = a.R(), .z_loss = a.R(), .ignore_index = a.N()};
         if (a.B()) options.class_weights = a.T(1);
         linear_cross_entropy(a.T(2), a.T(2), a.I(1), options, a.N());
       }},
      {"sigmoid_focal_loss", [](Any& a) { sigmoid_focal_loss(a.T(2), a.T(2), {a.R(), a.R()}); }},
      {"focal_loss", [](Any& a) { focal_loss(a.T(2), a.I(1), {a.R(), a.B() ? a.T(1) : Tensor()}); }},
      {"ctc_loss", [](Any& a) { ctc_loss(a.T(3), a.I(2), a.I(1), a.I(1), {a.N(), a.B()}); }},
      {"triplet_margin_loss",
       [](Any& a) {
         triplet_margin_loss(a.T(2), a.T(2), a.T(2), {a.R(), a.B() ? 2 : a.R(), a.R(), a.B()});
       }},
      {"cosine_similarity", [](Any& a) { cosine_similarity(a.T(2), a.T(2), a.N(), a.R()); }},
      {"adagrad_rows", [](Any& a) { adagrad_rows(a.T(2), a.T(1), {a.I(1), a.T(2)}, {a.R(), a.R()}); }},
  };
  return *uses;
}

TEST(WrongUse, OfFunctions) {
  std::map<std::string, int> refused;
  for (size_t u = 0; u < Uses().size(); ++u)
    for (uint64_t seed = 0; seed < 400; ++seed) {
      const Use& use = Uses()[u];
      SCOPED_TRACE(Cat(use.name, " ", u, ", seed ", seed));
      Chance chance(HashName(use.name) + 10'000 * u + seed);
      Graph graph;
      Any any{&graph, &chance};
      bool error = false;
      const std::string wrong = Wrong(Cat(use.name, " at wrong_use_test.cc:"), [&] {
        try {
          use.call(any);
        } catch (const Error&) {
          error = true;
          throw;
        }
      });
      refused[use.name] += error;
      EXPECT_EQ(wrong, "");
    }
  for (const Use& use : Uses()) {
    if (std::string(use.name) != "cast") {  // any type is another's
      EXPECT_GT(refused[use.name], 0) << use.name;
    }
  }
}

}  // namespace
}  // namespace oneflow_like::oracle
