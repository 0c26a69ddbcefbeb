// JPEG by libjpeg, PNG by libpng. Both report errors by a callback that must not return: it jumps, so what is
// destroyed by leaving a scope lives in the caller.
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <functional>

#ifdef OFL_HAVE_JPEG
#include <jpeglib.h>
#endif
#ifdef OFL_HAVE_PNG
#include <png.h>
#endif

#include "oneflow_like/data/files.h"
#include "oneflow_like/data/images.h"

namespace oneflow_like {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 26;

struct Bytes {
  const uint8_t* data;
  int64_t size;
};

void CheckSize(const std::string& name, int64_t width, int64_t height) {
  if (width < 1 || height < 1 || width > kMostPixels / height)
    FailSample(name, ": the picture says it has ", width, " x ", height, " pixels, must have 1 to ",
               kMostPixels);
}
// `least`: bytes that so many pixels take however well they are compressed. No memory is taken by what a
// header says before the file is as large as that.
void CheckBytes(const std::string& name, int64_t width, int64_t height, int64_t least, int64_t size) {
  if (least > size)
    FailSample(name, " is truncated at byte ", size, ": the picture says it has ", width, " x ", height,
               " pixels, which take at least ", least, " bytes");
}

// Pixels [x, x + width) of rows [y, y + height).
struct Part {
  int x = 0, y = 0, width = 0, height = 0;
};

// What is decoded of a picture: it, smaller by `eighths`, and of that a part.
struct Wanted {
  int eighths = 8;
  Part part;
};

int Scaled(int extent, int eighths) { return (extent * eighths + 7) / 8; }

// What Resize looks at: a triangle's half beside the crop, and a pixel for what is rounded.
Part Around(const Crop& crop, int picture_width, int picture_height, int width, int height) {
  const double across = std::max(1.0, crop.width / width) + 1, down = std::max(1.0, crop.height / height) + 1;
  Part part;
  part.x = std::clamp(static_cast<int>(std::floor(crop.x - across)), 0, picture_width - 1);
  part.y = std::clamp(static_cast<int>(std::floor(crop.y - down)), 0, picture_height - 1);
  part.width = std::clamp(static_cast<int>(std::ceil(crop.x + crop.width + across)) - part.x, 1,
                          picture_width - part.x);
  part.height = std::clamp(static_cast<int>(std::ceil(crop.y + crop.height + down)) - part.y, 1,
                           picture_height - part.y);
  return part;
}

// The crop where it lies in the part of the smaller picture.
Crop InPart(Crop crop, double across, double down, const Part& part) {
  crop.x = crop.x * across - part.x;
  crop.y = crop.y * down - part.y;
  crop.width *= across;
  crop.height *= down;
  return crop;
}

// Says, of a picture's size, what is wanted of it.
using Choose = std::function<Wanted(int width, int height)>;

#ifdef OFL_HAVE_JPEG

// Where chroma is half as wide or high as luma, a pixel is made of its neighbours' too, and libjpeg-turbo has
// none beside the columns and above the rows that it gives. With these it gives the pixels of the whole
// picture.
constexpr int kJpegMargin = 2;

struct JpegErrors {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX];
};

void KeepJpegText(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  if (errors->text[0] == 0) info->err->format_message(info, errors->text);
}
[[noreturn]] void JpegFailed(j_common_ptr info) {
  KeepJpegText(info);
  std::longjmp(reinterpret_cast<JpegErrors*>(info->err)->jump, 1);
}
// Warnings (level -1) are of data that is missing or wrong; the decoder would make something up.
void JpegWarned(j_common_ptr info, int level) {
  if (level < 0) JpegFailed(info);
}

// The header. False: it failed.
bool JpegBegin(jpeg_decompress_struct* info, JpegErrors* errors, Bytes from) {
  if (setjmp(errors->jump) != 0) return false;
  jpeg_create_decompress(info);
  jpeg_mem_src(info, from.data, static_cast<unsigned long>(from.size));
  jpeg_read_header(info, TRUE);
  info->out_color_space = JCS_RGB;
  if (info->jpeg_color_space == JCS_CMYK || info->jpeg_color_space == JCS_YCCK)
    info->out_color_space = JCS_CMYK;
  return true;
}

// Narrows what comes to columns that have those wanted; sets `first` to the first of them.
bool JpegStart(jpeg_decompress_struct* info, JpegErrors* errors, const Wanted& wanted, int* first) {
  if (setjmp(errors->jump) != 0) return false;
  info->scale_num = static_cast<unsigned>(wanted.eighths);
  info->scale_denom = 8;
  jpeg_start_decompress(info);
  *first = 0;
#ifdef LIBJPEG_TURBO_VERSION
  JDIMENSION x = std::max(0, wanted.part.x - kJpegMargin), width = info->output_width - x;
  width = std::min<JDIMENSION>(width, wanted.part.x + wanted.part.width + kJpegMargin - x);
  // With chroma a quarter as wide, parts of scaled pictures have other columns than the whole.
  if (width < info->output_width && info->max_h_samp_factor <= 2) {
    jpeg_crop_scanline(info, &x, &width);
    *first = static_cast<int>(x);
  }
#endif
  return true;
}

// Rows from `first` on; `above` has room for one.
bool JpegRows(jpeg_decompress_struct* info, JpegErrors* errors, int first, int rows, uint8_t* above,
              uint8_t* to) {
  if (setjmp(errors->jump) != 0) return false;
#ifdef LIBJPEG_TURBO_VERSION
  if (first > kJpegMargin) jpeg_skip_scanlines(info, static_cast<JDIMENSION>(first - kJpegMargin));
#endif
  const size_t row = static_cast<size_t>(info->output_width) * info->output_components;
  const auto begin = static_cast<JDIMENSION>(first), end = begin + static_cast<JDIMENSION>(rows);
  while (info->output_scanline < end) {
    JSAMPROW at = info->output_scanline < begin ? above : to + row * (info->output_scanline - begin);
    jpeg_read_scanlines(info, &at, 1);
  }
  if (end < info->output_height)
    jpeg_abort_decompress(info);
  else
    jpeg_finish_decompress(info);
  return true;
}

// Columns [first, first + width) of rows of `stride` pixels. Adobe's CMYK is stored inverted.
void FromCmyk(const std::vector<uint8_t>& rows, int64_t stride, int64_t first, Picture* picture) {
  for (int y = 0; y < picture->height; ++y) {
    const uint8_t* from = &rows[4 * (y * stride + first)];
    uint8_t* to = &picture->rgb[size_t{3} * y * picture->width];
    for (int x = 0; x < picture->width; ++x, from += 4, to += 3)
      for (int c = 0; c < 3; ++c) to[c] = static_cast<uint8_t>(from[c] * from[3] / 255);
  }
}
void FromRgb(const std::vector<uint8_t>& rows, int64_t stride, int64_t first, Picture* picture) {
  const size_t bytes = size_t{3} * picture->width;
  for (int y = 0; y < picture->height; ++y)
    std::memcpy(&picture->rgb[y * bytes], &rows[3 * (y * stride + first)], bytes);
}

struct JpegDecompress {
  jpeg_decompress_struct info = {};
  ~JpegDecompress() { jpeg_destroy_decompress(&info); }
};

Picture DecodeJpeg(Bytes from, const std::string& name, const Choose& choose) {
  JpegErrors errors = {};
  JpegDecompress jpeg;
  jpeg.info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = JpegFailed;
  errors.base.emit_message = JpegWarned;
  errors.base.output_message = KeepJpegText;
  auto fail = [&] {
    const auto* source = jpeg.info.src;
    const int64_t at = source != nullptr ? from.size - static_cast<int64_t>(source->bytes_in_buffer) : 0;
    FailSample(name, ": a broken JPEG, near byte ", at < 0 || at > from.size ? from.size : at, ": ",
               errors.text);
  };
  if (!JpegBegin(&jpeg.info, &errors, from)) fail();
  const int64_t width = jpeg.info.image_width, height = jpeg.info.image_height;
  CheckSize(name, width, height);
  // A Huffman code has at least a bit, and every 8 x 8 pixels have at least half a block, whatever the
  // sampling.
  if (!jpeg.info.arith_code)
    CheckBytes(name, width, height, (width + 7) / 8 * ((height + 7) / 8) / 16, from.size);
  const Wanted wanted = choose(static_cast<int>(width), static_cast<int>(height));
  int first = 0;
  if (!JpegStart(&jpeg.info, &errors, wanted, &first)) fail();
  const bool cmyk = jpeg.info.out_color_space == JCS_CMYK;
  const int64_t stride = jpeg.info.output_width, pixel = cmyk ? 4 : 3;
  Picture picture{wanted.part.width, wanted.part.height, {}};
  std::vector<uint8_t> rows(stride * picture.height * pixel), above(stride * pixel);
  if (!JpegRows(&jpeg.info, &errors, wanted.part.y, picture.height, above.data(), rows.data())) fail();
  if (!cmyk && stride == picture.width) {
    picture.rgb = std::move(rows);
    return picture;
  }
  picture.rgb.resize(size_t{3} * picture.width * picture.height);
  (cmyk ? FromCmyk : FromRgb)(rows, stride, wanted.part.x - first, &picture);
  return picture;
}

#else

Picture DecodeJpeg(Bytes, const std::string& name, const Choose&) {
  Fail(name, " is a JPEG, but this build was made without libjpeg (libjpeg-dev)");
}

#endif
#ifdef OFL_HAVE_PNG

// libpng's state; its callbacks find `text` here.
struct PngRead {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Bytes from;
  int64_t at = 0;  // of the next byte
  char text[200] = {};

  ~PngRead() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void PngFailed(png_structp png, png_const_charp text) {
  auto* read = static_cast<PngRead*>(png_get_error_ptr(png));
  if (read->text[0] == 0) std::snprintf(read->text, sizeof read->text, "%s", text);
  png_longjmp(png, 1);
}
void PngWarned(png_structp, png_const_charp) {}  // of what is not needed, such as a profile of colours

void PngBytes(png_structp png, png_bytep to, size_t count) {
  auto* read = static_cast<PngRead*>(png_get_io_ptr(png));
  if (static_cast<int64_t>(count) > read->from.size - read->at) png_error(png, "it ends too early");
  std::memcpy(to, read->from.data + read->at, count);
  read->at += static_cast<int64_t>(count);
}

// Makes bytes of RGB of any kind of pixels, as Pillow, torchvision and OpenCV do: the upper byte of 16 bits,
// colours without their transparency, and no notice of gAMA or profiles. False: it failed.
bool PngBegin(PngRead* read) {
  if (setjmp(png_jmpbuf(read->png)) != 0) return false;
  png_set_read_fn(read->png, read, PngBytes);
  // Chunks that say nothing of the pixels are passed over, whatever is wrong with them.
  png_set_keep_unknown_chunks(read->png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(read->png, read->info);
  png_set_expand(read->png);  // palettes, and fewer than 8 bits
  png_set_strip_16(read->png);
  png_set_strip_alpha(read->png);
  png_set_gray_to_rgb(read->png);
  return true;
}

// Rows of `stride` bytes.
bool PngRows(PngRead* read, int64_t stride, uint8_t* to) {
  if (setjmp(png_jmpbuf(read->png)) != 0) return false;
  const int passes = png_set_interlace_handling(read->png);
  const int64_t height = png_get_image_height(read->png, read->info);
  png_read_update_info(read->png, read->info);
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t y = 0; y < height; ++y) png_read_row(read->png, to + y * stride, nullptr);
  return true;
}

Picture DecodePng(Bytes from, const std::string& name) {
  PngRead read;
  read.from = from;
  const auto fail = [&] {
    FailSample(name, ": a broken PNG of ", from.size, " bytes, near byte ", read.at, ": ", read.text);
  };
  read.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &read, PngFailed, PngWarned);
  if (read.png != nullptr) read.info = png_create_info_struct(read.png);
  if (read.info == nullptr)
    Fail(name, ": libpng has no memory for it, or is of another version than its header");
  if (!PngBegin(&read)) fail();
  const int64_t width = png_get_image_width(read.png, read.info),
                height = png_get_image_height(read.png, read.info);
  CheckSize(name, width, height);
  // Deflate shortens to 1/1032 at most.
  const int64_t bits =
      int64_t{png_get_bit_depth(read.png, read.info)} * png_get_channels(read.png, read.info);
  CheckBytes(name, width, height, (width * bits + 7) / 8 * height / 1032, from.size);
  Picture picture;
  picture.width = static_cast<int>(width);
  picture.height = static_cast<int>(height);
  picture.rgb.resize(static_cast<size_t>(3 * width * height));
  if (!PngRows(&read, 3 * width, picture.rgb.data())) fail();
  return picture;
}

#else

Picture DecodePng(Bytes, const std::string& name) {
  Fail(name, " is a PNG, but this build was made without libpng (libpng-dev)");
}

#endif

bool IsJpeg(Bytes from) { return from.size >= 3 && std::memcmp(from.data, "\xff\xd8\xff", 3) == 0; }

// Of a PNG everything is decoded.
Picture DecodeAny(Bytes from, const std::string& name, const Choose& choose) {
  if (IsJpeg(from)) return DecodeJpeg(from, name, choose);
  if (from.size < 8 || std::memcmp(from.data, "\x89PNG\r\n\x1a\n", 8) != 0) {
    const std::string format = ForeignFormat(from.data, from.size);
    FailSample(name, " of ", from.size, " bytes is neither a JPEG nor a PNG: at byte 0 it begins ",
               format.empty() ? "with neither's signature" : Cat("as ", format));
  }
  Picture picture = DecodePng(from, name);
  choose(picture.width, picture.height);
  return picture;
}

}  // namespace

Picture Decode(const uint8_t* data, int64_t size, const std::string& name, int least) {
  return DecodeAny({data, size}, name, [&](int width, int height) {
    int eighths = 8;
    while (least > 0 && eighths > 1 && std::min(width, height) * (eighths / 2) / 8 >= least) eighths /= 2;
    return Wanted{eighths, {0, 0, Scaled(width, eighths), Scaled(height, eighths)}};
  });
}

Picture DecodeCrop(const uint8_t* data, int64_t size, const std::string& name, int height, int width,
                   const DrawCrop& draw, Crop* crop) {
  const bool jpeg = IsJpeg({data, size});
  Crop in_part;
  Picture picture = DecodeAny({data, size}, name, [&](int picture_width, int picture_height) {
    const Crop drawn = draw(picture_width, picture_height);
    Wanted wanted;
    while (jpeg && wanted.eighths > 1 && drawn.width * (wanted.eighths / 2) / 8 >= width &&
           drawn.height * (wanted.eighths / 2) / 8 >= height)
      wanted.eighths /= 2;
    const int w = Scaled(picture_width, wanted.eighths), h = Scaled(picture_height, wanted.eighths);
    const double across = static_cast<double>(w) / picture_width,
                 down = static_cast<double>(h) / picture_height;
    wanted.part = {0, 0, w, h};
    if (jpeg) wanted.part = Around(InPart(drawn, across, down, {}), w, h, width, height);
    in_part = InPart(drawn, across, down, wanted.part);
    return wanted;
  });
  *crop = in_part;
  return picture;
}

}  // namespace oneflow_like
