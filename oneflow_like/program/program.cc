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

#include "core/formatted.h"
#include "oneflow_like/checkpoint/index.h"
#include "oneflow_like/checkpoint/source.h"
#include "oneflow_like/job/source_check.h"
#include "oneflow_like/job/together.h"
#include "oneflow_like/program/auto_mesh.h"
#include "oneflow_like/program/plan_file.h"
#include "oneflow_like/program/resumed.h"
#include "oneflow_like/session/agreement_text.h"
#include "oneflow_like/session/asked.h"
#include "oneflow_like/session/plain_cores.h"

namespace oneflow_like {
namespace {

// In checkpoints.
const char *const kDataState = "data_position", *const kContentsState = "data",
                  *const kRateState = "learning_rate", *const kFlagsState = "kept_flags";

int64_t PositionOf(const std::string& checkpoint, const std::string& text) {
  int64_t position = -1;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, position);
  if (error != std::errc() || rest != end || position < 0)
    Fail(checkpoint, ": its state '", kDataState, "' is '", text, "', not a number of samples");
  return position;
}

RateSchedule RateOf(const Program& program) { return {training_flags().lr, program.train.lr_schedule}; }

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
  for (const std::string& change : ChangesOfFlags(text(kFlagsState), FlagsWith(kKept)))
    changes.push_back(change);
  std::erase(changes, "");
  return changes;
}

// Throws Error, on all processes, where --save has checkpoints that are not those which the run goes on from,
// or later ones. `newest`: where it begins; `saved`: the newest in --save.
void CheckSaveFolder(Job* job, const std::string& resume, const std::string& newest,
                     const std::string& saved) {
  if (saved.empty()) return;
  Together(job, "--save is free", [&] {
    if (newest.empty() || !std::filesystem::equivalent(
                              std::filesystem::weakly_canonical(newest).parent_path(), training_flags().save))
      Fail("--save=", training_flags().save,
           ": there are checkpoints already; go on from them with --resume=", training_flags().save,
           ", or save in another folder");
    if (!std::filesystem::equivalent(newest, saved))
      Fail("--resume=", resume, ": --save=", training_flags().save, " has later checkpoints, up to ", saved,
           "; remove them, or save in another folder");
    return "";
  });
}

// Loads the run. Throws Error where a flag differs that cannot; any other Error also names the kept flags
// that differ from those of the saved run.
Loaded LoadRun(Model& model, const std::string& resume, const std::string& newest) {
  const auto changes = [&](FlagTraits trait) {
    const auto state = CheckpointIndex::Read(newest).state;
    const auto saved = state.find(kFlagsState);
    return saved == state.end() ? std::vector<std::string>()
                                : ChangesOfFlags(saved->second, FlagsWith(trait));
  };
  if (const std::vector<std::string> fixed = changes(kFixed); !fixed.empty())
    Fail(fixed[0], "; a run keeps it: repeat the value, or begin another run with --load=", resume);
  try {
    return Load(model, resume);
  } catch (const Error& error) {
    std::string kept;
    for (const std::string& change : changes(kKept)) kept += change + "; ";
    Fail(kept, error.what());
  }
}

// Returns work(), which begins a run: its Error is a mistake in the command. Where processes are started
// again, the run has begun before.
template <typename Work>
auto BeforeTheFirstStep(const Launcher& launcher, const Work& work) {
  try {
    return work();
  } catch (const WriteError&) {
    throw;
  } catch (const Error& error) {
    if (launcher.restarted()) throw;
    throw UsageError(error.what());
  }
}

struct Beginning {
  int64_t sample = 0;  // the first one that has not been trained on
  bool resumed = false;
  std::vector<std::string> said;  // sentences about it
};

// A checkpoint that is named beside others, and is not there, is a mistake.
void RequireNoOthers(Model& model, const std::string& resume) {
  const std::filesystem::path named(resume);
  if (!named.filename().string().starts_with("step-")) return;
  std::vector<std::string> passed_over;
  const std::string newest = NewestCheckpoint(model, named.parent_path().string(), &passed_over);
  if (!newest.empty())
    throw UsageError(
        Cat("--resume=", resume, ": there is no such checkpoint; the newest beside it is ", newest));
}

// Begins as --resume and --load ask. With --restarts what is in --save already overrides them.
Beginning Begin(const Launcher& launcher, Model& model, const Program& program) {
  std::vector<std::string> passed_over;
  Beginning begin;
  const auto say = [&](const auto&... words) { begin.said.push_back(Cat(words...)); };
  const std::string saved =
      training_flags().save.empty() ? "" : NewestCheckpoint(model, training_flags().save, &passed_over);
  const bool again = launcher.restarted() && !saved.empty();
  const std::string resume = again ? training_flags().save : training_flags().resume;
  const std::string newest = resume.empty() ? ""
                             : resume == training_flags().save
                                 ? saved
                                 : NewestCheckpoint(model, resume, &passed_over);
  for (const std::string& sentence : passed_over) say("passed over: ", sentence);
  CheckSaveFolder(program.model.job.get(), resume, newest, saved);
  if (!newest.empty()) {
    const Loaded loaded = LoadRun(model, resume, newest);
    begin.resumed = true;
    say("going on from ", loaded.path);
    if (!loaded.left_alone.empty())
      say("averages of weights begin with the weights of step ", model.next_step(),
          ": the saved run kept none");
    if (!loaded.dropped.empty())
      say("averages of weights that the saved run kept are dropped: --average continues them");
    const auto data = loaded.state.find(kDataState);
    begin.sample = data == loaded.state.end() ? model.next_step() * training_flags().batch
                                              : PositionOf(loaded.path, data->second);
    for (const std::string& change : ChangesSince(loaded.state, program, model.next_step(), begin.sample))
      say(change);
    return begin;
  }
  if (!resume.empty()) {
    RequireNoOthers(model, resume);
    say(resume, ": no checkpoint yet, a fresh start");
  }
  if (training_flags().load.ends_with(".safetensors")) {
    ConvertedSource weights(std::make_shared<FileSource>(training_flags().load), {DType::kFloat32, true});
    LoadWeights(model, weights, {.partial = training_flags().load_partial});
    say("weights of ", training_flags().load);
  } else if (!training_flags().load.empty()) {
    const Loaded loaded =
        Load(model, training_flags().load, {.weights_only = true, .partial = training_flags().load_partial});
    say("weights of ", loaded.path,
        loaded.left_alone.empty() ? "" : Cat(", without ", loaded.left_alone.size(), " of the model's"));
  }
  return begin;
}

// What the loop keeps in checkpoints beside the program's own.
std::map<std::string, std::string> StateOf(const Program& program, const DataPipeline& data,
                                           const DataContents& contents) {
  std::map<std::string, std::string> state = program.state;
  state[kDataState] = std::to_string(data.position());
  state[kContentsState] = ToText(contents);
  state[kRateState] = ToText(RateOf(program));
  state[kFlagsState] = ToText(FlagsWith(kKept));
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
  const DataContents contents = training_flags().save.empty() ? DataContents() : ContentsOf(*program.samples);
  auto finish_one = [&] {
    loss = in_flight.front().Scalar("loss");  // throws, naming the step, when it is NaN
    const int64_t step = in_flight.front().step();
    metrics.Step(in_flight.front());
    in_flight.pop_front();
    progress.Update(
        Formatted("step %lld/%lld  loss %.4f  %.0f %s/s  %s left", static_cast<long long>(step + 1),
                  static_cast<long long>(training_flags().steps), static_cast<double>(loss), metrics.rate(),
                  program.unit.c_str(),
                  MinutesAndSeconds(metrics.step_seconds() * (training_flags().steps - step - 1)).c_str()));
  };
  bool stop = false;
  for (int64_t step = first; step < training_flags().steps && !stop; ++step) {
    in_flight.push_back(train.Run(data));
    stop = interruptions && interruptions->Agreed();
    const bool save = !training_flags().save.empty() &&
                      (stop || step + 1 == training_flags().steps ||
                       (training_flags().save_every > 0 && (step + 1) % training_flags().save_every == 0));
    // Steps are in the log before they are saved, so that a kill leaves no gap.
    while (!in_flight.empty() && (save || in_flight.size() >= static_cast<size_t>(kStepsInFlight)))
      finish_one();
    if (save)
      saved = Save(model, training_flags().save,
                   {.state = StateOf(program, data, contents),
                    .files = program.files,
                    .keep = static_cast<int>(training_flags().keep),
                    .local = training_flags().local});
  }
  while (!in_flight.empty()) finish_one();
  if (saved) saved->Wait();
  progress.End();
  if (!stop && interruptions && first < training_flags().steps)
    stop = interruptions->Agreed();  // while the last was saved
  if (stop) return saved->path();
  const int64_t steps = std::max<int64_t>(0, training_flags().steps - first);
  if (steps == 0) {
    launcher.Print("all of the %lld steps had been made before\n",
                   static_cast<long long>(training_flags().steps));
    return "";
  }
  launcher.Print("%lld steps in %s, last loss %.4f, %.0f %s/s\n", static_cast<long long>(steps),
                 MinutesAndSeconds(metrics.seconds()).c_str(), static_cast<double>(loss),
                 static_cast<double>(steps * training_flags().batch * program.per_sample) / metrics.seconds(),
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
  if (!training_flags().compare_data) return;
  Job* job = program.model.job.get();
  if (job && program.samples) RequireSameData(job, "the data to learn from", FactsOf(*program.samples));
  if (job && program.held_out) RequireSameData(job, "the data held out", FactsOf(*program.held_out));
}

// With --restarts what is in --save already overrides --resume.
std::string ResumeFrom(const Launcher& launcher) {
  const bool again = launcher.restarted() && !Checkpoints(training_flags().save).empty();
  return again ? training_flags().save : training_flags().resume;
}

bool GoesOn(const Launcher& launcher) {
  const std::string resume = ResumeFrom(launcher);
  return !resume.empty() && !NewestCheckpoint(resume).empty();
}

std::string BeginningOf(const Launcher& launcher) {
  return GoesOn(launcher) ? NewestCheckpoint(ResumeFrom(launcher)) : training_flags().load;
}

void RequireBeginning(const Launcher& launcher) {
  if (std::error_code error;
      !training_flags().load.empty() && !std::filesystem::exists(training_flags().load, error))
    Fail("--load=", training_flags().load, ": there is nothing of that name");
  if (!launcher.main_process() || launcher.dry_run() || training_flags().simulate) return;
  if (training_flags().local) return;  // loading finds the newest that all hosts have
  if (GoesOn(launcher)) return RequireCheckpoint(ResumeFrom(launcher));
  if (training_flags().load.ends_with(".safetensors")) {
    const FileSource weights(training_flags().load);
  } else if (!training_flags().load.empty()) {
    RequireCheckpoint(training_flags().load);
  }
}

int ProgramMain(int argc, char** argv, const std::string& usage, const std::vector<FlagGroup>& groups,
                const std::function<int(const Launcher& launcher)>& body) {
  std::vector<FlagGroup> all = groups;
  for (FlagGroup& group : TrainingGroups()) all.push_back(std::move(group));
  Launcher launcher(&argc, &argv, usage, kTrainingMesh, TrainingProgram, all);
  return launcher.Main([&] { return body(launcher); });
}

void RequireFolder(const Launcher& launcher, const std::string& flag, const std::string& value,
                   const std::string& folder) {
  const bool everywhere = training_flags().local && flag == "save";  // each host has its own
  if (!(launcher.main_process() || everywhere) || launcher.dry_run() || training_flags().simulate) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) Fail("--", flag, "=", value, ": folder ", folder, " cannot be made: ", error.message());
  if (access(folder.c_str(), W_OK) != 0)
    Fail("--", flag, "=", value, ": nothing can be written there: ", std::strerror(errno));
}

void RequireFolders(const Launcher& launcher) {
  if (!training_flags().save.empty())
    RequireFolder(launcher, "save", training_flags().save, training_flags().save);
  if (!training_flags().tensorboard.empty())
    RequireFolder(launcher, "tensorboard", training_flags().tensorboard, training_flags().tensorboard);
}

namespace {

// Sets the options of a program to what a plan says.
void UsePlan(const Launcher& launcher, const PlanCandidate& plan, Program* program) {
  const std::string reduce_axis = program->train.reduce_axis;
  program->model.auto_cuts = AutoCuts::kNone;
  program->train = OnMesh(program->train, plan.mesh);
  if (program->train.reduce_axis != reduce_axis)
    launcher.Print("the mesh of the plan, %s, has no %s of --reduce_axis: gradients are summed in fp32\n",
                   plan.mesh.str().c_str(), reduce_axis.c_str());
  plan.Set(&program->model, &program->train);
  program->model.plan = plan;
  program->model.plan->logits_tile = program->train.logits_tile.value_or(0);
}

// The plan of a training, for --save_plan and for checkpoints.
std::string PlanText(const Session& train, bool sequence_parallel) {
  SavedPlan decided = train.Plan();
  decided.decisions.sequence_parallel = sequence_parallel;
  decided.decisions.context_parallel = IsOn("context_parallel");
  decided.decisions.ulysses = IsOn("ulysses");
  return ToText(decided);
}

}  // namespace

int TrainProgram(const Launcher& launcher, const Mesh& mesh_of_flags, const Program& of_flags) {
  RequireBeginning(launcher);
  RequireSameFiles(of_flags);
  Program program = of_flags;
  const std::optional<GivenPlan> given = PlanWithoutSearch(launcher, program.model.job.get());
  std::optional<PlanCandidate> plan;
  if (given)
    static_cast<Decisions&>(plan.emplace()) = given->text.decisions;
  else
    plan = PlanOfAutoMesh(launcher, program);
  const Mesh mesh = plan ? plan->mesh : mesh_of_flags;
  if (plan) {
    UsePlan(launcher, *plan, &program);
  } else {
    RequireAxesOfFlags(mesh);
    // A pipeline that lost processes have made shorter goes on (--elastic).
    if (!launcher.restarted()) RequireStagesFor(mesh.SizeAlong(mesh.FindAxes("pp")));
  }
  program.train.parallel.batch = BatchAxis(mesh);
  Model model(mesh, program.model);
  const Tensor loss = OfPlan(given, [&] {
    if (plan && program.chosen) program.chosen(mesh, plan->sequence_parallel);
    return program.loss(model);
  });
  if (given) {
    RequirePlanFits(*given, model);
    TellOtherMachine(launcher, *given, MachineText(MachineOf(*model.impl())));
    TellOtherRate(launcher, *given, RoundsToTf32(*model.impl(), program.train.dtype));
  }
  Session train = OfPlan(given, [&] { return Train(loss, program.optimizer, program.train); });
  const std::string text = PlanText(train, plan ? plan->sequence_parallel : IsOn("sequence_parallel"));
  if (plan || SearchesForPlan()) program.state[kPlanState] = PlanState(text);
  SavePlan(launcher, text);
  for (const std::string& sentence : train.AxisWarnings()) launcher.Print("warning: %s\n", sentence.c_str());
  if (const std::string unused = UnusedTf32(train); !unused.empty())
    launcher.Print("warning: %s\n", unused.c_str());
  launcher.Print("%s", model.CutsText().c_str());
  if (launcher.explain()) launcher.Print("%s", model.CutReasons().c_str());
  if (launcher.explain()) launcher.Print("%s", train.ExplainText().c_str());
  if (launcher.dry_run()) {
    launcher.Print("%s", train.SummaryText().c_str());
    return 0;
  }
  if (training_flags().simulate) {
    PrintSimulation(launcher, train, static_cast<double>(training_flags().batch * program.per_sample),
                    program.unit);
    return 0;
  }
  std::optional<Interruptions> interruptions;
  if (!training_flags().save.empty()) interruptions.emplace(launcher);
  const Beginning begin = BeforeTheFirstStep(launcher, [&] { return Begin(launcher, model, program); });
  launcher.Print("%s, on %s\n", program.about.c_str(), mesh.str().c_str());
  for (const std::string& sentence : begin.said) launcher.Print("%s\n", sentence.c_str());
  if (program.begin && !begin.resumed) BeforeTheFirstStep(launcher, [&] { program.begin(model); });
  std::string saved;
  std::optional<Metrics> metrics;
  {
    DataPipeline rows(program.samples, {.batch = training_flags().batch,
                                        .seed = program.model.seed,
                                        .needs = train.Needs(),
                                        .start = begin.sample,
                                        .threads = launcher.data_threads(mesh),
                                        .compare = training_flags().compare_data});
    metrics.emplace(
        train, MetricsOptions{.json = training_flags().log_json,
                              .tensorboard = training_flags().tensorboard,
                              .unit = program.unit,
                              .per_step = static_cast<double>(training_flags().batch * program.per_sample),
                              .peak_flops = training_flags().peak_flops});
    saved = RunTraining(launcher, program, model, train, rows, *metrics,
                        interruptions ? &*interruptions : nullptr);
  }
  if (!saved.empty()) {
    launcher.Print("interrupted: the run is saved in %s, --resume=%s goes on from there; exit code %d\n",
                   saved.c_str(), training_flags().save.c_str(), kInterrupted);
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
  Dims shape = {training_flags().batch};
  for (int64_t extent : field) shape.push_back(extent);
  return shape;
}

void ForEachHeldOut(const Launcher& launcher, Session& session, std::shared_ptr<const SampleSource> source,
                    const std::map<std::string, double>& fill,
                    const std::function<void(const StepResult& result, int64_t rows)>& see) {
  DataPipeline data(std::move(source), {.batch = training_flags().batch,
                                        .shuffle = false,
                                        .needs = session.Needs(),
                                        .epochs = 1,
                                        .fill = fill,
                                        .threads = launcher.data_threads(),
                                        .compare = training_flags().compare_data});
  for (int64_t batch = 0; batch < training_flags().eval_batches && data.More(); ++batch) {
    const StepResult result = session.Run(data);
    see(result, data.rows());
  }
}

}  // namespace oneflow_like
