// Mesh: ordered devices arranged along named axes, `cpu:dp=2,tp=2`; a name may stand for several axes, a
// group, `cpu:replica=2,dp=2;all=replica*dp`. Slice: a mesh with some axes fixed, the placement of a tensor
// or node; pipeline stages are slices.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "sbp/sbp.h"

namespace oneflow_like {

// Axes of a mesh by number, in the order of the mesh.
using MeshAxes = std::vector<int>;
inline bool HasAxis(const MeshAxes& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

constexpr int kMaxMeshAxes = 8;

class Mesh {
 public:
  using Axes = std::vector<std::pair<std::string, int>>;            // names and extents
  using Groups = std::vector<std::pair<std::string, std::string>>;  // names, and "replica*dp"

  Mesh() = default;
  // Throws Error for an unknown device kind, an axis named twice or "time", an extent below 1, and more than
  // kMaxMeshAxes axes. Devices are 0 .. size()-1, the last axis running fastest, unless `devices` lists
  // others. A group is of axes of the mesh and groups before it, each axis once and in the mesh's order,
  // without "pp"; its name is no axis.
  Mesh(std::string kind, Axes axes, std::vector<int> devices = {}, const Groups& groups = {});
  // "cpu:dp=2,tp=2", "cpu" (one device), "cpu:replica=2,dp=2; fsdp=replica*dp"; throws Error
  static Mesh Parse(const std::string& text);

  // "cpu" or "cuda"; or both, "cpu+cuda": then the first half of the coordinates along axis pp is of the
  // first kind and the second of the second (stages of a pipeline on different devices). With more kinds,
  // likewise.
  const std::string& kind() const { return kind_; }
  std::vector<std::string> kinds() const;
  bool Has(const std::string& kind) const;                     // whether a device is of this kind
  std::string KindOf(int index) const;                         // of the index-th device in mesh order
  int rank() const { return static_cast<int>(axes_.size()); }  // number of axes
  const std::string& axis_name(int axis) const { return axes_[axis].first; }
  int axis_size(int axis) const { return axes_[axis].second; }
  int FindAxis(const std::string& name) const;  // -1 when there is none
  int AxisOrFail(const std::string& name,
                 const std::string& who) const;  // throws Error naming the mesh's axes
  // What a name stands for where several axes may be meant: an axis, a group, or a product of such
  // in any order.
  MeshAxes FindAxes(const std::string& name) const;  // empty when there is none
  MeshAxes AxesOrFail(const std::string& name,
                      const std::string& who) const;  // throws Error naming the mesh's axes and groups
  Groups groups() const;
  int size() const;                                // devices
  int SizeAlong(const MeshAxes& axes) const;       // the product of their extents
  std::string NameOf(const MeshAxes& axes) const;  // "replica*dp"
  int Device(const std::vector<int>& coords) const;
  std::vector<int> Coords(int index) const;  // of the index-th device in mesh order
  int IndexOf(int device) const;             // in mesh order; -1 when not of the mesh
  std::string str() const;                   // as Parse reads it, without blanks
  bool operator==(const Mesh& other) const;

 private:
  // `why`: nullptr, or where to say what is wrong with a product.
  MeshAxes AxesOf(const std::string& product, std::string* why) const;

  std::string kind_ = "cpu";
  Axes axes_;
  std::vector<std::pair<std::string, MeshAxes>> groups_;
  std::vector<int> devices_;  // empty: 0 .. size()-1
};

// Per axis of the mesh the fixed coordinate, or kFree.
struct Slice {
  static constexpr int kFree = -1;
  std::vector<int> fixed;

  bool operator==(const Slice& o) const { return fixed == o.fixed; }
  bool operator!=(const Slice& o) const { return !(*this == o); }
  bool operator<(const Slice& o) const { return fixed < o.fixed; }
  bool Contains(const std::vector<int>& coords) const;
  std::string str(const Mesh& mesh) const;  // "pp=1", empty when nothing is fixed
};
Slice WholeMesh(const Mesh& mesh);

// The placement of a tensor: its slice and its NdSbp; entry 0 is time, entry 1 + a is mesh axis a (B on fixed
// axes).
struct Layout {
  Slice slice;
  NdSbp sbp;
  bool operator==(const Layout& o) const { return slice == o.slice && sbp == o.sbp; }
  std::string str(const Mesh& mesh, int times) const;  // "{time:S0,dp:B}@pp=1"
};

}  // namespace oneflow_like
