#include "run/inflate.hpp"

#include <algorithm>
#include <cstring>

namespace tersify::run {
namespace {

uint32_t adler32(const Bytes& bytes) {
  uint32_t a = 1, b = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.size(), at + 5552);  // so many fit into 32 bits
    for (; at < end; ++at) b += a += bytes[at];
    a %= 65521, b %= 65521;
  }
  return b << 16 | a;
}

class Inflater {
 public:
  Inflater(const Bytes& data, size_t limit) : data_(data), limit_(limit) {}

  Bytes run() {
    if (data_.size() < 2 || (data_[0] & 15) != 8 || (data_[1] & 32) || (data_[0] * 256 + data_[1]) % 31) fail();
    at_ = 2;
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
    if (data_.size() < at_ + 4 || big(&data_[at_]) != adler32(out_)) fail();
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

  [[noreturn]] static void fail() { throw Damaged(); }

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
    const size_t length = data_[at_] | size_t(data_[at_ + 1]) << 8, other = data_[at_ + 2] | size_t(data_[at_ + 3])
                                                                                                 << 8;
    at_ += 4;
    if ((length ^ other) != 0xffff || length > data_.size() - at_) fail();
    for (size_t i = 0; i < length; ++i) put(data_[at_++]);
  }

  void block(const Codes& literals, const Codes& distances) {
    static constexpr uint16_t kLengths[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                              31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static constexpr uint8_t kLengthBits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static constexpr uint16_t kDistances[30] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                                33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                                1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
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
  size_t at_ = 0;
  size_t limit_;
  uint32_t buffer_ = 0;
  int held_ = 0;
  Bytes out_;
};

}  // namespace

Bytes inflated(const Bytes& packed, size_t limit) { return Inflater(packed, limit).run(); }

uint32_t big(const uint8_t* p) { return uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | p[3]; }

}  // namespace tersify::run
