#include "compiler/graph/text.h"

#include <charconv>
#include <sstream>

namespace oneflow_like {

namespace {

std::string AxisOf(const Graph& graph, size_t entry) {
  return entry == 0 ? std::string("time") : graph.mesh().axis_name(static_cast<int>(entry) - 1);
}

}  // namespace

std::string SbpText(const Graph& graph, const Slice& slice, const NdSbp& sbp) {
  std::string text = "{";
  std::vector<int> sizes = graph.Sizes();
  for (size_t i = 0; i < sbp.size(); ++i) {
    if (sizes[i] == 1 || (i > 0 && slice.fixed[i - 1] != Slice::kFree)) continue;
    text += (text.size() > 1 ? "," : "") + AxisOf(graph, i) + ":" + sbp[i].str();
  }
  return text + "}";
}

namespace {

// " gradient {tp:P}"
std::string GradientText(const Graph& graph, const Node& node) {
  std::string text;
  for (const auto& [entry, sbp] : node.gradient)
    text += Cat(text.empty() ? " gradient {" : ",", AxisOf(graph, entry), ":", sbp.str());
  return text.empty() ? text : text + "}";
}

// "fixed {tp:S1} stored {dp:S0} gradient {tp:P}"
std::string FixedText(const Graph& graph, const Node& node) {
  std::string fixed, stored;
  for (const auto& [entry, sbp] : node.fixed) {
    std::string& text = node.stored.count(entry) ? stored : fixed;
    text += Cat(text.empty() ? "" : ",", AxisOf(graph, entry), ":", sbp.str());
  }
  if (!fixed.empty()) fixed = "fixed {" + fixed + "}";
  if (!stored.empty()) stored = Cat(fixed.empty() ? "" : " ", "stored {", stored, "}");
  return fixed + stored + GradientText(graph, node);
}

// What `after=` calls a node by: the first word of its line.
const std::string& NameInText(const Graph& graph, const Node& node) {
  return node.out.empty() ? node.name : graph.value(node.out[0]).name;
}

std::string NodeText(const Graph& graph, int id) {
  const Node& n = graph.node(id);
  std::string text;
  for (size_t i = 0; i < n.out.size(); ++i) text += (i ? ", " : "") + graph.value(n.out[i]).name;
  if (!n.out.empty()) text += " = ";
  text += n.op;
  if (n.out.empty()) text += " " + n.name;
  if (!n.in.empty()) {
    text += "(";
    for (size_t i = 0; i < n.in.size(); ++i) {
      const Value& v = graph.value(n.in[i]);
      text += (i ? ", " : "") + v.name;
      if (i < n.want.size() && !n.want[i].empty() && n.want[i] != v.sbp)
        text += " " + SbpText(graph, n.slice, n.want[i]);
    }
    text += ")";
  }
  if (!n.attrs.map().empty()) text += " " + n.attrs.str();
  for (size_t i = 0; i < n.out.size(); ++i) {
    const Value& v = graph.value(n.out[i]);
    text += Cat(i ? ", " : " : ", Name(v.dtype), v.shape.str());
    if (!v.sbp.empty())
      text += " " + SbpText(graph, n.slice, v.sbp);
    else if (i == 0 && (!n.fixed.empty() || !n.gradient.empty()))
      text += " " + FixedText(graph, n);
  }
  std::string at = n.slice.str(graph.mesh());
  if (!at.empty()) text += " @" + at;
  if (n.phase != Phase::kForward) text += std::string(" !") + Name(n.phase);
  if (n.rate == Rate::kRemade) text += " !remade";
  if (n.part >= 0) text += Cat(" !part=", n.part);
  if (!n.after.empty()) {
    text += " after=";
    for (size_t i = 0; i < n.after.size(); ++i)
      text += (i ? "," : "") + NameInText(graph, graph.node(n.after[i]));
  }
  return text;
}

// A cursor over one line.
struct Line {
  std::string text;
  size_t at = 0;
  int number = 0;

  void Skip() {
    while (at < text.size() && text[at] == ' ') ++at;
  }
  bool Take(const std::string& token) {
    Skip();
    if (text.compare(at, token.size(), token) != 0) return false;
    at += token.size();
    return true;
  }
  // Up to any of `stops` outside brackets and quotes.
  std::string Until(const std::string& stops) {
    Skip();
    size_t begin = at;
    int depth = 0;
    bool quoted = false;
    for (; at < text.size(); ++at) {
      char c = text[at];
      if (quoted && c == '\\') {
        ++at;
        continue;
      }
      if (c == '"') quoted = !quoted;
      if (quoted) continue;
      if (depth == 0 && stops.find(c) != std::string::npos) break;
      if (c == '[' || c == '{' || c == '(') ++depth;
      if (c == ']' || c == '}' || c == ')') --depth;
    }
    std::string word = text.substr(begin, at - begin);
    while (!word.empty() && word.back() == ' ') word.pop_back();
    return word;
  }
  int64_t Number(const std::string& stops) {
    const std::string word = Until(stops);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (word.empty() || error != std::errc() || end != word.data() + word.size())
      Bad("'" + word + "' is no number");
    return number;
  }
  [[noreturn]] void Bad(const std::string& what) const {
    Fail("graph text line ", number, ": ", what, ": ", text);
  }
};

FixedSbp ParseEntries(const Graph& graph, Line* line) {
  std::string body = line->Until("}");
  if (!line->Take("}")) line->Bad("'}' is missing");
  FixedSbp sbp;
  std::stringstream parts(body);
  std::string entry;
  while (std::getline(parts, entry, ',')) {
    size_t colon = entry.find(':');
    if (colon == std::string::npos) line->Bad("a signature reads axis:sbp");
    std::string axis = entry.substr(0, colon);
    int index = axis == "time" ? 0 : 1 + graph.mesh().AxisOrFail(axis, Cat("graph text line ", line->number));
    sbp[index] = ParseSbp(entry.substr(colon + 1));
  }
  return sbp;
}

NdSbp ParseSignature(const Graph& graph, Line* line) {
  NdSbp sbp(1 + graph.mesh().rank(), B());
  for (const auto& [entry, s] : ParseEntries(graph, line)) sbp[entry] = s;
  return sbp;
}

Dims ParseDims(Line* line) {
  if (!line->Take("[")) line->Bad("a shape is missing");
  Dims dims;
  while (!line->Take("]")) {
    dims.push_back(line->Number(",]"));
    line->Take(",");
    if (line->at >= line->text.size()) line->Bad("']' is missing");
  }
  return dims;
}

// Nothing where a region leaves it to the session.
std::optional<Recompute> ParseRecompute(Line* line) {
  if (line->Take(Name(Recompute::kAuto))) return Recompute::kAuto;
  // A name that begins another comes after it.
  for (auto r = kRecomputeModes.rbegin(); r != kRecomputeModes.rend(); ++r)
    if (line->Take(Name(*r))) return *r;
  return std::nullopt;
}

class Reader {
 public:
  Reader(const Catalog& catalog, const std::string& text) : catalog_(catalog) {
    std::stringstream lines(text);
    std::string l;
    Mesh mesh;
    int times = 1;
    Regions regions;
    for (int number = 1; std::getline(lines, l); ++number) {
      size_t hash = l.find('#');
      if (hash != std::string::npos) l.resize(hash);
      while (!l.empty() && (l.back() == ' ' || l.back() == '\t' || l.back() == '\r')) l.pop_back();
      Line line{l, 0, number};
      line.Skip();
      if (line.at == l.size()) continue;
      if (line.Take("mesh ")) {
        mesh = Mesh::Parse(line.Until(" "));
      } else if (line.Take("times ")) {
        times = static_cast<int>(line.Number(" "));
      } else if (line.Take("region ")) {
        const std::string path = line.Until(" ");
        regions.Add(path, ParseRecompute(&line));
        if (line.Take("chosen="))
          if (const std::optional<Recompute> chosen = ParseRecompute(&line)) regions.Choose(path, *chosen);
      } else {
        todo_.push_back(line);
      }
    }
    graph_.emplace_back(&catalog_, mesh, times);
    graph_[0].regions() = regions;
    for (Line& line : todo_) ReadNode(line);
    for (auto& [node, names] : after_)
      for (const std::string& name : names) {
        auto it = nodes_.find(name);
        if (it == nodes_.end()) Fail("graph text: after=", name, " names no node");
        graph_[0].node(node).after.push_back(it->second);
      }
  }
  Graph Take() { return std::move(graph_[0]); }

 private:
  // A node's line, as far as it was read.
  struct Reading {
    Node node;
    std::vector<std::string> names;  // of its outputs
    std::vector<Graph::NewValue> outputs;
    std::vector<NdSbp> want, signatures;
    std::string after;
  };

  void ReadNode(Line line) {
    Reading r;
    r.node.slice = WholeMesh(graph_[0].mesh());
    ReadNames(&line, &r);
    r.node.op = line.Until("( ");
    if (r.names.empty()) r.node.name = line.Until("(@:");
    ReadOperands(&line, &r);
    ReadAttrs(&line, &r);
    ReadOutputs(&line, &r);
    ReadPlace(&line, &r);
    if (r.after.empty()) r.after = line.Until("");
    if (r.node.name.empty()) line.Bad("a node without outputs needs a name: fetch loss(y)");
    Add(std::move(r));
  }

  void ReadNames(Line* line, Reading* r) {
    const size_t equals = line->text.find(" = "), paren = line->text.find('(');
    if (equals == std::string::npos || (paren != std::string::npos && equals > paren)) return;
    std::stringstream list(line->text.substr(0, equals));  // a name may hold '=': tokens@pp=1
    for (std::string name; list >> name; r->names.push_back(name))
      if (name.back() == ',') name.pop_back();
    line->at = equals + 3;
  }

  void ReadOperands(Line* line, Reading* r) {
    const Graph& g = graph_[0];
    if (!line->Take("(")) return;
    while (!line->Take(")")) {
      std::string name = line->Until(",) ");
      auto it = values_.find(name);
      if (it == values_.end()) line->Bad("no value '" + name + "'");
      r->node.in.push_back(it->second);
      r->want.push_back(line->Take("{") ? ParseSignature(g, line) : g.value(it->second).sbp);
      line->Take(",");
      if (line->at >= line->text.size()) line->Bad("')' is missing");
    }
  }

  void ReadAttrs(Line* line, Reading* r) {
    std::string attrs = line->Until(":@!");
    const size_t after = attrs.find("after=");
    if (after != std::string::npos) {
      r->after = attrs.substr(after);
      attrs.resize(after);
    }
    r->node.attrs = Attrs::Parse(attrs);
  }

  void ReadOutputs(Line* line, Reading* r) {
    const Graph& g = graph_[0];
    if (line->Take(":")) {
      do {
        std::string type = line->Until("[");
        DType dtype;
        if (!ParseDType(type, &dtype)) line->Bad("no element type '" + type + "'");
        r->outputs.push_back({"", dtype, ParseDims(line)});
        if (line->Take("fixed {")) r->node.fixed = ParseEntries(g, line);
        if (line->Take("stored {"))
          for (const auto& [entry, sbp] : ParseEntries(g, line)) {
            r->node.fixed[entry] = sbp;
            r->node.stored.insert(entry);
          }
        if (line->Take("gradient {")) r->node.gradient = ParseEntries(g, line);
        r->signatures.push_back(line->Take("{") ? ParseSignature(g, line) : NdSbp());
      } while (line->Take(","));
    }
    if (r->outputs.size() != r->names.size()) line->Bad("names and types of outputs differ in number");
    for (size_t i = 0; i < r->names.size(); ++i) r->outputs[i].name = r->names[i];
    if (!r->names.empty()) r->node.name = r->names[0];
  }

  // Stage and phase.
  void ReadPlace(Line* line, Reading* r) {
    const Graph& g = graph_[0];
    while (line->Take("@")) {
      do {
        std::string axis = line->Until("=");
        line->Take("=");
        r->node.slice.fixed[g.mesh().AxisOrFail(axis, Cat("graph text line ", line->number))] =
            static_cast<int>(line->Number(", "));
      } while (line->Take(","));
      r->node.placed = true;
    }
    while (line->Take("!")) {
      const std::string word = line->Until(" ");
      if (word == "update") r->node.phase = Phase::kUpdate;
      if (word == "backward") r->node.phase = Phase::kBackward;
      if (word == "weight_gradient") r->node.phase = Phase::kWeightGradient;
      if (word == "remade") r->node.rate = Rate::kRemade;
      if (word.rfind("part=", 0) == 0) r->node.part = std::stoi(word.substr(5));
    }
  }

  void Add(Reading r) {
    Graph& g = graph_[0];
    Node& node = r.node;
    // An input read on several stages is one input: its copies are values of other names (place_stages.cc).
    const size_t copy = node.name.rfind("@" + node.slice.str(g.mesh()));
    if (KindOf(node.op) == NodeKind::kInput && node.placed && copy != std::string::npos)
      node.name.resize(copy);
    bool chosen = !node.in.empty();
    for (const NdSbp& w : r.want) chosen = chosen && !w.empty();
    if (chosen) node.want = r.want;
    const int id = g.AddRaw(node, r.outputs);
    g.UniqueName(node.name);
    nodes_[node.name] = id;
    for (size_t i = 0; i < r.names.size(); ++i) {
      int v = g.node(id).out[i];
      g.value(v).sbp = r.signatures[i];
      values_[r.names[i]] = v;
    }
    if (node.rate != Rate::kRemade) g.SettleRate(id);
    if (r.after.rfind("after=", 0) != 0) return;
    std::stringstream list(r.after.substr(6));
    for (std::string name; std::getline(list, name, ',');) after_[id].push_back(name);
  }

  const Catalog& catalog_;
  std::vector<Line> todo_;
  std::vector<Graph> graph_;  // one, made once the mesh is known
  std::map<std::string, int> values_, nodes_;
  std::map<int, std::vector<std::string>> after_;
};

}  // namespace

std::string ToText(const Graph& graph) {
  std::string text = "mesh " + graph.mesh().str() + "\n";
  if (graph.times() > 1) text += Cat("times ", graph.times(), "\n");
  const auto& chosen = graph.regions().chosen();
  for (const auto& [path, recompute] : graph.regions().all()) {
    const auto choice = chosen.find(path);
    text += Cat("region ", path, recompute ? Cat(" ", Name(*recompute)) : "",
                choice == chosen.end() ? "" : Cat(" chosen=", Name(choice->second)), "\n");
  }
  for (int n : graph.Order()) text += NodeText(graph, n) + "\n";
  return text;
}

Graph ParseGraph(const Catalog& catalog, const std::string& text) { return Reader(catalog, text).Take(); }

}  // namespace oneflow_like
