// Checks a SentencePiece model before its library reads it: that library follows some numbers of the file
// without a check, so that a damaged or hostile model makes it read memory that it does not have.
#pragma once

#include <string>
#include <string_view>

namespace oneflow_like {

// Throws Error, with the file's path and a byte, for what is no model, for a piece with a zero byte, and for
// rules of characters that lead out of their own bytes.
void CheckPieceModel(const std::string& path, std::string_view model);

}  // namespace oneflow_like
