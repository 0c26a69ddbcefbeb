// A backend of late devices (late_device.h) with the CPU's kernels and, when asked for, a library for groups:
// members meet and move as NCCL's would.
#pragma once

#include <glog/logging.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/device/backend.h"
#include "ops/cpu/manifest.h"
#include "ops/manifest.h"
#include "ops/op.h"
#include "tests/actor/late_device.h"

namespace oneflow_like {

class LateBackend final : public Backend {
 public:
  // `groups`: devices have a library for collectives. `delay_us`: the longest a task waits for nothing.
  // `share`: these may share devices with other processes.
  explicit LateBackend(int devices, uint64_t seed = 1, int delay_us = 0, bool groups = false,
                       bool share = false)
      : devices_(devices), seed_(seed), delay_us_(delay_us), groups_(groups), share_(share) {
    AddReferenceKernels(BuiltinCatalog(), &cpu_);
    AddBoxingKernels(&cpu_);
    AddCpuKernels(&cpu_);
    SetBackend("cuda", this);
  }
  ~LateBackend() override { SetBackend("cuda", nullptr); }

  const std::string& kind() const override { return kind_; }
  int device_count() const override { return devices_; }
  std::string Describe(int) const override { return "the host, later"; }
  std::unique_ptr<Device> MakeDevice(int rank, int device, MemorySource* shared) override {
    return std::make_unique<LateDevice>(rank, Cat("late", device), seed_ + 1000 * rank, delay_us_, shared);
  }
  void AddKernels(KernelRegistry* registry) const override {
    std::vector<std::string> names = BuiltinCatalog().names();
    for (const char* boxing : {"accumulate", "local_slice", "time_slice", "time_gather", "keep"})
      names.push_back(boxing);
    for (const std::string& name : names) {
      registry->Add(
          name, kind_, [this](const KernelSpec& spec) { return cpu_.Make(spec, "cpu"); },
          [this](const KernelSpec& spec) { return cpu_.Scratch(spec, "cpu"); });
    }
  }
  bool HasGroups() const override { return groups_; }
  bool GroupsShareDevices() const override { return share_; }
  std::string MakeGroupId() override { return Cat("group ", next_group_++); }
  std::vector<std::unique_ptr<GroupMember>> Connect(const std::string& id, const GroupSpec& group,
                                                    const std::vector<int>& members,
                                                    const std::vector<Device*>& devices) override;
  int connected() const { return connected_; }
  // Calls that members of groups got.
  struct Asked {
    std::atomic<int> calls{0}, aborts{0};
  };
  const Asked& asked() const { return *asked_; }

 private:
  const std::string kind_ = "cuda";
  const int devices_;
  const uint64_t seed_;
  const int delay_us_;
  const bool groups_, share_;
  KernelRegistry cpu_;
  std::atomic<int> next_group_{0}, connected_{0};
  const std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
};

// --- The library for groups: the members' tasks meet in their streams' threads.

struct LateMeeting {
  std::mutex mutex;
  std::condition_variable changed;
  int members = 0, arrived = 0, left = 0;
  int64_t round = 0;
  bool aborted = false;
  std::vector<const void*> from;
  std::vector<std::vector<GroupMember::Transfer>> transfers;

  // Everybody comes with theirs, `move` reads the others', and nobody goes on before all have read. False: it
  // was aborted, and others may still read.
  bool Meet(int me, const void* mine, const std::vector<GroupMember::Transfer>& mine_too,
            const std::function<void()>& move) {
    std::unique_lock<std::mutex> lock(mutex);
    int64_t now = round;
    from[me] = mine;
    transfers[me] = mine_too;
    if (++arrived == members) {
      arrived = 0;
      ++round;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return round > now || aborted; });
    if (aborted) return false;
    lock.unlock();
    move();
    lock.lock();
    now = round;
    if (++left == members) {
      left = 0;
      ++round;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return round > now || aborted; });
    return round > now;
  }
  void Abort() {
    std::lock_guard<std::mutex> lock(mutex);
    aborted = true;
    changed.notify_all();
  }
};

class LateGroupMember final : public GroupMember {
 public:
  LateGroupMember(std::shared_ptr<LateMeeting> meeting, int me, std::shared_ptr<LateBackend::Asked> asked)
      : meeting_(std::move(meeting)), me_(me), asked_(std::move(asked)) {}

  Status AllReduce(DeviceStream* stream, DType dtype, Reduce reduce, const void* from, void* to,
                   int64_t count) override {
    // Summed into memory of its own first: others still read what may be the same piece.
    return Enqueue(
        stream, from, {},
        [=, this] {
          std::vector<char> sum(count * SizeOf(dtype));
          Sum(dtype, reduce, 0, count, sum.data());
          results_.push_back(std::move(sum));
        },
        [=, this] { std::memcpy(to, results_.back().data(), results_.back().size()); });
  }
  Status ReduceScatter(DeviceStream* stream, DType dtype, Reduce reduce, const void* from, void* to,
                       int64_t count_each) override {
    return Enqueue(
        stream, from, {},
        [=, this] {
          std::vector<char> sum(count_each * SizeOf(dtype));
          Sum(dtype, reduce, me_ * count_each, count_each, sum.data());
          results_.push_back(std::move(sum));
        },
        [=, this] { std::memcpy(to, results_.back().data(), results_.back().size()); });
  }
  Status AllGather(DeviceStream* stream, DType dtype, const void* from, void* to,
                   int64_t count_each) override {
    return Enqueue(
        stream, from, {},
        [=, this] {
          size_t bytes = count_each * SizeOf(dtype);
          for (int m = 0; m < meeting_->members; ++m) {
            std::memmove(static_cast<char*>(to) + m * bytes, meeting_->from[m], bytes);
          }
        },
        [] {});
  }
  Status Exchange(DeviceStream* stream, const std::vector<Transfer>& transfers) override {
    return Enqueue(
        stream, nullptr, transfers,
        [=, this] {
          std::map<int, int> taken;  // receives of a peer so far: its sends to me are in the same order
          for (const Transfer& receive : transfers) {
            if (receive.send) continue;
            int skip = taken[receive.peer]++;
            for (const Transfer& send : meeting_->transfers[receive.peer]) {
              if (!send.send || send.peer != me_ || skip-- > 0) continue;
              CHECK(send.bytes == receive.bytes);
              std::memcpy(receive.data, send.data, send.bytes);
              break;
            }
          }
        },
        [] {});
  }
  void Abort() override {
    ++asked_->aborts;
    meeting_->Abort();
  }

 private:
  Status Enqueue(DeviceStream* stream, const void* from, std::vector<Transfer> transfers,
                 std::function<void()> read, std::function<void()> write) {
    ++asked_->calls;
    static_cast<LateStream*>(stream)->Enqueue([=, this] {
      if (meeting_->Meet(me_, from, transfers, read) && !results_.empty()) write();
      results_.clear();
      return Status();
    });
    return Status();
  }
  void Sum(DType dtype, Reduce reduce, int64_t offset, int64_t count, void* to) {
    Box box = Box::Whole(Dims{count});
    std::vector<Piece> pieces;
    for (const void* from : meeting_->from) {
      auto* at = const_cast<char*>(static_cast<const char*>(from)) + offset * SizeOf(dtype);
      pieces.push_back({at, box});
    }
    Piece result{to, box};
    CombineBox(dtype, reduce, box, pieces.data(), static_cast<int>(pieces.size()), &result, 1);
  }

  const std::shared_ptr<LateMeeting> meeting_;
  const int me_;
  const std::shared_ptr<LateBackend::Asked> asked_;
  std::vector<std::vector<char>> results_;
};

inline std::vector<std::unique_ptr<GroupMember>> LateBackend::Connect(const std::string&,
                                                                      const GroupSpec& group,
                                                                      const std::vector<int>& members,
                                                                      const std::vector<Device*>&) {
  auto meeting = std::make_shared<LateMeeting>();
  meeting->members = static_cast<int>(group.ranks.size());
  meeting->from.resize(group.ranks.size());
  meeting->transfers.resize(group.ranks.size());
  std::vector<std::unique_ptr<GroupMember>> ends;
  for (int m : members) ends.push_back(std::make_unique<LateGroupMember>(meeting, m, asked_));
  ++connected_;
  return ends;
}

}  // namespace oneflow_like
