// JPEG by libjpeg, PNG by libpng. Both report errors by a callback that must not return: it jumps, so what is
// destroyed by leaving a scope lives in the caller.
#include <csetjmp>
#include <cstdio>
#include <cstring>

#ifdef OFL_HAVE_JPEG
#include <jpeglib.h>
#endif
#ifdef OFL_HAVE_PNG
#include <png.h>
#endif

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

#ifdef OFL_HAVE_JPEG

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

// The header, and which of its sizes is the smallest that will do. False: it failed.
bool JpegBegin(jpeg_decompress_struct* info, JpegErrors* errors, Bytes from, int least) {
  if (setjmp(errors->jump) != 0) return false;
  jpeg_create_decompress(info);
  jpeg_mem_src(info, from.data, static_cast<unsigned long>(from.size));
  jpeg_read_header(info, TRUE);
  info->out_color_space = JCS_RGB;
  if (info->jpeg_color_space == JCS_CMYK || info->jpeg_color_space == JCS_YCCK)
    info->out_color_space = JCS_CMYK;
  info->scale_num = 8;
  info->scale_denom = 8;
  const JDIMENSION shorter = info->image_width < info->image_height ? info->image_width : info->image_height;
  while (least > 0 && info->scale_num > 1 &&
         shorter * (info->scale_num / 2) / 8 >= static_cast<JDIMENSION>(least))
    info->scale_num /= 2;
  jpeg_calc_output_dimensions(info);
  return true;
}

bool JpegRows(jpeg_decompress_struct* info, JpegErrors* errors, uint8_t* to) {
  if (setjmp(errors->jump) != 0) return false;
  jpeg_start_decompress(info);
  const size_t row = static_cast<size_t>(info->output_width) * info->output_components;
  while (info->output_scanline < info->output_height) {
    JSAMPROW at = to + row * info->output_scanline;
    jpeg_read_scanlines(info, &at, 1);
  }
  jpeg_finish_decompress(info);
  return true;
}

// Adobe's CMYK is stored inverted.
void FromCmyk(const std::vector<uint8_t>& cmyk, std::vector<uint8_t>* rgb) {
  rgb->resize(cmyk.size() / 4 * 3);
  for (size_t i = 0; i < cmyk.size() / 4; ++i)
    for (size_t c = 0; c < 3; ++c)
      (*rgb)[3 * i + c] = static_cast<uint8_t>(cmyk[4 * i + c] * cmyk[4 * i + 3] / 255);
}

struct JpegDecompress {
  jpeg_decompress_struct info = {};
  ~JpegDecompress() { jpeg_destroy_decompress(&info); }
};

Picture DecodeJpeg(Bytes from, const std::string& name, int least) {
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
  if (!JpegBegin(&jpeg.info, &errors, from, least)) fail();
  CheckSize(name, jpeg.info.image_width, jpeg.info.image_height);
  Picture picture;
  picture.width = static_cast<int>(jpeg.info.output_width);
  picture.height = static_cast<int>(jpeg.info.output_height);
  const bool cmyk = jpeg.info.out_color_space == JCS_CMYK;
  std::vector<uint8_t> rows(static_cast<size_t>(picture.width) * picture.height * (cmyk ? 4 : 3));
  if (!JpegRows(&jpeg.info, &errors, rows.data())) fail();
  if (cmyk)
    FromCmyk(rows, &picture.rgb);
  else
    picture.rgb = std::move(rows);
  return picture;
}

#else

Picture DecodeJpeg(Bytes, const std::string& name, int) {
  Fail(name, " is a JPEG, but this build was made without libjpeg (libjpeg-dev)");
}

#endif
#ifdef OFL_HAVE_PNG

struct PngImage {
  png_image image = {};
  ~PngImage() { png_image_free(&image); }
};

Picture DecodePng(Bytes from, const std::string& name) {
  PngImage png;
  png.image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&png.image, from.data, static_cast<size_t>(from.size)))
    FailSample(name, ": a broken PNG of ", from.size, " bytes: ", png.image.message);
  CheckSize(name, png.image.width, png.image.height);
  png.image.format = PNG_FORMAT_RGB;
  Picture picture;
  picture.width = static_cast<int>(png.image.width);
  picture.height = static_cast<int>(png.image.height);
  picture.rgb.resize(PNG_IMAGE_SIZE(png.image));
  const png_color black = {0, 0, 0};
  if (!png_image_finish_read(&png.image, &black, picture.rgb.data(), 0, nullptr))
    FailSample(name, ": a broken PNG of ", from.size, " bytes: ", png.image.message);
  return picture;
}

#else

Picture DecodePng(Bytes, const std::string& name) {
  Fail(name, " is a PNG, but this build was made without libpng (libpng-dev)");
}

#endif

}  // namespace

Picture Decode(const uint8_t* data, int64_t size, const std::string& name, int least) {
  if (size >= 3 && std::memcmp(data, "\xff\xd8\xff", 3) == 0) return DecodeJpeg({data, size}, name, least);
  if (size >= 8 && std::memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0) return DecodePng({data, size}, name);
  FailSample(name, " of ", size,
             " bytes is neither a JPEG nor a PNG: at byte 0 it begins with neither's signature");
}

}  // namespace oneflow_like
