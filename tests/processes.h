// Programs that tests start: with flags, variables and a host, outputs kept, ended at the latest with the
// object; and jobs of several of them that find one another by torchrun's variables.
#pragma once

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/hosts.h"

namespace oneflow_like {

inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The contents of a file; empty when there is none.
inline std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
inline std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

class TestFolder {
 public:
  explicit TestFolder(const std::string& name) {
    path_ = std::filesystem::temp_directory_path().string() + "/" + name + "." + std::to_string(getpid());
    std::filesystem::create_directories(path_);
  }
  TestFolder(const TestFolder&) = delete;
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(*this / name, std::ios::binary) << bytes;
    return *this / name;
  }

 private:
  std::string path_;
};

// A command of the shell, run to its end.
struct ShellOutcome {
  int code = -1;
  std::string output;  // standard output and error together
};

inline ShellOutcome Shell(const std::string& command) {
  ShellOutcome outcome;
  FILE* pipe = popen(("( " + command + " ) 2>&1 </dev/null").c_str(), "r");
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) outcome.output.append(buffer, got);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

struct Command {
  std::string program;
  std::vector<std::string> flags;
  std::map<std::string, std::string> variables;  // beside the test's own
  std::string output;                            // files <output>.out and <output>.err
  const Hosts* hosts = nullptr;
  int host = 0;
};

// A started program, in a process group of its own.
class Process {
 public:
  explicit Process(const Command& command) : output_(command.output) {
    std::vector<std::string> texts = {command.program};
    texts.insert(texts.end(), command.flags.begin(), command.flags.end());
    std::vector<std::string> variables;
    for (char** v = environ; *v; ++v) {
      const std::string name(*v, std::strcspn(*v, "="));
      if (!command.variables.count(name)) variables.push_back(*v);
    }
    for (const auto& [name, value] : command.variables) variables.push_back(name + "=" + value);
    const std::vector<char*> argv = Pointers(texts), envp = Pointers(variables);
    const int out = open((output_ + ".out").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const int err = open((output_ + ".err").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0 || err < 0) throw std::runtime_error("cannot write " + output_ + ".out");
    started_ = Seconds();
    pid_ = fork();
    if (pid_ == 0) {  // system calls only: other threads of the test may hold any lock
      setpgid(0, 0);
      signal(SIGINT, SIG_DFL);  // a shell that starts the test in the background has it ignored
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(out, STDOUT_FILENO);
      dup2(err, STDERR_FILENO);
      if (command.hosts && !command.hosts->Enter(command.host)) _exit(126);
      execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
    close(out);
    close(err);
    if (pid_ < 0) throw std::runtime_error("fork failed");
    setpgid(pid_, pid_);  // whoever of the two comes first
  }
  Process(const Process&) = delete;
  ~Process() {
    kill(-pid_, SIGKILL);
    if (!ended_) waitpid(pid_, &status_, 0);
  }

  pid_t pid() const { return pid_; }
  double started() const { return started_; }
  void Signal(int signal) const {
    if (!ended_) kill(pid_, signal);
  }
  bool Ended() {
    if (!ended_ && wait4(pid_, &status_, WNOHANG, &usage_) == pid_) {
      ended_ = true;
      ended_at_ = Seconds();
    }
    return ended_;
  }
  // Until it has ended, or `deadline` (of Seconds()) is over: false.
  bool WaitUntil(double deadline) {
    while (!Ended()) {
      if (Seconds() > deadline) return false;
      Sleep(0.002);
    }
    return true;
  }
  double ended_at() const { return ended_at_; }
  // Exit code, or 128 + signal; -1 while it runs.
  int code() const {
    if (!ended_) return -1;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  // The most memory that it has had, once it has ended.
  int64_t peak_bytes() const { return int64_t{1024} * usage_.ru_maxrss; }
  std::string out() const { return TextOf(output_ + ".out"); }
  std::string err() const { return TextOf(output_ + ".err"); }

 private:
  static std::vector<char*> Pointers(std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  std::string output_;
  pid_t pid_ = -1;
  int status_ = 0;
  rusage usage_ = {};
  bool ended_ = false;
  double started_ = 0, ended_at_ = 0;
};

// A port nobody has just now, below those that the system gives to connections: one of those might take it
// before it is listened on.
inline int FreePort() {
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    const int port = 10000 + static_cast<int>(random() % 20000);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(fd);
    if (bound) return port;
  }
  throw std::runtime_error("no free port on the loopback");
}

// What torchrun sets; process k of hosts runs on host k modulo their number.
struct JobCommand {
  std::string program;
  std::vector<std::string> flags;
  int processes = 2;
  std::string output;  // process k writes <output>.k.out and .err
  const Hosts* hosts = nullptr;
  std::string token = "a secret of this test";
  int port = 0;                                       // 0: a free one
  std::map<int, std::vector<std::string>> own_flags;  // of one process alone
  std::map<std::string, std::string> variables = {};  // of all
};

class ProcessJob {
 public:
  explicit ProcessJob(const JobCommand& job) : port_(job.port ? job.port : job.hosts ? 29500 : FreePort()) {
    for (int k = 0; k < job.processes; ++k) Start(job, k);
  }

  // Starts process k alone; `job` as a whole is what the constructor does.
  void Start(const JobCommand& job, int k) {
    const int hosts = job.hosts ? job.hosts->count() : 1;
    Command command{.program = job.program,
                    .flags = job.flags,
                    .variables = {{"RANK", std::to_string(k)},
                                  {"WORLD_SIZE", std::to_string(job.processes)},
                                  {"LOCAL_RANK", std::to_string(k / hosts)},
                                  {"LOCAL_WORLD_SIZE", std::to_string((job.processes + hosts - 1) / hosts)},
                                  {"MASTER_ADDR", job.hosts ? Hosts::address(0) : "127.0.0.1"},
                                  {"MASTER_PORT", std::to_string(port_)},
                                  {"OMP_WAIT_POLICY", "passive"}},
                    .output = job.output + "." + std::to_string(k),
                    .hosts = job.hosts,
                    .host = k % hosts};
    command.variables.insert(job.variables.begin(), job.variables.end());
    if (!job.token.empty()) command.variables["ONEFLOW_LIKE_TOKEN"] = job.token;
    const auto own = job.own_flags.find(k);
    if (own != job.own_flags.end())
      command.flags.insert(command.flags.end(), own->second.begin(), own->second.end());
    processes_.push_back(std::make_unique<Process>(command));
  }

  int count() const { return static_cast<int>(processes_.size()); }
  Process& operator[](int k) { return *processes_[k]; }
  int port() const { return port_; }
  // All of them; false when time is up before.
  bool WaitUntil(double deadline) {
    bool all = true;
    for (auto& process : processes_) all = process->WaitUntil(deadline) && all;
    return all;
  }
  // What every process printed, for messages.
  std::string Said() const {
    std::string text;
    for (size_t k = 0; k < processes_.size(); ++k) {
      const Process& p = *processes_[k];
      text += "process " + std::to_string(k) + " (pid " + std::to_string(p.pid()) + ") code " +
              std::to_string(p.code()) + "\n" + p.err();
    }
    return text;
  }

 private:
  int port_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// The addresses, as /proc/net/tcp has them ("0100007F:7148"), on which a process listens.
inline std::vector<std::string> ListeningAddresses(pid_t pid) {
  const std::string root = "/proc/" + std::to_string(pid);
  std::set<std::string> sockets;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.rfind("socket:[", 0) == 0) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> addresses;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    for (const std::string& line : LinesOf(TextOf(root + table))) {
      std::istringstream words(line);
      std::string number, local, remote, state, skip, inode;
      words >> number >> local >> remote >> state >> skip >> skip >> skip >> skip >> skip >> inode;
      if (state == "0A" && sockets.count(inode)) addresses.push_back(local);
    }
  }
  return addresses;
}

// Processes that carry the variable NAME=VALUE in their environment: what a job has left.
inline std::vector<pid_t> ProcessesWith(const std::string& variable) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string variables = '\0' + TextOf(entry.path().string() + "/environ");
    if (variables.find('\0' + variable + '\0') != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

// The losses of a --log_json file, by step.
inline std::vector<double> LossesOf(const std::string& path) {
  std::vector<double> losses;
  for (const std::string& line : LinesOf(TextOf(path))) {
    const size_t at = line.find("\"loss\":");
    if (at != std::string::npos) losses.push_back(std::strtod(line.c_str() + at + 7, nullptr));
  }
  return losses;
}
// Largest relative difference of two curves; infinite when they differ in length or are empty.
inline double CurveDifference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]) / std::abs(b[i]);
    if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
  }
  return worst;
}
// A text that can be learnt from, for gpt.
inline std::string SomeText() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the quick brown fox " + std::to_string(i * 7919) + "\n";
  return text;
}

}  // namespace oneflow_like
