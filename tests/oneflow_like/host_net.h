// A network of two layers in plain loops and doubles: what tests of training compare with that are not about
// operators, y = tanh(x up + bias) down. And the same network on any mesh, on the first and last stage of pp.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {

using Numbers = std::vector<double>;

inline Numbers NumbersOf(const HostTensor& t) { return {t.as<float>(), t.as<float>() + t.elements()}; }

struct HostNet {
  int in, hidden, out;
  std::map<std::string, Numbers> weights;  // "up", "bias", "down"

  struct Pass {
    int rows;
    Numbers x, h, y;
  };
  Pass Forward(const Numbers& x) const {
    Pass p{static_cast<int>(x.size()) / in, x, {}, {}};
    const Numbers &up = weights.at("up"), &bias = weights.at("bias"), &down = weights.at("down");
    for (int r = 0; r < p.rows; ++r) {
      for (int j = 0; j < hidden; ++j) {
        double sum = bias[j];
        for (int i = 0; i < in; ++i) sum += x[r * in + i] * up[i * hidden + j];
        p.h.push_back(std::tanh(sum));
      }
      for (int o = 0; o < out; ++o) {
        double sum = 0;
        for (int j = 0; j < hidden; ++j) sum += p.h[r * hidden + j] * down[j * out + o];
        p.y.push_back(sum);
      }
    }
    return p;
  }
  // Adds the gradients of a loss whose gradient of y is dy; returns that of x.
  Numbers Backward(const Pass& p, const Numbers& dy, std::map<std::string, Numbers>* gradients) const {
    const Numbers &up = weights.at("up"), &down = weights.at("down");
    for (const auto& [name, w] : weights) (*gradients)[name].resize(w.size());
    Numbers &d_up = (*gradients)["up"], &d_bias = (*gradients)["bias"], &d_down = (*gradients)["down"],
            dx(p.x.size(), 0);
    for (int r = 0; r < p.rows; ++r)
      for (int j = 0; j < hidden; ++j) {
        const double h = p.h[r * hidden + j];
        double dh = 0;
        for (int o = 0; o < out; ++o) {
          dh += dy[r * out + o] * down[j * out + o];
          d_down[j * out + o] += dy[r * out + o] * h;
        }
        dh *= 1 - h * h;
        d_bias[j] += dh;
        for (int i = 0; i < in; ++i) {
          d_up[i * hidden + j] += dh * p.x[r * in + i];
          dx[r * in + i] += dh * up[i * hidden + j];
        }
      }
    return dx;
  }
};

// The mean of (y - target)^2, and its gradient of y.
inline std::pair<double, Numbers> MeanSquare(const Numbers& y, double target) {
  double loss = 0;
  Numbers dy;
  for (double v : y) {
    loss += (v - target) * (v - target) / static_cast<double>(y.size());
    dy.push_back(2 * (v - target) / static_cast<double>(y.size()));
  }
  return {loss, dy};
}

inline Tensor MeshNet(Scope s, Tensor x, int64_t hidden, int64_t out, int first, int last) {
  const int64_t in = x.shape().back();
  Tensor up = s.Stage("pp", first).Weight("up", {in, hidden}, Normal(0.5), {{"tp", S(1)}});
  Tensor bias = s.Stage("pp", first).Weight("bias", {hidden}, Normal(0.5));
  Tensor down = s.Stage("pp", last).Weight("down", {hidden, out}, Normal(0.5));
  return matmul(to_stage(tanh(matmul(x, up) + bias), "pp", last), down);
}

inline HostNet HostNetOf(const Model& model, const std::string& path, int in, int hidden, int out) {
  HostNet net{in, hidden, out, {}};
  for (const char* name : {"up", "bias", "down"}) net.weights[name] = NumbersOf(model.Read(path + name));
  return net;
}

// How a test's training is cut.
struct Cutting {
  const char* mesh = "cpu:dp=1";
  int micro_batches = 1;
  int zero = 0;  // stage, along dp; 0: none
  std::string str() const { return Cat(mesh, " m=", micro_batches, " zero=", zero); }
  ModelOptions options() const {
    ModelOptions options;
    if (zero > 0) options.zero = {.axis = "dp", .stage = zero, .small = 0};
    return options;
  }
};
// For batches of 12.
const Cutting kCuttings[] = {{},
                             {"cpu:dp=2", 3},
                             {"cpu:tp=2", 3},
                             {"cpu:pp=2", 3},
                             {"cpu:dp=2", 1, 1},
                             {"cpu:dp=3", 2, 2},
                             {"cpu:dp=2", 3, 3},
                             {"cpu:dp=2,tp=2,pp=2", 3, 1}};

// Largest |a - b| / (1 + |b|).
inline double Apart(const Numbers& a, const Numbers& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double apart = std::abs(a[i] - b[i]) / (1 + std::abs(b[i]));
    if (!(apart <= worst)) worst = std::isnan(apart) ? INFINITY : apart;
  }
  return worst;
}

}  // namespace oneflow_like
