#include "oneflow_like/model/placement.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <set>

#include "actor/device_collectives.h"
#include "actor/net/talk/job.h"
#include "core/device/backend.h"
#include "core/device/communicators.h"
#include "core/device/library_memory.h"
#include "core/plan/plan_values.h"
#include "core/system/cores.h"

namespace oneflow_like {

namespace {

int RanksOfProcess(const ModelImpl& model) {
  const Job* job = model.options.job.get();
  return model.graph.mesh().size() / (job ? job->processes() : 1);
}

// Devices of each host, as far as they are known.
int64_t GivenDevices(const ModelImpl& model) {
  if (!model.options.devices.empty()) return static_cast<int64_t>(model.options.devices.size());
  return model.backend ? model.backend->device_count() : model.graph.mesh().size();
}

// The same for ranks on one device; empty: the host.
std::string HardwareOf(const ModelImpl& model, int rank) {
  const std::string kind = model.graph.mesh().KindOf(rank);
  if (kind == "cpu") return "";
  const Job* job = model.options.job.get();
  const std::string host = job ? job->peers()[rank / RanksOfProcess(model)].host_key : "here";
  return Cat(host, " ", DeviceOf(model, rank, GivenDevices(model)));
}

// The ranks of a rank's process that are on its device, with itself.
int RanksBeside(const ModelImpl& model, int rank) {
  const int hosted = RanksOfProcess(model), first = rank / hosted * hosted;
  if (hosted <= GivenDevices(model) && !model.options.job) return 1;
  const std::string device = HardwareOf(model, rank);
  int count = 0;
  for (int r = first; r < first + hosted; ++r) count += HardwareOf(model, r) == device;
  return count;
}

// As device_collectives.h chooses when it has seen the devices, which reach each other here. Before they are
// opened (ModelImpl::Load), processes that share one are taken to be staged.
GroupWay WayOf(const ModelImpl& model, const plan::Collective& collective) {
  std::set<std::string> hardware;
  std::set<int> processes;
  for (int rank : collective.rank()) {
    hardware.insert(HardwareOf(model, rank));
    processes.insert(rank / RanksOfProcess(model));
  }
  if (hardware.count("") != 0) return GroupWay::kStaged;
  const bool own = static_cast<int>(hardware.size()) == collective.rank_size();
  if ((own || model.groups_share_devices) && !ChooseLibraryWork(collective).empty())
    return GroupWay::kLibrary;
  return processes.size() == 1 ? GroupWay::kEvents : GroupWay::kStaged;
}

// Bytes of a rank's communicators, and how many there are with memory of their own.
std::pair<int64_t, int> CommunicatorsOf(const std::set<std::vector<int>>& sets, const plan::Plan& plan) {
  const auto links = std::count_if(plan.stream().begin(), plan.stream().end(),
                                   [](const plan::Stream& s) { return s.kind() == plan::LINK; });
  const int at_once = std::max(1, static_cast<int>(links));
  std::vector<std::vector<int>> groups(sets.begin(), sets.end());
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  int count = 0;
  for (size_t g = 0; g < groups.size(); ++g) count += ParentOf(groups, g) == g || !SharesMemory(at_once);
  return {count * BytesOfCommunicator(at_once), count};
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

int CoresOfKernels(const Mesh& mesh, int processes, int cores, int threads) {
  if (mesh.kinds() == std::vector<std::string>{"cuda"}) return (mesh.size() + processes - 1) / processes;
  return threads > 0 ? threads : cores;
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

bool SharesDevices(const ModelImpl& model) {
  const Job* job = model.options.job.get();
  if (!job) return false;
  const int hosted = RanksOfProcess(model), first = hosted * job->process();
  std::set<std::string> mine, others;
  for (int rank = 0; rank < model.graph.mesh().size(); ++rank)
    (rank >= first && rank < first + hosted ? mine : others).insert(HardwareOf(model, rank));
  mine.erase("");
  return std::any_of(mine.begin(), mine.end(),
                     [&](const std::string& device) { return others.count(device) != 0; });
}

bool GroupsShareDevices(const ModelImpl& model) {
  Job* job = model.options.job.get();
  if (!job || model.backend == nullptr) return false;
  const bool here = model.backend->GroupsShareDevices();
  const std::vector<std::string> all = job->AllGather("whether groups share devices", here ? "yes" : "no");
  const auto lacks = std::find(all.begin(), all.end(), "no");
  const int hosted = RanksOfProcess(model);
  if (lacks == all.end() && hosted == 1) return true;
  if (here && SharesDevices(model)) {
    const std::string why =
        hosted > 1 ? Cat("each process has ", hosted, " ranks, and NCCL needs a process for each")
                   : Cat("process ", lacks - all.begin(),
                         " has no NCCL of 2.30 or newer with NCCL_MULTI_RANK_GPU_ENABLE=1, as this one has");
    LOG(WARNING) << "processes that share a GPU communicate through the host: " << why;
  }
  return false;
}

MemoryBesides MemoryBesidesPlan(const ModelImpl& model, const plan::Plan& plan) {
  MemoryBesides besides;
  std::map<int, std::pair<int64_t, std::string>> packing;  // by stream, and of which collective
  std::set<std::vector<int>> groups;                       // of the library, by their ranks
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
    const GroupWay way = WayOf(model, actor.collective());
    const GroupMemory memory =
        MemoryOfMember(actor.collective(), args.empty() ? DType::kFloat32 : args[0].dtype, way);
    if (way == GroupWay::kLibrary)
      groups.insert({actor.collective().rank().begin(), actor.collective().rank().end()});
    besides.host += memory.host;
    auto& [most, of] = packing[actor.stream()];
    if (memory.device > most) most = memory.device, of = actor.name();
  }
  for (const auto& [stream, of_stream] : packing) {
    const auto& [bytes, of] = of_stream;
    besides.device += bytes;
    if (bytes > 0) besides.consumers.push_back({Cat("packing of collectives, most for ", of), bytes});
  }
  if (plan.device_kind() == "cuda") {
    const LibraryMemory memory = LibraryMemoryHere();
    besides.libraries = memory.bytes / RanksBeside(model, plan.rank());
    besides.device += besides.libraries;
    besides.consumers.push_back({Cat("code of CUDA's libraries in a process, ",
                                     memory.measured ? "as an earlier run took" : "an estimate"),
                                 besides.libraries});
  }
  const auto [bytes, count] = CommunicatorsOf(groups, plan);
  besides.communicators = bytes;
  besides.device += bytes;
  if (bytes > 0) besides.consumers.push_back({Cat("communicators of NCCL, at most, ", count), bytes});
  return besides;
}

int64_t DeviceBytesOfSecondPlan(const MemoryBesides& besides) {
  return kCudaBytesBesides - kCudaBytesOfOthers + besides.device - besides.libraries;
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
