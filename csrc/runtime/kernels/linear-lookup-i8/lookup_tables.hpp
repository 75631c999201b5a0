// The tables of looked-up sums: what four signs make of four activations, in two bytes.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "isa/kernel_table.hpp"
#include "kernels/linear-lookup-i8/lookup_positions.hpp"

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE inline __attribute__((always_inline))

namespace tersify {
namespace {

// Groups of four features whose sums add up as bytes. `low_bits`: bits of a sum in its lower byte; `zero`: what every
// sum has too much, so that none is negative.
template <int Groups, int LowBits, int Zero>
struct Round {
  static constexpr int groups = Groups, low_bits = LowBits, zero = Zero, low = (1 << LowBits) - 1;
  static constexpr int zeros = Groups * Zero % (256 << LowBits);  // what a word of all of them has too much
  static_assert(Groups * low < 256);
};
using ShortRound = Round<kLookupRound, 5, 512>;  // neither byte overflows, whatever the activations
// LowBits as many turn into words where activations are small, as most are: the upper byte may overflow, but a sum of
// the round up to `kLongLimit` either way is what its bytes say modulo 256 << low_bits.
using LongRound = Round<2 * kLookupRound, 4, 647>;
constexpr int kLongLimit = 1935;
static_assert(ShortRound::groups * ((2 * ShortRound::zero - 1) >> ShortRound::low_bits) < 256);
static_assert(kLongLimit + LongRound::zeros < 256 << LongRound::low_bits);
// What lower bytes hold is missing in the upper ones, but for less than one of their steps.
static_assert(LongRound::zeros - kLongLimit >= (LongRound::groups - 1) * LongRound::low);

struct Starts {
  alignas(64) int32_t of[kSumVectors][kSumLanes];
};
constexpr LookupPositions kPositions = lookup_positions();

constexpr Starts starts(int zero) {
  Starts s{};
  for (int vector = 0; vector < kSumVectors; ++vector)
    for (int lane = 0; lane < kSumLanes; ++lane) {
      s.of[vector][lane] = zero;
      for (int i = 4 * lane; i < 4 * lane + 4; ++i) s.of[vector][lane] -= kByteZero * kPositions.signs[vector][i];
    }
  return s;
}
template <class R>
constexpr Starts kStarts = starts(R::zero);

// For two groups of four features the lower bytes of 64 sums, the upper ones, and those of the other 17 of both.
template <class R>
INLINE void make_tables(const uint8_t* x, uint8_t* tables) {
  const __m512i low = _mm512_set1_epi8(R::low);
  // Of four words all lower bytes, then all upper.
  const __m512i both_bytes = _mm512_set1_epi64(0x3020100030201000 + (R::low_bits * 0x01010101ll << 32));
  __m512i loose[2];
  UNROLL
  for (int group = 0; group < 2; ++group, tables += 128) {
    int32_t activations;
    memcpy(&activations, x + 4 * group, sizeof activations);
    const __m512i four = _mm512_set1_epi32(activations);
    __m512i sums[kSumVectors];
    UNROLL
    for (int v = 0; v < kSumVectors; ++v)
      sums[v] = _mm512_dpbusd_epi32(_mm512_load_si512(kStarts<R>.of[v]), four, _mm512_load_si512(kPositions.signs[v]));
    loose[group] = sums[2];
    const __m512i packed = _mm512_packus_epi32(sums[0], sums[1]),
                  negative = _mm512_sub_epi16(_mm512_set1_epi16(2 * R::zero), packed);
    const __m512 a = _mm512_castsi512_ps(_mm512_multishift_epi64_epi8(both_bytes, packed));
    const __m512 b = _mm512_castsi512_ps(_mm512_multishift_epi64_epi8(both_bytes, negative));
    _mm512_store_si512(tables, _mm512_and_si512(low, _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88))));
    _mm512_store_si512(tables + 64, _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
  }
  const __m512i words = _mm512_packus_epi32(loose[0], loose[1]);  // behind the byte of each, that of four zeros
  const __m512i lower = _mm512_and_si512(words, _mm512_set1_epi16(R::low)),
                upper = _mm512_srli_epi16(words, R::low_bits);
  _mm512_store_si512(tables, _mm512_or_si512(lower, _mm512_set1_epi16((R::zero & R::low) << 8)));
  _mm512_store_si512(tables + 64, _mm512_or_si512(upper, _mm512_set1_epi16((R::zero >> R::low_bits) << 8)));
}

struct TableChunk {
  uint8_t* tables;
  int groups;
  bool is_long[kLookupChunk / LongRound::groups];  // the round that begins there
  int largest;                                     // no sum of its activations is larger, whatever their signs
  int zeros;                                       // what a word of its sums has too much
};

int largest_sum(const uint8_t* x, int count) {
  __m512i total = _mm512_setzero_si512();
  for (int i = 0; i < count; i += 32) {
    const __m256i steps = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)),
                                           _mm256_set1_epi8(char(kByteZero)));
    total = _mm512_add_epi64(total,
                             _mm512_zextsi256_si512(_mm256_sad_epu8(_mm256_abs_epi8(steps), _mm256_setzero_si256())));
  }
  return int(_mm512_reduce_add_epi64(total));
}

template <class R>
int make_round(const uint8_t* x, uint8_t* tables) {
  for (int group = 0; group < R::groups; group += 2)
    make_tables<R>(x + 4 * group, tables + group / 2 * kLookupPairBytes);
  return R::zeros;
}

void make_chunk(const uint8_t* x, TableChunk& chunk) {
  chunk.largest = chunk.zeros = 0;
  for (int group = 0; group < chunk.groups; group += LongRound::groups) {
    const int groups = chunk.groups - group < LongRound::groups ? chunk.groups - group : LongRound::groups;
    const int largest = largest_sum(x + 4 * group, 4 * groups);
    const bool is_long = chunk.is_long[group / LongRound::groups] =
        groups == LongRound::groups && largest <= kLongLimit;
    uint8_t* tables = chunk.tables + group / 2 * kLookupPairBytes;
    chunk.largest += largest;
    if (is_long) chunk.zeros += make_round<LongRound>(x + 4 * group, tables);
    for (int g = 0; g < groups && !is_long; g += ShortRound::groups)
      chunk.zeros += make_round<ShortRound>(x + 4 * (group + g), tables + g / 2 * kLookupPairBytes);
  }
}

}  // namespace
}  // namespace tersify
