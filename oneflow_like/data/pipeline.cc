// The pipeline: a thread that keeps oneTBB's parallel_pipeline going while there is room for batches, and the
// queue from which they are taken.
//
// What flows through the stages is a chunk: some rows of one batch, which are read and decoded right where
// the batch has them. Chunks are issued and put together in order, and worked on in parallel. No stage ever
// waits: a full window ends the run of the stages, and room begins another, so a lack of worker threads
// cannot stop anything.
#include "oneflow_like/data/pipeline.h"

#include <glog/logging.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_pipeline.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "core/boxes/copy_box.h"
#include "core/random.h"

namespace oneflow_like {
namespace {

constexpr int64_t kChunkBytes = 1 << 16;  // least bytes of samples that are worth a chunk
constexpr int kMostSubstitutes = 100;
constexpr int64_t kMostBatch = int64_t{1} << 48;  // elements of a tensor
constexpr int kMostThreads = 4096;
constexpr size_t kMostLogged = 20;

// oneTBB sees to it that what a thread did is seen by the one that goes on with it. ThreadSanitizer does not
// look into its library and has to be told.
#if defined(__SANITIZE_THREAD__)
std::atomic<int64_t> handed_over{0};
void HandOver() { handed_over.fetch_add(1, std::memory_order_acq_rel); }
#else
void HandOver() {}
#endif

// Memory of batches, used again. Pieces that the user still holds may outlive the pipeline, so they share it.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  std::shared_ptr<void> Take(size_t bytes) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& b) { return b.second == bytes; });
      if (found != free_.end()) {
        void* data = found->first.release();
        free_.erase(found);
        return Wrap(static_cast<char*>(data), bytes);
      }
    }
    return Wrap(new char[std::max<size_t>(1, bytes)], bytes);
  }

 private:
  std::shared_ptr<void> Wrap(char* data, size_t bytes) {
    return std::shared_ptr<void>(data, [pool = shared_from_this(), bytes](void* done) {
      std::lock_guard<std::mutex> lock(pool->mutex_);
      pool->free_.emplace_back(static_cast<char*>(done), bytes);
    });
  }

  std::mutex mutex_;  // the user's thread gives back, the pipeline's takes
  std::vector<std::pair<std::unique_ptr<char[]>, size_t>> free_;
};

// A part of a field that this process feeds.
struct Want {
  size_t field = 0;
  Box box;
  bool whole_rows = false;  // all of each sample in it
};

// Rows [begin, end) of every batch, and who wants some of them.
struct Chunk {
  int64_t begin = 0, end = 0;
  std::vector<size_t> wants;
};

}  // namespace

struct DataPipeline::Impl {
  struct Batch;
  // A chunk of one batch on its way.
  struct Work {
    Batch* batch = nullptr;
    const Chunk* chunk = nullptr;
    std::exception_ptr error;
    std::vector<std::pair<int64_t, std::string>> broken;  // samples by their index
  };

  struct Batch {
    int64_t first = 0;               // number of its first sample
    std::vector<HostTensor> values;  // by want
    std::vector<Work> work;          // by chunk
    std::exception_ptr error;
  };

  std::shared_ptr<const SampleSource> source;
  DataPipelineOptions options;
  std::vector<Want> wants;
  std::vector<Chunk> chunks;
  std::vector<HostTensor> fills;  // by field, a row behind the end
  int64_t end = 0;                // number of the sample behind the last
  std::shared_ptr<BufferPool> pool = std::make_shared<BufferPool>();

  // Shared by the user's thread, the runner and the workers.
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> stop{false};            // looked at between samples, too
  std::exception_ptr failure;               // of the pipeline itself
  std::deque<std::unique_ptr<Batch>> live;  // issued and not taken, in order
  size_t ready = 0;                         // of these, complete
  size_t issued_chunks = 0;                 // of live.back()
  int64_t issued = 0;                       // first sample of the next batch
  std::set<int64_t> broken_indices;
  std::vector<std::string> broken_texts;
  // The user's thread alone.
  int64_t position = 0, rows = 0;
  size_t logged = 0;  // of broken_texts
  std::thread runner;

  void Prepare();
  Dims ShapeOf(const SampleField& field) const;
  void WantOf(size_t field);
  void MakeChunks();
  std::unique_ptr<Batch> NewBatch(int64_t first) const;
  Work* Issue();
  void ReadChunk(Work* work);
  void ReadRow(Work* work, int64_t row, std::vector<HostTensor>& scratch);
  void ReadSample(Work* work, int64_t number, std::span<void* const> to) const;
  void PutTogether(Work* work);
  void CountBroken(Work* work);
  void LogBroken();
  void RunStages();
  void Run();
};

// Returns the shape of a field for a whole batch.
Dims DataPipeline::Impl::ShapeOf(const SampleField& field) const {
  Dims shape = {options.batch};
  for (int64_t extent : field.shape) shape.push_back(extent);
  return shape;
}

void DataPipeline::Impl::WantOf(size_t field) {
  const SampleField& f = source->fields()[field];
  const Dims shape = ShapeOf(f);
  std::vector<Box> boxes = {Box::Whole(shape)};
  if (!options.needs.empty()) {
    auto found = options.needs.find(f.name);
    boxes = found == options.needs.end() ? std::vector<Box>() : found->second;
  }
  for (const Box& box : boxes) {
    if (box.begin.rank() != shape.rank() || !(box.Intersect(Box::Whole(shape)) == box))
      Fail("input '", f.name, "' needs the box ", box.str(), ", but ", options.batch,
           " samples of the data are ", Name(f.dtype), shape.str(), ", the batch first");
    Want want{field, box, true};
    for (int a = 1; a < shape.rank(); ++a) want.whole_rows = want.whole_rows && box.extent[a] == shape[a];
    if (!box.empty()) wants.push_back(want);
  }
}

void DataPipeline::Impl::Prepare() {
  CheckSource("the data of a pipeline", source.get());
  const auto& fields = source->fields();
  if (options.batch < 1) Fail("a pipeline has a batch of ", options.batch, ", must be at least 1");
  if (options.batch > kMostBatch)
    Fail("a pipeline has a batch of ", options.batch, ", must be at most ", kMostBatch);
  if (options.start < 0) Fail("a pipeline starts at sample ", options.start, ", must be 0 or more");
  if (options.epochs < 0) Fail("a pipeline has ", options.epochs, " epochs, must be 0 (no end) or more");
  if (options.ahead < 1) Fail("a pipeline reads ", options.ahead, " batches ahead, must be at least 1");
  if (options.threads < 1 || options.threads > kMostThreads)
    Fail("a pipeline has ", options.threads, " threads, must be at least 1 and at most ", kMostThreads);
  if (!(options.broken_share >= 0 && options.broken_share <= 1))
    Fail("broken_share of a pipeline is ", options.broken_share, ", must lie between 0 and 1");
  auto known = [&](const std::string& name) {
    return std::any_of(fields.begin(), fields.end(), [&](const SampleField& f) { return f.name == name; });
  };
  std::string names;
  for (const SampleField& f : fields) names += Cat(names.empty() ? "'" : ", '", f.name, "'");
  for (const auto& [name, boxes] : options.needs)
    if (!known(name) && !boxes.empty()) Fail("input '", name, "' is needed, but the data has ", names);
  for (const auto& [name, value] : options.fill)
    if (!known(name)) Fail("field '", name, "' is to be filled with ", value, ", but the data has ", names);
  for (size_t f = 0; f < fields.size(); ++f) {
    WantOf(f);
    fills.push_back(HostTensor::Make(fields[f].dtype, fields[f].shape));
    if (auto fill = options.fill.find(fields[f].name); fill != options.fill.end())
      FillWith(fills.back(), fill->second);
  }
  const int64_t samples = source->samples(), most = std::numeric_limits<int64_t>::max() / 4;
  if (options.start > most || (options.epochs > 0 && samples > most / options.epochs))
    Fail("a pipeline of ", options.epochs, " epochs of ", samples, " samples from sample ", options.start,
         " on is too long to count");
  end = options.epochs == 0 ? std::numeric_limits<int64_t>::max() / 2 : options.epochs * samples;
  issued = position = options.start;
  MakeChunks();
}

// The rows that anybody wants, in pieces small enough for all threads to have some.
void DataPipeline::Impl::MakeChunks() {
  size_t sample = 1;
  for (const SampleField& f : source->fields()) sample += f.bytes();
  std::vector<Box> rows;
  for (const Want& want : wants) rows.push_back({{want.box.begin[0]}, {want.box.extent[0]}});
  rows = Disjoint(rows);
  int64_t all = 0;
  for (const Box& range : rows) all += range.extent[0];
  const int64_t most =
      std::max<int64_t>({1, all / (4 * options.threads), kChunkBytes / static_cast<int64_t>(sample)});
  for (const Box& range : rows)
    for (int64_t at = range.begin[0], last = at + range.extent[0]; at < last; at += most)
      chunks.push_back({at, std::min(last, at + most), {}});
  for (Chunk& chunk : chunks)
    for (size_t w = 0; w < wants.size(); ++w) {
      const Box& box = wants[w].box;
      if (box.begin[0] < chunk.end && chunk.begin < box.begin[0] + box.extent[0]) chunk.wants.push_back(w);
    }
  // A process that needs nothing still counts batches.
  if (chunks.empty()) chunks.push_back({0, 0, {}});
}

std::unique_ptr<DataPipeline::Impl::Batch> DataPipeline::Impl::NewBatch(int64_t first) const {
  auto batch = std::make_unique<Batch>();
  batch->first = first;
  for (const Want& want : wants) {
    HostTensor values{source->fields()[want.field].dtype, want.box.extent, nullptr};
    values.data = pool->Take(values.bytes());
    batch->values.push_back(values);
  }
  batch->work.resize(chunks.size());
  for (size_t c = 0; c < chunks.size(); ++c) {
    batch->work[c].batch = batch.get();
    batch->work[c].chunk = &chunks[c];
  }
  return batch;
}

// The next chunk; nullptr when there is no room or no more.
DataPipeline::Impl::Work* DataPipeline::Impl::Issue() {
  std::lock_guard<std::mutex> lock(mutex);
  if (stop || failure) return nullptr;
  if (live.empty() || issued_chunks == chunks.size()) {
    if (live.size() >= static_cast<size_t>(options.ahead) || issued >= end) return nullptr;
    live.push_back(NewBatch(issued));
    issued += options.batch;
    issued_chunks = 0;
  }
  return &live.back()->work[issued_chunks++];
}

void DataPipeline::Impl::ReadChunk(Work* work) {
  try {
    std::vector<HostTensor> scratch(source->fields().size());
    for (int64_t row = work->chunk->begin; row < work->chunk->end; ++row) {
      if (stop) break;
      ReadRow(work, row, scratch);
    }
  } catch (...) {
    work->error = std::current_exception();
  }
}

// In place where a want has all of the sample, else by way of `scratch`.
void DataPipeline::Impl::ReadRow(Work* work, int64_t row, std::vector<HostTensor>& scratch) {
  const auto& fields = source->fields();
  std::vector<void*> to(fields.size(), nullptr);
  auto has = [&](const Want& want) {
    return row >= want.box.begin[0] && row < want.box.begin[0] + want.box.extent[0];
  };
  for (size_t w : work->chunk->wants) {
    const Want& want = wants[w];
    if (!want.whole_rows || !has(want)) continue;
    to[want.field] =
        work->batch->values[w].as<char>() + (row - want.box.begin[0]) * fields[want.field].bytes();
  }
  for (size_t f = 0; f < fields.size(); ++f) {
    if (to[f] != nullptr) continue;
    if (!scratch[f].data) scratch[f] = HostTensor::Make(fields[f].dtype, fields[f].shape);
    to[f] = scratch[f].data.get();
  }
  const int64_t number = work->batch->first + row;
  if (number < end) {
    ReadSample(work, number, to);
  } else {
    for (size_t f = 0; f < fields.size(); ++f)
      if (fields[f].bytes() > 0) std::memcpy(to[f], fills[f].data.get(), fields[f].bytes());
  }
  for (size_t w : work->chunk->wants) {
    const Want& want = wants[w];
    if (want.whole_rows || !has(want)) continue;
    Box row_box = want.box, sample = Box::Whole(work->batch->values[w].shape);
    row_box.begin[0] = row;
    row_box.extent[0] = sample.extent[0] = 1;
    sample.begin[0] = row;
    for (int a = 0; a < fields[want.field].shape.rank(); ++a)
      sample.extent[a + 1] = fields[want.field].shape[a];
    CopyBox(fields[want.field].dtype, row_box, {to[want.field], sample},
            {work->batch->values[w].data.get(), want.box});
  }
}

// The sample of that number or, for a broken one, another that its index draws.
void DataPipeline::Impl::ReadSample(Work* work, int64_t number, std::span<void* const> to) const {
  const int64_t samples = source->samples();
  SampleId id{options.seed, number / samples, number % samples};
  if (options.shuffle) id.index = ShuffledIndex(id.index, samples, options.seed, id.epoch);
  const uint64_t key = RandomKey(RandomKey(options.seed, HashName("substitutes")), id.index);
  for (int attempt = 0;; ++attempt) {
    try {
      return source->Read(id, to);
    } catch (const BrokenSample& error) {
      if (options.broken_share == 0 || attempt == kMostSubstitutes) throw;
      work->broken.push_back({id.index, error.what()});
    }
    const Philox4 draw = Philox(key, attempt, id.epoch);
    id.index = static_cast<int64_t>((uint64_t{draw.v[0]} << 32 | draw.v[1]) % static_cast<uint64_t>(samples));
  }
}

// In order, so that what is counted and thrown depends on no timing. REQUIRES: locked.
void DataPipeline::Impl::CountBroken(Work* work) {
  const int64_t most = static_cast<int64_t>(options.broken_share * static_cast<double>(source->samples()));
  for (const auto& [index, text] : work->broken) {
    if (!broken_indices.insert(index).second) continue;
    broken_texts.push_back(text);
    const int64_t met = static_cast<int64_t>(broken_texts.size());
    if (met <= most || work->error) continue;
    work->error = std::make_exception_ptr(
        Error(Cat(met, " samples are broken, but at most ", most, " of ", source->samples(),
                  " may be (broken_share ", options.broken_share, "); the last is: ", text)));
  }
}

void DataPipeline::Impl::PutTogether(Work* work) {
  std::lock_guard<std::mutex> lock(mutex);
  CountBroken(work);
  Batch* batch = work->batch;
  if (work->error && !batch->error) batch->error = work->error;
  if (work != &batch->work.back() || stop) return;
  ++ready;
  changed.notify_all();
}

// Until there is no more room, or no more to read.
void DataPipeline::Impl::RunStages() {
  namespace tbb = oneapi::tbb;
  auto issue = [this](tbb::flow_control& control) {
    HandOver();
    Work* work = nullptr;
    try {
      work = Issue();
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      failure = std::current_exception();
    }
    if (work == nullptr) control.stop();
    HandOver();
    return work;
  };
  auto read = [this](Work* work) {
    HandOver();
    ReadChunk(work);
    HandOver();
    return work;
  };
  auto put_together = [this](Work* work) {
    HandOver();
    PutTogether(work);
    HandOver();
  };
  const auto stages = tbb::make_filter<void, Work*>(tbb::filter_mode::serial_in_order, issue) &
                      tbb::make_filter<Work*, Work*>(tbb::filter_mode::parallel, read) &
                      tbb::make_filter<Work*, void>(tbb::filter_mode::serial_in_order, put_together);
  HandOver();
  tbb::parallel_pipeline(static_cast<size_t>(2 * options.threads), stages);
  HandOver();
}

void DataPipeline::Impl::Run() {
  namespace tbb = oneapi::tbb;
  // More threads than cores, as for slow disks, only where they are allowed.
  constexpr auto kMost = tbb::global_control::max_allowed_parallelism;
  std::optional<tbb::global_control> more;
  const size_t threads = static_cast<size_t>(options.threads);
  if (threads > tbb::global_control::active_value(kMost)) more.emplace(kMost, threads);
  tbb::task_arena arena(options.threads, 1);
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed.notify_all();  // of a failure
      changed.wait(lock, [&] {
        return stop || (!failure && issued < end && live.size() < static_cast<size_t>(options.ahead));
      });
      if (stop) return;
    }
    try {
      arena.execute([this] { RunStages(); });
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      failure = std::current_exception();
    }
  }
}

DataPipeline::DataPipeline(std::shared_ptr<const SampleSource> source, const DataPipelineOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->source = std::move(source);
  impl_->options = options;
  impl_->Prepare();
  impl_->runner = std::thread([impl = impl_.get()] { impl->Run(); });
}

DataPipeline::~DataPipeline() {
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stop = true;
    impl_->changed.notify_all();
  }
  impl_->runner.join();
}

FeedPieces DataPipeline::Next() {
  Impl& impl = *impl_;
  if (!More())
    Fail("the data is at its end: ", impl.options.epochs, " epochs of ", impl.source->samples(), " samples");
  std::unique_ptr<Impl::Batch> batch;
  {
    std::unique_lock<std::mutex> lock(impl.mutex);
    impl.changed.wait(lock, [&] { return impl.ready > 0 || impl.failure; });
    if (impl.ready == 0) std::rethrow_exception(impl.failure);
    if (impl.live.front()->error) std::rethrow_exception(impl.live.front()->error);  // it stays
    batch = std::move(impl.live.front());
    impl.live.pop_front();
    --impl.ready;
    impl.changed.notify_all();
  }
  impl.LogBroken();
  FeedPieces pieces;
  const auto& fields = impl.source->fields();
  for (size_t w = 0; w < impl.wants.size(); ++w)
    pieces[fields[impl.wants[w].field].name].push_back({impl.wants[w].box, batch->values[w]});
  impl.rows = std::min(impl.options.batch, impl.end - impl.position);
  impl.position += impl.options.batch;
  return pieces;
}

std::vector<SourceFact> DataPipeline::Facts() const {
  const DataPipelineOptions& o = impl_->options;
  const std::string prefix = "DataPipelineOptions::";
  const SourceFact compare = {prefix + "compare", o.compare ? "true" : "false"};
  if (!o.compare) return {compare};
  std::vector<SourceFact> facts = FactsOf(*impl_->source);
  facts.insert(facts.begin(), compare);
  facts.push_back({prefix + "batch", Cat(o.batch)});
  facts.push_back({prefix + "seed", Cat(o.seed)});
  facts.push_back({prefix + "shuffle", o.shuffle ? "true" : "false"});
  facts.push_back({prefix + "epochs", Cat(o.epochs)});
  facts.push_back({prefix + "start", Cat(impl_->position)});
  return facts;
}

std::optional<Dims> DataPipeline::ShapeOf(const std::string& input) const {
  for (const SampleField& field : impl_->source->fields())
    if (field.name == input) return impl_->ShapeOf(field);
  return std::nullopt;
}

bool DataPipeline::More() const { return impl_->position < impl_->end; }
int64_t DataPipeline::position() const { return impl_->position; }
int64_t DataPipeline::rows() const { return impl_->rows; }

void DataPipeline::Impl::LogBroken() {
  std::lock_guard<std::mutex> lock(mutex);
  for (; logged < std::min(broken_texts.size(), kMostLogged); ++logged)
    LOG(WARNING) << "a broken sample is left out: " << broken_texts[logged];
}

std::vector<std::string> DataPipeline::broken() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->broken_texts;
}

int DataThreads(int cores, int kernel_threads) { return std::max(1, cores - kernel_threads); }

}  // namespace oneflow_like
