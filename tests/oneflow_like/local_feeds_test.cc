// A process feeds only the rows that its ranks hold: the same bits as with whole feeds, a share of the bytes,
// and wrong boxes are refused by name.
// ctest: tsan=10
#include <random>

#include "oneflow_like/data/pipeline.h"
#include "oneflow_like/data/tokens.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

struct Setting {
  std::string mesh;
  int processes = 1, micro_batches = 1;
  int64_t batch = 8;
  bool cut_columns = false;  // of x, over tp
  bool both_stages = false;  // the last reads x, too
  std::string str() const {
    return Cat(mesh, " on ", processes, " processes, ", micro_batches, " micro-batches of a batch of ", batch,
               cut_columns ? ", columns cut" : "", both_stages ? ", x read on both stages" : "");
  }
};

struct Model2 {
  Model2(const Setting& setting, const ModelOptions& options) : model(FullMesh(setting.mesh), options) {
    Annotation cut = {{"dp", S(0)}};
    if (setting.cut_columns) cut.push_back({"tp", S(1)});
    Tensor x = model.Input("x", {setting.batch, 6}, DType::kFloat32, cut);
    Tensor y = model.Input("y", {setting.batch, 3}, DType::kFloat32, {{"dp", S(0)}});
    Scope s = model.scope();
    const int last = model.mesh().axis_size(2) - 1;
    Tensor up = s.Stage("pp", 0).Weight("up", {6, 12}, KaimingNormal());
    Tensor down = s.Stage("pp", last).Weight("down", {12, 3}, KaimingNormal());
    Tensor out = matmul(relu(matmul(x, up)), down);
    if (setting.both_stages)
      out = out + matmul(x, s.Stage("pp", last).Weight("beside", {6, 3}, KaimingNormal()));
    loss = mean(square(out - y));
  }
  Model model;
  Tensor loss;
};

HostTensor PartOf(const HostTensor& whole, const Box& box) {
  HostTensor part = HostTensor::Make(whole.dtype, box.extent);
  CopyBox(whole.dtype, box, {whole.data.get(), Box::Whole(whole.shape)}, {part.data.get(), box});
  return part;
}

FeedPieces PiecesOf(const Feeds& feeds, const FeedNeeds& needs) {
  FeedPieces pieces;
  for (const auto& [name, boxes] : needs)
    for (const Box& box : boxes) pieces[name].push_back({box, PartOf(feeds.at(name), box)});
  return pieces;
}

int64_t BytesOf(const FeedNeeds& needs) {
  int64_t bytes = 0;
  for (const auto& [name, boxes] : needs)
    for (const Box& box : boxes) bytes += 4 * box.elements();
  return bytes;
}

Feeds BatchOf(const Setting& setting, int step) {
  return {{"x", Floats(step, {setting.batch, 6})}, {"y", Floats(100 + step, {setting.batch, 3})}};
}

// `mixed`: x in pieces, y whole.
std::vector<float> Losses(const Setting& setting, const ModelOptions& options, bool pieces,
                          bool mixed = false) {
  Model2 m(setting, options);
  TrainOptions train_options;
  train_options.micro_batches = setting.micro_batches;
  Session train = Train(m.loss, AdamW{.lr = 1e-2}, train_options);
  std::vector<float> losses;
  for (int step = 0; step < 4; ++step) {
    Feeds whole = BatchOf(setting, step);
    FeedPieces parts = PiecesOf(whole, train.Needs());
    if (mixed) parts.erase("y");
    if (mixed) whole.erase("x");
    StepResult result = !pieces ? train.Run(whole) : train.Run(mixed ? whole : Feeds(), parts);
    losses.push_back(result.Scalar("loss"));
  }
  return losses;
}

TEST(LocalFeeds, LossesAreBitEqualWithWholeFeeds) {
  std::vector<Setting> settings = {{"cpu:dp=4", 4, 1, 8},
                                   {"cpu:dp=4", 2, 2, 8},
                                   {"cpu:dp=2,tp=2", 2, 3, 10},
                                   {"cpu:dp=2,tp=2", 4, 1, 8, true},
                                   {"cpu:dp=2,pp=2", 4, 2, 9},
                                   {"cpu:tp=2,pp=2", 2, 1, 7, true},
                                   {"cpu:dp=3", 3, 2, 11},
                                   {"cpu:dp=3", 3, 1, 2},
                                   {"cpu:dp=2,pp=2", 4, 2, 9, false, true},
                                   {"cpu:tp=2,pp=2", 2, 3, 8, true, true},
                                   {"cpu:pp=2", 2, 1, 7, false, true}};
  for (const Setting& setting : settings) {
    SCOPED_TRACE(setting.str());
    const std::vector<float> alone = Losses(setting, {}, false);
    EXPECT_EQ(Losses(setting, {}, true), alone);
    for (bool mixed : {false, true})
      for (const std::string& error : RunProcesses(setting.processes, [&](std::shared_ptr<Job> job) {
             ModelOptions options;
             options.job = job;
             options.threads = 1;
             options.check_feeds = true;
             EXPECT_EQ(Losses(setting, options, true, mixed), alone);
           }))
        EXPECT_EQ(error, "");
  }
}

TEST(LocalFeeds, EachOfEightProcessesHoldsAnEighth) {
  const Setting setting{"cpu:dp=8", 8, 1, 65536};
  const int64_t whole = 65536 * (6 + 3) * 4;
  for (const std::string& error : RunProcesses(8, [&](std::shared_ptr<Job> job) {
         ModelOptions options;
         options.job = job;
         options.threads = 1;
         Model2 m(setting, options);
         Session train = Train(m.loss, AdamW{.lr = 1e-2});
         EXPECT_EQ(8 * BytesOf(train.Needs()), whole);
         EXPECT_EQ(train.Needs("x").size(), 1u);
         EXPECT_EQ(train.Needs("x")[0].begin[0], 8192 * job->process());
         EXPECT_EQ(ErrorOf([&] { train.Needs("z"); }), "session train has no input 'z'");
       }))
    EXPECT_EQ(error, "");
}

// What a process needs of an evaluation on one stage, and of an input that other stages read.
TEST(LocalFeeds, StagesNeedTheirOwnInputsAlone) {
  const Setting setting{"cpu:pp=2", 2, 1, 8};
  for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
         ModelOptions options;
         options.job = job;
         Model2 m(setting, options);
         Session train = Train(m.loss, AdamW{.lr = 1e-2});
         EXPECT_EQ(train.Needs("x").size(), job->process() == 0 ? 1u : 0u);
         EXPECT_EQ(train.Needs("y").size(), job->process() == 1 ? 1u : 0u);
       }))
    EXPECT_EQ(error, "");
}

TEST(LocalFeeds, WrongBoxesAreRefusedByName) {
  const Setting setting{"cpu:dp=2", 2, 1, 8};
  std::vector<std::string> errors = RunProcesses(2, [&](std::shared_ptr<Job> job) {
    ModelOptions options;
    options.job = job;
    Model2 m(setting, options);
    Session train = Train(m.loss, AdamW{.lr = 1e-2});
    const Feeds whole = BatchOf(setting, 0);
    const int64_t mine = 4 * job->process(), other = 4 - mine;
    auto box = [](int64_t row, int64_t rows) { return Box{{row, 0}, {rows, 6}}; };
    auto refused = [&](std::vector<FeedPiece> x, const std::string& words) {
      FeedPieces pieces = PiecesOf(whole, train.Needs());
      pieces["x"] = std::move(x);
      const std::string error = ErrorOf([&] { train.Run({}, pieces); });
      EXPECT_NE(error.find("input 'x': "), std::string::npos) << error;
      EXPECT_NE(error.find(words), std::string::npos) << error;
    };
    auto piece = [&](const Box& at) { return FeedPiece{at, PartOf(whole.at("x"), at)}; };
    refused({piece(box(mine, 3))}, Cat("this process needs the box ", box(mine, 4).str(),
                                       " of it, but is fed ", box(mine, 3).str()));
    refused({}, "but is fed nothing");
    refused({piece(box(mine, 3)), piece(box(mine + 2, 2))}, "overlap");
    refused({piece(box(mine, 4)), piece(box(other, 4))},
            Cat("no rank of this process reads the box ", box(other, 4).str()));
    refused({{{{mine, 0}, {4, 7}}, Floats(1, {4, 7})}}, "does not lie in f32[8,6]");
    refused({{{{-1, 0}, {4, 6}}, Floats(1, {4, 6})}}, "does not lie in f32[8,6]");
    refused({{{{7, 0}, {INT64_MAX, 6}}, Floats(1, {1, 6})}}, "does not lie in f32[8,6]");
    refused({{box(mine, 4), Floats(1, {3, 6})}}, "is f32[3,6] but must be f32[4,6]");
    refused({{box(mine, 4), Ids(1, {4, 6}, 9)}}, "is i32[4,6] but must be f32[4,6]");
    refused({{box(mine, 4), {DType::kFloat32, {4, 6}, nullptr}}}, "holds no data");
    FeedPieces pieces = PiecesOf(whole, train.Needs());
    EXPECT_NE(ErrorOf([&] {
                train.Run({{"x", whole.at("x")}}, pieces);
              }).find("'x' is fed twice"),
              std::string::npos);
    pieces["z"] = pieces["x"];
    EXPECT_NE(ErrorOf([&] { train.Run({}, pieces); }).find("pieces of 'z' are fed"), std::string::npos);
    pieces.erase("z");
    pieces.erase("y");
    EXPECT_NE(
        ErrorOf([&] { train.Run({}, pieces); }).find("input 'y' of session train, f32[8,3], is missing"),
        std::string::npos);
    // None of these was a step. More of the batch than is needed will do, in pieces of any size.
    EXPECT_EQ(train.next_step(), 0);
    train.Run({{"y", whole.at("y")}}, {{"x", {piece(box(mine, 1)), piece(box(mine + 1, 3))}}}).Wait();
    train.Run({{"y", whole.at("y")}}, {{"x", {piece(box(0, 8))}}}).Wait();
    EXPECT_EQ(train.next_step(), 2);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Boxes that two processes feed must be alike: of tp, which both hold.
TEST(LocalFeeds, DifferentPiecesAreNoticed) {
  const Setting setting{"cpu:tp=2", 2, 1, 8};
  for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
         ModelOptions options;
         options.job = job;
         options.threads = 1;
         Model2 m(setting, options);
         Session train = Train(m.loss, AdamW{.lr = 1e-2});
         Feeds whole = BatchOf(setting, 0);
         if (job->process() == 1) whole["y"] = Floats(999, {8, 3});
         train.Run({}, PiecesOf(whole, train.Needs())).Wait();
       }))
    EXPECT_NE(error.find(
                  "step 0 of session train: input 'y' has other values at box [0:8,0:3] in process 1 than in "
                  "process 0"),
              std::string::npos)
        << error;
}

// Draws x and y by the sample, as a reader would.
class Pairs final : public SampleSource {
 public:
  const std::vector<SampleField>& fields() const override { return fields_; }
  int64_t samples() const override { return 21; }
  void Read(const SampleId& id, std::span<void* const> to) const override {
    for (int f = 0; f < 2; ++f)
      for (int i = 0; i < fields_[f].shape[0]; ++i)
        static_cast<float*>(to[f])[i] =
            2 * ToUniform(RandomBits(id.seed + f, static_cast<uint64_t>(id.epoch), id.index * 8 + i)) - 1;
  }

 private:
  const std::vector<SampleField> fields_ = {{"x", DType::kFloat32, {6}}, {"y", DType::kFloat32, {3}}};
};

// Trains `steps` from sample `start` on; returns the losses, and where the next run goes on.
std::vector<float> FromPipeline(const Setting& setting, const ModelOptions& options, int steps) {
  Model2 m(setting, options);
  TrainOptions train_options;
  train_options.micro_batches = setting.micro_batches;
  Session train = Train(m.loss, Sgd{.lr = 0.0}, train_options);  // each loss is of its batch alone
  DataPipeline data(std::make_shared<Pairs>(),
                    {.batch = setting.batch, .needs = train.Needs(), .threads = 2});
  std::vector<float> losses;
  for (int step = 0; step < steps; ++step) losses.push_back(train.Run(data).Scalar("loss"));
  if (steps > 2) {
    EXPECT_GE(train.TakeProfile().data, 0);
  }
  return losses;
}

// Larger batches, of which the inputs would take the first rows and lose the others.
TEST(LocalFeeds, BatchesOfAnotherSizeAreRefused) {
  for (const int64_t batch : {9, 16, 1 << 20}) {
    const Setting setting{"cpu:dp=2", 1, 1, 8};
    Model2 m(setting, {});
    Session train = Train(m.loss, Sgd{.lr = 0.0});
    DataPipeline data(std::make_shared<Pairs>(), {.batch = batch, .needs = train.Needs()});
    const std::string error = ErrorOf([&] { train.Run(data); });
    EXPECT_NE(
        error.find(Cat("input 'x' of session train is [8,6], but its data comes in batches of ", batch)),
        std::string::npos)
        << error;
  }
  EXPECT_NE(
      ErrorOf([&] { DataPipeline(std::make_shared<Pairs>(), {.batch = INT64_MAX}); }).find("must be at most"),
      std::string::npos);
}

// Wider samples, of which the input would take the first numbers and lose the others.
TEST(LocalFeeds, WiderSamplesAreRefused) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2"}) {
    Model model(FullMesh(mesh));
    Tensor x = model.Input("x", {8, 5}, DType::kFloat32, {{"dp", S(0)}});
    Session train = Train(mean(square(matmul(x, model.scope().Weight("w", {5, 2}, Ones())))), Sgd{.lr = 0.0});
    DataPipeline data(std::make_shared<Pairs>(), {.batch = 8, .needs = train.Needs()});
    EXPECT_EQ(
        ErrorOf([&] { train.Run(data); }),
        "input 'x' of session train is [8,5], but its data is [8,6], the batch first; give the samples and "
        "the input one shape");
  }
}

TEST(LocalFeeds, APipelineFeedsEveryMeshAlike) {
  const std::vector<float> alone = FromPipeline({"cpu:dp=1", 1, 1, 8}, {}, 7);
  for (const Setting& setting : {Setting{"cpu:dp=2", 2, 1, 8}, Setting{"cpu:dp=4", 2, 2, 8},
                                 Setting{"cpu:dp=2,pp=2", 4, 1, 8}, Setting{"cpu:tp=2", 2, 1, 8, true}})
    for (const std::string& error : RunProcesses(setting.processes, [&](std::shared_ptr<Job> job) {
           ModelOptions options;
           options.job = job;
           options.threads = 1;
           const std::vector<float> here = FromPipeline(setting, options, 7);
           for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(here[i], alone[i], 1e-5) << setting.str();
         }))
      EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace oneflow_like
