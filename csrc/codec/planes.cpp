#include "planes.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "cpu/features.hpp"

namespace tersify {

namespace {

// Loops over bytes gain from wide registers, and need nothing else written: one body, compiled twice.
#if defined(__x86_64__)
template <auto body, typename... Arguments>
[[gnu::target("avx2")]] void in_avx2(Arguments... arguments) {
  body(arguments...);
}
#endif

template <auto body, typename... Arguments>
void widest(Arguments... arguments) {
#if defined(__x86_64__)
  if (cpu_features().avx2) return in_avx2<body>(arguments...);
#endif
  body(arguments...);
}

constexpr size_t kPiece = 1 << 12;      // elements decoded and joined at a time; a multiple of every number of lanes

constexpr size_t kSampledFrom = 1 << 18;

constexpr uint64_t repeated(uint64_t pattern, int every) {
  uint64_t made = 0;
  for (int at = 0; at < 64; at += every) made |= pattern << at;
  return made;
}

// Eight bytes below 2^bits as one number of 8 · bits bits, and back: neighbours move together, then pairs, then fours.
[[gnu::always_inline]] inline uint64_t squeeze(uint64_t x, int bits) {
  x = (x & repeated(0xFF, 16)) | ((x & ~repeated(0xFF, 16)) >> (8 - bits));
  x = (x & repeated(0xFFFF, 32)) | ((x & ~repeated(0xFFFF, 32)) >> (16 - 2 * bits));
  return (x & 0xFFFFFFFF) | ((x & ~0xFFFFFFFFull) >> (32 - 4 * bits));
}

[[gnu::always_inline]] inline uint64_t stretch(uint64_t x, int bits) {
  const uint64_t fours = (1ull << 4 * bits) - 1, twos = repeated((1ull << 2 * bits) - 1, 32),
                 ones = repeated((1ull << bits) - 1, 16);
  x = (x & fours) | ((x << (32 - 4 * bits)) & (fours << 32));
  x = (x & twos) | ((x << (16 - 2 * bits)) & (twos << 16));
  return (x & ones) | ((x << (8 - bits)) & (ones << 8));
}

template <typename Word>
[[gnu::always_inline]] inline void take_bits(const uint8_t* elements, size_t count, int shift, uint32_t mask, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) {
    Word element;
    std::memcpy(&element, elements + i * sizeof(Word), sizeof(Word));
    out[i] = static_cast<uint8_t>((element >> shift) & mask);
  }
}

[[gnu::always_inline]] inline void take_plane(const uint8_t* elements, size_t count, int width, int shift, uint32_t mask, uint8_t* out) {
  switch (width) {
    case 1: return take_bits<uint8_t>(elements, count, shift, mask, out);
    case 2: return take_bits<uint16_t>(elements, count, shift, mask, out);
    case 4: return take_bits<uint32_t>(elements, count, shift, mask, out);
    default: return take_bits<uint64_t>(elements, count, shift, mask, out);
  }
}

// One plane more of elements whose higher planes are there; the first plane, at `top`, clears what was there.
template <typename Word>
[[gnu::always_inline]] inline void add_bits(const uint8_t* codes, size_t count, int shift, bool top, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) {
    Word element;
    std::memcpy(&element, out + i * sizeof(Word), sizeof(Word));
    element = static_cast<Word>((top ? 0 : element) | static_cast<Word>(static_cast<Word>(codes[i]) << shift));
    std::memcpy(out + i * sizeof(Word), &element, sizeof(Word));
  }
}

[[gnu::always_inline]] inline void add_plane(const uint8_t* codes, size_t count, int width, int shift, bool top, uint8_t* out) {
  switch (width) {
    case 1: return add_bits<uint8_t>(codes, count, shift, top, out);
    case 2: return add_bits<uint16_t>(codes, count, shift, top, out);
    case 4: return add_bits<uint32_t>(codes, count, shift, top, out);
    default: return add_bits<uint64_t>(codes, count, shift, top, out);
  }
}

// A sign and two more planes are the common case: all of an element at once.
[[gnu::always_inline]] inline void join_halves(const uint8_t* const* planes, size_t count, uint8_t* out) {
  const uint8_t *const signs = planes[0], *const high = planes[1], *const low = planes[2];
  for (size_t i = 0; i < count; ++i) {
    const uint16_t element = static_cast<uint16_t>(signs[i] << 15 | high[i] << 7 | low[i]);
    std::memcpy(out + 2 * i, &element, 2);
  }
}

void join_piece(const uint8_t* const* planes, const std::vector<int>& bits, int width, size_t count, uint8_t* out) {
  if (width == 2 && bits.size() == 3) return widest<join_halves>(planes, count, out);
  int shift = 8 * width;
  for (size_t p = 0; p < bits.size(); ++p) {
    shift -= bits[p];
    widest<add_plane>(planes[p], count, width, shift, p == 0, out);
  }
}

[[gnu::always_inline]] inline void pack_eights(const uint8_t* codes, size_t count, int bits, uint8_t* out) {
  if (bits == 8) {
    std::memcpy(out, codes, count);
    return;
  }
  size_t at = 0;
  // Eight bytes are written for `bits` of them; the next ones overwrite what is too much.
  for (; at < count && (count - at) * static_cast<size_t>(bits) >= 64; at += 8, out += bits) {
    uint64_t eight;
    std::memcpy(&eight, codes + at, 8);
    eight = squeeze(eight, bits);
    std::memcpy(out, &eight, 8);
  }
  for (; at < count; at += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, codes + at, std::min<size_t>(8, count - at));
    eight = squeeze(eight, bits);
    const size_t used = (std::min<size_t>(8, count - at) * static_cast<size_t>(bits) + 7) / 8;
    std::memcpy(out, &eight, used);
    out += used;
  }
}

[[gnu::always_inline]] inline void unpack_eights(const uint8_t* data, size_t bytes, size_t count, int bits, uint8_t* codes) {
  if (bits == 8) {
    std::memcpy(codes, data, count);
    return;
  }
  const uint8_t* const end = data + bytes;
  size_t at = 0;
  for (; at + 8 <= count && end - data >= 8; at += 8, data += bits, codes += 8) {
    uint64_t eight;
    std::memcpy(&eight, data, 8);
    eight = stretch(eight, bits);
    std::memcpy(codes, &eight, 8);
  }
  for (; at < count; at += 8, data += bits, codes += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, data, std::min<size_t>(8, static_cast<size_t>(end - data)));
    eight = stretch(eight, bits);
    std::memcpy(codes, &eight, std::min<size_t>(8, count - at));
  }
}

// The codes of one plane, piece after piece.
class PlaneReader {
 public:
  PlaneReader(const CodedPlane& plane, const std::vector<Box>& boxes, size_t count, int bits, const std::string& path)
      : coding_(plane.coding), data_(plane.data), bytes_(plane.bytes), bits_(bits) {
    if (coding_ == Coding::packed) {
      require(bytes_ == (count * static_cast<size_t>(bits) + 7) / 8, "packed codes do not fill their bytes");
      const size_t used = count * static_cast<size_t>(bits) % 8;
      require(used == 0 || data_[bytes_ - 1] >> used == 0, "packed codes are not filled up with zero bits");
      if (bits == 8) coding_ = Coding::codes;
    } else if (coding_ == Coding::rans) {
      flat_ = std::make_unique<FlatReader>(data_, bytes_, boxes, 1 << bits, flat_decoder(path));
      if (!flat_->simple()) {
        whole_.resize(count);
        decode_codes(data_, bytes_, boxes, 1 << bits, whole_.data(), path_named(path));
        data_ = whole_.data();
        coding_ = Coding::codes;
      }
    } else {
      require(bytes_ == count, "a plane has another number of codes than its group");
    }
  }

  void begin_box(size_t box) {
    if (coding_ == Coding::rans) flat_->begin_box(box);
  }

  // Elements at..at+size of the group: where their codes are, for which `room` may be used.
  const uint8_t* read(size_t at, size_t size, uint8_t* room) {
    if (coding_ == Coding::codes) return data_ + at;
    if (coding_ == Coding::rans) {
      flat_->read(room, static_cast<int64_t>(size));
      return room;
    }
    // A box may begin inside a byte of packed codes: begin with the eight codes that hold its first one.
    const size_t skipped = at % 8, first = (at - skipped) / 8 * static_cast<size_t>(bits_);
    unpack_codes(data_ + first, bytes_ - first, size + skipped, bits_, room);
    return room + skipped;
  }

  void finish() const {
    if (coding_ == Coding::rans) flat_->finish();
  }

 private:
  Coding coding_;
  const uint8_t* data_;
  size_t bytes_;
  int bits_;
  std::unique_ptr<FlatReader> flat_;
  std::vector<uint8_t> whole_;
};

}  // namespace

std::vector<int> plane_bits(int width, bool is_float) {
  std::vector<int> bits(static_cast<size_t>(width), 8);
  if (is_float) {
    bits.back() = 7;
    bits.insert(bits.begin(), 1);
  }
  return bits;
}

void split_planes(const uint8_t* data, size_t count, int width, bool is_float, uint8_t* const* planes,
                  std::vector<std::vector<uint64_t>>& counts) {
  const std::vector<int> bits = plane_bits(width, is_float);
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const size_t size = std::min(kPiece, count - begin);
    int shift = 8 * width;
    for (size_t p = 0; p < bits.size(); ++p) {
      shift -= bits[p];
      widest<take_plane>(data + begin * static_cast<size_t>(width), size, width, shift, (1u << bits[p]) - 1,
                         planes[p] + begin);
    }
  }
  counts.clear();
  const size_t stride = count < kSampledFrom ? kPiece : 8 * kPiece;
  for (size_t p = 0; p < bits.size(); ++p) {
    counts.emplace_back(size_t{1} << bits[p], 0);
    for (size_t begin = 0; begin < count; begin += stride) {
      uint64_t totals[256];
      count_codes(planes[p] + begin, std::min(kPiece, count - begin), totals);
      for (size_t s = 0; s < counts[p].size(); ++s) counts[p][s] += totals[s];
    }
  }
}

void pack_codes(const uint8_t* codes, size_t count, int bits, uint8_t* out) {
  widest<pack_eights>(codes, count, bits, out);
}

void unpack_codes(const uint8_t* data, size_t bytes, size_t count, int bits, uint8_t* codes) {
  widest<unpack_eights>(data, bytes, count, bits, codes);
}

void join_planes(const std::vector<CodedPlane>& planes, const std::vector<Box>& boxes, int width, bool is_float,
                 uint8_t* out, const std::string& path) {
  const std::vector<int> bits = plane_bits(width, is_float);
  require(planes.size() == bits.size(), "a group of arrays has another number of planes");
  size_t count = 0;
  for (const Box& box : boxes) count += static_cast<size_t>(box.weights());
  std::vector<PlaneReader> readers;
  for (size_t p = 0; p < planes.size(); ++p) readers.emplace_back(planes[p], boxes, count, bits[p], path);
  static_assert(kPiece % kMaxLanes == 0);
  std::vector<uint8_t> room(planes.size() * (kPiece + 64));
  const uint8_t* pieces[kMaxPlanes];
  size_t at = 0;
  for (size_t b = 0; b < boxes.size(); ++b) {
    for (PlaneReader& reader : readers) reader.begin_box(b);
    const size_t end = at + static_cast<size_t>(boxes[b].weights());
    while (at < end) {
      const size_t size = std::min(kPiece, end - at);
      for (size_t p = 0; p < readers.size(); ++p) pieces[p] = readers[p].read(at, size, room.data() + p * (kPiece + 64));
      join_piece(pieces, bits, width, size, out + at * static_cast<size_t>(width));
      at += size;
    }
  }
  for (const PlaneReader& reader : readers) reader.finish();
}

}  // namespace tersify
