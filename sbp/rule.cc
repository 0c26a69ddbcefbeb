// Rules of labelled axes: reading the text, binding it to operand shapes, deriving the signatures.
#include "sbp/rule.h"

#include <glog/logging.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace oneflow_like {
namespace {

// The text as written, before there are shapes.
struct AxisText {
  bool leading = false;             // ".."
  std::vector<std::string> labels;  // empty: "1"
  std::string str() const {
    if (leading) return "..";
    if (labels.empty()) return "1";
    std::string text;
    for (const std::string& label : labels) text += (text.empty() ? "" : " ") + label;
    return labels.size() == 1 ? text : "(" + text + ")";
  }
};
struct OperandText {
  std::string name;
  bool any_number = false;  // "*x"
  std::vector<AxisText> axes;
  std::string str() const {
    std::string text;
    for (const AxisText& axis : axes) text += (text.empty() ? "" : " ") + axis.str();
    return name + "[" + text + "]";
  }
  bool has_leading() const {
    return std::any_of(axes.begin(), axes.end(), [](const AxisText& axis) { return axis.leading; });
  }
};
struct RuleText {
  std::vector<OperandText> in, out;
};

std::string Axes(int64_t count) { return Cat(count, count == 1 ? " axis" : " axes"); }

class RuleParser {
 public:
  RuleParser(const std::string& who, const std::string& text) : who_(who), text_(text) {}

  RuleText Parse() {
    RuleText rule;
    if (!Peek("->")) ParseOperands(&rule.in);
    Expect("->");
    ParseOperands(&rule.out);
    if (!AtEnd()) FailHere("a comma or the end");
    return rule;
  }

 private:
  bool AtEnd() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ == text_.size();
  }
  bool Peek(const std::string& token) { return !AtEnd() && text_.compare(at_, token.size(), token) == 0; }
  bool Accept(const std::string& token) {
    if (!Peek(token)) return false;
    at_ += token.size();
    return true;
  }
  void Expect(const std::string& token) {
    if (!Accept(token)) FailHere("\"" + token + "\"");
  }
  [[noreturn]] void FailHere(const std::string& wanted) {
    Reject(Cat(wanted, " was expected at \"", text_.substr(at_), "\""));
  }
  [[noreturn]] void Reject(const std::string& reason) {
    Fail(who_, ": the rule \"", text_, "\" cannot be read: ", reason);
  }

  std::string ParseWord(const std::string& what) {
    AtEnd();
    size_t begin = at_;
    auto is_word = [&](char c) {
      bool digit = std::isdigit(static_cast<unsigned char>(c)) && at_ > begin;
      return digit || std::isalpha(static_cast<unsigned char>(c)) || c == '_';
    };
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    if (at_ == begin) FailHere(what);
    return text_.substr(begin, at_ - begin);
  }

  void ParseOperands(std::vector<OperandText>* operands) {
    do {
      OperandText operand;
      operand.any_number = Accept("*");
      operand.name = ParseWord("an operand");
      Expect("[");
      while (!Accept("]")) {
        operand.axes.push_back(ParseAxis());
        if (operand.axes.back().leading && operand.axes.size() > 1)
          Reject("\"..\" must come first in an operand");
      }
      operands->push_back(std::move(operand));
    } while (Accept(","));
    auto any_number = [](const OperandText& operand) { return operand.any_number; };
    if (std::count_if(operands->begin(), operands->end(), any_number) > 1)
      Reject("only one operand a side can be starred");
  }

  AxisText ParseAxis() {
    AxisText axis;
    if (Accept("..")) {
      axis.leading = true;
    } else if (Accept("(")) {
      do axis.labels.push_back(ParseWord("a label"));
      while (!Accept(")"));
    } else if (!Accept("1")) {
      axis.labels.push_back(ParseWord("a label, .., 1 or ( h d )"));
    }
    return axis;
  }

  const std::string& who_;
  const std::string& text_;
  size_t at_ = 0;
};

// The i-th of `count` leading axes as a label; no label of the text begins with a dot.
std::string LeadingLabel(int i) { return ".." + std::to_string(i); }

// Labels in the order of their first appearance.
std::vector<std::string> LabelsOf(const BoundRule& rule) {
  std::vector<std::string> labels;
  for (const auto* operands : {&rule.in, &rule.out}) {
    for (const BoundRule::Operand& operand : *operands) {
      for (const BoundRule::Axis& axis : operand.axes) {
        for (const std::string& label : axis.labels) {
          if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
        }
      }
    }
  }
  return labels;
}

class Binder {
 public:
  Binder(const std::string& who, const std::string& text, const RuleNotes& notes,
         const std::vector<Dims>& shapes, const std::map<std::string, int64_t>& given)
      : who_(who), text_(RuleParser(who, text).Parse()), shapes_(shapes), given_(given) {
    rule_.notes = notes;
  }

  BoundRule Bind() {
    SpellOutStars(&text_.in,
                  static_cast<int64_t>(shapes_.size()) - static_cast<int64_t>(text_.in.size()) + 1);
    auto stars = given_.find("*");
    SpellOutStars(&text_.out, stars != given_.end() ? stars->second : starred_inputs_);
    CheckInputCount();
    for (size_t i = 0; i < shapes_.size(); ++i) {
      leading_of_.push_back(CountLeadingAxes(text_.in[i], shapes_[i].rank()));
      leading_ = std::max(leading_, leading_of_.back());
    }
    for (size_t i = 0; i < shapes_.size(); ++i) {
      rule_.in.push_back(SpellOut(text_.in[i], leading_of_[i]));
      rule_.in[i].shape = shapes_[i];
    }
    for (const OperandText& operand : text_.out) rule_.out.push_back(SpellOut(operand, leading_));
    SpellOutNotes();
    TakeGiven();
    BindLeadingAxes();
    BindSingleLabels();
    while (BindMergedAxes()) {
    }
    CheckInputs();
    ShapeOutputs();
    return std::move(rule_);
  }

 private:
  void SpellOutStars(std::vector<OperandText>* operands, int64_t count) {
    auto star =
        std::find_if(operands->begin(), operands->end(), [](const OperandText& o) { return o.any_number; });
    if (star == operands->end()) return;
    OperandText form = *star;
    form.any_number = false;
    size_t at = star - operands->begin();
    operands->erase(star);
    for (int64_t i = 0; i < count; ++i) {
      OperandText operand = form;
      operand.name += std::to_string(i);
      starred_[form.name].push_back(operand.name);
      operands->insert(operands->begin() + at + i, operand);
    }
    if (operands == &text_.in) starred_inputs_ = count;
  }

  void CheckInputCount() {
    size_t needed = text_.in.size();
    if (shapes_.size() == needed) return;
    std::string names;
    for (const OperandText& operand : text_.in) names += (names.empty() ? "" : ", ") + operand.name;
    Fail(who_, ": ", shapes_.size(), shapes_.size() == 1 ? " input" : " inputs", " given, but it takes ",
         needed, names.empty() ? "" : " (" + names + ")");
  }

  // How many axes `..` stands for in an input of this rank.
  int CountLeadingAxes(const OperandText& operand, int rank) {
    int labelled = static_cast<int>(operand.axes.size());
    if (operand.has_leading()) {
      --labelled;
      if (rank < labelled) {
        Fail(who_, ": ", operand.name, " has ", Axes(rank), ", but needs at least ", labelled, " (",
             operand.str(), ")");
      }
      return rank - labelled;
    }
    if (rank != labelled) {
      Fail(who_, ": ", operand.name, " has ", Axes(rank), ", but needs ", labelled, " (", operand.str(), ")");
    }
    return 0;
  }

  // Inputs have as many of the leading axes as their rank leaves, aligned at the right; outputs have all.
  BoundRule::Operand SpellOut(const OperandText& text, int leading) {
    BoundRule::Operand operand;
    operand.name = text.name;
    for (const AxisText& axis : text.axes) {
      if (!axis.leading) {
        operand.axes.push_back({axis.labels});
        continue;
      }
      for (int i = leading_ - leading; i < leading_; ++i) operand.axes.push_back({{LeadingLabel(i)}});
    }
    return operand;
  }

  void SpellOutNotes() {
    RuleNotes& notes = rule_.notes;
    for (std::set<std::string>* labels : {&notes.whole, &notes.expandable}) {
      if (labels->erase("..") == 0) continue;
      for (int i = 0; i < leading_; ++i) labels->insert(LeadingLabel(i));
    }
    if (auto fold = notes.folds.extract("..")) {
      for (int i = 0; i < leading_; ++i) notes.folds[LeadingLabel(i)] = fold.mapped();
    }
    // Operands that this use of the operator lacks (an optional bias) leave their set; a set left empty is
    // none.
    std::set<std::string> present;
    for (const auto* operands : {&rule_.in, &rule_.out}) {
      for (const BoundRule::Operand& operand : *operands) present.insert(operand.name);
    }
    std::vector<std::set<std::string>> linear;
    for (const std::set<std::string>& names : notes.linear) {
      std::set<std::string> kept;
      for (const std::string& name : names) {
        if (present.count(name) != 0) kept.insert(name);
        auto starred = starred_.find(name);
        if (starred != starred_.end()) kept.insert(starred->second.begin(), starred->second.end());
      }
      if (!kept.empty()) linear.push_back(kept);
    }
    notes.linear = std::move(linear);
  }

  // Broadcasting: every leading axis takes the one extent other than 1 that its operands agree on.
  void BindLeadingAxes() {
    std::map<std::string, const BoundRule::Operand*> from;
    for (const BoundRule::Operand& operand : rule_.in) {
      for (size_t i = 0; i < operand.axes.size(); ++i) {
        if (!IsLeading(operand.axes[i])) continue;
        const std::string& label = operand.axes[i].labels[0];
        int64_t extent = operand.shape[static_cast<int>(i)];
        auto [known, added] = rule_.extents.emplace(label, extent);
        if (added || known->second == 1) {
          known->second = extent;
          from[label] = &operand;
        } else if (extent != 1 && extent != known->second) {
          const BoundRule::Operand& other = *from[label];
          Fail(who_, ": axis ", AxisOf(other, label), " of ", other.name, " ", other.shape.str(), " is ",
               known->second, " but axis ", i, " of ", operand.name, " ", operand.shape.str(), " is ", extent,
               "; they must be equal, or one of them 1");
        }
      }
    }
  }

  static size_t AxisOf(const BoundRule::Operand& operand, const std::string& label) {
    size_t i = 0;
    while (!IsLeading(operand.axes[i]) || operand.axes[i].labels[0] != label) ++i;
    return i;
  }

  void TakeGiven() {
    std::vector<std::string> labels = LabelsOf(rule_);
    for (const auto& [label, extent] : given_) {
      if (std::find(labels.begin(), labels.end(), label) == labels.end()) continue;
      if (extent < 0) Fail(who_, ": axis ", label, " was given the extent ", extent, ", which is negative");
      rule_.extents[label] = extent;
    }
  }

  static bool IsLeading(const BoundRule::Axis& axis) {
    return axis.labels.size() == 1 && axis.labels[0][0] == '.';
  }

  void BindSingleLabels() {
    for (const BoundRule::Operand& operand : rule_.in) {
      for (size_t i = 0; i < operand.axes.size(); ++i) {
        if (operand.axes[i].labels.size() != 1 || IsLeading(operand.axes[i])) continue;
        const std::string& label = operand.axes[i].labels[0];
        int64_t extent = operand.shape[static_cast<int>(i)];
        auto [known, added] = rule_.extents.emplace(label, extent);
        if (added) settled_by_[label] = operand.name;
        if (known->second == extent) continue;
        auto other = settled_by_.find(label);
        if (other == settled_by_.end()) {
          Fail(who_, ": axis ", label, " is ", extent, " in ", operand.name, " but must be ", known->second);
        }
        Fail(who_, ": axis ", label, " is ", known->second, " in ", other->second, " but ", extent, " in ",
             operand.name, operand.name == other->second ? " as well, where the label stands twice" : "");
      }
    }
  }

  // Settles one label that is the only unknown one of a merged input axis; false when there is none left.
  bool BindMergedAxes() {
    for (const BoundRule::Operand& operand : rule_.in) {
      for (size_t i = 0; i < operand.axes.size(); ++i) {
        const BoundRule::Axis& axis = operand.axes[i];
        int64_t known = 1, extent = operand.shape[static_cast<int>(i)];
        std::set<std::string> unknown;
        for (const std::string& label : axis.labels) {
          auto found = rule_.extents.find(label);
          if (found == rule_.extents.end()) {
            unknown.insert(label);
          } else {
            known *= found->second;
          }
        }
        if (axis.labels.size() < 2 || unknown.size() != 1) continue;
        if (known == 0 || extent % known != 0) {
          Fail(who_, ": axis ", AxisText{false, axis.labels}.str(), " of ", operand.name, " is ", extent,
               ", which does not divide by ", known, " to leave a whole ", *unknown.begin());
        }
        rule_.extents[*unknown.begin()] = extent / known;
        return true;
      }
    }
    return false;
  }

  void CheckInputs() {
    for (const BoundRule::Operand& operand : rule_.in) {
      for (size_t i = 0; i < operand.axes.size(); ++i) {
        const BoundRule::Axis& axis = operand.axes[i];
        int64_t extent = operand.shape[static_cast<int>(i)];
        if (axis.labels.size() == 1) continue;
        int64_t wanted = ExtentOf(axis, operand.name);
        if (extent == wanted) continue;
        if (axis.labels.empty())
          Fail(who_, ": axis ", i, " of ", operand.name, " is ", extent, " but must be 1");
        Fail(who_, ": axis ", AxisText{false, axis.labels}.str(), " of ", operand.name, " is ", extent,
             " but must be ", wanted);
      }
    }
  }

  int64_t ExtentOf(const BoundRule::Axis& axis, const std::string& operand) {
    int64_t extent = 1;
    for (const std::string& label : axis.labels) {
      auto found = rule_.extents.find(label);
      if (found == rule_.extents.end()) {
        Fail(who_, ": axis ", label, " of ", operand, " follows from no input, its extent must be given");
      }
      extent *= found->second;
    }
    return extent;
  }

  void ShapeOutputs() {
    for (BoundRule::Operand& operand : rule_.out) {
      if (operand.axes.size() > Dims::kMaxRank)
        Fail(who_, ": ", operand.name, " would have ", operand.axes.size(), " axes, a tensor has at most ",
             Dims::kMaxRank);
      for (const BoundRule::Axis& axis : operand.axes) operand.shape.push_back(ExtentOf(axis, operand.name));
    }
  }

  const std::string& who_;
  RuleText text_;
  const std::vector<Dims>& shapes_;
  const std::map<std::string, int64_t>& given_;
  BoundRule rule_;
  int leading_ = 0;                                          // axes that ".." stands for
  std::vector<int> leading_of_;                              // and how many of them each input has
  int64_t starred_inputs_ = 0;                               // operands that a star stands for
  std::map<std::string, std::vector<std::string>> starred_;  // name in the text -> names of the operands
  std::map<std::string, std::string> settled_by_;            // label -> the operand its extent is from
};

// Where an operand has a label, and whether the axis may be cut along it.
struct Holding {
  enum Kind { kAbsent, kCuttable, kWhole } kind = kAbsent;
  int axis = 0;
  int64_t inner = 1;  // product of the extents behind the label on a merged axis
};

Holding FindLabel(const BoundRule& rule, const BoundRule::Operand& operand, const std::string& label) {
  Holding holding;
  for (size_t i = 0; i < operand.axes.size(); ++i) {
    const std::vector<std::string>& labels = operand.axes[i].labels;
    int64_t outer = 1, inner = 1;
    int found = 0;
    for (const std::string& each : labels) {
      int64_t extent = rule.extents.at(each);
      if (each == label) {
        ++found;
      } else {
        (found > 0 ? inner : outer) *= extent;
      }
    }
    if (found == 0) continue;
    // A broadcast label is held at extent 1: there is nothing of it to cut.
    if (labels.size() == 1 && operand.shape[static_cast<int>(i)] == 1 && rule.extents.at(label) != 1)
      continue;
    // Labels of extent 1 in front change no cut point.
    bool cuttable = holding.kind == Holding::kAbsent && found == 1 && outer == 1;
    holding = {cuttable ? Holding::kCuttable : Holding::kWhole, static_cast<int>(i), inner};
  }
  return holding;
}

class SignatureList {
 public:
  SignatureList(const BoundRule& rule, const std::vector<std::set<int64_t>>& grains, int64_t parts)
      : rule_(rule), grains_(grains), parts_(parts) {}

  std::vector<Signature> Make() {
    Add({std::vector<Sbp>(rule_.in.size()), std::vector<Sbp>(rule_.out.size()), ""});
    std::vector<std::string> labels = LabelsOf(rule_);
    for (const std::string& label : labels) {
      bool whole = rule_.notes.whole.count(label) != 0 || rule_.notes.expandable.count(label) != 0 ||
                   rule_.notes.along.count(label) != 0;
      if (!whole) CutLabel(label, false);
    }
    for (const std::set<std::string>& names : rule_.notes.linear) AddLinear(names);
    for (const std::string& label : labels) {
      if (rule_.notes.expandable.count(label) != 0) CutLabel(label, true);
    }
    return std::move(list_);
  }

 private:
  void Add(Signature signature) {
    if (std::find(list_.begin(), list_.end(), signature) == list_.end())
      list_.push_back(std::move(signature));
  }

  void CutLabel(const std::string& label, bool expanded) {
    std::vector<Holding> in, out;
    const std::string follower = FollowerOf(label);
    if (!follower.empty() && rule_.extents.at(follower) < std::min(parts_, rule_.extents.at(label))) return;
    for (const BoundRule::Operand& operand : rule_.in) in.push_back(FindLabel(rule_, operand, label));
    for (const BoundRule::Operand& operand : rule_.out) {
      out.push_back(FindLabel(rule_, operand, label));
      if (out.back().kind == Holding::kAbsent && !follower.empty())
        out.back() = FindLabel(rule_, operand, follower);
    }
    auto fold = rule_.notes.folds.find(label);
    bool can_recombine = expanded || fold != rule_.notes.folds.end();
    for (const auto* holdings : {&in, &out}) {
      for (const Holding& holding : *holdings) {
        if (holding.kind == Holding::kWhole) return;
        if (holdings == &out && holding.kind == Holding::kAbsent && !can_recombine) return;
      }
    }
    Sbp lost = expanded ? B() : can_recombine ? P(fold->second) : B();
    for (int64_t grain : follower.empty() ? GrainsOf(in) : std::set<int64_t>{1}) {
      Signature signature{.label = label, .expanded = expanded};
      for (size_t i = 0; i < in.size(); ++i)
        signature.in.push_back(CutOperand(rule_.in[i], in[i], grain, B()));
      for (size_t i = 0; i < out.size(); ++i)
        signature.out.push_back(CutOperand(rule_.out[i], out[i], grain, lost));
      Add(std::move(signature));
    }
  }

  // The label that goes along with this one; empty: none does.
  std::string FollowerOf(const std::string& label) const {
    for (const auto& [follower, led_by] : rule_.notes.along)
      if (led_by == label) return follower;
    return "";
  }

  Sbp CutOperand(const BoundRule::Operand& operand, const Holding& holding, int64_t grain,
                 const Sbp& absent) {
    if (holding.kind == Holding::kAbsent) return absent;
    // The inner extent is 0 when the tensor is empty; every cut of it is then the same.
    int64_t in_elements = std::max<int64_t>(1, grain * holding.inner);
    return Canonical(S(holding.axis, in_elements), operand.shape, parts_);
  }

  // Grains the label can be cut with: an input cut with grain G on a merged axis cuts the label with G /
  // inner.
  std::set<int64_t> GrainsOf(const std::vector<Holding>& in) {
    std::set<int64_t> usable = {1};
    for (size_t i = 0; i < in.size() && i < grains_.size(); ++i) {
      if (in[i].kind != Holding::kCuttable || in[i].inner < 1) continue;
      for (int64_t grain : grains_[i]) {
        if (grain >= 1 && grain % in[i].inner == 0) usable.insert(grain / in[i].inner);
      }
    }
    return usable;
  }

  void AddLinear(const std::set<std::string>& names) {
    Signature signature;
    bool outputs_named = false;
    for (const BoundRule::Operand& operand : rule_.out) {
      for (const auto& set : rule_.notes.linear)
        outputs_named = outputs_named || set.count(operand.name) != 0;
    }
    for (const BoundRule::Operand& operand : rule_.in) {
      signature.in.push_back(names.count(operand.name) != 0 ? P() : B());
    }
    for (const BoundRule::Operand& operand : rule_.out) {
      signature.out.push_back(!outputs_named || names.count(operand.name) != 0 ? P() : B());
    }
    Add(std::move(signature));
  }

  const BoundRule& rule_;
  const std::vector<std::set<int64_t>>& grains_;
  int64_t parts_;
  std::vector<Signature> list_;
};

}  // namespace

std::string Signature::str() const {
  auto join = [](const std::vector<Sbp>& entries) {
    std::string text;
    for (const Sbp& entry : entries) text += (text.empty() ? "" : " ") + entry.str();
    return text;
  };
  return join(in) + "->" + join(out);
}

double BoundRule::Volume() const {
  double volume = 1;
  for (const auto& [label, extent] : extents) volume *= static_cast<double>(extent);
  return volume;
}

BoundRule Bind(const std::string& who, const std::string& text, const RuleNotes& notes,
               const std::vector<Dims>& in_shapes, const std::map<std::string, int64_t>& given) {
  return Binder(who, text, notes, in_shapes, given).Bind();
}

std::vector<Signature> Signatures(const BoundRule& rule, const std::vector<std::set<int64_t>>& grains,
                                  int64_t parts) {
  return SignatureList(rule, grains, parts).Make();
}

bool Compatible(const Signature& a, const Signature& b) {
  if (a.label.empty() || a.label != b.label || a == b) return true;
  auto one_grain = [](const Signature& s) {
    int64_t grain = 0;
    for (const std::vector<Sbp>* side : {&s.in, &s.out})
      for (const Sbp& sbp : *side) {
        if (!sbp.is_split()) continue;
        if (grain != 0 && sbp.grain != grain) return false;
        grain = sbp.grain;
      }
    return true;
  };
  return one_grain(a) && one_grain(b);
}

}  // namespace oneflow_like
