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

std::vector<std::string> SplitAt(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::string WithoutBlanks(std::string text) {
  std::erase(text, ' ');
  return text;
}

// Groups may be separated by semicolons, too.
std::string GroupsOf(const std::string& text) {
  std::string groups = WithoutBlanks(text);
  std::replace(groups.begin(), groups.end(), ';', ',');
  return groups;
}

}  // namespace

Mesh::Mesh(std::string kind, Axes axes, std::vector<int> devices, const Groups& groups)
    : kind_(std::move(kind)), axes_(std::move(axes)), devices_(std::move(devices)) {
  std::string text = str();
  for (const std::string& one : kinds()) {
    if (one != "cpu" && one != "cuda") {
      Fail("mesh ", text, ": device kind \"", one, "\" does not exist, it must be cpu or cuda",
           kinds().size() > 1 ? ", or both as in cpu+cuda" : "");
    }
  }
  if (rank() > kMaxMeshAxes)
    Fail("mesh ", text, ": ", rank(), " axes, but a mesh has at most ", kMaxMeshAxes, "; merge some of them");
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
    if (pp < 0)
      Fail("mesh ", text, " has devices of ", parts,
           " kinds, one for each part of its stages, and no axis pp that "
           "divides it into stages; write for example ",
           text, text.find(':') == std::string::npos ? ":" : ",", "pp=", parts);
    if (axes_[pp].second % parts != 0) {
      Fail("mesh ", text, ": ", parts, " kinds of devices cannot share axis pp of extent ", axes_[pp].second,
           " equally");
    }
  }
  for (const auto& [name, product] : groups) {
    const std::string group = "mesh " + text + ": group " + name + "=" + product;
    if (!IsAxisName(name) || name == "time") Fail(group, ": \"", name, "\" cannot be the name of axes");
    if (FindAxis(name) >= 0) Fail(group, ": ", name, " is an axis, a group needs a name of its own");
    if (!FindAxes(name).empty()) Fail(group, ": ", name, " is named twice");
    std::string why;
    const MeshAxes of = AxesOf(product, &why);
    if (of.empty()) Fail(group, ": ", why);
    for (size_t i = 1; i < of.size(); ++i)
      if (of[i] < of[i - 1])
        Fail(group, ": axes are in the order of the mesh, where ", axis_name(of[i]), " comes before ",
             axis_name(of[i - 1]));
    for (int a : of)
      if (axes_[a].first == "pp")
        Fail(group, ": pp is the axis of pipeline stages, which cut no tensor; leave it out");
    groups_.push_back({name, of});
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
  const size_t semicolon = text.find(';');
  const std::string devices = text.substr(0, semicolon);
  const size_t colon = devices.find(':');
  Axes axes;
  if (colon != std::string::npos)
    for (const std::string& axis : SplitAt(devices.substr(colon + 1), ','))
      axes.push_back(ParseAxis(text, axis));
  Groups groups;
  if (semicolon != std::string::npos)
    for (const std::string& group : SplitAt(GroupsOf(text.substr(semicolon + 1)), ',')) {
      const size_t equals = group.find('=');
      if (equals == std::string::npos)
        Fail("mesh ", text, ": group \"", group,
             "\" cannot be read, write a name, = and axes (fsdp=replica*dp)");
      groups.push_back({group.substr(0, equals), group.substr(equals + 1)});
    }
  return Mesh(devices.substr(0, colon), std::move(axes), {}, groups);
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

bool Mesh::Has(const std::string& kind) const {
  const std::vector<std::string> all = kinds();
  return std::find(all.begin(), all.end(), kind) != all.end();
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
  const MeshAxes several = FindAxes(name);
  if (several.size() == 1) return several[0];
  if (!several.empty())
    Fail(who, ": ", name, " of mesh ", str(), " stands for several axes, ", NameOf(several),
         ", where one is needed");
  std::string names;
  for (const auto& [known, extent] : axes_) names += (names.empty() ? "" : ", ") + known;
  std::string groups;
  for (const auto& [group, axes] : groups_) groups += (groups.empty() ? "; its groups are " : ", ") + group;
  Fail(who, ": mesh ", str(), " has no axis ", name, ", ",
       names.empty() ? "it has no axes" : "its axes are " + names, groups);
}

MeshAxes Mesh::AxesOf(const std::string& product, std::string* why) const {
  MeshAxes axes;
  const auto wrong = [&](const auto&... reason) {
    if (why) *why = Cat(reason...);
    return MeshAxes();
  };
  for (const std::string& name : SplitAt(WithoutBlanks(product), '*')) {
    MeshAxes of_name;
    for (const auto& [group, members] : groups_)
      if (group == name) of_name = members;
    if (const int axis = FindAxis(name); axis >= 0) of_name = {axis};
    if (of_name.empty()) return wrong("there is no axis ", name.empty() ? "\"\"" : name);
    for (int axis : of_name) {
      if (HasAxis(axes, axis)) return wrong("axis ", axis_name(axis), " is there twice");
      axes.push_back(axis);
    }
  }
  return axes;
}

MeshAxes Mesh::FindAxes(const std::string& name) const {
  MeshAxes axes = AxesOf(name, nullptr);
  std::sort(axes.begin(), axes.end());
  return axes;
}

MeshAxes Mesh::AxesOrFail(const std::string& name, const std::string& who) const {
  const MeshAxes axes = FindAxes(name);
  if (!axes.empty()) return axes;
  if (name.find('*') == std::string::npos) return {AxisOrFail(name, who)};
  std::string why;
  AxesOf(name, &why);
  Fail(who, ": ", name, ": ", why);
}

std::string Mesh::NameOf(const MeshAxes& axes) const {
  std::string text;
  for (int a : axes) text += (text.empty() ? "" : "*") + axes_[a].first;
  return text;
}

Mesh::Groups Mesh::groups() const {
  Groups groups;
  for (const auto& [name, axes] : groups_) groups.push_back({name, NameOf(axes)});
  return groups;
}

int Mesh::SizeAlong(const MeshAxes& axes) const {
  int count = 1;
  for (int a : axes) count *= axes_[a].second;
  return count;
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

std::string Mesh::str() const {
  std::string text = kind_;
  for (size_t i = 0; i < axes_.size(); ++i)
    text += (i == 0 ? ":" : ",") + axes_[i].first + "=" + std::to_string(axes_[i].second);
  for (size_t i = 0; i < groups_.size(); ++i)
    text += (i == 0 ? ";" : ",") + groups_[i].first + "=" + NameOf(groups_[i].second);
  return text;
}

bool Mesh::operator==(const Mesh& other) const {
  return kind_ == other.kind_ && axes_ == other.axes_ && groups_ == other.groups_ &&
         devices_ == other.devices_;
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
