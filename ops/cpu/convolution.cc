// conv2d and its gradients as oneDNN primitives. Activations stay as they lie, channels last; the filter is
// brought into the order that the primitive prefers in every act, which takes a few percent of the act where
// there are few positions to a filter and nothing elsewhere. The gradient of a filter comes back the same
// way. A primitive is made in the first act, for its number of threads, and again where an act brings other
// extents.
//
// bf16 operands are multiplied as they are where the machine does so faster than in fp32; other operands of
// 16-bit types are widened into buffers of the kernel's own.
#include "ops/convolution.h"

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <vector>

#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/narrow_product.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

using dnnl::memory;
using Kind = ConvolutionKind;

const dnnl::engine& Engine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

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

// Whether the library is not to be asked for a shape's strides: its 1x1 convolutions with strides (of version
// 2.7) read and write whole vectors of channels, behind the end of x where channels do not fill the last. And
// their gradients of filters in fp32 are slow: 56 256>512 k1 s2 of batch 16 takes 30 ms, 17 without strides.
bool StridesApart(const ConvolutionShape& s, Kind kind, memory::data_type x) {
  constexpr int64_t kVector = 16;  // the widest
  const bool partial = s.in % kVector != 0 || s.out % kVector != 0,
             slow = kind == Kind::kGradFilter && x == memory::data_type::f32;
  return s.rows.window == 1 && s.columns.window == 1 && (s.rows.stride > 1 || s.columns.stride > 1) &&
         s.rows.padding == 0 && s.columns.padding == 0 && (partial || slow);
}
// Of the rows and columns of x that count.
ConvolutionShape WithoutStrides(ConvolutionShape s) {
  s.rows.in = s.rows.out;
  s.columns.in = s.columns.out;
  s.rows.stride = s.columns.stride = 1;
  return s;
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

// One convolution of one shape.
class Primitive {
 public:
  Primitive(Kind kind, const ConvolutionShape& shape, const Types& types)
      : shape_(shape), kind_(kind), element_(types.x == memory::data_type::bf16 ? 2 : 4) {
    const bool apart = StridesApart(shape, kind, types.x);
    const ConvolutionShape s = apart ? WithoutStrides(shape) : shape;
    if (apart) counts_.resize(s.batch * s.rows.in * s.columns.in * s.groups * s.in * element_);
    memory::desc x = Plane(s, s.in, s.rows.in, s.columns.in, types.x),
                 y = Plane(s, s.out, s.rows.out, s.columns.out, types.y),
                 filter(FilterExtents(s), types.filter, memory::format_tag::any);
    memory::dims stride = {s.rows.stride, s.columns.stride}, pad = {s.rows.padding, s.columns.padding},
                 dilation = {s.rows.dilation - 1, s.columns.dilation - 1};
    const auto direct = dnnl::algorithm::convolution_direct;
    // A gradient in fp32 of bf16 operands is of a convolution in bf16; the library knows none of two types.
    const auto type = kind == Kind::kGradInput ? types.y : types.x;
    const memory::desc y_forward =
        Plane(s, s.out, s.rows.out, s.columns.out, kind == Kind::kForward ? types.y : type);
    dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, direct, Plane(s, s.in, s.rows.in, s.columns.in, type),
         memory::desc(FilterExtents(s), type, memory::format_tag::any), y_forward, stride, dilation, pad,
         pad},
        Engine());
    memory::desc packed = forward.weights_desc(), lies = FilterAsItLies(s, types.filter);
    turned_ = IsConvolution(s, kind, types.filter);
    if (kind == Kind::kForward) {
      primitive_ = dnnl::convolution_forward(forward);
    } else if (turned_) {
      const ConvolutionShape turned = TurnedAround(s);
      const memory::dims around = {turned.rows.padding, turned.columns.padding};
      dnnl::convolution_forward::primitive_desc desc(
          {dnnl::prop_kind::forward_training, direct, y,
           memory::desc(FilterExtents(turned), types.filter, memory::format_tag::any), x, stride, dilation,
           around, around},
          Engine());
      packed = desc.weights_desc();
      lies = FilterTurned(s, types.filter);
      primitive_ = dnnl::convolution_forward(desc);
      if (s.rows.window * s.columns.window > 1)
        windows_.resize(s.groups * s.out * s.rows.window * s.columns.window * s.in * sizeof(float));
    } else if (kind == Kind::kGradInput) {
      dnnl::convolution_backward_data::primitive_desc desc({direct, x, filter, y, stride, dilation, pad, pad},
                                                           Engine(), forward);
      packed = desc.weights_desc();
      primitive_ = dnnl::convolution_backward_data(desc);
    } else {
      dnnl::convolution_backward_weights::primitive_desc desc(
          {direct, x, filter, y, stride, dilation, pad, pad}, Engine(), forward);
      packed = desc.diff_weights_desc();
      primitive_ = dnnl::convolution_backward_weights(desc);
    }
    x_ = memory(x, Engine(), nullptr);
    y_ = memory(y, Engine(), nullptr);
    filter_ = memory(lies, Engine(), nullptr);
    if (packed == lies) return;
    packed_ = memory(packed, Engine());
    reorder_ = kind == Kind::kGradFilter ? dnnl::reorder(packed_, filter_) : dnnl::reorder(filter_, packed_);
  }

  const ConvolutionShape& shape() const { return shape_; }

  void Run(void* x, void* filter, void* y) {
    if (counts_.empty()) return Execute(x, filter, y);
    if (kind_ != Kind::kGradInput)
      ForEachThatCounts([&](char* counts, int64_t at, int64_t bytes) {
        std::memcpy(counts, static_cast<const char*>(x) + at, bytes);
      });
    Execute(counts_.data(), filter, y);
    if (kind_ != Kind::kGradInput) return;
    FillZero(x, shape_.batch * shape_.rows.in * shape_.columns.in * shape_.groups * shape_.in * element_);
    ForEachThatCounts([&](const char* counts, int64_t at, int64_t bytes) {
      std::memcpy(static_cast<char*>(x) + at, counts, bytes);
    });
  }

 private:
  // `use` is given a position's channels among those that count, and where they are in x, in bytes.
  template <typename Use>
  void ForEachThatCounts(const Use& use) {
    const ConvolutionShape& s = shape_;
    const int64_t bytes = s.groups * s.in * element_;
    ParallelFor(s.batch * s.rows.out, 1, [&](int64_t row, int64_t end) {
      for (; row < end; ++row)
        for (int64_t column = 0; column < s.columns.out; ++column) {
          const int64_t from =
              (row / s.rows.out * s.rows.in + row % s.rows.out * s.rows.stride) * s.columns.in +
              column * s.columns.stride;
          use(counts_.data() + (row * s.columns.out + column) * bytes, from * bytes, bytes);
        }
    });
  }

  // Windows of the filters turned around.
  void* TurnWindows(const void* filter) {
    const int64_t window = shape_.rows.window * shape_.columns.window,
                  bytes = static_cast<int64_t>(windows_.size()) / (shape_.groups * shape_.out * window);
    ParallelFor(shape_.groups * shape_.out, RowGrain(window * shape_.in), [&](int64_t f, int64_t end) {
      for (; f < end; ++f)
        for (int64_t at = 0; at < window; ++at)
          std::memcpy(windows_.data() + (f * window + window - 1 - at) * bytes,
                      static_cast<const char*>(filter) + (f * window + at) * bytes, bytes);
    });
    return windows_.data();
  }

  void Execute(void* x, void* filter, void* y) {
    if (!windows_.empty()) filter = TurnWindows(filter);
    x_.set_data_handle(x);
    filter_.set_data_handle(filter);
    y_.set_data_handle(y);
    memory& weights = packed_ ? packed_ : filter_;
    if (kind_ != Kind::kGradFilter && packed_) reorder_.execute(stream_, filter_, packed_);
    if (kind_ == Kind::kForward) {
      primitive_.execute(stream_, {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, y_}});
    } else if (turned_) {
      primitive_.execute(stream_, {{DNNL_ARG_SRC, y_}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, x_}});
    } else if (kind_ == Kind::kGradInput) {
      primitive_.execute(stream_,
                         {{DNNL_ARG_DIFF_SRC, x_}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_DST, y_}});
    } else {
      primitive_.execute(stream_,
                         {{DNNL_ARG_SRC, x_}, {DNNL_ARG_DIFF_WEIGHTS, weights}, {DNNL_ARG_DIFF_DST, y_}});
      if (packed_) reorder_.execute(stream_, packed_, filter_);
    }
    stream_.wait();
  }

  ConvolutionShape shape_;
  Kind kind_;
  int64_t element_;           // bytes of one of x
  std::vector<char> counts_;  // positions of x that count, where strides are ours
  bool turned_ = false;       // a gradient of x by a convolution, with these filters
  std::vector<char> windows_;
  dnnl::stream stream_{Engine()};
  dnnl::primitive primitive_;
  dnnl::reorder reorder_;
  memory x_, filter_, y_, packed_;
};

class Convolution : public Kernel {
 public:
  Convolution(Kind kind, const KernelSpec& spec)
      : kind_(kind), widen_(spec.in[0].dtype != DType::kFloat32), reference_(MakeReference(spec)) {
    if (NarrowProduct::Worthwhile(spec.in[0].dtype)) widen_ = false;
    const TensorArg* args[3] = {&spec.in[0], &spec.in[1], &spec.out[0]};
    for (int i = 0; i < 3 && widen_; ++i) {
      if (args[i]->dtype != DType::kFloat32) wide_[i].resize(args[i]->elements());
    }
  }

  Status Run(const KernelContext& context) override {
    const TensorArg& out = context.out[0];
    if (out.elements() == 0) return Status();
    if (context.in[0].elements() == 0 || context.in[1].elements() == 0) {
      FillZero(out.data, out.elements() * static_cast<int64_t>(SizeOf(out.dtype)));
      return Status();
    }
    ConvolutionArgs args = ConvolutionArgsOf(kind_, context);
    Primitive* primitive = PrimitiveFor(ShapeOfConvolution(context.spec.attrs, args), args);
    if (primitive == nullptr) return reference_->Run(context);
    void* data[3] = {Input(context.in[0], 0), Input(context.in[1], 1),
                     wide_[2].empty() ? out.data : wide_[2].data()};
    // In the order of x, filter, y.
    if (kind_ == Kind::kForward) primitive->Run(data[0], data[1], data[2]);
    if (kind_ == Kind::kGradInput) primitive->Run(data[2], data[1], data[0]);
    if (kind_ == Kind::kGradFilter) primitive->Run(data[0], data[2], data[1]);
    if (!wide_[2].empty()) {
      DispatchFloating(out.dtype, [&](auto t) {
        using T = decltype(t);
        ParallelFor(out.elements(), kGrain,
                    [&](int64_t i, int64_t end) { Narrow(wide_[2].data() + i, end - i, out.as<T>() + i); });
      });
    }
    return Status();
  }

 private:
  // Micro-batches of a step may be of two sizes.
  static constexpr size_t kKept = 2;

  // Null where the library has none for the shape.
  Primitive* PrimitiveFor(const ConvolutionShape& shape, const ConvolutionArgs& args) {
    for (const auto& made : made_) {
      if (made->shape() == shape) return made.get();
    }
    if (refused_) return nullptr;
    auto type = [&](const TensorArg& arg) { return widen_ ? memory::data_type::f32 : TypeOf(arg.dtype); };
    try {
      auto primitive =
          std::make_unique<Primitive>(kind_, shape, Types{type(*args.x), type(*args.filter), type(*args.y)});
      if (made_.size() == kKept) made_.erase(made_.begin());
      made_.push_back(std::move(primitive));
    } catch (const dnnl::error&) {
      refused_ = true;
      return nullptr;
    }
    return made_.back().get();
  }

  void* Input(const TensorArg& x, int which) {
    if (!widen_) return x.data;
    float* to = wide_[which].data();
    DispatchFloating(x.dtype, [&](auto t) {
      using T = decltype(t);
      ParallelFor(x.elements(), kGrain,
                  [&](int64_t i, int64_t end) { Widen(x.as<T>() + i, end - i, to + i); });
    });
    return to;
  }

  Kind kind_;
  bool widen_ = false, refused_ = false;
  KernelPtr reference_;
  std::vector<float> wide_[3];  // inputs and result in fp32; empty where they are
  std::vector<std::unique_ptr<Primitive>> made_;
};

KernelPtr Make(Kind kind, const KernelSpec& spec) {
  DType dtype = spec.in[0].dtype, result = spec.out[0].dtype;
  bool fits = spec.in[1].dtype == dtype && (result == dtype || result == DType::kFloat32);
  if (!fits) return MakeReference(spec);
  return std::make_unique<Convolution>(kind, spec);
}

}  // namespace

KernelPtr MakeConv2d(const KernelSpec& spec) { return Make(Kind::kForward, spec); }
KernelPtr MakeConv2dGradInput(const KernelSpec& spec) { return Make(Kind::kGradInput, spec); }
KernelPtr MakeConv2dGradFilter(const KernelSpec& spec) { return Make(Kind::kGradFilter, spec); }

}  // namespace oneflow_like::cpu
