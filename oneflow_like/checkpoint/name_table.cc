// A variable of a row is seen in three ways: as we have it; flat, with those axes merged that are one of
// theirs (the same bytes); and as a part of their tensor (in their order of axes, and moved along the axis of
// joining).
#include "oneflow_like/checkpoint/name_table.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "compiler/graph/training.h"
#include "core/boxes/copy_box.h"
#include "core/boxes/runs.h"
#include "core/error.h"

namespace oneflow_like {
namespace {

std::string Numbered(std::string name, int64_t i) {
  const std::string mark = "{i}";
  for (size_t at; (at = name.find(mark)) != std::string::npos;)
    name.replace(at, mark.size(), std::to_string(i));
  return name;
}

// A box of ours, over the axes that are one of theirs, and the interval of that one axis that it is.
struct Span {
  Box box;
  int64_t begin = 0, extent = 0;
};

std::vector<Span> SpansOf(const Box& box, const Dims& shape) {
  std::vector<Span> spans;
  if (shape.rank() == 0) return {{{}, 0, 1}};
  const Box whole = Box::Whole(shape);
  ForEachRun(box, whole, INT64_MAX, [&](const Box& run) {
    spans.push_back({run, OffsetIn(whole, run, DType::kUInt8), run.elements()});
  });
  return spans;
}

std::vector<Span> SpansOf(int64_t begin, int64_t end, const Dims& shape) {
  std::vector<Span> spans;
  if (shape.rank() == 0) return {{{}, 0, 1}};
  for (int64_t extent = 0; begin < end; begin += extent) {
    int axis = shape.rank() - 1;
    int64_t row = 1;  // the longest that starts here and ends within
    while (axis > 0 && begin % (row * shape[axis]) == 0 && begin + row * shape[axis] <= end)
      row *= shape[axis--];
    const int64_t rows = std::min((end - begin) / row, shape[axis] - begin / row % shape[axis]);
    extent = rows * row;
    Span span{{Dims(shape.rank(), 0), Dims(shape.rank(), 1)}, begin, extent};
    int64_t index = begin;
    for (int a = shape.rank() - 1; a >= 0; --a) {
      span.box.begin[a] = index % shape[a];
      span.box.extent[a] = a > axis ? shape[a] : a == axis ? rows : 1;
      index /= shape[a];
    }
    spans.push_back(span);
  }
  return spans;
}

using UseBoth = std::function<void(const Box& ours, const Box& flat)>;

// Every combination of a span of each axis.
void ForEachPair(const std::vector<std::vector<Span>>& spans, const UseBoth& use, size_t axis = 0,
                 const Box& ours = {}, const Box& flat = {}) {
  if (axis == spans.size()) return use(ours, flat);
  for (const Span& span : spans[axis]) {
    Box more = ours, flat_more = flat;
    for (int a = 0; a < span.box.begin.rank(); ++a) {
      more.begin.push_back(span.box.begin[a]);
      more.extent.push_back(span.box.extent[a]);
    }
    flat_more.begin.push_back(span.begin);
    flat_more.extent.push_back(span.extent);
    ForEachPair(spans, use, axis + 1, more, flat_more);
  }
}

// The axes of a variable that are axis `axis` of the flat one.
Dims Group(const NameRow& row, const Dims& all, int axis) {
  if (row.axes.empty()) return {all[axis]};
  int first = 0;
  for (int a = 0; a < axis; ++a) first += row.axes[a];
  return Dims(all.begin() + first, all.begin() + first + row.axes[axis]);
}

// As theirs has the axes of a flat variable, and the other way round.
Dims Ordered(const Dims& flat, const std::vector<int>& order) {
  Dims theirs = flat;
  for (size_t a = 0; a < order.size(); ++a) theirs[static_cast<int>(a)] = flat[order[a]];
  return theirs;
}
Dims Restored(const Dims& theirs, const std::vector<int>& order) {
  Dims flat = theirs;
  for (size_t a = 0; a < order.size(); ++a) flat[order[a]] = theirs[static_cast<int>(a)];
  return flat;
}

void ForEachPartOfOurs(const RowLayout& layout, size_t part, const Box& box, const UseBoth& use) {
  const NameRow& row = layout.row;
  std::vector<std::vector<Span>> spans;
  for (int a = 0; a < layout.shape.rank(); ++a)
    spans.push_back(SpansOf(Box{Group(row, box.begin, a), Group(row, box.extent, a)},
                            Group(row, row.ours[part].shape, a)));
  ForEachPair(spans, use);
}

void ForEachPartOfFlat(const RowLayout& layout, size_t part, const Box& flat, const UseBoth& use) {
  const NameRow& row = layout.row;
  std::vector<std::vector<Span>> spans;
  for (int a = 0; a < layout.shape.rank(); ++a)
    spans.push_back(
        SpansOf(flat.begin[a], flat.begin[a] + flat.extent[a], Group(row, row.ours[part].shape, a)));
  ForEachPair(spans, use);
}

Box ToTheirs(const RowLayout& layout, size_t part, const Box& flat) {
  Box theirs = {Ordered(flat.begin, layout.row.order), Ordered(flat.extent, layout.row.order)};
  for (int a = 0; a < theirs.begin.rank(); ++a) theirs.begin[a] += layout.parts[part].begin[a];
  return theirs;
}

Box ToFlat(const RowLayout& layout, size_t part, Box theirs) {
  for (int a = 0; a < theirs.begin.rank(); ++a) theirs.begin[a] -= layout.parts[part].begin[a];
  return {Restored(theirs.begin, layout.row.order), Restored(theirs.extent, layout.row.order)};
}

// Elements of `size` bytes in rows of these extents, next to one another: axis i becomes what axis order[i]
// was.
void Permute(const Dims& extent, const std::vector<int>& order, size_t size, std::string* data) {
  const std::string from = *data;
  const int rank = extent.rank();
  std::vector<size_t> step(rank, size);  // of the old axes, in bytes
  for (int a = rank - 2; a >= 0; --a) step[a] = step[a + 1] * static_cast<size_t>(extent[a + 1]);
  char* to = data->data();
  const auto copy = [&](const auto& self, int axis, const char* at) -> void {
    const int old = order[axis];
    for (int64_t i = 0; i < extent[old]; ++i, at += step[old]) {
      if (axis + 1 < rank) {
        self(self, axis + 1, at);
      } else {
        std::memcpy(to, at, size);
        to += size;
      }
    }
  };
  copy(copy, 0, from.data());
}

std::vector<int> Inverse(const std::vector<int>& order) {
  std::vector<int> inverse(order.size());
  for (size_t a = 0; a < order.size(); ++a) inverse[order[a]] = static_cast<int>(a);
  return inverse;
}

std::string Misfit(const SourceVariable& is, const std::string& name, const Dims& shape) {
  return Cat("'", name, "' has shape ", is.shape.str(), " where ", shape.str(), " is meant");
}

void RequireFit(const std::string& where, const NameTable& table, const std::vector<std::string>& missing,
                const std::vector<std::string>& unknown, const std::vector<std::string>& different) {
  std::string wrong;
  if (!missing.empty()) wrong += Cat("; it lacks ", Quoted(missing));
  if (!unknown.empty()) wrong += Cat("; it has ", Quoted(unknown), ", which are unknown there");
  for (size_t i = 0; i < std::min<size_t>(different.size(), 8); ++i) wrong += "; " + different[i];
  if (!wrong.empty()) Fail(where, " does not fit ", table.model, ": ", wrong.substr(2));
}

// Index `part` of a first axis, and all of `of`.
Dims Prefixed(int64_t part, const Dims& of) {
  Dims all = {part};
  for (int64_t extent : of) all.push_back(extent);
  return all;
}
Dims WithoutFirst(const Dims& of) { return Dims(of.begin() + 1, of.end()); }

}  // namespace

Dims NameRow::Variable::Whole() const { return parts == 0 ? shape : Prefixed(parts, shape); }

void NameTable::Repeat(int64_t times, const NameRow& row) {
  for (int64_t i = 0; i < times; ++i) {
    NameRow numbered = row;
    numbered.theirs = Numbered(row.theirs, i);
    for (NameRow::Variable& variable : numbered.ours) variable.name = Numbered(variable.name, i);
    rows.push_back(std::move(numbered));
  }
}

RowLayout::RowLayout(const NameRow& given) : row(given) {
  auto fail = [&](const std::string& why) { Fail("the row of '", row.theirs, "' ", why); };
  if (row.ours.empty()) fail("names no variable of ours");
  for (const NameRow::Variable& variable : row.ours) {
    int axes = 0;
    for (int n : row.axes) axes += n;
    if (!row.axes.empty() && axes != variable.shape.rank())
      fail(Cat("is about ", axes, " axes, but '", variable.name, "' has shape ", variable.shape.str()));
    Dims flat;
    const int rank = row.axes.empty() ? variable.shape.rank() : static_cast<int>(row.axes.size());
    for (int a = 0; a < rank; ++a) flat.push_back(Group(row, variable.shape, a).elements());
    std::vector<int> all(rank), order = row.order;
    std::iota(all.begin(), all.end(), 0);
    std::sort(order.begin(), order.end());
    if (!order.empty() && order != all) fail(Cat("does not order ", rank, " axes, each once"));
    Box part = Box::Whole(Ordered(flat, row.order));
    if (parts.empty()) {
      shape = part.extent;
    } else {
      if (row.joined < 0 || row.joined >= rank) fail(Cat("joins along axis ", row.joined, " of ", rank));
      Dims others = part.extent;
      if (others.rank() == shape.rank()) others[row.joined] = shape[row.joined];
      if (others != shape)
        fail(Cat("joins '", variable.name, "', seen as ", part.extent.str(), ", to ", shape.str()));
      part.begin[row.joined] = shape[row.joined];
      shape[row.joined] += part.extent[row.joined];
    }
    parts.push_back(part);
  }
}

// --- Theirs as ours ---

OurNames::OurNames(std::shared_ptr<VariableSource> theirs, const NameTable& table)
    : theirs_(std::move(theirs)) {
  const auto& all = theirs_->variables();
  const auto& others = theirs_->others();
  std::vector<std::string> missing, unknown, different;
  std::set<std::string> used;
  const std::string& prefix = table.optional_prefix;
  for (const NameRow& row : table.rows) {
    std::string name = row.theirs;
    if (!all.count(name) && !others.count(name) && !prefix.empty() && name.rfind(prefix, 0) == 0)
      name.erase(0, prefix.size());
    auto found = all.find(name);
    if (const auto other = others.find(name); other != others.end()) {
      used.insert(name);
      different.push_back(Cat("'", name, "' is of type ", other->second, ", which is not known here"));
      continue;
    }
    if (found == all.end()) {
      missing.push_back(row.theirs);
      continue;
    }
    used.insert(name);
    rows_.emplace_back(row);
    if (found->second.shape != rows_.back().shape)
      different.push_back(Misfit(found->second, name, rows_.back().shape));
    for (size_t part = 0; part < row.ours.size(); ++part) {
      const NameRow::Variable& ours = row.ours[part];
      const DType dtype = variables_.emplace(ours.name, SourceVariable{found->second.dtype, ours.Whole()})
                              .first->second.dtype;
      if (dtype != found->second.dtype)
        different.push_back(Cat("'", name, "' is ", Name(found->second.dtype), ", but other parts of '",
                                ours.name, "' are ", Name(dtype)));
      std::vector<Place>& places = places_[ours.name];
      places.resize(std::max<size_t>(1, static_cast<size_t>(ours.parts)));
      places[static_cast<size_t>(ours.part)] = {rows_.size() - 1, part, name};
    }
  }
  const auto look_at = [&](const std::string& name) {
    auto matches = [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; };
    if (!used.count(name) && std::none_of(table.ignored.begin(), table.ignored.end(), matches))
      unknown.push_back(name);
  };
  for (const auto& [name, unused] : all) look_at(name);
  for (const auto& [name, unused] : others) look_at(name);
  RequireFit(where(), table, missing, unknown, different);
}

void OurNames::Read(const std::string& variable, const Box& box, void* to) {
  const std::vector<Place>& places = places_.at(variable);
  const DType dtype = variables_.at(variable).dtype;
  const Place& first = places.front();
  if (rows_[first.row].row.ours[first.part].parts == 0) return ReadPart(first, dtype, box, to);
  const Box of_part = {WithoutFirst(box.begin), WithoutFirst(box.extent)};
  for (int64_t i = 0; i < box.extent[0]; ++i)
    ReadPart(places[static_cast<size_t>(box.begin[0] + i)], dtype, of_part,
             static_cast<char*>(to) + i * of_part.elements() * static_cast<int64_t>(SizeOf(dtype)));
}

void OurNames::ReadPart(const Place& place, DType dtype, const Box& box, void* to) {
  const RowLayout& layout = rows_[place.row];
  ForEachRun(box, box, ElementsOfBlock(dtype), [&](const Box& run) {
    ForEachPartOfOurs(layout, place.part, run, [&](const Box& ours, const Box& flat) {
      part_.resize(ours.elements() * SizeOf(dtype));
      theirs_->Read(place.theirs, ToTheirs(layout, place.part, flat), part_.data());
      const std::vector<int>& order = layout.row.order;
      if (!order.empty()) Permute(Ordered(flat.extent, order), Inverse(order), SizeOf(dtype), &part_);
      CopyBox(dtype, ours, {part_.data(), ours}, {to, box});
    });
  });
}

// --- Ours as theirs ---

TheirNames::TheirNames(std::shared_ptr<VariableSource> ours, const NameTable& table)
    : ours_(std::move(ours)) {
  const auto& all = ours_->variables();
  std::vector<std::string> missing, unknown, different;
  std::set<std::string> used;
  for (const NameRow& row : table.rows) {
    for (const NameRow::Variable& variable : row.ours) {
      used.insert(variable.name);
      auto found = all.find(variable.name);
      if (found == all.end()) {
        missing.push_back(variable.name);
        continue;
      }
      if (found->second.shape != variable.Whole())
        different.push_back(Misfit(found->second, variable.name, variable.Whole()));
      const DType dtype = variables_.emplace(row.theirs, found->second).first->second.dtype;
      if (found->second.dtype != dtype)
        different.push_back(Cat("'", variable.name, "' is ", Name(found->second.dtype), ", but what '",
                                row.theirs, "' has before it is ", Name(dtype)));
    }
    const RowLayout& layout = rows_.emplace(row.theirs, RowLayout(row)).first->second;
    variables_[row.theirs].shape = layout.shape;
  }
  for (const auto& [name, unused] : all)
    if (!used.count(name) && !IsTrainingState(name)) unknown.push_back(name);
  RequireFit(where(), table, missing, unknown, different);
}

void TheirNames::Read(const std::string& tensor, const Box& box, void* to) {
  const RowLayout& layout = rows_.at(tensor);
  const DType dtype = variables_.at(tensor).dtype;
  ForEachRun(box, box, ElementsOfBlock(dtype), [&](const Box& run) {
    for (size_t part = 0; part < layout.parts.size(); ++part) {
      const Box common = run.Intersect(layout.parts[part]);
      if (common.empty()) continue;
      const Box wanted = ToFlat(layout, part, common);
      ForEachPartOfFlat(layout, part, wanted, [&](const Box& ours, const Box& flat) {
        part_.resize(ours.elements() * SizeOf(dtype));
        const NameRow::Variable& of = layout.row.ours[part];
        const Box wanted_of =
            of.parts == 0 ? ours : Box{Prefixed(of.part, ours.begin), Prefixed(1, ours.extent)};
        ours_->Read(of.name, wanted_of, part_.data());
        if (!layout.row.order.empty()) Permute(flat.extent, layout.row.order, SizeOf(dtype), &part_);
        const Box theirs = ToTheirs(layout, part, flat);
        CopyBox(dtype, theirs, {part_.data(), theirs}, {to, box});
      });
    }
  });
}

}  // namespace oneflow_like
