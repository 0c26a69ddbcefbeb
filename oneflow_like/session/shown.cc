#include "oneflow_like/session/shown.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "compiler/search/choose_weights.h"
#include "core/formatted.h"

namespace oneflow_like {
namespace {

// Numbers of layers that are alike.
struct ShownLine {
  double sum = 0, greatest = 0;
  int count = 0;
  std::string where;  // the layer of the greatest; empty: there is one layer
};

std::string FourDigits(double x) { return Formatted("%.4g", x); }

std::string Padded(const std::string& text, size_t width, bool right) {
  const std::string blanks(width > text.size() ? width - text.size() : 0, ' ');
  return right ? blanks + text : text + blanks;
}

}  // namespace

void ShownNumbers::Add(const StepHandle& step) {
  const std::lock_guard lock(mutex_);
  for (ShownNumber& number : numbers_) {
    const double value = step.Get(number.name).as<float>()[0];
    if (!std::isfinite(value)) continue;
    number.greatest = number.steps == 0 ? value : std::max(number.greatest, value);
    number.sum += value;
    ++number.steps;
  }
}

std::vector<ShownNumber> ShownNumbers::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<ShownNumber> some = numbers_;
  std::erase_if(some, [](const ShownNumber& number) { return number.steps == 0; });
  return some;
}

std::string ShownText(const std::vector<ShownNumber>& numbers) {
  if (numbers.empty()) return "";
  std::map<std::string, ShownLine> lines;
  for (const ShownNumber& number : numbers) {
    NameInBlock at = InBlock(number.name);
    std::string layer;
    if (!at.block.empty()) {
      at.block.back() = '*';
      layer = at.block.substr(0, at.block.size() - 1) + at.number;
    }
    ShownLine& line = lines[at.block + at.name];
    if (line.count++ == 0 || number.greatest > line.greatest) {
      line.greatest = number.greatest;
      line.where = layer;
    }
    line.sum += number.mean();
  }
  size_t width = 0;
  for (const auto& [name, line] : lines) width = std::max(width, name.size());
  std::string text = Cat("what layers showed", std::string(width > 16 ? width - 16 : 0, ' '),
                         "      mean  greatest\n"),
              advice;
  for (const auto& [name, line] : lines) {
    text +=
        Cat("  ", Padded(name, std::max<size_t>(16, width), false),
            Padded(FourDigits(line.sum / line.count), 10, true), Padded(FourDigits(line.greatest), 10, true),
            line.count > 1 && line.greatest != 0 ? Cat("  in ", line.where) : "", "\n");
    const size_t last = name.rfind('/') + 1;
    if (const std::string what = name.substr(last);
        (what == "capacity" || what == "room") && lines.count(name.substr(0, last) + "load_max") > 0)
      advice += Cat("  with ", what, " ", FourDigits(std::ceil(100 * line.greatest) / 100), " ",
                    name.substr(0, last - 1), " would have dropped nothing in these steps\n");
  }
  return text + advice;
}

}  // namespace oneflow_like
