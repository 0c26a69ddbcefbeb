// Boxes of feeds: joining what is needed, checking what is given.
#include "core/boxes/feeds.h"

#include <algorithm>

#include "core/error.h"
#include "core/float16.h"

namespace oneflow_like {
namespace {

Box Around(const Box& a, const Box& b) {
  Box around = a;
  for (int i = 0; i < a.begin.rank(); ++i) {
    const int64_t end = std::max(a.begin[i] + a.extent[i], b.begin[i] + b.extent[i]);
    around.begin[i] = std::min(a.begin[i], b.begin[i]);
    around.extent[i] = end - around.begin[i];
  }
  return around;
}

// Whether the two overlap, or make up a box.
bool BelongTogether(const Box& a, const Box& b) {
  if (!a.Intersect(b).empty()) return true;
  int differ = 0;
  bool touch = true;
  for (int i = 0; i < a.begin.rank(); ++i) {
    if (a.begin[i] == b.begin[i] && a.extent[i] == b.extent[i]) continue;
    ++differ;
    touch = a.begin[i] + a.extent[i] == b.begin[i] || b.begin[i] + b.extent[i] == a.begin[i];
  }
  return differ <= 1 && touch;
}

bool FirstElementBefore(const Box& a, const Box& b) {
  return std::lexicographical_compare(a.begin.begin(), a.begin.end(), b.begin.begin(), b.begin.end());
}

}  // namespace

std::vector<Box> Disjoint(std::vector<Box> boxes) {
  std::erase_if(boxes, [](const Box& box) { return box.empty(); });
  for (bool again = true; again;) {
    again = false;
    std::stable_sort(boxes.begin(), boxes.end(), FirstElementBefore);
    std::vector<Box> joined;
    for (const Box& box : boxes) {
      // Neighbours stand next to one another mostly; any other pair is looked for once those are joined.
      auto with = joined.end();
      if (!joined.empty() && BelongTogether(joined.back(), box)) with = joined.end() - 1;
      if (with == joined.end() && boxes.size() <= 4096)
        with = std::find_if(joined.begin(), joined.end(),
                            [&](const Box& other) { return BelongTogether(other, box); });
      if (with == joined.end()) {
        joined.push_back(box);
      } else {
        *with = Around(*with, box);
        again = true;
      }
    }
    boxes = std::move(joined);
  }
  return boxes;
}

namespace {

// One box of `needs` that the pieces, which are disjoint, do not hold; empty: they hold all.
std::string Missing(const std::vector<Box>& needs, const std::vector<FeedPiece>& pieces) {
  for (const Box& need : needs) {
    int64_t held = 0;
    std::string given;
    for (const FeedPiece& piece : pieces) {
      held += need.Intersect(piece.box).elements();
      given += Cat(given.empty() ? "" : ", ", piece.box.str());
    }
    if (held != need.elements())
      return Cat("this process needs the box ", need.str(), " of it, but is fed ",
                 given.empty() ? "nothing" : given);
  }
  return "";
}

}  // namespace

std::string WrongPieces(DType dtype, const Dims& shape, const std::vector<Box>& needs,
                        const std::vector<FeedPiece>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Box& box = pieces[i].box;
    const HostTensor& values = pieces[i].values;
    bool fits = box.begin.rank() == shape.rank() && box.extent.rank() == shape.rank();
    for (int a = 0; fits && a < shape.rank(); ++a)
      fits = box.begin[a] >= 0 && box.extent[a] >= 0 && box.begin[a] <= shape[a] - box.extent[a];
    if (!fits) return Cat("the box ", box.str(), " does not lie in ", Name(dtype), shape.str());
    if (values.dtype != dtype || values.shape != box.extent)
      return Cat("the piece at ", box.str(), " is ", Name(values.dtype), values.shape.str(), " but must be ",
                 Name(dtype), box.extent.str());
    if (values.data == nullptr && values.bytes() > 0)
      return Cat("the piece at ", box.str(), " holds no data");
    for (size_t j = 0; j < i; ++j)
      if (!box.Intersect(pieces[j].box).empty())
        return Cat("the boxes ", pieces[j].box.str(), " and ", box.str(), " overlap");
    const bool read = box.empty() || std::any_of(needs.begin(), needs.end(), [&](const Box& need) {
                        return !need.Intersect(box).empty();
                      });
    if (!read) return Cat("no rank of this process reads the box ", box.str());
  }
  return Missing(needs, pieces);
}

void FillWith(const HostTensor& tensor, double value) {
  for (int64_t i = 0; i < tensor.elements(); ++i) switch (tensor.dtype) {
      case DType::kFloat32:
        tensor.as<float>()[i] = static_cast<float>(value);
        break;
      case DType::kBFloat16:
        tensor.as<BFloat16>()[i] = ToBFloat16(static_cast<float>(value));
        break;
      case DType::kFloat16:
        tensor.as<Float16>()[i] = ToFloat16(static_cast<float>(value));
        break;
      case DType::kInt32:
        tensor.as<int32_t>()[i] = static_cast<int32_t>(value);
        break;
      case DType::kInt64:
        tensor.as<int64_t>()[i] = static_cast<int64_t>(value);
        break;
      case DType::kUInt8:
        tensor.as<uint8_t>()[i] = static_cast<uint8_t>(value);
        break;
      case DType::kBool:
        tensor.as<bool>()[i] = value != 0;
        break;
    }
}

}  // namespace oneflow_like
