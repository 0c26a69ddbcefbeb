# Read by cpack, once for each kind of package: the archive also has the libraries that its programs need.
if(CPACK_GENERATOR STREQUAL "TGZ")
  list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "${build};oneflow_like;carried;/")
endif()
