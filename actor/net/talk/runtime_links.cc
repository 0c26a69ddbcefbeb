// Outputs and failures between runtimes of several processes.
#include "actor/net/talk/runtime_links.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace oneflow_like {
namespace {

// Larger buffers are not kept when they come back.
constexpr size_t kLargestKept = size_t{1} << 20;

}  // namespace

struct RuntimeLinks::OutputHeader {
  int64_t instance = 0, launch = 0;
  int32_t output = 0, rank = 0;
  int64_t begin[Dims::kMaxRank] = {}, extent[Dims::kMaxRank] = {};
};

// One box on its way to all others; used again.
struct RuntimeLinks::OutputSend : Message, Transfer {
  RuntimeLinks* links;
  OutputHeader header;
  std::vector<char> data;
  int left = 0;

  void Receive() override {
    const Host& host = links->host_;
    left = host.processes - 1;
    for (int p = 0; p < host.processes; ++p) {
      if (p == host.me) continue;
      host.network->Send(p, Network::kOutput, &header, sizeof(header), data.data(), data.size(), this);
    }
  }
  void TransferDone(bool ok) override {
    if (--left == 0) links->GiveSend(this);
  }
};

// One box that is being pulled.
struct RuntimeLinks::OutputArrival : Transfer {
  RuntimeLinks* links;
  OutputHeader header;
  std::unique_ptr<Incoming> incoming;
  std::vector<char> data;

  void TransferDone(bool ok) override {
    std::unique_ptr<OutputArrival> self(this);
    if (ok) links->Arrived(header, data.data(), data.size());
  }
};

struct RuntimeLinks::Held {
  bool failure = false;
  std::string message;
  OutputHeader header;
  std::vector<char> data;
};

struct RuntimeLinks::Release : Message {
  RuntimeLinks* links;
  int64_t instance;

  void Receive() override {
    links->ReleaseHeld(instance);
    delete this;
  }
};

class RuntimeLinks::RuntimeLink final : public PeerLink {
 public:
  RuntimeLink(RuntimeLinks* links, int64_t instance, const std::string& plan, PeerListener* listener,
              std::unique_ptr<Collectives> collectives)
      : links_(links),
        instance_(instance),
        plan_(plan),
        listener_(listener),
        collectives_(std::move(collectives)) {}
  ~RuntimeLink() override { links_->Disconnect(instance_); }

  Collectives* collectives() override { return collectives_.get(); }
  std::vector<std::string> Exchange(const std::string& what, const std::string& mine) override {
    return links_->host_.exchange(what, mine);
  }

  void SendOutput(int64_t launch, int output, const Box& box, const void* data, size_t bytes) override {
    if (links_->host_.processes == 1) return;
    OutputSend* send = links_->TakeSend();
    send->header = {.instance = instance_, .launch = launch, .output = output, .rank = box.extent.rank()};
    for (int i = 0; i < box.extent.rank(); ++i) {
      send->header.begin[i] = box.begin[i];
      send->header.extent[i] = box.extent[i];
    }
    const char* from = static_cast<const char*>(data);
    send->data.assign(from, from + bytes);
    links_->host_.network->Post(send);
  }

  void SendFailure(const std::string& message) override {
    // What came from the others need not be told them.
    if (!told_) links_->host_.send_failure(instance_, message);
  }

 private:
  friend class RuntimeLinks;
  RuntimeLinks* const links_;
  const int64_t instance_;
  const std::string plan_;
  PeerListener* const listener_;
  std::unique_ptr<Collectives> collectives_;
  std::atomic<bool> told_{false};
};

RuntimeLinks::RuntimeLinks(Host host) : host_(std::move(host)) {}
RuntimeLinks::~RuntimeLinks() = default;

std::unique_ptr<PeerLink> RuntimeLinks::Connect(const std::string& plan, PeerListener* listener) {
  std::lock_guard lock(links_mutex_);
  // A failure is known before JobFailed takes the lock: either it is seen here, or the listener there.
  std::string failure = host_.failure();
  if (!failure.empty()) throw Error(failure);
  int64_t instance = next_instance_++;
  auto link = std::make_unique<RuntimeLink>(this, instance, plan, listener, host_.open(instance));
  links_[instance] = link.get();
  if (held_.count(instance) != 0) {
    auto* release = new Release;
    release->links = this;
    release->instance = instance;
    host_.network->Post(release);
  }
  return link;
}

void RuntimeLinks::Disconnect(int64_t instance) {
  std::lock_guard lock(links_mutex_);
  links_.erase(instance);
  held_.erase(instance);
  newest_.erase(instance);
}

void RuntimeLinks::Note(int from, const OutputHeader& header) {
  std::lock_guard lock(links_mutex_);
  if (header.instance < next_instance_ && links_.count(header.instance) == 0) return;  // gone
  auto [newest, first] = newest_[header.instance].emplace(from, header.launch);
  if (!first) newest->second = std::max(newest->second, header.launch);
}

void RuntimeLinks::JobFailed(const std::string& message) {
  std::lock_guard lock(links_mutex_);
  for (const auto& [instance, link] : links_) TellFailure(link, message);
}

void RuntimeLinks::RuntimeFailed(int64_t instance, const std::string& message) {
  std::lock_guard lock(links_mutex_);
  if (Hold(instance)) {
    held_[instance].push_back({.failure = true, .message = message});
    return;
  }
  auto link = links_.find(instance);
  if (link != links_.end()) TellFailure(link->second, message);
}

// A plan has the same processes send in every step: those who have sent before, or as long as nobody has,
// any.
std::string RuntimeLinks::Awaited() {
  std::lock_guard lock(links_mutex_);
  std::string all;
  for (const auto& [instance, link] : links_) {
    const PeerListener::Awaited awaited = link->listener_->AwaitedOutputs();
    if (awaited.launch < 0) continue;
    all += Cat(all.empty() ? "" : ", ", awaited.what, " (", link->plan_, ")");
    const std::map<int, int64_t>& newest = newest_[instance];
    std::string senders;
    for (int p = 0; p < host_.processes; ++p) {
      auto sent = newest.find(p);
      const bool owes =
          newest.empty() ? p != host_.me : sent != newest.end() && sent->second < awaited.launch;
      if (owes) senders += Cat(senders.empty() ? " of " : " and ", host_.describe(p));
    }
    all += senders;
  }
  return all;
}

void RuntimeLinks::TellFailure(RuntimeLink* link, const std::string& message) {
  link->told_ = true;
  link->listener_->PeersFailed(message);
}

void RuntimeLinks::Deliver(int from, const void* header, size_t header_bytes,
                           std::unique_ptr<Incoming> data) {
  CHECK_EQ(header_bytes, sizeof(OutputHeader));
  OutputHeader read;
  std::memcpy(&read, header, sizeof(read));
  CHECK(read.rank >= 0 && read.rank <= Dims::kMaxRank);
  Note(from, read);
  if (data->data() != nullptr || data->bytes() == 0) return Arrived(read, data->data(), data->bytes());
  auto* arrival = new OutputArrival;
  arrival->links = this;
  arrival->header = read;
  arrival->data.resize(data->bytes());
  arrival->incoming = std::move(data);
  arrival->incoming->Receive(arrival->data.data(), arrival);
}

void RuntimeLinks::Arrived(const OutputHeader& header, const void* data, size_t bytes) {
  std::lock_guard lock(links_mutex_);
  if (Hold(header.instance)) {
    const char* begin = static_cast<const char*>(data);
    held_[header.instance].push_back({.header = header, .data = std::vector<char>(begin, begin + bytes)});
    return;
  }
  auto link = links_.find(header.instance);
  if (link != links_.end()) Tell(link->second->listener_, header, data, bytes);
}

// Whether what comes for `instance` is kept: until it is made here and has been told what was kept before.
bool RuntimeLinks::Hold(int64_t instance) { return instance >= next_instance_ || held_.count(instance) != 0; }

void RuntimeLinks::ReleaseHeld(int64_t instance) {
  std::lock_guard lock(links_mutex_);
  auto link = links_.find(instance);
  auto held = held_.find(instance);
  if (link == links_.end() || held == held_.end()) return;
  for (const Held& thing : held->second) {
    if (thing.failure) {
      TellFailure(link->second, thing.message);
    } else {
      Tell(link->second->listener_, thing.header, thing.data.data(), thing.data.size());
    }
  }
  held_.erase(held);
}

void RuntimeLinks::Tell(PeerListener* listener, const OutputHeader& header, const void* data, size_t bytes) {
  Box box{Dims(header.begin, header.begin + header.rank), Dims(header.extent, header.extent + header.rank)};
  listener->OutputArrived(header.launch, header.output, box, data, bytes);
}

RuntimeLinks::OutputSend* RuntimeLinks::TakeSend() {
  std::lock_guard lock(sends_mutex_);
  if (!free_sends_.empty()) {
    OutputSend* send = free_sends_.back();
    free_sends_.pop_back();
    return send;
  }
  sends_.push_back(std::make_unique<OutputSend>());
  sends_.back()->links = this;
  free_sends_.reserve(sends_.size());
  return sends_.back().get();
}

void RuntimeLinks::GiveSend(OutputSend* send) {
  if (send->data.capacity() > kLargestKept) std::vector<char>().swap(send->data);
  std::lock_guard lock(sends_mutex_);
  free_sends_.push_back(send);
}

}  // namespace oneflow_like
