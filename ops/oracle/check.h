// The operator oracle: runs an operator whole, then on the local pieces every rank of a small mesh would hold
// under one signature per mesh axis, puts the pieces together as the outputs' Sbp say, and compares. What a
// signature promises is exactly that the two agree. Programs that test operators use it; nothing here knows
// any operator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/boxes/copy_box.h"
#include "core/device/kernel.h"
#include "core/random.h"
#include "ops/op.h"
#include "ops/oracle/samples.h"
#include "ops/oracle/value.h"
#include "sbp/rule.h"

namespace oneflow_like::oracle {

// What was run, and what went wrong. A failure is one line: kind, operator, sample, signature, mesh, element,
// values.
struct Report {
  int64_t cases = 0;    // (operator, kernel, signature per axis, mesh, shape)
  int64_t refused = 0;  // shapes with ids that fit no class: the whole run says so, too
  int64_t rough = 0;    // derivatives at a kink
  int64_t failed = 0;
  std::vector<std::string> failures;  // the first few
  // Types that were tried in place of a sample's own and in which cases failed; how many failed in its own.
  std::set<DType> failed_types;
  int64_t failed_as_given = 0;
  void Fail(const std::string& text);
  void Merge(const Report& other);
  std::string str() const;
};

// Makes the kernel under test.
using MakeKernel = std::function<std::unique_ptr<Kernel>(const KernelSpec&)>;

// One operator at one choice of shapes: inputs drawn, outputs of the reference kernel.
struct Trial {
  const OpDef* def = nullptr;
  Sample sample;
  std::string text;  // "matmul f32[4,6] f32[6,5] axis=1"
  BoundRule rule;
  std::vector<DType> out_dtypes;
  std::vector<Value> in, out;
  Status status;                    // of the reference kernel
  DType partial = DType::kFloat32;  // what partial results are rounded to, of a fp32 result too
};

// Draws the inputs and runs `reference` whole. `coarse` draws floating inputs from eight values: ties.
Trial MakeTrial(const OpDef& def, const Sample& sample, const MakeKernel& reference, bool coarse);

// Runs one kernel once on whole tensors; an operator that is a view without kernel hands its bytes on.
Status RunWhole(const OpDef& def, const Attrs& attrs, const std::vector<Value>& in, std::vector<Value>* out,
                const MakeKernel& make);

// One mesh; when `time`, its first axis is the micro-batches of a step: its acts share one kernel object.
struct OracleMesh {
  std::vector<int> sizes;
  bool time = false;
  std::string str() const;
};

// Runs the trial cut by one signature per mesh axis and adds to the report. `whole` are the outputs of the
// same kernel run whole: what a random operator must repeat bit for bit.
void RunCut(const Trial& trial, const std::vector<Value>& whole, const MakeKernel& make,
            const OracleMesh& mesh, const std::vector<Signature>& signatures, Report* report);

// Compares element by element within the tolerance of the type, or of the type of partial results where that
// is narrower, adding at most one failure. `magnitudes`: of values that were rounded before they were summed,
// the sums of their absolute values, by element; empty: there are none.
bool Compare(const std::string& what, const Value& got, const Value& want, bool exact, Report* report,
             DType partial = DType::kFloat32, const std::vector<double>& magnitudes = {});

struct CheckOptions {
  bool vary = true;            // Vary() each sample
  bool every_type = true;      // Vary() also the types of all samples; else of the first one
  int most_pairs = 2000;       // of one sample on one 2-D mesh; beyond it as many are drawn
  int pairs_of_variant = 100;  // the same for a varied sample
  // Signatures of a varied sample that are tried on each mesh of one axis; where there are more, as many are
  // drawn.
  int cuts_of_variant = 1 << 20;
  // Samples in an order that is drawn by this seed; empty: as they come. After each it may be enough.
  std::optional<uint64_t> draws = {};
  std::function<bool()> enough = {};
};
// The entry's own kernel; none for a view that has none.
inline MakeKernel ReferenceOf(const OpDef& def);

// Everything above over all samples of one operator, with the kernel under test and the reference kernel.
Report CheckOperator(const OpDef& def, const MakeKernel& reference, const MakeKernel& make,
                     const CheckOptions& options);

// --- Definitions ---

inline void Report::Fail(const std::string& text) {
  ++failed;
  if (failures.size() < 4) failures.push_back(text);
}

inline void Report::Merge(const Report& other) {
  cases += other.cases;
  refused += other.refused;
  rough += other.rough;
  failed += other.failed;
  failed_types.insert(other.failed_types.begin(), other.failed_types.end());
  failed_as_given += other.failed_as_given;
  for (const std::string& f : other.failures) {
    if (failures.size() < 4) failures.push_back(f);
  }
}

inline std::string Report::str() const {
  std::string text = Cat(failed, " of ", cases, " cases failed (seed ", kSeed, "); the first:\n");
  for (const std::string& f : failures) text += "  " + f + "\n";
  return text;
}

inline std::string OracleMesh::str() const {
  std::string text;
  for (size_t a = 0; a < sizes.size(); ++a)
    text += Cat(a ? "x" : "", time && a == 0 ? "time " : "", sizes[a]);
  return text;
}

inline TensorArg ArgOf(const Value& value, const Dims& global, const Box& box) {
  return {value.data(), value.dtype(), global, box.begin, box.extent};
}

inline TensorArg WholeArg(const Value& value) {
  return ArgOf(value, value.shape(), Box::Whole(value.shape()));
}

inline Status RunKernel(const OpDef& def, const KernelSpec& spec, Kernel* kernel,
                        const std::vector<TensorArg>& in, const std::vector<TensorArg>& out, int64_t time,
                        int64_t times) {
  if (kernel == nullptr) {
    std::memcpy(out[0].data, in[0].data, in[0].elements() * SizeOf(in[0].dtype));
    return Status();
  }
  Value scratch(DType::kUInt8, Dims{def.scratch ? def.scratch(spec) : 0});
  scratch.Poison();
  Status status = kernel->Run({spec, in, out, scratch.data(), /*step=*/3, time, times, /*seed=*/11});
  if (!scratch.GuardIntact()) return Status("wrote behind its scratch");
  return status;
}

inline bool IsBareView(const OpDef& def) { return def.view && def.reference == nullptr; }

inline MakeKernel ReferenceOf(const OpDef& def) {
  if (IsBareView(def)) return [](const KernelSpec&) { return nullptr; };
  return ReferenceKernel(def);
}

inline KernelSpec SpecOf(const OpDef& def, const Attrs& attrs, std::vector<TensorArg> in,
                         std::vector<TensorArg> out) {
  for (TensorArg& arg : in) arg.data = nullptr;
  for (TensorArg& arg : out) arg.data = nullptr;
  return {def.name, attrs, std::move(in), std::move(out), def.name, {}};
}

inline Status RunWhole(const OpDef& def, const Attrs& attrs, const std::vector<Value>& in,
                       std::vector<Value>* out, const MakeKernel& make) {
  std::vector<TensorArg> in_args, out_args;
  for (const Value& v : in) in_args.push_back(WholeArg(v));
  for (Value& v : *out) {
    v.Poison();
    out_args.push_back(WholeArg(v));
  }
  KernelSpec spec = SpecOf(def, attrs, in_args, out_args);
  std::unique_ptr<Kernel> kernel = IsBareView(def) ? nullptr : make(spec);
  return RunKernel(def, spec, kernel.get(), in_args, out_args, 0, 1);
}

inline Value DrawInput(DType dtype, const Dims& shape, const Sample& sample, bool coarse, Draws* draws) {
  Value value(dtype, shape);
  for (int64_t i = 0; i < value.elements(); ++i) {
    double u = draws->Uniform();
    if (IsFloating(dtype)) {
      if (coarse) u = std::floor(u * 8) / 8;
      value.Set(i, sample.low + (sample.high - sample.low) * u);
    } else {
      value.Set(i, std::floor(u * (dtype == DType::kBool ? 2 : sample.limit)));
    }
  }
  return value;
}

inline Trial MakeTrial(const OpDef& def, const Sample& sample, const MakeKernel& reference, bool coarse) {
  Trial trial{&def, sample, SampleText(def, sample), {}, {}, {}, {}, {}};
  Inferred inferred = InferSample(def, sample);
  trial.rule = inferred.rule;
  trial.out_dtypes = inferred.dtypes;
  if (def.random && !sample.attrs.Has("key")) {
    trial.sample.attrs.Set("key", static_cast<int64_t>(HashName(def.name) >> 1));
  }
  std::vector<DType> types = InputTypes(sample);
  if (def.composed && IsFloating(types[0])) trial.partial = types[0];  // between its inner kernels
  Draws draws(kSeed ^ HashName(trial.text));
  for (size_t i = 0; i < sample.in.size(); ++i) {
    trial.in.push_back(DrawInput(types[i], sample.in[i], sample, coarse, &draws));
  }
  for (size_t o = 0; o < trial.rule.out.size(); ++o)
    trial.out.emplace_back(trial.out_dtypes[o], trial.rule.out[o].shape);
  trial.status = RunWhole(def, trial.sample.attrs, trial.in, &trial.out, reference);
  return trial;
}

// f32: 2e-5 relative and absolute, for other orders of summation; 16-bit types: some roundings more or less,
// of partial results too, each by a share of its own `magnitude`. Integers and flags are equal.
inline double Tolerance(DType dtype, double want, double magnitude) {
  if (dtype == DType::kFloat32) return 2e-5 * (1 + std::fabs(want));
  const double rounded = std::max(std::fabs(want), magnitude);
  if (dtype == DType::kBFloat16) return 0x1p-6 * (1 + rounded);
  if (dtype == DType::kFloat16) return 0x1p-9 * (1 + rounded);
  return 0;
}

inline bool Compare(const std::string& what, const Value& got, const Value& want, bool exact, Report* report,
                    DType partial, const std::vector<double>& magnitudes) {
  const bool floats = IsFloating(want.dtype());
  for (int64_t i = 0; i < want.elements(); ++i) {
    double g = got.Get(i), w = want.Get(i), magnitude = magnitudes.empty() ? 0 : magnitudes[i];
    bool same = g == w || (std::isnan(g) && std::isnan(w)) ||
                (!exact && std::isfinite(w) &&
                 std::fabs(g - w) <= std::max(Tolerance(want.dtype(), w, magnitude),
                                              floats ? Tolerance(partial, w, magnitude) : 0));
    if (same && ((std::isfinite(g) && IsFloating(got.dtype())) || !got.Poisoned(i))) continue;
    report->Fail(Cat(got.Poisoned(i) ? "unwritten: " : "value: ", what, " element ", i, " of ",
                     want.shape().str(), " is ", g, ", whole it is ", w));
    return false;
  }
  return true;
}

// Values whose sum is the given one: for f32 any numbers in [-spread, spread), small integers for integers,
// exact multiples for 16-bit types.
inline std::vector<Value> Decompose(const Value& whole, int parts, double spread, Draws* draws) {
  std::vector<Value> terms(parts, Value(whole.dtype(), whole.shape()));
  bool narrow = SizeOf(whole.dtype()) == 2;
  for (int64_t i = 0; i < whole.elements(); ++i) {
    double left = whole.Get(i);
    for (int p = 0; p + 1 < parts; ++p) {
      double part = narrow ? (p == 0  ? 2
                              : p % 2 ? -1
                                      : 1) *
                                 whole.Get(i)
                    : IsFloating(whole.dtype()) ? spread * (draws->Uniform() * 2 - 1)
                                                : draws->Below(9) - 4;
      terms[p].Set(i, part);
      left -= terms[p].Get(i);
    }
    terms[parts - 1].Set(i, left);
  }
  return terms;
}

inline Value Crop(const Value& whole, const Box& box) {
  Value piece(whole.dtype(), box.extent);
  if (!box.empty())
    CopyBox(whole.dtype(), box, {whole.data(), Box::Whole(whole.shape())}, {piece.data(), box});
  return piece;
}

// The layout of one operand over the mesh, with its pieces per member.
struct Cutting {
  NdSbp sbp;
  std::vector<Box> boxes;     // per member
  std::vector<Value> pieces;  // per member
};

inline std::vector<int> CoordsOf(int member, const std::vector<int>& sizes) {
  std::vector<int> coords(sizes.size());
  for (int a = static_cast<int>(sizes.size()) - 1; a >= 0; --a) {
    coords[a] = member % sizes[a];
    member /= sizes[a];
  }
  return coords;
}

// Row-major index over the axes whose Sbp is Partial, and the member with 0 on the axes whose Sbp is
// Broadcast.
inline int PartialIndex(const NdSbp& sbp, const std::vector<int>& sizes, const std::vector<int>& coords) {
  int index = 0;
  for (size_t a = 0; a < sbp.size(); ++a) {
    if (sbp[a].is_partial()) index = index * sizes[a] + coords[a];
  }
  return index;
}
inline int FirstCopy(const NdSbp& sbp, const std::vector<int>& sizes, const std::vector<int>& coords) {
  int member = 0;
  for (size_t a = 0; a < sbp.size(); ++a)
    member = member * sizes[a] + (sbp[a].is_broadcast() ? 0 : coords[a]);
  return member;
}
inline int Members(const std::vector<int>& sizes) {
  int n = 1;
  for (int s : sizes) n *= s;
  return n;
}
inline int PartialCount(const NdSbp& sbp, const std::vector<int>& sizes) {
  int n = 1;
  for (size_t a = 0; a < sbp.size(); ++a) n *= sbp[a].is_partial() ? sizes[a] : 1;
  return n;
}

inline Cutting CutInput(const Value& whole, const NdSbp& sbp, const std::vector<int>& sizes, double spread,
                        Draws* draws) {
  Cutting cut{sbp, {}, {}};
  int count = PartialCount(sbp, sizes);
  std::vector<Value> terms;
  if (count > 1) terms = Decompose(whole, count, spread, draws);
  for (int m = 0; m < Members(sizes); ++m) {
    std::vector<int> coords = CoordsOf(m, sizes);
    cut.boxes.push_back(LocalBox(whole.shape(), sbp, sizes, coords));
    cut.pieces.push_back(Crop(count > 1 ? terms[PartialIndex(sbp, sizes, coords)] : whole, cut.boxes[m]));
  }
  return cut;
}

// Puts an output together again: copies must be equal, parts are placed, partial values folded in member
// order. Of partial sums, `magnitudes` are the sums of their absolute values, by element.
inline bool Assemble(const std::string& what, const Cutting& cut, const std::vector<int>& sizes, Value* whole,
                     std::vector<double>* magnitudes, Report* report) {
  Reduce fold = Reduce::kNone;
  for (const Sbp& s : cut.sbp) {
    if (!s.is_partial()) continue;
    if (fold != Reduce::kNone && fold != s.fold) {
      report->Fail(Cat("signature: ", what, " folds by ", Name(fold), " and by ", Name(s.fold)));
      return false;
    }
    fold = s.fold;
  }
  int count = PartialCount(cut.sbp, sizes);
  std::vector<Value> terms(count, *whole);
  int64_t covered = 0;
  for (int m = 0; m < Members(sizes); ++m) {
    std::vector<int> coords = CoordsOf(m, sizes);
    const Value& piece = cut.pieces[m];
    int first = FirstCopy(cut.sbp, sizes, coords);
    if (first != m) {
      const Value& other = cut.pieces[first];
      for (int64_t i = 0; i < piece.elements(); ++i) {
        size_t size = SizeOf(piece.dtype());
        if (std::memcmp(piece.data() + i * size, other.data() + i * size, size) == 0) continue;
        report->Fail(Cat("copies: ", what, " element ", i, " of a broadcast piece is ", piece.Get(i),
                         " on rank ", m, " but ", other.Get(i), " on rank ", first));
        return false;
      }
      continue;
    }
    int term = PartialIndex(cut.sbp, sizes, coords);
    if (term == 0) covered += piece.elements();
    if (piece.elements() > 0) {
      CopyBox(piece.dtype(), cut.boxes[m], {piece.data(), cut.boxes[m]},
              {terms[term].data(), Box::Whole(whole->shape())});
    }
  }
  if (covered != whole->elements()) {
    report->Fail(Cat("signature: ", what, " pieces hold ", covered, " of ", whole->elements(), " elements"));
    return false;
  }
  if (count == 1) {
    *whole = std::move(terms[0]);
    return true;
  }
  if (fold == Reduce::kSum) {
    magnitudes->assign(whole->elements(), 0);
    for (const Value& term : terms)
      for (int64_t i = 0; i < term.elements(); ++i) (*magnitudes)[i] += std::fabs(term.Get(i));
  }
  Box box = Box::Whole(whole->shape());
  std::vector<Piece> from;
  for (Value& term : terms) from.push_back({term.data(), box});
  Piece to{whole->data(), box};
  if (!box.empty()) CombineBox(whole->dtype(), fold, box, from.data(), count, &to, 1);
  return true;
}

inline std::string CutText(const Trial& trial, const OracleMesh& mesh,
                           const std::vector<Signature>& signatures) {
  std::string text = Cat(trial.text, " {");
  for (size_t a = 0; a < signatures.size(); ++a) text += Cat(a ? ", " : "", signatures[a].str());
  return Cat(text, "} on ", mesh.str());
}

// The whole run writes element by element what its parts write, unless it sums in between: then no bits are
// promised.
inline bool DrawsOnly(const Trial& trial, const std::vector<Cutting>& in, const std::vector<Cutting>& out) {
  if (!trial.def->random) return false;
  for (const std::vector<Cutting>* side : {&in, &out}) {
    for (const Cutting& c : *side) {
      for (const Sbp& s : c.sbp) {
        if (s.is_partial()) return false;
      }
    }
  }
  return !trial.out.empty() && trial.rule.Volume() == trial.out[0].elements();
}

// What a member's run left behind that it should not have; empty when all is well.
inline std::string Trouble(const Status& status, const std::vector<Cutting>& in,
                           const std::vector<Cutting>& out, int m) {
  if (!status.ok()) return Cat("error: rank ", m, ": ", status.message());
  for (const Cutting& c : in) {
    if (!c.pieces[m].GuardIntact()) return Cat("error: rank ", m, " wrote behind an input");
  }
  for (const Cutting& c : out) {
    if (!c.pieces[m].GuardIntact()) return Cat("error: rank ", m, " wrote behind an output");
    if (const int64_t i = c.pieces[m].FirstPoisoned(); i < c.pieces[m].elements())
      return Cat("unwritten: rank ", m, " element ", i, " of ", c.pieces[m].shape().str());
  }
  return "";
}

// Runs all members; members of one mesh place share a kernel made for their first act. False after a failure.
inline bool RunMembers(const std::string& what, const Trial& trial, const MakeKernel& make,
                       const OracleMesh& mesh, std::vector<Cutting>* in, std::vector<Cutting>* out,
                       Report* report) {
  const OpDef& def = *trial.def;
  int members = Members(mesh.sizes), times = mesh.time ? mesh.sizes[0] : 1, places = members / times;
  std::vector<KernelSpec> specs;
  std::vector<std::unique_ptr<Kernel>> kernels;
  for (int m = 0; m < members; ++m) {
    std::vector<TensorArg> in_args, out_args;
    for (size_t i = 0; i < in->size(); ++i) {
      in_args.push_back(ArgOf((*in)[i].pieces[m], trial.in[i].shape(), (*in)[i].boxes[m]));
    }
    for (size_t o = 0; o < out->size(); ++o) {
      (*out)[o].pieces[m].Poison();
      out_args.push_back(ArgOf((*out)[o].pieces[m], trial.out[o].shape(), (*out)[o].boxes[m]));
    }
    for (auto [o, i] : def.inplace) {  // an update: both ends are the variable's own memory
      std::memcpy(out_args[o].data, in_args[i].data, (*out)[o].pieces[m].bytes());
      in_args[i].data = out_args[o].data;
    }
    if (m < places) {
      specs.push_back(SpecOf(def, trial.sample.attrs, in_args, out_args));
      kernels.push_back(IsBareView(def) ? nullptr : make(specs.back()));
    }
    if (def.view && in_args[0].elements() != out_args[0].elements()) {
      report->Fail(Cat("signature: ", what, " is a view, but holds ", in_args[0].elements(), " and ",
                       out_args[0].elements(), " elements on rank ", m));
      return false;
    }
    int place = m % places;
    Status status = RunKernel(def, specs[place], kernels[place].get(), in_args, out_args, m / places, times);
    std::string trouble = Trouble(status, *in, *out, m);
    if (!trouble.empty()) {
      report->Fail(Cat(trouble, " in ", what));
      return false;
    }
  }
  return true;
}

inline void RunCut(const Trial& trial, const std::vector<Value>& whole, const MakeKernel& make,
                   const OracleMesh& mesh, const std::vector<Signature>& signatures, Report* report) {
  ++report->cases;
  std::string what = CutText(trial, mesh, signatures);
  Draws draws(kSeed ^ HashName(what));
  auto nd = [&](bool output, size_t operand) {
    NdSbp sbp;
    for (const Signature& s : signatures) sbp.push_back((output ? s.out : s.in).at(operand));
    return sbp;
  };
  std::vector<Cutting> in, out;
  // An operator that rounds must not carry partial values: terms much larger than their sum show when one
  // does.
  bool narrows = false, carries = false;
  for (size_t i = 0; i < trial.in.size(); ++i) {
    DType dtype = trial.in[i].dtype();
    for (DType out : trial.out_dtypes) {
      if (!IsFloating(dtype) || SizeOf(out) >= SizeOf(dtype)) continue;
      narrows = true;
      for (const Signature& s : signatures) carries |= s.in.at(i).is_partial();
    }
  }
  for (size_t i = 0; i < trial.in.size(); ++i) {
    in.push_back(CutInput(trial.in[i], nd(false, i), mesh.sizes, narrows ? 64 : 3, &draws));
  }
  for (size_t o = 0; o < trial.out.size(); ++o) {
    Cutting cut{nd(true, o), {}, {}};
    for (int m = 0; m < Members(mesh.sizes); ++m) {
      cut.boxes.push_back(LocalBox(trial.out[o].shape(), cut.sbp, mesh.sizes, CoordsOf(m, mesh.sizes)));
      cut.pieces.emplace_back(trial.out_dtypes[o], cut.boxes[m].extent);
    }
    out.push_back(std::move(cut));
  }
  for (auto [o, i] : trial.def->inplace) {
    if (out[o].sbp != in[i].sbp) {
      report->Fail(Cat("signature: ", what, " output ", o, " does not lie like the variable it replaces"));
      return;
    }
  }
  if (!RunMembers(what, trial, make, mesh, &in, &out, report)) return;
  bool exact = DrawsOnly(trial, in, out);
  for (size_t o = 0; o < out.size(); ++o) {
    Value got(trial.out_dtypes[o], trial.out[o].shape());
    got.Poison();
    std::string name = Cat(what, " output ", o);
    std::vector<double> magnitudes;
    if (!Assemble(name, out[o], mesh.sizes, &got, &magnitudes, report)) return;
    if (carries) magnitudes.clear();  // its roundings must not be larger than the result's
    if (!Compare(name, got, exact ? whole[o] : trial.out[o], exact, report, trial.partial, magnitudes))
      return;
  }
}

inline std::vector<Signature> PlainSignatures(const BoundRule& rule, const std::set<int64_t>& grains,
                                              int64_t parts) {
  std::vector<Signature> plain;
  for (Signature& s : Signatures(rule, std::vector<std::set<int64_t>>(rule.in.size(), grains), parts)) {
    if (!s.expanded) plain.push_back(std::move(s));
  }
  return plain;
}

// All pairs of signatures, or `most` drawn ones. A label that both mesh axes cut is cut with one grain: cuts
// with two grains nest, but a grain that Canonical found without effect may have one inside a cut by the
// other.
inline void RunPairs(const Trial& trial, const std::vector<Value>& whole, const MakeKernel& make,
                     const OracleMesh& mesh, const std::set<int64_t>& grains, int64_t most, Report* report) {
  std::vector<Signature> s = PlainSignatures(trial.rule, grains, Members(mesh.sizes));
  int64_t n = static_cast<int64_t>(s.size()), pairs = n * n;
  Draws draws(kSeed ^ HashName(trial.text + mesh.str()));
  for (int64_t k = 0; k < std::min(pairs, most); ++k) {
    int64_t pair = pairs <= most ? k : draws.Below(pairs);
    const Signature &outer = s[pair / n], &inner = s[pair % n];
    if (!outer.label.empty() && outer.label == inner.label && !(outer == inner)) continue;
    RunCut(trial, whole, make, mesh, {outer, inner}, report);
  }
}

inline Report CheckTrial(const Trial& trial, const MakeKernel& make, bool base, const CheckOptions& options) {
  Report report;
  std::vector<Value> whole;
  for (const Value& v : trial.out) whole.emplace_back(v.dtype(), v.shape());
  Status status = RunWhole(*trial.def, trial.sample.attrs, trial.in, &whole, make);
  if (!status.ok()) {
    report.Fail(Cat("error: ", trial.text, ": ", status.message()));
    return report;
  }
  ++report.cases;
  for (size_t o = 0; o < whole.size(); ++o) {
    if (!Compare(Cat(trial.text, " on one device, output ", o), whole[o], trial.out[o], false, &report,
                 trial.partial))
      return report;
  }
  std::set<int64_t> grains = base ? std::set<int64_t>{1, 2, 3} : std::set<int64_t>{1, 2};
  Draws draws(kSeed ^ HashName(trial.text));
  for (int size : {2, 3}) {
    const std::vector<Signature> s = PlainSignatures(trial.rule, grains, size);
    const int64_t all = static_cast<int64_t>(s.size()),
                  tried = base ? all : std::min<int64_t>(all, options.cuts_of_variant);
    for (int64_t k = 0; k < tried; ++k)
      RunCut(trial, whole, make, {{size}, false}, {s[tried == all ? k : draws.Below(all)]}, &report);
  }
  int64_t most = base ? options.most_pairs : options.pairs_of_variant;
  RunPairs(trial, whole, make, {{2, 2}, false}, grains, most, &report);
  if (!trial.def->each_micro_batch)  // of which each act has a result of its own
    RunPairs(trial, whole, make, {{3, 2}, true}, grains, most / 4, &report);
  return report;
}

inline Report CheckOperator(const OpDef& def, const MakeKernel& reference, const MakeKernel& make,
                            const CheckOptions& options) {
  struct Varied {
    const Sample* of;
    size_t number;  // 0: as it is
    Sample sample;
  };
  Report report;
  std::vector<Varied> all;
  const auto fail = [&](const Sample& sample, const std::exception& error) {
    report.Fail(Cat("error: ", SampleText(def, sample), " threw ", error.what()));
  };
  for (const Sample& sample : def.samples) {
    try {
      std::vector<Sample> samples = options.vary ? Vary(def, sample) : std::vector<Sample>{sample};
      for (size_t v = 0; v < samples.size(); ++v)
        if (options.every_type || &sample == &def.samples[0] || InputTypes(samples[v]) == InputTypes(sample))
          all.push_back({&sample, v, std::move(samples[v])});
    } catch (const std::exception& error) {
      fail(sample, error);
    }
  }
  if (options.draws) {
    Draws draws(*options.draws ^ HashName(def.name));
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[draws.Below(static_cast<int64_t>(i))]);
  }
  for (const Varied& varied : all) {
    try {
      // Every second one is drawn with ties.
      Trial trial = MakeTrial(def, varied.sample, reference, varied.number % 2 == 1);
      if (!trial.status.ok()) {
        ++report.refused;
        if (varied.number == 0) report.Fail(Cat("error: ", trial.text, ": ", trial.status.message()));
        continue;
      }
      Report of_one = CheckTrial(trial, make, varied.number == 0, options);
      std::set<DType> given, tried;
      for (DType type : InputTypes(*varied.of)) given.insert(type);
      for (DType type : InputTypes(varied.sample))
        if (!given.count(type)) tried.insert(type);
      if (tried.empty()) of_one.failed_as_given = of_one.failed;
      if (of_one.failed > 0) of_one.failed_types = tried;
      report.Merge(of_one);
      if (options.enough && options.enough()) break;
    } catch (const std::exception& error) {
      fail(varied.sample, error);
    }
  }
  return report;
}

}  // namespace oneflow_like::oracle
