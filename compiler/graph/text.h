// The text form of a logical graph, which can be read back. One node per line:
//
//   mesh cpu:dp=2,tp=2
//   times 4
//   region block0 full
//   x = input : f32[8,6] {dp:B,tp:S1}
//   y = matmul(x, w) : f32[8,4] {dp:B,tp:P}
//   a = relu(y {dp:B,tp:B}) : f32[8,4] {dp:B,tp:B} @pp=1 !backward
//   m, r = layer_norm(a, g, b) eps=1e-05 : f32[8,4] {..}, f32[8] {..} after=y,a
//   w.b = all_gather(w) axes=[0] : f32[8,6] {..} !backward !remade
//   fetch loss(m)
//
// Before signatures are chosen, `: f32[8,6] fixed {tp:S1}` is the user's annotation of the first output. A
// node without outputs has its name after the operator; others are named by their first output.
//
// A signature after an operand is the one that the node needs, if the value has another. Entries of a
// signature are in mesh order, time first when there are several micro-batches; axes that are fixed or of
// extent 1 are left out. `#` starts a comment.
#pragma once

#include <string>

#include "compiler/graph/graph.h"

namespace oneflow_like {

std::string ToText(const Graph& graph);
std::string SbpText(const Graph& graph, const Slice& slice, const NdSbp& sbp);  // "{dp:B,tp:P}"
// Throws Error naming the line. Ops are not checked against the catalog's rules (a text may be wrong on
// purpose).
Graph ParseGraph(const Catalog& catalog, const std::string& text);

}  // namespace oneflow_like
