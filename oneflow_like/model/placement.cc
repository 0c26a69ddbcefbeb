#include "oneflow_like/model/placement.h"

#include <algorithm>
#include <map>
#include <set>

#include "actor/device_collectives.h"
#include "actor/net/talk/job.h"
#include "core/plan/plan_values.h"
#include "core/system/cores.h"

namespace oneflow_like {

namespace {

int RanksOfProcess(const ModelImpl& model) {
  const Job* job = model.options.job.get();
  return model.graph.mesh().size() / (job ? job->processes() : 1);
}

// The same for ranks on one device; empty: the host.
std::string HardwareOf(const ModelImpl& model, int rank) {
  const std::string kind = model.graph.mesh().KindOf(rank);
  if (kind == "cpu") return "";
  const Job* job = model.options.job.get();
  const std::string host = job ? job->peers()[rank / RanksOfProcess(model)].host_key : "here";
  const int64_t given = !model.options.devices.empty() ? static_cast<int64_t>(model.options.devices.size())
                        : model.backend                ? model.backend->device_count()
                                                       : model.graph.mesh().size();
  return Cat(host, " ", DeviceOf(model, rank, given));
}

// As device_collectives.h chooses when it has seen the devices, which reach each other here.
GroupWay WayOf(const ModelImpl& model, const plan::Collective& collective) {
  std::set<std::string> hardware;
  std::set<int> processes;
  for (int rank : collective.rank()) {
    hardware.insert(HardwareOf(model, rank));
    processes.insert(rank / RanksOfProcess(model));
  }
  if (hardware.count("") != 0) return GroupWay::kStaged;
  const bool own = static_cast<int>(hardware.size()) == collective.rank_size();
  if (own && !ChooseLibraryWork(collective).empty()) return GroupWay::kLibrary;
  return processes.size() == 1 ? GroupWay::kEvents : GroupWay::kStaged;
}

}  // namespace

ProcessesOfHost ProcessesBeside(const Job* job, int process) {
  if (!job) return {};
  const std::vector<PeerInfo>& peers = job->peers();
  const std::string& key = peers[process].host_key;
  ProcessesOfHost beside{0, 0};
  for (int p = 0; p < static_cast<int>(peers.size()); ++p) {
    if (peers[p].host_key != key) continue;
    if (p == process) beside.me = beside.count;
    ++beside.count;
  }
  return beside;
}

int CoresHere(const Job* job) {
  if (!job) return UsableCores();
  const PeerInfo& here = job->peers()[job->process()];
  std::vector<std::string> texts = {here.cores};
  for (const PeerInfo& peer : job->peers())
    if (peer.host_key == here.host_key && peer.process != here.process) texts.push_back(peer.cores);
  const int share = ShareOfCores(texts, 0);  // none of a job that does not tell
  return share > 0 ? share : std::max(1, UsableCores() / static_cast<int>(texts.size()));
}

int64_t DeviceOf(const ModelImpl& model, int rank, int64_t given) {
  const int hosted = RanksOfProcess(model);
  const ProcessesOfHost processes = ProcessesBeside(model.options.job.get(), rank / hosted);
  const int64_t ranks = int64_t{hosted} * processes.count,
                number = int64_t{hosted} * processes.me + rank % hosted;
  return ranks <= given ? number : number * given / ranks;
}

MemoryBesides MemoryBesidesPlan(const ModelImpl& model, const plan::Plan& plan) {
  MemoryBesides besides;
  std::map<int, std::pair<int64_t, std::string>> packing;  // by stream, and of which collective
  for (const plan::Actor& actor : plan.actor()) {
    const bool moves = !actor.feed().empty() || !actor.fetch().empty();
    if ((!moves && !actor.has_collective()) || actor.kernel_size() != 1) continue;
    const KernelSpec spec = ToSpec(actor.kernel(0));
    const std::vector<TensorArg>& args = spec.in.empty() ? spec.out : spec.in;
    if (moves) {
      for (const TensorArg& arg : args)
        besides.host += std::max<int64_t>(1, arg.elements() * static_cast<int64_t>(SizeOf(arg.dtype)));
      continue;
    }
    const GroupMemory memory = MemoryOfMember(
        actor.collective(), args.empty() ? DType::kFloat32 : args[0].dtype, WayOf(model, actor.collective()));
    besides.host += memory.host;
    auto& [most, of] = packing[actor.stream()];
    if (memory.device > most) most = memory.device, of = actor.name();
  }
  for (const auto& [stream, of_stream] : packing) {
    const auto& [bytes, of] = of_stream;
    besides.device += bytes;
    if (bytes > 0) besides.consumers.push_back({Cat("packing of collectives, most for ", of), bytes});
  }
  return besides;
}

int64_t FeedBytes(const plan::Plan& plan, int steps_in_flight) {
  constexpr int kBatchesOfPipeline = 3;
  int64_t bytes = 0;  // of a step
  for (const plan::Actor& actor : plan.actor()) {
    if (actor.feed().empty() || actor.kernel_size() != 1) continue;
    for (const TensorArg& piece : ToSpec(actor.kernel(0)).out)
      bytes += actor.acts() * piece.elements() * static_cast<int64_t>(SizeOf(piece.dtype));
  }
  return (steps_in_flight + kBatchesOfPipeline) * bytes;
}

}  // namespace oneflow_like
