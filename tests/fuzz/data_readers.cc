// The readers of data, of tokenizers and of configs, driven by any bytes.
#include "tests/fuzz/data_readers.h"

#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>

#include "core/error.h"
#include "oneflow_like/data/clicks.h"
#include "oneflow_like/data/idx.h"
#include "oneflow_like/data/images.h"
#include "oneflow_like/data/tokens.h"
#include "oneflow_like/launch/run_folder.h"
#include "oneflow_like/text/tokenizers.h"

DEFINE_int32(fuzzed_whole, 1, "what a config may set");
DEFINE_int64(fuzzed_long, 1, "what a config may set");
DEFINE_double(fuzzed_real, 1, "what a config may set");
DEFINE_bool(fuzzed_switch, false, "what a config may set");
DEFINE_string(fuzzed_text, "", "what a config may set");

namespace oneflow_like {
namespace {

constexpr int64_t kMostSamples = 64;

// All of them, or the first and the last ones; each twice, into memory that holds something else, since it is
// a function of its id. Throws the first BrokenSample at the end.
void ReadSamples(const SampleSource& source) {
  std::vector<std::string> values, again;
  std::vector<void*> to, to_again;
  for (const SampleField& field : source.fields()) {
    values.emplace_back(field.bytes(), '\0');
    again.emplace_back(field.bytes(), '\x5a');
  }
  for (size_t f = 0; f < values.size(); ++f) {
    to.push_back(values[f].data());
    to_again.push_back(again[f].data());
  }
  std::string broken;
  for (int64_t i = 0; i < source.samples(); ++i) {
    if (i == kMostSamples) i = std::max(i, source.samples() - kMostSamples);
    try {
      source.Read({1, 2, i}, to);
      source.Read({1, 2, i}, to_again);
      if (values != again) throw std::logic_error("a sample is another when it is read again");
    } catch (const BrokenSample& error) {
      if (broken.empty()) broken = error.what();
    }
  }
  if (!broken.empty()) throw BrokenSample(broken);
}

void ReadTokens(const std::string& path) {
  Tokens tokens = Tokens::Open(path);
  tokens.CutDocumentsAt(10);
  if (tokens.size() > 0) tokens.Vocabulary();
  if (tokens.size() > 1) ReadSamples(TokenRows(tokens, {.context = 5, .documents = true, .tail = true}));
}

// Bytes of tokens, of which the first chooses the type, beside an index that fits: documents of one token,
// two, three and so on.
void ReadMegatronTokens(const std::string& path) {
  struct Type {
    char code;
    int64_t width;
  };
  constexpr Type kTypes[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
  std::ifstream tokens(path, std::ios::binary);
  const Type type = kTypes[static_cast<uint8_t>(tokens.get()) % std::size(kTypes)];
  const int64_t count = static_cast<int64_t>(std::filesystem::file_size(path)) / type.width;
  std::string lengths, pointers, documents, header("MMIDIDX\0\0", 9);
  const auto put = [](std::string* to, int64_t number, int bytes) {
    for (int i = 0; i < bytes; ++i) *to += static_cast<char>(number >> (8 * i));
  };
  int64_t sequences = 0;
  for (int64_t begin = 0; begin < count; begin += sequences) {
    put(&documents, sequences++, 8);
    put(&pointers, begin * type.width, 8);
    put(&lengths, std::min(sequences, count - begin), 4);
  }
  put(&header, 1, 8);
  header += type.code;
  put(&header, sequences, 8);
  put(&header, sequences, 8);
  const std::string index = path.substr(0, path.size() - 3) + "idx";
  std::ofstream(index, std::ios::binary) << header << lengths << pointers << documents;
  ReadTokens(path);
}

void ReadIdx(const std::string& path) {
  std::string errors;
  for (int axes : {1, 2, 3}) {
    try {
      LoadIdx(path, axes);
      return;
    } catch (const Error& error) {
      errors = error.what();
    }
  }
  Fail(errors);
}

void ReadClicks(const std::string& path) {
  ReadSamples(ClickLog(path, {.dense = 2, .categorical = 2, .buckets = 100}));
}

// The folder of the class, beside which no other may be.
void ReadPictures(const std::string& path) {
  const std::string set = std::filesystem::path(path).parent_path().parent_path();
  ReadSamples(ImageFolder(set, {.height = 7, .width = 5}));
  ReadSamples(ImageFolder(set, {.height = 5, .width = 8, .augment = false}));
  ReadSamples(ImageFolder(set, {.height = 3, .width = 2, .least_area = 1}));
}

void ReadTokenizer(const std::string& path) {
  const std::shared_ptr<const Tokenizer> tokenizer = OpenTokenizer(path);
  for (const std::string& text :
       {std::string("ab a<s>b abab\n \xc3\xa9"), std::string("\xff \xe2\x82", 4), std::string()}) {
    std::vector<int32_t> tokens;
    try {
      tokens = tokenizer->EncodeWhole(text);
    } catch (const Error&) {  // a pattern that takes too long, a character without a token
      continue;
    }
    for (int32_t token : tokens)
      if (!tokenizer->Has(token) || token >= tokenizer->vocabulary())
        throw std::logic_error("a token that there is not");
    tokenizer->Decode(tokens);
    tokenizer->Encode(text);
  }
}

// The tokenizer_config.json of a folder.
void ReadAdded(const std::string& path) { ReadTokenizer(std::filesystem::path(path).parent_path()); }

void ReadFlags(const std::string& path) {
  const gflags::FlagSaver saver;  // puts them back
  ReadConfig(path);
}

struct Kind {
  std::string name, file;
  std::function<void(const std::string&)> read;
};

const std::vector<Kind>& AllKinds() {
  static const std::vector<Kind> kinds = {{"llmc", "llmc.bin", ReadTokens},
                                          {"megatron", "megatron.idx", ReadTokens},
                                          {"megatron_tokens", "tokens.bin", ReadMegatronTokens},
                                          {"npy", "numbers.npy", ReadTokens},
                                          {"text", "text", ReadTokens},
                                          {"idx", "idx", ReadIdx},
                                          {"clicks", "clicks", ReadClicks},
                                          {"jpeg", "jpegs/a/1.jpg", ReadPictures},
                                          {"png", "pngs/a/1.png", ReadPictures},
                                          {"tokenizer", "words.json", ReadTokenizer},
                                          {"pieces", "pieces.model", ReadTokenizer},
                                          {"added_tokens", "added/tokenizer_config.json", ReadAdded},
                                          {"config", "config", ReadFlags}};
  return kinds;
}

}  // namespace

const std::vector<std::string>& FuzzedData::Kinds() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Kind& kind : AllKinds()) all.push_back(kind.name);
    return all;
  }();
  return names;
}

FuzzedData::FuzzedData(const std::string& parent)
    : folder_(parent + "/fuzzed_data." + std::to_string(getpid())) {
  for (const Kind& kind : AllKinds())
    std::filesystem::create_directories(std::filesystem::path(folder_ + "/" + kind.file).parent_path());
  std::ofstream(folder_ + "/megatron.bin", std::ios::binary) << std::string(24, '\1');
  std::ofstream(folder_ + "/added/tokenizer.json")
      << R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3}, "merges": ["a b"]},
            "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"}})";
}

FuzzedData::~FuzzedData() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

std::string FuzzedData::Read(const std::string& name, const std::string& bytes) {
  const Kind& kind =
      *std::find_if(AllKinds().begin(), AllKinds().end(), [&](const Kind& one) { return one.name == name; });
  const std::string path = folder_ + "/" + kind.file;
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    kind.read(path);
  } catch (const Error& error) {
    const std::string said = error.what();
    const bool plain = std::all_of(said.begin(), said.end(), [](char c) { return c >= ' ' || c < 0; });
    if (said.find(folder_) == std::string::npos || !plain)
      throw std::logic_error("an Error that is not a sentence with the file: " + said);
    return said;
  }
  return "";
}

}  // namespace oneflow_like
