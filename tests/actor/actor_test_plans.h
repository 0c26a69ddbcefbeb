// Kernels and plans that the tests of the runtime share: a small training step on every rank, and the store
// it runs in.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actor/executor.h"
#include "actor/runtime.h"
#include "tests/actor/plan_builder.h"

namespace oneflow_like {

// x * w of each element, summed over the micro-batches of a step.
inline Status GradKernel(const KernelContext& c) {
  int64_t fail_step = c.spec.attrs.Int("fail_step", -1), fail_time = c.spec.attrs.Int("fail_time", 0);
  if (c.step == fail_step && c.time == fail_time) {
    if (c.spec.attrs.Int("throw", 0) != 0) throw std::runtime_error("thrown");
    return Status("no good");
  }
  int64_t us = c.spec.attrs.Int("us", 0);
  if (us > 0 && c.step < c.spec.attrs.Int("us_before_step", c.step + 1))
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  for (int64_t i = 0; i < c.out[0].elements(); ++i) {
    int64_t value = c.in[0].as<int64_t>()[i] * c.in[1].as<int64_t>()[i];
    int64_t& sum = c.out[0].as<int64_t>()[i];
    sum = c.time == 0 ? value : sum + value;
  }
  return Status();
}

inline Status UpdateKernel(const KernelContext& c) {
  for (int64_t i = 0; i < c.out[0].elements(); ++i) {
    int64_t& w = c.out[0].as<int64_t>()[i];
    w = (w + c.in[0].as<int64_t>()[i]) % 1000;
    if (c.out.size() > 1) c.out[1].as<int64_t>()[i] = w;
  }
  return Status();
}

inline Status OnesKernel(const KernelContext& c) {
  for (int64_t i = 0; i < c.out[0].elements(); ++i) c.out[0].as<int64_t>()[i] = 1 + i;
  return Status();
}

inline Status WaitKernel(const KernelContext& c) {
  std::this_thread::sleep_for(std::chrono::microseconds(c.spec.attrs.Int("us")));
  return Status();
}

inline KernelRegistry TestRegistry() {
  KernelRegistry registry;
  registry.Add("grad", "cpu", &GradKernel);
  registry.Add("update", "cpu", &UpdateKernel);
  registry.Add("ones", "cpu", &OnesKernel);
  registry.Add("wait", "cpu", &WaitKernel);
  return registry;
}

inline std::unique_ptr<Store> MakeStore(int world) {
  std::vector<int> ranks;
  std::vector<std::unique_ptr<Device>> devices;
  for (int r = 0; r < world; ++r) {
    ranks.push_back(r);
    devices.push_back(MakeHostDevice(r));
  }
  return std::make_unique<Store>(std::move(ranks), std::move(devices));
}

constexpr int64_t kWidth = 4;  // elements of a micro-batch on one rank

// feed x -> grad (adds up over `times`) -> all_reduce -> update of w, in place -> fetch of w by rank 0 and,
// gathered through an all_gather, of everybody's sum by the last rank.
inline std::vector<plan::Plan> TrainPlans(int world, int times, int fail_rank = -1, int64_t fail_step = -1,
                                          bool throws = false) {
  enum { kFeed, kGrad, kReduce, kUpdate, kFetchW, kGather, kFetchSums };
  std::vector<plan::Plan> plans;
  Dims wide{kWidth}, all{world * kWidth}, input{times * world * kWidth};
  Box whole = Box::Whole(wide);
  std::vector<int> ranks;
  for (int r = 0; r < world; ++r) ranks.push_back(r);
  auto part = [&](int r) { return Box{{r * kWidth}, {kWidth}}; };
  for (int r = 0; r < world; ++r) {
    PlanBuilder b("train", r, world, times);
    b.Input("x", input);
    b.Output("w", wide);
    b.Output("sums", all);
    int x = b.Buffer("x", kWidth, 2), g = b.Buffer("g", kWidth, 2), sum = b.Buffer("sum", kWidth, 1);
    int y = b.Buffer("y", kWidth, 1), gathered = b.Buffer("gathered", world * kWidth, 1);
    int w = b.Variable("w", wide, "ones");
    std::vector<Box> x_boxes;
    for (int t = 0; t < times; ++t) x_boxes.push_back({{(t * world + r) * kWidth}, {kWidth}});
    bool first = r == 0, last = r == world - 1;

    plan::Actor* feed = b.Actor(kFeed, "feed x", times);
    feed->set_feed("x");
    b.Kernel(feed, "feed", {}, {b.Operand(x, input, x_boxes)});
    plan::Actor* grad = b.Actor(kGrad, "grad", times);
    plan::Kernel* k = b.Kernel(grad, "grad", {b.Operand(x, input, x_boxes), b.Operand(w, wide, {whole})},
                               {b.Operand(g, wide, {whole}, times)});
    if (r == fail_rank) {
      b.SetAttr(k, "fail_step", fail_step);
      b.SetAttr(k, "fail_time", times - 1);
      b.SetAttr(k, "throw", throws);
    }
    plan::Actor* reduce = b.Actor(kReduce, "reduce", 1);
    b.Kernel(reduce, "all_reduce", {b.Operand(g, wide, {whole})}, {b.Operand(sum, wide, {whole})});
    std::vector<std::vector<Box>> everywhere(world, {whole});
    plan::Collective* c = b.Collective(reduce, 1, ranks, r, "sum", everywhere, everywhere);
    b.Region(c, {{r * kWidth / world}, {(r + 1) * kWidth / world - r * kWidth / world}}, ranks, ranks);
    plan::Actor* update = b.Actor(kUpdate, "update", 1);
    b.Kernel(update, "update", {b.Operand(sum, wide, {whole})},
             {b.Operand(w, wide, {whole}), b.Operand(y, wide, {whole})});
    plan::Actor* gather = b.Actor(kGather, "gather", 1);
    b.Kernel(gather, "all_gather", {b.Operand(g, all, {part(r)})}, {});
    std::vector<std::vector<Box>> parts, wants(world);
    for (int i = 0; i < world; ++i) parts.push_back({part(i)});
    wants[world - 1] = {Box::Whole(all)};
    c = b.Collective(gather, 2, ranks, r, "", parts, wants);
    if (last) {
      *gather->mutable_kernel(0)->add_out() = b.Operand(gathered, all, {Box::Whole(all)});
      for (int i = 0; i < world; ++i) b.Region(c, part(i), {i}, {world - 1});
      plan::Actor* fetch = b.Actor(kFetchSums, "fetch sums", 1);
      fetch->set_fetch("sums");
      b.Kernel(fetch, "fetch", {b.Operand(gathered, all, {Box::Whole(all)})}, {});
      b.Edge(gather, fetch, 1);
    }
    if (first) {
      plan::Actor* fetch = b.Actor(kFetchW, "fetch w", 1);
      fetch->set_fetch("w");
      b.Kernel(fetch, "fetch", {b.Operand(y, wide, {whole})}, {});
      b.Edge(update, fetch, 1);
    }
    b.Edge(feed, grad, 2);
    b.Edge(grad, reduce, 2, times);
    b.Edge(grad, gather, 2, times);
    b.Edge(reduce, update, 1);
    b.Edge(update, grad, 1, 1, times, 1);
    std::vector<int> order(times, kGrad);
    order.push_back(kUpdate);
    b.Stream("compute", order);
    b.Stream("link", {kGather, kReduce});
    plans.push_back(b.plan());
  }
  return plans;
}

// What TrainPlans computes, in plain loops.
struct TrainModel {
  TrainModel(int world, int times) : world(world), times(times) {
    for (int64_t i = 0; i < kWidth; ++i) w.push_back(1 + i);
  }
  void Step(const HostTensor& x) {
    sums.assign(world * kWidth, 0);
    std::vector<int64_t> total(kWidth, 0);
    for (int r = 0; r < world; ++r) {
      for (int t = 0; t < times; ++t) {
        for (int64_t i = 0; i < kWidth; ++i) {
          int64_t v = x.as<int64_t>()[(t * world + r) * kWidth + i] * w[i];
          sums[r * kWidth + i] += v;
          total[i] += v;
        }
      }
    }
    for (int64_t i = 0; i < kWidth; ++i) w[i] = (w[i] + total[i]) % 1000;
  }
  int world, times;
  std::vector<int64_t> w, sums;
};

inline Feeds TrainFeeds(int world, int times, int64_t step) {
  HostTensor x = HostTensor::Make(DType::kInt64, {times * world * kWidth});
  for (int64_t i = 0; i < x.elements(); ++i) x.as<int64_t>()[i] = (i * 7 + step * 13) % 23;
  return {{"x", x}};
}

inline std::vector<int64_t> Values(const HostTensor& tensor) {
  return {tensor.as<int64_t>(), tensor.as<int64_t>() + tensor.elements()};
}

}  // namespace oneflow_like
