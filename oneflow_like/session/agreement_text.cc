#include "oneflow_like/session/agreement_text.h"

#include <set>

#include "actor/net/talk/job.h"
#include "compiler/graph/text.h"
#include "oneflow_like/job/agreement.h"

namespace oneflow_like {

std::string MachineText(const Machine& machine) {
  const Efficiency& e = machine.efficiency;
  std::string text = Cat(machine.flops, " and ", machine.narrow_flops, " flops/s, memory ",
                         machine.topology.memory_bandwidth, " bytes/s, overhead ", machine.overhead,
                         " s, efficiency ", e.product, " and ", e.attention, ", half at ", e.half_extent);
  if (machine.tf32_flops > 0) text += Cat(", ", machine.tf32_flops, " flops/s in TF32");
  const std::vector<Topology::Link>& links = machine.topology.links;
  for (size_t l = 0; l < links.size(); ++l)
    text += Cat(", ", links[l].devices, " devices by ", links[l].bandwidth, " bytes/s in ", links[l].latency,
                " s", l < machine.shared.size() && machine.shared[l] ? " (shared)" : "");
  if (machine.host.known)
    text += Cat(", copies to hosts by ", machine.host.bandwidth, " bytes/s in ", machine.host.latency, " s");
  if (const std::set<int> apart(machine.nodes.begin(), machine.nodes.end()); !apart.empty())
    text += Cat(", ", apart.size(), " processes or hosts, each with its own memory");
  return text;
}

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
  auto option = [&](const std::string& name, const auto& value) { text += OptionLine(name, Cat(value)); };
  option("--mesh", session.compiled.graph.mesh().str());
  option("--seed", model.seed);
  option("--check_feeds", model.check_feeds ? "true" : "false");
  option("--check_replicas", model.check_replicas);
  option("--tune", model.tune ? "true" : "false");
  option("--tf32", model.tf32 ? "true" : "false");
  option("--check_nan", model.check_nan ? "true" : "false");
  option("micro_batches", o.micro_batches);
  option("steps_in_flight", o.steps_in_flight);
  option("schedule", Name(o.schedule));
  option("exact_groups", o.exact_groups ? "true" : "false");
  option("virtual_stages", model.pipeline.virtual_stages);
  option("dtype", Name(o.dtype));
  option("logits_tile", o.logits_tile ? Cat(*o.logits_tile) : "by default");
  option("overlap chunks", o.overlap.chunks);
  option("overlap gain", o.overlap.gain);
  option("overlap always", o.overlap.always ? "true" : "false");
  option("link bandwidth", model.link.bandwidth);
  option("collectives", model.collectives);
  option("topology", MachineText(session.model->machine));
  option("parallel batch", o.parallel.batch.value_or("by default"));
  option("parallel tensor", o.parallel.tensor);
  option("parallel context", o.parallel.context);
  option("zero", model.zero.axis);
  option("zero stage", model.zero.stage);
  option("zero prefetch", model.zero.prefetch);
  option("zero small", model.zero.small);
  option("zero bucket_bytes", model.zero.bucket_bytes);
  const CompileOptions& all = session.compiled.options;
  if (const auto& training = all.asked.training) {
    option("recompute", Name(training->recompute));
    option("reduce_dtype", Name(*all.decided.reduce_dtype));
    option("reduce axes", all.decided.reduce_axis);
    const auto& gather = training->gather_again;
    option("gather_again", !gather ? "by default" : *gather ? "true" : "false");
  }
  text += session.input_graph;
  if (session.retries)
    text += Cat("order of acts with more room ", Hexadecimal(session.retries->compiled().logical.hash), '\n');
  return text + Cat("order of acts ", Hexadecimal(session.compiled.logical.hash), '\n');
}

}  // namespace oneflow_like
