// Shared libraries of this project that programs open when they need them: those which link what not every
// machine has, or what cannot be linked beside the rest.
#pragma once

#include <string>

namespace oneflow_like {

// Looks next to the program, then where an installed or bundled one has its libraries (../lib), then wherever
// the system looks, which a run path may have said. `flags`: of dlopen. Throws Error that begins with `who`,
// "a cuda mesh", says that it needs the file, and where it was looked for.
void* OpenLibrary(const std::string& who, const std::string& file, int flags);
// The function of that name in it. Throws Error where there is none.
void* FunctionOf(void* library, const std::string& who, const std::string& file, const char* name);

}  // namespace oneflow_like
