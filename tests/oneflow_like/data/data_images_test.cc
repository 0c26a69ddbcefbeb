// Pictures: decoded, resized and drawn from folders; what is said of broken ones.
#include <cmath>
#include <memory>
#include <random>

#include "oneflow_like/data/images.h"
#include "oneflow_like/data/pipeline.h"
#include "tests/oneflow_like/data/files_fixture.h"
#include "tests/oneflow_like/data/pictures.h"

namespace oneflow_like {
namespace {

using DataImagesTest = FilesTest;

Picture DecodeText(const std::string& bytes, int least = 0) {
  return Decode(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int64_t>(bytes.size()), "p",
                least);
}

constexpr float kNoMean[3] = {0, 0, 0}, kNoDeviation[3] = {1, 1, 1};

std::vector<float> Resized(const Picture& picture, const Crop& crop, int height, int width) {
  std::vector<float> to(3 * height * width);
  Resize(picture, crop, height, width, kNoMean, kNoDeviation, to.data());
  return to;
}

TEST_F(DataImagesTest, PngIsItsPixels) {
  for (auto [w, h] : {std::pair{1, 1}, {7, 5}, {64, 33}}) {
    const Picture picture = Smooth(w, h, 3), read = DecodeText(PngOf(picture));
    EXPECT_EQ(read.width, w);
    EXPECT_EQ(read.height, h);
    EXPECT_EQ(read.rgb, picture.rgb);
  }
}

#ifdef OFL_HAVE_JPEG
TEST_F(DataImagesTest, JpegIsNearItsPixelsAndIsDecodedSmaller) {
  const Picture picture = Smooth(320, 240);
  const std::string bytes = JpegOf(picture);
  const Picture read = DecodeText(bytes);
  ASSERT_EQ(read.rgb.size(), picture.rgb.size());
  double sum = 0;
  for (size_t i = 0; i < read.rgb.size(); ++i) sum += std::abs(read.rgb[i] - picture.rgb[i]);
  EXPECT_LT(sum / read.rgb.size(), 3);
  EXPECT_EQ(DecodeText(bytes, 240).height, 240);
  EXPECT_EQ(DecodeText(bytes, 120).height, 120);
  EXPECT_EQ(DecodeText(bytes, 61).height, 120);
  EXPECT_EQ(DecodeText(bytes, 1).height, 30);
}
#endif

// What is cut short or changed is refused or read, never past its end; a PNG cut short is always refused.
TEST_F(DataImagesTest, BrokenPicturesAreNamed) {
  std::vector<std::string> pictures = {PngOf(Smooth(9, 6))};
#ifdef OFL_HAVE_JPEG
  pictures.push_back(JpegOf(Smooth(24, 17)));
#endif
  std::mt19937 random(2);
  for (const std::string& good : pictures) {
    for (size_t size = 0; size + 12 < good.size(); ++size) {  // the last 12 bytes say that there are no more
      const std::string error = ErrorOf([&] { DecodeText(good.substr(0, size)); });
      EXPECT_EQ(error.rfind("p", 0), 0u) << size << " bytes: '" << error << "'";
      EXPECT_NE(error.find("byte"), std::string::npos) << error;
    }
    for (int i = 0; i < 2000; ++i) {
      std::string changed = good;
      for (int n = random() % 3; n >= 0; --n)
        changed[random() % changed.size()] = static_cast<char>(random());
      const std::string error = ErrorOf([&] { DecodeText(changed, random() % 20); });
      EXPECT_TRUE(error.empty() || error.rfind("p", 0) == 0) << error;
    }
  }
  EXPECT_NE(ErrorOf([] { DecodeText("GIF89a"); }).find("neither a JPEG nor a PNG"), std::string::npos);
  std::string huge = PngOf(Smooth(2, 2));
  huge.replace(8, 25, PngChunk("IHDR", BigEndian(900000) + BigEndian(900000) + std::string({8, 2, 0, 0, 0})));
  EXPECT_NE(ErrorOf([&] { DecodeText(huge); }), "");
}

// Against the definition: every pixel a weighted mean over the whole picture.
TEST_F(DataImagesTest, ResizingIsAMeanUnderATriangle) {
  std::mt19937 random(4);
  for (int round = 0; round < 40; ++round) {
    Picture picture{static_cast<int>(1 + random() % 20), static_cast<int>(1 + random() % 20), {}};
    picture.rgb.resize(size_t{3} * picture.width * picture.height);
    for (uint8_t& c : picture.rgb) c = static_cast<uint8_t>(random());
    auto part = [&](double extent) { return extent * (0.2 + 0.8 * (random() % 100) / 100); };
    Crop crop{0, 0, part(picture.width), part(picture.height), random() % 2 == 0};
    crop.x = (picture.width - crop.width) * (random() % 100) / 100;
    crop.y = (picture.height - crop.height) * (random() % 100) / 100;
    const int h = 1 + random() % 15, w = 1 + random() % 15;
    const std::vector<float> got = Resized(picture, crop, h, w);
    auto weight = [](double begin, double from, int to, int i, int x) {
      const double scale = from / to, reach = std::max(1.0, scale);
      return std::max(0.0, 1 - std::abs(x + 0.5 - (begin + (i + 0.5) * scale)) / reach);
    };
    for (int c = 0; c < 3; ++c)
      for (int i = 0; i < h; ++i)
        for (int j = 0; j < w; ++j) {
          double sum = 0, all = 0;
          for (int y = 0; y < picture.height; ++y)
            for (int x = 0; x < picture.width; ++x) {
              const double k = weight(crop.y, crop.height, h, i, y) * weight(crop.x, crop.width, w, j, x);
              sum += k * picture.rgb[3 * (y * picture.width + x) + c];
              all += k;
            }
          ASSERT_NEAR(got[(c * h + i) * w + (crop.flip ? w - 1 - j : j)], sum / all / 255, 1e-4) << round;
        }
  }
}

TEST_F(DataImagesTest, FoldersAreClassesInOrder) {
  Write("set/cat/b.png", PngOf(Smooth(20, 10)));
  Write("set/cat/a.PNG", PngOf(Smooth(10, 20)));
  Write("set/ant/x.png", PngOf(Smooth(30, 30)));
  Write("set/ant/notes.txt", "no picture");
  const ImageFolder set(folder_ + "/set", {.height = 8, .width = 12});
  EXPECT_EQ(set.classes(), (std::vector<std::string>{"ant", "cat"}));
  ASSERT_EQ(set.samples(), 3);
  auto read = [&](const SampleId& id) {
    std::vector<float> image(3 * 8 * 12);
    int32_t label = -1;
    void* const to[] = {image.data(), &label};
    set.Read(id, to);
    EXPECT_EQ(label, id.index > 0);
    return image;
  };
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read({1, 0, i}), read({1, 0, i}));
    EXPECT_NE(read({1, 0, i}), read({1, 1, i}));
    EXPECT_NE(read({1, 0, i}), read({2, 0, i}));
  }
  // About half are flipped: red grows to the right.
  int flipped = 0;
  for (int64_t epoch = 0; epoch < 200; ++epoch) {
    const std::vector<float> image = read({1, epoch, 0});
    flipped += image[0] > image[11];
  }
  EXPECT_GT(flipped, 60);
  EXPECT_LT(flipped, 140);
  ExpectSays([&] { ImageFolder(folder_ + "/none", {}); }, folder_ + "/none", "No such file");
  ExpectSays([&] { ImageFolder(folder_ + "/set/cat", {}); }, folder_ + "/set/cat",
             "no folders with pictures");
}

TEST_F(DataImagesTest, BrokenFilesAreLeftOut) {
  for (int i = 0; i < 20; ++i) Write("set/a/" + std::to_string(10 + i) + ".png", PngOf(Smooth(9, 9, i)));
  Write("set/a/15.png", PngOf(Smooth(9, 9)).substr(0, 50));
  auto set = std::make_shared<ImageFolder>(folder_ + "/set", ImageFolderOptions{.height = 4, .width = 4});
  DataPipeline data(set, {.batch = 20, .threads = 2, .broken_share = 0.05});
  data.Next();
  ASSERT_EQ(data.broken().size(), 1u);
  EXPECT_NE(data.broken()[0].find("15.png: a broken PNG of 50 bytes"), std::string::npos) << data.broken()[0];
}

}  // namespace
}  // namespace oneflow_like
