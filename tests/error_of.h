// What an Error says that is expected.
#pragma once

#include <string>

#include "core/error.h"

namespace oneflow_like {

// "no error" when there was none.
template <typename F>
std::string ErrorOf(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace oneflow_like
