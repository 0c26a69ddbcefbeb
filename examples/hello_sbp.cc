// One matmul on two devices, in every signature it has: what each rank holds, which boxing brings the result
// to everybody, and how many elements move. Then each signature runs for real, and its value is checked.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "oneflow_like/oneflow_like.h"
#include "ops/op.h"
#include "sbp/boxing.h"

namespace examples {

using namespace oneflow_like;
namespace {

// A small matrix, or the piece of one that a rank holds.
struct Matrix {
  Box box;
  std::vector<float> values;  // row-major over box

  explicit Matrix(const Box& b) : box(b), values(b.elements(), 0.0f) {}
  Piece piece() { return {values.data(), box}; }
};

Matrix Counting(const Dims& shape) {
  Matrix m(Box::Whole(shape));
  for (size_t i = 0; i < m.values.size(); ++i) m.values[i] = static_cast<float>(i + 1);
  return m;
}

// What a rank computes from the pieces it holds: no word of the signature enters here.
Matrix Product(const Matrix& a, const Matrix& b) {
  const int64_t m = a.box.extent[0], k = a.box.extent[1], n = b.box.extent[1];
  Matrix y(Box{{a.box.begin[0], b.box.begin[1]}, {m, n}});
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) y.values[i * n + j] += a.values[i * k + l] * b.values[l * n + j];
    }
  }
  return y;
}

BoxingEnd End(const Mesh& mesh, const Sbp& sbp) {
  BoxingEnd end{{mesh.size()}, {}, {sbp}};
  for (int i = 0; i < mesh.size(); ++i) end.devices.push_back(i);
  return end;
}

struct Moved {
  std::vector<Matrix> held;  // per rank
  int64_t elements = 0;      // that changed device
};

// Carries out the boxing engine's program by hand: every region is the fold of its sources, given to its
// destinations.
Moved Box1D(const Mesh& mesh, const Dims& shape, std::vector<Matrix> held, const Sbp& from, const Sbp& to) {
  BoxingProgram program = RouteAll(Box::Whole(shape), End(mesh, from), End(mesh, to));
  Moved moved;
  moved.elements = program.Moved();
  for (const Box& box : program.out) moved.held.emplace_back(box);
  for (const std::vector<Region>& work : program.work) {
    for (const Region& region : work) {
      std::vector<Piece> sources, dests;
      for (int s : region.sources) sources.push_back(held[s].piece());
      for (int d : region.dests) dests.push_back(moved.held[d].piece());
      CombineBox(DType::kFloat32, program.reduce, region.box, sources.data(),
                 static_cast<int>(sources.size()), dests.data(), static_cast<int>(dests.size()));
    }
  }
  return moved;
}

std::string Row(const Matrix& m, int64_t row) {
  std::string out;
  const int64_t columns = m.box.extent[1];
  for (int64_t j = 0; j < columns && row < m.box.extent[0]; ++j) {
    char number[16];
    std::snprintf(number, sizeof number, "%5g", static_cast<double>(m.values[row * columns + j]));
    out += number;
  }
  return out;
}

// Matrices of one rank beside each other.
void Print(const Launcher& launcher, const std::vector<std::pair<std::string, const Matrix*>>& matrices) {
  int64_t rows = 0;
  for (const auto& [name, m] : matrices) rows = std::max(rows, m->box.extent[0]);
  for (int64_t row = 0; row < rows; ++row) {
    std::string line = "   ";
    for (const auto& [name, m] : matrices) {
      const std::string head = row == 0 ? " " + name + " =" : "";
      std::string cell = head + std::string(std::max<int64_t>(0, 5 - static_cast<int64_t>(head.size())), ' ');
      cell += Row(*m, row);
      cell.resize(std::max<size_t>(cell.size(), 24), ' ');
      line += cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    launcher.Print("%s\n", line.c_str());
  }
}

// The same through the framework: the operands held to the signature, the result to B. Returns whether the
// value is the whole product.
bool RunModel(const Launcher& launcher, const Mesh& mesh, const Signature& signature, Matrix& a, Matrix& b,
              const Matrix& expected) {
  const std::string axis = mesh.axis_name(0);
  ModelOptions options = launcher.model_options();
  options.trace_file.clear();  // every signature has a model of its own
  Model model(mesh, options);
  Tensor ta = annotate(model.Input("a", a.box.extent, DType::kFloat32), {{axis, signature.in[0]}});
  Tensor tb = annotate(model.Input("b", b.box.extent, DType::kFloat32), {{axis, signature.in[1]}});
  Tensor y = annotate(matmul(ta, tb), {{axis, signature.out[0]}});
  Session session = Evaluate({{"y", annotate(y, {{axis, B()}})}});
  StepResult result =
      session.Run({{"a", ToHost(a.values, a.box.extent)}, {"b", ToHost(b.values, b.box.extent)}});
  const HostTensor& value = result.Get("y");
  for (size_t i = 0; i < expected.values.size(); ++i) {
    if (std::abs(value.as<float>()[i] - expected.values[i]) > 1e-4f) return false;
  }
  return true;
}

bool Show(const Launcher& launcher, const Mesh& mesh, const Signature& signature) {
  const Dims a_shape = {4, 3}, b_shape = {3, 2}, y_shape = {4, 2};
  Matrix a = Counting(a_shape), b = Counting(b_shape);
  const Matrix expected = Product(a, b);
  launcher.Print("%s", signature.str().c_str());
  if (!signature.label.empty()) launcher.Print("   (axis %s is cut)", signature.label.c_str());
  launcher.Print("\n");

  // Both ranks start with everything; taking their parts of it moves nothing.
  const Moved a_held = Box1D(mesh, a_shape, {a, a}, B(), signature.in[0]);
  const Moved b_held = Box1D(mesh, b_shape, {b, b}, B(), signature.in[1]);
  std::vector<Matrix> y;
  for (int rank = 0; rank < mesh.size(); ++rank) y.push_back(Product(a_held.held[rank], b_held.held[rank]));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    launcher.Print("  rank %d holds\n", rank);
    Print(launcher, {{"a", &a_held.held[rank]}, {"b", &b_held.held[rank]}, {"y", &y[rank]}});
  }

  const Layout from{WholeMesh(mesh), {B(), signature.out[0]}}, to{WholeMesh(mesh), {B(), B()}};
  std::string steps;
  for (const BoxingStep& step : PlanBoxing(mesh, 1, y_shape, from, to, Topology())) {
    steps += Cat(steps.empty() ? "" : ", then ", Name(step.primitive));
  }
  const Moved whole = Box1D(mesh, y_shape, y, signature.out[0], B());
  launcher.Print("  y: %s -> B by %s; %lld elements moved\n", signature.out[0].str().c_str(),
                 steps.empty() ? "nothing" : steps.c_str(), static_cast<long long>(whole.elements));
  bool right = RunModel(launcher, mesh, signature, a, b, expected);
  for (const Matrix& m : whole.held) right = right && m.values == expected.values;
  launcher.Print("  compiled and run: %s\n\n", right ? "every rank has the whole product" : "WRONG");
  return right;
}

const char* const kMesh = "cpu:tp=2";

int Run(const Launcher& launcher) {
  const Mesh mesh = launcher.mesh({"tp"}, kMesh);
  if (mesh.size() != 2) Fail("hello_sbp shows two devices, but the mesh ", mesh.str(), " has ", mesh.size());
  const Attrs none;
  OpCall call{"matmul", "matmul", {{4, 3}, {3, 2}}, {DType::kFloat32, DType::kFloat32}, &none};
  const BoundRule rule = BindOp(BuiltinCatalog().Get("matmul"), call);
  launcher.Print("y[m n] = a[m k] b[k n], m = 4, k = 3, n = 2, on %s.\n", mesh.str().c_str());
  launcher.Print("S(i): cut along axis i. B: the same on both. P: what is meant is the sum of both.\n\n");
  bool right = true;
  for (const Signature& signature : Signatures(rule, {{}, {}}, mesh.size()))
    right &= Show(launcher, mesh, signature);
  return right ? 0 : 1;
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  Launcher launcher(&argc, &argv, "Shows one matmul on two devices in every signature.", kMesh);
  return launcher.Main([&] { return Run(launcher); });
}
