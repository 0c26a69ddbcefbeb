#include "oneflow_like/job/elastic.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "sbp/mesh.h"

namespace oneflow_like {
namespace {

std::string WithExtent(const Mesh& mesh, int axis, int extent) {
  std::vector<std::pair<std::string, int>> axes;
  for (int a = 0; a < mesh.rank(); ++a)
    axes.push_back({mesh.axis_name(a), a == axis ? extent : mesh.axis_size(a)});
  return Mesh(mesh.kind(), axes, {}, mesh.groups()).str();
}

// The fewest that leave a device no more of the batch at a time than `before` did, and divide its share.
int64_t MicroBatches(int64_t before, int extent_before, int extent, int64_t batch) {
  const int64_t least = (before * extent_before + extent - 1) / extent;
  if (before == 0 || batch == 0) return least;
  const int64_t share = batch / extent;
  for (int64_t m = least; m < share; ++m)
    if (share % m == 0) return m;
  return share;
}

}  // namespace

void CheckElastic(const JobShape& whole, const std::string& axis) {
  const Mesh mesh = Mesh::Parse(whole.mesh);
  const int at = mesh.FindAxis(axis);
  if (at < 0 || mesh.axis_size(at) == 1)
    Fail("--elastic=", axis, ": mesh ", mesh.str(), " has no axis '", axis,
         "' of at least 2 devices, along which it could shrink");
  if (whole.processes == 1)
    Fail("--elastic=", axis, " needs --processes of at least 2: of 1 nothing is left");
}

JobShape Shrink(const JobShape& whole, const std::string& axis, int left, int64_t batch) {
  const Mesh mesh = Mesh::Parse(whole.mesh);
  const int at = mesh.FindAxis(axis), before = mesh.axis_size(at);
  const int others = mesh.size() / before, most = mesh.size() / whole.processes;
  for (int extent = before; extent >= 1; --extent) {
    if (batch % extent != 0) continue;
    const int devices = extent * others;
    for (int processes = std::min(left, devices); processes * most >= devices && processes >= 1; --processes)
      if (devices % processes == 0)
        return {WithExtent(mesh, at, extent), processes,
                MicroBatches(whole.micro_batches, before, extent, batch)};
  }
  Fail("--elastic=", axis, ": ", left, " of ", whole.processes, " processes are left, too few for mesh ",
       WithExtent(mesh, at, 1), " with at most ", most, most == 1 ? " device" : " devices", " each");
}

}  // namespace oneflow_like
