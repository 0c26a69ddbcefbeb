#include "oneflow_like/checkpoint/index.h"

#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/hash_bytes.h"
#include "oneflow_like/checkpoint/safetensors.h"
#include "oneflow_like/text/json_text.h"

namespace oneflow_like {
namespace {

using nlohmann::json;

constexpr int64_t kMostBytes = int64_t{1} << 30;

uint32_t ChecksumOf(const std::string& text) {
  return static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

json ToArray(const Dims& dims) { return std::vector<int64_t>(dims.begin(), dims.end()); }

// The library makes numbers of whatever is near one: of -1, 1e300 and true.
uint64_t Whole(const json& value, uint64_t most) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > most)
    Fail("it has ", value.dump().substr(0, 40), " where a whole number from 0 to ", most, " is meant");
  return value.get<uint64_t>();
}

// These throw json::exception for what is no list, no object.
const json::array_t& List(const json& value) { return value.get_ref<const json::array_t&>(); }
const json::object_t& Object(const json& value) { return value.get_ref<const json::object_t&>(); }

Dims ToDims(const json& list) {
  Dims dims;
  for (const json& e : List(list)) dims.push_back(static_cast<int64_t>(Whole(e, INT64_MAX)));
  return dims;
}

json ToJson(const StoredVariable& variable) {
  json pieces = json::array();
  for (const StoredPiece& piece : variable.pieces)
    pieces.push_back({{"file", piece.file},
                      {"key", piece.key},
                      {"begin", ToArray(piece.box.begin)},
                      {"extent", ToArray(piece.box.extent)},
                      {"crc32", piece.checksums}});
  return {{"dtype", Name(variable.dtype)}, {"shape", ToArray(variable.shape)}, {"pieces", pieces}};
}

StoredVariable ToVariable(const json& entry) {
  StoredVariable variable;
  if (!ParseDType(entry.at("dtype").get<std::string>(), &variable.dtype))
    Fail("type ", entry.at("dtype").dump(), " is not known here");
  variable.shape = ToDims(entry.at("shape"));
  for (const json& p : List(entry.at("pieces"))) {
    StoredPiece piece{p.at("file").get<std::string>(),
                      p.at("key").get<std::string>(),
                      {ToDims(p.at("begin")), ToDims(p.at("extent"))},
                      {}};
    for (const json& sum : List(p.at("crc32")))
      piece.checksums.push_back(static_cast<uint32_t>(Whole(sum, UINT32_MAX)));
    variable.pieces.push_back(std::move(piece));
  }
  return variable;
}

json ToJson(const std::map<std::string, StoredVariable>& variables) {
  json all = json::object();
  for (const auto& [name, variable] : variables) all[name] = ToJson(variable);
  return all;
}

// Empty, or two of these boxes that overlap; none is empty. They are parted where no box crosses, axis after
// axis, which leaves single ones of what a mesh has cut; comparing each with each takes minutes for
// thousands.
std::string OverlapOf(std::vector<const Box*> boxes, int axis = 0) {
  if (boxes.size() < 2) return "";
  if (axis == boxes[0]->begin.rank()) {
    for (size_t i = 0; i < boxes.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (!boxes[i]->Intersect(*boxes[j]).empty())
          return Cat("has pieces ", boxes[i]->str(), " and ", boxes[j]->str(), ", which overlap");
    return "";
  }
  std::stable_sort(boxes.begin(), boxes.end(),
                   [&](const Box* a, const Box* b) { return a->begin[axis] < b->begin[axis]; });
  int64_t end = 0;
  std::vector<const Box*> group;
  for (const Box* box : boxes) {
    if (box->begin[axis] >= end) {
      const std::string overlap = OverlapOf(std::exchange(group, {}), axis + 1);
      if (!overlap.empty()) return overlap;
    }
    group.push_back(box);
    end = std::max(end, box->begin[axis] + box->extent[axis]);
  }
  return OverlapOf(std::move(group), axis + 1);
}

// Empty, or what is wrong.
std::string WrongWith(const StoredVariable& variable, bool local) {
  double elements = 1;  // without overflow; 0 counts as 1, as pieces of the product are computed, too
  for (int64_t e : variable.shape) elements *= static_cast<double>(std::max<int64_t>(e, 1));
  if (elements * static_cast<double>(SizeOf(variable.dtype)) > 1e17)
    return Cat("of shape ", variable.shape.str(), " claims more bytes than any disk has");
  int64_t covered = 0;
  std::vector<const Box*> boxes;
  for (const StoredPiece& piece : variable.pieces) {
    if (piece.file.empty() || piece.file.find('/') != std::string::npos || piece.file[0] == '.')
      return Cat("is said to be in '", piece.file, "', which is no file of this folder");
    const bool ranks =
        piece.box.begin.rank() == variable.shape.rank() && piece.box.extent.rank() == variable.shape.rank();
    for (int a = 0; ranks && a < variable.shape.rank(); ++a)
      if (piece.box.extent[a] > variable.shape[a] - piece.box.begin[a])
        return Cat("of shape ", variable.shape.str(), " has a piece outside it");
    if (!ranks) return Cat("of shape ", variable.shape.str(), " has a piece of another rank");
    const int64_t bytes = piece.box.elements() * static_cast<int64_t>(SizeOf(variable.dtype));
    if (static_cast<int64_t>(piece.checksums.size()) != (bytes + kChecksumBytes - 1) / kChecksumBytes)
      return Cat("has ", piece.checksums.size(), " checksums for a piece of ", bytes, " bytes");
    if (!piece.box.empty()) boxes.push_back(&piece.box);
    covered += piece.box.elements();
  }
  if (const std::string overlap = OverlapOf(std::move(boxes)); !overlap.empty()) return overlap;
  if (covered != variable.shape.elements() && !local)
    return Cat("of shape ", variable.shape.str(), " has ", covered, " of its ", variable.shape.elements(),
               " elements");
  return "";
}

}  // namespace

StoredFile StoredAs(const std::string& contents) {
  return {static_cast<int64_t>(contents.size()), ChecksumOf(contents)};
}

bool IsNameInFolder(const std::string& name) {
  const size_t slash = name.find('/');
  const auto plain = [](const std::string& part) {
    return !part.empty() && part[0] != '.' && part.find('/') == std::string::npos;
  };
  if (slash == std::string::npos) return plain(name);
  return plain(name.substr(0, slash)) && plain(name.substr(slash + 1));
}

std::string ToText(const std::map<std::string, StoredVariable>& written) { return ToJson(written).dump(); }

std::map<std::string, StoredVariable> WrittenFromText(const std::string& text) {
  std::map<std::string, StoredVariable> written;
  const json all = json::parse(text);
  for (const auto& [name, entry] : all.items()) written[name] = ToVariable(entry);
  return written;
}

const std::map<std::string, std::string>& CheckpointIndex::FileMetadata() {
  static const auto* metadata = new std::map<std::string, std::string>{{"format", "oneflow_like"}};
  return *metadata;
}

std::string CheckpointIndex::ToJson() const {
  json map = json::object();
  int64_t bytes = 0;
  for (const auto& [name, variable] : variables) {
    bytes += variable.shape.elements() * static_cast<int64_t>(SizeOf(variable.dtype));
    for (const StoredPiece& piece : variable.pieces) map[piece.key] = piece.file;
  }
  json index = {{"metadata", {{"format", "oneflow_like"}, {"total_size", bytes}}},
                {"weight_map", map},
                {"version", kVersion},
                {"mesh", mesh},
                {"local", local},
                {"seed", seed},
                {"steps", steps},
                {"state", state},
                {"variables", oneflow_like::ToJson(variables)}};
  if (!save.empty()) index["save"] = save;
  for (const auto& [name, file] : files)
    index["files"][name] = {{"bytes", file.bytes}, {"crc32", file.checksum}};
  index["checksum"] = ChecksumOf(index.dump());
  return index.dump(1) + "\n";
}

std::string CheckpointIndex::Identity() const {
  CheckpointIndex shared = *this;
  if (local)
    for (auto& [name, variable] : shared.variables) variable.pieces.clear();
  const std::string text = shared.ToJson();
  return Cat(text.size(), " bytes with hash ", Hexadecimal(HashOfBytes(text.data(), text.size())));
}

CheckpointIndex CheckpointIndex::Read(const std::string& folder) {
  const std::string path = folder + "/" + kFile;
  json all = ParseJson(path, ReadText(path, kMostBytes));
  CheckpointIndex index;
  try {
    if (!all.is_object()) Fail("it is no JSON object");
    if (all.at("metadata").at("format") != "oneflow_like") Fail("it is not of a checkpoint of this library");
    if (Whole(all.at("version"), INT64_MAX) > kVersion)
      Fail("it is of version ", all.at("version").dump(), ", but this build reads up to ", kVersion);
    const json checksum = all.at("checksum");
    all.erase("checksum");
    if (checksum != ChecksumOf(all.dump())) Fail("its checksum does not fit what it holds: it is damaged");
    index.mesh = all.at("mesh").get<std::string>();
    index.local = all.value("local", false);
    index.save = all.value("save", std::string());
    index.seed = Whole(all.at("seed"), UINT64_MAX);
    for (const auto& [name, step] : Object(all.at("steps")))
      index.steps[name] = static_cast<int64_t>(Whole(step, INT64_MAX));
    index.state = all.at("state").get<std::map<std::string, std::string>>();
    if (all.contains("files"))
      for (const auto& [name, entry] : Object(all["files"])) {
        if (!IsNameInFolder(name)) Fail("it has a file '", name, "', which is none of this folder");
        index.files[name] = {static_cast<int64_t>(Whole(entry.at("bytes"), INT64_MAX)),
                             static_cast<uint32_t>(Whole(entry.at("crc32"), UINT32_MAX))};
      }
    for (const auto& [name, entry] : Object(all.at("variables"))) {
      const StoredVariable& variable = index.variables[name] = ToVariable(entry);
      if (const std::string wrong = WrongWith(variable, index.local); !wrong.empty())
        Fail("variable '", name, "' ", wrong);
    }
  } catch (const json::exception& error) {
    Fail(path, ": it is no index of a checkpoint: ", error.what());
  } catch (const Error& error) {
    Fail(path, ": ", error.what());
  }
  return index;
}

bool CheckpointIndex::IsOurs(const std::string& folder) {
  const std::string path = folder + "/" + kFile;
  const json all = ParseJson(path, ReadText(path, kMostBytes));
  return !all.is_object() || all.contains("variables") || all.contains("checksum");
}

}  // namespace oneflow_like
