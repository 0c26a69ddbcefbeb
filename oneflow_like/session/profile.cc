// Where a session's time went, in all processes, on one screen.
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "actor/net/collectives/work.pb.h"
#include "actor/net/talk/job.h"
#include "core/device/library_memory.h"
#include "core/formatted.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/model/placement.h"
#include "oneflow_like/session/plain_cores.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/session/summary.h"

namespace oneflow_like {

namespace {

constexpr size_t kHottest = 10;
constexpr size_t kLabelWidth = 64;

constexpr int64_t BackendCounts::*kCounts[] = {&BackendCounts::library_products,
                                               &BackendCounts::library_attention,
                                               &BackendCounts::library_convolutions,
                                               &BackendCounts::refused_products,
                                               &BackendCounts::refused_epilogues,
                                               &BackendCounts::refused_attention,
                                               &BackendCounts::refused_convolutions,
                                               &BackendCounts::failed_recordings,
                                               &BackendCounts::parts,
                                               &BackendCounts::unrecorded_parts,
                                               &BackendCounts::graphs,
                                               &BackendCounts::graph_launches,
                                               &BackendCounts::lone_launches,
                                               &BackendCounts::graph_nodes,
                                               &BackendCounts::graph_nanoseconds,
                                               &BackendCounts::graph_wait_nanoseconds,
                                               &BackendCounts::recording_nanoseconds,
                                               &BackendCounts::lone_nanoseconds,
                                               &BackendCounts::allocated_bytes,
                                               &BackendCounts::other_bytes,
                                               &BackendCounts::ranks,
                                               &BackendCounts::devices};

struct Row {
  std::string what;
  double seconds;  // of all threads
};

// The plan's kinds of kernels in a fixed order, those of the user's own operators behind the known ones.
std::vector<Row> Rows(const StepProfile& profile) {
  std::map<std::string, double> kinds = profile.kernels;
  std::vector<Row> rows;
  auto take = [&](const std::string& kind, const std::string& title) {
    rows.push_back({title, kinds[kind]});
    kinds.erase(kind);
  };
  take("matmul", "matmul");
  take("attention", "attention");
  double boxing = kinds["boxing"], other = kinds["other"];
  kinds.erase("boxing");
  kinds.erase("other");
  for (const auto& [kind, seconds] : kinds) rows.push_back({kind, seconds});
  rows.push_back({"other kernels", other});
  rows.push_back({"boxing", boxing});
  rows.push_back({"waiting", profile.waiting});
  rows.push_back({"runtime", profile.runtime});
  return rows;
}

// Shares in tenths of a percent that add up to 1000: what rounding down leaves goes to the largest
// remainders.
std::vector<int> Shares(const std::vector<Row>& rows) {
  double total = 0;
  for (const Row& row : rows) total += row.seconds;
  std::vector<int> tenths(rows.size(), 0);
  if (!(total > 0)) return tenths;
  std::vector<double> rest(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    double exact = 1000 * rows[i].seconds / total;
    tenths[i] = static_cast<int>(exact);
    rest[i] = exact - tenths[i];
  }
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rest[a] > rest[b]; });
  int left = 1000 - std::accumulate(tenths.begin(), tenths.end(), 0);
  for (int i = 0; i < left; ++i) ++tenths[order[i % order.size()]];
  return tenths;
}

// What bounds it: arithmetic where each byte is used several times, else memory.
std::string RateText(const KernelProfile& kernel) {
  if (!(kernel.seconds > 0)) return "";
  const bool computes = kernel.flops > 4 * kernel.bytes;
  return Formatted(computes ? "%.1f GFLOP/s" : "%.1f GB/s",
                   (computes ? kernel.flops : kernel.bytes) / kernel.seconds / 1e9);
}

std::string Packed(const StepProfile& profile) {
  wire::StepProfile packed;
  packed.set_steps(profile.steps);
  packed.set_warm_up_steps(profile.warm_up_steps);
  packed.set_threads(profile.threads);
  packed.set_wall(profile.wall);
  packed.set_waiting(profile.waiting);
  packed.set_runtime(profile.runtime);
  packed.set_data(profile.data);
  for (const KernelProfile& kernel : profile.hottest) {
    wire::KernelProfile* k = packed.add_kernel();
    k->set_label(kernel.label);
    k->set_category(kernel.category);
    k->set_runs(kernel.runs);
    k->set_seconds(kernel.seconds);
    k->set_flops(kernel.flops);
    k->set_bytes(kernel.bytes);
  }
  for (auto count : kCounts) packed.add_device_count(profile.devices.*count);
  packed.add_device_count(profile.communicator_bytes);
  return packed.SerializeAsString();
}

// Of all processes, whose profiles are given packed.
StepProfile Together(const std::vector<std::string>& profiles) {
  StepProfile sum;
  std::map<std::string, KernelProfile> kernels;
  for (const std::string& text : profiles) {
    wire::StepProfile packed;
    CHECK(packed.ParseFromString(text));
    sum.steps = std::max<int64_t>(sum.steps, packed.steps());
    sum.warm_up_steps = std::max<int64_t>(sum.warm_up_steps, packed.warm_up_steps());
    sum.threads += packed.threads();
    sum.wall += packed.wall() * packed.threads();
    sum.waiting += packed.waiting();
    if (packed.data() >= 0) sum.data = std::max(sum.data, 0.0) + packed.data() / profiles.size();
    sum.runtime += packed.runtime();
    for (size_t i = 0; i < std::size(kCounts); ++i)
      sum.devices.*kCounts[i] += packed.device_count(static_cast<int>(i));
    sum.communicator_bytes += packed.device_count(static_cast<int>(std::size(kCounts)));
    for (const wire::KernelProfile& k : packed.kernel()) {
      KernelProfile& kernel = kernels[k.label()];
      kernel.label = k.label();
      kernel.category = k.category();
      kernel.runs += k.runs();
      kernel.seconds += k.seconds();
      kernel.flops += k.flops();
      kernel.bytes += k.bytes();
    }
  }
  if (sum.threads > 0) sum.wall /= sum.threads;
  SetKernels(std::move(kernels), &sum);
  return sum;
}

constexpr double kWorthSaying = 0.05;  // of the time of steps

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Launches of a step on the devices, and all that was done in a slower way than it could be.
std::string DevicesText(const StepProfile& profile) {
  const BackendCounts& d = profile.devices;
  if (d.ranks == 0) return "";
  const double steps = static_cast<double>(std::max<int64_t>(profile.steps + profile.warm_up_steps, 1));
  std::string text =
      Formatted("  on the GPUs: %.1f graph launches a step, %.1f kernels launched alone\n",
                static_cast<double>(d.graph_launches) / steps, static_cast<double>(d.lone_launches) / steps);
  // As the rows above: of one thread, on average.
  const double waited = static_cast<double>(d.graph_wait_nanoseconds) * 1e-9 / std::max(1, profile.threads);
  if (waited > kWorthSaying * profile.wall) {
    text += Formatted(
        "  launches waited %.1f ms a step for room in the driver's queue: part of the times above, no "
        "work of the host\n",
        waited * 1e3 / steps);
  }
  const std::pair<int64_t, const char*> slower[] = {
      {d.refused_products, "matrix products that cuBLASLt refused"},
      {d.refused_epilogues, "epilogues of products that cuBLASLt refused"},
      {d.refused_attention, "attention graphs that cuDNN refused"},
      {d.refused_convolutions, "convolutions that cuDNN refused"},
      {d.failed_recordings, "graph recordings that failed"},
      {d.unrecorded_parts, "lines of kernels that were never recorded as a graph"}};
  for (const auto& [count, what] : slower) {
    if (count != 0) text += Cat("  SLOWER THAN IT COULD BE: ", count, " ", what, "\n");
  }
  const int64_t allowed =
      d.ranks * kCudaBytesOfOthers + d.devices * LibraryMemoryHere().bytes + profile.communicator_bytes;
  if (d.other_bytes > allowed) {
    text += Formatted(
        "  libraries, communicators and graphs hold %.0f MiB of the GPUs, the memory table says %.0f\n",
        MiB(d.other_bytes), MiB(allowed));
  }
  return text;
}

std::string Shortened(const std::string& text) {
  return text.size() <= kLabelWidth ? text : "..." + text.substr(text.size() - (kLabelWidth - 3));
}

}  // namespace

std::string ToText(const StepProfile& profile, const std::string& session) {
  if (profile.threads == 0 || profile.steps == 0) {
    if (profile.warm_up_steps == 0) return Cat("no step of session ", session, " has ended\n");
    return Cat("of session ", session,
               " only the first step has ended, which is not counted: libraries warm up in it\n");
  }
  const double to_ms = 1e3 / profile.steps / profile.threads;
  std::vector<Row> rows = Rows(profile);
  std::vector<int> shares = Shares(rows);
  double total = 0;
  for (const Row& row : rows) total += row.seconds;
  std::string text =
      Formatted("a step of %s: %.3f ms, on average of %lld%s, over %d thread%s\n", session.c_str(),
                1e3 * profile.wall / profile.steps, static_cast<long long>(profile.steps),
                profile.warm_up_steps > 0 ? " (without the first, in which libraries warm up)" : "",
                profile.threads, profile.threads == 1 ? "" : "s");
  for (size_t i = 0; i < rows.size(); ++i) {
    text += Formatted("  %-*.*s %10.3f ms %5d.%d %%\n", 16, 16, rows[i].what.c_str(), rows[i].seconds * to_ms,
                      shares[i] / 10, shares[i] % 10);
  }
  if (profile.data >= 0) {
    text += Formatted("  the program waited %.3f ms for the data of a step\n",
                      1e3 * profile.data / profile.steps);
  }
  text += DevicesText(profile);
  const bool on_devices = profile.devices.ranks > 0;
  text += on_devices ? "  all this is the host's time: kernels of GPUs are started, not timed; "
                       "nsys profile --cuda-graph-trace=node times them\n"
                       "  what the host spent most on, beside recordings\n"
                     : "  the hottest kernels\n";
  for (size_t i = 0; i < std::min(kHottest, profile.hottest.size()); ++i) {
    const KernelProfile& kernel = profile.hottest[i];
    const std::string rate = on_devices ? "" : "  " + RateText(kernel);
    text += Formatted("  %-*s %10.3f ms %7.1f %%%s\n", static_cast<int>(kLabelWidth),
                      Shortened(kernel.label).c_str(), kernel.seconds * to_ms, 100 * kernel.seconds / total,
                      rate.c_str());
  }
  return text;
}

void AddProfile(const StepProfile& part, StepProfile* sum) {
  std::map<std::string, KernelProfile> kernels;
  for (const StepProfile* profile : {static_cast<const StepProfile*>(sum), &part})
    for (const KernelProfile& k : profile->hottest) {
      auto [kernel, fresh] = kernels.emplace(k.label, k);
      if (fresh) continue;
      kernel->second.runs += k.runs;
      kernel->second.seconds += k.seconds;
      kernel->second.flops += k.flops;
      kernel->second.bytes += k.bytes;
    }
  StepProfile both = part;
  both.steps += sum->steps;
  both.warm_up_steps += sum->warm_up_steps;
  both.threads = std::max(part.threads, sum->threads);
  both.wall += sum->wall;
  both.waiting += sum->waiting;
  both.runtime += sum->runtime;
  both.data = part.data < 0 ? sum->data : part.data + std::max(0.0, sum->data);
  both.kernels.clear();
  both.hottest.clear();
  SetKernels(std::move(kernels), &both);
  *sum = std::move(both);
}

namespace {

// Of the first rank on a cuda device; empty where there is none.
std::string PlainCoresLines(const Session::Impl& session) {
  const Mesh& mesh = session.compiled.graph.mesh();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (mesh.KindOf(rank) != "cuda") continue;
    const RankSummary summary = SummaryOf(session, rank);
    const std::string warning = PlainCoresWarning({summary});
    return Cat("  operations: ", PlainCoresText(summary.plain_flops, summary.flops), "\n",
               warning.empty() ? "" : Cat("  warning: ", warning, "\n"));
  }
  return "";
}

// Of the ranks that this process hosts; 0 where libraries take so little that it does not matter.
int64_t CommunicatorsHere(const Session::Impl& session, const BackendCounts& counts) {
  if (counts.other_bytes <= counts.ranks * kCudaBytesOfOthers) return 0;
  int64_t bytes = 0;
  const auto of_plan = [&](const Compiled& compiled, int rank) {
    return MemoryBesidesPlan(*session.model, PlanOf(compiled, rank, PlanDetail::kOutline).plan).communicators;
  };
  for (int rank : session.model->store->ranks())
    bytes +=
        of_plan(session.compiled, rank) + (session.retries ? of_plan(session.retries->compiled(), rank) : 0);
  return bytes;
}

// Keeps what libraries took on this process's devices for the tables of later runs, and says so if it is new.
// It is known by what the devices lost, which is not of this process alone where another one of its job is
// there, too.
void KeepLibraries(const Session::Impl& session, const StepProfile& profile) {
  const BackendCounts& counts = profile.devices;
  if (!session.model->backend || counts.devices == 0 || SharesDevices(*session.model)) return;
  const int64_t taken = (counts.other_bytes - profile.communicator_bytes) / counts.devices;
  const int64_t allowed = LibraryMemoryHere().bytes;
  const std::vector<int>& devices = session.model->options.devices;
  const std::string card = session.model->backend->Describe(devices.empty() ? 0 : devices[0]);
  if (taken <= kCudaBytesOfOthers || !KeepLibraryMemory(card, taken - kCudaBytesOfOthers)) return;
  LOG(INFO) << "code of libraries and recordings took " << BytesText(taken)
            << " of a GPU in this process; the memory table allowed for "
            << BytesText(allowed + kCudaBytesOfOthers) << ", and those of later runs allow for this";
}

}  // namespace

StepProfile Session::TakeProfile() {
  if (!impl_ || !impl_->runtime) return {};
  if (impl_->retries) impl_->retries->Settle();
  StepProfile mine = impl_->runtime->TakeProfile();
  mine.communicator_bytes = CommunicatorsHere(*impl_, mine.devices);
  if (mine.steps > 0) KeepLibraries(*impl_, mine);
  if (impl_->data_steps > 0) mine.data = impl_->data_seconds;
  if (impl_->model->report) AddProfile(mine, &impl_->reported);
  impl_->data_seconds = 0;
  impl_->data_steps = 0;
  Job* job = impl_->model->options.job.get();
  return job ? Together(job->AllGather(Cat("profile of session ", impl_->options.name), Packed(mine))) : mine;
}

std::string Session::ProfileText() {
  if (!impl_) return ToText(TakeProfile(), "");
  const StepProfile profile = TakeProfile();  // settles steps, which may run again then
  const int64_t again = impl_->retries ? impl_->retries->count() : 0;
  return ToText(profile, impl_->options.name) + PlainCoresLines(*impl_) +
         (again > 0
              ? Cat("  ", again, again == 1 ? " step" : " steps",
                    " in which experts had no room, or behind such, ran again with more; these times are "
                    "of the first runs\n")
              : "") +
         ShownText(impl_->shown->all());
}

}  // namespace oneflow_like
