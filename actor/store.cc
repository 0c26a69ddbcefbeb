// The memory of the ranks of one process: variables made once, and arenas that grow to the largest plan.
#include "actor/store.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

using Rank = Store::Impl::Rank;

void CheckSame(const Store::VariableInfo& there, const Store::VariableInfo& wanted, int rank) {
  auto text = [](const Store::VariableInfo& v) {
    return Cat(Name(v.dtype), v.global.str(), " box ", v.box.str());
  };
  if (there.dtype == wanted.dtype && there.global == wanted.global && there.box == wanted.box) return;
  Fail("variable '", wanted.name, "' of rank ", rank, " is ", text(there),
       " in the store but the plan wants ", text(wanted));
}

// Runs one kernel on its own stream and waits for it.
Status RunAlone(Device* device, Kernel* kernel, const KernelContext& context) {
  auto stream = device->MakeStream("init");
  Status status = stream->Run(*kernel, context);
  if (!status.ok() || stream->synchronous()) return status;
  Completion done;
  stream->NotifyWhenDone([&](Status s) {
    status = std::move(s);
    done.Signal();
  });
  done.Wait();
  return status;
}

std::unique_ptr<Memory> Allocate(Device* device, const Store::VariableInfo& info) {
  const std::string what = Cat("variable '", info.name, "'");
  return info.on_host ? device->AllocateHost(info.bytes, what + " on the host")
                      : device->Allocate(info.bytes, what);
}

// A plan may want on the host what another has made on the device. It stays there, where kernels can read it.
void MoveToHost(Device* device, Store::Impl::Rank* rank, Store::Impl::Variable* variable) {
  Store::VariableInfo info = variable->info;
  info.on_host = true;
  std::unique_ptr<Memory> memory = Allocate(device, info);
  device->CopyOut(memory->data(), variable->data, static_cast<size_t>(info.bytes));
  rank->persistent_bytes -= info.bytes;
  rank->persistent_host_bytes += info.bytes;
  variable->info = info;
  variable->data = rank->addresses[info.name] = static_cast<char*>(memory->data());
  variable->memory = std::move(memory);
}

Store::Impl::Variable MakeVariable(Device* device, const plan::Plan& plan, const plan::Variable& variable,
                                   Store::VariableInfo info, const KernelRegistry& registry) {
  Store::Impl::Variable made;
  made.memory = Allocate(device, info);
  made.data = static_cast<char*>(made.memory->data());
  made.info = std::move(info);
  KernelSpec spec = ToSpec(variable.init());
  if (spec.out.size() != 1) Fail("the initialiser of variable '", made.info.name, "' must have one output");
  spec.out[0].dtype = made.info.dtype;
  spec.out[0].global = made.info.global;
  spec.out[0].begin = made.info.box.begin;
  spec.out[0].extent = made.info.box.extent;
  auto kernel = registry.Make(spec, plan.device_kind());
  TensorArg out = spec.out[0];
  out.data = made.data;
  std::unique_ptr<Memory> scratch;
  if (variable.init().scratch_bytes() > 0)
    scratch = device->Allocate(variable.init().scratch_bytes(), "scratch");
  KernelContext context{.spec = spec,
                        .in = {},
                        .out = {&out, 1},
                        .scratch = scratch == nullptr ? nullptr : scratch->data(),
                        .times = std::max(1, plan.times()),
                        .seed = plan.seed()};
  if (made.info.box.empty()) return made;
  Status status = RunAlone(device, kernel.get(), context);
  if (!status.ok()) {
    std::string line = spec.line.str();
    Fail("variable '", made.info.name, "'", line.empty() ? "" : " at ", line, ": ", status.message());
  }
  return made;
}

void GrowArena(Device* device, const std::string& plan, const plan::Arena& wanted,
               Store::Impl::Arena* arena) {
  if (wanted.bytes() <= arena->bytes) return;
  const auto allocate = [&](int64_t bytes, const std::string& what) {
    if (wanted.memory() == "device") return device->Allocate(bytes, what);
    if (wanted.memory() == "host") return device->AllocateHost(bytes, what);
    Fail(what, " is of memory '", wanted.memory(), "', which there is not");
  };
  auto set = [&](int64_t size, std::unique_ptr<Memory> memory) {
    arena->memory = std::move(memory);
    arena->base = arena->memory == nullptr ? nullptr : static_cast<char*>(arena->memory->data());
    arena->bytes = size;
  };
  // The old one goes first, so that the peak is the larger of the two and not their sum.
  int64_t before = arena->bytes;
  set(0, nullptr);
  try {
    set(wanted.bytes(), allocate(wanted.bytes(), Cat("the arena of plan '", plan, "'")));
  } catch (const Error&) {
    if (before > 0) set(before, allocate(before, "the arena"));
    throw;
  }
}

}  // namespace

Rank& Store::Impl::At(int rank) {
  auto found = ranks.find(rank);
  CHECK(found != ranks.end()) << "rank " << rank << " is not hosted here";
  return found->second;
}

Store::Store(std::vector<int> ranks, std::vector<std::unique_ptr<Device>> devices)
    : impl_(std::make_unique<Impl>()) {
  CHECK_EQ(ranks.size(), devices.size());
  for (size_t i = 0; i < ranks.size(); ++i) impl_->ranks[ranks[i]].device = std::move(devices[i]);
  CHECK_EQ(impl_->ranks.size(), ranks.size()) << "a rank is named twice";
  impl_->order = std::move(ranks);
}

Store::~Store() = default;

const std::vector<int>& Store::ranks() const { return impl_->order; }
Device* Store::device(int rank) const { return impl_->At(rank).device.get(); }

void Store::Prepare(const plan::Plan& plan, const KernelRegistry& registry) {
  Impl::Rank& rank = impl_->At(plan.rank());
  std::map<std::string, Impl::Variable> made;
  for (const plan::Variable& variable : plan.variable()) {
    VariableInfo info{variable.name(),       ToDType(variable.dtype()), ToDims(variable.global()),
                      ToBox(variable.box()), variable.bytes(),          IsOnHost(variable)};
    auto there = rank.variables.find(info.name);
    if (there != rank.variables.end()) {
      CheckSame(there->second.info, info, plan.rank());
      if (info.on_host && !there->second.info.on_host) MoveToHost(rank.device.get(), &rank, &there->second);
      continue;
    }
    int64_t needed = info.box.elements() * static_cast<int64_t>(SizeOf(info.dtype));
    if (info.bytes < needed) {
      Fail("variable '", info.name, "' has ", info.bytes, " bytes in the plan but its box ", info.box.str(),
           " needs ", needed);
    }
    std::string name = info.name;
    made[name] = MakeVariable(rank.device.get(), plan, variable, std::move(info), registry);
  }
  for (const plan::Arena& arena : plan.arena())
    GrowArena(rank.device.get(), plan.name(), arena, &rank.arenas[arena.memory()]);
  // Nothing below throws for want of a device's memory: a failed Prepare leaves the variables as they were.
  for (auto& [name, variable] : made) {
    (variable.info.on_host ? rank.persistent_host_bytes : rank.persistent_bytes) += variable.info.bytes;
    rank.addresses[name] = variable.data;
    rank.variables[name] = std::move(variable);
  }
}

void* Store::Variable(int rank, const std::string& name) const {
  const Impl::Rank& r = impl_->At(rank);
  auto found = r.variables.find(name);
  return found == r.variables.end() ? nullptr : found->second.data;
}

const Store::VariableInfo* Store::Find(int rank, const std::string& name) const {
  const Impl::Rank& r = impl_->At(rank);
  auto found = r.variables.find(name);
  return found == r.variables.end() ? nullptr : &found->second.info;
}

std::vector<Store::VariableInfo> Store::Variables(int rank) const {
  std::vector<VariableInfo> infos;
  for (const auto& [name, variable] : impl_->At(rank).variables) infos.push_back(variable.info);
  return infos;
}

char* Store::Arena(int rank, const std::string& memory) const {
  const auto& arenas = impl_->At(rank).arenas;
  auto found = arenas.find(memory);
  return found == arenas.end() ? nullptr : found->second.base;
}

int64_t Store::ArenaBytes(int rank, const std::string& memory) const {
  const auto& arenas = impl_->At(rank).arenas;
  auto found = arenas.find(memory);
  return found == arenas.end() ? 0 : found->second.bytes;
}

int64_t Store::PersistentBytes(int rank, const std::string& memory) const {
  const Impl::Rank& of_rank = impl_->At(rank);
  return memory == "host" ? of_rank.persistent_host_bytes : of_rank.persistent_bytes;
}

void Store::SetWatch(std::shared_ptr<WriteWatch> watch) {
  std::lock_guard<std::mutex> lock(impl_->launch_mutex);
  impl_->watch = std::move(watch);
}

}  // namespace oneflow_like
