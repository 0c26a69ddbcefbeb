// Random pairs of layouts over the ranks of a small world: what tests of collectives between processes move.
#pragma once

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sbp/boxing.h"

namespace oneflow_like {

using Random = std::mt19937;
inline int Draw(Random& random, int bound) {
  return static_cast<int>(random() % static_cast<unsigned>(bound));
}

inline void ForEach(const Box& box, const std::function<void(const Dims&)>& f) {
  Dims at = box.begin;
  for (int64_t n = box.elements(); n > 0; --n) {
    f(at);
    for (int i = at.rank() - 1; i >= 0; --i) {
      if (++at[i] < box.begin[i] + box.extent[i]) break;
      at[i] = box.begin[i];
    }
  }
}

// Of `at` in the memory of a row-major piece.
inline int64_t IndexIn(const Box& box, const Dims& at) {
  int64_t index = 0;
  for (int i = 0; i < at.rank(); ++i) index = index * box.extent[i] + at[i] - box.begin[i];
  return index;
}

struct RandomBoxing {
  Dims shape;
  BoxingEnd from, to;

  std::string str() const {
    std::string text = shape.str();
    for (const BoxingEnd* end : {&from, &to}) {
      text += end == &from ? " from" : " to";
      for (size_t a = 0; a < end->sizes.size(); ++a) text += Cat(" ", end->sizes[a], ":", end->sbp[a].str());
      text += " on";
      for (int device : end->devices) text += Cat(" ", device);
    }
    return text;
  }
};

inline BoxingEnd RandomEnd(Random& random, int world, int shape_rank) {
  BoxingEnd end;
  const int devices = 1 + Draw(random, world);
  if (devices % 2 == 0 && Draw(random, 2) == 0) {
    end.sizes = {2, devices / 2};
  } else {
    end.sizes = {devices};
  }
  for (size_t a = 0; a < end.sizes.size(); ++a) {
    const int kind = Draw(random, 4);
    end.sbp.push_back(kind < 2 ? S(Draw(random, shape_rank)) : kind == 2 ? B() : P());
  }
  for (int d = 0; d < world; ++d) end.devices.push_back(d);
  if (Draw(random, 3) == 0) std::shuffle(end.devices.begin(), end.devices.end(), random);
  if (Draw(random, 3) == 0) std::reverse(end.devices.begin(), end.devices.end());
  end.devices.resize(devices);
  return end;
}

// The ends overlap as they fall: the same ranks, some in common, or (about one in three) none.
inline RandomBoxing MakeRandomBoxing(Random& random, int world) {
  RandomBoxing boxing;
  const int rank = 1 + Draw(random, 3);
  for (int a = 0; a < rank; ++a) boxing.shape.push_back(1 + Draw(random, a == 0 ? 14 : 6));
  boxing.from = RandomEnd(random, world, rank);
  const int kind = Draw(random, 3);
  if (kind == 0) {
    boxing.to = boxing.from;
    for (Sbp& sbp : boxing.to.sbp) {
      const int choice = Draw(random, 4);
      sbp = choice == 0 ? S(Draw(random, rank)) : choice == 1 ? P() : B();
    }
  } else if (kind == 1 || world == 1) {
    boxing.to = RandomEnd(random, world, rank);
  } else {  // the lower ranks to the upper ones
    const int lower = 1 + Draw(random, world - 1);
    boxing.from = RandomEnd(random, lower, rank);
    boxing.to = RandomEnd(random, world - lower, rank);
    for (int& device : boxing.to.devices) device += lower;
  }
  return boxing;
}

}  // namespace oneflow_like
