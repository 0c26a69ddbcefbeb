#include "actor/net/rendezvous/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <sstream>

#include "core/error.h"

namespace oneflow_like {
namespace {

// An address of either family, with its port.
struct Endpoint {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);

  sockaddr* address() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  const sockaddr_in& v4() const { return reinterpret_cast<const sockaddr_in&>(storage); }
  const sockaddr_in6& v6() const { return reinterpret_cast<const sockaddr_in6&>(storage); }

  void SetPort(int port) {
    if (family() == AF_INET) reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
    if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  }
  int port() const { return ntohs(family() == AF_INET ? v4().sin_port : v6().sin6_port); }
  std::string text() const {
    char text[NI_MAXHOST] = "";
    getnameinfo(address(), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
    return text;
  }
  bool loopback() const {
    if (family() == AF_INET) return ntohl(v4().sin_addr.s_addr) >> 24 == 127;
    return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6().sin6_addr);
  }
  bool link_local() const {
    if (family() == AF_INET) return ntohl(v4().sin_addr.s_addr) >> 16 == 0xa9fe;
    return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6().sin6_addr);
  }
};

Endpoint AnyAddress(int family) {
  Endpoint any;
  any.storage.ss_family = family;
  any.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return any;
}

std::vector<Endpoint> Resolve(const std::string& host, std::string* why) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    *why = Cat("the name ", host,
               " does not resolve: ", error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
    return {};
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<Endpoint> all;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if (a->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Endpoint e;
    std::memcpy(&e.storage, a->ai_addr, a->ai_addrlen);
    e.length = a->ai_addrlen;
    all.push_back(e);
  }
  return all;
}

struct Interface {
  std::string name;
  Endpoint endpoint;
};

std::vector<Interface> Interfaces() {
  std::vector<Interface> all;
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return all;
  for (const ifaddrs* i = found; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || !(i->ifa_flags & IFF_UP)) continue;
    int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface one;
    one.name = i->ifa_name;
    one.endpoint = AnyAddress(family);
    std::memcpy(&one.endpoint.storage, i->ifa_addr, one.endpoint.length);
    all.push_back(one);
  }
  freeifaddrs(found);
  return all;
}

// Where process 0 of a job that is told to meet at `host` listens.
std::vector<Endpoint> WhereToListen(const std::string& host) {
  std::vector<Endpoint> any = {AnyAddress(AF_INET6), AnyAddress(AF_INET)};
  if (host.empty()) return any;
  std::string why;
  std::vector<Endpoint> meant = Resolve(host == "localhost" ? "127.0.0.1" : host, &why);
  if (IsLoopback(host)) return meant;
  if (meant.empty()) LOG(WARNING) << why << "; process 0 listens on all addresses of this machine";
  std::vector<Interface> own = Interfaces();
  for (const Endpoint& e : meant)
    if (!e.loopback() && std::any_of(own.begin(), own.end(),
                                     [&](const Interface& i) { return i.endpoint.text() == e.text(); }))
      return {e};
  return any;
}

FileDescriptor BindAndListen(Endpoint at, int port) {
  FileDescriptor s(socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!s.open()) return s;
  int on = 1, off = 0;
  setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (at.family() == AF_INET6) setsockopt(s.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  at.SetPort(port);
  if (bind(s.get(), at.address(), at.length) == 0 && listen(s.get(), 4096) == 0) return s;
  int error = errno;
  s.Close();
  errno = error;
  return s;
}

// "": connected. A loopback port that nobody listens on can be given to the connecting socket itself, which
// then speaks with itself.
std::string Connect(int s, const Endpoint& to, double seconds) {
  if (connect(s, to.address(), to.length) != 0) {
    if (errno != EINPROGRESS) return std::strerror(errno);
    auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    pollfd wait = {s, POLLOUT, 0};
    int ready = 0;
    do {
      double left = std::chrono::duration<double>(until - std::chrono::steady_clock::now()).count();
      ready = left > 0 ? poll(&wait, 1, static_cast<int>(left * 1000) + 1) : 0;
    } while (ready < 0 && errno == EINTR);
    if (ready == 0) return "no answer";
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return std::strerror(error);
  }
  Endpoint mine, theirs;
  getsockname(s, mine.address(), &mine.length);
  getpeername(s, theirs.address(), &theirs.length);
  if (mine.port() == theirs.port() && mine.text() == theirs.text()) return std::strerror(ECONNREFUSED);
  return "";
}

}  // namespace

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  in6_addr v6;  // "::1" in any spelling
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

FileDescriptor ListenAt(const std::string& host, int port) {
  std::string why;
  for (const Endpoint& at : WhereToListen(host)) {
    FileDescriptor s = BindAndListen(at, port);
    if (s.open()) return s;
    why = Cat(at.text(), ":", port, ": ", std::strerror(errno),
              errno == EADDRINUSE
                  ? "; another process 0 of this job, another job, or another program listens there"
                  : "");
    if (errno == EADDRINUSE) break;
  }
  Fail("process 0 cannot listen at ", why.empty() ? Cat(host, ":", port) : why);
}

int PortOf(int fd) {
  Endpoint e;
  PCHECK(getsockname(fd, e.address(), &e.length) == 0);
  return e.port();
}

std::string PeerOf(int fd) {
  Endpoint e;
  return getpeername(fd, e.address(), &e.length) == 0 ? e.text() : "an unknown address";
}

std::vector<std::string> OwnAddresses() {
  // Bridges of containers and virtual machines have the same address on every host.
  auto likely = [](const Interface& i) {
    for (const char* prefix : {"docker", "br-", "virbr", "veth", "cni", "lxc"})
      if (i.name.rfind(prefix, 0) == 0) return false;
    return true;
  };
  std::vector<Interface> all = Interfaces();
  std::stable_sort(all.begin(), all.end(), [&](const Interface& a, const Interface& b) {
    if (likely(a) != likely(b)) return likely(a);
    return a.endpoint.family() == AF_INET && b.endpoint.family() != AF_INET;
  });
  std::vector<std::string> texts;
  for (const Interface& i : all)
    if (!i.endpoint.loopback() && !i.endpoint.link_local()) texts.push_back(i.endpoint.text());
  return texts;
}

FileDescriptor ConnectTo(const std::string& hosts, int port, double seconds, std::string* why) {
  std::istringstream list(hosts);
  std::string host;
  while (std::getline(list, host, ',')) {
    for (Endpoint to : Resolve(host, why)) {
      FileDescriptor s(socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!s.open()) {
        *why = Cat("no socket: ", std::strerror(errno));
        continue;
      }
      to.SetPort(port);
      std::string error = Connect(s.get(), to, seconds);
      if (error.empty()) {
        int on = 1;
        setsockopt(s.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        setsockopt(s.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
        return s;
      }
      *why = Cat(to.text(), ":", port, ": ", error);
    }
  }
  return FileDescriptor();
}

}  // namespace oneflow_like
