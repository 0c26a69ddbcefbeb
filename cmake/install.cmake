# What `cmake --install` puts where: the static libraries, the headers that oneflow_like/oneflow_like.h and operators of
# the user's own need, the CUDA backend's library when it is built, and the files of find_package(oneflow_like).
include(CMakePackageConfigHelpers)
option(OFL_INSTALL "Have rules for cmake --install" ${PROJECT_IS_TOP_LEVEL})
if(NOT OFL_INSTALL)
  return()
endif()

# Before anything is copied. Tests install the native build they belong to, into a folder of their own.
if(OFL_NATIVE)
  install(CODE [[
    if(NOT OFL_INSTALL_NATIVE)
      message(FATAL_ERROR "the CPU kernels of this build may run on no other processor than this machine's: configure with "
              "-DOFL_NATIVE=OFF to install kernels for every x86-64 processor, of which programs pick one at start")
    endif()]] ALL_COMPONENTS)
endif()

# Adds to `out` the header and all headers of ours that it includes.
function(add_with_included out header)
  if(header IN_LIST ${out})
    return()
  endif()
  set(found ${${out}} ${header})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
  file(STRINGS ${PROJECT_SOURCE_DIR}/${header} includes REGEX "^#include \"")
  foreach(include ${includes})
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${include}")
    add_with_included(found ${included})
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()
set(headers)
set(program_headers program training_flags language_model language_flags vision_program picture_data data synthetic
  huggingface_config huggingface_run precision)
list(TRANSFORM program_headers REPLACE "(.+)" "oneflow_like/program/\\1.h")
foreach(root ${program_headers} oneflow_like/checkpoint/tools.h oneflow_like/checkpoint/reader.h oneflow_like/job/agreement.h
             oneflow_like/data/files.h oneflow_like/data/token_files.h core/one_line.h core/system/text_lines.h sbp/boxing.h
             oneflow_like/data/source.h oneflow_like/data/pipeline.h oneflow_like/data/tokens.h oneflow_like/data/images.h
             oneflow_like/data/idx.h oneflow_like/data/clicks.h oneflow_like/text/tokenizers.h oneflow_like/text/utf8.h
             oneflow_like/generation/generator.h oneflow_like/oneflow_like.h oneflow_like/simulate.h oneflow_like/plan_search.h
             oneflow_like/calibrate.h oneflow_like/build_id.h
             ops/oracle.h ops/reference.h ops/cuda/kernel.h core/device/parallel_for.h core/random.h)
  add_with_included(headers ${root})
endforeach()
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${OFL_INCLUDE_DIR}/${folder} COMPONENT library)
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/oneflow_like)
install(TARGETS oneflow_like oneflow_like_core oneflow_like_sbp oneflow_like_ops oneflow_like_ops_cpu oneflow_like_compiler
                oneflow_like_actor oneflow_like_net oneflow_like_data oneflow_like_build_id
        EXPORT oneflow_like ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(EXPORT oneflow_like NAMESPACE oneflow_like:: FILE oneflow_like-targets.cmake DESTINATION ${package_dir}
        COMPONENT library)
if(TARGET oneflow_like_sentencepiece)
  install(TARGETS oneflow_like_sentencepiece LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
endif()
if(TARGET oneflow_like_cuda)
  install(TARGETS oneflow_like_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda)
endif()

configure_package_config_file(cmake/oneflow_like-config.cmake.in ${PROJECT_BINARY_DIR}/cmake/oneflow_like-config.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/oneflow_like-config-version.cmake
                                 VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/oneflow_like-config.cmake
              ${PROJECT_BINARY_DIR}/cmake/oneflow_like-config-version.cmake cmake/dependencies.cmake
        DESTINATION ${package_dir} COMPONENT library)

# What only the archive has: the shared libraries that programs need, so that they start where none is installed.
set(OFL_CARRIED oneflow_like/carried)  # in the folder of libraries
function(carry_libraries)
  get_property(programs GLOBAL PROPERTY OFL_PROGRAMS)
  set(modules)
  foreach(module oneflow_like_sentencepiece oneflow_like_cuda)
    if(TARGET ${module})
      list(APPEND modules ${module})
    endif()
  endforeach()
  list(TRANSFORM programs REPLACE "(.+)" "$<TARGET_FILE:\\1>")
  list(TRANSFORM modules REPLACE "(.+)" "$<TARGET_FILE:\\1>")
  install(CODE "
    set(programs \"${programs}\")
    set(modules \"${modules}\")
    set(libraries \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/${OFL_CARRIED}\")
    set(notices \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/oneflow_like/carried\")
    include(\"${PROJECT_SOURCE_DIR}/cmake/carry.cmake\")" COMPONENT carried EXCLUDE_FROM_ALL)
endfunction()

# Packages: `cpack` in the build folder makes a .deb and an archive that works wherever it is unpacked. Programs of users
# are linked with static libraries of ours, and so need the headers and libraries that these need. protobuf's version is
# that of the build: generated code fits no other.
string(REGEX MATCH "^(.*[.])([0-9]+)$" matched "${Protobuf_VERSION}")
math(EXPR next "${CMAKE_MATCH_2} + 1")
set(CPACK_DEBIAN_PACKAGE_DEPENDS "g++" "libprotobuf-dev (>= ${Protobuf_VERSION})" "libprotobuf-dev (<< ${CMAKE_MATCH_1}${next})"
    "libgoogle-glog-dev" "libgflags-dev" "libdnnl-dev" "libucx-dev" "libtbb-dev" "zlib1g-dev")
foreach(pair ${OFL_OPTIONAL_DEPENDENCIES})
  string(REGEX REPLACE "^.*:" "" package ${pair})
  list(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ${package})
endforeach()
list(JOIN CPACK_DEBIAN_PACKAGE_DEPENDS ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS cmake)
# What programs and modules are linked with. NVIDIA's libraries may be where dpkg-shlibdeps does not look.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
foreach(library CUBLASLT CUDNN)
  if(OFL_${library}_LIBRARY)
    get_filename_component(folder ${OFL_${library}_LIBRARY} DIRECTORY)
    list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${folder})
  endif()
endforeach()
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME oneflow-like)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR oneflow_like)
set(CPACK_PACKAGE_CONTACT "the authors of oneflow_like")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains deep networks on a mesh of devices: headers, libraries and example programs")
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/archive.cmake)
set(CPACK_STRIP_FILES OFF)  # of static libraries it would take what hides the levels of CPU kernels
include(CPack)
file(WRITE ${PROJECT_BINARY_DIR}/cmake/DEPENDENCIES
     "Programs that are linked with oneflow_like ${PROJECT_VERSION} need these packages of Debian, or their counterparts:\n"
     "${CPACK_DEBIAN_PACKAGE_DEPENDS}\n")
install(FILES ${PROJECT_BINARY_DIR}/cmake/DEPENDENCIES DESTINATION ${CMAKE_INSTALL_DATADIR}/oneflow_like COMPONENT library)
