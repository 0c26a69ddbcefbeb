// Memory that processes of one host share: allocation in one process, exchange between forked ones.
// ctest: seconds=8 asan=20 tsan=20 waits
#include "actor/net/shared_memory/shared_region.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "core/device/device.h"
#include "core/error.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

size_t OpenFiles() {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++n;
  return n;
}

bool AllZero(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != 0) return false;
  }
  return true;
}

// Pages of [data, data + bytes) that take memory.
size_t ResidentPages(void* data, size_t bytes) {
  std::vector<unsigned char> resident((bytes + 4095) / 4096);
  EXPECT_EQ(mincore(data, bytes, resident.data()), 0);
  size_t n = 0;
  for (unsigned char page : resident) n += page & 1;
  return n;
}

TEST(SharedRegionTest, BlocksAreAlignedZeroAndApart) {
  std::unique_ptr<SharedRegion> region = SharedRegion::Make(2);
  uint64_t seed = 20240607;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  struct Held {
    std::unique_ptr<Memory> memory;
    char mark;
  };
  std::vector<Held> held;
  size_t sizes[] = {0, 1, 64, 4095, 4096, 70000, size_t{2} << 20, (size_t{2} << 20) + 1, size_t{3} << 20};
  for (int i = 0; i < 400; ++i) {
    if (held.size() > 12 || (!held.empty() && random() % 3 == 0)) {
      size_t victim = random() % held.size();
      const char* data = static_cast<const char*>(held[victim].memory->data());
      for (size_t at = 0; at < held[victim].memory->bytes(); ++at) {
        ASSERT_EQ(data[at], held[victim].mark) << "block " << victim << " at " << at << " in round " << i;
      }
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
      continue;
    }
    size_t bytes = sizes[random() % std::size(sizes)];
    std::unique_ptr<Memory> memory = region->Allocate(bytes, "a block");
    EXPECT_EQ(memory->bytes(), bytes);
    size_t alignment = bytes >= (size_t{2} << 20) ? size_t{2} << 20 : 4096;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % alignment, 0u);
    ASSERT_TRUE(AllZero(memory->data(), bytes)) << bytes << " bytes in round " << i;
    char mark = static_cast<char>(1 + random() % 100);
    std::memset(memory->data(), mark, bytes);
    held.push_back({std::move(memory), mark});
  }
}

TEST(SharedRegionTest, FreedBlocksGiveTheirPagesBackAndAreUsedAgain) {
  std::unique_ptr<SharedRegion> region = SharedRegion::Make(2);
  size_t bytes = size_t{64} << 20;
  std::unique_ptr<Memory> first = region->Allocate(bytes, "first");
  std::unique_ptr<Memory> second = region->Allocate(4096, "second");
  void* at = first->data();
  EXPECT_EQ(ResidentPages(at, bytes), 0u) << "nothing takes room before it is touched";
  std::memset(at, 5, bytes);
  EXPECT_EQ(ResidentPages(at, bytes), bytes / 4096);
  first.reset();
  EXPECT_EQ(ResidentPages(at, bytes), 0u);
  std::unique_ptr<Memory> again = region->Allocate(bytes, "again");
  EXPECT_EQ(again->data(), at);
  EXPECT_TRUE(AllZero(again->data(), bytes));
}

TEST(SharedRegionTest, RefusesMoreThanTheHostHas) {
  std::unique_ptr<SharedRegion> region = SharedRegion::Make(2);
  for (size_t bytes : {region->capacity() / 2, region->capacity() + 1, ~size_t{0}}) {
    std::string error = ErrorOf([&] { region->Allocate(bytes, "the arena of rank 3"); });
    EXPECT_TRUE(
        Has(error, "has no memory for the arena of rank 3: " + std::to_string(bytes) + " bytes are needed, "))
        << error;
    EXPECT_TRUE(Has(error, " bytes are free")) << error;
  }
}

// Where the address space is bounded, the regions of all processes of the host and what else they map fit.
TEST(SharedRegionTest, FitsABoundedAddressSpace) {
  for (int processes : {1, 2, 8}) {
    const pid_t child = fork();
    if (child == 0) {
      std::ifstream statm("/proc/self/statm");
      rlim_t pages = 0;
      statm >> pages;
      const rlim_t left = rlim_t{4} << 30, all = pages * 4096 + left;
      const rlimit limit = {all, all};
      if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
      std::unique_ptr<SharedRegion> region = SharedRegion::Make(processes);
      const size_t together = region->capacity() * static_cast<size_t>(processes);
      _exit(together > left / 2   ? 2
            : together < left / 4 ? 3
                                  : region->Allocate(region->capacity() / 2, "x")->bytes() == 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << processes << " processes: exit code " << WEXITSTATUS(status);
  }
  // Files, of which a region is one.
  for (const rlim_t bytes : {rlim_t{1} << 10, rlim_t{3} << 20, rlim_t{1} << 30}) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit limit = {bytes, bytes};
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
      size_t capacity = 0;
      const std::string error = ErrorOf([&] { capacity = SharedRegion::Make(2)->capacity(); });
      if (bytes < (2 << 20))
        _exit(Has(error, "1024 bytes here (ulimit -f)") && Has(error, "--shared_memory=false") ? 0 : 2);
      _exit(!error.empty() || capacity > bytes || capacity < bytes / 2 ? 3 : 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << bytes << " bytes of a file: exit code " << WEXITSTATUS(status);
  }
  EXPECT_GT(SharedRegion::Make(8)->capacity(), size_t{1} << 30) << "without a bound";
}

TEST(SharedRegionTest, IsAHostDevicesSource) {
  std::unique_ptr<SharedRegion> region = SharedRegion::Make(2);
  PeerInfo mine{.host = "a", .host_key = "a", .pid = getpid(), .region = region->name()};
  region->Exchange(0, {mine}, 5);
  std::unique_ptr<Device> device = MakeHostDevice(0, region.get());
  HostMemoryStats before = GetHostMemoryStats();
  std::unique_ptr<Memory> memory = device->Allocate(100000, "the arena");
  EXPECT_TRUE(region->Holds(0, memory->data()));
  int elsewhere = 0;
  EXPECT_FALSE(region->Holds(0, &elsewhere));
  EXPECT_EQ(GetHostMemoryStats().bytes, before.bytes + 100000);
  memory.reset();
  EXPECT_EQ(GetHostMemoryStats().bytes, before.bytes);
}

TEST(SharedRegionTest, BlocksMayOutliveIt) {
  std::unique_ptr<SharedRegion> region = SharedRegion::Make(2);
  std::unique_ptr<Memory> memory = region->Allocate(10000, "a block");
  region.reset();
  std::memset(memory->data(), 1, 10000);
}

TEST(SharedRegionTest, LeavesNoFiles) {
  size_t before = OpenFiles();
  {
    std::unique_ptr<SharedRegion> region = SharedRegion::Make(2);
    EXPECT_GT(OpenFiles(), before);
  }
  EXPECT_EQ(OpenFiles(), before);
}

// Runs `body(process, its region, table)` in `processes` forked processes; returns their exit codes. A region
// is made in its own process; names come back over pipes, as the rendezvous would bring them.
std::vector<int> RunProcesses(
    int processes, const std::function<int(int, SharedRegion*, std::vector<PeerInfo>)>& body,
    const std::function<std::string(int)>& host_key = [](int) { return "key"; }) {
  struct Line {
    int to_child[2], to_parent[2];
  };
  std::vector<Line> lines(processes);
  std::vector<pid_t> pids(processes);
  for (int p = 0; p < processes; ++p) {
    EXPECT_EQ(pipe(lines[p].to_child), 0);
    EXPECT_EQ(pipe(lines[p].to_parent), 0);
    pids[p] = fork();
    if (pids[p] != 0) continue;
    alarm(60);
    int code = 99;
    try {
      std::unique_ptr<SharedRegion> region = SharedRegion::Make(2);
      char name[100] = {};
      std::strncpy(name, region->name().c_str(), sizeof(name) - 1);
      if (write(lines[p].to_parent[1], name, sizeof(name)) != sizeof(name)) _exit(98);
      std::vector<PeerInfo> table(processes);
      for (PeerInfo& peer : table) {
        peer.process = static_cast<int>(&peer - table.data());
        int64_t pid = 0;
        if (read(lines[p].to_child[0], name, sizeof(name)) != sizeof(name)) _exit(97);
        if (read(lines[p].to_child[0], &pid, sizeof(pid)) != sizeof(pid)) _exit(97);
        peer.region = name;
        peer.pid = pid;
        peer.host = "h";
        peer.host_key = host_key(peer.process);
      }
      code = body(p, region.get(), table);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "process %d: %s\n", p, error.what());
    }
    _exit(code);
  }
  char names[16][100];
  for (int p = 0; p < processes; ++p) {
    EXPECT_EQ(read(lines[p].to_parent[0], names[p], sizeof(names[p])),
              static_cast<ssize_t>(sizeof(names[p])));
  }
  for (int p = 0; p < processes; ++p) {
    for (int q = 0; q < processes; ++q) {
      int64_t pid = pids[q];
      EXPECT_EQ(write(lines[p].to_child[1], names[q], sizeof(names[q])),
                static_cast<ssize_t>(sizeof(names[q])));
      EXPECT_EQ(write(lines[p].to_child[1], &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
    }
  }
  std::vector<int> codes(processes);
  for (int p = 0; p < processes; ++p) {
    int status = 0;
    waitpid(pids[p], &status, 0);
    codes[p] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    for (int fd :
         {lines[p].to_child[0], lines[p].to_child[1], lines[p].to_parent[0], lines[p].to_parent[1]}) {
      close(fd);
    }
  }
  return codes;
}

// Every process writes into the regions of all, and sees what all wrote into its own.
int WriteEverywhere(int me, SharedRegion* region, std::vector<PeerInfo> peers) {
  size_t files = OpenFiles();
  std::unique_ptr<Memory> block = region->Allocate(4096 * peers.size(), "a block");  // at offset 0 in all
  if (block->data() == nullptr) return 1;
  region->Exchange(me, peers, 20);
  if (OpenFiles() != files - 1) return 2;  // the listening socket is gone, nothing else came
  if (region->base(me) != block->data()) return 3;
  for (size_t p = 0; p < peers.size(); ++p) {
    char* base = region->base(static_cast<int>(p));
    if (base == nullptr || reinterpret_cast<uintptr_t>(base) % (size_t{2} << 20) != 0) return 4;
    __atomic_store_n(reinterpret_cast<int*>(base + 4096 * me), 100 + me, __ATOMIC_RELEASE);
  }
  int* mine = static_cast<int*>(block->data());
  for (size_t p = 0; p < peers.size(); ++p) {
    while (__atomic_load_n(mine + 1024 * p, __ATOMIC_ACQUIRE) != 100 + static_cast<int>(p)) usleep(100);
  }
  return 0;
}

TEST(SharedRegionTest, ProcessesSeeOneAnothersMemory) {
  for (int processes : {1, 2, 4, 8}) {
    EXPECT_EQ(RunProcesses(processes, WriteEverywhere), std::vector<int>(processes, 0)) << processes;
  }
}

TEST(SharedRegionTest, ProcessesMayComeLate) {
  auto late = [](int me, SharedRegion* region, std::vector<PeerInfo> peers) {
    usleep(static_cast<useconds_t>(me) * 150000);
    return WriteEverywhere(me, region, peers);
  };
  EXPECT_EQ(RunProcesses(3, late), std::vector<int>(3, 0));
}

TEST(SharedRegionTest, OtherHostsHaveNoBase) {
  auto body = [](int me, SharedRegion* region, std::vector<PeerInfo> peers) {
    region->Exchange(me, peers, 20);
    for (int p = 0; p < 4; ++p) {
      if ((region->base(p) != nullptr) != (p % 2 == me % 2)) return 1;
    }
    return region->base(7) == nullptr ? 0 : 2;
  };
  auto key = [](int process) { return std::string(process % 2 == 0 ? "even" : "odd"); };
  EXPECT_EQ(RunProcesses(4, body, key), std::vector<int>(4, 0));
}

// Whether the system would leave the memory at `data` out of a core file.
bool LeftOutOfCores(const void* data) {
  const auto at = reinterpret_cast<unsigned long>(data);
  bool here = false;
  std::ifstream in("/proc/self/smaps");
  for (std::string line; std::getline(in, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= at && at < end;
    if (here && line.rfind("VmFlags:", 0) == 0) return Has(line + " ", " dd ");
  }
  return false;
}

// All of it, its own and that of others: a crash would take as long as writing it does, and fill the disk.
TEST(SharedRegionTest, IsInNoCoreFile) {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  EXPECT_FALSE(LeftOutOfCores(page));
  ASSERT_EQ(madvise(page, 4096, MADV_DONTDUMP), 0);
  const bool told = LeftOutOfCores(page);
  munmap(page, 4096);
  if (!told) GTEST_SKIP() << "this system does not tell what is left out of core files";
  auto body = [](int me, SharedRegion* region, std::vector<PeerInfo> peers) {
    std::unique_ptr<Memory> block = region->Allocate(size_t{3} << 20, "a block");
    region->Exchange(me, peers, 20);
    for (size_t p = 0; p < peers.size(); ++p) {
      const char* base = region->base(static_cast<int>(p));
      if (!LeftOutOfCores(base) || !LeftOutOfCores(base + region->capacity() - 1)) return 1;
    }
    return LeftOutOfCores(block->data()) ? 0 : 2;
  };
  EXPECT_EQ(RunProcesses(3, body), std::vector<int>(3, 0));
}

TEST(SharedRegionTest, PagesFreedByTheirOwnerReadAsZerosElsewhere) {
  auto body = [](int me, SharedRegion* region, std::vector<PeerInfo> peers) {
    // Stays for the other process to read when this one has ended.
    [[maybe_unused]] Memory* flags = region->Allocate(4096, "flags").release();
    std::unique_ptr<Memory> block = region->Allocate(4096, "a block");
    region->Exchange(me, peers, 20);
    auto flag = [&](int p) { return reinterpret_cast<int*>(region->base(p)); };
    auto wait = [&](int value) {
      __atomic_store_n(flag(me), value, __ATOMIC_RELEASE);
      while (__atomic_load_n(flag(1 - me), __ATOMIC_ACQUIRE) < value) usleep(100);
    };
    static_cast<int*>(block->data())[0] = 7 + me;
    wait(1);
    const int* theirs = reinterpret_cast<const int*>(region->base(1 - me) + 4096);
    if (*theirs != 8 - me) return 1;
    wait(2);
    block.reset();
    wait(3);
    if (*static_cast<const volatile int*>(theirs) != 0) return 2;
    wait(4);
    return 0;
  };
  EXPECT_EQ(RunProcesses(2, body), std::vector<int>(2, 0));
}

TEST(SharedRegionTest, NamesTheProcessThatDoesNotAnswer) {
  auto body = [](int me, SharedRegion* region, std::vector<PeerInfo> peers) {
    if (me == 1) {
      sleep(3);  // its socket takes connections, and nobody answers
      return 0;
    }
    std::string error = ErrorOf([&] { region->Exchange(me, peers, 1); });
    std::string who = "process 1 (host h, pid " + std::to_string(peers[1].pid) + ") ";
    if (error == who + "has not handed over its shared memory within 1 s") return 0;
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  };
  EXPECT_EQ(RunProcesses(3, body), std::vector<int>(3, 0));
}

TEST(SharedRegionTest, NamesTheProcessThatNeverAsks) {
  auto body = [](int me, SharedRegion* region, std::vector<PeerInfo> peers) {
    if (me == 1) {  // answers process 0, but asks at a socket that never answers
      std::unique_ptr<SharedRegion> silent = SharedRegion::Make(2);
      std::vector<PeerInfo> table = peers;
      table[0].region = silent->name();
      ErrorOf([&] { region->Exchange(1, table, 3); });
      return 0;
    }
    std::string error = ErrorOf([&] { region->Exchange(0, peers, 1); });
    if (Has(error, "has not asked for our shared memory within 1 s") && Has(error, "process 1 (host h"))
      return 0;
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  };
  EXPECT_EQ(RunProcesses(2, body), std::vector<int>(2, 0));
}

TEST(SharedRegionTest, AProcessThatHasEndedIsNoticedAtOnce) {
  auto body = [](int me, SharedRegion* region, std::vector<PeerInfo> peers) {
    if (me == 1) return 0;
    usleep(300000);
    std::string error = ErrorOf([&] { region->Exchange(me, peers, 50); });  // alarm() is at 60
    if (Has(error, "process 1 (host h, pid") && Has(error, "has ended")) return 0;
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  };
  EXPECT_EQ(RunProcesses(2, body), std::vector<int>(2, 0));
}

// Strangers connect and say nothing, or nonsense: nobody waits for them and nobody hands them anything.
TEST(SharedRegionTest, StrangersStopNobody) {
  auto body = [](int me, SharedRegion* region, std::vector<PeerInfo> peers) {
    std::vector<int> strangers;
    for (int i = 0; i < 40; ++i) {
      int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      const std::string& name = peers[1 - me].region;
      std::memcpy(address.sun_path + 1, name.data(), name.size());
      socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
      if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) return 1;
      if (i % 2 == 0 && send(fd, "\xff\xff\xff\xff\xff", 5, MSG_NOSIGNAL) != 5) return 2;
      strangers.push_back(fd);
    }
    region->Exchange(me, peers, 20);
    for (int fd : strangers) {
      char byte;
      if (recv(fd, &byte, 1, 0) > 0) return 3;
      close(fd);
    }
    return region->base(1 - me) != nullptr ? 0 : 4;
  };
  EXPECT_EQ(RunProcesses(2, body), std::vector<int>(2, 0));
}

}  // namespace
}  // namespace oneflow_like
