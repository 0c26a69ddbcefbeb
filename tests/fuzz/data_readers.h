// The readers of data, driven by any bytes: what fuzz_data.cc and the test of its corpus call.
#pragma once

#include <string>

namespace oneflow_like {

class FuzzedData {
 public:
  explicit FuzzedData(const std::string& parent);  // where a folder for files is made
  ~FuzzedData();
  FuzzedData(const FuzzedData&) = delete;

  // The first byte says what the others are: 0 a token file of llm.c, 1 a Megatron index beside 24 bytes of
  // tokens, 2 .npy, 3 text, 4 IDX, 5 a click log, 6 a picture; modulo 7. Returns what the Error says, empty
  // if there was none. Throws std::logic_error for one that does not name the file. Any other exception and
  // every signal is a reader's mistake, too.
  std::string Read(const std::string& bytes);

 private:
  const std::string folder_;
};

}  // namespace oneflow_like
