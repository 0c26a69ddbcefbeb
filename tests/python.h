// Python, for tests that compare with packages of others: the program that OFL_PYTHON names, else python3.
#pragma once

#include <cstdlib>
#include <string>

namespace oneflow_like {

inline std::string Python() {
  const char* given = std::getenv("OFL_PYTHON");
  return given != nullptr ? given : "python3";
}

// Whether it is there and can `import` these packages, separated by commas. Takes the time of the import.
inline bool PythonHas(const std::string& packages) {
  return std::system((Python() + " -c 'import " + packages + "' 2> /dev/null").c_str()) == 0;
}

}  // namespace oneflow_like
