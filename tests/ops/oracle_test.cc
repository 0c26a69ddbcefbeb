// The operator oracle over the whole catalog: every operator, sample and varied shape, every derived
// signature on meshes of 2, 3 and 2x2 and over time, reference and fast kernels; gradients against finite
// differences; expansions against their operators; and mistakes planted in rules and kernels, which the same
// checks must catch.
// ctest: seconds=30 long=25
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/device/parallel_for.h"
#include "ops/cpu/manifest.h"
#include "ops/oracle/check.h"
#include "ops/oracle/gradient.h"
#include "tests/ops/with_scratch.h"

namespace oneflow_like::oracle {
namespace {

std::map<std::string, Report>& Totals() {
  static std::map<std::string, Report> totals;
  return totals;
}

class PrintTotals : public testing::Environment {
 public:
  void SetUp() override { SetParallelThreads(1); }
  void TearDown() override {
    for (const auto& [what, report] : Totals()) {
      std::printf("%-12s %8lld cases, %lld shapes refused by the kernels, %lld derivatives at kinks\n",
                  what.c_str(), static_cast<long long>(report.cases), static_cast<long long>(report.refused),
                  static_cast<long long>(report.rough));
    }
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  }
};
const testing::Environment* const kPrintTotals = testing::AddGlobalTestEnvironment(new PrintTotals);

void ExpectClean(const std::string& what, const Report& report) {
  Totals()[what].Merge(report);
  EXPECT_EQ(report.failed, 0) << report.str();
}

class OperatorOracle : public testing::TestWithParam<std::string> {
 protected:
  const OpDef& def() const { return BuiltinCatalog().Get(GetParam()); }
};

TEST_P(OperatorOracle, HasSamplesAndAKernel) {
  EXPECT_FALSE(def().samples.empty());
  EXPECT_FALSE(def().doc.empty());
  EXPECT_TRUE(ReferenceKernel(def()) || def().view);
}

// Fewer of the pairs of signatures: all rules and kernels are seen under many of them.
const CheckOptions kOfRules{.most_pairs = 1000, .pairs_of_variant = 40},
    kOfKernels{.most_pairs = 500, .pairs_of_variant = 20};

void ExpectCleanReference(const OpDef& def, const CheckOptions& options) {
  ExpectClean("reference", CheckOperator(def, ReferenceOf(def), ReferenceOf(def), options));
}

void ExpectCleanKernel(const OpDef& def, const CheckOptions& options) {
  static const KernelRegistry* const registry = [] {
    auto* all = new KernelRegistry;
    AddReferenceKernels(BuiltinCatalog(), all);
    AddCpuKernels(all);
    return all;
  }();
  // Else the reference kernel is the only one.
  if (!registry->Has(def.name, "cpu") && !def.composed) return;
  MakeKernel fast = [](const KernelSpec& spec) { return MakeWithScratch(*registry, spec); };
  ExpectClean("cpu", CheckOperator(def, ReferenceOf(def), fast, options));
}

TEST_P(OperatorOracle, ReferenceKernelUnderEverySignature) { ExpectCleanReference(def(), kOfRules); }
TEST_P(OperatorOracle, FastKernelUnderEverySignature) { ExpectCleanKernel(def(), kOfKernels); }

class LongOperatorOracle : public OperatorOracle {};
TEST_P(LongOperatorOracle, ReferenceKernelUnderPairsOfSignatures) { ExpectCleanReference(def(), {}); }
TEST_P(LongOperatorOracle, FastKernelUnderPairsOfSignatures) { ExpectCleanKernel(def(), {}); }

// --- Gradients ---

// Operators that pass gradients but are left out here.
const std::map<std::string, std::string>& LeftOut() {
  static const std::map<std::string, std::string> table = {};
  return table;
}

TEST_P(OperatorOracle, GradientIsTheDerivative) {
  if (!def().grad || LeftOut().count(def().name)) return;
  Report report;
  const int compared = CheckGradients(def(), BuiltinCatalog(), &report);
  EXPECT_GT(compared, 0) << def().name << " has a gradient, but no sample to compare it with differences";
  EXPECT_LE(4 * report.rough, report.cases)
      << "too few directions are smooth; the samples' ranges do not suit";
  ExpectClean("gradient", report);
}

// --- Expansions ---

// Whether values laid out like `have` serve an input wanted as `want` without gathering what is cut: partial
// values may be combined, whole values sliced.
bool Serves(const Sbp& have, const Sbp& want) {
  return have == want || (!have.is_split() && !want.is_partial());
}

// Finds signatures for the nodes from `next` on, given the Sbp of the values so far, that end in `goal`.
bool Lay(const Tape& tape, size_t next, std::map<int, Sbp> laid, const std::map<int, Sbp>& goal, int parts) {
  if (next == tape.nodes().size()) {
    for (const auto& [id, want] : goal) {
      if (!Serves(laid.at(id), want)) return false;
    }
    return true;
  }
  const Tape::Node& node = tape.nodes()[next];
  OpCall call{node.op, node.op, {}, {}, &node.attrs};
  for (int id : node.in) {
    call.shapes.push_back(tape.ShapeOf(id));
    call.dtypes.push_back(tape.DTypeOf(id));
  }
  for (const Signature& s : PlainSignatures(BindOp(BuiltinCatalog().Get(node.op), call), {1}, parts)) {
    bool fits = true;
    for (size_t i = 0; i < node.in.size(); ++i) fits = fits && Serves(laid.at(node.in[i]), s.in[i]);
    if (!fits) continue;
    std::map<int, Sbp> then = laid;
    for (size_t o = 0; o < node.out.size(); ++o) then[node.out[o]] = s.out[o];
    if (Lay(tape, next + 1, std::move(then), goal, parts)) return true;
  }
  return false;
}

void CheckExpansion(const Trial& trial, Report* report) {
  Tape tape;
  std::vector<Tensor> in;
  for (const Value& v : trial.in) in.push_back(tape.Input(v));
  std::vector<Tensor> out = trial.def->expand(trial.sample.attrs, in);
  ++report->cases;
  if (out.size() != trial.out.size()) {
    report->Fail(
        Cat("expansion: ", trial.text, " has ", out.size(), " outputs instead of ", trial.out.size()));
    return;
  }
  for (size_t o = 0; o < out.size(); ++o) {
    if (out[o].shape() != trial.out[o].shape() || out[o].dtype() != trial.out[o].dtype()) {
      report->Fail(
          Cat("expansion: ", trial.text, " output ", o, " is ", Name(out[o].dtype()), out[o].shape().str()));
      return;
    }
    if (!Compare(Cat("expansion of ", trial.text, " output ", o), tape.At(out[o]), trial.out[o], false,
                 report))
      return;
  }
  for (int parts : {2, 3}) {
    for (const Signature& s : Signatures(trial.rule, std::vector<std::set<int64_t>>(in.size(), {1}), parts)) {
      if (!s.expanded) continue;
      ++report->cases;
      std::map<int, Sbp> laid, goal;
      for (size_t i = 0; i < in.size(); ++i) laid[in[i].id()] = s.in[i];
      for (size_t o = 0; o < out.size(); ++o) goal[out[o].id()] = s.out[o];
      if (!Lay(tape, 0, laid, goal, parts)) {
        report->Fail(Cat("expansion: ", trial.text, " cannot be laid out as ", s.str(), " on ", parts));
      }
    }
  }
}

TEST_P(OperatorOracle, ExpansionIsTheOperator) {
  if (!def().expand) return;
  Report report;
  int64_t expanded = 0;
  for (const Sample& sample : def().samples) {
    for (const Sample& varied : Vary(def(), sample)) {
      Trial trial = MakeTrial(def(), varied, ReferenceOf(def()), true);
      if (!trial.status.ok()) continue;
      for (const Signature& s :
           Signatures(trial.rule, std::vector<std::set<int64_t>>(trial.in.size(), {1}), 2)) {
        expanded += s.expanded;
      }
      try {
        CheckExpansion(trial, &report);
      } catch (const Error& error) {
        report.Fail(Cat("expansion: ", trial.text, " threw ", error.what()));
      }
    }
  }
  EXPECT_GT(expanded, 0) << def().name << " has an expansion, but no signature needs it";
  ExpectClean("expansion", report);
}

INSTANTIATE_TEST_SUITE_P(Catalog, OperatorOracle, testing::ValuesIn(BuiltinCatalog().names()),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Catalog, LongOperatorOracle, testing::ValuesIn(BuiltinCatalog().names()),
                         [](const auto& info) { return info.param; });

// --- Planted mistakes ---

// A kernel that takes its local piece for the whole tensor.
class ForgetsRange : public Kernel {
 public:
  explicit ForgetsRange(KernelFn fn) : fn_(fn) {}
  Status Run(const KernelContext& context) override {
    std::vector<TensorArg> in(context.in.begin(), context.in.end()),
        out(context.out.begin(), context.out.end());
    for (std::vector<TensorArg>* side : {&in, &out}) {
      for (TensorArg& arg : *side) {
        arg.begin = Dims(arg.extent.rank(), int64_t{0});
        arg.global = arg.extent;
      }
    }
    return fn_(
        {context.spec, in, out, context.scratch, context.step, context.time, context.times, context.seed});
  }

 private:
  KernelFn fn_;
};

// A mean that divides by the local extent, an embedding that takes local rows for global ones, a mask drawn
// from local positions: what the checks say of an operator whose kernel ignores its Range.
Report WithoutRange(const std::string& name) {
  const OpDef& def = BuiltinCatalog().Get(name);
  return CheckOperator(def, ReferenceOf(def),
                       [&](const KernelSpec&) { return std::make_unique<ForgetsRange>(def.reference); }, {});
}

// What the checks say of an operator after `change`.
template <typename F>
Report Changed(const std::string& name, F&& change) {
  OpDef def = BuiltinCatalog().Get(name);
  CheckOptions options{.vary = false};
  Report before = CheckOperator(def, ReferenceOf(def), ReferenceOf(def), options);
  EXPECT_EQ(before.failed, 0) << before.str();
  change(&def);
  return CheckOperator(def, ReferenceOf(def), ReferenceOf(def), options);
}

void ExpectWrongValues(const Report& report) {
  ASSERT_GT(report.failed, 0) << "the mistake went unseen in " << report.cases << " cases";
  bool seen = false;
  for (const std::string& f : report.failures) seen |= f.starts_with("value: ") || f.starts_with("copies: ");
  EXPECT_TRUE(seen) << report.str();
}

TEST(PlantedMistakes, AWrongFold) {
  ExpectWrongValues(Changed("matmul", [](OpDef* def) { def->folds["k"] = Reduce::kMax; }));
  ExpectWrongValues(Changed("layer_norm_grad", [](OpDef* def) { def->folds[".."] = Reduce::kMax; }));
  ExpectWrongValues(Changed("embedding", [](OpDef* def) {
    def->folds_of = [](const OpCall&) { return std::map<std::string, Reduce>{{"v", Reduce::kMax}}; };
  }));
}

TEST(PlantedMistakes, AWholeLabelThatMayBeCut) {
  auto forget = [](OpDef* def) {
    def->whole.clear();
    def->whole_of = nullptr;
    def->expandable.clear();
  };
  ExpectWrongValues(Changed("softmax", forget));
  ExpectWrongValues(Changed("log_softmax", forget));
  ExpectWrongValues(Changed("attention", [&](OpDef* def) {
    forget(def);
    def->folds["t"] = Reduce::kSum;
  }));
}

TEST(PlantedMistakes, NormalizedChannelsCut) {
  ExpectWrongValues(Changed("layer_norm", [](OpDef* def) {
    def->whole.clear();
    def->folds["c"] = Reduce::kSum;
  }));
  ExpectWrongValues(Changed("rms_norm", [](OpDef* def) {
    def->whole.clear();
    def->folds["c"] = Reduce::kSum;
  }));
}

TEST(PlantedMistakes, ALinearSetOfAnOperatorThatIsNotLinear) {
  ExpectWrongValues(Changed("relu", [](OpDef* def) { def->linear = {{"x"}}; }));
  ExpectWrongValues(Changed("gelu", [](OpDef* def) { def->linear = {{"x"}}; }));
  ExpectWrongValues(Changed("square", [](OpDef* def) { def->linear = {{"x"}}; }));
  ExpectWrongValues(Changed("shift", [](OpDef* def) { def->linear = {{"x"}}; }));
}

TEST(PlantedMistakes, ALinearSetWithTheWrongOperands) {
  ExpectWrongValues(Changed("add", [](OpDef* def) { def->linear = {{"a"}}; }));
  ExpectWrongValues(Changed("mul", [](OpDef* def) { def->linear = {{"a", "b"}}; }));
  ExpectWrongValues(Changed("div", [](OpDef* def) {
    def->linear = {{"b"}};
    def->linear_of = nullptr;
  }));
}

TEST(PlantedMistakes, ANarrowingCastCarriesPartialSums) {
  ExpectWrongValues(Changed("cast", [](OpDef* def) {
    std::erase_if(def->samples, [](const Sample& s) { return s.attrs.Str("dtype") != "bf16"; });
    ASSERT_FALSE(def->samples.empty());
    def->linear_of = nullptr;
    def->linear = {{"x"}};
  }));
}

TEST(PlantedMistakes, AMeanOfLocalExtents) { ExpectWrongValues(WithoutRange("mean")); }

TEST(PlantedMistakes, RowsOfATableNotMaskedByRange) {
  OpDef def = BuiltinCatalog().Get("embedding");
  // Takes every id modulo the rows held here.
  def.reference = [](const KernelContext& context) {
    const TensorArg &table = context.in[0], &ids = context.in[1], &y = context.out[0];
    int64_t width = y.extent.back(), rows = table.extent[0];
    for (int64_t i = 0; i < y.elements(); ++i) {
      int64_t n = i / width;
      int64_t id = ids.dtype == DType::kInt32 ? ids.as<int32_t>()[n] : ids.as<int64_t>()[n];
      y.as<float>()[i] = rows == 0 ? 0 : table.as<float>()[id % rows * width + i % width];
    }
    return Status();
  };
  ExpectWrongValues(
      CheckOperator(def, ReferenceOf(BuiltinCatalog().Get("embedding")), ReferenceOf(def), {.vary = false}));
}

TEST(PlantedMistakes, LocalPositionsTakenForGlobalOnes) {
  ExpectWrongValues(WithoutRange("dropout"));
  ExpectWrongValues(WithoutRange("normal"));
  ExpectWrongValues(WithoutRange("attention"));
  // These take ids of other ranks' classes for errors of the user's.
  EXPECT_GT(WithoutRange("cross_entropy_grad").failed, 0);
  EXPECT_GT(WithoutRange("one_hot").failed, 0);
}

// Runs `fn`, and then multiplies what a piece from inside the whole adds to partial sums.
class MiscountsPieces : public Kernel {
 public:
  MiscountsPieces(KernelFn fn, double times) : fn_(fn), times_(times) {}
  Status Run(const KernelContext& context) override {
    Status status = fn_(context);
    const bool inside = std::any_of(context.in.begin(), context.in.end(), [](const TensorArg& arg) {
      return arg.begin != Dims(arg.begin.rank(), int64_t{0});
    });
    for (const TensorArg& arg : context.out) {
      if (!inside || arg.extent != arg.global) continue;
      Value value(arg.dtype, arg.extent);
      std::memcpy(value.data(), arg.data, value.bytes());
      for (int64_t i = 0; i < value.elements(); ++i) value.Set(i, times_ * value.Get(i));
      std::memcpy(arg.data, value.data(), value.bytes());
    }
    return status;
  }

 private:
  KernelFn fn_;
  double times_;
};

// Partial sums in a 16-bit type are each rounded by a share of themselves, which may be more than their sum:
// that one is left out, or counted twice, is seen all the same, in each signature.
TEST(PlantedMistakes, APartialSumLeftOutOrCountedTwice) {
  const auto sums = [](const Sbp& s) { return s.is_partial() && s.fold == Reduce::kSum; };
  for (const auto& [name, dtype] :
       {std::pair("matmul", DType::kBFloat16), std::pair("matmul", DType::kFloat16),
        std::pair("attention_grad", DType::kBFloat16)}) {
    const OpDef& def = BuiltinCatalog().Get(name);
    Sample sample = def.samples[0];
    sample.dtypes = InputTypes(sample);
    for (size_t i = 0; i < std::min<size_t>(sample.in.size(), 5); ++i) sample.dtypes[i] = dtype;
    const Trial trial = MakeTrial(def, sample, ReferenceOf(def), false);
    for (double times : {1.0, 0.0, 2.0}) {
      Report report;
      for (int size : {2, 3}) {
        for (const Signature& s : PlainSignatures(trial.rule, {1}, size)) {
          if (std::none_of(s.out.begin(), s.out.end(), sums) || std::any_of(s.in.begin(), s.in.end(), sums))
            continue;
          const auto wrong = [&](const KernelSpec&) {
            return std::make_unique<MiscountsPieces>(def.reference, times);
          };
          RunCut(trial, trial.out, wrong, {{size}, false}, {s}, &report);
        }
      }
      EXPECT_GT(report.cases, 0) << trial.text;
      EXPECT_EQ(report.failed, times == 1.0 ? 0 : report.cases)
          << trial.text << ": pieces inside count " << times << " times: " << report.str();
    }
  }
}

// A gradient with a factor missing is seen by the differences.
TEST(PlantedMistakes, AWrongGradient) {
  OpDef def = BuiltinCatalog().Get("mul");
  def.grad = [](const GradCall& call) {
    return std::vector<Tensor>{mul(call.dout[0], call.in[0]), mul(call.dout[0], call.in[1])};
  };
  Report report;
  CheckGradient(MakeTrial(def, def.samples[0], ReferenceOf(def), false), 0, BuiltinCatalog(), &report);
  EXPECT_GT(report.failed, 0);
}

// Kernels that leave elements unwritten or write too far are seen.
TEST(PlantedMistakes, AKernelThatStopsShortOrGoesTooFar) {
  for (int beyond : {-1, 1}) {
    OpDef def = BuiltinCatalog().Get("neg");
    def.samples.resize(1);
    MakeKernel wrong = MakeFunctionKernel(beyond < 0 ? KernelFn([](const KernelContext& context) {
      for (int64_t i = 0; i + 1 < context.out[0].elements(); ++i) {
        context.out[0].as<float>()[i] = -context.in[0].as<float>()[i];
      }
      return Status();
    })
                                                     : KernelFn([](const KernelContext& context) {
                                                         int64_t n = context.out[0].elements();
                                                         for (int64_t i = 0; i < n; ++i)
                                                           context.out[0].as<float>()[i] =
                                                               -context.in[0].as<float>()[i];
                                                         context.out[0].as<float>()[n] = 0;
                                                         return Status();
                                                       }));
    Report report = CheckOperator(def, ReferenceOf(def), wrong, {.vary = false});
    ASSERT_GT(report.failed, 0);
    EXPECT_TRUE(report.failures[0].starts_with(beyond < 0 ? "unwritten: " : "error: ")) << report.str();
  }
}

}  // namespace
}  // namespace oneflow_like::oracle
