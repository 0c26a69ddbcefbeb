// A tile is some rows and some classes of the logits, and a list of steps, each a kernel with its operands:
// what these have of the tile's rows or classes, or its logits. There are two lists, of a whole tile and of
// what is left for the last one, so that kernels which keep objects for their extents make them once.
//
// Losses and statistics need whole rows: tiles of rows. The gradient of w goes by classes instead, of all
// rows: then each of its elements is written once, by one product over all rows, and that of x, which is
// smaller, is added up over tiles; in fp32, so 16-bit types have a sum in scratch, where it is at most half
// of it.
#include "ops/logit_tiles.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "core/device/scratch.h"
#include "ops/equation.h"
#include "ops/tf32.h"

namespace oneflow_like {
namespace {

constexpr size_t kMostOperands = 6;

int64_t RowsOfX(const TensorArg& arg) {
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < arg.extent.rank(); ++axis) rows *= arg.extent[axis];
  return rows;
}

}  // namespace

struct LogitTiles::Impl {
  // Rows and classes of what this rank holds.
  struct Tile {
    int64_t first_row = 0, rows = 0, first_class = 0, classes = 0;
  };

  // An operand of a step.
  struct TileOperand {
    enum Kind : uint8_t {
      kRows,     // the tile's of an operand or result of the whole
      kClasses,  // the same: of w or its gradient
      kWhole,    // all of it
      kLogits,
      kSum  // of the gradient of x, in fp32
    } kind = kLogits;
    bool out = false;  // a result of the whole
    size_t number = 0;
  };
  static TileOperand RowsOfInput(size_t number) { return {TileOperand::kRows, false, number}; }
  static TileOperand RowsOfResult(size_t number) { return {TileOperand::kRows, true, number}; }
  static TileOperand ClassesOfW() { return {TileOperand::kClasses, false, 1}; }
  static TileOperand ClassesOfResult(size_t number) { return {TileOperand::kClasses, true, number}; }

  struct TileStep {
    KernelSpec spec;
    std::unique_ptr<Kernel> kernel;
    std::vector<TileOperand> in, out;
    // A sum over tiles is made by two kernels: one for the first tile, one that adds.
    enum Turn : uint8_t { kEach, kFirst, kLater, kLast } turn = kEach;
  };

  Impl(const KernelSpec& of, const InnerKernels& kernels) : spec(of) {
    const int64_t rows = RowsOfX(spec.in[0]), classes = spec.in[1].extent[0];
    ChooseSize(rows, classes, kernels);
    Tile tile = {0, rows, 0, classes};
    int64_t& cut = by_classes ? tile.classes : tile.rows;
    const int64_t left = cut % size;
    cut = std::min(cut, size);
    logit_bytes = tile.rows * tile.classes * Size();
    lists[0] = StepsFor(tile);
    cut = left;
    if (left != 0 && !lists[0].empty()) lists[1] = StepsFor(tile);
  }

  // --- Before it runs ---

  int64_t Size() const { return static_cast<int64_t>(SizeOf(spec.in[0].dtype)); }
  bool Wants(const char* gradient) const { return spec.attrs.Int(gradient, 0) != 0; }

  // As many rows as "tile", or somewhat fewer, so that logits and the scratch of products together take no
  // more than logits of so many rows in fp32; or as many classes of all rows. Eights of either begin at
  // multiples of 16 bytes, as libraries want.
  void ChooseSize(int64_t rows, int64_t classes, const InnerKernels& kernels) {
    const int64_t tile = spec.attrs.Int("tile"), room = tile * classes * 4;
    const bool narrow = spec.in[0].dtype != DType::kFloat32, sums = narrow && Wants("dx");
    const int64_t of_sum = sums ? rows * spec.in[0].extent.back() * 4 : 0;
    by_classes = Wants("dw") && rows > tile && 8 * rows <= tile * classes && of_sum <= room / 2;
    sum_bytes = by_classes ? of_sum : 0;
    const int64_t most = by_classes ? tile * classes / rows : tile,
                  each = (by_classes ? rows : classes) * Size();
    const std::vector<TileStep> steps =
        StepsFor(by_classes ? Tile{0, rows, 0, most} : Tile{0, tile, 0, classes});
    const int64_t fitting =
        (room - sum_bytes - InnerBytes(steps, kernels) - 4 * kDeviceBytes) / std::max<int64_t>(1, each);
    size = std::max<int64_t>(8, std::clamp(fitting, (most + 1) / 2, most) / 8 * 8);
  }

  std::vector<TileStep> StepsFor(const Tile& tile) const {
    std::vector<TileStep> steps;
    Add(&steps, tile, "einsum", {{"equation", "tk,ck->tc"}}, {RowsOfInput(0), ClassesOfW()}, {{}});
    if (spec.name == "linear_cross_entropy") {
      Add(&steps, tile, "cross_entropy", {}, {{}, RowsOfInput(2)}, {RowsOfResult(0), RowsOfResult(1)});
    } else if (spec.name == "linear_class_statistics") {
      Add(&steps, tile, "class_statistics", {}, {{}, RowsOfInput(2)},
          {RowsOfResult(0), RowsOfResult(1), RowsOfResult(2)});
    } else if (spec.name == "linear_cross_entropy_sum") {
      AddSum(&steps, tile);
    } else {
      std::vector<TileOperand> in = {{}};
      for (size_t i = 2; i < spec.in.size(); ++i) in.push_back(RowsOfInput(i));
      AddGradient(&steps, tile, in, Wants("dw") ? 0 : -1, !Wants("dx") ? -1 : Wants("dw") ? 1 : 0);
    }
    return steps;
  }

  // Results total, loss, lse; dw and dx.
  void AddSum(std::vector<TileStep>* steps, const Tile& tile) const {
    Add(steps, tile, "cross_entropy", {}, {{}, RowsOfInput(2)}, {RowsOfResult(1), RowsOfResult(2)});
    AddTotal(steps, tile, "t,t->", RowsOfResult(1), RowsOfInput(3), {TileOperand::kWhole, true, 0});
    if (spec.out.size() > 3)
      AddGradient(steps, tile, {{}, RowsOfInput(2), RowsOfResult(2), RowsOfInput(3)}, 3, 4);
  }

  // `in`: operands of cross_entropy_grad; `dw`, `dx`: numbers of results, -1: not wanted. What is over the
  // axis that tiles cut is added up over them; over micro-batches, dw alone.
  void AddGradient(std::vector<TileStep>* steps, const Tile& tile, const std::vector<TileOperand>& in, int dw,
                   int dx) const {
    const char *const over_rows = "tc,tk->ck", *const over_classes = "tc,ck->tk";
    Add(steps, tile, "cross_entropy_grad", {}, in, {{}});
    const TileOperand to_w = ClassesOfResult(static_cast<size_t>(dw)),
                      to_x = RowsOfResult(static_cast<size_t>(dx)),
                      sum = sum_bytes > 0 ? TileOperand{TileOperand::kSum, false, 0} : to_x;
    if (dw >= 0 && by_classes) {
      Attrs attrs = {{"equation", over_rows}};
      if (Accumulates(spec.attrs)) attrs.Set(kAccumulates, int64_t{1});
      Add(steps, tile, "einsum", attrs, {{}, RowsOfInput(0)}, {to_w});
    } else if (dw >= 0) {
      AddTotal(steps, tile, over_rows, {}, RowsOfInput(0), to_w, Accumulates(spec.attrs));
    }
    if (dx >= 0 && by_classes) {
      AddTotal(steps, tile, over_classes, {}, ClassesOfW(), sum);
      if (sum_bytes > 0)
        Add(steps, tile, "cast", {{"dtype", std::string(Name(spec.in[0].dtype))}}, {sum}, {to_x},
            TileStep::kLast);
    } else if (dx >= 0) {
      Add(steps, tile, "einsum", {{"equation", over_classes}}, {{}, ClassesOfW()}, {to_x});
    }
  }

  // A product that is added up tile by tile, and act by act if it is over time.
  void AddTotal(std::vector<TileStep>* steps, const Tile& tile, const std::string& equation, TileOperand a,
                TileOperand b, TileOperand result, bool over_time = false) const {
    const Attrs replaces = {{"equation", equation}},
                adds = {{"equation", equation}, {kAccumulates, int64_t{1}}};
    Add(steps, tile, "einsum", over_time ? adds : replaces, {a, b}, {result}, TileStep::kFirst);
    Add(steps, tile, "einsum", adds, {a, b}, {result}, TileStep::kLater);
  }

  void Add(std::vector<TileStep>* steps, const Tile& tile, const std::string& name, const Attrs& attrs,
           const std::vector<TileOperand>& in, const std::vector<TileOperand>& out,
           TileStep::Turn turn = TileStep::kEach) const {
    TileStep step;
    step.spec.name = name;
    step.spec.attrs = attrs;
    if (spec.attrs.Has(kTf32)) step.spec.attrs.Set(kTf32, spec.attrs.Int(kTf32));
    step.spec.node = spec.node;
    step.spec.line = spec.line;
    step.spec.threads = spec.threads;
    step.in = in;
    step.out = out;
    step.turn = turn;
    for (const TileOperand& operand : in) step.spec.in.push_back(ArgOf(operand, spec.in, spec.out, tile, {}));
    for (const TileOperand& operand : out)
      step.spec.out.push_back(ArgOf(operand, spec.in, spec.out, tile, {}));
    steps->push_back(std::move(step));
  }

  static int64_t InnerBytes(const std::vector<TileStep>& steps, const InnerKernels& kernels) {
    int64_t bytes = 0;
    for (const TileStep& step : steps) bytes = std::max(bytes, kernels.scratch(step.spec));
    return bytes;
  }

  // --- Each act ---

  struct Places {
    void *logits = nullptr, *sum = nullptr, *inner = nullptr;
  };
  Places Divide(oneflow_like::Scratch scratch, int64_t* bytes = nullptr) const {
    scratch.Take<char>(kDeviceBytes);
    Places places;
    places.logits = scratch.Take<char>(logit_bytes);
    places.sum = scratch.Take<char>(sum_bytes);
    places.inner = scratch.Take<char>(0);
    if (bytes != nullptr) *bytes = scratch.bytes();
    return places;
  }

  TensorArg ArgOf(const TileOperand& operand, std::span<const TensorArg> in, std::span<const TensorArg> out,
                  const Tile& tile, const Places& places) const {
    const TensorArg &x = in[0], &w = in[1];
    if (operand.kind == TileOperand::kLogits)
      return {places.logits,
              x.dtype,
              {tile.rows, w.global[0]},
              {0, w.begin[0] + tile.first_class},
              {tile.rows, tile.classes}};
    if (operand.kind == TileOperand::kSum) {
      const Dims shape = {tile.rows, x.extent.back()};
      return {places.sum, DType::kFloat32, shape, {0, 0}, shape};
    }
    const TensorArg& whole = (operand.out ? out : in)[operand.number];
    if (operand.kind == TileOperand::kWhole) return whole;
    const bool classes = operand.kind == TileOperand::kClasses;
    // A row of the losses and their like is a number, without an axis behind those of the rows.
    const bool has_width = classes || whole.extent.rank() == x.extent.rank();
    const int64_t some = classes ? tile.classes : tile.rows, width = has_width ? whole.extent.back() : 1;
    TensorArg arg = {whole.data, whole.dtype, {some}, {0}, {some}};
    if (has_width) {
      arg.global.push_back(whole.global.back());
      arg.begin.push_back(whole.begin.back());
      arg.extent.push_back(width);
    }
    if (arg.data != nullptr)
      arg.data = static_cast<char*>(arg.data) + (classes ? tile.first_class : tile.first_row) * width *
                                                    static_cast<int64_t>(SizeOf(arg.dtype));
    return arg;
  }

  Status RunTile(const KernelContext& context, TileDevice* device, std::vector<TileStep>& steps,
                 const Tile& tile, bool first, bool last) {
    const Places places = Divide(oneflow_like::Scratch(context.scratch));
    for (auto& step : steps) {
      if (step.turn == TileStep::kFirst && !first) continue;
      if (step.turn == TileStep::kLater && first) continue;
      if (step.turn == TileStep::kLast && !last) continue;
      std::array<TensorArg, kMostOperands> in, out;
      for (size_t i = 0; i < step.in.size(); ++i)
        in[i] = ArgOf(step.in[i], context.in, context.out, tile, places);
      for (size_t i = 0; i < step.out.size(); ++i)
        out[i] = ArgOf(step.out[i], context.in, context.out, tile, places);
      const KernelContext of_step = {step.spec,
                                     {in.data(), step.in.size()},
                                     {out.data(), step.out.size()},
                                     places.inner,
                                     context.step,
                                     context.time,
                                     context.times,
                                     context.seed};
      if (Status status = device->Run(step.kernel.get(), of_step, step.turn == TileStep::kLater);
          !status.ok())
        return status;
    }
    return Status();
  }

  const KernelSpec& spec;   // while it is made
  bool by_classes = false;  // tiles are some classes of all rows, else some rows of all classes
  int64_t size = 8;         // of them
  int64_t logit_bytes = 0, sum_bytes = 0;
  std::array<std::vector<TileStep>, 2> lists;  // of a whole tile, of the last one
};

LogitTiles::LogitTiles(const KernelSpec& spec, const InnerKernels& kernels)
    : impl_(std::make_unique<Impl>(spec, kernels)) {
  for (auto& steps : impl_->lists)
    for (auto& step : steps) step.kernel = kernels.make(step.spec);
}
LogitTiles::~LogitTiles() = default;

std::vector<Kernel*> LogitTiles::kernels() const {
  std::vector<Kernel*> all;
  for (const auto& steps : impl_->lists)
    for (const auto& step : steps) all.push_back(step.kernel.get());
  return all;
}

int64_t LogitTiles::Scratch(const KernelSpec& spec, const InnerKernels& kernels) {
  const Impl impl(spec, kernels);
  int64_t bytes = 0, inner = 0;
  impl.Divide(oneflow_like::Scratch(), &bytes);
  for (const auto& steps : impl.lists) inner = std::max(inner, Impl::InnerBytes(steps, kernels));
  return bytes + (inner + 63) / 64 * 64;
}

// Without rows, or classes, there is one tile of none: sums are then 0.
Status LogitTiles::Run(const KernelContext& context, TileDevice* device) {
  Impl::Tile tile = {0, RowsOfX(context.in[0]), 0, context.in[1].extent[0]};
  int64_t& first = impl_->by_classes ? tile.first_class : tile.first_row;
  int64_t& some = impl_->by_classes ? tile.classes : tile.rows;
  const int64_t all = some, each = impl_->size;
  do {
    some = std::min(each, all - first);
    auto& steps = impl_->lists[some == each || impl_->lists[1].empty() ? 0 : 1];
    if (Status status = impl_->RunTile(context, device, steps, tile, first == 0, first + some >= all);
        !status.ok())
      return status;
    first += each;
  } while (first < all);
  return Status();
}

}  // namespace oneflow_like
