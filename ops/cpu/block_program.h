// A chain of elementwise operators compiled, when a plan is loaded, into loops over blocks of at most 512
// floats that stay in the first-level cache: one pass over memory whatever the length of the chain. The
// elementwise kernels are programs of one step.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "core/device/kernel.h"
#include "ops/fused.h"

namespace oneflow_like::cpu {

// One block operation: out[i] = f(in[0][i], in[1][i], ...), i < n.
constexpr int kMostOperands = 6;
struct BlockArgs {
  const float* in[kMostOperands];
  float* out;
  int64_t n;
  float constant;
};
using BlockFn = void (*)(const BlockArgs&);

// The block operation of a scalar body, and how many operands it takes; fn null when there is none of that
// name.
struct BlockOp {
  BlockFn fn = nullptr;
  int operands = 0;
  const char* constant = nullptr;  // attribute that holds it
};
BlockOp FindBlockOp(const std::string& name);

class BlockProgram : public Kernel {
 public:
  // REQUIRES: inputs and outputs are floating (16-bit types are widened block by block) or bool. Null when
  // the program has more values than fit the tables.
  static std::unique_ptr<BlockProgram> Make(const std::vector<FusedStep>& steps,
                                            const std::vector<DType>& inputs,
                                            const std::vector<int64_t>& outputs);
  Status Run(const KernelContext& context) override;

 private:
  static constexpr int kMaxValues = 192;
  static constexpr int kMaxInputs = 64;
  static constexpr int64_t kBufferFloats = 16384;
  static constexpr int kMostKept = 8;      // operands that are copied once for all blocks of a range
  static constexpr int kMostStreamed = 4;  // outputs that may go past the caches

  struct Instruction {
    BlockFn fn = nullptr;  // null: dropout
    int in[kMostOperands] = {};
    int operands = 1;
    int result = 0;
    float constant = 0;
    uint64_t key = 0;  // of a dropout
    uint32_t least = 0;
  };
  struct View;
  struct GlobalRuns;

  bool Append(const FusedStep& step, int* next_value, std::vector<int>* names, std::vector<DType>* types);
  void JoinSums();
  void PlaceValues(int values);
  int64_t BlockFor(const View* views, std::array<bool, kMaxInputs>* repeats) const;
  void RunRange(const KernelContext& context, const View* views, const GlobalRuns& runs, int64_t begin,
                int64_t end) const;

  int inputs_ = 0, values_ = 0;
  int64_t block_ = 512;
  std::vector<Instruction> code_;
  std::vector<int> outputs_;
  std::vector<int> buffer_;    // per value; -1 for one that is written straight to an output
  std::vector<int> straight_;  // per value: that output, else -1
};

}  // namespace oneflow_like::cpu
