// Traces and profiles: the file is JSON whose slices nest and leave nothing out; the times add up; what is
// not asked for leaves nothing behind.
#include "actor/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/actor/actor_test_plans.h"
#include "tests/actor/plan_builder.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

// A JSON value; numbers as they stand in the text, so that times stay exact.
struct Json {
  enum class Kind { kNumber, kString, kArray, kObject } kind = Kind::kNumber;
  std::string text;
  std::vector<Json> items;
  std::map<std::string, Json> fields;

  const Json& operator[](const std::string& name) const {
    auto found = fields.find(name);
    if (found == fields.end()) Fail("no field ", name);
    return found->second;
  }
  bool Has(const std::string& name) const { return fields.count(name) != 0; }
  int64_t Int() const { return std::stoll(text); }
  int64_t Nanoseconds() const { return std::llround(std::stod(text) * 1000); }  // of microseconds
};

// Strict where a trace could go wrong: anything but whitespace after the value, and every unescaped control
// character, is an Error.
class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : text_(text) {}
  Json ReadAll() {
    Json value = Value();
    if (Peek() != 0) Wrong("the end");
    return value;
  }

 private:
  [[noreturn]] void Wrong(const std::string& wanted) {
    Fail("JSON: wanted ", wanted, " at byte ", at_, ": ", text_.substr(at_, 40));
  }
  char Peek() {
    while (at_ < text_.size() && std::string(" \n\t\r").find(text_[at_]) != std::string::npos) ++at_;
    return at_ < text_.size() ? text_[at_] : 0;
  }
  void Take(char c) {
    if (Peek() != c) Wrong(std::string(1, c));
    ++at_;
  }
  bool TakeIf(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  std::string String() {
    Take('"');
    std::string value;
    while (at_ < text_.size() && text_[at_] != '"') {
      char c = text_[at_++];
      if (static_cast<unsigned char>(c) < 0x20) Wrong("no control character");
      if (c == '\\') {
        char code = at_ < text_.size() ? text_[at_++] : 0;
        if (code == 'u') {
          value += static_cast<char>(std::stoi(text_.substr(at_, 4), nullptr, 16));
          at_ += 4;
        } else if (code == '"' || code == '\\') {
          value += code;
        } else {
          Wrong("a known escape");
        }
      } else {
        value += c;
      }
    }
    if (at_ == text_.size()) Wrong("the end of a string");
    ++at_;
    return value;
  }
  Json Value() {
    Json value;
    char c = Peek();
    if (c == '[') {
      value.kind = Json::Kind::kArray;
      Take('[');
      if (TakeIf(']')) return value;
      do value.items.push_back(Value());
      while (TakeIf(','));
      Take(']');
    } else if (c == '{') {
      value.kind = Json::Kind::kObject;
      Take('{');
      if (TakeIf('}')) return value;
      do {
        Peek();
        std::string name = String();
        Take(':');
        if (!value.fields.emplace(name, Value()).second) Wrong("each name once");
      } while (TakeIf(','));
      Take('}');
    } else if (c == '"') {
      value.kind = Json::Kind::kString;
      value.text = String();
    } else {
      size_t end = text_.find_first_not_of("-+.eE0123456789", at_);
      value.text = text_.substr(at_, end == std::string::npos ? end : end - at_);
      if (value.text.empty()) Wrong("a value");
      at_ += value.text.size();
    }
    return value;
  }

  const std::string& text_;
  size_t at_ = 0;
};

struct Slice {
  int64_t rank, row, start, end, step, micro_batch;
  std::string name, session;
  double flops, bytes;  // -1: an act
};

struct Trace {
  std::vector<Slice> slices;
  std::map<std::pair<int64_t, int64_t>, std::string> rows;  // names, by rank and row
  std::string note;                                         // of what was not kept
};

Trace ReadTrace(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  std::string whole = text.str();
  Json json = JsonReader(whole).ReadAll();
  EXPECT_EQ(json.kind, Json::Kind::kArray);
  Trace trace;
  for (const Json& e : json.items) {
    std::string phase = e["ph"].text;
    if (phase == "X") {
      int64_t start = e["ts"].Nanoseconds();
      const Json& args = e["args"];
      trace.slices.push_back({e["pid"].Int(), e["tid"].Int(), start, start + e["dur"].Nanoseconds(),
                              args["step"].Int(), args["micro_batch"].Int(), e["name"].text, e["cat"].text,
                              args.Has("flops") ? std::stod(args["flops"].text) : -1,
                              args.Has("bytes") ? std::stod(args["bytes"].text) : -1});
    } else if (phase == "M" && e["name"].text == "thread_name") {
      trace.rows[{e["pid"].Int(), e["tid"].Int()}] = e["args"]["name"].text;
    } else if (phase == "i") {
      trace.note = e["name"].text;
    } else {
      EXPECT_EQ(phase, "M");
    }
  }
  return trace;
}

// On each row: acts one after another, kernels one after another within them.
void ExpectNested(const Trace& trace) {
  std::map<std::pair<int64_t, int64_t>, std::vector<Slice>> rows;
  for (const Slice& s : trace.slices) rows[{s.rank, s.row}].push_back(s);
  for (auto& [row, slices] : rows) {
    ASSERT_TRUE(trace.rows.count(row)) << "row " << row.second << " of rank " << row.first << " has no name";
    std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
      bool a_act = a.flops < 0, b_act = b.flops < 0;
      return std::make_tuple(a.start, !a_act, a.end) < std::make_tuple(b.start, !b_act, b.end);
    });
    const Slice* act = nullptr;
    int64_t free_at = 0;  // for the next kernel of the act
    for (const Slice& s : slices) {
      ASSERT_LE(s.start, s.end) << s.name;
      ASSERT_GE(s.start, 0) << s.name;
      if (s.flops < 0) {
        if (act != nullptr) {
          ASSERT_GE(s.start, act->end) << s.name << " overlaps " << act->name;
        }
        act = &s;
        free_at = s.start;
      } else {
        ASSERT_NE(act, nullptr) << s.name;
        ASSERT_GE(s.start, free_at) << s.name << " in " << act->name;
        ASSERT_LE(s.end, act->end) << s.name << " in " << act->name;
        ASSERT_EQ(s.step, act->step) << s.name;
        ASSERT_EQ(s.micro_batch, act->micro_batch) << s.name;
        free_at = s.end;
      }
    }
  }
}

class TraceTest : public ::testing::Test {
 protected:
  TraceTest() {
    folder_ = std::filesystem::temp_directory_path().string() + "/trace_test." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    path_ = folder_ + "/trace.json";
  }
  ~TraceTest() override { std::filesystem::remove_all(folder_); }
  std::string folder_, path_;
};

using Key = std::tuple<int64_t, std::string, int64_t, int64_t>;  // rank, name, step, micro-batch

// What the plans say must be in the trace: how often, by key.
std::map<Key, int> Expected(const Compiled& compiled, int world, int steps) {
  std::map<Key, int> count;
  for (int rank = 0; rank < world; ++rank) {
    plan::Plan plan = PlanOf(compiled, rank).plan;
    for (const plan::Actor& a : plan.actor()) {
      for (int step = 0; step < steps; ++step) {
        for (int act = 0; act < a.acts(); ++act) {
          ++count[{rank, a.name(), step, act}];
          for (const plan::Kernel& k : a.kernel()) {
            std::string line = k.file().empty() ? "" : Cat(" ", k.file(), ":", k.line());
            std::string name = Cat(k.node(), ": ", k.name(), line);
            if (a.has_collective()) {
              const plan::Collective& c = a.collective();
              bool works = false;
              for (const plan::Region& r : c.work(c.work_size() == 1 ? 0 : act).region()) {
                int64_t elements = 1;
                for (int64_t e : r.box().extent()) elements *= e;
                works = works || (elements > 0 && r.dest_size() > 0);
              }
              if (!works) continue;
              name = Cat(c.primitive(), " ", k.node(), line);
            }
            ++count[{rank, name, step, act}];
          }
        }
      }
    }
  }
  return count;
}

double SumOf(const StepProfile& p) {
  double sum = p.waiting + p.runtime;
  for (const auto& [kind, seconds] : p.kernels) sum += seconds;
  return sum;
}

TEST_F(TraceTest, EveryKernelOfAGptIsThereOncePerActAndTimesAddUp) {
  const int kSteps = 3;
  SmallGpt small;
  small.mesh = "cpu:dp=2,tp=2,pp=2";
  small.micro_batches = 2;
  small.model_options.threads = 2;
  small.model_options.trace_file = path_;
  GptProgram program(small);
  Session train = program.MakeTrain();
  auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < kSteps; ++step) train.Run(program.MakeFeeds(step)).Wait();
  StepProfile profile = train.TakeProfile();
  double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  EXPECT_EQ(profile.steps, kSteps - 1);
  EXPECT_EQ(profile.warm_up_steps, 1);
  EXPECT_EQ(profile.threads, 2);
  EXPECT_GT(profile.wall, 0);
  EXPECT_LE(profile.wall, elapsed);
  EXPECT_NEAR(SumOf(profile), profile.wall * profile.threads, 1e-9 + 1e-6 * SumOf(profile));
  for (const char* kind : {"matmul", "attention", "other", "boxing"})
    EXPECT_GT(profile.kernels[kind], 0) << kind;
  EXPECT_EQ(profile.kernels.size(), 4u);
  double by_kernel = 0, by_kind = SumOf(profile) - profile.waiting - profile.runtime;
  for (const KernelProfile& k : profile.hottest) by_kernel += k.seconds;
  EXPECT_NEAR(by_kernel, by_kind, 1e-6 * by_kind);
  const StepProfile again = train.TakeProfile();
  EXPECT_EQ(again.steps + again.warm_up_steps, 0) << "taken before";

  std::map<Key, int> expected = Expected(train.impl()->compiled, 8, kSteps);
  train.Close();
  Trace trace = ReadTrace(path_);
  ExpectNested(trace);
  std::map<Key, int> found;
  int64_t in_trace = 0, user_lines = 0;
  std::set<std::string> row_names;
  for (const Slice& s : trace.slices) {
    ++found[{s.rank, s.name, s.step, s.micro_batch}];
    EXPECT_EQ(s.session, "train");
    if (s.flops >= 0 && s.step > 0) in_trace += s.end - s.start;  // the first step is not in the profile
    user_lines += s.name.rfind("block0/mlp/einsum: einsum gpt_model.cc:", 0) == 0;
  }
  for (const auto& [key, count] : expected) {
    EXPECT_EQ(found[key], count) << std::get<1>(key) << " of rank " << std::get<0>(key) << " step "
                                 << std::get<2>(key) << " micro-batch " << std::get<3>(key);
  }
  EXPECT_EQ(found.size(), expected.size());
  EXPECT_EQ(user_lines, kSteps * 2 * 4) << "on each rank of the first stage";
  EXPECT_NEAR(1e-9 * in_trace, by_kind, 0.01 * by_kind) << "trace and profile measure the same kernels";
  for (const auto& [row, name] : trace.rows) row_names.insert(name.substr(0, 4));
  EXPECT_EQ(row_names, (std::set<std::string>{"comp", "link", "feed"}));
  EXPECT_EQ(trace.note, "");
}

TEST_F(TraceTest, SessionsOfAModelShareAFile) {
  SmallGpt small;
  small.mesh = "cpu:dp=2";
  small.model_options.trace_file = path_;
  {
    GptProgram program(small);
    Session train = program.MakeTrain();
    train.Run(program.MakeFeeds(0)).Wait();
    EXPECT_TRUE(ReadTrace(path_).slices.empty()) << "not closed yet, and whole JSON all the same";
    Session eval = program.MakeEvaluate();
    eval.Run(program.MakeFeeds(0)).Wait();
    train.Run(program.MakeFeeds(1)).Wait();
    Session never_run = program.MakeEvaluate();
  }
  Trace trace = ReadTrace(path_);
  ExpectNested(trace);
  std::map<std::string, std::set<int64_t>> steps;
  for (const Slice& s : trace.slices) steps[s.session].insert(s.step);
  EXPECT_EQ(steps, (std::map<std::string, std::set<int64_t>>{{"eval", {0}}, {"train", {0, 1}}}));
}

TEST_F(TraceTest, NamesAreAsTheUserWroteThem) {
  const std::string name = "gr\xc3\xb6\xc3\x9f\x65 \"a\\b\"\t";
  ModelOptions options;
  options.trace_file = path_;
  {
    Model model(Mesh::Parse("cpu:dp=1"), options);
    Tensor x = model.Input("x", {4}, DType::kFloat32);
    Tensor w = (model.scope() / name).Weight("w", {4}, Ones());
    Session session = Evaluate({{"y", sum(w * x, {0})}});
    session.Run({{"x", ToHost<float>({1, 2, 3, 4}, {4})}}).Wait();
  }
  bool found = false;
  for (const Slice& s : ReadTrace(path_).slices)
    found = found || s.name.find(name + "/") != std::string::npos;
  EXPECT_TRUE(found);
}

// Kernels of one step do not take longer than that step, on all threads, whatever was profiled before.
TEST_F(TraceTest, AProfileIsOfItsOwnSteps) {
  GptProgram program({.mesh = "cpu:dp=2"});
  Session train = program.MakeTrain();
  for (int step = 0; step < 12; ++step) train.Run(program.MakeFeeds(step)).Wait();
  (void)train.TakeProfile();
  train.Run(program.MakeFeeds(12)).Wait();
  const StepProfile one = train.TakeProfile();
  EXPECT_EQ(one.steps, 1);
  double kernels = 0;
  for (const auto& [kind, seconds] : one.kernels) kernels += seconds;
  EXPECT_GT(kernels, 0);
  EXPECT_LE(kernels, one.wall * one.threads * (1 + 1e-6));
}

// A step is in one profile, however often profiles are taken before the session is closed and after.
TEST_F(TraceTest, ProfilesAddUpToAllSteps) {
  const int kSteps = 4;
  for (int taken_after : {0, 2, kSteps}) {  // steps; 0: never before closing
    GptProgram program({.mesh = "cpu:dp=2"});
    Session train = program.MakeTrain();
    int64_t steps = 0, warm_up_steps = 0;
    auto take = [&] {
      StepProfile profile = train.TakeProfile();
      steps += profile.steps;
      warm_up_steps += profile.warm_up_steps;
      return profile;
    };
    for (int step = 1; step <= kSteps; ++step) {
      train.Run(program.MakeFeeds(step)).Wait();
      if (step == taken_after) take();
    }
    train.Close();
    take();
    for (int again = 0; again < 2; ++again) {
      const StepProfile profile = take();
      EXPECT_EQ(profile.wall, 0) << "taken before";
      EXPECT_EQ(SumOf(profile), 0) << "taken before";
      EXPECT_TRUE(profile.hottest.empty()) << "taken before";
    }
    EXPECT_EQ(steps, kSteps - 1) << "taken after " << taken_after;
    EXPECT_EQ(warm_up_steps, 1) << "taken after " << taken_after;
  }
}

// Each run of a kernel reads its operands and writes its results, the pieces that its rank has of them; here
// all ranks have equal ones. The profile is of all ranks.
TEST_F(TraceTest, BytesOfAKernelAreReadAndWritten) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,tp=2", "cpu:tp=2,pp=2"}) {
    SCOPED_TRACE(mesh);
    SmallGpt small;
    small.mesh = mesh;
    small.micro_batches = 2;
    small.model_options.trace_file = path_;
    GptProgram program(small);
    Session train = program.MakeTrain();
    const Compiled& compiled = train.impl()->compiled;
    std::map<std::string, double> of_run;  // by label
    for (int rank = 0; rank < compiled.graph.mesh().size(); ++rank) {
      const plan::Plan plan = PlanOf(compiled, rank).plan;
      for (const plan::Actor& a : plan.actor()) {
        if (a.has_collective()) continue;
        for (const plan::Kernel& k : a.kernel()) {
          double bytes = 0;
          std::vector<const google::protobuf::RepeatedPtrField<plan::Operand>*> moved = {&k.in(), &k.out()};
          for (const plan::Attr& attr : k.attr())
            if (attr.name() == "accumulates") moved.push_back(&k.out());  // reads what it adds to
          for (const auto* operands : moved)
            for (const plan::Operand& o : *operands) {
              int64_t elements = 1;
              for (int64_t e : o.box(0).extent()) elements *= e;
              bytes += static_cast<double>(elements * SizeOf(static_cast<DType>(o.dtype())));
            }
          of_run[KernelLabel(a, k)] = bytes;
        }
      }
    }
    for (int step = 0; step < 3; ++step) train.Run(program.MakeFeeds(step)).Wait();
    const StepProfile profile = train.TakeProfile();
    int in_profile = 0, in_trace = 0;
    for (const KernelProfile& k : profile.hottest) {
      auto known = of_run.find(k.label);
      if (known == of_run.end()) continue;
      ++in_profile;
      EXPECT_DOUBLE_EQ(k.bytes, known->second * static_cast<double>(k.runs)) << k.label;
    }
    EXPECT_GT(in_profile, 0);
    train.Close();
    for (const Slice& s : ReadTrace(path_).slices) {
      auto known = of_run.find(s.name);
      if (s.flops < 0 || known == of_run.end()) continue;
      ++in_trace;
      EXPECT_EQ(s.bytes, known->second) << s.name;
    }
    EXPECT_GT(in_trace, 0);
  }
}

TEST_F(TraceTest, AFileThatCannotBeWrittenIsAnErrorBeforeTheFirstStep) {
  for (const std::string& path : {folder_ + "/no/such/folder/t.json", folder_, std::string("/dev/full")}) {
    ModelOptions options;
    options.trace_file = path;
    try {
      Model model(Mesh::Parse("cpu:dp=1"), options);
      ADD_FAILURE() << path << " was accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("trace file '" + path + "' cannot be written: "),
                std::string::npos)
          << e.what();
    }
  }
}

// Plans of two ranks, of which the first sleeps in each of its two acts of a step.
std::vector<plan::Plan> SleepyPlans(int microseconds) {
  std::vector<plan::Plan> plans = TrainPlans(2, 2);
  for (plan::Actor& a : *plans[0].mutable_actor()) {
    if (a.name() == "grad") PlanBuilder::SetAttr(a.mutable_kernel(0), "us", microseconds);
  }
  for (plan::Plan& plan : plans) {
    for (plan::Actor& a : *plan.mutable_actor()) {
      if (a.has_collective()) a.mutable_kernel(0)->set_category("boxing");
      if (a.name() != "grad") continue;
      a.mutable_kernel(0)->set_category("naps");
      a.mutable_kernel(0)->set_flops(10);
    }
  }
  return plans;
}

struct Ran {
  StepProfile profile;
  Trace trace;
  int64_t missing = 0;
};

Ran RunSleepy(const std::string& path, int64_t records, int steps, int microseconds) {
  TraceFile file(path);
  KernelRegistry registry = TestRegistry();
  std::unique_ptr<Store> store = MakeStore(2);
  std::unique_ptr<Executor> executor = MakeThreadExecutor(2, 1);
  RuntimeOptions options;
  options.trace_records = records;
  Runtime runtime(SleepyPlans(microseconds), registry, store.get(), executor.get(), options);
  for (int i = 0; i < steps; ++i) {
    Status status = runtime.Launch(TrainFeeds(2, 2, i)).Wait();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  runtime.Close();
  Ran ran;
  ran.missing = runtime.WriteTrace(&file);
  ran.profile = runtime.TakeProfile();
  ran.trace = ReadTrace(path);
  return ran;
}

TEST_F(TraceTest, KernelsAndWaitingAreToldApart) {
  const int kSteps = 5, kMicroseconds = 4000;
  Ran ran = RunSleepy(path_, 1000, kSteps, kMicroseconds);
  ExpectNested(ran.trace);
  StepProfile& p = ran.profile;
  const double slept = 1e-6 * kMicroseconds * 2 * kSteps;
  EXPECT_EQ(p.steps, kSteps);
  EXPECT_GE(p.kernels["naps"], slept);
  EXPECT_GE(p.wall, slept);
  // The other rank does nearly nothing but wait for the sums.
  EXPECT_GE(p.waiting, slept / 4);
  EXPECT_LT(p.kernels["boxing"], slept);
  EXPECT_NEAR(SumOf(p), 2 * p.wall, 1e-9 + 1e-6 * p.wall);
  ASSERT_FALSE(p.hottest.empty());
  EXPECT_EQ(p.hottest[0].category, "naps");
  int64_t runs = 0;
  for (const KernelProfile& k : p.hottest) runs += k.label.rfind("grad: grad test.cc:", 0) == 0 ? k.runs : 0;
  EXPECT_EQ(runs, kSteps * 2 * 2) << "acts of both ranks";
  EXPECT_DOUBLE_EQ(p.hottest[0].flops, 10.0 * p.hottest[0].runs);
}

TEST_F(TraceTest, WarmUpStepsAreNotCounted) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(Cat("seed ", seed));
    std::mt19937_64 random(seed);
    const int64_t warm_up = random() % 3, steps = random() % 7, kMicroseconds = 20000;
    std::vector<plan::Plan> plans = SleepyPlans(kMicroseconds);
    for (plan::Actor& a : *plans[0].mutable_actor())
      if (a.name() == "grad") PlanBuilder::SetAttr(a.mutable_kernel(0), "us_before_step", warm_up);
    KernelRegistry registry = TestRegistry();
    std::unique_ptr<Store> store = MakeStore(2);
    std::unique_ptr<Executor> executor = MakeThreadExecutor(1 + static_cast<int>(random() % 2), 1);
    RuntimeOptions options;
    options.warm_up_steps = warm_up;
    options.steps_in_flight = 1 + static_cast<int>(random() % 3);
    const auto begin = std::chrono::steady_clock::now();
    Runtime runtime(std::move(plans), registry, store.get(), executor.get(), options);
    StepHandle last;
    for (int64_t i = 0; i < steps; ++i) last = runtime.Launch(TrainFeeds(2, 2, i));
    if (steps > 0) {
      EXPECT_TRUE(last.Wait().ok());
    }
    const StepProfile p = runtime.TakeProfile();
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const int64_t left_out = std::min(steps, warm_up), slept_acts = 2 * left_out;
    EXPECT_EQ(p.warm_up_steps, left_out);
    EXPECT_EQ(p.steps, steps - left_out);
    int64_t runs = 0;
    for (const KernelProfile& k : p.hottest) runs += k.category == "naps" ? k.runs : 0;
    EXPECT_EQ(runs, 2 * 2 * p.steps) << "acts of both ranks";
    // What was slept through in the warm-up is in no figure.
    EXPECT_LE(p.wall, elapsed - 1e-6 * kMicroseconds * slept_acts);
    if (p.steps > 0) {
      EXPECT_LE(SumOf(p), p.threads * (elapsed - 1e-6 * kMicroseconds * slept_acts));
    }
  }
}

TEST_F(TraceTest, OffKeepsNothingAndAFullBufferSaysSo) {
  Ran all = RunSleepy(path_, 1000, 4, 0), off = RunSleepy(path_, 0, 4, 0), some = RunSleepy(path_, 12, 4, 0);
  EXPECT_EQ(all.missing, 0);
  EXPECT_EQ(all.trace.note, "");
  EXPECT_EQ(off.trace.slices.size(), 0u);
  EXPECT_EQ(off.trace.note, "");
  EXPECT_EQ(off.profile.steps, 4) << "profiles need no trace";
  ExpectNested(some.trace);
  EXPECT_GT(some.trace.slices.size(), 0u);
  EXPECT_LE(some.trace.slices.size(), 24u) << "12 of each thread";
  EXPECT_EQ(some.trace.slices.size() + some.missing, all.trace.slices.size());
  EXPECT_NE(some.trace.note.find(std::to_string(some.missing)), std::string::npos) << some.trace.note;
}

TEST_F(TraceTest, ClosingAtAnyMomentLeavesAWholeFile) {
  KernelRegistry registry = TestRegistry();
  std::unique_ptr<Store> store = MakeStore(2);
  std::unique_ptr<Executor> executor = MakeThreadExecutor(2, 1);
  RuntimeOptions options;
  options.trace_records = 1000;
  TraceFile file(path_);
  for (int i = 0; i < 20; ++i) {
    Runtime runtime(SleepyPlans(300), registry, store.get(), executor.get(), options);
    StepHandle first = runtime.Launch(TrainFeeds(2, 2, 0)), second = runtime.Launch(TrainFeeds(2, 2, 1));
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    runtime.Close();
    runtime.WriteTrace(&file);
    StepProfile p = runtime.TakeProfile();
    EXPECT_GE(p.waiting, 0);
    EXPECT_GE(p.runtime, 0);
    EXPECT_GE(SumOf(p), 2 * p.wall * (1 - 1e-6));
  }
  ReadTrace(path_);
}

TEST_F(TraceTest, NamesMayHoldAnything) {
  const std::string name = "a \"b\" \\ c\nd\te \x01";
  std::vector<plan::Plan> plans(1);
  plan::Actor* actor = plans[0].add_actor();
  actor->set_name(name);
  actor->set_stream(-1);
  plan::Kernel* kernel = actor->add_kernel();
  kernel->set_name("k");
  kernel->set_node(name);
  TraceFile file(path_);
  TraceBuffer buffer(2);
  ClockPoint now = ClockPoint::Now();
  buffer.Add({now.ticks + 10, now.ticks + 20, 0, 0, 0, 0, 0});
  buffer.Add({now.ticks, now.ticks + 30, 0, 0, 0, 0, -1});
  file.Add(plans, {buffer}, TickScale(now, {now.ticks + 1000, now.nanoseconds + 1000}));
  Trace trace = ReadTrace(path_);
  ASSERT_EQ(trace.slices.size(), 2u);
  EXPECT_EQ(trace.slices[0].name, name);
  EXPECT_EQ(trace.slices[1].name, name + ": k");
  EXPECT_EQ(trace.slices[1].end - trace.slices[1].start, 10);
}

// As the processes of a job do: each writes what its rank did by its own clock, then the files are joined.
TEST_F(TraceTest, FilesBecomeOneOnOneClock) {
  const ClockPoint now = ClockPoint::Now();
  const TickScale scale(now, {now.ticks + 1000, now.nanoseconds + 1000});
  auto write = [&](int rank, int64_t origin, int64_t start) {
    std::vector<plan::Plan> plans(1);
    plans[0].set_rank(rank);
    plan::Actor* actor = plans[0].add_actor();
    actor->set_name("act");
    actor->set_stream(-1);
    TraceFile file(Cat(path_, rank));
    TraceBuffer buffer(20);
    for (int64_t step = 0; step < 10; ++step) {
      int64_t at = now.ticks + start + 100 * step;
      buffer.Add({at, at + 50, step, rank, 0, 0, -1});
    }
    file.SetOrigin(now.nanoseconds + origin);
    file.Add(plans, {buffer}, scale);
  };
  write(0, 0, 500);
  write(1, 2000, 2500);  // this rank's clock is 2000 ns ahead
  {
    TraceFile whole(path_);
    whole.AddEvents("");
    for (int rank = 0; rank < 2; ++rank) {
      TraceReader reader(Cat(path_, rank));
      int parts = 0;
      for (std::string part = reader.Next(300); !part.empty(); part = reader.Next(300)) {
        whole.AddEvents(part);
        ++parts;
      }
      EXPECT_GT(parts, 3) << "files come in parts";
    }
  }
  Trace trace = ReadTrace(path_);
  ASSERT_EQ(trace.slices.size(), 20u);
  for (int rank = 0; rank < 2; ++rank) {
    for (int64_t step = 0; step < 10; ++step) {
      EXPECT_EQ(trace.slices[10 * rank + step].start, 500 + 100 * step) << rank;
      EXPECT_EQ(trace.slices[10 * rank + step].step, step) << rank;
    }
  }
}

// Tenths of a percent in the summary's lines of kinds (those before the hottest kernels).
std::vector<int> SharesIn(const std::string& text) {
  std::vector<int> shares;
  std::istringstream lines(text.substr(0, text.find("the hottest")));
  std::string line;
  while (std::getline(lines, line)) {
    size_t percent = line.find(" %");
    if (percent == std::string::npos) continue;
    size_t begin = line.rfind(' ', percent - 1) + 1;
    std::string number = line.substr(begin, percent - begin);
    size_t point = number.find('.');
    shares.push_back(std::stoi(number.substr(0, point)) * 10 + std::stoi(number.substr(point + 1)));
  }
  return shares;
}

TEST(ProfileTextTest, PercentagesSumToAHundred) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    auto draw = [&] { return std::pow(10.0, static_cast<double>(random() % 900) / 100 - 6); };
    StepProfile p;
    p.steps = 1 + random() % 9;
    p.threads = 1 + random() % 4;
    for (const char* kind : {"matmul", "attention", "other", "boxing", "convolution"})
      if (random() % 4) p.kernels[kind] = draw();
    p.waiting = draw();
    p.runtime = draw();
    p.wall = SumOf(p) / p.threads;
    std::vector<int> shares = SharesIn(ToText(p, "train"));
    ASSERT_EQ(shares.size(), 6u + p.kernels.count("convolution")) << "seed " << seed;
    ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), 0), 1000) << "seed " << seed << "\n"
                                                                      << ToText(p, "train");
    double waiting = 1000 * p.waiting / SumOf(p);
    ASSERT_NEAR(shares[shares.size() - 2], waiting, 1) << "seed " << seed;
  }
}

TEST(ProfileTextTest, FitsOneScreenAndSpeaksOfTheSession) {
  SmallGpt small;
  GptProgram program(small);
  Session train = program.MakeTrain();
  EXPECT_EQ(train.ProfileText(), "no step of session train has ended\n");
  train.Run(program.MakeFeeds(0)).Wait();
  EXPECT_EQ(
      train.ProfileText(),
      "of session train only the first step has ended, which is not counted: libraries warm up in it\n");
  for (int step = 1; step < 3; ++step) train.Run(program.MakeFeeds(step)).Wait();
  EXPECT_NE(train.ProfileText().find("on average of 2, over 1 thread"), std::string::npos);
  Session other = program.MakeTrain();
  for (int step = 0; step < 3; ++step) other.Run(program.MakeFeeds(step)).Wait();
  other.Close();
  std::string text = other.ProfileText();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24) << text;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) EXPECT_LE(line.size(), 110u) << line;
  for (const char* word :
       {"a step of train: ", "on average of 2 (without the first, in which libraries warm up), over 1 thread",
        "matmul", "attention", "other kernels", "boxing", "waiting", "runtime", "gpt_model.cc:", "GFLOP/s"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }
}

TraceRecord Act(int rank, int actor, int64_t start, int64_t end) {
  TraceRecord record;
  record.rank = rank;
  record.actor = actor;
  record.start = start;
  record.end = end;
  return record;
}

// Acts under way together take further rows, which come right behind the stream's first.
TEST(TraceRows, AreInTheOrderOfStreamsAndTheirFurtherRowsBesideThem) {
  std::vector<plan::Plan> plans;
  TraceBuffer buffer(100);
  for (int rank : {0, 1}) {
    PlanBuilder b("train", rank, 2, 1);
    for (const char* name : {"feed", "product", "sum a", "sum b", "copy"})
      b.Actor(b.plan().actor_size(), name, 1);
    b.Stream("compute", {1});
    b.Stream("link", {2, 3});
    b.Stream("copies", {4});
    plans.push_back(b.plan());
    buffer.Add(Act(rank, 4, 1, 2));
    buffer.Add(Act(rank, 0, 3, 5));
    buffer.Add(Act(rank, 2, 10, 50));
    buffer.Add(Act(rank, 3, 20, 60));  // meanwhile
    buffer.Add(Act(rank, 1, 30, 40));
  }
  const std::string path = Cat(testing::TempDir(), "/trace_rows.", getpid(), ".json");
  TraceFile file(path);
  EXPECT_EQ(file.Add(plans, {buffer}, TickScale({0, 0}, {1000, 1000})), 0);

  std::ifstream in(path);
  std::map<std::pair<int, int>, std::string> names;  // by rank and row
  std::map<std::pair<int, int>, int> places;
  const std::regex name("\"thread_name\",\"pid\":(\\d+),\"tid\":(\\d+),\"args\":\\{\"name\":\"([^\"]*)\"");
  const std::regex place(
      "\"thread_sort_index\",\"pid\":(\\d+),\"tid\":(\\d+),\"args\":\\{\"sort_index\":(\\d+)");
  std::smatch found;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_search(line, found, name)) names[{std::stoi(found[1]), std::stoi(found[2])}] = found[3];
    if (std::regex_search(line, found, place))
      places[{std::stoi(found[1]), std::stoi(found[2])}] = std::stoi(found[3]);
  }
  std::remove(path.c_str());
  for (int rank : {0, 1}) {
    std::map<int, std::string> shown;
    int rows = 0;
    for (const auto& [row, text] : names) {
      if (row.first != rank) continue;
      ++rows;
      ASSERT_EQ(places.count(row), 1u) << text;
      EXPECT_TRUE(shown.emplace(places[row], text).second)
          << text << " shares its place with " << shown[places[row]];
    }
    std::vector<std::string> in_order;
    for (const auto& [at, text] : shown) in_order.push_back(text);
    EXPECT_EQ(in_order,
              (std::vector<std::string>{"compute", "link", "link 2", "copies", "feeds and fetches"}));
    EXPECT_EQ(rows, 5);
  }
}

}  // namespace
}  // namespace oneflow_like
