// Groups of ranks as NCCL makes them (actor/cuda/nccl.h), for emulated devices of one process: members meet
// on their streams' threads, in the order of their calls. Each reads what all have before any writes, as
// operations in place want.
#include <glog/logging.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "actor/cuda/nccl.h"
#include "core/device/communicators.h"
#include "tests/cuda_emulator/cuda_runtime.h"
#include "tests/cuda_emulator/state.h"

namespace oneflow_like::cuda {
namespace {

struct Operation {
  std::string call;  // must be the same on all members: "AllReduce f32 sum 12"
  DType dtype = DType::kUInt8;
  Reduce reduce = Reduce::kNone;
  const char* from = nullptr;
  char* to = nullptr;
  int64_t count = 0;
  std::vector<GroupMember::Transfer> transfers;
};

// One call of all members.
struct Meeting {
  std::vector<Operation> operations;
  int arrived = 0, read = 0, left = 0;
};

class Group {
 public:
  explicit Group(int members) : members_(members) {}
  ~Group() { cuda_emulator::ForgetLaunches(this); }
  int members() const { return members_; }

  // On a stream's thread: returns when this member's part is done or the group aborted.
  void Perform(int member, int64_t number, const Operation& operation) {
    const cuda_emulator::Resident resident(cuda_emulator::ThisThread().device);
    cuda_emulator::OpenAllDevices();  // NCCL finds its way where kernels have none
    std::unique_lock<std::mutex> lock(mutex_);
    Meeting& meeting = meetings_[number];
    meeting.operations.resize(members_);
    meeting.operations[member] = operation;
    if (!MeetAt(&meeting.arrived, &lock)) return;
    for (const Operation& other : meeting.operations) {
      CHECK_EQ(other.call, operation.call) << "members of a group call different functions";
    }
    lock.unlock();
    std::vector<std::pair<char*, std::string>> writes = Read(meeting.operations, member);
    lock.lock();
    if (!MeetAt(&meeting.read, &lock)) return;
    for (auto& [to, bytes] : writes) std::memcpy(to, bytes.data(), bytes.size());
    if (++meeting.left == members_) meetings_.erase(number);
  }

  void Abort() {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    met_.notify_all();
    cuda_emulator::ForgetLaunches(this);
  }

  // The same one for all members that split this group for the `number`th time, into these ranks.
  std::shared_ptr<Group> Split(int number, const std::vector<int>& ranks) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::weak_ptr<Group>& known = splits_[{number, ranks}];
    std::shared_ptr<Group> made = known.lock();
    if (made == nullptr) known = made = std::make_shared<Group>(static_cast<int>(ranks.size()));
    return made;
  }

  // Members that leave wait for those that have not begun to: in one process for ever.
  void BeginLeaving() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++leaving_;
  }
  void Leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_ || leaving_ == members_) return;
    cuda_emulator::TellFault("a communicator is waited for before all of its process have begun to leave");
  }

 private:
  bool MeetAt(int* count, std::unique_lock<std::mutex>* lock) {
    ++*count;
    met_.notify_all();
    met_.wait(*lock, [&] { return aborted_ || *count == members_; });
    return !aborted_;
  }

  // What the member will write, and where.
  std::vector<std::pair<char*, std::string>> Read(const std::vector<Operation>& operations, int member) {
    const Operation& mine = operations[member];
    const std::string call = mine.call.substr(0, mine.call.find(' '));
    std::vector<std::pair<char*, std::string>> writes;
    if (call == "Exchange") {
      std::vector<size_t> next(members_, 0);  // by peer: how many of its transfers have been looked at
      for (const GroupMember::Transfer& transfer : mine.transfers) {
        if (transfer.send) continue;
        const auto& theirs = operations[transfer.peer].transfers;
        size_t& i = next[transfer.peer];
        while (i < theirs.size() && !(theirs[i].send && theirs[i].peer == member)) ++i;
        CHECK_LT(i, theirs.size()) << "a member receives what nobody sends";
        CHECK_EQ(theirs[i].bytes, transfer.bytes);
        writes.emplace_back(static_cast<char*>(transfer.data),
                            std::string(static_cast<const char*>(theirs[i++].data), transfer.bytes));
      }
      return writes;
    }
    const size_t bytes = mine.count * SizeOf(mine.dtype);
    if (call == "AllGather") {
      for (int i = 0; i < members_; ++i) {
        writes.emplace_back(mine.to + i * bytes, std::string(operations[i].from, bytes));
      }
      return writes;
    }
    std::string result(bytes, '\0');
    const Box box = Box::Whole({mine.count});
    const size_t offset = call == "ReduceScatter" ? member * bytes : 0;
    std::vector<Piece> from;
    for (const Operation& other : operations) from.push_back({const_cast<char*>(other.from) + offset, box});
    const Piece to{result.data(), box};
    CombineBox(mine.dtype, mine.reduce, box, from.data(), members_, &to, 1);
    writes.emplace_back(mine.to, std::move(result));
    return writes;
  }

  const int members_;
  std::mutex mutex_;
  std::condition_variable met_;
  std::map<std::pair<int, std::vector<int>>, std::weak_ptr<Group>> splits_;
  std::map<int64_t, Meeting> meetings_;  // by number of the call; a Meeting stays where it is
  bool aborted_ = false;
  int leaving_ = 0;
};

class EmulatedMember : public GroupMember {
 public:
  EmulatedMember(std::shared_ptr<Group> group, std::string name, int member, int device, size_t bytes)
      : group_(std::move(group)), name_(std::move(name)), member_(member), device_(device), bytes_(bytes) {
    cuda_emulator::DeviceOf(device_).used += bytes_;
  }
  ~EmulatedMember() override {
    BeginLeaving();
    group_->Leave();
    cuda_emulator::DeviceOf(device_).used -= bytes_;
  }
  int device() const { return device_; }
  // Called by one thread at a time, as what makes groups is.
  std::shared_ptr<Group> Split(const std::vector<int>& ranks) { return group_->Split(splits_++, ranks); }

  void BeginLeaving() override {
    if (!std::exchange(leaving_, true)) group_->BeginLeaving();
  }

  Status AllReduce(DeviceStream* stream, DType dtype, Reduce reduce, const void* from, void* to,
                   int64_t count) override {
    return Enqueue(stream, "AllReduce", dtype, reduce, from, to, count);
  }
  Status ReduceScatter(DeviceStream* stream, DType dtype, Reduce reduce, const void* from, void* to,
                       int64_t count_each) override {
    return Enqueue(stream, "ReduceScatter", dtype, reduce, from, to, count_each);
  }
  Status AllGather(DeviceStream* stream, DType dtype, const void* from, void* to,
                   int64_t count_each) override {
    return Enqueue(stream, "AllGather", dtype, Reduce::kNone, from, to, count_each);
  }
  Status Exchange(DeviceStream* stream, const std::vector<Transfer>& transfers) override {
    Operation operation;
    operation.call = "Exchange ";
    for (const Transfer& transfer : transfers) {
      if (transfer.bytes > 0) operation.transfers.push_back(transfer);
    }
    return Enqueue(stream, std::move(operation));
  }
  void Abort() override {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    if (failure_ != nullptr) failure_->Set(Aborted());  // first: what is under way ends with it
    group_->Abort();
  }

 private:
  Status Aborted() const { return Status(Cat("group ", name_, " was aborted: one of its ranks is lost")); }

  Status Enqueue(DeviceStream* stream, const char* call, DType dtype, Reduce reduce, const void* from,
                 void* to, int64_t count) {
    Operation operation;
    operation.call = Cat(call, " ", Name(dtype), " ", Name(reduce), " ", count);
    operation.dtype = dtype;
    operation.reduce = reduce;
    operation.from = static_cast<const char*>(from);
    operation.to = static_cast<char*>(to);
    operation.count = count;
    return Enqueue(stream, std::move(operation));
  }

  Status Enqueue(DeviceStream* device_stream, Operation operation) {
    auto* stream = static_cast<CudaStream*>(device_stream);
    stream->device().gpu().Use();
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return Aborted();
    failure_ = stream->failure();
    int64_t number = calls_++;
    cuda_emulator::LaunchMember(group_.get(), number, group_->members());
    cuda_emulator::Enqueue(stream->handle(), [group = group_, member = member_, number, operation] {
      group->Perform(member, number, operation);
    });
    cuda_emulator::Wake(stream->handle());  // the others wait for it
    return Status();
  }

  const std::shared_ptr<Group> group_;
  const std::string name_;
  const int member_, device_;
  const size_t bytes_;
  bool leaving_ = false;
  int splits_ = 0;
  std::mutex mutex_;  // Abort comes from any thread
  int64_t calls_ = 0;
  bool aborted_ = false;
  std::shared_ptr<FirstFailure> failure_;
};

size_t BytesOf(const GroupSpec& group) {
  const cuda_emulator::Options& options = cuda_emulator::TheWorld().options;
  return options.bytes_of_communicator +
         static_cast<size_t>(options.stated_of_communicator *
                             static_cast<double>(BytesOfCommunicator(group.at_once)));
}

std::mutex groups_mutex;
std::map<std::string, std::weak_ptr<Group>> groups;  // by identifier
int64_t identifiers = 0;

}  // namespace

bool HasGroups() { return true; }
bool GroupsShareDevices() { return false; }  // its groups are of one process

std::string MakeGroupId() {
  std::lock_guard<std::mutex> lock(groups_mutex);
  return Cat("emulated group ", identifiers++);
}

std::vector<std::unique_ptr<GroupMember>> ConnectGroup(const std::string& id, const GroupSpec& group,
                                                       const std::vector<int>& members,
                                                       const std::vector<Device*>& devices) {
  std::lock_guard<std::mutex> lock(groups_mutex);
  std::shared_ptr<Group> made = groups[id].lock();
  if (made == nullptr) groups[id] = made = std::make_shared<Group>(static_cast<int>(group.ranks.size()));
  std::vector<std::unique_ptr<GroupMember>> ends;
  for (size_t i = 0; i < members.size(); ++i) {
    ends.push_back(std::make_unique<EmulatedMember>(
        made, group.name, members[i], static_cast<CudaDevice*>(devices[i])->gpu().ordinal(), BytesOf(group)));
  }
  return ends;
}

// Shares the parent's memory where groups take turns.
std::optional<std::map<int, std::unique_ptr<GroupMember>>> SplitGroup(
    const GroupSpec& parent, const std::map<int, GroupMember*>& parents, const GroupSpec& group) {
  std::map<int, std::unique_ptr<GroupMember>> ends;
  for (const auto& [index, member] : parents) {
    auto* from = static_cast<EmulatedMember*>(member);
    std::shared_ptr<Group> made = from->Split(group.ranks);
    auto at = std::find(group.ranks.begin(), group.ranks.end(), parent.ranks[index]);
    if (at == group.ranks.end()) continue;
    const int me = static_cast<int>(at - group.ranks.begin());
    ends[me] = std::make_unique<EmulatedMember>(std::move(made), group.name, me, from->device(),
                                                SharesMemory(group.at_once) ? 0 : BytesOf(group));
  }
  return ends;
}

Status LaunchTogether(const std::function<Status()>& calls) { return calls(); }

}  // namespace oneflow_like::cuda
