// Grids: blocks one after another, a block's threads as fibers that go on in a fixed order. A thread that
// never waits costs a call: it runs on the stack of the one before it. Only a barrier or a shuffle switches
// stacks.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_emulator/cuda_runtime.h"
#include "tests/cuda_emulator/fibers.h"
#include "tests/cuda_emulator/state.h"

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_emulator {
namespace {

constexpr unsigned kMostThreads = 1024, kWarp = 32;
constexpr size_t kMostShared = size_t{99} << 10;     // of compute capability 8.6: others have more
std::atomic<int64_t> most_dynamic_shared{48 << 10};  // what a launch gets without asking for more

// What a lane wants of the others, as one word: all of `mask` must want the same.
using Call = uint64_t;
Call CallOf(WarpOperation operation, unsigned mask) {
  return uint64_t{mask} << 32 | static_cast<unsigned>(operation);
}
unsigned MaskOf(Call call) { return static_cast<unsigned>(call >> 32); }

struct Warp {
  unsigned present = 0, ready = 0, done = 0,
           barrier = 0;  // bits of lanes; none of the last three: in an exchange
  unsigned waiting = 0;
  Call first = 0;      // of those that wait, when the first of them came
  bool alike = true;   // all of them want that
  unsigned syncs = 0;  // of __syncwarp, done
  char order[2];       // what they order, in turn
  Call call[kWarp];
  int source[kWarp];
  uint64_t value[kWarp], result[kWarp];
};

struct Fiber {
  Context context;
  unsigned thread = 0;
};

class Block {
 public:
  Block() {
    void* memory = mmap(nullptr, kMostShared + 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    shared_ = static_cast<char*>(memory);
  }
  ~Block() {
    for (auto& fiber : fibers_) Release(&fiber->context);
    munmap(shared_, kMostShared + 4096);
  }

  // False: a fault, which has been told.
  bool Run(unsigned threads, size_t shared, bool reverse, const std::function<void()>& body);
  uint64_t Exchange(WarpOperation operation, unsigned mask, uint64_t value, int source);
  int Wait(int value);
  [[noreturn]] void Fail(const char* what);
  char* shared() { return shared_; }
  bool running() const { return running_; }

 private:
  static void Entry();
  void RunThreads(Fiber* fiber);
  int Next();
  void Go(Context* from, int next);
  Fiber* FiberFor(int thread);
  void MakeFibers(size_t count);
  void Leave(unsigned thread);
  std::string Stuck() const;
  Warp& WarpOf(unsigned thread) { return warps_[thread / kWarp]; }
  unsigned BitOf(unsigned thread) const { return 1u << (thread % kWarp); }

  const std::function<void()>* body_ = nullptr;
  unsigned threads_ = 0, num_warps_ = 0, done_ = 0, arrived_ = 0, current_warp_ = 0;
  unsigned ready_warps_ = 0;
  bool reverse_ = false, running_ = false, failed_ = false;
  int barrier_sum_ = 0, barrier_result_ = 0;
  unsigned barriers_ = 0;                // done
  char start_, end_, barrier_order_[2];  // what orders threads: of barriers in turn, so that who is ahead
                                         // does not order what comes later
  std::array<Warp, kMostThreads / kWarp> warps_;
  std::array<Fiber*, kMostThreads> fiber_of_{};
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  Fiber* entering_ = nullptr;
  Context host_;
  char* shared_;
};

Block& BlockOfThread() {
  static thread_local Block block;
  return block;
}
// Of the thread, once it has run a grid: the check whether it was made is left out of what every barrier
// does.
__thread Block* this_block = nullptr;
Block& ThisBlock() { return *this_block; }

int First(unsigned bits, bool reverse) { return reverse ? 31 - __builtin_clz(bits) : __builtin_ctz(bits); }

void SetThread(unsigned thread) { threadIdx.x = thread; }

// The next thread that can go on: of the current warp while it has one, else of the next warp in order.
int Block::Next() {
  if (ready_warps_ == 0) return -1;
  if ((ready_warps_ >> current_warp_ & 1) == 0) {
    unsigned after = reverse_ ? (1u << current_warp_) - 1 : ~((2u << current_warp_) - 1);
    unsigned candidates = ready_warps_ & after;
    current_warp_ = First(candidates != 0 ? candidates : ready_warps_, reverse_);
  }
  return static_cast<int>(current_warp_ * kWarp) + First(warps_[current_warp_].ready, reverse_);
}

void Block::Leave(unsigned thread) {
  Warp& warp = WarpOf(thread);
  warp.ready &= ~BitOf(thread);
  if (warp.ready == 0) ready_warps_ &= ~(1u << (thread / kWarp));
}

void Block::Go(Context* from, int next) {
  if (next < 0) return Switch(from, &host_);
  Fiber*& fiber = fiber_of_[next];
  if (fiber == nullptr) {
    fiber = FiberFor(next);
    fiber->thread = next;
  }
  entering_ = fiber;
  Switch(from, &fiber->context);
}

Fiber* Block::FiberFor(int thread) {
  if (kRacesTold) return fibers_[thread].get();  // its own, in all blocks
  if (free_.empty()) MakeFibers(fibers_.size() + 1);
  Fiber* fiber = free_.back();
  free_.pop_back();
  return fiber;
}

void Block::MakeFibers(size_t count) {
  while (fibers_.size() < count) {
    fibers_.push_back(std::make_unique<Fiber>());
    Prepare(&fibers_.back()->context, static_cast<unsigned>(fibers_.size()), &Block::Entry);
    free_.push_back(fibers_.back().get());
  }
}

void Block::Entry() {
  Entered();
  Block& block = ThisBlock();
  block.RunThreads(block.entering_);
}

void Block::RunThreads(Fiber* fiber) {
  while (true) {
    unsigned thread = fiber->thread;
    SetThread(thread);
    OrderAfter(&start_);
    (*body_)();
    OrderBefore(&end_);
    WarpOf(thread).done |= BitOf(thread);
    ++done_;
    Leave(thread);
    int next = Next();
    if (!kRacesTold && next >= 0 && fiber_of_[next] == nullptr) {
      fiber_of_[next] = fiber;
      fiber->thread = next;
      continue;
    }
    free_.push_back(fiber);
    Go(&fiber->context, next);
  }
}

bool Block::Run(unsigned threads, size_t shared, bool reverse, const std::function<void()>& body) {
  body_ = &body;
  threads_ = threads;
  num_warps_ = (threads + kWarp - 1) / kWarp;
  done_ = arrived_ = 0;
  barrier_sum_ = 0;
  reverse_ = reverse;
  failed_ = false;
  for (unsigned w = 0; w < num_warps_; ++w) {
    Warp& warp = warps_[w];
    unsigned lanes = std::min(kWarp, threads - w * kWarp);
    warp.present = warp.ready = lanes == kWarp ? ~0u : (1u << lanes) - 1;
    warp.done = warp.barrier = warp.waiting = 0;
  }
  std::fill_n(fiber_of_.begin(), threads, nullptr);
  ready_warps_ = num_warps_ == 32 ? ~0u : (1u << num_warps_) - 1;
  current_warp_ = reverse ? num_warps_ - 1 : 0;
  if (shared != 0) std::memset(shared_, 0xFF, shared + 64);
  if (shared != 0) BeginCopies();
  if (kRacesTold) {
    MakeFibers(threads);
    free_.clear();
  }
  running_ = true;
  OrderBefore(&start_);
  Go(&host_, Next());
  OrderAfter(&end_);
  running_ = false;
  std::string why;
  if (!failed_ && done_ != threads_) why = Stuck();
  if (!failed_ && shared != 0) {
    for (size_t i = shared; i < shared + 64 && why.empty(); ++i) {
      if (shared_[i] != '\xFF') why = "bytes behind its dynamic shared memory were written";
    }
  }
  if (!failed_ && why.empty() && UnfinishedCopies() != 0)
    why = "a block ends with copies to shared memory that no thread has waited for";
  if (!failed_ && why.empty() && UnfinishedProducts() != 0)
    why = "a block ends with products of warpgroups that no thread has waited for";
  if (UnfinishedCopies() != 0) ForgetCopies();
  if (UnfinishedProducts() != 0) ForgetProducts();
  if (!why.empty()) TellFault(why + PlaceOfBlock());
  if (failed_ || !why.empty()) {  // what the fibers were doing is given up
    free_.clear();
    for (size_t i = 0; i < fibers_.size(); ++i) {
      Prepare(&fibers_[i]->context, static_cast<unsigned>(i + 1), &Block::Entry);
      free_.push_back(fibers_[i].get());
    }
    return false;
  }
  return true;
}

std::string Block::Stuck() const {
  for (unsigned w = 0; w < num_warps_; ++w) {
    const Warp& warp = warps_[w];
    if (warp.waiting == 0) continue;
    unsigned lane = __builtin_ctz(warp.waiting);
    unsigned missing = MaskOf(warp.call[lane]) & ~warp.waiting;
    std::string text = "thread " + std::to_string(w * kWarp + lane) + " waits in a shuffle or __syncwarp ";
    if (missing == 0) return text + "with another mask or operation than the other lanes";
    unsigned other = __builtin_ctz(missing);
    return text + "for lane " + std::to_string(other) +
           ((warp.done >> other & 1)      ? ", which has ended"
            : (warp.barrier >> other & 1) ? ", which waits in __syncthreads()"
                                          : ", which is elsewhere");
  }
  return std::to_string(arrived_) + " of " + std::to_string(threads_) + " threads wait in __syncthreads(), " +
         std::to_string(done_) + " have ended";
}

// From within a kernel: nothing of this block goes on.
// No destructor runs on its stack: the sentence is gone before it is left.
void Block::Fail(const char* what) {
  TellFault(std::string(what) + " (thread " + std::to_string(threadIdx.x) + PlaceOfBlock() + ")");
  failed_ = true;
  Fiber* fiber = fiber_of_[threadIdx.x];
  Switch(&fiber->context, &host_);
  std::abort();
}

int Block::Wait(int value) {
  unsigned thread = threadIdx.x;
  char* order = &barrier_order_[barriers_ % 2];
  OrderBefore(order);
  barrier_sum_ += value;
  WarpOf(thread).barrier |= BitOf(thread);
  Leave(thread);
  if (++arrived_ == threads_) {
    barrier_result_ = barrier_sum_;
    barrier_sum_ = 0;
    arrived_ = 0;
    ++barriers_;
    for (unsigned w = 0; w < num_warps_; ++w) {
      warps_[w].ready = warps_[w].present;
      warps_[w].barrier = 0;
    }
    ready_warps_ = num_warps_ == 32 ? ~0u : (1u << num_warps_) - 1;
    current_warp_ = reverse_ ? num_warps_ - 1 : 0;
  }
  int next = Next();
  if (next != static_cast<int>(thread)) {
    Go(&fiber_of_[thread]->context, next);
    SetThread(thread);
  }
  OrderAfter(order);
  return barrier_result_;
}

uint64_t Block::Exchange(WarpOperation operation, unsigned mask, uint64_t value, int source) {
  unsigned thread = threadIdx.x, lane = thread % kWarp, bit = 1u << lane;
  Warp& warp = WarpOf(thread);
  if ((mask & bit) == 0) Fail("a lane takes part in a shuffle or __syncwarp whose mask is without it");
  if ((mask & ~warp.present) != 0)
    Fail("a shuffle or __syncwarp wants lanes that the block does not have: blockDim.x is no multiple of 32");
  if (operation == WarpOperation::kShuffle && (mask >> (source & 31) & 1) == 0)
    Fail("a shuffle reads a lane that its mask is without");
  const Call call = CallOf(operation, mask);
  if (warp.waiting == 0) warp.first = call, warp.alike = true;
  warp.alike = warp.alike && call == warp.first;
  warp.call[lane] = call;
  warp.source[lane] = source & 31;
  warp.value[lane] = value;
  warp.waiting |= bit;
  // A shuffle orders nothing in memory.
  char* order = operation == WarpOperation::kSync ? &warp.order[warp.syncs % 2] : nullptr;
  if (order != nullptr) OrderBefore(order);
  bool complete = (warp.waiting & mask) == mask;
  for (unsigned rest = mask; complete && !warp.alike && rest != 0; rest &= rest - 1)
    complete = warp.call[__builtin_ctz(rest)] == call;
  if (complete) {
    if (operation == WarpOperation::kShuffle) {
      for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        const int other = __builtin_ctz(rest);
        warp.result[other] = warp.value[warp.source[other]];
      }
    } else if (operation == WarpOperation::kBallot) {
      uint64_t ballot = 0;
      for (unsigned rest = mask; rest != 0; rest &= rest - 1)
        ballot |= uint64_t{warp.value[__builtin_ctz(rest)] != 0} << __builtin_ctz(rest);
      for (unsigned rest = mask; rest != 0; rest &= rest - 1) warp.result[__builtin_ctz(rest)] = ballot;
    } else if (operation != WarpOperation::kSync && !DoForWarp(operation, warp.value)) {
      Fail("the lanes of a warp take part in one product, or load of matrices, with different shapes");
    }
    warp.waiting &= ~mask;
    warp.ready |= mask;
    ready_warps_ |= 1u << (thread / kWarp);
    if (order != nullptr) {
      ++warp.syncs;
      OrderAfter(order);
    }
    return warp.result[lane];
  }
  Leave(thread);
  Go(&fiber_of_[thread]->context, Next());
  SetThread(thread);
  if (order != nullptr) OrderAfter(order);
  return warp.result[lane];
}

}  // namespace

std::string PlaceOfBlock() {
  return ", block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ") of a grid of " +
         std::to_string(gridDim.x) + " x " + std::to_string(gridDim.y) + " blocks of " +
         std::to_string(blockDim.x) + " threads";
}

void RunGrid(unsigned x, unsigned y, unsigned threads, size_t shared, const std::function<void()>& body) {
  this_block = &BlockOfThread();
  threadIdx = {0, 0, 0};
  blockDim = {threads, 1, 1};
  gridDim = {x, y, 1};
  blockIdx = {0, 0, 0};
  if (threads == 0 || threads > kMostThreads || y > 65535 || x > 0x7FFFFFFFu ||
      static_cast<int64_t>(shared) > most_dynamic_shared) {
    TellFault("a launch that no device accepts: at most 1024 threads, 65535 blocks along y and " +
              std::to_string(most_dynamic_shared) + " bytes of dynamic shared memory (here " +
              std::to_string(shared) + "; cudaFuncSetAttribute raises it up to 99 KiB)" + PlaceOfBlock());
    return KernelFailed();
  }
  CountKernel();
  static thread_local uint64_t launches = 0;
  ++launches;
  Order order = CurrentOrder();
  uint64_t blocks = static_cast<uint64_t>(x) * y;
  for (uint64_t i = 0; i < blocks; ++i) {
    bool back = order == Order::kReverse || (order == Order::kAlternate && launches % 2 == 0);
    uint64_t block = back ? blocks - 1 - i : i;
    blockIdx = {static_cast<unsigned>(block % x), static_cast<unsigned>(block / x), 0};
    bool reverse = order == Order::kReverse || (order == Order::kAlternate && (launches + block) % 2 == 0);
    if (!ThisBlock().Run(threads, shared, reverse, body)) return KernelFailed();
  }
}

void* Shared() { return ThisBlock().shared(); }
uint64_t ExchangeInWarp(WarpOperation operation, unsigned mask, uint64_t value, int source) {
  return ThisBlock().Exchange(operation, mask, value, source);
}
int Barrier(int value) { return ThisBlock().Wait(value); }
void Trap(const char* why) { ThisBlock().Fail(why); }

cudaError_t SetMaxDynamicShared(const void*, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kMostShared) return cudaErrorInvalidValue;
  int64_t most = most_dynamic_shared;
  while (most < bytes && !most_dynamic_shared.compare_exchange_weak(most, bytes)) {
  }
  return cudaSuccess;
}

}  // namespace cuda_emulator
