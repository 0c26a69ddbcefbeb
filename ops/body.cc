// Recording a loop's body, and its text.
#include "ops/body.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <variant>

#include "core/error.h"

namespace oneflow_like {
namespace {

std::string TypeText(const Body::Value& value) {
  std::string text = Cat(Name(value.dtype), "[");
  for (int i = 0; i < value.shape.rank(); ++i) {
    text += Cat(i ? "," : "", value.shape[i]);
    if (value.labels[i] != ' ') text += value.labels[i];
  }
  return text + "]";
}

// False: the word is no type.
bool ParseBodyType(const std::string& word, Body::Value* value) {
  const size_t open = word.find('[');
  if (open == std::string::npos || word.back() != ']' || !ParseDType(word.substr(0, open), &value->dtype))
    return false;
  const char *at = word.data() + open + 1, *end = word.data() + word.size() - 1;
  while (at != end) {
    int64_t extent = 0;
    const auto [after, error] = std::from_chars(at, end, extent);
    if (error != std::errc() || extent < 0 || value->shape.rank() == Dims::kMaxRank) return false;
    at = after;
    const bool labelled = at != end && *at >= 'a' && *at <= 'z';
    value->shape.push_back(extent);
    value->labels += labelled ? *at++ : ' ';
    if (at != end && *at++ != ',') return false;
  }
  return true;
}

// A number of values defined so far; -1: it is none.
int ParseBodyValue(const std::string& word, size_t defined) {
  int value = -1;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool good = error == std::errc() && end == word.data() + word.size() && value >= 0;
  return good && static_cast<size_t>(value) < defined ? value : -1;
}

// Why no loop can run the operator; empty: it can.
std::string WhyNotInBody(const OpDef& def, const OpCall& call) {
  const bool keeps_all = call.attrs->Has("dropout") && call.attrs->Float("dropout") == 0;  // attention
  if (def.random && !keeps_all)
    return "draws at random, but each step of a loop would draw the same numbers; draw outside of the body, "
           "with an axis for the steps, and give the loop the result among its xs";
  if (!def.inplace.empty())
    return "writes a variable, which the body of a loop cannot; make it one of the loop's states, and assign "
           "its last value after the loop";
  if (def.turns_of && !def.turns_of(call).empty())
    return "gives each micro-batch a value of its own, which the body of a loop cannot; call it outside";
  for (const auto& [name, attr] : call.attrs->map())
    if (std::holds_alternative<Blob>(attr))
      return "holds numbers, which the body of a loop cannot; call it outside of the body, which may read "
             "its result";
  return "";
}

}  // namespace

const std::string& Body::NameOf(int) const {
  static const std::string name = "a value of a loop's body";
  return name;
}

Tensor Body::AddInput(DType dtype, const Dims& shape) {
  values_.push_back({dtype, shape, std::string(shape.rank(), ' '), -1});
  inputs.push_back(static_cast<int>(values_.size()) - 1);
  return Tensor(this, inputs.back());
}

Tensor Body::Take(const Tensor& x) {
  if (x.graph() == this) return x;
  const Tensor outside = outer_ == nullptr ? Tensor() : outer_->Take(x);
  if (!outside.defined()) return outside;
  auto [known, fresh] = input_of_.try_emplace(outside.id(), -1);
  if (fresh) {
    known->second = AddInput(outside.dtype(), Dims(outside.shape())).id();
    read.push_back(outside);
  }
  return Tensor(this, known->second);
}

OpCall Body::CallOf(const Node& node) const {
  OpCall call{node.op, node.op, {}, {}, &node.attrs};
  for (int v : node.in) {
    call.shapes.push_back(values_[v].shape);
    call.dtypes.push_back(values_[v].dtype);
  }
  return call;
}

void Body::AddOutputs(int id, const Inferred& inferred) {
  for (size_t i = nodes_[id].out.size(); i < inferred.rule.out.size(); ++i) {
    const Dims& shape = inferred.rule.out[i].shape;
    values_.push_back({inferred.dtypes[i], shape, std::string(shape.rank(), ' '), id});
    nodes_[id].out.push_back(static_cast<int>(values_.size()) - 1);
  }
}

std::vector<Tensor> Body::AddNode(const std::string& op, const std::vector<Tensor>& in, const Attrs& attrs,
                                  const SourceLine& line) {
  const std::string who = line.Who(op);
  if (closed_)
    Fail(who, ": reads a value of a loop's body that has ended; give it out as a state or as one of the ys");
  const OpDef* def = catalog_.Find(op);
  if (def == nullptr) Fail(who, ": there is no operator named \"", op, "\"");
  Node node{op, attrs, {}, {}};
  for (const Tensor& t : in) {
    const Tensor here = t.defined() ? Take(t) : t;
    if (!here.defined())
      Fail(who, ": operand ", node.in.size(), " belongs to another model, or to another graph of this one");
    node.in.push_back(here.id());
  }
  OpCall call = CallOf(node);
  call.who = who;
  call.attrs = &attrs;
  const Inferred inferred = Infer(*def, call);
  if (const std::string why = WhyNotInBody(*def, call); !why.empty()) Fail(who, ": it ", why);
  node.flops = def->view       ? 0
               : def->flops_of ? def->flops_of(attrs)(inferred.rule)
               : def->flops    ? def->flops(inferred.rule)
                               : inferred.rule.Volume();
  nodes_.push_back(std::move(node));
  AddOutputs(static_cast<int>(nodes_.size()) - 1, inferred);
  std::vector<Tensor> out;
  for (int v : nodes_.back().out) out.emplace_back(this, v);
  return out;
}

std::optional<GraphBuilder::Made> Body::MadeBy(int id) const {
  if (values_[id].producer < 0) return std::nullopt;
  const Node& node = nodes_[values_[id].producer];
  Made made{node.op, node.attrs, {}};
  for (int v : node.in) made.in.emplace_back(const_cast<Body*>(this), v);
  return made;
}

void Body::Keep(int id) {
  const OpDef& def = catalog_.Get(nodes_[id].op);
  nodes_[id].attrs.Set(def.keep, int64_t{1});
  AddOutputs(id, Infer(def, CallOf(nodes_[id])));
}

void Body::DropUnread() {
  std::vector<bool> needed(values_.size(), false);
  for (int v : results) needed[v] = true;
  std::vector<Node> kept;
  for (size_t i = nodes_.size(); i-- > 0;) {
    const Node& node = nodes_[i];
    if (std::none_of(node.out.begin(), node.out.end(), [&](int v) { return needed[v]; })) continue;
    for (int v : node.in) needed[v] = true;
    kept.push_back(node);
  }
  nodes_.assign(kept.rbegin(), kept.rend());
  for (size_t i = 0; i < nodes_.size(); ++i)
    for (int v : nodes_[i].out) values_[v].producer = static_cast<int>(i);
}

std::string Body::Text() const {
  std::vector<int> number(values_.size(), -1);
  int next = 0;
  std::string text;
  for (int v : inputs) {
    number[v] = next++;
    text += (text.empty() ? "" : " ") + TypeText(values_[v]);
  }
  for (const Node& node : nodes_) {
    text += "\n" + node.op + "(";
    for (size_t i = 0; i < node.in.size(); ++i) text += Cat(i ? " " : "", number[node.in[i]]);
    text += ")";
    for (int v : node.out) {
      number[v] = next++;
      text += " " + TypeText(values_[v]);
    }
    text += Cat(" ", static_cast<int64_t>(node.flops));
    if (const std::string attrs = node.attrs.str(); !attrs.empty()) text += " " + attrs;
  }
  text += "\n->";
  for (int v : results) text += Cat(" ", number[v]);
  return folds.empty() ? text : text + " fold " + folds;
}

Body Body::Parse(const Catalog& catalog, const std::string& text, const std::string& who) {
  Body body(catalog);
  std::istringstream lines(text);
  std::string line, word;
  const auto bad = [&] { Fail(who, ": \"", line, "\" is no line of a loop's body"); };
  std::getline(lines, line);
  for (std::istringstream words(line); words >> word;) {
    Value value;
    if (!ParseBodyType(word, &value)) bad();
    body.inputs.push_back(static_cast<int>(body.values_.size()));
    body.values_.push_back(value);
  }
  bool ended = false;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    if (line.starts_with("->")) {
      for (words >> word; words >> word && word != "fold";) {
        const int v = ParseBodyValue(word, body.values_.size());
        if (v < 0) bad();
        body.results.push_back(v);
      }
      words >> body.folds;
      ended = true;
      break;
    }
    const size_t open = line.find('('), close = line.find(')');
    if (open == std::string::npos || close == std::string::npos || close < open) bad();
    Node node{line.substr(0, open), {}, {}, {}};
    for (std::istringstream in(line.substr(open + 1, close - open - 1)); in >> word;) {
      node.in.push_back(ParseBodyValue(word, body.values_.size()));
      if (node.in.back() < 0) bad();
    }
    words.seekg(static_cast<std::streamoff>(close) + 1);
    while (words >> word && word.find('[') != std::string::npos && word[0] != '[') {
      Value value;
      if (!ParseBodyType(word, &value)) bad();
      value.producer = static_cast<int>(body.nodes_.size());
      node.out.push_back(static_cast<int>(body.values_.size()));
      body.values_.push_back(value);
    }
    int64_t flops = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), flops);
    if (node.out.empty() || error != std::errc() || end != word.data() + word.size()) bad();
    node.flops = static_cast<double>(flops);
    std::string attrs;
    std::getline(words, attrs);
    node.attrs = Attrs::Parse(attrs);
    body.nodes_.push_back(std::move(node));
  }
  if (!ended) Fail(who, ": the loop's body does not end with its results");
  return body;
}

// --- Labels ----------------------------------------------------------------------------------------

namespace {

// Axes that are cut together, as sets.
class AxisSets {
 public:
  int Add() {
    parent_.push_back(static_cast<int>(parent_.size()));
    whole_.push_back(false);
    return parent_.back();
  }
  int Of(int a) {
    while (parent_[a] != a) a = parent_[a] = parent_[parent_[a]];
    return a;
  }
  void Unite(int a, int b) {
    a = Of(a), b = Of(b);
    parent_[b] = a;
    whole_[a] = whole_[a] || whole_[b];
  }
  void SetWhole(int a) { whole_[Of(a)] = true; }
  bool Whole(int a) { return whole_[Of(a)]; }

 private:
  std::vector<int> parent_;
  std::vector<bool> whole_;
};

enum class Lies : uint8_t { kWhole, kCut, kSums };

bool HasAxisOf(const BoundRule& rule, const BoundRule::Operand& operand, const std::string& label) {
  for (size_t i = 0; i < operand.axes.size(); ++i)
    if (operand.axes[i].labels == std::vector<std::string>{label} &&
        operand.shape[static_cast<int>(i)] == rule.extents.at(label))
      return true;
  return false;
}

// How a node's results lie when one of its labels is cut, or none (empty) and some operands are sums. False:
// it has no such signature.
bool ResultsOf(const BoundRule& rule, const std::string& label, const std::vector<Lies>& in,
               std::vector<Lies>* out) {
  const bool sums = std::count(in.begin(), in.end(), Lies::kSums) > 0;
  out->assign(rule.out.size(), Lies::kWhole);
  if (!label.empty()) {
    if (sums) return false;
    for (size_t o = 0; o < rule.out.size(); ++o)
      (*out)[o] = HasAxisOf(rule, rule.out[o], label) ? Lies::kCut : Lies::kSums;
    return true;
  }
  if (!sums) return true;
  bool outputs_named = false;
  for (const auto& set : rule.notes.linear)
    for (const BoundRule::Operand& o : rule.out) outputs_named = outputs_named || set.count(o.name) != 0;
  for (const std::set<std::string>& set : rule.notes.linear) {
    bool same = true;
    for (size_t i = 0; i < in.size(); ++i)
      same = same && (set.count(rule.in[i].name) != 0) == (in[i] == Lies::kSums);
    if (!same) continue;
    for (size_t o = 0; o < rule.out.size(); ++o)
      if (!outputs_named || set.count(rule.out[o].name) != 0) (*out)[o] = Lies::kSums;
    return true;
  }
  return false;
}

}  // namespace

void Body::SetLabels(const std::vector<std::pair<int, int>>& pairs, size_t states) {
  AxisSets sets;
  std::vector<int> first;  // by value: the element of its axis 0
  for (const Value& value : values_) {
    first.push_back(value.shape.rank() > 0 ? sets.Add() : 0);
    for (int i = 1; i < value.shape.rank(); ++i) sets.Add();
    for (int i = 0; i < value.shape.rank(); ++i)
      if (value.shape[i] == 1) sets.SetWhole(first.back() + i);
  }
  const auto axis_of = [&](int v, int axis) { return first[v] + axis; };
  std::vector<BoundRule> rules;
  std::vector<std::map<std::string, int>> labels;  // by node, its labels as elements
  for (const Node& node : nodes_) {
    rules.push_back(BindOp(catalog_.Get(node.op), CallOf(node)));
    const BoundRule& rule = rules.back();
    std::map<std::string, int>& of = labels.emplace_back();
    for (const auto& [label, extent] : rule.extents) {
      of[label] = sets.Add();
      const bool fold = [&] {
        const auto found = rule.notes.folds.find(label);
        return found != rule.notes.folds.end() && found->second == Reduce::kSum;
      }();
      bool lost = false;
      for (const BoundRule::Operand& o : rule.out) lost = lost || !HasAxisOf(rule, o, label);
      if (rule.notes.whole.count(label) || rule.notes.expandable.count(label) || (lost && !fold))
        sets.SetWhole(of[label]);
    }
    const auto join = [&](const BoundRule::Operand& operand, int v) {
      std::set<std::string> seen;
      for (size_t i = 0; i < operand.axes.size(); ++i) {
        const int axis = static_cast<int>(i);
        const std::vector<std::string>& names = operand.axes[i].labels;
        for (const std::string& label : names)
          if (names.size() > 1 || !seen.insert(label).second) sets.SetWhole(of[label]);
        if (names.size() != 1) {
          sets.SetWhole(axis_of(v, axis));
        } else if (operand.shape[axis] == rule.extents.at(names[0])) {
          sets.Unite(axis_of(v, axis), of[names[0]]);
        }
      }
    };
    for (size_t i = 0; i < node.in.size(); ++i) join(rule.in[i], node.in[i]);
    for (size_t i = 0; i < node.out.size() && i < rule.out.size(); ++i) join(rule.out[i], node.out[i]);
  }
  for (auto [a, b] : pairs)
    for (int i = 0; i < values_[a].shape.rank(); ++i) sets.Unite(axis_of(a, i), axis_of(b, i));

  // Whether all results are pieces or sums when the axes of a set are cut.
  const auto may_cut = [&](int set, bool* fold) {
    std::vector<Lies> lies(values_.size(), Lies::kWhole);
    for (size_t v = 0; v < values_.size(); ++v) {
      int axes = 0;
      for (int i = 0; i < values_[v].shape.rank(); ++i)
        axes += sets.Of(axis_of(static_cast<int>(v), i)) == set;
      if (axes > 1) return false;
      if (axes == 1) lies[v] = Lies::kCut;
    }
    for (size_t n = 0; n < nodes_.size(); ++n) {
      std::string cut;
      for (const auto& [label, element] : labels[n]) {
        if (sets.Of(element) != set) continue;
        if (!cut.empty()) return false;
        cut = label;
      }
      std::vector<Lies> in, out;
      for (int v : nodes_[n].in) in.push_back(lies[v]);
      if (!ResultsOf(rules[n], cut, in, &out)) return false;
      for (size_t o = 0; o < nodes_[n].out.size(); ++o) lies[nodes_[n].out[o]] = out[o];
    }
    *fold = false;
    for (size_t r = 0; r < results.size(); ++r) {
      const Lies as = lies[results[r]];
      if (as == Lies::kWhole || (as == Lies::kSums && r < states)) return false;
      *fold = *fold || as == Lies::kSums;
    }
    return true;
  };
  std::map<int, char> letter;  // by set; ' ': none
  folds.clear();
  char next = 'a';
  std::vector<int> outside = inputs;
  outside.insert(outside.end(), results.begin(), results.end());
  for (int v : outside)
    for (int i = 0; i < values_[v].shape.rank(); ++i) {
      const int set = sets.Of(axis_of(v, i));
      if (letter.count(set)) continue;
      bool fold = false;
      letter[set] = !sets.Whole(set) && next <= 'z' && may_cut(set, &fold) ? next++ : ' ';
      if (letter[set] != ' ' && fold) folds += letter[set];
    }
  for (size_t v = 0; v < values_.size(); ++v)
    for (int i = 0; i < values_[v].shape.rank(); ++i) {
      const auto found = letter.find(sets.Of(axis_of(static_cast<int>(v), i)));
      values_[v].labels[i] = found == letter.end() ? ' ' : found->second;
    }
}

}  // namespace oneflow_like
