#include "tests/gpu/measure.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "core/float16.h"
#include "ops/op.h"
#include "tests/gpu/device_kernels.h"

namespace oneflow_like::gpu {
namespace {

constexpr double kCaches = 256 << 20;                 // more than the caches of any card hold
constexpr int64_t kMostOperands = int64_t{12} << 30;  // bytes of all sets of operands

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Require(const Status& status) {
  if (!status.ok()) throw Error(status.message());
}

// Random contents, the same for every set: products of zeros run faster than real ones. Large operands repeat
// them.
void FillRandom(Device* device, const TensorArg& arg) {
  constexpr int64_t kPattern = 1 << 22;
  const int64_t count = std::min(arg.elements(), kPattern), size = static_cast<int64_t>(SizeOf(arg.dtype));
  std::vector<char> bytes(count * size);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < count; ++i) {
    char* at = bytes.data() + i * size;
    auto put = [at](auto value) { std::memcpy(at, &value, sizeof value); };
    if (arg.dtype == DType::kFloat32) {
      put(uniform(random));
    } else if (arg.dtype == DType::kBFloat16) {
      put(ToBFloat16(uniform(random)));
    } else if (arg.dtype == DType::kFloat16) {
      put(ToFloat16(uniform(random)));
    } else if (arg.dtype == DType::kInt32) {
      put(static_cast<int32_t>(random() % 64));
    } else if (arg.dtype == DType::kInt64) {
      put(static_cast<int64_t>(random() % 64));
    } else {
      put(static_cast<uint8_t>(random() % 2));
    }
  }
  for (int64_t done = 0; done < arg.elements(); done += count) {
    const int64_t part = std::min(count, arg.elements() - done);
    device->CopyIn(static_cast<char*>(arg.data) + done * size, bytes.data(), part * size);
  }
}

// One set of operands in device memory.
struct OperandSet {
  std::vector<TensorArg> in, out;
  std::vector<std::unique_ptr<Memory>> memory;
};

OperandSet MakeSet(Device* device, const KernelSpec& spec, const IntegerInputs& integers) {
  OperandSet set{spec.in, spec.out, {}};
  const OpDef* def = BuiltinCatalog().Find(spec.name);
  for (std::vector<TensorArg>* side : {&set.in, &set.out}) {
    for (TensorArg& arg : *side) {
      const size_t bytes = std::max<size_t>(arg.elements() * SizeOf(arg.dtype), 64);
      set.memory.push_back(device->Allocate(bytes, "an operand of " + spec.name));
      arg.data = set.memory.back()->data();
      if (arg.elements() > 0) FillRandom(device, arg);
    }
  }
  for (const auto& [number, values] : integers)
    device->CopyIn(set.in.at(number).data, values.data(), values.size() * sizeof(int32_t));
  if (def != nullptr) {
    for (auto [out, in] : def->inplace) set.out[out].data = set.in[in].data;
  }
  return set;
}

// Seconds of `repetitions` calls of `enqueue`, the stream empty before and after.
template <typename F>
double SecondsOf(DeviceStream* stream, int repetitions, F&& enqueue) {
  const double start = Now();
  for (int i = 0; i < repetitions; ++i) Require(enqueue());
  Require(WaitFor(stream));
  return Now() - start;
}

// Of one call of `enqueue`, which does `each` runs: the difference between many and few, so that the wait at
// the end falls away.
template <typename F>
double SecondsEach(DeviceStream* stream, int each, F&& enqueue) {
  for (int i = 0; i < 3; ++i) SecondsOf(stream, 1, enqueue);  // run, recorded, replayed
  const double once = SecondsOf(stream, 2, enqueue) / 2;
  const int few = std::clamp(static_cast<int>(0.02 / std::max(once, 1e-9)), 1, 2000);
  std::vector<double> seconds;
  for (int batch = 0; batch < 5; ++batch) {
    const double less = SecondsOf(stream, few, enqueue), more = SecondsOf(stream, 3 * few, enqueue);
    seconds.push_back((more - less) / (2.0 * few * each));
  }
  return Median(seconds);
}

// One large product through the kernel of matmul.
double ProductRate(MeasuredDevice* on, DType dtype, int64_t n) {
  KernelSpec spec;
  spec.name = spec.node = "matmul";
  const Dims square{n, n};
  const TensorArg arg{nullptr, dtype, square, {0, 0}, square};
  spec.in = {arg, arg};
  spec.out = {arg};
  return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) /
         TimeKernel(on, spec, 0).seconds;
}

double CopyRate(MeasuredDevice* on, int64_t elements) {
  auto from = on->device->Allocate(elements * 4, "what is copied"),
       to = on->device->Allocate(elements * 4, "a copy");
  const Box box = Box::Whole({elements});
  const std::vector<Piece> source = {{from->data(), box}}, target = {{to->data(), box}};
  const double seconds = SecondsEach(on->stream.get(), 1, [&] {
    return on->stream->Combine(DType::kFloat32, Reduce::kNone, box, source, target);
  });
  return 8.0 * static_cast<double>(elements) / seconds;
}

double LaunchSeconds(MeasuredDevice* on) {
  KernelSpec spec;
  spec.name = spec.node = "neg";
  const TensorArg arg{nullptr, DType::kFloat32, Dims{32}, Dims{0}, Dims{32}};
  spec.in = spec.out = {arg};
  return TimeKernel(on, spec, 0).seconds;
}

}  // namespace

MeasuredDevice::MeasuredDevice(Backend* backend, int number)
    : device(backend->MakeDevice(0, number)), stream(device->MakeStream("compute")) {
  backend->AddKernels(&registry);
}

int64_t MeasuredDevice::FreeBytes() const {
  constexpr int64_t kStep = int64_t{64} << 20;
  int64_t fits = 0, fails = (int64_t{1} << 40) / kStep;
  while (fails - fits > 1) {
    const int64_t middle = (fits + fails) / 2;
    try {
      device->Allocate(middle * kStep, "a look at what is free");
      fits = middle;
    } catch (const Error&) {
      fails = middle;
    }
  }
  return fits * kStep;
}

Timing TimeKernel(MeasuredDevice* on, const KernelSpec& spec, int64_t scratch_bytes,
                  const IntegerInputs& integers) {
  std::unique_ptr<Kernel> kernel = on->registry.Make(spec, "cuda");
  Timing timing;
  for (const std::vector<TensorArg>* side : {&spec.in, &spec.out}) {
    for (const TensorArg& arg : *side)
      timing.bytes += static_cast<double>(arg.elements() * SizeOf(arg.dtype));
  }
  const int64_t bytes = static_cast<int64_t>(timing.bytes) + 1;
  const int sets = static_cast<int>(std::clamp<int64_t>(
      std::min<int64_t>(static_cast<int64_t>(kCaches) / bytes + 1, kMostOperands / bytes), 1, 16));
  std::vector<OperandSet> operands;
  for (int s = 0; s < sets; ++s) operands.push_back(MakeSet(on->device.get(), spec, integers));
  auto scratch = on->device->Allocate(std::max<int64_t>(scratch_bytes, 64), "scratch of " + spec.name);
  const int runs = std::max(8, sets);
  std::vector<KernelRun> segment;
  for (int r = 0; r < runs; ++r) {
    const OperandSet& set = operands[r % sets];
    segment.push_back({kernel.get(), {spec, set.in, set.out, scratch->data(), 3, 0, 1, 7}});
  }
  std::unique_ptr<DeviceSegment> recorded = on->stream->MakeSegment();
  timing.seconds =
      SecondsEach(on->stream.get(), runs, [&] { return on->stream->RunSegment(recorded.get(), segment); });
  return timing;
}

Ceilings MeasureCeilings(MeasuredDevice* on, bool small) {
  Ceilings ceilings;
  ceilings.copy = CopyRate(on, small ? 1 << 12 : int64_t{1} << 28);  // elements of 4 bytes: 1 GiB
  for (int64_t n : small ? std::vector<int64_t>{16} : std::vector<int64_t>{4096, 8192}) {
    ceilings.bf16 = std::max(ceilings.bf16, ProductRate(on, DType::kBFloat16, n));
    ceilings.f16 = std::max(ceilings.f16, ProductRate(on, DType::kFloat16, n));
    ceilings.f32 = std::max(ceilings.f32, ProductRate(on, DType::kFloat32, n));
  }
  ceilings.launch = LaunchSeconds(on);
  return ceilings;
}

}  // namespace oneflow_like::gpu
