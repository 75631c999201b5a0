// Elements of 1, 2, 4 or 8 bytes as planes of codes, and back; docs/reference/format.md, section 5.
#pragma once

#include "flat.h"

namespace tersify {

constexpr int kMaxPlanes = 9;

// The bits of each plane, the most significant first: a sign, bytes and seven bits, or bytes alone.
std::vector<int> plane_bits(int width, bool is_float);

// One byte per element into each plane, and how often each code occurs; of large arrays in every eighth piece.
void split_planes(const uint8_t* data, size_t count, int width, bool is_float, uint8_t* const* planes,
                  std::vector<std::vector<uint64_t>>& counts);

// Codes of `bits` bits one after the other, least significant bit first. Eight codes fill `bits` bytes.
void pack_codes(const uint8_t* codes, size_t count, int bits, uint8_t* out);
void unpack_codes(const uint8_t* data, size_t bytes, size_t count, int bits, uint8_t* codes);

enum class Coding { packed = 0, rans = 1, codes = 2 };

struct CodedPlane {
  Coding coding;
  const uint8_t* data;
  size_t bytes;
};

// All planes decoded and joined, a few thousand elements at a time.
void join_planes(const std::vector<CodedPlane>& planes, const std::vector<Box>& boxes, int width, bool is_float,
                 uint8_t* out, const std::string& path);

}  // namespace tersify
