// Where a table of sums keeps the sum of which signs: packing names the place, the kernel fills it.
//
// Four signs have 81 sums. Products of bytes make 80 of them, 16 a vector of 32-bit numbers; that of four zeros is always the
// same. The first four vectors are packed to bytes and fill places 0..63 in the order that packing leaves; the fifth is not
// packed, so its sums lie four places apart, and the gaps between them hold what a zero is worth.
#pragma once

#include <cstdint>

namespace tersify {

constexpr int kSignSets = 81, kSumVectors = 5, kSumLanes = 16;

struct LookupPlaces {
  uint8_t place[kSignSets] = {};                 // by Σ (sign + 1) · 3^feature
  int8_t signs[kSumVectors][4 * kSumLanes] = {};  // [vector][lane][feature]
};

constexpr LookupPlaces lookup_places() {
  constexpr int kNoSigns = kSignSets / 2;
  LookupPlaces p;
  p.place[kNoSigns] = 65;
  for (int set = 0, number = 0; set < kSignSets; ++set) {
    if (set == kNoSigns) continue;
    const int vector = number / kSumLanes, lane = number % kSumLanes;
    for (int feature = 0, rest = set; feature < 4; ++feature, rest /= 3)
      p.signs[vector][4 * lane + feature] = static_cast<int8_t>(rest % 3 - 1);
    p.place[set] = static_cast<uint8_t>(vector == 4 ? 64 + 4 * lane : lane / 4 * 16 + vector * 4 + lane % 4);
    ++number;
  }
  return p;
}

// Of the 64 rows of a block, the one whose code lies at a byte: the order in which widening bytes to 32 bits leaves them.
constexpr int lookup_row(int byte) {
  const int word = byte / 16 * 8 + byte % 8;
  return byte % 16 / 8 * 32 + word % 2 * 16 + word / 2;
}

}  // namespace tersify
