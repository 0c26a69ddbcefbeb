// Opens shared libraries of this project when a program needs them: they depend on libraries that not every
// machine has, or that cannot be linked together with the rest.
#pragma once

#include <string>

namespace oneflow_like {

// Searches beside the program, then in the libraries' folder of an installed or bundled program (../lib),
// then in the system's search path and run paths. `flags`: of dlopen. Throws Error that begins with `who`, "a
// cuda mesh", and says that it needs the file, and where it was searched for.
void* OpenLibrary(const std::string& who, const std::string& file, int flags);
// The library's function of that name. Throws Error when there is none.
void* FunctionOf(void* library, const std::string& who, const std::string& file, const char* name);

}  // namespace oneflow_like
