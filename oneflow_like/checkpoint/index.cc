#include "oneflow_like/checkpoint/index.h"

#include <zlib.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "oneflow_like/checkpoint/safetensors.h"

namespace oneflow_like {
namespace {

using nlohmann::json;

constexpr int64_t kMostBytes = int64_t{1} << 30;

uint32_t ChecksumOf(const std::string& text) {
  return static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

json ToArray(const Dims& dims) { return std::vector<int64_t>(dims.begin(), dims.end()); }

// Throws json::exception for what is no list of numbers.
Dims ToDims(const json& list) {
  Dims dims;
  for (const json& e : list) dims.push_back(e.get<int64_t>());
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
  for (const json& p : entry.at("pieces"))
    variable.pieces.push_back({p.at("file").get<std::string>(),
                               p.at("key").get<std::string>(),
                               {ToDims(p.at("begin")), ToDims(p.at("extent"))},
                               p.at("crc32").get<std::vector<uint32_t>>()});
  return variable;
}

json ToJson(const std::map<std::string, StoredVariable>& variables) {
  json all = json::object();
  for (const auto& [name, variable] : variables) all[name] = ToJson(variable);
  return all;
}

// Empty, or what is wrong.
std::string WrongWith(const StoredVariable& variable, bool local) {
  double elements = 1;  // without overflow
  for (int64_t e : variable.shape) {
    if (e < 0) return Cat("has shape ", variable.shape.str());
    elements *= static_cast<double>(e);
  }
  if (elements * static_cast<double>(SizeOf(variable.dtype)) > 1e17)
    return Cat("of shape ", variable.shape.str(), " claims more bytes than any disk has");
  int64_t covered = 0;
  for (size_t i = 0; i < variable.pieces.size(); ++i) {
    const StoredPiece& piece = variable.pieces[i];
    if (piece.file.empty() || piece.file.find('/') != std::string::npos || piece.file[0] == '.')
      return Cat("is said to be in '", piece.file, "', which is no file of this folder");
    const bool ranks =
        piece.box.begin.rank() == variable.shape.rank() && piece.box.extent.rank() == variable.shape.rank();
    for (int a = 0; ranks && a < variable.shape.rank(); ++a)
      if (piece.box.begin[a] < 0 || piece.box.extent[a] < 0 ||
          piece.box.extent[a] > variable.shape[a] - piece.box.begin[a])
        return Cat("of shape ", variable.shape.str(), " has a piece outside it");
    if (!ranks) return Cat("of shape ", variable.shape.str(), " has a piece of another rank");
    const int64_t bytes = piece.box.elements() * static_cast<int64_t>(SizeOf(variable.dtype));
    if (static_cast<int64_t>(piece.checksums.size()) != (bytes + kChecksumBytes - 1) / kChecksumBytes)
      return Cat("has ", piece.checksums.size(), " checksums for a piece of ", bytes, " bytes");
    for (size_t j = 0; j < i; ++j)
      if (!piece.box.Intersect(variable.pieces[j].box).empty())
        return Cat("has pieces ", piece.box.str(), " and ", variable.pieces[j].box.str(), ", which overlap");
    covered += piece.box.elements();
  }
  if (covered != variable.shape.elements() && !local)
    return Cat("of shape ", variable.shape.str(), " has ", covered, " of its ", variable.shape.elements(),
               " elements");
  return "";
}

}  // namespace

std::string ToText(const std::map<std::string, StoredVariable>& written) { return ToJson(written).dump(); }

std::map<std::string, StoredVariable> WrittenFromText(const std::string& text) {
  std::map<std::string, StoredVariable> written;
  const json all = json::parse(text);
  for (const auto& [name, entry] : all.items()) written[name] = ToVariable(entry);
  return written;
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
  index["checksum"] = ChecksumOf(index.dump());
  return index.dump(1) + "\n";
}

CheckpointIndex CheckpointIndex::Read(const std::string& folder) {
  const std::string path = folder + "/" + kFile;
  json all = json::parse(ReadText(path, kMostBytes), nullptr, false);
  CheckpointIndex index;
  try {
    if (!all.is_object()) Fail("it is no JSON object");
    if (all.at("metadata").at("format") != "oneflow_like") Fail("it is not of a checkpoint of this library");
    if (all.at("version") > kVersion)
      Fail("it is of version ", all.at("version").dump(), ", but this build reads up to ", kVersion);
    const json checksum = all.at("checksum");
    all.erase("checksum");
    if (checksum != ChecksumOf(all.dump())) Fail("its checksum does not fit what it holds: it is damaged");
    index.mesh = all.at("mesh").get<std::string>();
    index.local = all.value("local", false);
    index.seed = all.at("seed").get<uint64_t>();
    index.steps = all.at("steps").get<std::map<std::string, int64_t>>();
    index.state = all.at("state").get<std::map<std::string, std::string>>();
    for (const auto& [name, entry] : all.at("variables").items()) {
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
  const json all = json::parse(ReadText(folder + "/" + kFile, kMostBytes), nullptr, false);
  return !all.is_object() || all.contains("variables") || all.contains("checksum");
}

}  // namespace oneflow_like
