// The runtime's view of a computation: a Kernel is created once, when a plan is loaded, and run once per act
// on contiguous row-major local pieces of tensors. The KernelRegistry maps (kernel name, device kind) to
// factories.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/attrs.h"
#include "core/device/work.h"
#include "core/dims.h"
#include "core/dtype.h"
#include "core/error.h"

namespace oneflow_like {

// One operand of a kernel: the piece of a tensor that this rank holds in this act. The piece is contiguous,
// row-major, and covers [begin, begin + extent) of the tensor's global index space, time included.
struct TensorArg {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Dims global;  // extents of the whole tensor ("Global(axis)")
  Dims begin;   // first global index held here ("Range(axis)")
  Dims extent;  // local extents

  int64_t elements() const { return extent.elements(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// The properties of one kernel of a plan that are fixed before it runs. The args carry no data; when time
// cuts a tensor unevenly, extents of later acts may be smaller than those given here, never larger.
struct KernelSpec {
  std::string name;  // kernel name; an operator's kernel has the operator's name
  Attrs attrs;
  std::vector<TensorArg> in, out;
  std::string node;  // the logical node it comes from, for messages
  SourceLine line;
  // The number of threads that its scratch is for. It uses no more of the team that runs it, and a library's
  // objects are made for this number.
  int threads = 1;
};

struct KernelContext {
  const KernelSpec& spec;         // names and attributes
  std::span<const TensorArg> in;  // of this act
  std::span<const TensorArg> out;
  void* scratch = nullptr;  // as many bytes as the kernel has stated (ScratchFn), 64-byte aligned
  int64_t step = 0;         // optimizer step, 0 for the first; keys random draws and schedules
  int64_t time = 0;         // micro-batch of this act, in [0, times)
  int64_t times = 1;        // micro-batches of a step
  uint64_t seed = 0;        // the job's seed
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Runs on one thread of the runtime and may use ParallelFor inside. Must write every element of every
  // output (an empty piece has none). Allocates nothing: what it needs beside its operands is in its scratch.
  // A failure that data can cause (an index out of range) is returned, not thrown; the runtime puts the
  // node's name and line in front of the message.
  virtual Status Run(const KernelContext& context) = 0;
};

using KernelFn = Status (*)(const KernelContext&);
using KernelFactory = std::function<std::unique_ptr<Kernel>(const KernelSpec&)>;
// States the bytes of scratch that a kernel needs. The compiler of each process plans all ranks, whatever
// their processors are: the number follows from the spec alone (types, extents, attributes, threads), is the
// same at every level of instructions, and enough for acts with smaller extents.
using ScratchFn = std::function<int64_t(const KernelSpec&)>;

// A kernel without state.
KernelFactory MakeFunctionKernel(KernelFn fn);

// The kernels of one device kind, for a kernel that runs others on its own device.
struct InnerKernels {
  KernelFactory make;
  ScratchFn scratch;                                  // 0 where a kernel states none
  std::function<bool(const std::string& name)> fast;  // whether a kernel is the device's, not the reference's
};
using ComposedFactory = std::function<std::unique_ptr<Kernel>(const KernelSpec&, const InnerKernels&)>;
using ComposedScratch = std::function<int64_t(const KernelSpec&, const InnerKernels&)>;

class KernelRegistry {
 public:
  // Without `scratch` a kernel states what the reference kernel of its name does (for a user's operator,
  // OpDef::scratch), as does one that this build lacks: it plans for builds that have it.
  void Add(const std::string& name, const std::string& device_kind, KernelFactory factory,
           ScratchFn scratch = nullptr, KernelCost cost = {});
  void Add(const std::string& name, const std::string& device_kind, KernelFn fn, ScratchFn scratch = nullptr);
  // What such kernels of a device kind state instead of that.
  void State(const std::string& name, const std::string& device_kind, ScratchFn scratch);
  // A kernel that runs others of the registry.
  void AddComposed(const std::string& name, const std::string& device_kind, ComposedFactory factory,
                   ComposedScratch scratch);
  bool Has(const std::string& name, const std::string& device_kind) const;
  // The kernel for that device kind; if "cpu" has none, the one for "reference". Throws Error when there is
  // none.
  std::unique_ptr<Kernel> Make(const KernelSpec& spec, const std::string& device_kind) const;
  // Whether the kernel's scratch depends on its spec; else it needs none.
  bool StatesScratch(const std::string& name, const std::string& device_kind) const;
  // The scratch that this kernel states; 0 where there is none.
  int64_t Scratch(const KernelSpec& spec, const std::string& device_kind) const;
  // How its time is known; nothing is said of a kernel that says nothing, or that there is none of.
  const KernelCost& Cost(const std::string& name, const std::string& device_kind) const;

 private:
  struct Entry {
    KernelFactory make;
    ScratchFn scratch;
    ComposedFactory composed;  // instead of both
    ComposedScratch composed_scratch;
    KernelCost cost;
  };
  const Entry* Find(const std::string& name, const std::string& device_kind) const;
  const Entry* FindScratch(const std::string& name, const std::string& device_kind) const;
  InnerKernels InnerOf(const std::string& device_kind) const;
  std::map<std::pair<std::string, std::string>, Entry> entries_;
  std::map<std::pair<std::string, std::string>, Entry> stated_;  // scratch alone
};

}  // namespace oneflow_like
