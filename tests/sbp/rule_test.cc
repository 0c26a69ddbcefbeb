// Rules of labelled axes: a table of operators with all their signatures, the meaning of a cut checked label
// by label, broadcasting, merged axes, and what the errors say.
#include "sbp/rule.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

using Given = std::map<std::string, int64_t>;
using Texts = std::set<std::string>;

struct Case {
  std::string name, text;
  RuleNotes notes;
  std::vector<Dims> shapes;
  Given given;
  std::vector<std::set<int64_t>> grains;
  int64_t parts;
  Texts signatures;  // those of an expansion end in " expanded"
};

const std::map<std::string, Reduce> kFoldLeading = {{"..", Reduce::kSum}};

// A table: an operator, and all signatures it may have.
std::vector<Case> Cases() {
  const RuleNotes matmul{.folds = {{"k", Reduce::kSum}}, .linear = {{"a"}, {"b"}}};
  const RuleNotes linear_x{.linear = {{"x"}}};
  return {
      {"matmul",
       "a[.. m k], b[.. k n] -> y[.. m n]",
       matmul,
       {{4, 6}, {6, 5}},
       {},
       {},
       2,
       {"B B->B", "S1 S0->P", "S0 B->S0", "B S1->S1", "P B->P", "B P->P"}},
      {"matmul, batched and broadcast",
       "a[.. m k], b[.. k n] -> y[.. m n]",
       matmul,
       {{6, 3, 4, 5}, {3, 5, 7}},
       {},
       {},
       2,
       {"B B->B", "S0 B->S0", "S1 S0->S1", "S2 B->S2", "S3 S1->P", "B S2->S3", "P B->P", "B P->P"}},
      {"add",
       "a[..], b[..] -> y[..]",
       {.linear = {{"a", "b"}}},
       {{4, 3}, {4, 3}},
       {},
       {},
       2,
       {"B B->B", "S0 S0->S0", "S1 S1->S1", "P P->P"}},
      {"add, a row and a column",
       "a[..], b[..] -> y[..]",
       {.linear = {{"a", "b"}}},
       {{4, 1}, {3}},
       {},
       {},
       2,
       {"B B->B", "S0 B->S0", "B S0->S1", "P P->P"}},
      {"add of extent 1 everywhere",
       "a[..], b[..] -> y[..]",
       {},
       {{1}, {1}},
       {},
       {},
       2,
       {"B B->B", "S0 S0->S0"}},
      {"relu is not linear", "x[..] -> y[..]", {}, {{4, 3}}, {}, {}, 2, {"B->B", "S0->S0", "S1->S1"}},
      {"relu of an empty tensor", "x[..] -> y[..]", {}, {{0, 3}}, {}, {}, 2, {"B->B", "S0->S0", "S1->S1"}},
      {"relu carries grains",
       "x[..] -> y[..]",
       {},
       {{10, 8}},
       {},
       {{3, 4}},
       2,
       {"B->B", "S0->S0", "S0/3->S0/3", "S0/4->S0/4", "S1->S1", "S1/3->S1/3"}},
      {"reduce_sum, axis dropped",
       "x[a b] -> y[a]",
       {.folds = {{"b", Reduce::kSum}}, .linear = {{"x"}}},
       {{4, 3}},
       {},
       {},
       2,
       {"B->B", "S0->S0", "S1->P", "P->P"}},
      {"reduce_max, axis kept",
       "x[a b] -> y[a 1]",
       {.folds = {{"b", Reduce::kMax}}},
       {{4, 3}},
       {},
       {},
       2,
       {"B->B", "S0->S0", "S1->Pmax"}},
      {"no fold, no cut", "x[a b] -> y[a]", {}, {{4, 3}}, {}, {}, 2, {"B->B", "S0->S0"}},
      {"transpose",
       "x[a b c] -> y[c a b]",
       linear_x,
       {{2, 3, 4}},
       {},
       {},
       2,
       {"B->B", "S0->S1", "S1->S2", "S2->S0", "P->P"}},
      {"reshape, split on 2",
       "x[(h d)] -> y[h d]",
       linear_x,
       {{512}},
       {{"h", 8}},
       {},
       2,
       {"B->B", "S0->S0", "P->P"}},
      {"reshape, split on 3",
       "x[(h d)] -> y[h d]",
       linear_x,
       {{512}},
       {{"d", 64}},
       {{64, 128, 32}},
       3,
       {"B->B", "S0/64->S0", "S0/128->S0/2", "P->P"}},
      {"reshape, merge on 2",
       "x[h d] -> y[(h d)]",
       linear_x,
       {{8, 64}},
       {},
       {},
       2,
       {"B->B", "S0->S0", "P->P"}},
      {"reshape, merge on 3",
       "x[h d] -> y[(h d)]",
       linear_x,
       {{8, 64}},
       {},
       {{2}},
       3,
       {"B->B", "S0->S0/64", "S0/2->S0/128", "P->P"}},
      {"reshape, regroup", "x[(a b) c] -> y[a (b c)]", {}, {{6, 5}}, {{"a", 2}}, {}, 3, {"B->B", "S0/3->S0"}},
      {"reshape, extent 1 in front",
       "x[a b] -> y[(a b)]",
       {},
       {{1, 8}},
       {},
       {},
       2,
       {"B->B", "S0->S0/8", "S1->S0"}},
      {"layer_norm",
       "x[.. c], gamma[c], beta[c] -> y[.. c], mean[..], rstd[..]",
       {.whole = {"c"}},
       {{4, 6, 8}, {8}, {8}},
       {},
       {},
       2,
       {"B B B->B B B", "S0 B B->S0 S0 S0", "S1 B B->S1 S1 S1"}},
      {"layer_norm_grad",
       "dy[.. c], x[.. c] -> dx[.. c], dgamma[c]",
       {.folds = kFoldLeading, .whole = {"c"}},
       {{4, 8}, {4, 8}},
       {},
       {},
       2,
       {"B B->B B", "S0 S0->S0 P"}},
      {"embedding",
       "table[v d], ids[..] -> y[.. d]",
       {.folds = {{"v", Reduce::kSum}}, .linear = {{"table"}}},
       {{50, 8}, {4, 6}},
       {},
       {},
       2,
       {"B B->B", "S0 B->P", "S1 B->S2", "B S0->S0", "B S1->S1", "P B->P"}},
      {"broadcast_to",
       "x[1 b] -> y[a b]",
       linear_x,
       {{1, 3}},
       {{"a", 4}},
       {},
       2,
       {"B->B", "B->S0", "S1->S1", "P->P"}},
      {"sum_to",
       "x[a b] -> y[1 b]",
       {.folds = {{"a", Reduce::kSum}}, .linear = {{"x"}}},
       {{4, 3}},
       {},
       {},
       2,
       {"B->B", "S0->P", "S1->S1", "P->P"}},
      {"concat",
       "x0[a c b], x1[a d b] -> y[a e b]",
       {.linear = {{"x0", "x1"}}, .whole = {"c", "d", "e"}},
       {{2, 3, 4}, {2, 5, 4}},
       {{"e", 8}},
       {},
       2,
       {"B B->B", "S0 S0->S0", "S2 S2->S2", "P P->P"}},
      {"add_n",
       "*x[..] -> y[..]",
       {.linear = {{"x"}}},
       {{4}, {4}, {4}},
       {},
       {},
       2,
       {"B B B->B", "S0 S0 S0->S0", "P P P->P"}},
      {"unstack",
       "x[a b] -> *y[b]",
       {.linear = {{"x"}}, .whole = {"a"}},
       {{2, 4}},
       {{"*", 2}},
       {},
       2,
       {"B->B B", "S1->S0 S0", "P->P P"}},
      {"cross_entropy",
       "logits[.. c], target[..] -> loss[..], lse[..]",
       {.expandable = {"c"}},
       {{6, 10}, {6}},
       {},
       {},
       2,
       {"B B->B B", "S0 S0->S0 S0", "S1 B->B B expanded"}},
      {"cross_entropy_grad",
       "logits[.. c], target[..] -> dlogits[.. c]",
       {.expandable = {"c"}},
       {{6, 10}, {6}},
       {},
       {},
       2,
       {"B B->B", "S0 S0->S0", "S1 B->S1 expanded"}},
      {"blocks of classes, cut along with them",
       "logits[.. c], target[..] -> greatest[.. p], own[..]",
       {.folds = {{"c", Reduce::kSum}}, .along = {{"p", "c"}}},
       {{6, 10}, {6}},
       {{"p", 4}},
       {{1, 5}, {}},
       3,
       {"B B->B B", "S0 S0->S0 S0", "S0/5 S0/5->S0/5 S0/5", "S1 B->S1 P"}},
      {"fewer blocks than parts: the classes stay whole",
       "logits[.. c], target[..] -> greatest[.. p], own[..]",
       {.folds = {{"c", Reduce::kSum}}, .along = {{"p", "c"}}},
       {{6, 10}, {6}},
       {{"p", 2}},
       {},
       3,
       {"B B->B B", "S0 S0->S0 S0"}},
      {"initialiser", "-> y[a b]", {}, {}, {{"a", 4}, {"b", 3}}, {}, 2, {"->B", "->S0", "->S1"}},
      {"trace, a label twice",
       "x[i i b] -> y[b]",
       {.folds = {{"i", Reduce::kSum}}},
       {{3, 3, 4}},
       {},
       {},
       2,
       {"B->B", "S2->S0"}},
      {"only the named output is linear",
       "x[a] -> y[a], n[a]",
       {.linear = {{"x", "y"}}},
       {{4}},
       {},
       {},
       2,
       {"B->B B", "S0->S0 S0", "P->P B"}},
      {"an absent operand of a linear set",
       "x[a] -> y[a]",
       {.linear = {{"x", "bias"}, {"bias"}}},
       {{4}},
       {},
       {},
       2,
       {"B->B", "S0->S0", "P->P"}},
      {"dropout mask over leading axes only",
       "x[.. c] -> y[.. c]",
       {.whole = {".."}},
       {{4, 6, 8}},
       {},
       {},
       2,
       {"B->B", "S2->S2"}},
  };
}

TEST(RuleTest, SignaturesOfATableOfOperators) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    BoundRule rule = Bind(c.name, c.text, c.notes, c.shapes, c.given);
    std::vector<Signature> signatures = Signatures(rule, c.grains, c.parts);
    Texts got;
    for (const Signature& s : signatures) got.insert(s.str() + (s.expanded ? " expanded" : ""));
    EXPECT_EQ(got, c.signatures);
    EXPECT_EQ(got.size(), signatures.size()) << "a signature stands twice";
    EXPECT_EQ(signatures[0].label, "");
    for (const Sbp& entry : signatures[0].in) EXPECT_TRUE(entry.is_broadcast()) << "the first cuts nothing";
  }
}

// The interval of the label that part `index` of an operand holds, all of it where the operand is not cut.
Interval LabelInterval(const BoundRule& rule, const BoundRule::Operand& operand, const Sbp& sbp,
                       const std::string& label, int64_t parts, int64_t index) {
  int64_t inner = 1;
  bool behind = false;
  for (const std::string& each : operand.axes[sbp.axis].labels) {
    if (behind) inner *= rule.extents.at(each);
    behind = behind || each == label;
  }
  EXPECT_TRUE(behind) << operand.name << " is cut along an axis without label " << label;
  Interval held = Cut({0, operand.shape[sbp.axis]}, parts, index, sbp.grain);
  EXPECT_EQ(held.begin % inner, 0);
  EXPECT_EQ(held.extent % inner, 0);
  return {held.begin / inner, held.extent / inner};
}

// Whatever the text form says: all operands cut along a label must hold the same interval of it on every
// part.
TEST(RuleTest, AllOperandsHoldTheSamePartOfACutLabel) {
  int compared = 0;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    BoundRule rule = Bind(c.name, c.text, c.notes, c.shapes, c.given);
    for (int64_t parts : {2, 3, 4, 7}) {
      for (const Signature& s : Signatures(rule, c.grains, parts)) {
        if (s.label.empty()) continue;
        for (int64_t index = 0; index < parts; ++index) {
          std::set<std::pair<int64_t, int64_t>> intervals;
          std::vector<int64_t> followers;
          auto collect = [&](const std::vector<BoundRule::Operand>& operands,
                             const std::vector<Sbp>& entries) {
            for (size_t i = 0; i < operands.size(); ++i) {
              if (!entries[i].is_split()) continue;
              const BoundRule::Axis& axis = operands[i].axes[entries[i].axis];
              if (axis.labels.size() == 1 && rule.notes.along.count(axis.labels[0])) {
                followers.push_back(
                    Cut({0, rule.extents.at(axis.labels[0])}, parts, index, entries[i].grain).extent);
                continue;
              }
              Interval held = LabelInterval(rule, operands[i], entries[i], s.label, parts, index);
              if (held.extent > 0) {
                intervals.insert({held.begin, held.extent});
              } else {
                intervals.insert({-1, 0});
              }
              ++compared;
            }
          };
          collect(rule.in, s.in);
          collect(rule.out, s.out);
          EXPECT_EQ(intervals.size(), 1u) << s.str() << " part " << index << " of " << parts;
          for (int64_t held : followers)  // what goes along has its own extent, but a part where there is one
            EXPECT_EQ(held > 0, intervals.begin()->second > 0) << s.str() << " part " << index;
        }
      }
    }
  }
  EXPECT_GT(compared, 500);
}

TEST(RuleTest, ShapesOfOutputs) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    BoundRule rule = Bind(c.name, c.text, c.notes, c.shapes, c.given);
    for (const BoundRule::Operand& out : rule.out) {
      ASSERT_EQ(out.axes.size(), out.shape.size());
      for (size_t i = 0; i < out.axes.size(); ++i) {
        int64_t extent = 1;
        for (const std::string& label : out.axes[i].labels) extent *= rule.extents.at(label);
        EXPECT_EQ(out.shape[static_cast<int>(i)], extent);
      }
    }
  }
  auto shape = [](const std::string& text, const std::vector<Dims>& shapes, const Given& given = {}) {
    return Bind("op", text, {}, shapes, given).out[0].shape.str();
  };
  EXPECT_EQ(shape("a[.. m k], b[.. k n] -> y[.. m n]", {{6, 1, 4, 5}, {3, 5, 7}}), "[6,3,4,7]");
  EXPECT_EQ(shape("a[..], b[..] -> y[..]", {{4, 1}, {3}}), "[4,3]");
  EXPECT_EQ(shape("a[..], b[..] -> y[..]", {{0, 1}, {1, 3}}), "[0,3]");
  EXPECT_EQ(shape("a[..], b[..] -> y[..]", {{}, {}}), "[]");
  EXPECT_EQ(shape("x[(h d) c] -> y[h d c]", {{6, 2}}, {{"d", 3}}), "[2,3,2]");
  EXPECT_EQ(shape("x[(h d)], w[d] -> y[h (d h)]", {{6}, {3}}), "[2,6]");
  EXPECT_EQ(shape("x[a 1] -> y[1 a]", {{6, 1}}), "[1,6]");
}

TEST(RuleTest, VolumeIsTheIterationSpace) {
  EXPECT_EQ(Bind("matmul", "a[.. m k], b[.. k n] -> y[.. m n]", {}, {{2, 4, 6}, {6, 5}}, {}).Volume(), 240);
  // An extent given for a label that does not occur counts for nothing.
  EXPECT_EQ(Bind("relu", "x[..] -> y[..]", {}, {{4, 3}}, {{"unused", 9}}).Volume(), 12);
}

TEST(RuleTest, NotesAreSpelledOut) {
  BoundRule rule = Bind("op", "*x[.. c], b[c] -> y[.. c]",
                        {.folds = kFoldLeading, .linear = {{"x", "y"}, {"absent"}}, .whole = {".."}},
                        {{2, 3, 4}, {3, 4}, {4}}, {});
  EXPECT_EQ(rule.notes.whole, (Texts{"..0", "..1"}));
  EXPECT_EQ(rule.notes.folds.size(), 2u);
  EXPECT_EQ(rule.notes.folds.count("..1"), 1u);
  EXPECT_EQ(rule.notes.linear, (std::vector<Texts>{{"x0", "x1", "y"}}));
  EXPECT_EQ(rule.in[1].axes[0].labels[0], "..1") << "fewer leading axes are aligned at the right";
  EXPECT_EQ(rule.in[2].name, "b");
}

// An output that follows an input of extent 1 has lost the label: it can only be folded.
TEST(RuleTest, AnOutputHoldingALabelAtExtentOneHasLostIt) {
  BoundRule rule = Bind("sum_like", "dy[a b] -> dx[a b]", {.folds = {{"a", Reduce::kSum}}}, {{4, 3}}, {});
  rule.out[0].shape = {1, 3};
  Texts got;
  for (const Signature& s : Signatures(rule, {}, 2)) got.insert(s.str());
  EXPECT_EQ(got, (Texts{"B->B", "S0->P", "S1->S1"}));
}

TEST(RuleTest, ErrorsNameOperatorAxisOperandsAndNumbers) {
  auto error = [](const std::string& text, const std::vector<Dims>& shapes, const Given& given = {}) {
    return ErrorOf([&] { Bind("matmul at gpt.cc:31", text, {}, shapes, given); });
  };
  const std::string who = "matmul at gpt.cc:31: ", matmul = "a[.. m k], b[.. k n] -> y[.. m n]";
  EXPECT_EQ(error(matmul, {{4, 768}, {1024, 5}}), who + "axis k is 768 in a but 1024 in b");
  EXPECT_EQ(
      error(matmul, {{2, 4, 5}, {3, 5, 6}}),
      who + "axis 0 of a [2,4,5] is 2 but axis 0 of b [3,5,6] is 3; they must be equal, or one of them 1");
  EXPECT_EQ(error(matmul, {{5}, {5, 6}}), who + "a has 1 axis, but needs at least 2 (a[.. m k])");
  EXPECT_EQ(error(matmul, {{5, 6}}), who + "1 input given, but it takes 2 (a, b)");
  EXPECT_EQ(error(matmul, {{5, 6}, {6, 7}, {6, 7}}), who + "3 inputs given, but it takes 2 (a, b)");
  EXPECT_EQ(error("-> y[a]", {{5}}, {{"a", 5}}), who + "1 input given, but it takes 0");
  EXPECT_EQ(error("x[a b] -> y[a]", {{2, 3, 4}}), who + "x has 3 axes, but needs 2 (x[a b])");
  EXPECT_EQ(error("x[(h d)] -> y[h d]", {{10}}, {{"h", 4}}),
            who + "axis (h d) of x is 10, which does not divide by 4 to leave a whole d");
  EXPECT_EQ(error("x[(h d)] -> y[h d]", {{10}}, {{"h", 4}, {"d", 3}}),
            who + "axis (h d) of x is 10 but must be 12");
  EXPECT_EQ(error("x[(h d)] -> y[h d]", {{10}}),
            who + "axis h of x follows from no input, its extent must be given");
  EXPECT_EQ(error("x[a] -> y[a c]", {{10}}),
            who + "axis c of y follows from no input, its extent must be given");
  EXPECT_EQ(error("x[a 1] -> y[a]", {{10, 3}}), who + "axis 1 of x is 3 but must be 1");
  EXPECT_EQ(error("x[i i] -> y[i]", {{3, 4}}),
            who + "axis i is 3 in x but 4 in x as well, where the label stands twice");
  EXPECT_EQ(error("x[a] -> y[a]", {{10}}, {{"a", 7}}), who + "axis a is 10 in x but must be 7");
  EXPECT_EQ(error("-> y[a]", {}, {{"a", -1}}), who + "axis a was given the extent -1, which is negative");
  EXPECT_EQ(error("*x[a] -> y[a]", {{3}, {3}, {4}}), who + "axis a is 3 in x0 but 4 in x2");
}

// Wherever operands of extent 1, which fit everything, stand beside those that differ.
TEST(RuleTest, OperandsThatDoNotBroadcastAreNamedWithTheirOwnExtents) {
  std::vector<int64_t> extents = {1, 1, 3, 4};
  const std::string names = "abcd";
  do {
    std::vector<size_t> differ;
    for (size_t i = 0; i < extents.size(); ++i)
      if (extents[i] != 1) differ.push_back(i);
    const size_t i = differ[0], j = differ[1];
    std::vector<Dims> shapes;
    for (int64_t extent : extents) shapes.push_back({extent, 5});
    EXPECT_EQ(
        ErrorOf([&] { Bind("where", "a[..], b[..], c[..], d[..] -> y[..]", {}, shapes, {}); }),
        Cat("where: axis 0 of ", names[i], " ", shapes[i].str(), " is ", extents[i], " but axis 0 of ",
            names[j], " ", shapes[j].str(), " is ", extents[j], "; they must be equal, or one of them 1"));
  } while (std::next_permutation(extents.begin(), extents.end()));
}

TEST(RuleTest, RefusesTextThatIsNoRule) {
  for (const char* text :
       {"", "x", "x[a]", "x[a] -> ", "x[a -> y[a]", "x[a .. b] -> y[a]", "x[a], -> y[a]", "x[a] -> y[a] z",
        "x[2] -> y[]", "x[()] -> y[]", "*x[a], *z[a] -> y[a]", "x[(a] -> y[a]", "x[a] y[a]"}) {
    std::string error = ErrorOf([&] { Bind("op", text, {}, {{3}}, {}); });
    EXPECT_EQ(error.find(Cat("op: the rule \"", text, "\" cannot be read: ")), 0u)
        << text << " gives " << error;
  }
}

// A cut whose points fall inside the label's elements cannot be carried on: it adds no signature. One that
// fits is carried on.
TEST(RuleTest, GrainsThatDoNotFitAddNoSignature) {
  auto texts = [](const std::vector<Signature>& signatures) {
    std::vector<std::string> all;
    for (const Signature& s : signatures) all.push_back(s.str());
    return all;
  };
  for (int64_t outer : {2, 3, 5, 8})
    for (int64_t inner : {2, 3, 4, 7})
      for (int64_t grain = 1; grain <= 20; ++grain) {
        const Dims shape{outer * inner};
        BoundRule rule = Bind("op", "x[(a b)] -> y[a b]", {}, {shape}, {{"b", inner}});
        std::vector<std::string> with = texts(Signatures(rule, {{grain}}, 2)),
                                 without = texts(Signatures(rule, {{}}, 2));
        std::string where = Cat(outer, "x", inner, " in grains of ", grain);
        if (grain % inner != 0) {
          EXPECT_EQ(with, without) << where;
          continue;
        }
        std::string cut = Canonical(S(0, grain), shape, 2).str();
        EXPECT_TRUE(std::any_of(with.begin(), with.end(), [&](const std::string& s) {
          return s.compare(0, cut.size() + 2, cut + "->") == 0;
        })) << where;
      }
}

TEST(RuleTest, CutsOfOneLabelInDifferentGrains) {
  auto cut = [](Sbp in, Sbp out, const std::string& label) {
    Signature s;
    s.in = {in};
    s.out = {out};
    s.label = label;
    return s;
  };
  EXPECT_FALSE(Compatible(cut(S(1, 3), S(2, 15), "b"), cut(S(1), S(2), "b")));  // a merged axis
  EXPECT_TRUE(Compatible(cut(S(1, 3), S(2, 15), "b"), cut(S(1, 3), S(2, 15), "b")));
  EXPECT_TRUE(Compatible(cut(S(1, 3), S(1, 3), "b"), cut(S(1), S(1), "b")));  // the same cuts in all operands
  EXPECT_TRUE(Compatible(cut(S(1, 3), S(2, 15), "b"), cut(S(0), S(0), "a")));
}

}  // namespace
}  // namespace oneflow_like
