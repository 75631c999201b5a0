// PNG images (ISO/IEC 15948) of 8 bits a channel.
#include <array>
#include <cstdlib>
#include <cstring>

#include "run/arrays.hpp"
#include "run/inflate.hpp"

namespace tersify::run {
namespace {

constexpr size_t kMaxPixels = size_t(1) << 26;

uint32_t crc32(const uint8_t* bytes, size_t count) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0xedb88320u : 0u);
    }
    return made;
  }();
  uint32_t crc = ~0u;
  for (size_t i = 0; i < count; ++i) crc = table[(crc ^ bytes[i]) & 255] ^ crc >> 8;
  return ~crc;
}

uint8_t paeth(int a, int b, int c) {
  const int pa = std::abs(b - c), pb = std::abs(a - c), pc = std::abs(a + b - 2 * c);
  return uint8_t(pa <= pb && pa <= pc ? a : pb <= pc ? b : c);
}

void unfilter(Bytes& rows, size_t height, size_t row, size_t pixel, const std::string& path) {
  for (size_t y = 0; y < height; ++y) {
    uint8_t* now = rows.data() + y * (row + 1) + 1;
    const uint8_t* up = y ? now - row - 1 : nullptr;
    const int filter = now[-1];
    if (filter > 4) throw BadInput(path + " is damaged: it has an unknown filter");
    for (size_t x = 0; x < row; ++x) {
      const int a = x >= pixel ? now[x - pixel] : 0, b = up ? up[x] : 0, c = up && x >= pixel ? up[x - pixel] : 0;
      now[x] = uint8_t(now[x] + (filter == 1   ? a
                                 : filter == 2 ? b
                                 : filter == 3 ? (a + b) / 2
                                 : filter == 4 ? paeth(a, b, c)
                                               : 0));
    }
  }
}

// What the chunks of a file hold; every one has the sum that stands behind it. What follows the last is nobody's.
struct Chunks {
  Bytes packed, palette;
};

Chunks chunks_of(const Bytes& file, const std::string& path) {
  Chunks made;
  for (size_t at = 8; file.size() - at >= 12;) {
    const size_t length = big(&file[at]);
    if (length > file.size() - at - 12) break;
    const uint8_t *kind = &file[at + 4], *content = kind + 4;
    if (crc32(kind, length + 4) != big(content + length)) throw BadInput(path + " is damaged: a checksum is another");
    if (!std::memcmp(kind, "IDAT", 4)) made.packed.insert(made.packed.end(), content, content + length);
    if (!std::memcmp(kind, "PLTE", 4)) made.palette.assign(content, content + length);
    if (!std::memcmp(kind, "IEND", 4)) return made;
    at += 12 + length;
  }
  throw BadInput(path + " is cut short");
}

Bytes rows_of(const Bytes& packed, size_t count, const std::string& path) {
  try {
    Bytes rows = inflated(packed, count);
    if (rows.size() == count) return rows;
  } catch (const Damaged&) {
    throw BadInput(path + " is damaged: its rows cannot be unpacked");
  }
  throw BadInput(path + " is damaged: it has too few rows");
}

}  // namespace

Array read_png(const std::string& path) {
  const Bytes file = read_whole(path);
  if (file.size() < 33 || std::memcmp(file.data(), "\x89PNG\r\n\x1a\n", 8) != 0) throw BadInput(path + " is no PNG");
  if (std::memcmp(&file[8], "\0\0\0\rIHDR", 8) != 0) throw BadInput(path + " is damaged: it has no header");
  const auto [packed, palette] = chunks_of(file, path);
  const size_t width = big(&file[16]), height = big(&file[20]);
  const int colour = file[25];
  const size_t pixel = colour == 0 ? 1 : colour == 2 ? 3 : colour == 3 ? 1 : colour == 4 ? 2 : colour == 6 ? 4 : 0;
  if (file[24] != 8 || !pixel || file[28] != 0)
    throw BadInput(path + " must have 8 bits a channel and no interlacing; convert it");
  if (!width || !height || width > kMaxPixels || height > kMaxPixels / width) throw BadInput(path + " is too large");
  const size_t row = width * pixel;
  Bytes rows = rows_of(packed, height * (row + 1), path);
  unfilter(rows, height, row, pixel, path);
  const size_t channels = colour == 0 || colour == 4 ? 1 : 3;
  Array made;
  made.kind = 'u';
  made.shape = {1, int64_t(channels), int64_t(height), int64_t(width)};
  made.bytes.resize(channels * height * width);
  for (size_t y = 0; y < height; ++y)
    for (size_t x = 0; x < width; ++x) {
      const uint8_t* from = &rows[y * (row + 1) + 1 + x * pixel];
      for (size_t c = 0; c < channels; ++c) {
        const size_t place = colour == 3 ? size_t(from[0]) * 3 + c : 0;
        if (colour == 3 && place >= palette.size()) throw BadInput(path + " is damaged: a colour is missing");
        made.bytes[(c * height + y) * width + x] = colour == 3 ? palette[place] : from[c];
      }
    }
  return made;
}

}  // namespace tersify::run
