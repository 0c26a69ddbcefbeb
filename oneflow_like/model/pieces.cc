#include "oneflow_like/model/pieces.h"

#include <algorithm>
#include <set>

#include "actor/net/talk/job.h"
#include "oneflow_like/model/placement.h"

namespace oneflow_like {

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
    Part part{region.box, ranks[source], program.in[source], {}, false};
    std::set<int> have;
    for (size_t m = 0; m < ranks.size(); ++m)
      if (program.has_in[m] && program.in[m].Intersect(region.box) == region.box) {
        part.holders.push_back(ranks[m]);
        have.insert(ranks[m] / hosted);
      }
    part.sent = static_cast<int>(have.size()) < processes;
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace oneflow_like
