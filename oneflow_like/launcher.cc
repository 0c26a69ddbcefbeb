#include "oneflow_like/launcher.h"

#include <gflags/gflags.h>
#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>

DEFINE_string(mesh, "", "devices along named axes, e.g. cpu:dp=2,tp=2,pp=2; empty: the program's default");
DEFINE_uint64(seed, 1, "seed of weights, masks and batches");
DEFINE_int32(threads, 0, "runtime threads; 0: as many as cores, at most one per device");
DEFINE_int32(kernel_threads, 0, "threads that one kernel may use; 0: an equal share of the cores");
DEFINE_bool(dry_run, false, "compile without running and print what each rank would hold and send");
DEFINE_string(dump_dir, "", "folder to write the graph after every pass and the plans to");
DEFINE_string(trace, "",
              "file that gets what every stream did when; open it with ui.perfetto.dev or chrome://tracing");
DEFINE_int64(memory_budget, 0, "bytes a device may use; a plan above it is refused; 0: no limit");

namespace oneflow_like {

Launcher::Launcher(int* argc, char*** argv, const std::string& usage) {
  gflags::SetUsageMessage(usage);
  gflags::ParseCommandLineFlags(argc, argv, true);
  static bool logging = false;
  if (!logging) google::InitGoogleLogging((*argv)[0]);
  logging = true;
  FLAGS_logtostderr = true;
  if (*argc > 1) {
    std::cerr << "error: '" << (*argv)[1] << "' is not a flag; flags start with --, see --help\n";
    exit(1);
  }
}

Mesh Launcher::mesh(const std::vector<std::string>& axes, const std::string& otherwise) const {
  Mesh given = Mesh::Parse(FLAGS_mesh.empty() ? otherwise : FLAGS_mesh);
  std::string known;
  for (const std::string& a : axes) known += (known.empty() ? "" : ", ") + a;
  std::vector<std::pair<std::string, int>> full;
  for (const std::string& a : axes) {
    int at = given.FindAxis(a);
    full.push_back({a, at < 0 ? 1 : given.axis_size(at)});
  }
  for (int a = 0; a < given.rank(); ++a)
    if (std::find(axes.begin(), axes.end(), given.axis_name(a)) == axes.end())
      Fail("mesh ", given.str(), ": this program has no mesh axis '", given.axis_name(a), "'; its axes are ",
           known);
  return Mesh(given.kind(), full);
}

ModelOptions Launcher::model_options() const {
  ModelOptions options;
  options.seed = FLAGS_seed;
  options.dump_dir = FLAGS_dump_dir;
  options.memory_budget = FLAGS_memory_budget;
  options.trace_file = FLAGS_trace;
  if (FLAGS_threads < 0) Fail("--threads is ", FLAGS_threads, ", must be 0 or more");
  options.threads = FLAGS_threads;
  if (FLAGS_kernel_threads < 0) Fail("--kernel_threads is ", FLAGS_kernel_threads, ", must be 0 or more");
  options.kernel_threads = FLAGS_kernel_threads;
  return options;
}

bool Launcher::dry_run() const { return FLAGS_dry_run; }

int Launcher::Main(const std::function<int()>& body) const {
  try {
    return body();
  } catch (const std::exception& e) {
    std::cout << std::flush;
    std::cerr << "error: " << e.what() << std::endl;
    return 1;
  }
}

template <typename T>
HostTensor ToHost(const std::vector<T>& values, const Dims& shape) {
  if (static_cast<int64_t>(values.size()) != shape.elements())
    Fail("ToHost: ", values.size(), " values do not fill shape ", shape.str());
  HostTensor t = HostTensor::Make(DTypeOf<T>::value, shape);
  if (!values.empty()) std::memcpy(t.data.get(), values.data(), t.bytes());
  return t;
}
template HostTensor ToHost<float>(const std::vector<float>&, const Dims&);
template HostTensor ToHost<int32_t>(const std::vector<int32_t>&, const Dims&);
template HostTensor ToHost<int64_t>(const std::vector<int64_t>&, const Dims&);
template HostTensor ToHost<uint8_t>(const std::vector<uint8_t>&, const Dims&);

void ProgressLine::Update(const std::string& text) {
  double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  bool terminal = isatty(STDOUT_FILENO);
  if (now - last_ < (terminal ? 0.1 : 10.0)) return;
  last_ = now;
  if (terminal) {
    std::string padded = text;
    if (padded.size() < width_) padded.resize(width_, ' ');
    width_ = text.size();
    std::printf("\r%s", padded.c_str());
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void ProgressLine::End() {
  if (isatty(STDOUT_FILENO) && width_ > 0) std::printf("\n");
  std::fflush(stdout);
  width_ = 0;
  last_ = 0;
}

}  // namespace oneflow_like
