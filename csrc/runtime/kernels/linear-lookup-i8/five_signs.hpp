// Five signs a byte: their 243 sums lie in four vectors of bytes, twice, and the highest bit of a code says in which two.
#pragma once

#include "kernels/linear-lookup-i8/lookup_positions.hpp"
#include "kernels/linear-lookup-i8/lookup_rounds.hpp"

namespace tersify {
namespace {

constexpr FivePositions kFivePositions = five_positions();

struct FiveStarts {
  alignas(64) int16_t of[kWordVectors][kWordLanes];
};

constexpr FiveStarts five_starts(int zero) {
  FiveStarts s{};
  for (int vector = 0; vector < kWordVectors; ++vector)
    for (int lane = 0; lane < kWordLanes; ++lane) {
      int start = zero;
      for (int pair = 0; pair < 3; ++pair)
        for (int i = 2 * lane; i < 2 * lane + 2; ++i) start -= kByteZero * kFivePositions.signs[pair][vector][i];
      s.of[vector][lane] = static_cast<int16_t>(start);
    }
  return s;
}
template <class R>
constexpr FiveStarts kFiveStarts = five_starts(R::zero);

struct FiveSigns {
  static constexpr LookupForm form = kFiveSigns;
  using Short = Round<form.round, 5, 640>;
  using Long = Round<2 * form.round, 4, 860>;
  static constexpr int limit = 1963;
  static_assert(rounds_are_exact<Short, Long, form.signs, limit>());

  template <class R>
  static INLINE void make_tables(const uint8_t* x, uint8_t* tables) {
    const __m512i activations[3] = {_mm512_set1_epi16(short(x[0] | x[1] << 8)),
                                    _mm512_set1_epi16(short(x[2] | x[3] << 8)), _mm512_set1_epi16(x[4])};
    __m512i words[2 * kWordVectors];
    UNROLL
    for (int v = 0; v < kWordVectors; ++v) {
      words[v] = _mm512_load_si512(kFiveStarts<R>.of[v]);
      UNROLL
      for (int pair = 0; pair < 3; ++pair)
        words[v] = _mm512_add_epi16(
            words[v], _mm512_maddubs_epi16(activations[pair], _mm512_load_si512(kFivePositions.signs[pair][v])));
      words[kWordVectors + v] = _mm512_sub_epi16(_mm512_set1_epi16(2 * R::zero), words[v]);
    }
    const __m512i low = _mm512_set1_epi16(R::low);
    UNROLL
    for (int v = 0; v < 2 * kWordVectors; v += 2) {
      const __m512i lower = _mm512_packus_epi16(_mm512_and_si512(words[v], low), _mm512_and_si512(words[v + 1], low));
      const __m512i upper =
          _mm512_packus_epi16(_mm512_srli_epi16(words[v], R::low_bits), _mm512_srli_epi16(words[v + 1], R::low_bits));
      _mm512_store_si512(tables + 64 * v, lower);
      _mm512_store_si512(tables + 64 * (v + 1), upper);
    }
  }

  template <class R>
  static void make_round(const uint8_t* x, uint8_t* tables) {
    for (int group = 0; group < R::groups; ++group, x += form.signs, tables += form.group_bytes)
      make_tables<R>(x, tables);
  }

  // Of one group. What the first permutation leaves are still codes, which the second looks up.
  struct Tables {
    INLINE Tables(const uint8_t* tables, int group) {
      const uint8_t* own = tables + group * form.group_bytes;
      lower0 = _mm512_load_si512(own), upper0 = _mm512_load_si512(own + 64);
      lower1 = _mm512_load_si512(own + 128), upper1 = _mm512_load_si512(own + 192);
      lower2 = _mm512_load_si512(own + 256), upper2 = _mm512_load_si512(own + 320);
      lower3 = _mm512_load_si512(own + 384), upper3 = _mm512_load_si512(own + 448);
    }

    INLINE void find(const __m512i& codes, __m512i& lower, __m512i& upper) const {
      __mmask64 negative, positive;
      asm volatile(
          "vmovdqa64 %4, %0\n\tvpmovb2m %0, %2\n\tvmovdqa64 %0, %1\n\tknotq %2, %3\n\t"
          "vpermi2b %6, %5, %0%{%3%}\n\tvpermi2b %8, %7, %1%{%3%}\n\t"
          "vpermi2b %10, %9, %0%{%2%}\n\tvpermi2b %12, %11, %1%{%2%}"
          : "=&v"(lower), "=&v"(upper), "=&Yk"(negative), "=&Yk"(positive)
          : "m"(codes), "v"(lower0), "v"(lower1), "v"(upper0), "v"(upper1), "v"(lower2), "v"(lower3), "v"(upper2),
            "v"(upper3));
    }

    __m512i lower0, lower1, lower2, lower3, upper0, upper1, upper2, upper3;
  };
};

}  // namespace
}  // namespace tersify
