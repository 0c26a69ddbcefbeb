// Pictures for tests: written as PNG by hand and as JPEG by libjpeg, where it is there.
#pragma once

#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#ifdef OFL_HAVE_JPEG
#include <jpeglib.h>
#endif

#include "oneflow_like/data/images.h"

namespace oneflow_like {

inline std::string BigEndian(uint32_t value) {
  std::string out;
  for (int shift : {24, 16, 8, 0}) out += static_cast<char>(value >> shift & 255);
  return out;
}

inline std::string PngChunk(const std::string& kind, const std::string& data) {
  const std::string body = kind + data;
  const uLong check = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return BigEndian(static_cast<uint32_t>(data.size())) + body + BigEndian(static_cast<uint32_t>(check));
}

inline std::string PngOf(const Picture& picture) {
  std::string rows;
  for (int y = 0; y < picture.height; ++y) {
    rows += '\0';
    rows.append(reinterpret_cast<const char*>(&picture.rgb[size_t{3} * picture.width * y]),
                3 * picture.width);
  }
  std::string packed(compressBound(rows.size()), 0);
  uLongf size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()),
           rows.size());
  packed.resize(size);
  const std::string kind = {8, 2, 0, 0, 0};
  return "\x89PNG\r\n\x1a\n" + PngChunk("IHDR", BigEndian(picture.width) + BigEndian(picture.height) + kind) +
         PngChunk("IDAT", packed) + PngChunk("IEND", "");
}

#ifdef OFL_HAVE_JPEG
inline std::string JpegOf(const Picture& picture, int quality = 95) {
  jpeg_compress_struct jpeg = {};
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &data, &size);
  jpeg.image_width = picture.width;
  jpeg.image_height = picture.height;
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, quality, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<uint8_t*>(&picture.rgb[size_t{3} * picture.width * jpeg.next_scanline]);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  std::free(data);
  return bytes;
}
#endif

// Colours that change slowly, by `seed`.
inline Picture Smooth(int width, int height, int seed = 0) {
  Picture picture{width, height, std::vector<uint8_t>(size_t{3} * width * height)};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      uint8_t* pixel = &picture.rgb[size_t{3} * (y * width + x)];
      pixel[0] = static_cast<uint8_t>(255 * x / width);
      pixel[1] = static_cast<uint8_t>(255 * y / height);
      pixel[2] = static_cast<uint8_t>((seed * 37 + 100 * (x + y) / (width + height)) % 256);
    }
  return picture;
}

}  // namespace oneflow_like
