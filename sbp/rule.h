// Labelled axes: one line of text from which an operator's shapes and signatures derive.
//
//   "a[.. m k], b[.. k n] -> y[.. m n]"
//
// Grammar. Operands are separated by commas, inputs left of "->". A bracket lists the labels of the operand's
// axes in order. `..` stands for any number of leading axes, aligned at the right and broadcast: an operand
// may have fewer of them, or extent 1 where the output has more. `(h d)` is one axis that merges labels, h
// outermost. `1` is an axis of extent 1 without a label (kept reduced axes). `*x[..]` in an input list stands
// for any number of operands of that form, named x0, x1, ...; `*y[..]` likewise for outputs, as many as
// given["*"] says, else as the starred inputs. Notes about `x` hold for all of them. The axes of `..` become
// labels ..0, ..1 and so on. A label may stand twice in one operand (then it is whole).
//
// Per mesh axis the legal signatures are exactly: nothing cut; each label that is not whole cut (S where an
// operand has it at full extent, B where it has not, P(fold) where an output loses it; a label that an output
// loses without a fold cannot be cut); each linear set Partial(sum) (P inside the set, B outside, P on the
// outputs in the set). A label that goes along with another one is cut where that is, with grain 1, and never
// by itself; it must have an index for each part that has some of the other's.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/dims.h"
#include "sbp/sbp.h"

namespace oneflow_like {

// One signature of a node along one mesh axis.
struct Signature {
  std::vector<Sbp> in, out;
  // The label that is cut; empty when nothing is cut or a linear set is Partial.
  std::string label;
  // Legal only when the operator is replaced by its expansion (cross_entropy with its classes cut).
  bool expanded = false;
  std::string str() const;  // "S0 B->S0"
  bool operator==(const Signature& o) const { return in == o.in && out == o.out; }
};

// Whether one node may have both signatures, each along a mesh axis of its own. Two cuts of one label nest,
// and where the label is part of a merged axis the pieces of the operands match only when both have the same
// grains.
bool Compatible(const Signature& a, const Signature& b);

// The rest of an operator's rule, besides the line of labels.
struct RuleNotes {
  std::map<std::string, Reduce> folds;        // label -> how shards recombine where an output loses it
  std::vector<std::set<std::string>> linear;  // operand names; outputs not named in a set are Partial when no
                                              // set names an output at all, else B
  std::set<std::string> whole;                // labels that cannot be cut
  std::set<std::string> expandable;  // whole labels that an expansion lets one cut: outputs that lose
                                     // such a label are B
  // Labels of outputs alone -> the label they go along with: an axis of blocks of classes has an extent of
  // its own, and is cut exactly where the classes are, each part with the blocks of its classes.
  std::map<std::string, std::string> along;
};

// A rule with the actual operands filled in: every `..` and `*` spelled out, every label with its global
// extent.
struct BoundRule {
  struct Axis {
    std::vector<std::string> labels;  // empty: an axis of extent 1 without a label
  };
  struct Operand {
    std::string name;
    std::vector<Axis> axes;
    Dims shape;
  };
  std::vector<Operand> in, out;
  std::map<std::string, int64_t> extents;
  RuleNotes notes;  // with ".." spelled out as the labels it became

  // Extents of all labels, their product: the size of the iteration space.
  double Volume() const;
};

// Binds the text to operand shapes. Output-only labels, and labels inside a merged input axis that no other
// axis settles, take their extents from `given`. Throws Error in the user's words, naming the operator
// (`who`), the axis by its label and both extents: "matmul: axis k is 768 in a but 1024 in b".
BoundRule Bind(const std::string& who, const std::string& text, const RuleNotes& notes,
               const std::vector<Dims>& in_shapes, const std::map<std::string, int64_t>& given);

// All legal signatures along one mesh axis. `grains` are candidate grains per input (those its producers may
// have); 1 is always tried. A label cut with grain g makes S(axis, g * extent of the inner labels) of a
// merged axis. `parts` as in Canonical. The first is "nothing cut".
std::vector<Signature> Signatures(const BoundRule& rule, const std::vector<std::set<int64_t>>& grains,
                                  int64_t parts);

}  // namespace oneflow_like
