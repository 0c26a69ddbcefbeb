// Session::Padded: a batch that is smaller than the session's.
#include <cstring>

#include "core/boxes/feeds.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

namespace {

// The first rows of `whole` along the axis are those of `some`.
void CopyRows(const HostTensor& some, const HostTensor& whole, int axis) {
  int64_t outer = 1, inner = static_cast<int64_t>(SizeOf(whole.dtype));
  for (int i = 0; i < whole.shape.rank(); ++i) (i < axis ? outer : inner) *= i == axis ? 1 : whole.shape[i];
  const int64_t from = some.shape[axis] * inner, to = whole.shape[axis] * inner;
  for (int64_t i = 0; from > 0 && i < outer; ++i)
    std::memcpy(whole.as<char>() + i * to, some.as<char>() + i * from, from);
}

}  // namespace

Feeds Session::Padded(const Feeds& feeds, const std::map<std::string, double>& fill) const {
  if (!impl_) Fail("this Session was moved elsewhere");
  const Graph& graph = impl_->compiled.graph;
  Feeds padded = feeds;
  std::string first;
  int64_t rows = -1;
  for (const auto& [name, value] : impl_->inputs) {
    auto feed = padded.find(name);
    auto batch = graph.producer(value).fixed.find(0);
    if (feed == padded.end() || batch == graph.producer(value).fixed.end()) continue;
    const Value& wanted = graph.value(value);
    const int axis = batch->second.axis;
    HostTensor& given = feed->second;
    bool fits = given.dtype == wanted.dtype && given.shape.rank() == wanted.shape.rank();
    for (int i = 0; fits && i < wanted.shape.rank(); ++i)
      fits = i == axis ? given.shape[i] <= wanted.shape[i] : given.shape[i] == wanted.shape[i];
    if (!fits)
      Fail("input '", name, "' of session ", impl_->options.name, " is ", Name(wanted.dtype),
           wanted.shape.str(), " with its batch along axis ", axis, ", but is fed ", Name(given.dtype),
           given.shape.str());
    if (rows >= 0 && rows != given.shape[axis])
      Fail("the feeds of session ", impl_->options.name, " differ in their batch: '", first, "' has ", rows,
           " but '", name, "' has ", given.shape[axis]);
    if (rows < 0) first = name;
    rows = given.shape[axis];
    if (given.shape == wanted.shape) continue;
    HostTensor whole = HostTensor::Make(wanted.dtype, wanted.shape);
    auto with = fill.find(name);
    if (with != fill.end()) FillWith(whole, with->second);
    CopyRows(given, whole, axis);
    given = whole;
  }
  for (const auto& [name, value] : fill)
    if (!impl_->inputs.count(name))
      Fail("'", name, "' is to be filled with ", value, " but is no input of session ", impl_->options.name);
  return padded;
}

}  // namespace oneflow_like
