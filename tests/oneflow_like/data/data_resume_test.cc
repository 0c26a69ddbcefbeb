// Every reader gives the same samples in the same order after a kill, with other threads and on another mesh.
#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include "core/copy_box.h"
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
    Write("clicks.tsv", clicks);
    Write("shard_0.bin",
          LlmcFile(20240520, 1, 300, std::vector<uint16_t>(words.begin(), words.begin() + 300)));
    Write("shard_1.bin",
          LlmcFile(20240520, 1, 500, std::vector<uint16_t>(words.begin() + 300, words.begin() + 800)));
    Write("meg.bin", BytesOf(std::vector<uint16_t>(words.begin(), words.begin() + 400)));
    Write("meg.idx", MegatronIndex(8, 2, {100, 3, 97, 200}));
    Write("n.npy",
          NpyFile("<u2", "(400,)", BytesOf(std::vector<uint16_t>(words.begin(), words.begin() + 400))));
    Write("images.gz", Gzip(IdxFile({23, 2, 3}, 23 * 6)));
    Write("labels.gz", Gzip(IdxFile({23}, 23)));
    for (int i = 0; i < 17; ++i)
      Write("set/" + std::to_string(i % 3) + "/" + std::to_string(i) + ".png",
            PngOf(Smooth(9 + i, 20 - i, i)));
    auto rows = [this](const std::string& files, const TokenRowsOptions& options) -> std::function<Source()> {
      return [=, this] {
        Tokens tokens = Tokens::Open(folder_ + "/" + files);
        if (options.documents) tokens.CutDocumentsAt('\n');
        return std::make_shared<TokenRows>(tokens, options);
      };
    };
    std::map<std::string, std::function<Source()>> readers = {
        {"text", rows("text.txt", {.context = 16})},
        {"documents", rows("text.txt", {.context = 16, .documents = true})},
        {"shards", rows("shard_*.bin", {.context = 16})},
        {"megatron", rows("meg.idx", {.context = 16, .documents = true})},
        {"npy", rows("n.npy", {.context = 16, .tail = true})},
        {"idx",
         [this] { return std::make_shared<IdxImages>(folder_ + "/images.gz", folder_ + "/labels.gz", 10); }},
        {"pictures",
         [this] {
           return std::make_shared<ImageFolder>(folder_ + "/set",
                                                ImageFolderOptions{.height = 6, .width = 5});
         }},
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

// Rows of each field, half of them in either of two processes; in the second also columns are cut.
FeedNeeds NeedsOf(const SampleSource& source, int process) {
  FeedNeeds needs;
  for (const SampleField& field : source.fields()) {
    Dims begin = {process == 0 ? 0 : 4}, extent = {process == 0 ? 4 : kBatch - 4};
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
      for (int process : {0, 1}) {
        const Source source = open();
        DataPipeline after(source, {.batch = kBatch,
                                    .seed = 4,
                                    .needs = NeedsOf(*source, process),
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
