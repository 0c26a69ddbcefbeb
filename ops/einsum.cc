// einsum of any number of operands: `...` becomes labels, products are taken two at a time in the order of
// least work, and what one operand alone loses is summed before.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "ops/equation.h"
#include "ops/language/calls.h"

namespace oneflow_like {

namespace {

// An operand, an axis of it for each letter.
struct Term {
  Tensor tensor;
  std::string labels;
};

struct Request {
  std::string who, text;  // for messages
  Here at;
};

// "a...b, cd -> ab" as its operands and its output; blanks are left out.
std::vector<std::string> Sides(const Request& r, size_t operands) {
  std::string plain;
  std::copy_if(r.text.begin(), r.text.end(), std::back_inserter(plain), [](char c) { return c != ' '; });
  const size_t arrow = plain.find("->");
  if (arrow == std::string::npos) Fail(r.who, ": equation \"", r.text, "\" is not of the form \"mk,kn->mn\"");
  std::vector<std::string> sides(1);
  for (char c : plain.substr(0, arrow)) {
    if (c == ',') {
      sides.emplace_back();
    } else {
      sides.back() += c;
    }
  }
  if (sides.size() != operands) {
    Fail(r.who, ": equation \"", r.text, "\" has ", sides.size(),
         sides.size() == 1 ? " operand" : " operands", " but ", operands,
         operands == 1 ? " was given" : " were given");
  }
  sides.push_back(plain.substr(arrow + 2));
  return sides;
}

// Throws Error unless each label is a letter and stands once, beside at most one "...".
void CheckLabels(const Request& r, const std::string& side) {
  std::string labels = side;
  const size_t dots = labels.find("...");
  if (dots != std::string::npos) labels.erase(dots, 3);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (!std::isalpha(static_cast<unsigned char>(labels[i])))
      Fail(r.who, ": '", labels[i], "' in equation \"", r.text, "\" is not a letter");
    if (labels.find(labels[i], i + 1) != std::string::npos)
      Fail(r.who, ": label ", labels[i], " stands twice in \"", side, "\" of equation \"", r.text, "\"");
  }
}

// Letters that the equation does not use, for the axes of `...`.
std::string FreeLetters(const Request& r, size_t count) {
  std::string letters;
  for (char c : std::string("zyxwvutsrqponmlkjihgfedcbaZYXWVUTSRQPONMLKJIHGFEDCBA")) {
    if (letters.size() < count && r.text.find(c) == std::string::npos) letters = c + letters;
  }
  if (letters.size() < count)
    Fail(r.who, ": equation \"", r.text, "\" leaves no letters for the axes of \"...\"");
  return letters;
}

// x without the axes of `...` along which it is broadcast (extent 1), and its labels: `fresh` for the rest.
Term Spelled(const Request& r, Tensor x, const std::string& side, const std::string& fresh,
             const std::map<char, int64_t>& extents) {
  const size_t dots = side.find("...");
  if (dots == std::string::npos) return {x, side};
  const int before = static_cast<int>(dots), covered = x.shape().rank() - static_cast<int>(side.size() - 3);
  const std::string names = fresh.substr(fresh.size() - static_cast<size_t>(covered));
  std::string labels = side.substr(0, dots);
  Dims held;
  for (int axis = 0; axis < x.shape().rank(); ++axis) {
    const bool inside = axis >= before && axis < before + covered;
    if (inside) {
      const char label = names[static_cast<size_t>(axis - before)];
      if (x.shape()[axis] == 1 && extents.at(label) != 1) continue;
      labels += label;
    }
    held.push_back(x.shape()[axis]);
  }
  return {held.rank() == x.shape().rank() ? x : reshape(x, held, r.at), labels + side.substr(dots + 3)};
}

// How many axes each operand's `...` covers; throws Error for an operand of too few axes.
std::vector<size_t> CoveredLabels(const Request& r, const std::vector<std::string>& sides,
                                  const std::vector<Tensor>& operands) {
  std::vector<size_t> covered(operands.size(), 0);
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool dots = sides[i].find("...") != std::string::npos;
    const int named = static_cast<int>(sides[i].size()) - (dots ? 3 : 0), rank = operands[i].shape().rank();
    if (dots ? rank < named : rank != named) {
      Fail(r.who, ": operand ", i + 1, " is ", operands[i].shape().str(), " of ", rank,
           rank == 1 ? " axis" : " axes", " but \"", sides[i], "\" names ", named);
    }
    covered[i] = static_cast<size_t>(rank - named);
  }
  return covered;
}

// The operands by letters alone, and the output's letters last.
struct Spelling {
  std::vector<Term> terms;
  std::string y;
  std::map<char, int64_t> extents;
};

void SettleExtents(const Request& r, const std::string& side, const std::string& fresh, size_t covered,
                   const Tensor& x, size_t operand, std::map<char, int64_t>* extents) {
  const size_t dots = side.find("...");
  std::string labels = side;
  if (dots != std::string::npos) labels.replace(dots, 3, fresh.substr(fresh.size() - covered));
  for (size_t axis = 0; axis < labels.size(); ++axis) {
    const int64_t extent = x.shape()[static_cast<int>(axis)];
    const bool broadcasts = fresh.find(labels[axis]) != std::string::npos;
    auto [at, first] = extents->try_emplace(labels[axis], extent);
    if (first || at->second == extent || (broadcasts && extent == 1)) continue;
    if (!broadcasts || at->second != 1) {
      Fail(r.who, ": axis ", axis, broadcasts ? std::string(" (of ...)") : Cat(" (", labels[axis], ")"),
           " of operand ", operand + 1, " is ", extent, " but ", at->second, " in another operand");
    }
    at->second = extent;
  }
}

Spelling Spell(const Request& r, const std::vector<Tensor>& operands) {
  std::vector<std::string> sides = Sides(r, operands.size());
  for (const std::string& side : sides) CheckLabels(r, side);
  const std::vector<size_t> covered = CoveredLabels(r, sides, operands);
  const size_t most = *std::max_element(covered.begin(), covered.end());
  const std::string fresh = FreeLetters(r, most);
  Spelling s;
  for (size_t i = 0; i < operands.size(); ++i)
    SettleExtents(r, sides[i], fresh, covered[i], operands[i], i, &s.extents);
  for (size_t i = 0; i < operands.size(); ++i)
    s.terms.push_back(Spelled(r, operands[i], sides[i], fresh, s.extents));
  s.y = sides.back();
  const size_t dots = s.y.find("...");
  if (dots != std::string::npos) s.y.replace(dots, 3, fresh);
  if (dots == std::string::npos && most > 0)
    Fail(r.who, ": operands of equation \"", r.text, "\" have axes of \"...\" but its output has not");
  for (char label : s.y) {
    if (s.extents.count(label) == 0)
      Fail(r.who, ": output label ", label, " of equation \"", r.text, "\" stands in no operand");
  }
  return s;
}

// --- One operand: what it alone loses is summed, and the rest put in order ---

Term Summed(const Request& r, Term term, const std::string& keep) {
  std::vector<int64_t> axes;
  std::string labels;
  for (size_t i = 0; i < term.labels.size(); ++i) {
    if (HasLabel(keep, term.labels[i])) {
      labels += term.labels[i];
    } else {
      axes.push_back(static_cast<int64_t>(i));
    }
  }
  if (axes.empty()) return term;
  return {sum(term.tensor, axes, false, r.at), labels};
}

Tensor InOrder(const Request& r, const Term& term, const Spelling& s) {
  Term x = Summed(r, term, s.y);
  std::vector<int64_t> order;
  Dims shape;
  for (char label : s.y) {
    const size_t axis = x.labels.find(label);
    if (axis != std::string::npos) order.push_back(static_cast<int64_t>(axis));
    shape.push_back(s.extents.at(label));
  }
  return std::is_sorted(order.begin(), order.end()) ? x.tensor : transpose(x.tensor, order, r.at);
}

// --- The order of products ---

double Size(const std::string& labels, const std::map<char, int64_t>& extents) {
  double size = 1;
  for (char label : labels) size *= static_cast<double>(extents.at(label));
  return size;
}

std::string Union(const std::string& a, const std::string& b) {
  std::string all = a;
  for (char label : b)
    if (!HasLabel(a, label)) all += label;
  return all;
}

// Labels of a product that the output or one of the other terms needs.
std::string KeptOf(const std::string& labels, const std::vector<std::string>& others, const std::string& y) {
  std::string kept;
  for (char label : labels) {
    bool needed = HasLabel(y, label);
    for (const std::string& other : others) needed = needed || HasLabel(other, label);
    if (needed) kept += label;
  }
  return kept;
}

// Pairs of terms to multiply, one after the other; a product takes the place of the first, the second leaves.
using Order = std::vector<std::pair<size_t, size_t>>;
struct Plan {
  double flops = std::numeric_limits<double>::infinity();
  Order order;
};

// All orders of few terms, in turn; `bound` ends those that are no better. Sets of terms are small enough
// that none is remembered: 6 terms have 2,700 orders.
void Search(const std::vector<std::string>& terms, const std::string& y,
            const std::map<char, int64_t>& extents, double flops, Order* order, Plan* best) {
  if (flops >= best->flops) return;
  if (terms.size() == 1) {
    *best = {flops, *order};
    return;
  }
  for (size_t i = 0; i < terms.size(); ++i) {
    for (size_t j = i + 1; j < terms.size(); ++j) {
      const std::string all = Union(terms[i], terms[j]);
      std::vector<std::string> rest = terms;
      rest.erase(rest.begin() + static_cast<long>(j));
      rest[i].clear();
      rest[i] = KeptOf(all, rest, y);
      order->push_back({i, j});
      Search(rest, y, extents, flops + Size(all, extents), order, best);
      order->pop_back();
    }
  }
}

// The cheapest product next, of many terms.
Order Greedy(std::vector<std::string> terms, const std::string& y, const std::map<char, int64_t>& extents) {
  Order order;
  while (terms.size() > 1) {
    double least = std::numeric_limits<double>::infinity();
    std::pair<size_t, size_t> next{0, 1};
    for (size_t i = 0; i < terms.size(); ++i) {
      for (size_t j = i + 1; j < terms.size(); ++j) {
        // The result of a product costs later what its operands no longer do.
        std::vector<std::string> rest = terms;
        rest[i].clear();
        rest[j].clear();
        const std::string all = Union(terms[i], terms[j]);
        const double cost = Size(all, extents) + Size(KeptOf(all, rest, y), extents) -
                            Size(terms[i], extents) - Size(terms[j], extents);
        if (cost < least) {
          least = cost;
          next = {i, j};
        }
      }
    }
    const std::string all = Union(terms[next.first], terms[next.second]);
    terms.erase(terms.begin() + static_cast<long>(next.second));
    terms[next.first].clear();
    terms[next.first] = KeptOf(all, terms, y);
    order.push_back(next);
  }
  return order;
}

Order BestOrder(const Spelling& s) {
  std::vector<std::string> terms;
  for (const Term& term : s.terms) terms.push_back(term.labels);
  if (terms.size() > 6) return Greedy(terms, s.y, s.extents);
  Plan best;
  Order order;
  Search(terms, s.y, s.extents, 0, &order, &best);
  // Sizes that overflow a double leave no order below infinity.
  return best.order.size() + 1 == terms.size() ? best.order : Greedy(terms, s.y, s.extents);
}

std::vector<std::string> OtherLabels(const std::vector<Term>& terms, size_t but) {
  std::vector<std::string> labels;
  for (size_t i = 0; i < terms.size(); ++i)
    if (i != but) labels.push_back(terms[i].labels);
  return labels;
}

Tensor Pair(const Request& r, const Term& a, const Term& b, const std::string& y) {
  if (y.size() > static_cast<size_t>(Dims::kMaxRank)) {
    Fail(r.who, ": a product of equation \"", r.text, "\" has ", y.size(), " axes but a tensor has at most ",
         Dims::kMaxRank);
  }
  return One("einsum", {a.tensor, b.tensor}, {{"equation", a.labels + "," + b.labels + "->" + y}}, r.at);
}

}  // namespace

Tensor einsum(const std::string& equation, Tensor a, Tensor b, Here at) {
  if (equation.find("...") == std::string::npos) return One("einsum", {a, b}, {{"equation", equation}}, at);
  return einsum(equation, std::vector<Tensor>{a, b}, at);
}

Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands, Here at) {
  at = at.In("einsum");
  const Request r{Who("einsum", at), equation, at};
  if (operands.empty()) Fail(r.who, ": takes at least 1 operand but was given 0");
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].defined()) Fail(r.who, ": operand ", i + 1, " is a Tensor that was never given a value");
  }
  Spelling s = Spell(r, operands);
  if (s.terms.size() == 1) return InOrder(r, s.terms[0], s);
  for (size_t i = 0; i < s.terms.size(); ++i) {
    std::string keep = s.y;
    for (const std::string& other : OtherLabels(s.terms, i)) keep += other;
    s.terms[i] = Summed(r, s.terms[i], keep);
  }
  for (const auto& [i, j] : BestOrder(s)) {
    const Term a = s.terms[i], b = s.terms[j];
    s.terms.erase(s.terms.begin() + static_cast<long>(j));
    const bool last = s.terms.size() == 1;
    std::string kept = last ? s.y : KeptOf(Union(a.labels, b.labels), OtherLabels(s.terms, i), s.y);
    s.terms[i] = {Pair(r, a, b, kept), kept};
  }
  return s.terms[0].tensor;
}

}  // namespace oneflow_like
