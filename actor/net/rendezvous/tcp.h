// TCP for the rendezvous: listening and connecting. All sockets are non-blocking and closed on exec.
#pragma once

#include <string>
#include <vector>

#include "actor/net/rendezvous/file_descriptor.h"

namespace oneflow_like {

// Whether `host` means the loopback of this machine: "localhost", "127.*", "::1".
bool IsLoopback(const std::string& host);

// A listening socket. A loopback `host` is bound as such, and an address or name of this machine as that
// address. If the name means something else here (a service's name, a translated address, a name that
// /etc/hosts maps to the loopback), and for "", it listens on all addresses. `port` 0: any. Throws Error.
FileDescriptor ListenAt(const std::string& host, int port);
int PortOf(int fd);

// The other end's address: "10.0.0.1".
std::string PeerOf(int fd);

// The addresses by which others may reach this machine, likely ones first.
std::vector<std::string> OwnAddresses();

// Makes one attempt: tries each address of the names in turn, for at most `seconds` each. `hosts`: one, or
// several separated by commas. Returns a closed descriptor when nothing answers, with the last reason in
// `why`.
FileDescriptor ConnectTo(const std::string& hosts, int port, double seconds, std::string* why);

}  // namespace oneflow_like
