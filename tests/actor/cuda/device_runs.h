// Small programs on the devices of a mesh, for tests of a backend: loss curves, a value changed from one
// layout to another, and what the user reads when something goes wrong.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {

// Devices of a mesh, by number; empty: all there are, one for each rank.
inline ModelOptions OnDevices(const std::vector<int>& devices) {
  ModelOptions options;
  options.seed = 3;
  options.threads = 2;
  options.devices = devices;
  return options;
}

inline std::vector<float> Losses(SmallGpt given, const std::vector<int>& devices, int steps) {
  const Pipeline pipeline = given.model_options.pipeline;
  given.model_options = OnDevices(devices);
  given.model_options.pipeline = pipeline;
  GptProgram program(given);
  Session session = program.MakeTrain();
  std::vector<StepResult> results;
  for (int step = 0; step < steps; ++step) results.push_back(session.Run(program.MakeFeeds(step)));
  std::vector<float> losses;
  for (const StepResult& r : results) losses.push_back(r.Scalar("loss"));
  return losses;
}

// The largest difference, relative to what is wanted. NaN differs from everything.
inline double WorstDifference(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(got[i] - want[i]) / std::abs(want[i]);
    if (!(difference <= worst)) worst = std::isnan(difference) ? INFINITY : difference;
  }
  return worst;
}

// A value of two axes that changes its layout on mesh axes a and b, drawn from a seed. A partial value is
// made by summing a leading axis that the mesh cuts.
class LayoutChange {
 public:
  LayoutChange(const std::string& kind, unsigned seed) {
    std::mt19937 random(seed);
    auto draw = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    const int a = 1 + draw(3), b = 1 + draw(2);
    sizes_ = {{"a", a}, {"b", b}};
    mesh_ = Mesh(kind, sizes_);
    shape_ = {1 + draw(14), 1 + draw(40)};
    dtype_ = draw(3) == 0 ? DType::kInt32 : DType::kFloat32;
    for (std::vector<int>* side : {&from_, &to_}) {
      *side = {draw(4), draw(side == &from_ ? 4 : 3)};
      if (side == &to_ && draw(4) == 0) side->at(draw(2)) = kPartial;
    }
    if (dtype_ == DType::kInt32) {  // sums are of floats
      for (int& choice : from_) choice = choice == kPartial ? kCopied : choice;
      for (int& choice : to_) choice = choice == kPartial ? kCopied : choice;
    }
  }

  std::string str() const {
    std::string text = Cat(Name(dtype_), shape_.str(), " on ", mesh_.str());
    for (int axis : {0, 1})
      text += Cat(" ", sizes_[axis].first, ":", Text(from_[axis]), "->", Text(to_[axis]));
    return text;
  }

  // Empty when the value that arrives is the one that was sent.
  std::string Run(const std::vector<int>& devices) const {
    Model model(mesh_, OnDevices(devices));
    // [parts of a's sum, of b's, rows, columns]
    const Dims whole{sizes_[0].second, sizes_[1].second, shape_[0], shape_[1]};
    Annotation given, sent, wanted;
    for (int axis : {0, 1}) {
      const std::string& name = sizes_[axis].first;
      if (from_[axis] == kPartial) given.push_back({name, S(axis)});
      if (from_[axis] < kCopied) given.push_back({name, S(2 + from_[axis])});
      sent.push_back({name, SbpOf(from_[axis])});
      wanted.push_back({name, SbpOf(to_[axis])});
    }
    Tensor x = dtype_ == DType::kInt32 ? model.Input("x", shape_, dtype_, sent, -1)
                                       : model.Input("x", whole, dtype_, given, -1);
    Tensor y = dtype_ == DType::kInt32 ? x : annotate(sum(x, {0, 1}), sent);
    Session session = Evaluate({{"y", annotate(y, wanted)}});
    HostTensor fed = HostTensor::Make(dtype_, dtype_ == DType::kInt32 ? shape_ : whole);
    const int64_t elements = shape_.elements();
    std::vector<double> expected(elements, 0);
    for (int64_t i = 0; i < fed.elements(); ++i) {
      const int value = static_cast<int>(i * 2654435761u % 201) - 100;
      expected[i % elements] += value;
      if (dtype_ == DType::kInt32) {
        fed.as<int32_t>()[i] = value;
      } else {
        fed.as<float>()[i] = static_cast<float>(value);
      }
    }
    for (int run = 0; run < 3; ++run) {  // the third time may be a replay
      const HostTensor got = session.Run({{"x", fed}}).Get("y");
      if (got.elements() != elements) return Cat("gives ", got.shape.str());
      for (int64_t i = 0; i < elements; ++i) {
        const double value = dtype_ == DType::kInt32 ? got.as<int32_t>()[i] : got.as<float>()[i];
        if (value != expected[i])
          return Cat("run ", run, ", element ", i, " is ", value, ", not ", expected[i]);
      }
    }
    return "";
  }

 private:
  static constexpr int kCopied = 2, kPartial = 3;  // below: the axis that is cut
  static Sbp SbpOf(int choice) { return choice == kPartial ? P() : choice == kCopied ? B() : S(choice); }
  static std::string Text(int choice) { return SbpOf(choice).str(); }

  std::vector<std::pair<std::string, int>> sizes_;
  Mesh mesh_;
  Dims shape_;
  DType dtype_;
  std::vector<int> from_, to_;
};

// A table looked up by ids that are fed, and trained: what fails when an id is outside it.
struct Lookup {
  Model model;
  int line;  // of the call that fails
  Tensor loss;

  Lookup(const Mesh& mesh, const std::vector<int>& devices) : model(mesh, OnDevices(devices)) {
    Tensor ids = model.Input("ids", {8}, DType::kInt32);
    Tensor table = model.scope().Weight("table", {5, 4}, Normal(1));
    line = __LINE__ + 1;
    Tensor rows = embedding(table, ids);
    loss = mean(square(rows));
  }
  static Feeds FeedsWith(int32_t id) {
    return {{"ids", ToHost(std::vector<int32_t>{0, 1, id, 3, 4, 0, 1, 2}, {8})}};
  }
  // "embedding ... at device_runs.h:107 ... id 77": what is expected of the message, else what is missing in
  // it.
  std::string Missing(const std::string& message) const {
    for (const std::string& word :
         {std::string("embedding"), Cat("device_runs.h:", line), std::string("id 77")}) {
      if (message.find(word) == std::string::npos) return Cat("'", message, "' lacks '", word, "'");
    }
    return "";
  }
};

}  // namespace oneflow_like
