// Flat streams with 16 (AVX-512) or 8 (AVX2) lanes in one register.
#if defined(__x86_64__)

#include <immintrin.h>

#include "flat.h"

#define TERSIFY_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define TERSIFY_AVX2 __attribute__((target("avx2")))

namespace tersify {

namespace {

// For each mask of lanes that need a word: which of the next words lane i takes.
struct Spread {
  alignas(32) int32_t source[256][8];
  Spread() {
    for (int mask = 0; mask < 256; ++mask)
      for (int lane = 0, next = 0; lane < 8; ++lane) source[mask][lane] = (mask >> lane & 1) ? next++ : 0;
  }
};

TERSIFY_AVX512 inline __m512i advance16(__m512i state, __m512i slot, const uint8_t*& words) {
  const __m512i low = _mm512_set1_epi32(kScale - 1);
  const __m512i width = _mm512_add_epi32(_mm512_srli_epi32(slot, 20), _mm512_set1_epi32(1));
  state = _mm512_add_epi32(_mm512_mullo_epi32(width, _mm512_srli_epi32(state, kScaleBits)),
                           _mm512_and_si512(_mm512_srli_epi32(slot, 8), low));
  const __mmask16 hungry = _mm512_cmplt_epu32_mask(state, _mm512_set1_epi32(kStateLow));
  const __m512i next = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
  words += 2 * __builtin_popcount(hungry);
  return _mm512_mask_or_epi32(state, hungry, _mm512_slli_epi32(state, 16), _mm512_maskz_expand_epi32(hungry, next));
}

TERSIFY_AVX2 inline __m256i advance8(__m256i state, __m256i slot, const Spread& spread, const uint8_t*& words) {
  const __m256i low = _mm256_set1_epi32(kScale - 1);
  const __m256i width = _mm256_add_epi32(_mm256_srli_epi32(slot, 20), _mm256_set1_epi32(1));
  state = _mm256_add_epi32(_mm256_mullo_epi32(width, _mm256_srli_epi32(state, kScaleBits)),
                           _mm256_and_si256(_mm256_srli_epi32(slot, 8), low));
  const __m256i hungry = _mm256_cmpeq_epi32(_mm256_srli_epi32(state, 16), _mm256_setzero_si256());
  const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(hungry)));
  const __m256i next = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  const __m256i source = _mm256_load_si256(reinterpret_cast<const __m256i*>(spread.source[mask]));
  const __m256i fed = _mm256_or_si256(_mm256_slli_epi32(state, 16), _mm256_permutevar8x32_epi32(next, source));
  words += 2 * __builtin_popcount(mask);
  return _mm256_blendv_epi8(state, fed, hungry);
}

TERSIFY_AVX2 inline void store_symbols(uint8_t* at, __m256i slot) {
  const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1,
                                        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i packed = _mm256_shuffle_epi8(slot, pick);
  const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(at), both);
}

// 16 states take their symbols in; the words they give away go in front of `at`, in the order of the lanes.
TERSIFY_AVX512 inline __m512i put16(const FlatTable& table, const uint8_t* symbols, __m512i state, uint16_t*& at) {
  const __m512i symbol = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols)));
  const __m512i span = _mm512_i32gather_epi32(symbol, table.spans, 4);
  const __m512i width = _mm512_and_si512(span, _mm512_set1_epi32(0xFFFF));
  // state >= width · 2^20, in 32 bits: state / 2^20 >= width
  const __mmask16 full = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(state, 20), width);
  const int given = __builtin_popcount(full);
  at -= given;
  _mm256_mask_storeu_epi16(at, static_cast<__mmask16>((1u << given) - 1),
                           _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, state)));
  state = _mm512_mask_srli_epi32(state, full, state, 16);
  const __m256i first = _mm512_castsi512_si256(symbol), second = _mm512_extracti64x4_epi64(symbol, 1);
  const __m512d low = _mm512_mul_pd(_mm512_cvtepu32_pd(_mm512_castsi512_si256(state)),
                                    _mm512_i32gather_pd(first, table.quotients, 8));
  const __m512d high = _mm512_mul_pd(_mm512_cvtepu32_pd(_mm512_extracti64x4_epi64(state, 1)),
                                     _mm512_i32gather_pd(second, table.quotients, 8));
  const __m512i quotient = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvttpd_epu32(low)),
                                              _mm512_cvttpd_epu32(high), 1);
  const __m512i rest = _mm512_sub_epi32(state, _mm512_mullo_epi32(quotient, width));
  return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(quotient, kScaleBits), rest), _mm512_srli_epi32(span, 16));
}

}  // namespace

TERSIFY_AVX512 int64_t decode_flat_avx512(const uint32_t* slots, uint32_t* states, Words& words, uint8_t* out,
                                          int64_t runs) {
  const __m512i low = _mm512_set1_epi32(kScale - 1);
  __m512i first = _mm512_loadu_si512(states), second = _mm512_loadu_si512(states + 16);
  const uint8_t* at = words.at();
  const uint8_t* const safe = at + 2 * words.left();
  int64_t run = 0;
  for (; run < runs && safe - at >= 2 * kMaxLanes; ++run, out += kMaxLanes) {
    const __m512i slot = _mm512_i32gather_epi32(_mm512_and_si512(first, low), slots, 4);
    const __m512i other = _mm512_i32gather_epi32(_mm512_and_si512(second, low), slots, 4);
    first = advance16(first, slot, at);
    second = advance16(second, other, at);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(slot));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm512_cvtepi32_epi8(other));
  }
  _mm512_storeu_si512(states, first);
  _mm512_storeu_si512(states + 16, second);
  words.skip(static_cast<size_t>(at - words.at()) / 2);
  return run;
}

TERSIFY_AVX2 int64_t decode_flat_avx2(const uint32_t* slots, uint32_t* states, Words& words, uint8_t* out,
                                      int64_t runs) {
  static const Spread spread;
  const __m256i low = _mm256_set1_epi32(kScale - 1);
  const int* const table = reinterpret_cast<const int*>(slots);
  __m256i held[4];
  for (int i = 0; i < 4; ++i) held[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states + 8 * i));
  const uint8_t* at = words.at();
  const uint8_t* const safe = at + 2 * words.left();
  int64_t run = 0;
  for (; run < runs && safe - at >= 2 * kMaxLanes; ++run, out += kMaxLanes) {
    for (int i = 0; i < 4; ++i) {
      const __m256i slot = _mm256_i32gather_epi32(table, _mm256_and_si256(held[i], low), 4);
      held[i] = advance8(held[i], slot, spread, at);
      store_symbols(out + 8 * i, slot);
    }
  }
  for (int i = 0; i < 4; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(states + 8 * i), held[i]);
  words.skip(static_cast<size_t>(at - words.at()) / 2);
  return run;
}

TERSIFY_AVX512 void encode_flat_avx512(const FlatTable& table, const uint8_t* symbols, int64_t runs, uint32_t* states,
                                       uint16_t*& at_out) {
  __m512i first = _mm512_loadu_si512(states), second = _mm512_loadu_si512(states + 16);
  uint16_t* at = at_out;
  for (int64_t run = runs; run-- > 0;) {
    second = put16(table, symbols + run * kMaxLanes + 16, second, at);
    first = put16(table, symbols + run * kMaxLanes, first, at);
  }
  _mm512_storeu_si512(states, first);
  _mm512_storeu_si512(states + 16, second);
  at_out = at;
}

}  // namespace tersify

#endif
