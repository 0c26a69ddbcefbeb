// Copies of a variable that begin with different values in several processes are found before the first step,
// whichever way the values came.
// ctest: asan=10
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/thread_job.h"
#include "tests/oneflow_like/variable_sources.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// Weights that are whole and cut on any mesh, one that begins as the program says, and a state.
struct Net {
  explicit Net(const std::string& mesh, std::shared_ptr<Job> job = nullptr, float given = 1,
               const std::string& zero = "")
      : model(FullMesh(mesh), {.zero = {.axis = zero, .small = 0}, .threads = 1, .job = std::move(job)}) {
    Tensor x = model.Input("x", {4, 6}, DType::kFloat32, {{"dp", S(0)}});
    Scope s = model.scope();
    HostTensor begin = HostTensor::Make(DType::kFloat32, {8});
    for (int i = 0; i < 8; ++i) begin.as<float>()[i] = given;
    Tensor up = s.Weight("up", {6, 8}, Normal(1), {{"tp", S(1)}});
    loss = mean(
        square(matmul(x, up) * s.Weight("scale", {8}, FromTensor(begin)) + s.Weight("shift", {8}, Zeros())));
    train = std::make_unique<Session>(Train(loss, Adam{.lr = 1e-2}));
  }
  float Step(int64_t step) { return train->Run({{"x", Floats(step, {4, 6})}}).Scalar("loss"); }

  Model model;
  Tensor loss;
  std::unique_ptr<Session> train;
};

class FirstValues : public testing::Test {
 protected:
  ~FirstValues() override { fs::remove_all(folder_); }

  // Runs three steps on two processes after `begin`; returns their errors and how many steps were made.
  std::vector<std::string> Run(const std::string& mesh, const std::function<void(Net&, int process)>& begin,
                               int* steps, const std::function<float(int process)>& given = {},
                               const std::string& zero = "") {
    std::atomic<int> done{0};
    const std::vector<std::string> errors = RunProcesses(2, [&](std::shared_ptr<Job> job) {
      const int process = job->process();
      Net net(mesh, job, given ? given(process) : 1, zero);
      if (begin) begin(net, process);
      for (int step = 0; step < 3; ++step) {
        net.Step(net.model.next_step());
        ++done;
      }
    });
    *steps = done;
    return errors;
  }
  void Refuse(const std::string& mesh, const std::string& wanted,
              const std::function<void(Net&, int process)>& begin,
              const std::function<float(int process)>& given = {}) {
    int steps = -1;
    for (const std::string& error : Run(mesh, begin, &steps, given))
      EXPECT_EQ(error.rfind(wanted, 0), 0u) << mesh << ": " << error << "\n  wanted: " << wanted;
    EXPECT_EQ(steps, 0) << mesh;
  }

  const std::string folder_ = testing::TempDir() + "/first_values_test." + std::to_string(getpid());
};

TEST_F(FirstValues, EqualOnesAreNotNoticed) {
  int steps = 0;
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2", "cpu:dp=2,tp=2", "cpu:dp=4"})
    for (const char* zero : {"", "dp"}) {
      for (const std::string& error : Run(mesh, {}, &steps, {}, zero)) EXPECT_EQ(error, "") << mesh;
      EXPECT_EQ(steps, 6) << mesh;
    }
}

TEST_F(FirstValues, WhatAProgramGivesIsCompared) {
  for (const char* mesh : {"cpu:dp=2", "cpu:dp=4", "cpu:dp=2,tp=2"})  // by the line that requests it
    Refuse(mesh, "session train is not the same on all processes: process 0 has 'scale = variable ", {},
           [](int process) { return 1 + 0.001f * static_cast<float>(process); });
}

// Of a variable that Model::Write wrote, and of a moment of Adam's.
TEST_F(FirstValues, WhatIsWrittenIsCompared) {
  for (const std::string name : {"up", "shift", "train:adam_v/up"})
    Refuse("cpu:dp=2", Cat("session train: variable '", name, "' begins with other values in process 1"),
           [&](Net& net, int process) {
             HostTensor value = net.model.Read(name);
             if (process == 1) value.as<float>()[value.elements() - 1] += 1e-6f;
             net.model.Write(name, value);
           });
  Refuse("cpu:dp=2",
         "session train: variable 'scale' begins with other values in process 1 than in process 0, and "
         "so do 2 other variables; ",
         [](Net& net, int process) {
           for (const std::string name : {"scale", "shift", "up"}) {
             HostTensor value = net.model.Read(name);
             value.as<float>()[0] += static_cast<float>(process);
             net.model.Write(name, value);
           }
         });
}

// Where a source says nothing that differs, copies do.
TEST_F(FirstValues, WhatIsLoadedIsComparedInTheEnd) {
  auto load = [](Net& net, uint64_t seed) {
    TensorSource source({{"up", RandomTensor(seed, DType::kFloat32, {6, 8})},
                         {"scale", RandomTensor(2, DType::kFloat32, {8})},
                         {"shift", RandomTensor(3, DType::kFloat32, {8})}});
    LoadWeights(net.model, source);
  };
  Refuse("cpu:dp=2",
         "session train: process 1 read other weights from memory than process 0: variable 'up' differs; "
         "give all processes the same files",
         [&](Net& net, int process) { load(net, 1 + process); });
  int steps = 0;
  for (const std::string& error : Run(
           "cpu:dp=2", [&](Net&net, int) { load(net, 1); }, &steps))
    EXPECT_EQ(error, "");
  EXPECT_EQ(steps, 6);
  // Also when training has begun.
  for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
         Net net("cpu:dp=2", job);
         net.Step(0);
         load(net, 1);
         net.Step(1);
         load(net, 1 + job->process());
         net.Step(2);
       }))
    EXPECT_EQ(error.rfind("session train: process 1 read other weights from memory", 0), 0u) << error;
}

// Files of each process, of which no copies tell where weights are cut over the processes.
TEST_F(FirstValues, FilesAreCompared) {
  auto write = [&](int process, uint64_t seed) {
    const std::string folder = Cat(folder_, "/host", process);
    fs::create_directories(folder);
    const Tensors tensors = {{"up", RandomTensor(seed, DType::kFloat32, {6, 8})},
                             {"scale", RandomTensor(2, DType::kFloat32, {8})},
                             {"shift", RandomTensor(3, DType::kFloat32, {8})}};
    TensorSource source(tensors);
    fs::remove(folder + "/model.safetensors");
    WriteTensors(source, folder + "/model.safetensors", {});
  };
  auto load = [&](Net& net, int process) {
    FileSource source(Cat(folder_, "/host", process));
    LoadWeights(net.model, source);
  };
  write(0, 1);
  write(1, 1);
  int steps = 0;
  for (const std::string& error : Run("cpu:tp=2", load, &steps)) EXPECT_EQ(error, "");
  EXPECT_EQ(steps, 6);
  write(1, 2);
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2"}) {
    for (const std::string& error : Run(mesh, load, &steps))
      for (const char* word : {"process 1 reads other weights than process 0: the file is ",
                               "/host1/model.safetensors) there and ", "; give all processes the same files"})
        EXPECT_NE(error.find(word), std::string::npos) << mesh << ": " << error;
    EXPECT_EQ(steps, 0) << mesh;
  }
}

// Copies of checkpoints on disks of each host: the same, and of another run under the same name.
TEST_F(FirstValues, CheckpointsAreCompared) {
  for (int process = 0; process < 2; ++process) {
    Net net("cpu:dp=1", nullptr);
    net.Step(0);
    Save(net.model, Cat(folder_, "/same", process)).Wait();
    Net other("cpu:dp=1", nullptr);
    other.Step(process);
    Save(other.model, Cat(folder_, "/host", process)).Wait();
  }
  auto load = [&](const std::string& name) {
    return [this, name](Net& net, int process) { Load(net.model, Cat(folder_, "/", name, process)); };
  };
  int steps = 0;
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2"}) {
    for (const std::string& error : Run(mesh, load("same"), &steps)) EXPECT_EQ(error, "") << mesh;
    EXPECT_EQ(steps, 6);
    for (const std::string& error : Run(mesh, load("host"), &steps)) EXPECT_NE(error, "") << mesh;
    EXPECT_EQ(steps, 0);
    for (const std::string& error : Run(
             mesh,
             [&](Net&net, int process) { Load(net.model, Cat(folder_, "/host", process, "/step-00000001")); },
             &steps))
      EXPECT_NE(error.find("process 1 reads other weights than process 0: the index is "), std::string::npos)
          << mesh << ": " << error;
    EXPECT_EQ(steps, 0);
  }
}

// Once: later steps, and evaluations of what has been compared, exchange nothing for it.
TEST_F(FirstValues, AreComparedOnce) {
  std::atomic<int> compared{0};
  for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
         dynamic_cast<TestJob*>(job.get())->says = [&](const std::string& what, const std::string& mine) {
           compared += what.find("before the first step") != std::string::npos;
           return mine;
         };
         Net net("cpu:dp=2", job);
         for (int step = 0; step < 4; ++step) net.Step(step);
         Session eval = Evaluate({{"loss", net.loss}});
         for (int step = 0; step < 4; ++step) eval.Run({{"x", Floats(step, {4, 6})}}).Wait();
         net.Step(4);
       }))
    EXPECT_EQ(error, "");
  EXPECT_EQ(compared, 2 * 2) << "which pieces there are, and their hashes, of two processes";
}

}  // namespace
}  // namespace oneflow_like
