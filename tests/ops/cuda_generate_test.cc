// Generated elementwise kernels: random chains compiled as host C++ against the reference kernels of their
// steps, what texts depend on, how launches are planned, the cache on disk, and what a failed compilation
// says.
// ctest: long=6
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "ops/cuda/generate.h"
#include "ops/cuda/jit.h"
#include "ops/cuda/jit_cache.h"
#include "ops/cuda/jit_loaded.h"
#include "ops/cuda/kernels.h"
#include "tests/ops/cuda_bench.h"
#include "tests/ops/kernel_cases.h"
#include "tests/processes.h"

namespace oneflow_like::cuda {
namespace {

using enum DType;

const KernelRegistry& Registry() {
  static const KernelRegistry* const registry = [] {
    auto* all = new KernelRegistry;
    AddReferenceKernels(BuiltinCatalog(), all);
    AddElementwiseKernels(all);
    return all;
  }();
  return *registry;
}

KernelSpec SpecOf(const std::string& op, const Attrs& attrs, Operands* in, Operands* out) {
  KernelSpec spec;
  spec.name = spec.node = op;
  spec.attrs = attrs;
  for (Operand& o : *in) spec.in.push_back(o.Arg());
  for (Operand& o : *out) spec.out.push_back(o.Arg());
  return spec;
}

Status RunReference(const std::string& op, const Attrs& attrs, Operands in, Operand* out, int64_t step) {
  Operands one = {*out};
  KernelSpec spec = SpecOf(op, attrs, &in, &one);
  Status status = Registry().Make(spec, "reference")->Run({spec, spec.in, spec.out, nullptr, step, 0, 1, 77});
  *out = one[0];
  return status;
}

// --- Random chains -------------------------------------------------------------------------------

struct RandomChain {
  std::vector<FusedStep> steps;
  Operands in;  // broadcast or whole
  std::vector<int64_t> outputs;
  Dims global, begin, extent;
  bool rounds = false;  // somewhere to a 16-bit type
};

int64_t Draw(std::mt19937_64* random, int64_t n) {
  return static_cast<int64_t>((*random)() % static_cast<uint64_t>(n));
}

// A piece of up to three axes; operands hold it or repeat along some axes.
void DrawOperands(std::mt19937_64* random, RandomChain* chain) {
  const int64_t widths[] = {1, 3, 8, 24, 33, 64};
  int rank = 1 + static_cast<int>(Draw(random, 3));
  for (int axis = 0; axis < rank; ++axis) {
    int64_t extent = axis == rank - 1 ? widths[Draw(random, 6)] : 1 + Draw(random, 5);
    int64_t before = Draw(random, 3), after = Draw(random, 2);
    chain->global.push_back(before + extent + after);
    chain->begin.push_back(before);
    chain->extent.push_back(extent);
  }
  const DType types[] = {kFloat32, kBFloat16, kFloat16};
  for (int64_t i = 0, n = 1 + Draw(random, 4); i < n; ++i) {
    Dims global = chain->global, begin = chain->begin, extent = chain->extent;
    for (int axis = 0; i > 0 && axis < rank; ++axis) {
      if (Draw(random, 3) == 0) global[axis] = 1, begin[axis] = 0, extent[axis] = 1;
    }
    int skip = i > 0 ? static_cast<int>(Draw(random, rank + 1)) : 0;
    while (skip > 0 && extent[skip - 1] != 1) --skip;
    bool leading = true;
    for (int axis = 0; axis < skip; ++axis) leading = leading && extent[axis] == 1;
    if (leading && skip > 0) {
      global = Dims(global.begin() + skip, global.end());
      begin = Dims(begin.begin() + skip, begin.end());
      extent = Dims(extent.begin() + skip, extent.end());
    }
    chain->in.emplace_back(types[Draw(random, 3)], global, begin, extent);
    chain->in.back().Draw(random, -2, 2, 2);
  }
}

// Steps that do not blow up errors: comparisons only of inputs, whose values are exact.
RandomChain MakeChain(uint64_t seed) {
  std::mt19937_64 random(seed);
  RandomChain chain;
  DrawOperands(&random, &chain);
  int64_t inputs = static_cast<int64_t>(chain.in.size());
  std::vector<int> real, truth;  // values by kind
  for (int i = 0; i < inputs; ++i) real.push_back(i);
  auto any = [&] { return real[static_cast<size_t>(Draw(&random, static_cast<int64_t>(real.size())))]; };
  const char* const unary[] = {"gelu", "tanh", "sigmoid", "relu",     "silu",
                               "erf",  "neg",  "abs",     "gelu_erf", "identity"};
  const char* const binary[] = {"add",     "sub",       "mul",       "maximum",
                                "minimum", "tanh_grad", "gelu_grad", "relu_grad"};
  const char* const compare[] = {"less", "greater_equal", "not_equal"};
  int next = static_cast<int>(inputs);
  for (int64_t j = 0, n = 1 + Draw(&random, 7); j < n; ++j, ++next) {
    FusedStep step;
    bool is_truth = false;
    switch (Draw(&random, truth.empty() ? 7 : 8)) {
      case 0:
      case 1:
        step = {unary[Draw(&random, 10)], {any()}, {}};
        break;
      case 2:
        step = {binary[Draw(&random, 8)], {any(), any()}, {}};
        break;
      case 3:
        step = {"dropout", {any()}, {{"key", 5 + Draw(&random, 9)}, {"p", 0.25}}};
        break;
      case 4:
        step = Draw(&random, 2) ? FusedStep{"scale", {any()}, {{"factor", 0.75}}}
                                : FusedStep{"shift", {any()}, {{"offset", -0.5}}};
        break;
      case 5:
        step = {compare[Draw(&random, 3)],
                {static_cast<int>(Draw(&random, inputs)), static_cast<int>(Draw(&random, inputs))},
                {}};
        is_truth = true;
        break;
      case 6: {
        const char* const to[] = {"f32", "bf16", "f16", "bool"};
        int64_t k = Draw(&random, 4);
        int from = k == 3 ? static_cast<int>(Draw(&random, inputs)) : any();
        step = {"cast", {from}, {{"dtype", std::string(to[k])}}};
        is_truth = k == 3;
        chain.rounds = chain.rounds || k == 1 || k == 2;
        break;
      }
      default:
        step = {"where",
                {truth[static_cast<size_t>(Draw(&random, static_cast<int64_t>(truth.size())))], any(), any()},
                {}};
    }
    chain.steps.push_back(step);
    (is_truth ? truth : real).push_back(next);
  }
  chain.outputs = {next - 1};
  if (Draw(&random, 2))
    chain.outputs.push_back(inputs + Draw(&random, static_cast<int64_t>(chain.steps.size())));
  return chain;
}

// All values of the chain in fp32 (bool where they are), step by step with the reference kernels; casts to
// 16-bit types round.
std::vector<Operand> ValuesOf(const RandomChain& chain, int64_t step_number) {
  std::vector<Operand> values;
  auto whole = [&](DType dtype) { return Operand(dtype, chain.global, chain.begin, chain.extent); };
  for (const Operand& in : chain.in) {
    Operand spread = whole(in.arg.dtype), wide = whole(kFloat32);
    std::vector<int64_t> shape(chain.extent.begin(), chain.extent.end());
    EXPECT_TRUE(RunReference("broadcast_to", {{"shape", shape}}, {in}, &spread, 0).ok());
    EXPECT_TRUE(RunReference("cast", {{"dtype", std::string("f32")}}, {spread}, &wide, 0).ok());
    values.push_back(wide);
  }
  for (const FusedStep& step : chain.steps) {
    Operands in;
    for (int arg : step.args) in.push_back(values[static_cast<size_t>(arg)]);
    DType to = kFloat32;
    if (step.op == "cast") ParseDType(step.attrs.Str("dtype"), &to);
    if (step.op == "less" || step.op == "greater_equal" || step.op == "not_equal") to = kBool;
    Operand out = whole(to);
    EXPECT_TRUE(RunReference(step.op, step.attrs, in, &out, step_number).ok()) << step.op;
    if (to == kBFloat16 || to == kFloat16) {
      Operand wide = whole(kFloat32);
      EXPECT_TRUE(RunReference("cast", {{"dtype", std::string("f32")}}, {out}, &wide, 0).ok());
      out = wide;
    }
    values.push_back(out);
  }
  return values;
}

void CheckChain(uint64_t seed, int64_t shift) {
  RandomChain chain = MakeChain(seed);
  CudaBench bench({.devices = 1});
  std::vector<DType> types;
  for (const Operand& in : chain.in) types.push_back(in.arg.dtype);
  types = FusedTypes(chain.steps, types);
  Operands got;
  for (int64_t output : chain.outputs) {
    got.emplace_back(types[static_cast<size_t>(output)], chain.global, chain.begin, chain.extent);
  }
  Attrs attrs = {{"program", FusedProgram(chain.steps)}, {"outputs", chain.outputs}};
  KernelSpec spec = SpecOf("fused", attrs, &chain.in, &got);
  std::unique_ptr<Kernel> kernel = Registry().Make(spec, "cuda");
  const std::string what = Cat("seed ", seed, ": ", attrs.Str("program"), " on ", chain.extent.str(), ", ",
                               shift, " bytes past an aligned address");
  Status status = bench.Run(dynamic_cast<CudaKernel*>(kernel.get()),
                            {spec, spec.in, spec.out, nullptr, 3, 0, 1, 77}, shift);
  ASSERT_TRUE(status.ok()) << what << ": " << status.message();
  std::vector<Operand> values = ValuesOf(chain, 3);
  for (size_t i = 0; i < got.size(); ++i) {
    Operand& want = values[static_cast<size_t>(chain.outputs[i])];
    // Casts round what may lie a little to one or the other side.
    double tolerance = std::max(chain.rounds ? 1.0 / 32 : 2e-5, Tolerance(got[i].arg.dtype));
    for (int64_t e = 0; e < want.arg.elements(); ++e) {
      ASSERT_LE(std::abs(got[i].At(e) - want.At(e)), tolerance * (1 + std::abs(want.At(e))))
          << what << ", output " << i << ", element " << e;
    }
    EXPECT_EQ(got[i].memory.back(), '\x5a') << what << " wrote past its end";
  }
}

// A chain is a compilation.
TEST(GeneratedChains, RandomOnesAgreeWithTheirSteps) {
  for (uint64_t seed = 1; seed <= 16; ++seed) CheckChain(seed, 0);
}
TEST(LongGeneratedChains, RandomOnesAgreeWithTheirSteps) {
  for (uint64_t seed = 17; seed <= 60; ++seed) CheckChain(seed, 0);
}

TEST(GeneratedChains, AtAddressesThatAreNotAligned) {
  for (uint64_t seed = 61; seed <= 66; ++seed) CheckChain(seed, 4);
}
TEST(LongGeneratedChains, AtAddressesThatAreNotAligned) {
  for (uint64_t seed = 67; seed <= 90; ++seed) CheckChain(seed, 4);
}

// Packs run along the middle axis here, whose draws are not neighbours.
TEST(GeneratedChains, DrawsOfAPieceOneColumnWide) {
  CudaBench bench({.devices = 1});
  std::mt19937_64 random(3);
  Operand x(kFloat32, {4, 16, 3}, {1, 0, 2}, {2, 16, 1}), want = x;
  x.Draw(&random, 1, 2, 2);
  Operands in = {x}, out = {want};
  Attrs attrs = {{"p", 0.5}, {"key", int64_t{11}}};
  KernelSpec spec = SpecOf("dropout", attrs, &in, &out);
  std::unique_ptr<Kernel> kernel = Registry().Make(spec, "cuda");
  ASSERT_TRUE(
      bench.Run(dynamic_cast<CudaKernel*>(kernel.get()), {spec, spec.in, spec.out, nullptr, 3, 0, 1, 77})
          .ok());
  ASSERT_TRUE(RunReference("dropout", attrs, {x}, &want, 3).ok());
  ExpectClose("dropout of one column, seed 3", &out[0], &want);
}

// --- Texts ---------------------------------------------------------------------------------------

TensorArg Arg(DType dtype, const Dims& shape) {
  return {nullptr, dtype, shape, Dims(shape.rank(), 0), shape};
}

KernelSpec FusedSpec(const std::string& program, std::vector<TensorArg> in, std::vector<int64_t> outputs) {
  KernelSpec spec;
  spec.name = "fused";
  spec.node = "layer 3 at gpt.cc:31";
  spec.in = std::move(in);
  std::vector<DType> types;
  for (const TensorArg& arg : spec.in) types.push_back(arg.dtype);
  types = FusedTypes(ParseFused(program, static_cast<int>(types.size())), types);
  for (int64_t output : outputs)
    spec.out.push_back(Arg(types[static_cast<size_t>(output)], spec.in[0].extent));
  spec.attrs = {{"program", program}, {"outputs", std::move(outputs)}};
  return spec;
}

GeneratedChain Generate(const KernelSpec& spec) { return GenerateChain(ChainOf(spec), spec); }

TEST(GeneratedTexts, LayersAndShapesShareOne) {
  auto text = [](const std::string& key, double factor, int64_t rows, DType dtype) {
    return Generate(FusedSpec(Cat("add 0 1;dropout 2 key=", key, " p=0.1;scale 3 factor=", factor),
                              {Arg(dtype, {rows, 64}), Arg(dtype, {64})}, {4}))
        .source;
  };
  std::string one = text("17", 0.5, 32, kBFloat16);
  EXPECT_EQ(one, text("18", 0.5, 32, kBFloat16)) << "another layer's draws";
  EXPECT_EQ(one, text("17", 0.25, 32, kBFloat16)) << "another constant";
  EXPECT_EQ(one, text("17", 0.5, 4096, kBFloat16)) << "other extents";
  EXPECT_NE(one, text("17", 0.5, 32, kFloat32));
}

TEST(GeneratedTexts, StandAlone) {
  GeneratedChain chain =
      Generate(FusedSpec("add 0 1;gelu 2", {Arg(kFloat32, {8, 4}), Arg(kFloat32, {4})}, {3}));
  EXPECT_EQ(chain.source.find("#include"), std::string::npos) << "NVRTC has no headers";
  EXPECT_NE(chain.source.find(chain.function), std::string::npos);
  EXPECT_EQ(chain.function, "ofl_add_gelu");
}

TEST(GeneratedTexts, OnlyOfNarrowResultsUseUnitsOfLowerPrecision) {
  const auto narrow = [](const std::string& program, DType in, std::vector<int64_t> outputs) {
    const std::string text = Generate(FusedSpec(program, {Arg(in, {8, 4})}, std::move(outputs))).source;
    return text.find("#define OFL_NARROW_RESULTS") != std::string::npos;
  };
  EXPECT_TRUE(narrow("silu 0", kBFloat16, {1}));
  EXPECT_TRUE(narrow("silu 0;cast 1 dtype=f16", kFloat32, {2}));
  EXPECT_FALSE(narrow("silu 0", kFloat32, {1}));
  EXPECT_FALSE(narrow("silu 0;cast 1 dtype=f32", kBFloat16, {1, 2})) << "one of the results is of fp32";
}

// --- NVRTC, which needs no device to compile

// The few functions of NVRTC's interface that a compilation takes; its header may be missing where its
// library is not.
class Nvrtc {
 public:
  Nvrtc() {
    for (const char* name : {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"}) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
  }
  bool found() const { return library_ != nullptr; }
  // The log, empty when it compiled.
  std::string Compile(const std::string& source, const std::string& architecture) const {
    void* program = nullptr;
    std::string target = "--gpu-architecture=" + architecture;
    const char* options[] = {target.c_str(), kNvrtcOptions[0], kNvrtcOptions[1]};
    Function<int(void**, const char*, const char*, int, const char**, const char**)>("nvrtcCreateProgram")(
        &program, source.c_str(), "chain.cu", 0, nullptr, nullptr);
    int result = Function<int(void*, int, const char**)>("nvrtcCompileProgram")(program, 3, options);
    size_t size = 0;
    Function<int(void*, size_t*)>("nvrtcGetProgramLogSize")(program, &size);
    std::string log(size, ' ');
    Function<int(void*, char*)>("nvrtcGetProgramLog")(program, log.data());
    Function<int(void**)>("nvrtcDestroyProgram")(&program);
    return result == 0 ? "" : "does not compile: " + log;
  }

 private:
  template <typename Fn>
  Fn* Function(const char* name) const {
    return reinterpret_cast<Fn*>(dlsym(library_, name));
  }
  void* library_ = nullptr;
};

void ExpectToCompileFor(std::initializer_list<std::pair<DType, const char*>> devices) {
  Nvrtc nvrtc;
  if (!nvrtc.found()) GTEST_SKIP() << "no NVRTC here";
  // Every operator that may be a step, in one chain.
  std::string program;
  int value = 3;
  for (const std::string& name : BuiltinCatalog().names()) {
    const std::string& scalar = BuiltinCatalog().Get(name).scalar;
    if (scalar.empty() || scalar.find(' ') != std::string::npos) continue;  // a chain itself
    const bool logical = name.starts_with("logical_");
    std::string step;
    for (const char* args : {" 0", " 0 1", " 0 1 2"}) {
      try {
        Attrs attrs{{"factor", 0.5}, {"offset", 0.5}, {"p", 0.1},     {"key", int64_t{3}},
                    {"bound", 0.5},  {"slope", 0.1},  {"alpha", 0.5}, {"dtype", std::string("bf16")}};
        OpCall call{
            name, name, std::vector<Dims>(std::count(args, args + strlen(args), ' '), Dims{4}), {}, &attrs};
        call.dtypes.assign(call.shapes.size(), kFloat32);
        if (name == "where") call.dtypes[0] = kBool;
        if (logical) call.dtypes.assign(call.shapes.size(), kBool);
        Infer(BuiltinCatalog().Get(name), call);
        step = Cat(name, args, " ", attrs.str());
      } catch (const Error&) {
      }
    }
    ASSERT_NE(step, "") << name;
    if (name == "where") step = Cat("less 0 1;where ", value++, " 1 2");
    if (name == "logical_not") step = Cat("less 0 1;logical_not ", value++);
    if (logical && name != "logical_not") step = Cat("less 0 1;", name, " ", value, " ", value), ++value;
    program += (program.empty() ? "" : ";") + step;
    ++value;
  }
  for (auto [dtype, architecture] : devices) {
    KernelSpec spec = FusedSpec(program, {Arg(dtype, {6, 32}), Arg(dtype, {32}), Arg(dtype, {6, 1})}, {});
    std::vector<int64_t> outputs;
    for (int64_t i = std::max(3, value - 60); i < value; ++i) outputs.push_back(i);  // a launch writes 64
    spec = FusedSpec(program, spec.in, outputs);
    EXPECT_EQ(nvrtc.Compile(Generate(spec).source, architecture), "") << architecture << " " << Name(dtype);
  }
}

TEST(GeneratedTexts, CompileForDevices) {
  ExpectToCompileFor({{kFloat32, "sm_80"}, {kBFloat16, "sm_90"}, {kFloat16, "sm_80"}});
}
TEST(LongGeneratedTexts, CompileForDevices) {
  ExpectToCompileFor({{kFloat32, "sm_90"}, {kBFloat16, "sm_80"}, {kFloat16, "sm_90"}});
}

TEST(GeneratedTexts, TooManyOperandsAreNamed) {
  std::vector<TensorArg> in(65, Arg(kFloat32, {4}));
  std::string program = "add_n";
  for (size_t i = 0; i < in.size(); ++i) program += Cat(" ", i);
  try {
    Generate(FusedSpec(program, in, {65}));
    FAIL() << "65 operands were taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gpt.cc:31"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("65"), std::string::npos) << error.what();
  }
}

// --- Launches ------------------------------------------------------------------------------------

ChainLaunch Plan(const GeneratedChain& chain, KernelSpec spec, uintptr_t address = 4096,
                 int multiprocessors = 132) {
  for (TensorArg& arg : spec.in) arg.data = reinterpret_cast<void*>(address);
  for (TensorArg& arg : spec.out) arg.data = reinterpret_cast<void*>(address);
  ChainLaunch launch;
  PlanLaunch(chain, {spec, spec.in, spec.out}, nullptr, multiprocessors, &launch);
  return launch;
}

TEST(LaunchPlans, PacksWhereEverythingIsAligned) {
  KernelSpec spec = FusedSpec("add 0 1", {Arg(kBFloat16, {100, 7}), Arg(kBFloat16, {100, 7})}, {2});
  GeneratedChain chain = Generate(spec);
  EXPECT_EQ(chain.pack, 8);
  EXPECT_EQ(chain.rank, 1);
  ChainLaunch launch = Plan(chain, spec);
  EXPECT_EQ(launch.packs, 700 / 8);
  EXPECT_EQ(launch.grid.x, 1u);  // 87 packs and 4 elements
  EXPECT_EQ(launch.args.size(), chain.arg_bytes);
  EXPECT_EQ(Plan(chain, spec, 4104).packs, 0) << "8 bytes past an aligned address";
  for (TensorArg* moved : {&spec.in[1], &spec.out[0]}) {
    for (TensorArg* arg : {&spec.in[0], &spec.in[1], &spec.out[0]})
      arg->data = reinterpret_cast<void*>(uintptr_t{arg == moved ? 4104u : 4096u});
    PlanLaunch(chain, {spec, spec.in, spec.out}, nullptr, 132, &launch);
    EXPECT_EQ(launch.packs, 0) << "one operand is 8 bytes past an aligned address";
  }
}

TEST(LaunchPlans, RowsThatBroadcastMustHoldWholePacks) {
  for (int64_t width : {64, 60}) {
    KernelSpec spec = FusedSpec("add 0 1", {Arg(kBFloat16, {100, width}), Arg(kBFloat16, {width})}, {2});
    GeneratedChain chain = Generate(spec);
    EXPECT_EQ(chain.rank, 2);
    EXPECT_EQ(Plan(chain, spec).packs, width == 64 ? 800 : 0);
  }
  // A column repeats along the rows: only the rows must hold whole packs.
  KernelSpec spec = FusedSpec("add 0 1", {Arg(kFloat32, {100, 64}), Arg(kFloat32, {100, 1})}, {2});
  EXPECT_EQ(Plan(Generate(spec), spec).packs, 1600);
}

TEST(LaunchPlans, ManyElementsFillTheDeviceAndNoMore) {
  KernelSpec spec = FusedSpec("gelu 0", {Arg(kFloat32, {int64_t{1} << 30})}, {1});
  EXPECT_EQ(Plan(Generate(spec), spec).grid.x, 132u * 16);
  EXPECT_EQ(Plan(Generate(spec), spec, 4096, 1).grid.x, 16u);
}

TEST(LaunchPlans, LaterActsMayBeSmaller) {
  KernelSpec spec = FusedSpec("add 0 1", {Arg(kFloat32, {8, 64}), Arg(kFloat32, {64})}, {2});
  GeneratedChain chain = Generate(spec);
  for (int64_t rows : {3, 1, 0}) {
    KernelSpec act = spec;
    act.in[0].extent = act.out[0].extent = {rows, 64};
    ChainLaunch launch = Plan(chain, act);
    EXPECT_EQ(launch.packs, rows * 16) << rows;
    EXPECT_EQ(launch.grid.x, rows == 0 ? 0u : 1u) << rows;
  }
}

TEST(LaunchPlans, ActsOfOtherExtentsGiveTheSameText) {
  // One kernel, made for 8 rows, runs acts of 8, 1 and 0.
  CudaBench bench({.devices = 1});
  std::mt19937_64 random(9);
  Operands in = {Operand(kFloat32, {8, 24}), Operand(kFloat32, {24})}, out = {Operand(kFloat32, {8, 24})};
  KernelSpec spec = SpecOf("add", {}, &in, &out);
  std::unique_ptr<Kernel> kernel = Registry().Make(spec, "cuda");
  for (int64_t rows : {8, 1, 0}) {
    in[0] = Operand(kFloat32, {8, 24}, {0, 0}, {rows, 24});
    for (Operand& o : in) o.Draw(&random, -1, 1, 2);
    out[0] = Operand(kFloat32, {8, 24}, {0, 0}, {rows, 24});
    KernelSpec act = SpecOf("add", {}, &in, &out);
    ASSERT_TRUE(bench.Run(dynamic_cast<CudaKernel*>(kernel.get()), {act, act.in, act.out}).ok());
    for (int64_t i = 0; i < rows * 24; ++i) {
      EXPECT_EQ(out[0].At(i), static_cast<float>(in[0].At(i) + in[1].At(i % 24))) << rows << " rows, seed 9";
    }
  }
}

// --- Compiling -----------------------------------------------------------------------------------

TEST(Compiling, SaysWhatTheCompilerSays) {
  auto broken = CompileKernel("this is no program", "ofl_broken", 80);
  EXPECT_FALSE(broken->Wait().ok());
  EXPECT_NE(broken->Wait().message().find("ofl_broken"), std::string::npos) << broken->Wait().message();
  EXPECT_NE(broken->Wait().message().find("error"), std::string::npos) << broken->Wait().message();
}

TEST(Compiling, OnceForEachTextAndArchitecture) {
  const std::string text =
      "extern \"C\" void ofl_one(const void*, unsigned, unsigned, unsigned, unsigned) {}";
  auto first = CompileKernel(text, "ofl_one", 80);
  EXPECT_EQ(first, CompileKernel(text, "ofl_one", 80));
  EXPECT_NE(first, CompileKernel(text, "ofl_one", 90));
  EXPECT_TRUE(first->Wait().ok()) << first->Wait().message();
}

// Its node and line are the stream's to name, once for every kernel.
TEST(Compiling, FailuresNameTheChain) {
  CudaBench bench({.devices = 1});
  const TestFolder empty("cuda_generate_test");  // where nothing is kept of earlier runs
  setenv("OFL_EMULATED_KERNELS", (empty / "").c_str(), 1);
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  Operands in = {Operand(kFloat32, {4})}, out = {Operand(kFloat32, {4})};
  // A chain that no other test has compiled before.
  KernelSpec spec = SpecOf(
      "fused",
      {{"program", std::string("rsqrt 0;rsqrt 1;sign 2;rsqrt 3")}, {"outputs", std::vector<int64_t>{4}}}, &in,
      &out);
  spec.node = "norm at gpt.cc:57";
  std::unique_ptr<Kernel> kernel = Registry().Make(spec, "cuda");
  Status status = bench.Run(dynamic_cast<CudaKernel*>(kernel.get()), {spec, spec.in, spec.out});
  setenv("PATH", path.c_str(), 1);
  unsetenv("OFL_EMULATED_KERNELS");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("could not compile ofl_rsqrt_rsqrt_sign_rsqrt"), std::string::npos)
      << status.message();
  EXPECT_EQ(status.message().find("norm at gpt.cc:57"), std::string::npos) << status.message();
}

// --- The cache on disk ---------------------------------------------------------------------------

class CacheFolder : public testing::Test {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() / "oneflow_like_cache_XXXXXX").string();
    ASSERT_NE(mkdtemp(path_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  std::string path_;
};

TEST_F(CacheFolder, GivesBackWhatWasStored) {
  JitCache cache(path_ + "/made/when/needed");
  EXPECT_FALSE(cache.Load("text").has_value());
  const std::string code("machine\0code\n", 13);
  cache.Store("text", code);
  EXPECT_EQ(cache.Load("text"), code);
  EXPECT_FALSE(cache.Load("text 2").has_value());
  cache.Store("text", "newer");
  EXPECT_EQ(cache.Load("text"), "newer");
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(path_ + "/made/when/needed")) {
    files += file.is_regular_file();
  }
  EXPECT_EQ(files, 1) << "temporary files are left";
}

TEST_F(CacheFolder, IgnoresDamagedFiles) {
  JitCache cache(path_);
  cache.Store("text", "machine code");
  std::string whole;
  {
    std::ifstream file(cache.FileOf("text"), std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(file), {});
  }
  auto write = [&](const std::string& bytes) {
    std::ofstream(cache.FileOf("text"), std::ios::binary) << bytes;
  };
  for (size_t length = 0; length < whole.size(); ++length) {
    write(whole.substr(0, length));
    EXPECT_FALSE(cache.Load("text").has_value()) << "cut to " << length << " bytes";
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write(damaged);
    EXPECT_FALSE(cache.Load("text").has_value()) << "byte " << at << " changed";
  }
  write(whole);
  EXPECT_EQ(cache.Load("text"), "machine code");
}

TEST_F(CacheFolder, DoesWithoutAFolder) {
  std::ofstream(path_ + "/file") << "no folder";
  JitCache under_a_file(path_ + "/file/cache");  // cannot be made, by nobody
  under_a_file.Store("text", "code");
  EXPECT_FALSE(under_a_file.Load("text").has_value());
  JitCache none("");
  none.Store("text", "code");
  EXPECT_FALSE(none.Load("text").has_value());
  if (geteuid() != 0) {  // root writes anywhere
    std::filesystem::permissions(path_,
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    JitCache read_only(path_);
    read_only.Store("text", "code");
    EXPECT_FALSE(read_only.Load("text").has_value());
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
}

}  // namespace
}  // namespace oneflow_like::cuda
