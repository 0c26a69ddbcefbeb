// The formats of token files: llm.c's, Megatron's, NumPy's, and text.
#include "oneflow_like/data/token_files.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>

#include "core/error.h"

namespace oneflow_like {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers of token files are copied as they lie");

using Shard = Tokens::Shard;

constexpr int64_t kLlmcHeader = 1024;
struct LlmcFormat {
  int32_t magic, version;
  int width;
};
constexpr LlmcFormat kLlmcFormats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

int32_t Int32At(const MappedFile& file, int64_t offset) {
  return static_cast<int32_t>(LittleAt(file.data() + offset, 4));
}

const LlmcFormat& FormatOf(const MappedFile& file) {
  const int32_t magic = Int32At(file, 0), version = Int32At(file, 4);
  for (const LlmcFormat& format : kLlmcFormats) {
    if (__builtin_bswap32(static_cast<uint32_t>(magic)) == static_cast<uint32_t>(format.magic))
      Fail(file.path(), " at byte 0: the magic number is big-endian; token files are little-endian");
    if (magic != format.magic) continue;
    if (version == format.version) return format;
    Fail(file.path(), " at byte 4: token file version ", version, ", but of magic number ", magic,
         " only version ", format.version, " is known");
  }
  Fail(file.path(), " is not a token file: at byte 0 its first number is ", magic, " instead of ",
       kLlmcFormats[0].magic, " or ", kLlmcFormats[1].magic);
}

Shard OpenLlmc(const std::string& path) {
  auto file = std::make_shared<MappedFile>(path);
  if (file->size() < kLlmcHeader)
    Fail(path, " is truncated at byte ", file->size(), ": the header of a token file takes ", kLlmcHeader,
         " bytes");
  const LlmcFormat& format = FormatOf(*file);
  const int64_t count = Int32At(*file, 8), rest = file->size() - kLlmcHeader;
  if (count < 0 || rest != count * format.width)
    Fail(path, " at byte 8: its header says ", count, " tokens, but ", rest, " bytes follow it, which are ",
         static_cast<double>(rest) / format.width, " tokens");
  Shard shard;
  shard.numbers = file->data() + kLlmcHeader;
  shard.offset = kLlmcHeader;
  shard.width = format.width;
  shard.count = count;
  shard.file = std::move(file);
  return shard;
}

// Type codes of Megatron's index.
bool SetMegatronType(int code, Shard* shard) {
  constexpr int kWidths[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};  // 0: of no integers
  if (code < 0 || code >= std::ssize(kWidths) || kWidths[code] == 0) return false;
  shard->width = kWidths[code];
  shard->is_signed = code != 1 && code != 8;
  return true;
}

// Of a Megatron index: header, lengths (int32), pointers (int64), documents (int64, in sequences).
constexpr char kMegatronMagic[] = "MMIDIDX\0";  // and the one that ends the literal: 9 bytes
constexpr int64_t kMegatronHeader = 34;

struct MegatronIndex {
  const MappedFile& file;
  int64_t sequences, documents;
  int64_t LengthAt(int64_t i) const { return kMegatronHeader + 4 * i; }
  int64_t PointerAt(int64_t i) const { return LengthAt(sequences) + 8 * i; }
  int64_t DocumentAt(int64_t i) const { return PointerAt(sequences) + 8 * i; }
  int64_t Read(int64_t offset, int bytes) const {
    const uint64_t value = LittleAt(file.data() + offset, bytes);
    return bytes == 4 ? static_cast<int32_t>(value) : static_cast<int64_t>(value);
  }
};

MegatronIndex CheckIndex(const MappedFile& file, Shard* shard) {
  const std::string& path = file.path();
  if (file.size() < kMegatronHeader)
    Fail(path, " is truncated at byte ", file.size(), ": the header of a Megatron index takes ",
         kMegatronHeader, " bytes");
  if (std::memcmp(file.data(), kMegatronMagic, sizeof kMegatronMagic) != 0)
    Fail(path, " is not a Megatron index: at byte 0 it does not begin with MMIDIDX and two zeros");
  MegatronIndex index{file, 0, 0};
  if (index.Read(9, 8) == int64_t{1} << 56)
    Fail(path, " at byte 9: its numbers are big-endian; Megatron's are little-endian");
  if (index.Read(9, 8) != 1)
    Fail(path, " at byte 9: index version ", index.Read(9, 8), ", but only version 1 is known");
  if (!SetMegatronType(file.data()[17], shard))
    Fail(path, " at byte 17: type ", int{file.data()[17]}, " of its tokens is no type of integers");
  index.sequences = index.Read(18, 8);
  index.documents = index.Read(26, 8);
  const int64_t rest = file.size() - kMegatronHeader;
  if (index.sequences < 0 || index.documents < 0 || index.sequences > rest / 12 ||
      index.documents > rest / 8 || 12 * index.sequences + 8 * index.documents > rest)
    Fail(path, " at byte 18: its header says ", index.sequences, " sequences and ", index.documents,
         " documents, but only ", rest, " bytes follow it");
  return index;
}

// Begins of sequences, in tokens, and of all their end.
std::vector<int64_t> SequencesOf(const MegatronIndex& index, int width) {
  std::vector<int64_t> begins = {0};
  for (int64_t i = 0; i < index.sequences; ++i) {
    const int64_t length = index.Read(index.LengthAt(i), 4), pointer = index.Read(index.PointerAt(i), 8);
    if (length < 0)
      Fail(index.file.path(), " at byte ", index.LengthAt(i), ": sequence ", i, " has the length ", length);
    if (pointer != begins.back() * width)
      Fail(index.file.path(), " at byte ", index.PointerAt(i), ": sequence ", i, " begins at byte ", pointer,
           " of the tokens, but the one before it ends at byte ", begins.back() * width);
    begins.push_back(begins.back() + length);
  }
  return begins;
}

Shard OpenMegatron(const std::string& stem) {
  Shard shard;
  const MappedFile index_file(stem + ".idx");
  const MegatronIndex index = CheckIndex(index_file, &shard);
  const std::vector<int64_t> begins = SequencesOf(index, shard.width);
  shard.count = begins.back();
  auto file = std::make_shared<MappedFile>(stem + ".bin");
  if (file->size() != shard.count * shard.width)
    Fail(index_file.path(), " at byte ", kMegatronHeader, ": its sequences take ", shard.count * shard.width,
         " bytes, but ", file->path(), " has ", file->size(), " bytes");
  for (int64_t d = 0, last = 0; d < index.documents; ++d) {
    const int64_t sequence = index.Read(index.DocumentAt(d), 8);
    if (sequence < last || sequence > index.sequences)
      Fail(index_file.path(), " at byte ", index.DocumentAt(d), ": document ", d, " begins with sequence ",
           sequence, ", must lie between ", last, " and ", index.sequences);
    last = sequence;
    const int64_t begin = begins[sequence];
    if (begin > shard.documents.back() && begin < shard.count) shard.documents.push_back(begin);
  }
  shard.numbers = file->data();
  shard.path = file->path();
  shard.file = std::move(file);
  return shard;
}

// The value of a key in the header of an .npy file, a Python dictionary: "'descr': '<u2'" gives "'<u2'".
std::string ValueOf(const std::string& header, const std::string& key) {
  const size_t at = header.find(Cat("'", key, "':"));
  if (at == std::string::npos) return "";
  const size_t begin = header.find_first_not_of(' ', at + key.size() + 3);
  if (begin == std::string::npos) return "";
  const size_t end = header.find_first_of(header[begin] == '(' ? ")" : ",}", begin);
  return end == std::string::npos ? "" : header.substr(begin, end - begin + (header[begin] == '(' ? 1 : 0));
}

// Product of a shape "(3, 4)" or "(12,)"; -1: not one that makes sense.
int64_t ElementsOf(const std::string& shape, int64_t most) {
  int64_t elements = 1;
  size_t at = 1;
  while (at < shape.size() && shape[at] != ')') {
    if (shape[at] == ' ' || shape[at] == ',') {
      ++at;
      continue;
    }
    int64_t extent = 0;
    if (shape[at] < '0' || shape[at] > '9') return -1;
    for (; at < shape.size() && shape[at] >= '0' && shape[at] <= '9'; ++at) {
      extent = extent * 10 + (shape[at] - '0');
      if (extent > most) return -1;
    }
    if (extent > 0 && elements > most / extent) return -1;
    elements *= extent;
  }
  return elements;
}

// Where the numbers of an .npy file begin; sets `header` to its dictionary.
int64_t HeaderOf(const MappedFile& file, std::string* header) {
  const std::string& path = file.path();
  if (file.size() < 12)
    Fail(path, " is truncated at byte ", file.size(), ": an .npy header takes at least 12 bytes");
  if (std::memcmp(file.data(), "\x93NUMPY", 6) != 0)
    Fail(path, " is not an .npy file: at byte 0 it does not begin with \\x93NUMPY");
  const int version = file.data()[6], bytes = version == 1 ? 2 : 4;
  if (version < 1 || version > 3)
    Fail(path, " at byte 6: .npy version ", version, ", but only 1 to 3 are known");
  const int64_t length = static_cast<int64_t>(LittleAt(file.data() + 8, bytes)), begin = 8 + bytes;
  if (length > file.size() - begin)
    Fail(path, " is truncated at byte ", file.size(), ": its header is to end at byte ", begin + length);
  header->assign(reinterpret_cast<const char*>(file.data()) + begin, length);
  return begin + length;
}

Shard OpenNpy(const std::string& path) {
  auto file = std::make_shared<MappedFile>(path);
  std::string header;
  Shard shard;
  shard.offset = HeaderOf(*file, &header);
  const std::string type = ValueOf(header, "descr"), order = ValueOf(header, "fortran_order"),
                    shape = ValueOf(header, "shape");
  const bool known = type.size() == 5 && (type[1] == '<' || type[1] == '|') &&
                     (type[2] == 'u' || type[2] == 'i') &&
                     (type[3] == '1' || type[3] == '2' || type[3] == '4' || type[3] == '8');
  if (type.size() == 5 && type[1] == '>')
    Fail(path, " at byte 10: its numbers are big-endian (", Shown(type), "); convert them to little-endian");
  if (!known)
    Fail(path, " at byte 10: its numbers are of type ", type.empty() ? "none" : Shown(type),
         ", not integers");
  if (order != "False") Fail(path, " at byte 10: fortran_order is '", Shown(order), "', must be False");
  shard.width = type[3] - '0';
  shard.is_signed = type[2] == 'i';
  const int64_t rest = file->size() - shard.offset;
  shard.count = shape.starts_with("(") ? ElementsOf(shape, std::numeric_limits<int64_t>::max() / 16) : -1;
  if (shard.count < 0 || shard.count * shard.width != rest)
    Fail(path, " at byte 10: its header says shape '", Shown(shape), "' of ", shard.width,
         " bytes each, but ", rest, " bytes follow it at byte ", shard.offset);
  shard.numbers = file->data() + shard.offset;
  shard.file = std::move(file);
  return shard;
}

// What is packed otherwise, or is tokens under another name, would be learnt as bytes.
void RequirePlainText(const std::string& path, const Shard& shard, bool packed) {
  const std::string_view begin(reinterpret_cast<const char*>(shard.numbers),
                               static_cast<size_t>(std::min<int64_t>(shard.count, 2)));
  if (begin == "\xff\xfe" || begin == "\xfe\xff") Fail(path, ": it is in UTF-16; save it in UTF-8");
  std::string format = ForeignFormat(shard.numbers, shard.count);
  if (packed && IsGzip(shard.numbers, shard.count)) format = "gzip";
  if (format.empty()) return;
  const char* name = format.ends_with("array") ? "*.npy" : format.ends_with("index") ? "*.idx" : nullptr;
  if (format.ends_with("llm.c")) name = "*.bin";
  Fail(path, " at byte 0: it is ", format, packed ? " inside gzip" : "", ", not a text; ",
       packed || name == nullptr ? "unpack or convert it" : "", packed && name != nullptr ? ", and " : "",
       name != nullptr ? Cat("name it ", name) : "");
}

Shard OpenText(const std::string& path, const Tokenizer* tokenizer) {
  auto file = std::make_shared<MappedFile>(path);
  Shard shard;
  const bool packed = path.ends_with(".gz") || IsGzip(file->data(), file->size());
  if (packed) {
    shard.bytes = std::make_shared<std::string>(ReadFile(path, int64_t{1} << 40));
    shard.numbers = reinterpret_cast<const uint8_t*>(shard.bytes->data());
    shard.count = static_cast<int64_t>(shard.bytes->size());
  } else {
    shard.numbers = file->data();
    shard.count = file->size();
    shard.file = std::move(file);
  }
  RequirePlainText(path, shard, packed);
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // of a text's byte order, which is no part of it
  if (shard.count >= 3 && std::memcmp(shard.numbers, kMark.data(), kMark.size()) == 0) {
    shard.numbers += kMark.size();
    shard.count -= static_cast<int64_t>(kMark.size());
  }
  if (tokenizer == nullptr) return shard;
  const std::string text(reinterpret_cast<const char*>(shard.numbers), shard.count);
  shard.encoded = std::make_shared<std::vector<int32_t>>(tokenizer->Encode(text));
  shard.numbers = reinterpret_cast<const uint8_t*>(shard.encoded->data());
  shard.count = static_cast<int64_t>(shard.encoded->size());
  shard.width = 4;
  shard.is_signed = true;
  shard.bytes = nullptr;
  shard.file = nullptr;
  return shard;
}

template <typename T>
void CopyNumbers(const Shard& shard, int64_t first, int64_t many, int32_t* to) {
  const uint8_t* from = shard.numbers + first * static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < many; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    if (!std::in_range<int32_t>(value) || value < 0)
      FailSample(shard.path, " at byte ", shard.offset + (first + i) * static_cast<int64_t>(sizeof(T)),
                 ": token ", +value, " does not lie between 0 and ", std::numeric_limits<int32_t>::max());
    to[i] = static_cast<int32_t>(value);
  }
}

}  // namespace

void Tokens::Shard::Read(int64_t first, int64_t many, int32_t* to) const {
  switch (is_signed ? -width : width) {
    case 1:
      return CopyNumbers<uint8_t>(*this, first, many, to);
    case -1:
      return CopyNumbers<int8_t>(*this, first, many, to);
    case 2:
      return CopyNumbers<uint16_t>(*this, first, many, to);
    case -2:
      return CopyNumbers<int16_t>(*this, first, many, to);
    case 4:
      return CopyNumbers<uint32_t>(*this, first, many, to);
    case -4:
      return CopyNumbers<int32_t>(*this, first, many, to);
    case 8:
      return CopyNumbers<uint64_t>(*this, first, many, to);
    default:
      return CopyNumbers<int64_t>(*this, first, many, to);
  }
}

std::vector<std::string> TokenFilesOf(const std::string& pattern) {
  std::vector<std::string> files;
  std::error_code error;
  for (const std::string& file : FilesOf(pattern)) {
    files.push_back(file);
    for (const auto& [one, other] : {std::pair(".bin", ".idx"), std::pair(".idx", ".bin")}) {
      if (!file.ends_with(one)) continue;
      const std::string twin = file.substr(0, file.size() - 4) + other;
      if (std::filesystem::exists(twin, error)) files.push_back(twin);
    }
  }
  return files;
}

Tokens::Shard OpenShard(const std::string& path, const Tokenizer* tokenizer) {
  const std::filesystem::path name(path);
  const std::string ending = name.extension(), stem = path.substr(0, path.size() - ending.size());
  std::error_code error;
  Shard shard;
  if (ending == ".idx" || (ending == ".bin" && std::filesystem::exists(stem + ".idx", error))) {
    shard = OpenMegatron(stem);
  } else if (ending == ".bin") {
    shard = OpenLlmc(path);
  } else if (ending == ".npy") {
    shard = OpenNpy(path);
  } else if (ending == ".npz") {  // whose bytes nobody wants to learn
    Fail(path, " is an archive of arrays; unpack it and name the .npy files in it");
  } else {
    shard = OpenText(path, tokenizer);
  }
  if (shard.path.empty()) shard.path = path;
  return shard;
}

}  // namespace oneflow_like
