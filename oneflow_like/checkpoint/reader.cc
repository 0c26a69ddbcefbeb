#include "oneflow_like/checkpoint/reader.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "core/boxes/copy_box.h"
#include "core/boxes/runs.h"
#include "core/error.h"

namespace oneflow_like {
namespace {

constexpr size_t kBlocks = 8;
constexpr int64_t kRunBytes = 1 << 20;

}  // namespace

CheckpointReader::CheckpointReader(std::string folder)
    : folder_(std::move(folder)), index_(CheckpointIndex::Read(folder_)), blocks_(kBlocks) {
  for (const auto& [name, variable] : index_.variables) variables_[name] = {variable.dtype, variable.shape};
}

void CheckpointReader::Read(const std::string& name, const Box& box, void* to) {
  const StoredVariable& variable = index_.variables.at(name);
  const int64_t most = kRunBytes / static_cast<int64_t>(SizeOf(variable.dtype));
  int64_t found = 0;
  for (const StoredPiece& piece : variable.pieces) {
    found += box.Intersect(piece.box).elements();
    ForEachRun(box.Intersect(piece.box), piece.box, most, [&](const Box& run) {
      const int64_t bytes = run.elements() * static_cast<int64_t>(SizeOf(variable.dtype));
      run_.resize(bytes);
      ReadPiece(variable, piece, OffsetIn(piece.box, run, variable.dtype), run_.data(), bytes);
      CopyBox(variable.dtype, run, {run_.data(), run}, {to, box});
    });
  }
  if (found != box.elements())
    Fail("checkpoint ", folder_, " was saved with --local and holds ", found, " of the ", box.elements(),
         " elements of variable '", name,
         "' that are wanted here: load it with the mesh and processes it was "
         "saved with, each on the host where it was");
}

std::string CheckpointReader::Contents(const std::string& file) const {
  const StoredFile& stored = index_.files.at(file);
  const std::string path = folder_ + "/" + file, contents = ReadText(path, stored.bytes);
  if (const StoredFile is = StoredAs(contents); is.bytes != stored.bytes || is.checksum != stored.checksum)
    Fail(path, ": it is damaged: the checksum of its ", stored.bytes, " bytes does not fit");
  return contents;
}

void CheckpointReader::OpenAll() {
  std::map<std::string, std::vector<std::pair<const StoredVariable*, const StoredPiece*>>> files;
  for (const auto& [name, variable] : index_.variables)
    for (const StoredPiece& piece : variable.pieces) files[piece.file].push_back({&variable, &piece});
  for (const auto& [file, pieces] : files) {
    for (const auto& [variable, piece] : pieces) FileOf(*variable, *piece);
    files_.erase(file);  // there may be more than a process may have open
  }
}

void CheckpointReader::Check(const StoredVariable& variable, const StoredPiece& piece, int64_t number) {
  BlockOf(piece, FileOf(variable, piece), number);
}

void CheckpointReader::RequireFiles() {
  for (const auto& [name, variable] : index_.variables)
    for (const StoredPiece& piece : variable.pieces) FileOf(variable, piece);
}

std::vector<SourceFact> CheckpointReader::Facts() const {
  return {{"the index", index_.Identity(), folder_}};
}

const SafetensorsReader& CheckpointReader::FileOf(const StoredVariable& variable, const StoredPiece& piece) {
  std::unique_ptr<SafetensorsReader>& file = files_[piece.file];
  if (!file) file = std::make_unique<SafetensorsReader>(folder_ + "/" + piece.file);
  const StoredTensor& tensor = file->Find(piece.key);
  if (tensor.dtype != variable.dtype || tensor.shape != piece.box.extent)
    Fail(file->file().path(), ": tensor '", piece.key, "' is ", Name(tensor.dtype), tensor.shape.str(),
         ", but the index says ", Name(variable.dtype), piece.box.extent.str());
  return *file;
}

void CheckpointReader::ReadPiece(const StoredVariable& variable, const StoredPiece& piece, int64_t offset,
                                 char* to, int64_t bytes) {
  const SafetensorsReader& file = FileOf(variable, piece);
  while (bytes > 0) {
    const Block& block = BlockOf(piece, file, offset / kChecksumBytes);
    const int64_t within = offset % kChecksumBytes,
                  n = std::min(bytes, static_cast<int64_t>(block.bytes.size()) - within);
    std::memcpy(to, block.bytes.data() + within, n);
    offset += n;
    to += n;
    bytes -= n;
  }
}

const CheckpointReader::Block& CheckpointReader::BlockOf(const StoredPiece& piece,
                                                         const SafetensorsReader& reader, int64_t number) {
  for (const Block& block : blocks_)
    if (block.piece == &piece && block.number == number) return block;
  const File& file = reader.file();
  const StoredTensor& tensor = reader.Find(piece.key);
  Block& block = blocks_[next_];
  next_ = (next_ + 1) % kBlocks;
  const int64_t start = number * kChecksumBytes;
  block.piece = nullptr;
  block.bytes.resize(std::min(kChecksumBytes, tensor.bytes() - start));
  file.ReadAt(tensor.offset + start, block.bytes.data(), static_cast<int64_t>(block.bytes.size()));
  const uLong sum =
      crc32(0, reinterpret_cast<const Bytef*>(block.bytes.data()), static_cast<uInt>(block.bytes.size()));
  if (static_cast<uint32_t>(sum) != piece.checksums[number])
    Fail(file.path(), ": tensor '", piece.key, "' is damaged: the checksum of its bytes ", start, " to ",
         start + static_cast<int64_t>(block.bytes.size()), " does not fit");
  block.piece = &piece;
  block.number = number;
  return block;
}

}  // namespace oneflow_like
