// Hosts for tests, all on this machine: each is a network namespace with its own loopback, name and /sys, and
// a TAP device whose cable ends in a switch. The switch is a thread of the test: it can delay, lose, slow
// down and cut what a host sends. Nothing of the machine's own network is touched, and nothing is left behind
// even by a crash: namespaces and devices go with the last process and descriptor. (The kernel's own netem
// would do, but small kernels are built without it.)
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace oneflow_like {

// What happens to the frames that a host sends; `cut`: also to those it should get.
struct Line {
  double delay_ms = 0;
  double loss = 0;  // probability, of each frame
  double mbit = 0;  // per second; 0: no limit
  bool cut = false;
};

class Hosts {
 public:
  // Why this machine lets us make none; empty when it does.
  static std::string Unavailable() {
    try {
      Hosts(1, 0);
      return "";
    } catch (const std::exception& e) {
      return e.what();
    }
  }

  // `seed` draws the frames that are lost.
  Hosts(int count, uint64_t seed) : random_(seed), ports_(count) {
    for (int h = 0; h < count; ++h) {
      // A thread of its own enters the new namespace, so that the test itself stays where it is.
      std::string error;
      std::thread([&] {
        try {
          MakeHost(h);
        } catch (const std::exception& e) {
          error = e.what();
        }
      }).join();
      if (!error.empty()) {
        CloseAll();
        throw std::runtime_error(error);
      }
    }
    wake_ = eventfd(0, EFD_CLOEXEC);
    switch_ = std::thread([this] { Forward(); });
  }
  Hosts(const Hosts&) = delete;
  ~Hosts() {
    if (switch_.joinable()) {
      const uint64_t one = 1;
      if (write(wake_, &one, sizeof one) != sizeof one) std::abort();
      switch_.join();
    }
    CloseAll();
  }

  int count() const { return static_cast<int>(ports_.size()); }
  static std::string name(int host) { return std::string("host-") + static_cast<char>('a' + host); }
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }

  void SetLine(int host, const Line& line) {
    std::lock_guard<std::mutex> lock(mutex_);
    ports_[host].line = line;
  }
  void SetAllLines(const Line& line) {
    for (int h = 0; h < count(); ++h) SetLine(h, line);
  }
  struct Counts {
    int64_t forwarded = 0, lost = 0;
  };
  Counts counts() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
  }

  // Called between fork and exec: the process is on this host from here on. System calls only.
  bool Enter(int host) const {
    const std::array<char, 7> name = {'h', 'o', 's', 't', '-', static_cast<char>('a' + host), 0};
    return setns(ports_[host].space, CLONE_NEWNET) == 0 && unshare(CLONE_NEWNS | CLONE_NEWUTS) == 0 &&
           sethostname(name.data(), name.size() - 1) == 0 &&
           mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
           // Programs find their network devices in /sys, which shows those of who mounted it.
           (umount2("/sys", MNT_DETACH) == 0 || errno == EINVAL) &&
           mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kLongestQueue = 1000;  // frames of one host on their way, as netem has it

  struct Port {
    int space = -1, tap = -1;
    std::array<unsigned char, 6> mac{};
    Line line;
    Clock::time_point free{};  // when a line with a rate has sent what was given to it
    size_t queued = 0;
  };
  struct Frame {
    Clock::time_point due;
    uint64_t number = 0;  // frames due at once keep their order
    int from = 0;
    std::string bytes;
  };
  struct Later {
    bool operator()(const Frame& a, const Frame& b) const {
      return std::pair(a.due, a.number) > std::pair(b.due, b.number);
    }
  };

  [[noreturn]] static void Refuse(const std::string& what) {
    throw std::runtime_error("hosts for tests cannot be made here: " + what + ": " + std::strerror(errno) +
                             " (needs root and /dev/net/tun)");
  }

  void MakeHost(int host) {
    Port& port = ports_[host];
    if (unshare(CLONE_NEWNET) != 0) Refuse("a network namespace");
    port.space = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    port.tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (port.space < 0 || port.tap < 0) Refuse("/dev/net/tun");
    ifreq request{};
    std::strcpy(request.ifr_name, "eth0");
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (ioctl(port.tap, TUNSETIFF, &request) != 0) Refuse("a TAP device");
    const int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    SetAddress(any, SIOCSIFADDR, address(host));
    SetAddress(any, SIOCSIFNETMASK, "255.255.255.0");
    SetUp(any, "eth0");
    SetUp(any, "lo");
    std::strcpy(request.ifr_name, "eth0");
    if (ioctl(any, SIOCGIFHWADDR, &request) != 0) Refuse("its hardware address");
    std::memcpy(port.mac.data(), request.ifr_hwaddr.sa_data, port.mac.size());
    close(any);
  }

  static void SetAddress(int any, unsigned long what, const std::string& text) {
    ifreq request{};
    std::strcpy(request.ifr_name, "eth0");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, text.c_str(), &address.sin_addr);
    std::memcpy(&request.ifr_addr, &address, sizeof address);
    if (ioctl(any, what, &request) != 0) Refuse("an address");
  }

  static void SetUp(int any, const char* device) {
    ifreq request{};
    std::strcpy(request.ifr_name, device);
    if (ioctl(any, SIOCGIFFLAGS, &request) != 0) Refuse("the state of a device");
    request.ifr_flags |= IFF_UP;
    if (ioctl(any, SIOCSIFFLAGS, &request) != 0) Refuse("a device that is up");
  }

  void CloseAll() {
    for (Port& port : ports_) {
      if (port.tap >= 0) close(port.tap);
      if (port.space >= 0) close(port.space);
    }
    if (wake_ >= 0) close(wake_);
  }

  // The switch: takes what hosts send, holds it for as long as their lines say, hands it on.
  void Forward() {
    std::vector<pollfd> polled;
    for (const Port& port : ports_) polled.push_back({port.tap, POLLIN, 0});
    polled.push_back({wake_, POLLIN, 0});
    while (true) {
      timespec wait{};
      timespec* timeout = nullptr;
      if (!on_their_way_.empty()) {
        const auto left = std::chrono::nanoseconds(on_their_way_.top().due - Clock::now()).count();
        if (left > 0) wait = {left / 1000000000, left % 1000000000};
        timeout = &wait;
      }
      ppoll(polled.data(), polled.size(), timeout, nullptr);
      if (polled.back().revents) return;
      // Guards the lines, which the test changes at any moment.
      std::lock_guard<std::mutex> lock(mutex_);
      for (int h = 0; h < count(); ++h)
        if (polled[h].revents) Take(h);
      while (!on_their_way_.empty() && on_their_way_.top().due <= Clock::now()) HandOn();
    }
  }

  void Take(int host) {
    Port& port = ports_[host];
    char buffer[65536];
    for (int i = 0; i < 64; ++i) {
      const ssize_t n = read(port.tap, buffer, sizeof buffer);
      if (n < 14) return;
      const bool lost = std::uniform_real_distribution<double>(0, 1)(random_) < port.line.loss;
      if (port.line.cut || lost || port.queued >= kLongestQueue) {
        ++counts_.lost;
        continue;
      }
      port.free = std::max(port.free, Clock::now());
      if (port.line.mbit > 0) port.free += std::chrono::nanoseconds(std::llround(n * 8e3 / port.line.mbit));
      const auto delay = std::chrono::microseconds(std::llround(port.line.delay_ms * 1e3));
      on_their_way_.push({port.free + delay, ++frames_, host, std::string(buffer, n)});
      ++port.queued;
    }
  }

  void HandOn() {
    const Frame& frame = on_their_way_.top();
    --ports_[frame.from].queued;
    const bool to_all = frame.bytes[0] & 1;
    for (int h = 0; h < count(); ++h) {
      Port& port = ports_[h];
      if (h == frame.from || (!to_all && std::memcmp(frame.bytes.data(), port.mac.data(), 6) != 0)) continue;
      if (port.line.cut || ports_[frame.from].line.cut ||
          write(port.tap, frame.bytes.data(), frame.bytes.size()) < 0) {
        ++counts_.lost;
      } else {
        ++counts_.forwarded;
      }
    }
    on_their_way_.pop();
  }

  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  std::vector<Port> ports_;
  std::priority_queue<Frame, std::vector<Frame>, Later> on_their_way_;
  uint64_t frames_ = 0;
  Counts counts_;
  int wake_ = -1;
  std::thread switch_;
};

}  // namespace oneflow_like
