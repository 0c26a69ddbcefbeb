// Groups by NCCL. Communicators do not block: no call waits for a peer for ever, and what is under way can be
// aborted.
#include "actor/cuda/nccl.h"

#include <glog/logging.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "actor/cuda/error.h"
#include "actor/cuda/nccl_library.h"
#include "core/device/communicators.h"

namespace oneflow_like::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// A member may take to say farewell.
constexpr std::chrono::seconds kFarewellTime(10);

// Finds NCCL's word for ours in a table of both.
template <typename From, typename To, size_t n>
bool Translate(const std::pair<From, To> (&table)[n], From from, To* to) {
  const auto at = std::find_if(table, table + n, [from](const auto& pair) { return pair.first == from; });
  if (at == table + n) return false;
  *to = at->second;
  return true;
}

Status ToNccl(DType dtype, ncclDataType_t* type) {
  constexpr std::pair<DType, ncclDataType_t> kTypes[] = {
      {DType::kFloat32, ncclFloat32}, {DType::kBFloat16, ncclBfloat16}, {DType::kFloat16, ncclFloat16},
      {DType::kInt32, ncclInt32},     {DType::kInt64, ncclInt64},       {DType::kUInt8, ncclUint8}};
  return Translate(kTypes, dtype, type) ? Status() : Status(Cat("NCCL does not combine ", Name(dtype)));
}

Status ToNccl(Reduce reduce, ncclRedOp_t* operation) {
  constexpr std::pair<Reduce, ncclRedOp_t> kSums[] = {
      {Reduce::kSum, ncclSum}, {Reduce::kMax, ncclMax}, {Reduce::kMin, ncclMin}};
  return Translate(kSums, reduce, operation) ? Status() : Status("NCCL combines by sum, max or min");
}

class NcclMember;

// Calls of one or several members by one thread: NCCL begins with them at the end of the group, and each
// member is kept from being aborted until then.
struct Batch {
  std::vector<NcclMember*> members;
  std::vector<std::unique_lock<std::mutex>> locks;
};
thread_local Batch* batch = nullptr;

// One member's communicator. Its functions are called by the thread of the member's stream; Abort by any, so
// NCCL is called under a lock, which is let go between the looks at a call that is in progress.
class NcclMember : public GroupMember {
 public:
  NcclMember(const NcclLibrary& nccl, std::string name, ncclComm_t comm, int multiprocessors)
      : nccl_(nccl), name_(std::move(name)), multiprocessors_(multiprocessors), comm_(comm) {}
  ~NcclMember() override { Leave(); }

  Status AllReduce(DeviceStream* stream, DType dtype, Reduce reduce, const void* from, void* to,
                   int64_t count) override {
    ncclDataType_t type;
    ncclRedOp_t operation;
    if (Status status = ToNccl(dtype, &type); !status.ok()) return status;
    if (Status status = ToNccl(reduce, &operation); !status.ok()) return status;
    return Enqueue(stream, [&](cudaStream_t handle) {
      return nccl_.AllReduce(from, to, count, type, operation, comm_, handle);
    });
  }

  Status ReduceScatter(DeviceStream* stream, DType dtype, Reduce reduce, const void* from, void* to,
                       int64_t count_each) override {
    ncclDataType_t type;
    ncclRedOp_t operation;
    if (Status status = ToNccl(dtype, &type); !status.ok()) return status;
    if (Status status = ToNccl(reduce, &operation); !status.ok()) return status;
    return Enqueue(stream, [&](cudaStream_t handle) {
      return nccl_.ReduceScatter(from, to, count_each, type, operation, comm_, handle);
    });
  }

  Status AllGather(DeviceStream* stream, DType dtype, const void* from, void* to,
                   int64_t count_each) override {
    size_t bytes = static_cast<size_t>(count_each) * SizeOf(dtype);
    return Enqueue(stream, [&](cudaStream_t handle) {
      return nccl_.AllGather(from, to, bytes, ncclUint8, comm_, handle);
    });
  }

  Status Exchange(DeviceStream* stream, const std::vector<Transfer>& transfers) override {
    return Enqueue(stream, [&](cudaStream_t handle) {
      ncclResult_t result = nccl_.GroupStart();
      for (const Transfer& transfer : transfers) {
        if (result != ncclSuccess) break;
        if (transfer.bytes == 0) continue;  // at the other end, too
        size_t bytes = static_cast<size_t>(transfer.bytes);
        result = transfer.send ? nccl_.Send(transfer.data, bytes, ncclUint8, transfer.peer, comm_, handle)
                               : nccl_.Recv(transfer.data, bytes, ncclUint8, transfer.peer, comm_, handle);
        if (result == ncclInProgress) result = ncclSuccess;  // nothing begins before the group's end
      }
      ncclResult_t end = nccl_.GroupEnd();
      return result == ncclSuccess ? end : result;
    });
  }

  // Of all members here before any is waited for: the library wants it so of ranks in one process.
  void BeginLeaving() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr || std::exchange(leaving_, true)) return;
    left_ = nccl_.CommFinalize(comm_);
  }

  // After the end of a batch, `result` of which is what the library said.
  Status WaitUntilEnqueued(ncclResult_t result) {
    while (result == ncclSuccess || result == ncclInProgress) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (comm_ == nullptr) return Aborted();
        ncclResult_t asked = nccl_.CommGetAsyncError(comm_, &result);
        if (asked != ncclSuccess) result = asked;
        if (result == ncclSuccess) return Status();
      }
      std::this_thread::yield();
    }
    std::lock_guard<std::mutex> lock(mutex_);
    return comm_ == nullptr ? Aborted() : Status(Cat("group ", name_, ": ", nccl_.Say(result, comm_)));
  }

  // Null when aborted. For those who make groups, while nothing is called.
  ncclComm_t comm() const { return comm_; }
  int multiprocessors() const { return multiprocessors_; }

  void Abort() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return;
    if (failure_ != nullptr) failure_->Set(Aborted());  // first: what is under way ends with it
    nccl_.CommAbort(comm_);
    comm_ = nullptr;
  }

 private:
  Status Aborted() const { return Status(Cat("group ", name_, " was aborted: one of its ranks is lost")); }

  // Returns when the call is enqueued: what the stream gets next comes after it. That is at once but for the
  // first calls of a kind, when the members' helpers make connections.
  template <typename Call>
  Status Enqueue(DeviceStream* device_stream, Call call) {
    auto* stream = static_cast<CudaStream*>(device_stream);
    stream->device().gpu().Use();
    const bool again = batch != nullptr && std::find(batch->members.begin(), batch->members.end(), this) !=
                                               batch->members.end();  // locked by its first call
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (!again) lock.lock();
    if (comm_ == nullptr) return Aborted();
    failure_ = stream->failure();
    ncclResult_t result = call(stream->handle());
    if (batch != nullptr) {
      if (!again) {
        batch->members.push_back(this);
        batch->locks.push_back(std::move(lock));
      }
      if (result == ncclSuccess || result == ncclInProgress) return Status();
      return Status(Cat("group ", name_, ": ", nccl_.Say(result, comm_)));
    }
    lock.unlock();
    return WaitUntilEnqueued(result);
  }

  // What this member sent last may still be on its way when its stream is done: NCCL's own threads carry it.
  void Leave() {
    BeginLeaving();
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return;
    ncclResult_t result = left_;
    const Clock::time_point end = Clock::now() + kFarewellTime;
    while ((result == ncclSuccess || result == ncclInProgress) && Clock::now() < end) {
      if (nccl_.CommGetAsyncError(comm_, &result) != ncclSuccess) result = ncclInternalError;
      if (result == ncclSuccess) break;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (result == ncclSuccess) {
      nccl_.CommDestroy(comm_);
    } else {
      nccl_.CommAbort(comm_);
    }
    comm_ = nullptr;
  }

  const NcclLibrary& nccl_;
  const std::string name_;
  const int multiprocessors_;  // of its device
  std::mutex mutex_;           // Abort comes from the thread that notices a lost rank
  ncclComm_t comm_;            // null when aborted
  bool leaving_ = false;       // CommFinalize was called, and said:
  ncclResult_t left_ = ncclSuccess;
  std::shared_ptr<FirstFailure> failure_;  // of the stream used last
};

// Version and topology, once for a process.
void LogTopology(const NcclLibrary& nccl) {
  int version = 0, count = 0;
  nccl.GetVersion(&version);
  if (cudaGetDeviceCount(&count) != cudaSuccess) return;
  LOG(INFO) << "NCCL " << version / 10000 << "." << version % 10000 / 100 << "." << version % 100 << ", "
            << count << " GPUs in this process";
  for (int from = 0; from < count; ++from) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, from) != cudaSuccess) continue;
    std::string line = Cat("GPU ", from, " (", properties.name, ") reaches");
    for (int to = 0; to < count; ++to) {
      int reaches = 0, atomics = 0;
      if (to == from || cudaDeviceCanAccessPeer(&reaches, from, to) != cudaSuccess) continue;
      // Atomics between GPUs go over NVLink alone.
      cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to);
      line += Cat(" ", to, reaches == 0 ? ":by the host" : atomics != 0 ? ":NVLink" : ":PCIe");
    }
    LOG(INFO) << line;
  }
  cudaGetLastError();
}

// A name as long as the process lives: NCCL keeps the pointer to what its logs call a communicator.
const char* KeptName(const std::string& name) {
  static std::mutex mutex;  // groups are made by threads of several runtimes
  static auto* names = new std::set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  return names->insert(name).first->c_str();
}

// Until calls that make something of all ranks are done on these communicators: empty, or what went wrong.
std::string WaitFor(const NcclLibrary& nccl, const std::vector<ncclComm_t>& comms, const GroupSpec& group) {
  const Clock::time_point deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                        std::chrono::duration<double>(group.connect_seconds));
  for (ncclComm_t comm : comms) {
    ncclResult_t result = ncclInProgress;
    while (result == ncclInProgress && Clock::now() < deadline) {
      if (ncclResult_t asked = nccl.CommGetAsyncError(comm, &result); asked != ncclSuccess) result = asked;
      if (result == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    if (result == ncclInProgress)
      return Cat("not all of its ", group.ranks.size(), " ranks came within ", group.connect_seconds, " s");
    if (result != ncclSuccess) return nccl.Say(result, comm);
  }
  return "";
}

// Collectives that are under way at one time leave half of a GPU to the kernels beside them: otherwise one
// might wait for multiprocessors that another holds while that waits for its peers.
ncclConfig_t ConfigOf(const GroupSpec& group, int multiprocessors) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (group.at_once > 1) config.maxCTAs = ChannelsOf(group.at_once, multiprocessors);
  config.commName = KeptName(group.name);
  return config;
}

// Streams of a device wait for one another in hardware where there are fewer queues than streams in use: what
// a collective needs may then be enqueued behind it. Sessions take turns, so that the default is always
// enough.
void CheckConnections(const Gpu& gpu, int streams) {
  constexpr int kDefault = 8;
  const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (text == nullptr) return;
  const int needed = std::min(streams + 1, kDefault);  // and one for copies that are waited for
  LOG_IF(WARNING, std::atoi(text) < needed)
      << "CUDA_DEVICE_MAX_CONNECTIONS is " << text << ", but " << gpu.name() << " has " << needed
      << " streams: they wait for each other, and collectives perhaps for ever; set it to " << needed
      << " or more, or not at all";
}

}  // namespace

bool HasGroups() { return FindNccl() != nullptr; }

// Older versions refuse such a group, and so do newer ones where NCCL's own variable does not ask for it: the
// user then answers for multiprocessors for the kernels of all ranks (NCCL_MAX_CTAS).
bool GroupsShareDevices() {
  constexpr int kFirst = 23000;
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const NcclLibrary* nccl = FindNccl();
  int version = 0;
  return text != nullptr && std::atoi(text) != 0 && nccl != nullptr &&
         nccl->GetVersion(&version) == ncclSuccess && version >= kFirst;
}

std::string MakeGroupId() {
  const NcclLibrary& nccl = OpenNccl();
  ncclUniqueId id;
  if (ncclResult_t result = nccl.GetUniqueId(&id); result != ncclSuccess) {
    Fail("NCCL makes no identifier for a group: ", nccl.Say(result));
  }
  return std::string(id.internal, sizeof(id.internal));
}

std::vector<std::unique_ptr<GroupMember>> ConnectGroup(const std::string& id, const GroupSpec& group,
                                                       const std::vector<int>& members,
                                                       const std::vector<Device*>& devices) {
  const NcclLibrary& nccl = OpenNccl();
  static std::once_flag logged;
  std::call_once(logged, [&] { LogTopology(nccl); });
  ncclUniqueId unique;
  if (id.size() != sizeof(unique.internal)) Fail("the identifier of group ", group.name, " is damaged");
  std::memcpy(unique.internal, id.data(), sizeof(unique.internal));
  std::vector<ncclComm_t> comms(members.size(), nullptr);
  ncclResult_t result = nccl.GroupStart();
  for (size_t i = 0; i < members.size() && result == ncclSuccess; ++i) {
    static_cast<CudaDevice*>(devices[i])->gpu().Use();
    Gpu& gpu = static_cast<CudaDevice*>(devices[i])->gpu();
    CheckConnections(gpu, gpu.streams());
    ncclConfig_t config = ConfigOf(group, gpu.multiprocessors());
    int ranks = static_cast<int>(group.ranks.size());
    result = nccl.CommInitRankConfig(&comms[i], ranks, unique, members[i], &config);
    if (result == ncclInProgress) result = ncclSuccess;
  }
  if (ncclResult_t end = nccl.GroupEnd(); result == ncclSuccess && end != ncclInProgress) result = end;

  std::string failure = result == ncclSuccess ? "" : nccl.Say(result);
  if (failure.empty()) failure = WaitFor(nccl, comms, group);
  if (!failure.empty()) {
    for (ncclComm_t comm : comms) {
      if (comm != nullptr) nccl.CommAbort(comm);
    }
    Fail("group ", group.name, " cannot be made by NCCL: ", failure);
  }
  std::vector<std::unique_ptr<GroupMember>> made;
  for (size_t i = 0; i < comms.size(); ++i) {
    const int multiprocessors = static_cast<CudaDevice*>(devices[i])->gpu().multiprocessors();
    made.push_back(std::make_unique<NcclMember>(nccl, group.name, comms[i], multiprocessors));
  }
  return made;
}

std::optional<std::map<int, std::unique_ptr<GroupMember>>> SplitGroup(
    const GroupSpec& parent, const std::map<int, GroupMember*>& parents, const GroupSpec& group) {
  const NcclLibrary& nccl = OpenNccl();
  if (nccl.CommSplit == nullptr) return std::nullopt;
  std::vector<ncclComm_t> from, to(parents.size(), nullptr);
  std::vector<int> keys, multiprocessors;  // in the new group, or -1; of its device
  for (const auto& [index, member] : parents) {
    from.push_back(static_cast<NcclMember*>(member)->comm());
    multiprocessors.push_back(static_cast<NcclMember*>(member)->multiprocessors());
    auto at = std::find(group.ranks.begin(), group.ranks.end(), parent.ranks[index]);
    keys.push_back(at == group.ranks.end() ? -1 : static_cast<int>(at - group.ranks.begin()));
    if (from.back() == nullptr)
      Fail("group ", group.name, " cannot be made: group ", parent.name, " was aborted");
  }
  ncclResult_t result = nccl.GroupStart();
  for (size_t i = 0; i < from.size() && result == ncclSuccess; ++i) {
    ncclConfig_t config = ConfigOf(group, multiprocessors[i]);
    config.splitShare = SharesMemory(group.at_once) ? 1 : 0;
    result = nccl.CommSplit(from[i], keys[i] < 0 ? NCCL_SPLIT_NOCOLOR : 0, keys[i], &to[i], &config);
    if (result == ncclInProgress) result = ncclSuccess;
  }
  if (ncclResult_t end = nccl.GroupEnd(); result == ncclSuccess && end != ncclInProgress) result = end;
  std::string failure = result == ncclSuccess ? WaitFor(nccl, from, parent) : nccl.Say(result);
  std::map<int, std::unique_ptr<GroupMember>> made;
  std::vector<ncclComm_t> new_ones;
  for (size_t i = 0; i < to.size() && failure.empty(); ++i) {
    if (keys[i] < 0) continue;
    new_ones.push_back(to[i]);
    made[keys[i]] = std::make_unique<NcclMember>(nccl, group.name, to[i], multiprocessors[i]);
  }
  if (failure.empty()) failure = WaitFor(nccl, new_ones, group);
  if (failure.empty()) return made;
  for (auto& [key, member] : made) member->Abort();
  Fail("group ", group.name, " cannot be made by NCCL of group ", parent.name, ": ", failure);
}

Status LaunchTogether(const std::function<Status()>& calls) {
  const NcclLibrary& nccl = OpenNccl();
  CHECK(batch == nullptr) << "groups of calls do not nest";
  Batch together;
  ncclResult_t result = nccl.GroupStart();
  if (result != ncclSuccess) return Status(Cat("ncclGroupStart: ", nccl.Say(result)));
  batch = &together;
  Status status = calls();
  batch = nullptr;
  result = nccl.GroupEnd();
  together.locks.clear();
  for (NcclMember* member : together.members) {
    Status enqueued = member->WaitUntilEnqueued(result);
    if (status.ok()) status = enqueued;
  }
  return status;
}

}  // namespace oneflow_like::cuda
