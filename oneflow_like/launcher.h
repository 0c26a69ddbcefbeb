// Launcher: what main() starts with. It owns the flags every program of this library has, and turns mistakes
// into one sentence and a non-zero exit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oneflow_like/model.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

// Flags: --mesh --seed --threads --kernel_threads --dry_run --dump_dir --trace --memory_budget
// (gflags; the program may define its own).
class Launcher {
 public:
  // Parses all flags, also the program's own. An unknown flag, or one of the wrong type, ends the program
  // with a message and exit code 1.
  Launcher(int* argc, char*** argv, const std::string& usage);
  // The mesh of --mesh (default: `otherwise`) with the given axes, in this order; axes the flag leaves out
  // have extent 1, others are an Error.
  Mesh mesh(const std::vector<std::string>& axes, const std::string& otherwise) const;
  ModelOptions model_options() const;
  bool dry_run() const;
  // Runs the program's body; an Error (or std::exception) is printed as "error: ..." and gives exit code 1.
  int Main(const std::function<int()>& body) const;
};

// host[i] as tensors: copies `values` (row-major).
template <typename T>
HostTensor ToHost(const std::vector<T>& values, const Dims& shape);

// One line on the terminal that rewrites itself (a line now and then when standard output is no terminal).
class ProgressLine {
 public:
  void Update(const std::string& text);
  void End();

 private:
  size_t width_ = 0;
  double last_ = 0;
};

}  // namespace oneflow_like
