#include "oneflow_like/session/cuts_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "oneflow_like/session/summary.h"

namespace oneflow_like {
namespace {

// "tp:S0 stored dp:S1". Axes of one device, along which nothing is cut, are left out.
std::string CutText(const Mesh& mesh, const VariableCut& cut) {
  std::string used, stored;
  for (const auto& [entry, sbp] : cut.fixed)
    if (mesh.axis_size(entry - 1) > 1)
      (cut.stored.count(entry) ? stored : used) += Cat(" ", mesh.axis_name(entry - 1), ":", sbp.str());
  return (used + (stored.empty() ? "" : " stored") + stored).substr(used.empty() && stored.empty() ? 0 : 1);
}

// Weights of one pattern that are cut alike.
struct CutLine {
  std::string text;  // of the cut; empty: they are whole
  double bytes = 0;
  int count = 0;
};

class CutsReport {
 public:
  CutsReport(const ModelImpl& model, const WeightSearch* search, const VariableCuts& cuts)
      : model_(model), search_(search), cuts_(cuts) {
    Collect();
  }

  std::string Text() const {
    size_t width = 0;
    for (const auto& [pattern, line] : lines_)
      if (!line.text.empty()) width = std::max(width, pattern.size());
    const Zero& zero = model_.options.zero;
    const bool parts = !zero.axis.empty() && zero.stage == 3;
    std::string text = Cat("weights as chosen for ", model_.mesh.str(), ", and bytes of them on a device",
                           parts ? " before ZeRO divides them" : "", ":\n");
    CutLine whole;
    for (const auto& [pattern, line] : lines_) {
      if (line.text.empty()) {
        whole.bytes += line.bytes;
        whole.count += line.count;
        continue;
      }
      text += Cat("  ", pattern, std::string(width + 2 - pattern.size(), ' '), line.text,
                  std::string(line.text.size() < 20 ? 20 - line.text.size() : 1, ' '), BytesText(line.bytes),
                  "\n");
    }
    if (whole.count > 0) text += Cat("  whole: ", whole.count, " weights, ", BytesText(whole.bytes), "\n");
    return search_ ? Cat(text, Estimates()) : text;
  }

  // The time that a step would take with the weights of each line whole, the others as they are.
  std::string Reasons() const {
    const double seconds = search_->Seconds(cuts_);
    std::string text =
        "of the weights that are cut, what a step would take longer (-: shorter) if they were whole:\n";
    for (const auto& [pattern, line] : lines_) {
      if (line.text.empty()) continue;
      VariableCuts without = cuts_;
      for (auto& [weight, cut] : without)
        if (PatternOf(weight) == pattern) cut = {};
      const double more = search_->Seconds(without) - seconds;
      text +=
          Cat("  ", pattern, " ", line.text, ": ", more < 0 ? "-" : "", SecondsText(std::abs(more)), "\n");
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
      line.text = CutText(model_.mesh, cut);
      line.bytes += Bytes(known->second, cut);
      ++line.count;
    }
  }

  double Bytes(const ModelVariable& variable, const VariableCut& cut) const {
    const std::vector<int> sizes = model_.graph.Sizes();
    NdSbp sbp(sizes.size(), B());
    for (const FixedSbp* fixed : {&variable.node.fixed, &cut.fixed})
      for (const auto& [entry, s] : *fixed) sbp[entry] = s;
    return static_cast<double>(LargestPiece(variable.shape, sbp, sizes).elements()) *
           static_cast<double>(SizeOf(variable.dtype));
  }

  // Of work and boxing one after another: what the search compares.
  std::string Estimates() const {
    std::string text = Cat(
        "work and messages of a step, one after another, by estimate: ", SecondsText(search_->Seconds(cuts_)),
        "; with whole weights ", SecondsText(search_->Seconds({})));
    VariableCuts annotated;
    for (const auto& [name, variable] : model_.variables)
      if (!variable.left_out.fixed.empty()) annotated[name] = variable.left_out;
    if (!annotated.empty())
      text += Cat("; as the code annotates them ", SecondsText(search_->Seconds(annotated)));
    return text + "\n";
  }

  const ModelImpl& model_;
  const WeightSearch* search_;
  const VariableCuts cuts_;
  std::map<std::string, std::set<std::string>> kinds_;  // cuts by pattern
  std::map<std::string, CutLine> lines_;                // by pattern
};

}  // namespace

std::string CutsText(const ModelImpl& model, const WeightSearch* search, const VariableCuts& cuts) {
  return CutsReport(model, search, cuts).Text();
}
std::string CutReasons(const ModelImpl& model, const WeightSearch& search, const VariableCuts& cuts) {
  return CutsReport(model, &search, cuts).Reasons();
}

}  // namespace oneflow_like
