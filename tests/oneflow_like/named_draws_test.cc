// A name that the user gives to what an operator draws is all that its draws depend on.
#include <map>
#include <string>

#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

// Attention over x with dropout named `draws`, a twin of it and one of another name, behind `others` that
// have no name.
Outputs NamedAttention(const std::string& draws, int others) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {6, 5, 2, 4}, DType::kFloat32, {{"dp", S(0)}});
  auto named = [&](const std::string& name) { return attention(x, x, x, {.dropout = .5, .draws = name}); };
  std::map<std::string, Tensor> outputs;
  for (int i = 0; i < others; ++i) outputs[Cat("other ", i)] = attention(x, x, x, {.dropout = .5});
  outputs["named"] = named(draws);
  outputs["twin"] = named(draws);
  outputs["else"] = named("else");
  Session session = Evaluate(outputs);
  StepResult result = session.Run({{"x", Floats(3, {6, 5, 2, 4})}});
  Outputs given;
  for (const auto& [name, tensor] : outputs) given[name] = result.Get(name);
  return given;
}

TEST(NamedDraws, OfAttentionDependOnNothingButTheName) {
  const Outputs alone = NamedAttention("late", 0);
  EXPECT_TRUE(SameBytes(alone.at("named"), alone.at("twin")));
  EXPECT_FALSE(SameBytes(alone.at("named"), alone.at("else")));
  for (int others : {1, 2}) {
    Outputs behind = NamedAttention("late", others);
    for (const char* name : {"named", "twin", "else"})
      EXPECT_TRUE(SameBytes(behind.at(name), alone.at(name))) << name << " behind " << others;
    EXPECT_FALSE(SameBytes(behind.at("named"), behind.at("other 0")));
  }
  EXPECT_FALSE(SameBytes(NamedAttention("early", 0).at("named"), alone.at("named")));
}

}  // namespace
}  // namespace oneflow_like
