// Times single kernels of the CPU, or several that run in turn, on operands of their own. For the programs
// *_benchmark beside it, each of which prints the rows of a script in tests/peers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/device/parallel_for.h"
#include "ops/cpu/manifest.h"
#include "ops/op.h"
#include "ops/reference.h"
#include "tests/ops/with_scratch.h"

namespace oneflow_like {

// PROGRAM [threads] [batch] [bf16|fp16] [only=REGEX]: what is not given stays as it is here.
struct KernelBenchOptions {
  int threads = 1;
  int64_t batch = 8;
  DType dtype = DType::kFloat32;
  std::string only;  // part of the names of the rows to print

  KernelBenchOptions(int argc, char** argv) {
    int64_t numbers[] = {threads, batch};
    int seen = 0;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "bf16" || word == "fp16") {
        dtype = word == "bf16" ? DType::kBFloat16 : DType::kFloat16;
      } else if (word.starts_with("only=")) {
        only = word.substr(5);
      } else if (seen < 2) {
        numbers[seen++] = std::atoi(argv[i]);
      }
    }
    threads = static_cast<int>(std::max<int64_t>(1, numbers[0]));
    batch = std::max<int64_t>(1, numbers[1]);
  }
};

class KernelBench {
 public:
  explicit KernelBench(const KernelBenchOptions& options) : only_(options.only) {
    SetParallelThreads(options.threads);
    FlushDenormals();
    AddReferenceKernels(BuiltinCatalog(), &registry_);
    AddCpuKernels(&registry_);
  }

  struct Operand {
    TensorArg arg;
  };

  // Kernels that run one after the other, and what they read and write.
  struct Acts {
    std::vector<std::unique_ptr<Operand>> operands;
    std::vector<KernelSpec> specs;
    std::vector<std::unique_ptr<Kernel>> kernels;

    // Numbers in [0, 1), integers below `limit`.
    const Operand* Add(DType dtype, const Dims& shape, int64_t limit = 1) {
      auto operand =
          std::make_unique<Operand>(Operand{{nullptr, dtype, shape, Dims(shape.rank(), 0), shape}});
      operand->arg.data = Room((static_cast<size_t>(shape.elements()) * SizeOf(dtype) + 64) / 64 * 64);
      std::mt19937 random(static_cast<uint32_t>(operands.size()) + 1);
      for (int64_t i = 0; i < shape.elements(); ++i) {
        const double number = static_cast<double>(random()) / 4294967296.0;
        StoreFloat(operand->arg, i,
                   IsFloating(dtype) ? number : std::floor(number * static_cast<double>(limit)));
      }
      operands.push_back(std::move(operand));
      return operands.back().get();
    }

   private:
    // One behind the other in a device's memory, as a plan places them.
    void* Room(size_t bytes) {
      if (arenas_.empty() || used_ + bytes > arenas_.back()->bytes()) {
        arenas_.push_back(device_->Allocate(std::max(bytes, size_t{256} << 20), "operands"));
        used_ = 0;
      }
      used_ += bytes;
      return static_cast<char*>(arenas_.back()->data()) + used_ - bytes;
    }

    std::unique_ptr<Device> device_ = MakeHostDevice(0);
    std::vector<std::unique_ptr<Memory>> arenas_;
    size_t used_ = 0;  // of the last
  };

  // One more kernel; its results.
  std::vector<const Operand*> Then(Acts* acts, const std::string& op, const std::vector<const Operand*>& in,
                                   const Attrs& attrs) const {
    KernelSpec spec{op, attrs, {}, {}, op, {}};
    std::vector<Dims> shapes;
    std::vector<DType> types;
    for (const Operand* operand : in) {
      spec.in.push_back(operand->arg);
      shapes.push_back(operand->arg.extent);
      types.push_back(operand->arg.dtype);
    }
    const Inferred inferred = Infer(BuiltinCatalog().Get(op), {op, op, shapes, types, &attrs});
    std::vector<const Operand*> results;
    for (size_t o = 0; o < inferred.rule.out.size(); ++o) {
      results.push_back(acts->Add(inferred.dtypes[o], inferred.rule.out[o].shape));
      spec.out.push_back(results.back()->arg);
    }
    acts->specs.push_back(spec);
    acts->kernels.push_back(MakeWithScratch(registry_, spec));
    return results;
  }

  bool Wanted(const std::string& name) const { return std::regex_search(name, only_); }

  // A row: the median of all of them in turn, of at least 9 times in a fifth of a second.
  void Row(const std::string& name, const Acts& acts, double flops = 0) const {
    const double seconds = Seconds(acts);
    std::printf("%-34s %8.3f ms", name.c_str(), seconds * 1e3);
    if (flops > 0) std::printf(" %6.0f GFLOP/s", flops / seconds / 1e9);
    std::printf("\n");
    std::fflush(stdout);
  }

  void Row(const std::string& name, const std::string& op, const std::vector<Dims>& in, const Attrs& attrs,
           const std::vector<DType>& types, double flops = 0) const {
    if (!Wanted(name)) return;
    Acts acts;
    std::vector<const Operand*> operands;
    for (size_t i = 0; i < in.size(); ++i) operands.push_back(acts.Add(types[i], in[i]));
    Then(&acts, op, operands, attrs);
    Row(name, acts, flops);
  }

 private:
  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  static double Seconds(const Acts& acts) {
    auto run = [&] {
      for (size_t i = 0; i < acts.kernels.size(); ++i) {
        const Status status = acts.kernels[i]->Run({acts.specs[i], acts.specs[i].in, acts.specs[i].out});
        if (!status.ok()) {
          std::fprintf(stderr, "%s: %s\n", acts.specs[i].name.c_str(), status.message().c_str());
          std::exit(1);
        }
      }
    };
    std::vector<double> seconds;
    run();
    const double begin = Now();
    while (seconds.size() < 9 || Now() - begin < 0.2) {
      const double start = Now();
      run();
      seconds.push_back(Now() - start);
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2];
  }

  KernelRegistry registry_;
  std::regex only_;
};

}  // namespace oneflow_like
