// Rotary positions, attention with all that narrows it, and variables that take a value.
#include "tests/peers/values.h"

namespace oneflow_like::peers {
namespace {

void AddRope(ValueCases* cases) {
  const ValueInput x = F({2, 5, 3, 8}), positions = I({5}, 1000, 0, DType::kInt32),
                   of_batch = I({2, 5}, 1000);
  const ValueCases more = {
      {"rope", {x, positions}, [](ValueIn x) { return rope(x[0], x[1]); }},
      {"rope/batch", {x, of_batch}, [](ValueIn x) { return rope(x[0], x[1], {.base = 500}); }},
      {"rope/interleaved", {x, positions}, [](ValueIn x) { return rope(x[0], x[1], {.interleaved = true}); }},
      {"rope/part", {x, positions}, [](ValueIn x) { return rope(x[0], x[1], {.dims = 6}); }},
      {"rope/interleaved_part",
       {x, of_batch},
       [](ValueIn x) { return rope(x[0], x[1], {.interleaved = true, .dims = 4}); }},
      {"rope/scale", {x, positions}, [](ValueIn x) { return rope(x[0], x[1], {.scale = 4}); }},
      {"rope/llama",  // all three kinds of pairs: kept, blended, stretched
       {F({1, 6, 2, 32}), I({6}, 30000)},
       [](ValueIn x) { return rope(x[0], x[1], {.base = 500000, .trained_length = 8192}); }},
      {"rope/llama_numbers",
       {F({1, 6, 2, 32}), I({6}, 3000)},
       [](ValueIn x) {
         return rope(
             x[0], x[1],
             {.interleaved = true, .trained_length = 512, .factor = 4, .low_turns = 2, .high_turns = 9});
       }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

// `masks`: the operands behind q, k and v.
using Masks = void (*)(ValueIn masks, AttentionOptions* options);
ValueCase Attention(const std::string& variant, std::vector<ValueInput> in, Masks masks) {
  return {"attention/" + variant, std::move(in), [masks](ValueIn x) {
            AttentionOptions options;
            masks(std::vector<Tensor>(x.begin() + 3, x.end()), &options);
            return attention(x[0], x[1], x[2], options);
          }};
}

void AddAttention(ValueCases* cases) {
  const ValueInput q = F({2, 7, 6, 8}), k = F({2, 9, 6, 8}), shared = F({2, 9, 2, 8}), one = F({2, 9, 1, 8});
  const ValueInput of_queries = I({2, 7}, 12), of_keys = I({2, 9}, 9), document = I({2, 7}, 2),
                   document_of_keys = I({2, 9}, 2);
  const ValueCases more = {
      Attention("ends", {q, k, k}, [](ValueIn, AttentionOptions*) {}),
      Attention("blind",  // positions 0 to 2 are before every key
                {q, k, k, I({2, 7}, 6), I({2, 9}, 9, 3)},
                [](ValueIn m, AttentionOptions* o) {
                  o->query_positions = m[0];
                  o->key_positions = m[1];
                }),
      Attention("groups", {q, shared, shared}, [](ValueIn, AttentionOptions*) {}),
      Attention("query_groups", {q, one, one}, [](ValueIn, AttentionOptions* o) { o->causal = false; }),
      Attention("values", {q, k, F({2, 9, 6, 5})}, [](ValueIn, AttentionOptions* o) { o->scale = 0.2; }),
      Attention("long", {F({1, 150, 4, 32}), F({1, 170, 2, 32}), F({1, 170, 2, 32})},
                [](ValueIn, AttentionOptions*) {}),
      Attention("window", {q, k, k}, [](ValueIn, AttentionOptions* o) { o->window = 3; }),
      Attention("window_ahead", {q, k, k},
                [](ValueIn, AttentionOptions* o) {
                  o->window = 3;
                  o->causal = false;
                }),
      Attention("bias", {q, shared, shared, F({2, 6, 7, 9})},
                [](ValueIn m, AttentionOptions* o) {
                  o->causal = false;
                  o->bias = m[0];
                }),
      Attention("bias_of_heads", {q, k, k, F({6, 1, 9})},
                [](ValueIn m, AttentionOptions* o) { o->bias = m[0]; }),
      Attention("positions", {q, k, k, of_queries, of_keys},
                [](ValueIn m, AttentionOptions* o) {
                  o->query_positions = m[0];
                  o->key_positions = m[1];
                }),
      Attention("query_positions", {q, k, k, I({7}, 12, 0, DType::kInt32)},
                [](ValueIn m, AttentionOptions* o) {
                  o->query_positions = m[0];
                  o->window = 4;
                }),
      Attention("documents", {q, k, k, document, document_of_keys},
                [](ValueIn m, AttentionOptions* o) {
                  o->causal = false;
                  o->query_documents = m[0];
                  o->key_documents = m[1];
                }),
      Attention("everything",
                {q, shared, shared, F({1, 1, 7, 9}), of_queries, of_keys, document, document_of_keys},
                [](ValueIn m, AttentionOptions* o) {
                  o->scale = 0.4;
                  o->window = 6;
                  o->bias = m[0];
                  o->query_positions = m[1];
                  o->key_positions = m[2];
                  o->query_documents = m[3];
                  o->key_documents = m[4];
                }),
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddVariables(ValueCases* cases) {
  const ValueCases more = {
      {"assign", {F({3, 4}), F({3, 4})}, [](ValueIn x) { return assign(x[0], x[1]); }},
      {"assign_slice",
       {F({3, 9, 2}), I({}, 5), F({3, 5, 2})},
       [](ValueIn x) { return assign_slice(x[0], 1, x[1], x[2]); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

}  // namespace

ValueCases LanguageCases() {
  ValueCases cases;
  AddRope(&cases);
  AddAttention(&cases);
  AddVariables(&cases);
  return cases;
}

}  // namespace oneflow_like::peers
