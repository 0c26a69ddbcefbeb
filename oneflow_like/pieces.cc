#include "oneflow_like/pieces.h"

#include <set>

#include "actor/net/talk/job.h"
#include "oneflow_like/placement.h"

namespace oneflow_like {

void ForEachRun(const Box& box, const Box& piece, int64_t most, const std::function<void(const Box&)>& use,
                int axis) {
  if (box.empty()) return;
  if (axis == box.extent.rank()) return use(box);
  int64_t row = 1;
  bool whole = true;
  for (int a = axis + 1; a < box.extent.rank(); ++a) {
    row *= box.extent[a];
    whole = whole && box.extent[a] == piece.extent[a];
  }
  const bool rows = whole && row <= most;
  const int64_t step = rows ? std::max<int64_t>(1, most / row) : 1;
  for (int64_t at = 0; at < box.extent[axis]; at += step) {
    Box part = box;
    part.begin[axis] += at;
    part.extent[axis] = std::min(step, box.extent[axis] - at);
    rows ? use(part) : ForEachRun(part, piece, most, use, axis + 1);
  }
}

int64_t OffsetIn(const Box& piece, const Box& run, DType dtype) {
  int64_t index = 0;
  for (int a = 0; a < piece.extent.rank(); ++a)
    index = index * piece.extent[a] + run.begin[a] - piece.begin[a];
  return index * static_cast<int64_t>(SizeOf(dtype));
}

LocalPiece::LocalPiece(const ModelImpl& model, int rank, const std::string& variable)
    : device_(model.store->device(rank)), info_(*model.store->Find(rank, variable)) {
  data_ = static_cast<char*>(model.store->Variable(rank, variable));
  const int64_t bytes = info_.box.elements() * static_cast<int64_t>(SizeOf(info_.dtype));
  staging_ =
      device_->AllocateHost(std::clamp<int64_t>(bytes, 64, kPieceBytes), Cat("variable '", variable, "'"));
}

const void* LocalPiece::Get(const Box& run) {
  device_->CopyOut(staging_->data(), data_ + OffsetIn(info_.box, run, info_.dtype), Bytes(run));
  return staging_->data();
}

void LocalPiece::Put(const Box& run) {
  device_->CopyIn(data_ + OffsetIn(info_.box, run, info_.dtype), staging_->data(), Bytes(run));
}

std::vector<Part> PartsOf(const ModelImpl& model, const ModelVariable& variable) {
  const int processes = model.options.job ? model.options.job->processes() : 1;
  const int hosted = model.mesh.size() / processes;
  const BoxingEnd from = EndOf(model.mesh, variable.layout);
  const BoxingEnd to{{1}, {-1}, {B()}};  // one place that is no device
  const BoxingProgram program = RouteAll(Box::Whole(variable.shape), from, to);
  std::vector<int> ranks;
  for (int device : program.members) ranks.push_back(device < 0 ? -1 : model.mesh.IndexOf(device));
  std::vector<Part> parts;
  for (const Region& region : program.work.back()) {
    if (region.box.empty()) continue;
    const int source = region.sources[0];
    Part part{region.box, ranks[source], program.in[source]};
    std::set<int> have;
    for (size_t m = 0; m < ranks.size(); ++m)
      if (program.has_in[m] && program.in[m].Intersect(region.box) == region.box)
        have.insert(ranks[m] / hosted);
    part.sent = static_cast<int>(have.size()) < processes;
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace oneflow_like
