// Pictures: decoded, resized and drawn from folders; what is said of broken ones.
// ctest: asan=10
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "oneflow_like/data/images.h"
#include "oneflow_like/data/pipeline.h"
#include "tests/oneflow_like/data/files_fixture.h"
#include "tests/oneflow_like/data/pictures.h"
#include "tests/python.h"

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

struct KnownPng {
  std::string kind, bytes;
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;
};

// Every kind of PNG, with chunks that are about colours and without: what Pillow, torchvision and OpenCV make
// of it. The upper byte of 16 bits, fewer bits spread over all, colours as they are however transparent.
std::vector<KnownPng> EveryKindOfPng() {
  std::mt19937 random(5);
  std::string palette;
  for (int i = 0; i < 3 * 256; ++i) palette += static_cast<char>(random());
  const auto bytes = [&](int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += static_cast<char>(random());
    return text;
  };
  const std::string colours[] = {"",
                                 PngChunk("gAMA", BigEndian(45455)),
                                 PngChunk("gAMA", BigEndian(100000)),
                                 PngChunk("sRGB", std::string(1, '\0')),
                                 PngChunk("cHRM", bytes(32)) + PngChunk("gAMA", BigEndian(20000)),
                                 PngChunk("sBIT", "\3\3\3") + PngChunk("tEXt", std::string("a\0b", 3)),
                                 PngChunk("iCCP", std::string("x\0\0", 3) + "no profile")};
  std::vector<KnownPng> all;
  for (const auto& [colour, depths] : std::map<int, std::vector<int>>{
           {0, {1, 2, 4, 8, 16}}, {2, {8, 16}}, {3, {1, 2, 4, 8}}, {4, {8, 16}}, {6, {8, 16}}})
    for (int depth : depths)
      for (size_t about = 0; about < std::size(colours); ++about)
        for (bool transparent : {false, true})
          for (bool interlaced : {false, true}) {
            const int w = 1 + random() % 20, h = 1 + random() % 20;
            PngKind kind{
                .depth = depth, .colour = colour, .chunks = colours[about], .interlaced = interlaced};
            std::vector<uint16_t> samples(size_t{1} * w * h * kind.channels());
            for (uint16_t& sample : samples) sample = static_cast<uint16_t>(random() & ((1 << depth) - 1));
            if (colour == 3) kind.chunks += PngChunk("PLTE", palette.substr(0, 3 << depth));
            if (transparent && colour < 4)  // of a palette each entry's, else of one colour
              kind.chunks += PngChunk("tRNS", colour == 3   ? bytes(1 << depth)
                                              : colour == 2 ? std::string({'\0', 1, '\0', 1, '\0', 1})
                                                            : std::string({'\0', 1}));
            KnownPng png{Cat("colour", colour, "_bits", depth, "_chunks", about,
                             transparent ? "_transparent" : "", interlaced ? "_interlaced" : ""),
                         PngOf(w, h, kind, samples), w, h};
            for (int64_t pixel = 0; pixel < w * h; ++pixel)
              for (int c = 0; c < 3; ++c) {
                const uint16_t* at = &samples[pixel * kind.channels()];
                const int value = colour == 2 || colour == 6 ? at[c] : at[0];
                png.rgb.push_back(static_cast<uint8_t>(colour == 3   ? palette[3 * value + c]
                                                       : depth == 16 ? value >> 8
                                                                     : value * 255 / ((1 << depth) - 1)));
              }
            all.push_back(std::move(png));
          }
  return all;
}

TEST_F(DataImagesTest, EveryKindOfPngIsItsColours) {
  const std::vector<KnownPng> all = EveryKindOfPng();
  EXPECT_EQ(all.size(), 15u * 7 * 4);
  for (const KnownPng& png : all) {
    SCOPED_TRACE(Cat(png.kind, ", ", png.width, " x ", png.height));
    const Picture read = DecodeText(png.bytes);
    EXPECT_EQ(read.width, png.width);
    EXPECT_EQ(read.height, png.height);
    EXPECT_EQ(read.rgb, png.rgb);
  }
  // White, half transparent, and a middle grey: 255 and 128, whatever gamma there is.
  const std::vector<uint16_t> white = {0xffff, 0xffff, 0xffff, 0x8000}, grey = {0x8080, 0x8080, 0x8080};
  EXPECT_EQ(DecodeText(PngOf(1, 1, {.depth = 16, .colour = 6}, white)).rgb, std::vector<uint8_t>(3, 255));
  EXPECT_EQ(DecodeText(PngOf(1, 1, {.depth = 16, .colour = 2}, grey)).rgb, std::vector<uint8_t>(3, 128));
}

TEST_F(DataImagesTest, PngsAreAsPillowAndOpenCvReadThem) {
  if (!PythonHas("PIL, cv2"))
    GTEST_SKIP() << Python() << " lacks pillow or opencv-python-headless (OFL_PYTHON names another)";
  for (const KnownPng& png : EveryKindOfPng()) {
    const Picture read = DecodeText(png.bytes);
    Write(png.kind + ".png", png.bytes);
    Write(png.kind + ".rgb", std::string(read.rgb.begin(), read.rgb.end()));
  }
  EXPECT_EQ(std::system(Cat(Python(), " ", OFL_SOURCE_DIR, "/tests/peers/png_check.py ", folder_).c_str()),
            0);
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

// A part has the pixels of the whole picture, bit by bit, whatever the sampling, at every scale: pictures,
// kinds and crops by a seed.
TEST_F(DataImagesTest, APartOfAJpegIsThatOfTheWhole) {
  std::mt19937 random(9);
  std::map<int, int> scales;
  for (int round = 0; round < 600; ++round) {
    const JpegKind kind{.quality = 60 + static_cast<int>(random() % 40),
                        .components = std::array{3, 3, 3, 1, 4}[random() % 5],
                        .across = std::array{1, 2, 4}[random() % 3],
                        .down = 1 + static_cast<int>(random() % 2),
                        .progressive = random() % 4 == 0};
    const int w = 1 + random() % 200, h = 1 + random() % 200;
    const std::string bytes = JpegOf(Noisy(w, h, round), kind);
    const int height = 1 + random() % 40, width = 1 + random() % 40;
    auto share = [&] { return random() % 1001 / 1000.0; };
    Crop drawn{0, 0, std::max(1.0, w * share()), std::max(1.0, h * share()), random() % 2 == 0};
    drawn.x = (w - drawn.width) * share();
    drawn.y = (h - drawn.height) * share();
    Crop crop;
    const Picture part = DecodeCrop(
        reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "p", height, width,
        [&](int there_w, int there_h) {
          EXPECT_EQ(there_w, w);
          EXPECT_EQ(there_h, h);
          return drawn;
        },
        &crop);
    int eighths = 8;
    while (eighths > 1 && drawn.width * eighths >= 16 * width && drawn.height * eighths >= 16 * height)
      eighths /= 2;
    ++scales[eighths];
    const int least = std::min(w, h) * eighths / 8;
    if (least == 0) continue;  // Decode gives nothing as small
    const Picture whole = DecodeText(bytes, least);
    const Crop in_whole{drawn.x * whole.width / w, drawn.y * whole.height / h, drawn.width * whole.width / w,
                        drawn.height * whole.height / h, drawn.flip};
    const int left = static_cast<int>(std::lround(in_whole.x - crop.x)),
              top = static_cast<int>(std::lround(in_whole.y - crop.y));
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << w << " x " << h << " at " << eighths
                                    << "/8, sampling " << kind.across << " x " << kind.down << ", "
                                    << kind.components << " components, part at " << left << ", " << top);
    ASSERT_LE(left + part.width, whole.width);
    ASSERT_LE(top + part.height, whole.height);
    for (int y = 0; y < part.height; ++y)
      ASSERT_EQ(std::memcmp(&part.rgb[size_t{3} * y * part.width],
                            &whole.rgb[3 * (size_t{1} * (y + top) * whole.width + left)], 3 * part.width),
                0)
          << "row " << y;
    const std::vector<float> expected = Resized(whole, in_whole, height, width),
                             got = Resized(part, crop, height, width);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5);
  }
  for (int eighths : {1, 2, 4, 8}) EXPECT_GT(scales[eighths], 10) << eighths;
}

// What a header says is compared with the file's size before memory is taken.
TEST_F(DataImagesTest, HeadersThatPromiseMoreThanTheFileHasAreRefused) {
  std::string jpeg = JpegOf(Smooth(40, 30));
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\x1f\xff\x1f\xff");
  EXPECT_NE(ErrorOf([&] { DecodeText(jpeg); }).find("says it has 8191 x 8191 pixels, which take at least"),
            std::string::npos)
      << ErrorOf([&] { DecodeText(jpeg); });
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
  for (const auto& [first, format] :
       std::map<std::string, std::string>{{"GIF89a", "as a GIF"},
                                          {"RIFF\1\1\1\1WEBPVP8 ", "as a WebP"},
                                          {"some text", "with neither's signature"}})
    EXPECT_NE(
        ErrorOf([&] { DecodeText(first); }).find("neither a JPEG nor a PNG: at byte 0 it begins " + format),
        std::string::npos)
        << ErrorOf([&] { DecodeText(first); });
  std::string huge = PngOf(Smooth(2, 2));
  huge.replace(8, 25, PngChunk("IHDR", BigEndian(900000) + BigEndian(900000) + std::string({8, 2, 0, 0, 0})));
  EXPECT_NE(ErrorOf([&] { DecodeText(huge); }), "");
  huge.replace(8, 25, PngChunk("IHDR", BigEndian(8000) + BigEndian(8000) + std::string({8, 2, 0, 0, 0})));
  EXPECT_NE(ErrorOf([&] { DecodeText(huge); }).find("says it has 8000 x 8000 pixels, which take at least"),
            std::string::npos);
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
  // What other programs leave there.
  Write("set/.ipynb_checkpoints/c.png", PngOf(Smooth(9, 9)));
  Write("set/cat/._a.PNG", "of a file system");
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

// Of a picture that grows redder to the right as it grows greener downwards: what is cropped has 3/4 to 4/3
// of the result's shape, so that a pixel of the result is made of about as many columns as rows.
TEST_F(DataImagesTest, CropsHaveTheShapeOfTheResult) {
  Picture ramps{200, 200, std::vector<uint8_t>(size_t{3} * 200 * 200)};
  for (int y = 0; y < 200; ++y)
    for (int x = 0; x < 200; ++x) {
      uint8_t* pixel = &ramps.rgb[size_t{3} * (200 * y + x)];
      pixel[0] = static_cast<uint8_t>(x);
      pixel[1] = static_cast<uint8_t>(y);
    }
  Write("set/a/ramps.png", PngOf(ramps));
  for (auto [height, width] : {std::pair(8, 20), {20, 8}}) {
    const ImageFolder set(folder_ + "/set", {.height = height, .width = width, .deviation = {1, 1, 1}});
    std::vector<float> image(3 * height * width);
    int32_t label = -1;
    void* const to[] = {image.data(), &label};
    double least = 10, most = 0;
    for (int64_t epoch = 0; epoch < 200; ++epoch) {
      set.Read({1, epoch, 0}, to);
      const float *red = &image[width],
                  *green = &image[height * width];  // from the second row, from the first
      const double columns = std::abs(red[width - 2] - red[1]) / (width - 3),
                   rows = (green[(height - 2) * width] - green[width]) / (height - 3);
      least = std::min(least, columns / rows);
      most = std::max(most, columns / rows);
    }
    EXPECT_NEAR(least, 0.75, 0.05) << height << " x " << width;
    EXPECT_NEAR(most, 4.0 / 3, 0.07) << height << " x " << width;
  }
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
