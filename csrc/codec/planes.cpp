#include "planes.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace tersify {

namespace {

constexpr size_t kPiece = 1 << 12;      // elements decoded and joined at a time; a multiple of every number of lanes

constexpr uint64_t repeated(uint64_t pattern, int every) {
  uint64_t made = 0;
  for (int at = 0; at < 64; at += every) made |= pattern << at;
  return made;
}

// Eight bytes below 2^bits as one number of 8 · bits bits, and back: neighbours move together, then pairs, then fours.
inline uint64_t squeeze(uint64_t x, int bits) {
  x = (x & repeated(0xFF, 16)) | ((x & ~repeated(0xFF, 16)) >> (8 - bits));
  x = (x & repeated(0xFFFF, 32)) | ((x & ~repeated(0xFFFF, 32)) >> (16 - 2 * bits));
  return (x & 0xFFFFFFFF) | ((x & ~0xFFFFFFFFull) >> (32 - 4 * bits));
}

inline uint64_t stretch(uint64_t x, int bits) {
  const uint64_t fours = (1ull << 4 * bits) - 1, twos = repeated((1ull << 2 * bits) - 1, 32),
                 ones = repeated((1ull << bits) - 1, 16);
  x = (x & fours) | ((x << (32 - 4 * bits)) & (fours << 32));
  x = (x & twos) | ((x << (16 - 2 * bits)) & (twos << 16));
  return (x & ones) | ((x << (8 - bits)) & (ones << 8));
}

template <typename Word>
void split(const uint8_t* data, size_t count, const std::vector<int>& bits, uint8_t* const* planes) {
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const size_t size = std::min(kPiece, count - begin);
    Word piece[kPiece];
    std::memcpy(piece, data + begin * sizeof(Word), size * sizeof(Word));
    int shift = 8 * sizeof(Word);
    for (size_t p = 0; p < bits.size(); ++p) {
      shift -= bits[p];
      const Word mask = static_cast<Word>((1u << bits[p]) - 1);
      uint8_t* const out = planes[p] + begin;
      for (size_t i = 0; i < size; ++i) out[i] = static_cast<uint8_t>((piece[i] >> shift) & mask);
    }
  }
}

template <typename Word>
void join(const uint8_t* const* planes, const std::vector<int>& bits, size_t count, uint8_t* out) {
  Word piece[kPiece];
  int shift = 8 * sizeof(Word);
  for (size_t p = 0; p < bits.size(); ++p) {
    shift -= bits[p];
    const uint8_t* const codes = planes[p];
    if (p == 0)
      for (size_t i = 0; i < count; ++i) piece[i] = static_cast<Word>(static_cast<Word>(codes[i]) << shift);
    else
      for (size_t i = 0; i < count; ++i) piece[i] = static_cast<Word>(piece[i] | static_cast<Word>(codes[i]) << shift);
  }
  std::memcpy(out, piece, count * sizeof(Word));
}

// A sign and two more planes are the common case: all of an element at once.
void join_halves(const uint8_t* const* planes, size_t count, uint8_t* out) {
  const uint8_t *const signs = planes[0], *const high = planes[1], *const low = planes[2];
  uint16_t piece[kPiece];
  for (size_t i = 0; i < count; ++i)
    piece[i] = static_cast<uint16_t>(signs[i] << 15 | high[i] << 7 | low[i]);
  std::memcpy(out, piece, 2 * count);
}

void join_piece(const uint8_t* const* planes, const std::vector<int>& bits, int width, size_t count, uint8_t* out) {
  switch (width) {
    case 1: return join<uint8_t>(planes, bits, count, out);
    case 2: return bits.size() == 3 ? join_halves(planes, count, out) : join<uint16_t>(planes, bits, count, out);
    case 4: return join<uint32_t>(planes, bits, count, out);
    default: return join<uint64_t>(planes, bits, count, out);
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
  switch (width) {
    case 1: split<uint8_t>(data, count, bits, planes); break;
    case 2: split<uint16_t>(data, count, bits, planes); break;
    case 4: split<uint32_t>(data, count, bits, planes); break;
    default: split<uint64_t>(data, count, bits, planes);
  }
  counts.clear();
  for (size_t p = 0; p < bits.size(); ++p) {
    uint64_t totals[256] = {};
    if (bits[p] == 1) {
      for (size_t i = 0; i < count; ++i) totals[1] += planes[p][i];
      totals[0] = count - totals[1];
    } else {
      count_codes(planes[p], count, totals);
    }
    counts.emplace_back(totals, totals + (size_t{1} << bits[p]));
  }
}

void pack_codes(const uint8_t* codes, size_t count, int bits, uint8_t* out) {
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

void unpack_codes(const uint8_t* data, size_t bytes, size_t count, int bits, uint8_t* codes) {
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
