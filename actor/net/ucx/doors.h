// The sockets on which UCX listens for connections. UCX trusts whatever arrives there: a message of a few
// bytes that is not UCX's aborts the process. So they accept nothing before the processes of the job connect,
// where that moment is known, and nothing more once all connections are made.
#pragma once

#include <sys/types.h>

#include <vector>

namespace oneflow_like {

struct ListeningSocket {
  int fd = -1;
  ino_t inode = 0;  // distinguishes it from a later one with the same number
  bool operator==(const ListeningSocket&) const = default;
};

// All listening TCP sockets of this process.
std::vector<ListeningSocket> ListeningSockets();
// From here on the system drops everything that arrives at these sockets (to others the port seems to be
// filtered). Existing connections continue. Returns false when the system refuses for one that is still open.
bool CloseDoors(const std::vector<ListeningSocket>& doors);
// Reverts CloseDoors.
bool OpenDoors(const std::vector<ListeningSocket>& doors);

}  // namespace oneflow_like
