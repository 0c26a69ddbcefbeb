#include "core/system/open_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>

#include "core/error.h"

namespace oneflow_like {
namespace {

std::string FolderOfProgram() {
  char path[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return ".";
  std::string text(path, static_cast<size_t>(length));
  return text.substr(0, text.find_last_of('/'));
}

}  // namespace

void* OpenLibrary(const std::string& who, const std::string& file, int flags) {
  const std::string here = FolderOfProgram();
  std::string looked;
  for (const std::string& folder : {here, here + "/../lib"}) {
    const std::string path = folder + "/" + file;
    looked += Cat(looked.empty() ? "" : ", ", folder);
    if (access(path.c_str(), F_OK) != 0) continue;
    void* library = dlopen(path.c_str(), flags);
    if (library == nullptr) Fail(who, " needs ", file, ", which cannot be loaded: ", dlerror());
    return library;
  }
  void* library = dlopen(file.c_str(), flags);
  if (library != nullptr) return library;
  const std::string why = dlerror();  // begins with the name of the file that was not found
  if (why.rfind(file + ":", 0) != 0) Fail(who, " needs ", file, ", which cannot be loaded: ", why);
  Fail(who, " needs ", file, ", which is in none of ", looked, ", nor anywhere the system looks: ", why);
}

void* FunctionOf(void* library, const std::string& who, const std::string& file, const char* name) {
  void* function = dlsym(library, name);
  if (function == nullptr) Fail(who, " needs ", file, ", but the one found is not of this program");
  return function;
}

}  // namespace oneflow_like
