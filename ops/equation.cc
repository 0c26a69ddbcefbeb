#include "ops/equation.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "ops/manifest.h"

namespace oneflow_like {

std::string Equation::Summed() const {
  std::string lost;
  for (char label : a + b) {
    if (!HasLabel(y, label) && !HasLabel(lost, label)) lost += label;
  }
  return lost;
}

Equation ParseEquation(const std::string& who, const std::string& text) {
  std::string plain;
  std::copy_if(text.begin(), text.end(), std::back_inserter(plain), [](char c) { return c != ' '; });
  size_t comma = plain.find(','), arrow = plain.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) {
    Fail(who, ": equation \"", text, "\" is not of the form \"mk,kn->mn\"");
  }
  Equation e{plain.substr(0, comma), plain.substr(comma + 1, arrow - comma - 1), plain.substr(arrow + 2)};
  for (const std::string* labels : {&e.a, &e.b, &e.y}) {
    for (size_t i = 0; i < labels->size(); ++i) {
      char label = (*labels)[i];
      if (!std::isalpha(static_cast<unsigned char>(label))) {
        Fail(who, ": '", label, "' in equation \"", text, "\" is not a letter");
      }
      if (labels->find(label, i + 1) != std::string::npos) {
        Fail(who, ": label ", label, " stands twice in \"", *labels, "\" of equation \"", text, "\"");
      }
    }
  }
  for (char label : e.y) {
    if (!HasLabel(e.a, label) && !HasLabel(e.b, label)) {
      Fail(who, ": output label ", label, " of equation \"", text, "\" stands in no operand");
    }
  }
  return e;
}

Equation EquationOf(const OpCall& call) {
  RequireAttr(call, "equation");
  return ParseEquation(call.who, call.attrs->Str("equation"));
}

Equation MatmulEquation(int rank) {
  std::string rows;
  for (int axis = 0; axis + 1 < rank; ++axis) rows += static_cast<char>('a' + axis);
  return {rows + "k", "kn", rows + "n"};
}

std::string Spaced(const std::string& labels) {
  std::string out;
  for (char label : labels) out += (out.empty() ? "" : " ") + std::string(1, label);
  return out;
}

std::map<std::string, Reduce> SummedFolds(const Equation& e) {
  std::map<std::string, Reduce> folds;
  for (char label : e.Summed()) folds[std::string(1, label)] = Reduce::kSum;
  return folds;
}

EquationWalk MakeWalk(const std::string& labels, const Equation& e, const TensorArg& a, const TensorArg& b) {
  EquationWalk walk;
  for (char label : labels) {
    size_t in_a = e.a.find(label), in_b = e.b.find(label);
    bool has_a = in_a != std::string::npos, has_b = in_b != std::string::npos;
    walk.extent.push_back(has_a ? a.extent[in_a] : b.extent[in_b]);
    walk.a_stride.push_back(has_a ? InnerOf(a.extent, in_a) : 0);
    walk.b_stride.push_back(has_b ? InnerOf(b.extent, in_b) : 0);
  }
  return walk;
}

std::vector<LabelAxes> MatmulLabels(const Dims& a, const Dims& b, const Dims& y) {
  std::vector<LabelAxes> labels;
  int skip_a = y.rank() - a.rank(), skip_b = y.rank() - b.rank();
  for (int axis = 0; axis + 2 < y.rank(); ++axis) {
    bool in_a = axis >= skip_a && a[axis - skip_a] == y[axis],
         in_b = axis >= skip_b && b[axis - skip_b] == y[axis];
    labels.push_back({in_a ? axis - skip_a : -1, in_b ? axis - skip_b : -1, axis});
  }
  labels.push_back({a.rank() - 2, -1, y.rank() - 2});
  labels.push_back({-1, b.rank() - 1, y.rank() - 1});
  labels.push_back({a.rank() - 1, b.rank() - 2, -1});
  return labels;
}

std::vector<LabelAxes> EinsumLabels(const std::string& equation) {
  const Equation e = ParseEquation("einsum", equation);
  auto axis = [](const std::string& labels, char label) {
    size_t at = labels.find(label);
    return at == std::string::npos ? -1 : static_cast<int>(at);
  };
  std::vector<LabelAxes> labels;
  for (char label : e.y + e.Summed())
    labels.push_back({axis(e.a, label), axis(e.b, label), axis(e.y, label)});
  return labels;
}

}  // namespace oneflow_like
