// Four signs a byte: 64 of their sums lie in a vector of bytes, twice, and the other 17 in one that two groups share.
#pragma once

#include <string.h>

#include "kernels/linear-lookup-i8/lookup_positions.hpp"
#include "kernels/linear-lookup-i8/lookup_rounds.hpp"

namespace tersify {
namespace {

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

struct FourSigns {
  static constexpr LookupForm form = kFourSigns;
  static constexpr int pair_bytes = 2 * form.group_bytes;
  using Short = Round<form.round, 5, 512>;
  using Long = Round<2 * form.round, 4, 647>;
  static constexpr int limit = 1935;
  static_assert(rounds_are_exact<Short, Long, form.signs, limit>());

  // For two groups of four features the lower bytes of 64 sums, the upper ones, and those of the other 17 of both.
  template <class R>
  static INLINE void make_tables(const uint8_t* x, uint8_t* tables) {
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

  template <class R>
  static void make_round(const uint8_t* x, uint8_t* tables) {
    for (int group = 0; group < R::groups; group += 2)
      make_tables<R>(x + form.signs * group, tables + group / 2 * pair_bytes);
  }

  struct Tables {  // of one group
    INLINE Tables(const uint8_t* tables, int group) {
      const uint8_t *pair = tables + group / 2 * pair_bytes, *own = pair + group % 2 * 128;
      lower0 = _mm512_load_si512(own), upper0 = _mm512_load_si512(own + 64);
      lower1 = _mm512_load_si512(pair + 256), upper1 = _mm512_load_si512(pair + 320);
    }

    INLINE void find(const __m512i& codes, __m512i& lower, __m512i& upper) const {
      asm volatile(
          "vmovdqa64 %2, %0\n\tvmovdqa64 %0, %1\n\t"
          "vpermi2b %4, %3, %0\n\tvpermi2b %6, %5, %1"
          : "=&v"(lower), "=&v"(upper)
          : "m"(codes), "v"(lower0), "v"(lower1), "v"(upper0), "v"(upper1));
    }

    __m512i lower0, lower1, upper0, upper1;
  };
};

}  // namespace
}  // namespace tersify
