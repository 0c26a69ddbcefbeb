// Maps the variables of a model to another library's names and layouts: a table that is written once for each
// model and serves both directions. "Ours" are this library's variables, "theirs" the other library's
// tensors. OurNames shows their tensors as our variables, TheirNames our variables as their tensors; both
// read only the requested boxes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/checkpoint/source.h"

namespace oneflow_like {

// One tensor of theirs: it consists of one of our variables, or of several, joined along one of its axes.
//   {.theirs = "h.{i}.attn.c_attn.weight",                        // [w, 3 w]
//    .ours = {{"block{i}/q", {w, heads, depth}}, {"block{i}/k", {w, heads, depth}}, {"block{i}/v", ...}},
//    .axes = {1, 2}, .joined = 1}
//   {.theirs = "layers.{i}.mlp.up_proj.weight",                   // [inner, w], a Linear of torch
//    .ours = {{"block{i}/up", {w, inner}}}, .order = {1, 0}}
//   {.theirs = "layers.{i}.experts.3.up.weight",                  // [inner, w], of one of 8 experts
//    .ours = {{"block{i}/experts/up", {w, inner}, 3, 8}}, .order = {1, 0}}
struct NameRow {
  struct Variable {
    std::string name;
    Dims shape;
    // Where `parts` is not 0, `shape` is that of one of so many equal parts of the variable, along a first
    // axis that it has besides: part number `part`. Other rows have the other parts.
    int64_t part = 0, parts = 0;

    Dims Whole() const;  // the variable's own shape
  };
  std::string theirs;
  std::vector<Variable> ours;
  // How many of our axes, in order, form each of theirs; 0: an axis of extent 1. Empty: one each.
  std::vector<int> axes;
  int joined = 0;          // the axis of theirs along which ours are joined
  std::vector<int> order;  // axis i of theirs is axis order[i] of what `axes` gives; empty: axis i
};

struct NameTable {
  std::string model;  // "GPT-2", for messages
  std::vector<NameRow> rows;
  std::string optional_prefix;       // a prefix of their names that files may lack: "transformer."
  std::vector<std::string> ignored;  // tensors of theirs without variables of ours; * matches anything

  void Add(NameRow row) { rows.push_back(std::move(row)); }
  // Adds `times` rows, with 0, 1, ... for every {i} in names.
  void Repeat(int64_t times, const NameRow& row);
};

// The places of a row's variables in its tensor.
struct RowLayout {
  explicit RowLayout(const NameRow& row);  // throws Error for a row that contradicts itself
  NameRow row;
  Dims shape;              // of theirs
  std::vector<Box> parts;  // of theirs, one for each of ours
};

// Shows a source with their names under our names.
class OurNames : public VariableSource {
 public:
  // Throws Error naming all tensors that are missing, unknown to the table, of another shape, or of a type
  // that this library does not have. Those that the table ignores may be of any type.
  OurNames(std::shared_ptr<VariableSource> theirs, const NameTable& table);
  void Read(const std::string& variable, const Box& box, void* to) override;
  const std::string& where() const override { return theirs_->where(); }
  std::vector<SourceFact> Facts() const override { return theirs_->Facts(); }

 private:
  struct Place {
    size_t row = 0, part = 0;
    std::string theirs;  // its name in the file
  };
  const std::shared_ptr<VariableSource> theirs_;
  void ReadPart(const Place& place, DType dtype, const Box& box, void* to);

  std::vector<RowLayout> rows_;
  std::map<std::string, std::vector<Place>> places_;  // of each part, or of the whole
  std::string part_;
};

// Shows a source with our variables under their names, without the state of trainings.
class TheirNames : public VariableSource {
 public:
  // Throws Error naming all variables that are missing, unknown to the table, or of another shape.
  TheirNames(std::shared_ptr<VariableSource> ours, const NameTable& table);
  void Read(const std::string& tensor, const Box& box, void* to) override;
  const std::string& where() const override { return ours_->where(); }
  std::vector<SourceFact> Facts() const override { return ours_->Facts(); }

 private:
  const std::shared_ptr<VariableSource> ours_;
  std::map<std::string, RowLayout> rows_;
  std::string part_;
};

}  // namespace oneflow_like
