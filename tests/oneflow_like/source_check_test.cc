// Processes whose hosts have different data or weights under one name are told so before the first step,
// whatever the mesh; equal files in different places are not noticed.
// ctest: asan=10
#include "oneflow_like/job/source_check.h"

#include <algorithm>
#include <random>

#include "oneflow_like/data/clicks.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/data/idx.h"
#include "oneflow_like/data/images.h"
#include "oneflow_like/data/pipeline.h"
#include "oneflow_like/data/tokens.h"
#include "oneflow_like/program/data.h"
#include "tests/oneflow_like/data/files_fixture.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

using Source = std::shared_ptr<const SampleSource>;

// A reader, and files for it of which any byte behind `fixed` may be another one.
struct Reader {
  std::string name;
  std::map<std::string, std::string> files;  // by name
  std::map<std::string, size_t> fixed;       // 0 for those that are not here
  std::function<Source(const std::string& folder)> open;
};

std::string Numbers(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes += static_cast<char>(random() % 100);
  return bytes;
}

std::vector<Reader> Readers() {
  auto rows = [](const std::string& pattern) {
    return [=](const std::string& folder) {
      return std::make_shared<TokenRows>(Tokens::Open(folder + "/" + pattern),
                                         TokenRowsOptions{.context = 8});
    };
  };
  const std::string header = LlmcFile<uint16_t>(20240520, 1, 500, {});
  const std::string npy = NpyFile("<u2", "(400,)", "");
  const std::string line = "0\t1\t2\ta\tb\n";
  std::string clicks;
  for (int i = 0; i < 90; ++i) clicks += line;
  return {{"text", {{"t.txt", Numbers(5000, 1)}}, {}, rows("t.txt")},
          {"shards of text", {{"a.txt", Numbers(300, 1)}, {"b.txt", Numbers(70, 2)}}, {}, rows("*.txt")},
          {"more text than is looked at",
           {{"t.txt", Numbers(3 << 20, 3)}},
           {{"t.txt", (3 << 20) - 900}},
           rows("t.txt")},
          {"llm.c", {{"t.bin", header + Numbers(1000, 1)}}, {{"t.bin", header.size()}}, rows("t.bin")},
          {"NumPy", {{"t.npy", npy + Numbers(800, 1)}}, {{"t.npy", npy.size()}}, rows("t.npy")},
          {"Megatron",
           {{"m.bin", Numbers(200, 1)}, {"m.idx", MegatronIndex(8, 2, {30, 10, 60})}},
           {{"m.idx", MegatronIndex(8, 2, {30, 10, 60}).size()}},
           rows("m.idx")},
          {"click logs",
           {{"day_0", clicks}, {"day_1", clicks + line}},
           {},
           [](const std::string& folder) {
             return std::make_shared<ClickLog>(folder + "/day_*",
                                               ClickLogOptions{.dense = 2, .categorical = 2});
           }},
          {"pictures of MNIST's format",
           {{"i", IdxFile({20, 4, 4}, 320)}, {"l", IdxFile({20}, 20)}},
           {{"i", 16}, {"l", SIZE_MAX}},
           [](const std::string& folder) {
             return std::make_shared<IdxImages>(folder + "/i", folder + "/l", 10);
           }},
          {"folders of pictures",
           {{"cat/a.png", "12345"}, {"cat/b.jpg", "1"}, {"dog/c.png", "123"}},
           {{"cat/a.png", SIZE_MAX}, {"cat/b.jpg", SIZE_MAX}, {"dog/c.png", SIZE_MAX}},
           [](const std::string& folder) {
             return std::make_shared<ImageFolder>(folder, ImageFolderOptions{.height = 8, .width = 8});
           }},
          {"masked rows of a part of a mixture",
           {{"t.txt", Numbers(900, 1)}, {"u.txt", Numbers(900, 2)}},
           {},
           [=](const std::string& folder) {
             Mixture::Part one{rows("t.txt")(folder), 1}, two{rows("u.txt")(folder), 2};
             const auto mixed = std::make_shared<Mixture>(std::vector<Mixture::Part>{one, two});
             return std::make_shared<MaskedRows>(std::make_shared<SourcePart>(mixed, 3, 40), 256);
           }}};
}

class SourceCheck : public FilesTest {
 protected:
  // A folder of its own, as on another host.
  std::string Put(const std::string& folder, const Reader& reader) const {
    for (const auto& [name, bytes] : reader.files) Write(folder + "/" + name, bytes);
    return folder_ + "/" + folder;
  }
  static std::string Difference(const Source& a, const Source& b) {
    return DifferenceOfSources({FactsOf(*a), FactsOf(*b)}, "reads other data");
  }
};

TEST_F(SourceCheck, EqualFilesInDifferentPlacesAreEqual) {
  for (const Reader& reader : Readers()) {
    const std::string a = Put("a", reader), b = Put("b", reader);
    EXPECT_FALSE(reader.open(a)->Hashes().empty()) << reader.name;
    EXPECT_EQ(Difference(reader.open(a), reader.open(b)), "") << reader.name;
    std::filesystem::remove_all(a);
    std::filesystem::remove_all(b);
  }
}

// One byte anywhere in a file of up to 1 MiB, or at the end of a larger one.
TEST_F(SourceCheck, AnyOtherByteIsSeen) {
  for (const Reader& reader : Readers()) {
    const std::string a = Put("a", reader), b = Put("b", reader);
    const Source here = reader.open(a);
    for (const auto& [name, bytes] : reader.files) {
      const auto fixed = reader.fixed.find(name);
      const size_t first = fixed == reader.fixed.end() ? 0 : fixed->second;
      std::mt19937 random(7);
      for (int k = 0; k < 40 && first < bytes.size(); ++k) {
        std::string other = bytes;
        const size_t at = first + random() % (bytes.size() - first);
        other[at] = static_cast<char>(other[at] ^ (1 << random() % 6));
        Write("b/" + name, other);
        EXPECT_NE(Difference(here, reader.open(b)), "") << reader.name << ": byte " << at << " of " << name;
      }
      Write("b/" + name, bytes);
    }
    std::filesystem::remove_all(a);
    std::filesystem::remove_all(b);
  }
}

TEST_F(SourceCheck, OtherFilesAndSizesAreSeen) {
  const std::vector<Reader> readers = Readers();
  auto change = [&](const std::string& which, const std::function<void(const std::string& folder)>& make) {
    const Reader& reader =
        *std::find_if(readers.begin(), readers.end(), [&](const Reader& r) { return r.name == which; });
    const std::string a = Put("a", reader), b = Put("b", reader);
    make(b);
    const std::string difference = Difference(reader.open(a), reader.open(b));
    std::filesystem::remove_all(a);
    std::filesystem::remove_all(b);
    return difference;
  };
  auto says = [&](const std::string& difference, const std::string& words) {
    EXPECT_NE(difference.find(words), std::string::npos) << difference << "\n  wanted: " << words;
  };
  says(change("text", [&](const std::string&) { Write("b/t.txt", Numbers(4999, 1)); }),
       "process 1 reads other data than process 0: file 1 is 4999 bytes with hash ");
  says(change("text", [&](const std::string&) { Write("b/t.txt", Numbers(4999, 1)); }),
       Cat("(", folder_, "/b/t.txt) there and 5000 bytes with hash "));
  says(change("shards of text", [&](const std::string&) { Write("b/c.txt", "x"); }),
       "the number of files is 3 there and 2 in process 0");
  says(change("click logs",
              [&](const std::string& b) {
                std::filesystem::rename(b + "/day_0", b + "/day_2");  // the same lines in another order
              }),
       "file 1 is ");
  says(change("Megatron",
              [&](const std::string&) {
                Write("b/m.idx", MegatronIndex(8, 2, {10, 30, 60}));
              }),
       "file 1 is ");
  const std::string pictures = "folders of pictures";
  EXPECT_EQ(change(pictures, [&](const std::string&) { Write("b/cat/a.png", "54321"); }), "")
      << "of pictures names and sizes are compared";
  says(change(pictures, [&](const std::string&) { Write("b/cat/a.png", "1234"); }),
       "/b/cat) there and 6 bytes");
  says(change(pictures,
              [&](const std::string& b) { std::filesystem::rename(b + "/cat/b.jpg", b + "/cat/z.jpg"); }),
       "file 1 is 6 bytes");
  says(change(pictures, [&](const std::string& b) { std::filesystem::rename(b + "/dog", b + "/fox"); }),
       "file 2");
  says(change(pictures, [&](const std::string&) { Write("b/eel/a.png", "1"); }), "the number of files is 3");
}

// What it says of sources that cannot be told apart by files.
TEST(SourceFacts, FieldsAndSamplesAreCompared) {
  const auto rows = [](int64_t context, int64_t count) {
    return FactsOf(LearnableRows(context, 64, 0, count));
  };
  auto difference = [](const std::vector<SourceFact>& a, const std::vector<SourceFact>& b) {
    return DifferenceOfSources({a, a, b}, "reads other data");
  };
  EXPECT_EQ(difference(rows(8, 100), rows(8, 100)), "");
  EXPECT_EQ(
      difference(rows(8, 100), rows(8, 99)),
      "process 2 reads other data than process 0: the number of samples is 99 there and 100 in process 0");
  EXPECT_EQ(
      difference(rows(8, 100), rows(9, 100)),
      "process 2 reads other data than process 0: field 'tokens' is i32[9] there and i32[8] in process 0");
  EXPECT_EQ(difference({{"a", "1"}}, {{"a", "1"}, {"b", "2"}}),
            "process 2 reads other data than process 0: b is 2 there and nothing in process 0");
  EXPECT_EQ(difference({{"a", "1"}, {"b", "2"}}, {{"b", "2"}}),
            "process 2 reads other data than process 0: it has b, 2, where process 0 has a, 1");
}

// It looks at no more bytes than it may, at the first and the last of them, and at all where it may.
TEST(HashOfSome, LooksAtAFew) {
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{1000},
                             int64_t{1} << 20, (int64_t{1} << 20) + 1, int64_t{1} << 40, INT64_MAX})
    for (const int64_t most : {int64_t{16}, int64_t{100}, int64_t{1} << 20}) {
      SCOPED_TRACE(Cat(most, " of ", size));
      int64_t looked = 0, first = INT64_MAX, last = 0;
      std::string bytes(most, 'x');
      HashOfSome(size, most, [&](int64_t offset, int64_t count) {
        EXPECT_GE(offset, last);
        EXPECT_LE(offset, size - count);
        first = std::min(first, offset);
        last = offset + count;
        looked += count;
        return bytes.data();
      });
      EXPECT_LE(looked, most);
      if (size > 0) {
        EXPECT_EQ(first, 0);
        EXPECT_EQ(last, size);
      }
      if (size <= most) {
        EXPECT_EQ(looked, size);
      }
    }
  EXPECT_EQ(HashedBytes(1), 1 << 20);
  EXPECT_EQ(HashedBytes(64), 1 << 20);
  EXPECT_EQ(HashedBytes(640), (64 << 20) / 640);
}

// --- Sessions ---

// A model that reads tokens and targets on the first and the last stage of any mesh, from a text of its own.
struct Reading {
  Reading(const std::string& mesh, const std::shared_ptr<Job>& job, const std::string& text, bool compare,
          uint64_t seed = 1)
      : model(FullMesh(mesh), {.threads = 1, .job = job}),
        rows(std::make_shared<TokenRows>(Tokens::Open(text), TokenRowsOptions{.context = 8})) {
    const int last = model.mesh().axis_size(2) - 1;
    Tensor tokens = model.Input("tokens", {4, 8}, DType::kInt32, {{"dp", S(0)}});
    Tensor targets = model.Input("targets", {4, 8}, DType::kInt32, {{"dp", S(0)}});
    Scope s = model.scope();
    Tensor table = s.Stage("pp", 0).Weight("table", {256, 8}, Normal(.1));
    Tensor out = s.Stage("pp", last).Weight("out", {8, 256}, Normal(.1), {{"tp", S(1)}});
    Tensor loss = mean(cross_entropy(matmul(embedding(table, tokens), out), targets));
    train = std::make_unique<Session>(Train(loss, Sgd{.lr = 0.1}));
    data = std::make_unique<DataPipeline>(
        rows, DataPipelineOptions{.batch = 4, .seed = seed, .needs = train->Needs(), .compare = compare});
  }
  float Step() { return train->Run(*data).Scalar("loss"); }

  Model model;
  Source rows;
  std::unique_ptr<Session> train;
  std::unique_ptr<DataPipeline> data;
};

class SourcesOfJobs : public FilesTest {
 protected:
  // Each process has a text of that name in a folder of its own, process 1 perhaps another.
  std::vector<std::string> Run(const std::string& mesh, bool other, bool compare, int* steps) {
    std::atomic<int> done{0};
    std::vector<std::string> texts;
    for (int p = 0; p < 2; ++p) texts.push_back(Write(Cat("host", p, "/text"), Numbers(2000, 5)));
    if (other) {
      std::string bytes = Numbers(2000, 5);
      bytes[1234] ^= 1;
      Write("host1/text", bytes);
    }
    const std::vector<std::string> errors = RunProcesses(2, [&](std::shared_ptr<Job> job) {
      Reading reading(mesh, job, texts[job->process()], compare);
      for (int step = 0; step < 3; ++step) {
        reading.Step();
        ++done;
      }
    });
    *steps = done;
    return errors;
  }
};

TEST_F(SourcesOfJobs, DifferentTextsAreRefusedOnAnyMesh) {
  int steps = 0;
  for (const char* mesh : {"cpu:dp=2", "cpu:tp=2", "cpu:pp=2", "cpu:dp=2,pp=2"}) {
    for (const std::string& error : Run(mesh, true, true, &steps)) {
      EXPECT_EQ(
          error.rfind("session train: process 1 reads other data than process 0: file 1 is 2000 bytes with "
                      "hash ",
                      0),
          0u)
          << mesh << ": " << error;
      for (const char* word : {"/host1/text) there and 2000 bytes with hash ", "/host0/text) in process 0; ",
                               "(--compare_data=false, DataPipelineOptions::compare)"})
        EXPECT_NE(error.find(word), std::string::npos) << mesh << ": " << error;
    }
    EXPECT_EQ(steps, 0) << mesh;
    for (const std::string& error : Run(mesh, false, true, &steps)) EXPECT_EQ(error, "") << mesh;
    EXPECT_EQ(steps, 6) << mesh;
  }
}

TEST_F(SourcesOfJobs, DifferentPartsOnPurposeAreTrainedOn) {
  int steps = 0;
  for (const std::string& error : Run("cpu:dp=2", true, false, &steps)) EXPECT_EQ(error, "");
  EXPECT_EQ(steps, 6);
}

// The pipeline's own options are compared with the files, and once for each pipeline.
TEST_F(SourcesOfJobs, OptionsOfPipelinesAreComparedOnce) {
  const std::string text = Write("text", Numbers(2000, 5));
  for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
         Reading("cpu:dp=2", job, text, true, 7 + job->process()).Step();
       }))
    EXPECT_EQ(
        error.rfind("session train: process 1 reads other data than process 0: DataPipelineOptions::seed is "
                    "8 there and 7 in process 0",
                    0),
        0u)
        << error;
  for (const std::string& error : RunProcesses(
           2, [&](std::shared_ptr<Job> job) { Reading("cpu:dp=2", job, text, job->process() == 0).Step(); }))
    EXPECT_NE(error.find("DataPipelineOptions::compare is false there and true in process 0"),
              std::string::npos)
        << error;
  std::atomic<int> compared{0};
  for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
         dynamic_cast<TestJob*>(job.get())->says = [&](const std::string& what, const std::string& mine) {
           compared += what == "data of session train";
           return mine;
         };
         Reading reading("cpu:dp=2", job, text, true);
         for (int step = 0; step < 5; ++step) reading.Step();
       }))
    EXPECT_EQ(error, "");
  EXPECT_EQ(compared, 2) << "once on each of two processes";
}

}  // namespace
}  // namespace oneflow_like
