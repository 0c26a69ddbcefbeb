// Weights and other variables as users request them: initialisers, options, patterns over paths, and requests
// that contradict an earlier one.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/device/parallel_for.h"
#include "core/glob.h"
#include "core/hash_bytes.h"
#include "core/random.h"
#include "oneflow_like/model/model_impl.h"
#include "ops/inverse_normal.h"
#include "ops/language/numbers.h"

namespace oneflow_like {

Annotation Annotation::Parse(const std::string& text) {
  Annotation parsed;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word.back() == ',') word.pop_back();
    const size_t colon = word.find(':');
    if (colon == std::string::npos)
      Fail("annotation \"", text, "\": '", word, "' names no mesh axis; write axis:SBP, e.g. tp:S1");
    parsed.emplace_back(word.substr(0, colon), ParseSbp(word.substr(colon + 1)));
  }
  return parsed;
}

namespace {

// The numbers are finite and make sense, axes of fans are there, and a given tensor is of the weight's shape.
void CheckInit(const std::string& who, const Dims& shape, DType dtype, const Initializer& init) {
  using Kind = Initializer::Kind;
  NeedEnum(who, "kind of its initialiser", init.kind, Kind::kTensor, "Initializer::Kind");
  const auto names = [&]() -> std::pair<const char*, const char*> {
    if (init.kind == Kind::kUniform) return {"low", "high"};
    if (init.kind == Kind::kFull) return {"value", ""};
    if (init.kind == Kind::kOrthogonal) return {"gain", ""};
    return {"mean", "standard deviation"};
  }();
  NeedNumber(who, Cat(names.first, " of its initialiser"), init.a, Domain::kFinite);
  NeedNumber(who, Cat(names.second, " of its initialiser"), init.b, Domain::kFinite);
  if (init.kind == Kind::kFull && !Holds(dtype, init.a))
    Fail(who, ": value of its initialiser is ", init.a, ", which is no number of type ", Name(dtype));
  if (init.kind == Kind::kUniform && init.a > init.b)
    Fail(who, ": Uniform from ", init.a, " to ", init.b, " is empty; give the lower number first");
  if ((init.kind == Kind::kNormal || init.kind == Kind::kTruncatedNormal) && init.b < 0)
    Fail(who, ": the standard deviation is ", init.b, ", must be 0 or more");
  for (const std::vector<int>* axes : {&init.fans.in, &init.fans.out})
    for (int axis : *axes)
      if (axis < 0 || axis >= shape.rank())
        Fail(who, ": axis ", axis, " of its initialiser's fans does not exist, the shape is ", shape.str());
  if (init.kind == Kind::kOrthogonal && shape.rank() < 2)
    Fail(who, ": Orthogonal needs two axes or more but the shape is ", shape.str());
  if (init.kind != Kind::kTensor) return;
  if (!init.tensor || !init.tensor->data) Fail(who, ": FromTensor was given a HostTensor without data");
  if (init.tensor->shape != shape || init.tensor->dtype != dtype)
    Fail(who, ": it is ", Name(dtype), shape.str(), " but FromTensor was given ", Name(init.tensor->dtype),
         init.tensor->shape.str());
}

// The hash of the numbers tells requests of the same weight with other numbers apart.
void SetLiteral(const HostTensor& value, Attrs* attrs) {
  attrs->Set("init", std::string("full"));
  attrs->Set("value", 0.0);
  attrs->Set("literal", static_cast<int64_t>(HashOfBytes(value.data.get(), value.bytes())));
}

// The weight that Orthogonal gives: normal draws, of which the fewer of rows and columns are made orthogonal
// one after another (modified Gram-Schmidt).
HostTensor OrthogonalTensor(const Dims& shape, double gain, uint64_t key) {
  const int64_t columns = shape.back(), rows = columns == 0 ? 0 : shape.elements() / columns;
  const int64_t vectors = std::min(rows, columns), length = std::max(rows, columns);
  std::vector<double> v(vectors * length);
  for (size_t i = 0; i < v.size(); ++i) v[i] = InverseNormalAt((RandomBits(key, 0, i) + 0.5) / 4294967296.0);
  for (int64_t a = 0; a < vectors; ++a) {
    double* unit = v.data() + a * length;
    double square = 0;
    for (int64_t i = 0; i < length; ++i) square += unit[i] * unit[i];
    for (int64_t i = 0; i < length; ++i) unit[i] /= std::sqrt(square);
    ParallelFor(vectors - a - 1, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = a + 1 + begin; b < a + 1 + end; ++b) {
        double* other = v.data() + b * length;
        double dot = 0;
        for (int64_t i = 0; i < length; ++i) dot += unit[i] * other[i];
        for (int64_t i = 0; i < length; ++i) other[i] -= dot * unit[i];
      }
    });
  }
  HostTensor whole = HostTensor::Make(DType::kFloat32, shape);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      whole.as<float>()[r * columns + c] =
          static_cast<float>(gain * (rows < columns ? v[r * length + c] : v[c * length + r]));
  return whole;
}

// Extents of these axes multiplied.
double FanOf(const Dims& shape, const std::vector<int>& axes) {
  double fan = 1;
  for (int axis : axes) fan *= static_cast<double>(shape[axis]);
  return fan;
}

void SetInit(const Dims& shape, const Initializer& init, Attrs* attrs) {
  double fan_out = shape.rank() > 0 ? shape.back() : 1;
  double fan_in = shape.rank() > 0 ? shape.elements() / std::max(1.0, fan_out) : 1;
  if (!init.fans.out.empty()) fan_out = FanOf(shape, init.fans.out);
  if (!init.fans.in.empty()) fan_in = FanOf(shape, init.fans.in);
  auto normal = [&](double mean, double deviation, const char* kind = "normal") {
    attrs->Set("init", std::string(kind));
    attrs->Set("mean", mean);
    attrs->Set("stddev", deviation);
  };
  auto uniform = [&](double low, double high) {
    attrs->Set("init", std::string("uniform"));
    attrs->Set("low", low);
    attrs->Set("high", high);
  };
  double xavier = 2 / std::max(1.0, fan_in + fan_out), kaiming = 2 / std::max(1.0, fan_in);
  using Kind = Initializer::Kind;
  switch (init.kind) {
    case Kind::kFull:
      attrs->Set("init", std::string("full"));
      attrs->Set("value", init.a);
      break;
    case Kind::kUniform:
      return uniform(init.a, init.b);
    case Kind::kNormal:
      return normal(init.a, init.b);
    case Kind::kTruncatedNormal:
      return normal(init.a, init.b, "truncated_normal");
    case Kind::kXavierUniform:
      return uniform(-std::sqrt(3 * xavier), std::sqrt(3 * xavier));
    case Kind::kXavierNormal:
      return normal(0, std::sqrt(xavier));
    case Kind::kKaimingUniform:
      return uniform(-std::sqrt(3 * kaiming), std::sqrt(3 * kaiming));
    case Kind::kKaimingNormal:
      return normal(0, std::sqrt(kaiming));
    case Kind::kOrthogonal:
    case Kind::kTensor:
      break;  // SetLiteral
  }
}

// "tp:S(1)", or "no stage on pp", as a message has it.
std::string EntryText(const Mesh& mesh, int entry, const Sbp& sbp) {
  return Cat(mesh.axis_name(entry - 1), ":", sbp.str());
}
std::string StageText(const Mesh& mesh, int axis, int stage) {
  return stage == Slice::kFree ? Cat("on no stage of ", mesh.axis_name(axis))
                               : Cat("on stage ", mesh.axis_name(axis), "=", stage);
}
std::string InitText(const Attrs& attrs) {
  std::string text = attrs.Str("init"), numbers;
  for (const char* name : {"value", "low", "high", "mean", "stddev"})
    if (attrs.Has(name)) numbers += Cat(numbers.empty() ? "" : " ", name, "=", attrs.Float(name));
  return Cat(text, "(", numbers, ")");
}

// Initialisers alone; options are compared one by one.
Attrs InitOf(const Attrs& attrs) {
  Attrs init;
  for (const auto& [name, value] : attrs.map())
    if (name != "frozen" && name != "decay" && name != "rate") init.Set(name, value);
  return init;
}

// "trainable=false", as the user writes it.
std::string OptionText(const std::string& option, double value) {
  return option == "frozen" ? Cat("trainable=", value == 0 ? "true" : "false") : Cat(option, "=", value);
}

// `there` is what a message calls the first.
void CheckStage(const ModelImpl& model, const std::string& who, const std::string& there,
                const ModelVariable& first, const ModelVariable& now) {
  const bool everywhere = now.node.slice == WholeMesh(model.mesh);
  for (int a = 0; now.node.placed && a < model.mesh.rank(); ++a) {
    const int stage = now.node.slice.fixed[a],
              said = first.node.placed ? first.node.slice.fixed[a] : Slice::kFree;
    if (stage != said && (stage != Slice::kFree || everywhere))
      Fail(who, ": it is ", StageText(model.mesh, a, stage), " but ", there, " is ",
           StageText(model.mesh, a, said), "; move its value there with to_stage");
  }
}

// A weight requested by the name of a state is that state, whatever the request says of its first value and
// its cuts.
void CheckStateAsWeight(const ModelImpl& model, const std::string& who, const ModelVariable& state,
                        const ModelVariable& now) {
  const std::string there = Cat("the state of that name made at ", state.node.line.str());
  if (now.shape != state.shape)
    Fail(who, ": its shape is ", now.shape.str(), " but ", there, " has ", state.shape.str());
  if (!IsFloating(state.dtype))
    Fail(who, ": a weight is of floating point numbers, but ", there, " is ", Name(state.dtype));
  if (now.node.attrs.Int("frozen", 1) == 0)
    Fail(who, ": it says trainable=true but ", there, " is changed by no training; rename one of them");
  CheckStage(model, who, there, state, now);
}

void SetOptions(const WeightOptions& options, Attrs* attrs) {
  if (options.trainable) attrs->Set("frozen", int64_t{!*options.trainable});
  if (options.decay) attrs->Set("decay", *options.decay);
  if (options.rate) attrs->Set("rate", *options.rate);
}

// The pattern of ModelOptions::weights that decides about an option of a weight; nullptr: none does.
const WeightPattern* PatternOf(const ModelImpl& model, const std::string& path, const std::string& option) {
  const WeightPattern* found = nullptr;
  for (const WeightPattern& pattern : model.options.weights) {
    const WeightOptions& says = pattern.options;
    const bool decides = option == "frozen"  ? says.trainable.has_value()
                         : option == "decay" ? says.decay.has_value()
                                             : says.rate.has_value();
    if (decides && MatchesGlob(pattern.pattern, path)) found = &pattern;
  }
  return found;
}

// A request must agree with the first of that name; options it leaves out are the first's. Patterns override
// the options that code says, but not what one request says and the first does not.
void CheckSameWeight(const ModelImpl& model, const std::string& who, const ModelVariable& first,
                     const ModelVariable& now) {
  const std::string there = Cat("the weight of that name made at ", first.node.line.str());
  if (now.shape != first.shape)
    Fail(who, ": its shape is ", now.shape.str(), " but ", there, " has ", first.shape.str());
  if (now.dtype != first.dtype)
    Fail(who, ": it is stored as ", Name(now.dtype), " but ", there, " as ", Name(first.dtype));
  if (!(InitOf(now.node.attrs) == InitOf(first.node.attrs)))
    Fail(who, ": it starts as ", InitText(now.node.attrs), " but ", there, " starts as ",
         InitText(first.node.attrs), "; give both the same initialiser");
  for (const char* option : {"frozen", "decay", "rate"}) {
    if (!now.said.Has(option)) continue;
    const double mine = now.said.Float(option);
    const auto agrees = [&](const Attrs& attrs) { return attrs.Has(option) && attrs.Float(option) == mine; };
    if (agrees(first.said) || agrees(first.node.attrs)) continue;
    if (const WeightPattern* pattern = PatternOf(model, first.node.name, option))
      Fail(who, ": it says ", OptionText(option, mine), " but pattern \"", pattern->pattern,
           "\" of ModelOptions::weights says ", OptionText(option, first.node.attrs.Float(option)),
           ", which holds; change the pattern, or leave this out");
    Fail(
        who, ": it says ", OptionText(option, mine), " but ", there, " says ",
        first.node.attrs.Has(option) ? OptionText(option, first.node.attrs.Float(option)) : "nothing of that",
        "; say it at the first request");
  }
  for (const auto& [entry, sbp] : now.node.fixed) {
    auto said = first.node.fixed.find(entry);
    const bool copied =
        said == first.node.fixed.end() && sbp.is_broadcast() && !HasAxis(model.zero_axes, entry - 1);
    if (copied || (said != first.node.fixed.end() && said->second == sbp)) continue;
    Fail(who, ": it is annotated ", EntryText(model.mesh, entry, sbp), " but ", there, " is ",
         said == first.node.fixed.end() ? Cat("not annotated along ", model.mesh.axis_name(entry - 1))
                                        : EntryText(model.mesh, entry, said->second),
         "; annotate the first, and leave the annotation out here or repeat it");
  }
  CheckStage(model, who, there, first, now);
}

// Leaves out of `cuts` the mesh axes that `others` name.
void LeaveOut(const Mesh& mesh, const Annotation& others, Annotation* cuts) {
  MeshAxes named;
  for (const auto& [name, sbp] : others)
    for (int axis : mesh.FindAxes(name)) named.push_back(axis);
  Annotation left;
  for (const auto& cut : *cuts) {
    const MeshAxes axes = mesh.FindAxes(cut.first);
    if (std::none_of(axes.begin(), axes.end(), [&](int axis) { return HasAxis(named, axis); })) {
      left.push_back(cut);
      continue;
    }
    for (int axis : axes)
      if (!HasAxis(named, axis)) left.push_back({mesh.axis_name(axis), cut.second});
  }
  *cuts = std::move(left);
}

// The options of a request, and over them those of the patterns that match.
WeightOptions WithPatterns(ModelImpl* model, const std::string& path, WeightOptions options) {
  for (size_t i = 0; i < model->options.weights.size(); ++i) {
    const auto& [pattern, says] = model->options.weights[i];
    if (!MatchesGlob(pattern, path)) continue;
    model->matched_patterns.insert(i);
    if (!says.sbp.empty()) {
      options.sbp = says.sbp;
      LeaveOut(model->mesh, says.sbp, &options.stored);
    }
    if (!says.stored.empty()) {
      options.stored = says.stored;
      if (says.sbp.empty()) LeaveOut(model->mesh, says.stored, &options.sbp);
    }
    if (says.trainable) options.trainable = says.trainable;
    if (says.decay) options.decay = says.decay;
    if (says.rate) options.rate = says.rate;
    if (says.dtype) options.dtype = says.dtype;
  }
  return options;
}

void CheckOptions(const std::string& who, const WeightOptions& options) {
  for (const auto& [name, number] : {std::pair{"decay", options.decay}, std::pair{"rate", options.rate}})
    if (number) NeedNumber(who, name, *number, Domain::kNotNegative);
  if (!options.dtype || *options.dtype == DType::kFloat32) return;
  NeedType(who, *options.dtype);
  if (!IsFloating(*options.dtype))
    Fail(who, ": a weight's dtype is ", Name(*options.dtype), " but must be f32, bf16 or f16");
  if (options.trainable.value_or(true))
    Fail(who, ": only a frozen weight can be stored as ", Name(*options.dtype),
         "; say .trainable = false, or leave the dtype out");
}

}  // namespace

void RequirePatternsMatched(const std::string& who, const ModelImpl& model) {
  for (size_t i = 0; i < model.options.weights.size(); ++i)
    if (!model.matched_patterns.count(i))
      Fail(who, ": pattern \"", model.options.weights[i].pattern,
           "\" of ModelOptions::weights matches no weight requested so far");
}

Tensor GraphOfModel::Variable(const std::string& who, const std::string& path, const Dims& shape, DType dtype,
                              const Initializer& init, const WeightOptions& options,
                              const WeightOptions& said, const std::vector<int>& stage, const Here& at,
                              bool state) {
  CheckName(who, path);
  RequireExtents(who, shape);
  CheckInit(who, shape, dtype, init);
  ModelVariable made;
  made.shape = shape;
  made.dtype = dtype;
  Node& node = made.node;
  node.op = "variable";
  node.name = path;
  node.line = SourceLine(at);
  node.slice.fixed = stage;
  std::replace(node.slice.fixed.begin(), node.slice.fixed.end(), Scope::kEverywhere, Slice::kFree);
  node.placed = std::any_of(stage.begin(), stage.end(), [](int c) { return c != Slice::kFree; });
  Annotation all = options.sbp;
  all.insert(all.end(), options.stored.begin(), options.stored.end());
  node.fixed = CheckAnnotation(mesh(), who, shape, all, node.slice.fixed);
  CheckNotPartial(mesh(), who, node.fixed);
  for (const auto& [name, sbp] : options.stored)
    for (int axis : mesh().AxesOrFail(name, who)) node.stored.insert(1 + axis);
  const int64_t key = DrawKey(path);
  node.attrs.Set("key", key);
  if (init.kind == Initializer::Kind::kTensor) made.initial = *init.tensor;
  if (init.kind == Initializer::Kind::kOrthogonal)
    made.initial = OrthogonalTensor(shape, init.a, RandomKey(model->options.seed, key));
  if (made.initial.data) {
    SetLiteral(made.initial, &node.attrs);
  } else {
    SetInit(shape, init, &node.attrs);
  }
  SetOptions(options, &node.attrs);
  SetOptions(said, &made.said);
  made.settled = node.placed;
  made.state = state;
  return Request(who, made);
}

Tensor GraphOfModel::Request(const std::string& who, const ModelVariable& made) {
  const Node& node = made.node;
  const std::string path = node.name;
  auto known = model->variables.find(path);
  if (known != model->variables.end()) {
    const bool as_weight = known->second.state && !made.state;
    (as_weight ? CheckStateAsWeight : CheckSameWeight)(*model, who, known->second, made);
  }
  auto here = variables.find(path);
  if (here != variables.end()) return Tensor(this, this->node(here->second).out[0]);
  if (inputs.count(path)) Fail(who, ": the graph already has an input of that name");
  if (known == model->variables.end()) known = model->variables.emplace(path, made).first;
  Node of_graph = known->second.node;
  of_graph.line = node.line;
  of_graph.name = ReserveName(this, path);
  int id = AddRaw(of_graph, {{path, known->second.dtype, made.shape}});
  variables[path] = id;
  return Tensor(this, this->node(id).out[0]);
}

Tensor Scope::Weight(const std::string& name, const Dims& shape, const Initializer& init, NoOptions,
                     Here at) const {
  return Weight(name, shape, init, WeightOptions{}, at);
}

Tensor Scope::Weight(const std::string& name, const Dims& shape, const Initializer& init,
                     const Annotation& sbp, Here at) const {
  return Weight(name, shape, init, WeightOptions{.sbp = sbp}, at);
}

Tensor Scope::Weight(const std::string& name, const Dims& shape, const Initializer& init,
                     const WeightOptions& wanted, Here at) const {
  const std::string full = Path(name), who = Who("weight", full, at);
  if (!graph_) Fail(who, ": the Scope was never given a value; start from Model::scope()");
  WeightOptions held = wanted;
  const bool left_out = graph_->model->options.auto_cuts == AutoCuts::kAll;
  if (left_out) held.sbp = held.stored = {};
  const WeightOptions options = WithPatterns(graph_->model, full, held);
  CheckOptions(who, options);
  const DType dtype = options.dtype.value_or(DType::kFloat32);
  Tensor weight =
      graph_->Variable(who, name.empty() ? name : full, shape, dtype, init, options, wanted, stage_, at);
  if (left_out) {
    VariableCut& cut = graph_->model->variables.at(full).left_out;
    const std::vector<int> stage = graph_->model->variables.at(full).node.slice.fixed;
    cut.fixed = CheckAnnotation(graph_->mesh(), who, shape, wanted.sbp, stage);
    for (const auto& [entry, sbp] : CheckAnnotation(graph_->mesh(), who, shape, wanted.stored, stage)) {
      cut.fixed[entry] = sbp;
      cut.stored.insert(entry);
    }
  }
  return cast(weight, DType::kFloat32, at);
}

Tensor Scope::State(const std::string& name, const Dims& shape, const Initializer& init,
                    const StateOptions& options, Here at) const {
  const std::string full = Path(name), who = Who("state", full, at);
  if (!graph_) Fail(who, ": the Scope was never given a value; start from Model::scope()");
  NeedType(who, options.dtype);
  const bool number = IsFloating(options.dtype) || init.kind == Initializer::Kind::kFull ||
                      init.kind == Initializer::Kind::kTensor;
  if (!number)
    Fail(who, ": its type is ", Name(options.dtype), ", which random numbers do not fill; use Full or ",
         "FromTensor");
  const WeightOptions as{.sbp = options.sbp, .stored = options.stored, .trainable = false};
  return graph_->Variable(who, name.empty() ? name : full, shape, options.dtype, init, as, as, stage_, at,
                          true);
}

}  // namespace oneflow_like
