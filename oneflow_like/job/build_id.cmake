# Writes the source that oneflow_like/build_id.h declares, unless it would be the same as before:
#   cmake -DSOURCE_DIR=... -DOUTPUT=.../build_id.cc -DVERSION=... -DGLOG=... -DGFLAGS=... -DCUDA=... -P build_id.cmake
# The commit is for people. What counts is the hash of the sources of the libraries, committed or not.
set(commit)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} rev-parse --show-toplevel --short=12 HEAD
                  OUTPUT_VARIABLE lines ERROR_QUIET RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(REAL_PATH "${SOURCE_DIR}" top)
  # Without a repository of its own (an unpacked archive), the commit would be that of a repository around it.
  if(NOT failed AND lines MATCHES "^(.*)\n([0-9a-f]+)$" AND CMAKE_MATCH_1 STREQUAL top)
    set(commit ${CMAKE_MATCH_2})
  endif()
endif()

set(sources)
foreach(folder core sbp ops compiler actor oneflow_like)
  file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/${folder}/*)
  list(FILTER files INCLUDE REGEX "[.](cc|h|cu|proto)$")
  list(APPEND sources ${files})
endforeach()
list(SORT sources)
set(hashes)
foreach(source ${sources})
  file(SHA256 ${SOURCE_DIR}/${source} hash)
  string(APPEND hashes "${source} ${hash}\n")
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 12 hash)

file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
// Made by oneflow_like/job/build_id.cmake.
#include "oneflow_like/build_id.h"

namespace oneflow_like {
BuildId ThisBuild() {
  return {"@VERSION@", "@commit@", "@hash@", "@GLOG@", "@GFLAGS@", "@CUDA@"};
}
}  // namespace oneflow_like
]])
