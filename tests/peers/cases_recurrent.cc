// Loops: recurrent networks, linear recurrences, and a body of one's own.
#include "ops/language/expressions.h"
#include "ops/language/scan.h"
#include "tests/peers/values.h"

namespace oneflow_like::peers {
namespace {

constexpr int64_t kBatch = 3, kSteps = 7, kIn = 5, kWidth = 4;

ValueResults All(const LstmResult& r) { return std::vector<Tensor>{r.y, r.h, r.c}; }
ValueResults All(const GruResult& r) { return std::vector<Tensor>{r.y, r.h}; }

// x, input, recurrent and two biases of a network with so many gates.
std::vector<ValueInput> Network(int64_t gates) {
  return {F({kBatch, kSteps, kIn}), F({kIn, gates * kWidth}, -1, 1), F({kWidth, gates * kWidth}, -1, 1),
          F({gates * kWidth}), F({gates * kWidth})};
}

void AddNetworks(ValueCases* cases) {
  const ValueInput state = F({kBatch, kWidth});
  std::vector<ValueInput> of_lstm = Network(4), of_gru = Network(3);
  std::vector<ValueInput> lstm_states = of_lstm, gru_state = of_gru;
  lstm_states.insert(lstm_states.end(), {state, state});
  gru_state.push_back(state);
  const ValueCases more = {
      {"lstm", of_lstm,
       [](ValueIn x) { return All(lstm(x[0], x[1], x[2], {.bias = x[3], .recurrent_bias = x[4]})); }},
      {"lstm/plain",
       {of_lstm[0], of_lstm[1], of_lstm[2]},
       [](ValueIn x) { return All(lstm(x[0], x[1], x[2])); }},
      {"lstm/states", lstm_states,
       [](ValueIn x) {
         return All(lstm(x[0], x[1], x[2], {.bias = x[3], .recurrent_bias = x[4], .h = x[5], .c = x[6]}));
       }},
      {"lstm/reverse", lstm_states,
       [](ValueIn x) {
         return All(lstm(x[0], x[1], x[2],
                         {.bias = x[3], .recurrent_bias = x[4], .h = x[5], .c = x[6], .reverse = true}));
       }},
      {"gru", of_gru,
       [](ValueIn x) { return All(gru(x[0], x[1], x[2], {.bias = x[3], .recurrent_bias = x[4]})); }},
      {"gru/state", gru_state,
       [](ValueIn x) {
         return All(gru(x[0], x[1], x[2], {.bias = x[3], .recurrent_bias = x[4], .h = x[5]}));
       }},
      {"gru/reverse", gru_state,
       [](ValueIn x) {
         return All(
             gru(x[0], x[1], x[2], {.bias = x[3], .recurrent_bias = x[4], .h = x[5], .reverse = true}));
       }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddRecurrences(ValueCases* cases) {
  const ValueInput x = F({3, 12, 4}, -1, 1), first = F({3, 4});
  const auto chunked = [](bool reverse) {
    return [reverse](ValueIn x) {
      return linear_recurrence(x[0], x[1], 1, x[2], {.reverse = reverse, .chunks = 4});
    };
  };
  const ValueCases more = {
      {"linear_recurrence", {x, x, first}, [](ValueIn x) { return linear_recurrence(x[0], x[1], 1, x[2]); }},
      {"linear_recurrence/zeros", {x, x}, [](ValueIn x) { return linear_recurrence(x[0], x[1], -2); }},
      {"linear_recurrence/reverse",
       {x, x, first},
       [](ValueIn x) { return linear_recurrence(x[0], x[1], 1, x[2], {.reverse = true}); }},
      {"linear_recurrence/last",
       {F({2, 9}, -1, 1), F({2, 9}), F({2})},
       [](ValueIn x) { return linear_recurrence(x[0], x[1], 1, x[2]); }},
      {"linear_recurrence/chunks", {x, x, first}, chunked(false)},
      {"linear_recurrence/chunks_reverse", {x, x, first}, chunked(true)},
      {"scan",
       {F({6, 3, 4}), F({3, 4}), F({4, 4}, -1, 1)},  // attention of each step to what is read
       [](ValueIn x) {
         const ScanResult run = scan(
             [&](const std::vector<Tensor>& s, const std::vector<Tensor>& in) -> ScanResult {
               Tensor h = softmax(matmul(s[0], x[2])) + tanh(in[0] * s[0]);
               return {{h}, {mean(square(h), {-1}), h}};
             },
             {x[1]}, {x[0]});
         return std::vector<Tensor>{run.states[0], run.ys[0], run.ys[1]};
       }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

}  // namespace

ValueCases RecurrentCases() {
  ValueCases cases;
  AddNetworks(&cases);
  AddRecurrences(&cases);
  return cases;
}

}  // namespace oneflow_like::peers
