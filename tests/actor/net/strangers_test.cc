// Strangers at the ports of a job: nobody gets through before its processes connect, on one host, nor once
// they are connected; and the job goes on.
// ctest: programs=fault_program
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

std::vector<int> PortsOf(pid_t pid) {
  std::vector<int> ports;
  for (const std::string& address : ListeningAddresses(pid))
    ports.push_back(std::stoi(address.substr(address.find(':') + 1), nullptr, 16));
  return ports;
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
        for (int port : PortsOf(job[p].pid())) ports.push_back(port);
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

// Process 0 of one host, while it waits for process 1: its UCX takes no connection.
TEST(Strangers, FindNoOpenPortWhileAProcessIsAwaited) {
  TestFolder folder("strangers_test");
  const int port = FreePort();
  Command command{.program = std::string(OFL_BINARY_DIR) + "/tests/fault_program",
                  .flags = {"--mesh=cpu:dp=2", "--start_timeout=60"},
                  .variables = {{"RANK", "0"},
                                {"WORLD_SIZE", "2"},
                                {"LOCAL_RANK", "0"},
                                {"LOCAL_WORLD_SIZE", "2"},
                                {"MASTER_ADDR", "127.0.0.1"},
                                {"MASTER_PORT", std::to_string(port)}},
                  .output = folder / "alone"};
  Process process(command);
  const double end = Seconds() + 60;
  std::vector<int> ports;
  while (std::find(ports.begin(), ports.end(), port) == ports.end() && Seconds() < end) {
    Sleep(0.01);
    ports = PortsOf(process.pid());
  }
  ASSERT_GE(ports.size(), 2u) << process.err();
  for (int other : ports) EXPECT_EQ(GetsThrough(other), other == port);
  EXPECT_FALSE(process.Ended()) << process.err();
}

}  // namespace
}  // namespace oneflow_like
