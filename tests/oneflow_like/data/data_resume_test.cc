// Every reader gives the same samples in the same order after a kill, with other threads and on another mesh.
// ctest: asan=10
#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include "core/boxes/copy_box.h"
#include "oneflow_like/data/clicks.h"
#include "oneflow_like/data/idx.h"
#include "oneflow_like/data/images.h"
#include "oneflow_like/data/pipeline.h"
#include "oneflow_like/data/tokens.h"
#include "tests/oneflow_like/data/files_fixture.h"
#include "tests/oneflow_like/data/pictures.h"

namespace oneflow_like {
namespace {

constexpr int64_t kBatch = 6;
constexpr int kBatches = 20;

using Source = std::shared_ptr<const SampleSource>;

// Two bytes are a token.
class Pairs final : public Tokenizer {
 public:
  int64_t vocabulary() const override { return 1 << 16; }
  std::vector<int32_t> Encode(const std::string& text) const override {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i + 1 < text.size(); i += 2)
      tokens.push_back(static_cast<uint8_t>(text[i]) << 8 | static_cast<uint8_t>(text[i + 1]));
    return tokens;
  }
  std::string Decode(const std::vector<int32_t>&) const override { return ""; }
};

class DataResumeTest : public FilesTest {
 protected:
  // Opened anew each time, as another run does.
  std::map<std::string, std::function<Source()>> Readers() {
    std::string text, clicks;
    for (int i = 0; i < 300; ++i) text += "word" + std::to_string(i * 7919) + (i % 9 == 0 ? "\n" : " ");
    for (int i = 0; i < 41; ++i)
      clicks += std::to_string(i % 2) + "\t" + std::to_string(i) + "\tw" + std::to_string(i * 31) + "\n";
    const std::vector<uint16_t> words(text.begin(), text.end());
    Write("text.txt", text);
    Write("text.gz", Gzip(text));
    Write("clicks.tsv", clicks);
    Write("shard_0.bin",
          LlmcFile(20240520, 1, 300, std::vector<uint16_t>(words.begin(), words.begin() + 300)));
    Write("shard_1.bin",
          LlmcFile(20240520, 1, 500, std::vector<uint16_t>(words.begin() + 300, words.begin() + 800)));
    Write("wide_0.bin",
          LlmcFile(20240801, 7, 700, std::vector<uint32_t>(words.begin(), words.begin() + 700)));
    Write("meg.bin", BytesOf(std::vector<uint16_t>(words.begin(), words.begin() + 400)));
    Write("meg.idx", MegatronIndex(8, 2, {100, 3, 97, 200}));
    Write("n.npy",
          NpyFile("<u2", "(400,)", BytesOf(std::vector<uint16_t>(words.begin(), words.begin() + 400))));
    Write("images.gz", Gzip(IdxFile({23, 2, 3}, 23 * 6)));
    Write("labels.gz", Gzip(IdxFile({23}, 23)));
    for (int i = 0; i < 17; ++i)
      Write("set/" + std::to_string(i % 3) + "/" + std::to_string(i) + ".png",
            PngOf(Smooth(9 + i, 20 - i, i)));
    Write("images", IdxFile({23, 2, 3}, 23 * 6));
    Write("labels", IdxFile({23}, 23));
#ifdef OFL_HAVE_JPEG
    for (int i = 0; i < 17; ++i)
      Write("jpegs/" + std::to_string(i % 3) + "/" + std::to_string(i) + ".jpg",
            JpegOf(Noisy(60 + 9 * i, 300 - 11 * i, i), {.down = 1 + i % 2, .progressive = i % 5 == 0}));
#endif
    auto rows = [this](const std::string& files, const TokenRowsOptions& options,
                       bool tokenized = false) -> std::function<Source()> {
      return [=, this] {
        static const Pairs pairs;
        Tokens tokens = Tokens::Open(folder_ + "/" + files, tokenized ? &pairs : nullptr);
        if (options.documents) tokens.CutDocumentsAt('\n');
        return std::make_shared<TokenRows>(tokens, options);
      };
    };
    auto pictures = [this](const std::string& set, bool augment) -> std::function<Source()> {
      return [=, this] {
        return std::make_shared<ImageFolder>(folder_ + "/" + set,
                                             ImageFolderOptions{.height = 6, .width = 5, .augment = augment});
      };
    };
    std::map<std::string, std::function<Source()>> readers = {
        {"text", rows("text.txt", {.context = 16})},
        {"packed text", rows("text.gz", {.context = 16})},
        {"tokenized text", rows("text.txt", {.context = 16}, true)},
        {"wide tokens", rows("wide_*.bin", {.context = 16, .tail = true})},
        {"documents", rows("text.txt", {.context = 16, .documents = true})},
        {"shards", rows("shard_*.bin", {.context = 16})},
        {"megatron", rows("meg.idx", {.context = 16, .documents = true})},
        {"npy", rows("n.npy", {.context = 16, .tail = true})},
        {"idx",
         [this] { return std::make_shared<IdxImages>(folder_ + "/images.gz", folder_ + "/labels.gz", 10); }},
        {"plain idx",
         [this] { return std::make_shared<IdxImages>(folder_ + "/images", folder_ + "/labels", 10); }},
        {"pictures", pictures("set", true)},
        {"pictures as they are", pictures("set", false)},
#ifdef OFL_HAVE_JPEG
        {"jpegs", pictures("jpegs", true)},
        {"jpegs as they are", pictures("jpegs", false)},
#endif
        {"clicks", [this] {
           return std::make_shared<ClickLog>(folder_ + "/clicks.tsv",
                                             ClickLogOptions{.dense = 1, .categorical = 1});
         }}};
    readers["mixture"] = [shards = readers["shards"], text = readers["text"]] {
      return std::make_shared<Mixture>(std::vector<Mixture::Part>{{shards(), 2}, {text(), 1}}, 50);
    };
    return readers;
  }
};

// Rows of each field, in each of two processes a part of them, or in each of three; behind the first also
// columns are cut.
FeedNeeds NeedsOf(const SampleSource& source, int processes, int process) {
  const int64_t cuts[2][4] = {{0, 4, kBatch, kBatch}, {0, 1, 4, kBatch}};
  const int64_t* rows = &cuts[processes - 2][process];
  FeedNeeds needs;
  for (const SampleField& field : source.fields()) {
    Dims begin = {rows[0]}, extent = {rows[1] - rows[0]};
    for (int64_t e : field.shape) {
      begin.push_back(0);
      extent.push_back(e);
    }
    needs[field.name] = {{begin, extent}};
    if (process == 0 || extent.back() < 2 || extent.rank() < 2) continue;
    Box left{begin, extent}, right = left;
    left.extent.back() = extent.back() / 2;
    right.begin.back() = left.extent.back();
    right.extent.back() -= left.extent.back();
    needs[field.name] = {left, right};
  }
  return needs;
}

void ExpectPartOf(const FeedPieces& part, const FeedPieces& whole) {
  for (const auto& [name, pieces] : part)
    for (const FeedPiece& piece : pieces) {
      const FeedPiece& all = whole.at(name)[0];
      HostTensor expected = HostTensor::Make(all.values.dtype, piece.box.extent);
      CopyBox(all.values.dtype, piece.box, {all.values.data.get(), all.box},
              {expected.data.get(), piece.box});
      EXPECT_EQ(std::memcmp(expected.data.get(), piece.values.data.get(), expected.bytes()), 0)
          << name << " " << piece.box.str();
    }
}

TEST_F(DataResumeTest, EveryReaderGoesOnAtTheSameSample) {
  for (const auto& [name, open] : Readers()) {
    SCOPED_TRACE(name);
    DataPipeline whole(open(), {.batch = kBatch, .seed = 4});
    std::vector<FeedPieces> batches;
    for (int i = 0; i < kBatches; ++i) batches.push_back(whole.Next());
    for (int killed : {1, 6, 15}) {
      int64_t position = 0;
      {
        DataPipeline before(open(), {.batch = kBatch, .seed = 4, .threads = 2, .ahead = 4});
        for (int i = 0; i < killed; ++i) before.Next();
        position = before.position();
      }
      for (auto [processes, process] : {std::pair{2, 0}, {2, 1}, {3, 0}, {3, 1}, {3, 2}}) {
        const Source source = open();
        DataPipeline after(source, {.batch = kBatch,
                                    .seed = 4,
                                    .needs = NeedsOf(*source, processes, process),
                                    .start = position,
                                    .threads = 3});
        for (int i = killed; i < kBatches; ++i) {
          const FeedPieces part = after.Next();
          EXPECT_EQ(part.size(), source->fields().size());
          ExpectPartOf(part, batches[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace oneflow_like
