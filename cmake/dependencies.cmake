# The libraries that ours are linked with, as imported targets: for the build (CMakeLists.txt) and, installed beside
# oneflow_like-config.cmake, for projects that use what was installed.

# Sets `out` to what is missing, each with its Debian package; empty when nothing is. Further arguments are libraries that
# a build found and used, as library:package.
function(oneflow_like_dependencies out)
  set(missing)
  find_package(Threads QUIET)
  if(NOT Threads_FOUND)
    list(APPEND missing "threads (libc6-dev)")
  endif()
  find_package(Protobuf QUIET)
  if(NOT Protobuf_FOUND)
    list(APPEND missing "protobuf (libprotobuf-dev)")
  endif()
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(NOT OpenMP_CXX_FOUND)
    list(APPEND missing "OpenMP (g++)")
  endif()
  find_package(ZLIB QUIET)
  if(NOT ZLIB_FOUND)
    list(APPEND missing "zlib (zlib1g-dev)")
  endif()
  # These have no package file that every distribution installs.
  foreach(pair glog:libgoogle-glog-dev gflags:libgflags-dev dnnl:libdnnl-dev ucp:libucx-dev ucs:libucx-dev tbb:libtbb-dev
               ${ARGN})
    string(REGEX MATCH "^([^:]+):(.+)$" matched ${pair})
    set(library ${CMAKE_MATCH_1})
    set(package ${CMAKE_MATCH_2})
    string(TOUPPER OFL_${library} path)
    if(pair IN_LIST ARGN)
      string(APPEND path _LIBRARY)  # OFL_JPEG says whether it is used
    endif()
    find_library(${path} ${library})
    if(NOT ${path})
      list(APPEND missing "${library} (${package})")
    elseif(NOT TARGET oneflow_like::${library})
      # Global: a project may link ours in a folder beside the one that looked for it.
      add_library(oneflow_like::${library} UNKNOWN IMPORTED GLOBAL)
      set_target_properties(oneflow_like::${library} PROPERTIES IMPORTED_LOCATION ${${path}})
    endif()
  endforeach()
  set(Protobuf_VERSION "${Protobuf_VERSION}" PARENT_SCOPE)
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()
