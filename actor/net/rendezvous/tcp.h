// TCP as far as processes need it to find one another: where to listen, how to reach. All sockets are
// non-blocking and closed on exec.
#pragma once

#include <string>
#include <vector>

#include "actor/net/rendezvous/file_descriptor.h"

namespace oneflow_like {

// Whether `host` means the loopback of this machine: "localhost", "127.*", "::1".
bool IsLoopback(const std::string& host);

// A listening socket. A loopback `host` is bound as such, and an address or name of this machine as that
// address. Where the name means something else here (a service's name, an address that is translated, a name
// that /etc/hosts maps to the loopback) and for "": all addresses. `port` 0: any. Throws Error.
FileDescriptor ListenAt(const std::string& host, int port);
int PortOf(int fd);

// "10.0.0.1", of the other end.
std::string PeerOf(int fd);

// The addresses of this machine that others may reach it by, likely ones first.
std::vector<std::string> OwnAddresses();

// One attempt, each address that the names mean in turn, at most `seconds` for each. `hosts`: one, or several
// separated by commas. A closed one when nothing answers, with the last reason in `why`.
FileDescriptor ConnectTo(const std::string& hosts, int port, double seconds, std::string* why);

}  // namespace oneflow_like
