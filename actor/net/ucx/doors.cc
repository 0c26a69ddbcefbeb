#include "actor/net/ucx/doors.h"

#include <dirent.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <memory>

namespace oneflow_like {
namespace {

int Option(int fd, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

bool Listens(int fd, ListeningSocket* found) {
  struct stat file = {};
  if (fstat(fd, &file) != 0 || !S_ISSOCK(file.st_mode)) return false;
  const int domain = Option(fd, SO_DOMAIN);
  if ((domain != AF_INET && domain != AF_INET6) || Option(fd, SO_ACCEPTCONN) != 1) return false;
  *found = {fd, file.st_ino};
  return true;
}

// False when it failed for one that is still open.
bool Set(const std::vector<ListeningSocket>& doors, int option, const sock_fprog& program) {
  bool all = true;
  for (const ListeningSocket& door : doors) {
    ListeningSocket now;
    if (!Listens(door.fd, &now) || !(now == door)) continue;
    all = setsockopt(door.fd, SOL_SOCKET, option, &program, sizeof program) == 0 && all;
  }
  return all;
}

}  // namespace

std::vector<ListeningSocket> ListeningSockets() {
  std::vector<ListeningSocket> all;
  std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (!folder) return all;
  while (const dirent* entry = readdir(folder.get())) {
    ListeningSocket found;
    if (entry->d_name[0] != '.' && Listens(std::atoi(entry->d_name), &found)) all.push_back(found);
  }
  return all;
}

bool CloseDoors(const std::vector<ListeningSocket>& doors) {
  // A filter that lets no byte pass. Closing, or listening no more, would be an event that UCX does not
  // expect.
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  return Set(doors, SO_ATTACH_FILTER, {1, nothing});
}

bool OpenDoors(const std::vector<ListeningSocket>& doors) { return Set(doors, SO_DETACH_FILTER, {}); }

}  // namespace oneflow_like
