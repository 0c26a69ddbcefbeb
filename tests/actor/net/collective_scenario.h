// Random jobs for tests of collectives between processes: which ranks, processes and hosts there are, what
// moves between them in which order, and the values of every piece, all drawn from a seed.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "actor/net/collectives/process_collectives.h"
#include "core/boxes/copy_box.h"
#include "core/float16.h"
#include "core/plan/collective_algorithm.h"
#include "tests/actor/plan_builder.h"
#include "tests/sbp/random_boxing.h"

namespace oneflow_like {

inline uint64_t Mix(std::initializer_list<uint64_t> values) {
  uint64_t x = 0x9e3779b97f4a7c15;
  for (uint64_t v : values) {
    x = (x ^ v) * 0xbf58476d1ce4e5b9;
    x ^= x >> 29;
  }
  return x;
}

inline double Get(DType dtype, const char* data, int64_t i) {
  if (dtype == DType::kInt32) return reinterpret_cast<const int32_t*>(data)[i];
  if (dtype == DType::kBFloat16) return ToFloat(reinterpret_cast<const BFloat16*>(data)[i]);
  return reinterpret_cast<const float*>(data)[i];
}
inline void Put(DType dtype, char* data, int64_t i, double value) {
  if (dtype == DType::kInt32) {
    reinterpret_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
  } else if (dtype == DType::kBFloat16) {
    reinterpret_cast<BFloat16*>(data)[i] = ToBFloat16(static_cast<float>(value));
  } else {
    reinterpret_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

// One collective of the job: its program for each act of a step (or one for all), and where its acts stand in
// the order.
struct Case {
  int64_t id = 0;
  int runtime = 0;
  int acts = 1;
  int operands = 1;  // tensors alike, with values of their own
  DType dtype = DType::kFloat32;
  std::string text;
  std::string algorithm;  // that the plan names; empty: none
  int unit = 0;           // of it
  std::vector<BoxingProgram> programs;
  std::vector<int> positions;
  Dims counted;  // rows [r p c w] of which an act moves so many as its counts [p r] say; empty: all

  int64_t counts() const { return counted.empty() ? 0 : counted[0] * counted[1]; }
  const BoxingProgram& program(int64_t act) const { return programs[programs.size() == 1 ? 0 : act % acts]; }
  const std::vector<int>& ranks() const { return programs[0].members; }
  int members() const { return static_cast<int>(ranks().size()); }

  plan::Collective PlanOf(int me) const {
    plan::Collective c;
    c.set_id(id);
    c.set_primitive("routed");
    c.set_algorithm(algorithm);
    c.set_unit(unit);
    for (int rank : ranks()) c.add_rank(rank);
    c.set_me(me);
    for (int i = 0; i < operands * members(); ++i) c.add_piece();
    if (!counted.empty()) {
      c.set_counts(counts());
      c.set_rows(2);
    }
    for (const BoxingProgram& p : programs) {
      c.set_reduce(Name(p.reduce));
      for (int i = 0; i < operands * members(); ++i) {
        const int m = i % members();
        if (p.has_in[m]) SetBox(c.mutable_piece(i)->add_in(), p.in[m]);
        if (p.has_out[m]) SetBox(c.mutable_piece(i)->add_out(), p.out[m]);
      }
      plan::RegionList* work = c.add_work();
      for (const Region& r : p.work[me]) {
        if (!counted.empty()) {
          AddCounted(r, &c);
          continue;
        }
        for (int operand = 0; operand < operands; ++operand) {
          PlanBuilder::Region(&c, r.box, r.sources, r.dests, c.work_size() - 1);
          work->mutable_region(work->region_size() - 1)->set_operand(operand);
        }
      }
    }
    return c;
  }

  // A region for each count.
  void AddCounted(const Region& r, plan::Collective* c) const {
    ForEach({{r.box.begin[0], r.box.begin[1]}, {r.box.extent[0], r.box.extent[1]}}, [&](const Dims& at) {
      Box box = r.box;
      for (int a : {0, 1}) {
        box.begin[a] = at[a];
        box.extent[a] = 1;
      }
      plan::RegionList* work = c->mutable_work(c->work_size() - 1);
      PlanBuilder::Region(c, box, r.sources, r.dests, c->work_size() - 1);
      work->mutable_region(work->region_size() - 1)
          ->set_count(static_cast<int32_t>(1 + at[1] * counted[0] + at[0]));
    });
  }
};

// Rows of ranks that go elsewhere: from "cut by p" to "cut by r" or back.
inline Case CountedCase(const Dims& shape, const std::vector<int>& ranks, bool back, int acts) {
  Case c;
  c.acts = acts;
  c.counted = shape;
  BoxingEnd by_p{{static_cast<int>(ranks.size())}, ranks, {S(1)}}, by_r = by_p;
  by_r.sbp = {S(0)};
  c.programs = {RouteAll(Box::Whole(shape), back ? by_r : by_p, back ? by_p : by_r)};
  c.text = Cat("counted ", shape.str(), back ? " back" : "");
  return c;
}

struct Scenario {
  unsigned seed = 0;
  int processes = 2, ranks_each = 1, steps = 2, runtimes = 1;
  std::vector<int> host;
  bool shared_memory = true;
  bool exact = true;     // values whose sums have no rounding
  int fail_percent = 0;  // acts in which a member arrives with ok = false
  int kill = -1;         // the process that is lost in the middle
  ProcessCollectivesOptions options{64, 32, 256};
  std::vector<Case> cases;
  std::vector<std::pair<int, int>> order;  // of one step: (case, act)

  int world() const { return processes * ranks_each; }
  int ProcessOf(int rank) const { return rank / ranks_each; }
  bool IsLocal(const Case& c) const {
    return std::all_of(c.ranks().begin(), c.ranks().end(),
                       [&](int rank) { return ProcessOf(rank) == ProcessOf(c.ranks()[0]); });
  }
  // Which member arrives with ok = false; -1: none.
  int FailsAt(int c, int64_t act) const {
    const uint64_t x = Mix({seed, 77, static_cast<uint64_t>(c), static_cast<uint64_t>(act)});
    return static_cast<int>(x % 100) < fail_percent ? static_cast<int>(x / 128 % cases[c].members()) : -1;
  }
  // Of [p r], in an act: none, all, or any number of the rows.
  int32_t Count(int c, int64_t act, int64_t index) const {
    const uint64_t x =
        Mix({seed, 91, static_cast<uint64_t>(c), static_cast<uint64_t>(act), static_cast<uint64_t>(index)});
    const auto rows = static_cast<int32_t>(cases[c].counted[2]);
    return x % 4 == 0 ? 0 : x % 4 == 1 ? rows : static_cast<int32_t>(x / 4 % static_cast<uint64_t>(rows + 1));
  }
  double Value(int c, int operand, int member, int64_t act, int64_t index) const {
    const uint64_t x = Mix({seed, static_cast<uint64_t>(c), static_cast<uint64_t>(member),
                            static_cast<uint64_t>(act), static_cast<uint64_t>(index + operand * 1000003)});
    if (exact || cases[c].dtype == DType::kInt32) return static_cast<double>(x % 31) - 15;
    return std::ldexp(static_cast<double>(x % (1 << 20)) - (1 << 19), -static_cast<int>(x / (1 << 20) % 24));
  }
};

// The part of act `time` of `times`, uneven.
inline Box SlabOf(const Dims& shape, int times, int time) {
  Box box = Box::Whole(shape);
  box.begin[0] = shape[0] * time / times;
  box.extent[0] = shape[0] * (time + 1) / times - box.begin[0];
  return box;
}

inline Scenario MakeScenario(unsigned seed) {
  Random random(seed);
  Scenario s;
  s.seed = seed;
  s.processes = 2 + Draw(random, 3);
  s.ranks_each = 1 + Draw(random, 2);
  s.steps = 2 + Draw(random, 2);
  s.runtimes = 1 + (Draw(random, 3) == 0);
  const int hosts = 1 + Draw(random, s.processes);
  for (int p = 0; p < s.processes; ++p) s.host.push_back(Draw(random, hosts));
  s.shared_memory = Draw(random, 4) != 0;
  const int times = 1 + Draw(random, 3);
  const int chunk = std::array<int, 3>{16, 64, 256}[Draw(random, 3)];
  s.options.chunk_bytes = chunk;
  s.options.latency_bound_bytes = std::array<int, 3>{0, 32, 1024}[Draw(random, 3)];
  s.options.staging_bytes = chunk * (1 + Draw(random, 5));
  const int collectives = 1 + Draw(random, 7);
  for (int i = 0; i < collectives; ++i) {
    Case c;
    c.id = 3 + i;
    c.runtime = Draw(random, s.runtimes);
    c.dtype = std::array{DType::kFloat32, DType::kInt32, DType::kBFloat16}[Draw(random, 3)];
    RandomBoxing boxing = MakeRandomBoxing(random, s.world());
    if (Draw(random, 3) == 0) {  // what training does most, with terms from everywhere
      boxing.from.sizes = {s.world()};
      boxing.from.sbp = {P()};
      boxing.from.devices.resize(s.world());
      std::iota(boxing.from.devices.begin(), boxing.from.devices.end(), 0);
      boxing.to = boxing.from;
      boxing.to.sbp = {Draw(random, 3) == 0 ? S(0) : B()};
    }
    const bool per_act = Draw(random, 2) == 0, cut = per_act && Draw(random, 2) == 0;
    c.acts = per_act ? times : 1;
    for (int t = 0; t < (cut ? times : 1); ++t) {
      c.programs.push_back(
          RouteAll(cut ? SlabOf(boxing.shape, times, t) : Box::Whole(boxing.shape), boxing.from, boxing.to));
    }
    // Several groups of one logical node share its id.
    const std::vector<int>& ranks = c.ranks();
    if (i > 0 && std::none_of(ranks.begin(), ranks.end(), [&](int rank) {
          return std::any_of(s.cases.begin(), s.cases.end(), [&](const Case& other) {
            return other.id == s.cases.back().id &&
                   std::count(other.ranks().begin(), other.ranks().end(), rank);
          });
        })) {
      c.id = s.cases.back().id;
    }
    c.operands = std::array{1, 1, 2, 3, 50}[Draw(random, 5)];
    const uint64_t named = Mix({seed, 5, static_cast<uint64_t>(i)});
    if (const size_t drawn = named % (std::size(kCollectiveAlgorithms) + 1);
        drawn < std::size(kCollectiveAlgorithms)) {
      c.algorithm = Name(kCollectiveAlgorithms[drawn]);
      c.unit = static_cast<int>(named / 8 % 4);
    }
    c.text = boxing.str();
    if (const uint64_t drawn = Mix({seed, 8, static_cast<uint64_t>(i)}); drawn % 4 == 0) {
      std::vector<int> all(s.world());
      std::iota(all.begin(), all.end(), 0);
      auto extent = [&](int shift, int most) { return 1 + static_cast<int64_t>(drawn >> shift) % most; };
      Case counted = CountedCase({extent(8, 6), extent(16, 6), extent(24, 7), extent(32, 9)}, all,
                                 drawn >> 40 & 1, c.acts);
      counted.id = 100 + i;
      counted.runtime = c.runtime;
      counted.dtype = c.dtype;
      counted.algorithm = c.algorithm;
      counted.unit = c.unit;
      c = std::move(counted);
    }
    for (int a = 0; a < c.acts; ++a) s.order.emplace_back(i, -1);
    s.cases.push_back(std::move(c));
  }
  std::shuffle(s.order.begin(), s.order.end(), random);
  for (size_t i = 0; i < s.order.size(); ++i) {
    Case& c = s.cases[s.order[i].first];
    s.order[i].second = static_cast<int>(c.positions.size());
    c.positions.push_back(static_cast<int>(i));
  }
  return s;
}

inline std::string Describe(const Scenario& s) {
  std::string text =
      Cat("seed ", s.seed, ": ", s.processes, " processes of ", s.ranks_each, " ranks, ", s.runtimes,
          " runtimes, ", s.shared_memory ? "hosts" : "alone", ", chunks of ", s.options.chunk_bytes,
          ", small up to ", s.options.latency_bound_bytes, ", staging ", s.options.staging_bytes);
  for (const Case& c : s.cases)
    text += Cat("\n  ", c.id, " x", c.acts, " of ", c.operands, " ", Name(c.dtype), " ", c.algorithm, c.unit,
                " ", c.text);
  return text;
}

}  // namespace oneflow_like
