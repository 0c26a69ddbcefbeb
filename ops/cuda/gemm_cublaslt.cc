// Matrix products by cuBLASLt. One handle for each device of the process, never destroyed (the driver may be
// gone when a process ends). An algorithm is chosen once for a descriptor and device; only those whose sums
// come in one order are asked for: split sums go through work space, not through atomics.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ops/cuda/driver_turn.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/product_choices.h"

namespace oneflow_like::cuda {
namespace {

constexpr const char* kWho = "cuBLASLt";
constexpr int kProposals = 8;  // of the library's that are timed; the code of further ones would stay loaded
// Behind these the same algorithms with sums that are divided otherwise among blocks, for products of few
// results and many terms: which number of parts fills a card's multiprocessors the library does not always
// know. They share their code.
constexpr int kAlgorithmsDivided = 4;
constexpr int kParts[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 14, 16};
constexpr int64_t kMostResults = int64_t{1} << 22, kLeastTerms = 4096;

Status Failed(const char* what, cublasStatus_t status) {
  return Status(Cat(kWho, ": ", what, ": ", cublasLtGetStatusString(status)));
}

struct Handle {
  cublasLtHandle_t lt = nullptr;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
};

// Of the device that is current. A handle serves any number of threads.
Handle HandleOf(int device) {
  static std::mutex mutex;  // kernels of several ranks are made and first launched by different threads
  static auto* handles = new std::map<int, Handle>;
  std::lock_guard lock(mutex);
  auto [it, is_new] = handles->try_emplace(device);
  if (is_new) {
    DriverCall call;
    it->second.status = cublasLtCreate(&it->second.lt);
  }
  return it->second;
}

cudaDataType TypeOf(int32_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t EpilogueOf(const GemmDescriptor& what) {
  switch (what.epilogue) {
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kGeluBias:
      return what.ld_aux > 0 ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
    case Epilogue::kGeluGrad:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kGeluGradBias:
      return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case Epilogue::kBiasGradA:
      return CUBLASLT_EPILOGUE_BGRADA;
    case Epilogue::kNone:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// The library's descriptors, which are plain structs of its own allocation.
struct Descriptors {
  cublasLtMatmulDesc_t matmul = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;

  Descriptors() = default;
  Descriptors(const Descriptors&) = delete;
  ~Descriptors() {
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {a, b, d})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
    if (matmul) cublasLtMatmulDescDestroy(matmul);
  }
};

class CublasLtGemm : public Gemm {
 public:
  explicit CublasLtGemm(const GemmDescriptor& descriptor) : what_(descriptor) {
    status_ = Describe();
    if (what_.choice == kDecided) Choices().Want(what_);
    int device = -1;
    if (status_.ok() && cudaGetDevice(&device) == cudaSuccess) status_ = Choose(device);
    cudaGetLastError();  // no device yet: chosen at the first launch
  }

  const GemmDescriptor& descriptor() const override { return what_; }

  Status Check() override {
    int device = -1;
    if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess)
      return Status(Cat("cudaGetDevice: ", cudaGetErrorString(error)));
    const bool another = device != device_ || (!settled_ && ProposalFor(what_, device) != proposal_);
    if (status_.ok() && another) status_ = Choose(device);
    if (!settled_ && what_.choice == kDecided) Choices().Settle(WorkOf(what_, device));
    settled_ = true;
    return status_;
  }

  Status Launch(const GemmOperands& operands, const LaunchContext& launch) override {
    if (Status status = Check(); !status.ok()) return status;
    cublasStatus_t set = CUBLAS_STATUS_SUCCESS;
    if (operands.bias) set = SetPointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    if (set == CUBLAS_STATUS_SUCCESS && operands.aux)
      set = SetPointer(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
    if (set != CUBLAS_STATUS_SUCCESS) return Failed("epilogue", set);
    const float one = 1, beta = what_.adds_c ? 1 : 0;
    const void* c = what_.adds_c ? operands.c : operands.d;
    cublasStatus_t status = cublasLtMatmul(handle_, lib_.matmul, &one, operands.a, lib_.a, operands.b, lib_.b,
                                           &beta, c, lib_.d, operands.d, lib_.d, &algorithm_.algo,
                                           operands.workspace, algorithm_.workspaceSize, launch.stream);
    return status == CUBLAS_STATUS_SUCCESS ? Status() : Failed(Name().c_str(), status);
  }

 private:
  std::string Name() const {
    return Cat("product of ", what_.m, "x", what_.k, " and ", what_.k, "x", what_.n, ", ", what_.batch,
               " times, ", oneflow_like::Name(static_cast<DType>(what_.in)), " to ",
               oneflow_like::Name(static_cast<DType>(what_.out)));
  }

  cublasStatus_t SetPointer(cublasLtMatmulDescAttributes_t name, const void* pointer) {
    return cublasLtMatmulDescSetAttribute(lib_.matmul, name, &pointer, sizeof pointer);
  }

  template <typename T>
  bool Set(cublasLtMatmulDescAttributes_t name, T value) {
    return cublasLtMatmulDescSetAttribute(lib_.matmul, name, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
  }
  template <typename T>
  bool Prefer(cublasLtMatmulPreferenceAttributes_t name, T value) {
    return cublasLtMatmulPreferenceSetAttribute(lib_.preference, name, &value, sizeof value) ==
           CUBLAS_STATUS_SUCCESS;
  }

  bool Layout(cublasLtMatrixLayout_t* layout, int32_t dtype, int64_t rows, int64_t columns, int64_t ld,
              int64_t stride) {
    if (cublasLtMatrixLayoutCreate(layout, TypeOf(dtype), rows, columns, ld) != CUBLAS_STATUS_SUCCESS)
      return false;
    int32_t batch = static_cast<int32_t>(what_.batch);
    return cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                            sizeof batch) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                            sizeof stride) == CUBLAS_STATUS_SUCCESS;
  }

  Status Describe() {
    cublasComputeType_t compute = what_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    bool done = cublasLtMatmulDescCreate(&lib_.matmul, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
    done = done && Set(CUBLASLT_MATMUL_DESC_TRANSA, what_.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N) &&
           Set(CUBLASLT_MATMUL_DESC_TRANSB, what_.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    int64_t a_rows = what_.transposed_a ? what_.k : what_.m,
            a_columns = what_.transposed_a ? what_.m : what_.k;
    int64_t b_rows = what_.transposed_b ? what_.n : what_.k,
            b_columns = what_.transposed_b ? what_.k : what_.n;
    done = done && Layout(&lib_.a, what_.in, a_rows, a_columns, what_.lda, what_.stride_a) &&
           Layout(&lib_.b, what_.in, b_rows, b_columns, what_.ldb, what_.stride_b) &&
           Layout(&lib_.d, what_.out, what_.m, what_.n, what_.ldd, what_.stride_d);
    if (what_.epilogue != Epilogue::kNone) {
      // The heuristics read alignments off these pointers.
      const void* aligned = reinterpret_cast<const void*>(what_.alignment);
      done = done && Set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(what_));
      if (what_.epilogue != Epilogue::kGeluGrad)
        done = done && SetPointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned) == CUBLAS_STATUS_SUCCESS &&
               Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(TypeOf(what_.out))) &&
               Set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, what_.stride_bias);
      if (what_.ld_aux > 0)
        done = done &&
               SetPointer(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned) == CUBLAS_STATUS_SUCCESS &&
               Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, what_.ld_aux);
    }
    uint32_t alignment = static_cast<uint32_t>(what_.alignment);
    done = done && cublasLtMatmulPreferenceCreate(&lib_.preference) == CUBLAS_STATUS_SUCCESS &&
           Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(what_.workspace_bytes)) &&
           Prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                  uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) &&
           Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment) &&
           Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment) &&
           Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment) &&
           Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    return done ? Status() : Status(Cat(kWho, " refuses the ", Name()));
  }

  // For this proposal.
  cublasStatus_t Ask(cublasLtHandle_t handle, int64_t proposal) {
    int found = 0;
    std::vector<cublasLtMatmulHeuristicResult_t> proposed(
        static_cast<size_t>(std::min<int64_t>(proposal + 1, kProposals)));
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, lib_.matmul, lib_.a, lib_.b, lib_.d, lib_.d, lib_.preference,
                                       static_cast<int>(proposed.size()), proposed.data(), &found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    proposed.resize(static_cast<size_t>(found));
    if (found <= proposal) AddDivided(handle, static_cast<size_t>(proposal) + 1, &proposed);
    if (static_cast<int64_t>(proposed.size()) <= proposal) return CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm_ = proposed[static_cast<size_t>(proposal)];
    return algorithm_.state;
  }

  // Makes the algorithm divide its sums; false if it cannot. Parts are joined through the work space, in
  // order.
  static bool Divide(cublasLtMatmulAlgo_t* algorithm, int32_t parts) {
    int32_t divides = 0;
    uint32_t schemes = 0;
    const uint32_t scheme =
        parts > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    const auto can = [&](cublasLtMatmulAlgoCapAttributes_t what, auto* value) {
      size_t written = 0;
      return cublasLtMatmulAlgoCapGetAttribute(algorithm, what, value, sizeof *value, &written) ==
             CUBLAS_STATUS_SUCCESS;
    };
    if (!can(CUBLASLT_ALGO_CAP_SPLITK_SUPPORT, &divides) || divides == 0 ||
        !can(CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK, &schemes) || (schemes & scheme) != scheme)
      return false;
    return cublasLtMatmulAlgoConfigSetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                sizeof parts) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigSetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                sizeof scheme) == CUBLAS_STATUS_SUCCESS;
  }

  // Adds what the library takes of the first algorithms with other numbers of parts, until there are
  // `wanted`.
  void AddDivided(cublasLtHandle_t handle, size_t wanted,
                  std::vector<cublasLtMatmulHeuristicResult_t>* proposed) {
    if (what_.m * what_.n * what_.batch > kMostResults || what_.k < kLeastTerms) return;
    const auto same = [](const cublasLtMatmulAlgo_t& a, const cublasLtMatmulAlgo_t& b) {
      return std::memcmp(&a, &b, sizeof a) == 0;
    };
    std::vector<cublasLtMatmulAlgo_t> undivided;
    for (size_t i = 0, of_library = proposed->size(); i < of_library; ++i) {
      cublasLtMatmulAlgo_t algorithm = (*proposed)[i].algo;
      if (!Divide(&algorithm, 1)) continue;
      const auto known = [&](const auto& other) { return same(other, algorithm); };
      if (std::any_of(undivided.begin(), undivided.end(), known)) continue;
      undivided.push_back(algorithm);
      for (int32_t parts : kParts) {
        if (!Divide(&algorithm, parts)) continue;
        if (std::any_of(proposed->begin(), proposed->end(), [&](const auto& p) { return known(p.algo); }))
          continue;
        cublasLtMatmulHeuristicResult_t divided = {};
        if (cublasLtMatmulAlgoCheck(handle, lib_.matmul, lib_.a, lib_.b, lib_.d, lib_.d, &algorithm,
                                    &divided) != CUBLAS_STATUS_SUCCESS ||
            divided.state != CUBLAS_STATUS_SUCCESS ||
            divided.workspaceSize > static_cast<size_t>(what_.workspace_bytes))
          continue;
        divided.algo = algorithm;
        proposed->push_back(divided);
        if (proposed->size() >= wanted) return;
      }
      if (undivided.size() == kAlgorithmsDivided) return;
    }
  }

  Status Choose(int device) {
    Handle handle = HandleOf(device);
    if (handle.status != CUBLAS_STATUS_SUCCESS) return Failed("no handle", handle.status);
    DriverCall call;
    proposal_ = ProposalFor(what_, device);
    cublasStatus_t status = Ask(handle.lt, proposal_);
    // What was kept by an earlier run may have been of a library that knew more.
    if (status != CUBLAS_STATUS_SUCCESS && what_.choice == kDecided && proposal_ > 0)
      status = Ask(handle.lt, 0);
    if (status != CUBLAS_STATUS_SUCCESS) return Failed(Cat("no algorithm for the ", Name()).c_str(), status);
    handle_ = handle.lt;
    device_ = device;
    return Status();
  }

  GemmDescriptor what_;
  Descriptors lib_;
  Status status_;
  int device_ = -1;        // the algorithm's
  int64_t proposal_ = -1;  // which it was to be
  bool settled_ = false;   // it has been launched, and stays
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulHeuristicResult_t algorithm_ = {};
};

}  // namespace

GemmLibrary DescribeGemmLibrary() {
  return {Cat(kWho, " ", cublasLtGetVersion(), ", parts 1"),
          kProposals + kAlgorithmsDivided * static_cast<int>(std::size(kParts))};
}

std::unique_ptr<Gemm> MakeGemm(const GemmDescriptor& descriptor) {
  return std::make_unique<CublasLtGemm>(descriptor);
}

}  // namespace oneflow_like::cuda
