// Plans made by hand, for tests of the runtime: one builder for each rank, operands of 64-bit integers.
#pragma once

#include <string>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"
#include "core/plan.pb.h"

namespace oneflow_like {

inline void SetDims(plan::Dims* to, const Dims& dims) {
  for (int64_t d : dims) to->add_at(d);
}
inline void SetBox(plan::Box* to, const Box& box) {
  for (int64_t b : box.begin) to->add_begin(b);
  for (int64_t e : box.extent) to->add_extent(e);
}

class PlanBuilder {
 public:
  PlanBuilder(const std::string& name, int rank, int world, int times) {
    plan_.set_name(name);
    plan_.set_rank(rank);
    plan_.set_world(world);
    plan_.set_device_kind("cpu");
    plan_.set_times(times);
    plan_.set_seed(7);
    plan_.add_arena()->set_memory("device");
  }

  int Buffer(const std::string& name, int64_t elements, int slots, int full = 0) {
    plan::Buffer* b = plan_.add_buffer();
    b->set_id(plan_.buffer_size() - 1);
    b->set_name(name);
    b->set_slot_bytes((elements * 8 + 63) / 64 * 64);
    for (int i = 0; i < slots; ++i) b->add_offset(plan_.arena(0).bytes() + i * b->slot_bytes());
    b->set_slots(slots);
    b->set_full(full);
    plan_.mutable_arena(0)->set_bytes(plan_.arena(0).bytes() + b->slot_bytes() * slots);
    return b->id();
  }

  // A variable held whole, made by the kernel `init`, and the buffer that stands for it.
  int Variable(const std::string& name, const Dims& shape, const std::string& init) {
    plan::Variable* v = plan_.add_variable();
    v->set_name(name);
    v->set_dtype(static_cast<int>(DType::kInt64));
    SetDims(v->mutable_global(), shape);
    SetBox(v->mutable_box(), Box::Whole(shape));
    v->set_bytes((shape.elements() * 8 + 63) / 64 * 64);
    v->mutable_init()->set_name(init);
    *v->mutable_init()->add_out() = Operand(0, shape, {Box::Whole(shape)});
    plan::Buffer* b = plan_.add_buffer();
    b->set_id(plan_.buffer_size() - 1);
    b->set_name(name);
    b->set_slots(1);
    b->set_full(1);
    b->set_slot_bytes(v->bytes());
    b->set_variable(name);
    return b->id();
  }

  static plan::Operand Operand(int buffer, const Dims& global, const std::vector<Box>& boxes, int period = 1,
                               int skip = 0) {
    plan::Operand o;
    o.set_buffer(buffer);
    o.set_dtype(static_cast<int>(DType::kInt64));
    SetDims(o.mutable_global(), global);
    for (const Box& box : boxes) SetBox(o.add_box(), box);
    o.set_period(period);
    o.set_skip(skip);
    return o;
  }

  plan::Actor* Actor(int id, const std::string& name, int acts) {
    plan::Actor* a = plan_.add_actor();
    a->set_id(id);
    a->set_name(name);
    a->set_acts(acts);
    a->set_stream(-1);
    return a;
  }

  static plan::Kernel* Kernel(plan::Actor* actor, const std::string& name,
                              const std::vector<plan::Operand>& in, const std::vector<plan::Operand>& out) {
    plan::Kernel* k = actor->add_kernel();
    k->set_name(name);
    k->set_node(actor->name());
    k->set_file("test.cc");
    k->set_line(10 + actor->id());
    for (const plan::Operand& o : in) *k->add_in() = o;
    for (const plan::Operand& o : out) *k->add_out() = o;
    return k;
  }

  static void SetAttr(plan::Kernel* kernel, const std::string& name, int64_t value) {
    plan::Attr* a = kernel->add_attr();
    a->set_name(name);
    a->set_i(value);
  }

  void Edge(plan::Actor* writer, plan::Actor* reader, int slots, int write_period = 1, int read_period = 1,
            int full = 0, int write_kernel = 0, int read_kernel = 0) {
    plan::Port* out = writer->add_out();
    out->set_edge(edges_);
    out->set_credits(slots - full);
    out->set_period(write_period);
    out->set_kernel(write_kernel);
    out->set_peer(reader->id());
    plan::Port* in = reader->add_in();
    in->set_edge(edges_++);
    in->set_credits(full);
    in->set_period(read_period);
    in->set_kernel(read_kernel);
    in->set_peer(writer->id());
  }

  void Stream(const std::string& name, const std::vector<int>& order) {
    plan::Stream* s = plan_.add_stream();
    s->set_name(name);
    for (int id : order) {
      s->add_actor(id);
      for (plan::Actor& a : *plan_.mutable_actor()) {
        if (a.id() == id) a.set_stream(plan_.stream_size() - 1);
      }
    }
  }

  void Input(const std::string& name, const Dims& shape) { Add(plan_.add_input(), name, shape); }
  void Output(const std::string& name, const Dims& shape) { Add(plan_.add_output(), name, shape); }

  // Makes `actor` a collective of i64 over `ranks`. Every member holds the boxes at its index, the same in
  // all acts; an empty vector where it has no such end.
  static plan::Collective* Collective(plan::Actor* actor, int64_t id, const std::vector<int>& ranks, int me,
                                      const std::string& reduce, const std::vector<std::vector<Box>>& in,
                                      const std::vector<std::vector<Box>>& out) {
    plan::Collective* c = actor->mutable_collective();
    c->set_id(id);
    for (int r : ranks) c->add_rank(r);
    c->set_me(me);
    c->set_reduce(reduce);
    c->add_work();
    for (size_t m = 0; m < ranks.size(); ++m) {
      plan::Piece* piece = c->add_piece();
      for (const Box& box : in[m]) SetBox(piece->add_in(), box);
      for (const Box& box : out[m]) SetBox(piece->add_out(), box);
    }
    return c;
  }
  static void Region(plan::Collective* c, const Box& box, const std::vector<int>& source,
                     const std::vector<int>& dest, int act = 0) {
    plan::Region* r = c->mutable_work(act)->add_region();
    SetBox(r->mutable_box(), box);
    for (int s : source) r->add_source(s);
    for (int d : dest) r->add_dest(d);
  }

  plan::Plan& plan() { return plan_; }

 private:
  static void Add(plan::Fetch* fetch, const std::string& name, const Dims& shape) {
    fetch->set_name(name);
    fetch->set_dtype(static_cast<int>(DType::kInt64));
    SetDims(fetch->mutable_global(), shape);
  }

  plan::Plan plan_;
  int edges_ = 0;
};

}  // namespace oneflow_like
