// The readers of data, of tokenizers and of configs, driven by any bytes: what fuzz_data.cc and the test of
// its corpora call.
#pragma once

#include <string>
#include <vector>

namespace oneflow_like {

class FuzzedData {
 public:
  // llmc: a token file; megatron: an index beside 24 bytes of tokens; megatron_tokens: tokens beside an index
  // that fits; npy; text, plain or gzip; idx, plain or gzip; clicks: a log; jpeg and png: a picture in a
  // folder of a class; tokenizer: a tokenizer.json, and pieces: a model of SentencePiece, which must also
  // encode and decode; config: flags of a run. Each has its corpus.
  static const std::vector<std::string>& Kinds();

  explicit FuzzedData(const std::string& parent);  // where a folder for files is made
  ~FuzzedData();
  FuzzedData(const FuzzedData&) = delete;

  // Returns what the Error says, empty if there was none. Throws std::logic_error for one that does not name
  // the file, and for a sample that is another when it is read again. Any other exception and every signal is
  // a reader's mistake, too. REQUIRES: `kind` is one of Kinds().
  std::string Read(const std::string& kind, const std::string& bytes);

 private:
  const std::string folder_;
};

}  // namespace oneflow_like
