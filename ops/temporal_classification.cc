// ctc_loss and its gradient. A target of s classes is spelt by 2 s + 1 states: a blank before, between and
// after them. A place stays in its state, goes to the next, or leaps over a blank between two different
// classes. Logarithms of what all ways to a state have as their probability are made place by place, forward;
// the gradient also needs them backward.
#include "ops/temporal_classification.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/device/parallel_for.h"
#include "core/device/scratch.h"
#include "ops/along_axis.h"

namespace oneflow_like {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double LogAdd(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

// One sample.
struct CtcSample {
  const TensorArg &log_probs, &targets;
  int64_t n, blank, places, length, states;
  int64_t all_places, classes, room;

  CtcSample(const KernelContext& context, int64_t n)
      : log_probs(context.in[0]), targets(context.in[1]), n(n), blank(context.spec.attrs.Int("blank")) {
    places = LoadInt(context.in[2], n);
    length = LoadInt(context.in[3], n);
    states = 2 * length + 1;
    all_places = log_probs.extent[1];
    classes = log_probs.extent[2];
    room = targets.extent[1];
  }
  int64_t Class(int64_t state) const {
    return state % 2 == 0 ? blank : LoadInt(targets, n * room + state / 2);
  }
  double Log(int64_t t, int64_t state) const {
    return LoadFloat(log_probs, (n * all_places + t) * classes + Class(state));
  }
  bool Leaps(int64_t state) const { return state % 2 == 1 && state > 1 && Class(state) != Class(state - 2); }

  // Of place t, given that of the place before; in place, from the last state to the first.
  void Forward(int64_t t, double* ways) const {
    for (int64_t s = states - 1; s >= 0; --s) {
      double sum = t == 0 ? (s < 2 ? 0 : kNever) : ways[s];
      if (t > 0 && s > 0) sum = LogAdd(sum, ways[s - 1]);
      if (t > 0 && Leaps(s)) sum = LogAdd(sum, ways[s - 2]);
      ways[s] = sum + Log(t, s);
    }
  }
  double Loss(const double* ways) const {
    if (places == 0) return length == 0 ? 0 : -kNever;
    return -(length == 0 ? ways[0] : LogAdd(ways[states - 1], ways[states - 2]));
  }
};

// Of each range of samples that run side by side.
struct CtcRoom {
  double *table = nullptr, *ways = nullptr, *shares = nullptr;  // [places, states], [states], [classes]
  CtcRoom(const KernelSpec& spec, bool gradient, int range, Scratch* scratch) {
    const int64_t states = 2 * spec.in[1].extent[1] + 1;
    for (int r = 0; r <= range; ++r) {
      ways = scratch->Take<double>(states);
      if (!gradient) continue;
      table = scratch->Take<double>(states * spec.in[0].extent[1]);
      shares = scratch->Take<double>(spec.in[0].extent[2]);
    }
  }
};
template <bool kGradient>
int64_t CtcScratch(const KernelSpec& spec) {
  Scratch scratch;
  CtcRoom(spec, kGradient, spec.threads - 1, &scratch);
  return scratch.bytes();
}

Status CtcLossReference(const KernelContext& context) {
  if (Status status = CheckSpellings(context); !status.ok()) return status;
  ParallelForParts(context.in[0].extent[0], 1, context.spec.threads,
                   [&](int64_t begin, int64_t end, int range) {
                     Scratch scratch(context.scratch);
                     const CtcRoom room(context.spec, false, range, &scratch);
                     for (int64_t n = begin; n < end; ++n) {
                       const CtcSample spelling(context, n);
                       for (int64_t t = 0; t < spelling.places; ++t) spelling.Forward(t, room.ways);
                       StoreFloat(context.out[0], n, spelling.Loss(room.ways));
                     }
                   });
  return Status();
}

// log_probs, targets, lengths, dloss -> dlog_probs. Of each place: minus the probability of all ways through
// a class there, divided by that of all ways.
Status CtcLossGradReference(const KernelContext& context) {
  if (Status status = CheckSpellings(context); !status.ok()) return status;
  const TensorArg& to = context.out[0];
  ParallelForParts(context.in[0].extent[0], 1, context.spec.threads,
                   [&](int64_t begin, int64_t end, int range) {
                     Scratch scratch(context.scratch);
                     const CtcRoom room(context.spec, true, range, &scratch);
                     for (int64_t n = begin; n < end; ++n) {
                       const CtcSample s(context, n);
                       const int64_t base = n * s.all_places * s.classes;
                       for (int64_t i = 0; i < s.all_places * s.classes; ++i) StoreFloat(to, base + i, 0);
                       for (int64_t t = 0; t < s.places; ++t) {
                         double* ways = room.table + t * s.states;
                         if (t > 0) std::copy_n(ways - s.states, s.states, ways);
                         s.Forward(t, ways);
                       }
                       const double loss = s.Loss(room.table + std::max<int64_t>(s.places - 1, 0) * s.states),
                                    dloss = LoadFloat(context.in[4], n);
                       if (!std::isfinite(loss)) continue;
                       double* after = room.ways;  // of what follows a place, by its state
                       for (int64_t t = s.places - 1; t >= 0; --t) {
                         std::fill_n(room.shares, s.classes, 0.0);
                         for (int64_t i = 0; i < s.states;
                              ++i) {  // from the first: it reads those behind, which are t + 1's
                           double sum = i >= s.states - 2 ? 0 : kNever;
                           if (t + 1 < s.places) {
                             sum = after[i] + s.Log(t + 1, i);
                             if (i + 1 < s.states) sum = LogAdd(sum, after[i + 1] + s.Log(t + 1, i + 1));
                             if (i + 2 < s.states && s.Leaps(i + 2))
                               sum = LogAdd(sum, after[i + 2] + s.Log(t + 1, i + 2));
                           }
                           after[i] = sum;
                           room.shares[s.Class(i)] += std::exp(room.table[t * s.states + i] + sum + loss);
                         }
                         for (int64_t k = 0; k < s.classes; ++k)
                           if (room.shares[k] > 0)
                             StoreFloat(to, base + t * s.classes + k, -dloss * room.shares[k]);
                       }
                     }
                   });
  return Status();
}

void CheckCtc(const OpCall& call, size_t inputs) {
  RequireInputs(call, inputs);
  RequireFloating(call, 0);
  for (size_t i : {1, 2, 3}) RequireInteger(call, i);
  if (inputs > 4) RequireFloating(call, 4);
  RequireAttr(call, "blank");
  if (call.shapes[0].rank() != 3)
    Fail(call.who, ": log_probs is ", call.shapes[0].str(), " but must have the axes [n t c]");
  const int64_t blank = call.attrs->Int("blank"), classes = call.shapes[0][2];
  if (blank < 0 || blank >= classes)
    Fail(call.who, ": blank is ", blank, " but log_probs ", call.shapes[0].str(), " has the classes [0, ",
         classes, ")");
}

double CtcFlops(const BoundRule& rule) {
  const Dims &log_probs = rule.in[0].shape, &targets = rule.in[1].shape;
  return 60.0 * static_cast<double>(log_probs[0] * log_probs[1] * (2 * targets[1] + 1));
}

}  // namespace

void AddTemporalClassification(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  const Attrs blank = {{"blank", int64_t{4}}};
  OpDef loss;
  loss.name = "ctc_loss";
  loss.doc = "Connectionist temporal classification: minus the logarithm of the probability of the targets.";
  loss.axes = "log_probs[n t c], targets[n s], input_lengths[n], target_lengths[n] -> loss[n]";
  loss.whole = {"t", "c", "s"};
  loss.dtypes = ResultTypes({DType::kFloat32});
  loss.check = [](const OpCall& call) { CheckCtc(call, 4); };
  loss.grad = [](const GradCall& c) {
    Tensor d =
        Apply(c.in[0].graph(), "ctc_loss_grad", {c.in[0], c.in[1], c.in[2], c.in[3], c.dout[0]}, c.attrs)[0];
    return std::vector<Tensor>{d, Tensor(), Tensor(), Tensor()};
  };
  loss.flops = CtcFlops;
  loss.any_type = true;
  loss.reference = CtcLossReference;
  loss.scratch = CtcScratch<false>;
  loss.samples = {{.in = {{3, 5, 5}, {3, 3}, {3}, {3}}, .attrs = blank, .dtypes = {f, i, l, i}, .limit = 4},
                  {.in = {{6, 3, 7}, {6, 3}, {6}, {6}}, .attrs = blank, .dtypes = {f, l, i, l}, .limit = 3},
                  {.in = {{4, 7, 5}, {4, 3}, {4}, {4}}, .attrs = blank, .dtypes = {f, i, i, i}, .limit = 2}};
  catalog->Add(std::move(loss));

  OpDef grad{.name = "ctc_loss_grad", .doc = "The gradient of ctc_loss with respect to log_probs."};
  grad.axes =
      "log_probs[n t c], targets[n s], input_lengths[n], target_lengths[n], dloss[n] -> dlog_probs[n t c]";
  grad.linear = {{"dloss"}};
  grad.whole = {"t", "c", "s"};
  grad.check = [](const OpCall& call) { CheckCtc(call, 5); };
  grad.flops = [](const BoundRule& rule) { return 2 * CtcFlops(rule); };
  grad.any_type = true;
  grad.reference = CtcLossGradReference;
  grad.scratch = CtcScratch<true>;
  grad.samples = {
      {.in = {{3, 5, 5}, {3, 3}, {3}, {3}, {3}}, .attrs = blank, .dtypes = {f, i, l, i, f}, .limit = 4},
      {.in = {{6, 3, 7}, {6, 3}, {6}, {6}, {6}}, .attrs = blank, .dtypes = {f, l, i, l, f}, .limit = 3},
      {.in = {{4, 7, 5}, {4, 3}, {4}, {4}, {4}}, .attrs = blank, .dtypes = {f, i, i, i, f}, .limit = 2}};
  catalog->Add(std::move(grad));
}

}  // namespace oneflow_like
