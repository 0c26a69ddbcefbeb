#include "actor/net/rendezvous/identity.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <sstream>

#include "actor/net/rendezvous/bootstrap.h"
#include "actor/net/rendezvous/pmix.h"
#include "actor/net/rendezvous/tcp.h"
#include "core/error.h"
#include "core/one_line.h"

namespace oneflow_like {
namespace {

constexpr int kMostProcesses = 1 << 20;
constexpr size_t kLongestToken = 256;
constexpr int kUsualPort = 29500;

class Environment {
 public:
  explicit Environment(const std::function<const char*(const char*)>& variable) : variable_(variable) {}

  // Empty and not set are the same: launchers' templates leave empty ones behind.
  bool Has(const char* name) const { return !Text(name).empty(); }
  std::string Text(const char* name, const std::string& otherwise = "") const {
    const char* text = variable_(name);
    return text == nullptr || *text == '\0' ? otherwise : text;
  }
  std::string Needed(const char* name, const std::string& because) const {
    if (!Has(name)) Fail("the environment variable ", name, " is not set, but ", because);
    return Text(name);
  }
  // A name or an address, or several with commas between them. What URLs write around an address of IPv6 is
  // taken off; what cannot be one would only be found out when all have waited for --start_timeout.
  std::string Host(const char* name, const std::string& otherwise = "") const {
    std::string hosts;
    std::istringstream list(Text(name));
    for (std::string host; std::getline(list, host, ',');) {
      const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
      if (bracketed) host = host.substr(1, host.size() - 2);
      const size_t colon = host.find(':');
      const bool one_colon = colon != std::string::npos && host.find(':', colon + 1) == std::string::npos;
      if (host.empty() || host.find_first_of("[]/@ \t\r\n\"'") != std::string::npos || one_colon ||
          (bracketed && colon == std::string::npos))
        Fail("the environment variable ", name, " is '", OnOneLine(Text(name)),
             "' but must be the host's name or address alone, such as node0, 10.0.0.1 or ::1; the port is "
             "MASTER_PORT or ONEFLOW_LIKE_PORT");
      hosts += (hosts.empty() ? "" : ",") + host;
    }
    return hosts.empty() ? otherwise : hosts;
  }
  int Number(const char* name, int least, int most) const {
    std::string text = Needed(name, "a whole number is expected there");
    int value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
      Fail("the environment variable ", name, " is '", OnOneLine(text), "' but must be a whole number from ",
           least, " to ", most);
    return value;
  }
  int Number(const char* name, int least, int most, int otherwise) const {
    return Has(name) ? Number(name, least, most) : otherwise;
  }
  // A process's number and how many there are.
  void Who(const char* number, const char* count, ProcessIdentity* id) const {
    Needed(count, Cat(number, " is; it is the number of processes of the job"));
    Needed(number, Cat(count, " is; it is the number of this process, from 0"));
    id->processes = Number(count, 1, kMostProcesses);
    id->process = Number(number, 0, kMostProcesses);
    if (id->process >= id->processes)
      Fail("the environment variable ", number, " is ", id->process, " but ", count, " is ", id->processes,
           "; processes are numbered from 0 to ", id->processes - 1);
  }

 private:
  const std::function<const char*(const char*)>& variable_;
};

// Where nobody outside this machine can come, what the launcher tells its processes and no others is enough
// to keep two jobs apart.
std::string Token(const Environment& env, const ProcessIdentity& id, const std::string& otherwise) {
  std::string token = env.Text("ONEFLOW_LIKE_TOKEN");
  if (token.size() > kLongestToken)
    Fail("the environment variable ONEFLOW_LIKE_TOKEN has ", token.size(), " characters, at most ",
         kLongestToken, " are used");
  if (!token.empty()) return token;
  if (!id.loopback())
    Fail("process 0 is at ", id.master_host,
         ", beyond this machine, so the processes need a secret to know one "
         "another by: set ONEFLOW_LIKE_TOKEN to the same text on all ",
         id.processes, " of them, e.g. export ONEFLOW_LIKE_TOKEN=$(openssl rand -hex 16)");
  return otherwise.empty() ? "" : Cat(otherwise, "/", getuid());
}

ProcessIdentity Alone() { return {}; }

ProcessIdentity FromOurLauncher(const Environment& env) {
  ProcessIdentity id;
  env.Who("ONEFLOW_LIKE_PROCESS", "ONEFLOW_LIKE_PROCESSES", &id);
  id.launcher = "--processes";
  if (id.alone()) return id;
  id.local = id.process;
  id.locals = id.processes;
  id.master_port = env.Number("ONEFLOW_LIKE_PORT", 1, 65535);
  if (id.process == 0) id.listen_fd = env.Number("ONEFLOW_LIKE_LISTEN_FD", 0, 1 << 30, -1);
  id.token = Token(env, id, "");
  return id;
}

// What LOCAL_RANK and LOCAL_WORLD_SIZE tell.
void Locals(const Environment& env, ProcessIdentity* id) {
  bool loopback = id->loopback();
  id->local = env.Number("LOCAL_RANK", 0, id->processes - 1, loopback ? id->process : 0);
  id->locals = env.Number("LOCAL_WORLD_SIZE", 1, id->processes, loopback ? id->processes : id->local + 1);
  if (id->local >= id->locals)
    Fail("the environment variable LOCAL_RANK is ", id->local, " but LOCAL_WORLD_SIZE is ", id->locals,
         "; the processes of a host are numbered from 0 to ", id->locals - 1);
}

// torchrun, Kubernetes' indexed jobs, and people who set the variables themselves.
ProcessIdentity FromRanks(const Environment& env) {
  ProcessIdentity id;
  bool kubernetes = !env.Has("RANK") && env.Has("JOB_COMPLETION_INDEX");
  env.Who(kubernetes ? "JOB_COMPLETION_INDEX" : "RANK", "WORLD_SIZE", &id);
  if (id.alone()) return Alone();
  id.launcher = kubernetes ? "Kubernetes" : "torchrun";
  bool one_host = env.Number("LOCAL_WORLD_SIZE", 1, id.processes, 0) == id.processes;
  if (!one_host) {
    env.Needed("MASTER_ADDR", "RANK and WORLD_SIZE are; it is the host where process 0 runs");
    id.master_host = env.Host("MASTER_ADDR");
  }
  Locals(env, &id);
  if (env.Has("ONEFLOW_LIKE_PORT")) {
    id.master_port = env.Number("ONEFLOW_LIKE_PORT", 1, 65535);
  } else if (kubernetes && !env.Has("MASTER_PORT")) {
    id.master_port = kUsualPort;  // every pod has all ports for itself
  } else {
    env.Needed("MASTER_PORT", "RANK and WORLD_SIZE are; it is the port where process 0 listens");
    id.master_port = env.Number("MASTER_PORT", 1, 65535);
    // torchrun itself listens at MASTER_PORT then.
    if (env.Text("TORCHELASTIC_USE_AGENT_STORE") == "True")
      id.master_port += id.master_port == 65535 ? -1 : 1;
  }
  std::string run = env.Text("TORCHELASTIC_RUN_ID");
  if (!run.empty()) id.job = Cat(run, "/", env.Text("TORCHELASTIC_RESTART_COUNT"));
  id.token = Token(env, id, run.empty() ? "" : Cat(run, "/", env.Text("TORCHELASTIC_RESTART_COUNT")));
  return id;
}

// "127.0.0.1 41000 secret".
ProcessIdentity FromPmix(const Environment& env) {
  ProcessIdentity id;
  FileDescriptor listener;
  PmixJob job = AskPmix([&](bool one_host) {
    std::string host = env.Host("MASTER_ADDR");
    if (one_host) host = "127.0.0.1";
    listener = ListenAt(host, env.Number("ONEFLOW_LIKE_PORT", 1, 65535, 0));
    if (host.empty())
      for (const std::string& address : OwnAddresses()) host += (host.empty() ? "" : ",") + address;
    if (host.empty()) Fail("this host has no network address that the other processes could reach it by");
    return Cat(host, " ", PortOf(listener.get()), " ", env.Text("ONEFLOW_LIKE_TOKEN", RandomToken()));
  });
  if (job.processes == 1) return Alone();
  id.launcher = env.Has("OMPI_COMM_WORLD_SIZE") ? "mpirun" : env.Has("SLURM_PROCID") ? "srun" : "PMIx";
  id.process = job.process;
  id.processes = job.processes;
  id.local = job.local;
  id.locals = job.locals;
  std::istringstream published(job.published);
  if (!(published >> id.master_host >> id.master_port >> id.token))
    Fail("PMIx: process 0 was to publish where it listens, but published '", job.published, "'");
  if (id.process == 0) id.listen_fd = dup(listener.get());
  return id;
}

// The first of "host[01-04,7],other": host01.
std::string FirstHost(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    size_t end = list.find(']', i);
    if (end == std::string::npos) return "";
    host += list.substr(i + 1, list.find_first_of(",-]", i) - i - 1);
    i = end;
  }
  return host;
}

// Of "2(x3),1": how many processes host `index` has.
int TasksOfHost(const std::string& list, int index, int otherwise) {
  std::istringstream in(list);
  std::string item;
  while (std::getline(in, item, ',')) {
    int tasks = std::atoi(item.c_str());
    size_t times = item.find("(x");
    index -= times == std::string::npos ? 1 : std::atoi(item.c_str() + times + 2);
    if (index < 0 && tasks > 0) return tasks;
  }
  return otherwise;
}

// The script of sbatch has SLURM_PROCID and SLURM_NTASKS too, though it is no process of the job.
bool InBatchScript(const Environment& env) {
  return env.Has("SLURM_JOB_ID") && !env.Has("SLURM_STEP_ID") && !env.Has("SLURM_STEP_NUM_TASKS") &&
         !env.Has("SLURM_STEP_NODELIST") && env.Text("SLURM_PROCID") == "0";
}

ProcessIdentity FromSlurm(const Environment& env) {
  ProcessIdentity id;
  if (InBatchScript(env)) return Alone();
  env.Who("SLURM_PROCID", env.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", &id);
  if (id.alone()) return Alone();
  id.launcher = "srun";
  const char* list_name = env.Has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  std::string hosts = env.Text(list_name);
  bool one_host = !hosts.empty() && hosts.find_first_of("[,") == std::string::npos;
  if (!one_host) {
    id.master_host = env.Host("MASTER_ADDR", FirstHost(hosts));
    if (id.master_host.empty() && !hosts.empty())
      Fail("the environment variable ", list_name, " is '", OnOneLine(hosts), "', which is no list of hosts");
    if (id.master_host.empty())
      Fail(
          "neither of the environment variables SLURM_STEP_NODELIST and MASTER_ADDR is set, but SLURM_PROCID "
          "is; MASTER_ADDR is the host where process 0 runs");
  }
  id.local = env.Number("SLURM_LOCALID", 0, id.processes - 1, one_host ? id.process : 0);
  id.locals = one_host ? id.processes
                       : TasksOfHost(env.Text("SLURM_STEP_TASKS_PER_NODE"),
                                     env.Number("SLURM_NODEID", 0, kMostProcesses, 0), id.local + 1);
  std::string job = env.Text("SLURM_JOB_ID", env.Text("SLURM_JOBID"));
  if (env.Has("ONEFLOW_LIKE_PORT") || env.Has("MASTER_PORT")) {
    id.master_port = env.Number(env.Has("ONEFLOW_LIKE_PORT") ? "ONEFLOW_LIKE_PORT" : "MASTER_PORT", 1, 65535);
  } else {
    if (job.empty())
      Fail(
          "neither of the environment variables SLURM_JOB_ID and MASTER_PORT is set, but SLURM_PROCID is; "
          "MASTER_PORT is the port where process 0 listens");
    // Below what the kernel gives to connections, and another one for the next step of the same job.
    uint64_t number = std::strtoull(job.c_str(), nullptr, 10) * 7;
    number += std::strtoull(env.Text("SLURM_STEP_ID").c_str(), nullptr, 10);
    id.master_port = static_cast<int>(12000 + number % 20000);
  }
  if (!job.empty()) id.job = Cat("slurm/", job, "/", env.Text("SLURM_STEP_ID"));
  id.token = Token(env, id, id.job);
  return id;
}

}  // namespace

bool ProcessIdentity::loopback() const { return IsLoopback(master_host); }

namespace {

bool Ours(const Environment& env) {
  return env.Has("ONEFLOW_LIKE_PROCESS") || env.Has("ONEFLOW_LIKE_PROCESSES");
}

bool HasRanks(const Environment& env) {
  // Scripts set WORLD_SIZE and MASTER_ADDR for all, and leave each one's number to mpirun or srun.
  bool numbered = env.Has("PMIX_RANK") || env.Has("SLURM_PROCID");
  bool indexed = env.Has("JOB_COMPLETION_INDEX") && env.Has("WORLD_SIZE") && env.Has("MASTER_ADDR");
  return env.Has("RANK") || indexed || (env.Has("WORLD_SIZE") && !numbered);
}

ProcessIdentity FromLauncher(const Environment& env) {
  if (Ours(env)) return FromOurLauncher(env);
  if (HasRanks(env)) return FromRanks(env);
  if (env.Has("PMIX_RANK")) return FromPmix(env);
  if (env.Has("SLURM_PROCID")) return FromSlurm(env);
  return Alone();
}

}  // namespace

ProcessIdentity ReadIdentity(const std::function<const char*(const char*)>& variable) {
  const Environment env(variable);
  ProcessIdentity id = FromLauncher(env);
  id.job = env.Text("ONEFLOW_LIKE_JOB", id.job);
  return id;
}

bool AsksPmix(const std::function<const char*(const char*)>& variable) {
  const Environment env(variable);
  return !Ours(env) && !HasRanks(env) && env.Has("PMIX_RANK");
}

}  // namespace oneflow_like
