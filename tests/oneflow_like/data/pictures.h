// Pictures for tests: written as PNG by hand and as JPEG by libjpeg, where it is there.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

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

// A PNG of any kind: `samples` of every pixel, from the top, as many as its colour type has.
struct PngKind {
  int depth = 8;
  int colour = 2;           // 0: grey, 2: RGB, 3: palette, 4: grey and alpha, 6: RGB and alpha
  std::string chunks = {};  // before the pixels
  bool interlaced = false;  // Adam7

  int channels() const { return colour == 2 ? 3 : colour == 4 ? 2 : colour == 6 ? 4 : 1; }
};

inline std::string PngOf(int width, int height, const PngKind& kind, const std::vector<uint16_t>& samples) {
  std::string rows;
  const auto append = [&](int x0, int dx, int y0, int dy) {
    for (int y = y0; y < height && x0 < width; y += dy) {
      rows += '\0';  // no filter
      int bits = 0;
      unsigned held = 0;
      for (int x = x0; x < width; x += dx)
        for (int c = 0; c < kind.channels(); ++c) {
          const unsigned sample = samples[(size_t{1} * y * width + x) * kind.channels() + c];
          held = held << kind.depth | sample;
          for (bits += kind.depth; bits >= 8; bits -= 8) rows += static_cast<char>(held >> (bits - 8) & 255);
        }
      if (bits > 0) rows += static_cast<char>(held << (8 - bits) & 255);
    }
  };
  if (kind.interlaced) {
    const int passes[7][4] = {{0, 8, 0, 8}, {4, 8, 0, 8}, {0, 4, 4, 8}, {2, 4, 0, 4},
                              {0, 2, 2, 4}, {1, 2, 0, 2}, {0, 1, 1, 2}};
    for (const auto& pass : passes) append(pass[0], pass[1], pass[2], pass[3]);
  } else {
    append(0, 1, 0, 1);
  }
  std::string packed(compressBound(rows.size()), 0);
  uLongf size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()),
           rows.size());
  packed.resize(size);
  const std::string head = {static_cast<char>(kind.depth), static_cast<char>(kind.colour), 0, 0,
                            static_cast<char>(kind.interlaced)};
  return "\x89PNG\r\n\x1a\n" + PngChunk("IHDR", BigEndian(width) + BigEndian(height) + head) + kind.chunks +
         PngChunk("IDAT", packed) + PngChunk("IEND", "");
}

#ifdef OFL_HAVE_JPEG
struct JpegKind {
  int quality = 95;
  int components = 3;        // 1: the red alone, as grey; 4: with 255, as CMYK
  int across = 2, down = 2;  // pixels of luma to one of chroma
  bool progressive = false;
};

inline std::string JpegOf(const Picture& picture, const JpegKind& kind) {
  jpeg_compress_struct jpeg = {};
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &data, &size);
  jpeg.image_width = picture.width;
  jpeg.image_height = picture.height;
  jpeg.input_components = kind.components;
  jpeg.in_color_space = kind.components == 1 ? JCS_GRAYSCALE : kind.components == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, kind.quality, TRUE);
  if (kind.components == 3) {
    jpeg.comp_info[0].h_samp_factor = kind.across;
    jpeg.comp_info[0].v_samp_factor = kind.down;
  }
  if (kind.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<uint8_t> pixels(size_t{1} * picture.width * kind.components, 255);
  while (jpeg.next_scanline < jpeg.image_height) {
    const uint8_t* from = &picture.rgb[size_t{3} * picture.width * jpeg.next_scanline];
    for (int x = 0; x < picture.width; ++x)
      for (int c = 0; c < std::min(3, kind.components); ++c)
        pixels[x * kind.components + c] = from[3 * x + c];
    uint8_t* row = pixels.data();
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  std::free(data);
  return bytes;
}
inline std::string JpegOf(const Picture& picture, int quality = 95) {
  return JpegOf(picture, JpegKind{.quality = quality});
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

// Every pixel another: what reads a wrong one is seen.
inline Picture Noisy(int width, int height, int seed = 0) {
  Picture picture{width, height, std::vector<uint8_t>(size_t{3} * width * height)};
  std::mt19937 random(seed);
  for (uint8_t& c : picture.rgb) c = static_cast<uint8_t>(random());
  return picture;
}

}  // namespace oneflow_like
