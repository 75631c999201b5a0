// PNG images (ISO/IEC 15948) of 8 bits a channel, and the inflate (RFC 1951) that they need.
#include <cstdlib>
#include <cstring>

#include "run/arrays.hpp"

namespace tersify::run {
namespace {

using Bytes = std::vector<uint8_t>;
constexpr size_t kMaxPixels = size_t(1) << 26;

class Inflater {
 public:
  Inflater(const Bytes& data, size_t limit) : data_(data), at_(2), limit_(limit) {}  // behind zlib's two bytes

  Bytes run() {
    bool last;
    do {
      last = bits(1);
      switch (bits(2)) {
        case 0:
          stored();
          break;
        case 1:
          fixed();
          break;
        case 2:
          dynamic();
          break;
        default:
          fail();
      }
    } while (!last);
    return std::move(out_);
  }

 private:
  struct Codes {  // how many codes there are of each length, and their symbols in order
    uint16_t counts[16] = {}, symbols[288] = {};
    Codes(const uint8_t* lengths, int count) {
      for (int i = 0; i < count; ++i) ++counts[lengths[i]];
      counts[0] = 0;
      uint16_t offsets[16] = {};
      int left = 1;
      for (int length = 1; length < 16; ++length) {
        left = left * 2 - counts[length];
        if (left < 0) fail();
        if (length < 15) offsets[length + 1] = uint16_t(offsets[length] + counts[length]);
      }
      for (int i = 0; i < count; ++i)
        if (lengths[i]) symbols[offsets[lengths[i]]++] = uint16_t(i);
    }
  };

  [[noreturn]] static void fail() { throw BadInput("the image is damaged"); }

  unsigned bits(int count) {
    while (held_ < count) {
      if (at_ >= data_.size()) fail();
      buffer_ |= uint32_t(data_[at_++]) << held_;
      held_ += 8;
    }
    const unsigned found = buffer_ & ((1u << count) - 1);
    buffer_ >>= count;
    held_ -= count;
    return found;
  }

  int symbol(const Codes& codes) {
    int code = 0, first = 0, index = 0;
    for (int length = 1; length < 16; ++length) {
      code |= int(bits(1));
      const int count = codes.counts[length];
      if (code - count < first) return codes.symbols[index + code - first];
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    fail();
  }

  void put(uint8_t byte) {
    if (out_.size() >= limit_) fail();
    out_.push_back(byte);
  }

  void stored() {
    buffer_ = 0, held_ = 0;
    if (data_.size() < 4 || at_ > data_.size() - 4) fail();
    const size_t length = data_[at_] | size_t(data_[at_ + 1]) << 8, other = data_[at_ + 2] | size_t(data_[at_ + 3]) << 8;
    at_ += 4;
    if ((length ^ other) != 0xffff || length > data_.size() - at_) fail();
    for (size_t i = 0; i < length; ++i) put(data_[at_++]);
  }

  void block(const Codes& literals, const Codes& distances) {
    static constexpr uint16_t kLengths[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                              31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static constexpr uint8_t kLengthBits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static constexpr uint16_t kDistances[30] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
                                                193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    for (int s = symbol(literals); s != 256; s = symbol(literals)) {
      if (s < 256) {
        put(uint8_t(s));
        continue;
      }
      if (s > 285) fail();
      size_t length = kLengths[s - 257] + bits(kLengthBits[s - 257]);
      const int d = symbol(distances);
      if (d > 29) fail();
      const size_t distance = kDistances[d] + bits(d < 2 ? 0 : d / 2 - 1);
      if (distance > out_.size()) fail();
      for (; length; --length) put(out_[out_.size() - distance]);
    }
  }

  void fixed() {
    uint8_t lengths[288], distances[30];
    for (int i = 0; i < 288; ++i) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    std::memset(distances, 5, sizeof distances);
    block(Codes(lengths, 288), Codes(distances, 30));
  }

  void dynamic() {
    static constexpr uint8_t kOrder[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    const int literals = int(bits(5)) + 257, distances = int(bits(5)) + 1, count = int(bits(4)) + 4;
    if (literals > 286 || distances > 30) fail();
    uint8_t lengths[320] = {};
    for (int i = 0; i < count; ++i) lengths[kOrder[i]] = uint8_t(bits(3));
    const Codes codes(lengths, 19);
    std::memset(lengths, 0, sizeof lengths);
    for (int at = 0; at < literals + distances;) {
      const int s = symbol(codes);
      if (s < 16) {
        lengths[at++] = uint8_t(s);
        continue;
      }
      if (s == 16 && at == 0) fail();
      const uint8_t repeated = s == 16 ? lengths[at - 1] : 0;
      int times = s == 16 ? 3 + int(bits(2)) : s == 17 ? 3 + int(bits(3)) : 11 + int(bits(7));
      if (at + times > literals + distances) fail();
      for (; times; --times) lengths[at++] = repeated;
    }
    if (!lengths[256]) fail();
    block(Codes(lengths, literals), Codes(lengths + literals, distances));
  }

  const Bytes& data_;
  size_t at_;
  size_t limit_;
  uint32_t buffer_ = 0;
  int held_ = 0;
  Bytes out_;
};

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

uint32_t big(const uint8_t* p) { return uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | p[3]; }

}  // namespace

Array read_png(const std::string& path) {
  const Bytes file = read_whole(path);
  if (file.size() < 33 || std::memcmp(file.data(), "\x89PNG\r\n\x1a\n", 8) != 0) throw BadInput(path + " is no PNG");
  const size_t width = big(&file[16]), height = big(&file[20]);
  const int colour = file[25];
  const size_t pixel = colour == 0 ? 1 : colour == 2 ? 3 : colour == 3 ? 1 : colour == 4 ? 2 : colour == 6 ? 4 : 0;
  if (file[24] != 8 || !pixel || file[28] != 0)
    throw BadInput(path + " must have 8 bits a channel and no interlacing; convert it");
  if (!width || !height || width > kMaxPixels || height > kMaxPixels / width) throw BadInput(path + " is too large");
  Bytes packed, palette;
  for (size_t at = 8; at + 12 <= file.size();) {
    const size_t length = big(&file[at]);
    if (length > file.size() - at - 12) throw BadInput(path + " is cut short");
    const uint8_t* content = &file[at + 8];
    if (!std::memcmp(&file[at + 4], "IDAT", 4)) packed.insert(packed.end(), content, content + length);
    if (!std::memcmp(&file[at + 4], "PLTE", 4)) palette.assign(content, content + length);
    at += 12 + length;
  }
  const size_t row = width * pixel;
  Bytes rows = Inflater(packed, height * (row + 1)).run();
  if (rows.size() != height * (row + 1)) throw BadInput(path + " is damaged: it has too few rows");
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
