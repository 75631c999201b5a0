// The same row decoder with 16 (AVX-512) or 8 (AVX2) lanes in one register. Both need all 32 lanes.
#if defined(__x86_64__)

#include <immintrin.h>

#include "decode.h"

namespace tersify {

namespace {

struct Neighbours {
  const uint8_t *left, *above, *symbols_above;    // null where there is none
};

Neighbours neighbours_of(const Decoder& d, Rows rows, int64_t row) {
  const int64_t above = (row - rows.up) * kMaxLanes;
  const bool has_left = d.left && row % rows.up != 0, has_above = d.above && row >= rows.up;
  return {has_left ? rows.classes + (row - 1) * kMaxLanes : nullptr, has_above ? rows.classes + above : nullptr,
          d.mirror && has_above ? rows.symbols + above : nullptr};
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) inline __m512i bytes16(const uint8_t* at) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

__attribute__((target("avx2"))) inline __m256i bytes8(const uint8_t* at) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}

// For each mask of lanes that need a word: which of the next words lane i takes.
struct Spread {
  alignas(32) int32_t source[256][8];
  Spread() {
    for (int mask = 0; mask < 256; ++mask)
      for (int lane = 0, next = 0; lane < 8; ++lane) source[mask][lane] = (mask >> lane & 1) ? next++ : 0;
  }
};

}  // namespace

__attribute__((target("avx512f,avx512bw,avx512vl"))) void decode_rows_avx512(const Decoder& d,
                                                                               const uint8_t* densities, int active,
                                                                               Rows rows, uint32_t* states,
                                                                               Words& words) {
  const __m512i low = _mm512_set1_epi32(kScale - 1), one = _mm512_set1_epi32(1), byte = _mm512_set1_epi32(0xFF);
  const __m512i none = _mm512_set1_epi32(d.classes), above_states = _mm512_set1_epi32(d.above_states);
  const __m512i per_density = _mm512_set1_epi32(d.contexts_per_density);
  const __m512i facts_low = _mm512_loadu_si512(d.symbol_facts.data());
  const __m512i facts_high = _mm512_loadu_si512(d.symbol_facts.data() + 16);
  const bool few = d.symbols <= 32;
  for (int64_t row = 0; row < rows.count; ++row) {
    if (words.left() < kMaxLanes) {
      decode_row_portable(d, densities, active, rows, row, states, words);
      continue;
    }
    const Neighbours near = neighbours_of(d, rows, row);
    for (int lane = 0; lane < kMaxLanes; lane += 16) {
      __m512i context = _mm512_mullo_epi32(bytes16(densities + lane), per_density);
      if (d.left) {
        const __m512i left = near.left ? bytes16(near.left + lane) : none;
        context = _mm512_add_epi32(context, _mm512_mullo_epi32(left, above_states));
      }
      if (d.above) context = _mm512_add_epi32(context, near.above ? bytes16(near.above + lane) : none);
      __m512i state = _mm512_loadu_si512(states + lane);
      const __m512i base = _mm512_i32gather_epi32(context, d.slot_base.data(), 4);
      const __m512i index = _mm512_add_epi32(base, _mm512_and_si512(state, low));
      const __m512i slot = _mm512_i32gather_epi32(index, d.slots.data(), 4);
      const __m512i width = _mm512_add_epi32(_mm512_srli_epi32(slot, 20), one);
      state = _mm512_add_epi32(_mm512_mullo_epi32(width, _mm512_srli_epi32(state, kScaleBits)),
                               _mm512_and_si512(_mm512_srli_epi32(slot, 8), low));
      const __mmask16 hungry = _mm512_cmplt_epu32_mask(state, _mm512_set1_epi32(kStateLow));
      const __m512i next = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words.at())));
      state = _mm512_mask_or_epi32(state, hungry, _mm512_slli_epi32(state, 16),
                                   _mm512_maskz_expand_epi32(hungry, next));
      words.skip(static_cast<size_t>(__builtin_popcount(hungry)));
      _mm512_storeu_si512(states + lane, state);

      __m512i symbol = _mm512_and_si512(slot, byte);
      __m512i facts = few ? _mm512_permutex2var_epi32(facts_low, symbol, facts_high)
                          : _mm512_i32gather_epi32(symbol, d.symbol_facts.data(), 4);
      if (near.symbols_above) {
        const __m512i up = bytes16(near.symbols_above + lane);
        const __m512i up_facts = few ? _mm512_permutex2var_epi32(facts_low, up, facts_high)
                                     : _mm512_i32gather_epi32(up, d.symbol_facts.data(), 4);
        const __mmask16 turned = _mm512_cmpge_epu32_mask(up_facts, _mm512_set1_epi32(1 << 16));
        symbol = _mm512_mask_and_epi32(symbol, turned, facts, byte);
        facts = few ? _mm512_permutex2var_epi32(facts_low, symbol, facts_high)
                    : _mm512_i32gather_epi32(symbol, d.symbol_facts.data(), 4);
      }
      const __m512i classes = _mm512_srli_epi32(facts, 8);
      const int64_t at = row * kMaxLanes + lane;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(rows.symbols + at), _mm512_cvtepi32_epi8(symbol));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(rows.classes + at), _mm512_cvtepi32_epi8(classes));
    }
  }
}

namespace {

__attribute__((target("avx2"))) inline void store_bytes8(uint8_t* at, __m256i values) {
  const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1,
                                        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i packed = _mm256_shuffle_epi8(values, pick);
  const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(at), both);
}

}  // namespace

__attribute__((target("avx2"))) void decode_rows_avx2(const Decoder& d, const uint8_t* densities, int active, Rows rows,
                                                      uint32_t* states, Words& words) {
  static const Spread spread;
  const __m256i low = _mm256_set1_epi32(kScale - 1), one = _mm256_set1_epi32(1), byte = _mm256_set1_epi32(0xFF);
  const __m256i none = _mm256_set1_epi32(d.classes), above_states = _mm256_set1_epi32(d.above_states);
  const __m256i per_density = _mm256_set1_epi32(d.contexts_per_density);
  const int* slot_base = reinterpret_cast<const int*>(d.slot_base.data());
  const int* slots = reinterpret_cast<const int*>(d.slots.data());
  const int* symbol_facts = reinterpret_cast<const int*>(d.symbol_facts.data());
  for (int64_t row = 0; row < rows.count; ++row) {
    if (words.left() < kMaxLanes) {
      decode_row_portable(d, densities, active, rows, row, states, words);
      continue;
    }
    const Neighbours near = neighbours_of(d, rows, row);
    for (int lane = 0; lane < kMaxLanes; lane += 8) {
      __m256i context = _mm256_mullo_epi32(bytes8(densities + lane), per_density);
      if (d.left) {
        const __m256i left = near.left ? bytes8(near.left + lane) : none;
        context = _mm256_add_epi32(context, _mm256_mullo_epi32(left, above_states));
      }
      if (d.above) context = _mm256_add_epi32(context, near.above ? bytes8(near.above + lane) : none);
      __m256i state = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states + lane));
      const __m256i base = _mm256_i32gather_epi32(slot_base, context, 4);
      const __m256i slot = _mm256_i32gather_epi32(slots, _mm256_add_epi32(base, _mm256_and_si256(state, low)), 4);
      const __m256i width = _mm256_add_epi32(_mm256_srli_epi32(slot, 20), one);
      state = _mm256_add_epi32(_mm256_mullo_epi32(width, _mm256_srli_epi32(state, kScaleBits)),
                               _mm256_and_si256(_mm256_srli_epi32(slot, 8), low));
      const __m256i hungry = _mm256_cmpeq_epi32(_mm256_srli_epi32(state, 16), _mm256_setzero_si256());
      const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(hungry)));
      const __m256i next = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words.at())));
      const __m256i source = _mm256_load_si256(reinterpret_cast<const __m256i*>(spread.source[mask]));
      const __m256i fed = _mm256_or_si256(_mm256_slli_epi32(state, 16), _mm256_permutevar8x32_epi32(next, source));
      state = _mm256_blendv_epi8(state, fed, hungry);
      words.skip(static_cast<size_t>(__builtin_popcount(mask)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(states + lane), state);

      __m256i symbol = _mm256_and_si256(slot, byte);
      if (near.symbols_above) {
        const __m256i up_facts = _mm256_i32gather_epi32(symbol_facts, bytes8(near.symbols_above + lane), 4);
        const __m256i turned = _mm256_cmpgt_epi32(up_facts, _mm256_set1_epi32((1 << 16) - 1));
        const __m256i mirrored = _mm256_and_si256(_mm256_i32gather_epi32(symbol_facts, symbol, 4), byte);
        symbol = _mm256_blendv_epi8(symbol, mirrored, turned);
      }
      const __m256i facts = _mm256_i32gather_epi32(symbol_facts, symbol, 4);
      const int64_t at = row * kMaxLanes + lane;
      store_bytes8(rows.symbols + at, symbol);
      store_bytes8(rows.classes + at, _mm256_srli_epi32(facts, 8));
    }
  }
}

}  // namespace tersify

#endif
