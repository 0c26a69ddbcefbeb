// page.html as text, made by page.cmake when the library is built.
#pragma once

namespace oneflow_like {

extern const char* const kPageText;

}  // namespace oneflow_like
