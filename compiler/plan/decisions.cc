// A line for each decision, its name first; names of weights, regions and stacks end their lines, as they may
// hold anything.
#include "compiler/plan/decisions.h"

#include <array>
#include <charconv>
#include <functional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace oneflow_like {
namespace {

constexpr std::string_view kFirstLine = "oneflow_like plan 1";
constexpr int kMostBlocks = 1 << 20;
constexpr size_t kMostStages = 1 << 16;

// In one line.
std::string Quoted(const std::string& name) {
  std::string text;
  for (char c : name) text += c == '\\' ? "\\\\" : c == '\n' ? "\\n" : std::string(1, c);
  return text;
}

std::string Unquoted(std::string_view text) {
  std::string name;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      name += text[i];
      continue;
    }
    ++i;
    if (i == text.size() || (text[i] != '\\' && text[i] != 'n')) Fail("a '\\' that no 'n' or '\\' follows");
    name += text[i] == 'n' ? '\n' : '\\';
  }
  return name;
}

std::vector<std::string_view> SplitAt(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(at)) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

VariableCut ParseCut(const Mesh& mesh, std::string_view text) {
  VariableCut cut;
  if (text == "whole") return cut;
  for (std::string_view part : SplitAt(text, ',')) {
    const size_t colon = part.rfind(':');
    if (colon == std::string_view::npos) Fail("'", part, "' is no cut such as tp:S0");
    const int entry = 1 + mesh.AxisOrFail(std::string(part.substr(0, colon)), "a cut");
    const bool stored = part.back() == '*';
    if (stored) part.remove_suffix(1);
    const Sbp sbp = ParseSbp(std::string(part.substr(colon + 1)));
    if (sbp.is_partial()) Fail("a weight is cut or whole, not ", sbp.str());
    if (!cut.fixed.emplace(entry, sbp).second)
      Fail("'", text, "' has mesh axis ", mesh.axis_name(entry - 1), " twice; leave one of the two out");
    if (stored) cut.stored.insert(entry);
  }
  return cut;
}

int64_t ParseNumber(std::string_view text, int64_t least, int64_t most) {
  int64_t number = least - 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most)
    Fail("'", text, "' is no number from ", least, " to ", most);
  return number;
}

// Reads the value of a line that a plan has only if the option is on.
bool ParseOn(std::string_view what, std::string_view text) {
  if (text != "1") Fail("'", what, " ", text, "' must be '", what, " 1'; a plan without it lacks the line");
  return true;
}

template <typename Enum>
Enum ParseName(std::string_view text, std::span<const Enum> all) {
  std::string names;
  for (Enum each : all) {
    if (text == Name(each)) return each;
    names += Cat(names.empty() ? "" : ", ", Name(each));
  }
  Fail("'", text, "' is none of ", names);
}

constexpr std::array kSchedules = {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B,
                                   PipelineSchedule::kInterleaved, PipelineSchedule::kZeroBubble};

// "what rest"
std::pair<std::string_view, std::string_view> FirstWord(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) Fail("'", line, "' is there without what belongs behind it");
  return {line.substr(0, space), line.substr(space + 1)};
}

void ParseStages(std::string_view rest, StageCuts* stages) {
  const auto [numbers, name] = FirstWord(rest);
  std::vector<int64_t> blocks;
  for (std::string_view number : SplitAt(numbers, ',')) blocks.push_back(ParseNumber(number, 0, kMostBlocks));
  if (blocks.size() > kMostStages) Fail("there are ", blocks.size(), " stages, at most ", kMostStages);
  stages->emplace(Unquoted(name), std::move(blocks));
}

// Of a region, how its values wait; of a weight, its cut.
void ParseNamed(std::string_view what, std::string_view rest, Decisions* d) {
  const auto [how, name] = FirstWord(rest);
  if (what == "wait")
    d->waits.emplace(Unquoted(name), ParseName<Recompute>(how, kRecomputeModes));
  else
    d->cuts.emplace(Unquoted(name), ParseCut(d->mesh, how));
}

// SavedPlan::lines has it by this.
std::string KeyOf(std::string_view line) {
  const auto [what, rest] = FirstWord(line);
  const bool named = what == "blocks" || what == "wait" || what == "weight";
  return named ? Cat(what, " ", Unquoted(FirstWord(rest).second)) : std::string(what);
}

constexpr std::string_view kOver = " over ";  // before mesh axes

// "0", or of a stage "3 over dp".
void ParseZero(std::string_view rest, Decisions* d) {
  const size_t over = rest.find(kOver);
  d->zero = static_cast<int>(ParseNumber(rest.substr(0, over), 0, 3));
  if ((over == std::string_view::npos) != (d->zero == 0))
    Fail("ZeRO is off or over an axis, as in 'zero 0' and 'zero 3 over dp', and this is 'zero ", rest, "'");
  if (d->zero == 0) return;
  d->zero_axis = rest.substr(over + kOver.size());
  if (d->zero_axis.empty()) Fail("it names no axis of ZeRO");
}

// "bf16", or along some axes alone "bf16 over replica".
void ParseReduceType(std::string_view rest, Decisions* d) {
  const size_t over = rest.find(kOver);
  const std::string_view type = rest.substr(0, over);
  for (const DType each : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    if (type == Name(each)) d->reduce_dtype = each;
  if (!d->reduce_dtype) Fail("'", type, "' is none of f32, bf16, f16");
  if (over == std::string_view::npos) return;
  d->reduce_axis = rest.substr(over + kOver.size());
  if (d->reduce_axis.empty()) Fail("it names no axis of sums");
}

void ParseWhatIsOnHost(std::string_view rest, Offload* offload) {
  const Offload before = std::exchange(*offload, ParseOffload(std::string(rest), Cat("offload ", rest)));
  offload->prefetch = before.prefetch;
  offload->small = before.small;
}

// "4", or with what is not as by default "4 gain 0.5" and "4 always".
Overlap ParseOverlap(std::string_view rest) {
  const std::vector<std::string_view> words = SplitAt(rest, ' ');
  Overlap overlap{.chunks = static_cast<int>(ParseNumber(words[0], 1, kMostChunks))};
  for (size_t w = 1; w < words.size(); ++w) {
    const std::string_view gain = w + 1 < words.size() ? words[w + 1] : "";
    if (words[w] == "always" && !overlap.always)
      overlap.always = true;
    else if (const auto [end, error] = std::from_chars(gain.data(), gain.data() + gain.size(), overlap.gain);
             words[w] == "gain" && w == 1 && error == std::errc() && end == gain.data() + gain.size() &&
             overlap.gain >= 0 && overlap.gain < 1)
      ++w;
    else
      Fail("overlap is '", rest, "'; expected CHUNKS [gain NUMBER in [0, 1)] [always]");
  }
  return overlap;
}

std::string ToText(const Overlap& overlap) {
  char gain[32];
  const std::string_view number(gain, std::to_chars(gain, gain + sizeof gain, overlap.gain).ptr);
  const bool usual = overlap.gain == Overlap().gain;
  return Cat(overlap.chunks, usual ? "" : " gain ", usual ? "" : number, overlap.always ? " always" : "");
}

constexpr std::string_view kCheapest = "cheapest";  // of collectives

// What a line says, by its first word.
void ParseLine(std::string_view line, SavedPlan* plan) {
  Decisions& d = plan->decisions;
  const auto [what, rest] = FirstWord(line);
  if (what == "model")
    plan->model = rest;
  else if (what == "machine")
    plan->machine = rest;
  else if (what == "tf32")
    plan->tf32 = ParseOn(what, rest);
  else if (what == "mesh")
    d.mesh = Mesh::Parse(std::string(rest));
  else if (what == "micro_batches")
    d.micro_batches = static_cast<int>(ParseNumber(rest, 1, kMostMicroBatches));
  else if (what == "schedule")
    d.schedule = ParseName<PipelineSchedule>(rest, kSchedules);
  else if (what == "virtual_stages")
    d.virtual_stages = static_cast<int>(ParseNumber(rest, 1, kMostRounds));
  else if (what == "zero")
    ParseZero(rest, &d);
  else if (what == "recompute")
    d.recompute = ParseName<Recompute>(rest, kRecomputeModes);
  else if (what == "offload")
    ParseWhatIsOnHost(rest, &d.offload);
  else if (what == "sequence_parallel")
    d.sequence_parallel = ParseNumber(rest, 0, 1) == 1;
  else if (what == "context_parallel")
    d.context_parallel = ParseOn(what, rest);
  else if (what == "logits_tile")
    d.logits_tile = ParseNumber(rest, 1, kMostLogitRows);
  else if (what == "ulysses")
    d.ulysses = ParseOn(what, rest);
  else if (what == "reduce_dtype")
    ParseReduceType(rest, &d);
  else if (what == "overlap")
    d.overlap = ParseOverlap(rest);
  else if (what == "bucket")
    d.bucket = ParseNumber(rest, 0, INT64_MAX);
  else if (what == "prefetch")
    d.prefetch = static_cast<int>(ParseNumber(rest, 0, kMostAhead));
  else if (what == "exact_groups")
    d.exact_groups = ParseOn(what, rest);
  else if (what == "zero_small")
    d.zero_small = ParseNumber(rest, 0, INT64_MAX);
  else if (what == "host_prefetch")
    d.offload.prefetch = static_cast<int>(ParseNumber(rest, 0, kMostAhead));
  else if (what == "host_small")
    d.offload.small = ParseNumber(rest, 0, INT64_MAX);
  else if (what == "collectives")
    d.algorithms = rest == kCheapest ? WantedAlgorithms()
                                     : ParseWantedAlgorithms(std::string(rest), Cat("collectives ", rest));
  else if (what == "blocks")
    ParseStages(rest, &d.stages);
  else if (what == "wait" || what == "weight")
    ParseNamed(what, rest, &d);
  else
    Fail("a plan does not know '", what, "'");
}

}  // namespace

MeshAxes ZeroAxes(const Decisions& decisions) {
  return decisions.zero > 0 ? decisions.mesh.FindAxes(decisions.zero_axis) : MeshAxes();
}

std::string ToText(const Mesh& mesh, const VariableCut& cut) {
  std::string text;
  for (const auto& [entry, sbp] : cut.fixed)
    text += Cat(text.empty() ? "" : ",", mesh.axis_name(entry - 1), ":", sbp.str(),
                cut.stored.count(entry) ? "*" : "");
  return text.empty() ? "whole" : text;
}

std::string ToText(const SavedPlan& plan) {
  const Decisions& d = plan.decisions;
  std::string text =
      Cat(kFirstLine, "\nmodel ", plan.model, "\nmachine ", plan.machine, "\nmesh ", d.mesh.str(),
          "\nmicro_batches ", d.micro_batches, "\nschedule ", Name(d.schedule), "\nvirtual_stages ",
          d.virtual_stages, "\nzero ", d.zero, d.zero > 0 ? " over " + d.zero_axis : "", "\nrecompute ",
          Name(d.recompute), d.offload.any() ? "\noffload " + OffloadText(d.offload) : "",
          "\nsequence_parallel ", d.sequence_parallel ? 1 : 0, "\n");
  // Older plans have none of these lines.
  for (const auto& [name, on] : {std::pair{"tf32", plan.tf32},
                                 {"context_parallel", d.context_parallel},
                                 {"ulysses", d.ulysses},
                                 {"exact_groups", d.exact_groups}})
    if (on) text += Cat(name, " 1\n");
  const Decisions usual;
  const Offload host{.prefetch = d.prefetch.value_or(usual.offload.prefetch)};
  for (const auto& [name, number, otherwise] : {std::tuple{"logits_tile", d.logits_tile, usual.logits_tile},
                                                {"zero_small", d.zero_small, usual.zero_small},
                                                {"host_small", d.offload.small, host.small},
                                                {"host_prefetch", d.offload.prefetch, host.prefetch}})
    if (number != otherwise) text += Cat(name, " ", number, "\n");
  if (d.reduce_dtype)
    text += Cat("reduce_dtype ", Name(*d.reduce_dtype), d.reduce_axis.empty() ? "" : " over " + d.reduce_axis,
                "\n");
  if (d.overlap) text += Cat("overlap ", ToText(*d.overlap), "\n");
  if (d.bucket) text += Cat("bucket ", *d.bucket, "\n");
  if (d.prefetch) text += Cat("prefetch ", *d.prefetch, "\n");
  if (d.algorithms)
    text += Cat("collectives ", d.algorithms->empty() ? kCheapest : ToText(*d.algorithms), "\n");
  for (const auto& [name, blocks] : d.stages) {
    text += "blocks ";
    for (size_t i = 0; i < blocks.size(); ++i) text += Cat(i == 0 ? "" : ",", blocks[i]);
    text += Cat(" ", Quoted(name), "\n");
  }
  for (const auto& [name, how] : d.waits) text += Cat("wait ", Name(how), " ", Quoted(name), "\n");
  for (const auto& [name, cut] : d.cuts) text += Cat("weight ", ToText(d.mesh, cut), " ", Quoted(name), "\n");
  return text + "end\n";
}

SavedPlan ParseSavedPlan(const std::string& text) {
  SavedPlan plan;
  int number = 0;
  bool ended = false;
  std::string_view rest = text;
  if (text.empty()) Fail("it is empty");
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) Fail("line ", number + 1, " lacks the newline at its end");
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    ++number;
    try {
      if (line.empty()) Fail("it is empty");
      if (line.back() == '\r') Fail("it ends with a carriage return; lines end with a newline alone");
      if (ended) Fail("the plan has ended before it");
      if (line.find('\0') != std::string_view::npos) Fail("it has a byte 0, which no text has");
      if (number == 1 && line != kFirstLine && line.find(kFirstLine) != std::string_view::npos)
        Fail("there is something before or behind \"", kFirstLine, "\"; remove it");
      if (number == 1 && line != kFirstLine) Fail("the text does not begin with \"", kFirstLine, "\"");
      if (number == 1) continue;
      ended = line == "end";
      if (ended) continue;
      const std::string key = KeyOf(line);
      if (const auto [at, fresh] = plan.lines.emplace(key, number); !fresh)
        Fail("'", key, "' is there twice, in line ", at->second, " as well; leave one of the two out");
      ParseLine(line, &plan);
    } catch (const Error& error) {
      Fail("line ", number, ": ", error.what());
    }
  }
  if (!ended) Fail("the plan lacks its last line 'end'");
  for (const char* what : {"model", "machine", "mesh", "micro_batches", "schedule", "virtual_stages", "zero",
                           "recompute", "sequence_parallel"})
    if (plan.lines.count(what) == 0) Fail("the plan lacks its line '", what, "'");
  Decisions& d = plan.decisions;
  if (d.prefetch && plan.lines.count("host_prefetch") == 0) d.offload.prefetch = *d.prefetch;
  const auto line_of = [&](const char* what) { return Cat("line ", plan.lines.at(what), ": ", what); };
  if (d.zero > 0) d.mesh.AxesOrFail(d.zero_axis, line_of("zero"));
  if (!d.reduce_axis.empty()) d.mesh.AxesOrFail(d.reduce_axis, line_of("reduce_dtype"));
  return plan;
}

}  // namespace oneflow_like
