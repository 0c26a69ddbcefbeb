#include "oneflow_like/launcher.h"

#include <fcntl.h>
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "actor/net/job/process_job.h"
#include "actor/net/launch/local_launcher.h"
#include "actor/net/rendezvous/interfaces.h"
#include "actor/trace.h"
#include "core/system/exit_codes.h"
#include "core/system/file_check.h"
#include "core/system/host_memory.h"
#include "oneflow_like/build_id.h"
#include "oneflow_like/calibrate.h"
#include "oneflow_like/data/pipeline.h"
#include "oneflow_like/flags.h"
#include "oneflow_like/job/agreement.h"
#include "oneflow_like/job/elastic.h"
#include "oneflow_like/job/stalls.h"
#include "oneflow_like/launch/copies.h"
#include "oneflow_like/launch/help.h"
#include "oneflow_like/launch/launcher_flags.h"
#include "oneflow_like/launch/run_folder.h"
#include "oneflow_like/launch/start_errors.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/model/placement.h"
#include "oneflow_like/report/report.h"

DECLARE_string(log_dir);                  // of glog
DECLARE_int32(v);                         // of glog
DECLARE_bool(timestamp_in_logfile_name);  // of glog

namespace oneflow_like {

namespace {

// The processes of the job have not come together.
struct NotTogether : Error {
  using Error::Error;
};
// One of them was refused before it came, which ends all.
struct RefusedElsewhere : Error {
  using Error::Error;
};

const char *const kTerminalVariable = "ONEFLOW_LIKE_TTY", *const kRestartVariable = "ONEFLOW_LIKE_RESTART";

void MakeFolder(const std::string& what, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) Fail(what, " cannot be made: ", error.message());
}

// Whether the program compiles and runs nothing, so that no run is there to leave anything.
bool OnlyPlans(const ProgramFlags& program) { return launcher_flags().dry_run || program.simulates; }

void CheckFlags(const ProgramFlags& program) {
  for (const FlagGroup& group : LauncherGroups()) CheckFlagRanges(group);
  if (launcher_flags().restarts > 0 && !program.saves)
    Fail("--restarts=", launcher_flags().restarts,
         ": this program saves nothing that it could continue from");
  if (launcher_flags().restarts > 0 && program.save_folder.empty())
    Fail("--restarts=", launcher_flags().restarts,
         " needs --save, the folder that the program continues from");
  if (!launcher_flags().elastic.empty() && launcher_flags().restarts == 0)
    Fail("--elastic=", launcher_flags().elastic,
         " needs --restarts, how often the processes may start again");
  if (!launcher_flags().elastic.empty() && program.chosen_mesh_devices != 0)
    Fail("--elastic=", launcher_flags().elastic, " shrinks an axis that is given, and ", program.chosen_by,
         " chooses them; leave one of the two out");
  if (launcher_flags().stall_seconds != 0)
    CheckRange("--stall_seconds", launcher_flags().stall_seconds, kShortestTimeout, kLongestTimeout);
  if (!launcher_flags().calibrate.empty() && OnlyPlans(program))
    Fail("--calibrate=", launcher_flags().calibrate,
         " measures this machine and does nothing else; leave out ",
         launcher_flags().dry_run ? "--dry_run" : "--simulate");
  ModelOptions options;
  options.threads = launcher_flags().threads;
  options.kernel_threads = launcher_flags().kernel_threads;
  options.memory_budget = MemoryBudget();
  options.check_replicas = launcher_flags().check_replicas;
  CheckModelNumbers("--", options);
  try {
    CheckNetworkDevices(launcher_flags().network);
  } catch (const Error& error) {
    Fail("--network=", launcher_flags().network, ": ", error.what());
  }
}

// A descriptor 0, 1 or 2 that whoever started us has closed leads nowhere from here on. Left closed, the next
// file that is opened would get its number, and with it what the program prints.
void OccupyStandardDescriptors() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);
}

// What is known of the mesh before the program makes it; of one that it chooses, its size.
std::string MeshOfFlags(const ProgramFlags& program, const std::string& otherwise) {
  if (program.chosen_mesh_devices != 0)
    return Cat(launcher_flags().mesh.empty() ? "cpu" : Mesh::Parse(launcher_flags().mesh).kind(),
               ":dp=", program.chosen_mesh_devices);
  return launcher_flags().mesh.empty() ? otherwise : launcher_flags().mesh;
}

}  // namespace

Launcher::Launcher(int* argc, char*** argv, const std::string& usage, const std::string& default_mesh,
                   const std::function<ProgramFlags()>& flags, const std::vector<FlagGroup>& groups)
    : program_(flags ? flags : [] { return ProgramFlags(); }), given_(*argv, *argv + *argc) {
  OccupyStandardDescriptors();
  ReportFileSizeLimit();
  gflags::SetUsageMessage(usage);
  try {
    for (const FlagGroup& group : groups) RegisterFlags(group);
    for (const FlagGroup& group : LauncherGroups()) RegisterFlags(group, TakenName::kLeave);
    PrintHelpOfGroup(given_, usage);
    RefuseMisspelt(given_);
  } catch (const Error& error) {
    const std::string message = Plain(error.what(), given_);
    PrintError(message);
    TellOthers(message);
    exit(kUsageError);
  }
  {
    const FlagErrors errors;
    gflags::ParseCommandLineNonHelpFlags(argc, argv, true);
  }
  PrintHelp(given_[0], usage);
  try {
    if (*argc > 1) Fail("'", (*argv)[1], "' is not a flag; flags start with --, see --help");
    if (!launcher_flags().config.empty()) ReadConfig(launcher_flags().config);
    const std::string config = ConfigText();
    const bool out = !launcher_flags().out.empty() && !OnlyPlans(program_());
    if (out) SendOutputsTo(launcher_flags().out);
    CheckFlags(program_());
    Join(given_, MeshOfFlags(program_(), default_mesh), out ? config : "");
    for (const FlagGroup& group : RegisteredGroups()) CheckFlagRanges(group);
    CheckFiles({}, {});
    if (!launcher_flags().dump_dir.empty())
      MakeFolder("--dump_dir=" + launcher_flags().dump_dir, launcher_flags().dump_dir);
    VLOG(1) << "oneflow_like " << Comparable(ThisBuild()) << ", process " << (job_ ? job_->process() : 0)
            << " of " << (job_ ? job_->processes() : 1);
  } catch (const std::exception& e) {
    const int code = EndWith(e, kUsageError);
    if (stalls_) stalls_->Stop();
    const bool told = job_ != nullptr || dynamic_cast<const NotTogether*>(&e) != nullptr ||
                      dynamic_cast<const RefusedElsewhere*>(&e) != nullptr;
    job_.reset();
    label_.reset();  // relays the line
    if (!told) TellOthers(Plain(e.what(), given_));
    exit(code);
  }
}

Launcher::~Launcher() {
  if (stalls_) stalls_->Stop();  // models may still have it
}

void Launcher::Join(const std::vector<std::string>& argv, const std::string& mesh,
                    const std::string& config) {
  const ProcessIdentity identity = ReadIdentity(std::getenv);
  const bool ours = identity.launcher == "--processes";
  const auto take_folder = [&] {
    if (!config.empty() && !ours)
      folder_ = std::make_unique<RunFolder>(launcher_flags().out, config, VersionText(ThisBuild()));
  };
  if (!launcher_flags().calibrate.empty()) {
    const std::string kind = CheckCalibration(mesh.empty() ? "cpu:dp=1" : mesh);
    CheckFiles({}, {});
    if (kind != "cpu" && (launcher_flags().processes > 1 || !identity.alone()))
      Fail("--calibrate on a mesh of GPUs: one process measures all cards of a host; start one alone");
    if (identity.launcher.empty() && kind == "cpu") exit(CalibrateByTwo(identity, argv));
  }
  // The parent of copies has the folder: restarts do not leave it to others, nor write other flags into it.
  if (identity.alone()) take_folder();
  const ProgramFlags program = program_();
  if (program.simulates) {
    CheckProcesses(launcher_flags().processes, mesh,  // they are simulated, too
                   program.chosen_mesh_devices > 0 ? program.chosen_by : "");
  } else if ((launcher_flags().processes > 1 || launcher_flags().restarts > 0) && !ours) {
    const int code = RunCopies(identity, argv, mesh, program);
    if (folder_ && code == kUsageError) folder_->Withdraw();
    exit(code);
  }
  one_output_ = ours;
  terminal_ = ours ? std::getenv(kTerminalVariable) != nullptr : isatty(STDOUT_FILENO) != 0;
  StartLog(argv[0], identity.process, identity.alone());
  if (identity.process > 0 && !ours && !identity.alone())
    label_ = std::make_unique<LabelledOutput>(identity.process);
  stalls_ =
      std::make_shared<StallWatch>(launcher_flags().stall_seconds, identity.alone() ? -1 : identity.process);
  if (identity.alone()) return;
  JobOptions options;
  options.build = Comparable(ThisBuild());
  options.start_timeout = launcher_flags().start_timeout;
  options.peer_timeout = launcher_flags().peer_timeout;
  options.devices = launcher_flags().network;
  options.shared_memory = launcher_flags().shared_memory;
  try {
    const StallWatch::Doing doing(stalls_.get(), "the start, which waits for all processes to come");
    job_ = JoinJob(identity, options);
    stalls_->SetJob(job_.get());
  } catch (const EndedBeforeStart& error) {
    throw RefusedElsewhere(error.what());
  } catch (const Error& error) {
    throw NotTogether(error.what());
  }
  if (label_)
    job_->SetDirectOutput([label = label_.get()](const std::string& line) { label->WriteDirectly(line); });
  oneflow_like::RequireSameFlags(job_.get(), {{"dry_run", launcher_flags().dry_run ? "true" : "false"},
                                              {"out", launcher_flags().out},
                                              {"trace", launcher_flags().trace},
                                              {"report", launcher_flags().report},
                                              {"calibrate", launcher_flags().calibrate},
                                              {"memory_budget", Cat(MemoryBudget())},
                                              {"peer_timeout", Cat(launcher_flags().peer_timeout)}});
  if (main_process()) take_folder();
}

void Launcher::StartLog(const std::string& program, int process, bool alone) {
  static bool started = false;
  if (!started) {
    static std::string name;
    name = program;  // glog keeps the pointer
    google::InitGoogleLogging(name.c_str());
  }
  started = true;
  FLAGS_logtostderr = FLAGS_log_dir.empty();
  if (FLAGS_log_dir.empty()) return;
  MakeFolder("log folder " + FLAGS_log_dir, FLAGS_log_dir);
  log_file_ = Cat(FLAGS_log_dir, "/", std::filesystem::path(program).filename().string(),
                  alone ? "" : Cat(".process", process), ".log");
  CheckLogs({log_file_});
  FLAGS_timestamp_in_logfile_name = false;
  FLAGS_stderrthreshold = google::GLOG_WARNING;
  if (gflags::GetCommandLineFlagInfoOrDie("v").is_default)
    FLAGS_v = 1;  // the file has room for what happened
  google::SetLogDestination(google::GLOG_INFO, log_file_.c_str());
  for (int severity : {google::GLOG_WARNING, google::GLOG_ERROR, google::GLOG_FATAL})
    google::SetLogDestination(severity, "");  // they are in the file of all
  // glog would replace a file of the program's name by a link to the log.
  google::SetLogSymlink(google::GLOG_INFO, "");
}

// Each process checks the files that it writes itself.
void Launcher::CheckFiles(const std::vector<FlagFile>& inputs, const std::vector<FlagFile>& outputs) const {
  auto named = [](const FlagFile& file) {
    return NamedFile{Cat("--", file.first, "=", file.second), file.second};
  };
  std::vector<NamedFile> read;
  for (const FlagFile& file : inputs) read.push_back(named(file));
  std::vector<FlagFile> always = program_().inputs;
  always.push_back({"config", launcher_flags().config});
  for (const FlagFile& file : always)
    if (!file.second.empty()) read.push_back(named(file));
  std::vector<FlagFile> ours;
  if (main_process()) {
    ours = outputs;
    for (const FlagFile& file : program_().outputs) ours.push_back(file);
    ours.push_back({"trace", launcher_flags().trace});
    ours.push_back({"calibrate", launcher_flags().calibrate});
  }
  if (!launcher_flags().report.empty())
    ours.push_back({"report", Report::FileOf(launcher_flags().report, job_ ? job_->process() : 0)});
  if (job_ && !launcher_flags().trace.empty())
    ours.push_back({"trace", TraceFileOf(launcher_flags().trace, job_.get())});
  ours.push_back({"log_dir", log_file_});
  std::erase_if(ours, [](const FlagFile& file) { return file.second.empty(); });
  // Under --processes what goes through us goes to the parent's.
  const std::string descriptors = one_output_ ? Cat("/proc/", getppid(), "/fd/") : "/proc/self/fd/";
  for (const auto& [what, number] : {std::pair{"standard output", "1"}, std::pair{"standard error", "2"}}) {
    std::vector<NamedFile> pair = {{what, descriptors + number}};  // the two may well be one file
    for (const FlagFile& file : ours) pair.push_back(named(file));
    RequireDistinct(read, pair);
  }
  for (const FlagFile& file : ours) {
    const std::string why = WhyNotWritable(file.second);
    if (!why.empty()) Fail("--", file.first, "=", file.second, " cannot be written: ", why);
  }
}

Mesh Launcher::mesh(const std::vector<std::string>& required, const std::string& otherwise,
                    const std::vector<std::string>& optional) const {
  Mesh given = Mesh::Parse(launcher_flags().mesh.empty() ? otherwise : launcher_flags().mesh);
  std::vector<std::string> axes;
  std::string known;
  const auto use = [&](const std::string& name) {
    if (std::find(axes.begin(), axes.end(), name) == axes.end()) axes.push_back(name);
  };
  for (const auto* names : {&required, &optional})
    for (const std::string& name : *names) {
      known += (known.empty() ? "" : ", ") + name;
      // What a group stands for has no axis of that name.
      for (int a : given.FindAxes(name)) use(given.axis_name(a));
      if (names == &required && given.FindAxes(name).empty()) use(name);
    }
  // The order of the flag is that of the devices; axes that it leaves out are of one device.
  std::vector<std::string> in_order;
  for (int a = 0; a < given.rank(); ++a) in_order.push_back(given.axis_name(a));
  const auto place = [&](const std::string& axis) {
    return std::find(axes.begin(), axes.end(), axis) - axes.begin();
  };
  if (!std::is_sorted(in_order.begin(), in_order.end(),
                      [&](const std::string& a, const std::string& b) { return place(a) < place(b); }))
    std::stable_sort(axes.begin(), axes.end(), [&](const std::string& a, const std::string& b) {
      return given.FindAxis(a) < given.FindAxis(b);
    });
  std::vector<std::pair<std::string, int>> full;
  for (const std::string& a : axes) {
    int at = given.FindAxis(a);
    full.push_back({a, at < 0 ? 1 : given.axis_size(at)});
  }
  for (int a = 0; a < given.rank(); ++a)
    if (std::find(axes.begin(), axes.end(), given.axis_name(a)) == axes.end())
      Fail("mesh ", given.str(), ": this program has no mesh axis '", given.axis_name(a), "'; its axes are ",
           known);
  return Mesh(given.kind(), full, {}, given.groups());
}

namespace {

std::vector<int> DeviceNumbers(const std::string& text) {
  std::vector<int> numbers;
  for (size_t begin = 0; begin < text.size();) {
    size_t comma = std::min(text.find(',', begin), text.size());
    int number = 0;
    auto [after, error] = std::from_chars(text.data() + begin, text.data() + comma, number);
    if (begin == comma || error != std::errc() || after != text.data() + comma || number < 0)
      Fail("--devices=", text, ": \"", text.substr(begin, comma - begin),
           "\" is no number of a device; write numbers from 0 with commas between them");
    if (std::find(numbers.begin(), numbers.end(), number) != numbers.end())
      Fail("--devices=", text, ": device ", number, " is named twice");
    numbers.push_back(number);
    begin = comma + 1;
    if (begin == text.size() && comma < text.size()) Fail("--devices=", text, " ends with a comma");
  }
  return numbers;
}

}  // namespace

ModelOptions Launcher::model_options() const {
  ModelOptions options;
  options.seed = launcher_flags().seed;
  options.dump_dir = launcher_flags().dump_dir;
  options.memory_budget = MemoryBudget();
  options.trace_file = launcher_flags().dry_run ? "" : launcher_flags().trace;
  options.report_file = launcher_flags().report;
  options.job = job_;
  options.stalls = stalls_;
  options.compiled = begun_;
  options.check_feeds = launcher_flags().check_feeds;
  options.check_replicas = launcher_flags().check_replicas;
  options.check_nan = launcher_flags().check_nan;
  options.tune = launcher_flags().tune;
  options.tf32 = launcher_flags().tf32;
  options.devices = DeviceNumbers(launcher_flags().devices);
  options.threads = launcher_flags().threads;
  options.kernel_threads = launcher_flags().kernel_threads;
  return options;
}

int Launcher::data_threads() const {
  return data_threads(Mesh::Parse(launcher_flags().mesh.empty() ? "cpu" : launcher_flags().mesh));
}

int Launcher::data_threads(const Mesh& mesh) const {
  if (launcher_flags().data_threads > 0) return launcher_flags().data_threads;
  const int cores = CoresHere(job_.get()), processes = job_ ? job_->processes() : 1;
  const int threads = launcher_flags().threads * launcher_flags().kernel_threads;  // 0: one is not given
  return DataThreads(cores, CoresOfKernels(mesh, processes, cores, threads));
}

void Launcher::RequireSameFlags(const std::vector<std::string>& own) const {
  if (!job_) return;
  std::set<std::string> differ(own.begin(), own.end());
  for (const auto& [name, value] : FlagsWith(kPerProcess)) differ.insert(name);
  std::vector<std::pair<std::string, std::string>> flags = FlagValues();
  std::erase_if(flags, [&](const auto& flag) { return differ.count(flag.first) > 0; });
  oneflow_like::RequireSameFlags(job_.get(), flags);
}

bool Launcher::dry_run() const { return launcher_flags().dry_run; }
bool Launcher::explain() const { return launcher_flags().explain; }
bool Launcher::restarted() const { return copy() && std::getenv(kRestartVariable) != nullptr; }

bool Launcher::main_process() const { return !job_ || job_->process() == 0; }

void Launcher::Print(const char* format, ...) const {
  if (!main_process()) return;
  va_list args;
  va_start(args, format);
  std::vprintf(format, args);
  va_end(args);
}

int Launcher::Main(const std::function<int()>& body) const {
  try {
    const int code = launcher_flags().calibrate.empty() ? body() : CalibrateHere();
    if (job_) {
      if (!launcher_flags().trace.empty()) JoinTraces();
      if (!launcher_flags().report.empty()) JoinReports(launcher_flags().report, job_.get());
      FlushOutput();
      const StallWatch::Doing doing(stalls_.get(),
                                    "the end, which waits for all processes to come to theirs");
      job_->Finish(true);
    }
    FlushOutput();
    return code;
  } catch (const std::exception& e) {
    const bool mistake = dynamic_cast<const UsageError*>(&e) != nullptr ||
                         (!*begun_ && dynamic_cast<const WriteError*>(&e) == nullptr);
    return EndWith(e, mistake ? kUsageError : kRunError);
  }
}

int Launcher::CalibrateHere() const {
  *begun_ = true;
  ProgressLine progress(*this);
  const std::string& mesh = launcher_flags().mesh;
  CalibrateTo(launcher_flags().calibrate,
              {.models = launcher_flags().calibrate_models,
               .job = job_,
               .kind = mesh.empty() ? "cpu" : Mesh::Parse(mesh).kinds()[0],
               .devices = DeviceNumbers(launcher_flags().devices),
               .progress = [&](const std::string& what) { progress.Update(what); }});
  progress.End();
  Print("%s describes this machine: --topology=%s\n", launcher_flags().calibrate.c_str(),
        launcher_flags().calibrate.c_str());
  return 0;
}

// An error that all processes make alike is printed by the main one alone where all is read together. Gives
// the exit code: `code`, or that of the process that failed first, so that all end with one.
int Launcher::EndWith(const std::exception& error, int code) const {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return EndWith(Error(OutOfMemoryText()), kRunError);
  if (folder_ && (!*begun_ || code == kUsageError)) folder_->Withdraw();
  const bool at_once = main_process() || !one_output_;
  const std::string message = Plain(error.what(), given_);
  if (at_once) PrintError(message);
  if (!job_) return dynamic_cast<const NotTogether*>(&error) != nullptr ? kLostPeer : code;
  if (job_->FinishWith(message, code) && !at_once) PrintError(message);
  return job_->exit_code();
}

// Every process reads its file a part at a time, so that nobody holds more than one part of each.
void Launcher::JoinTraces() const {
  constexpr size_t kPart = 4 << 20;
  const std::string mine = TraceFileOf(launcher_flags().trace, job_.get());
  if (!std::filesystem::exists(mine)) return;  // the program has made no model
  std::unique_ptr<TraceFile> whole;
  if (main_process()) {
    whole = std::make_unique<TraceFile>(launcher_flags().trace);
    whole->Start();
  }
  TraceReader reader(mine);
  for (bool more = true; more;) {
    more = false;
    for (const std::string& part : job_->AllGather("traces", reader.Next(kPart))) {
      if (part.empty()) continue;
      more = true;
      if (whole) whole->AddEvents(part);
    }
  }
  std::error_code ignored;
  std::filesystem::remove(mine, ignored);
}

template <typename T>
HostTensor ToHost(const std::vector<T>& values, const Dims& shape) {
  if (static_cast<int64_t>(values.size()) != shape.elements())
    Fail("ToHost: ", values.size(), " values do not fill shape ", shape.str());
  HostTensor t = HostTensor::Make(DTypeOf<T>::value, shape);
  if (!values.empty()) std::memcpy(t.data.get(), values.data(), t.bytes());
  return t;
}
template HostTensor ToHost<float>(const std::vector<float>&, const Dims&);
template HostTensor ToHost<int32_t>(const std::vector<int32_t>&, const Dims&);
template HostTensor ToHost<int64_t>(const std::vector<int64_t>&, const Dims&);
template HostTensor ToHost<uint8_t>(const std::vector<uint8_t>&, const Dims&);

void ProgressLine::Update(const std::string& text) {
  if (!launcher_.main_process()) return;
  double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  bool terminal = launcher_.terminal();
  if (now - last_ < (terminal ? 0.1 : 10.0)) return;
  last_ = now;
  if (terminal) {
    std::string padded = text;
    if (padded.size() < width_) padded.resize(width_, ' ');
    width_ = text.size();
    std::printf("\r%s", padded.c_str());
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void ProgressLine::End() {
  if (launcher_.terminal() && width_ > 0) std::printf("\n");
  std::fflush(stdout);
  width_ = 0;
  last_ = 0;
}

}  // namespace oneflow_like
