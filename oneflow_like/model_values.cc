// The values of a model's variables, whole: read from, and written to, the pieces that the ranks hold, in
// this process and in the others of its job.
#include <algorithm>
#include <cstring>
#include <set>

#include "actor/net/talk/job.h"
#include "actor/plan_reading.h"
#include "oneflow_like/model_impl.h"

namespace oneflow_like {

namespace {

[[noreturn]] void FailNotThere(const std::string& variable) {
  Fail("variable '", variable, "' is not there: no session that has run makes it");
}

// Calls `use(rank, info)` for each piece hosted here.
template <typename Use>
void ForEachPiece(const ModelImpl& model, const std::string& variable, const Use& use) {
  if (!model.store) return;
  for (int rank : model.store->ranks())
    for (const Store::VariableInfo& v : model.store->Variables(rank))
      if (v.name == variable) use(rank, v);
}

// What one process sends of a variable: of each piece a plan::Variable that says what it is, with its size
// before it, and the elements. Ranks with the same box send it once.
std::string PackPieces(const ModelImpl& model, const std::string& variable) {
  std::string packed;
  std::set<std::string> sent;
  ForEachPiece(model, variable, [&](int rank, const Store::VariableInfo& v) {
    if (!sent.insert(v.box.str()).second) return;
    plan::Variable head;
    head.set_name(v.name);
    head.set_dtype(static_cast<int>(v.dtype));
    for (int64_t e : v.global) head.mutable_global()->add_at(e);
    for (int64_t b : v.box.begin) head.mutable_box()->add_begin(b);
    for (int64_t e : v.box.extent) head.mutable_box()->add_extent(e);
    head.set_bytes(v.box.elements() * SizeOf(v.dtype));
    const std::string text = head.SerializeAsString();
    const int64_t size = text.size();
    packed.append(reinterpret_cast<const char*>(&size), sizeof size);
    packed += text;
    if (head.bytes() > 0)
      packed.append(static_cast<const char*>(model.store->Variable(rank, variable)), head.bytes());
  });
  return packed;
}

void UnpackPieces(const std::string& packed, HostTensor* whole) {
  for (size_t at = 0; at < packed.size();) {
    int64_t size = 0;
    std::memcpy(&size, &packed[at], sizeof size);
    at += sizeof size;
    plan::Variable head;
    head.ParseFromArray(&packed[at], static_cast<int>(size));
    at += size;
    const DType dtype = ToDType(head.dtype());
    const Box box = ToBox(head.box());
    if (!whole->data) *whole = HostTensor::Make(dtype, ToDims(head.global()));
    Piece from{const_cast<char*>(packed.data()) + at, box};
    Piece to{whole->data.get(), Box::Whole(whole->shape)};
    if (!box.empty()) CopyBox(dtype, box, from, to);
    at += head.bytes();
  }
}

}  // namespace

HostTensor Model::Read(const std::string& variable) const {
  impl_->WaitIdle();
  HostTensor whole;
  if (Job* job = impl_->options.job.get()) {
    for (const std::string& packed :
         job->AllGather(Cat("variable '", variable, "'"), PackPieces(*impl_, variable)))
      UnpackPieces(packed, &whole);
  } else {
    ForEachPiece(*impl_, variable, [&](int rank, const Store::VariableInfo& v) {
      if (!whole.data) whole = HostTensor::Make(v.dtype, v.global);
      Piece from{impl_->store->Variable(rank, variable), v.box};
      Piece to{whole.data.get(), Box::Whole(v.global)};
      if (!v.box.empty()) CopyBox(v.dtype, v.box, from, to);
    });
  }
  if (!whole.data) FailNotThere(variable);
  return whole;
}

void Model::Write(const std::string& variable, const HostTensor& value) {
  impl_->WaitIdle();
  bool found = false;
  ForEachPiece(*impl_, variable, [&](int rank, const Store::VariableInfo& v) {
    if (v.dtype != value.dtype || v.global != value.shape)
      Fail("variable '", variable, "' is ", Name(v.dtype), v.global.str(), " but the value written is ",
           Name(value.dtype), value.shape.str());
    if (!value.data && value.bytes() > 0)
      Fail("the value written to variable '", variable, "' holds no data");
    found = true;
    Piece from{value.data.get(), Box::Whole(v.global)};
    Piece to{impl_->store->Variable(rank, variable), v.box};
    if (!v.box.empty()) CopyBox(v.dtype, v.box, from, to);
  });
  if (Job* job = impl_->options.job.get())  // another process may hold all of it
    for (const std::string& there : job->AllGather(Cat("write variable '", variable, "'"), found ? "1" : ""))
      found = found || !there.empty();
  if (!found) FailNotThere(variable);
}

std::vector<std::string> Model::Variables() const {
  std::set<std::string> names;
  if (impl_->store)
    for (int rank : impl_->store->ranks())
      for (const Store::VariableInfo& v : impl_->store->Variables(rank)) names.insert(v.name);
  if (Job* job = impl_->options.job.get()) {
    std::string mine;
    for (const std::string& name : names) mine += name + '\n';
    for (const std::string& theirs : job->AllGather("names of variables", mine))
      for (size_t at = 0; at < theirs.size();) {
        const size_t end = theirs.find('\n', at);
        names.insert(theirs.substr(at, end - at));
        at = end + 1;
      }
  }
  return {names.begin(), names.end()};
}

}  // namespace oneflow_like
