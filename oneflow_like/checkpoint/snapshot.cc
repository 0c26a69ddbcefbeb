#include "oneflow_like/checkpoint/snapshot.h"

#include <zlib.h>

#include <algorithm>

#include "actor/net/talk/job.h"
#include "actor/step.h"
#include "core/formatted.h"
#include "core/system/host_memory.h"

namespace oneflow_like {
namespace {

uint32_t Crc(uint32_t before, const void* data, int64_t bytes) {
  return static_cast<uint32_t>(crc32(before, static_cast<const Bytef*>(data), static_cast<uInt>(bytes)));
}

}  // namespace

Snapshot::Snapshot(ModelImpl* model, const std::string& folder, const Team& team) {
  const Job* job = model->options.job.get();
  file_ =
      Formatted("model-%05d-of-%05d.safetensors", (job ? job->process() : 0) + 1, job ? job->processes() : 1);
  for (const auto& [name, variable] : model->variables) AddGiven(*model, model->Placed(name), team);
  // What a step asks for at once lies together.
  std::stable_sort(given_.begin(), given_.end(), [](const Given& a, const Given& b) {
    return std::pair(a.rank, a.variable) < std::pair(b.rank, b.variable);
  });
  std::vector<SafetensorsWriter::Entry> entries;
  for (size_t i = 0; i < given_.size(); ++i) {
    entries.push_back({given_[i].key, given_[i].dtype, given_[i].box.extent});
    AddChunks(i);
  }
  writer_ =
      std::make_unique<SafetensorsWriter>(folder + "/" + file_, entries, CheckpointIndex::FileMetadata());
}

void Snapshot::AddGiven(const ModelImpl& model, const ModelVariable& variable, const Team& team) {
  const std::string& name = variable.node.name;
  const Job* job = model.options.job.get();
  const int hosted = model.mesh.size() / (job ? job->processes() : 1);
  for (Part& part : PartsOf(model, variable)) {
    std::erase_if(part.holders, [&](int rank) {
      return !std::binary_search(team.processes.begin(), team.processes.end(), rank / hosted);
    });
    if (part.holders.empty()) continue;
    // Of those who have it, the process that has least to write so far: the same on all of the team.
    const int giver = *std::min_element(part.holders.begin(), part.holders.end(), [&](int a, int b) {
      return std::pair(to_write_[a / hosted], a) < std::pair(to_write_[b / hosted], b);
    });
    to_write_[giver / hosted] += part.box.elements() * static_cast<int64_t>(SizeOf(variable.dtype));
    if (giver / hosted != team.me) continue;
    const bool whole = part.box == Box::Whole(variable.shape);
    Given given{name,
                whole ? name : Cat(name, "@", part.box.begin.str()),
                variable.dtype,
                variable.shape,
                giver,
                part.box,
                model.store->Find(giver, name)->box,
                static_cast<const char*>(model.store->Variable(giver, name)),
                model.store->device(giver),
                {}};
    if (given.device->kind() != "cpu" && !staging_)
      staging_ = given.device->AllocateHost(kChecksumBytes, "saving");
    given_.push_back(std::move(given));
  }
}

// Blocks of one checksum each, unless what is given lies in several places.
void Snapshot::AddChunks(size_t index) {
  Given& given = given_[index];
  const size_t first = chunks_.size();
  int runs = 0;
  ForEachRun(given.box, given.piece, INT64_MAX, [&](const Box&) { ++runs; });
  if (runs > 1) {
    chunks_.push_back({index, 0, given.bytes()});
  } else {
    given.checksums.resize((given.bytes() + kChecksumBytes - 1) / kChecksumBytes);
    for (int64_t at = 0; at < given.bytes(); at += kChecksumBytes)
      chunks_.push_back({index, at, std::min(kChecksumBytes, given.bytes() - at)});
  }
  auto [place, added] = of_variable_.emplace(std::pair(given.rank, given.variable), std::pair(first, first));
  place->second.second = chunks_.size();
}

bool Snapshot::BeginCopies() {
  std::map<int, int64_t> bytes;
  for (const Given& given : given_)
    if (given.device->kind() != "cpu") bytes[given.rank] += given.bytes();
  if (bytes.empty()) return false;
  try {
    for (const auto& [rank, all] : bytes) {
      const Given& first = *std::find_if(given_.begin(), given_.end(),
                                         [&, rank = rank](const Given& given) { return given.rank == rank; });
      copies_[rank].memory = first.device->AllocateHost(static_cast<size_t>(all), "saving");
      copies_[rank].stream = first.device->MakeStream("saves");
    }
  } catch (const ShortOfMemory&) {
    copies_.clear();
    return false;
  }
  std::map<int, int64_t> at;
  for (Given& given : given_) {
    if (given.device->kind() == "cpu") continue;
    Copies& copies = copies_[given.rank];
    char* to = static_cast<char*>(copies.memory->data()) + at[given.rank];
    CopyGiven(given, to, copies.stream.get());
    given.copied = to;
    at[given.rank] += given.bytes();
    std::unique_ptr<DeviceEvent>& event = copies.events[given.variable];
    if (event == nullptr) event = copies.stream->MakeEvent();
    copies.stream->Record(event.get());
  }
  return true;
}

void Snapshot::CopyGiven(const Given& given, char* to, DeviceStream* stream) const {
  ForEachRun(given.box, given.piece, INT64_MAX, [&](const Box& run) {
    const auto bytes = static_cast<size_t>(run.elements()) * SizeOf(given.dtype);
    stream->CopyOut(to, given.data + OffsetIn(given.piece, run, given.dtype), bytes);
    to += bytes;
  });
}

void Snapshot::WaitForCopies() {
  for (auto& [rank, copies] : copies_) {
    Completion done;
    Status status;
    copies.stream->NotifyWhenDone([&](Status s) {
      status = std::move(s);
      done.Signal();
    });
    done.Wait();
    if (!status.ok()) Fail(status.message());
  }
}

const DeviceEvent* Snapshot::WritesAfter(int rank, const std::string& variable) {
  const auto copies = copies_.find(rank);
  if (copies == copies_.end()) return nullptr;
  const auto event = copies->second.events.find(variable);
  return event == copies->second.events.end() ? nullptr : event->second.get();
}

void Snapshot::WriteAll() {
  WaitForCopies();
  for (size_t i = 0; i < chunks_.size(); ++i) WriteIfLeft(i);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] {
    return std::all_of(chunks_.begin(), chunks_.end(),
                       [](const Chunk& c) { return c.state == Chunk::kWritten; });
  });
  if (!failure_.empty()) Fail(failure_);
  lock.unlock();
  writer_->Sync();
}

void Snapshot::Abandon() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Chunk& chunk : chunks_)
    if (chunk.state == Chunk::kLeft) chunk.state = Chunk::kWritten;
}

void Snapshot::BeforeWrite(int rank, const std::string& variable) {
  auto found = of_variable_.find({rank, variable});
  if (found == of_variable_.end()) return;
  const auto [first, end] = found->second;
  for (size_t i = first; i < end; ++i) WriteIfLeft(i);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&, first = first, end = end] {
    return std::all_of(chunks_.begin() + first, chunks_.begin() + end,
                       [](const Chunk& c) { return c.state == Chunk::kWritten; });
  });
}

void Snapshot::WriteIfLeft(size_t index) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (chunks_[index].state != Chunk::kLeft) return;
    chunks_[index].state = Chunk::kTaken;
  }
  std::string failure;
  try {
    Write(chunks_[index]);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  chunks_[index].state = Chunk::kWritten;
  if (failure_.empty()) failure_ = failure;
  changed_.notify_all();
}

void Snapshot::Write(const Chunk& chunk) {
  Given& given = given_[chunk.given];
  if (given.checksums.empty()) return WriteInRuns(&given);
  const char* begin =
      given.copied ? given.copied : given.data + OffsetIn(given.piece, given.box, given.dtype);
  const void* bytes = ToHost(given, begin + chunk.offset, chunk.bytes);
  given.checksums[chunk.offset / kChecksumBytes] = Crc(0, bytes, chunk.bytes);
  writer_->Write(given.key, chunk.offset, bytes, chunk.bytes);
}

void Snapshot::WriteInRuns(Given* given) {
  int64_t offset = 0;
  const Box& piece = given->copied ? given->box : given->piece;
  const char* data = given->copied ? given->copied : given->data;
  ForEachRun(given->box, piece, MostElements(given->dtype), [&](const Box& run) {
    int64_t bytes = run.elements() * static_cast<int64_t>(SizeOf(given->dtype));
    auto* at = static_cast<const char*>(ToHost(*given, data + OffsetIn(piece, run, given->dtype), bytes));
    writer_->Write(given->key, offset, at, bytes);
    while (bytes > 0) {  // a run may end one block and begin the next
      const int64_t within = offset % kChecksumBytes, n = std::min(bytes, kChecksumBytes - within);
      if (within == 0) given->checksums.push_back(0);
      given->checksums.back() = Crc(given->checksums.back(), at, n);
      at += n;
      offset += n;
      bytes -= n;
    }
  });
}

const void* Snapshot::ToHost(const Given& given, const char* from, int64_t bytes) {
  if (given.device->kind() == "cpu" || given.copied) return from;
  given.device->CopyOut(staging_->data(), from, bytes);
  return staging_->data();
}

std::map<std::string, StoredVariable> Snapshot::Written() const {
  std::map<std::string, StoredVariable> written;
  for (const Given& given : given_) {
    StoredVariable& stored = written[given.variable];
    stored.dtype = given.dtype;
    stored.shape = given.shape;
    stored.pieces.push_back({file_, given.key, given.box, given.checksums});
  }
  return written;
}

}  // namespace oneflow_like
