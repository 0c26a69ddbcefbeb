// Attention by cuDNN's fused kernels. Its engines recognise one form of operation graph for each direction,
// the one its own C++ interface makes, so the nodes and their order are that form: scores, scale, mask (in
// terms of row and column numbers), softmax from reductions and pointwise nodes, product with the values.
// Causal masks are part of the graph, which the single SDPA descriptor of this version (9.19) cannot say.
//
// Backward leaves dQ to a product over stored dP instead of adding into it from several blocks: the
// deterministic variant, which needs 2 bytes of work space per score. Batches and heads are done in parts
// that fit the work space.
#if defined(OFL_HAVE_CUDNN)

#include <cudnn.h>
#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "ops/cuda/flash.h"
#include "ops/cuda/graph_cudnn.h"

namespace oneflow_like::cuda {
namespace {

// Numbers of the tensors that are memory of the caller, or numbers in host memory.
enum Id : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kDelta,
  kScale,
  kLowest,
  kOne,
  kKeys,
  kQueries
};

// A part of a shape: strides are of the whole.
struct Part {
  FlashShape shape;  // batch and heads of the part
  int64_t all_heads;

  Extents Query() const { return {shape.batch, shape.heads, shape.queries, shape.width}; }
  Extents Key() const { return {shape.batch, shape.heads, shape.keys, shape.width}; }
  Extents Score() const { return {shape.batch, shape.heads, shape.queries, shape.keys}; }
  Extents Row() const { return {shape.batch, shape.heads, shape.queries, 1}; }
  // [b s h d] seen as [b h s d].
  Extents Strides(int64_t length) const {
    int64_t row = all_heads * shape.width;
    return {length * row, shape.width, row, 1};
  }
  int64_t DeltaBytes() const {
    if (!shape.backward) return 0;
    return (shape.batch * shape.heads * shape.queries * int64_t{sizeof(float)} + 255) / 256 * 256;
  }
};

Extents SwapLast(const Extents& e) { return {e[0], e[1], e[3], e[2]}; }

class Builder {
 public:
  explicit Builder(const Part& part)
      : part_(part), type_(part.shape.dtype == DType::kFloat16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16) {
    lowest_ = graph_.Number(kLowest, CUDNN_DATA_FLOAT);
    scale_ = graph_.Number(kScale, CUDNN_DATA_FLOAT);
  }

  CudnnPtr Forward(cudnnHandle_t handle, std::string* why) {
    CudnnTensor q = QueryLike(kQ), k = Transposed(kK), v = KeyLike(kV), o = QueryLike(kO);
    CudnnTensor lse = graph_.Tensor(kLse, CUDNN_DATA_FLOAT, part_.Row(), Packed(part_.Row()));
    CudnnTensor score = Masked(Scaled(q, k));
    CudnnTensor greatest = graph_.Reduce(CUDNN_REDUCE_TENSOR_MAX, score);
    CudnnTensor power =
        graph_.Pointwise(CUDNN_POINTWISE_EXP, graph_.Pointwise(CUDNN_POINTWISE_SUB, score, &greatest));
    CudnnTensor sum = graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, power);
    CudnnTensor log = graph_.Pointwise(CUDNN_POINTWISE_LOG, sum);
    graph_.Pointwise(CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, greatest, &log, nullptr, lse);
    CudnnTensor p = graph_.Inside(type_, part_.Score());
    graph_.Pointwise(CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, power, &sum, nullptr, p);
    graph_.Matmul(p, v, o);
    return graph_.Plan(handle, why);
  }

  CudnnPtr Backward(cudnnHandle_t handle, std::string* why) {
    CudnnTensor q = QueryLike(kQ), k = Transposed(kK), v = Transposed(kV), o = QueryLike(kO),
                dout = QueryLike(kDout);
    CudnnTensor dq = QueryLike(kDq), dk = KeyLike(kDk), dv = KeyLike(kDv);
    CudnnTensor lse = graph_.Tensor(kLse, CUDNN_DATA_FLOAT, part_.Row(), Packed(part_.Row()));
    CudnnTensor delta = graph_.Tensor(kDelta, CUDNN_DATA_FLOAT, part_.Row(), Packed(part_.Row()));
    CudnnTensor one = graph_.Number(kOne, CUDNN_DATA_FLOAT);

    CudnnTensor sum = graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, graph_.Pointwise(CUDNN_POINTWISE_MUL, dout, &o));
    graph_.Pointwise(CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, sum, &one, nullptr, delta);

    CudnnTensor power = Masked(graph_.Pointwise(CUDNN_POINTWISE_SUB, Scaled(q, k), &lse));
    CudnnTensor p = graph_.Pointwise(CUDNN_POINTWISE_EXP, power);
    graph_.Matmul(TransposedScore(p), dout, dv);

    CudnnTensor dp = graph_.Inside(CUDNN_DATA_FLOAT, part_.Score());
    graph_.Matmul(dout, v, dp);
    CudnnTensor less = graph_.Pointwise(CUDNN_POINTWISE_SUB, dp, &delta);
    CudnnTensor slope = graph_.Pointwise(CUDNN_POINTWISE_MUL, less, &p);
    CudnnTensor ds = graph_.Pointwise(CUDNN_POINTWISE_MUL, slope, &scale_);
    graph_.Matmul(TransposedScore(ds), q, dk);

    CudnnTensor keys = graph_.Inside(CUDNN_DATA_FLOAT, part_.Key(), part_.Strides(part_.shape.keys));
    graph_.Reshape(k, keys);
    graph_.Matmul(ds, keys, dq);
    return graph_.Plan(handle, why);
  }

 private:
  CudnnTensor QueryLike(int64_t id) {
    return graph_.Tensor(id, type_, part_.Query(), part_.Strides(part_.shape.queries));
  }
  CudnnTensor KeyLike(int64_t id) {
    return graph_.Tensor(id, type_, part_.Key(), part_.Strides(part_.shape.keys));
  }
  CudnnTensor Transposed(int64_t id) {
    return graph_.Tensor(id, type_, SwapLast(part_.Key()), SwapLast(part_.Strides(part_.shape.keys)));
  }
  CudnnTensor TransposedScore(const CudnnTensor& x) {
    CudnnTensor y = graph_.Inside(type_, SwapLast(part_.Score()), SwapLast(Packed(part_.Score())));
    graph_.Reshape(x, y);
    return y;
  }

  CudnnTensor Scaled(const CudnnTensor& q, const CudnnTensor& k) {
    CudnnTensor score = graph_.Inside(CUDNN_DATA_FLOAT, part_.Score());
    graph_.Matmul(q, k, score);
    return graph_.Pointwise(CUDNN_POINTWISE_MUL, score, &scale_);
  }

  // A key is seen where row + keys - queries >= column; without the shift where row >= column.
  CudnnTensor Masked(const CudnnTensor& score) {
    if (!part_.shape.causal) return score;
    auto integers = [&] { return graph_.Inside(CUDNN_DATA_INT32, part_.Score()); };
    CudnnTensor row = integers(), column = integers(),
                seen = graph_.Inside(CUDNN_DATA_BOOLEAN, part_.Score());
    graph_.Pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, score, nullptr, nullptr, row, 2);
    if (part_.shape.shift != 0) {
      CudnnTensor keys = graph_.Number(kKeys, CUDNN_DATA_INT32),
                  queries = graph_.Number(kQueries, CUDNN_DATA_INT32);
      CudnnTensor later = integers(), shifted = integers();
      graph_.Pointwise(CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, row, &keys, nullptr, later);
      graph_.Pointwise(CUDNN_POINTWISE_SUB, CUDNN_DATA_INT32, later, &queries, nullptr, shifted);
      row = shifted;
    }
    graph_.Pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, score, nullptr, nullptr, column, 3);
    graph_.Pointwise(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, &column, nullptr, seen);
    return graph_.Pointwise(CUDNN_POINTWISE_BINARY_SELECT, score, &lowest_, &seen);
  }

  Part part_;
  cudnnDataType_t type_;
  CudnnGraph graph_;
  CudnnTensor lowest_, scale_;
};

// A handle belongs to one thread while it is used; never destroyed (the driver may be gone when a process
// ends).
Status HandleOf(int device, cudnnHandle_t* handle) {
  thread_local std::map<int, cudnnHandle_t> handles;
  auto it = handles.find(device);
  if (it == handles.end()) {
    cudnnHandle_t made = nullptr;
    if (cudnnStatus_t status = cudnnCreate(&made); status != CUDNN_STATUS_SUCCESS)
      return Status(Cat("cudnnCreate: ", cudnnGetErrorString(status)));
    it = handles.emplace(device, made).first;
  }
  *handle = it->second;
  return Status();
}

// What serves a shape on a device: a plan for parts of equal size; none where cuDNN does not take it.
struct Entry {
  FlashShape shape;
  int device = 0;
  size_t room = 0;  // of work space it was made for
  Part part;
  CudnnPtr plan;
};

int64_t LargestDivisor(int64_t n, int64_t most) {
  for (int64_t d = std::min(n, most); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

// A right result that is slower must not go unnoticed. Entries are kept, so this is said once.
Entry Refused(const Entry& entry, const std::string& why) {
  const FlashShape& s = entry.shape;
  LOG(WARNING) << "attention" << (s.backward ? "'s gradient" : "") << " of " << s.batch << " x " << s.heads
               << " heads, " << s.queries << " queries, " << s.keys << " keys, width " << s.width << ", "
               << Name(s.dtype)
               << ": done by our own kernels, which are slower, as cuDNN does not take it: " << why;
  return entry;
}

Entry MakeEntry(const FlashShape& shape, int device, size_t room, cudnnHandle_t handle) {
  Entry entry{shape, device, room, {shape, shape.heads}, nullptr};
  Part& part = entry.part;
  for (;;) {
    Builder builder(part);
    std::string why;
    CudnnPtr plan = shape.backward ? builder.Backward(handle, &why) : builder.Forward(handle, &why);
    if (!plan) return Refused(entry, why);
    double needed = static_cast<double>(WorkspaceOf(*plan)) + part.DeltaBytes();
    if (needed <= static_cast<double>(room)) {
      entry.plan = plan;
      return entry;
    }
    double share = static_cast<double>(room) / needed;
    auto shrunk = [share](int64_t n, int64_t whole) {
      return LargestDivisor(whole,
                            std::max<int64_t>(1, std::min<int64_t>(n - 1, static_cast<int64_t>(n * share))));
    };
    if (part.shape.batch > 1) {
      part.shape.batch = shrunk(part.shape.batch, shape.batch);
    } else if (part.shape.heads > 1) {
      part.shape.heads = shrunk(part.shape.heads, shape.heads);
    } else {
      return Refused(
          entry, Cat("it needs ", static_cast<int64_t>(needed), " bytes of the ", room, " of work space"));
    }
  }
}

// Kernels of equal shape (the layers of a model) share what is found here.
std::shared_ptr<const Entry> EntryOf(const FlashShape& shape, int device, size_t room, cudnnHandle_t handle) {
  static std::mutex mutex;  // threads of several ranks make plans
  static auto* entries = new std::vector<std::shared_ptr<const Entry>>;
  std::lock_guard lock(mutex);
  for (const auto& entry : *entries)
    if (entry->shape == shape && entry->device == device && entry->room == room) return entry;
  entries->push_back(std::make_shared<Entry>(MakeEntry(shape, device, room, handle)));
  return entries->back();
}

class CudnnFlash : public Flash {
 public:
  bool Takes(const FlashShape& shape, const LaunchContext& launch) override {
    int device = -1;
    cudnnHandle_t handle = nullptr;
    if (cudaGetDevice(&device) != cudaSuccess) return false;
    if (!entry_ || !(entry_->shape == shape) || entry_->device != device ||
        entry_->room != launch.workspace_bytes) {
      if (!HandleOf(device, &handle).ok()) return false;
      entry_ = EntryOf(shape, device, launch.workspace_bytes, handle);
    }
    return entry_->plan != nullptr;
  }

  Status Launch(const FlashShape& shape, const FlashOperands& operands,
                const LaunchContext& launch) override {
    cudnnHandle_t handle = nullptr;
    if (Status status = HandleOf(entry_->device, &handle); !status.ok()) return status;
    if (cudnnStatus_t status = cudnnSetStream(handle, launch.stream); status != CUDNN_STATUS_SUCCESS)
      return Status(Cat("cudnnSetStream: ", cudnnGetErrorString(status)));
    const FlashShape& part = entry_->part.shape;
    for (int64_t b = 0; b < shape.batch; b += part.batch)
      for (int64_t h = 0; h < shape.heads; h += part.heads)
        if (Status status = LaunchPart(handle, shape, operands, b, h, launch); !status.ok()) return status;
    return Status();
  }

 private:
  Status LaunchPart(cudnnHandle_t handle, const FlashShape& shape, const FlashOperands& p, int64_t b,
                    int64_t h, const LaunchContext& launch) const {
    int64_t row = shape.heads * shape.width;
    int64_t at_q = (b * shape.queries * row + h * shape.width) * 2,
            at_k = (b * shape.keys * row + h * shape.width) * 2;
    auto at = [](const void* base, int64_t bytes) {
      return const_cast<char*>(static_cast<const char*>(base)) + bytes;
    };
    char* work = static_cast<char*>(launch.workspace);
    float scale = shape.scale, lowest = std::numeric_limits<float>::lowest(), one = 1;
    int32_t keys = static_cast<int32_t>(shape.keys), queries = static_cast<int32_t>(shape.queries);
    std::vector<int64_t> ids = {kQ, kK, kV, kO, kLse, kScale};
    std::vector<void*> data = {at(p.q, at_q),
                               at(p.k, at_k),
                               at(p.v, at_k),
                               at(p.o, at_q),
                               p.lse + (b * shape.heads + h) * shape.queries,
                               &scale};
    auto add = [&](Id id, void* pointer) {
      ids.push_back(id);
      data.push_back(pointer);
    };
    if (shape.causal) {
      add(kLowest, &lowest);
      if (shape.shift != 0) {
        add(kKeys, &keys);
        add(kQueries, &queries);
      }
    }
    if (shape.backward) {
      add(kDout, at(p.dout, at_q));
      add(kDq, at(p.dq, at_q));
      add(kDk, at(p.dk, at_k));
      add(kDv, at(p.dv, at_k));
      add(kDelta, work);
      add(kOne, &one);
      work += entry_->part.DeltaBytes();
    }
    void* rest = work;
    CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    int64_t count = static_cast<int64_t>(ids.size());
    pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data())
        .Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data.data())
        .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &rest)
        .Finalize();
    cudnnStatus_t status =
        pack.ok() ? cudnnBackendExecute(handle, entry_->plan->raw(), pack.raw()) : pack.status();
    return status == CUDNN_STATUS_SUCCESS ? Status()
                                          : Status(Cat("cuDNN attention: ", cudnnGetErrorString(status)));
  }

  std::shared_ptr<const Entry> entry_;  // of the last shape
};

}  // namespace

std::unique_ptr<Flash> MakeFlash() { return std::make_unique<CudnnFlash>(); }

}  // namespace oneflow_like::cuda

#endif
