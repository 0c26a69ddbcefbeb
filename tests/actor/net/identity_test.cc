// Who a process is (actor/net/rendezvous/identity.h): the variables of every launcher, and every mistake in
// them.
#include "actor/net/rendezvous/identity.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/one_line.h"

namespace oneflow_like {
namespace {

using Variables = std::map<std::string, std::string>;

ProcessIdentity Identity(const Variables& variables) {
  return ReadIdentity([&](const char* name) -> const char* {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// `base` with `changes`; "-" takes a variable away.
Variables With(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    base[name] = value;
    if (value == "-") base.erase(name);
  }
  return base;
}

// Expects an Error whose text holds all of `parts`.
void ExpectError(const Variables& variables, const std::vector<std::string>& parts) {
  std::string text = "(no error)";
  try {
    Identity(variables);
  } catch (const Error& e) {
    text = e.what();
  }
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
}

const Variables kOurs = {{"ONEFLOW_LIKE_PROCESS", "2"},
                         {"ONEFLOW_LIKE_PROCESSES", "4"},
                         {"ONEFLOW_LIKE_PORT", "41000"},
                         {"ONEFLOW_LIKE_TOKEN", "secret"}};
const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29501"},
                             {"TORCHELASTIC_RUN_ID", "run"},
                             {"ONEFLOW_LIKE_TOKEN", "secret"}};
const Variables kSrun = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_JOB_ID", "1001"},
                         {"SLURM_STEP_ID", "3"},
                         {"SLURM_STEP_NODELIST", "gpu[03-04,7],login"},
                         {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                         {"ONEFLOW_LIKE_TOKEN", "secret"}};
const Variables kPod = {{"JOB_COMPLETION_INDEX", "3"},
                        {"WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "train-0.train"},
                        {"ONEFLOW_LIKE_TOKEN", "secret"}};

TEST(IdentityTest, NoVariablesMeanAlone) {
  ProcessIdentity id = Identity({});
  EXPECT_TRUE(id.alone());
  EXPECT_EQ(id.process, 0);
  EXPECT_EQ(id.launcher, "");
  EXPECT_TRUE(id.loopback());
  // A copy by itself, of --restarts.
  id = Identity({{"ONEFLOW_LIKE_PROCESS", "0"}, {"ONEFLOW_LIKE_PROCESSES", "1"}});
  EXPECT_TRUE(id.alone());
  EXPECT_EQ(id.launcher, "--processes");
  // The variables of an allocation, of a service, and empty ones are no launcher's.
  EXPECT_TRUE(Identity({{"MASTER_ADDR", "10.0.0.1"}, {"SLURM_NTASKS", "4"}, {"LOCAL_RANK", "0"}}).alone());
  EXPECT_TRUE(Identity({{"RANK", ""}, {"WORLD_SIZE", ""}}).alone());
  EXPECT_TRUE(Identity({{"JOB_COMPLETION_INDEX", "3"}}).alone());
}

TEST(IdentityTest, OurOwnLauncher) {
  ProcessIdentity id = Identity(kOurs);
  EXPECT_EQ(id.launcher, "--processes");
  EXPECT_EQ(id.process, 2);
  EXPECT_EQ(id.processes, 4);
  EXPECT_EQ(id.local, 2);
  EXPECT_EQ(id.locals, 4);
  EXPECT_EQ(id.master_host, "127.0.0.1");
  EXPECT_EQ(id.master_port, 41000);
  EXPECT_EQ(id.listen_fd, -1);
  EXPECT_EQ(id.token, "secret");
  EXPECT_EQ(Identity(With(kOurs, {{"ONEFLOW_LIKE_PROCESS", "0"}, {"ONEFLOW_LIKE_LISTEN_FD", "7"}})).listen_fd,
            7);
  // It goes before whatever started the parent.
  Variables both = kTorchrun;
  both.insert(kOurs.begin(), kOurs.end());
  EXPECT_EQ(Identity(both).launcher, "--processes");
  EXPECT_EQ(Identity(both).master_host, "127.0.0.1");

  ExpectError(With(kOurs, {{"ONEFLOW_LIKE_PROCESSES", "-"}}), {"ONEFLOW_LIKE_PROCESSES is not set"});
  ExpectError(With(kOurs, {{"ONEFLOW_LIKE_PROCESS", "-"}}), {"ONEFLOW_LIKE_PROCESS is not set"});
  ExpectError(With(kOurs, {{"ONEFLOW_LIKE_PROCESS", "4"}}),
              {"ONEFLOW_LIKE_PROCESS is 4 but ONEFLOW_LIKE_PROCESSES is 4", "0 to 3"});
  ExpectError(With(kOurs, {{"ONEFLOW_LIKE_PORT", "-"}}), {"ONEFLOW_LIKE_PORT is not set"});
}

TEST(IdentityTest, Torchrun) {
  ProcessIdentity id = Identity(kTorchrun);
  EXPECT_EQ(id.launcher, "torchrun");
  EXPECT_EQ(id.process, 5);
  EXPECT_EQ(id.processes, 8);
  EXPECT_EQ(id.local, 1);
  EXPECT_EQ(id.locals, 4);
  EXPECT_EQ(id.master_host, "10.0.0.1");
  EXPECT_EQ(id.master_port, 29501);
  EXPECT_EQ(id.token, "secret");
  EXPECT_FALSE(id.loopback());
  EXPECT_TRUE(Identity({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).alone());
  EXPECT_EQ(Identity(With(kTorchrun, {{"ONEFLOW_LIKE_PORT", "7777"}})).master_port, 7777);
  // torchrun listens at MASTER_PORT itself.
  EXPECT_EQ(Identity(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).master_port, 29502);
  EXPECT_EQ(Identity(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).master_port, 29501);
}

TEST(IdentityTest, TorchrunOnOneHostNeedsNoToken) {
  Variables one =
      With(kTorchrun, {{"LOCAL_WORLD_SIZE", "8"}, {"LOCAL_RANK", "5"}, {"ONEFLOW_LIKE_TOKEN", "-"}});
  ProcessIdentity id = Identity(one);
  EXPECT_TRUE(id.loopback());
  EXPECT_FALSE(id.token.empty());
  EXPECT_EQ(id.token, Identity(With(one, {{"RANK", "0"}, {"LOCAL_RANK", "0"}})).token);
  EXPECT_NE(id.token, Identity(With(one, {{"TORCHELASTIC_RUN_ID", "other"}})).token);
  EXPECT_NE(id.token, Identity(With(one, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).token);
  // By hand, all on the loopback: nothing to derive a token from, and none is needed.
  ProcessIdentity by_hand =
      Identity({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "4000"}});
  EXPECT_EQ(by_hand.token, "");
  EXPECT_EQ(by_hand.local, 1);
  EXPECT_EQ(by_hand.locals, 2);
}

// The host as people write it: names, addresses of both kinds, in brackets too; what cannot be one is refused
// at once.
TEST(IdentityTest, AddressesOfProcessZero) {
  const Variables kLaunchers[] = {kTorchrun, kSrun, With(kPod, {{"MASTER_ADDR", "x"}})};
  for (const Variables& launcher : kLaunchers) {
    for (const auto& [given, host] : Variables{{"10.0.0.1", "10.0.0.1"},
                                               {"node0", "node0"},
                                               {"node-0.rack_1.example.", "node-0.rack_1.example."},
                                               {"::1", "::1"},
                                               {"[::1]", "::1"},
                                               {"[2001:db8::7]", "2001:db8::7"},
                                               {"fe80::1%eth0", "fe80::1%eth0"},
                                               {"[fe80::1%eth0]", "fe80::1%eth0"},
                                               {"::ffff:10.0.0.1", "::ffff:10.0.0.1"},
                                               {"10.0.0.1,[::1]", "10.0.0.1,::1"}})
      EXPECT_EQ(Identity(With(launcher, {{"MASTER_ADDR", given}})).master_host, host) << given;
    for (const char* wrong : {"node0:29500", "10.0.0.1:29500", "[::1]:29500", "tcp://node0", "http://[::1]/",
                              "[node0]", "[", "]", "[]", "[::1", "::1]", " node0", "node0 ", "node 0",
                              "node0\n", "user@node0", "\"node0\"", ",", "node0,,node1"})
      ExpectError(With(launcher, {{"MASTER_ADDR", wrong}}),
                  {Cat("MASTER_ADDR is '", OnOneLine(wrong), "'"), "name or address alone",
                   "the port is MASTER_PORT"});
  }
  for (const auto& [host, loopback] : std::map<std::string, bool>{{"[::1]", true},
                                                                  {"::1", true},
                                                                  {"0:0:0:0:0:0:0:1", true},
                                                                  {"localhost", true},
                                                                  {"127.0.0.5", true},
                                                                  {"[::2]", false},
                                                                  {"10.0.0.1", false}})
    EXPECT_EQ(Identity(With(kTorchrun, {{"MASTER_ADDR", host}})).loopback(), loopback) << host;
}

TEST(IdentityTest, TorchrunMistakes) {
  ExpectError(With(kTorchrun, {{"RANK", "8"}}), {"RANK is 8 but WORLD_SIZE is 8", "0 to 7"});
  ExpectError(With(kTorchrun, {{"RANK", "-1"}}), {"RANK is '-1'", "whole number from 0"});
  ExpectError(With(kTorchrun, {{"RANK", "two"}}), {"RANK is 'two'", "whole number"});
  ExpectError(With(kTorchrun, {{"RANK", "5 "}}), {"RANK is '5 '"});
  ExpectError(With(kTorchrun, {{"RANK", "99999999999999999999"}}), {"RANK is '99999999999999999999'"});
  ExpectError(With(kTorchrun, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE is '0'", "whole number from 1"});
  ExpectError(With(kTorchrun, {{"WORLD_SIZE", "-"}}), {"WORLD_SIZE is not set, but RANK is"});
  ExpectError(With(kTorchrun, {{"RANK", "-"}}), {"RANK is not set, but WORLD_SIZE is"});
  ExpectError(With(kTorchrun, {{"MASTER_ADDR", "-"}}), {"MASTER_ADDR is not set", "where process 0 runs"});
  ExpectError(With(kTorchrun, {{"MASTER_PORT", "-"}}), {"MASTER_PORT is not set"});
  ExpectError(With(kTorchrun, {{"MASTER_PORT", "65536"}}), {"MASTER_PORT is '65536'", "1 to 65535"});
  ExpectError(With(kTorchrun, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK is 4 but LOCAL_WORLD_SIZE is 4"});
  ExpectError(With(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), {"LOCAL_WORLD_SIZE is '9'", "1 to 8"});
  ExpectError(With(kTorchrun, {{"ONEFLOW_LIKE_TOKEN", "-"}}),
              {"10.0.0.1", "ONEFLOW_LIKE_TOKEN", "all 8", "openssl rand -hex 16"});
  ExpectError(With(kTorchrun, {{"ONEFLOW_LIKE_TOKEN", std::string(257, 'x')}}),
              {"ONEFLOW_LIKE_TOKEN", "257", "256"});
}

TEST(IdentityTest, KubernetesIndexedJob) {
  ProcessIdentity id = Identity(kPod);
  EXPECT_EQ(id.launcher, "Kubernetes");
  EXPECT_EQ(id.process, 3);
  EXPECT_EQ(id.processes, 4);
  EXPECT_EQ(id.master_host, "train-0.train");
  EXPECT_EQ(id.master_port, 29500);
  EXPECT_EQ(id.local, 0);
  EXPECT_EQ(id.locals, 1);
  EXPECT_EQ(Identity(With(kPod, {{"RANK", "1"}, {"MASTER_PORT", "5000"}})).process, 1);
  EXPECT_EQ(Identity(With(kPod, {{"MASTER_PORT", "5000"}})).master_port, 5000);
  ExpectError(With(kPod, {{"JOB_COMPLETION_INDEX", "4"}}), {"JOB_COMPLETION_INDEX is 4 but WORLD_SIZE is 4"});
}

TEST(IdentityTest, Srun) {
  ProcessIdentity id = Identity(kSrun);
  EXPECT_EQ(id.launcher, "srun");
  EXPECT_EQ(id.process, 5);
  EXPECT_EQ(id.processes, 8);
  EXPECT_EQ(id.local, 1);
  EXPECT_EQ(id.locals, 4);
  EXPECT_EQ(id.master_host, "gpu03");
  EXPECT_GE(id.master_port, 1024);
  EXPECT_LT(id.master_port, 32768);  // what the kernel does not give away itself
  EXPECT_EQ(Identity(With(kSrun, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}})).master_port,
            id.master_port);
  EXPECT_NE(Identity(With(kSrun, {{"SLURM_STEP_ID", "4"}})).master_port, id.master_port);
  EXPECT_NE(Identity(With(kSrun, {{"SLURM_JOB_ID", "1002"}})).master_port, id.master_port);
  EXPECT_EQ(Identity(With(kSrun, {{"MASTER_PORT", "5000"}})).master_port, 5000);
  EXPECT_EQ(Identity(With(kSrun, {{"MASTER_ADDR", "10.1.1.1"}})).master_host, "10.1.1.1");
  // Scripts that set these for all leave the numbers to srun.
  EXPECT_EQ(Identity(With(kSrun, {{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "10.1.1.1"}})).process, 5);
  EXPECT_TRUE(Identity(With(kSrun, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}})).alone());
  // The number of the step's tasks goes before the allocation's.
  EXPECT_EQ(Identity(With(kSrun, {{"SLURM_STEP_NUM_TASKS", "6"}})).processes, 6);
  // The script of sbatch is no process of the job, though it has a number and a count.
  EXPECT_TRUE(Identity({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "7"}}).alone());
}

TEST(IdentityTest, SrunHostLists) {
  auto first = [](const std::string& list) {
    return Identity(With(kSrun, {{"SLURM_STEP_NODELIST", list}})).master_host;
  };
  EXPECT_EQ(first("a,b"), "a");
  EXPECT_EQ(first("node[7,9-12]"), "node7");
  EXPECT_EQ(first("node[007-012]"), "node007");
  EXPECT_EQ(first("rack[1-2]node[03-04]-ib,z"), "rack1node03-ib");
  ExpectError(With(kSrun, {{"SLURM_STEP_NODELIST", "node[1-"}}),
              {"SLURM_STEP_NODELIST", "node[1-", "no list of hosts"});
  Variables one = With(kSrun, {{"SLURM_STEP_NODELIST", "solo"}, {"ONEFLOW_LIKE_TOKEN", "-"}});
  EXPECT_TRUE(Identity(one).loopback());
  EXPECT_EQ(Identity(one).locals, 8);
  EXPECT_FALSE(Identity(one).token.empty());
  EXPECT_NE(Identity(one).token, Identity(With(one, {{"SLURM_STEP_ID", "9"}})).token);
  auto locals = [](const std::string& tasks, const std::string& host) {
    return Identity(With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", tasks}, {"SLURM_NODEID", host}})).locals;
  };
  EXPECT_EQ(locals("3(x2),2", "0"), 3);
  EXPECT_EQ(locals("3(x2),2", "1"), 3);
  EXPECT_EQ(locals("3(x2),2", "2"), 2);
  EXPECT_EQ(locals("5,3", "1"), 3);
}

TEST(IdentityTest, SrunMistakes) {
  ExpectError(With(kSrun, {{"SLURM_PROCID", "8"}}), {"SLURM_PROCID is 8 but SLURM_NTASKS is 8"});
  ExpectError(With(kSrun, {{"SLURM_NTASKS", "-"}}), {"SLURM_NTASKS is not set, but SLURM_PROCID is"});
  ExpectError(With(kSrun, {{"SLURM_STEP_NODELIST", "-"}}), {"SLURM_STEP_NODELIST", "MASTER_ADDR"});
  ExpectError(With(kSrun, {{"SLURM_JOB_ID", "-"}}), {"SLURM_JOB_ID", "MASTER_PORT"});
  ExpectError(With(kSrun, {{"ONEFLOW_LIKE_TOKEN", "-"}}), {"gpu03", "ONEFLOW_LIKE_TOKEN"});
}

// Templates set MASTER_PORT for all; ONEFLOW_LIKE_PORT is there because somebody chose it.
TEST(IdentityTest, OurOwnPortGoesBeforeAllOthers) {
  const Variables store = With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  for (const Variables& launcher : {kTorchrun, store, kPod, kSrun})
    for (const char* theirs : {"5000", "", "-"})
      EXPECT_EQ(
          Identity(With(launcher, {{"ONEFLOW_LIKE_PORT", "7777"}, {"MASTER_PORT", theirs}})).master_port,
          7777)
          << Identity(launcher).launcher << ", MASTER_PORT " << theirs;
}

// Two jobs may have been given one port and one token; so may two runs of one job.
TEST(IdentityTest, JobsAreToldApartBesideTheirTokens) {
  auto job = [](const Variables& launcher, const Variables& changes) {
    return Identity(With(launcher, changes)).job;
  };
  std::set<std::string> jobs;
  for (const char* run : {"a", "b"})
    for (const char* restart : {"-", "1", "2"}) {
      const Variables of = {{"TORCHELASTIC_RUN_ID", run}, {"TORCHELASTIC_RESTART_COUNT", restart}};
      jobs.insert(job(kTorchrun, of));
      EXPECT_EQ(job(kTorchrun, of), job(With(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}}), of));
    }
  for (const char* number : {"7", "8"})
    for (const char* step : {"0", "1"}) {
      const Variables of = {{"SLURM_JOB_ID", number}, {"SLURM_STEP_ID", step}};
      jobs.insert(job(kSrun, of));
      EXPECT_EQ(job(kSrun, of), job(With(kSrun, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}), of));
    }
  EXPECT_EQ(jobs.size(), 10u);
  for (const Variables& launcher : {kOurs, kTorchrun, kPod, kSrun})
    EXPECT_EQ(job(launcher, {{"ONEFLOW_LIKE_JOB", "mine"}}), "mine");
}

TEST(IdentityTest, Loopback) {
  auto loopback = [](const std::string& host) {
    ProcessIdentity id;
    id.master_host = host;
    return id.loopback();
  };
  for (const char* host : {"localhost", "127.0.0.1", "127.3.2.1", "::1"}) EXPECT_TRUE(loopback(host)) << host;
  for (const char* host : {"10.0.0.1", "127.0.0.1.example", "localhost.example", "128.0.0.1", "::2", ""})
    EXPECT_FALSE(loopback(host)) << host;
}

}  // namespace
}  // namespace oneflow_like
