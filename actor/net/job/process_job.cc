// The job: joining, failing together, and parting. What must not depend on the user's thread happens on the
// network's; a thread of its own watches the time.
#include "actor/net/job/process_job.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "actor/net/collectives/process_collectives.h"
#include "actor/net/collectives/staging.h"
#include "actor/net/talk/control.h"
#include "actor/net/talk/gather.h"
#include "actor/net/talk/runtime_links.h"
#include "core/error.h"
#include "core/random.h"
#include "core/system/cores.h"
#include "core/system/exit_codes.h"

namespace oneflow_like {
namespace {

using Clock = std::chrono::steady_clock;

// A process that waits for one that has ended its program gives up after so long: what was under way when the
// other ended has arrived by then.
constexpr std::chrono::milliseconds kAloneAfter{1000};
constexpr std::chrono::milliseconds kLookAround{250};
// Of peer_timeout, after a failure: until the program is ended whose errors have not ended it, until one is
// that has begun to end itself, what the last words to the others may take, and until process 0 is asked no
// more whether it ends by the same error.
constexpr double kEndAfter = 0.2, kEndEndingAfter = 0.4, kLastWords = 0.1, kAskFirst = 0.3;

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string HashOf(const std::string& text) { return std::to_string(HashName(text)); }

void WriteToStandardError(const std::string& line) {
  std::string whole = line + "\n";
  if (write(STDERR_FILENO, whole.data(), whole.size()) < 0) return;
}

// A function that runs once on the network's thread.
class Task final : public Message {
 public:
  explicit Task(std::function<void()> run) : run_(std::move(run)) {}
  void Receive() override {
    run_();
    delete this;
  }

 private:
  std::function<void()> run_;
};

// Functions by who added them.
template <typename Function>
class Callbacks {
 public:
  void Add(const void* who, Function f) {
    std::lock_guard lock(mutex_);
    all_[who] = std::move(f);
  }
  void Remove(const void* who) {
    std::lock_guard lock(mutex_);
    all_.erase(who);
  }
  template <typename F>
  void ForEach(F f) const {
    std::lock_guard lock(mutex_);
    for (const auto& [who, function] : all_) f(function);
  }

 private:
  mutable std::mutex mutex_;  // held during calls, so that after Remove there are none
  std::map<const void*, Function> all_;
};

class ProcessJob final : public Job {
 public:
  ProcessJob(const ProcessIdentity& identity, const JobOptions& options)
      : identity_(identity), options_(options), direct_output_(WriteToStandardError) {}
  ~ProcessJob() override;
  void Start();

  const ProcessIdentity& identity() const override { return identity_; }
  const std::vector<PeerInfo>& peers() const override { return peers_; }
  Network* network() override { return network_; }
  SharedRegion* region() override { return region_.get(); }
  std::string Describe(int process) const override { return Name(process, true); }
  void SetWorld(int ranks) override;
  int ranks_per_process() const override { return std::max(1, ranks_per_process_.load()); }
  std::vector<std::string> AllGather(const std::string& what, const std::string& mine) override;
  Peers* peers_of_runtimes() override { return links_.get(); }
  void Fail(const std::string& message) override;
  std::string failure() const override {
    std::lock_guard lock(mutex_);
    return failure_;
  }
  int exit_code() const override {
    std::lock_guard lock(mutex_);
    return exit_code_;
  }
  void AddAwaited(const void* who, std::function<std::string()> awaited) override {
    awaited_.Add(who, std::move(awaited));
  }
  void RemoveAwaited(const void* who) override { awaited_.Remove(who); }
  std::string AwaitedNow(double patience) override;
  void AddFailureListener(const void* who, std::function<void(const std::string&)> listener) override {
    failure_listeners_.Add(who, std::move(listener));
  }
  void RemoveFailureListener(const void* who) override { failure_listeners_.Remove(who); }
  void Finish(bool ok) override;
  bool FinishWith(const std::string& error, int code) override;
  void SetDirectOutput(std::function<void(const std::string&)> write) override {
    std::lock_guard lock(mutex_);
    direct_output_ = std::move(write);
  }

 private:
  // What the user's program is doing.
  enum class Program { kRuns, kFinishes, kEndedByUs };
  struct Peer {
    bool ended = false;  // it has said goodbye
    bool gone = false;   // it has, or is lost
    Clock::time_point awaited_since{};
    std::string awaited;  // of it, when last looked at; empty: nothing
  };
  struct LookAround : Message {
    ProcessJob* job;
    void Receive() override { job->LookForTheEnded(); }
  };

  std::string Name(int process, bool with_pid) const;
  void CheckTable() const;
  void MakeParts();
  void AwaitClocks();
  void RunOnNetwork(std::function<void()> run) { network_->Post(new Task(std::move(run))); }

  // The network's thread.
  void Received(int from, ControlKind kind, int64_t number, const std::string& text);
  void Ended(int from, bool ok, const std::string& error);
  void Gone(int process);
  void LookForTheEnded();
  std::string Awaited() const;
  void FailTogether(const std::string& reason, int lost, int code);
  void Spread(const std::string& message, const std::string& reason, int lost, int code);
  void TellAll(ControlKind kind, int64_t number, const std::string& text, int but = -1);

  // Any thread.
  void FailWith(const std::string& message, int code);
  // Any thread; false when something has failed before.
  bool Record(const std::string& message, int code, const std::string& told_error = "");
  // A thread of its own.
  void Watch();
  void EndProgram(std::unique_lock<std::mutex>* lock);

  const ProcessIdentity identity_;
  const JobOptions options_;
  std::vector<PeerInfo> peers_;
  std::atomic<int> ranks_per_process_{0};  // 0: not told yet
  std::unique_ptr<SharedRegion> region_;
  Network* network_ = nullptr;  // ours; a plain pointer, as its last callbacks still ask for it
  std::unique_ptr<ControlChannel> control_;
  std::unique_ptr<Gather> gather_;
  std::unique_ptr<RuntimeLinks> links_;
  std::unique_ptr<ProcessCollectives> collectives_;
  bool connected_ = false;
  Callbacks<std::function<std::string()>> awaited_;
  Callbacks<std::function<void(const std::string&)>> failure_listeners_;
  std::vector<Peer> others_;  // the network's thread; by process
  LookAround look_around_;

  // Between the user's thread, the network's and the watch.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(const std::string&)> direct_output_;
  std::string failure_;
  int exit_code_ = kRunError;  // of what failed
  Clock::time_point failed_at_{};
  Program program_ = Program::kRuns;
  bool gathering_ = false, gathered_ = false;
  std::string gather_error_;
  std::vector<std::string> gather_texts_;
  int gone_ = 0;                    // others that have said goodbye or are lost
  int ended_ = 0, ended_well_ = 0;  // others that have said goodbye; whose programs ended as they should
  // What ends the programs here and of process 0, and the one whose failure was told: hashes of errors.
  std::string own_error_, first_error_, told_error_;
  bool first_gone_ = false;  // process 0 is
  bool looking_ = false;     // look_around_ is posted
  bool said_goodbye_ = false, last_words_out_ = false;
  bool stop_ = false;
  std::thread watch_;
};

// Joining.

void ProcessJob::Start() {
  if (options_.shared_memory) region_ = SharedRegion::Make(identity_.locals);
  NetworkOptions network;
  network.loopback_only = identity_.loopback();
  network.devices = options_.devices;
  network.peer_timeout = options_.peer_timeout;
  network.start_timeout = options_.start_timeout;
  // Workers compute on all cores but where processes share them with few.
  if (identity_.locals * 2 > UsableCores()) network.spin_us = 0;
  network_ = Network::Make(network).release();
  // Where all are on one host, that regions are exchanged tells everybody that the others' doors are open.
  const bool shut = network.loopback_only && region_ != nullptr;
  if (shut) network_->ShutDoors(true);

  PeerInfo mine{.process = identity_.process, .host = HostName(), .host_key = HostKey(), .pid = getpid()};
  mine.address = network_->address();
  if (region_) mine.region = region_->name();
  mine.version = options_.build;
  mine.cores = ToText(ReadCoreLimits());
  peers_ =
      Rendezvous(identity_, mine, {.timeout = options_.start_timeout, .lost_timeout = options_.peer_timeout});
  CheckTable();
  others_.resize(peers_.size());
  if (shut) network_->ShutDoors(false);
  if (region_) region_->Exchange(identity_.process, peers_, options_.start_timeout);
  MakeParts();
  network_->Connect(identity_.process, peers_);
  connected_ = true;
  watch_ = std::thread([this] { Watch(); });
  AwaitClocks();
  AllGather("joined", "");
}

void ProcessJob::CheckTable() const {
  for (const PeerInfo& peer : peers_) {
    if (peer.host_key != peers_[identity_.process].host_key || peer.region.empty() == (region_ == nullptr))
      continue;
    oneflow_like::Fail(Describe(peer.process), " runs with", peer.region.empty() ? "out" : "",
                       " shared memory and ", Describe(identity_.process), " on the same host with",
                       region_ ? "" : "out", "; give both the same --shared_memory");
  }
}

void ProcessJob::MakeParts() {
  int n = identity_.processes;
  control_ = std::make_unique<ControlChannel>(
      network_, n,
      [this](int from, ControlKind kind, int64_t number, const std::string& text) {
        Received(from, kind, number, text);
      },
      [this] {
        std::lock_guard lock(mutex_);
        last_words_out_ = said_goodbye_;
        changed_.notify_all();
      });
  Gather::Host host;
  host.describe = [this](int process) { return Describe(process); };
  host.done = [this](const std::string& error, std::vector<std::string> texts) {
    std::lock_guard lock(mutex_);
    gathered_ = true;
    gather_error_ = error;
    gather_texts_ = std::move(texts);
    changed_.notify_all();
  };
  host.left_alone = [this](int process) {
    FailTogether(Cat(Describe(process), " has ended its program"), -1, kRunError);
  };
  gather_ = std::make_unique<Gather>(control_.get(), identity_.process, n, std::move(host));
  RuntimeLinks::Host links{.network = network_, .me = identity_.process, .processes = n};
  links.describe = [this](int process) { return Describe(process); };
  links.failure = [this] { return failure(); };
  links.open = [this](int64_t instance) { return collectives_->Open(instance); };
  links.send_failure = [this](int64_t instance, const std::string& message) {
    RunOnNetwork([this, instance, text = Cat(Name(identity_.process, false), ": ", message)] {
      TellAll(ControlKind::kRuntimeFailure, instance, text);
    });
  };
  links.exchange = [this](const std::string& what, const std::string& mine) { return AllGather(what, mine); };
  links_ = std::make_unique<RuntimeLinks>(std::move(links));
  look_around_.job = this;
  network_->SetChannel(Network::kControl, control_.get());
  network_->SetChannel(Network::kOutput, links_.get());
  network_->SetFailureListener([this](const Network::Failure& failure) {
    FailTogether(Cat(Describe(failure.peer), ": ", failure.reason), failure.peer, kLostPeer);
    Gone(failure.peer);
  });
  collectives_ = ProcessCollectives::Make(this);
}

// Traces and the monitor need them from the first moment on.
void ProcessJob::AwaitClocks() {
  auto known = [this] {
    for (int p = 0; p < processes(); ++p) {
      if (p != process() && network_->OffsetTo(p).round_trip_ns == 0) return false;
    }
    return true;
  };
  std::unique_lock lock(mutex_);
  while (failure_.empty() && !known()) changed_.wait_for(lock, std::chrono::milliseconds(1));
  if (!failure_.empty()) throw Error(failure_);
}

void ProcessJob::SetWorld(int ranks) {
  if (ranks <= 0 || ranks % processes() != 0) {
    oneflow_like::Fail("a mesh of ", ranks, " ranks cannot be spread over ", processes(),
                       " processes: every process hosts the same number of ranks");
  }
  ranks_per_process_ = ranks / processes();
}

std::string ProcessJob::Name(int process, bool with_pid) const {
  int ranks = ranks_per_process_;
  const PeerInfo& peer = peers_.at(process);
  std::string who = ranks == 0   ? Cat("process ", process)
                    : ranks == 1 ? Cat("rank ", process)
                                 : Cat("ranks ", process * ranks, "-", (process + 1) * ranks - 1);
  return Cat(who, " (host ", peer.host, with_pid ? Cat(", pid ", peer.pid) : "", ")");
}

// Talking.

std::vector<std::string> ProcessJob::AllGather(const std::string& what, const std::string& mine) {
  std::unique_lock lock(mutex_);
  CHECK(!gathering_) << "two threads exchange at a time";
  CHECK(program_ == Program::kRuns) << "'" << what << "' is exchanged after Finish";
  if (!failure_.empty()) throw Error(failure_);
  gathering_ = true;
  gathered_ = false;
  RunOnNetwork([this, what, mine] { gather_->Start(what, mine); });
  changed_.wait(lock, [this] { return gathered_ || !failure_.empty(); });
  gathering_ = false;
  if (!gathered_) throw Error(failure_);
  if (!gather_error_.empty()) throw Error(gather_error_);
  return std::move(gather_texts_);
}

void ProcessJob::TellAll(ControlKind kind, int64_t number, const std::string& text, int but) {
  auto shared = std::make_shared<const std::string>(text);
  for (int p = 0; p < processes(); ++p) {
    if (p != process() && p != but) control_->Send(p, kind, number, shared);
  }
}

void ProcessJob::Received(int from, ControlKind kind, int64_t number, const std::string& text) {
  switch (kind) {
    case ControlKind::kGatherPart:
    case ControlKind::kGatherResult:
    case ControlKind::kGatherMismatch:
      return gather_->Received(from, kind, text);
    case ControlKind::kAbort:
      return FailTogether(text, -1, static_cast<int>(number));
    case ControlKind::kRuntimeFailure:
      return links_->RuntimeFailed(number, text);
    case ControlKind::kGoodbye:
      return Ended(from, number != 0, text);
  }
}

// Failing.

void ProcessJob::Fail(const std::string& message) { FailWith(message, kRunError); }

void ProcessJob::FailWith(const std::string& message, int code) {
  if (!Record(message, code) || !connected_) return;
  RunOnNetwork([this, message, code] { Spread(message, Cat(Describe(process()), ": ", message), -1, code); });
}

// `reason` names who and why; `lost` is the process that is lost as far as this one knows, or -1.
void ProcessJob::FailTogether(const std::string& reason, int lost, int code) {
  if (!failure().empty()) return;
  std::string awaited = Awaited();
  std::string message =
      Cat(reason, awaited.empty() ? "; nothing of it was awaited here" : "; awaited here: ", awaited);
  // "rank 3 (host b, pid 17): what it ends by": process 0 may end by the same.
  const size_t who = reason.find("): ");
  const bool told = lost < 0 && who != std::string::npos;
  if (Record(message, code, told ? HashOf(reason.substr(who + 3)) : "")) Spread(message, reason, lost, code);
}

bool ProcessJob::Record(const std::string& message, int code, const std::string& told_error) {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) return false;
  failure_ = message.empty() ? "the program has failed" : message;
  told_error_ = told_error;
  exit_code_ = code;
  failed_at_ = Clock::now();
  changed_.notify_all();
  return true;
}

void ProcessJob::Spread(const std::string& message, const std::string& reason, int lost, int code) {
  TellAll(ControlKind::kAbort, code, reason, lost);
  links_->JobFailed(message);
  failure_listeners_.ForEach([&](const auto& listener) { listener(message); });
}

std::string ProcessJob::Awaited() const {
  std::string all;
  awaited_.ForEach([&](const auto& awaited) {
    std::string one = awaited();
    if (!one.empty()) all += (all.empty() ? "" : ", ") + one;
  });
  if (all.empty() && links_) all = links_->Awaited();
  return all.empty() && gather_ ? gather_->awaited() : all;
}

std::string ProcessJob::AwaitedNow(double patience) {
  struct Asked {
    std::mutex mutex;  // a lock, since who asks is any thread
    std::condition_variable answered;
    bool done = false;
    std::string text;
  };
  if (!connected_) return "";
  auto asked = std::make_shared<Asked>();  // who asks may have gone on when the answer comes
  RunOnNetwork([this, asked] {
    std::string text = Awaited();
    std::lock_guard lock(asked->mutex);
    asked->text = std::move(text);
    asked->done = true;
    asked->answered.notify_all();
  });
  std::unique_lock lock(asked->mutex);
  const bool answered = asked->answered.wait_for(lock, Seconds(patience), [&] { return asked->done; });
  return answered ? asked->text : "";
}

void ProcessJob::Watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!failure_.empty()) {
      double after = program_ == Program::kRuns ? kEndAfter : kEndEndingAfter;
      Clock::time_point end = failed_at_ + Seconds(after * options_.peer_timeout);
      if (Clock::now() >= end) EndProgram(&lock);
      changed_.wait_until(lock, end);
    } else if (ended_ > 0 && program_ == Program::kRuns) {
      if (!looking_) network_->Post(&look_around_);
      looking_ = true;
      changed_.wait_for(lock, kLookAround);
    } else {
      changed_.wait(lock);
    }
  }
}

// Nobody waits for destructors here: some thread of this process is stuck.
void ProcessJob::EndProgram(std::unique_lock<std::mutex>* lock) {
  // A program that has come to Finish prints its error itself.
  bool print = program_ == Program::kRuns;
  program_ = Program::kEndedByUs;
  auto write = direct_output_;
  std::string line = "error: " + failure_;
  const int code = exit_code_;
  lock->unlock();
  if (print) write(line);
  _exit(code);
}

// Parting.

void ProcessJob::Ended(int from, bool ok, const std::string& error) {
  others_[from].ended = true;
  network_->ExpectEnd(from);
  bool all = false;
  {
    std::lock_guard lock(mutex_);
    all = ++ended_ == processes() - 1;
    if (ok) ++ended_well_;
    if (from == 0) first_error_ = error;
    changed_.notify_all();
  }
  if (all) network_->StopHeartbeats();
  if (!ok) FailTogether(Cat(Describe(from), " has ended its program early"), -1, kRunError);
  gather_->Ended(from);
  Gone(from);
}

void ProcessJob::Gone(int process) {
  if (others_[process].gone) return;
  others_[process].gone = true;
  std::lock_guard lock(mutex_);
  ++gone_;
  first_gone_ = first_gone_ || process == 0;
  changed_.notify_all();
}

// Something may be awaited of a process that has ended, and will never come.
void ProcessJob::LookForTheEnded() {
  {
    std::lock_guard lock(mutex_);
    looking_ = false;
    if (program_ != Program::kRuns || !failure_.empty()) return;
  }
  std::string awaited = Awaited();
  Clock::time_point now = Clock::now();
  for (int p = 0; p < processes(); ++p) {
    Peer& peer = others_[p];
    if (!peer.ended) continue;
    // Others may well be at work for one another still.
    std::string of_it = awaited.find(Describe(p)) == std::string::npos ? "" : awaited;
    if (of_it.empty() || of_it != peer.awaited) {
      peer.awaited = of_it;
      peer.awaited_since = now;
    } else if (now - peer.awaited_since >= kAloneAfter) {
      return FailTogether(Cat(Describe(p), " has ended its program"), -1, kRunError);
    }
  }
}

void ProcessJob::Finish(bool ok) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return program_ != Program::kEndedByUs; });  // for ever: the process ends
  if (program_ == Program::kFinishes) return;
  program_ = Program::kFinishes;
  changed_.notify_all();
  if (!connected_) return;
  const bool asked = ok;  // the caller has not heard of a failure, which may have come just now
  ok = ok && failure_.empty();
  RunOnNetwork([this, ok, error = own_error_] {
    TellAll(ControlKind::kGoodbye, ok ? 1 : 0, error);
    std::lock_guard said(mutex_);
    said_goodbye_ = true;
    last_words_out_ = control_->idle();
    changed_.notify_all();
  });
  if (ok) {
    changed_.wait(lock, [this] { return !failure_.empty() || ended_well_ == processes() - 1; });
  }
  // After a failure nobody leaves before the others do: who sees a connection close before it is told who was
  // lost would name the wrong one.
  changed_.wait_for(lock, Seconds(kLastWords * options_.peer_timeout),
                    [this] { return last_words_out_ && (failure_.empty() || gone_ == processes() - 1); });
  if (asked && ended_well_ < processes() - 1) throw Error(failure_);
}

bool ProcessJob::FinishWith(const std::string& error, int code) {
  std::string mine;
  {
    std::lock_guard lock(mutex_);
    mine = error == failure_ ? told_error_ : HashOf(error);
    if (error != failure_) own_error_ = mine;
  }
  FailWith(error, code);
  Finish(false);
  std::unique_lock lock(mutex_);
  if (process() == 0 || mine.empty()) return true;
  // Before the watch takes this program for one that does not end.
  changed_.wait_until(lock, failed_at_ + Seconds(kAskFirst * options_.peer_timeout),
                      [this] { return first_gone_; });
  return first_error_ != mine;
}

ProcessJob::~ProcessJob() {
  Finish(false);
  if (connected_) {
    collectives_.reset();
  } else {
    // Its destructor waits for the network's thread, which was not started: the start has failed, and the
    // program ends.
    static_cast<void>(collectives_.release());
  }
  delete network_;
  // To the last, so that a process that has failed ends even when its network does not.
  if (watch_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    watch_.join();
  }
}

}  // namespace

StagingBytes StagingOfJob() {
  const ProcessCollectivesOptions options;
  return {options.staging_bytes, Staging::kKept * options.chunk_bytes};
}

std::unique_ptr<Job> JoinJob(const ProcessIdentity& identity, const JobOptions& options) {
  auto job = std::make_unique<ProcessJob>(identity, options);
  job->Start();
  return job;
}

}  // namespace oneflow_like
