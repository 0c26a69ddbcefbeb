// SentencePiece by its own library, in a module (module/sentence_pieces.cc says why).
#include <dlfcn.h>

#include <string>

#include "core/error.h"
#include "core/system/open_library.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/text/piece_model.h"
#include "oneflow_like/text/tokenizers.h"

namespace oneflow_like {

#ifdef OFL_HAVE_SENTENCEPIECE

std::shared_ptr<const Tokenizer> OpenSentencePieces(const std::string& path) {
  constexpr int64_t kMostBytes = 1 << 28;
  const char* const file = "liboneflow_like_sentencepiece.so";
  const std::string model = ReadFile(path, kMostBytes);
  CheckPieceModel(path, model);
  void* module = OpenLibrary(path, file, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);  // stays open
  auto* make = reinterpret_cast<Tokenizer* (*)(const char*, const char*, size_t)>(
      FunctionOf(module, path, file, "OflSentencePieces"));
  const std::shared_ptr<const Tokenizer> tokenizer(make(path.c_str(), model.data(), model.size()));
  if (!tokenizer) Fail(path, ": it is no model of SentencePiece");
  return tokenizer;
}

#else

std::shared_ptr<const Tokenizer> OpenSentencePieces(const std::string& path) {
  Fail(path,
       ": it is read by SentencePiece, which this program was built without; install libsentencepiece-dev "
       "and build again");
}

#endif

}  // namespace oneflow_like
