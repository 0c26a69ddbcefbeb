// Gloo's collectives over its TCP transport, measured as ours are, in processes of one host that this program
// forks:
//   build/tests/gloo_collectives --processes=2
#include <gflags/gflags.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "tests/peers/collectives.h"

DEFINE_int32(processes, 2, "how many processes");

namespace oneflow_like::peers {
namespace {

using GlooContext = std::shared_ptr<gloo::Context>;

// The tensors of one case and the library's options, made once. All-reduce and broadcast work in place, as
// their users mostly call them and as is fastest; Gloo's reduce_scatter knows no other way.
class GlooCase {
 public:
  GlooCase(const Case& c, const GlooContext& context)
      : c_(c), context_(context), in_(InElements(c, context->size)), out_(OutElements(c, context->size)) {
    const bool in_place = c.collective == "all_reduce" || c.collective == "broadcast";
    Fill(c, context->size, context->rank, in_place ? out_.data() : in_.data());
    run_ = Make();
  }
  void Run() { run_(); }
  void Check() const {
    const bool in = c_.collective == "reduce_scatter";
    CheckResult(c_, context_->size, context_->rank, in ? in_.data() : out_.data());
  }
  // Sums in place would grow without end.
  void Clear() {
    std::memset(in_.data(), 0, in_.size() * sizeof(float));
    std::memset(out_.data(), 0, out_.size() * sizeof(float));
  }

 private:
  std::function<void()> Make() {
    if (c_.collective == "all_reduce") {
      auto options = std::make_shared<gloo::AllreduceOptions>(context_);
      options->setOutput(out_.data(), out_.size());
      options->setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      return [options] { gloo::allreduce(*options); };
    }
    if (c_.collective == "all_gather") return MakeInOut<gloo::AllgatherOptions>(&gloo::allgather);
    if (c_.collective == "all_to_all") return MakeInOut<gloo::AlltoallOptions>(&gloo::alltoall);
    if (c_.collective == "broadcast") {
      auto options = std::make_shared<gloo::BroadcastOptions>(context_);
      options->setOutput(out_.data(), out_.size());
      options->setRoot(0);
      return [options] { gloo::broadcast(*options); };
    }
    const int block = static_cast<int>(in_.size()) / context_->size;
    auto algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
        context_, std::vector<float*>{in_.data()}, static_cast<int>(in_.size()),
        std::vector<int>(context_->size, block));
    return [algorithm] { algorithm->run(); };
  }

  template <typename Options>
  std::function<void()> MakeInOut(void (*collective)(Options&)) {
    auto options = std::make_shared<Options>(context_);
    options->setInput(in_.data(), in_.size());
    options->setOutput(out_.data(), out_.size());
    return [options, collective] { collective(*options); };
  }

  const Case c_;
  GlooContext context_;
  std::vector<float> in_, out_;
  std::function<void()> run_;
};

void RoundTrips(int rank, gloo::transport::UnboundBuffer* buffer) {
  const int peer = 1 - rank;
  for (int i = 0; i < kRoundTrips; ++i) {
    if (rank == 0) {
      buffer->send(peer, 1 << 20);
      buffer->waitSend();
    }
    buffer->recv(peer, 1 << 20);
    buffer->waitRecv();
    if (rank == 1) {
      buffer->send(peer, 1 << 20);
      buffer->waitSend();
    }
  }
}

void MeasureAll(const GlooContext& context, Meeting* meeting) {
  const int rank = context->rank, ranks = context->size;
  for (const Case& c : Cases(ranks)) {
    GlooCase gloo(c, context);
    gloo.Run();
    gloo.Check();
    meeting->Wait();  // nobody's result is overwritten before it has been checked
    gloo.Clear();
    Measurement m(meeting, rank);
    while (m.Begin()) {
      gloo.Run();
      m.End();
    }
    if (rank == 0) Print("gloo", ranks, c, m.result());
  }
  if (!MessageWanted() || ranks != 2) return;
  float value = 0;
  auto buffer = context->createUnboundBuffer(&value, sizeof(value));
  Measurement m(meeting, rank);
  while (m.Begin()) {
    RoundTrips(rank, buffer.get());
    m.End();
  }
  if (rank == 0) Print("gloo", ranks, {"message", 4}, m.result(2 * kRoundTrips));
}

int RunProcess(int rank, const std::string& folder, const std::string& meeting_file) {
  try {
    gloo::transport::tcp::attr loopback("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(loopback);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, FLAGS_processes);
    context->connectFullMesh(store, device);
    Meeting meeting(meeting_file, FLAGS_processes);
    MeasureAll(context, &meeting);
    meeting.Wait();
    return 0;
  } catch (const std::exception& e) {
    Die(e.what());
  }
}

// All must end well; when one does not the others are ended.
int RunProcesses(const std::string& folder, const std::string& meeting_file) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < FLAGS_processes; ++rank) {
    const pid_t child = fork();
    if (child < 0) Die("cannot fork");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::_Exit(RunProcess(rank, folder, meeting_file));
    }
    children.push_back(child);
  }
  int code = 0;
  for (size_t left = children.size(); left > 0; --left) {
    int status = 0;
    const pid_t ended = wait(&status);
    children.erase(std::find(children.begin(), children.end(), ended));
    if (status == 0 || code != 0) continue;
    code = 1;
    for (pid_t child : children) kill(child, SIGKILL);
  }
  return code;
}

}  // namespace
}  // namespace oneflow_like::peers

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  using oneflow_like::peers::Meeting;
  if (FLAGS_processes < 2) oneflow_like::peers::Die("--processes must be at least 2");
  char folder[] = "/tmp/gloo-XXXXXX";
  if (mkdtemp(folder) == nullptr) oneflow_like::peers::Die("cannot make a folder in /tmp");
  const std::string meeting_file = Meeting::MakeFile();
  const int code = oneflow_like::peers::RunProcesses(folder, meeting_file);
  std::filesystem::remove_all(folder);
  unlink(meeting_file.c_str());
  return code;
}
