// Collectives of ranks on asynchronous devices. One of three ways, by where a group's members are:
//   events   all in this process and in reach of one another (virtual devices, cards with peer access): each
//            member's stream moves its own regions between the others' pieces; streams wait for each other's
//            events
//   library  each on a device of its own: the vendor's library (NCCL)
//   staged   anything else (members on the host, several processes sharing a card): through memory of the
//            host and the collectives of threads or processes
// All members of a group come to the same answer, from what all processes say of their ranks.
#pragma once

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
  Collectives* host = nullptr;   // outlives these
  // Between processes: each gives a text, all get all, by process. Empty: there are no others.
  std::function<std::vector<std::string>(const std::string& what, const std::string& mine)> exchange;
};
std::unique_ptr<Collectives> MakeDeviceCollectives(DeviceCollectivesOptions options);

enum class GroupWay { kEvents, kLibrary, kStaged };

// What a member's end takes when a plan is loaded, beside the plan's arena: bytes of its device, and of the
// host's memory that its device copies to and from.
struct GroupMemory {
  int64_t device = 0, host = 0;
};
GroupMemory MemoryOfMember(const plan::Collective& collective, DType dtype, GroupWay way);

// How a group of the vendor's library does one operand of a collective.
struct LibraryWork {
  enum class Kind { kNone, kAllReduce, kReduceScatter, kAllGather, kCopies } kind = Kind::kNone;
  int64_t count = 0;  // elements of the whole (all-reduce) or of each member's part
  // Parts that are no runs of a member's piece are packed before, or unpacked after: elements of device
  // memory, but for kCopies, where they differ from member to member.
  int64_t packed_elements = 0;
};
// By operand, the same on all members. Empty: this collective is staged.
std::vector<LibraryWork> ChooseLibraryWork(const plan::Collective& collective);
// Elements of device memory that this member packs in.
int64_t PackedElements(const plan::Collective& collective, const std::vector<LibraryWork>& works);

// The members of one collective that this process hosts. The last to arrive enqueues for all of them, on
// their streams and in one launch of the backend's: a collective that has begun on one of the process's
// devices never waits for a launch on another. `enqueuing` is one lock for all groups of the plan here: every
// device gets its collectives in the same order, whatever streams they are on.
class GroupMember;
class LibraryMember;
class LibraryGroup {
 public:
  LibraryGroup(int members_here, Backend* backend, std::shared_ptr<std::mutex> enqueuing);
  void Add(LibraryMember* member);
  void Remove(LibraryMember* member);
  void Arrived();  // a member, with its pieces

 private:
  void Enqueue();

  const int members_here_;
  Backend* const backend_;
  const std::shared_ptr<std::mutex> enqueuing_;
  std::vector<LibraryMember*> members_;
  std::atomic<int> arrived_{0};
};

// A member's end; `group` is given before the first arrival. An act is packed, called and unpacked in this
// order.
class LibraryMember : public CollectiveMember {
 public:
  virtual void SetGroup(GroupMember* group) = 0;
  virtual int calls() const = 0;  // of the library in an act
  virtual Status Pack() = 0;
  virtual Status Call() = 0;
  virtual Status Unpack() = 0;
  virtual void PostDone(bool ok) = 0;
};
std::unique_ptr<LibraryMember> MakeLibraryMember(const CollectiveSpec& spec,
                                                 const plan::Collective& collective,
                                                 const std::vector<LibraryWork>& works,
                                                 std::shared_ptr<LibraryGroup> together);

}  // namespace oneflow_like
