// Where a table of sums keeps the sum of which signs: packing names the position, the kernel fills it. A set of signs has
// the number Σ (sign + 1) · 3^feature; sets at the same distance from the middle have opposite signs.
//
// Four signs have 81 sums. Products of bytes make them, 16 a vector of 32-bit numbers: two vectors, whose negatives are
// two more, are packed to bytes and fill positions 0..63 in the order that packing leaves. Places 64..127 serve two
// groups: the last 16 sums of each are packed to words, four of one group and four of the other in turn, and the byte
// behind each holds what four zeros are worth.
//
// Five signs have 243 sums. Half of them fill four vectors of words; their opposites lie 128 positions behind them.
#pragma once

#include <cstdint>

namespace tersify {

constexpr int kSignSets = 81, kSumLanes = 16;
constexpr int kSumVectors = 3;  // the last is packed to words, with another group's

struct LookupPositions {
  uint8_t position[2][kSignSets] = {};                        // [group % 2][set]
  alignas(64) int8_t signs[kSumVectors][4 * kSumLanes] = {};  // [vector][lane][feature]
};

constexpr LookupPositions lookup_positions() {
  constexpr int kNoSigns = kSignSets / 2, kLoose = kSumVectors - 1, kPacked = kLoose * kSumLanes;
  LookupPositions p;
  for (int group = 0; group < 2; ++group) p.position[group][kNoSigns] = static_cast<uint8_t>(65 + 8 * group);
  for (int set = 0; set < kSignSets; ++set) {
    const int pair = set < kNoSigns ? set : kSignSets - 1 - set, negative = set > kNoSigns;
    if (set == kNoSigns) continue;
    const bool loose = pair >= kPacked;
    const int vector = loose ? kLoose : pair / kSumLanes,
              lane = loose ? 2 * (pair - kPacked) + negative : pair % kSumLanes;
    for (int group = 0; group < 2; ++group)
      p.position[group][set] = static_cast<uint8_t>(
          lane / 4 * 16 + (loose ? 64 + 8 * group + lane % 4 * 2 : (2 * negative + vector) * 4 + lane % 4));
    if (!loose && negative) continue;  // taken from the other
    for (int feature = 0, rest = set; feature < 4; ++feature, rest /= 3)
      p.signs[vector][4 * lane + feature] = static_cast<int8_t>(rest % 3 - 1);
  }
  return p;
}

constexpr int kFiveSignSets = 243, kWordLanes = 32, kWordVectors = 4;

struct FivePositions {
  uint8_t position[kFiveSignSets] = {};
  // [vector][lane][feature]: of the first two features, the next two, and the last with nothing beside it
  alignas(64) int8_t signs[3][kWordVectors][2 * kWordLanes] = {};
};

constexpr FivePositions five_positions() {
  constexpr int kNoSigns = kFiveSignSets / 2;
  static_assert(kNoSigns < kWordVectors * kWordLanes);
  FivePositions p;
  for (int set = 0; set < kFiveSignSets; ++set) {
    const bool negative = set > kNoSigns;
    const int pair = negative ? kFiveSignSets - 1 - set : set, vector = pair / kWordLanes, lane = pair % kWordLanes;
    // Packing two vectors of words to bytes leaves eight of one behind eight of the other.
    p.position[set] =
        static_cast<uint8_t>(128 * negative + vector / 2 * 64 + lane / 8 * 16 + vector % 2 * 8 + lane % 8);
    for (int feature = 0, rest = set; feature < 5 && !negative; ++feature, rest /= 3)
      p.signs[feature / 2][vector][2 * lane + feature % 2] = static_cast<int8_t>(rest % 3 - 1);
  }
  return p;
}

// Of the 64 rows of a block, the one whose code lies at a byte: the order in which widening bytes to 32 bits leaves
// them.
constexpr int lookup_row(int byte) {
  const int word = byte / 16 * 8 + byte % 8;
  return byte % 16 / 8 * 32 + word % 2 * 16 + word / 2;
}

}  // namespace tersify
