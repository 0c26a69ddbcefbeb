// Our collectives, driven as the runtime drives them: members on workers arrive with their pieces and are
// told when the act is done. Between processes, or between the devices of one.
//   build/tests/ours_collectives --processes=2                       # shared memory
//   build/tests/ours_collectives --processes=2 --noshared_memory     # TCP alone
//   build/tests/ours_collectives --processes=1 --devices=2           # threads
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "actor/net/collectives/process_collectives.h"
#include "actor/net/job/process_job.h"
#include "actor/net/launch/local_launcher.h"
#include "actor/runtime.h"
#include "sbp/boxing.h"
#include "tests/peers/collectives.h"

DEFINE_int32(processes, 2, "how many processes to start, unless a launcher has done so");
DEFINE_int32(devices, 1, "ranks in each process");
DEFINE_int32(threads, 0, "worker threads in each process; 0: as many as cores, at most one for each device");
DEFINE_bool(shared_memory, true, "between the processes of one host; false: everything over the network");

namespace oneflow_like::peers {
namespace {

// A boxing that is one of the measured collectives.
struct Ends {
  Mesh mesh;
  Dims shape;
  Layout from, to;
};

Ends EndsOf(const Case& c, int ranks) {
  const int all = Slice::kFree;
  auto layout = [](int fixed, Sbp sbp) { return Layout{{{fixed}}, {B(), sbp}}; };
  Ends ends{Mesh("cpu", {{"dp", ranks}}), {c.bytes / 4}, layout(all, P()), layout(all, B())};
  if (c.collective == "all_gather") ends.from = layout(all, S(0));
  if (c.collective == "reduce_scatter") ends.to = layout(all, S(0));
  if (c.collective == "broadcast") ends.from = layout(0, B());
  if (c.collective == "all_to_all") {
    // Row r of the first axis is what rank r brings, its cuts along the second what the others want: the
    // blocks that the other libraries exchange.
    ends.shape = {ranks, ranks, c.bytes / 4 / ranks};
    ends.from = layout(all, S(0));
    ends.to = layout(all, S(1));
  }
  return ends;
}

void SetBox(const Box& box, plan::Box* to) {
  for (int64_t b : box.begin) to->add_begin(b);
  for (int64_t e : box.extent) to->add_extent(e);
}

// The plan of one rank's part, as partition() makes it.
plan::Collective PlanOf(const Ends& ends, const std::string& primitive, int64_t id, int rank) {
  BoxingProgram program = RouteGroup(ends.mesh, 1, 0, ends.shape, ends.from, ends.to, ends.mesh.Coords(rank));
  plan::Collective c;
  c.set_id(id);
  c.set_primitive(primitive);
  c.set_reduce(Name(program.reduce));
  c.set_me(program.me);
  for (size_t m = 0; m < program.members.size(); ++m) {
    c.add_rank(ends.mesh.IndexOf(program.members[m]));
    plan::Piece* piece = c.add_piece();
    if (program.has_in[m]) SetBox(program.in[m], piece->add_in());
    if (program.has_out[m]) SetBox(program.out[m], piece->add_out());
  }
  plan::RegionList* work = c.add_work();
  for (const Region& r : program.work[program.me]) {
    plan::Region* region = work->add_region();
    SetBox(r.box, region->mutable_box());
    for (int s : r.sources) region->add_source(s);
    for (int d : r.dests) region->add_dest(d);
  }
  return c;
}

// What is measured with: this process's ranks, their workers, and what they meet through.
struct Here {
  Job* job = nullptr;  // nullptr: one process
  ProcessCollectives* between = nullptr;
  Meeting* meeting = nullptr;
  Executor* executor = nullptr;
  int process = 0, ranks = 0;
  int64_t instances = 0;

  std::unique_ptr<Collectives> Open() {
    return between == nullptr ? MakeLocalCollectives() : between->Open(instances++);
  }
  std::unique_ptr<Memory> Allocate(int64_t bytes) const {
    MemorySource* source = job == nullptr ? nullptr : job->region();
    return MakeHostDevice(0, source)->Allocate(bytes, "a piece");
  }
  int first_rank() const { return process * FLAGS_devices; }
  // The participants of a meeting are workers.
  int participant(int worker) const { return process * executor->workers() + worker; }
};

// One rank's end of a collective and its pieces, in memory of their own.
class End : public CollectiveListener {
 public:
  End(const Here& here, Collectives* collectives, Worker* worker, plan::Collective collective,
      std::function<void()> done)
      : collective_(std::move(collective)), done_(std::move(done)) {
    const plan::Piece& piece = collective_.piece(collective_.me());
    if (piece.in_size() > 0) in_ = here.Allocate(Bytes(piece.in(0)));
    if (piece.out_size() > 0) out_ = here.Allocate(Bytes(piece.out(0)));
    CollectiveSpec spec;
    spec.plan = "collectives";
    spec.actor = collective_.primitive();
    spec.worker = worker;
    spec.listener = this;
    member_ = collectives->Join(spec, collective_);
  }
  void Arrive() {
    void *from = in(), *to = out();
    member_->Arrive({&from, size_t(from != nullptr)}, {&to, size_t(to != nullptr)}, 0, true);
  }
  void CollectiveWorked(int64_t, int64_t) override {}
  void CollectiveDone(bool ok) override {
    if (!ok) Die("a collective has failed");
    done_();
  }
  float* in() const { return in_ == nullptr ? nullptr : static_cast<float*>(in_->data()); }
  float* out() const { return out_ == nullptr ? nullptr : static_cast<float*>(out_->data()); }
  void Clear() {
    for (Memory* memory : {in_.get(), out_.get()})
      if (memory != nullptr) std::memset(memory->data(), 0, memory->bytes());
  }

 private:
  static int64_t Bytes(const plan::Box& box) {
    int64_t bytes = 4;
    for (int64_t e : box.extent()) bytes *= e;
    return bytes;
  }
  const plan::Collective collective_;
  const std::function<void()> done_;
  std::unique_ptr<Memory> in_, out_;
  std::unique_ptr<CollectiveMember> member_;
};

// One worker's acts, one after another: what a stream with one collective in it does. Made and asked on the
// user's thread, runs on the worker.
class Turns : public Runnable, public Message {
 public:
  Turns(Here* here, int worker) : here_(here), worker_(worker) {}
  Worker* worker() const { return here_->executor->worker(worker_); }
  void Start(int times) {
    measurement_ = std::make_unique<Measurement>(here_->meeting, here_->participant(worker_), times);
    over_.Reset();
    worker()->Post(this);
  }
  void Wait() { over_.Wait(); }
  Result result(double parts = 1) const { return measurement_->result(parts); }

 protected:
  virtual void Act() = 0;
  void ActDone() {
    measurement_->End();
    worker()->Ready(this, false);
  }

 private:
  void Receive() override { worker()->Ready(this, false); }
  void RunOne() override {
    if (measurement_->Begin())
      Act();
    else
      over_.Signal();
  }
  Here* const here_;
  const int worker_;
  std::unique_ptr<Measurement> measurement_;
  Completion over_;
};

// All ranks of one worker in one collective.
class CollectiveTurns final : public Turns {
 public:
  using Turns::Turns;
  void Add(std::unique_ptr<End> end) { ends_.push_back(std::move(end)); }
  void OneDone() {
    if (--left_ == 0) ActDone();
  }

 private:
  void Act() override {
    left_ = static_cast<int>(ends_.size());
    for (const auto& end : ends_) end->Arrive();
  }
  std::vector<std::unique_ptr<End>> ends_;
  int left_ = 0;
};

// A small message from rank 0 to rank 1 and back, kRoundTrips times in one act.
class MessageTurns final : public Turns {
 public:
  MessageTurns(Here* here, Collectives* collectives, int rank) : Turns(here, 0), rank_(rank) {
    Mesh mesh("cpu", {{"pp", 2}});
    auto at = [](int stage) { return Layout{{{stage}}, {B(), B()}}; };
    auto make = [&](int from, std::function<void()> done) {
      return std::make_unique<End>(*here, collectives, worker(),
                                   PlanOf({mesh, {1}, at(from), at(1 - from)}, "send", 1 + from, rank), done);
    };
    there_ = make(0, [this] { ThereDone(); });
    back_ = make(1, [this] { BackDone(); });
  }

 private:
  void Act() override {
    there_left_ = back_left_ = kRoundTrips;
    there_->Arrive();
    if (rank_ == 0) back_->Arrive();
  }
  void ThereDone() {
    --there_left_;
    if (rank_ == 0) return Next();
    back_->Arrive();
    if (there_left_ > 0) there_->Arrive();  // ready before it comes, as a reader with a free slot is
  }
  void BackDone() {
    --back_left_;
    if (rank_ == 0) return Next();
    if (back_left_ == 0) ActDone();
  }
  // Rank 0 goes on when the message is back and its own slot is free.
  void Next() {
    if (there_left_ != back_left_) return;
    if (back_left_ == 0) return ActDone();
    there_->Arrive();
    back_->Arrive();
  }
  const int rank_;
  std::unique_ptr<End> there_, back_;
  int there_left_ = 0, back_left_ = 0;
};

// The same through the network alone, without collectives: an empty message that is answered as it comes.
class NetworkTurns final : public Turns, public Channel {
 public:
  // Returns when the other process may send.
  NetworkTurns(Here* here, Job* job) : Turns(here, 0), network_(job->network()), rank_(job->process()) {
    go_.turns = finished_.turns = listen_.turns = this;
    network_->Post(&listen_);
    job->AllGather("listening", "");
  }

 private:
  struct Listen : Message {
    NetworkTurns* turns;
    void Receive() override { turns->network_->SetChannel(Network::kFree, turns); }
  };
  struct Go : Message {
    NetworkTurns* turns;
    void Receive() override { turns->Send(); }
  };
  struct Finished : Message {
    NetworkTurns* turns;
    void Receive() override { turns->ActDone(); }
  };
  void Act() override {
    if (rank_ == 0) network_->Post(&go_);
  }
  void Send() { network_->Send(1 - rank_, Network::kFree, nullptr, 0, nullptr, 0, nullptr); }
  void Deliver(int, const void*, size_t, std::unique_ptr<Incoming>) override {
    const bool last = ++come_ % kRoundTrips == 0;
    if (rank_ == 1 || !last) Send();
    if (last) worker()->Post(&finished_);
  }
  Network* const network_;
  const int rank_;
  Listen listen_;
  Go go_;
  Finished finished_;
  int64_t come_ = 0;
};

void Run(const std::vector<Turns*>& turns, int times) {
  for (Turns* t : turns) t->Start(times);
  for (Turns* t : turns) t->Wait();
}

// Nothing refers to the members any more afterwards: as the runtime closes.
void Close(Here* here, Collectives* collectives) {
  collectives->Quiesce();
  here->executor->Fence();
  here->executor->Fence();
}

void MeasureCase(Here* here, const Case& c) {
  const Ends ends = EndsOf(c, here->ranks);
  std::unique_ptr<Collectives> collectives = here->Open();
  std::vector<std::unique_ptr<CollectiveTurns>> turns;
  std::vector<Turns*> all;
  for (int w = 0; w < here->executor->workers(); ++w) {
    turns.push_back(std::make_unique<CollectiveTurns>(here, w));
    all.push_back(turns.back().get());
  }
  std::vector<End*> pieces;
  for (int d = 0; d < FLAGS_devices; ++d) {
    const int rank = here->first_rank() + d;
    CollectiveTurns* on = turns[d % turns.size()].get();
    auto end = std::make_unique<End>(*here, collectives.get(), on->worker(),
                                     PlanOf(ends, c.collective, 1, rank), [on] { on->OneDone(); });
    end->Clear();  // memory never written reads as one page of zeros
    if (end->in() != nullptr) Fill(c, here->ranks, rank, end->in());
    pieces.push_back(end.get());
    on->Add(std::move(end));
  }
  collectives->CheckComplete();
  Run(all, 1);
  for (int d = 0; d < FLAGS_devices; ++d) {
    CheckResult(c, here->ranks, here->first_rank() + d, pieces[d]->out());
    pieces[d]->Clear();
  }
  Run(all, 0);
  if (here->process == 0)
    Print(here->job == nullptr ? "ours_threads" : "ours", here->ranks, c, all[0]->result());
  Close(here, collectives.get());
}

void MeasureMessage(Here* here) {
  std::unique_ptr<Collectives> collectives = here->Open();
  MessageTurns turns(here, collectives.get(), here->process);
  collectives->CheckComplete();
  Run({&turns}, 0);
  if (here->process == 0) Print("ours", 2, {"message", 4}, turns.result(2 * kRoundTrips));
  Close(here, collectives.get());
}

void MeasureNetwork(Here* here) {
  NetworkTurns turns(here, here->job);
  Run({&turns}, 0);
  here->job->AllGather("answered", "");  // nothing more comes
  if (here->process == 0) Print("ours", 2, {"network_message", 0}, turns.result(2 * kRoundTrips));
}

void MeasureAll(Here* here) {
  for (const Case& c : Cases(here->ranks)) MeasureCase(here, c);
  if (!MessageWanted() || here->job == nullptr || here->ranks != 2 || FLAGS_devices != 1) return;
  MeasureMessage(here);
  MeasureNetwork(here);
}

int Threads(int processes) {
  if (FLAGS_threads > 0) return std::min(FLAGS_threads, FLAGS_devices);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / processes, 1, FLAGS_devices);
}

void RunAlone() {
  std::unique_ptr<Executor> executor = MakeThreadExecutor(Threads(1), 1);
  const std::string file = Meeting::MakeFile();
  Meeting meeting(file, executor->workers());
  unlink(file.c_str());
  Here here;
  here.meeting = &meeting;
  here.executor = executor.get();
  here.ranks = FLAGS_devices;
  MeasureAll(&here);
}

void RunInJob(const ProcessIdentity& identity) {
  BindToCore(identity.process);
  JobOptions options;
  options.shared_memory = FLAGS_shared_memory;
  std::unique_ptr<Job> job = JoinJob(identity, options);
  job->SetWorld(job->processes() * FLAGS_devices);
  std::unique_ptr<Executor> executor = MakeThreadExecutor(Threads(job->processes()), 1);
  std::string file = job->process() == 0 ? Meeting::MakeFile() : "";
  file = job->AllGather("meeting", file)[0];
  Meeting meeting(file, executor->workers() * job->processes());
  job->AllGather("met", "");
  if (job->process() == 0) unlink(file.c_str());
  {
    std::unique_ptr<ProcessCollectives> between = ProcessCollectives::Make(job.get());
    Here here{job.get(),      between.get(),  &meeting,
              executor.get(), job->process(), job->processes() * FLAGS_devices};
    MeasureAll(&here);
    job->AllGather("measured", "");
  }
  job->Finish(true);
}

int Main(int argc, char** argv) {
  if (FLAGS_devices < 1 || FLAGS_processes < 1) Die("--devices and --processes must be at least 1");
  const ProcessIdentity identity = ReadIdentity([](const char* name) { return std::getenv(name); });
  if (identity.alone() && FLAGS_processes > 1) {
    LocalJob job;
    job.processes = FLAGS_processes;
    job.argv.assign(argv, argv + argc);
    return RunLocalJob(job);
  }
  if (identity.alone())
    RunAlone();
  else
    RunInJob(identity);
  return 0;
}

}  // namespace
}  // namespace oneflow_like::peers

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  int count = argc;
  char** flags = argv;
  gflags::ParseCommandLineFlags(&count, &flags, false);
  try {
    return oneflow_like::peers::Main(argc, argv);
  } catch (const std::exception& e) {
    oneflow_like::peers::Die(e.what());
  }
}
