// What an Error says that is expected.
#pragma once

#include <string>

#include "core/error.h"

namespace oneflow_like {

// Empty when there was none.
template <typename F>
std::string ErrorOf(F&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace oneflow_like
