// Strangers at the ports of a running job: once its processes are connected nobody else gets through, and the
// job goes on.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "tests/processes.h"

namespace oneflow_like {
namespace {

// Whether a connection to a port of the loopback is made, and takes 108 bytes.
bool GetsThrough(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bool through = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  pollfd wait = {fd, POLLOUT, 0};
  if (!through) through = errno == EINPROGRESS && poll(&wait, 1, 300) == 1 && (wait.revents & POLLERR) == 0;
  close(fd);
  return through;
}

TEST(Strangers, FindNoOpenPortOfARunningJob) {
  for (const char* shared_memory : {"--shared_memory=true", "--shared_memory=false"}) {
    for (int processes : {2, 3}) {
      SCOPED_TRACE(std::string(shared_memory) + ", processes " + std::to_string(processes));
      TestFolder folder("strangers_test");
      JobCommand command{.program = std::string(OFL_BINARY_DIR) + "/tests/fault_program",
                         .flags = {"--mesh=cpu:dp=" + std::to_string(processes), "--peer_timeout=4",
                                   shared_memory, "--progress_file=" + (folder / "progress")},
                         .processes = processes,
                         .output = folder / "job"};
      ProcessJob job(command);
      const double end = Seconds() + 60;
      auto steps = [&] { return std::atoll(TextOf(folder / "progress").c_str()); };
      while (steps() < 2 && Seconds() < end) Sleep(0.01);
      ASSERT_GE(steps(), 2) << job.Said();
      std::vector<int> ports;
      for (int p = 0; p < processes; ++p)
        for (const std::string& address : ListeningAddresses(job[p].pid()))
          ports.push_back(std::stoi(address.substr(address.find(':') + 1), nullptr, 16));
      ASSERT_GE(ports.size(), static_cast<size_t>(processes));
      // Doors close when all have heard of all, a little after the first steps.
      for (int port : ports) {
        bool through = true;
        while ((through = GetsThrough(port)) && Seconds() < end) Sleep(0.05);
        EXPECT_FALSE(through) << "port " << port << " is still open";
      }
      const int64_t before = steps();
      while (steps() <= before + 1 && Seconds() < end) Sleep(0.01);
      EXPECT_GT(steps(), before + 1) << job.Said();
      for (int p = 0; p < processes; ++p) EXPECT_FALSE(job[p].Ended()) << job.Said();
    }
  }
}

}  // namespace
}  // namespace oneflow_like
