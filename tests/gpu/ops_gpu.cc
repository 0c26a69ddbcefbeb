// The operator oracle on a GPU: every operator, sample, type, varied shape and derived signature, the
// device's kernels against the reference kernels of the host; boxing between the memories of several devices;
// the same bits twice.
#include <gflags/gflags.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "ops/oracle/check.h"
#include "tests/gpu/backend.h"
#include "tests/gpu/device_kernels.h"
#include "tests/ops/kernel_cases.h"
#include "tests/sbp/random_boxing.h"

DEFINE_int32(device, 0, "number of the GPU");
DEFINE_bool(apart, false, "an allocation for each operand, for compute-sanitizer; slow");
DEFINE_bool(quick, false, "the operators' own samples in every type on whole tensors, nothing varied or cut");
DEFINE_int32(pairs, 200,
             "signatures on a mesh of two axes that are tried of each sample; a tenth of its variants");
DEFINE_double(seconds, 0,
              "of all operators under every signature: samples are drawn for about so long; 0: all of them");
DEFINE_uint64(seed, 1, "of these draws");

namespace oneflow_like::gpu {
namespace {

using oracle::CheckOperator;
using oracle::kSeed;
using oracle::Report;
using oracle::Value;

DeviceKernels& Kernels() {
  static auto* kernels = new DeviceKernels(TestedBackend(), FLAGS_device, FLAGS_apart);
  return *kernels;
}

using oracle::ReferenceOf;

oracle::MakeKernel OnDevice() {
  return [](const KernelSpec& spec) { return Kernels().Make(spec); };
}

int64_t& Cases() {
  static int64_t cases = 0;
  return cases;
}
void Count(int64_t cases) {
  Cases() += cases;
  SetFigure(Cat(Cases(), " cases"));
}

std::vector<std::string> OperatorsWithKernels() {
  std::vector<std::string> names;
  for (const std::string& name : BuiltinCatalog().names()) {
    if (!oracle::IsBareView(BuiltinCatalog().Get(name))) names.push_back(name);
  }
  return names;
}

// The samples of an operator, and each with its f32 inputs in the other types it takes.
std::vector<Sample> InEveryType(const OpDef& def) {
  std::vector<Sample> samples;
  for (const Sample& sample : def.samples) {
    samples.push_back(sample);
    const std::vector<DType> types = oracle::InputTypes(sample);
    for (DType dtype : {DType::kInt32, DType::kInt64, DType::kBFloat16, DType::kFloat16}) {
      Sample changed = sample;
      changed.dtypes = types;
      std::replace(changed.dtypes.begin(), changed.dtypes.end(), DType::kFloat32, dtype);
      if (changed.dtypes == types) continue;
      try {
        oracle::InferSample(def, changed);
      } catch (const Error&) {
        continue;  // the operator does not take this type
      }
      samples.push_back(changed);
    }
  }
  return samples;
}

class Operator : public testing::TestWithParam<std::string> {
 protected:
  const OpDef& def() const { return BuiltinCatalog().Get(GetParam()); }
};

TEST_P(Operator, HasAKernelOfItsOwn) { EXPECT_TRUE(Kernels().registry().Has(GetParam(), "cuda")); }

TEST_P(Operator, AgreesInEveryType) {
  Report report;
  for (const Sample& sample : InEveryType(def())) {
    oracle::Trial trial = oracle::MakeTrial(def(), sample, ReferenceOf(def()), false);
    if (!trial.status.ok()) continue;  // of a sample with ids past the end: the cut runs try those, too
    std::vector<Value> first, second;
    for (const Value& v : trial.out) first.emplace_back(v.dtype(), v.shape());
    second = first;
    ++report.cases;
    try {
      for (std::vector<Value>* out : {&first, &second}) {
        Status status = oracle::RunWhole(def(), trial.sample.attrs, trial.in, out, OnDevice());
        if (!status.ok()) Fail(status.message());
      }
    } catch (const Error& error) {
      report.Fail(Cat(trial.text, ": ", error.what()));
      continue;
    }
    for (size_t o = 0; o < first.size(); ++o) {
      const std::string what = Cat(trial.text, ", output ", o);
      oracle::Compare(what, first[o], trial.out[o], false, &report, trial.partial);
      if (std::memcmp(first[o].data(), second[o].data(), first[o].bytes()) != 0) {
        report.Fail(what + " has other bits in a second run");
      }
    }
  }
  EXPECT_GT(report.cases, 0) << "no sample ran";
  EXPECT_EQ(report.failed, 0) << report.str();
  Count(report.cases);
}

TEST_P(Operator, AgreesUnderEverySignature) {
  if (FLAGS_quick) GTEST_SKIP() << "--quick";
  oracle::CheckOptions options = {.most_pairs = FLAGS_pairs,
                                  .pairs_of_variant = std::max(1, FLAGS_pairs / 10)};
  const auto begin = std::chrono::steady_clock::now();
  const double share = FLAGS_seconds / static_cast<double>(OperatorsWithKernels().size());
  if (FLAGS_seconds > 0) {
    options.draws = FLAGS_seed;
    options.enough = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > share;
    };
  }
  Report report = CheckOperator(def(), ReferenceOf(def()), OnDevice(), options);
  EXPECT_EQ(report.failed, 0) << report.str();
  Count(report.cases);
}

INSTANTIATE_TEST_SUITE_P(Catalog, Operator, testing::ValuesIn(OperatorsWithKernels()),
                         [](const auto& info) { return info.param; });

// --- Larger and uneven shapes, pieces that begin inside the whole, chains of elementwise operators: as the
// CPU's kernels

KernelCases& Larger() {
  static auto* cases = new KernelCases({
      [](const std::string& name) { return Kernels().registry().Has(name, "cuda"); },
      OnDevice(),
      [](const std::string&, const std::function<void()>& run) { run(); },
      true,
  });
  return *cases;
}

TEST(Larger, Products) { Larger().Products(); }
TEST(Larger, LaterActsMayBeSmaller) { Larger().LaterActsMayBeSmaller(); }
TEST(Larger, ElementwiseShapes) { Larger().ElementwiseShapes(); }
TEST(Larger, ElementwiseFunctions) { Larger().ElementwiseFunctions(); }
TEST(Larger, ReductionsAndShapes) { Larger().ReductionsAndShapes(); }
TEST(Larger, RowsOperators) { Larger().RowsOperators(); }
TEST(Larger, CrossEntropyIgnoresNegativeTargetsAndCutClasses) {
  Larger().CrossEntropyIgnoresNegativeTargetsAndCutClasses();
}
TEST(Larger, EmbeddingRowsAndColumns) { Larger().EmbeddingRowsAndColumns(); }
TEST(Larger, Within) { Larger().Within(); }
TEST(Larger, Attention) { Larger().Attention(); }
TEST(Larger, UpdatesInPlaceAndApart) { Larger().UpdatesInPlaceAndApart(); }
TEST(Larger, DropoutByGlobalPosition) { Larger().DropoutByGlobalPosition(); }
TEST(Larger, FusedChains) { Larger().FusedChains(); }
TEST(Larger, ManyLiveValues) { Larger().ManyLiveValues(); }

// An index out of range is a failure that names what is wrong, and the stream works on.
TEST(Faults, AnIndexOutOfRangeIsReported) {
  const OpDef& def = BuiltinCatalog().Get("embedding");
  std::vector<Value> in, out;
  in.emplace_back(DType::kFloat32, Dims{5, 8});
  in.emplace_back(DType::kInt32, Dims{3});
  out.emplace_back(DType::kFloat32, Dims{3, 8});
  for (int64_t i = 0; i < 40; ++i) in[0].Set(i, static_cast<double>(i));
  for (int bad : {0, 7}) {
    for (int i = 0; i < 3; ++i) in[1].Set(i, i == 1 && bad ? bad : i);
    Status want = oracle::RunWhole(def, {}, in, &out, ReferenceOf(def));
    Status got = oracle::RunWhole(def, {}, in, &out, OnDevice());
    ASSERT_EQ(want.ok(), bad == 0);
    EXPECT_EQ(got.ok(), want.ok()) << got.message();
    EXPECT_NE(got.message().find(want.message()), std::string::npos)
        << got.message() << " lacks: " << want.message();
    if (bad == 0) {
      EXPECT_EQ(out[0].Get(8), 8);
    }
  }
  Count(2);
}

// --- Kernels that go together in one launch

// The operator on tensors of many sizes, in place where it updates, in memory of the device: each call makes
// the same ones.
class ManyTensors {
 public:
  ManyTensors(const std::string& op, const Attrs& attrs, DType from, DType to) {
    const OpDef& def = BuiltinCatalog().Get(op);
    const bool updates = !def.inplace.empty();
    Random random(17);
    for (int i = 0; i < kCount; ++i) {
      const int64_t sizes[] = {5, 0, 1024, 3, 4097, 1, 768, 70001, 2, 589824, 4096};
      // Large ones are enough twice.
      const Dims shape{Emulated() || FLAGS_quick || i >= 22 ? sizes[i % 7] : sizes[i % 11]};
      auto call = std::make_unique<Call>();
      call->spec.name = op;
      call->spec.attrs = attrs;
      const int inputs = !updates ? 1 : op == "sgd" ? 3 : 4;
      for (int k = 0; k < inputs; ++k)
        call->in.push_back(Put(k == 1 || !updates ? from : to, shape, i, random));
      if (inputs == 4)  // how many updates were made before: the same number for all
        call->in.push_back(calls_.empty() ? Put(DType::kFloat32, Dims{}, 0, random) : calls_[0]->in[4]);
      for (auto [out, in] : def.inplace) call->out.push_back(call->in[in]);
      if (!updates) call->out.push_back(Put(to, op == "cast" ? shape : Dims{}, i, random));
      call->spec.in = call->in;
      call->spec.out = call->out;
      call->kernel = Kernels().registry().Make(call->spec, "cuda");
      calls_.push_back(std::move(call));
    }
  }
  // Three steps, the last of them a replay where the device records.
  Status Run(bool together) {
    auto segment = Kernels().stream()->MakeSegment();
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<KernelRun> runs;
      for (auto& call : calls_)
        runs.push_back(
            {call->kernel.get(), {.spec = call->spec, .in = call->in, .out = call->out, .step = step}});
      Status status;
      if (together) status = Kernels().stream()->RunSegment(segment.get(), runs);
      for (const KernelRun& run : runs)
        if (!together && status.ok()) status = Kernels().stream()->Run(*run.kernel, run.context);
      if (!status.ok()) return status;
    }
    return WaitFor(Kernels().stream());
  }
  std::vector<std::vector<char>> Results() {
    std::vector<std::vector<char>> results;
    for (auto& call : calls_) {
      for (const TensorArg& arg : call->out) {
        results.emplace_back(arg.elements() * SizeOf(arg.dtype));
        if (!results.back().empty())
          Kernels().device()->CopyOut(results.back().data(), arg.data, results.back().size());
      }
    }
    return results;
  }

 private:
  static constexpr int kCount = 150;
  struct Call {
    KernelSpec spec;
    std::vector<TensorArg> in, out;
    std::unique_ptr<Kernel> kernel;
  };

  TensorArg Put(DType dtype, const Dims& shape, int number, Random& random) {
    Value value(dtype, shape);
    for (int64_t i = 0; i < shape.elements(); ++i) value.Set(i, (Draw(random, 2000) + 1) / 2000.0);
    const size_t skip = number % 5 == 4 ? SizeOf(dtype) : 0;  // not aligned
    memory_.push_back(Kernels().device()->Allocate(value.bytes() + skip + 1, "a test"));
    TensorArg arg;
    arg.dtype = dtype;
    arg.global = arg.extent = shape;
    arg.begin = Dims(shape.rank(), 0);
    arg.data = static_cast<char*>(memory_.back()->data()) + skip;
    if (value.bytes() > 0) Kernels().device()->CopyIn(arg.data, value.data(), value.bytes());
    return arg;
  }

  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<std::unique_ptr<Call>> calls_;
};

TEST(Together, HaveTheBitsOfSingleOnes) {
  const Attrs update = {{"lr", 0.01},           {"beta1", 0.9},        {"beta2", 0.95},
                        {"momentum", 0.9},      {"weight_decay", 0.1}, {"schedule", "cosine"},
                        {"warmup", int64_t{2}}, {"total", int64_t{9}}};
  for (DType narrow : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const char* op : {"sgd", "adam", "adamw", "square_sum", "cast"}) {
      const std::string name = op;
      const bool cast = name == "cast";
      Attrs attrs = update;
      if (cast) attrs = {{"dtype", std::string(Name(narrow))}};
      const DType from = cast ? DType::kFloat32 : narrow, to = cast ? narrow : DType::kFloat32;
      ManyTensors each(op, attrs, from, to), together(op, attrs, from, to);
      Status status = each.Run(false);
      ASSERT_TRUE(status.ok()) << op << ": " << status.message();
      status = together.Run(true);
      ASSERT_TRUE(status.ok()) << op << ": " << status.message();
      EXPECT_TRUE(each.Results() == together.Results()) << op << " of " << Name(narrow);
    }
  }
  Count(15);
}

// --- Boxing between the memories of several devices on one GPU: the bits of the host's CombineBox

// Pieces of one side of a boxing, on the devices and on the host.
struct Side {
  std::vector<std::vector<char>> host;
  std::vector<std::unique_ptr<Memory>> device;
  void Add(Device* on, size_t bytes) {
    host.emplace_back(bytes);
    device.push_back(on->Allocate(std::max<size_t>(bytes, 64), "a piece of a test"));
  }
};

void Fill(std::vector<char>* bytes, DType dtype, Random& random) {
  const Dims shape{static_cast<int64_t>(bytes->size() / SizeOf(dtype))};
  Value value(dtype, shape);
  for (int64_t i = 0; i < shape[0]; ++i) value.Set(i, (Draw(random, 2001) - 1000) / 16.0);
  std::memcpy(bytes->data(), value.data(), bytes->size());
}

class BoxingRun {
 public:
  BoxingRun(const BoxingProgram& program, DType dtype, Reduce reduce, const std::vector<Device*>& devices,
            Random& random)
      : program_(program), dtype_(dtype), reduce_(reduce), devices_(devices) {
    const size_t element = SizeOf(dtype);
    for (size_t m = 0; m < program.members.size(); ++m) {
      Device* device = devices[program.members[m]];
      in_.Add(device, program.has_in[m] ? program.in[m].elements() * element : 0);
      out_.Add(device, program.has_out[m] ? program.out[m].elements() * element : 0);
      Fill(&in_.host[m], dtype, random);
      if (!in_.host[m].empty()) device->CopyIn(in_.device[m]->data(), in_.host[m].data(), in_.host[m].size());
    }
  }

  // Empty when all bits agree.
  std::string Run(const std::vector<std::unique_ptr<DeviceStream>>& streams) {
    for (size_t m = 0; m < program_.members.size(); ++m) {
      for (const Region& region : program_.work[m]) {
        std::vector<Piece> from = Pieces(region.sources, true, true), to = Pieces(region.dests, false, true);
        // Without a source nothing comes here: the identity of a sum.
        const Reduce reduce = from.empty() && reduce_ == Reduce::kNone ? Reduce::kSum : reduce_;
        Status status = streams[program_.members[m]]->Combine(dtype_, reduce, region.box, from, to);
        if (!status.ok()) return status.message();
        from = Pieces(region.sources, true, false), to = Pieces(region.dests, false, false);
        if (region.box.empty()) continue;
        if (reduce != Reduce::kNone) {
          CombineBox(dtype_, reduce, region.box, from.data(), static_cast<int>(from.size()), to.data(),
                     static_cast<int>(to.size()));
        } else {
          for (const Piece& piece : to) CopyBox(dtype_, region.box, from.at(0), piece);
        }
      }
    }
    for (const auto& stream : streams) {
      Status status = WaitFor(stream.get());
      if (!status.ok()) return status.message();
    }
    return Difference();
  }

 private:
  std::vector<Piece> Pieces(const std::vector<int>& members, bool in, bool device) {
    std::vector<Piece> pieces;
    Side& side = in ? in_ : out_;
    for (int m : members) {
      void* data = device ? side.device[m]->data() : side.host[m].data();
      pieces.push_back({data, in ? program_.in[m] : program_.out[m]});
    }
    return pieces;
  }
  std::string Difference() {
    for (size_t m = 0; m < program_.members.size(); ++m) {
      std::vector<char> got(out_.host[m].size());
      if (got.empty()) continue;
      devices_[program_.members[m]]->CopyOut(got.data(), out_.device[m]->data(), got.size());
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] != out_.host[m][i]) return Cat("member ", m, " has another byte ", i);
      }
    }
    return "";
  }

  const BoxingProgram& program_;
  DType dtype_;
  Reduce reduce_;
  std::vector<Device*> devices_;
  Side in_, out_;
};

TEST(Boxing, EveryPairOfLayoutsHasTheBitsOfTheHost) {
  constexpr int kWorld = 6;
  std::vector<std::unique_ptr<Device>> owned;
  std::vector<Device*> devices;
  std::vector<std::unique_ptr<DeviceStream>> streams;
  for (int r = 0; r < kWorld; ++r) {
    owned.push_back(TestedBackend()->MakeDevice(r, FLAGS_device));
    devices.push_back(owned.back().get());
    streams.push_back(devices.back()->MakeStream("link"));
    ASSERT_TRUE(devices.back()->Reaches(*devices.front()));
  }
  const int runs = FLAGS_quick || Emulated() ? 60 : 600;
  for (int seed = 1; seed <= runs; ++seed) {
    Random random(static_cast<unsigned>(seed));
    const RandomBoxing boxing = MakeRandomBoxing(random, kWorld);
    const BoxingProgram program = RouteAll(Box::Whole(boxing.shape), boxing.from, boxing.to);
    const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32, DType::kInt64};
    const DType dtype = dtypes[Draw(random, 5)];
    BoxingRun run(program, dtype, program.reduce, devices, random);
    ASSERT_EQ(run.Run(streams), "") << "seed " << seed << ": " << Name(dtype) << " " << boxing.str();
  }
  Count(runs);
}

// --- The vendor's collectives, each rank on a GPU of its own

std::vector<float> Floats(Device* device, Memory* memory, int64_t count) {
  std::vector<float> values(count);
  device->CopyOut(values.data(), memory->data(), count * sizeof(float));
  return values;
}

constexpr int64_t kEach = 1000;

// Devices with a stream each, memory to send from and to receive in. Element i of what rank r sends is
// (r + 1) (i % 97).
struct Ranks {
  explicit Ranks(int ranks) {
    for (int r = 0; r < ranks; ++r) {
      group.ranks.push_back(r);
      members.push_back(r);
      owned.push_back(TestedBackend()->MakeDevice(r, r));
      devices.push_back(owned.back().get());
      streams.push_back(devices[r]->MakeStream("link"));
      from.push_back(devices[r]->Allocate(ranks * kEach * 4, "a piece of a test"));
      to.push_back(devices[r]->Allocate(ranks * kEach * 4, "a piece of a test"));
      std::vector<float> values(ranks * kEach);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((r + 1) * static_cast<int>(i % 97));
      devices[r]->CopyIn(from[r]->data(), values.data(), values.size() * 4);
    }
  }
  GroupSpec group{"all", {}};
  std::vector<int> members;
  std::vector<std::unique_ptr<Device>> owned;
  std::vector<Device*> devices;
  std::vector<std::unique_ptr<DeviceStream>> streams;
  std::vector<std::unique_ptr<Memory>> from, to;
};

void CheckCollectives(int ranks) {
  Ranks all(ranks);
  auto& [group, members, owned, devices, streams, from, to] = all;
  auto ends = TestedBackend()->Connect(TestedBackend()->MakeGroupId(), group, members, devices);
  ASSERT_EQ(static_cast<int>(ends.size()), ranks);
  const float sum = static_cast<float>(ranks * (ranks + 1) / 2);
  auto run = [&](const char* what, auto&& start, int64_t count, auto&& expected) {
    Status launched = TestedBackend()->LaunchTogether([&] {
      Status first;
      for (int r = 0; r < ranks; ++r) {
        Status s = start(r);
        if (first.ok()) first = s;
      }
      return first;
    });
    ASSERT_TRUE(launched.ok()) << what << ": " << launched.message();
    for (int r = 0; r < ranks; ++r) {
      Status s = WaitFor(streams[r].get());
      ASSERT_TRUE(s.ok()) << what << ": " << s.message();
      std::vector<float> got = Floats(devices[r], to[r].get(), count);
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(got[i], expected(r, i)) << what << ", rank " << r << ", element " << i;
    }
  };
  auto value = [](int rank, int64_t i) { return static_cast<float>((rank + 1) * static_cast<int>(i % 97)); };
  run(
      "all_reduce",
      [&](int r) {
        return ends[r]->AllReduce(streams[r].get(), DType::kFloat32, Reduce::kSum, from[r]->data(),
                                  to[r]->data(), ranks * kEach);
      },
      ranks * kEach, [&](int, int64_t i) { return sum * static_cast<float>(i % 97); });
  run(
      "reduce_scatter",
      [&](int r) {
        return ends[r]->ReduceScatter(streams[r].get(), DType::kFloat32, Reduce::kSum, from[r]->data(),
                                      to[r]->data(), kEach);
      },
      kEach, [&](int r, int64_t i) { return sum * static_cast<float>((r * kEach + i) % 97); });
  run(
      "all_gather",
      [&](int r) {
        return ends[r]->AllGather(streams[r].get(), DType::kFloat32, from[r]->data(), to[r]->data(), kEach);
      },
      ranks * kEach, [&](int, int64_t i) { return value(static_cast<int>(i / kEach), i % kEach); });
  run(
      "exchange",
      [&](int r) {
        const int next = (r + 1) % ranks, last = (r + ranks - 1) % ranks;
        return ends[r]->Exchange(streams[r].get(), {{true, next, from[r]->data(), kEach * 4},
                                                    {false, last, to[r]->data(), kEach * 4}});
      },
      kEach, [&](int r, int64_t i) { return value((r + ranks - 1) % ranks, i); });
  for (auto& end : ends) end->BeginLeaving();
  Count(4);
}

// With one rank the exchange is with itself.
TEST(Nccl, OneRank) {
  if (!TestedBackend()->HasGroups()) GTEST_SKIP() << "the backend is built without NCCL";
  CheckCollectives(1);
}

// A collective that waits in its stream, behind products that take some tens of milliseconds, is aborted: the
// stream comes to its end and says why, and the device goes on.
TEST(Nccl, AbortOfAPendingCollective) {
  if (!TestedBackend()->HasGroups()) GTEST_SKIP() << "the backend is built without NCCL";
  const int64_t n = Emulated() ? 16 : 8192;
  auto device = TestedBackend()->MakeDevice(0, FLAGS_device);
  auto stream = device->MakeStream("compute");
  KernelRegistry registry;
  TestedBackend()->AddKernels(&registry);
  KernelSpec spec;
  spec.name = spec.node = "matmul";
  const auto x = device->Allocate(n * n * 4, "a factor"), y = device->Allocate(n * n * 4, "a product");
  TensorArg in{x->data(), DType::kFloat32, {n, n}, {0, 0}, {n, n}}, out = in;
  out.data = y->data();
  spec.in = {in, in};
  spec.out = {out};
  auto kernel = registry.Make(spec, "cuda");
  auto ends = TestedBackend()->Connect(TestedBackend()->MakeGroupId(), {"one", {0}}, {0}, {device.get()});
  for (int i = 0; i < 8; ++i) {
    Status status = stream->Run(*kernel, {spec, spec.in, spec.out, nullptr, 0, 0, 1, 7});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  ASSERT_TRUE(ends[0]->AllReduce(stream.get(), DType::kFloat32, Reduce::kSum, x->data(), y->data(), n).ok());
  ends[0]->Abort();
  EXPECT_NE(WaitFor(stream.get()).message().find("was aborted"), std::string::npos);
  EXPECT_FALSE(ends[0]->AllReduce(stream.get(), DType::kFloat32, Reduce::kSum, x->data(), y->data(), n).ok());
  EXPECT_TRUE(WaitFor(stream.get()).ok()) << "the device does not go on";
}

// A rank whose peer never comes gets an error, in place of waiting for ever.
TEST(Nccl, APeerThatDoesNotComeIsTimedOut) {
  if (!TestedBackend()->HasGroups()) GTEST_SKIP() << "the backend is built without NCCL";
  if (Emulated()) GTEST_SKIP() << "groups of the emulator wait for nobody when they are made";
  auto device = TestedBackend()->MakeDevice(0, FLAGS_device);
  GroupSpec group{"pair", {0, 1}};
  group.connect_seconds = 3;
  std::string message;
  try {
    TestedBackend()->Connect(TestedBackend()->MakeGroupId(), group, {0}, {device.get()});
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("not all of its 2 ranks came within 3 s"), std::string::npos) << message;
  CheckCollectives(1);  // and others can be made
}

TEST(Nccl, EveryCard) {
  const int cards = TestedBackend()->device_count();
  if (!TestedBackend()->HasGroups()) GTEST_SKIP() << "the backend is built without NCCL";
  if (cards < 2) GTEST_SKIP() << "one card";
  CheckCollectives(cards);
}

TEST(Memory, OutOfItSaysWhatWasAskedForAndWhatIsFree) {
  std::string message;
  try {
    Kernels().device()->Allocate(size_t{1} << 46, "the weights of a test");
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("the weights of a test"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(size_t{1} << 46)), std::string::npos) << message;
  EXPECT_NE(message.find("free"), std::string::npos) << message;
  auto after = Kernels().device()->Allocate(1 << 20, "a small block");  // works on
  EXPECT_NE(after->data(), nullptr);
  SetFigure(message);
}

}  // namespace
}  // namespace oneflow_like::gpu
