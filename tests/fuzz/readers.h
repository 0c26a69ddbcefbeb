// The readers of files that anyone may have written, driven by any bytes: what the fuzzers (fuzz_*.cc) and
// the test of their corpora call.
#pragma once

#include <functional>
#include <string>

namespace oneflow_like {

// Puts bytes into a file of a folder of its own, has them read as a user's program would, and reads what they
// then offer. Each function returns what the Error says, empty if there was none. Throws std::logic_error for
// what is wrong with a reader: an Error that names no file of the folder, or other values than the file has.
// Any other exception and every signal is one of the reader's mistakes, too.
class FuzzedReaders {
 public:
  explicit FuzzedReaders(const std::string& parent);  // where the folder is made
  ~FuzzedReaders();
  FuzzedReaders(const FuzzedReaders&) = delete;

  // A safetensors file.
  std::string Safetensors(const std::string& bytes);
  // The index of a checkpoint whose tensors are good. The second corrects the checksum first, so that what
  // follows the checksum is reached by bytes that have none.
  std::string Index(const std::string& bytes);
  std::string IndexWithChecksum(const std::string& bytes);
  // config.json beside the tensors of a small GPT-2.
  std::string Config(const std::string& bytes);
  // The index of tensors that Hugging Face's library cut into two files.
  std::string Shards(const std::string& bytes);

 private:
  std::string Try(const std::function<void()>& read) const;

  const std::string folder_;
};

}  // namespace oneflow_like
