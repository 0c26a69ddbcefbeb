// Variables in memory as a source, and checkpoints made of them without a model: what tests of files read.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/boxes/copy_box.h"
#include "core/host_tensor.h"
#include "core/random.h"
#include "oneflow_like/checkpoint/index.h"
#include "oneflow_like/checkpoint/source.h"

namespace oneflow_like {

using Tensors = std::map<std::string, HostTensor>;

// Any bits in integers, numbers in [-1, 1) otherwise; a function of the seed alone.
inline HostTensor RandomTensor(uint64_t seed, DType dtype, const Dims& shape) {
  HostTensor t = HostTensor::Make(dtype, shape);
  auto* bytes = t.as<unsigned char>();
  for (size_t i = 0; i < t.bytes(); ++i) bytes[i] = static_cast<unsigned char>(RandomBits(seed, 1, i));
  if (dtype == DType::kBool)
    for (size_t i = 0; i < t.bytes(); ++i) bytes[i] &= 1;
  if (dtype == DType::kFloat32)
    for (int64_t i = 0; i < t.elements(); ++i) t.as<float>()[i] = 2 * ToUniform(RandomBits(seed, 1, i)) - 1;
  if (dtype == DType::kBFloat16 || dtype == DType::kFloat16)  // the second bit of the exponent: below 2
    for (int64_t i = 0; i < t.elements(); ++i) t.as<uint16_t>()[i] &= 0xbfff;
  return t;
}

class TensorSource : public VariableSource {
 public:
  explicit TensorSource(Tensors tensors) : tensors_(std::move(tensors)) {
    for (const auto& [name, tensor] : tensors_) variables_[name] = {tensor.dtype, tensor.shape};
  }
  void Read(const std::string& name, const Box& box, void* to) override {
    const HostTensor& tensor = tensors_.at(name);
    CopyBox(tensor.dtype, box, {tensor.data.get(), Box::Whole(tensor.shape)}, {to, box});
  }
  const std::string& where() const override { return where_; }

 private:
  const Tensors tensors_;
  const std::string where_ = "memory";
};

inline Tensors ReadAll(VariableSource& source) {
  Tensors all;
  for (const auto& [name, variable] : source.variables()) {
    HostTensor tensor = HostTensor::Make(variable.dtype, variable.shape);
    source.Read(name, Box::Whole(variable.shape), tensor.data.get());
    all.emplace(name, tensor);
  }
  return all;
}

inline std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
inline void PutBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A random box inside a shape; never empty if the shape is not.
inline Box RandomBox(uint64_t seed, const Dims& shape) {
  Box box = Box::Whole(shape);
  for (int a = 0; a < shape.rank(); ++a) {
    box.begin[a] = static_cast<int64_t>(RandomBits(seed, 2, 2 * a) % shape[a]);
    box.extent[a] = 1 + static_cast<int64_t>(RandomBits(seed, 2, 2 * a + 1) % (shape[a] - box.begin[a]));
  }
  return box;
}

// A checkpoint of step 7 in the new folder: each variable cut along its longest axis in `pieces`, which take
// turns in so many files.
inline void MakeCheckpoint(const std::string& folder, const Tensors& tensors, int pieces = 1, int files = 1) {
  std::filesystem::create_directories(folder);
  CheckpointIndex index;
  index.mesh = Cat("cpu:tp=", pieces);
  index.seed = 5;
  index.steps = {{"train", 7}};
  index.state = {{"epoch", "3"}};
  std::vector<std::vector<SafetensorsWriter::Entry>> entries(files);
  std::vector<std::map<std::string, std::string>> bytes(files);
  int turn = 0;
  for (const auto& [name, tensor] : tensors) {
    const Dims& shape = tensor.shape;
    StoredVariable& stored = index.variables[name];
    stored.dtype = tensor.dtype;
    stored.shape = shape;
    const int axis = static_cast<int>(std::max_element(shape.begin(), shape.end()) - shape.begin());
    const int cuts = shape.empty() ? 1 : static_cast<int>(std::min<int64_t>(pieces, shape[axis]));
    for (int k = 0; k < cuts; ++k, ++turn) {
      Box box = Box::Whole(shape);
      if (cuts > 1) {
        box.begin[axis] = shape[axis] * k / cuts;
        box.extent[axis] = shape[axis] * (k + 1) / cuts - box.begin[axis];
      }
      const int f = turn % files;
      const std::string key = cuts == 1 ? name : Cat(name, "@", box.begin.str());
      std::string& data = bytes[f][key];
      data.resize(box.elements() * SizeOf(tensor.dtype));
      CopyBox(tensor.dtype, box, {tensor.data.get(), Box::Whole(shape)}, {data.data(), box});
      StoredPiece piece{Cat("model-", f, ".safetensors"), key, box, {}};
      for (size_t at = 0; at < data.size(); at += kChecksumBytes)
        piece.checksums.push_back(static_cast<uint32_t>(
            crc32(0, reinterpret_cast<const Bytef*>(data.data() + at),
                  static_cast<uInt>(std::min<size_t>(kChecksumBytes, data.size() - at)))));
      stored.pieces.push_back(piece);
      entries[f].push_back({key, tensor.dtype, box.extent});
    }
  }
  for (int f = 0; f < files; ++f) {
    SafetensorsWriter writer(Cat(folder, "/model-", f, ".safetensors"), entries[f],
                             CheckpointIndex::FileMetadata());
    for (const auto& [key, data] : bytes[f])
      writer.Write(key, 0, data.data(), static_cast<int64_t>(data.size()));
  }
  PutBytes(folder + "/" + CheckpointIndex::kFile, index.ToJson());
}

}  // namespace oneflow_like
