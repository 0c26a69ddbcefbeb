// The numbers of a run: what stands in JSON lines and in event files, which a reader of the test's own and,
// where python3 (or what OFL_PYTHON names) has the package tensorboard, TensorBoard's read.
#include "oneflow_like/metrics.h"

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "oneflow_like/launch/event.pb.h"
#include "oneflow_like/launch/event_file.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/processes.h"
#include "tests/python.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

using Table = std::map<std::string, std::map<int64_t, double>>;  // by name and step

// Bit by bit, and in the mask of the format's description.
uint32_t SlowMaskedCrc(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const uint32_t flips = (crc ^ (static_cast<uint8_t>(c) >> bit)) & 1;
      crc = (crc >> 1) ^ (flips ? 0x82f63b78u : 0u);
    }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// The records of a file; nullopt when any is cut off or a checksum is wrong.
std::optional<std::vector<events::Event>> ReadEvents(const std::string& bytes) {
  std::vector<events::Event> all;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t size = 0;
    uint32_t checksum = 0;
    if (bytes.size() - at < 12) return std::nullopt;
    std::memcpy(&size, &bytes[at], 8);
    std::memcpy(&checksum, &bytes[at + 8], 4);
    if (checksum != SlowMaskedCrc(bytes.substr(at, 8)) || bytes.size() - at - 12 < size + 4)
      return std::nullopt;
    std::memcpy(&checksum, &bytes[at + 12 + size], 4);
    const std::string record = bytes.substr(at + 12, size);
    events::Event event;
    if (checksum != SlowMaskedCrc(record) || !event.ParseFromString(record)) return std::nullopt;
    all.push_back(event);
    at += 16 + size;
  }
  return all;
}

class MetricsTest : public ::testing::Test {
 protected:
  std::vector<std::string> EventFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_ / "board")) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }

  // What stands in all event files, by the rule of SessionLog::START.
  Table EventTable() const {
    Table table;
    for (const std::string& file : EventFiles()) {
      const auto events = ReadEvents(TextOf(file));
      if (!events) {
        ADD_FAILURE() << file << " is damaged";
        continue;
      }
      EXPECT_EQ(events->at(0).file_version(), "brain.Event:2");
      for (const events::Event& event : *events) {
        if (event.session_log().status() == events::SessionLog::START)
          for (auto& [name, steps] : table) steps.erase(steps.lower_bound(event.step()), steps.end());
        EXPECT_NEAR(event.wall_time(), static_cast<double>(time(nullptr)), 600);
        for (const auto& value : event.summary().value())
          table[value.tag()][event.step()] = value.simple_value();
      }
    }
    return table;
  }

  Table JsonTable() const {
    Table table;
    for (const std::string& text : LinesOf(TextOf(json_))) {
      const nlohmann::json line = nlohmann::json::parse(text);
      for (const auto& [name, value] : line.items())
        if (name != "step") table[name][line["step"]] = value.is_null() ? NAN : value.get<double>();
    }
    return table;
  }

  static void ExpectSame(const Table& a, const Table& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, steps] : a) {
      ASSERT_TRUE(b.count(name)) << name;
      ASSERT_EQ(b.at(name).size(), steps.size()) << name;
      for (const auto& [step, value] : steps) {
        const double other = b.at(name).at(step);
        if (std::isnan(value)) {
          EXPECT_FALSE(std::isfinite(other)) << name << " " << step;
        } else {
          EXPECT_NEAR(other, value, 1e-6 * std::abs(value)) << name << " " << step;
        }
      }
    }
  }

  MetricsOptions Files() const {
    return {.json = json_, .tensorboard = folder_ / "board", .unit = "rows", .per_step = 12};
  }

  TestFolder folder_{"metrics_test"};
  const std::string json_ = folder_ / "log.json";
};

TEST(EventFile, ChecksumsAreThoseOfTheStandard) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720 B.4
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST_F(MetricsTest, AnyDamageToAnEventFileIsSeen) {
  for (int scalars : {0, 1, 40}) {
    std::string path;
    {
      EventFile file(folder_ / "board", 7);
      path = file.path();
      Scalars all;
      for (int i = 0; i < scalars; ++i) all.push_back({Cat("scalar/", i), i * 1.25});
      file.Write(7, all);
      file.Write(8, all);
    }
    const std::string bytes = TextOf(path);
    const auto events = ReadEvents(bytes);
    ASSERT_TRUE(events);
    ASSERT_EQ(events->size(), 4u);
    EXPECT_EQ(events->back().summary().value_size(), scalars);
    for (size_t at = 0; at < bytes.size(); at += 1 + at / 64) {
      std::string damaged = bytes;
      damaged[at] ^= 4;
      EXPECT_FALSE(ReadEvents(damaged)) << "byte " << at;
    }
    EXPECT_FALSE(ReadEvents(bytes.substr(0, bytes.size() - 1)));
    fs::remove(path);
  }
}

// A linear model of 12 rows.
struct Line {
  explicit Line(const std::string& mesh) : model(FullMesh(mesh)) {
    x = model.Input("x", {12, 4}, DType::kFloat32, {{"dp", S(0)}});
    loss = mean(square(matmul(x, model.scope().Weight("w", {4, 8}, Normal(0.5), {{"tp", S(1)}}))));
  }
  Feeds Batch(int64_t step) { return {{"x", Floats(step, {12, 4})}}; }
  Model model;
  Tensor x, loss;
};

TEST_F(MetricsTest, EachStepHasItsNumbersOnEveryMesh) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,tp=2", "cpu:tp=4", "cpu:dp=3"})
    for (int micro_batches : {1, 3})
      for (bool own_rate : {false, true}) {
        fs::remove_all(folder_ / "board");
        Line line(mesh);
        TrainOptions options;
        options.micro_batches = micro_batches;
        options.clip_norm = 1;
        options.outputs = {{"largest", max(line.x)}, {"rows", line.x}};
        const Schedule cosine = {.kind = Schedule::Kind::kCosine, .warmup = 2, .total = 5};
        if (own_rate) {
          options.lr_function = [](int64_t step) { return 1.0 / static_cast<double>(step + 1); };
        } else {
          options.lr_schedule = cosine;
        }
        Session train = Train(line.loss, AdamW{.lr = 0.25}, options);
        MetricsOptions files = Files();
        files.peak_flops = 1e9;
        Metrics metrics(train, files);
        EXPECT_FALSE(fs::exists(folder_ / "board")) << "before the first line";
        for (int64_t step = 0; step < 5; ++step) {
          StepResult result = train.Run(line.Batch(step));
          metrics.Step(result, {{"mine", static_cast<double>(-step)}});
          const Table now = JsonTable();
          const double rate =
              0.25 * (own_rate ? 1.0 / static_cast<double>(step + 1) : FactorAt(cosine, step));
          EXPECT_NEAR(now.at("lr").at(step), rate, 1e-8);
          EXPECT_EQ(static_cast<float>(now.at("loss").at(step)), result.Scalar("loss")) << "every bit";
          EXPECT_EQ(static_cast<float>(now.at("grad_norm").at(step)), result.Scalar("grad_norm"));
          EXPECT_EQ(static_cast<float>(now.at("largest").at(step)), result.Scalar("largest"));
          EXPECT_EQ(now.at("mine").at(step), -step);
          EXPECT_FALSE(now.count("rows")) << "not one number";
          EXPECT_FALSE(now.count("data_ms")) << "fed by hand";
        }
        metrics.Add(5, {{"held_out_loss", NAN}});
        const Table table = JsonTable();
        const double devices = Mesh::Parse(mesh).size(),
                     flops = 2 * 12 * 4 * 8 * 2;  // w alone has a gradient
        for (int64_t step = 0; step < 5; ++step) {
          const double seconds = 1e-3 * table.at("step_ms").at(step);
          EXPECT_GT(seconds, 0);
          EXPECT_NEAR(table.at("rows_per_s").at(step) * seconds, 12, 1e-3);
          EXPECT_NEAR(table.at("rows_per_s_per_device").at(step) * seconds * devices, 12, 1e-3);
          EXPECT_NEAR(table.at("mfu").at(step) * 1e9 * seconds * devices, flops, 1e-3 * flops) << mesh;
          EXPECT_GE(table.at("memory_bytes").at(step), 3 * 4 * 8 * 4 / devices) << "w, m and v";
          EXPECT_GT(table.at("host_bytes").at(step), 1e6);
        }
        ExpectSame(table, EventTable());
        EXPECT_GT(metrics.seconds(), metrics.step_seconds());
        EXPECT_NEAR(metrics.rate() * metrics.step_seconds(), 12, 1e-6);
      }
}

// Lines are JSON in a program whose locale writes decimal commas.
TEST_F(MetricsTest, NumbersAreThoseOfJsonInAnyLocale) {
  const std::string of_ours = folder_ / "";
  const std::string made = Cat("localedef -i de_DE -f UTF-8 ", of_ours, "de_DE.UTF-8 >/dev/null 2>&1");
  setenv("LOCPATH", of_ours.c_str(), 1);
  if (std::system(made.c_str()) != 0 || setlocale(LC_NUMERIC, "de_DE.UTF-8") == nullptr)
    GTEST_SKIP() << "SKIPPED, NOT TESTED: localedef makes no locale with decimal commas here";
  {
    Line line("cpu:dp=2");
    Session train = Train(line.loss, AdamW{.lr = 0.25});
    Metrics metrics(train, Files());
    metrics.Step(train.Run(line.Batch(0)), {{"mine", 1234.5}, {"small", -1.25e-7}});
  }
  setlocale(LC_NUMERIC, "C");
  const Table table = JsonTable();
  EXPECT_EQ(table.at("mine").at(0), 1234.5);
  EXPECT_EQ(table.at("small").at(0), -1.25e-7);
  EXPECT_NEAR(table.at("lr").at(0), 0.25, 1e-9);
  ExpectSame(table, EventTable());
}

TEST_F(MetricsTest, TimeWaitedForDataIsThatOfTheStep) {
  struct Slow : FeedSource {
    FeedPieces Next() override {
      std::this_thread::sleep_for(std::chrono::milliseconds(step % 2 == 0 ? 50 : 0));
      return {{"x", {{Box::Whole({12, 4}), Floats(step++, {12, 4})}}}};
    }
    int64_t step = 0;
  } source;
  Line line("cpu:dp=2");
  Session train = Train(line.loss, Sgd{.lr = 0.1});
  Metrics metrics(train, Files());
  for (int step = 0; step < 6; ++step) metrics.Step(train.Run(source));
  const Table table = JsonTable();
  for (int step = 0; step < 6; step += 2) EXPECT_GE(table.at("data_ms").at(step), 50);
  EXPECT_EQ(table.at("data_ms").size(), 6u);
}

TEST_F(MetricsTest, AnEvaluationHasNoRateAndAnOptimizerOfOnesOwnAFactor) {
  Line line("cpu:dp=2");
  Optimizer plain("plain",
                  [](WeightUpdate& u) { u.Assign(u.weight(), u.weight() - u.Rate(0.1) * u.gradient()); });
  Session train = Train(line.loss, plain), eval = Evaluate({{"loss", line.loss}});
  Metrics of_train(train), of_eval(eval);
  auto names = [](const Metrics& metrics) {
    std::set<std::string> all;
    for (const auto& [name, value] : metrics.last()) all.insert(name);
    return all;
  };
  of_train.Step(train.Run(line.Batch(0)));
  of_eval.Step(eval.Run(line.Batch(0)));
  EXPECT_EQ(names(of_train).count("lr_factor"), 1u);
  EXPECT_EQ(names(of_train).count("lr"), 0u);
  EXPECT_EQ(names(of_eval).count("lr_factor") + names(of_eval).count("lr"), 0u);
  EXPECT_EQ(names(of_eval).count("samples_per_s"), 0u) << "per_step is not given";
}

TEST_F(MetricsTest, ARunThatGoesOnReplacesWhatItDoesAgain) {
  auto write = [&](int64_t first, int64_t end, double value) {
    Line line("cpu:dp=1");
    Session train = Train(line.loss, Sgd{.lr = 0});
    Metrics metrics(train, Files());
    for (int64_t step = first; step < end; ++step) metrics.Add(step, {{"v", value}});
    return LinesOf(TextOf(json_));
  };
  const std::vector<std::string> whole = write(0, 12, 1);
  EXPECT_EQ(whole.size(), 12u);
  EXPECT_EQ(whole[3], "{\"step\":3,\"v\":1}");
  std::vector<std::string> lines = write(9, 14, 2);
  EXPECT_EQ(lines.size(), 14u);
  EXPECT_EQ(lines[8], whole[8]);
  EXPECT_EQ(lines[9], "{\"step\":9,\"v\":2}");
  ExpectSame(JsonTable(), EventTable());
  std::ofstream(json_, std::ios::app) << "{\"step\":14,\"v";  // killed while it wrote
  lines = write(15, 16, 3);
  EXPECT_EQ(lines.size(), 15u);
  EXPECT_EQ(lines[14], "{\"step\":15,\"v\":3}");
  EXPECT_EQ(write(0, 2, 4).size(), 2u) << "a fresh start";
  ExpectSame(JsonTable(), EventTable());
  std::ofstream(json_) << "something else\n";
  EXPECT_EQ(write(5, 6, 5).size(), 1u);
}

TEST_F(MetricsTest, MistakesAndFullDisksAreErrors) {
  Line line("cpu:dp=1");
  Session train = Train(line.loss, Sgd{.lr = 0.1});
  StepResult result = train.Run(line.Batch(0));
  auto says = [&](const MetricsOptions& options, const Scalars& own) {
    return ErrorOf([&] { Metrics(train, options).Step(result, own); });
  };
  const std::string nowhere = folder_ / "none/log.json";
  EXPECT_NE(says({.json = nowhere}, {}).find(nowhere + ": No such file"), std::string::npos);
  std::ofstream(folder_ / "file") << "x";
  EXPECT_NE(says({.tensorboard = folder_ / "file"}, {}).find("file"), std::string::npos);
  EXPECT_NE(says({}, {{"loss", 1}}).find("'loss' is given twice"), std::string::npos);
  EXPECT_NE(says({}, {{"step", 1}}).find("'step' is given twice"), std::string::npos);
  for (const char* name : {"", "a\nb", "\xc3\xa4"})
    EXPECT_NE(says({}, {{name, 1}}).find("is no name of a scalar"), std::string::npos) << name;
  EXPECT_NE(says({.per_step = -1}, {}).find("per_step is -1"), std::string::npos);
  EXPECT_NE(says({.peak_flops = NAN}, {}).find("peak_flops is "), std::string::npos);
  if (!fs::exists("/dev/full")) return;
  EXPECT_NE(says({.json = "/dev/full"}, {}).find("No space left"), std::string::npos);
}

TEST_F(MetricsTest, TensorBoardReadsTheSame) {
  if (!PythonHas("tensorboard"))
    GTEST_SKIP() << "SKIPPED, NOT TESTED: " << Python()
                 << " lacks tensorboard (pip install tensorboard, OFL_PYTHON)";
  for (int64_t first : {0, 3}) {  // the second run does some steps again
    Line line("cpu:dp=2,tp=2");
    line.model.SetNextStep("train", first);
    Session train = Train(line.loss, AdamW{.lr = 0.1}, {.clip_norm = 1});
    Metrics metrics(train, Files());
    for (int64_t step = first; step < first + 5; ++step)
      metrics.Step(train.Run(line.Batch(step)), {{"mine/own", 1.0 / static_cast<double>(step + first + 1)}});
    metrics.Add(first + 5, {{"held_out_loss", 2.5}});
  }
  const std::string said = folder_ / "said";
  ASSERT_EQ(std::system(Cat(Python(), " ", OFL_SOURCE_DIR, "/tests/peers/tensorboard_read.py ",
                            folder_ / "board", " > ", said, " 2> /dev/null")
                            .c_str()),
            0);
  Table theirs;
  std::istringstream text(TextOf(said));
  std::string tag;
  int64_t step = 0;
  for (double value = 0; text >> tag >> step >> value;) theirs[tag][step] = value;
  EXPECT_EQ(theirs["loss"].size(), 8u);
  ExpectSame(JsonTable(), theirs);
  ExpectSame(EventTable(), theirs);
}

}  // namespace
}  // namespace oneflow_like
