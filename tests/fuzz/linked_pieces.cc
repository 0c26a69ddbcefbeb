// OpenSentencePieces (oneflow_like/text/sentence_pieces.cc) with the module linked instead of opened, because
// sanitizers refuse RTLD_DEEPBIND. Fuzzers have no other protobuf that its library could meet.
#include <string>

#include "core/error.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/text/piece_model.h"
#include "oneflow_like/text/tokenizers.h"

extern "C" oneflow_like::Tokenizer* OflSentencePieces(const char* path, const char* model, size_t bytes);

namespace oneflow_like {

std::shared_ptr<const Tokenizer> OpenSentencePieces(const std::string& path) {
  const std::string model = ReadFile(path, 1 << 28);
  CheckPieceModel(path, model);
  std::shared_ptr<const Tokenizer> tokenizer(OflSentencePieces(path.c_str(), model.data(), model.size()));
  if (!tokenizer) Fail(path, ": it is no model of SentencePiece");
  return tokenizer;
}

}  // namespace oneflow_like
