// Which of several ways each piece of work is done in: of the library's proposals for a product, with what
// follows it or followed by our sums (gemm.h, MakeProduct), and of our own kernels for a grouped one. The
// library orders its algorithms by a model of the card that errs by some percent, and knows none of what we
// do behind it, so its first few proposals are timed once for each product of a plan, when the plan is loaded
// (actor/library_choices.h: one process times, all take its choice), and the choice is kept on disk. All
// proposals are deterministic, but differ in the order of their sums: a product keeps its choice as long as
// the process lives.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/device/backend.h"
#include "ops/cuda/gemm.h"

namespace oneflow_like::cuda {

// The name of a product on a device of the process, for LibraryChoice::work; and of a batch of products that
// can also be done one after another (products_together.h): way 0 is that, way 1 + i the batch by number i of
// MakeProduct.
std::string WorkOf(const GemmDescriptor& product, int device);
std::string TogetherWorkOf(const GemmDescriptor& batch, int device);

// Work that can be done in several ways, numbered from 0, its usual one.
struct ChoosableWork {
  std::function<std::string(int device)> name;
  // Seconds by way, of those that may be taken, on operands in `scratch`, by launches on the context's
  // stream, which is waited for. Empty if the operands do not fit or it cannot be done.
  std::function<std::map<int64_t, double>(const LaunchContext& launch, void* scratch, int64_t bytes)> time;
};

// Of the process. Thread-safe.
class ProductChoices {
 public:
  // Notes a product that leaves the choice to what is decided.
  void Want(const GemmDescriptor& product);
  void WantTogether(const GemmDescriptor& batch);
  // Notes other work; `key` tells equal work.
  void Want(const std::string& key, ChoosableWork work);
  // Those wanted for which nothing is decided on cards like this one; empty if timing makes no difference.
  std::vector<LibraryChoice> Open(int device) const;
  const ChoosableWork* Find(const std::string& work, int device) const;  // of Open; stays valid
  void Decide(const std::vector<LibraryChoice>& choices, bool keep);
  // A product that was noted after the decision keeps the first proposal, as long as the process lives.
  void Settle(const std::string& work);
  int64_t Decided(const std::string& work) const;  // 0 where nothing is
  int64_t OtherProposals() const;                  // decided on that are not the first
  int64_t Together() const;                        // kinds of products that are done several in one call
  // For tests: as in a new process. Products that exist keep what they have.
  void Forget();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ChoosableWork> wanted_;  // by key
  std::map<std::string, int64_t> decided_;       // by work
};
ProductChoices& Choices();

// The number that descriptor.choice stands for.
int64_t ProposalFor(const GemmDescriptor& product, int device);

// Seconds of the library's first proposals, as ChoosableWork::time. The results of the fastest are compared
// with the first one's: what does not agree is left out, and a warning says so.
std::map<int64_t, double> TimeProposals(const GemmDescriptor& product, const LaunchContext& launch,
                                        void* scratch, int64_t bytes);
// The same of TogetherWorkOf's ways: the first is the fastest for one product, as often as the batch has
// them.
std::map<int64_t, double> TimeTogether(const GemmDescriptor& batch, const LaunchContext& launch,
                                       void* scratch, int64_t bytes);
// For that: "NVIDIA H100 80GB HBM3, 132 multiprocessors"; numbers in `to`, as operands of `type` that are
// none of zeros or infinities; and the seconds of several launches, in turn, of each its best round. `ways`
// fail (false), which takes infinitely long, or enqueue. Those that were far slower than another when they
// first ran are not run again.
const std::string& CardOf(int device);
cudaError_t FillWithNumbers(void* to, int64_t bytes, DType type, cudaStream_t stream);
std::vector<double> TimeInTurn(const std::vector<std::function<bool()>>& ways, cudaStream_t stream);
// Whether two results, in host memory, are roundings of nearly the same sums, by some two million elements of
// all columns and rows: an odd number apart.
bool Agree(const std::vector<char>& first, const std::vector<char>& second, DType dtype);
// The fastest way; 0 unless that takes 2 % longer. REQUIRES: there are some.
int64_t FastestProposal(const std::map<int64_t, double>& seconds);

// The file of choices: one to a line, with a checksum, so that lines that are damaged, or of another format,
// are passed over. An empty path: none.
std::map<std::string, int64_t> ReadChoices(const std::string& path);
// Adds what is not there yet: of programs that time at one time the first one's choice stands for later runs.
// Returns false, and changes nothing, if the file cannot be written.
bool AddChoices(const std::string& path, const std::vector<LibraryChoice>& choices);
std::string FileOfChoices();  // in the user's folder of caches

}  // namespace oneflow_like::cuda
