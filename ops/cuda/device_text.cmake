# Writes the source that ops/cuda/device_text.h declares:
#   cmake -DSOURCE_DIR=... -DOUTPUT=.../device_text.cc -P device_text.cmake
set(text "// Made by ops/cuda/device_text.cmake.\n#include \"ops/cuda/device_text.h\"\n\nnamespace oneflow_like::cuda {\n")
foreach(pair kHostDeviceText:core/host_device.h kFloat16Text:core/float16.h kRandomText:core/random.h
             kScalarText:ops/scalar.h)
  string(REGEX MATCH "^([^:]+):(.+)$" unused "${pair}")
  set(name ${CMAKE_MATCH_1})
  file(READ "${SOURCE_DIR}/${CMAKE_MATCH_2}" header)
  string(REGEX REPLACE "(^|\n)#(include|pragma)[^\n]*" "\\1" header "${header}")
  string(APPEND text "const char* const ${name} = R\"ofl(${header})ofl\";\n")
endforeach()
string(APPEND text "}  // namespace oneflow_like::cuda\n")
file(WRITE "${OUTPUT}" "${text}")
