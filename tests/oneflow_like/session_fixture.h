// What the session tests share: meshes of three axes, repeatable data, comparison of host tensors.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/random.h"
#include "oneflow_like/oneflow_like.h"
#include "tests/error_of.h"

namespace oneflow_like {

using Outputs = std::map<std::string, HostTensor>;

// "cpu:dp=2" with the axes dp, tp and pp, those not named of extent 1: one model text serves every mesh.
inline Mesh FullMesh(const std::string& text) {
  Mesh given = Mesh::Parse(text);
  std::vector<std::pair<std::string, int>> axes;
  for (const char* name : {"dp", "tp", "pp"}) {
    int a = given.FindAxis(name);
    axes.push_back({name, a < 0 ? 1 : given.axis_size(a)});
  }
  return Mesh("cpu", axes);
}

// Numbers in [-1, 1), a function of the seed alone.
inline HostTensor Floats(uint64_t seed, const Dims& shape) {
  HostTensor t = HostTensor::Make(DType::kFloat32, shape);
  for (int64_t i = 0; i < t.elements(); ++i) t.as<float>()[i] = 2 * ToUniform(RandomBits(seed, 0, i)) - 1;
  return t;
}

inline HostTensor Ids(uint64_t seed, const Dims& shape, int limit) {
  HostTensor t = HostTensor::Make(DType::kInt32, shape);
  for (int64_t i = 0; i < t.elements(); ++i) t.as<int32_t>()[i] = RandomBits(seed, 0, i) % limit;
  return t;
}

inline bool SameBytes(const HostTensor& a, const HostTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data.get(), b.data.get(), a.bytes()) == 0;
}

// Largest |a - b| / (1 + |b|); infinite for other types or shapes, or other integers.
inline double Difference(const HostTensor& a, const HostTensor& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return INFINITY;
  if (a.dtype != DType::kFloat32) return SameBytes(a, b) ? 0 : INFINITY;
  double worst = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    double x = a.as<float>()[i], y = b.as<float>()[i];
    double d = std::abs(x - y) / (1 + std::abs(y));
    if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
  }
  return worst;
}

inline void ExpectNear(const Outputs& got, const Outputs& wanted, double tolerance,
                       const std::string& where) {
  ASSERT_EQ(got.size(), wanted.size()) << where;
  for (const auto& [name, value] : wanted) {
    ASSERT_TRUE(got.count(name)) << where << ": no " << name;
    EXPECT_LE(Difference(got.at(name), value), tolerance)
        << where << ": " << name << " " << Name(value.dtype) << value.shape.str();
  }
}

}  // namespace oneflow_like
