#include "oneflow_like/program/program.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <utility>

#include "oneflow_like/checkpoint/source.h"
#include "oneflow_like/job/source_check.h"
#include "oneflow_like/job/together.h"
#include "oneflow_like/program/auto_mesh.h"
#include "oneflow_like/program/plan_file.h"
#include "oneflow_like/program/resumed.h"

DECLARE_string(zero_axis);

namespace oneflow_like {
namespace {

// In checkpoints.
const char *const kDataState = "data_position", *const kContentsState = "data",
                  *const kRateState = "learning_rate";

int64_t PositionOf(const std::string& checkpoint, const std::string& text) {
  int64_t position = -1;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, position);
  if (error != std::errc() || rest != end || position < 0)
    Fail(checkpoint, ": its state '", kDataState, "' is '", text, "', not a number of samples");
  return position;
}

RateSchedule RateOf(const Program& program) { return {FLAGS_lr, program.train.lr_schedule}; }

// What is said of a run that goes on: what is another than in the run that was saved.
std::vector<std::string> ChangesSince(const std::map<std::string, std::string>& state, const Program& program,
                                      int64_t step, int64_t position) {
  auto text = [&](const char* name) {
    const auto found = state.find(name);
    return found == state.end() ? std::string() : found->second;  // of an older build
  };
  std::vector<std::string> changes;
  DataContents contents;
  if (program.samples && Parse(text(kContentsState), &contents))
    changes.push_back(ChangeOfData(contents, ContentsOf(*program.samples), position));
  RateSchedule rate;
  if (Parse(text(kRateState), &rate)) changes.push_back(ChangeOfRate(rate, RateOf(program), step));
  std::erase(changes, "");
  return changes;
}

// Throws Error, on all processes, where --save has checkpoints that are not those which the run goes on from,
// or later ones. `newest`: where it begins; `saved`: the newest in --save.
void CheckSaveFolder(Job* job, const std::string& resume, const std::string& newest,
                     const std::string& saved) {
  if (saved.empty()) return;
  Together(job, "--save is free", [&] {
    if (newest.empty() ||
        !std::filesystem::equivalent(std::filesystem::weakly_canonical(newest).parent_path(), FLAGS_save))
      Fail("--save=", FLAGS_save,
           ": there are checkpoints already; go on from them with --resume=", FLAGS_save,
           ", or save in another folder");
    if (!std::filesystem::equivalent(newest, saved))
      Fail("--resume=", resume, ": --save=", FLAGS_save, " has later checkpoints, up to ", saved,
           "; remove them, or save in another folder");
    return "";
  });
}

// Begins as --resume, --load and the program ask. With --restarts what is in --save already
// overrides them. Returns the number of the first sample that has not been trained on.
int64_t Begin(const Launcher& launcher, Model& model, const Program& program) {
  std::vector<std::string> passed_over;
  const std::string saved = FLAGS_save.empty() ? "" : NewestCheckpoint(model, FLAGS_save, &passed_over);
  const bool again = launcher.restarted() && !saved.empty();
  const std::string resume = again ? FLAGS_save : FLAGS_resume;
  const std::string newest = resume.empty()         ? ""
                             : resume == FLAGS_save ? saved
                                                    : NewestCheckpoint(model, resume, &passed_over);
  for (const std::string& sentence : passed_over) launcher.Print("passed over: %s\n", sentence.c_str());
  CheckSaveFolder(program.model.job.get(), resume, newest, saved);
  if (!newest.empty()) {
    const Loaded loaded = Load(model, resume);
    launcher.Print("going on from %s\n", loaded.path.c_str());
    if (!loaded.left_alone.empty())
      launcher.Print("averages of weights begin with the weights of step %ld: the saved run kept none\n",
                     static_cast<long>(model.next_step()));
    if (!loaded.dropped.empty())
      launcher.Print("averages of weights that the saved run kept are dropped: --average continues them\n");
    const auto data = loaded.state.find(kDataState);
    const int64_t position =
        data == loaded.state.end() ? model.next_step() * FLAGS_batch : PositionOf(loaded.path, data->second);
    for (const std::string& change : ChangesSince(loaded.state, program, model.next_step(), position))
      launcher.Print("%s\n", change.c_str());
    return position;
  }
  if (!resume.empty()) launcher.Print("%s: no checkpoint yet, a fresh start\n", resume.c_str());
  if (FLAGS_load.ends_with(".safetensors")) {
    ConvertedSource weights(std::make_shared<FileSource>(FLAGS_load), {DType::kFloat32, true});
    LoadWeights(model, weights, {.partial = FLAGS_load_partial});
    launcher.Print("weights of %s\n", FLAGS_load.c_str());
  } else if (!FLAGS_load.empty()) {
    const Loaded loaded = Load(model, FLAGS_load, {.weights_only = true, .partial = FLAGS_load_partial});
    launcher.Print("weights of %s%s\n", loaded.path.c_str(),
                   loaded.left_alone.empty()
                       ? ""
                       : Cat(", without ", loaded.left_alone.size(), " of the model's").c_str());
  }
  if (program.begin) program.begin(model);
  return 0;
}

// What the loop keeps in checkpoints beside the program's own.
std::map<std::string, std::string> StateOf(const Program& program, const DataPipeline& data,
                                           const DataContents& contents) {
  std::map<std::string, std::string> state = program.state;
  state[kDataState] = std::to_string(data.position());
  state[kContentsState] = ToText(contents);
  state[kRateState] = ToText(RateOf(program));
  return state;
}

// Returns where the training was saved when it was interrupted; empty: it has made all its steps.
std::string RunTraining(const Launcher& launcher, const Program& program, Model& model, Session& train,
                        DataPipeline& data, Metrics& metrics, Interruptions* interruptions) {
  ProgressLine progress(launcher);
  std::deque<StepResult> in_flight;
  std::optional<SaveHandle> saved;
  float loss = 0;
  const int64_t first = model.next_step();
  const DataContents contents = FLAGS_save.empty() ? DataContents() : ContentsOf(*program.samples);
  auto finish_one = [&] {
    loss = in_flight.front().Scalar("loss");  // throws, naming the step, when it is NaN
    const int64_t step = in_flight.front().step();
    metrics.Step(in_flight.front());
    in_flight.pop_front();
    char line[120];
    std::snprintf(line, sizeof line, "step %lld/%lld  loss %.4f  %.0f %s/s  %s left",
                  static_cast<long long>(step + 1), static_cast<long long>(FLAGS_steps),
                  static_cast<double>(loss), metrics.rate(), program.unit.c_str(),
                  MinutesAndSeconds(metrics.step_seconds() * (FLAGS_steps - step - 1)).c_str());
    progress.Update(line);
  };
  bool stop = false;
  for (int64_t step = first; step < FLAGS_steps && !stop; ++step) {
    in_flight.push_back(train.Run(data));
    stop = interruptions && interruptions->Agreed();
    const bool save = !FLAGS_save.empty() && (stop || step + 1 == FLAGS_steps ||
                                              (FLAGS_save_every > 0 && (step + 1) % FLAGS_save_every == 0));
    // Steps are in the log before they are saved, so that a kill leaves no gap.
    while (!in_flight.empty() && (save || in_flight.size() >= static_cast<size_t>(kStepsInFlight)))
      finish_one();
    if (save)
      saved = Save(model, FLAGS_save,
                   {.state = StateOf(program, data, contents),
                    .files = program.files,
                    .keep = static_cast<int>(FLAGS_keep),
                    .local = FLAGS_local});
  }
  while (!in_flight.empty()) finish_one();
  if (saved) saved->Wait();
  progress.End();
  if (!stop && interruptions && first < FLAGS_steps)
    stop = interruptions->Agreed();  // while the last was saved
  if (stop) return saved->path();
  const int64_t steps = std::max<int64_t>(0, FLAGS_steps - first);
  if (steps == 0) {
    launcher.Print("all of the %lld steps had been made before\n", static_cast<long long>(FLAGS_steps));
    return "";
  }
  launcher.Print("%lld steps in %s, last loss %.4f, %.0f %s/s\n", static_cast<long long>(steps),
                 MinutesAndSeconds(metrics.seconds()).c_str(), static_cast<double>(loss),
                 static_cast<double>(steps * FLAGS_batch * program.per_sample) / metrics.seconds(),
                 program.unit.c_str());
  return "";
}

// What `make` gives; an Error that it throws names the plan that was given.
template <typename Make>
auto OfPlan(const std::optional<GivenPlan>& given, const Make& make) {
  try {
    return make();
  } catch (const WriteError&) {
    throw;
  } catch (const Error& error) {
    if (!given) throw;
    Fail(given->where, ": ", error.what());
  }
}

}  // namespace

// What the files of the processes must have alike.
void RequireSameFiles(const Program& program) {
  if (!FLAGS_compare_data) return;
  Job* job = program.model.job.get();
  if (job && program.samples) RequireSameData(job, "the data to learn from", FactsOf(*program.samples));
  if (job && program.held_out) RequireSameData(job, "the data held out", FactsOf(*program.held_out));
}

// With --restarts what is in --save already overrides --resume.
std::string ResumeFrom(const Launcher& launcher) {
  const bool again = launcher.restarted() && !Checkpoints(FLAGS_save).empty();
  return again ? FLAGS_save : FLAGS_resume;
}

bool GoesOn(const Launcher& launcher) {
  const std::string resume = ResumeFrom(launcher);
  return !resume.empty() && !NewestCheckpoint(resume).empty();
}

std::string BeginningOf(const Launcher& launcher) {
  return GoesOn(launcher) ? NewestCheckpoint(ResumeFrom(launcher)) : FLAGS_load;
}

void RequireBeginning(const Launcher& launcher) {
  if (std::error_code error; !FLAGS_load.empty() && !std::filesystem::exists(FLAGS_load, error))
    Fail("--load=", FLAGS_load, ": there is nothing of that name");
  if (!launcher.main_process() || launcher.dry_run() || FLAGS_simulate) return;
  if (FLAGS_local) return;  // loading finds the newest that all hosts have
  if (GoesOn(launcher)) return RequireCheckpoint(ResumeFrom(launcher));
  if (FLAGS_load.ends_with(".safetensors")) {
    const FileSource weights(FLAGS_load);
  } else if (!FLAGS_load.empty()) {
    RequireCheckpoint(FLAGS_load);
  }
}

void RequireFolder(const Launcher& launcher, const std::string& flag, const std::string& value,
                   const std::string& folder) {
  const bool everywhere = FLAGS_local && flag == "save";  // each host has its own
  if (!(launcher.main_process() || everywhere) || launcher.dry_run() || FLAGS_simulate) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) Fail("--", flag, "=", value, ": folder ", folder, " cannot be made: ", error.message());
  if (access(folder.c_str(), W_OK) != 0)
    Fail("--", flag, "=", value, ": nothing can be written there: ", std::strerror(errno));
}

void RequireFolders(const Launcher& launcher) {
  if (!FLAGS_save.empty()) RequireFolder(launcher, "save", FLAGS_save, FLAGS_save);
  if (!FLAGS_tensorboard.empty())
    RequireFolder(launcher, "tensorboard", FLAGS_tensorboard, FLAGS_tensorboard);
}

int TrainProgram(const Launcher& launcher, const Mesh& mesh_of_flags, const Program& of_flags) {
  RequireBeginning(launcher);
  RequireSameFiles(of_flags);
  Mesh mesh = mesh_of_flags;
  Program program = of_flags;
  const std::optional<GivenPlan> given = PlanWithoutSearch(launcher, program.model.job.get());
  std::optional<PlanCandidate> plan;
  if (given)
    static_cast<Decisions&>(plan.emplace()) = given->text.decisions;
  else
    plan = PlanOfAutoMesh(launcher, program);
  if (plan) {
    mesh = plan->mesh;
    program.model.auto_cuts = AutoCuts::kNone;
    plan->Set(&program.model, &program.train);
    if (plan->zero > 0) program.model.zero.axis = FLAGS_zero_axis;
    program.model.plan = *plan;
  }
  Model model(mesh, program.model);
  const Tensor loss = OfPlan(given, [&] {
    if (plan && program.chosen) program.chosen(mesh, plan->sequence_parallel);
    return program.loss(model);
  });
  if (given) RequirePlanFits(launcher, *given, model);
  Session train = OfPlan(given, [&] { return Train(loss, program.optimizer, program.train); });
  SavedPlan decided = train.Plan();
  decided.decisions.sequence_parallel = plan ? plan->sequence_parallel : CutsSequences();
  if (plan || SearchesForPlan()) program.state[kPlanState] = PlanState(ToText(decided));
  SavePlan(launcher, ToText(decided));
  launcher.Print("%s", model.CutsText().c_str());
  if (launcher.explain()) launcher.Print("%s", model.CutReasons().c_str());
  if (launcher.explain()) launcher.Print("%s", train.ExplainText().c_str());
  if (launcher.dry_run()) {
    launcher.Print("%s", train.SummaryText().c_str());
    return 0;
  }
  if (FLAGS_simulate) {
    PrintSimulation(launcher, train, static_cast<double>(FLAGS_batch * program.per_sample), program.unit);
    return 0;
  }
  launcher.Print("%s, on %s\n", program.about.c_str(), mesh.str().c_str());
  std::optional<Interruptions> interruptions;
  if (!FLAGS_save.empty()) interruptions.emplace(launcher);
  const int64_t start = Begin(launcher, model, program);
  std::string saved;
  std::optional<Metrics> metrics;
  {
    DataPipeline rows(program.samples, {.batch = FLAGS_batch,
                                        .seed = program.model.seed,
                                        .needs = train.Needs(),
                                        .start = start,
                                        .threads = launcher.data_threads(),
                                        .compare = FLAGS_compare_data});
    metrics.emplace(train, MetricsOptions{.json = FLAGS_log_json,
                                          .tensorboard = FLAGS_tensorboard,
                                          .unit = program.unit,
                                          .per_step = static_cast<double>(FLAGS_batch * program.per_sample),
                                          .peak_flops = FLAGS_peak_flops});
    saved = RunTraining(launcher, program, model, train, rows, *metrics,
                        interruptions ? &*interruptions : nullptr);
  }
  if (!saved.empty()) {
    launcher.Print("interrupted: the run is saved in %s, --resume=%s goes on from there; exit code %d\n",
                   saved.c_str(), FLAGS_save.c_str(), kInterrupted);
    train.Close();
    return kInterrupted;
  }
  interruptions.reset();  // what follows can be done again
  if (program.end) program.end(model, *metrics);
  launcher.Print("%s", train.ProfileText().c_str());
  train.Close();  // a trace that cannot be written is an error here
  return 0;
}

Dims BatchOf(const Dims& field) {
  Dims shape = {FLAGS_batch};
  for (int64_t extent : field) shape.push_back(extent);
  return shape;
}

void ForEachHeldOut(const Launcher& launcher, Session& session, std::shared_ptr<const SampleSource> source,
                    const std::map<std::string, double>& fill,
                    const std::function<void(const StepResult& result, int64_t rows)>& see) {
  DataPipeline data(std::move(source), {.batch = FLAGS_batch,
                                        .shuffle = false,
                                        .needs = session.Needs(),
                                        .epochs = 1,
                                        .fill = fill,
                                        .threads = launcher.data_threads(),
                                        .compare = FLAGS_compare_data});
  for (int64_t batch = 0; batch < FLAGS_eval_batches && data.More(); ++batch) {
    const StepResult result = session.Run(data);
    see(result, data.rows());
  }
}

}  // namespace oneflow_like
