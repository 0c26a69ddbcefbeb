// Wrong uses of the public functions, one by one, as a user would write them: each gets one sentence, which
// begins with the function that was called and its line, and names what is wrong and the numbers.
// --print_sentences prints them.
#include <gflags/gflags.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <sstream>

#include "ops/language/losses.h"
#include "ops/language/scan.h"
#include "ops/language/sparse.h"
#include "ops/language/vision.h"
#include "tests/oneflow_like/session_fixture.h"

DEFINE_bool(print_sentences, false, "print the sentence that each wrong use gets");

namespace oneflow_like {
namespace {

struct WrongUse {
  int line;
  std::string caller;  // what the sentence begins with
  std::string pieces;  // what it holds, separated by '|'
  std::function<void(Model&)> use;
};

// Names of operators that a user never called: what functions are made of.
const char* const kParts[] = {"conv2d_grad_input", "scatter_sum", "index_sum", "channel_moments",
                              "channel_affine",    "at_least",    "at_most",   "add_squares_to_rows",
                              "attention_grad",    "gather_grad"};

std::string Fault(const WrongUse& wrong, const std::string& sentence) {
  const std::string begin = Cat(wrong.caller, " at sentences_test.cc:", wrong.line, ": ");
  if (sentence.empty()) return "is no error";
  if (!sentence.starts_with(begin)) return "does not begin with \"" + begin + "\"";
  std::istringstream pieces(wrong.pieces);
  for (std::string piece; std::getline(pieces, piece, '|');)
    if (sentence.find(piece, begin.size()) == std::string::npos) return "does not say \"" + piece + "\"";
  if (sentence.find('\n') != std::string::npos) return "is of several lines";
  if (sentence.size() > 300) return "is long";
  for (const char* part : kParts)
    if (sentence.find(part) != std::string::npos) return Cat("names ", part, ", which nobody called");
  return "";
}

void Check(const char* mesh, const std::vector<WrongUse>& all) {
  for (const WrongUse& wrong : all) {
    Model model(FullMesh(mesh));
    std::string sentence;
    try {
      wrong.use(model);
    } catch (const Error& error) {
      sentence = error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "line " << wrong.line << ": not an Error but " << error.what();
      continue;
    }
    if (FLAGS_print_sentences) std::printf("%s\n", sentence.c_str()), std::fflush(stdout);
    EXPECT_EQ(Fault(wrong, sentence), "") << "line " << wrong.line << ": \"" << sentence << "\"";
  }
}

// Inputs, of lines of their own.
Tensor X(Model& m, const Dims& shape, DType dtype = DType::kFloat32) {
  static int made = 0;
  return m.Input(Cat("x", made++), shape, dtype, {}, shape.rank() ? 0 : -1);
}
Tensor I(Model& m, const Dims& shape) { return X(m, shape, DType::kInt32); }
Tensor Flags(Model& m, const Dims& shape) { return X(m, shape, DType::kBool); }
Tensor W(Model& m, const Dims& shape, const std::string& name = "w") {
  return m.scope().Weight(name, shape, Ones());
}
Tensor Running(Model& m, const Dims& shape) { return m.scope().State("running", shape, Zeros()); }
Tensor Loss(Model& m) { return mean(square(X(m, {4, 3}) * W(m, {3}))); }
TrainOptions Parts(int micro_batches, const std::vector<Tensor>& also = {}) {
  TrainOptions options;
  options.micro_batches = micro_batches;
  options.also = also;
  return options;
}
TrainOptions With(const Schedule& schedule) {
  TrainOptions options;
  options.lr_schedule = schedule;
  return options;
}

#define WRONG(caller, pieces, ...)           \
  WrongUse {                                 \
    __LINE__, caller, pieces, [](Model& m) { \
      (void)m;                               \
      __VA_ARGS__;                           \
    }                                        \
  }

// Each on one line, whose number is checked.
// clang-format off
ScanResult Same(const std::vector<Tensor>& states, const std::vector<Tensor>&) { return {states, {}}; }
TEST(Sentences, OfLoops) {
  Check("cpu:dp=2", {
    WRONG("scan", "axis 2 does not exist|[2,5] has 2 axes", scan(Same, {X(m, {2})}, {X(m, {2, 5})}, {.axis = 2})),
    WRONG("scan", "axis 1 of x 1 [2,4] is 4|that of x 0 is 5", scan(Same, {X(m, {2})}, {X(m, {2, 5}), X(m, {2, 4})}, {.axis = 1})),
    WRONG("scan", "axis 1 of x 0 [2,5] is 5|ScanOptions::steps is 3", scan(Same, {X(m, {2})}, {X(m, {2, 5})}, {.axis = 1, .steps = 3})),
    WRONG("scan", "0 steps|at least 1|ScanOptions::steps", scan(Same, {X(m, {2})}, {})),
    WRONG("scan", "no state and no x", scan(Same, {}, {})),
    WRONG("scan", "a state is a Tensor that was never given a value", scan(Same, {Tensor()}, {X(m, {2, 5})})),
    WRONG("dropout", "draws at random|outside of the body|xs", scan([](const auto& s, const auto&) -> ScanResult { return {{dropout(s[0], 0.5)}, {}}; }, {X(m, {2})}, {X(m, {2, 5})}, {.axis = 1})),
    WRONG("lstm", "x is [2,4]|3 axes", lstm(X(m, {2, 4}), X(m, {4, 12}), X(m, {3, 12}))),
    WRONG("lstm", "recurrent is [3,9]|[n, 4 n]", lstm(X(m, {2, 5, 4}), X(m, {4, 12}), X(m, {3, 9}))),
    WRONG("lstm", "input is [3,12]|must be [4,12]", lstm(X(m, {2, 5, 4}), X(m, {3, 12}), X(m, {3, 12}))),
    WRONG("lstm", "x is i32|floating", lstm(I(m, {2, 5, 4}), X(m, {4, 12}), X(m, {3, 12}))),
    WRONG("gru", "bias is [12]|must be [9]", gru(X(m, {2, 5, 4}), X(m, {4, 9}), X(m, {3, 9}), {.bias = X(m, {12})})),
    WRONG("gru", "c was given|lstm", gru(X(m, {2, 5, 4}), X(m, {4, 9}), X(m, {3, 9}), {.c = X(m, {2, 3})})),
    WRONG("linear_recurrence", "a is [2,5] but b is [2,4]", linear_recurrence(X(m, {2, 5}), X(m, {2, 4}), 1)),
    WRONG("linear_recurrence", "chunks is 2|divide axis 1|5", linear_recurrence(X(m, {2, 5}), X(m, {2, 5}), 1, {}, {.chunks = 2})),
    WRONG("linear_recurrence", "b is i32|floating", linear_recurrence(X(m, {2, 5}), I(m, {2, 5}), 1)),
  });
}
// clang-format on

// Each on one line, whose number is checked.
// clang-format off
TEST(Sentences, OfVision) {
  Check("cpu:dp=2", {
    WRONG("conv2d", "x has 3 axes but needs 4", conv2d(X(m, {2, 5, 4}), X(m, {3, 2, 2, 4}))),
    WRONG("conv2d", "x is a Tensor that was never given a value", conv2d(Tensor(), X(m, {3, 2, 2, 4}))),
    WRONG("conv2d", "x has 4 channels|takes 3", conv2d(X(m, {2, 5, 6, 4}), X(m, {3, 2, 2, 3}))),
    WRONG("conv2d", "channels of x are 4|3 groups", conv2d(X(m, {2, 5, 6, 4}), X(m, {6, 2, 2, 1}), {.groups = 3})),
    WRONG("conv2d", "groups is 0|at least 1", conv2d(X(m, {2, 5, 6, 4}), X(m, {6, 2, 2, 4}), {.groups = 0})),
    WRONG("conv2d", "filters (axis 0 of the filter) are 3|2 groups", conv2d(X(m, {2, 5, 6, 4}), X(m, {3, 2, 2, 2}), {.groups = 2})),
    WRONG("conv2d", "stride is -1|at least 1", conv2d(X(m, {2, 5, 6, 4}), X(m, {3, 2, 2, 4}), {.stride = {-1}})),
    WRONG("conv2d", "padding of the columns is -2|at least 0", conv2d(X(m, {2, 5, 6, 4}), X(m, {3, 2, 2, 4}), {.padding = {0, -2}})),
    WRONG("conv2d", "padding has 3 numbers|1 or 2", conv2d(X(m, {2, 5, 6, 4}), X(m, {3, 2, 2, 4}), {.padding = {0, 0, 0}})),
    WRONG("conv2d", "stride has 0 numbers|1 or 2", conv2d(X(m, {2, 5, 6, 4}), X(m, {3, 2, 2, 4}), {.stride = {}})),
    WRONG("conv2d", "filter of 3 rows at dilation 5 spans 11|has 5", conv2d(X(m, {2, 5, 6, 4}), X(m, {3, 3, 1, 4}), {.dilation = {5}})),
    WRONG("conv2d", "filter has 0 rows|at least 1", conv2d(X(m, {2, 5, 6, 4}), X(m, {3, 0, 1, 4}))),
    WRONG("conv2d", "x is i32|floating", conv2d(I(m, {2, 5, 6, 4}), X(m, {3, 2, 2, 4}))),
    WRONG("conv2d", "x is bf16 but filter is f32|cast", conv2d(cast(X(m, {2, 5, 6, 4}), DType::kBFloat16), X(m, {3, 2, 2, 4}))),
    WRONG("conv1d", "the filter has 4 axes but needs 3", conv1d(X(m, {2, 5, 4}), X(m, {3, 2, 2, 4}))),
    WRONG("conv1d", "x has 4 channels|the filter [3,2,3] takes 3", conv1d(X(m, {2, 5, 4}), X(m, {3, 2, 3}))),
    WRONG("conv1d", "filter of 9 positions at dilation 1 spans 9|has 5", conv1d(X(m, {2, 5, 4}), X(m, {3, 9, 4}))),
    WRONG("conv1d", "stride is 0|at least 1", conv1d(X(m, {2, 5, 4}), X(m, {3, 2, 4}), {.stride = {0}})),
    WRONG("conv1d", "dilation is 4611686018427387904|at most 2147483647", conv1d(X(m, {2, 5, 4}), X(m, {3, 5, 4}), {.dilation = {int64_t{1} << 62}})),
    WRONG("max_pool1d", "padding is 9223372036854775807|at most 2147483647", max_pool1d(X(m, {2, 5, 4}), {.kernel = {2}, .padding = {INT64_MAX}})),
    WRONG("conv1d", "dilation has 2 numbers|1", conv1d(X(m, {2, 5, 4}), X(m, {3, 2, 4}), {.dilation = {1, 1}})),
    WRONG("conv1d", "filter is i32|floating", conv1d(X(m, {2, 5, 4}), I(m, {3, 2, 4}))),
    WRONG("conv2d_transpose", "output_padding is 2|stride, 2", conv2d_transpose(X(m, {2, 5, 6, 4}), X(m, {4, 2, 2, 3}), {.stride = {2}, .output_padding = {2}})),
    WRONG("conv2d_transpose", "x has 4 channels|axis 0 of the filter [3,2,2,4] has 3", conv2d_transpose(X(m, {2, 5, 6, 4}), X(m, {3, 2, 2, 4}))),
    WRONG("conv2d_transpose", "x has 4 channels|3 groups", conv2d_transpose(X(m, {2, 5, 6, 4}), X(m, {4, 2, 2, 3}), {.groups = 3})),
    WRONG("conv2d_transpose", "dilation is 0|at least 1", conv2d_transpose(X(m, {2, 5, 6, 4}), X(m, {4, 2, 2, 3}), {.dilation = {0}})),
    WRONG("conv1d_transpose", "-2 positions|4 are cut off", conv1d_transpose(X(m, {2, 5, 4}), X(m, {4, 2, 3}), {.padding = {4}})),
    WRONG("conv1d_transpose", "x has 0 positions|at least 1", conv1d_transpose(X(m, {2, 0, 4}), X(m, {4, 2, 3}))),
    WRONG("conv2d_transpose", "filter has 0 columns|at least 1", conv2d_transpose(X(m, {2, 5, 6, 4}), X(m, {4, 2, 0, 3}))),
    WRONG("conv2d_transpose", "x is f32 but filter is bf16|cast", conv2d_transpose(X(m, {2, 5, 6, 4}), X(m, {4, 2, 2, 3}, DType::kBFloat16))),
    WRONG("conv1d_transpose", "x has 0 channels|filter [4,2,3] has 4", conv1d_transpose(X(m, {2, 5, 0}), X(m, {4, 2, 3}))),
    WRONG("conv1d_transpose", "x is i32|floating", conv1d_transpose(I(m, {2, 5, 4}), X(m, {4, 2, 3}))),
    WRONG("max_pool2d", "kernel is 0|at least 1", max_pool2d(X(m, {2, 5, 6, 4}), {.kernel = {0}})),
    WRONG("max_pool2d", "padding of the rows is 2|half of the kernel, 3", max_pool2d(X(m, {2, 5, 6, 4}), {.kernel = {3}, .padding = {2}})),
    WRONG("avg_pool2d", "kernel has 9 columns|has 6", avg_pool2d(X(m, {2, 5, 6, 4}), {.kernel = {2, 9}})),
    WRONG("avg_pool2d", "stride is 0|at least 1", avg_pool2d(X(m, {2, 5, 6, 4}), {.stride = {0}})),
    WRONG("max_pool1d", "kernel has 9 positions|has 5", max_pool1d(X(m, {2, 5, 4}), {.kernel = {9}})),
    WRONG("max_pool1d", "x has 0 positions|at least 1", max_pool1d(X(m, {2, 0, 4}))),
    WRONG("avg_pool1d", "padding is 2|half of the kernel, 3", avg_pool1d(X(m, {2, 5, 4}), {.kernel = {3}, .padding = {2}})),
    WRONG("avg_pool1d", "i32|floating", avg_pool1d(I(m, {2, 5, 4}))),
    WRONG("adaptive_avg_pool2d", "size of the rows is 0|at least 1", adaptive_avg_pool2d(X(m, {2, 5, 6, 4}), 0, 1)),
    WRONG("adaptive_max_pool2d", "x has 3 axes but needs 4", adaptive_max_pool2d(X(m, {2, 5, 4}), 1, 1)),
    WRONG("adaptive_max_pool1d", "size is -2|at least 1", adaptive_max_pool1d(X(m, {2, 5, 4}), -2)),
    WRONG("interpolate", "3 rows and 0 columns|at least 1", interpolate(X(m, {2, 5, 6, 4}), 3, 0)),
    WRONG("interpolate", "align_corners|bilinear", interpolate(X(m, {2, 5, 6, 4}), 3, 3, {.align_corners = true})),
    WRONG("group_norm", "4 channels|3 groups", group_norm(X(m, {2, 5, 4}), 3, X(m, {4}), X(m, {4}))),
    WRONG("group_norm", "gamma is [3]|4 channels", group_norm(X(m, {2, 5, 4}), 2, X(m, {3}), X(m, {4}))),
    WRONG("batch_norm", "gamma is [5]|4 channels", batch_norm(X(m, {2, 5, 4}), X(m, {5}), X(m, {4}))),
    WRONG("batch_norm", "[0,4]|no element", batch_norm(X(m, {0, 4}), X(m, {4}), X(m, {4}))),
    WRONG("batch_norm", "x is i32|floating", batch_norm(I(m, {2, 4}), X(m, {4}), X(m, {4}))),
    WRONG("batch_norm", "eps is 0", batch_norm(X(m, {2, 4}), X(m, {4}), X(m, {4}), 0)),
    WRONG("batch_norm_eval", "variance is [3]|4 channels", batch_norm_eval(X(m, {2, 4}), X(m, {4}), X(m, {4}), X(m, {4}), X(m, {3}))),
  });
}

TEST(Sentences, OfLanguage) {
  Check("cpu:dp=2", {
    WRONG("matmul", "axis k is 4 in a but 5 in b", matmul(X(m, {3, 4}), X(m, {5, 6}))),
    WRONG("matmul", "b is i32|floating", matmul(X(m, {3, 4}), I(m, {4, 6}))),
    WRONG("einsum", "axis 0 (k) of operand 3 is 5 but 4", einsum("ij,jk,kl->il", {X(m, {2, 3}), X(m, {3, 4}), X(m, {5, 6})})),
    WRONG("einsum", "has 3 operands but 2 were given", einsum("ij,jk,kl->il", {X(m, {2, 3}), X(m, {3, 4})})),
    WRONG("einsum", "label i stands twice|\"ii\"", einsum("ii->i", {X(m, {3, 3})})),
    WRONG("einsum", "operand 1 is [2,3] of 2 axes|names 3", einsum("ijk->i", {X(m, {2, 3})})),
    WRONG("einsum", "output label z", einsum("ij,jk->iz", X(m, {2, 3}), X(m, {3, 4}))),
    WRONG("einsum", "i32|floating", einsum("ij,jk->ik", I(m, {2, 3}), I(m, {3, 4}))),
    WRONG("attention", "4 heads in q but 3 in k", attention(X(m, {1, 5, 4, 8}), X(m, {1, 5, 3, 8}), X(m, {1, 5, 3, 8}))),
    WRONG("attention", "axis d is 8 in q but 6 in k", attention(X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 6}), X(m, {1, 5, 4, 6}))),
    WRONG("attention", "axis t is 5 in k but 4 in key_positions", attention(X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), {.key_positions = I(m, {4})})),
    WRONG("attention", "key_positions is f32|i32 or i64", attention(X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), {.key_positions = X(m, {5})})),
    WRONG("attention", "axis t is 5 in k but 4 in bias", attention(X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), {.bias = X(m, {5, 4})})),
    WRONG("attention", "window is -3", attention(X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), {.window = -3})),
    WRONG("attention", "query_documents are given without key_documents", attention(X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), {.query_documents = I(m, {5})})),
    WRONG("attention", "axis s has 5 queries|4 keys", attention(X(m, {1, 5, 4, 8}), X(m, {1, 4, 4, 8}), X(m, {1, 4, 4, 8}))),
    WRONG("attention", "dropout is 1|[0, 1)", attention(X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), X(m, {1, 5, 4, 8}), {.dropout = 1})),
    WRONG("attention", "q has 3 axes, but needs 4", attention(X(m, {1, 5, 8}), X(m, {1, 5, 8}), X(m, {1, 5, 8}))),
    WRONG("rope", "axis d|pairs|3 is not an even number", rope(X(m, {1, 5, 2, 3}), I(m, {5}))),
    WRONG("rope", "dims is 6|[0, 4]", rope(X(m, {1, 5, 2, 4}), I(m, {5}), {.dims = 6})),
    WRONG("rope", "axis s is 5 in x but 4 in positions", rope(X(m, {1, 5, 2, 4}), I(m, {4}))),
    WRONG("rope", "positions is f32|i32 or i64", rope(X(m, {1, 5, 2, 4}), X(m, {5}))),
    WRONG("embedding", "ids is f32|i32 or i64", embedding(X(m, {7, 4}), X(m, {2, 3}))),
    WRONG("embedding", "table has 3 axes, but needs 2", embedding(X(m, {7, 4, 2}), I(m, {2, 3}))),
    WRONG("softmax", "i32|floating", softmax(I(m, {3}))),
    WRONG("log_softmax", "0 axes|at least 1", log_softmax(X(m, {}))),
    WRONG("layer_norm", "4 in x but 5 in gamma", layer_norm(X(m, {3, 4}), X(m, {5}), X(m, {4}))),
    WRONG("layer_norm", "eps is 0|greater than 0", layer_norm(X(m, {3, 4}), X(m, {4}), X(m, {4}), 0)),
    WRONG("rms_norm", "4 in x but 5 in gamma", rms_norm(X(m, {3, 4}), X(m, {5}))),
    WRONG("dropout", "p is 1|[0, 1)", dropout(X(m, {3}), 1)),
  });
}

TEST(Sentences, OfSparseFunctions) {
  Check("cpu:dp=2", {
    WRONG("top_k", "k is 9 but axis 1 has 4", top_k(X(m, {3, 4}), 9)),
    WRONG("top_k", "k is -1|[0, 4]", top_k(X(m, {3, 4}), -1)),
    WRONG("top_k", "axis 2 does not exist|[3,4] has 2 axes", top_k(X(m, {3, 4}), 1, 2)),
    WRONG("sort", "axis -3 does not exist|2 axes", sort(X(m, {3, 4}), -3)),
    WRONG("argsort", "axis 0 does not exist|0 axes", argsort(X(m, {}), 0)),
    WRONG("argmin", "axis 1 is 0|at least 1", argmin(X(m, {3, 0}))),
    WRONG("argmin", "x is a Tensor that was never given a value", argmin(Tensor())),
    WRONG("cumsum", "axis 5 does not exist|2 axes", cumsum(X(m, {3, 4}), 5)),
    WRONG("cumsum", "bool", cumsum(Flags(m, {3, 4}), 0)),
    WRONG("take", "ids is f32|i32 or i64", take(X(m, {3, 4}), 0, X(m, {2}))),
    WRONG("take_along_axis", "ids [2] has 1 axis|[3,4] has 2", take_along_axis(X(m, {3, 4}), I(m, {2}), 1)),
    WRONG("take_along_axis", "axis 0 of ids [2,4] is 2 but of x [3,4] is 3|axis 1", take_along_axis(X(m, {3, 4}), I(m, {2, 4}), 1)),
    WRONG("scatter_add", "x is [3,4]|[3,5]", scatter_add(X(m, {3, 4}), 0, I(m, {2, 5}), X(m, {2, 5}))),
    WRONG("scatter_add", "x is f32 but src is i32|cast", scatter_add(X(m, {3, 4}), 0, I(m, {2, 4}), I(m, {2, 4}))),
    WRONG("scatter_add", "src is a Tensor that was never given a value", scatter_add(X(m, {3, 4}), 0, I(m, {2, 4}), Tensor())),
    WRONG("scatter_add", "axis 0 of ids [2,4] is 2 but of src [3,4] is 3", scatter_add(X(m, {3, 4}), 0, I(m, {2, 4}), X(m, {3, 4}))),
    WRONG("index_add", "ids is [3] but src [2,4] is [2] from axis 0 on", index_add(X(m, {3, 4}), 0, I(m, {3}), X(m, {2, 4}))),
    WRONG("index_add", "ids is f32|i32 or i64", index_add(X(m, {3, 4}), 0, X(m, {2}), X(m, {2, 4}))),
    WRONG("embedding_bag", "ids [6] has 1 axis|needs 2", embedding_bag(X(m, {7, 4}), I(m, {6}), I(m, {2}))),
    WRONG("embedding_bag", "axis b is 2 in ids but 3 in lengths", embedding_bag(X(m, {7, 4}), I(m, {2, 5}), I(m, {3}))),
    WRONG("embedding_bag", "lengths is f32|i32 or i64", embedding_bag(X(m, {7, 4}), I(m, {2, 5}), X(m, {2}))),
    WRONG("embedding_bag", "axis l is 5 in ids but 4 in weights", embedding_bag(X(m, {7, 4}), I(m, {2, 5}), I(m, {2}), X(m, {2, 4}))),
    WRONG("unique_rows", "axis n is 5 in ids but 4 in", unique_rows(I(m, {5}), X(m, {4, 3}))),
    WRONG("sgd_rows", "is not a variable", sgd_rows(X(m, {7, 3}), {I(m, {5}), X(m, {5, 3})})),
    WRONG("sgd_rows", "lr is -1|0 or more", sgd_rows(W(m, {7, 3}), {I(m, {5}), X(m, {5, 3})}, {.lr = -1})),
    WRONG("adagrad_rows", "7|6", adagrad_rows(W(m, {7, 3}), Running(m, {6}), {I(m, {5}), X(m, {5, 3})})),
    WRONG("adagrad_rows", "lr is NaN", adagrad_rows(W(m, {7, 3}), Running(m, {7}), {I(m, {5}), X(m, {5, 3})}, {.lr = NAN})),
    WRONG("grouped_matmul", "axis e is 2 in w but 3 in counts", grouped_matmul(X(m, {6, 4}), X(m, {2, 4, 5}), I(m, {3}))),
    WRONG("grouped_matmul", "axis k is 4 in x but 3 in w", grouped_matmul(X(m, {6, 4}), X(m, {2, 3, 5}), I(m, {2}))),
    WRONG("grouped_matmul", "counts is f32|i32 or i64", grouped_matmul(X(m, {6, 4}), X(m, {2, 4, 5}), X(m, {2}))),
    WRONG("grouped_matmul", "share is 0|above 0", grouped_matmul(X(m, {6, 4}), X(m, {2, 4, 5}), I(m, {2}), 0)),
    WRONG("route", "chosen is f32|i32 or i64", route(X(m, {2, 4, 2}), 3, 2)),
    WRONG("route", "axis k is 2 in chosen but 3 in weights", route(I(m, {2, 4, 2}), 3, 2, {.weights = X(m, {2, 4, 3})})),
    WRONG("route_ranks", "chosen is f32|i32 or i64", route_ranks(X(m, {2, 4, 2}), 4, 2, 3)),
    WRONG("route_ranks", "ranks is 3 and does not divide the 4 experts", route_ranks(I(m, {2, 4, 2}), 4, 3, 3)),
    WRONG("route_ranks", "room is 0|at least 1", route_ranks(I(m, {2, 4, 2}), 4, 2, 0)),
    WRONG("exchange", "axis p is 4 in y but 3 in counts", exchange(X(m, {2, 4, 3, 5}), I(m, {3, 2}))),
    WRONG("exchange", "share is 2|at most 1", exchange(X(m, {2, 4, 3, 5}), I(m, {4, 2}), 2)),
    WRONG("sort_choices", "axis r is 3 and does not divide the 4 experts", sort_choices(X(m, {3, 4, 2, 2}), 4, 5)),
    WRONG("sort_choices", "room is 0|at least 1", sort_choices(X(m, {2, 4, 2, 2}), 4, 0)),
    WRONG("take_rows", "slots is a Tensor that was never given a value", take_rows(X(m, {2, 4, 5}), {})),
    WRONG("take_rows", "axis n is 4 in x but 3 in places", take_rows(X(m, {2, 4, 5}), route(I(m, {2, 3, 2}), 3, 2))),
    WRONG("return_rows", "axis e is 4 in y but 3 in slots", return_rows(X(m, {4, 2, 2, 5}), route(I(m, {2, 3, 2}), 3, 2))),
    WRONG("tril", "[4] has 1 axis|at least 2", tril(X(m, {4}))),
    WRONG("triu", "[] has 0 axes|at least 2", triu(X(m, {}))),
    WRONG("flip", "axis 1 is named twice", flip(X(m, {3, 4}), {1, -1})),
    WRONG("roll", "axis 2 does not exist|2 axes", roll(X(m, {3, 4}), 1, 2)),
    WRONG("repeat", "times of axis 1 is -1|0 or more", repeat(X(m, {3, 4}), {2, -1})),
    WRONG("repeat_interleave", "times of axis 0 is -2|0 or more", repeat_interleave(X(m, {3, 4}), -2, 0)),
    WRONG("stack", "at least 1 part|0", stack({})),
    WRONG("stack", "part 1 is [3,4] but part 2 is [3]", stack({X(m, {3, 4}), X(m, {3})})),
    WRONG("stack", "part 2 is a Tensor that was never given a value", stack({X(m, {3, 4}), Tensor()})),
    WRONG("stack", "operand 1 is f32 but operand 2 is i32", stack({X(m, {3, 4}), I(m, {3, 4})})),
    WRONG("stack", "axis 4 does not exist|[3,4] has 3 axes", stack({X(m, {3, 4})}, 4)),
    WRONG("squeeze", "axis 1 is 4 but must be 1", squeeze(X(m, {3, 4}), 1)),
    WRONG("unsqueeze", "axis 3 does not exist|3 axes", unsqueeze(X(m, {3, 4}), 3)),
    WRONG("arange", "from 0 to 5 by steps of 0", arange(m.builder(), 0, 5, 0)),
    WRONG("arange", "step is 0.5|i32", arange(m.builder(), 0, 5, 0.5, DType::kInt32)),
    WRONG("one_hot", "classes is 0|at least 1", one_hot(I(m, {2}), 0)),
    WRONG("one_hot", "ids is f32|i32 or i64", one_hot(X(m, {2}), 3)),
    WRONG("gather", "no axes|at least 1", gather(X(m, {}), I(m, {2}))),
    WRONG("pick", "ids is [2]|[3,4]|[3]", pick(X(m, {3, 4}), I(m, {2}))),
  });
}

TEST(Sentences, OfArithmetic) {
  Check("cpu:dp=2", {
    WRONG("add", "axis 1 of a [3,4] is 4 but axis 1 of b [3,5] is 5", X(m, {3, 4}) + X(m, {3, 5})),
    WRONG("mul", "f32|i32|cast", X(m, {3}) * I(m, {3})),
    WRONG("mul", "0.5 is not whole|i32|cast", I(m, {3}) * 0.5),
    WRONG("add", "bool|cast", Flags(m, {3}) + 1),
    WRONG("less", "+infinity is not whole|i32", less(I(m, {3}), INFINITY)),
    WRONG("sub", "bool", 1 - Flags(m, {3})),
    WRONG("sub", "x is a Tensor that was never given a value", 1 - Tensor()),
    WRONG("div", "2.5 is not whole|i32", I(m, {3}) / 2.5),
    WRONG("operator[]", "index 9 is outside axis 0, which is 3", X(m, {3, 4})[9]),
    WRONG("operator[]", "axis 0 does not exist|0 axes", X(m, {})[0]),
    WRONG("select", "index -5 is outside axis 1, which is 4", select(X(m, {3, 4}), 1, -5)),
    WRONG("maximum", "0.5 is not whole|i32", maximum(I(m, {3}), 0.5)),
    WRONG("clamp", "low is 2 but high is 1", clamp(X(m, {3}), 2, 1)),
    WRONG("clamp", "bool", clamp(Flags(m, {3}), 0, 1)),
    WRONG("where", "condition is f32|bool", where(X(m, {3}), X(m, {3}), 1)),
    WRONG("where", "a is a Tensor that was never given a value", where(Flags(m, {3}), Tensor(), 1)),
    WRONG("logical_and", "a is f32|bool", logical_and(X(m, {3}), Flags(m, {3}))),
    WRONG("bitwise_and", "b is f32|i32", bitwise_and(I(m, {3}), X(m, {3}))),
    WRONG("sin", "i32|floating", sin(I(m, {3}))),
    WRONG("less", "axis 0 of a [4] is 4 but axis 0 of b [5] is 5", less(X(m, {4}), X(m, {5}))),
    WRONG("add_n", "[4]|operand 2|[5]", add_n({X(m, {4}), X(m, {5})})),
    WRONG("add_n", "at least 1|0", add_n({})),
    WRONG("prelu", "slope is [3]|[4]|axis 1", prelu(X(m, {2, 4}), X(m, {3}))),
    WRONG("add", "b belongs to another", Model other(m.mesh()); add(X(m, {3}), X(other, {3}))),
    WRONG("arange_like", "axis 2 does not exist|2 axes", arange_like(X(m, {3, 4}), 2)),
    WRONG("full", "no graph was given", full(nullptr, {3}, 1)),
    WRONG("full", "value is 0.5|i32", full(m.builder(), {3}, 0.5, DType::kInt32)),
    WRONG("zeros", "axis 1 has extent -2", zeros(X(m, {3}), {2, -2})),
    WRONG("uniform", "low is 2 but high is 1", uniform(m.builder(), {3}, 2, 1)),
    WRONG("normal", "stddev is -1|0 or more", normal(m.builder(), {3}, 0, -1)),
    WRONG("constant", "no graph was given", constant(nullptr, HostTensor::Make(DType::kFloat32, {1}))),
    WRONG("full", "x is a Tensor that was never given a value", full(Tensor(), {3}, 1)),
    WRONG("zeros_like", "x is a Tensor that was never given a value", zeros_like(Tensor())),
    WRONG("gradients", "x 0|i32|no gradient", gradients(mean(X(m, {3})), {I(m, {3})})),
    WRONG("gradients", "does not depend on x 0", gradients(mean(X(m, {3})), {X(m, {3})})),
  });
}

TEST(Sentences, OfReductionsAndShapes) {
  Check("cpu:dp=2", {
    WRONG("sum", "axis 2 does not exist|[3,4] has 2 axes", sum(X(m, {3, 4}), {2})),
    WRONG("mean", "axis 1 is named twice", mean(X(m, {3, 4}), {1, -1})),
    WRONG("mean", "i32|floating", mean(I(m, {3, 4}))),
    WRONG("var", "hold 3 elements|correction, which is 3", var(X(m, {3, 4}), {0}, false, 3)),
    WRONG("stddev", "hold 1 element|correction, which is 1", stddev(X(m, {1, 4}), {0})),
    WRONG("stddev", "i32|floating", stddev(I(m, {3, 4}))),
    WRONG("norm", "p is 3|1, 2 or infinity", norm(X(m, {3, 4}), 3)),
    WRONG("logsumexp", "axis 4 does not exist|2 axes", logsumexp(X(m, {3, 4}), {4})),
    WRONG("prod", "axis -3 does not exist|2 axes", prod(X(m, {3, 4}), {-3})),
    WRONG("prod", "bool", prod(Flags(m, {3, 4}))),
    WRONG("any", "f32|bool", any(X(m, {3, 4}))),
    WRONG("all", "axis 0 is named twice", all(Flags(m, {3, 4}), {0, 0})),
    WRONG("masked_mean", "mask is [3]|x is [3,4]", masked_mean(X(m, {3, 4}), Flags(m, {3}))),
    WRONG("masked_mean", "mask is f32|bool", masked_mean(X(m, {3, 4}), X(m, {3, 4}))),
    WRONG("argmax", "axis 1 is 0|at least 1", argmax(X(m, {3, 0}))),
    WRONG("micro_batch_sum", "axis 3 does not exist|2 axes", micro_batch_sum(X(m, {3, 4}), {3})),
    WRONG("micro_batch_mean", "i32|floating", micro_batch_mean(I(m, {3, 4}))),
    WRONG("sum_to", "axis 1 is 4 but must be 3|1 only", sum_to(X(m, {2, 4}), {3})),
    WRONG("broadcast_to", "axis 0 is 3|5", broadcast_to(X(m, {3}), {5})),
    WRONG("reshape", "12 elements|[5,2] has 10", reshape(X(m, {3, 4}), {5, 2})),
    WRONG("reshape", "do not divide by 5|axis 1", reshape(X(m, {3, 4}), {5, -1})),
    WRONG("transpose", "order [0,0]|2 axes", transpose(X(m, {3, 4}), {0, 0})),
    WRONG("slice", "[1, 9) is not a part of axis 1, which is 4", slice(X(m, {3, 4}), 1, 1, 9)),
    WRONG("slice", "step is 0|at least 1", slice(X(m, {3, 4}), 1, 0, 4, 0)),
    WRONG("concat", "axis 0 is 3 in operand 1 but 5 in operand 2|axis 1", concat({X(m, {3, 4}), X(m, {5, 4})}, 1)),
    WRONG("concat", "operand 1 has 2 axes but operand 2 has 1", concat({X(m, {3, 4}), X(m, {3})}, 0)),
    WRONG("split", "axis 1 is 4|3 equal parts", split(X(m, {3, 4}), 1, 3)),
    WRONG("pad", "before is -1", pad(X(m, {3, 4}), 1, -1, 0)),
  });
}

TEST(Sentences, OfLosses) {
  Check("cpu:dp=2", {
    WRONG("mse_loss", "axis 1 of x [2,3] is 3|axis 1 of target [2,4] is 4", mse_loss(X(m, {2, 3}), X(m, {2, 4}))),
    WRONG("mse_loss", "target is i32|floating", mse_loss(X(m, {2, 3}), I(m, {2, 3}))),
    WRONG("l1_loss", "target is a Tensor that was never given a value", l1_loss(X(m, {2, 3}), Tensor())),
    WRONG("l1_loss", "x is f32 but target is bf16|cast", l1_loss(X(m, {3}), cast(X(m, {3}), DType::kBFloat16))),
    WRONG("huber_loss", "delta is 0|greater than 0", huber_loss(X(m, {3}), X(m, {3}), 0)),
    WRONG("smooth_l1_loss", "beta is -1", smooth_l1_loss(X(m, {3}), X(m, {3}), -1)),
    WRONG("smooth_l1_loss", "axis 0 of x [3] is 3|axis 0 of target [4] is 4", smooth_l1_loss(X(m, {3}), X(m, {4}))),
    WRONG("hinge_loss", "target is bool|floating", hinge_loss(X(m, {3}), Flags(m, {3}))),
    WRONG("bce_loss", "p is i32|floating", bce_loss(I(m, {3}), X(m, {3}))),
    WRONG("bce_with_logits_loss", "x [2,3] is 3|pos_weight [4] is 4", bce_with_logits_loss(X(m, {2, 3}), X(m, {2, 3}), X(m, {4}))),
    WRONG("kl_div_loss", "x [3] is 3|target [5] is 5", kl_div_loss(X(m, {3}), X(m, {5}))),
    WRONG("nll_loss", "target is [2]|[3,4]|[3]", nll_loss(X(m, {3, 4}), I(m, {2}))),
    WRONG("nll_loss", "target is f32|i32 or i64", nll_loss(X(m, {3, 4}), X(m, {3}))),
    WRONG("cross_entropy", "target is [2]|[3,4]|[3]", cross_entropy(X(m, {3, 4}), I(m, {2}))),
    WRONG("cross_entropy", "target is f32|i32 or i64", cross_entropy(X(m, {3, 4}), X(m, {3}))),
    WRONG("cross_entropy", "[3,0] has 0 classes", cross_entropy(X(m, {3, 0}), I(m, {3}))),
    WRONG("cross_entropy", "label_smoothing is 2|[0, 1]", cross_entropy(X(m, {3, 4}), I(m, {3}), {.label_smoothing = 2})),
    WRONG("cross_entropy", "class_weights is f32[5]|f32[4]", cross_entropy(X(m, {3, 4}), I(m, {3}), {.class_weights = X(m, {5})})),
    WRONG("cross_entropy", "target is a Tensor that was never given a value", cross_entropy(X(m, {3, 4}), Tensor(), {.z_loss = 1})),
    WRONG("linear_cross_entropy", "last axis of x [3,4] is 4|w [9,5] is 5", linear_cross_entropy(X(m, {3, 4}), X(m, {9, 5}), I(m, {3}))),
    WRONG("linear_cross_entropy", "target is [2]|x [3,4]|[3]", linear_cross_entropy(X(m, {3, 4}), X(m, {9, 4}), I(m, {2}))),
    WRONG("linear_cross_entropy", "tile is 0 rows|at least 1", linear_cross_entropy(X(m, {3, 4}), X(m, {9, 4}), I(m, {3}), {}, 0)),
    WRONG("linear_cross_entropy", "w is a Tensor that was never given a value", linear_cross_entropy(X(m, {3, 4}), Tensor(), I(m, {3}))),
    WRONG("HeadLoss", "axis -1 does not exist|0 axes", nn::HeadLoss(X(m, {}), X(m, {9, 4}), I(m, {}))),
    WRONG("HeadLoss", "tile is -3 rows|at least 1", nn::HeadLoss(X(m, {3, 4}), X(m, {9, 4}), I(m, {3}), -3)),
    WRONG("cross_entropy", "no axes|classes", cross_entropy(X(m, {}), I(m, {}), {.z_loss = 1})),
    WRONG("cosine_similarity", "a is [2,3] but b is [3]", cosine_similarity(X(m, {2, 3}), X(m, {3}))),
    WRONG("cosine_similarity", "axis 2 does not exist|2 axes", cosine_similarity(X(m, {2, 3}), X(m, {2, 3}), 2)),
  });
}

TEST(Sentences, OfStateAndAssign) {
  Check("cpu:dp=2", {
    WRONG("assign", "is not a variable", assign(X(m, {3}), X(m, {3}))),
    WRONG("assign", "variable is [3] but the value is [4]", assign(Running(m, {3}), X(m, {4}))),
    WRONG("assign", "variable is f32 but the value is i32|cast", assign(Running(m, {3}), I(m, {3}))),
    WRONG("assign_slice", "axis 2 does not exist|1 axis", assign_slice(Running(m, {3}), 2, I(m, {}), X(m, {1}))),
    WRONG("assign_slice", "variable is [3] but the value is [4]", assign_slice(Running(m, {3}), 0, I(m, {}), X(m, {4}))),
    WRONG("assign_slice", "begin is [2]|one number", assign_slice(Running(m, {3}), 0, I(m, {2}), X(m, {1}))),
    WRONG("assign_slice", "begin is f32|i32 or i64", assign_slice(Running(m, {3}), 0, X(m, {}), X(m, {1}))),
    WRONG("Evaluate", "variable 'running' is given a value by assign|already", Evaluate({{"a", assign(Running(m, {3}), X(m, {3}))}, {"b", assign(Running(m, {3}), X(m, {3}))}})),
    WRONG("Train", "assign|variable 'w' is given a value by its training already", Tensor l = Loss(m); Train(l, Sgd{}, Parts(1, {assign(W(m, {3}), X(m, {3}))}))),
    WRONG("Train", "differs between the 2 micro-batches", Train(Loss(m), Sgd{}, Parts(2, {assign(Running(m, {}), micro_batch_sum(X(m, {4})))}))),
    WRONG("Train", "needs the whole batch|2 micro-batches", Train(Loss(m), Sgd{}, Parts(2, {assign(Running(m, {4}), X(m, {4}))}))),
    WRONG("Updated", "is not a variable", Updated(X(m, {3}))),
    WRONG("Evaluate", "nothing in this session gives 'running' a new value", Evaluate({{"y", Updated(Running(m, {3}))}})),
    WRONG("state 'drawn'", "i32|Full", m.scope().State("drawn", {3}, Normal(1), {.dtype = DType::kInt32})),
    WRONG("InTraining", "another graph", m.scope().InTraining(m.NewGraph("other").scope().State("s", {3}, Zeros()))),
  });
}

TEST(Sentences, OfWeights) {
  Check("cpu:dp=2,tp=2", {
    WRONG("weight 'w'", "decay is -1|0 or more", m.scope().Weight("w", {4}, Ones(), {.decay = -1})),
    WRONG("weight 'w'", "rate is NaN|finite", m.scope().Weight("w", {4}, Ones(), {.rate = NAN})),
    WRONG("weight 'w'", "dtype is i32|f32, bf16 or f16", m.scope().Weight("w", {4}, Ones(), {.trainable = false, .dtype = DType::kInt32})),
    WRONG("weight 'w'", "only a frozen weight|bf16", m.scope().Weight("w", {4}, Ones(), {.dtype = DType::kBFloat16})),
    WRONG("weight 'w'", "no axis mp|dp, tp", m.scope().Weight("w", {4}, Ones(), {{"mp", S(0)}})),
    WRONG("weight 'w'", "tp:S1 cuts axis 1|[4]", m.scope().Weight("w", {4}, Ones(), {{"tp", S(1)}})),
    WRONG("weight 'w'", "axis dp is annotated twice", m.scope().Weight("w", {4}, Ones(), {{"dp", S(0)}, {"dp*tp", S(0)}})),
    WRONG("weight 'w'", "axis 1 has extent -3", m.scope().Weight("w", {4, -3}, Ones())),
    WRONG("weight 'w'", "deviation is -1", m.scope().Weight("w", {4}, Normal(-1))),
    WRONG("weight 'w'", "from 2 to 1", m.scope().Weight("w", {4}, Uniform(2, 1))),
    WRONG("weight 'w'", "axis 3 of its initialiser's fans|[4,5]", m.scope().Weight("w", {4, 5}, XavierNormal({.in = {3}, .out = {1}}))),
    WRONG("weight 'w'", "two axes|[4]", m.scope().Weight("w", {4}, Orthogonal())),
    WRONG("weight 'w'", "f32[4]|f32[3]", m.scope().Weight("w", {4}, FromTensor(Floats(1, {3})))),
    WRONG("weight 'w'", "shape is [5]|[4]|sentences_test.cc", W(m, {4}); m.scope().Weight("w", {5}, Ones())),
    WRONG("weight 'w'", "starts as|made at sentences_test.cc", W(m, {4}); m.scope().Weight("w", {4}, Zeros())),
    WRONG("weight 'w'", "trainable=true|pattern \"w*\" of ModelOptions::weights says trainable=false|change the pattern", ModelOptions o; o.weights = {{"w*", {.trainable = false}}}; Model model(m.mesh(), o); W(model, {4}); model.scope().Weight("w", {4}, Ones(), {.trainable = true})),
    WRONG("weight ''", "needs a name", m.scope().Weight("", {4}, Ones())),
    WRONG("weight 'a:b'", "':'", m.scope().Weight("a:b", {4}, Ones())),
    WRONG("Train", "pattern \"*nothing*\"|matches no weight", ModelOptions o; o.weights = {{"*nothing*", {.decay = 0}}}; Model model(m.mesh(), o); Train(Loss(model), Sgd{})),
    WRONG("input 'a'", "batch_axis is 2|[4]", m.Input("a", {4}, DType::kFloat32, {}, 2)),
    WRONG("input 'a'", "dp:S1 cuts axis 1|[4]", m.Input("a", {4}, DType::kFloat32, {{"dp", S(1)}})),
    WRONG("stage 'tp'", "stage 2 is outside axis tp of extent 2", m.scope().Stage("tp", 2)),
  });
}

TEST(Sentences, OfTraining) {
  using Kind = Schedule::Kind;
  Check("cpu:dp=2", {
    WRONG("Train", "lr is -1", Train(Loss(m), Sgd{.lr = -1})),
    WRONG("Train", "momentum is 1|[0, 1)", Train(Loss(m), Sgd{.momentum = 1})),
    WRONG("Train", "beta1 is -0.1|[0, 1)", Train(Loss(m), Adam{.beta1 = -0.1})),
    WRONG("Train", "beta2 is 1.5|[0, 1)", Train(Loss(m), AdamW{.beta2 = 1.5})),
    WRONG("Train", "weight_decay is NaN", Train(Loss(m), AdamW{.weight_decay = NAN})),
    WRONG("Train", "beta2 is 1 |[0, 1)", Train(Loss(m), Lion{.beta2 = 1})),
    WRONG("Train", "beta1 is 2|[0, 1)", Train(Loss(m), Lamb{.beta1 = 2})),
    WRONG("Train", "momentum is -1|[0, 1)", Train(Loss(m), Muon{.momentum = -1})),
    WRONG("Train", "alpha is 1|[0, 1)", Train(Loss(m), RmsProp{.alpha = 1})),
    WRONG("Train", "eps is -1", Train(Loss(m), Adagrad{.eps = -1})),
    WRONG("Train", "optimizer 'idle' assigns nothing to weight 'w'", Train(Loss(m), Optimizer("idle", [](WeightUpdate&) {}))),
    WRONG("Train", "warmup is -1", Train(Loss(m), Sgd{}, With({.kind = Kind::kLinear, .warmup = -1, .total = 5}))),
    WRONG("Train", "cosine|step 5|warmup of 5", Train(Loss(m), Sgd{}, With({.kind = Kind::kCosine, .warmup = 5, .total = 5}))),
    WRONG("Train", "linear|step -10|warmup of 0", Train(Loss(m), Sgd{}, With({.kind = Kind::kLinear, .total = -10}))),
    WRONG("Train", "every -2 steps|at least 1", Train(Loss(m), Sgd{}, With({.kind = Kind::kStep, .every = -2}))),
    WRONG("Train", "falls over 9 steps|5", Train(Loss(m), Sgd{}, With({.kind = Kind::kWarmupStableDecay, .total = 5, .decay = 9}))),
    WRONG("Train", "inverse_sqrt|warmup of 0", Train(Loss(m), Sgd{}, With({.kind = Kind::kInverseSqrt}))),
    WRONG("Train", "power is NaN|finite", Train(Loss(m), Sgd{}, With({.kind = Kind::kPolynomial, .total = 5, .power = NAN}))),
    WRONG("Train", "micro_batches is 5|batch of 4", Train(Loss(m), Sgd{}, Parts(5))),
    WRONG("Train", "micro_batches is 0|at least 1", Train(Loss(m), Sgd{}, Parts(0))),
    WRONG("Train", "one floating point number|f32[4,3]", Train(X(m, {4, 3}) * W(m, {3}), Sgd{})),
    WRONG("Train", "depends on no weight", Train(mean(X(m, {4})), Sgd{})),
    WRONG("Train", "pattern \"no/*\" of TrainOptions::weights matches no weight", TrainOptions o; o.weights = {"no/*"}; Train(Loss(m), Sgd{}, o)),
    WRONG("Train", "average.decay is 1, with which", TrainOptions o; o.average.decay = 1; Train(Loss(m), Sgd{}, o)),
    WRONG("Train", "pattern \"b\" of Groups is left no weight to update", Train(Loss(m), Groups({{"b", Sgd{}}, {"*", Sgd{}}}))),
    WRONG("Evaluate", "no training made so far averages a weight", Evaluate({{"y", Loss(m)}}, {.weights = "average"})),
    WRONG("clip_by_norm", "no gradients are given", clip_by_norm({}, 1)),
    WRONG("Train", "clip_norm is -1", TrainOptions o; o.clip_norm = -1; Train(Loss(m), Sgd{}, o)),
    WRONG("Train", "clip_value is -1", TrainOptions o; o.clip_value = -1; Train(Loss(m), Sgd{}, o)),
    WRONG("Train", "pattern \"no/*\" of clip_groups is left no weight", TrainOptions o; o.clip_groups = {{"no/*", 1}}; Train(Loss(m), Sgd{}, o)),
    WRONG("per_micro_batch", "parts is 3|axis 0 of x has 4 elements", per_micro_batch(X(m, {4, 3}), 3)),
    WRONG("whole_batch", "axis 2", whole_batch(X(m, {4, 3}), 2)),
    WRONG("micro_batch_index", "no graph was given", micro_batch_index(nullptr)),
    WRONG("Train", "both lr_schedule and lr_function", TrainOptions o = With({.kind = Kind::kLinear, .total = 5}); o.lr_function = [](int64_t) { return 1.0; }; Train(Loss(m), Sgd{}, o)),
    WRONG("Evaluate", "no outputs", Evaluate({})),
    WRONG("Evaluate", "output 'y'|undefined", Evaluate({{"y", Tensor()}})),
    WRONG("Evaluate", "needs the whole batch|2 micro-batches", SessionOptions o; o.micro_batches = 2; Evaluate({{"y", sort(X(m, {4, 3}), 0).values}}, o)),
    WRONG("Evaluate", "needs the whole batch|2 micro-batches", SessionOptions o; o.micro_batches = 2; Evaluate({{"y", roll(X(m, {4, 3}), 1, 0)}}, o)),
  });
}

TEST(Sentences, OfLayers) {
  Check("cpu:dp=2,tp=2", {
    WRONG("nn::Linear 'head'", "x is a Tensor that was never given a value", nn::Linear(m.scope() / "head", Tensor(), 3)),
    WRONG("nn::Linear 'head'", "x is i32|floating", nn::Linear(m.scope() / "head", I(m, {4, 3}), 3)),
    WRONG("nn::Linear 'head'", "x is []|at least 2 axes", nn::Linear(m.scope() / "head", X(m, {}), 3)),
    WRONG("weight 'head/weight' of nn::Linear 'head'", "axis 1 has extent -3", nn::Linear(m.scope() / "head", X(m, {4, 3}), -3)),
    WRONG("nn::Embedding 'e'", "ids is f32|i32 or i64", nn::Embedding(m.scope() / "e", X(m, {4}), 7, 3)),
    WRONG("nn::LayerNorm", "x is []|at least 1 axis", nn::LayerNorm(m.scope(), X(m, {}))),
    WRONG("nn::LayerNorm 'n'", "eps is -1|greater than 0", nn::LayerNorm(m.scope() / "n", X(m, {4, 3}), -1)),
    WRONG("nn::RmsNorm", "x is i32|floating", nn::RmsNorm(m.scope(), I(m, {4, 3}))),
    WRONG("nn::GroupNorm 'g'", "6 channels|4 groups", nn::GroupNorm(m.scope() / "g", X(m, {2, 5, 6}), 4)),
    WRONG("nn::BatchNorm", "batch of 5|2 equal parts", nn::BatchNorm(m.scope(), X(m, {5, 6}), {.parts = 2})),
    WRONG("nn::BatchNorm 'b'", "momentum is -1|[0, 1]", nn::BatchNorm(m.scope() / "b", X(m, {5, 6}), {.momentum = -1})),
    WRONG("nn::DealtSequence", "Scope was never given a value", nn::DealtSequence(Scope(), 8, "cp")),
    WRONG("nn::Linear", "Scope was never given a value", nn::Linear(Scope(), X(m, {4, 3}), 3)),
    WRONG("nn::Attention", "Scope was never given a value", nn::Attention(Scope(), X(m, {2, 4, 8}), {.heads = 2})),
    WRONG("nn::Experts 'e'", "x is [6,8]|say how many pools", nn::Experts(m.scope() / "e", X(m, {6, 8}))),
    WRONG("nn::Experts 'e'", "pools is 4 but x [6,3,8] has a batch of 6", nn::Experts(m.scope() / "e", X(m, {6, 3, 8}), {.pools = 4})),
    WRONG("nn::Experts 'e'", "top_k is 9|only 8 experts", nn::Experts(m.scope() / "e", X(m, {6, 3, 8}), {.top_k = 9})),
    WRONG("nn::Experts 'e'", "groups is 3|8 experts", nn::Experts(m.scope() / "e", X(m, {6, 3, 8}), {.groups = 3})),
    WRONG("nn::Experts 'e'", "top_groups is 3|only 2 groups", nn::Experts(m.scope() / "e", X(m, {6, 3, 8}), {.groups = 2, .top_groups = 3})),
    WRONG("nn::Experts 'e'", "capacity is -1|at least 0", nn::Experts(m.scope() / "e", X(m, {6, 3, 8}), {.capacity = -1})),
    WRONG("nn::Experts 'e'", "shared_gate|there are none", nn::Experts(m.scope() / "e", X(m, {6, 3, 8}), {.shared_gate = true})),
    WRONG("nn::Experts 'e'", "jitter is 1", nn::Experts(m.scope() / "e", X(m, {6, 3, 8}), {.jitter = 1})),
    WRONG("nn::BatchNorm 'b'", "eps is 0", nn::BatchNorm(m.scope() / "b", X(m, {5, 6}), {.eps = 0})),
    WRONG("nn::Attention 'a'", "heads is 3|width is 8", nn::Attention(m.scope() / "a", X(m, {2, 5, 8}), {.heads = 3})),
    WRONG("nn::Attention 'a'", "kv_heads is 3|4 heads", nn::Attention(m.scope() / "a", X(m, {2, 5, 8}), {.heads = 4, .kv_heads = 3})),
    WRONG("nn::Attention 'a'", "x is [2,5,4,8]|3 axes", nn::Attention(m.scope() / "a", X(m, {2, 5, 4, 8}), {.heads = 4})),
    WRONG("nn::Attention 'a'", "memory is [5,8]|3 axes", nn::Attention(m.scope() / "a", X(m, {2, 5, 8}), {.heads = 4}, X(m, {5, 8}))),
    WRONG("nn::Attention 'a'", "axis d|pairs|1 is not an even number", nn::Attention(m.scope() / "a", X(m, {2, 5, 8}), {.heads = 8, .rope = RopeOptions{}})),
    WRONG("nn::Attention 'a'", "ulysses|no axis sp", nn::Attention(m.scope() / "a", X(m, {2, 5, 8}), {.heads = 4, .ulysses = "sp"})),
    WRONG("nn::Mlp", "x is bool|floating", nn::Mlp(m.scope(), Flags(m, {4, 3}))),
    WRONG("nn::Mlp", "inner is -1|positive", nn::Mlp(m.scope(), X(m, {4, 3}), {.inner = -1})),
    WRONG("nn::Mlp", "activation is no function", nn::Mlp(m.scope(), X(m, {4, 3}), {.activation = nullptr})),
    WRONG("nn::SwiGlu", "inner is -7|positive", nn::SwiGlu(m.scope(), X(m, {4, 3}), {.inner = -7})),
    WRONG("nn::Attention", "kv_heads is -1|positive", nn::Attention(m.scope(), X(m, {2, 4, 8}), {.heads = 2, .kv_heads = -1})),
    WRONG("nn::Attention", "head_width is -3|positive", nn::Attention(m.scope(), X(m, {2, 4, 8}), {.heads = 2, .head_width = -3})),
    WRONG("nn::layers", "block is no function", nn::layers(m.scope(), X(m, {4, 3}), 2, nullptr)),
    WRONG("nn::SwiGlu", "x is a Tensor that was never given a value", nn::SwiGlu(m.scope(), Tensor())),
    WRONG("nn::TransformerBlock 't'", "heads is 3|width is 8", nn::TransformerOptions o; o.attention.heads = 3; nn::TransformerBlock(m.scope() / "t", X(m, {2, 5, 8}), o)),
    WRONG("nn::TransformerBlock 't'", "dropout is 1|[0, 1)", nn::TransformerBlock(m.scope() / "t", X(m, {2, 5, 8}), {.dropout = 1})),
    WRONG("nn::TransformerBlock 't'", "sequence|no axis cp", nn::TransformerBlock(m.scope() / "t", X(m, {2, 5, 8}), {.sequence = "cp"})),
    WRONG("nn::Conv 'c'", "groups is 4|6 channels", nn::ConvLayerOptions o; o.groups = 4; nn::Conv(m.scope() / "c", X(m, {2, 5, 5, 6}), 8, 3, o)),
    WRONG("nn::Conv 'c'", "filter of 7 rows|has 5", nn::Conv(m.scope() / "c", X(m, {2, 5, 5, 6}), 8, 7)),
    WRONG("nn::ConvBlock 'c'", "x is [2,5,6]|at least 4 axes", nn::ConvBlock(m.scope() / "c", X(m, {2, 5, 6}), 8, 3)),
    WRONG("nn::ConvBlock 'c'", "stride is 0|at least 1", nn::ConvBlock(m.scope() / "c", X(m, {2, 5, 5, 6}), 8, 3, {.stride = 0})),
    WRONG("nn::DealtSequence::Deal", "axis 1 of [2,5]|sequence of 6", nn::DealtSequence(m.scope(), 6, "tp").Deal(X(m, {2, 5}))),
    WRONG("nn::layers", "n is -1|0 or more", nn::layers(m.scope(), X(m, {2, 5}), -1, [](Scope, Tensor x, int64_t) { return x; })),
  });
  Check("cpu:pp=3", {
    WRONG("nn::layers", "3 stages|2 layers", nn::layers(m.scope(), X(m, {2, 5}), 2, [](Scope, Tensor x, int64_t) { return x; })),
    WRONG("nn::layers", "per_stage has -1 layers|0 is the least", nn::layers(m.scope(), X(m, {2, 5}), 4, [](Scope, Tensor x, int64_t) { return x; }, {.per_stage = {4, -1, 1}})),
    WRONG("nn::layers", "per_stage sums to 5|4 layers", nn::layers(m.scope(), X(m, {2, 5}), 4, [](Scope, Tensor x, int64_t) { return x; }, {.per_stage = {2, 2, 1}})),
  });
}
// clang-format on

// Data that a step fails on: the sentence names the function that the user called, its line, the axis, the id
// and the extent; on every mesh, also where the axis that is indexed is cut.
TEST(Sentences, OfStepsThatFail) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:dp=2,tp=3"}) {
    Model model(FullMesh(mesh));
    Tensor ids = model.Input("ids", {4}, DType::kInt32), x = model.Input("x", {4, 6}, DType::kFloat32);
    Tensor each = reshape(concat({ids, ids, ids, ids, ids, ids}, 0), {4, 6});
    Tensor cut = annotate(x, {{"tp", S(1)}}), rows = annotate(zeros(x, {3, 6}), {{"tp", S(0)}});
    struct Use {
      std::string name;  // that the sentence has before the line
      int line;
      std::string says;
      Tensor y;
    };
    // clang-format off
    const std::vector<Use> uses = {
        {"index_add at ", __LINE__, "along axis 0: index 99 is outside [0, 3)", index_add(zeros(x, {3, 6}), 0, ids, x)},
        {"index_add at ", __LINE__, "along axis 0: index 99 is outside [0, 3)", index_add(rows, 0, ids, x)},
        {"scatter_add at ", __LINE__, "along axis 0: index 99 is outside [0, 3)", scatter_add(zeros(x, {3, 6}), 0, each, x)},
        {"scatter_add at ", __LINE__, "along axis 1: index 99 is outside [0, 6)", scatter_add(cut, 1, each, x)},
        {"take_along_axis at ", __LINE__, "along axis 1: index 99 is outside [0, 6)", take_along_axis(cut, each, 1)},
        {"take at ", __LINE__, "along axis 1: index 99 is outside [0, 6)", take(cut, 1, ids)},
        {"gather at ", __LINE__, "index 99 is outside [0, 3) of axis 0", gather(rows, ids)},
        {"nll_loss at ", __LINE__, "index 99 is outside [0, 6) of the last axis", nll_loss(x, ids)},
        {"nll_loss at ", __LINE__, "index 99 is outside [0, 6) of the last axis", nll_loss(cut, ids)},
        {"embedding at ", __LINE__, "id 99 is outside the table of 3 rows", embedding(rows, ids)},
        {"nn::Embedding 'e' at ", __LINE__, "id 99 is outside the table of 7 rows", nn::Embedding(model.scope() / "e", ids, 7, 2)},
    };
    // clang-format on
    for (const Use& use : uses) {
      Session session = Evaluate({{"y", use.y}}, {.name = Cat("of line ", use.line)});
      HostTensor wrong = ToHost<int32_t>({0, 1, 99, 1}, {4});
      const std::string said = ErrorOf([&] {
        session.Run({{"ids", wrong}, {"x", Floats(1, {4, 6})}}).Get("y");
      });
      const std::string at = Cat(use.name, "sentences_test.cc:", use.line);
      EXPECT_NE(said.find(at), std::string::npos) << mesh << ": \"" << said << "\" lacks " << at;
      EXPECT_NE(said.find(use.says), std::string::npos) << mesh << ": \"" << said << "\" lacks " << use.says;
    }
  }
}

// Targets that are no probabilities fail the step that is given them, as indices do: the function, the line,
// the number. All that lie in [0, 1] are taken, also where batches are cut, in every type.
TEST(Sentences, OfLossesOfTwoClasses) {
  const float kNaN = std::numeric_limits<float>::quiet_NaN(),
              kInfinity = std::numeric_limits<float>::infinity();
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:dp=2,tp=3"})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      Model model(FullMesh(mesh));
      Tensor targets = model.Input("targets", {4, 6}, DType::kFloat32, {{"dp", S(0)}, {"tp", S(1)}});
      Tensor x = cast(model.Input("x", {4, 6}, DType::kFloat32), dtype), t = cast(targets, dtype);
      struct Use {
        std::string name;
        int line;
        std::string operand;
        Tensor y;
      };
      // clang-format off
      const std::vector<Use> uses = {
          {"bce_with_logits_loss at ", __LINE__, "target", bce_with_logits_loss(x, t)},
          {"bce_with_logits_loss at ", __LINE__, "target", bce_with_logits_loss(x, t, square(x))},
          {"bce_loss at ", __LINE__, "target", bce_loss(sigmoid(x), t)},
          {"bce_loss at ", __LINE__, "p", bce_loss(t, sigmoid(x))},
      };
      // clang-format on
      for (const Use& use : uses) {
        Session session = Evaluate({{"y", use.y}}, {.name = Cat("of line ", use.line)});
        const auto said = [&](float target) {
          std::vector<float> all = {0, 1, 0.5f, 0, 1, 0.25f, 0, 1, 0.5f, 0, 1, 0.25f,
                                    0, 1, 0.5f, 0, 1, 0.25f, 0, 1, 0.5f, 0, 1, 0.25f};
          all[16] = target;
          return ErrorOf([&] {
            const HostTensor y =
                session.Run({{"targets", ToHost(all, {4, 6})}, {"x", Floats(1, {4, 6})}}).Get("y");
            EXPECT_EQ(y.shape, (Dims{4, 6}));
          });
        };
        for (float good : {0.0f, -0.0f, 1.0f, 0.75f}) EXPECT_EQ(said(good), "") << mesh << " " << good;
        for (const auto& [wrong, text] :
             std::vector<std::pair<float, std::string>>{{-1, "-1"},
                                                        {2, "2"},
                                                        {1.5f, "1.5"},
                                                        {-0.5f, "-0.5"},
                                                        {kNaN, "NaN"},
                                                        {kInfinity, "+infinity"}}) {
          const std::string at = Cat(use.name, "sentences_test.cc:", use.line),
                            says = Cat(use.operand, " ", text, " is outside [0, 1]"), sentence = said(wrong);
          EXPECT_NE(sentence.find(at), std::string::npos) << mesh << ": \"" << sentence << "\" lacks " << at;
          EXPECT_NE(sentence.find(says), std::string::npos)
              << mesh << ": \"" << sentence << "\" lacks " << says;
          session = Evaluate({{"y", use.y}}, {.name = Cat("of line ", use.line)});
        }
      }
    }
}

// A part of a function keeps the function's name beside its line; other calls on other lines do not.
TEST(Sentences, NameTheOutermostFunction) {
  const Here here = Here::current(), inner = here.In("outer").In("inner");
  EXPECT_EQ(SourceLine(here).Who("sum"), SourceLine(here).str().insert(0, "sum at "));
  EXPECT_EQ(SourceLine(inner).Who("sum"), SourceLine(here).str().insert(0, "outer at "));
  EXPECT_EQ(SourceLine(inner).str(), SourceLine(here).str());
}

}  // namespace
}  // namespace oneflow_like
