#include "oneflow_like/simulate/device_timing.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "core/float16.h"
#include "oneflow_like/simulate/kernel_fit.h"
#include "ops/op.h"
#include "ops/routes.h"
#include "ops/tf32.h"

namespace oneflow_like {
namespace {

constexpr double kCaches = 256 << 20;                 // more than the caches of any card hold
constexpr int64_t kMostOperands = int64_t{12} << 30;  // bytes of all sets of operands

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void RequireOk(const Status& status) {
  if (!status.ok()) throw Error(status.message());
}

// --- Contents of operands ---

constexpr int64_t kPattern = 1 << 22;  // elements; larger operands repeat them

// Random numbers, the same for every operand of a type: products of zeros run faster than real ones.
void WriteRandom(DType dtype, int64_t integers, char* bytes, size_t count) {
  const size_t size = SizeOf(dtype);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (size_t i = 0; i < count; ++i) {
    auto put = [&](auto value) { std::memcpy(bytes + i * size, &value, sizeof value); };
    if (dtype == DType::kFloat32) {
      put(uniform(random));
    } else if (dtype == DType::kBFloat16) {
      put(ToBFloat16(uniform(random)));
    } else if (dtype == DType::kFloat16) {
      put(ToFloat16(uniform(random)));
    } else if (dtype == DType::kInt32) {
      put(static_cast<int32_t>(random() % integers));
    } else if (dtype == DType::kInt64) {
      put(static_cast<int64_t>(random() % integers));
    } else {
      put(static_cast<uint8_t>(random() % 2));
    }
  }
}

// Enqueues copies of the pattern all over the memory.
void FillRandom(MeasuredDevice* on, DType dtype, int64_t integers, void* data, size_t bytes) {
  std::unique_ptr<Memory>& pattern = on->patterns[{dtype, IsFloating(dtype) ? 0 : integers}];
  if (!pattern) {
    pattern = on->device->AllocateHost(kPattern * SizeOf(dtype), "random numbers");
    WriteRandom(dtype, integers, static_cast<char*>(pattern->data()), kPattern);
  }
  for (size_t done = 0; done < bytes; done += kPattern * SizeOf(dtype))
    on->stream->CopyIn(static_cast<char*>(data) + done, pattern->data(),
                       std::min<size_t>(kPattern * SizeOf(dtype), bytes - done));
}

// What integers of a kernel are below: rows of a table, so that ids meet all of them.
int64_t IntegersOf(const KernelSpec& spec) {
  constexpr int64_t kFew = 64;
  if (spec.name == "embedding") return spec.in[0].extent[0];
  if (spec.name == "embedding_grad") return spec.out[0].extent[0];
  if (spec.name == "route") return spec.out[0].extent[1];  // experts
  return kFew;
}

// Rows of experts, in equal runs: what is random may be more than there are.
void FillCounts(Device* device, const TensorArg& counts, int64_t rows) {
  const int64_t groups = counts.extent[counts.extent.rank() - 1];
  std::vector<char> bytes(counts.elements() * SizeOf(counts.dtype));
  for (int64_t i = 0; i < counts.elements(); ++i) {
    const int64_t g = i % groups, share = rows * (g + 1) / groups - rows * g / groups;
    if (counts.dtype == DType::kInt32) {
      reinterpret_cast<int32_t*>(bytes.data())[i] = static_cast<int32_t>(share);
    } else {
      reinterpret_cast<int64_t*>(bytes.data())[i] = share;
    }
  }
  device->CopyIn(counts.data, bytes.data(), bytes.size());
}

// Choices dealt out to the experts in turn, as far as these have room. The tables must agree: random ones
// would lead nowhere.
void FillRoutes(Device* device, const TensorArg& slots, const TensorArg& places) {
  const RouteTables tables = TablesOf(slots, places);
  const int64_t choices = tables.tokens * tables.k;
  std::vector<int32_t> choice_of(slots.elements(), -1), place_of(places.elements(), -1);
  for (int64_t pool = 0; pool < tables.pools; ++pool)
    for (int64_t choice = 0; choice < std::min(choices, tables.experts * tables.room); ++choice) {
      const int64_t place = choice % tables.experts * tables.room + choice / tables.experts;
      choice_of[pool * tables.experts * tables.room + place] = static_cast<int32_t>(choice);
      place_of[pool * choices + choice] = static_cast<int32_t>(place);
    }
  device->CopyIn(slots.data, choice_of.data(), choice_of.size() * sizeof(int32_t));
  device->CopyIn(places.data, place_of.data(), place_of.size() * sizeof(int32_t));
}

void FillOperand(MeasuredDevice* on, const KernelSpec& spec, const TensorArg& arg) {
  if (spec.name.starts_with("grouped_matmul") && !IsFloating(arg.dtype)) {
    const Dims& rows = spec.in[0].extent;
    return FillCounts(on->device.get(), arg, rows[rows.rank() - 2]);
  }
  FillRandom(on, arg.dtype, IntegersOf(spec), arg.data,
             static_cast<size_t>(arg.elements()) * SizeOf(arg.dtype));
}

// One set of operands in device memory.
struct OperandSet {
  std::vector<TensorArg> in, out;
  std::vector<std::unique_ptr<Memory>> memory;
};

OperandSet MakeSet(MeasuredDevice* on, const KernelSpec& spec, const TimingOptions& options) {
  OperandSet set{spec.in, spec.out, {}};
  const OpDef* def = BuiltinCatalog().Find(spec.name);
  for (std::vector<TensorArg>* side : {&set.in, &set.out}) {
    for (TensorArg& arg : *side) {
      const size_t bytes = std::max<size_t>(arg.elements() * SizeOf(arg.dtype), 64);
      set.memory.push_back(on->device->Allocate(bytes, "an operand of " + spec.name));
      arg.data = set.memory.back()->data();
      if (arg.elements() > 0) FillOperand(on, spec, arg);
    }
  }
  if (spec.name == "take_rows" || spec.name == "return_rows")
    FillRoutes(on->device.get(), set.in.at(1), set.in.at(2));
  if (spec.name == "dot_rows") FillRoutes(on->device.get(), set.in.at(2), set.in.at(3));
  for (const auto& [number, values] : options.integers)
    on->device->CopyIn(set.in.at(number).data, values.data(), values.size() * sizeof(int32_t));
  if (def != nullptr) {
    for (auto [out, in] : def->inplace) set.out[out].data = set.in[in].data;
  }
  return set;
}

// Of one of the calls that `run(n)` makes n of and times, batches of which last so many seconds or more: the
// difference between many and few, so that the wait at the end falls away.
template <typename F>
double SecondsOfCall(double batch_seconds, int batches, int most, F&& run) {
  const double once = run(2) / 2;
  const int few = std::clamp(static_cast<int>(batch_seconds / std::max(once, 1e-9)), 1, most);
  std::vector<double> seconds;
  for (int batch = 0; batch < batches; ++batch) {
    const double less = run(few), more = run(3 * few);
    // Where something else took the longer of the two while the first ran, all of the second is the best
    // guess.
    seconds.push_back(more > less ? (more - less) / (2.0 * few) : more / (3.0 * few));
  }
  return Median(seconds);
}

// Of one call of `enqueue`, the stream empty before and after.
template <typename F>
double SecondsEach(DeviceStream* stream, const TimingOptions& options, F&& enqueue) {
  const auto run = [&](int repetitions) {
    const double start = SecondsNow();
    for (int i = 0; i < repetitions; ++i) RequireOk(enqueue());
    RequireOk(WaitFor(stream));
    return SecondsNow() - start;
  };
  for (int i = 0; i < 3; ++i) run(1);  // run, recorded, replayed
  return SecondsOfCall(options.batch_seconds, options.batches, 2000, run);
}

// One large product through the kernel of matmul.
double ProductRate(MeasuredDevice* on, DType dtype, bool tf32, int64_t n, const TimingOptions& options) {
  KernelSpec spec;
  spec.name = spec.node = "matmul";
  if (tf32) spec.attrs.Set(kTf32, int64_t{1});
  const Dims square{n, n};
  const TensorArg arg{nullptr, dtype, square, {0, 0}, square};
  spec.in = {arg, arg};
  spec.out = {arg};
  return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) /
         TimeKernel(on, spec, 0, options).seconds;
}

double CopyRate(MeasuredDevice* on, int64_t elements, const TimingOptions& options) {
  auto from = on->device->Allocate(elements * 4, "what is copied"),
       to = on->device->Allocate(elements * 4, "a copy");
  const Box box = Box::Whole({elements});
  const std::vector<Piece> source = {{from->data(), box}}, target = {{to->data(), box}};
  const double seconds = SecondsEach(on->stream.get(), options, [&] {
    return on->stream->Combine(DType::kFloat32, Reduce::kNone, box, source, target);
  });
  return 8.0 * static_cast<double>(elements) / seconds;
}

double LaunchSeconds(MeasuredDevice* on, const TimingOptions& options) {
  KernelSpec spec;
  spec.name = spec.node = "neg";
  const TensorArg arg{nullptr, DType::kFloat32, Dims{32}, Dims{0}, Dims{32}};
  spec.in = spec.out = {arg};
  return TimeKernel(on, spec, 0, options).seconds;
}

const TimingOptions kCopies = {.batch_seconds = 0.01};

double HostCopySeconds(MeasuredDevice* on, int64_t bytes, bool in) {
  auto device = on->device->Allocate(bytes, "what is copied");
  auto host = on->device->AllocateHost(bytes, "what is copied");
  std::memset(host->data(), 0, static_cast<size_t>(bytes));
  if (in) on->device->CopyIn(device->data(), host->data(), bytes);
  return SecondsEach(on->stream.get(), kCopies, [&] {
    if (in) {
      on->stream->CopyIn(device->data(), host->data(), bytes);
    } else {
      on->stream->CopyOut(host->data(), device->data(), bytes);
    }
    return Status();
  });
}

// One member's part of a collective on a whole tensor of so many elements of four bytes.
Status CallMember(GroupMember* member, int m, int members, DeviceStream* stream, Primitive primitive,
                  char* from, char* to, int64_t elements) {
  const int64_t part = elements / members;
  switch (primitive) {
    case Primitive::kAllReduce:
      return member->AllReduce(stream, DType::kFloat32, Reduce::kSum, from, to, elements);
    case Primitive::kReduceScatter:
      return member->ReduceScatter(stream, DType::kFloat32, Reduce::kSum, from, to, part);
    case Primitive::kAllGather:
      return member->AllGather(stream, DType::kFloat32, from, to, part);
    case Primitive::kAllToAll: {
      std::vector<GroupMember::Transfer> transfers;
      const int64_t bytes = 4 * (part / members);
      for (int peer = 0; peer < members; ++peer) {
        if (peer == m) continue;
        transfers.push_back({true, peer, from + peer * bytes, bytes});
        transfers.push_back({false, peer, to + peer * bytes, bytes});
      }
      return member->Exchange(stream, transfers);
    }
    case Primitive::kSend:
      if (m > 1) return Status();
      return member->Exchange(stream, {{m == 0, 1 - m, m == 0 ? from : to, 4 * elements}});
    default:
      return Status("calibration has no such collective");
  }
}

}  // namespace

MeasuredDevice::MeasuredDevice(Backend* backend, int number, int rank)
    : device(backend->MakeDevice(rank, number)), stream(device->MakeStream("compute")) {
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
                  const TimingOptions& options) {
  std::unique_ptr<Kernel> kernel = on->registry.Make(spec, "cuda");
  Timing timing;
  for (const std::vector<TensorArg>* side : {&spec.in, &spec.out}) {
    for (const TensorArg& arg : *side)
      timing.bytes += static_cast<double>(arg.elements() * SizeOf(arg.dtype));
  }
  const int64_t bytes = static_cast<int64_t>(timing.bytes) + 1;
  const int sets = static_cast<int>(
      std::clamp<int64_t>(std::min<int64_t>(static_cast<int64_t>(kCaches) / bytes + 1, kMostOperands / bytes),
                          1, options.most_sets));
  std::vector<OperandSet> operands;
  for (int s = 0; s < sets; ++s) operands.push_back(MakeSet(on, spec, options));
  RequireOk(WaitFor(on->stream.get()));
  auto scratch = on->device->Allocate(std::max<int64_t>(scratch_bytes, 64), "scratch of " + spec.name);
  const int runs = std::max(options.least_runs, sets);
  std::vector<KernelRun> segment;
  for (int r = 0; r < runs; ++r) {
    const OperandSet& set = operands[r % sets];
    segment.push_back({kernel.get(), {spec, set.in, set.out, scratch->data(), 3, 0, 1, 7}});
  }
  std::unique_ptr<DeviceSegment> recorded = on->stream->MakeSegment();
  timing.seconds = SecondsEach(on->stream.get(), options,
                               [&] { return on->stream->RunSegment(recorded.get(), segment); }) /
                   runs;
  return timing;
}

Ceilings MeasureCeilings(MeasuredDevice* on, bool small, const TimingOptions& options) {
  Ceilings ceilings;
  ceilings.copy = CopyRate(on, small ? 1 << 12 : int64_t{1} << 28, options);  // elements of 4 bytes: 1 GiB
  for (int64_t n : small ? std::vector<int64_t>{16} : std::vector<int64_t>{4096, 8192}) {
    const auto measure = [&](DType dtype, bool tf32, double* best) {
      *best = std::max(*best, ProductRate(on, dtype, tf32, n, options));
    };
    measure(DType::kBFloat16, false, &ceilings.bf16);
    measure(DType::kFloat16, false, &ceilings.f16);
    measure(DType::kFloat32, false, &ceilings.f32);
    measure(DType::kFloat32, true, &ceilings.tf32);
  }
  ceilings.launch = LaunchSeconds(on, options);
  return ceilings;
}

HostCopies MeasureHostCopies(MeasuredDevice* on, bool small) {
  constexpr int64_t kFew = 4096;
  const int64_t many = small ? 1 << 16 : 1 << 28;
  HostCopies copies;
  double slower = 0;
  for (bool in : {false, true}) {
    const double few = HostCopySeconds(on, kFew, in);
    copies.latency = std::max(copies.latency, few);
    slower = std::max(slower, (HostCopySeconds(on, many, in) - few) / static_cast<double>(many - kFew));
  }
  copies.latency = std::max(copies.latency, 0.0);
  copies.bandwidth = 1 / std::max(slower, 1e-15);
  return copies;
}

std::vector<std::pair<double, double>> TimeCollective(Backend* backend,
                                                      const std::vector<MeasuredDevice*>& devices,
                                                      Primitive primitive,
                                                      const std::vector<int64_t>& sizes) {
  const int members = static_cast<int>(devices.size());
  GroupSpec group{.name = "calibration"};
  std::vector<int> all;
  std::vector<Device*> ends;
  for (int m = 0; m < members; ++m) {
    group.ranks.push_back(m);
    all.push_back(m);
    ends.push_back(devices[m]->device.get());
  }
  std::vector<std::unique_ptr<GroupMember>> group_members =
      backend->Connect(backend->MakeGroupId(), group, all, ends);
  std::vector<std::pair<double, double>> points;
  for (int64_t bytes : sizes) {
    const int64_t elements = bytes / 4;
    std::vector<std::unique_ptr<Memory>> from, to;
    for (MeasuredDevice* each : devices) {
      from.push_back(each->device->Allocate(bytes, "what a collective sends"));
      to.push_back(each->device->Allocate(bytes, "what a collective gives"));
      FillRandom(each, DType::kFloat32, 0, from.back()->data(), static_cast<size_t>(bytes));
    }
    const auto run = [&](int repetitions) {
      const double start = SecondsNow();
      for (int r = 0; r < repetitions; ++r)
        RequireOk(backend->LaunchTogether([&] {
          for (int m = 0; m < members; ++m)
            if (Status s = CallMember(group_members[m].get(), m, members, devices[m]->stream.get(), primitive,
                                      static_cast<char*>(from[m]->data()), static_cast<char*>(to[m]->data()),
                                      elements);
                !s.ok())
              return s;
          return Status();
        }));
      for (MeasuredDevice* each : devices) RequireOk(WaitFor(each->stream.get()));
      return SecondsNow() - start;
    };
    run(2);
    points.emplace_back(static_cast<double>(bytes), SecondsOfCall(0.002, 5, 100, run));
  }
  for (const auto& member : group_members) member->BeginLeaving();
  return points;
}

}  // namespace oneflow_like
