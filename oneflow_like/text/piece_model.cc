#include "oneflow_like/text/piece_model.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/error.h"
#include "oneflow_like/data/files.h"

namespace oneflow_like {
namespace {

// Fields of the messages ModelProto, SentencePiece and NormalizerSpec (sentencepiece_model.proto).
constexpr uint64_t kPieces = 1, kRules = 3, kRulesBack = 5, kPieceText = 1, kCharacterMap = 2;

// The next number of 7 bits a byte; sets `rest` behind it. False: there is none.
bool TakeNumber(std::string_view* rest, uint64_t* number) {
  *number = 0;
  for (size_t i = 0; i < rest->size() && i < 10; ++i) {
    *number |= (uint64_t{static_cast<uint8_t>((*rest)[i])} & 0x7F) << (7 * i);
    if (static_cast<uint8_t>((*rest)[i]) < 0x80) {
      rest->remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

// Calls use(number, bytes) for the fields of a protobuf message that have a length, in order. False: it is no
// message.
bool ForFields(std::string_view message, const std::function<void(uint64_t, std::string_view)>& use) {
  enum Wire : uint64_t { kVarint = 0, kEight = 1, kBytes = 2, kFour = 5 };
  while (!message.empty()) {
    uint64_t tag = 0, size = 0;
    if (!TakeNumber(&message, &tag)) return false;
    switch (tag & 7) {
      case kVarint:
        if (!TakeNumber(&message, &size)) return false;
        continue;
      case kEight:
        size = 8;
        break;
      case kFour:
        size = 4;
        break;
      case kBytes:
        if (!TakeNumber(&message, &size)) return false;
        break;
      default:
        return false;
    }
    if (size > message.size()) return false;
    if ((tag & 7) == kBytes) use(tag >> 3, message.substr(0, size));
    message.remove_prefix(size);
  }
  return true;
}

// Rules of characters: the size of a trie, the trie, and texts that end with a zero, of which its values are
// the beginnings. The trie is an array of units of 32 bits, in which a state is a position that a byte of the
// text changes (Yata's double array, as darts-clone writes it).
class CharacterMap {
 public:
  explicit CharacterMap(std::string_view map) {
    if (map.size() < 4) return;
    const uint64_t size = LittleAt(Bytes(map), 4);
    if (size % (4 * kBlock) != 0 || size == 0 || size >= map.size() - 4) return;
    units_ = map.substr(4, size);
    texts_ = map.substr(4 + size);
  }
  // Whether no text leads out of the trie or the texts, or to more rules than the library has room for.
  bool Sound() {
    if (units_.empty() || texts_.back() != '\0') return false;
    most_.assign(units_.size() / 4, kUnknown);
    const int rules = RulesBehind(OffsetOf(UnitAt(0)), 0);
    return rules >= 0 && rules <= kMostRules;
  }

 private:
  static constexpr uint32_t kBlock = 256;  // the trie's units are whole blocks: a byte leads nowhere else
  static constexpr int kMostRules = 32;    // with a common beginning
  static constexpr int kDeepest = 1000;    // bytes of a rule; also ends what goes round in circles
  static constexpr int kUnknown = -2;

  static const uint8_t* Bytes(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }
  uint32_t UnitAt(uint32_t i) const {
    return static_cast<uint32_t>(LittleAt(Bytes(units_) + 4 * size_t{i}, 4));
  }
  static uint32_t OffsetOf(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  // The most rules that a text can fulfil from this state on; -1: it can lead astray.
  int RulesBehind(uint32_t state, int depth) {
    if (state >= most_.size() || depth > kDeepest) return -1;
    if (most_[state] != kUnknown) return most_[state];
    int most = 0;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t at = state ^ byte, unit = UnitAt(at), next = at ^ OffsetOf(unit);
      if ((unit & (1u << 31 | 0xFF)) != byte) continue;
      const bool rule = (unit >> 8 & 1) != 0;
      const int behind = RulesBehind(next, depth + 1);
      if (behind < 0 || (rule && (UnitAt(next) & ~(1u << 31)) >= texts_.size())) return -1;
      most = std::max(most, behind + rule);
    }
    return most_[state] = most;
  }

  std::string_view units_, texts_;
  std::vector<int> most_;  // by state
};

}  // namespace

void CheckPieceModel(const std::string& path, std::string_view model) {
  const auto at = [&](std::string_view part) { return part.data() - model.data(); };
  int64_t pieces = 0;
  const auto check_piece = [&](uint64_t field, std::string_view bytes) {
    if (field == kPieceText && bytes.find('\0') != bytes.npos)
      Fail(path, " at byte ", at(bytes), ": piece ", pieces, " has a zero byte in its text");
  };
  const auto check_rules = [&](uint64_t field, std::string_view bytes) {
    if (field == kCharacterMap && !bytes.empty() && !CharacterMap(bytes).Sound())
      Fail(path, " at byte ", at(bytes), ": its rules of characters are damaged: they lead out of their ",
           bytes.size(), " bytes");
  };
  const auto part = [&](std::string_view bytes, const auto& check) {
    if (!ForFields(bytes, check)) Fail(path, " at byte ", at(bytes), ": it is no model of SentencePiece");
  };
  part(model, [&](uint64_t field, std::string_view bytes) {
    if (field == kPieces) {
      part(bytes, check_piece);
      ++pieces;
    } else if (field == kRules || field == kRulesBack) {
      part(bytes, check_rules);
    }
  });
  if (pieces == 0) Fail(path, ": it is no model of SentencePiece");
}

}  // namespace oneflow_like
