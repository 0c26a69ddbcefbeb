#include "compiler/graph/graph.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "ops/equation.h"

namespace oneflow_like {

const char* Name(Phase phase) {
  static const char* const names[] = {"forward", "backward", "weight_gradient", "update"};
  return names[static_cast<int>(phase)];
}

std::vector<int> Graph::Sizes() const {
  std::vector<int> sizes{times_};
  for (int a = 0; a < mesh_.rank(); ++a) sizes.push_back(mesh_.axis_size(a));
  return sizes;
}

int64_t Graph::Parts() const { return int64_t{times_} * mesh_.size(); }

std::string Graph::UniqueName(const std::string& wanted) {
  int n = names_[wanted]++;
  if (n == 0) return wanted;
  std::string name = Cat(wanted, ".", n);
  while (names_.count(name)) name = Cat(wanted, ".", ++n);
  names_[name] = 1;
  return name;
}

std::string ScopeOf(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash == std::string::npos ? "" : name.substr(0, slash + 1);
}

Graph::Place Graph::PlaceOf(const std::vector<Tensor>& in) {
  Place place{"", WholeMesh(mesh_)};
  std::pair<bool, int> best{false, -1};
  for (const Tensor& t : in) {
    const Node& from = producer(t.id());
    place.placed = place.placed || from.placed;
    for (int a = 0; from.placed && a < mesh_.rank(); ++a)
      place.slice.fixed[a] = std::max(place.slice.fixed[a], from.slice.fixed[a]);
    if (ClaimOf(t.id()) <= best) continue;
    if (std::string scope = ScopeOf(t.name()); !scope.empty())
      place.scope = std::move(scope), best = ClaimOf(t.id());
  }
  return place;
}

std::pair<bool, int> Graph::ClaimOf(int value) const {
  const Node& node = producer(value);
  // A cast, for a weight that is stored in 16 bits, or a move to another stage.
  const bool form = node.op == "cast" || node.op == "identity";
  return {(form ? producer(node.in[0]) : node).kind == NodeKind::kVariable, value};
}

std::string Graph::OfAnother() const { return origin_ ? origin_->of_another : ""; }

std::vector<Tensor> Graph::AddNode(const std::string& op, const std::vector<Tensor>& in, const Attrs& attrs,
                                   const SourceLine& line) {
  // Nodes that passes add are called by their own names.
  const std::string at = origin_ ? origin_->line.str() : "", who = !origin_     ? line.Who(op)
                                                                   : at.empty() ? op
                                                                                : Cat(op, " at ", at);
  if (!catalog_->Find(op))
    Fail(who, ": there is no operator named \"", op, "\"; ModelOptions::operators adds your own");
  const OpDef& def = catalog_->Get(op);
  Node node;
  node.op = op;
  node.attrs = attrs;
  node.line = origin_ ? origin_->line : line;
  const bool updates = !def.inplace.empty() && !attrs.Has("each_micro_batch");
  node.phase = origin_ ? origin_->phase : updates ? Phase::kUpdate : Phase::kForward;
  OpCall call{op, who, {}, {}, &node.attrs};
  for (const Tensor& t : in) {
    if (!t.defined()) Fail(call.who, ": operand ", call.shapes.size(), " is undefined");
    if (t.graph() != this)
      Fail(call.who, ": operand ", t.name(), " belongs to another model, or to another graph of this one",
           OfAnother());
    node.in.push_back(t.id());
    call.shapes.push_back(t.shape());
    call.dtypes.push_back(t.dtype());
    const Node& from = producer(t.id());
    if (!origin_ && from.phase == Phase::kUpdate && from.kind != NodeKind::kVariable)
      node.phase = Phase::kUpdate;
  }
  Inferred inferred = Infer(def, call);
  const bool follows = !origin_ || !origin_->slice;  // its operands, or what runs
  Place place = origin_ ? Graph::PlaceOf(in) : PlaceOf(in);
  if (origin_) place.scope = origin_->scope;
  node.slice = follows ? place.slice : *origin_->slice;
  node.placed = place.placed || !follows;
  for (auto [out, input] : def.inplace) {  // an update stands where its variable does
    const Node& variable = producer(node.in[input]);
    if (variable.kind != NodeKind::kVariable)
      Fail(call.who, ": '", values_[node.in[input]].name,
           "' is not a variable, only what Scope::Weight and Scope::State give is one");
    node.slice = variable.slice;
    node.placed = variable.placed;
  }
  node.name = UniqueName(place.scope + op);
  std::vector<NewValue> outputs;
  for (size_t i = 0; i < inferred.rule.out.size(); ++i)
    outputs.push_back({i == 0 ? node.name : Cat(node.name, ":", inferred.rule.out[i].name),
                       inferred.dtypes[i], inferred.rule.out[i].shape});
  int id = AddRaw(std::move(node), outputs);
  std::vector<Tensor> result;
  for (int v : nodes_[id].out) result.emplace_back(this, v);
  return result;
}

std::optional<GraphBuilder::Made> Graph::MadeBy(int id) const {
  const Node& node = producer(id);
  Made made{node.op, node.attrs, {}};
  for (int v : node.in) made.in.emplace_back(const_cast<Graph*>(this), v);
  return made;
}

int Graph::AddReader(Node node, int v, const std::string& suffix, DType dtype, const NdSbp& sbp) {
  const Value value = values_[v];
  const std::string name = node.name = UniqueName(value.name + suffix);
  node.in = {v};
  node.want = {value.sbp};
  node.placed = true;
  const int id = AddRaw(std::move(node), {{name, dtype, value.shape}});
  const int result = nodes_[id].out[0];
  values_[result].sbp = sbp;
  SettleRate(id);
  return result;
}

void Graph::Keep(int id) {
  const OpDef& def = catalog_->Get(nodes_[id].op);
  nodes_[id].attrs.Set(def.keep, int64_t{1});
  const Inferred inferred = Infer(def, CallOf(nodes_[id]));
  for (size_t i = nodes_[id].out.size(); i < inferred.rule.out.size(); ++i)
    nodes_[id].out.push_back(AddValue({Cat(nodes_[id].name, ":", inferred.rule.out[i].name),
                                       inferred.dtypes[i], inferred.rule.out[i].shape},
                                      id, static_cast<int>(i)));
}

int Graph::AddValue(const NewValue& value, int producer, int output) {
  Value v;
  v.name = value.name;
  v.dtype = value.dtype;
  v.shape = value.shape;
  v.producer = producer;
  v.output = output;
  values_.push_back(std::move(v));
  return num_values() - 1;
}

int Graph::AddRaw(Node node, const std::vector<NewValue>& outputs) {
  int id = num_nodes();
  if (node.slice.fixed.empty()) node.slice = WholeMesh(mesh_);
  node.kind = KindOf(node.op, &node.primitive);
  for (size_t i = 0; i < outputs.size(); ++i)
    node.out.push_back(AddValue(outputs[i], id, static_cast<int>(i)));
  nodes_.push_back(std::move(node));
  return id;
}

bool Graph::WritesEach(int id) const {
  const OpDef* def = catalog_->Find(nodes_[id].op);
  return times_ > 1 && def && !def->inplace.empty() && nodes_[id].attrs.Has("each_micro_batch");
}

Rate Graph::RateOf(int id) const {
  if (times_ == 1) return Rate::kOnce;
  const Node& node = nodes_[id];
  const auto cut = [](const NdSbp& sbp) { return !sbp.empty() && !sbp[0].is_broadcast(); };
  const bool reads = std::any_of(node.want.begin(), node.want.end(), cut);
  if (std::any_of(node.out.begin(), node.out.end(), [&](int v) { return cut(values_[v].sbp); }))
    return Rate::kEachAct;
  if (SumsOverTime(node)) return Rate::kEachAct;
  // Of what an operator reads in parts it gives a whole only for the micro-batch (OpDef::turns_of).
  if (reads) return node.kind == NodeKind::kOperator ? Rate::kRemade : Rate::kEachAct;
  if (node.kind == NodeKind::kOperator && catalog_->Get(node.op).each_micro_batch) return Rate::kRemade;
  if (std::none_of(node.in.begin(), node.in.end(), [&](int v) { return Remade(v); })) return Rate::kOnce;
  return node.attrs.Has("last") ? Rate::kEachAct : Rate::kRemade;
}

int Graph::AddFetch(const std::string& name, int value) {
  const Node from = producer(value);
  Node fetch;
  fetch.op = "fetch";
  fetch.name = name;
  fetch.in = {value};
  fetch.line = from.line;
  fetch.slice = from.slice;
  fetch.placed = from.placed;
  fetch.phase = from.phase == Phase::kBackward ? Phase::kUpdate : from.phase;
  return AddRaw(std::move(fetch), {});
}

int Graph::AddTrain(int loss, const SourceLine& line) {
  const Node from = producer(loss);
  Node train;
  train.op = train.name = "train";
  train.in = {loss};
  train.line = line;
  train.slice = from.slice;
  train.placed = from.placed;
  train.phase = Phase::kUpdate;
  return AddRaw(std::move(train), {});
}

std::vector<std::vector<int>> Graph::Readers() const {
  std::vector<std::vector<int>> readers(values_.size());
  for (int n = 0; n < num_nodes(); ++n)
    if (alive(n))
      for (int v : nodes_[n].in) readers[v].push_back(n);
  return readers;
}

std::vector<int> Graph::Order() const {
  const auto for_each_before = [this](int n, const auto& use) {
    for (int v : nodes_[n].in)
      if (const int p = values_[v].producer; p >= 0 && alive(p)) use(p);
    for (int b : nodes_[n].after)
      if (b >= 0 && alive(b)) use(b);
  };
  std::vector<int> live, missing(nodes_.size(), 0);
  std::vector<int> end(nodes_.size() + 1, 0);  // of what comes after a node, in `next`
  bool by_id = true;
  for (int n = 0; n < num_nodes(); ++n) {
    if (!alive(n)) continue;
    live.push_back(n);
    for_each_before(n, [&](int before) {
      ++missing[n];
      ++end[before + 1];
      by_id = by_id && before < n;
    });
  }
  if (by_id) return live;
  std::partial_sum(end.begin(), end.end(), end.begin());
  std::vector<int> next(end.back());
  end.pop_back();  // each is the begin until `next` is filled
  for (int n : live) for_each_before(n, [&](int before) { next[end[before]++] = n; });
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int n : live)
    if (missing[n] == 0) ready.push(n);
  std::vector<int> order;
  order.reserve(live.size());
  while (!ready.empty()) {
    int n = ready.top();
    ready.pop();
    order.push_back(n);
    for (int i = n == 0 ? 0 : end[n - 1]; i < end[n]; ++i)
      if (--missing[next[i]] == 0) ready.push(next[i]);
  }
  if (order.size() != live.size()) {
    // From any node that is left back to one that comes again.
    int at = *std::find_if(live.begin(), live.end(), [&](int n) { return missing[n] > 0; });
    std::vector<int> way;
    while (std::find(way.begin(), way.end(), at) == way.end()) {
      way.push_back(at);
      int from = -1;
      for_each_before(at, [&](int before) { from = missing[before] > 0 ? before : from; });
      at = from;
    }
    way.erase(way.begin(), std::find(way.begin(), way.end(), at));
    std::string names;
    constexpr size_t kShown = 16;
    for (size_t i = way.size(); i-- > 0 && way.size() - i <= kShown;)
      names += nodes_[way[i]].name + (i > 0 ? ", " : "");
    if (way.size() > kShown) names += Cat("and ", way.size() - kShown, " more");
    Fail("the graph has a cycle through ", names);
  }
  return order;
}

void Graph::KeepOnly(const std::vector<int>& roots) {
  std::vector<bool> keep(nodes_.size(), false);
  std::vector<int> todo = roots;
  while (!todo.empty()) {
    int n = todo.back();
    todo.pop_back();
    if (n < 0 || keep[n]) continue;
    keep[n] = true;
    for (int v : nodes_[n].in) todo.push_back(values_[v].producer);
    for (int b : nodes_[n].after) todo.push_back(b);
  }
  for (int n = 0; n < num_nodes(); ++n)
    if (!keep[n]) Remove(n);
}

void Graph::Renumber(const std::vector<int>& order) {
  std::vector<int> number(nodes_.size(), -1), all = order;
  for (int n = 0; n < num_nodes(); ++n)
    if (!alive(n)) all.push_back(n);
  std::vector<Node> nodes;
  for (int n : all) {
    number[n] = static_cast<int>(nodes.size());
    nodes.push_back(std::move(nodes_[n]));
  }
  for (Node& node : nodes)
    for (int& before : node.after) before = number[before];
  for (Value& value : values_) value.producer = number[value.producer];
  nodes_ = std::move(nodes);
}

int Graph::AddCopy(int of, Node copy, const std::string& suffix) {
  const std::vector<int> from = nodes_[of].out;
  copy.name = UniqueName(copy.name + suffix);
  copy.out.clear();
  std::vector<NewValue> outputs;
  for (int v : from) {
    const Value& value = values_[v];
    outputs.push_back(
        {outputs.empty() ? copy.name : UniqueName(value.name + suffix), value.dtype, value.shape});
  }
  const int id = AddRaw(std::move(copy), outputs);
  for (size_t o = 0; o < from.size(); ++o) values_[nodes_[id].out[o]].sbp = values_[from[o]].sbp;
  SettleRate(id);
  return id;
}

int Graph::OperandBehind(int value) const {
  const Node& node = producer(value);
  if (CountsOf(node) < 0 &&
      (node.in.size() != node.out.size() || (node.in.size() != 1 && !IsCollective(node))))
    return -1;
  return node.in[values_[value].output];
}

bool Graph::IsView(int node) const {
  const OpDef* def = catalog_->Find(nodes_[node].op);
  return def && def->view;
}

int Graph::BehindViews(int value) const {
  while (IsView(values_[value].producer)) value = producer(value).in[0];
  return value;
}

bool Graph::OnHost(int value) const {
  const Node& node = producer(BehindViews(value));
  return node.op == kToHost || node.op == kAssignHost ||
         (node.kind == NodeKind::kVariable && node.attrs.Has(kOnHost));
}

std::vector<std::pair<int, int>> Graph::InPlace(int node) const {
  const OpDef* def = catalog_->Find(nodes_[node].op);
  std::vector<std::pair<int, int>> pairs;
  if (def)
    for (auto [out, in] : def->inplace)
      if (producer(nodes_[node].in[in]).kind == NodeKind::kVariable) pairs.push_back({out, in});
  return pairs;
}

bool Graph::IsHeavy(int node) const {
  const OpDef* def = catalog_->Find(nodes_[node].op);
  const Work::Kind kind = def ? KindOfWork(def->category) : Work::Kind::kOther;
  return kind == Work::Kind::kProduct || kind == Work::Kind::kAttention;
}

std::string Graph::CategoryOf(const Node& node) const {
  if (IsLocalBoxing(node) || IsCollective(node)) return "boxing";
  const OpDef* def = catalog_->Find(node.op);
  return def ? def->category : "";
}

std::string Graph::Describe(const Node& node) const {
  std::string at = node.line.str();
  return Cat(node.op, " '", node.name, "'", at.empty() ? "" : " at " + at);
}

std::string Graph::DescribeForUser(const Node& node) const {
  SourceLine line = node.line;
  if (line.function == node.op) line.function.clear();
  return line.Of(Cat(node.op, " '", node.name, "'"));
}

OpCall Graph::CallOf(const Node& node) const {
  OpCall call{node.op, Describe(node), {}, {}, &node.attrs};
  for (int v : node.in) {
    call.shapes.push_back(values_[v].shape);
    call.dtypes.push_back(values_[v].dtype);
  }
  return call;
}

NodeKind KindOf(const std::string& op, Primitive* primitive) {
  static const std::map<std::string, NodeKind> kinds = {
      {"fused", NodeKind::kFused},  {"input", NodeKind::kInput}, {"variable", NodeKind::kVariable},
      {"fetch", NodeKind::kFetch},  {"train", NodeKind::kTrain}, {"updated", NodeKind::kUpdated},
      {"boxing", NodeKind::kBoxing}};
  static const std::map<std::string, Primitive> primitives = [] {
    std::map<std::string, Primitive> named;
    for (int p = 0; p <= static_cast<int>(Primitive::kRouted); ++p)
      named[Name(static_cast<Primitive>(p))] = static_cast<Primitive>(p);
    return named;
  }();
  if (auto kind = kinds.find(op); kind != kinds.end()) return kind->second;
  auto found = primitives.find(op);
  if (found == primitives.end()) return NodeKind::kOperator;
  if (primitive) *primitive = found->second;
  return NodeKind::kPrimitive;
}

bool IsEnd(const Node& node) {
  return node.kind == NodeKind::kInput || node.kind == NodeKind::kVariable || node.kind == NodeKind::kFetch ||
         node.kind == NodeKind::kTrain;
}

bool IsLocalBoxing(const Node& node) { return node.kind == NodeKind::kPrimitive && IsLocal(node.primitive); }

double PieceBytes(const Value& value, const std::vector<int>& sizes) {
  double bytes = static_cast<double>(value.shape.elements()) * SizeOf(value.dtype);
  for (size_t e = 0; e < sizes.size(); ++e)
    if (value.sbp[e].is_split()) bytes /= sizes[e];
  return bytes;
}

Node NodeLike(const Node& other, const std::string& op) {
  Node node;
  node.op = op;
  node.slice = other.slice;
  node.phase = other.phase;
  node.line = other.line;
  return node;
}

double LargestPieceBytes(const Value& value, const NdSbp& sbp, const std::vector<int>& sizes) {
  return static_cast<double>(LargestPiece(value.shape, sbp, sizes).elements()) *
         static_cast<double>(SizeOf(value.dtype));
}

double ShareMoved(const Node& node) {
  return CountsOf(node) >= 0 && node.attrs.Has("share") ? node.attrs.Float("share") : 1;
}

bool IsCollective(const Node& node) { return node.kind == NodeKind::kPrimitive && !IsLocal(node.primitive); }

bool SumsOverTime(const Node& node) {
  return node.kind == NodeKind::kOperator && !node.out.empty() && Accumulates(node.attrs);
}

}  // namespace oneflow_like
