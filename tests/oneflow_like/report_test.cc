// --report: the page's figures are those of the dry run and of --explain, what ran is in it, names of users
// are text wherever they stand, and a browser draws it without a complaint and without a network.
#include "oneflow_like/report/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compiler/explain.h"
#include "oneflow_like/session/summary.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

using nlohmann::json;

std::vector<SmallGpt> Programs() {
  return {{},
          {.mesh = "cpu:dp=3", .batch = 7},
          {.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 4},
          {.mesh = "cpu:pp=2", .micro_batches = 8, .schedule = PipelineSchedule::kZeroBubble},
          {.mesh = "cpu:dp=4", .micro_batches = 2, .zero_axis = "dp", .zero_stage = 3},
          {.mesh = "cpu:tp=2", .micro_batches = 2, .recompute = Recompute::kFull, .dtype = DType::kBFloat16},
          {.mesh = "cpu:dp=8,tp=4,pp=2", .micro_batches = 2, .batch = 32},
          {.mesh = "cpu:dp=16,tp=4,pp=4", .micro_batches = 4, .batch = 64}};
}

class ReportTest : public ::testing::Test {
 protected:
  SmallGpt With(SmallGpt given) const {
    given.model_options.report_file = path_;
    return given;
  }
  json Figures() const { return json::parse(FiguresIn(path_)); }

  TestFolder folder_{"report_test"};
  std::string path_ = folder_ / "report.html";
};

std::vector<std::pair<std::string, int64_t>> PairsIn(const json& list) {
  std::vector<std::pair<std::string, int64_t>> pairs;
  for (const json& pair : list) pairs.push_back({pair[0], pair[1]});
  return pairs;
}

void ExpectMemory(const json& session, const std::vector<RankSummary>& summaries) {
  ASSERT_EQ(session["ranks"].size(), summaries.size());
  std::map<int, const RankSummary*> of_rank;
  for (size_t i = 0; i < summaries.size(); ++i) {
    const json& shown = session["ranks"][i];
    const RankSummary& s = summaries[i];
    of_rank[s.rank] = &s;
    EXPECT_EQ(shown["rank"], s.rank);
    EXPECT_EQ(shown["ranks"], RangesText(s.ranks));
    EXPECT_EQ(shown["stage"], s.stage);
    EXPECT_EQ(shown["peak_bytes"], s.peak_bytes);
    EXPECT_EQ(shown["persistent_bytes"], s.persistent_bytes);
    EXPECT_EQ(shown["transient_bytes"], s.transient_bytes);
    EXPECT_EQ(shown["lower_bound_bytes"], s.lower_bound_bytes);
    EXPECT_EQ(shown["bytes_sent"], s.bytes_sent);
    EXPECT_EQ(shown["flops"], s.flops);
    EXPECT_EQ(PairsIn(shown["purposes"]), s.purposes);
    EXPECT_EQ(PairsIn(shown["consumers"]), s.consumers);
  }
  ASSERT_FALSE(session["memory"].empty());
  for (const json& curve : session["memory"]) {
    const RankSummary& s = *of_rank.at(curve["rank"].get<int>());
    int64_t most = 0, at_peak = curve["at_peak"]["other_bytes"];
    int last = -1, at = -1;
    for (const json& point : curve["points"]) {
      int64_t sum = 0;
      for (size_t p = 1; p < point.size(); ++p) {
        EXPECT_GE(point[p].get<int64_t>(), 0);
        sum += point[p].get<int64_t>();
      }
      EXPECT_GE(sum, s.persistent_bytes);
      EXPECT_GT(point[0].get<int>(), last) << "positions ascend";
      last = point[0];
      if (sum > most) at = last;
      most = std::max(most, sum);
    }
    EXPECT_EQ(most, s.lower_bound_bytes) << "the curve's highest point is the dry run's peak";
    EXPECT_EQ(curve["peak_position"], at);
    EXPECT_LT(last, curve["positions"].get<int>());
    for (const json& row : curve["at_peak"]["rows"]) at_peak += row[3].get<int64_t>();
    EXPECT_EQ(at_peak, s.lower_bound_bytes);
    EXPECT_EQ(curve["parts"][0][0], 0);
  }
}

void ExpectBoxing(const json& shown, const Compiled& compiled) {
  const std::vector<BoxingPrice> prices = PricesOfBoxing(compiled);
  EXPECT_EQ(shown["steps"], prices.size());
  EXPECT_EQ(shown["rows"].size() + shown["left_out"].get<size_t>(), prices.size());
  double bytes = 0;
  for (size_t i = 0; i < prices.size(); ++i) {
    bytes += prices[i].bytes;
    if (i >= shown["rows"].size()) continue;
    const json& row = shown["rows"][i];
    EXPECT_EQ(row["value"], prices[i].value);
    EXPECT_EQ(row["bytes"], prices[i].bytes);
    EXPECT_EQ(row["seconds"], prices[i].seconds);
    EXPECT_EQ(row["why"], prices[i].why);
    EXPECT_EQ(row["line"], compiled.graph.node(prices[i].node).line.str());
  }
  EXPECT_EQ(shown["bytes"], bytes);
}

// Each stage's acts are those of the order, one after another in a stream; the last one ends the step.
void ExpectSchedule(const json& session, const Compiled& compiled) {
  double end = 0;
  size_t acts = 0;
  for (const json& row : session["schedule"]["rows"]) {
    double before = 0;
    for (const json& act : row["acts"]) {
      EXPECT_GE(act[0].get<double>(), before * (1 - 1e-9)) << row["stream"];
      EXPECT_GE(act[1].get<double>(), act[0].get<double>());
      before = act[1];
      end = std::max(end, before);
      if (act[4] >= 0) {
        const json& segment = session["segments"][act[4].get<int>()];
        EXPECT_EQ(act[2], segment[1]) << "phase";
        EXPECT_EQ(act[3] == -1, segment[2] == 0) << "micro-batch";
      }
      ++acts;
    }
  }
  EXPECT_NEAR(end, compiled.logical.makespan, 1e-9 * end);
  EXPECT_GT(acts, 0u);
  EXPECT_EQ(session["seconds"], compiled.logical.makespan);
  const std::vector<StageTime> stages = TimesOfStages(compiled);
  ASSERT_EQ(session["stages"].size(), stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    EXPECT_EQ(session["stages"][i][0], stages[i].stage);
    EXPECT_EQ(session["stages"][i][1], stages[i].seconds);
    EXPECT_EQ(session["stages"][i][2], stages[i].bubble);
  }
}

TEST_F(ReportTest, FiguresAreThoseOfTheDryRun) {
  for (const SmallGpt& given : Programs()) {
    SCOPED_TRACE(given.str());
    GptProgram program(With(given));
    Session train = program.MakeTrain();
    const Compiled& compiled = train.impl()->compiled;
    const json report = Figures();
    ASSERT_EQ(report["sessions"].size(), 1u);
    const json& session = report["sessions"][0];
    EXPECT_EQ(session["name"], "train");
    EXPECT_EQ(session["mesh"], compiled.graph.mesh().str());
    EXPECT_EQ(session["micro_batches"], given.micro_batches);
    EXPECT_TRUE(session["measured"].empty());
    ExpectMemory(session, train.Summaries());
    ExpectBoxing(session["boxing"], compiled);
    ExpectSchedule(session, compiled);
    EXPECT_EQ(session["graph"]["nodes"].size() + session["graph"]["left_out"].get<size_t>(),
              compiled.graph.Order().size());
    EXPECT_LT(TextOf(path_).size(), 4u << 20) << "a page that a browser likes to open";
  }
}

TEST_F(ReportTest, HasWhatLayersShowed) {
  Model model(FullMesh("cpu:dp=2"), With({}).model_options);
  Tensor x = model.Input("x", {4, 8, 16}, DType::kFloat32, {{"dp", S(0)}});
  Tensor y = nn::Experts(model.scope() / "e", x, {.experts = 4, .inner = 8, .ep = "dp"}).y;
  Session train = Train(mean(square(y)), Sgd{.lr = 0}, {});
  double sum = 0, greatest = 0;
  for (int step = 0; step < 3; ++step) {
    const double load = train.Run({{"x", Floats(step, {4, 8, 16})}}).Scalar("e/load_max");
    sum += load;
    greatest = std::max(greatest, load);
  }
  train.Close();
  const json report = Figures(), layers = report["sessions"][0]["measured"][0]["layers"];
  const auto shown =
      std::find_if(layers.begin(), layers.end(), [](const json& one) { return one[0] == "e/load_max"; });
  ASSERT_NE(shown, layers.end()) << layers;
  EXPECT_NEAR((*shown)[1], sum / 3, 1e-6);
  EXPECT_EQ((*shown)[2], greatest);
}

TEST_F(ReportTest, HasWhatStepsTook) {
  GptProgram program(With({.mesh = "cpu:dp=2,pp=2", .micro_batches = 4}));
  Session train = program.MakeTrain(), eval = program.MakeEvaluate();
  for (int step = 0; step < 6; ++step) {
    train.Run(program.MakeFeeds(step)).Scalar("loss");
    if (step == 3) train.ProfileText();  // what it takes is in the report all the same
  }
  train.Close();
  const json report = Figures();
  ASSERT_EQ(report["sessions"].size(), 2u);
  EXPECT_TRUE(report["sessions"][1]["measured"].empty()) << "not run";
  const json& session = report["sessions"][0];
  ASSERT_EQ(session["measured"].size(), 1u);
  const json& measured = session["measured"][0];
  EXPECT_EQ(measured["steps"], 5) << "but the first";
  EXPECT_EQ(measured["warm_up_steps"], 1);
  EXPECT_GT(measured["wall"], 0);
  EXPECT_EQ(measured["missing"], 0);
  // Each act of the charted step, on each rank, once; and acts of all steps but the first in the sums.
  const Compiled& compiled = train.impl()->compiled;
  std::map<std::tuple<int, int, int>, int> times;
  for (const json& act : measured["acts"]) {
    ++times[{act[0], act[2], act[3]}];
    EXPECT_LE(act[4].get<double>(), act[5].get<double>());
    EXPECT_EQ(act[1], compiled.logical.segments[act[2].get<int>()].stream);
  }
  size_t expected = 0;
  std::map<int, int64_t> sums;
  for (int rank = 0; rank < 4; ++rank) {
    const RankPlan made = PlanOf(compiled, rank);
    for (const plan::Actor& a : made.plan.actor()) {
      sums[a.id()] += a.acts() * 5;
      if (a.stream() < 0) continue;
      expected += a.acts();
      for (int k = 0; k < a.acts(); ++k)
        EXPECT_EQ((times[{rank, a.id(), k}]), 1) << a.name() << " on rank " << rank;
    }
  }
  EXPECT_EQ(measured["acts"].size(), expected);
  for (const json& segment : measured["segments"])
    EXPECT_EQ(segment[1], sums[segment[0].get<int>()]) << session["segments"][segment[0].get<int>()][0];
  // Estimated and measured kernels are called alike.
  std::set<std::string> labels;
  for (const json& row : session["estimates"]["operators"]) labels.insert(row[0].get<std::string>());
  size_t found = 0, heavy = 0;
  for (const json& row : measured["kernels"]) {
    if (row[1] != "matmul" && row[1] != "attention") continue;  // cheaper ones may be cut off
    ++heavy;
    found += labels.count(row[0].get<std::string>());
  }
  EXPECT_GT(heavy, 20u);
  EXPECT_EQ(found, heavy);
}

TEST_F(ReportTest, OfOneStepSaysThatNothingIsMeasuredYet) {
  GptProgram program(With({.mesh = "cpu:dp=2"}));
  Session train = program.MakeTrain();
  train.Run(program.MakeFeeds(0)).Scalar("loss");
  train.Close();
  const json measured = Figures()["sessions"][0]["measured"][0];
  EXPECT_EQ(measured["steps"], 0);
  EXPECT_GT(measured["acts"].size(), 0u) << "the chart has the only step there is";
}

TEST_F(ReportTest, AFileThatCannotBeWrittenIsRefusedAndNoneIsMadeBeforeThereIsASession) {
  ModelOptions options;
  options.report_file = folder_ / "no/report.html";
  const std::string error = ErrorOf([&] { Model model(Mesh::Parse("cpu:dp=1"), options); });
  EXPECT_NE(error.find(options.report_file), std::string::npos) << error;
  EXPECT_NE(error.find("No such file"), std::string::npos) << error;
  const std::string old = folder_.Write("old.html", "of the last run\n");
  options.report_file = old;
  Model model(Mesh::Parse("cpu:dp=1"), options);
  EXPECT_EQ(TextOf(old), "of the last run\n");
  EXPECT_NE(ErrorOf([&] { FiguresIn(old); }).find("is no report"), std::string::npos);
}

TEST_F(ReportTest, OfManySessionsTheFirstAreShown) {
  GptProgram program(With({.layers = 1}));
  std::vector<Session> sessions;
  for (size_t i = 0; i < Report::kMostSessions + 3; ++i) {
    Tensor loss = mean(scale(program.model().scope().Weight("w", {4}, Zeros()), 2));
    sessions.push_back(Evaluate({{"loss", loss}}, {.name = Cat("s", i)}));
  }
  Tensor again = mean(scale(program.model().scope().Weight("w", {4}, Zeros()), 3));
  sessions.push_back(Evaluate({{"loss", again}}, {.name = "s0"}));
  const json report = Figures();
  EXPECT_EQ(report["sessions"].size(), Report::kMostSessions);
  EXPECT_EQ(report["more_sessions"], 3);
}

const char* const kMarkup = "</script><img src=x onerror=alert(1)>&amp;\"'\\";

Session WithMarkup(Model* model) {
  Tensor x = model->Input(Cat("x", kMarkup), {8, 4}, DType::kFloat32, {{"dp", S(0)}});
  Tensor w = model->scope().Weight("w</script><script>alert(2)</script>", {4, 4}, Zeros());
  TrainOptions options;
  options.name = "<b>train</b>";
  options.outputs = {{"<i>y</i>", sum(matmul(x, w))}};
  return Train(mean(square(matmul(x, w))), Sgd{.lr = 0.1}, options);
}

TEST_F(ReportTest, NamesOfUsersEndNoScript) {
  ModelOptions options;
  options.report_file = path_;
  Model model(Mesh::Parse("cpu:dp=2"), options);
  Session train = WithMarkup(&model);
  const std::string page = TextOf(path_);
  for (const char* mark : {"<script", "</script>"}) {
    size_t count = 0;
    for (size_t at = page.find(mark); at != page.npos; at = page.find(mark, at + 1)) ++count;
    EXPECT_EQ(count, 2u) << mark;
  }
  const json session = Figures()["sessions"][0];
  EXPECT_EQ(session["name"], "<b>train</b>");
  bool found = false;
  for (const json& node : session["graph"]["nodes"]) found = found || node["name"] == Cat("x", kMarkup);
  EXPECT_TRUE(found) << "names are as the user wrote them";
}

// --- In a browser ---

std::string Browser() {
  const ShellOutcome found = Shell("command -v chromium || command -v chromium-browser");
  return found.code == 0 ? found.output.substr(0, found.output.find('\n')) : "";
}

struct Drawn {
  std::string dom, complaints;        // what the console has
  std::vector<std::string> requests;  // addresses that the page asked for
};

// The page in a browser without a window.
Drawn Draw(const std::string& browser, const TestFolder& folder, const std::string& path) {
  const std::string log = folder / "net.json", err = folder / "browser.err";
  const ShellOutcome outcome =
      Shell(Cat("timeout 120 ", browser, " --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage",
                " --no-first-run --disable-background-networking --disable-component-update --disable-sync",
                " --disable-default-apps --disable-extensions --user-data-dir=", folder / "profile",
                " --enable-logging=stderr --v=0 --virtual-time-budget=4000 --log-net-log=", log,
                " --dump-dom 'file://", path, "' 2>", err));
  EXPECT_EQ(outcome.code, 0) << TextOf(err);
  Drawn drawn;
  drawn.dom = outcome.output;
  for (const std::string& line : LinesOf(TextOf(err)))
    if (line.find("CONSOLE") != std::string::npos) drawn.complaints += line + "\n";
  // Requests of the browser's own (its updates) have no page that asks.
  const json net = json::parse(TextOf(log), nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(net.is_object()) << "no log of the network";
  for (const json& event : net.value("events", json::array())) {
    const json params = event.value("params", json::object());
    if (params.value("initiator", "not an origin") != "not an origin")
      drawn.requests.push_back(params.value("url", ""));
  }
  return drawn;
}

// The faults that the other tests listen for are heard.
TEST_F(ReportTest, ABrowserTellsOfMistakesAndRequests) {
  const std::string browser = Browser();
  if (browser.empty()) GTEST_SKIP() << "chromium is not installed: the report was not opened in a browser";
  const Drawn drawn =
      Draw(browser, folder_,
           folder_.Write("bad.html", "<img src=http://127.0.0.1:9/x><script>nothing()</script>"));
  EXPECT_NE(drawn.complaints.find("nothing is not defined"), std::string::npos) << drawn.complaints;
  EXPECT_EQ(drawn.requests, std::vector<std::string>{"http://127.0.0.1:9/x"});
}

TEST_F(ReportTest, ABrowserDrawsItWithoutComplaintAndNetwork) {
  const std::string browser = Browser();
  if (browser.empty()) GTEST_SKIP() << "chromium is not installed: the report was not opened in a browser";
  std::vector<SmallGpt> programs = {{.layers = 1},
                                    {.mesh = "cpu:dp=8,tp=4,pp=2", .micro_batches = 2, .batch = 32}};
  for (const SmallGpt& given : programs) {
    SCOPED_TRACE(given.str());
    GptProgram program(With(given));
    Session train = program.MakeTrain();
    if (&given == &programs[0]) {
      for (int step = 0; step < 3; ++step) train.Run(program.MakeFeeds(step));
      train.Close();
    }
    const Drawn drawn = Draw(browser, folder_, path_);
    EXPECT_EQ(drawn.complaints, "");
    EXPECT_EQ(drawn.requests, std::vector<std::string>());
    size_t rows = 0;
    for (size_t at = drawn.dom.find("class=\"n peak\""); at != drawn.dom.npos;
         at = drawn.dom.find("class=\"n peak\"", at + 1))
      ++rows;
    const std::vector<RankSummary> summaries = train.Summaries();
    EXPECT_EQ(rows, summaries.size()) << "a row for each";
    std::vector<std::string> texts = {SecondsText(train.impl()->compiled.logical.makespan)};
    for (const RankSummary& s : summaries) {
      texts.push_back(Cat("<td class=\"n peak\">", BytesText(static_cast<double>(s.peak_bytes)), "</td>"));
      texts.push_back(BytesText(static_cast<double>(s.lower_bound_bytes)));
    }
    const std::vector<BoxingPrice> prices = PricesOfBoxing(train.impl()->compiled);
    for (size_t i = 0; i < std::min<size_t>(prices.size(), 20); ++i) {
      texts.push_back(SecondsText(prices[i].seconds));
      texts.push_back(BytesText(prices[i].bytes));
    }
    for (const char* section : {"memory", "schedule", "communication", "times", "graph"})
      texts.push_back(Cat("<section id=\"", section, "\">"));
    for (const std::string& text : texts)
      EXPECT_NE(drawn.dom.find(text), std::string::npos) << "the page does not show " << text;
  }
}

TEST_F(ReportTest, ABrowserTakesNamesForText) {
  const std::string browser = Browser();
  if (browser.empty()) GTEST_SKIP() << "chromium is not installed: the report was not opened in a browser";
  ModelOptions options;
  options.report_file = path_;
  Model model(Mesh::Parse("cpu:dp=2"), options);
  Session train = WithMarkup(&model);
  const Drawn drawn = Draw(browser, folder_, path_);
  EXPECT_EQ(drawn.complaints, "");
  EXPECT_EQ(drawn.requests, std::vector<std::string>());
  const std::string page = drawn.dom.substr(0, drawn.dom.find("application/json"));
  EXPECT_EQ(page.find("<img"), page.npos);
  EXPECT_EQ(page.find("<b>train"), page.npos);
  EXPECT_NE(page.find("&lt;b&gt;train"), page.npos);
  EXPECT_NE(page.find("&lt;img src=x"), page.npos);
}

}  // namespace
}  // namespace oneflow_like
