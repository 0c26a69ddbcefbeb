// Kernels of several nodes done by one launch, on the emulator: updates, sums of squares and casts of many
// tensors, and products that share an operand, have the bits that one after another have, whatever their
// types, sizes and addresses, run, recorded and replayed; what must not go together does not; training is the
// same with it and without, in fewer launches.
// ctest: seconds=15
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "actor/cuda/backend.h"
#include "core/float16.h"
#include "ops/cuda/kernel.h"
#include "ops/cuda/product_choices.h"
#include "ops/op.h"
#include "tests/actor/cuda/device_runs.h"
#include "tests/cuda_emulator/emulator.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kFew = 44, kMost = 380, kMostSums = 80, kMostCasts = 110;  // tensors of one launch;
                                                                         // of up to kFew updates another

float FloatAt(const std::vector<char>& bytes, DType dtype, int64_t i) {
  if (dtype == DType::kBFloat16) return ToFloat(reinterpret_cast<const BFloat16*>(bytes.data())[i]);
  if (dtype == DType::kFloat16) return ToFloat(reinterpret_cast<const Float16*>(bytes.data())[i]);
  return reinterpret_cast<const float*>(bytes.data())[i];
}

std::string Wait(DeviceStream* stream) {
  auto done = std::make_shared<std::promise<Status>>();
  std::future<Status> status = done->get_future();
  stream->NotifyWhenDone([done](Status s) { done->set_value(std::move(s)); });
  return status.get().message();
}

struct Variant {
  std::string op;
  DType weight, state, gradient;
  int told;  // 1: a factor; 2: and that gradients are finite; 3: that they are not
  std::string str() const {
    return Cat(op, " ", Name(weight), " ", Name(state), " ", Name(gradient), " told ", told);
  }
};

int StatesOf(const std::string& op) { return op == "sgd_plain" ? 0 : op == "sgd" ? 1 : 2; }

std::vector<Variant> Variants() {
  using enum DType;
  std::vector<Variant> variants;
  for (const char* op : {"sgd_plain", "sgd", "adam", "adamw"}) {
    for (int told = 0; told < 4; ++told) {
      for (DType gradient : {kFloat32, kBFloat16, kFloat16}) {
        variants.push_back({op, kFloat32, kFloat32, gradient, told});
      }
      variants.push_back({op, kBFloat16, kFloat32, kBFloat16, told});
      variants.push_back({op, kFloat16, kFloat16, kFloat32, told});
    }
  }
  return variants;
}

// An update with its operands in memory of a device.
struct Update {
  KernelSpec spec;
  std::vector<TensorArg> in, out;
  std::unique_ptr<Kernel> kernel;
  KernelRun At(int64_t step, int64_t time = 0) const {
    return {kernel.get(), {.spec = spec, .in = in, .out = out, .step = step, .time = time, .times = 3}};
  }
};

class CudaTogether : public testing::Test {
 protected:
  CudaTogether() {
    cuda_emulator::Reset({.at_once = true});
    backend_ = MakeBackend();
    backend_->AddKernels(&registry_);
    device_ = backend_->MakeDevice(0, 0);
    stream_ = device_->MakeStream("compute");
  }

  // `skip` elements into a block of its own; bits are drawn from `random`, values between low and high.
  TensorArg Put(DType dtype, const Dims& shape, int skip, std::mt19937_64* random, double low, double high) {
    const size_t width = SizeOf(dtype), bytes = shape.elements() * width;
    std::vector<char> values(bytes + 1);
    TensorArg arg;
    arg.dtype = dtype;
    arg.global = arg.begin = arg.extent = shape;
    for (int i = 0; i < shape.rank(); ++i) {  // a piece from inside of the whole
      arg.begin[i] = i + 2;
      arg.global[i] = shape[i] + 5;
    }
    arg.data = values.data();
    for (int64_t i = 0; i < shape.elements(); ++i) {
      const double at = static_cast<double>((*random)() % 65536) / 65536;
      const float value = static_cast<float>(low + at * (high - low));
      if (dtype == DType::kBool) arg.as<bool>()[i] = low > 0;
      if (dtype == DType::kFloat32) arg.as<float>()[i] = value;
      if (dtype == DType::kBFloat16) arg.as<BFloat16>()[i] = ToBFloat16(value);
      if (dtype == DType::kFloat16) arg.as<Float16>()[i] = ToFloat16(value);
    }
    memory_.push_back(device_->Allocate(skip * width + bytes + 1, "a test"));
    arg.data = static_cast<char*>(memory_.back()->data()) + skip * width;
    if (bytes > 0) device_->CopyIn(arg.data, values.data(), bytes);
    return arg;
  }

  std::vector<char> Get(const TensorArg& arg) {
    std::vector<char> values(arg.elements() * SizeOf(arg.dtype));
    if (!values.empty()) device_->CopyOut(values.data(), arg.data, values.size());
    return values;
  }

  static Attrs AttrsOf(const std::string& op) {
    Attrs attrs = {{"lr", 0.02},
                   {"weight_decay", 0.1},
                   {"schedule", "cosine"},
                   {"warmup", int64_t{2}},
                   {"total", int64_t{9}}};
    if (StatesOf(op) < 2) {
      attrs.Set("momentum", 0.9);
    } else {
      attrs.Set("beta1", 0.9);
      attrs.Set("beta2", 0.95);
    }
    return attrs;
  }

  void Finish(Update* update) {
    update->spec.in = update->in;
    update->spec.out = update->out;
    update->kernel = registry_.Make(update->spec, "cuda");
  }

  // The same ones for the same seed: of every size and alignment, a few not in place, with decay or without.
  std::vector<Update> MakeUpdates(const Variant& variant, int count, uint64_t seed) {
    std::mt19937_64 random(seed);
    const int64_t sizes[] = {5, 0, 1024, 3, 4097, 1, 768, 2051, 2, 640, 4096};
    TensorArg made = Put(DType::kFloat32, {}, 0, &random, 3, 9);
    TensorArg factor = Put(DType::kFloat32, {}, 0, &random, 0.3, 0.9);
    TensorArg finite = Put(DType::kBool, {}, 0, &random, variant.told == 2 ? 1 : 0, 1);
    std::vector<Update> updates(count);
    for (int i = 0; i < count; ++i) {
      Update& update = updates[i];
      update.spec.name = variant.op;
      update.spec.node = Cat("update/", variant.op, ".", i);
      update.spec.attrs = AttrsOf(variant.op);
      if (i % 3 == 1) update.spec.attrs.Set("weight_decay", 0.0);
      const int64_t size = sizes[random() % std::size(sizes)];
      const Dims shape = size % 2 == 0 ? Dims{2, size / 2} : Dims{size};
      auto put = [&](DType dtype, double low) {
        update.in.push_back(
            Put(dtype, shape, random() % 3 == 0 ? static_cast<int>(random() % 8) : 0, &random, low, 1));
      };
      put(variant.weight, -1);
      put(variant.gradient, -1);
      for (int state = 0; state < StatesOf(variant.op); ++state) put(variant.state, 0);
      for (size_t operand = 0; operand < update.in.size(); ++operand) {
        if (operand == 1) continue;
        const TensorArg& arg = update.in[operand];
        update.out.push_back(i % 10 == 7 ? Put(arg.dtype, shape, 0, &random, 5, 5) : arg);
      }
      if (StatesOf(variant.op) == 2) update.in.push_back(made);
      if (variant.told > 0) update.in.push_back(factor);
      if (variant.told > 1) update.in.push_back(finite);
      Finish(&update);
    }
    return updates;
  }

  // Launches of updates: all grids that are run, but for the one that tells a new step and the one that asks
  // for faults.
  int64_t LaunchesOf(int64_t step, int64_t time, const std::function<void()>& run) {
    const int64_t before = cuda_emulator::GetCounts().kernels;
    run();
    EXPECT_EQ(Wait(stream_.get()), "");
    const bool fresh = step != step_ || time != time_;
    step_ = step;
    time_ = time;
    return cuda_emulator::GetCounts().kernels - before - fresh - 1;
  }
  int64_t RunEach(const std::vector<Update>& updates, int64_t step, int64_t time = 0) {
    return LaunchesOf(step, time, [&] {
      for (const Update& update : updates) {
        const KernelRun run = update.At(step, time);
        ASSERT_TRUE(stream_->Run(*run.kernel, run.context).ok());
      }
    });
  }
  int64_t RunTogether(const std::vector<Update>& updates, DeviceSegment* segment, int64_t step,
                      int64_t time = 0) {
    return LaunchesOf(step, time, [&] {
      std::vector<KernelRun> runs;
      for (const Update& update : updates) runs.push_back(update.At(step, time));
      ASSERT_TRUE(stream_->RunSegment(segment, runs).ok());
    });
  }
  void ExpectSame(const std::vector<Update>& a, const std::vector<Update>& b, const std::string& what) {
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t o = 0; o < a[i].out.size(); ++o) {
        ASSERT_TRUE(Get(a[i].out[o]) == Get(b[i].out[o]))
            << what << ", update " << i << " of " << a[i].in[0].extent.str() << ", output " << o;
      }
    }
  }

  std::unique_ptr<Backend> backend_;
  KernelRegistry registry_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  std::vector<std::unique_ptr<Memory>> memory_;
  int64_t step_ = -1, time_ = -1;  // last told
};

TEST_F(CudaTogether, ManyUpdatesHaveTheBitsOfSingleOnes) {
  uint64_t seed = 100;
  for (const Variant& variant : Variants()) {
    const int count = seed % 2 == 0 ? kFew + 9 : kFew - 9;
    const std::string what = Cat(variant.str(), ", seed ", ++seed);
    std::vector<Update> each = MakeUpdates(variant, count, seed),
                        together = MakeUpdates(variant, count, seed);
    int64_t filled = 0;
    TensorArg weight;  // of the last in place
    for (const Update& update : each) {
      if (update.in[0].elements() == 0) continue;
      ++filled;
      if (update.in[0].data == update.out[0].data) weight = update.out[0];
    }
    const std::vector<char> before = Get(weight);
    auto segment = stream_->MakeSegment();
    for (int64_t step = 0; step < 4; ++step) {  // run, recorded, replayed
      EXPECT_EQ(RunEach(each, step, step % 3), filled) << what;
      EXPECT_EQ(RunTogether(together, segment.get(), step, step % 3), 1) << what;
      ExpectSame(each, together, Cat(what, ", step ", step));
    }
    EXPECT_EQ(Get(weight) == before, variant.told == 3) << what;
    memory_.clear();
  }
  EXPECT_EQ(cuda_emulator::GetCounts().graphs_instantiated, static_cast<int64_t>(Variants().size()));
}

TEST_F(CudaTogether, AsManyAsOneLaunchHolds) {
  const Variant variant = {"adamw", DType::kFloat32, DType::kFloat32, DType::kFloat32, 1};
  for (int count : {1, 2, kFew, kFew + 1, kMost, kMost + 5}) {
    std::vector<Update> each = MakeUpdates(variant, count, 7), together = MakeUpdates(variant, count, 7);
    auto segment = stream_->MakeSegment();
    RunEach(each, 0);
    EXPECT_EQ(RunTogether(together, segment.get(), 0), count > kMost ? 2 : 1);
    ExpectSame(each, together, Cat(count, " updates"));
    memory_.clear();
  }
}

// More elements than a block for each 1024 of them: longer stretches, of several tensors at once.
TEST_F(CudaTogether, LargeTensorsBesideSmallOnes) {
  std::vector<Update> sets[2];
  for (auto& set : sets) {
    std::mt19937_64 random(11);
    for (int64_t size : {3, 700001, 12, 262144, 1}) {
      Update update;
      update.spec.name = "adam";
      update.spec.attrs = AttrsOf("adam");
      for (int i = 0; i < 4; ++i) update.in.push_back(Put(DType::kFloat32, {size}, 0, &random, 0.1, 1));
      update.out = {update.in[0], update.in[2], update.in[3]};
      update.in.push_back(set.empty() ? Put(DType::kFloat32, {}, 0, &random, 3, 9) : set[0].in[4]);
      Finish(&update);
      set.push_back(std::move(update));
    }
  }
  auto segment = stream_->MakeSegment();
  EXPECT_EQ(RunEach(sets[0], 5), 5);
  EXPECT_EQ(RunTogether(sets[1], segment.get(), 5), 1);
  ExpectSame(sets[0], sets[1], "large and small");
}

TEST_F(CudaTogether, NothingGoesTogetherThatMustNot) {
  const Variant variant = {"adamw", DType::kFloat32, DType::kFloat32, DType::kBFloat16, 1};
  auto asked = [&](const std::function<void(Update*)>& change) {
    std::vector<Update> updates = MakeUpdates(variant, 3, 5);
    change(&updates[2]);
    Finish(&updates[2]);
    std::vector<KernelRun> runs;
    for (const Update& update : updates) runs.push_back(update.At(0));
    const size_t count = static_cast<CudaKernel*>(runs[0].kernel)->Together(runs);
    updates.clear();
    memory_.clear();
    return count;
  };
  std::mt19937_64 random(1);
  EXPECT_EQ(asked([](Update*) {}), 3u);
  EXPECT_EQ(asked([](Update* u) { u->spec.attrs.Set("weight_decay", 0.7); }), 3u);
  for (const char* name : {"lr", "beta1", "beta2", "eps", "final"}) {
    EXPECT_EQ(asked([&](Update* u) { u->spec.attrs.Set(name, 0.7); }), 2u) << name;
  }
  for (const char* name : {"warmup", "total"}) {
    EXPECT_EQ(asked([&](Update* u) { u->spec.attrs.Set(name, int64_t{77}); }), 2u) << name;
  }
  EXPECT_EQ(asked([](Update* u) { u->spec.name = "adam"; }), 2u);
  EXPECT_EQ(asked([](Update* u) { u->in.pop_back(); }), 2u) << "without a factor";
  EXPECT_EQ(asked([&](Update* u) { u->in.back() = Put(DType::kFloat32, {}, 0, &random, 1, 1); }), 2u);
  EXPECT_EQ(asked([&](Update* u) { u->in[4] = Put(DType::kFloat32, {}, 0, &random, 3, 3); }), 2u)
      << "another number of updates";
  EXPECT_EQ(asked([](Update* u) { u->in[1].dtype = DType::kFloat16; }), 2u) << "other gradients";
  EXPECT_EQ(asked([](Update* u) { u->in[2].dtype = u->out[1].dtype = DType::kBFloat16; }), 2u) << "a state";
}

// The last one reads what the first writes: half of them go together.
TEST_F(CudaTogether, AReaderPartsThem) {
  std::vector<Update> updates =
      MakeUpdates({"adamw", DType::kFloat32, DType::kFloat32, DType::kFloat32, 1}, 8, 21);
  TensorArg& gradient = updates[7].in[1];
  const TensorArg& weight = updates[0].out[0];
  ASSERT_GT(std::min(weight.elements(), gradient.elements()), 0);
  gradient.data = weight.data;
  std::vector<KernelRun> runs;
  for (const Update& update : updates) runs.push_back(update.At(0));
  EXPECT_EQ(static_cast<CudaKernel*>(runs[0].kernel)->Together(runs), 4u);
  EXPECT_EQ(static_cast<CudaKernel*>(runs[0].kernel)->Together(std::span(runs).first(7)), 7u);
}

TEST_F(CudaTogether, ManySquareSumsHaveTheBitsOfSingleOnes) {
  uint64_t seed = 300;
  const int64_t sizes[] = {1, 0, 64, 8192, 8193, 31, 70001, 4095};
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    std::mt19937_64 random(++seed);
    std::vector<Update> each, together;
    int64_t several = 0;  // tensors summed in parts, which takes two launches
    for (int i = 0; i < kMostSums + 7; ++i) {
      const int64_t size = sizes[i % std::size(sizes)];
      several += size > 8192;
      Update sum;
      sum.spec.name = "square_sum";
      sum.in = {Put(dtype, {size}, i % 3 == 0 ? i % 7 : 0, &random, -1, 1)};
      for (auto* sums : {&each, &together}) {
        Update to;
        to.spec = sum.spec;
        to.in = sum.in;
        to.out = {Put(DType::kFloat32, {}, 0, &random, 5, 5)};
        Finish(&to);
        sums->push_back(std::move(to));
      }
    }
    auto segment = stream_->MakeSegment();
    for (int64_t step = 0; step < 3; ++step) {
      EXPECT_EQ(RunEach(each, step), static_cast<int64_t>(each.size()) + several);
      EXPECT_EQ(RunTogether(together, segment.get(), step), 4);
      ExpectSame(each, together, Cat(Name(dtype), ", seed ", seed));
    }
    for (const Update& sum : together) {
      double want = 0;
      const std::vector<char> x = Get(sum.in[0]), y = Get(sum.out[0]);
      for (int64_t i = 0; i < sum.in[0].elements(); ++i) want += std::pow(FloatAt(x, dtype, i), 2);
      EXPECT_NEAR(FloatAt(y, DType::kFloat32, 0), want, 1e-5 * want) << sum.in[0].extent.str();
    }
    memory_.clear();
  }
}

TEST_F(CudaTogether, ManyCastsHaveTheBitsOfSingleOnes) {
  using enum DType;
  uint64_t seed = 400;
  const int64_t sizes[] = {1, 0, 8, 2048, 2049, 31, 70001, 16};
  for (auto [from, to] : {std::pair{kFloat32, kBFloat16}, std::pair{kFloat32, kFloat16},
                          std::pair{kBFloat16, kFloat32}, std::pair{kFloat16, kFloat32}}) {
    std::mt19937_64 random(++seed);
    std::vector<Update> each, together;
    int64_t filled = 0;
    for (int i = 0; i < kMostCasts + 7; ++i) {
      const Dims shape = {sizes[i % std::size(sizes)]};
      filled += shape.elements() > 0;
      TensorArg x = Put(from, shape, i % 3 == 0 ? i % 7 : 0, &random, -1, 1);
      for (auto* casts : {&each, &together}) {
        Update cast;
        cast.spec.name = "cast";
        cast.spec.attrs.Set("dtype", std::string(Name(to)));
        cast.in = {x};
        cast.out = {Put(to, shape, i % 5 == 0 ? i % 9 : 0, &random, 5, 5)};
        Finish(&cast);
        casts->push_back(std::move(cast));
      }
    }
    auto segment = stream_->MakeSegment();
    for (int64_t step = 0; step < 3; ++step) {
      EXPECT_EQ(RunEach(each, step), filled);
      EXPECT_EQ(RunTogether(together, segment.get(), step), 2);
      ExpectSame(each, together, Cat(Name(from), " to ", Name(to), ", seed ", seed));
    }
    for (const Update& cast : together) {
      const std::vector<char> x = Get(cast.in[0]), y = Get(cast.out[0]);
      for (int64_t i = 0; i < cast.in[0].elements(); ++i) {
        float want = FloatAt(x, from, i);
        if (to == kBFloat16) want = ToFloat(ToBFloat16(want));
        if (to == kFloat16) want = ToFloat(ToFloat16(want));
        ASSERT_EQ(FloatAt(y, to, i), want) << cast.in[0].extent.str() << ", element " << i;
      }
    }
    memory_.clear();
  }
}

// One update's gradient is the weight that the one before it writes; a third writes that weight again.
TEST_F(CudaTogether, WhatOneWritesAnotherReadsLater) {
  std::vector<Update> sets[2];
  for (auto& set : sets) {
    std::mt19937_64 random(3);
    TensorArg operand[5];
    for (TensorArg& arg : operand) arg = Put(DType::kFloat32, {300}, 0, &random, 0.1, 1);
    auto add = [&](int weight, int gradient, int state) {
      Update update;
      update.spec.name = "sgd";
      update.spec.attrs = AttrsOf("sgd");
      update.in = {operand[weight], operand[gradient], operand[state]};
      update.out = {operand[weight], operand[state]};
      Finish(&update);
      set.push_back(std::move(update));
    };
    add(0, 4, 1);
    add(2, 0, 3);
    add(0, 4, 1);
  }
  auto segment = stream_->MakeSegment();
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(RunEach(sets[0], step), 3);
    EXPECT_EQ(RunTogether(sets[1], segment.get(), step), 3);
    ExpectSame(sets[0], sets[1], Cat("step ", step));
  }
}

// --- Products that share an operand

struct ProductCase {
  std::string op, equation;
  Dims shared, other, result;
  Attrs attrs;
  int vector = 0;      // -1: read by each, 1: written by each, of the result's last axis
  int64_t shares = 0;  // the operand
};

std::vector<ProductCase> ProductCases() {
  const Attrs adds = {{"accumulates", 1}, {"dtype", "f32"}}, wide = {{"dtype", "f32"}};
  const Dims x = {3, 5, 24}, dy = {3, 5, 16}, w = {24, 16};
  std::vector<ProductCase> cases = {{"einsum", "amk,kn->amn", x, w, dy, {}},
                                    {"einsum", "amk,nk->amn", x, {16, 24}, dy, {}},
                                    {"einsum", "amk,amn->kn", x, dy, w, wide},
                                    {"einsum", "amk,amn->kn", x, dy, w, adds},
                                    {"einsum", "amn,amk->kn", x, dy, w, adds, 0, 1},
                                    {"einsum", "amk,kn->amn", w, x, dy, {}, 0, 1},
                                    {"linear", "amk,kn->amn", x, w, dy, {{"bias", 1}}, -1},
                                    {"linear_grad_weight", "amk,amn->kn", x, dy, w, wide, 1},
                                    {"linear_grad_weight", "amk,amn->kn", x, dy, w, adds, 1}};
  for (ProductCase& c : cases) {
    c.attrs.Set("equation", c.equation);
    if (c.vector > 0) c.attrs.Set("bias_rank", int64_t{1});
  }
  return cases;
}

class ProductsTogether : public CudaTogether {
 protected:
  static constexpr int kCount = 3;
  ProductsTogether() {
    cuda_emulator::SetProposalTimes({1, 1});
    Choices().Forget();
  }
  ~ProductsTogether() override { Choices().Forget(); }

  // Where product i has its operands, counted in the room of one: 0, 1, 2 are in a row.
  struct Places {
    std::vector<int> other = {0, 1, 2}, result = {0, 1, 2}, vector = {0, 1, 2};
    int room = 4;
  };

  // The same ones for the same seed.
  std::vector<Update> MakeProducts(const ProductCase& c, DType dtype, const Places& places, uint64_t seed,
                                   int64_t together = kCount) {
    std::mt19937_64 random(seed);
    const bool wide = c.attrs.Has("dtype");
    const auto row = [&](DType type, const Dims& shape, int count, const std::vector<int>& at) {
      const int room = static_cast<int>((shape.elements() + 63) / 32 * 32);
      TensorArg block = Put(type, {places.room * room}, 0, &random, -1, 1);
      std::vector<TensorArg> args(count, block);
      for (int i = 0; i < count; ++i) {
        args[i].data = static_cast<char*>(block.data) + at[i] * room * SizeOf(type);
        args[i].global = args[i].extent = shape;
        args[i].begin = Dims(shape.rank(), 0);
      }
      return args;
    };
    const DType out = wide ? DType::kFloat32 : dtype;
    const Dims vector = {c.result[c.result.rank() - 1]};
    const TensorArg shared = row(dtype, c.shared, 1, {0})[0];
    const std::vector<TensorArg> other = row(dtype, c.other, kCount, places.other),
                                 result = row(out, c.result, kCount, places.result),
                                 vectors = row(out, vector, kCount, places.vector);
    std::vector<Update> products(kCount);
    for (int i = 0; i < kCount; ++i) {
      products[i].spec.name = c.op;
      products[i].spec.attrs = c.attrs;
      if (together > 1) products[i].spec.attrs.Set("together", std::vector<int64_t>{together, c.shares});
      products[i].in = {shared, other[i]};
      if (c.shares == 1) std::swap(products[i].in[0], products[i].in[1]);
      products[i].out = {result[i]};
      if (c.vector < 0) products[i].in.push_back(vectors[i]);
      if (c.vector > 0) products[i].out.push_back(vectors[i]);
      Finish(&products[i]);
    }
    return products;
  }

  // What is noted as open is decided: to be done together by this number, where it is for that.
  static int Decide(int64_t number) {
    std::vector<LibraryChoice> choices = Choices().Open(0);
    int together = 0;
    for (LibraryChoice& choice : choices) {
      const bool several = choice.work.starts_with("together ");
      choice.proposal = several ? number : 0;
      together += several;
    }
    Choices().Decide(choices, false);
    return together;
  }
  static size_t Asked(const std::vector<Update>& products) {
    std::vector<KernelRun> runs;
    for (const Update& product : products) runs.push_back(product.At(0));
    return static_cast<CudaKernel*>(runs[0].kernel)->Together(runs);
  }
  // Operations that a run of the segment enqueues or records.
  int64_t OperationsOf(const std::vector<Update>& products, DeviceSegment* segment, int64_t step,
                       int64_t time) {
    std::vector<KernelRun> runs;
    for (const Update& product : products) runs.push_back(product.At(step, time));
    const int64_t before = cuda_emulator::GetCounts().operations;
    EXPECT_TRUE(stream_->RunSegment(segment, runs).ok());
    const int64_t operations = cuda_emulator::GetCounts().operations - before;
    EXPECT_EQ(Wait(stream_.get()), "");
    return operations;
  }
};

TEST_F(ProductsTogether, HaveTheBitsOfSingleOnes) {
  uint64_t seed = 40;
  for (const ProductCase& c : ProductCases())
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32})
      for (const bool backwards : {false, true})
        for (const int64_t number : {int64_t{1}, int64_t{3}, 1 + kSumsApart}) {
          if (number > kSumsApart && c.vector <= 0) continue;
          SCOPED_TRACE(Cat(c.op, " ", c.attrs.str(), " ", Name(dtype), backwards ? " backwards" : "",
                           " number ", number, ", seed ", ++seed));
          Choices().Forget();
          Places places;
          if (backwards) places.other = places.result = places.vector = {3, 2, 1};
          std::vector<Update> together = MakeProducts(c, dtype, places, seed),
                              alone = MakeProducts(c, dtype, places, seed, 1);
          ASSERT_EQ(Decide(number), 1);
          ASSERT_EQ(Asked(together), 3u);
          ASSERT_EQ(Asked(alone), 1u);
          std::unique_ptr<DeviceSegment> segments[] = {stream_->MakeSegment(), stream_->MakeSegment()};
          const int64_t recordings = cuda_emulator::GetCounts().graphs_instantiated;
          for (int act = 0; act < 6; ++act) {  // run, recorded, replayed
            // One tells the step, for both.
            const int64_t step = act / 3, of_alone = OperationsOf(alone, segments[0].get(), step, act % 3),
                          of_together = OperationsOf(together, segments[1].get(), step, act % 3);
            // Sums apart are launches of their own in both, but here only of the one in one call.
            const int64_t sums = number > kSumsApart ? kCount : 0;
            if (act < 2) {
              EXPECT_EQ(of_alone - 1 - of_together, kCount - 1 - sums) << "act " << act;
            }
            ExpectSame(alone, together, Cat("act ", act));
            if (HasFatalFailure()) return;
            for (std::vector<Update>* products : {&alone, &together}) {  // replays see other numbers
              const TensorArg& x = products->front().in[c.shares];
              std::vector<char> values = Get(x);
              std::rotate(values.begin(), values.begin() + 4 * (act + 1), values.end());
              device_->CopyIn(x.data, values.data(), values.size());
            }
          }
          EXPECT_EQ(cuda_emulator::GetCounts().graphs_instantiated - recordings, 2);
          memory_.clear();
        }
}

TEST_F(ProductsTogether, AreOneAfterAnotherWhereTheyDoNotFit) {
  const ProductCase c = ProductCases().back();
  const auto asked = [&](const Places& places, const std::function<void(std::vector<Update>*)>& change,
                         int64_t number = 1) {
    Choices().Forget();
    std::vector<Update> products = MakeProducts(c, DType::kBFloat16, places, 7);
    if (change) change(&products);
    Decide(number);
    std::vector<Update> alone = MakeProducts(c, DType::kBFloat16, places, 7, 1);
    if (change) change(&alone);
    const size_t count = Asked(products);
    std::unique_ptr<DeviceSegment> segments[] = {stream_->MakeSegment(), stream_->MakeSegment()};
    for (int act = 0; act < 3; ++act) {
      OperationsOf(alone, segments[0].get(), 0, act);
      OperationsOf(products, segments[1].get(), 0, act);
      ExpectSame(alone, products, Cat("act ", act));
    }
    memory_.clear();
    return count;
  };
  EXPECT_EQ(asked({}, nullptr), 3u);
  EXPECT_EQ(asked({.other = {0, 2, 4}, .result = {1, 2, 3}, .room = 6}, nullptr), 3u) << "apart, evenly";
  EXPECT_EQ(asked({}, nullptr, 0), 1u) << "where timing has told so";
  EXPECT_EQ(asked({.other = {0, 1, 3}}, nullptr), 1u);
  EXPECT_EQ(asked({.result = {0, 2, 3}}, nullptr), 1u);
  EXPECT_EQ(asked({.vector = {0, 1, 3}}, nullptr), 1u);
  EXPECT_EQ(asked({.other = {2, 1, 0}}, nullptr), 1u) << "the library counts upwards in all operands";
  EXPECT_EQ(asked({.result = {2, 1, 0}}, nullptr), 1u);
  EXPECT_EQ(asked({.vector = {2, 1, 0}}, nullptr), 1u);
  EXPECT_EQ(asked({.other = {0, 0, 0}}, nullptr), 1u);
  EXPECT_EQ(asked({}, [](auto* p) { p->at(2).in[0].data = p->at(1).in[1].data; }), 1u) << "another x";
  const auto shift = [](auto* p) {
    for (int i = 0; i < kCount; ++i) p->at(i).in[0].data = static_cast<char*>(p->at(i).in[0].data) + 64 * i;
  };
  EXPECT_EQ(asked({}, shift), 1u) << "each another x";
  EXPECT_EQ(asked({}, [](auto* p) { p->pop_back(); }), 1u) << "one is in another segment";
  for (const auto& [attr, value] : {std::pair("accumulates", 0), std::pair("gemm_choice", 1)}) {
    const auto set = [&](auto* p) {
      p->at(2).spec.attrs.Set(attr, int64_t{value});
      Finish(&p->at(2));
    };
    EXPECT_EQ(asked({}, set), 1u) << "the last has another " << attr;
  }
}

TEST_F(ProductsTogether, AreOneAfterAnotherWhereTheLibraryRefuses) {
  for (const ProductCase& c : ProductCases()) {
    Choices().Forget();
    std::vector<Update> together = MakeProducts(c, DType::kBFloat16, {}, 9),
                        alone = MakeProducts(c, DType::kBFloat16, {}, 9, 1);
    ASSERT_EQ(Decide(1 + 7), 1) << "a proposal of a library that knew more";
    ASSERT_EQ(Asked(together), 3u);
    std::unique_ptr<DeviceSegment> segments[] = {stream_->MakeSegment(), stream_->MakeSegment()};
    for (int act = 0; act < 4; ++act) {
      OperationsOf(alone, segments[0].get(), 0, 0);
      OperationsOf(together, segments[1].get(), 0, 0);
      ExpectSame(alone, together, Cat(c.op, " act ", act));
    }
    EXPECT_EQ(Asked(together), 1u) << "it is not asked again";
    memory_.clear();
  }
}

TEST(Independent, SeesWhatIsWrittenTwiceOrReadElsewhere) {
  char bytes[64];
  KernelSpec spec;
  auto arg = [&](int begin, int end) {
    TensorArg a;
    a.dtype = DType::kUInt8;
    a.extent = a.global = {end - begin};
    a.begin = {0};
    a.data = bytes + begin;
    return a;
  };
  auto ask = [&](std::vector<std::vector<TensorArg>> operands) {  // in, out, in, out ...
    std::vector<KernelRun> runs;
    for (size_t i = 0; i < operands.size(); i += 2) {
      runs.push_back({nullptr, {.spec = spec, .in = operands[i], .out = operands[i + 1]}});
    }
    return Independent(runs);
  };
  EXPECT_TRUE(ask({{arg(0, 8)}, {arg(0, 8)}, {arg(8, 16)}, {arg(8, 16)}}));      // each in place
  EXPECT_TRUE(ask({{arg(0, 8)}, {arg(8, 16)}, {arg(0, 8)}, {arg(16, 24)}}));     // both read the same
  EXPECT_FALSE(ask({{arg(0, 8)}, {arg(8, 16)}, {arg(32, 40)}, {arg(12, 20)}}));  // written twice
  EXPECT_FALSE(ask({{arg(0, 8)}, {arg(8, 16)}, {arg(15, 20)}, {arg(24, 32)}}));  // written, then read
  EXPECT_FALSE(ask({{arg(0, 8)}, {arg(24, 32)}, {arg(40, 48)}, {arg(4, 6)}}));   // read, then written
  EXPECT_FALSE(ask(
      {{arg(0, 40)}, {arg(50, 51)}, {arg(2, 4)}, {arg(52, 53)}, {}, {arg(30, 31)}}));  // behind a short one
  EXPECT_TRUE(ask({{arg(0, 8)}, {arg(8, 16)}, {arg(9, 9)}, {arg(24, 32)}}));           // nothing is read
}

// --- Any kernel

class Pair : public CudaKernel {
 public:
  Status Launch(const KernelContext&, const LaunchContext&) override {
    ++single;
    return Status();
  }
  size_t Together(std::span<const KernelRun> runs) const override { return runs.size() < 2 ? 1 : 2; }
  Status LaunchTogether(std::span<const KernelRun> runs, const LaunchContext& launch) override {
    if (runs.size() == 1) return Launch(runs[0].context, launch);
    ++pairs;
    return refusal.empty() ? Status() : Status(refusal);
  }
  int single = 0, pairs = 0;
  std::string refusal;
};

TEST_F(CudaTogether, AFailureNamesTheFirstAndTheLast) {
  Pair kernels[5];
  KernelSpec specs[5];
  std::vector<KernelRun> runs;
  for (int i = 0; i < 5; ++i) {
    specs[i].node = Cat("w", i);
    specs[i].line = SourceLine("model.cc", 10 + i);
    runs.push_back({&kernels[i], {.spec = specs[i], .in = {}, .out = {}}});
  }
  auto segment = stream_->MakeSegment();
  EXPECT_TRUE(stream_->RunSegment(segment.get(), runs).ok());
  EXPECT_EQ(kernels[0].pairs, 1);
  EXPECT_EQ(kernels[1].pairs + kernels[1].single, 0);
  EXPECT_EQ(kernels[2].pairs, 1);
  EXPECT_EQ(kernels[4].single, 1);
  kernels[2].refusal = "too many operands";
  auto again = stream_->MakeSegment();
  EXPECT_EQ(stream_->RunSegment(again.get(), runs).message(),
            "w2 at model.cc:12 .. w3 at model.cc:13 (2 kernels): too many operands");
  EXPECT_EQ(Wait(stream_.get()), "");
}

// --- Training

// A kernel that goes with no other.
class Alone : public CudaKernel {
 public:
  explicit Alone(std::unique_ptr<Kernel> kernel) : kernel_(std::move(kernel)) {}
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    return kernel().Launch(context, launch);
  }
  bool Recordable() const override { return kernel().Recordable(); }
  std::string Explain(const Fault& fault) const override { return kernel().Explain(fault); }

 private:
  CudaKernel& kernel() const { return static_cast<CudaKernel&>(*kernel_); }
  std::unique_ptr<Kernel> kernel_;
};

// The backend with every kernel alone.
class AloneBackend : public Backend {
 public:
  AloneBackend() : backend_(MakeBackend()) { backend_->AddKernels(&registry_); }
  const std::string& kind() const override { return backend_->kind(); }
  int device_count() const override { return backend_->device_count(); }
  std::string Describe(int device) const override { return backend_->Describe(device); }
  std::unique_ptr<Device> MakeDevice(int rank, int device, MemorySource* host_memory) override {
    return backend_->MakeDevice(rank, device, host_memory);
  }
  void AddKernels(KernelRegistry* registry) const override {
    std::vector<std::string> names = BuiltinCatalog().names();
    for (const char* name : {"fused", "accumulate", "local_slice", "time_slice", "time_gather", "keep",
                             "full", "uniform", "normal", "truncated_normal"}) {
      names.push_back(name);
    }
    for (const std::string& name : names) {
      if (!registry_.Has(name, "cuda") || registry->Has(name, "cuda")) continue;
      registry->Add(name, "cuda", [this, name](const KernelSpec& spec) {
        kernels += name == "adamw" || name == "square_sum" || name == "cast";
        updates += name == "adamw";
        return std::make_unique<Alone>(registry_.Make(spec, "cuda"));
      });
    }
  }
  bool HasGroups() const override { return backend_->HasGroups(); }
  std::string MakeGroupId() override { return backend_->MakeGroupId(); }
  std::vector<std::unique_ptr<GroupMember>> Connect(const std::string& id, const GroupSpec& group,
                                                    const std::vector<int>& members,
                                                    const std::vector<Device*>& devices) override {
    return backend_->Connect(id, group, members, devices);
  }

  mutable int kernels = 0, updates = 0;  // of all ranks, that go together where they can

 private:
  std::unique_ptr<Backend> backend_;
  KernelRegistry registry_;
};

struct Trained {
  std::vector<float> losses;
  int64_t kernels = 0;
};

Trained Train(const SmallGpt& given, Backend* backend, int steps) {
  SetBackend("cuda", backend);
  const int64_t before = cuda_emulator::GetCounts().kernels;
  Trained trained;
  trained.losses = Losses(given, {0}, steps);
  trained.kernels = cuda_emulator::GetCounts().kernels - before;
  SetBackend("cuda", nullptr);
  return trained;
}

// Gradients that come from other streams, and whose slots go back there, cut nothing; a weight that another
// stream waits for does (with pp the table that the last stage reads, with tp what is gathered), and so does
// a piece cut for another rank between sums of squares. Over dp each rank's sums of squares come in two
// launches, as gradients of the last layers arrive while the others are computed.
TEST(CudaTogetherTraining, TheSameLossesInFewerLaunches) {
  constexpr int kSteps = 4;  // each of them run, then recorded, then replayed
  struct {
    const char* mesh;
    int launches, narrow_launches;  // of a step's updates, sums of squares and casts, on all ranks, at most
  } meshes[] = {
      {"cuda:dp=1", 3, 4}, {"cuda:dp=2", 10, 12}, {"cuda:pp=2", 6, 8}, {"cuda:dp=2,tp=2", 104, 112}};
  for (const auto& [mesh, launches, narrow_launches] : meshes) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      SmallGpt given;
      given.mesh = mesh;
      given.micro_batches = 2;
      given.layers = 2;
      given.width = 32;
      given.heads = 2;
      given.dtype = dtype;
      if (dtype == DType::kFloat16 && given.mesh != "cuda:dp=1") continue;  // as with bf16
      cuda_emulator::Reset({});
      auto alone = std::make_unique<AloneBackend>();
      const Trained apart = Train(given, alone.get(), kSteps);
      const int kernels = alone->kernels;
      alone.reset();
      auto backend = MakeBackend();
      const Trained together = Train(given, backend.get(), kSteps);
      const std::string what = Cat(given.str(), " ", Name(dtype), ", ", kernels, " kernels");
      EXPECT_EQ(together.losses, apart.losses) << what;
      const int most = dtype == DType::kFloat32 ? launches : narrow_launches;
      EXPECT_LE(together.kernels, apart.kernels - kSteps * (kernels - most)) << what;
    }
  }
}

TEST(CudaTogetherTraining, UpdatesOfManyLayersAreFourLaunches) {
  constexpr int kSteps = 3;
  SmallGpt given;
  given.mesh = "cuda:dp=1";
  given.layers = 40;
  given.width = 16;
  given.heads = 2;
  given.batch = 2;
  given.context = 8;
  cuda_emulator::Reset({});
  auto alone = std::make_unique<AloneBackend>();
  const Trained apart = Train(given, alone.get(), kSteps);
  const int kernels = alone->kernels, updates = alone->updates;
  alone.reset();
  auto backend = MakeBackend();
  const Trained together = Train(given, backend.get(), kSteps);
  EXPECT_EQ(together.losses, apart.losses);
  EXPECT_GT(updates, 450);
  const int of_sums = (kernels - updates + kMostSums - 1) / kMostSums;
  EXPECT_LE(together.kernels, apart.kernels - kSteps * (kernels - of_sums - 4));
}

// With ZeRO every weight is sent as soon as it is written.
TEST(CudaTogetherTraining, ZeroHasTheSameLosses) {
  SmallGpt given;
  given.mesh = "cuda:dp=2";
  given.zero_axis = "dp";
  given.layers = 2;
  given.width = 32;
  given.heads = 2;
  cuda_emulator::Reset({});
  auto alone = std::make_unique<AloneBackend>();
  const Trained apart = Train(given, alone.get(), 4);
  alone.reset();
  auto backend = MakeBackend();
  const Trained together = Train(given, backend.get(), 4);
  EXPECT_EQ(together.losses, apart.losses);
  EXPECT_LE(together.kernels, apart.kernels);
}

}  // namespace
}  // namespace oneflow_like::cuda
