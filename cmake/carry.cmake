# Copies into folder `libraries` the shared libraries that `programs` and `modules` are linked with, as far as one machine's
# serve another's: not those of the C and C++ compilers, which every system has and which must fit its kernel and drivers,
# and not NVIDIA's, which come with the driver and the toolkit. Into folder `notices`: the licences of their packages.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${programs} MODULES ${modules}
     RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
     PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc[+][+])[.]so" "^lib(cu|nv|nccl)"
     POST_EXCLUDE_REGEXES "/liboneflow_like")
if(missing)
  message(FATAL_ERROR "an archive cannot carry libraries that are not found here: ${missing}")
endif()

function(carry library folder)
  get_filename_component(name ${library} NAME)
  file(REAL_PATH ${library} file)  # one file, under the name that programs ask for
  get_filename_component(file_name ${file} NAME)
  file(INSTALL DESTINATION ${folder} TYPE FILE FILES ${file} RENAME ${name})
  find_program(DPKG_QUERY dpkg-query)
  if(DPKG_QUERY)
    execute_process(COMMAND ${DPKG_QUERY} -S "*/${file_name}" OUTPUT_VARIABLE owner ERROR_QUIET)
    if(owner MATCHES "^([^:,]+)")
      set(package ${CMAKE_MATCH_1})
      if(EXISTS /usr/share/doc/${package}/copyright)
        file(INSTALL DESTINATION ${notices} TYPE FILE FILES /usr/share/doc/${package}/copyright RENAME ${package})
        return()
      endif()
    endif()
  endif()
  message(WARNING "${file}: the licence of its package is not found here; add it to the archive before you pass it on")
endfunction()

foreach(library ${found})
  carry(${library} ${libraries})
  get_filename_component(folder ${library} DIRECTORY)
  # Opened by name when it runs: UCX's transport between processes of one host. Those for InfiniBand need drivers.
  if(library MATCHES "/libucs[.]so" AND EXISTS ${folder}/ucx/libuct_cma.so.0)
    carry(${folder}/ucx/libuct_cma.so.0 ${libraries}/ucx)
  elseif(library MATCHES "/libtbb[.]so" AND EXISTS ${folder}/libtbbmalloc.so.2)
    carry(${folder}/libtbbmalloc.so.2 ${libraries})
  endif()
endforeach()
