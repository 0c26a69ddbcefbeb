#include "oneflow_like/simulate/kernel_fit.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>

namespace oneflow_like {
namespace {

using FitGroup = std::tuple<int, int, bool>;  // type, threads, crowded

constexpr double kShortestKernel = 1e-9;  // seconds: what a clock can tell

// The seconds of a row's amounts, the first being its calls and the second its flops.
struct Parts {
  double calls = 0, flops = 0, memory = 0;
  double Seconds(bool overlap) const {
    return calls + (overlap ? std::sqrt(flops * flops + memory * memory) : flops + memory);
  }
};

Parts PartsOf(const std::vector<double>& row, const std::vector<double>& each) {
  Parts parts{row[0] * each[0], row[1] * each[1], 0};
  for (size_t j = 2; j < each.size(); ++j) parts.memory += row[j] * each[j];
  return parts;
}

// Errors count in proportion to the root of the time that the fit itself gives, found in a few rounds: then
// the fitted times of all samples together are as long as the measured ones. Weighed by measured times, of
// samples that scatter about one time the short ones would decide. Where arithmetic and memory overlap, each
// round takes the root of squares as it is near the fit of the one before: each part in proportion to its
// share.
std::vector<double> FitTimes(const std::vector<std::vector<double>>& rows, const std::vector<double>& seconds,
                             bool overlap = false) {
  const int rounds = overlap ? 30 : 8;
  constexpr double kLeastShare = 1e-3;  // else what is short once would stay so
  std::vector<std::vector<double>> near = rows;
  std::vector<double> weights, fit;
  for (double s : seconds) weights.push_back(1 / std::max(s, kShortestKernel));
  for (int round = 0; round < rounds; ++round) {
    fit = FitNonNegative(near, seconds, weights);
    for (size_t i = 0; i < rows.size(); ++i) {
      const Parts parts = PartsOf(rows[i], fit);
      weights[i] = 1 / std::max(parts.Seconds(overlap), kShortestKernel);
      if (!overlap) continue;
      const double both = std::max(parts.Seconds(true) - parts.calls, kShortestKernel);
      for (size_t j = 1; j < rows[i].size(); ++j)
        near[i][j] = rows[i][j] * std::max(kLeastShare, (j == 1 ? parts.flops : parts.memory) / both);
    }
  }
  return fit;
}

MeasuredKernel KernelEntry(const std::string& name, const FitGroup& group) {
  MeasuredKernel kernel;
  kernel.name = name;
  kernel.dtype = static_cast<DType>(std::get<0>(group));
  kernel.threads = std::get<1>(group);
  kernel.crowded = std::get<2>(group);
  return kernel;
}

// Of one operator.
MeasuredKernel FitOne(const std::string& name, const FitGroup& group,
                      const std::vector<KernelSample>& samples) {
  std::vector<std::vector<double>> rows;
  std::vector<double> values;
  for (const KernelSample& s : samples) {
    std::vector<double>& row = rows.emplace_back();
    for (const NamedAmount& amount : kAmounts) row.push_back(s.work.*amount.value);
    values.push_back(s.seconds);
  }
  MeasuredKernel kernel = KernelEntry(name, group);
  kernel.overlap = kernel.threads == 0 && samples[0].work.kind == Work::Kind::kProduct;
  const std::vector<double> fit = FitTimes(rows, values, kernel.overlap);
  for (size_t i = 0; i < fit.size(); ++i) kernel.each.*kAmounts[i].value = Rounded(fit[i]);
  return kernel;
}

// Of operators that are fused: a call, a byte and a far byte of all, and a flop of each.
std::vector<MeasuredKernel> FitChains(const FitGroup& group, const std::vector<KernelSample>& samples) {
  std::map<std::string, size_t> columns;
  for (const KernelSample& s : samples)
    for (const std::string& step : s.steps) columns.try_emplace(step, 0);
  size_t next = 3;
  for (auto& [step, column] : columns) column = next++;
  std::vector<std::vector<double>> rows;
  std::vector<double> values;
  for (const KernelSample& s : samples) {
    std::vector<double>& row = rows.emplace_back(next, 0.0);
    row[0] = 1;
    row[1] = s.work.bytes;
    row[2] = s.work.far;
    for (const std::string& step : s.steps)
      row[columns[step]] += s.work.flops / static_cast<double>(s.steps.size());
    values.push_back(s.seconds);
  }
  const std::vector<double> fit = FitTimes(rows, values);
  std::vector<MeasuredKernel> kernels;
  for (const auto& [step, column] : columns) {
    kernels.push_back(KernelEntry(step, group));
    kernels.back().each = {.calls = Rounded(fit[0]),
                           .flops = Rounded(fit[column]),
                           .bytes = Rounded(fit[1]),
                           .far = Rounded(fit[2])};
  }
  return kernels;
}

}  // namespace

double Median(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double Rounded(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.3e", value);
  return std::strtod(digits, nullptr);
}

// Coordinate descent on the normal equations, with unknowns scaled so that each has the same curvature; the
// problem is convex, so it ends at the one minimum there is.
std::vector<double> FitNonNegative(const std::vector<std::vector<double>>& rows,
                                   const std::vector<double>& values, const std::vector<double>& weights) {
  const size_t n = rows.empty() ? 0 : rows[0].size();
  std::vector<std::vector<double>> a(n, std::vector<double>(n, 0.0));
  std::vector<double> b(n, 0.0), scale(n, 1.0), x(n, 0.0);
  for (size_t j = 0; j < n; ++j) {
    double square = 0;
    for (size_t i = 0; i < rows.size(); ++i) square += weights[i] * rows[i][j] * rows[i][j];
    scale[j] = square > 0 ? 1 / std::sqrt(square) : 0;
  }
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < n; ++j) {
      b[j] += weights[i] * values[i] * rows[i][j] * scale[j];
      for (size_t k = 0; k < n; ++k) a[j][k] += weights[i] * rows[i][j] * scale[j] * rows[i][k] * scale[k];
    }
  constexpr int kMostRounds = 200'000;
  for (int round = 0; round < kMostRounds; ++round) {
    double moved = 0, largest = 0;
    for (size_t j = 0; j < n; ++j) {
      if (a[j][j] <= 0) continue;
      double gradient = b[j];
      for (size_t k = 0; k < n; ++k) gradient -= a[j][k] * x[k];
      const double to = std::max(0.0, x[j] + gradient / a[j][j]);
      moved = std::max(moved, std::abs(to - x[j]));
      x[j] = to;
      largest = std::max(largest, x[j]);
    }
    if (moved <= 1e-12 * largest) break;
  }
  const double largest = n == 0 ? 0 : *std::max_element(x.begin(), x.end());
  for (size_t j = 0; j < n; ++j)
    x[j] = x[j] < 1e-6 * largest ? 0 : x[j] * scale[j];  // what is left of the search
  return x;
}

std::vector<MeasuredKernel> FitKernels(const std::vector<KernelSample>& samples) {
  std::set<std::string> fused;
  for (const KernelSample& s : samples) fused.insert(s.steps.begin(), s.steps.end());
  std::map<std::pair<std::string, FitGroup>, std::vector<KernelSample>> alone;
  std::map<FitGroup, std::vector<KernelSample>> chains;
  for (KernelSample s : samples) {
    const FitGroup group = {static_cast<int>(s.dtype), s.threads, s.crowded};
    if (s.steps.empty() && fused.count(s.name) > 0) s.steps = {s.name};
    (s.steps.empty() ? alone[{s.name, group}] : chains[group]).push_back(std::move(s));
  }
  std::vector<MeasuredKernel> kernels;
  for (const auto& [key, of] : alone) kernels.push_back(FitOne(key.first, key.second, of));
  for (const auto& [group, of] : chains)
    for (MeasuredKernel& kernel : FitChains(group, of)) kernels.push_back(std::move(kernel));
  // On a busy machine an operator may get no time at all, or none but of far bytes.
  std::erase_if(kernels, [](MeasuredKernel kernel) {
    kernel.each.far = 0;
    return kernel.each == Work();
  });
  std::stable_sort(kernels.begin(), kernels.end(), [](const MeasuredKernel& a, const MeasuredKernel& b) {
    return std::tie(a.name, a.dtype, a.threads, a.crowded) < std::tie(b.name, b.dtype, b.threads, b.crowded);
  });
  return kernels;
}

}  // namespace oneflow_like
