// Segments: straight lines of kernels that come again act after act, run, recorded or replayed.
#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "actor/cuda/counts.h"
#include "actor/cuda/error.h"
#include "actor/cuda/range.h"
#include "actor/cuda/stream.h"
#include "ops/cuda/driver_turn.h"

namespace oneflow_like::cuda {
namespace {

// A recording of fewer kernels saves nothing: launching it costs as much as launching one.
constexpr size_t kShortest = 2;

int64_t Nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the time that it lives.
class Spent {
 public:
  explicit Spent(std::atomic<int64_t>* sum) : sum_(sum) {}
  ~Spent() { *sum_ += Nanoseconds() - start_; }
  Spent(const Spent&) = delete;

 private:
  std::atomic<int64_t>* const sum_;
  const int64_t start_ = Nanoseconds();
};

}  // namespace

StreamCounts& Counts() {
  static auto* counts = new StreamCounts;  // streams may be closed when a process ends
  return *counts;
}

CudaSegment::~CudaSegment() {
  DriverCall call;
  gpu_->Use();
  for (Part& part : parts) {
    int64_t graphs = 0;
    for (cudaGraphExec_t graph : part.graphs) {
      if (graph == nullptr) continue;
      cudaGraphExecDestroy(graph);
      ++graphs;
    }
    Counts().graphs -= graphs;
    if (part.recorded) --Counts().recorded_parts;
    if (part.recordable) --Counts().parts;
  }
  cudaGetLastError();
}

std::unique_ptr<DeviceSegment> CudaStream::MakeSegment() { return std::make_unique<CudaSegment>(gpu_); }

Status CudaStream::RunSegment(DeviceSegment* device_segment, std::span<const KernelRun> kernels) {
  if (kernels.empty()) return gpu_->health().status();
  auto* segment = static_cast<CudaSegment*>(device_segment);
  if (segment->numbers.empty()) {
    if (Status status = Prepare(segment, kernels); !status.ok()) return status;
  }
  CHECK_EQ(segment->numbers.size(), kernels.size()) << "a segment is always the same kernels";
  DriverCall call;
  if (Status status = GetReady(kernels[0].context); !status.ok()) return status;
  for (CudaSegment::Part& part : segment->parts) {
    if (Status status = RunPart(*segment, &part, kernels); !status.ok()) {
      Status lost = CheckDevice(part.name.c_str());
      return lost.ok() ? status : lost;
    }
  }
  return Status();
}

Status CudaStream::Prepare(CudaSegment* segment, std::span<const KernelRun> kernels) {
  std::vector<int> numbers;
  for (const KernelRun& run : kernels) {
    int number = NumberOf(*run.kernel, run.context.spec);
    if (number == 0) return Status(Cat("kernel ", run.context.spec.name, " is not one for CUDA"));
    numbers.push_back(number);
  }
  segment->parts.clear();
  for (size_t i = 0; i < numbers.size(); ++i) {
    bool recordable = known_[numbers[i] - 1].kernel->Recordable();
    if (segment->parts.empty() || segment->parts.back().recordable != recordable) {
      CudaSegment::Part part;
      part.begin = i;
      part.recordable = recordable;
      segment->parts.push_back(std::move(part));
    }
    segment->parts.back().end = i + 1;
  }
  for (CudaSegment::Part& part : segment->parts) {
    size_t count = part.end - part.begin;
    part.name = NameOf(std::span<const int>(numbers).subspan(part.begin, count));
    if (count < kShortest) part.recordable = false;
    if (part.recordable) ++Counts().parts;
  }
  segment->numbers = std::move(numbers);
  return Status();
}

Status CudaStream::RunPart(const CudaSegment& segment, CudaSegment::Part* part,
                           std::span<const KernelRun> kernels) {
  GraphPolicy::Decision decision;
  if (part->recordable) {
    decision = part->policy.Decide(KeyOf(kernels.subspan(part->begin, part->end - part->begin)));
  }
  const auto run = [&] {
    Counts().lone_launches += static_cast<int64_t>(part->end - part->begin);
    const Spent spent(&Counts().lone_nanoseconds);
    return LaunchPart(segment, *part, kernels);
  };
  if (decision.action == GraphPolicy::Action::kRun) return run();
  if (decision.action == GraphPolicy::Action::kRecord && !RecordPart(segment, part, decision.slot, kernels)) {
    part->policy.Failed(decision.slot);
    return run();
  }
  Range range(part->name.c_str());
  ran_ = true;
  last_ = segment.numbers[part->end - 1];
  ++Counts().graph_launches;
  Counts().graph_nodes += part->nodes;
  const int64_t start = Nanoseconds();
  const cudaError_t error = cudaGraphLaunch(part->graphs[decision.slot], stream_);
  const int64_t took = std::max<int64_t>(Nanoseconds() - start, 1);
  part->shortest = part->shortest == 0 ? took : std::min(part->shortest, took);
  Counts().graph_nanoseconds += took;
  Counts().graph_wait_nanoseconds += took - part->shortest;
  return Check(error, part->name.c_str());
}

Status CudaStream::LaunchPart(const CudaSegment& segment, const CudaSegment::Part& part,
                              std::span<const KernelRun> kernels) {
  for (size_t i = part.begin; i < part.end;) {
    std::span<const KernelRun> rest = kernels.subspan(i, part.end - i);
    size_t count = known_[segment.numbers[i] - 1].kernel->Together(rest);
    std::span<const int> numbers = std::span<const int>(segment.numbers).subspan(i, count);
    if (Status status = LaunchTogether(numbers, rest.first(count)); !status.ok()) {
      return Status(Cat(NameOf(numbers), ": ", status.message()));
    }
    i += count;
  }
  return Status();
}

// Whatever goes wrong here has not run anything: the caller runs the kernels, and says what is wrong with
// them if it is they. Other threads (ranks of the same GPU, the completion thread) are not restricted
// meanwhile.
bool CudaStream::RecordPart(const CudaSegment& segment, CudaSegment::Part* part, int slot,
                            std::span<const KernelRun> kernels) {
  const Spent spent(&Counts().recording_nanoseconds);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  Status status;
  cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  if (error == cudaSuccess) {
    status = LaunchPart(segment, *part, kernels);
    error = cudaStreamEndCapture(stream_, &graph);
  }
  size_t nodes = 0;
  if (status.ok() && error == cudaSuccess) error = cudaGraphGetNodes(graph, nullptr, &nodes);
  if (status.ok() && error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok() || error != cudaSuccess) {
    cudaGetLastError();
    ++Counts().failed_recordings;
    LOG_FIRST_N(WARNING, 1) << part->name << " could not be recorded as a graph and is run without one: "
                            << (status.ok() ? Say(error) : status.message());
    return false;
  }
  if (static_cast<int>(part->graphs.size()) <= slot) part->graphs.resize(slot + 1, nullptr);
  // One that is still under way ends as usual.
  if (part->graphs[slot] != nullptr) {
    cudaGraphExecDestroy(part->graphs[slot]);
  } else {
    ++Counts().graphs;
  }
  part->graphs[slot] = exec;
  part->nodes = static_cast<int64_t>(nodes);
  part->policy.Succeeded();
  if (!std::exchange(part->recorded, true)) ++Counts().recorded_parts;
  return true;
}

}  // namespace oneflow_like::cuda
