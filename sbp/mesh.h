// Mesh: ordered devices arranged along named axes, `cpu:dp=2,tp=2`. Slice: a mesh with some axes fixed, the
// placement of a tensor or node; pipeline stages are slices.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "sbp/sbp.h"

namespace oneflow_like {

class Mesh {
 public:
  Mesh() = default;
  // Throws Error for an unknown device kind, an axis named twice or "time", and an extent below 1. Devices
  // are 0 .. size()-1, the last axis running fastest, unless `devices` lists others.
  Mesh(std::string kind, std::vector<std::pair<std::string, int>> axes, std::vector<int> devices = {});
  static Mesh Parse(const std::string& text);  // "cpu:dp=2,tp=2", "cpu" (one device); throws Error

  // "cpu" or "cuda"; or both, "cpu+cuda": then the first half of the coordinates along axis pp is of the
  // first kind and the second of the second (stages of a pipeline on different devices). With more kinds,
  // likewise.
  const std::string& kind() const { return kind_; }
  std::vector<std::string> kinds() const;
  std::string KindOf(int index) const;                         // of the index-th device in mesh order
  int rank() const { return static_cast<int>(axes_.size()); }  // number of axes
  const std::string& axis_name(int axis) const { return axes_[axis].first; }
  int axis_size(int axis) const { return axes_[axis].second; }
  int FindAxis(const std::string& name) const;  // -1 when there is none
  int AxisOrFail(const std::string& name,
                 const std::string& who) const;  // throws Error naming the mesh's axes
  int size() const;                              // devices
  int Device(const std::vector<int>& coords) const;
  std::vector<int> Coords(int index) const;  // of the index-th device in mesh order
  int IndexOf(int device) const;             // in mesh order; -1 when not of the mesh
  std::string str() const;                   // "cpu:dp=2,tp=2"
  bool operator==(const Mesh& other) const;

 private:
  std::string kind_ = "cpu";
  std::vector<std::pair<std::string, int>> axes_;
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
