// Checkpoints: a run goes on from one as if it had not stopped, on the mesh it was saved on or another, with
// any number of processes; what does not fit is named; what is damaged is refused, and what was complete
// stays.
// ctest: seconds=25 long=20 asan=170 tsan=170
// tsan_filter=*OneMoment*:*BadSteps*:*HostsMay*:*AnyNumber*:*Disk*
#include <gflags/gflags.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>

#include "oneflow_like/checkpoint/index.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/step_folders.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/oneflow_like/thread_job.h"
#include "tests/sanitized.h"

DEFINE_int32(pairs, oneflow_like::kSanitized ? 1 : 3,
             "Pairs of cuts of 8 devices, for each type; 400: all. The long test tries 12 at least");

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

class Checkpoint : public testing::Test {
 protected:
  ~Checkpoint() override { fs::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "/checkpoint_test." + std::to_string(getpid());
};

SmallGpt Small(const std::string& mesh) {
  SmallGpt given;
  given.mesh = mesh;
  given.layers = 2;
  given.width = 32;
  given.heads = 4;
  return given;
}

std::vector<float> Steps(GptProgram& program, Session& session, int64_t first, int64_t count) {
  return program.Losses(session, count, first);
}

std::vector<float> GoOn(const SmallGpt& given, const std::string& folder, int64_t steps) {
  GptProgram program(given);
  Session session = program.MakeTrain();
  Load(program.model(), folder);
  return Steps(program, session, program.model().next_step(), steps);
}

// Ways to cut 8 devices into dp, tp and pp, with ZeRO and without.
std::vector<SmallGpt> CutsOf8() {
  std::vector<SmallGpt> cuts;
  for (int dp : {1, 2, 4, 8})
    for (int tp = 1; tp <= 8 / dp; tp *= 2)
      for (const char* zero : {"", "dp"}) {
        SmallGpt given = Small(Cat("cpu:dp=", dp, ",tp=", tp, ",pp=", 8 / dp / tp));
        given.layers = 8;
        given.heads = 8;
        given.zero_axis = zero;
        cuts.push_back(given);
      }
  return cuts;
}

class LongCheckpoint : public Checkpoint {};

// Saved on one and gone on from on another, in `folder`: bit for bit where they are the same, else up to
// rounding.
void ExpectRunsGoOn(const std::string& folder, int most) {
  constexpr int kSteps = 10;
  const std::vector<SmallGpt> cuts = CutsOf8();
  const size_t all = cuts.size() * cuts.size();
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::set<size_t> pairs;
    if (most < static_cast<int>(all)) {
      for (uint64_t k = 0; static_cast<int>(pairs.size()) < most; ++k)
        pairs.insert(RandomBits(11, static_cast<uint64_t>(dtype), k) % all);
    } else {
      for (size_t k = 0; k < all; ++k) pairs.insert(k);
    }
    size_t saved = cuts.size();  // which one lies in the folder
    std::vector<float> wanted;
    for (size_t pair : pairs) {
      SmallGpt from = cuts[pair / cuts.size()], to = cuts[pair % cuts.size()];
      from.dtype = to.dtype = dtype;
      if (saved != pair / cuts.size()) {
        saved = pair / cuts.size();
        fs::remove_all(folder);
        GptProgram program(from);
        Session session = program.MakeTrain();
        Steps(program, session, 0, 2);
        const std::string path = Save(program.model(), folder, {.state = {{"epoch", "3"}}}).Wait();
        EXPECT_EQ(path, folder + "/step-00000002");
        wanted = Steps(program, session, 2, kSteps);
      }
      const std::vector<float> got = GoOn(to, folder, kSteps);
      if (pair / cuts.size() == pair % cuts.size()) {
        EXPECT_EQ(got, wanted) << from.str();
      }
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_NEAR(got[i], wanted[i], dtype == DType::kFloat32 ? 1e-5 : 2e-2 * wanted[i])
            << from.str() << " to " << to.str() << " step " << i;
    }
  }
}

TEST_F(Checkpoint, ARunGoesOnOnAnyMesh) { ExpectRunsGoOn(folder_, FLAGS_pairs); }
TEST_F(LongCheckpoint, ARunGoesOnOnAnyMesh) { ExpectRunsGoOn(folder_, std::max(FLAGS_pairs, 12)); }

TEST_F(Checkpoint, ARunGoesOnBitForBit) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=3", "cpu:dp=2,tp=2", "cpu:dp=2,pp=2"})
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      SmallGpt given = Small(mesh);
      given.dtype = dtype;
      given.zero_axis = "dp";
      fs::remove_all(folder_);
      GptProgram program(given);
      Session session = program.MakeTrain();
      Steps(program, session, 0, 2);
      Save(program.model(), folder_).Wait();
      const std::vector<float> wanted = Steps(program, session, 2, 3);
      EXPECT_EQ(GoOn(given, folder_, 3), wanted) << given.str();
    }
}

TEST_F(Checkpoint, AnyNumberOfProcessesReadsAndWrites) {
  GptProgram alone(Small("cpu:dp=1"));
  Session session = alone.MakeTrain();
  Steps(alone, session, 0, 2);
  std::map<std::string, HostTensor> variables;
  for (const std::string& name : alone.model().Variables()) variables.emplace(name, alone.model().Read(name));
  Save(alone.model(), folder_).Wait();
  const std::pair<const char*, int> runs[] = {
      {"cpu:dp=2", 2}, {"cpu:tp=2", 2}, {"cpu:pp=2", 2}, {"cpu:dp=2,tp=2", 4}, {"cpu:dp=2,tp=2,pp=2", 2}};
  for (auto [mesh, processes] : runs) {
    const std::string other = folder_ + "/other";
    std::vector<std::string> errors = RunProcesses(processes, [&, mesh = mesh](std::shared_ptr<Job> job) {
      SmallGpt given = Small(mesh);
      given.zero_axis = "dp";
      given.model_options.job = job;
      GptProgram program(given);
      Session made = program.MakeTrain();
      Load(program.model(), folder_);
      if (program.model().next_step() != 2) Fail("its next step is ", program.model().next_step());
      Save(program.model(), other).Wait();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << mesh;
    int files = 0;
    uintmax_t most = 0, all = 0;
    for (const auto& entry : fs::directory_iterator(other + "/step-00000002")) {
      if (entry.path().extension() != ".safetensors") continue;
      ++files;
      most = std::max(most, entry.file_size());
      all += entry.file_size();
    }
    EXPECT_EQ(files, processes);
    if (std::string(mesh).find("pp") == std::string::npos) {  // stages differ, by the embedding
      EXPECT_LE(most, 1.2 * static_cast<double>(all) / processes) << mesh << ": one writes for others";
    }
    GptProgram back(Small("cpu:dp=1"));
    Session made = back.MakeTrain();
    Load(back.model(), other);
    for (const auto& [name, value] : variables)
      EXPECT_TRUE(SameBytes(back.model().Read(name), value)) << name;
    fs::remove_all(other);
  }
}

// Each process writes its share of the variables that all processes have.
TEST_F(Checkpoint, WhatAllHaveIsSharedOut) {
  for (int processes : {2, 4}) {
    const std::string folder = folder_ + "/" + std::to_string(processes);
    const std::vector<std::string> errors = RunProcesses(processes, [&](std::shared_ptr<Job> job) {
      Model model(FullMesh("cpu:dp=4"), {.job = job});
      Tensor y = model.Input("x", {4, 64}, DType::kFloat32, {{"dp", S(0)}});
      for (int i = 0; i < 12; ++i) y = matmul(y, model.scope().Weight(Cat("w", i), {64, 64}, Normal(.1)));
      Session train = Train(mean(square(y)), Sgd{.lr = 1e-3});
      Save(model, folder).Wait();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    for (const auto& entry : fs::directory_iterator(folder + "/step-00000000")) {
      if (entry.path().extension() != ".safetensors") continue;
      EXPECT_NEAR(static_cast<double>(entry.file_size()), 12. / processes * 64 * 64 * 4, 64 * 64 * 4)
          << entry.path();
    }
  }
}

// --- While training goes on ---

std::string Bytes(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

// The files of a checkpoint, by name.
std::map<std::string, std::string> Files(const std::string& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(checkpoint))
    files[entry.path().filename()] = Bytes(entry.path());
  return files;
}

// Weights of several blocks of a file, and of one that lies in rows of what its rank has.
struct Wide {
  explicit Wide(const std::string& mesh, const std::string& zero, std::shared_ptr<Job> job = nullptr)
      : model(FullMesh(mesh), {.zero = {zero}, .threads = 2, .job = job}) {
    Tensor x = model.Input("x", {8, 64}, DType::kFloat32, {{"dp", S(0)}});
    Tensor big = model.scope().Weight("big", {64, 17000}, Normal(.1), {{"tp", S(1)}});
    Tensor down = model.scope().Weight("down", {17000, 8}, Normal(.1), {{"tp", S(0)}});
    TrainOptions options;
    options.steps_in_flight = 3;
    train = std::make_unique<Session>(Train(mean(square(matmul(matmul(x, big), down))), Adam{}, options));
  }
  StepResult Run(int64_t step) { return train->Run({{"x", Floats(step, {8, 64})}}); }
  Model model;
  std::unique_ptr<Session> train;
};

// At random moments, with steps under way before and after: byte for byte what a save of a run that stands
// still writes.
void ExpectOneMoment(const std::string& folder, uint64_t moments) {
  const std::pair<const char*, const char*> meshes[] = {
      {"cpu:dp=1", ""}, {"cpu:dp=2", "dp"}, {"cpu:tp=2", ""}, {"cpu:dp=2,tp=2", "dp"}};
  for (auto [mesh, zero] : meshes) {
    Wide still(mesh, zero), moving(mesh, zero);
    int64_t step = 0, moving_step = 0;
    for (uint64_t moment = 0; moment < moments; ++moment) {
      const int64_t at = step + static_cast<int64_t>(RandomBits(7, 0, moment) % 3);
      for (; step < at; ++step) still.Run(step).Wait();
      for (; moving_step < at; ++moving_step) (void)moving.Run(moving_step);
      const SaveHandle handle = Save(moving.model, folder + "/moving");
      for (uint64_t after = RandomBits(7, 1, moment) % 3; after > 0 && moving_step < at + 2; --after)
        (void)moving.Run(moving_step++);
      const std::string there = Save(still.model, folder + "/still").Wait();
      EXPECT_TRUE(Files(handle.Wait()) == Files(there)) << mesh << " moment " << moment;
      for (; step < moving_step; ++step) still.Run(step).Wait();
      ++step, still.Run(step - 1).Wait();
      ++moving_step, (void)moving.Run(moving_step - 1);
      fs::remove_all(folder);
    }
  }
}
TEST_F(Checkpoint, ASaveSeesOneMoment) { ExpectOneMoment(folder_, 6); }
TEST_F(LongCheckpoint, ASaveSeesOneMoment) { ExpectOneMoment(folder_, 25); }

struct Two {
  explicit Two(int64_t width = 4, ModelOptions options = {}) : model(FullMesh("cpu:dp=2"), options) {
    Tensor x = model.Input("x", {4, 3}, DType::kFloat32);
    Tensor up = model.scope().Weight("up", {3, width}, Normal(1), {{"dp", S(1)}});
    loss = mean(square(matmul(x, up) * model.scope().Weight("scale", {width}, Full(1))));
  }
  Model model;
  Tensor loss;
};

// A step that failed, or whose loss is no number, is not worth keeping.
TEST_F(Checkpoint, BadStepsAreNotSaved) {
  Two model;
  Session train = Train(model.loss, Adam{});
  HostTensor bad = Floats(0, {4, 3});
  bad.as<float>()[5] = NAN;
  (void)train.Run({{"x", bad}});
  const SaveHandle handle = Save(model.model, folder_);
  EXPECT_NE(ErrorOf([&] { handle.Wait(); }).find("is not written: step 0 has loss NaN"), std::string::npos)
      << ErrorOf([&] { handle.Wait(); });
  for (const auto& entry : fs::directory_iterator(folder_)) EXPECT_EQ(entry.path().filename(), ".saving");
}

// A failed evaluation has changed no variable and prevents no save; a failed training step does.
TEST_F(Checkpoint, AFailedEvaluationPreventsNoSave) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor ids = model.Input("ids", {4}, DType::kInt32);
  Tensor seen = embedding(model.scope().Weight("table", {5, 3}, Normal(1)), ids);
  Session train = Train(mean(square(seen)), Sgd{.lr = 1e-2}), evaluate = Evaluate({{"seen", seen}});
  HostTensor outside = Ids(0, {4}, 5);
  outside.as<int32_t>()[2] = 5;
  train.Run({{"ids", Ids(0, {4}, 5)}}).Wait();
  (void)evaluate.Run({{"ids", outside}});
  EXPECT_EQ(ErrorOf([&] { Save(model, folder_).Wait(); }), "");
  (void)train.Run({{"ids", outside}});
  const std::string error = ErrorOf([&] { Save(model, folder_).Wait(); });
  EXPECT_NE(error.find("is not written: step 1 failed"), std::string::npos) << error;
  EXPECT_EQ(Checkpoints(folder_).size(), 1u);
}

// A failed save is told once; the next one begins anew.
TEST_F(Checkpoint, AFailedSaveDoesNotEndSaving) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {2, 3}, DType::kFloat32), y = model.Input("y", {2}, DType::kFloat32);
  Tensor w = model.scope().Weight("w", {3, 2}, Normal(1));
  Session train = Train(mean(square(matmul(x, w))) + mean(y), Sgd{.lr = 1e-2});
  auto run = [&](float value) {
    HostTensor batch = HostTensor::Make(DType::kFloat32, {2});
    batch.as<float>()[0] = batch.as<float>()[1] = value;
    return train.Run({{"x", Floats(1, {2, 3})}, {"y", batch}});
  };
  for (bool wait : {true, false}) {
    (void)run(NAN);
    const SaveHandle bad = Save(model, folder_);
    if (wait) {
      EXPECT_NE(ErrorOf([&] { bad.Wait(); }), "");
    }
    run(0).Wait();
    if (!wait) {
      EXPECT_NE(ErrorOf([&] { Save(model, folder_); }).find("has loss NaN"), std::string::npos);
    }
    EXPECT_EQ(ErrorOf([&] { Save(model, folder_).Wait(); }), "");
  }
  EXPECT_EQ(Checkpoints(folder_).size(), 2u);
}

// --- What a checkpoint says, and what a model takes of it ---

TEST_F(Checkpoint, StateAndStepsComeBack) {
  Two first;
  Session train = Train(first.loss, Adam{});
  TrainOptions named;
  named.name = "second";
  Session other = Train(first.loss, Sgd{}, named);
  for (int step = 0; step < 3; ++step) train.Run({{"x", Floats(step, {4, 3})}}).Wait();
  other.Run({{"x", Floats(3, {4, 3})}}).Wait();
  Save(first.model, folder_, {.state = {{"epoch", "3"}, {"note", "a \"b\"\n"}}}).Wait();
  Two then;
  Session again = Train(then.loss, Adam{});
  Session second = Train(then.loss, Sgd{}, named);
  const Loaded loaded = Load(then.model, folder_);
  EXPECT_EQ(loaded.path, folder_ + "/step-00000003");
  EXPECT_EQ(loaded.state, (std::map<std::string, std::string>{{"epoch", "3"}, {"note", "a \"b\"\n"}}));
  EXPECT_EQ(then.model.next_step("train"), 3);
  EXPECT_EQ(then.model.next_step("second"), 1);
  for (const std::string& name : first.model.Variables())
    EXPECT_TRUE(SameBytes(first.model.Read(name), then.model.Read(name))) << name;
}

// Small files go with the checkpoint, and are checked when they are read.
TEST_F(Checkpoint, KeepsFilesOfTheProgram) {
  Two model;
  Session train = Train(model.loss, Adam{});
  const std::map<std::string, std::string> files = {{"tokenizer.json", "{\"a\": 1}\r\n"},
                                                    {"tokenizer.model", std::string("\0\xff", 2)},
                                                    {"more/b.txt", ""}};
  const std::string path = Save(model.model, folder_, {.files = files}).Wait();
  CheckpointReader reader(path);
  ASSERT_EQ(reader.index().files.size(), 3u);
  for (const auto& [name, contents] : files) {
    EXPECT_EQ(reader.Contents(name), contents) << name;
    std::ifstream in(path + "/" + name, std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), contents) << name;
  }
  for (const std::string wrong : {"{\"a\": 2}\r\n", "{\"a\": 1}\r", "{\"a\": 1}\r\n\n", ""}) {
    std::ofstream(path + "/tokenizer.json", std::ios::binary) << wrong;
    EXPECT_EQ(ErrorOf([&] { reader.Contents("tokenizer.json"); }).rfind(path + "/tokenizer.json: it ", 0),
              0u);
  }
  for (const char* name :
       {"", ".", "..", ".a", "a/", "/a", "../a", "a/b/c", "a/../b", "model.safetensors",
        "model.safetensors.index.json", "written-0", "written-12.new", "led-by-0", "\xff"}) {
    const std::string error = ErrorOf([&] { Save(model.model, folder_ + "/b", {.files = {{name, "x"}}}); });
    EXPECT_EQ(error.rfind(Cat("SaveOptions::files: '", name, "' is "), 0), 0u) << error;
  }
}

TEST_F(Checkpoint, WhatDoesNotFitIsNamed) {
  Two first;
  Session train = Train(first.loss, Adam{});
  train.Run({{"x", Floats(0, {4, 3})}}).Wait();
  Save(first.model, folder_).Wait();
  auto refuse = [&](const char* wanted, const std::function<void()>& what) {
    const std::string error = ErrorOf(what);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  refuse(
      "'scale' is f32\\[6\\] here but f32\\[4\\] there; 'up' is f32\\[3,6\\] here .*'train:adam_m/scale' .*; "
      "2 more differ$",
      [&] {
        Two wide(6);
        Session session = Train(wide.loss, Adam{});
        Load(wide.model, folder_);
      });
  refuse(
      "^checkpoint .*/step-00000001 does not fit the model: it lacks 'train:sgd_v/scale', 'train:sgd_v/up'; "
      "the "
      "model has no 'train:adam_m/scale', .*'train:updates'$",
      [&] {
        Two then;
        Session session = Train(then.loss, Sgd{.momentum = .9});
        Load(then.model, folder_);
      });
  refuse("has no 'train:adam_m/scale'", [&] {
    Two then;
    Load(then.model, folder_);
  });
  refuse("seed 1, but the model has seed 2", [&] {
    Two then(4, {.seed = 2});
    Session session = Train(then.loss, Adam{});
    Load(then.model, folder_);
  });
  // Weights alone, and what both have.
  Two then(4, {.seed = 2});
  Load(then.model, folder_, {.weights_only = true});
  EXPECT_TRUE(SameBytes(then.model.Read("up"), first.model.Read("up")));
  EXPECT_EQ(then.model.next_step(), 0);
  Two part;
  Session session = Train(part.loss, Sgd{.momentum = .9});
  Load(part.model, folder_, {.partial = true});
  EXPECT_TRUE(SameBytes(part.model.Read("scale"), first.model.Read("scale")));
}

TEST_F(Checkpoint, OldOnesGoAndHalfOnesAreNotSeen) {
  Two model;
  Session train = Train(model.loss, Adam{});
  for (int step = 0; step < 5; ++step) {
    train.Run({{"x", Floats(step, {4, 3})}}).Wait();
    Save(model.model, folder_, {.keep = 2}).Wait();
  }
  EXPECT_EQ(Checkpoints(folder_),
            (std::vector<std::string>{folder_ + "/step-00000004", folder_ + "/step-00000005"}));
  fs::create_directories(folder_ + "/step-00000009");  // no index
  fs::create_directories(folder_ + "/.step-00000007.partial");
  EXPECT_EQ(Checkpoints(folder_).size(), 2u);
  train.Run({{"x", Floats(5, {4, 3})}}).Wait();
  Save(model.model, folder_, {.keep = 2}).Wait();
  EXPECT_FALSE(fs::exists(folder_ + "/.step-00000007.partial"));
  EXPECT_NE(ErrorOf([&] { Save(model.model, folder_).Wait(); }).find("there is such a checkpoint already"),
            std::string::npos);
  EXPECT_TRUE(Checkpoints(folder_ + "/nowhere").empty());
  EXPECT_NE(ErrorOf([&] { Load(model.model, folder_ + "/nowhere"); }).find("nothing of that name"),
            std::string::npos);
  // A file where the folder is meant.
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_NE(ErrorOf([&] { Save(model.model, folder_ + "/file").Wait(); }).find("it cannot be made"),
            std::string::npos);
  EXPECT_EQ(Checkpoints(folder_).size(), 2u);
}

// Those of a run that ended otherwise count for nothing, and are not removed.
TEST_F(Checkpoint, LaterOnesOfAnotherRunStay) {
  Two model;
  Session train = Train(model.loss, Adam{});
  for (int step = 0; step < 4; ++step) {
    train.Run({{"x", Floats(step, {4, 3})}}).Wait();
    Save(model.model, folder_, {.keep = 2}).Wait();
    if (step == 1) fs::copy(folder_ + "/step-00000002", folder_ + "/step-00000007");
  }
  EXPECT_EQ(Checkpoints(folder_),
            (std::vector<std::string>{folder_ + "/step-00000003", folder_ + "/step-00000004",
                                      folder_ + "/step-00000007"}));
}

// One bit anywhere, or an end cut off: said with the file's name, and never loaded.
// Names that no save gives: never the newest, never counted, never removed, and neither is what people put
// into checkpoints.
TEST_F(Checkpoint, OnlyWhatASaveNamedIsOurs) {
  Two model;
  Session train = Train(model.loss, Adam{});
  const auto save = [&](int keep) {
    train.Run({{"x", Floats(0, {4, 3})}}).Wait();
    return Save(model.model, folder_, {.keep = keep}).Wait();
  };
  const std::string first = save(0), second = save(0);
  std::vector<std::string> others;  // as people and other programs name them
  for (const char* name : {"step-best",
                           "step-00000001 (copy)",
                           "step-00000100 (copy)",
                           "step-00000100.bak",
                           "step-1",
                           "step-100",
                           "step-000000100",
                           "step-+0000100",
                           "step-0000010x",
                           "step--0000001",
                           "step-",
                           "Step-00000100",
                           "step-99999999999999999999",
                           " step-00000100",
                           "best",
                           "step_00000100",
                           ".step-00000100",
                           ".step-00000001",
                           "step-00000100.partial",
                           ".step-best.partial",
                           ".step-1.partial",
                           ".step-00000100 (copy).partial",
                           ".step-00000100.partial.old",
                           ".partial",
                           "notes.partial"}) {
    others.push_back(folder_ + "/" + name);
    fs::copy(first, others.back(), fs::copy_options::recursive);
    std::ofstream(others.back() + "/notes.txt") << "mine";
  }
  fs::create_directory_symlink("step-best", folder_ + "/step-00000050");  // somebody's, though of such a name
  std::ofstream(folder_ + "/step-00000070") << "no folder";
  std::ofstream(first + "/notes.txt") << "mine";
  fs::create_directories(second + "/eval");
  // What was cut off, and has something of somebody's in it.
  for (const char* name : {".step-00000090.partial", ".step-00000091.old.partial"}) {
    fs::copy(first, folder_ + "/" + name, fs::copy_options::recursive);
    std::ofstream(folder_ + "/" + name + "/written-0") << "+";
    std::ofstream(folder_ + "/" + name + "/written-0.new") << "+";
  }
  EXPECT_EQ(NewestCheckpoint(folder_), folder_ + "/step-00000050") << "a link may be gone on from";
  fs::remove(folder_ + "/step-00000050");
  EXPECT_EQ(NewestCheckpoint(folder_), second);
  EXPECT_EQ(Load(model.model, folder_).path, second);
  fs::create_directory_symlink("step-best", folder_ + "/step-00000000");
  const std::string third = save(1);
  EXPECT_EQ(Checkpoints(folder_), (std::vector<std::string>{folder_ + "/step-00000000", third}));
  for (const std::string& other : others) {
    for (const char* file : {"notes.txt", "model.safetensors.index.json", "model-00001-of-00001.safetensors"})
      EXPECT_TRUE(fs::exists(other + "/" + file)) << other << " " << file;
  }
  EXPECT_TRUE(fs::is_symlink(folder_ + "/step-00000000"));
  EXPECT_TRUE(fs::exists(folder_ + "/step-00000070"));
  // Of checkpoints that went, what no save wrote is where it was.
  const auto names = [](const std::string& folder) {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path().filename().string());
    return all;
  };
  EXPECT_EQ(names(first), std::vector<std::string>{"notes.txt"});
  EXPECT_EQ(names(second), std::vector<std::string>{"eval"});
  EXPECT_EQ(names(folder_ + "/.step-00000090.partial"), std::vector<std::string>{"notes.txt"});
  EXPECT_EQ(names(folder_ + "/step-00000091"), std::vector<std::string>{"notes.txt"});
  EXPECT_FALSE(fs::exists(folder_ + "/.step-00000091.old.partial"));
  const std::string fourth = save(1);
  EXPECT_FALSE(fs::exists(third));
  EXPECT_EQ(NewestCheckpoint(folder_), fourth);
}

TEST_F(Checkpoint, StepsOfAnyLengthAreNamedAndRead) {
  for (int64_t step :
       {int64_t{0}, int64_t{7}, int64_t{99999999}, int64_t{100000000}, int64_t{123456789012}, INT64_MAX}) {
    const std::string name = StepFolder(step);
    EXPECT_EQ(StepOfFolder(name), step);
    for (const std::string& other :
         {"x" + name, name + " ", "step-0" + name.substr(5), name.substr(1), name + ".0"})
      EXPECT_EQ(StepOfFolder(other), std::nullopt) << other;
  }
}

TEST_F(Checkpoint, DamageIsRefusedByName) {
  Two model;
  Session train = Train(model.loss, Adam{});
  train.Run({{"x", Floats(0, {4, 3})}}).Wait();
  const std::string path = Save(model.model, folder_).Wait();
  Two then;
  Session again = Train(then.loss, Adam{});
  std::map<std::string, HostTensor> wanted;
  for (const std::string& name : model.model.Variables()) wanted.emplace(name, model.model.Read(name));
  int refused = 0;
  for (const std::string name : {"model-00001-of-00001.safetensors", CheckpointIndex::kFile}) {
    const std::string file = path + "/" + name;
    std::ifstream in(file, std::ios::binary);
    const std::string good(std::istreambuf_iterator<char>(in), {});
    auto put = [&](const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; };
    for (uint64_t k = 0; k < 400; ++k) {
      std::string bad = good;
      const uint64_t bit = RandomBits(5, 1, k) % (8 * good.size());
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      put(bad);
      const std::string error = ErrorOf([&] { Load(then.model, path); });
      refused += !error.empty();
      if (error.empty()) {  // a blank, or a name that nobody looks for
        for (const auto& [variable, value] : wanted)
          ASSERT_TRUE(SameBytes(then.model.Read(variable), value))
              << name << " bit " << bit << " " << variable;
      } else {
        ASSERT_NE(error.find(path), std::string::npos) << error;
      }
    }
    for (size_t length : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 2}) {
      put(good.substr(0, length));
      const std::string error = ErrorOf([&] { Load(then.model, path); });
      EXPECT_NE(error.find(file), std::string::npos) << error << " " << length;
    }
    fs::remove(file);
    EXPECT_NE(ErrorOf([&] { Load(then.model, path); }), "") << name;
    put(good);
    Load(then.model, path);
  }
  EXPECT_GT(refused, 500);
}

// Of a folder's checkpoints the newest is read; where it is damaged, the error also names the one before.
TEST_F(Checkpoint, TheOneBeforeADamagedOneIsNamed) {
  Two model;
  Session train = Train(model.loss, Adam{});
  std::vector<std::string> saved;
  for (int step = 0; step < 3; ++step) {
    train.Run({{"x", Floats(step, {4, 3})}}).Wait();
    saved.push_back(Save(model.model, folder_).Wait());
  }
  Two then;
  Session again = Train(then.loss, Adam{});
  for (const std::string name : {"model-00001-of-00001.safetensors", CheckpointIndex::kFile}) {
    const std::string file = saved[2] + "/" + name;
    std::ifstream in(file, std::ios::binary);
    const std::string good(std::istreambuf_iterator<char>(in), {});
    for (size_t cut = 2; cut < good.size(); cut *= 3) {  // behind the index is a line break
      std::ofstream(file, std::ios::binary) << good.substr(0, good.size() - cut);
      EXPECT_TRUE(
          ErrorOf([&] { Load(then.model, folder_); }).ends_with("; the one before it is " + saved[1]));
      // Asked for by name there is no other.
      EXPECT_EQ(ErrorOf([&] { Load(then.model, saved[2]); }).find("before it"), std::string::npos);
    }
    std::ofstream(file, std::ios::binary) << good;
  }
  EXPECT_EQ(Load(then.model, folder_).path, saved[2]);
  // One of another model is whole.
  Model other(Mesh::Parse("cpu:dp=1"));
  other.scope().Weight("w", {2}, Normal(1));
  const std::string error = ErrorOf([&] { Load(other, folder_); });
  EXPECT_NE(error, "");
  EXPECT_EQ(error.find("before it"), std::string::npos) << error;
}

// A folder that is a file system of its own, of so many bytes.
class SmallDisk {
 public:
  SmallDisk(const std::string& path, const std::string& size) : path_(path) {
    fs::create_directories(path);
    mounted_ = mount("tmpfs", path.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  void MakeReadOnly() const {
    EXPECT_EQ(mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0)
        << std::strerror(errno);
  }

 private:
  const std::string path_;
  bool mounted_;
};

// A disk that is full, or can no longer be written: one sentence on all processes, and what was complete
// stays.
TEST_F(Checkpoint, ADiskThatFailsLeavesWhatWasComplete) {
  const SmallDisk disk(folder_, "2M");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount";
  for (int processes : {1, 2}) {
    std::vector<std::string> errors = RunProcesses(processes, [&](std::shared_ptr<Job> job) {
      SmallGpt given = Small("cpu:dp=2");
      if (processes > 1) given.model_options.job = job;
      GptProgram program(given);
      Session train = program.MakeTrain();
      for (int64_t step = 0; step < 100; ++step) {
        train.Run(program.MakeFeeds(step)).Wait();
        Save(program.model(), folder_).Wait();
      }
    });
    for (const std::string& error : errors)
      EXPECT_TRUE(
          std::regex_search(error, std::regex("step-.*: (there is no room for its [0-9]+ bytes|it cannot be "
                                              "written at byte [0-9]+|it cannot be created|it cannot be "
                                              "made): No space left")))
          << error;
    const std::vector<std::string> whole = Checkpoints(folder_);
    ASSERT_GT(whole.size(), 2u);
    for (const std::string& path : whole) GoOn(Small("cpu:dp=1"), path, 1);
    for (const auto& entry : fs::directory_iterator(folder_))
      EXPECT_TRUE(entry.path().filename() == ".saving" || entry.path().filename().string()[0] == 's')
          << entry.path() << " is left";
    for (size_t i = 1; i < whole.size(); ++i) fs::remove_all(whole[i]);
    fs::rename(whole[0], folder_ + "/step-00001000");
  }
  disk.MakeReadOnly();
  GptProgram program(Small("cpu:dp=1"));
  Session train = program.MakeTrain();
  const std::string error = ErrorOf([&] { Save(program.model(), folder_).Wait(); });
  EXPECT_NE(error.find("it cannot be made: Read-only file system"), std::string::npos) << error;
  GoOn(Small("cpu:dp=1"), folder_, 1);
}

// Two hosts of two processes each, which see only their own folders.
TEST_F(Checkpoint, HostsMayKeepTheirOwn) {
  auto run = [&](const std::string& mesh, bool local,
                 const std::function<void(GptProgram&, const std::string&)>& use) {
    return RunProcesses(4, [&](std::shared_ptr<Job> job) {
      for (int p = 0; p < 4; ++p) dynamic_cast<TestJob*>(job.get())->SetHost(p, p < 2 ? "a" : "b");
      SmallGpt given = Small(mesh);
      given.zero_axis = "dp";
      given.model_options.job = job;
      GptProgram program(given);
      use(program, local ? folder_ + (job->process() < 2 ? "/a" : "/b") : folder_);
    });
  };
  std::vector<float> wanted;
  std::mutex mutex;
  auto train = [&](GptProgram& program, const std::string& folder) {
    Session session = program.MakeTrain();
    for (int64_t step = 0; step < 2; ++step) {
      Steps(program, session, step, 1);
      Save(program.model(), folder, {.keep = 2, .local = true}).Wait();
    }
    const std::vector<float> losses = Steps(program, session, 2, 3);
    std::lock_guard<std::mutex> lock(mutex);
    wanted = losses;
  };
  auto go_on = [&](GptProgram& program, const std::string& folder) {
    Session session = program.MakeTrain();
    Load(program.model(), folder);
    const int64_t first = program.model().next_step();
    if (Steps(program, session, first, 5 - first).back() != wanted.back()) Fail("another loss");
  };
  for (const std::string& error : run("cpu:dp=2,tp=2", true, train)) EXPECT_EQ(error, "");
  for (const std::string& error : run("cpu:dp=2,tp=2", true, go_on)) EXPECT_EQ(error, "");
  for (const std::string& error : run("cpu:tp=4", true, go_on))
    EXPECT_NE(error.find("was saved with --local and holds"), std::string::npos) << error;
  fs::remove_all(folder_ + "/b/step-00000002");  // what one host lacks is not there
  for (const std::string& error : run("cpu:dp=2,tp=2", true, go_on)) EXPECT_EQ(error, "");
  // Hosts that do share one write one checkpoint, which any mesh can load.
  for (const std::string& error : run("cpu:dp=2,tp=2", false, train)) EXPECT_EQ(error, "");
  GptProgram back(Small("cpu:dp=1"));
  Session session = back.MakeTrain();
  EXPECT_EQ(Load(back.model(), folder_).path, folder_ + "/step-00000002");
}

TEST_F(Checkpoint, AFolderIsOneRuns) {
  auto refuse = [](const std::string& wanted, const std::function<void()>& what) {
    const std::string error = ErrorOf(what);
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  };
  Two other;
  Session second = Train(other.loss, Adam{});
  {
    Two one;
    Session first = Train(one.loss, Adam{});
    Save(one.model, folder_).Wait();
    refuse("another program saves checkpoints in this folder", [&] { Save(other.model, folder_); });
    first.Run({{"x", Floats(0, {4, 3})}}).Wait();
    Save(one.model, folder_).Wait();
    refuse("is no text in UTF-8", [&] { Save(one.model, folder_ + "/b", {.state = {{"k", "\xff"}}}); });
    refuse("Save: the folder's name is empty", [&] { Save(one.model, ""); });
  }
  for (int step = 0; step < 2; ++step) second.Run({{"x", Floats(step, {4, 3})}}).Wait();
  Save(other.model, folder_).Wait();  // its lock went with the first
  EXPECT_EQ(Checkpoints(folder_).size(), 3u);
}

TEST_F(Checkpoint, WhatIsNoneIsNotTakenForOne) {
  Two model;
  Session train = Train(model.loss, Adam{});
  const std::string path = Save(model.model, folder_).Wait();
  EXPECT_EQ(NewestCheckpoint(folder_), path);
  EXPECT_EQ(NewestCheckpoint(path), path);
  EXPECT_EQ(NewestCheckpoint(folder_ + "/none"), "");
  fs::rename(path, folder_ + "/best");
  EXPECT_EQ(NewestCheckpoint(folder_), "");
  EXPECT_EQ(NewestCheckpoint(folder_ + "/best"), folder_ + "/best");
  EXPECT_NE(ErrorOf([&] {
              NewestCheckpoint(folder_ + "/best/model-00001-of-00001.safetensors");
            }).find("it is neither a checkpoint nor a folder of them"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] { Load(model.model, folder_ + "/none"); }).find("there is nothing of that name"),
            std::string::npos);
  Model stranger(FullMesh("cpu:dp=1"));
  (void)stranger.scope().Weight("mine", {2}, Ones());
  EXPECT_NE(ErrorOf([&] {
              Load(stranger, folder_ + "/best", {.partial = true});
            }).find("has no variable of the model; it has 'scale', "),
            std::string::npos);
  Model half(FullMesh("cpu:dp=1"));
  (void)half.scope().Weight("mine", {2}, Ones());
  (void)half.scope().Weight("scale", {4}, Ones());
  EXPECT_EQ(Load(half, folder_ + "/best", {.weights_only = true, .partial = true}).left_alone,
            std::vector<std::string>{"mine"});
}

TEST_F(Checkpoint, ANewerVersionIsRefused) {
  Two model;
  Session train = Train(model.loss, Adam{});
  const std::string path = Save(model.model, folder_).Wait(), file = path + "/" + CheckpointIndex::kFile;
  std::string text = Bytes(file);
  const size_t at = text.find("\"version\": 1");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 12, "\"version\": 2");
  std::ofstream(file, std::ios::binary) << text;
  EXPECT_EQ(ErrorOf([&] { Load(model.model, path); }),
            file + ": it is of version 2, but this build reads up to 1");
}

TEST_F(Checkpoint, NamesCanBeRewritten) {
  Model old(FullMesh("cpu:dp=1"));
  Tensor x = old.Input("x", {2, 3}, DType::kFloat32);
  Session session =
      Evaluate({{"y", matmul(x, (old.scope() / "encoder0").Weight("kernel", {3, 2}, Normal(1)))}});
  const std::string path = Save(old, folder_).Wait();
  Model model(FullMesh("cpu:dp=2"));
  (void)(model.scope() / "layers" / "0").Weight("w", {3, 2}, Normal(1));
  Load(model, path, {.rename = {{"^encoder([0-9]+)/", "layers/$1/"}, {"kernel$", "w"}}});
  EXPECT_TRUE(SameBytes(model.Read("layers/0/w"), old.Read("encoder0/kernel")));
  auto refuse = [&](const std::string& pattern, const std::string& text, const std::string& wanted) {
    const std::string error = ErrorOf([&] { Load(model, path, {.rename = {{pattern, text}}}); });
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  };
  refuse("(", "x", "'(' is no regular expression");
  refuse("nothing", "x", "it lacks 'layers/0/w'; the model has no 'encoder0/kernel'");
}

TEST_F(Checkpoint, AnIndexCannotLie) {
  Two model;
  Session train = Train(model.loss, Adam{});
  const std::string path = Save(model.model, folder_).Wait();
  const CheckpointIndex good = CheckpointIndex::Read(path);
  auto refuse = [&](const std::string& wanted, const std::function<void(CheckpointIndex*)>& change) {
    CheckpointIndex bad = good;
    change(&bad);
    std::ofstream(path + "/" + CheckpointIndex::kFile) << bad.ToJson();
    const std::string error = ErrorOf([&] { Load(model.model, path); });
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  };
  using Index = CheckpointIndex*;
  auto up = [](Index i) -> StoredVariable& { return i->variables.at("up"); };
  refuse("is said to be in '../x'", [&](Index i) { up(i).pieces[0].file = "../x"; });
  refuse("is said to be in '/etc/passwd'", [&](Index i) { up(i).pieces[0].file = "/etc/passwd"; });
  refuse("x.safetensors: it cannot be read", [&](Index i) { up(i).pieces[0].file = "x.safetensors"; });
  refuse("claims more bytes than any disk", [&](Index i) { up(i).shape = {int64_t{1} << 60}; });
  refuse("has a piece outside it", [&](Index i) { up(i).pieces[0].box.begin[0] = 2; });
  refuse("elements", [&](Index i) { up(i).pieces.pop_back(); });
  refuse("which overlap", [&](Index i) { up(i).pieces.push_back(up(i).pieces[0]); });
  refuse("has 0 checksums", [&](Index i) { up(i).pieces[0].checksums.clear(); });
  refuse("there is no tensor 'y' in it", [&](Index i) { up(i).pieces[0].key = "y"; });
  refuse("but the index says", [&](Index i) { up(i).pieces[0].key = "scale"; });
}

}  // namespace
}  // namespace oneflow_like
