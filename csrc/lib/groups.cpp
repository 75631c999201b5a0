#include "lib/groups.hpp"

#include <algorithm>
#include <cstring>

#include "codec/decode.h"
#include "codec/flat.h"
#include "codec/planes.h"

namespace tersify::lib {
namespace {

constexpr int kMaxSplits = 4;
constexpr int64_t kPiece = 1 << 16, kBlock = 1 << 22;

struct Span {
  const uint8_t* data;
  size_t size;
};

[[noreturn]] void refuse(const char* why) { throw BadFile(why); }

int64_t elements_of(const std::vector<Box>& boxes) {
  int64_t sum = 0;
  for (const Box& box : boxes) sum += box.weights();
  return sum;
}

int bits_for(int levels) {
  int bits = 1;
  while (1 << bits < levels) ++bits;
  return bits;
}

const std::string& fastest_path() {
  static const std::string path = paths().front();
  return path;
}

// Checks as they are in the Python reader: exact length, zero bits behind the last code.
void check_packed(const Span& data, size_t count, int bits) {
  if (data.size != (count * size_t(bits) + 7) / 8) refuse("packed codes do not fill their bytes");
  const size_t used = count * size_t(bits) % 8;
  if (used && data.data[data.size - 1] >> used) refuse("the last byte of packed codes is not filled up with zero bits");
}

// "a header of one byte and four": the method, and the bytes that follow.
Span take_part(const Span& whole, size_t& at, int& method, int methods) {
  if (whole.size - at < 5) refuse("a group ends inside a header");
  method = whole.data[at];
  size_t length = 0;
  for (int i = 3; i >= 0; --i) length = length << 8 | whole.data[at + 1 + size_t(i)];
  at += 5;
  if (method >= methods || length > whole.size - at) refuse("a part of a group claims more than is there");
  const Span part{whole.data + at, length};
  at += length;
  return part;
}

enum Method { kPacked, kRans, kZstd, kSplit };

void decode_plain(int method, const Span& data, const std::vector<Box>& boxes, int levels, Bytes& out) {
  if (method == kRans) {
    check_boxes(boxes);
    if (!decode_flat(data.data, data.size, boxes, levels, out.data(), fastest_path()))
      decode_codes(data.data, data.size, boxes, levels, out.data(), path_named(fastest_path()));
  } else if (method == kPacked) {
    const int bits = bits_for(levels);
    check_packed(data, out.size(), bits);
    unpack_codes(data.data, data.size, out.size(), bits, out.data());
  } else {
    unzip_into(data.data, data.size, out.data(), out.size(), "codes");
  }
  if (!out.empty() && *std::max_element(out.begin(), out.end()) >= levels) refuse("a code is outside its levels");
}

void decode_any(int method, const Span& data, const std::vector<Box>& boxes, int levels, Bytes& out, int depth);

size_t decode_nested(const Span& whole, size_t at, const std::vector<Box>& boxes, int levels, Bytes& out, int depth) {
  int method;
  const Span part = take_part(whole, at, method, 4);
  if (!out.empty())
    decode_any(method, part, boxes, levels, out, depth - 1);
  else if (part.size)
    refuse("a part of split codes has bytes and no codes");
  return at;
}

void decode_split(const Span& data, const std::vector<Box>& boxes, int levels, Bytes& out, int depth) {
  if (depth == 0) refuse("codes are split too often");
  size_t at = (size_t(levels) + 7) / 8;
  if (data.size < at) refuse("split codes end inside their marks");
  std::vector<uint8_t> frequent, rare;
  for (int level = 0; level < int(at) * 8; ++level) {
    const bool marked = data.data[level / 8] >> level % 8 & 1;
    if (level >= levels && marked) refuse("split codes have marks behind their levels");
    if (level < levels) (marked ? rare : frequent).push_back(uint8_t(level));
  }
  if (frequent.empty() || rare.empty()) refuse("split codes need rare levels and others");
  at = decode_nested(data, at, boxes, int(frequent.size()) + 1, out, depth);
  std::vector<Box> behind;
  size_t from = 0, total = 0;
  for (const Box& box : boxes) {
    const auto begin = out.begin() + ptrdiff_t(from);
    const int64_t count = std::count(begin, begin + box.weights(), uint8_t(frequent.size()));
    from += size_t(box.weights());
    if (count) behind.push_back({1, count, 1, 1});
    total += size_t(count);
  }
  Bytes aside(total);
  at = decode_nested(data, at, behind, int(rare.size()), aside, depth);
  if (at != data.size) refuse("split codes have bytes behind their end");
  size_t next = 0;
  for (uint8_t& code : out) code = code == frequent.size() ? rare[aside[next++]] : frequent[code];
}

void decode_any(int method, const Span& data, const std::vector<Box>& boxes, int levels, Bytes& out, int depth) {
  if (method == kSplit)
    decode_split(data, boxes, levels, out, depth);
  else
    decode_plain(method, data, boxes, levels, out);
}

// Planes of elements of `width` bytes, over these boxes.
Bytes decode_planes(const Span& data, const std::vector<Box>& boxes, int width, bool floats) {
  const size_t count = size_t(elements_of(boxes));
  const std::vector<int> bits = plane_bits(width, floats);
  std::vector<CodedPlane> planes;
  std::vector<Bytes> unzipped;
  unzipped.reserve(bits.size());
  size_t at = 0;
  for (const int plane : bits) {
    int method;
    const Span part = take_part(data, at, method, 3);
    if (method == kZstd) {
      unzipped.emplace_back(count);
      decode_plain(kZstd, part, boxes, 1 << plane, unzipped.back());
      planes.push_back({Coding::codes, unzipped.back().data(), count});
    } else {
      if (method == kPacked) check_packed(part, count, plane);
      planes.push_back({method == kRans ? Coding::rans : Coding::packed, part.data, part.size});
    }
  }
  if (at != data.size) refuse("a group of arrays has bytes behind its end");
  check_boxes(boxes);
  Bytes out(count * size_t(width));
  join_planes(planes, boxes, width, floats, out.data(), fastest_path());
  return out;
}

using Arrays = std::vector<std::pair<std::string, int64_t>>;

Bytes decode_zeros(const Span& data, const Arrays& arrays, int width) {
  size_t at = 0;
  int method;
  const Span head = take_part(data, at, method, 3);
  const std::vector<Box> boxes = boxes_of_arrays(arrays, kBlock);
  Bytes codes(static_cast<size_t>(elements_of(boxes)));
  decode_plain(method, head, boxes, 3, codes);
  Arrays others;
  size_t from = 0;
  for (const auto& [kind, elements] : arrays) {
    const auto begin = codes.begin() + ptrdiff_t(from);
    const int64_t count = std::count(begin, begin + elements, uint8_t(2));
    from += size_t(elements);
    if (count) others.emplace_back(kind, count);
  }
  Bytes rest;
  if (!others.empty())
    rest = decode_planes({data.data + at, data.size - at}, boxes_of_arrays(others, kPiece), width, true);
  else if (at != data.size)
    refuse("a group of arrays that are all zero has bytes behind its zeros");
  const size_t wide = size_t(width);
  Bytes out(codes.size() * wide);
  const uint8_t* next = rest.data();
  for (size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] == 1) out[i * wide + wide - 1] = 0x80;
    if (codes[i] != 2) continue;
    std::memcpy(out.data() + i * wide, next, wide);
    next += wide;
  }
  return out;
}

// The first bytes of all elements, then the second ones, …
Bytes from_columns(const Bytes& columns, size_t width) {
  Bytes out(columns.size());
  const size_t count = columns.size() / width;
  for (size_t i = 0; i < out.size(); ++i) out[i] = columns[i % width * count + i / width];
  return out;
}

}  // namespace

Bytes decode_group(const Group& group, const Bytes& data) {
  if (group.crc && crc32(data.data(), data.size()) != *group.crc) refuse("a group is damaged: its checksum does not match");
  const Span whole{data.data(), data.size()};
  try {
    if (group.levels) {
      const char* const codecs[] = {"packed", "rans", "zstd", "split"};
      for (int method = 0; method < 4; ++method) {
        if (group.codec != codecs[method]) continue;
        Bytes out(static_cast<size_t>(group.elements));
        decode_any(method, whole, group.boxes, group.levels, out, kMaxSplits);
        return out;
      }
    } else {
      Arrays arrays;
      for (size_t i = 0; i < group.kinds.size(); ++i) arrays.emplace_back(group.kinds[i], group.places[i].elements);
      const int width = width_of(group.dtype);
      const bool floats = is_float(group.dtype);
      if (group.codec == "planes") return decode_planes(whole, boxes_of_arrays(arrays, kBlock), width, floats);
      if (group.codec == "pieces") return decode_planes(whole, boxes_of_arrays(arrays, kPiece), width, floats);
      if (group.codec == "zeros" && floats) return decode_zeros(whole, arrays, width);
      if (group.codec == "zstd" || group.codec == "columns") {
        Bytes out(static_cast<size_t>(group.elements) * size_t(width));
        unzip_into(whole.data, whole.size, out.data(), out.size(), "arrays");
        return group.codec == "zstd" ? out : from_columns(out, size_t(width));
      }
    }
  } catch (const Malformed& problem) {
    throw BadFile(std::string("a damaged stream: ") + problem.what());
  }
  throw BadFile("unknown codec '" + group.codec + "'; a newer library may know it");
}

}  // namespace tersify::lib
