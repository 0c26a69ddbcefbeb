// Timing the library's proposals, and the file of what was found.
#include "ops/cuda/product_choices.h"

#include <cuda_runtime_api.h>
#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/error.h"
#include "core/random.h"
#include "core/system/cache_folder.h"
#include "ops/cuda/driver_turn.h"
#include "ops/cuda/library_use.h"
#include "ops/reference.h"

namespace oneflow_like::cuda {
namespace {

constexpr double kWorthwhile = 0.98;    // of the first proposal's time: less is noise
constexpr double kRoundSeconds = 1e-3;  // of one proposal, about
constexpr int kRounds = 4, kMostRuns = 20;
// What took longer at its first turn, beside the fastest then, is not looked at again: 1.4 times, and what
// the host may take to enqueue several launches.
constexpr double kHopeless = 1.4, kHostSeconds = 2e-5;
constexpr int64_t kComparedBytes = 4 << 20;  // of results, from their beginning
constexpr int64_t kComparedResults = 8;      // of a batch; of larger ones only the first
constexpr int64_t kMostProposal = 1 << 10;   // none is meant by a larger number
const std::string kTogetherWork = "together ";
constexpr int64_t kPattern = 1 << 20;  // bytes of random numbers that operands repeat

static_assert(std::has_unique_object_representations_v<GemmDescriptor>, "its bytes are compared");
std::string BytesOf(const GemmDescriptor& product) {
  return std::string(reinterpret_cast<const char*>(&product), sizeof product);
}

const char* NameOf(Epilogue epilogue) {
  static const char* const names[] = {
      "",           " bias",           " gelu_bias",
      " gelu_grad", " gelu_grad_bias", " bias_grad or sums"};  // lines of " bias_grad" alone knew one way
  return names[static_cast<int>(epilogue)];
}

bool HasVector(const GemmDescriptor& product) {
  return product.epilogue != Epilogue::kNone && product.epilogue != Epilogue::kGeluGrad;
}

int64_t VectorElements(const GemmDescriptor& product) {
  return HasVector(product) ? product.m + (product.batch - 1) * product.stride_bias : 0;
}

// Where the operands lie in the scratch.
struct Layout {
  int64_t a, b, d, aux, bias, end;
};
Layout LayoutOf(const GemmDescriptor& g) {
  const auto in = static_cast<int64_t>(SizeOf(static_cast<DType>(g.in))),
             out = static_cast<int64_t>(SizeOf(static_cast<DType>(g.out)));
  int64_t end = 0;
  const auto place = [&](int64_t elements, int64_t size) {
    const int64_t at = end;
    end += (elements * size + 255) / 256 * 256;
    return at;
  };
  const auto matrix = [&](int64_t rows, int64_t columns, int64_t ld, int64_t stride) {
    return ld * (columns - 1) + rows + (g.batch - 1) * stride;
  };
  Layout at = {};
  at.a =
      place(g.transposed_a ? matrix(g.k, g.m, g.lda, g.stride_a) : matrix(g.m, g.k, g.lda, g.stride_a), in);
  at.b =
      place(g.transposed_b ? matrix(g.n, g.k, g.ldb, g.stride_b) : matrix(g.k, g.n, g.ldb, g.stride_b), in);
  at.d = place(matrix(g.m, g.n, g.ldd, g.stride_d), out);
  at.aux = place(g.ld_aux > 0 ? matrix(g.m, g.n, g.ld_aux, 0) : 0, out);
  at.bias = place(VectorElements(g), out);
  at.end = end;
  return at;
}

// Numbers of 0.25 to 0.5 in size: products of zeros take less power, and so less time, than real ones. Read
// in another type they are no infinities either.
std::vector<uint32_t> Pattern(DType type) {
  const uint32_t random = type == DType::kFloat32    ? 0x807FFFFFu
                          : type == DType::kBFloat16 ? 0x807F807Fu
                                                     : 0x83FF83FFu;
  const uint32_t exponent = type == DType::kFloat32    ? 0x3E800000u
                            : type == DType::kBFloat16 ? 0x3E803E80u
                                                       : 0x34003400u;
  std::vector<uint32_t> words(kPattern / sizeof(uint32_t));
  for (size_t i = 0; i < words.size(); ++i) words[i] = (RandomBits(11, 0, i) & random) | exponent;
  return words;
}

// Times launches between two events of a stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    good_ = cudaEventCreate(&from_) == cudaSuccess && cudaEventCreate(&to_) == cudaSuccess;
  }
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch() {
    for (cudaEvent_t event : {from_, to_})
      if (event != nullptr) cudaEventDestroy(event);
    cudaGetLastError();  // whatever failed shows in what the caller does next
  }
  // Of each of `runs` calls; below 0 where one fails.
  template <typename Launch>
  double SecondsOf(int runs, Launch&& launch) {
    if (!good_ || cudaEventRecord(from_, stream_) != cudaSuccess) return -1;
    for (int i = 0; i < runs; ++i)
      if (!launch()) return -1;
    float milliseconds = 0;
    if (cudaEventRecord(to_, stream_) != cudaSuccess || cudaEventSynchronize(to_) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, from_, to_) != cudaSuccess)
      return -1;
    return static_cast<double>(milliseconds) * 1e-3 / runs;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t from_ = nullptr, to_ = nullptr;
  bool good_ = false;
};

std::string LineOf(const LibraryChoice& choice) {
  const std::string text = Cat(choice.proposal, " ", choice.work);
  std::ostringstream line;
  line << std::hex << HashName(text) << " " << text;
  return line.str();
}

}  // namespace

// Asking takes a millisecond.
const std::string& CardOf(int device) {
  static std::mutex mutex;  // ranks on several threads launch their first products
  static auto* cards = new std::map<int, std::string>;
  std::lock_guard lock(mutex);
  std::string& card = (*cards)[device];
  if (!card.empty()) return card;
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    cudaGetLastError();
    static const auto* const unknown = new std::string("a card");
    return *unknown;
  }
  return card = Cat(properties.name, ", ", properties.multiProcessorCount, " multiprocessors");
}

cudaError_t FillWithNumbers(void* where, int64_t bytes, DType type, cudaStream_t stream) {
  char* const to = static_cast<char*>(where);
  const std::vector<uint32_t> pattern = Pattern(type);
  int64_t done = std::min(bytes, kPattern);
  cudaError_t error =
      cudaMemcpyAsync(to, pattern.data(), static_cast<size_t>(done), cudaMemcpyHostToDevice, stream);
  for (; error == cudaSuccess && done < bytes; done *= 2)
    error = cudaMemcpyAsync(to + done, to, static_cast<size_t>(std::min(done, bytes - done)),
                            cudaMemcpyDeviceToDevice, stream);
  return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;  // the pattern goes
}

std::vector<double> TimeInTurn(const std::vector<std::function<bool()>>& ways, cudaStream_t stream) {
  Stopwatch watch(stream);
  std::vector<double> seconds(ways.size(), std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < ways.size(); ++i) {
    if (watch.SecondsOf(1, ways[i]) < 0) continue;  // loads its code
    if (const double warm = watch.SecondsOf(1, ways[i]); warm >= 0) seconds[i] = warm;
  }
  const auto least = std::min_element(seconds.begin(), seconds.end());
  if (least == seconds.end() || std::isinf(*least)) return {};
  std::vector<size_t> hopeful;
  for (size_t i = 0; i < ways.size(); ++i)
    if (std::isfinite(seconds[i]) && (i == 0 || seconds[i] < kHopeless * *least + kHostSeconds))
      hopeful.push_back(i);
  const int runs = std::clamp(static_cast<int>(kRoundSeconds / std::max(*least, 1e-9)), 1, kMostRuns);
  // In turn, so that a clock that rises or falls is the same for all.
  for (int round = 0; round < kRounds && hopeful.size() > 1; ++round) {
    for (size_t i : hopeful) {
      const double each = watch.SecondsOf(runs, ways[i]);
      if (each < 0) return {};
      seconds[i] = round == 0 ? each : std::min(seconds[i], each);
    }
  }
  return seconds;
}

bool Agree(const std::vector<char>& first, const std::vector<char>& second, DType dtype) {
  if (first.size() != second.size()) return false;
  const int64_t elements = static_cast<int64_t>(first.size() / SizeOf(dtype));
  const auto line = [&](const std::vector<char>& of) {
    return TensorArg{const_cast<char*>(of.data()), dtype, {elements}, {0}, {elements}};
  };
  const TensorArg x = line(first), y = line(second);
  const int64_t apart = elements >> 21 | 1, looked_at = (elements + apart - 1) / apart;
  double squares = 0;
  for (int64_t i = 0; i < elements; i += apart) squares += LoadFloat(x, i) * LoadFloat(x, i);
  const double typical = std::sqrt(squares / static_cast<double>(std::max<int64_t>(looked_at, 1)));
  for (int64_t i = 0; i < elements; i += apart) {
    const double far = std::abs(LoadFloat(x, i) - LoadFloat(y, i));
    if (!(far <= (std::abs(LoadFloat(x, i)) + typical) / 64)) return false;
  }
  return true;
}

std::string WorkOf(const GemmDescriptor& g, int device) {
  static const auto* const version = new std::string(DescribeGemmLibrary().version);
  return Cat("product ", g.m, "x", g.n, "x", g.k, g.transposed_a ? " t" : " n", g.transposed_b ? "t" : "n",
             " ld ", g.lda, ",", g.ldb, ",", g.ldd, ",", g.ld_aux, " batch ", g.batch, ":", g.stride_a, ",",
             g.stride_b, ",", g.stride_d, " ", Name(static_cast<DType>(g.in)), ">",
             Name(static_cast<DType>(g.out)), g.tf32 ? " tf32" : "", NameOf(g.epilogue),
             g.stride_bias != 0 ? Cat(" apart ", g.stride_bias) : "", g.adds_c ? " adds" : "", " align ",
             g.alignment, " room ", g.workspace_bytes, " on ", CardOf(device), ", ", *version);
}

std::string TogetherWorkOf(const GemmDescriptor& batch, int device) {
  return kTogetherWork + WorkOf(batch, device);
}

void ProductChoices::Want(const GemmDescriptor& product) {
  std::lock_guard lock(mutex_);
  wanted_.try_emplace(BytesOf(product),
                      ChoosableWork{[product](int device) { return WorkOf(product, device); },
                                    [product](const LaunchContext& launch, void* scratch, int64_t bytes) {
                                      return TimeProposals(product, launch, scratch, bytes);
                                    }});
}

void ProductChoices::WantTogether(const GemmDescriptor& batch) {
  Want(kTogetherWork + BytesOf(batch), {[batch](int device) { return TogetherWorkOf(batch, device); },
                                        [batch](const LaunchContext& launch, void* scratch, int64_t bytes) {
                                          return TimeTogether(batch, launch, scratch, bytes);
                                        }});
}

void ProductChoices::Want(const std::string& key, ChoosableWork work) {
  std::lock_guard lock(mutex_);
  wanted_.try_emplace(key, std::move(work));
}

std::vector<LibraryChoice> ProductChoices::Open(int device) const {
  if (DescribeGemmLibrary().proposals < 2) return {};
  const std::map<std::string, int64_t> kept = ReadChoices(FileOfChoices());
  std::map<std::string, int64_t> open;
  std::lock_guard lock(mutex_);
  for (const auto& [key, wanted] : wanted_) {
    const std::string work = wanted.name(device);
    if (decided_.count(work) != 0) continue;
    const auto found = kept.find(work);
    open[work] = found == kept.end() ? -1 : found->second;
  }
  std::vector<LibraryChoice> choices;
  for (const auto& [work, proposal] : open) choices.push_back({work, proposal});
  return choices;
}

const ChoosableWork* ProductChoices::Find(const std::string& work, int device) const {
  std::lock_guard lock(mutex_);
  for (const auto& [key, wanted] : wanted_)
    if (wanted.name(device) == work) return &wanted;
  return nullptr;
}

void ProductChoices::Decide(const std::vector<LibraryChoice>& choices, bool keep) {
  {
    std::lock_guard lock(mutex_);
    for (const LibraryChoice& choice : choices) decided_.try_emplace(choice.work, choice.proposal);
  }
  const std::string path = FileOfChoices();
  if (!keep || path.empty() || AddChoices(path, choices)) return;
  LOG_FIRST_N(WARNING, 1) << "choices between the library's products cannot be kept in " << path
                          << ": each run times them again";
}

void ProductChoices::Settle(const std::string& work) {
  std::lock_guard lock(mutex_);
  decided_.try_emplace(work, 0);
}

int64_t ProductChoices::Decided(const std::string& work) const {
  std::lock_guard lock(mutex_);
  const auto found = decided_.find(work);
  return found == decided_.end() ? 0 : found->second;
}

int64_t ProductChoices::OtherProposals() const {
  std::lock_guard lock(mutex_);
  return std::count_if(decided_.begin(), decided_.end(), [](const auto& entry) { return entry.second > 0; });
}

int64_t ProductChoices::Together() const {
  std::lock_guard lock(mutex_);
  return std::count_if(decided_.begin(), decided_.end(), [](const auto& entry) {
    return entry.second > 0 && entry.first.starts_with(kTogetherWork);
  });
}

void ProductChoices::Forget() {
  std::lock_guard lock(mutex_);
  wanted_.clear();
  decided_.clear();
}

ProductChoices& Choices() {
  static auto* const choices = new ProductChoices;
  return *choices;
}

int64_t ProposalFor(const GemmDescriptor& product, int device) {
  return product.choice != kDecided ? product.choice : Choices().Decided(WorkOf(product, device));
}

namespace {

// What is compared of results: the beginning of d, or of each d of a batch, and the vectors.
struct Results {
  std::vector<char> d, vector;
};

// The results of one call, by itself: d is zero before, to which a product may add, and so are sums.
bool ResultsOf(const std::function<bool()>& way, const GemmDescriptor& g, const GemmOperands& p,
               const Layout& at, cudaStream_t stream, Results* results) {
  const auto size = static_cast<int64_t>(SizeOf(static_cast<DType>(g.out)));
  const auto clear = [&](void* to, int64_t bytes) {
    return cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream) == cudaSuccess;
  };
  const auto copy = [&](char* to, const void* from, size_t bytes) {
    return bytes == 0 || cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess;
  };
  results->vector.resize(static_cast<size_t>(VectorElements(g) * size));
  const bool sums = g.epilogue == Epilogue::kBiasGradA;
  if (!clear(p.d, at.aux - at.d) || (sums && !clear(p.bias, VectorElements(g) * size)) || !way() ||
      !copy(results->vector.data(), p.bias, results->vector.size()))
    return false;
  // Of large batches, and where results lie in one another, the beginning of all.
  const int64_t count = g.batch <= kComparedResults && g.stride_d >= g.ldd * g.n ? g.batch : 1;
  const int64_t apart = g.stride_d * size, rest = at.aux - at.d - (count - 1) * apart;
  const int64_t each = std::min(rest, kComparedBytes / count) / size * size;
  results->d.resize(static_cast<size_t>(each * count));
  for (int64_t i = 0; i < count; ++i)
    if (!copy(results->d.data() + i * each, static_cast<char*>(p.d) + i * apart, static_cast<size_t>(each)))
      return false;
  return cudaStreamSynchronize(stream) == cudaSuccess;
}

// Those of product `i` of a batch.
GemmOperands OperandsAt(const GemmDescriptor& g, const GemmOperands& p, int64_t i) {
  const auto in = static_cast<DType>(g.in), out = static_cast<DType>(g.out);
  GemmOperands at = p;
  at.a = ElementAt(p.a, i * g.stride_a, in);
  at.b = ElementAt(p.b, i * g.stride_b, in);
  at.c = ElementAt(p.c, i * g.stride_d, out);
  at.d = ElementAt(p.d, i * g.stride_d, out);
  at.bias = ElementAt(p.bias, i * g.stride_bias, out);
  return at;
}

// The ways of a product by number.
struct NumberedProducts {
  std::vector<int64_t> numbers;
  std::vector<std::unique_ptr<Gemm>> products;
};
NumberedProducts WaysOf(const GemmDescriptor& product) {
  NumberedProducts ways;
  for (const int64_t first : {int64_t{0}, kSumsApart}) {
    if (first == kSumsApart && product.epilogue != Epilogue::kBiasGradA) break;
    for (int64_t i = 0; i < DescribeGemmLibrary().proposals; ++i) {
      GemmDescriptor numbered = product;
      numbered.choice = first + i;
      std::unique_ptr<Gemm> way = MakeProduct(numbered);
      if (!way->Check().ok()) break;  // there are no more
      ways.numbers.push_back(numbered.choice);
      ways.products.push_back(std::move(way));
    }
  }
  return ways;
}

}  // namespace

namespace {

// Of `product`, on operands of its own. With `one_by_one`, another way to do the batch: that is way 0, and
// numbers are one more.
std::map<int64_t, double> TimeWays(const GemmDescriptor& product, const std::string& work,
                                   const std::function<bool(const GemmOperands&)>& one_by_one,
                                   const LaunchContext& launch, void* scratch, int64_t bytes) {
  const Layout at = LayoutOf(product);
  char* const base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(scratch) + 255) / 256 * 256);
  if (base + at.end > static_cast<char*>(scratch) + bytes) return {};
  const DriverCall call;
  if (FillWithNumbers(base, at.end, static_cast<DType>(product.in), launch.stream) != cudaSuccess) return {};
  GemmOperands operands;
  operands.a = base + at.a;
  operands.b = base + at.b;
  operands.c = product.adds_c ? base + at.d : nullptr;
  operands.d = base + at.d;
  operands.bias = HasVector(product) ? base + at.bias : nullptr;
  operands.aux = product.ld_aux > 0 ? base + at.aux : nullptr;
  operands.workspace = launch.workspace;
  const NumberedProducts all = WaysOf(product);
  std::vector<std::function<bool()>> ways;
  std::vector<int64_t> numbers;
  if (one_by_one) {
    ways.push_back([&] { return one_by_one(operands); });
    numbers.push_back(0);
  }
  for (size_t i = 0; i < all.products.size(); ++i) {
    ways.push_back([&, way = all.products[i].get()] { return way->Launch(operands, launch).ok(); });
    numbers.push_back(all.numbers[i] + (one_by_one ? 1 : 0));
  }
  const std::vector<double> timed = TimeInTurn(ways, launch.stream);
  std::map<int64_t, double> seconds;
  std::map<int64_t, const std::function<bool()>*> of_number;
  for (size_t i = 0; i < timed.size(); ++i)
    if (std::isfinite(timed[i])) {
      seconds[numbers[i]] = timed[i];
      of_number[numbers[i]] = &ways[i];
    }
  if (seconds.size() < 2) return seconds;
  Results first, fastest;
  if (!ResultsOf(*of_number.begin()->second, product, operands, at, launch.stream, &first)) return {};
  const DType out = static_cast<DType>(product.out);
  while (!seconds.empty()) {
    const int64_t number = FastestProposal(seconds);
    if (number == of_number.begin()->first) break;
    if (!ResultsOf(*of_number.at(number), product, operands, at, launch.stream, &fastest)) return {};
    if (Agree(first.d, fastest.d, out) && Agree(first.vector, fastest.vector, out)) break;
    LOG(WARNING) << "proposal " << number << " for " << work
                 << " does not agree with the first one on this card, and is not used";
    seconds.erase(number);
  }
  return seconds;
}

std::map<int64_t, double> Counted(std::map<int64_t, double> seconds) {
  if (seconds.size() > 1) Count(LibraryUse::kTimedProduct);
  return seconds;
}

}  // namespace

std::map<int64_t, double> TimeProposals(const GemmDescriptor& product, const LaunchContext& launch,
                                        void* scratch, int64_t bytes) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  return Counted(TimeWays(product, WorkOf(product, device), nullptr, launch, scratch, bytes));
}

std::map<int64_t, double> TimeTogether(const GemmDescriptor& batch, const LaunchContext& launch,
                                       void* scratch, int64_t bytes) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  GemmDescriptor one = batch;
  one.batch = 1;
  one.stride_a = one.stride_b = one.stride_d = one.stride_bias = 0;
  const std::map<int64_t, double> alone = TimeWays(one, WorkOf(one, device), nullptr, launch, scratch, bytes);
  if (alone.empty()) return {};
  one.choice = FastestProposal(alone);
  const std::unique_ptr<Gemm> product = MakeProduct(one);
  const auto one_by_one = [&](const GemmOperands& all) {
    for (int64_t i = 0; i < batch.batch; ++i)
      if (!product->Launch(OperandsAt(batch, all, i), launch).ok()) return false;
    return true;
  };
  return Counted(TimeWays(batch, TogetherWorkOf(batch, device), one_by_one, launch, scratch, bytes));
}

int64_t FastestProposal(const std::map<int64_t, double>& seconds) {
  const auto least = std::min_element(seconds.begin(), seconds.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto usual = seconds.find(0);
  return usual != seconds.end() && least->second >= kWorthwhile * usual->second ? 0 : least->first;
}

std::string FileOfChoices() {
  const std::string folder = CacheFolder();
  return folder.empty() ? "" : folder + "/library_products";
}

std::map<std::string, int64_t> ReadChoices(const std::string& path) {
  std::map<std::string, int64_t> choices;
  if (path.empty()) return choices;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string sum;
    LibraryChoice choice;
    if (!(words >> sum >> choice.proposal) || !std::getline(words >> std::ws, choice.work)) continue;
    if (choice.proposal < 0 || choice.proposal > kMostProposal || LineOf(choice) != line) continue;
    choices[choice.work] = choice.proposal;
  }
  return choices;
}

// Under another name first, and renamed: whoever reads meanwhile has the old file or the new one. If two
// processes add at one time, what one adds may be lost; later runs time it again.
bool AddChoices(const std::string& path, const std::vector<LibraryChoice>& choices) {
  std::map<std::string, int64_t> all = ReadChoices(path);
  const std::map<std::string, int64_t> before = all;
  for (const LibraryChoice& choice : choices) all.try_emplace(choice.work, choice.proposal);
  if (all == before) return true;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  static std::atomic<int> number{0};
  const std::string temporary = Cat(path, ".", getpid(), ".", number++);
  bool written = false;
  {
    std::ofstream file(temporary);
    for (const auto& [work, proposal] : all) file << LineOf({work, proposal}) << "\n";
    written = file.flush().good();
  }
  if (written) {
    std::filesystem::rename(temporary, path, error);
    if (!error) return true;
  }
  std::filesystem::remove(temporary, error);
  return false;
}

}  // namespace oneflow_like::cuda
