// Boxing: each primitive, as the planner routes it and the runtime carries it out, by devices and size.
#include <cstring>
#include <memory>

#include "actor/runtime.h"
#include "sbp/boxing.h"
#include "tests/actor/actor_test_plans.h"
#include "tests/bench/bench.h"

namespace oneflow_like::bench {
namespace {

// One boxing over `devices` virtual devices: the mesh it runs on and the layouts at its ends.
struct Case {
  std::string primitive;
  Mesh mesh;
  Layout from, to;
};

Case MakeCase(const std::string& primitive, int devices) {
  Mesh line("cpu", {{"dp", devices}});
  auto on_line = [&](int fixed, Sbp sbp) { return Layout{{{fixed}}, {B(), sbp}}; };
  const int all = Slice::kFree;
  if (primitive == "all_reduce") return {primitive, line, on_line(all, P()), on_line(all, B())};
  if (primitive == "reduce_scatter") return {primitive, line, on_line(all, P()), on_line(all, S(0))};
  if (primitive == "all_gather") return {primitive, line, on_line(all, S(0)), on_line(all, B())};
  if (primitive == "all_to_all") return {primitive, line, on_line(all, S(0)), on_line(all, S(1))};
  if (primitive == "broadcast") return {primitive, line, on_line(0, B()), on_line(all, B())};
  // send: from one pipeline stage to the next, one device to one.
  Mesh stages("cpu", {{"pp", 2}, {"dp", devices / 2}});
  auto on_stage = [&](int stage) { return Layout{{{stage, all}}, {B(), B(), S(0)}}; };
  return {"send", stages, on_stage(0), on_stage(1)};
}

void SetPiece(plan::Plan* plan, plan::Kernel* kernel, bool out, const Dims& shape, const Box& box) {
  plan::Buffer* buffer = plan->add_buffer();
  buffer->set_id(plan->buffer_size() - 1);
  buffer->set_name(out ? "to" : "from");
  buffer->set_slots(1);
  buffer->set_slot_bytes((box.elements() * 4 + 63) / 64 * 64);
  buffer->add_offset(plan->arena(0).bytes());
  plan->mutable_arena(0)->set_bytes(plan->arena(0).bytes() + buffer->slot_bytes());
  plan::Operand operand = PlanBuilder::Operand(buffer->id(), shape, {box});
  operand.set_dtype(static_cast<int>(DType::kFloat32));
  *(out ? kernel->add_out() : kernel->add_in()) = operand;
}

// The plan of one rank: one collective, `acts` times in a step.
plan::Plan RankPlanOf(const Case& c, int rank, const Dims& shape, int acts, double* moved) {
  PlanBuilder b("boxing", rank, c.mesh.size(), acts);
  std::vector<int> coords = c.mesh.Coords(rank);
  BoxingProgram program = RouteGroup(c.mesh, 1, 0, shape, c.from, c.to, coords, true);
  if (program.me < 0) return b.plan();
  if (program.me == 0) *moved += static_cast<double>(program.Moved());
  plan::Actor* actor = b.Actor(0, c.primitive, acts);
  plan::Kernel* kernel = b.Kernel(actor, c.primitive, {}, {});
  const int me = program.me;
  if (program.has_in[me]) SetPiece(&b.plan(), kernel, false, shape, program.in[me]);
  if (program.has_out[me]) SetPiece(&b.plan(), kernel, true, shape, program.out[me]);
  std::vector<std::vector<Box>> in, out;
  std::vector<int> ranks;
  for (size_t m = 0; m < program.members.size(); ++m) {
    ranks.push_back(c.mesh.IndexOf(program.members[m]));
    in.push_back(program.has_in[m] ? std::vector<Box>{program.in[m]} : std::vector<Box>{});
    out.push_back(program.has_out[m] ? std::vector<Box>{program.out[m]} : std::vector<Box>{});
  }
  plan::Collective* collective =
      b.Collective(actor, 1, ranks, me, program.reduce == Reduce::kNone ? "" : "sum", in, out);
  collective->set_primitive(c.primitive);
  for (const Region& r : program.work[me]) b.Region(collective, r.box, r.sources, r.dests);
  b.Stream("link", std::vector<int>(acts, 0));
  return b.plan();
}

void RunBoxing(benchmark::State& state, const std::string& primitive, int devices) {
  const int64_t bytes = state.range(0), columns = 64;
  const Dims shape{bytes / 4 / columns, columns};
  const int acts = static_cast<int>(std::clamp<int64_t>((int64_t{4} << 20) / bytes, 1, 256));
  Case c = MakeCase(primitive, devices);
  std::vector<plan::Plan> plans;
  double moved = 0;
  for (int r = 0; r < devices; ++r) plans.push_back(RankPlanOf(c, r, shape, acts, &moved));
  const int threads = std::min<int>(devices, std::max(1u, std::thread::hardware_concurrency()));
  auto store = MakeStore(devices);
  auto executor = MakeThreadExecutor(threads, 1);
  KernelRegistry registry;
  Runtime runtime(std::move(plans), registry, store.get(), executor.get(), {});
  // Memory never written reads as one shared page of zeros, far faster than a tensor.
  for (int r = 0; r < devices; ++r) std::memset(store->Arena(r), 0, store->ArenaBytes(r));
  (void)runtime.Launch({}).Wait();
  for (auto _ : state) {
    Status status = runtime.Launch({}).Wait();
    if (!status.ok()) return state.SkipWithError(status.message().c_str());
  }
  double done = static_cast<double>(state.iterations()) * acts;
  using benchmark::Counter;
  state.counters["moved_GB/s"] = Counter(done * moved * 4 / 1e9, Counter::kIsRate);
  state.counters["tensor_GB/s"] = Counter(done * static_cast<double>(bytes) / 1e9, Counter::kIsRate);
  state.counters["s_per_boxing"] = Counter(done, Counter::kIsRate | Counter::kInvert);
  state.counters["triad_GB/s"] = CeilingOf(threads).triad / 1e9;
}

}  // namespace

void RegisterBoxing() {
  for (const char* primitive :
       {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"}) {
    for (int devices : {2, 4}) {
      benchmark::RegisterBenchmark(Cat("Boxing/", primitive, "/devices:", devices).c_str(), RunBoxing,
                                   std::string(primitive), devices)
          ->ArgName("bytes")
          ->RangeMultiplier(16)
          ->Range(4 << 10, 64 << 20)
          ->UseRealTime();
    }
  }
}

}  // namespace oneflow_like::bench
