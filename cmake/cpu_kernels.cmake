# The CPU kernels (ops/cpu) for whatever x86-64 processor runs the program: compiled once for each level of instructions
# that kernels gain from. AddCpuKernels (ops/cpu/levels.h) picks one when the program starts.

# For Intel's processors (-march=native), and clang for any, compilers prefer vectors of half the width of AVX-512: right for
# programs that use few of them, not for these kernels.
set(OFL_WHOLE_VECTORS -mprefer-vector-width=512)

# Of each level, its compiler options after the name that its entry gets.
set(OFL_CPU_LEVELS
  "V3 -march=x86-64-v3"
  "V4 -march=x86-64-v4 ${OFL_WHOLE_VECTORS}"
  "V4Bf16 -march=x86-64-v4 -mavx512bf16 ${OFL_WHOLE_VECTORS}"
  "V4Amx -march=x86-64-v4 -mavx512bf16 -mamx-tile -mamx-bf16 ${OFL_WHOLE_VECTORS}")

# Whether the levels can be built: on x86-64 by GNU's tools.
function(cpu_levels_work out)
  find_program(OFL_LD ld.bfd)
  set(works FALSE)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND OFL_LD AND CMAKE_OBJCOPY AND NOT OFL_SANITIZE)
    set(works TRUE)
  endif()
  set(${out} ${works} PARENT_SCOPE)
endfunction()

# Adds the static library `target` of OPS_CPU_SOURCES. NATIVE: for the building machine's processor alone.
#
# A level's objects have inline functions of headers that every level has, and the linker keeps one of each: an AVX-512
# copy of std::vector's would crash the whole program on a processor without. So a level is linked to one object whose
# only visible symbol is its entry. What all share is compiled for x86-64-v2, the lowest level.
function(add_cpu_kernels target)
  cmake_parse_arguments(ARG "NATIVE" "" "" ${ARGN})
  set(options ${OFL_KERNELS_O} -fno-math-errno -fno-trapping-math)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND options -Wno-maybe-uninitialized)  # GCC 12 says so of its own AVX-512 intrinsics
  endif()
  add_library(${target} STATIC ${OPS_CPU_SOURCES})
  target_link_libraries(${target} PUBLIC oneflow_like_ops oneflow_like::dnnl)
  target_compile_options(${target} PRIVATE ${options})
  add_dependencies(${target} oneflow_like_proto)
  cpu_levels_work(levels)
  if(ARG_NATIVE)
    target_compile_options(${target} PRIVATE -march=native)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
      target_compile_options(${target} PRIVATE ${OFL_WHOLE_VECTORS})
    endif()
  elseif(levels)
    target_compile_options(${target} PRIVATE -march=x86-64-v2)
    # What tells a processor below v2 so runs there.
    set_source_files_properties(${PROJECT_SOURCE_DIR}/ops/cpu/levels.cc PROPERTIES
                                COMPILE_OPTIONS -march=x86-64 SKIP_UNITY_BUILD_INCLUSION ON)
    target_compile_definitions(${target} PRIVATE OFL_CPU_LEVELS)
    add_cpu_levels(${target} "${options}")
  else()
    message(STATUS "${target}: CPU kernels for any ${CMAKE_SYSTEM_PROCESSOR} (levels need x86-64, ld.bfd and objcopy)")
  endif()
endfunction()

function(add_cpu_levels target options)
  set(sources ${OPS_CPU_SOURCES})
  list(FILTER sources EXCLUDE REGEX "/levels[.]cc$")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND options -fno-gnu-unique)  # unique symbols cannot be hidden
  endif()
  foreach(level ${OFL_CPU_LEVELS})
    separate_arguments(level)
    list(POP_FRONT level name)
    set(entry AddCpuKernels${name})
    string(LENGTH ${entry} length)
    set(objects ${target}_${name})
    add_library(${objects} OBJECT ${sources})
    set_target_properties(${objects} PROPERTIES UNITY_BUILD ON)  # whoever edits builds for one machine
    target_link_libraries(${objects} PRIVATE oneflow_like_ops oneflow_like::dnnl)
    target_compile_options(${objects} PRIVATE ${options} ${level})
    target_compile_definitions(${objects} PRIVATE OFL_CPU_ENTRY=${entry})
    add_dependencies(${objects} oneflow_like_proto)
    set(linked ${CMAKE_CURRENT_BINARY_DIR}/${objects}.o)
    add_custom_command(OUTPUT ${linked}
      COMMAND ${OFL_LD} -r --force-group-allocation -o ${linked} $<TARGET_OBJECTS:${objects}>
      COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=_ZN12oneflow_like${length}${entry}EPNS_14KernelRegistryE ${linked}
      DEPENDS ${objects} $<TARGET_OBJECTS:${objects}> COMMAND_EXPAND_LISTS VERBATIM COMMENT "CPU kernels of level ${name}")
    target_sources(${target} PRIVATE ${linked})
    set_source_files_properties(${linked} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  endforeach()
endfunction()
