// Tensors for a Python program to read (tensor_file.py), in the layout of safetensors, which takes a dozen
// lines: the length of a JSON header, the header, the bytes. And which Python reads them.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"
#include "core/error.h"
#include "tests/python.h"

namespace oneflow_like::peers {

class TensorFile {
 public:
  void Add(const std::string& name, DType dtype, const Dims& shape, const void* data) {
    AddBytes(name, TypeOf(dtype), shape, data, shape.elements() * SizeOf(dtype));
  }
  void Add(const std::string& name, const std::vector<double>& numbers) {
    AddBytes(name, "F64", {static_cast<int64_t>(numbers.size())}, numbers.data(),
             numbers.size() * sizeof(double));
  }
  void Write(const std::string& path) const {
    const std::string header = header_ + "}";
    const uint64_t length = header.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header << bytes_;
  }

 private:
  void AddBytes(const std::string& name, const char* type, const Dims& shape, const void* data,
                size_t bytes) {
    std::string extents;
    for (int64_t e : shape) extents += Cat(extents.empty() ? "" : ",", e);
    header_ += Cat(header_.empty() ? "{" : ",", "\"", name, "\":{\"dtype\":\"", type, "\",\"shape\":[",
                   extents, "],\"data_offsets\":[", bytes_.size(), ",", bytes_.size() + bytes, "]}");
    bytes_.append(static_cast<const char*>(data), bytes);
  }
  static const char* TypeOf(DType dtype) {
    switch (dtype) {
      case DType::kBFloat16:
        return "BF16";
      case DType::kFloat16:
        return "F16";
      case DType::kInt32:
        return "I32";
      case DType::kInt64:
        return "I64";
      case DType::kUInt8:
        return "U8";
      case DType::kBool:
        return "BOOL";
      default:
        return "F32";
    }
  }
  std::string header_, bytes_;
};

// Python(); empty where it lacks torch. Asked once: importing takes seconds.
inline const std::string& PythonWithTorch() {
  static const std::string python = PythonHas("torch") ? Python() : std::string();
  return python;
}

}  // namespace oneflow_like::peers
