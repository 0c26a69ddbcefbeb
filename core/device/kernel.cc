// Kernels without state, and the table of kernel factories.
#include "core/device/kernel.h"

#include <glog/logging.h>

namespace oneflow_like {
namespace {

class FunctionKernel : public Kernel {
 public:
  explicit FunctionKernel(KernelFn fn) : fn_(fn) {}
  Status Run(const KernelContext& context) override { return fn_(context); }

 private:
  KernelFn fn_;
};

}  // namespace

KernelFactory MakeFunctionKernel(KernelFn fn) {
  return [fn](const KernelSpec&) { return std::make_unique<FunctionKernel>(fn); };
}

void KernelRegistry::Add(const std::string& name, const std::string& device_kind, KernelFactory factory,
                         ScratchFn scratch, KernelCost cost) {
  bool added = entries_
                   .emplace(std::make_pair(name, device_kind),
                            Entry{std::move(factory), std::move(scratch), {}, {}, std::move(cost)})
                   .second;
  CHECK(added) << "kernel " << name << " is registered twice for device kind " << device_kind;
}

void KernelRegistry::Add(const std::string& name, const std::string& device_kind, KernelFn fn,
                         ScratchFn scratch) {
  Add(name, device_kind, MakeFunctionKernel(fn), std::move(scratch));
}

void KernelRegistry::State(const std::string& name, const std::string& device_kind, ScratchFn scratch) {
  const bool stated =
      stated_.emplace(std::make_pair(name, device_kind), Entry{{}, std::move(scratch), {}, {}, {}}).second;
  CHECK(stated) << "scratch of kernel " << name << " is stated twice for device kind " << device_kind;
}

void KernelRegistry::AddComposed(const std::string& name, const std::string& device_kind,
                                 ComposedFactory factory, ComposedScratch scratch) {
  bool added = entries_
                   .emplace(std::make_pair(name, device_kind),
                            Entry{{}, {}, std::move(factory), std::move(scratch), {}})
                   .second;
  CHECK(added) << "kernel " << name << " is registered twice for device kind " << device_kind;
}

InnerKernels KernelRegistry::InnerOf(const std::string& device_kind) const {
  return {[this, device_kind](const KernelSpec& spec) { return Make(spec, device_kind); },
          [this, device_kind](const KernelSpec& spec) { return Scratch(spec, device_kind); },
          [this, device_kind](const std::string& name) {
            return device_kind == "cpu" ? Has(name, device_kind) : device_kind != "reference";
          }};
}

bool KernelRegistry::Has(const std::string& name, const std::string& device_kind) const {
  return entries_.count({name, device_kind}) != 0;
}

// Reference kernels work on the host's memory.
const KernelRegistry::Entry* KernelRegistry::Find(const std::string& name,
                                                  const std::string& device_kind) const {
  auto found = entries_.find({name, device_kind});
  if (found == entries_.end() && device_kind == "cpu") found = entries_.find({name, "reference"});
  return found == entries_.end() ? nullptr : &found->second;
}

std::unique_ptr<Kernel> KernelRegistry::Make(const KernelSpec& spec, const std::string& device_kind) const {
  const Entry* entry = Find(spec.name, device_kind);
  if (entry == nullptr) {
    std::string where = spec.node.empty() ? "" : Cat(" (for ", spec.node, ")");
    std::string line = spec.line.str();
    if (!line.empty()) where += " at " + line;
    Fail("there is no kernel ", spec.name, where, " for device kind ", device_kind,
         device_kind == "cpu" ? ", nor a reference kernel" : "; add one with ModelOptions::kernels");
  }
  return entry->composed ? entry->composed(spec, InnerOf(device_kind)) : entry->make(spec);
}

const KernelRegistry::Entry* KernelRegistry::FindScratch(const std::string& name,
                                                         const std::string& device_kind) const {
  const auto states = [](const Entry* entry) {
    return entry != nullptr && (entry->scratch || entry->composed_scratch);
  };
  const Entry* entry = Find(name, device_kind);
  if (states(entry)) return entry;
  if (const auto stated = stated_.find({name, device_kind}); stated != stated_.end()) return &stated->second;
  entry = Find(name, "reference");
  return states(entry) ? entry : nullptr;
}

bool KernelRegistry::StatesScratch(const std::string& name, const std::string& device_kind) const {
  return FindScratch(name, device_kind) != nullptr;
}

int64_t KernelRegistry::Scratch(const KernelSpec& spec, const std::string& device_kind) const {
  const Entry* entry = FindScratch(spec.name, device_kind);
  if (entry == nullptr) return 0;
  return entry->scratch ? entry->scratch(spec) : entry->composed_scratch(spec, InnerOf(device_kind));
}

const KernelCost& KernelRegistry::Cost(const std::string& name, const std::string& device_kind) const {
  static const KernelCost kNothing;
  const Entry* entry = Find(name, device_kind);
  return entry == nullptr ? kNothing : entry->cost;
}

}  // namespace oneflow_like
