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

void KernelRegistry::Add(const std::string& name, const std::string& device_kind, KernelFactory factory) {
  bool added = factories_.emplace(std::make_pair(name, device_kind), std::move(factory)).second;
  CHECK(added) << "kernel " << name << " is registered twice for device kind " << device_kind;
}

void KernelRegistry::Add(const std::string& name, const std::string& device_kind, KernelFn fn) {
  Add(name, device_kind, MakeFunctionKernel(fn));
}

bool KernelRegistry::Has(const std::string& name, const std::string& device_kind) const {
  return factories_.count({name, device_kind}) != 0;
}

std::unique_ptr<Kernel> KernelRegistry::Make(const KernelSpec& spec, const std::string& device_kind) const {
  auto found = factories_.find({spec.name, device_kind});
  // Reference kernels work on the host's memory.
  bool host = device_kind == "cpu";
  if (found == factories_.end() && host) found = factories_.find({spec.name, "reference"});
  if (found == factories_.end()) {
    std::string where = spec.node.empty() ? "" : Cat(" (for ", spec.node, ")");
    std::string line = spec.line.str();
    if (!line.empty()) where += " at " + line;
    Fail("there is no kernel ", spec.name, where, " for device kind ", device_kind,
         host ? ", nor a reference kernel" : "; add one with ModelOptions::kernels");
  }
  return found->second(spec);
}

}  // namespace oneflow_like
