# Writes the source that oneflow_like/report/page.h declares:
#   cmake -DSOURCE_DIR=... -DOUTPUT=.../page.cc -P page.cmake
file(READ "${SOURCE_DIR}/oneflow_like/report/page.html" page)
file(WRITE "${OUTPUT}" "// Made by oneflow_like/report/page.cmake.\n#include \"oneflow_like/report/page.h\"\n\n"
     "namespace oneflow_like {\nconst char* const kPageText = R\"ofl(${page})ofl\";\n}  // namespace oneflow_like\n")
