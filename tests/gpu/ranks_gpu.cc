// Groups of ranks that share one GPU, each in a process of its own (NCCL 2.30 and later with
// NCCL_MULTI_RANK_GPU_ENABLE=1): every collective in several types and sizes, groups split from others,
// groups under way at one time, and an abort. run.sh starts the processes, which meet in a folder. On the
// emulator, whose groups are of one process, the ranks are threads.
#include <gflags/gflags.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/float16.h"
#include "tests/gpu/backend.h"

DECLARE_int32(device);
DEFINE_int32(rank, -1, "of Ranks: the rank of this process");
DEFINE_int32(ranks, 2, "of Ranks: how many processes there are");
DEFINE_string(meeting, "", "of Ranks: the empty folder in which these processes meet");

namespace oneflow_like::gpu {
namespace {

namespace fs = std::filesystem;

// Where ranks pass each other texts, as files. A rank that fails says so there, and nobody waits for it.
class Place {
 public:
  Place(std::string folder, int rank, int ranks) : folder_(std::move(folder)), rank_(rank), ranks_(ranks) {}

  void Put(const std::string& what, const std::string& text) const {
    const std::string path = folder_ + "/" + what, temporary = Cat(path, ".", rank_);
    std::ofstream(temporary, std::ios::binary) << text;
    fs::rename(temporary, path);
  }
  // Throws Error when another rank has failed.
  std::string Get(const std::string& what) const {
    while (!fs::exists(folder_ + "/" + what)) {
      if (fs::exists(folder_ + "/failed"))
        Fail("rank ", rank_, " waits for '", what, "', but another failed");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::ifstream file(folder_ + "/" + what, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Returns when all ranks have come here.
  void Meet(const std::string& what) const {
    Put(Cat(what, " of ", rank_), "");
    for (int r = 0; r < ranks_; ++r) Get(Cat(what, " of ", r));
  }

 private:
  const std::string folder_;
  const int rank_, ranks_;
};

void Require(const Status& status, const std::string& what) {
  if (!status.ok()) Fail(what, ": ", status.message());
}

// Elements of the largest part of a rank.
int64_t Most() { return Emulated() ? 3000 : int64_t{1} << 20; }

// Integers, which every type holds and whose sums over ranks it holds, too.
std::vector<char> Encoded(DType dtype, const std::vector<float>& values) {
  std::vector<char> bytes(values.size() * SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    char* to = bytes.data() + i * SizeOf(dtype);
    const auto put = [&](auto value) { std::memcpy(to, &value, sizeof value); };
    if (dtype == DType::kFloat32) put(values[i]);
    if (dtype == DType::kBFloat16) put(ToBFloat16(values[i]));
    if (dtype == DType::kFloat16) put(ToFloat16(values[i]));
    if (dtype == DType::kInt32) put(static_cast<int32_t>(values[i]));
    if (dtype == DType::kInt64) put(static_cast<int64_t>(values[i]));
  }
  return bytes;
}

// What rank r sends at i.
float Value(int rank, int64_t i) { return static_cast<float>((rank + 1) * (i % 7)); }

// One rank: its device and stream, and what it does with the others.
class Rank {
 public:
  Rank(int rank, int ranks, const std::string& folder)
      : rank_(rank),
        ranks_(ranks),
        place_(folder, rank, ranks),
        device_(TestedBackend()->MakeDevice(rank, FLAGS_device)) {
    // All before the first collective: where ranks are threads of a process, allocating waits for what waits
    // for it.
    for (Lane& lane : lanes_) {
      lane.stream = device_->MakeStream("link");
      lane.from = device_->Allocate(ranks * Most() * 8, "a piece of a test");
      lane.to = device_->Allocate(ranks * Most() * 8, "a piece of a test");
    }
    place_.Meet("ready");
  }

  void Run() {
    std::vector<int> everyone, halves[2];
    for (int r = 0; r < ranks_; ++r) everyone.push_back(r), halves[r % 2].push_back(r);
    const GroupSpec all = SpecOf("all", everyone);
    whole_ = Connect(all);
    CheckAll(whole_.get(), everyone, 0);
    // Those of even numbers and those of odd ones: a group splits once for each.
    for (const std::vector<int>& ranks : halves) {
      auto split =
          TestedBackend()->Split(all, {{rank_, whole_.get()}}, SpecOf(Cat("half from ", ranks[0]), ranks));
      if (!split.has_value()) Fail("the library splits no groups");
      for (auto& [me, end] : *split) half_ = std::move(end);
    }
    CheckAll(half_.get(), halves[rank_ % 2], 0);
    CheckBoth(whole_.get(), everyone, half_.get(), halves[rank_ % 2]);
    half_->BeginLeaving();
    place_.Meet("halves leave");
    half_.reset();
    CheckAll(whole_.get(), everyone, 1);
    CheckAbort(everyone);
    CheckAll(whole_.get(), everyone, 0);  // other groups of the device, and its streams, go on
    whole_->BeginLeaving();
    place_.Meet("all leave");
  }
  // After a failure: nobody waits for the others.
  void GiveUp() {
    for (GroupMember* end : {whole_.get(), half_.get(), doomed_.get()})
      if (end != nullptr) end->Abort();
  }

 private:
  // A stream, and the memory that its collectives send from and receive in.
  struct Lane {
    std::unique_ptr<DeviceStream> stream;
    std::unique_ptr<Memory> from, to;
  };

  // Two of its groups may be under way at one time.
  static GroupSpec SpecOf(const std::string& name, const std::vector<int>& ranks) {
    GroupSpec spec{name, ranks};
    spec.at_once = 2;
    return spec;
  }

  std::unique_ptr<GroupMember> Connect(const GroupSpec& group) {
    if (rank_ == 0) place_.Put("id of " + group.name, TestedBackend()->MakeGroupId());
    auto ends = TestedBackend()->Connect(place_.Get("id of " + group.name), group, {rank_}, {device_.get()});
    return std::move(ends.at(0));
  }

  void CheckAll(GroupMember* end, const std::vector<int>& ranks, int stream) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32, DType::kInt64}) {
      for (int64_t each : {int64_t{1}, int64_t{1000}, Most()}) {
        Work work(this, end, ranks, dtype, each, stream);
        for (const char* what : {"all_reduce", "maximum", "reduce_scatter", "all_gather", "exchange"}) {
          work.Begin(what);
          work.Check();
        }
      }
    }
  }

  // Two groups at one time, each on a stream of its own; both orders of enqueuing occur.
  void CheckBoth(GroupMember* one, const std::vector<int>& of_one, GroupMember* other,
                 const std::vector<int>& of_other) {
    Work first(this, one, of_one, DType::kFloat32, 5000, 0),
        second(this, other, of_other, DType::kFloat32, 5000, 1);
    for (int i = 0; i < 20; ++i) {
      Work& before = i % 2 == 0 ? first : second;
      Work& after = i % 2 == 0 ? second : first;
      before.Begin("all_reduce");
      after.Begin("all_gather");
      before.Check();
      after.Check();
    }
  }

  // Rank 0 does not come to a sum that the others wait in. All give up: the streams end, and say why. It does
  // come to a first one, in which the members connect: that is waited for when it is enqueued.
  void CheckAbort(const std::vector<int>& everyone) {
    doomed_ = Connect(SpecOf("doomed", everyone));
    Work work(this, doomed_.get(), everyone, DType::kFloat32, 1000, 0);
    work.Begin("all_reduce");
    work.Check();
    place_.Meet("all are connected");
    if (rank_ != 0) work.Begin("all_reduce");
    place_.Meet("the others wait");
    doomed_->Abort();
    const std::string said = WaitFor(lanes_[0].stream.get()).message();
    if (rank_ != 0 && said.find("was aborted") == std::string::npos) Fail("an aborted sum says '", said, "'");
    Require(WaitFor(lanes_[0].stream.get()), "the stream after an aborted sum");
    place_.Meet("all gave up");
  }

  // A collective of this rank's: enqueued, and compared with what it should give.
  class Work {
   public:
    Work(Rank* rank, GroupMember* end, const std::vector<int>& ranks, DType dtype, int64_t each, int stream)
        : rank_(rank), end_(end), ranks_(ranks), dtype_(dtype), each_(each), lane_(rank->lanes_[stream]) {
      for (size_t m = 0; m < ranks.size(); ++m)
        if (ranks[m] == rank->rank_) me_ = static_cast<int>(m);
      std::vector<float> values(count());
      for (int64_t i = 0; i < count(); ++i) values[i] = Value(rank->rank_, i);
      const std::vector<char> bytes = Encoded(dtype, values);
      rank->device_->CopyIn(lane_.from->data(), bytes.data(), bytes.size());
    }

    void Begin(const std::string& what) {
      what_ = what;
      const std::vector<char> nothing(count() * SizeOf(dtype_), 0x55);
      rank_->device_->CopyIn(lane_.to->data(), nothing.data(), nothing.size());
      Require(TestedBackend()->LaunchTogether([&] { return Call(); }), Name());
    }
    void Check() {
      Require(WaitFor(lane_.stream.get()), Name());
      const int m = static_cast<int>(ranks_.size());
      const int64_t got_count = what_ == "reduce_scatter" || what_ == "exchange" ? each_ : count();
      std::vector<float> values(got_count);
      for (int64_t i = 0; i < got_count; ++i) {
        float& value = values[i];
        if (what_ == "all_gather") value = Value(ranks_[i / each_], i % each_);
        if (what_ == "exchange") value = Value(ranks_[(me_ + m - 1) % m], i);
        for (int rank : ranks_) {
          const float here = Value(rank, what_ == "reduce_scatter" ? me_ * each_ + i : i);
          if (what_ == "all_reduce" || what_ == "reduce_scatter") value += here;
          if (what_ == "maximum") value = std::max(value, here);
        }
      }
      const std::vector<char> wanted = Encoded(dtype_, values);
      std::vector<char> got(wanted.size());
      rank_->device_->CopyOut(got.data(), lane_.to->data(), got.size());
      for (size_t i = 0; i < got.size(); ++i)
        if (got[i] != wanted[i])
          Fail(Name(), ": element ", i / SizeOf(dtype_), " is not ", values[i / SizeOf(dtype_)]);
    }

   private:
    int64_t count() const { return each_ * static_cast<int64_t>(ranks_.size()); }
    std::string Name() const {
      return Cat(what_, " of ", ranks_.size(), " times ", each_, " ", oneflow_like::Name(dtype_), " on rank ",
                 rank_->rank_);
    }
    Status Call() {
      DeviceStream* stream = lane_.stream.get();
      const void* from = lane_.from->data();
      void* to = lane_.to->data();
      if (what_ == "all_reduce") return end_->AllReduce(stream, dtype_, Reduce::kSum, from, to, count());
      if (what_ == "maximum") return end_->AllReduce(stream, dtype_, Reduce::kMax, from, to, count());
      if (what_ == "reduce_scatter")
        return end_->ReduceScatter(stream, dtype_, Reduce::kSum, from, to, each_);
      if (what_ == "all_gather") return end_->AllGather(stream, dtype_, from, to, each_);
      const int m = static_cast<int>(ranks_.size());
      const int64_t bytes = each_ * static_cast<int64_t>(SizeOf(dtype_));
      return end_->Exchange(
          stream, {{true, (me_ + 1) % m, lane_.from->data(), bytes}, {false, (me_ + m - 1) % m, to, bytes}});
    }

    Rank* const rank_;
    GroupMember* const end_;
    const std::vector<int>& ranks_;
    const DType dtype_;
    const int64_t each_;  // elements of each rank's part
    Lane& lane_;
    int me_ = 0;
    std::string what_;
  };

  const int rank_, ranks_;
  const Place place_;
  std::unique_ptr<Device> device_;
  Lane lanes_[2];
  std::unique_ptr<GroupMember> whole_, half_, doomed_;  // they end before their device
};

// Empty: all was well.
std::string RunRank(int rank, int ranks, const std::string& folder) {
  std::unique_ptr<Rank> one;
  try {
    one = std::make_unique<Rank>(rank, ranks, folder);
    one->Run();
    return "";
  } catch (const Error& error) {
    Place(folder, rank, ranks).Put("failed", "");
    if (one) one->GiveUp();
    return error.what();
  }
}

TEST(Ranks, ShareADevice) {
  if (!TestedBackend()->HasGroups()) GTEST_SKIP() << "the backend is built without NCCL";
  if (FLAGS_rank >= 0) {
    ASSERT_TRUE(TestedBackend()->GroupsShareDevices())
        << "NCCL is older than 2.30, or NCCL_MULTI_RANK_GPU_ENABLE=1 is missing";
    EXPECT_EQ(RunRank(FLAGS_rank, FLAGS_ranks, FLAGS_meeting), "");
    SetFigure(Cat("rank ", FLAGS_rank, " of ", FLAGS_ranks));
    return;
  }
  if (!Emulated()) GTEST_SKIP() << "run.sh starts a process for each rank";
  for (int ranks : {2, 4}) {
    const fs::path folder = fs::path(testing::TempDir()) / Cat("ranks.", getpid(), ".", ranks);
    fs::create_directories(folder);
    std::vector<std::future<std::string>> all;
    for (int rank = 0; rank < ranks; ++rank)
      all.push_back(std::async(std::launch::async, RunRank, rank, ranks, folder.string()));
    for (auto& one : all) EXPECT_EQ(one.get(), "") << ranks << " ranks";
    fs::remove_all(folder);
  }
}

}  // namespace
}  // namespace oneflow_like::gpu
