// The values of a model's variables, whole: read from, and written to, the pieces that the ranks hold, in
// this process and in the others of its job. Who gives which part is one routing (sbp/boxing.h) from the
// variable's layout to one place; it moves in boxes of at most kBytes, through memory that devices copy to
// and from.
#include <glog/logging.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "actor/net/talk/job.h"
#include "compiler/graph/training.h"
#include "core/boxes/copy_box.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/model/pieces.h"
#include "oneflow_like/model/variables.h"

namespace oneflow_like {

namespace {

constexpr int64_t kInFlight = 64 << 20;  // bytes on their way before all processes wait for one another

// What other processes send of a variable, put in its place as it comes.
class Arrivals final : public PeerListener {
 public:
  Arrivals(std::string variable, const HostTensor& whole) : variable_(std::move(variable)), whole_(whole) {}

  // Until so many elements have come altogether.
  void WaitFor(int64_t elements) {
    std::unique_lock<std::mutex> lock(mutex_);
    wanted_ = elements;
    changed_.wait(lock, [&] { return come_ >= elements || !failure_.empty(); });
    if (!failure_.empty()) throw Error(failure_);
  }

  void OutputArrived(int64_t, int, const Box& box, const void* data, size_t) override {
    std::lock_guard<std::mutex> lock(mutex_);
    CopyBox(whole_.dtype, box, {const_cast<void*>(data), box}, {whole_.data.get(), Box::Whole(whole_.shape)});
    come_ += box.elements();
    changed_.notify_all();
  }
  void PeersFailed(const std::string& message) override {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = message;
    changed_.notify_all();
  }
  Awaited AwaitedOutputs() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (come_ >= wanted_) return {};
    return {0, Cat("pieces of variable '", variable_, "'")};
  }

 private:
  const std::string variable_;
  const HostTensor whole_;
  // A lock, since pieces come on the job's thread while the user's waits.
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t come_ = 0, wanted_ = 0;
  std::string failure_;
};

// What this process holds, from whichever of its ranks.
void CopyLocal(const ModelImpl& model, const std::string& name, const std::vector<Part>& parts,
               const HostTensor& whole) {
  std::vector<bool> done(parts.size(), false);
  for (int rank : model.store->ranks()) {
    if (model.store->Find(rank, name) == nullptr) continue;
    LocalPiece piece(model, rank, name);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (done[i] || !(parts[i].box.Intersect(piece.box()) == parts[i].box)) continue;
      done[i] = true;
      ForEachRun(parts[i].box, piece.box(), MostElements(whole.dtype), [&](const Box& run) {
        CopyBox(whole.dtype, run, {const_cast<void*>(piece.Get(run)), run},
                {whole.data.get(), Box::Whole(whole.shape)});
      });
    }
  }
}

// Each process sends, to all others, the parts whose giver it hosts and that some process has not.
void Exchange(const ModelImpl& model, const std::string& name, const std::vector<Part>& parts,
              const HostTensor& whole) {
  Job* job = model.options.job.get();
  const int hosted = model.mesh.size() / job->processes();
  Arrivals arrivals(name, whole);
  std::unique_ptr<PeerLink> link = job->peers_of_runtimes()->Connect("Model::Read", &arrivals);
  int64_t on_the_way = kInFlight, to_come = 0;
  std::unique_ptr<LocalPiece> mine;
  for (const Part& part : parts) {
    if (!part.sent) continue;
    const bool here = part.giver / hosted == job->process();
    if (here) mine = std::make_unique<LocalPiece>(model, part.giver, name);
    ForEachRun(part.box, part.piece, MostElements(whole.dtype), [&](const Box& run) {
      const int64_t bytes = run.elements() * static_cast<int64_t>(SizeOf(whole.dtype));
      if (on_the_way + bytes > kInFlight) {
        arrivals.WaitFor(to_come);
        (void)job->AllGather(Cat("variable '", name, "'"), "");
        on_the_way = 0;
      }
      on_the_way += bytes;
      if (here)
        link->SendOutput(0, 0, run, mine->Get(run), bytes);
      else
        to_come += run.elements();
    });
  }
  arrivals.WaitFor(to_come);
}

// A variable that is cut as the other is, from rank to rank.
void CopyVariable(ModelImpl* model, const std::string& from, const std::string& to) {
  const DType dtype = model->Require(from).dtype;
  model->Require(to);
  for (int rank : model->store->ranks()) {
    if (model->store->Find(rank, to) == nullptr) continue;
    LocalPiece source(*model, rank, from), target(*model, rank, to);
    CHECK(source.box() == target.box()) << to << " is cut otherwise than " << from;
    ForEachRun(target.box(), target.box(), MostElements(dtype), [&](const Box& run) {
      CopyBox(dtype, run, {const_cast<void*>(source.Get(run)), run}, {target.staging(), run});
      target.Put(run);
    });
  }
}

}  // namespace

HostTensor ReadVariable(ModelImpl* model, const std::string& name) {
  const ModelVariable& variable = model->Require(name);
  const HostTensor whole = HostTensor::Make(variable.dtype, variable.shape);
  const std::vector<Part> parts = PartsOf(*model, variable);
  CopyLocal(*model, name, parts, whole);
  if (std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.sent; }))
    Exchange(*model, name, parts, whole);
  return whole;
}

std::string AverageOf(const std::string& training, const std::string& weight) {
  return Cat(training, ":", kAverage, "/", weight);
}

void BeginAverages(ModelImpl* model) {
  for (auto& [training, steps] : model->steps) {
    if (!steps.averages || steps.averaged) continue;
    steps.averaged = ReadVariable(model, training + kAverages).as<float>()[0] > 0;
    if (steps.averaged) continue;
    if (model->saving) model->saving->WaitCopied();
    for (const auto& [weight, variable] : model->variables)
      if (const std::string average = AverageOf(training, weight); model->variables.count(average))
        CopyVariable(model, weight, average);
  }
}

HostTensor Model::Read(const std::string& name) const {
  if (name.find(Cat(":", kAverage, "/")) != std::string::npos) BeginAverages(impl_.get());
  return ReadVariable(impl_.get(), name);
}

void Model::Write(const std::string& name, const HostTensor& value) {
  const ModelVariable& variable = impl_->Require(name);
  if (variable.dtype != value.dtype || variable.shape != value.shape)
    Fail("variable '", name, "' is ", Name(variable.dtype), variable.shape.str(),
         " but the value written is ", Name(value.dtype), value.shape.str());
  if (!value.data && value.bytes() > 0) Fail("the value written to variable '", name, "' holds no data");
  if (impl_->saving) impl_->saving->WaitCopied();
  for (int rank : impl_->store->ranks()) {
    if (impl_->store->Find(rank, name) == nullptr) continue;
    LocalPiece piece(*impl_, rank, name);
    ForEachRun(piece.box(), piece.box(), MostElements(value.dtype), [&](const Box& run) {
      CopyBox(value.dtype, run, {value.data.get(), Box::Whole(value.shape)}, {piece.staging(), run});
      piece.Put(run);
    });
  }
}

std::vector<std::string> Model::Variables() const {
  std::vector<std::string> names;
  for (const auto& [name, variable] : impl_->variables) names.push_back(name);
  return names;
}

}  // namespace oneflow_like
