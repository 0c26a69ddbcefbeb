#include "core/plan/plan_values.h"

#include <algorithm>
#include <string>

#include "core/random.h"

namespace oneflow_like {

Dims ToDims(const plan::Dims& dims) { return Dims(dims.at().begin(), dims.at().end()); }

Box ToBox(const plan::Box& box) {
  return {Dims(box.begin().begin(), box.begin().end()), Dims(box.extent().begin(), box.extent().end())};
}

Region ToRegion(const plan::Region& region) {
  return {ToBox(region.box()),
          {region.source().begin(), region.source().end()},
          {region.dest().begin(), region.dest().end()},
          region.operand(),
          region.count() - 1};
}

Attrs ToAttrs(const google::protobuf::RepeatedPtrField<plan::Attr>& attrs) {
  Attrs result;
  for (const plan::Attr& attr : attrs) {
    switch (attr.value_case()) {
      case plan::Attr::kI:
        result.Set(attr.name(), attr.i());
        break;
      case plan::Attr::kF:
        result.Set(attr.name(), attr.f());
        break;
      case plan::Attr::kS:
        result.Set(attr.name(), attr.s());
        break;
      case plan::Attr::kInts:
        result.Set(attr.name(), std::vector<int64_t>(attr.ints().at().begin(), attr.ints().at().end()));
        break;
      case plan::Attr::kB:
        result.Set(attr.name(), Blob(attr.b().data(), attr.b().size()));
        break;
      case plan::Attr::VALUE_NOT_SET:
        Fail("attribute '", attr.name(), "' of the plan has no value");
    }
  }
  return result;
}

void Set(const Dims& dims, plan::Dims* message) {
  for (int64_t e : dims) message->add_at(e);
}

void Set(const Box& box, plan::Box* message) {
  for (int64_t b : box.begin) message->add_begin(b);
  for (int64_t e : box.extent) message->add_extent(e);
}

void Set(const Region& region, plan::Region* message) {
  Set(region.box, message->mutable_box());
  for (int s : region.sources) message->add_source(s);
  for (int d : region.dests) message->add_dest(d);
  message->set_operand(region.operand);
  message->set_count(static_cast<int32_t>(region.count + 1));
}

int64_t ArenaBytes(const plan::Plan& plan, std::string_view memory) {
  int64_t bytes = 0;
  for (const plan::Arena& arena : plan.arena())
    if (arena.memory() == memory) bytes += arena.bytes();
  return bytes;
}

int OperandsOf(const plan::Collective& collective) {
  return collective.rank_size() == 0 ? 0 : collective.piece_size() / collective.rank_size();
}

const plan::Piece& PieceOf(const plan::Collective& collective, int operand, int member) {
  return collective.piece(operand * collective.rank_size() + member);
}

void Set(const Attrs& attrs, google::protobuf::RepeatedPtrField<plan::Attr>* message) {
  for (const auto& [name, value] : attrs.map()) {
    plan::Attr* a = message->Add();
    a->set_name(name);
    if (auto* i = std::get_if<int64_t>(&value)) {
      a->set_i(*i);
    } else if (auto* f = std::get_if<double>(&value)) {
      a->set_f(*f);
    } else if (auto* s = std::get_if<std::string>(&value)) {
      a->set_s(*s);
    } else if (auto* b = std::get_if<Blob>(&value)) {
      if (b->data() == nullptr) Fail("attribute ", name, ": the bytes of ", b->str(), " are not in a text");
      a->set_b(b->data(), b->size());
    } else {
      plan::Dims* ints = a->mutable_ints();
      for (int64_t x : std::get<std::vector<int64_t>>(value)) ints->add_at(x);
    }
  }
}

namespace {

void Shorten(google::protobuf::RepeatedPtrField<plan::Attr>* attrs) {
  for (plan::Attr& a : *attrs)
    if (a.value_case() == plan::Attr::kB) a.set_s(Blob(a.b().data(), a.b().size()).str());
}

}  // namespace

uint64_t HashOf(const plan::Plan& plan, uint64_t before) {
  return HashName(std::to_string(before) + plan.SerializeAsString());
}

void ShortenForText(plan::Plan* plan) {
  for (plan::Variable& variable : *plan->mutable_variable()) Shorten(variable.mutable_init()->mutable_attr());
  for (plan::Actor& actor : *plan->mutable_actor())
    for (plan::Kernel& kernel : *actor.mutable_kernel()) Shorten(kernel.mutable_attr());
}

DType ToDType(int32_t dtype) {
  if (dtype < 0 || dtype > static_cast<int32_t>(DType::kBool)) Fail("the plan names element type ", dtype);
  return static_cast<DType>(dtype);
}

namespace {

TensorArg ToArg(const plan::Operand& operand) {
  TensorArg arg;
  arg.dtype = ToDType(operand.dtype());
  arg.global = ToDims(operand.global());
  Box largest = Box::Whole(arg.global);
  for (int i = 0; i < operand.box_size(); ++i) {
    Box box = ToBox(operand.box(i));
    if (i == 0) {
      largest = box;
    } else {
      for (int a = 0; a < box.extent.rank(); ++a)
        largest.extent[a] = std::max(largest.extent[a], box.extent[a]);
    }
  }
  arg.begin = largest.begin;
  arg.extent = largest.extent;
  return arg;
}

}  // namespace

KernelSpec ToSpec(const plan::Kernel& kernel) {
  KernelSpec spec;
  spec.name = kernel.name();
  spec.attrs = ToAttrs(kernel.attr());
  for (const plan::Operand& operand : kernel.in()) spec.in.push_back(ToArg(operand));
  for (const plan::Operand& operand : kernel.out()) spec.out.push_back(ToArg(operand));
  spec.node = kernel.node();
  spec.line = SourceLine(kernel.file(), kernel.line());
  spec.line.function = kernel.function();
  return spec;
}

}  // namespace oneflow_like
