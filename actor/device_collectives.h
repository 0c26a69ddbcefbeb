// Collectives of ranks on asynchronous devices, in one of three ways, depending on the group's members:
//   events   all in this process and in reach of one another (virtual devices, cards with peer access): each
//            member's stream moves its own regions between the others' pieces; streams wait for each other's
//            events
//   library  each on a device of its own: the vendor's library (NCCL). Or several on one device, if each of
//            their processes has one rank and Backend::GroupsShareDevices holds in all processes of the job
//   staged   anything else (members on the host, several processes sharing a card): through memory of the
//            host and the collectives of threads or processes
// All members of a group make the same choice, from what all processes report about their ranks.
// Counts of rows are on the devices: with events and in the library's calls all rows go, up to the bound, and
// no host waits for a count; staged, those that are counted.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actor/collective.h"

namespace oneflow_like {

class Backend;

struct DeviceCollectivesOptions {
  std::string plan;
  std::vector<int> ranks;        // hosted here
  std::vector<Device*> devices;  // of `ranks`
  Backend* backend = nullptr;    // of the devices that are asynchronous; nullptr: without the library
  Collectives* host = nullptr;   // must outlive these
  int link_streams = 1;          // most collectives that may be under way on a device
  // All-gather between processes: each passes a text and gets those of all, by process. Empty: a single
  // process.
  std::function<std::vector<std::string>(const std::string& what, const std::string& mine)> exchange;
};
std::unique_ptr<Collectives> MakeDeviceCollectives(DeviceCollectivesOptions options);

enum class GroupWay { kEvents, kLibrary, kStaged };

// Memory that a member's end needs, beside the plan's arena: bytes of its device, which all ends of a stream
// share, as they run one after another; and of host memory that its device copies to and from, all its own.
struct GroupMemory {
  int64_t device = 0, host = 0;
};
GroupMemory MemoryOfMember(const plan::Collective& collective, DType dtype, GroupWay way);

// How a group of the vendor's library executes one operand of a collective.
struct LibraryWork {
  enum class Kind { kNone, kAllReduce, kReduceScatter, kAllGather, kCopies } kind = Kind::kNone;
  int64_t count = 0;  // elements of the whole (all-reduce) or of each member's part
  // Parts that are not contiguous in a member's piece are packed before, or unpacked after: elements of
  // device memory. Not for kCopies, where they differ from member to member.
  int64_t packed_elements = 0;
};
// By operand; the same on all members. Empty: this collective is staged.
std::vector<LibraryWork> ChooseLibraryWork(const plan::Collective& collective);
// Bytes of device memory in which this member packs.
int64_t PackedBytes(const plan::Collective& collective, const std::vector<LibraryWork>& works, DType dtype);

// Where the members of one stream pack, one after another: of the size of the one that needs most.
class PackingMemory {
 public:
  void Reserve(int64_t bytes) { bytes_ = std::max(bytes_, bytes); }
  // After the last Reserve, before the first act.
  void Allocate(Device* device);
  char* data() const { return memory_ == nullptr ? nullptr : static_cast<char*>(memory_->data()); }

 private:
  int64_t bytes_ = 0;
  std::unique_ptr<Memory> memory_;
};

// The members of one collective that this process hosts. The last to arrive enqueues for all of them, on
// their streams and in one launch of the backend's: a collective that has begun on one of the process's
// devices never waits for a launch on another. `enqueuing` is one lock for all groups of the plan in this
// process: every device gets its collectives in the same order, whatever streams they are on.
class GroupMember;
class LibraryMember;
class LibraryGroup {
 public:
  LibraryGroup(int members_here, Backend* backend, std::shared_ptr<std::mutex> enqueuing);
  void Add(LibraryMember* member);
  void Remove(LibraryMember* member);
  void Arrived();  // called by a member that has its pieces

 private:
  void Enqueue();

  const int members_here_;
  Backend* const backend_;
  const std::shared_ptr<std::mutex> enqueuing_;
  std::vector<LibraryMember*> members_;
  std::atomic<int> arrived_{0};
};

// A member's end; SetGroup is called before the first arrival. An act calls Pack, Call and Unpack in this
// order.
class LibraryMember : public CollectiveMember {
 public:
  virtual void SetGroup(GroupMember* group) = 0;
  virtual int calls() const = 0;  // calls of the library in an act
  virtual Status Pack() = 0;
  virtual Status Call() = 0;
  virtual Status Unpack() = 0;
  virtual void PostDone(bool ok) = 0;
};
std::unique_ptr<LibraryMember> MakeLibraryMember(const CollectiveSpec& spec,
                                                 const plan::Collective& collective,
                                                 const std::vector<LibraryWork>& works,
                                                 std::shared_ptr<LibraryGroup> together,
                                                 std::shared_ptr<PackingMemory> packing);

}  // namespace oneflow_like
