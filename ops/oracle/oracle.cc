#include "ops/oracle.h"

#include "ops/oracle/gradient.h"

namespace oneflow_like {

std::string OracleTest(const OpDef& given, const std::vector<OpDef>& others) {
  Catalog catalog = BuiltinCatalog();
  for (const OpDef& other : others) catalog.Add(other);
  if (const std::string lacks = LackOf(given); !lacks.empty())
    return Cat("operator '", given.name, "' lacks ", lacks, "\n");
  if (catalog.Find(given.name)) return Cat(given.name, ": there is a built-in operator of that name\n");
  catalog.Add(given);
  const OpDef& def = catalog.Get(given.name);
  if (def.samples.empty()) return Cat(def.name, ": OpDef::samples has no shapes to try\n");
  std::string faults;
  const auto tell = [&](const oracle::Report& report) {
    if (report.failed > 0) faults += report.str() + "\n";
  };
  const oracle::Report values =
      oracle::CheckOperator(def, oracle::ReferenceOf(def), oracle::ReferenceOf(def), {});
  tell(values);
  if (!values.failed_types.empty() && values.failed_as_given == 0) {
    std::string types;
    for (DType type : values.failed_types) types += Cat(types.empty() ? "" : ", ", Name(type));
    faults += Cat(def.name, ": its kernel is right in the types of its samples, but not in ", types,
                  ", which the entry accepts; add an OpDef::check that refuses them, or handle them: "
                  "TensorArg::dtype is the type of an operand\n");
  }
  if (!def.grad) return faults;
  oracle::Report gradients;
  const int compared = oracle::CheckGradients(def, catalog, &gradients);
  tell(gradients);
  if (compared == 0)
    faults += Cat(def.name, ": there is a gradient, but no sample in f32 to compare it with differences\n");
  if (4 * gradients.rough > gradients.cases)
    faults += Cat(def.name, ": ", gradients.rough, " of ", gradients.cases,
                  " directions have a kink nearby; give samples a range where the operator is smooth\n");
  return faults;
}

}  // namespace oneflow_like
