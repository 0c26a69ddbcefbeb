// How another library names and stores the variables of a model: a table that is written once for each model
// and serves both directions. OurNames shows its tensors as our variables, TheirNames our variables as its
// tensors; both read only what is asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oneflow_like/checkpoint/source.h"

namespace oneflow_like {

// One tensor of theirs: several of our variables, or one, joined along one of its axes.
//   {.theirs = "h.{i}.attn.c_attn.weight",                        // [w, 3 w]
//    .ours = {{"block{i}/q", {w, heads, depth}}, {"block{i}/k", {w, heads, depth}}, {"block{i}/v", ...}},
//    .axes = {1, 2}, .joined = 1}
//   {.theirs = "layers.{i}.mlp.up_proj.weight",                   // [inner, w], a Linear of torch
//    .ours = {{"block{i}/up", {w, inner}}}, .order = {1, 0}}
struct NameRow {
  struct Variable {
    std::string name;
    Dims shape;
  };
  std::string theirs;
  std::vector<Variable> ours;
  std::vector<int> axes;   // how many of our axes, in order, are seen as one of theirs; empty: each as one
  int joined = 0;          // the axis of theirs along which ours follow one another
  std::vector<int> order;  // axis i of theirs is axis order[i] of what `axes` gives; empty: axis i
};

struct NameTable {
  std::string model;  // "GPT-2", for messages
  std::vector<NameRow> rows;
  std::string optional_prefix;       // of their names, which files may lack: "transformer."
  std::vector<std::string> ignored;  // tensors of theirs that hold nothing of ours; * stands for anything

  void Add(NameRow row) { rows.push_back(std::move(row)); }
  // So many rows, with 0, 1, ... for every {i} in names.
  void Repeat(int64_t times, const NameRow& row);
};

// Where the variables of a row are in its tensor.
struct RowLayout {
  explicit RowLayout(const NameRow& row);  // throws Error for a row that contradicts itself
  NameRow row;
  Dims shape;              // of theirs
  std::vector<Box> parts;  // of theirs, one for each of ours
};

// Variables by our names, of a source that has theirs.
class OurNames : public VariableSource {
 public:
  // Throws Error naming all tensors that are missing, unknown to the table, or of another shape.
  OurNames(std::shared_ptr<VariableSource> theirs, const NameTable& table);
  void Read(const std::string& variable, const Box& box, void* to) override;
  const std::string& where() const override { return theirs_->where(); }

 private:
  struct Place {
    size_t row = 0, part = 0;
    std::string theirs;  // as the file has it
  };
  const std::shared_ptr<VariableSource> theirs_;
  std::vector<RowLayout> rows_;
  std::map<std::string, Place> places_;
  std::string part_;
};

// Tensors by their names, of a source that has our variables. The state of trainings has no place there.
class TheirNames : public VariableSource {
 public:
  // Throws Error naming all variables that are missing, unknown to the table, or of another shape.
  TheirNames(std::shared_ptr<VariableSource> ours, const NameTable& table);
  void Read(const std::string& tensor, const Box& box, void* to) override;
  const std::string& where() const override { return ours_->where(); }

 private:
  const std::shared_ptr<VariableSource> ours_;
  std::map<std::string, RowLayout> rows_;
  std::string part_;
};

}  // namespace oneflow_like
