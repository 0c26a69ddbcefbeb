// Memory is never written while someone still needs what it holds: random models on random meshes, stages,
// signatures, micro-batches, schedules and types, compiled, and their plans played in many orders
// (tests/compiler/plan_replay.h), of the segments alone and of all ranks together.
// ctest: long=10
#include "tests/compiler/plan_replay.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "oneflow_like/plan_search.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

constexpr int kBatch = 6, kWidth = 4;

struct Dice {
  uint64_t seed, purpose;
  uint64_t count = 0;
  int operator()(int limit) { return static_cast<int>(RandomBits(seed, purpose, count++) % limit); }
};

// tanh with scratch, as an operator of the user's may have it: none of the catalog's does.
OpDef WithScratch() {
  OpDef def = BuiltinCatalog().Get("tanh");
  def.name = "tanh_aside";
  def.scalar = "";
  def.scratch = [](const KernelSpec& spec) { return 40 + 16 * spec.in[0].elements(); };
  return def;
}

// A model with what makes plans hard: values read far away, views of values and of weights, weights read on
// several stages, sums over the batch, ties, long and short chains, indices, scratch.
class RandomModel {
 public:
  RandomModel(Model& model, uint64_t seed) : model_(model), dice_{seed, 21} {
    stages_ = model.mesh().axis_size(2);
    x_ = model.Input("x", {kBatch, kWidth}, DType::kFloat32,
                     dice_(2) ? Annotation{{"dp", S(0)}} : Annotation{});
    ids_ = model.Input("ids", {kBatch}, DType::kInt32, {{"dp", S(0)}});
    seen_.push_back(x_);
    int blocks = 3 + dice_(6);
    bool back = dice_(3) == 0;  // whether the model may go back to an earlier stage
    for (int b = 0; b < blocks; ++b) {
      int next = dice_(stages_);
      stage_ = b >= blocks - stages_ ? std::max(0, stages_ - (blocks - b))
               : back                ? next
                                     : std::max(stage_, next);
      name_ = Cat("b", b);
      // The last blocks follow each other, so that every stage has work.
      Tensor from = b >= blocks - stages_ ? seen_.back() : Some();
      Tensor y = Block(Here(from));
      seen_.push_back(Annotated(dice_(3) ? y : Apply(y.graph(), "tanh_aside", {y})[0]));
    }
    Tensor last = Here(seen_.back()) + Here(Some());
    Tensor head = At("head").Weight("w", {kWidth, 3}, Normal(.5), {{"tp", S(dice_(2))}});
    Tensor logits = matmul(last, head);
    loss_ = dice_(2) ? mean(cross_entropy(logits, Here(ids_))) : mean(square(logits));
    outputs_["last"] = last;
    if (dice_(2)) outputs_["some"] = Some();
    if (dice_(3) == 0) outputs_["sums"] = sum(Here(Some()), {0});
    if (dice_(3) == 0) outputs_["weight"] = dice_(2) ? head : reshape(head, {3, kWidth});
  }

  Tensor loss() const { return loss_; }
  const std::map<std::string, Tensor>& outputs() const { return outputs_; }

 private:
  Tensor Some() { return seen_[dice_(static_cast<int>(seen_.size()))]; }
  Tensor Here(Tensor t) { return to_stage(t, "pp", stage_); }
  Scope At(const std::string& name) { return (model_.scope() / name).Stage("pp", stage_); }
  Annotation Cut() { return dice_(2) ? Annotation{{"tp", S(dice_(2))}} : Annotation{}; }

  Tensor Annotated(Tensor t) {
    Annotation a;
    bool cut[2] = {false, false};
    for (const char* axis : {"dp", "tp"}) {
      int what = dice_(6), i = dice_(2);
      if (what == 0) a.push_back({axis, B()});
      if (what == 1) a.push_back({axis, P()});
      if (what == 2 && !cut[i]) a.push_back({axis, S(i)}), cut[i] = true;
    }
    return dice_(3) == 0 ? annotate(t, a) : t;
  }

  Tensor Block(Tensor x) {
    Scope s = At(name_);
    switch (dice_(14)) {
      case 0:
        return gelu(matmul(x, s.Weight("w", {kWidth, kWidth}, Normal(.4), Cut())));
      case 1:
        return layer_norm(x, s.Weight("gamma", {kWidth}, Ones()), s.Weight("beta", {kWidth}, Zeros()));
      case 2: {
        Annotation cut = Cut();
        if (!tables_.insert(stage_).second) cut.clear();  // what the first request said
        return x + embedding(At("table").Weight(Cat("t", stage_), {7, kWidth}, Normal(.4), cut), Here(ids_));
      }
      case 3:
        return dropout(gelu(x), .3) + Here(Some());
      case 4:  // one weight of all stages
        return matmul(softmax(x),
                      (model_.scope() / "shared").Stage("pp", 0).Weight("w", {kWidth, kWidth}, Normal(.4)));
      case 5: {  // views of a value that is read as itself too
        Tensor cube = reshape(x, {kBatch, 2, kWidth / 2});
        Tensor turned = reshape(transpose(cube, {0, 2, 1}), {kBatch, kWidth});
        return turned * sigmoid(reshape(cube, {kBatch, kWidth})) + x;
      }
      case 6: {  // a view of a weight
        Tensor w = s.Weight("w", {kWidth * kWidth}, Normal(.4));
        return matmul(x, reshape(w, {kWidth, kWidth})) + matmul(tanh(x), reshape(w, {kWidth, kWidth}));
      }
      case 7:
        return concat({slice(x, 1, 2, kWidth), slice(x, 1, 0, 2)}, 1) *
               s.Weight("scale", {kWidth}, Normal(.2, 1));
      case 8: {
        Tensor heads =
            reshape(matmul(x, s.Weight("qkv", {kWidth, 3 * kWidth}, Normal(.4))), {kBatch, 3, 2, kWidth / 2});
        std::vector<Tensor> parts;
        for (int i = 0; i < 3; ++i)
          parts.push_back(reshape(slice(heads, 1, i, i + 1), {kBatch, 1, 2, kWidth / 2}));
        return reshape(attention(parts[0], parts[1], parts[2]), {kBatch, kWidth});
      }
      case 9: {  // read many times, and far apart
        Tensor y = x;
        for (int i = 2 + dice_(4); i > 0; --i) y = tanh(y) + x * Here(Some());
        return y;
      }
      case 10:
        return x - mean(x, {1}, true) + max(x, {1}, true);
      case 12:  // the whole batch, read within the micro-batch
        return x - mean(x, {0}, true);
      case 11:
        return x * rsqrt(shift(sum(square(Here(Some())), {0}, true), 1));
      default:
        return rms_norm(x + Here(x_), s.Weight("gamma", {kWidth}, Ones()));
    }
  }

  Model& model_;
  Dice dice_;
  int stages_ = 1, stage_ = 0;
  std::set<int> tables_;  // stages that have one
  std::string name_;
  Tensor x_, ids_, loss_;
  std::vector<Tensor> seen_;
  std::map<std::string, Tensor> outputs_;
};

struct Setting {
  std::string mesh;
  Zero zero;
  Offload offload;
  TrainOptions options;
  bool train = true, adam = false;
  explicit Setting(uint64_t seed) {
    Dice dice{seed, 22};
    const char* meshes[] = {"cpu:dp=1",           "cpu:dp=2",      "cpu:tp=2",      "cpu:pp=2",
                            "cpu:pp=3",           "cpu:dp=2,pp=2", "cpu:tp=2,pp=2", "cpu:dp=2,tp=2",
                            "cpu:dp=2,tp=2,pp=2", "cpu:dp=3"};
    mesh = meshes[dice(10)];
    options.micro_batches = 1 + dice(5);
    options.steps_in_flight = 1 + dice(3);
    options.schedule = static_cast<PipelineSchedule>(dice(4));
    options.exact_groups = dice(4) == 0;
    if (dice(3) == 0) zero = {.axis = "dp", .stage = 1 + dice(3), .prefetch = dice(3), .small = 0};
    const int64_t buckets[] = {0, 64, 300, 2000, 25 << 20};
    zero.bucket_bytes = buckets[dice(5)];
    options.recompute = kRecomputeModes[dice(5)];
    if (dice(2)) options.overlap = {.chunks = 2 + dice(3), .always = true};
    if (dice(3) == 0) options.clip_norm = 1;
    if (dice(3) == 0) options.dtype = dice(2) ? DType::kBFloat16 : DType::kFloat16;
    train = dice(5) != 0;
    adam = dice(2) == 0;
    if (dice(3) == 0) options.reduce_dtype = DType::kBFloat16;
    if (dice(3) == 0) {
      offload.activations = dice(2) == 0;
      offload.optimizer = dice(2) == 0 ? 1 : 0;
      offload.weights = dice(2) == 0;
      offload.prefetch = dice(3);
      offload.small = 8;
    }
  }
  std::string str() const {
    return Cat(mesh, " micro_batches=", options.micro_batches, " in flight ", options.steps_in_flight, " ",
               Name(options.schedule), options.exact_groups ? " exact groups" : "",
               zero.axis.empty() ? "" : Cat(" ZeRO ", zero.stage), " bucket=", zero.bucket_bytes,
               " recompute=", Name(options.recompute), " overlap=", options.overlap.chunks,
               options.clip_norm > 0 ? " clipped " : " ", Name(options.dtype), " sums ",
               Name(options.reduce_dtype), offload.any() ? Cat(" offload=", OffloadText(offload)) : "",
               train ? adam ? " AdamW" : " momentum" : " evaluation");
  }
};

Session MakeSession(Model& model, uint64_t seed, const Setting& setting) {
  RandomModel random(model, seed);
  if (!setting.train) {
    std::map<std::string, Tensor> outputs = random.outputs();
    outputs["loss"] = random.loss();
    return Evaluate(outputs, setting.options);
  }
  TrainOptions options = setting.options;
  options.outputs = random.outputs();
  if (setting.adam) return Train(random.loss(), AdamW{.lr = .01}, options);
  return Train(random.loss(), Sgd{.lr = .1, .momentum = .9}, options);
}

// The same graph with its nodes in another order that values and `after` allow: no pass may lean on the one
// that the passes before happened to leave. Planned anew.
Compiled Shuffled(const Compiled& compiled, uint64_t seed) {
  Compiled other{compiled.graph, {}, compiled.options, {}};
  Dice dice{seed, 23};
  std::vector<int> order, ready;
  std::vector<std::vector<int>> next(other.graph.num_nodes());
  std::vector<int> waits(other.graph.num_nodes(), 0);
  for (int n : other.graph.Order()) {
    const Node& node = other.graph.node(n);
    for (int v : node.in) next[other.graph.value(v).producer].push_back(n);
    for (int b : node.after) next[b].push_back(n);
    waits[n] = static_cast<int>(node.in.size() + node.after.size());
    if (waits[n] == 0) ready.push_back(n);
  }
  while (!ready.empty()) {
    std::swap(ready[dice(static_cast<int>(ready.size()))], ready.back());
    order.push_back(ready.back());
    ready.pop_back();
    for (int n : next[order.back()])
      if (--waits[n] == 0) ready.push_back(n);
  }
  other.graph.Renumber(order);
  VerifyGraph(other.graph, Level::kLowered);
  other.logical = FormSegments(other.graph, other.options);
  OrderActs(other.graph, &other.logical);
  VerifyLogicalPlan(other.graph, other.logical);
  return other;
}

// What goes wrong in some order of the acts of this plan; empty: nothing.
std::string PlayAll(const Compiled& compiled, int steps_in_flight, uint64_t seed, int orders) {
  Meaning meaning(compiled);
  std::vector<plan::Plan> plans, segments = {PlanOfSegments(meaning)};
  for (int rank = 0; rank < compiled.graph.mesh().size(); ++rank)
    plans.push_back(PlanOf(compiled, rank).plan);
  for (int order = 0; order < orders; ++order) {
    ReplayOptions options{seed * 1000 + order, 2 + order % 2, steps_in_flight};
    std::string wrong = Replay(meaning, segments, options).Run();
    if (!wrong.empty()) return "segments, " + wrong;
    wrong = Replay(meaning, plans, options).Run();
    if (!wrong.empty()) return "plans, " + wrong;
  }
  return "";
}

// An update that some order of the graph allows before a reader of what it replaces; empty: none.
std::string UpdateAheadOfAReader(const Graph& graph) {
  std::vector<int> order = graph.Order();
  std::vector<std::set<int>> before(graph.num_nodes());  // nodes that must come first
  for (int n : order) {
    auto add = [&](int b) {
      before[n].insert(b);
      before[n].insert(before[b].begin(), before[b].end());
    };
    for (int v : graph.node(n).in) add(graph.value(v).producer);
    for (int b : graph.node(n).after) add(b);
  }
  auto bytes_of = [&](int v) {  // through views
    for (;;) {
      const OpDef* def = graph.catalog().Find(graph.producer(v).op);
      if (!def || !def->view) return v;
      v = graph.producer(v).in[0];
    }
  };
  for (int n : order) {
    const OpDef* def = graph.catalog().Find(graph.node(n).op);
    if (!def) continue;
    for (auto [out, in] : def->inplace)
      for (int r : order)
        for (int v : graph.node(r).in)
          if (r != n && bytes_of(v) == bytes_of(graph.node(n).in[in]) && before[n].count(r) == 0)
            return Cat(graph.Describe(n), " may come before ", graph.Describe(r), ", which reads '",
                       graph.value(v).name, "'");
  }
  return "";
}

void ExpectReadsOfWhatWasWritten(uint64_t models) {
  for (uint64_t seed = 0; seed < models; ++seed) {
    Setting setting(seed);
    Model model(FullMesh(setting.mesh),
                {.zero = setting.zero, .offload = setting.offload, .operators = {WithScratch()}});
    try {
      Session session = MakeSession(model, seed, setting);
      const Compiled& compiled = session.impl()->compiled;
      EXPECT_EQ(PlayAll(compiled, setting.options.steps_in_flight, seed, 5), "")
          << "model " << seed << ": " << setting.str();
      EXPECT_EQ(PlayAll(Shuffled(compiled, seed), setting.options.steps_in_flight, seed, 2), "")
          << "model " << seed << ", its nodes in another order: " << setting.str();
      EXPECT_EQ(UpdateAheadOfAReader(compiled.graph), "") << "model " << seed << ": " << setting.str();
    } catch (const Error& e) {
      ADD_FAILURE() << "model " << seed << ": " << setting.str() << ": " << e.what();
    }
  }
}
TEST(AnyOrderOfActs, ReadsWhatWasWrittenForIt) { ExpectReadsOfWhatWasWritten(60); }
TEST(LongAnyOrderOfActs, ReadsWhatWasWrittenForIt) { ExpectReadsOfWhatWasWritten(150); }

// The text of a plan repeats it where all that it decides is left at its default.
TEST(AnyOrderOfActs, IsThatOfThePlanReadFromItsText) {
  int repeated = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Setting setting(seed);
    if (!setting.train) continue;
    const auto hash = [&] {
      Model model(FullMesh(setting.mesh), {.zero = setting.zero, .operators = {WithScratch()}});
      const Session session = MakeSession(model, seed, setting);
      return std::pair(session.impl()->compiled.logical.hash, ToText(session.Plan()));
    };
    const auto [acts, text] = hash();
    PlanCandidate plan;
    static_cast<Decisions&>(plan) = ParseSavedPlan(text).decisions;
    const TrainOptions given = std::exchange(setting.options, {});
    setting.options.steps_in_flight = given.steps_in_flight;
    setting.options.exact_groups = given.exact_groups;
    setting.options.clip_norm = given.clip_norm;
    setting.options.dtype = given.dtype;
    setting.options.overlap.always = given.overlap.always;
    ModelOptions options;
    options.zero.small = setting.zero.small;
    plan.Set(&options, &setting.options);
    setting.zero = options.zero;
    const auto [again, text_again] = hash();
    EXPECT_EQ(text_again, text) << "model " << seed;
    EXPECT_EQ(again, acts) << "model " << seed << ": " << setting.str();
    ++repeated;
  }
  EXPECT_GT(repeated, 30);
}

TEST(AnyOrderOfActs, OfATransformerReadsWhatWasWrittenForIt) {
  Offload offload = ParseOffload("activations,optimizer,weights", "the test");
  offload.small = 16;
  for (SmallGpt given : std::vector<SmallGpt>{
           {.mesh = "cpu:dp=1", .micro_batches = 3},
           {.mesh = "cpu:dp=2,tp=2", .micro_batches = 2, .zero_axis = "dp"},
           {.mesh = "cpu:dp=2,tp=2", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 3},
           {.mesh = "cpu:dp=2,pp=2",
           .micro_batches = 3,
           .zero_axis = "dp",
           .zero_stage = 3,
           .recompute = Recompute::kFull},
           {.mesh = "cpu:pp=4", .micro_batches = 6},
           {.mesh = "cpu:pp=2", .schedule = PipelineSchedule::kGPipe},
           {.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 4},
           {.mesh = "cuda:dp=1", .batch = 24},  // with rows of buffers (place_memory.cc)
           {.mesh = "cuda:dp=2", .micro_batches = 3},
           {.mesh = "cuda:dp=2,pp=2", .micro_batches = 3},
           {.mesh = "cpu:dp=2", .model_options = {.offload = offload}},
           {.mesh = "cpu:dp=2,pp=2", .micro_batches = 3, .model_options = {.offload = offload}}}) {
    given.width = 16;
    given.context = 4;
    for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
      given.dtype = dtype;
      GptProgram program(given);
      Session session = program.MakeTrain();
      const Compiled& compiled = session.impl()->compiled;
      EXPECT_EQ(PlayAll(compiled, 2, 5, 2), "") << given.str() << " " << Name(dtype);
      EXPECT_EQ(PlayAll(Shuffled(compiled, 5), 2, 5, 1), "") << given.str() << " " << Name(dtype);
      EXPECT_EQ(UpdateAheadOfAReader(compiled.graph), "") << given.str() << " " << Name(dtype);
    }
  }
}

// With many micro-batches those of a buffer take turns in fewer places (place_memory.cc).
TEST(AnyOrderOfActs, ReadsMessagesThatTakeTurns) {
  for (int micro_batches : {360, 509}) {
    SmallGpt given = {.mesh = "cpu:pp=2", .micro_batches = micro_batches};
    given.width = 16;
    given.context = 4;
    given.layers = 4;
    given.batch = micro_batches;
    given.model_options.pipeline.virtual_stages = 2;
    given.schedule = PipelineSchedule::kInterleaved;
    GptProgram program(given);
    Session session = program.MakeTrain();
    const Compiled& compiled = session.impl()->compiled;
    int turns = 0;
    for (int rank : {0, 1}) {
      const RankPlan made = PlanOf(compiled, rank);
      for (const plan::Buffer& b : made.plan.buffer())
        turns += b.slots() < b.offset_size() && b.offset_size() < micro_batches;
    }
    // 509 has no divisor to take turns in.
    EXPECT_EQ(turns > 0, micro_batches == 360) << turns;
    EXPECT_EQ(PlayAll(compiled, 2, 5, 2), "") << given.str();
  }
}

}  // namespace
}  // namespace oneflow_like
