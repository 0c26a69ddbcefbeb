// Numbers as --dry_run and --explain print them.
#pragma once

#include <string>
#include <vector>

namespace oneflow_like {

std::string BytesText(double bytes);      // "1.50 MB"
std::string SecondsText(double seconds);  // "1.50 ms"
std::string RangesText(
    const std::vector<int>& ranks);  // "0-3, 8"; of many the first few and how many there are

}  // namespace oneflow_like
