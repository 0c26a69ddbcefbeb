// conv2d and its gradients as oneDNN primitives. Activations stay as they lie, channels last; the filter is
// brought into the order that the primitive prefers in every act, which takes a few percent of the act where
// there are few positions to a filter and nothing elsewhere. The gradient of a filter comes back the same
// way. A primitive is made with the kernel, for its number of threads, and again where an act brings other
// extents. It works in the kernel's scratch: where the library wants more than was stated for it (which
// follows from the shape alone, whatever the processor), the convolution goes by PatchProduct instead.
//
// bf16 operands are multiplied as they are where the machine does so faster than in fp32; other operands of
// 16-bit types go by PatchProduct, and those with few channels (a picture's colours, depthwise convolutions),
// whose products would be narrow, by the library in fp32, widened an image or some of its groups at a time.
#include "ops/convolution.h"

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <vector>

#include "core/device/scratch.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/narrow_product.h"
#include "ops/cpu/patch_product.h"
#include "ops/cpu/primitives.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

using dnnl::memory;
using Kind = ConvolutionKind;

memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBFloat16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// Types of the operands that the primitive sees.
struct Types {
  memory::data_type x, filter, y;
};

// x or y: [n h w channels] in memory, n channels h w to the library.
memory::desc Plane(const ConvolutionShape& s, int64_t channels, int64_t rows, int64_t columns,
                   memory::data_type type) {
  return memory::desc({s.batch, s.groups * channels, rows, columns}, type, memory::format_tag::nhwc);
}

memory::dims FilterExtents(const ConvolutionShape& s) {
  memory::dims extents = {s.out, s.in, s.rows.window, s.columns.window};
  if (s.groups > 1) extents.insert(extents.begin(), s.groups);
  return extents;
}
memory::desc FilterAsItLies(const ConvolutionShape& s, memory::data_type type) {
  int64_t column = s.in, row = s.columns.window * column, filter = s.rows.window * row;
  memory::dims strides = {filter, 1, row, column};
  if (s.groups > 1) strides.insert(strides.begin(), s.out * filter);
  return memory::desc(FilterExtents(s), type, strides);
}

// Whether the library is not to be asked for a shape: its 1x1 convolutions with strides (of version
// 2.7) read and write whole vectors of channels, behind the end of x where channels do not fill the last. And
// their gradients of filters in fp32 are slow: 56 256>512 k1 s2 of batch 16 takes 30 ms, 17 without strides.
bool StridesApart(const ConvolutionShape& s, Kind kind, memory::data_type x) {
  constexpr int64_t kVector = 16;  // the widest
  const bool partial = s.in % kVector != 0 || s.out % kVector != 0,
             slow = kind == Kind::kGradFilter && x == memory::data_type::f32;
  return s.rows.window == 1 && s.columns.window == 1 && (s.rows.stride > 1 || s.columns.stride > 1) &&
         s.rows.padding == 0 && s.columns.padding == 0 && (partial || slow);
}
// Without strides a gradient of x is a convolution of y's gradient with the filters turned around and their
// channels exchanged, whose primitives are faster. Milliseconds of one core of Zen 5, batch 16, in fp32 (bf16
// was not measured): 56 64>64 k3 15.9 to 13.5, 56 64>256 k1 9.7 to 7.7, 56 256>64 k1 9.1 to 6.6, 28 128>128
// k3 14.1 to 12.6, 14 256>256 k3 14.8 to 12.4, 7 512>512 k3 15.2 to 13.1.
bool IsConvolution(const ConvolutionShape& s, Kind kind, memory::data_type filter) {
  auto fits = [](const auto& axis) {
    return axis.stride == 1 && axis.dilation * (axis.window - 1) >= axis.padding;
  };
  return kind == Kind::kGradInput && filter == memory::data_type::f32 && fits(s.rows) && fits(s.columns);
}
ConvolutionShape TurnedAround(ConvolutionShape s) {
  std::swap(s.in, s.out);
  for (auto* axis : {&s.rows, &s.columns}) {
    std::swap(axis->in, axis->out);
    axis->padding = axis->dilation * (axis->window - 1) - axis->padding;
  }
  return s;
}
// The filters of TurnedAround(s), where those of s lie with their windows turned around.
memory::desc FilterTurned(const ConvolutionShape& s, memory::data_type type) {
  const int64_t column = s.in, row = s.columns.window * column, filter = s.rows.window * row;
  memory::dims strides = {1, filter, row, column};
  if (s.groups > 1) strides.insert(strides.begin(), s.out * filter);
  return memory::desc(FilterExtents(TurnedAround(s)), type, strides);
}

int64_t UpTo(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t WindowOf(const ConvolutionShape& s) { return s.rows.window * s.columns.window; }
int64_t FilterElements(const ConvolutionShape& s) { return s.groups * s.out * s.in * WindowOf(s); }

// What a primitive may take of its kernel's scratch, with a filter in the library's order, whose channels are
// padded to whole vectors.
struct LibraryRoom {
  char *scratch, *packed, *turned;
  int64_t scratch_bytes, packed_bytes, bytes;

  LibraryRoom(Kind kind, const ConvolutionShape& s, DType dtype, int threads, void* memory = nullptr) {
    constexpr int64_t kFixed = 64 << 10, kReduced = 1 << 20;
    // A single group is not padded as groups of one channel each are; an act may have one of several.
    constexpr int64_t kOneGroup = (16 + 16) * 16;
    const bool depthwise = s.groups > 1 && s.in == 1 && s.out == 1;
    const int64_t channels = depthwise ? std::max(UpTo(s.groups, 16), kOneGroup)
                                       : s.groups * (UpTo(s.out, 16) + 16) * UpTo(s.in, 16);
    packed_bytes = channels * WindowOf(s) * static_cast<int64_t>(sizeof(float));
    scratch_bytes = (threads + 1) * kFixed;
    // Threads that share the batch may have a gradient of the filter each, and images of 16-bit types in
    // another order.
    const int64_t sharing = std::clamp<int64_t>(s.batch, 1, threads);
    if (kind == Kind::kGradFilter)
      scratch_bytes += std::min((sharing - 1) * packed_bytes, sharing * kReduced);
    if (dtype != DType::kFloat32) {
      if (kind == Kind::kGradFilter) scratch_bytes += packed_bytes;  // it is summed in fp32
      const int64_t x = s.rows.in * s.columns.in * s.in, y = s.rows.out * s.columns.out * s.out;
      scratch_bytes += sharing * s.groups * (x + y) * static_cast<int64_t>(sizeof(float));
    }
    const bool turns = WindowOf(s) > 1 && IsConvolution(s, kind, TypeOf(dtype));
    Scratch take(memory);
    scratch = take.Take<char>(scratch_bytes);
    packed = take.Take<char>(packed_bytes);
    turned = take.Take<char>(turns ? FilterElements(s) * static_cast<int64_t>(sizeof(float)) : 0);
    bytes = take.bytes();
  }
};

// One convolution of one shape.
class Primitive {
 public:
  // Throws dnnl::error where the library has none. Fits says whether it does with the room.
  Primitive(Kind kind, const ConvolutionShape& s, const Types& types)
      : kind_(kind), threads_(ParallelThreads()) {
    memory::desc x = Plane(s, s.in, s.rows.in, s.columns.in, types.x),
                 y = Plane(s, s.out, s.rows.out, s.columns.out, types.y),
                 filter(FilterExtents(s), types.filter, memory::format_tag::any);
    memory::dims stride = {s.rows.stride, s.columns.stride}, pad = {s.rows.padding, s.columns.padding},
                 dilation = {s.rows.dilation - 1, s.columns.dilation - 1};
    const auto direct = dnnl::algorithm::convolution_direct;
    const dnnl::primitive_attr attr = OwnScratch();
    // A gradient in fp32 of bf16 operands is of a convolution in bf16; the library knows none of two types.
    const auto type = kind == Kind::kGradInput ? types.y : types.x;
    const memory::desc y_forward =
        Plane(s, s.out, s.rows.out, s.columns.out, kind == Kind::kForward ? types.y : type);
    dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, direct, Plane(s, s.in, s.rows.in, s.columns.in, type),
         memory::desc(FilterExtents(s), type, memory::format_tag::any), y_forward, stride, dilation, pad,
         pad},
        attr, HostEngine());
    turned_ = IsConvolution(s, kind, types.filter);
    memory::desc lies = FilterAsItLies(s, types.filter);
    if (kind == Kind::kForward) {
      Make<dnnl::convolution_forward>(forward, forward.weights_desc(), lies);
    } else if (turned_) {
      const ConvolutionShape turned = TurnedAround(s);
      const memory::dims around = {turned.rows.padding, turned.columns.padding};
      dnnl::convolution_forward::primitive_desc desc(
          {dnnl::prop_kind::forward_training, direct, y,
           memory::desc(FilterExtents(turned), types.filter, memory::format_tag::any), x, stride, dilation,
           around, around},
          attr, HostEngine());
      Make<dnnl::convolution_forward>(desc, desc.weights_desc(), FilterTurned(s, types.filter));
      filters_ = s.groups * s.out;
      window_ = WindowOf(s);
      in_ = s.in;
    } else if (kind == Kind::kGradInput) {
      dnnl::convolution_backward_data::primitive_desc desc({direct, x, filter, y, stride, dilation, pad, pad},
                                                           attr, HostEngine(), forward);
      Make<dnnl::convolution_backward_data>(desc, desc.weights_desc(), lies);
    } else {
      dnnl::convolution_backward_weights::primitive_desc desc(
          {direct, x, filter, y, stride, dilation, pad, pad}, attr, HostEngine(), forward);
      Make<dnnl::convolution_backward_weights>(desc, desc.diff_weights_desc(), lies);
    }
    x_ = memory(x, HostEngine(), nullptr);
    y_ = memory(y, HostEngine(), nullptr);
  }

  bool Fits(const LibraryRoom& room) const {
    return taken_ <= room.scratch_bytes && packed_bytes_ <= room.packed_bytes;
  }

  void Run(void* x, void* filter, void* y, const LibraryRoom& room) {
    const TeamSize team(threads_);
    if (turned_ && window_ > 1)
      filter = TurnWindows(static_cast<const float*>(filter), reinterpret_cast<float*>(room.turned));
    x_.set_data_handle(x);
    filter_.set_data_handle(filter);
    y_.set_data_handle(y);
    scratch_.set_data_handle(room.scratch);
    if (packed_) packed_.set_data_handle(room.packed);
    memory& weights = packed_ ? packed_ : filter_;
    if (kind_ != Kind::kGradFilter && packed_) Reorder(filter_, packed_, room);
    if (kind_ == Kind::kForward) {
      Execute({{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, y_}});
    } else if (turned_) {
      Execute({{DNNL_ARG_SRC, y_}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, x_}});
    } else if (kind_ == Kind::kGradInput) {
      Execute({{DNNL_ARG_DIFF_SRC, x_}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_DST, y_}});
    } else {
      Execute({{DNNL_ARG_SRC, x_}, {DNNL_ARG_DIFF_WEIGHTS, weights}, {DNNL_ARG_DIFF_DST, y_}});
      if (packed_) Reorder(packed_, filter_, room);
    }
    stream_.wait();
  }

 private:
  // `packed`: the filter as the primitive has it; `lies`: as it is in memory.
  template <typename Convolution, typename Description>
  void Make(const Description& desc, const memory::desc& packed, const memory::desc& lies) {
    if (!IsOwn(desc)) throw dnnl::error(dnnl_unimplemented, "no convolution of its own");
    primitive_ = Convolution(desc);
    taken_ = ScratchOf(desc);
    scratch_ = memory(desc.scratchpad_desc(), HostEngine(), nullptr);
    filter_ = memory(lies, HostEngine(), nullptr);
    if (packed == lies) return;
    packed_ = memory(packed, HostEngine(), nullptr);
    packed_bytes_ = static_cast<int64_t>(packed.get_size());
    const bool back = kind_ == Kind::kGradFilter;
    const dnnl::reorder::primitive_desc order(HostEngine(), back ? packed : lies, HostEngine(),
                                              back ? lies : packed, OwnScratch());
    taken_ = std::max(taken_, ScratchOf(order));
    reorder_ = dnnl::reorder(order);
    reorder_scratch_ = memory(order.scratchpad_desc(), HostEngine(), nullptr);
  }

  void Execute(std::unordered_map<int, memory> args) {
    args.insert({DNNL_ARG_SCRATCHPAD, scratch_});
    primitive_.execute(stream_, args);
  }
  void Reorder(const memory& from, const memory& to, const LibraryRoom& room) {
    reorder_scratch_.set_data_handle(room.scratch);
    reorder_.execute(stream_,
                     {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, reorder_scratch_}});
  }

  // Windows of the filters turned around.
  void* TurnWindows(const float* filter, float* turned) const {
    const int64_t bytes = in_ * static_cast<int64_t>(sizeof(float));
    ParallelFor(filters_, RowGrain(window_ * in_), [&](int64_t f, int64_t end) {
      for (; f < end; ++f)
        for (int64_t at = 0; at < window_; ++at)
          std::memcpy(turned + (f * window_ + window_ - 1 - at) * in_, filter + (f * window_ + at) * in_,
                      bytes);
    });
    return turned;
  }

  Kind kind_;
  int threads_;
  bool turned_ = false;  // a gradient of x by a convolution, with filters turned around
  int64_t filters_ = 0, window_ = 0, in_ = 0;
  int64_t taken_ = 0, packed_bytes_ = 0;  // of scratch, for the filter
  dnnl::stream stream_{HostEngine()};
  dnnl::primitive primitive_;
  dnnl::reorder reorder_;
  memory x_, filter_, y_, packed_, scratch_, reorder_scratch_;
};

// Of operands of 16-bit types what is widened at a time: some groups of an image, of about a megabyte.
ConvolutionShape WidenedPart(const ConvolutionShape& s) {
  constexpr int64_t kBytes = 1 << 20, kVector = 16;
  ConvolutionShape part = s;
  part.batch = 1;
  const int64_t group = (s.rows.in * s.columns.in * s.in + s.rows.out * s.columns.out * s.out) *
                        static_cast<int64_t>(sizeof(float));
  part.groups =
      std::min(s.groups, std::max(kVector, kBytes / std::max<int64_t>(1, group) / kVector * kVector));
  return part;
}

// A kernel's scratch for a part: its operands in fp32, and what the library takes.
struct PartRoom {
  Scratch take;
  float *x, *filter, *y, *sum;
  LibraryRoom library;
  int64_t bytes;

  PartRoom(Kind kind, const ConvolutionShape& s, int threads, void* memory = nullptr)
      : take(memory),
        x(take.Take<float>(s.groups * s.rows.in * s.columns.in * s.in)),
        filter(take.Take<float>(FilterElements(s))),
        y(take.Take<float>(s.groups * s.rows.out * s.columns.out * s.out)),
        sum(take.Take<float>(kind == Kind::kGradFilter ? FilterElements(s) : 0)),
        library(kind, s, DType::kFloat32, threads,
                memory == nullptr ? nullptr : static_cast<char*>(memory) + take.bytes()),
        bytes(take.bytes() + library.bytes) {}
};

// Rows of `width` numbers, `pitch` apart in the operand and side by side in fp32.
template <typename T>
void WidenRows(const T* from, int64_t rows, int64_t pitch, int64_t width, float* to) {
  ParallelFor(rows, RowGrain(width), [&](int64_t row, int64_t end) {
    for (; row < end; ++row) Widen(from + row * pitch, width, to + row * width);
  });
}
template <typename T>
void NarrowRows(const float* from, int64_t rows, int64_t pitch, int64_t width, T* to) {
  ParallelFor(rows, RowGrain(width), [&](int64_t row, int64_t end) {
    for (; row < end; ++row) Narrow(from + row * width, width, to + row * pitch);
  });
}

class Convolution : public Kernel {
 public:
  Convolution(Kind kind, const KernelSpec& spec)
      : kind_(kind),
        threads_(spec.threads),
        library_(spec.in[0].dtype == DType::kFloat32 || NarrowProduct::Worthwhile(spec.in[0].dtype)),
        scratch_(StatedFor(kind, spec)) {
    const ConvolutionArgs args = ConvolutionArgsOf(kind, spec);
    const ConvolutionShape shape = ShapeOfConvolution(spec.attrs, args);
    slots_ = PatchProduct{kind, shape, spec.in[0].dtype, spec.out[0].dtype}.slots(threads_);
    if (!HasNothing(spec.in, spec.out[0]) && !PrimitiveFor(shape, args)) IsInParts(shape, spec.in[0].dtype);
  }

  // Of a primitive, or of products by patches where there is none.
  static int64_t StatedFor(Kind kind, const KernelSpec& spec) {
    const ConvolutionShape shape = ShapeOfConvolution(spec.attrs, ConvolutionArgsOf(kind, spec));
    const PatchProduct patches{kind, shape, spec.in[0].dtype, spec.out[0].dtype};
    int64_t bytes = patches.slots(spec.threads) * patches.bytes();
    if (MayUseLibrary(kind, shape, spec.in[0].dtype))
      bytes = std::max(bytes, LibraryRoom(kind, shape, spec.in[0].dtype, spec.threads).bytes);
    if (MayBeInParts(kind, shape, spec.in[0].dtype))
      bytes = std::max(bytes, PartRoom(kind, WidenedPart(shape), spec.threads).bytes);
    return bytes;
  }

  Status Run(const KernelContext& context) override {
    const TensorArg& out = context.out[0];
    if (out.elements() == 0) return Status();
    if (HasNothing(context.in, out)) {
      FillZero(out.data, out.elements() * static_cast<int64_t>(SizeOf(out.dtype)));
      return Status();
    }
    const ConvolutionArgs args = ConvolutionArgsOf(kind_, context);
    const ConvolutionShape shape = ShapeOfConvolution(context.spec.attrs, args);
    if (Primitive* primitive = PrimitiveFor(shape, args)) {
      const LibraryRoom room(kind_, shape, context.in[0].dtype, threads_, context.scratch);
      primitive->Run(args.x->data, args.filter->data, args.y->data, room);
    } else if (IsInParts(shape, context.in[0].dtype)) {
      DispatchFloating(context.in[0].dtype, [&](auto t) {
        using T = decltype(t);
        if (out.dtype == DType::kFloat32) return RunInParts<T, float>(shape, args, context.scratch);
        RunInParts<T, T>(shape, args, context.scratch);
      });
    } else {
      const PatchProduct patches{kind_, shape, context.in[0].dtype, out.dtype};
      patches.Run(args.x->data, args.filter->data, args.y->data, slots_, context.scratch,
                  scratch_ / slots_ / 64 * 64);
    }
    return Status();
  }

 private:
  // Micro-batches of a step may be of two sizes.
  static constexpr size_t kKept = 2;
  static constexpr int64_t kMostColumns = 512;

  static bool HasNothing(std::span<const TensorArg> in, const TensorArg& out) {
    return in[0].elements() == 0 || in[1].elements() == 0 || out.elements() == 0;
  }
  static bool MayUseLibrary(Kind kind, const ConvolutionShape& shape, DType dtype) {
    return dtype != DType::kFloat16 && !StridesApart(shape, kind, TypeOf(dtype)) && !TooWide(shape);
  }
  // The library keeps 1 to 4 KB for each column of the result.
  static bool TooWide(const ConvolutionShape& shape) {
    return shape.columns.window > 1 && std::max(shape.columns.in, shape.columns.out) > kMostColumns;
  }

  static bool MayBeInParts(Kind kind, const ConvolutionShape& shape, DType dtype) {
    constexpr int64_t kFew = 32;  // channels of a group; from here on products by patches are faster
    return dtype != DType::kFloat32 && std::min(shape.in, shape.out) < kFew &&
           MayUseLibrary(kind, WidenedPart(shape), DType::kFloat32);
  }

  struct Made {
    ConvolutionShape shape;
    std::unique_ptr<Primitive> primitive;  // null: by patches
  };

  // Null where the library has none for the shape.
  Primitive* PrimitiveFor(const ConvolutionShape& shape, const ConvolutionArgs& args) {
    const DType dtype = kind_ == Kind::kGradInput ? args.y->dtype : args.x->dtype;
    // What an act of smaller extents needs was perhaps not stated.
    const bool may = library_ && MayUseLibrary(kind_, shape, dtype) &&
                     LibraryRoom(kind_, shape, dtype, threads_).bytes <= scratch_;
    return Find(shape, Types{TypeOf(args.x->dtype), TypeOf(args.filter->dtype), TypeOf(args.y->dtype)}, dtype,
                may, &made_);
  }
  Primitive* PartPrimitive(const ConvolutionShape& part) {
    const auto wide = memory::data_type::f32;
    return Find(part, Types{wide, wide, wide}, DType::kFloat32, true, &parts_);
  }

  Primitive* Find(const ConvolutionShape& shape, const Types& types, DType dtype, bool may,
                  std::vector<Made>* kept) const {
    for (const Made& made : *kept)
      if (made.shape == shape) return made.primitive.get();
    std::unique_ptr<Primitive> primitive;
    if (may) {
      CheckRoomForCode("the code of a convolution");
      try {
        const TeamSize team(threads_);
        primitive = std::make_unique<Primitive>(kind_, shape, types);
        if (!primitive->Fits(LibraryRoom(kind_, shape, dtype, threads_))) primitive = nullptr;
      } catch (const dnnl::error&) {
      }
    }
    if (kept->size() == kKept) kept->erase(kept->begin());
    kept->push_back({shape, std::move(primitive)});
    return kept->back().primitive.get();
  }

  // Whether the library does it in parts: those that have all groups that fit, and the last one.
  bool IsInParts(const ConvolutionShape& shape, DType dtype) {
    if (!MayBeInParts(kind_, shape, dtype)) return false;
    const auto has = [&](const ConvolutionShape& part) {
      return PartRoom(kind_, part, threads_).bytes <= scratch_ && PartPrimitive(part) != nullptr;
    };
    ConvolutionShape part = WidenedPart(shape);
    if (!has(part)) return false;
    if (shape.groups % part.groups == 0) return true;
    part.groups = shape.groups % part.groups;
    return has(part);
  }

  template <typename T, typename Y>
  void RunInParts(const ConvolutionShape& shape, const ConvolutionArgs& args, void* scratch) {
    const TeamSize team(threads_);
    ConvolutionShape part = WidenedPart(shape);
    const int64_t most = part.groups;
    for (int64_t first = 0; first < shape.groups; first += most) {
      part.groups = std::min(most, shape.groups - first);
      RunPart<T, Y>(shape, part, first, args, PartRoom(kind_, part, threads_, scratch));
    }
  }

  // Groups from `first` on, of all images.
  template <typename T, typename Y>
  void RunPart(const ConvolutionShape& whole, const ConvolutionShape& part, int64_t first,
               const ConvolutionArgs& args, const PartRoom& room) {
    Primitive* primitive = PartPrimitive(part);
    const int64_t filters = FilterElements(part), filter_at = first * (filters / part.groups);
    const int64_t x_pixels = part.rows.in * part.columns.in, x_pitch = whole.groups * whole.in;
    const int64_t y_pixels = part.rows.out * part.columns.out, y_pitch = whole.groups * whole.out;
    const int64_t x_width = part.groups * part.in, y_width = part.groups * part.out;
    const bool to_filter = kind_ == Kind::kGradFilter;
    if (to_filter)
      std::fill_n(room.sum, filters, 0.0f);
    else
      WidenRows(static_cast<const T*>(args.filter->data) + filter_at, 1, filters, filters, room.filter);
    for (int64_t image = 0; image < whole.batch; ++image) {
      const int64_t x_at = image * x_pixels * x_pitch + first * whole.in,
                    y_at = image * y_pixels * y_pitch + first * whole.out;
      if (kind_ != Kind::kGradInput)
        WidenRows(static_cast<const T*>(args.x->data) + x_at, x_pixels, x_pitch, x_width, room.x);
      if (kind_ != Kind::kForward)
        WidenRows(static_cast<const T*>(args.y->data) + y_at, y_pixels, y_pitch, y_width, room.y);
      primitive->Run(room.x, room.filter, room.y, room.library);
      if (kind_ == Kind::kForward)
        NarrowRows(room.y, y_pixels, y_pitch, y_width, static_cast<Y*>(args.y->data) + y_at);
      if (kind_ == Kind::kGradInput)
        NarrowRows(room.x, x_pixels, x_pitch, x_width, static_cast<Y*>(args.x->data) + x_at);
      for (int64_t i = 0; to_filter && i < filters; ++i) room.sum[i] += room.filter[i];
    }
    if (to_filter) NarrowRows(room.sum, 1, filters, filters, static_cast<Y*>(args.filter->data) + filter_at);
  }

  const Kind kind_;
  const int threads_;
  const bool library_;
  const int64_t scratch_;
  int slots_ = 1;  // of it, for threads that gather patches
  std::vector<Made> made_, parts_;
};

bool FitsConvolution(const KernelSpec& spec) {
  const DType dtype = spec.in[0].dtype, result = spec.out[0].dtype;
  return spec.in[1].dtype == dtype && (result == dtype || result == DType::kFloat32);
}

KernelPtr Make(Kind kind, const KernelSpec& spec) {
  if (!FitsConvolution(spec)) return MakeReference(spec);
  return std::make_unique<Convolution>(kind, spec);
}
int64_t ScratchOf(Kind kind, const KernelSpec& spec) {
  return FitsConvolution(spec) ? Convolution::StatedFor(kind, spec) : ReferenceScratch(spec);
}

}  // namespace

KernelPtr MakeConv2d(const KernelSpec& spec) { return Make(Kind::kForward, spec); }
KernelPtr MakeConv2dGradInput(const KernelSpec& spec) { return Make(Kind::kGradInput, spec); }
KernelPtr MakeConv2dGradFilter(const KernelSpec& spec) { return Make(Kind::kGradFilter, spec); }
int64_t Conv2dScratch(const KernelSpec& spec) { return ScratchOf(Kind::kForward, spec); }
int64_t Conv2dGradInputScratch(const KernelSpec& spec) { return ScratchOf(Kind::kGradInput, spec); }
int64_t Conv2dGradFilterScratch(const KernelSpec& spec) { return ScratchOf(Kind::kGradFilter, spec); }

}  // namespace oneflow_like::cpu
