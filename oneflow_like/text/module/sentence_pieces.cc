// liboneflow_like_sentencepiece.so: SentencePiece's library as a Tokenizer. It is a module because that
// library has a protobuf of its own, an old one, under the names of the one that we are linked with; a
// program opens it with RTLD_DEEPBIND, so that each finds its own. Nothing here but headers is ours.
#include <sentencepiece_processor.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "oneflow_like/data/tokens.h"

namespace oneflow_like {
namespace {

constexpr const char* kSpaceMark = "\xE2\x96\x81";  // U+2581, which stands for a space

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) : path_(path) {}
  bool Load(const char* model, size_t bytes) {
    return pieces_.LoadFromSerializedProto({model, bytes}).ok() && pieces_.GetPieceSize() > 0;
  }

  int64_t vocabulary() const override { return pieces_.GetPieceSize(); }

  std::vector<int32_t> Encode(const std::string& text) const override {
    std::vector<int> ids;
    if (const auto status = pieces_.Encode(text, &ids); !status.ok())
      Fail(path_, ": a text cannot be encoded: ", status.ToString());
    return {ids.begin(), ids.end()};
  }

  std::vector<int32_t> EncodeWhole(const std::string& text) const override {
    std::vector<int32_t> out;
    if (pieces_.bos_id() >= 0) out.push_back(pieces_.bos_id());
    const std::vector<int32_t> tokens = Encode(text);
    out.insert(out.end(), tokens.begin(), tokens.end());
    return out;
  }

  std::string Decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    bool begun = false;  // the space that encoding puts before a text goes again
    for (int32_t token : tokens) {
      if (token < 0 || token >= vocabulary()) Fail(path_, ": it has no token ", token);
      if (pieces_.IsControl(token)) continue;
      std::string piece = pieces_.IdToPiece(token);
      if (pieces_.IsUnknown(token)) {
        piece = " \xE2\x81\x87 ";  // as the library shows it
      } else if (pieces_.IsByte(token)) {
        piece = std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));  // <0xE2>
      } else {
        for (size_t at; (at = piece.find(kSpaceMark)) != std::string::npos;) piece.replace(at, 3, " ");
        if (!begun && piece.starts_with(' ')) piece.erase(0, 1);
      }
      begun = true;
      text += piece;
    }
    return text;
  }

  int32_t Find(const std::string& name) const override {
    const int id = pieces_.PieceToId(name);
    return pieces_.IdToPiece(id) == name ? id : -1;
  }

  bool Special(int32_t token) const override {
    return token >= 0 && token < vocabulary() && pieces_.IsControl(token);
  }

 private:
  const std::string path_;
  sentencepiece::SentencePieceProcessor pieces_;
};

}  // namespace
}  // namespace oneflow_like

// The caller deletes it. nullptr: these bytes are no model.
extern "C" __attribute__((visibility("default"))) oneflow_like::Tokenizer* OflSentencePieces(
    const char* path, const char* model, size_t bytes) {
  auto tokenizer = std::make_unique<oneflow_like::SentencePieceTokenizer>(path);
  try {
    if (bytes > 0 && tokenizer->Load(model, bytes)) return tokenizer.release();
  } catch (const std::exception&) {  // of the library's tries
  }
  return nullptr;
}
