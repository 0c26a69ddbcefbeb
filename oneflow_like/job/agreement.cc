#include "oneflow_like/job/agreement.h"

#include <sstream>

#include "actor/net/talk/job.h"
#include "compiler/graph/text.h"
#include "core/random.h"

namespace oneflow_like {

namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string Hexadecimal(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

const std::string kOption = "option ";

// "--seed" of "option --seed=1".
std::string OptionOf(const std::string& line) {
  if (line.rfind(kOption, 0) != 0) return "";
  return line.substr(kOption.size(), line.find('=') - kOption.size());
}

// The machine that plans are made for, whatever its file is called here.
std::string TextOf(const Machine& machine) {
  const Efficiency& e = machine.efficiency;
  std::string text = Cat(machine.flops, " and ", machine.narrow_flops, " flops/s, memory ",
                         machine.topology.memory_bandwidth, " bytes/s, overhead ", machine.overhead,
                         " s, efficiency ", e.product, " and ", e.attention, ", half at ", e.half_extent);
  const std::vector<Topology::Link>& links = machine.topology.links;
  for (size_t l = 0; l < links.size(); ++l)
    text += Cat(", ", links[l].devices, " devices by ", links[l].bandwidth, " bytes/s in ", links[l].latency,
                " s", l < machine.shared.size() && machine.shared[l] ? ", shared" : "");
  return text;
}

}  // namespace

std::string GraphLines(const Graph& graph) {
  const std::vector<int> order = graph.Order();
  const std::vector<std::string> lines = Lines(ToText(graph));
  const size_t head = lines.size() - order.size();  // the mesh, how many micro-batches, regions
  std::string text, regions;                        // a node that differs says more than its region
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string at = i < head ? "" : graph.node(order[i - head]).line.str();
    (i < head && lines[i].rfind("region ", 0) == 0 ? regions : text) +=
        Cat(lines[i], at.empty() ? "" : " at ", at, '\n');
  }
  return text + regions;
}

std::string AgreementText(const Session::Impl& session) {
  const ModelOptions& model = session.model->options;
  const SessionOptions& o = session.options;
  std::string text = Cat("library ", model.job->peers()[model.job->process()].version, '\n');
  auto option = [&](const std::string& name, const auto& value) {
    text += Cat(kOption, name, '=', value, '\n');
  };
  option("--mesh", session.compiled.graph.mesh().str());
  option("--seed", model.seed);
  option("--check_feeds", model.check_feeds ? "true" : "false");
  option("--check_replicas", model.check_replicas);
  option("--check_nan", model.check_nan ? "true" : "false");
  option("micro_batches", o.micro_batches);
  option("steps_in_flight", o.steps_in_flight);
  option("schedule", Name(o.schedule));
  option("exact_groups", o.exact_groups ? "true" : "false");
  option("virtual_stages", model.pipeline.virtual_stages);
  option("dtype", Name(o.dtype));
  option("memory budget of recompute=auto", session.compiled.options.memory_budget);
  option("overlap chunks", o.overlap.chunks);
  option("overlap gain", o.overlap.gain);
  option("overlap always", o.overlap.always ? "true" : "false");
  option("link bandwidth", model.link.bandwidth);
  option("collectives", model.collectives);
  option("topology", TextOf(session.model->machine));
  option("parallel batch", o.parallel.batch);
  option("parallel tensor", o.parallel.tensor);
  option("parallel context", o.parallel.context);
  option("zero", model.zero.axis);
  option("zero stage", model.zero.stage);
  option("zero prefetch", model.zero.prefetch);
  option("zero small", model.zero.small);
  option("zero bucket_bytes", model.zero.bucket_bytes);
  if (const auto& training = session.compiled.options.training)
    option("recompute", Name(training->recompute));
  text += session.input_graph;
  return text + Cat("order of acts ", Hexadecimal(session.compiled.logical.hash), '\n');
}

std::string FirstDifference(const std::vector<std::string>& texts) {
  const std::vector<std::string> first = Lines(texts[0]);
  size_t line = std::string::npos;
  int process = 0;
  std::vector<std::string> other;
  for (size_t p = 1; p < texts.size(); ++p) {
    std::vector<std::string> lines = Lines(texts[p]);
    size_t at = 0;
    while (at < first.size() && at < lines.size() && first[at] == lines[at]) ++at;
    if ((at == first.size() && at == lines.size()) || at >= line) continue;
    line = at;
    process = static_cast<int>(p);
    other = std::move(lines);
  }
  if (process == 0) return "";
  const std::string mine = line < first.size() ? first[line] : "";
  const std::string theirs = line < other.size() ? other[line] : "";
  const std::string option = OptionOf(mine);
  if (!option.empty() && option == OptionOf(theirs)) {
    auto value = [](const std::string& text) {
      const std::string after = text.substr(text.find('=') + 1);
      return after.empty() ? std::string("none") : after;
    };
    return Cat("option ", option, ": process 0 has ", value(mine), ", process ", process, " has ",
               value(theirs));
  }
  auto quoted = [](const std::string& text) { return text.empty() ? "nothing more" : Cat("'", text, "'"); };
  return Cat("process 0 has ", quoted(mine), ", process ", process, " has ", quoted(theirs));
}

void RequireSameFlags(Job* job, const std::vector<std::pair<std::string, std::string>>& flags) {
  std::string text;
  for (const auto& [name, value] : flags) {
    std::string line = value;  // one, whatever is in it
    for (size_t at = 0; (at = line.find('\n', at)) != std::string::npos;) line.replace(at, 1, "\\n");
    text += Cat(kOption, "--", name, '=', line, '\n');
  }
  const std::string difference = FirstDifference(job->AllGather("flags", text));
  if (!difference.empty()) Fail("the processes were given different flags: ", difference);
}

void RequireAgreement(const Session::Impl& session) {
  Job* job = session.model->options.job.get();
  const std::string text = AgreementText(session), who = Cat("session ", session.options.name);
  const std::vector<std::string> hashes = job->AllGather(who, Hexadecimal(HashName(text)));
  bool same = true;
  for (const std::string& hash : hashes) same = same && hash == hashes[0];
  if (same) return;
  const std::string difference = FirstDifference(job->AllGather(Cat(who, ", in full"), text));
  Fail(who, " is not the same on all processes: ", difference);
}

}  // namespace oneflow_like
