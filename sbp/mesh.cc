// Meshes, slices and layouts: checks, coordinates, text.
#include "sbp/mesh.h"

#include <glog/logging.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

namespace oneflow_like {
namespace {

constexpr int64_t kMostDevices = int64_t{1} << 24;

bool IsAxisName(const std::string& name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

std::string MeshText(const std::string& kind, const std::vector<std::pair<std::string, int>>& axes) {
  std::string text = kind;
  for (size_t i = 0; i < axes.size(); ++i) {
    text += (i == 0 ? ":" : ",") + axes[i].first + "=" + std::to_string(axes[i].second);
  }
  return text;
}

std::pair<std::string, int> ParseAxis(const std::string& mesh, const std::string& text) {
  size_t equals = text.find('=');
  int extent = 0;
  bool good = equals != std::string::npos && IsAxisName(text.substr(0, equals));
  if (good) {
    const char *begin = text.data() + equals + 1, *end = text.data() + text.size();
    auto [after, error] = std::from_chars(begin, end, extent);
    good = begin != end && error == std::errc() && after == end;
  }
  if (!good) {
    Fail("mesh ", mesh, ": axis \"", text,
         "\" cannot be read, write a name, = and a number of devices (dp=2)");
  }
  return {text.substr(0, equals), extent};
}

}  // namespace

Mesh::Mesh(std::string kind, std::vector<std::pair<std::string, int>> axes, std::vector<int> devices)
    : kind_(std::move(kind)), axes_(std::move(axes)), devices_(std::move(devices)) {
  std::string text = str();
  for (const std::string& one : kinds()) {
    if (one != "cpu" && one != "cuda") {
      Fail("mesh ", text, ": device kind \"", one, "\" does not exist, it must be cpu or cuda",
           kinds().size() > 1 ? ", or both as in cpu+cuda" : "");
    }
  }
  std::set<std::string> seen;
  int64_t count = 1;
  for (const auto& [name, extent] : axes_) {
    if (!IsAxisName(name)) Fail("mesh ", text, ": \"", name, "\" is no axis name, use letters, digits and _");
    if (name == "time")
      Fail("mesh ", text, ": an axis cannot be named time, which is the axis of micro-batches");
    if (!seen.insert(name).second) Fail("mesh ", text, ": axis ", name, " is named twice");
    if (extent < 1) Fail("mesh ", text, ": axis ", name, " has extent ", extent, ", must be at least 1");
    count *= extent;
    if (count > kMostDevices)
      Fail("mesh ", text, ": more than ", kMostDevices, " devices, the most there may be");
  }
  if (int pp = FindAxis("pp"), parts = static_cast<int>(kinds().size()); parts > 1) {
    if (pp < 0) Fail("mesh ", text, ": several kinds of devices cut axis pp, which this mesh does not have");
    if (axes_[pp].second % parts != 0) {
      Fail("mesh ", text, ": ", parts, " kinds of devices cannot share axis pp of extent ", axes_[pp].second,
           " equally");
    }
  }
  if (devices_.empty()) return;
  if (static_cast<int64_t>(devices_.size()) != count) {
    Fail("mesh ", text, ": ", devices_.size(), " devices are listed, but its axes hold ", count);
  }
  std::set<int> unique;
  bool natural = true;
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i] < 0)
      Fail("mesh ", text, ": device ", devices_[i], " is listed, but devices count from 0");
    if (!unique.insert(devices_[i]).second) Fail("mesh ", text, ": device ", devices_[i], " is listed twice");
    natural = natural && devices_[i] == static_cast<int>(i);
  }
  if (natural) devices_.clear();  // equal meshes hold equal members
}

Mesh Mesh::Parse(const std::string& text) {
  size_t colon = text.find(':');
  std::vector<std::pair<std::string, int>> axes;
  if (colon != std::string::npos) {
    size_t begin = colon + 1;
    while (true) {
      size_t comma = std::min(text.find(',', begin), text.size());
      axes.push_back(ParseAxis(text, text.substr(begin, comma - begin)));
      if (comma == text.size()) break;
      begin = comma + 1;
    }
  }
  return Mesh(text.substr(0, colon), std::move(axes));
}

std::vector<std::string> Mesh::kinds() const {
  std::vector<std::string> kinds;
  for (size_t begin = 0; begin <= kind_.size();) {
    size_t plus = std::min(kind_.find('+', begin), kind_.size());
    kinds.push_back(kind_.substr(begin, plus - begin));
    begin = plus + 1;
  }
  return kinds;
}

std::string Mesh::KindOf(int index) const {
  std::vector<std::string> all = kinds();
  if (all.size() == 1) return all[0];
  int pp = AxisOrFail("pp", "devices of several kinds");
  return all[Coords(index)[pp] * all.size() / axes_[pp].second];
}

int Mesh::FindAxis(const std::string& name) const {
  for (int i = 0; i < rank(); ++i) {
    if (axes_[i].first == name) return i;
  }
  return -1;
}

int Mesh::AxisOrFail(const std::string& name, const std::string& who) const {
  int axis = FindAxis(name);
  if (axis >= 0) return axis;
  std::string names;
  for (const auto& [known, extent] : axes_) names += (names.empty() ? "" : ", ") + known;
  Fail(who, ": mesh ", str(), " has no axis ", name, ", ",
       names.empty() ? "it has no axes" : "its axes are " + names);
}

int Mesh::size() const {
  int count = 1;
  for (const auto& [name, extent] : axes_) count *= extent;
  return count;
}

int Mesh::Device(const std::vector<int>& coords) const {
  CHECK_EQ(coords.size(), axes_.size());
  int index = 0;
  for (size_t i = 0; i < coords.size(); ++i) {
    CHECK(coords[i] >= 0 && coords[i] < axes_[i].second)
        << "coordinate " << coords[i] << " on axis " << axes_[i].first;
    index = index * axes_[i].second + coords[i];
  }
  return devices_.empty() ? index : devices_[index];
}

std::vector<int> Mesh::Coords(int index) const {
  CHECK(index >= 0 && index < size()) << "device " << index << " of mesh " << str();
  std::vector<int> coords(axes_.size());
  for (int i = rank() - 1; i >= 0; --i) {
    coords[i] = index % axes_[i].second;
    index /= axes_[i].second;
  }
  return coords;
}

int Mesh::IndexOf(int device) const {
  if (devices_.empty()) return device >= 0 && device < size() ? device : -1;
  auto found = std::find(devices_.begin(), devices_.end(), device);
  return found == devices_.end() ? -1 : static_cast<int>(found - devices_.begin());
}

std::string Mesh::str() const { return MeshText(kind_, axes_); }

bool Mesh::operator==(const Mesh& other) const {
  return kind_ == other.kind_ && axes_ == other.axes_ && devices_ == other.devices_;
}

bool Slice::Contains(const std::vector<int>& coords) const {
  CHECK_EQ(coords.size(), fixed.size());
  for (size_t i = 0; i < fixed.size(); ++i) {
    if (fixed[i] != kFree && fixed[i] != coords[i]) return false;
  }
  return true;
}

std::string Slice::str(const Mesh& mesh) const {
  std::string text;
  for (size_t i = 0; i < fixed.size(); ++i) {
    if (fixed[i] == kFree) continue;
    text += (text.empty() ? "" : ",") + mesh.axis_name(static_cast<int>(i)) + "=" + std::to_string(fixed[i]);
  }
  return text;
}

Slice WholeMesh(const Mesh& mesh) { return {std::vector<int>(mesh.rank(), Slice::kFree)}; }

std::string Layout::str(const Mesh& mesh, int times) const {
  std::string text;
  auto add = [&](const std::string& name, const Sbp& entry) {
    text += (text.empty() ? "" : ",") + name + ":" + entry.str();
  };
  if (times > 1 && !sbp.empty()) add("time", sbp[0]);
  for (int i = 0; i < mesh.rank() && i + 1 < static_cast<int>(sbp.size()); ++i) {
    bool is_fixed = i < static_cast<int>(slice.fixed.size()) && slice.fixed[i] != Slice::kFree;
    if (!is_fixed) add(mesh.axis_name(i), sbp[i + 1]);
  }
  std::string where = slice.str(mesh);
  return "{" + text + "}" + (where.empty() ? "" : "@" + where);
}

}  // namespace oneflow_like
