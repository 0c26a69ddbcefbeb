// The shared region: one memfd, a first-fit list of its free ranges, and the exchange over an abstract Unix
// socket that hands the memfd to the other processes of the host.
#include "actor/net/shared_memory/shared_region.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "actor/net/rendezvous/file_descriptor.h"
#include "core/error.h"
#include "core/system/host_memory.h"
#include "core/system/memory_limits.h"

namespace oneflow_like {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPage = 4096;
constexpr size_t kLargePage = size_t{2} << 20;
// Address space costs nothing: a region can hold what the machine has, however badly it is cut up.
constexpr size_t kTimesPhysical = 4;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Of one region. Where the address space is bounded, the regions of all take half of what is left of it.
size_t CapacityFor(int processes) {
  const size_t physical =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t capacity = RoundUp(physical * kTimesPhysical, kLargePage);
  for (const MemoryLimit& limit : ReadMemoryLimits())
    if (!limit.shared && limit.source == kAddressSpace)
      capacity = std::min(capacity, static_cast<size_t>(limit.left) / 2 / std::max(1, processes));
  // A memfd counts as a file.
  rlimit files = {};
  if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
    if (files.rlim_cur < kLargePage)
      Fail("files may have ", files.rlim_cur,
           " bytes here (ulimit -f), but the memory that processes of a host share is "
           "one of at least ",
           kLargePage, "; raise the limit, or leave it out with --shared_memory=false");
    capacity = std::min<size_t>(capacity, files.rlim_cur);
  }
  return std::max(kLargePage, capacity / kLargePage * kLargePage);
}

// A memfd in our address space, at a multiple of the large page so that large pages can be mapped whole.
class Mapping {
 public:
  Mapping(int fd, size_t bytes, const std::string& whose) : bytes_(bytes) {
    size_t reserved = bytes + kLargePage;
    void* room = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) FailToMap(whose);
    char* from = static_cast<char*>(room);
    base_ = reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(from), kLargePage));
    void* at = mmap(base_, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) {
      munmap(room, reserved);
      FailToMap(whose);
    }
    if (base_ > from) munmap(from, base_ - from);
    if (from + reserved > base_ + bytes) munmap(base_ + bytes, from + reserved - (base_ + bytes));
    madvise(base_, bytes, MADV_HUGEPAGE);  // advice alone
    // A process that crashes must be gone at once, for its peers' sake, not after writing all of this.
    madvise(base_, bytes, MADV_DONTDUMP);
  }
  ~Mapping() { munmap(base_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  [[noreturn]] void FailToMap(const std::string& whose) {
    Fail("the shared memory of ", whose, " cannot be mapped: ", bytes_,
         " bytes of address space are needed: ", std::strerror(errno));
  }

  char* base_ = nullptr;
  size_t bytes_;
};

// The memfd and who has which part of it. Blocks keep it, so it stays until the last of them is gone.
class Arena {
 public:
  explicit Arena(size_t bytes)
      : bytes_(bytes), fd_(MakeFile(bytes)), mapping_(fd_.get(), bytes, "this process") {
    free_[0] = bytes;
  }

  // Returns the offset of `bytes` (a multiple of the page) that nobody has, or bytes_ when there are none.
  size_t Take(size_t bytes) {
    size_t alignment = bytes >= kLargePage ? kLargePage : kPage;
    std::lock_guard lock(mutex_);
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      auto [begin, extent] = *range;
      size_t at = RoundUp(begin, alignment);
      if (at + bytes > begin + extent) continue;
      free_.erase(range);
      if (at > begin) free_[begin] = at - begin;
      if (at + bytes < begin + extent) free_[at + bytes] = begin + extent - (at + bytes);
      return at;
    }
    return bytes_;
  }

  void GiveBack(size_t at, size_t bytes) {
    // The pages go back to the system, from all mappings; what reads here next, reads zeros. Before the range
    // is free for others.
    if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                  static_cast<off_t>(bytes)) != 0) {
      std::memset(mapping_.base() + at, 0, bytes);
    }
    std::lock_guard lock(mutex_);
    auto next = free_.lower_bound(at);
    if (next != free_.end() && next->first == at + bytes) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == at) {
        previous->second += bytes;
        return;
      }
    }
    free_[at] = bytes;
  }

  char* base() const { return mapping_.base(); }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  static FileDescriptor MakeFile(size_t bytes) {
    FileDescriptor fd(memfd_create("oneflow_like", MFD_CLOEXEC));
    if (!fd.open() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
      Fail("the system gives no shared memory of ", bytes,
           " bytes (of which only what is used takes room): ", std::strerror(errno));
    }
    return fd;
  }

  size_t bytes_;
  FileDescriptor fd_;
  Mapping mapping_;
  std::mutex mutex_;  // blocks are taken and freed by whatever thread makes plans, outside of steps
  std::map<size_t, size_t> free_;  // begin -> extent; neighbours are merged
};

class RegionMemory : public Memory {
 public:
  RegionMemory(std::shared_ptr<Arena> arena, size_t at, size_t bytes, size_t reserved)
      : arena_(std::move(arena)), at_(at), bytes_(bytes), reserved_(reserved) {}
  ~RegionMemory() override { arena_->GiveBack(at_, reserved_); }
  void* data() override { return arena_->base() + at_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<Arena> arena_;
  size_t at_, bytes_, reserved_;
};

FileDescriptor MakeSocket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.open()) Fail("the system gives no Unix socket for shared memory: ", std::strerror(errno));
  return fd;
}

// Abstract names begin with a zero byte and leave nothing in the file system.
socklen_t FillAddress(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  size_t length = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

bool OfOurUser(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 && credentials.uid == geteuid();
}

// Whoever asks says which process it is; the answer is one byte that carries the memfd.
bool SendDescriptor(int to, int fd) {
  char byte = 1;
  iovec text{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &fd, sizeof(int));
  return sendmsg(to, &message, MSG_NOSIGNAL) == 1;
}

// Returns false when the other end has closed without an answer; `fd` stays empty while none is there.
bool ReceiveDescriptor(int from, FileDescriptor* fd) {
  char byte = 0;
  iovec text{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  ssize_t got = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int received = -1;
    std::memcpy(&received, CMSG_DATA(part), sizeof(int));
    *fd = FileDescriptor(received);
  }
  return got > 0 && fd->open();
}

// One exchange: asks every peer of this host and answers whoever asks, in one loop, so that no order of
// processes can stop another.
class Exchanging {
 public:
  Exchanging(int me, const std::vector<PeerInfo>& peers, int listener, int fd)
      : me_(me),
        peers_(peers),
        listener_(listener),
        fd_(fd),
        asked_(peers.size()),
        answered_(peers.size(), true),
        regions_(peers.size()) {
    for (const PeerInfo& peer : peers_) answered_[peer.process] = !Wanted(peer.process);
  }

  // The memfds of all peers of this host, by process.
  std::vector<FileDescriptor> Run(double timeout) {
    auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
    for (;;) {
      for (size_t p = 0; p < peers_.size(); ++p) Ask(static_cast<int>(p));
      if (Complete()) return std::move(regions_);
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) FailLate(timeout);
      Wait(static_cast<int>(std::min<int64_t>(left + 1, retry_ ? 10 : 1000)));
    }
  }

 private:
  struct Caller {
    FileDescriptor connection;
    uint32_t process = 0;
    size_t got = 0;  // bytes of `process`
  };

  bool Wanted(int p) const { return p != me_ && peers_[p].host_key == peers_[me_].host_key; }
  bool Complete() const {
    for (size_t p = 0; p < peers_.size(); ++p) {
      if (!answered_[p] || (Wanted(static_cast<int>(p)) && !regions_[p].open())) return false;
    }
    return true;
  }
  std::string Who(int p) const {
    return Cat("process ", p, " (host ", peers_[p].host, ", pid ", peers_[p].pid, ")");
  }
  [[noreturn]] void FailLate(double timeout) const {
    for (size_t p = 0; p < peers_.size(); ++p) {
      int process = static_cast<int>(p);
      if (Wanted(process) && !regions_[p].open()) {
        Fail(Who(process), " has not handed over its shared memory within ", timeout, " s");
      }
      if (!answered_[p]) Fail(Who(process), " has not asked for our shared memory within ", timeout, " s");
    }
    Fail("shared memory was not exchanged within ", timeout, " s");
  }
  [[noreturn]] void FailGone(int p) const {
    Fail(Who(p), " has ended before it handed over its shared memory");
  }

  // Connects to process p once, and says who asks.
  void Ask(int p) {
    if (!Wanted(p) || regions_[p].open() || asked_[p].open()) return;
    FileDescriptor connection = MakeSocket();
    sockaddr_un address;
    socklen_t length = FillAddress(peers_[p].region, &address);
    if (connect(connection.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
      // A full backlog: it has many to answer. Its socket is there from before it came to the rendezvous
      // until it has answered us, so anything else means that it is gone.
      if (errno != EAGAIN && errno != EINTR) FailGone(p);
      retry_ = true;
      return;
    }
    if (!OfOurUser(connection.get())) {
      Fail(Who(p), " runs as another user: processes of one host can share memory only as the same user");
    }
    uint32_t me = static_cast<uint32_t>(me_);
    if (send(connection.get(), &me, sizeof(me), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(me)))
      FailGone(p);
    asked_[p] = std::move(connection);
  }

  void Wait(int milliseconds) {
    retry_ = false;
    std::vector<pollfd> polled{{.fd = listener_, .events = POLLIN}};
    for (const Caller& caller : callers_) polled.push_back({.fd = caller.connection.get(), .events = POLLIN});
    size_t first_asked = polled.size();
    std::vector<int> of;
    for (size_t p = 0; p < asked_.size(); ++p) {
      if (!asked_[p].open()) continue;
      polled.push_back({.fd = asked_[p].get(), .events = POLLIN});
      of.push_back(static_cast<int>(p));
    }
    if (poll(polled.data(), polled.size(), milliseconds) <= 0) return;
    for (size_t i = 0; i < of.size(); ++i) {
      if (polled[first_asked + i].revents != 0) Hear(of[i]);
    }
    for (size_t i = first_asked - 1; i >= 1; --i) {  // from behind, as Answer's callers are taken out
      if (polled[i].revents != 0 && !Answer(&callers_[i - 1])) callers_.erase(callers_.begin() + (i - 1));
    }
    if (polled[0].revents != 0) Accept();
  }

  void Hear(int p) {
    if (!ReceiveDescriptor(asked_[p].get(), &regions_[p])) FailGone(p);
    if (regions_[p].open()) asked_[p].Close();
  }

  void Accept() {
    FileDescriptor connection(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection.open() && OfOurUser(connection.get()))
      callers_.push_back({.connection = std::move(connection)});
  }

  // Returns whether the caller has still to say who it is.
  bool Answer(Caller* caller) {
    ssize_t got = recv(caller->connection.get(), reinterpret_cast<char*>(&caller->process) + caller->got,
                       sizeof(caller->process) - caller->got, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    caller->got += static_cast<size_t>(got);
    if (caller->got < sizeof(caller->process)) return true;
    uint32_t process = caller->process;
    if (process < peers_.size() && Wanted(static_cast<int>(process)) &&
        SendDescriptor(caller->connection.get(), fd_)) {
      answered_[process] = true;
    }
    return false;
  }

  int me_;
  const std::vector<PeerInfo>& peers_;
  int listener_, fd_;
  bool retry_ = false;                 // a backlog was full
  std::vector<FileDescriptor> asked_;  // by process: the connection on which its answer will come
  std::vector<bool> answered_;         // by process: it has ours
  std::vector<FileDescriptor> regions_;
  std::vector<Caller> callers_;
};

class MemfdRegion final : public SharedRegion {
 public:
  MemfdRegion(size_t capacity, std::string name, FileDescriptor listener)
      : arena_(std::make_shared<Arena>(capacity)), name_(std::move(name)), listener_(std::move(listener)) {}

  std::unique_ptr<Memory> Allocate(size_t bytes, const std::string& what) override {
    static const char kOwner[] = "the memory that processes of this host share";
    CheckHostHas(bytes, kOwner, what);
    if (bytes > arena_->bytes()) FailShortOfHostMemory(kOwner, what, bytes);
    size_t reserved = RoundUp(std::max<size_t>(bytes, 1), kPage);
    size_t at = arena_->Take(reserved);
    if (at == arena_->bytes()) FailShortOfHostMemory(kOwner, what, bytes);
    return std::make_unique<RegionMemory>(arena_, at, bytes, reserved);
  }

  std::string name() const override { return name_; }

  void Exchange(int me, const std::vector<PeerInfo>& peers, double timeout) override {
    std::vector<FileDescriptor> regions = Exchanging(me, peers, listener_.get(), arena_->fd()).Run(timeout);
    listener_.Close();  // nobody else is to come
    others_.resize(peers.size());
    bases_.assign(peers.size(), nullptr);
    bases_[me] = arena_->base();
    for (size_t p = 0; p < peers.size(); ++p) {
      if (!regions[p].open()) continue;
      std::string whose = Cat("process ", p, " (host ", peers[p].host, ", pid ", peers[p].pid, ")");
      struct stat file {};
      if (fstat(regions[p].get(), &file) != 0 || file.st_size <= 0) {
        Fail("the shared memory of ", whose, " cannot be mapped: its size is unknown");
      }
      others_[p] = std::make_unique<Mapping>(regions[p].get(), static_cast<size_t>(file.st_size), whose);
      bases_[p] = others_[p]->base();
    }
  }

  char* base(int peer) const override {
    return static_cast<size_t>(peer) < bases_.size() ? bases_[peer] : nullptr;
  }
  size_t capacity() const override { return arena_->bytes(); }

 private:
  std::shared_ptr<Arena> arena_;
  std::string name_;
  FileDescriptor listener_;
  std::vector<std::unique_ptr<Mapping>> others_;  // by process
  std::vector<char*> bases_;                      // by process
};

}  // namespace

std::unique_ptr<SharedRegion> SharedRegion::Make(int processes) {
  std::string name = "oneflow_like-" + RandomToken();
  FileDescriptor listener = MakeSocket();
  sockaddr_un address;
  socklen_t length = FillAddress(name, &address);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    Fail("the system gives no Unix socket for shared memory: ", std::strerror(errno));
  }
  return std::make_unique<MemfdRegion>(CapacityFor(processes), std::move(name), std::move(listener));
}

}  // namespace oneflow_like
