// The sockets at which UCX listens for connections. Whatever comes to them is believed: a message of a few
// bytes that is not UCX's aborts the process. So they take nothing before
// the processes of the job connect, where that can be told, and nothing more once all connections are made.
#pragma once

#include <sys/types.h>

#include <vector>

namespace oneflow_like {

struct ListeningSocket {
  int fd = -1;
  ino_t inode = 0;  // tells it from one that gets its number later
  bool operator==(const ListeningSocket&) const = default;
};

// All of TCP that this process has now.
std::vector<ListeningSocket> ListeningSockets();
// From here on they hear nobody: the system drops what comes for them (to who knocks, the port seems to be
// filtered). Connections that are made already go on. False when the system refuses for one that is still
// open.
bool CloseDoors(const std::vector<ListeningSocket>& doors);
// Undoes it.
bool OpenDoors(const std::vector<ListeningSocket>& doors);

}  // namespace oneflow_like
