#include "oneflow_like/session/auto_cuts.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "oneflow_like/job/together.h"
#include "oneflow_like/session/budget.h"
#include "oneflow_like/session/summary.h"

namespace oneflow_like {
namespace {

// --- Cuts as text, which process 0 sends to the others ---

// Lines of a variable's name and its cuts, "entry Sbp stored" each, with tabs between; then `report`.
std::string CutsToText(const VariableCuts& cuts, const std::string& report) {
  std::string text;
  for (const auto& [variable, cut] : cuts) {
    text += variable;
    for (const auto& [entry, sbp] : cut.fixed)
      text += Cat("\t", entry, " ", sbp.str(), " ", cut.stored.count(entry));
    text += "\n";
  }
  return Cat(text, "\n", report);
}

VariableCuts CutsFromText(const std::string& text, std::string* report) {
  VariableCuts cuts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    std::istringstream fields(line);
    std::string field;
    std::getline(fields, field, '\t');
    VariableCut& cut = cuts[field];
    while (std::getline(fields, field, '\t')) {
      std::istringstream words(field);
      int entry = 0;
      std::string sbp;
      bool stored = false;
      words >> entry >> sbp >> stored;
      cut.fixed[entry] = ParseSbp(sbp);
      if (stored) cut.stored.insert(entry);
    }
  }
  report->assign(std::istreambuf_iterator<char>(lines), {});
  return cuts;
}

// --- The report ---

// "tp:S0 stored dp:S1"
std::string CutText(const Mesh& mesh, const VariableCut& cut) {
  std::string used, stored;
  for (const auto& [entry, sbp] : cut.fixed)
    (cut.stored.count(entry) ? stored : used) += Cat(" ", mesh.axis_name(entry - 1), ":", sbp.str());
  return (used + (stored.empty() ? "" : " stored") + stored).substr(used.empty() && stored.empty() ? 0 : 1);
}

// Weights of one pattern that are cut alike.
struct CutLine {
  VariableCut cut;
  double bytes = 0;
  int count = 0;
};

class CutsReport {
 public:
  CutsReport(const ModelImpl& model, const WeightSearch& search, const VariableCuts& cuts)
      : model_(model), search_(search), cuts_(cuts) {
    Collect();
  }

  std::string Text() const {
    size_t width = 0;
    for (const auto& [pattern, line] : lines_)
      if (!line.cut.fixed.empty()) width = std::max(width, pattern.size());
    std::string text = Cat("weights as chosen for ", model_.mesh.str(), ", and bytes of them on a device:\n");
    CutLine whole;
    for (const auto& [pattern, line] : lines_) {
      if (line.cut.fixed.empty()) {
        whole.bytes += line.bytes;
        whole.count += line.count;
        continue;
      }
      const std::string cut = CutText(model_.mesh, line.cut);
      text += Cat("  ", pattern, std::string(width + 2 - pattern.size(), ' '), cut,
                  std::string(cut.size() < 20 ? 20 - cut.size() : 1, ' '), BytesText(line.bytes), "\n");
    }
    if (whole.count > 0) text += Cat("  whole: ", whole.count, " weights, ", BytesText(whole.bytes), "\n");
    return Cat(text, Estimates());
  }

  // The time that a step would take with the weights of each line whole, the others as they are.
  std::string Reasons() const {
    const double seconds = search_.Seconds(cuts_);
    std::string text =
        "of the weights that are cut, what a step would take longer (-: shorter) if they were whole:\n";
    for (const auto& [pattern, line] : lines_) {
      if (line.cut.fixed.empty()) continue;
      VariableCuts without = cuts_;
      for (auto& [weight, cut] : without)
        if (PatternOf(weight) == pattern) cut = {};
      const double more = search_.Seconds(without) - seconds;
      text += Cat("  ", pattern, " ", CutText(model_.mesh, line.cut), ": ", more < 0 ? "-" : "",
                  SecondsText(std::abs(more)), "\n");
    }
    return text;
  }

 private:
  // "block*/mlp/up", or the weight's name if others of that pattern are cut in another way.
  std::string PatternOf(const std::string& weight) const {
    NameInBlock at = InBlock(weight);
    if (at.block.empty()) return weight;
    at.block.back() = '*';
    const auto kinds = kinds_.find(at.block + at.name);
    return kinds != kinds_.end() && kinds->second.size() == 1 ? kinds->first : weight;
  }

  void Collect() {
    for (const auto& [weight, cut] : cuts_)
      if (NameInBlock at = InBlock(weight); !at.block.empty() && model_.variables.count(weight)) {
        at.block.back() = '*';
        kinds_[at.block + at.name].insert(CutText(model_.mesh, cut));
      }
    for (const auto& [weight, cut] : cuts_) {
      const auto known = model_.variables.find(weight);
      if (known == model_.variables.end()) continue;
      CutLine& line = lines_[PatternOf(weight)];
      line.cut = cut;
      line.bytes += Bytes(known->second, cut);
      ++line.count;
    }
  }

  double Bytes(const ModelVariable& variable, const VariableCut& cut) const {
    std::vector<int> sizes = model_.graph.Sizes();
    NdSbp sbp(sizes.size(), B());
    for (const FixedSbp* fixed : {&variable.node.fixed, &cut.fixed})
      for (const auto& [entry, s] : *fixed) sbp[entry] = s;
    return static_cast<double>(
               LocalBox(variable.shape, sbp, sizes, std::vector<int>(sizes.size(), 0)).elements()) *
           static_cast<double>(SizeOf(variable.dtype));
  }

  // Of work and boxing one after another: what the search compares.
  std::string Estimates() const {
    std::string text = Cat(
        "work and messages of a step, one after another, by estimate: ", SecondsText(search_.Seconds(cuts_)),
        "; with whole weights ", SecondsText(search_.Seconds({})));
    VariableCuts annotated;
    for (const auto& [name, variable] : model_.variables)
      if (!variable.left_out.fixed.empty()) annotated[name] = variable.left_out;
    if (!annotated.empty())
      text += Cat("; as the code annotates them ", SecondsText(search_.Seconds(annotated)));
    return text + "\n";
  }

  const ModelImpl& model_;
  const WeightSearch& search_;
  const VariableCuts cuts_;
  std::map<std::string, std::set<std::string>> kinds_;  // cuts by pattern
  std::map<std::string, CutLine> lines_;                // by pattern
};

// --- The choice ---

class CutChooser {
 public:
  CutChooser(ModelImpl* model, const CompileOptions& options, const std::function<Graph()>& begin)
      : model_(*model), options_(options), graph_(begin()) {  // whose errors all processes have
    for (const auto& [name, variable] : model_.variables)
      before_[name] = {variable.node.fixed, variable.node.stored};
    CloseLoaded(&graph_);
  }

  // The model's weights as they are best at this price of a byte. Between 0 and 1: of the highest.
  const VariableCuts& Choose(double price) {
    return Take([&] { return search_->Cuts(price * (price > 0 ? search_->HighestPrice() : 0)); });
  }

  // Those that `cuts_of` gives process 0.
  const VariableCuts& Take(const std::function<VariableCuts()>& cuts_of) {
    const std::string text = FromProcessZero(model_.options.job.get(), "the choice of cuts of weights", [&] {
      if (!search_) search_ = std::make_shared<WeightSearch>(std::move(graph_), options_);
      const VariableCuts cuts = cuts_of();
      return CutsToText(cuts, CutsReport(model_, *search_, cuts).Text());
    });
    chosen_ = CutsFromText(text, &model_.cuts_text);
    if (search_)
      model_.cut_reasons = [&model = model_, search = search_, cuts = chosen_] {
        return CutsReport(model, *search, cuts).Reasons();
      };
    Set(chosen_);
    return chosen_;
  }

  // These cuts, but for one kind of weights: cut in another way along one axis of the mesh.
  std::vector<VariableCuts> Beside(const VariableCuts& cuts) const {
    std::map<std::string, std::vector<std::string>> kinds;
    for (const auto& [weight, cut] : cuts) {
      const auto known = model_.variables.find(weight);
      if (known == model_.variables.end() || !known->second.layout.sbp.empty()) continue;
      const NameInBlock at = InBlock(weight);
      kinds[Cat(at.block, at.name, " ", known->second.shape.str())].push_back(weight);
    }
    std::vector<VariableCuts> all;
    for (const auto& [kind, weights] : kinds)
      for (int axis = 0; axis < model_.mesh.rank(); ++axis)
        if (model_.mesh.axis_size(axis) > 1 && axis != options_.zero_axis)
          AddCutsOf(weights, axis, cuts, &all);
    return all;
  }

  void Set(const VariableCuts& cuts) {
    for (const auto& [name, fixed] : before_) {
      Node& node = model_.variables.at(name).node;
      node.fixed = fixed.fixed;
      node.stored = fixed.stored;
      const auto cut = cuts.find(name);
      if (cut == cuts.end()) continue;
      node.fixed.insert(cut->second.fixed.begin(), cut->second.fixed.end());
      node.stored.insert(cut->second.stored.begin(), cut->second.stored.end());
    }
  }

 private:
  // The cuts with these weights, which are alike, cut in each other way along a mesh axis.
  void AddCutsOf(const std::vector<std::string>& weights, int axis, const VariableCuts& cuts,
                 std::vector<VariableCuts>* all) const {
    const int entry = 1 + axis;
    const Dims& shape = model_.variables.at(weights[0]).shape;
    const FixedSbp& is = cuts.at(weights[0]).fixed;
    const Role role = RoleOf(options_.roles, axis);
    if (before_.at(weights[0]).fixed.count(entry) > 0) return;
    for (int a = -1; a < shape.rank(); ++a) {  // -1: whole
      const bool taken = std::any_of(is.begin(), is.end(), [&](const auto& other) {
        return other.second.is_split() && other.second.axis == a;
      });
      if (a < 0 ? is.count(entry) == 0 : taken || shape[a] < model_.mesh.axis_size(axis)) continue;
      all->push_back(cuts);
      for (const std::string& weight : weights) {
        VariableCut& cut = all->back()[weight];
        cut.fixed.erase(entry);
        cut.stored.erase(entry);
        if (a < 0) continue;
        cut.fixed[entry] = S(a);
        if (role == Role::kBatch || role == Role::kContext) cut.stored.insert(entry);
      }
    }
  }

  // Variables that have a place already stay as they are.
  void CloseLoaded(Graph* graph) const {
    for (int n = 0; n < graph->num_nodes(); ++n) {
      Node& node = graph->node(n);
      if (!graph->alive(n) || node.kind != NodeKind::kVariable) continue;
      const auto known = model_.variables.find(node.name);
      if (known == model_.variables.end() || known->second.layout.sbp.empty()) continue;
      for (int axis = 0; axis < graph->mesh().rank(); ++axis) node.fixed.emplace(1 + axis, B());
    }
  }

  ModelImpl& model_;
  const CompileOptions& options_;
  Graph graph_;  // until the search has it
  std::map<std::string, VariableCut> before_;
  std::shared_ptr<WeightSearch> search_;
  VariableCuts chosen_;
};

// Why a session cannot be made, if it cannot; nothing of it stays but blocks that moved to other stages, and
// these move back before another is made.
std::optional<OverBudget> Refusal(ModelImpl* model, const std::function<Session()>& finish) {
  std::set<std::string> known;
  for (const auto& [name, variable] : model->variables) known.insert(name);
  const std::map<std::string, SessionSteps> steps = model->steps;
  const std::shared_ptr<SessionObserver> report = std::move(model->report);
  std::optional<OverBudget> refusal;
  try {
    finish();
  } catch (const OverBudget& over) {
    refusal = over;
  } catch (...) {
    model->report = std::move(report);
    throw;
  }
  model->report = std::move(report);
  std::erase_if(model->variables, [&](const auto& variable) { return known.count(variable.first) == 0; });
  model->steps = steps;
  return refusal;
}

// Prices of a byte, and which of the plans that they lead to fit.
class PricedPlans {
 public:
  PricedPlans(ModelImpl* model, CutChooser* chooser, const std::function<Session()>& finish)
      : model_(model), chooser_(chooser), finish_(finish) {}

  void Add(const VariableCuts& cuts, std::optional<OverBudget> refusal) {
    if (refusal && (!smallest_ || refusal->bytes < smallest_->bytes))
      smallest_ = refusal, of_smallest_ = cuts;
    tried_.push_back({cuts, !refusal});
  }

  bool Fits(double price) {
    const VariableCuts& cuts = chooser_->Choose(price);
    for (const auto& [other, fits] : tried_)
      if (other == cuts) return fits;
    Add(cuts, Refusal(model_, finish_));
    return tried_.back().second;
  }

  // Beside the smallest plan a smaller one, and so on, until one fits: the price is of all bytes, and the
  // budget of those that are there at once. Where no change of one kind of weights helps, two may.
  std::optional<VariableCuts> Descend() {
    while (true) {
      const int64_t before = smallest_->bytes;
      const std::vector<VariableCuts> beside = chooser_->Beside(of_smallest_);
      TryUntilSmaller(beside);
      for (size_t i = 0; i < beside.size() && !fitting_ && smallest_->bytes == before; ++i)
        TryUntilSmaller(chooser_->Beside(beside[i]));
      if (fitting_ || smallest_->bytes == before) return fitting_;
    }
  }

  const VariableCuts& smallest() const { return of_smallest_; }

  [[noreturn]] void Refuse(const OverBudget& of_smallest) const {
    throw OverBudget(Cat(of_smallest.what(), "\nOf the ", tried_.size(),
                         " choices of what its weights are cut along over ", model_->mesh.str(),
                         " that were tried this is the smallest."),
                     of_smallest.ranks, of_smallest.bytes, of_smallest.least);
  }

 private:
  // Until one fits, or takes less than the smallest before.
  void TryUntilSmaller(const std::vector<VariableCuts>& all) {
    constexpr size_t kMost = 64;  // plans
    const int64_t before = smallest_->bytes;
    for (const VariableCuts& cuts : all) {
      const bool known =
          std::any_of(tried_.begin(), tried_.end(), [&](const auto& other) { return other.first == cuts; });
      if (known) continue;
      if (tried_.size() >= kMost) return;
      chooser_->Set(cuts);
      Add(cuts, Refusal(model_, finish_));
      if (tried_.back().second) fitting_ = cuts;
      if (fitting_ || smallest_->bytes < before) return;
    }
  }

  ModelImpl* model_;
  CutChooser* chooser_;
  const std::function<Session()>& finish_;
  std::vector<std::pair<VariableCuts, bool>> tried_;  // and whether their plan fits
  std::optional<OverBudget> smallest_;                // of those that do not
  VariableCuts of_smallest_;
  std::optional<VariableCuts> fitting_;  // that Descend has found
};

}  // namespace

Session WithCutsChosen(ModelImpl* model, const CompileOptions& options, const std::function<Graph()>& begin,
                       const std::function<Session(SearchDepth)>& finish_as) {
  const auto finish = [&] { return finish_as(SearchDepth::kWhole); };
  const std::function<Session()> look = [&] { return finish_as(SearchDepth::kFirstLook); };
  // For cuts that fit at the first look. The whole search may divide blocks differently and exceed the
  // budget; the plan of the first look stands then.
  const auto within = [&] {
    try {
      return finish();
    } catch (const OverBudget&) {
      return look();
    }
  };
  constexpr int kDigits = 12, kRounds = 4;
  if (model->options.auto_cuts == AutoCuts::kNone || model->cuts_chosen) return finish();
  CutChooser chooser(model, options, begin);
  PricedPlans plans(model, &chooser, look);
  const VariableCuts fastest = chooser.Choose(0);
  try {
    Session session = finish();
    model->cuts_chosen = true;
    return session;
  } catch (const OverBudget& over) {
    plans.Add(fastest, over);
  }
  const auto price_of = [](int digits) { return std::pow(10.0, -digits); };  // in the highest
  int digits = kDigits;
  while (digits >= 0 && !plans.Fits(price_of(digits))) digits -= 2;
  if (digits < 0) {
    const std::optional<VariableCuts> fitting = plans.Descend();
    chooser.Take([&] { return fitting ? *fitting : plans.smallest(); });
    try {
      Session session = fitting ? within() : finish();
      model->cuts_chosen = true;
      return session;
    } catch (const OverBudget& over) {
      chooser.Set({});
      plans.Refuse(over);
    }
  }
  double high = price_of(digits), low = price_of(digits + 2);
  for (int round = 0; round < kRounds; ++round) {
    const double middle = std::sqrt(low * high);
    (plans.Fits(middle) ? high : low) = middle;
  }
  chooser.Choose(high);
  Session session = within();
  model->cuts_chosen = true;
  return session;
}

}  // namespace oneflow_like
