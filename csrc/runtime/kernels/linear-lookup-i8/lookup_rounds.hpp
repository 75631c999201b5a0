// Rounds of looked-up sums: how many groups of features add up as two bytes before these become words, and the tables of
// a chunk of rounds.
#pragma once

#include <immintrin.h>

#include "isa/kernel_table.hpp"

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE inline __attribute__((always_inline))

namespace tersify {
namespace {

// Groups of features whose sums add up as bytes. `low_bits`: bits of a sum in its lower byte; `zero`: what every sum has
// too much, so that none is negative.
template <int Groups, int LowBits, int Zero>
struct Round {
  static constexpr int groups = Groups, low_bits = LowBits, zero = Zero, low = (1 << LowBits) - 1;
  static constexpr int zeros = Groups * Zero % (256 << LowBits);  // what a word of all of them has too much
  static_assert(Groups * low < 256);
};

// Of a short round neither byte overflows, whatever the activations. Twice as many groups turn into words where
// activations are small, as most are: the upper byte of a long round may overflow, but a sum up to `limit` either way is
// what its bytes say modulo 256 << low_bits.
template <class Short, class Long, int Signs, int Limit>
constexpr bool rounds_are_exact() {
  constexpr int largest = Signs * 127;
  return Short::zero >= largest && Long::zero >= largest &&
         Short::groups * ((Short::zero + largest) >> Short::low_bits) < 256 &&
         (Long::zero + largest) >> Long::low_bits < 256 && Limit + Long::zeros < 256 << Long::low_bits &&
         // What lower bytes hold is missing in the upper ones, but for less than one of their steps.
         Long::zeros - Limit >= (Long::groups - 1) * Long::low;
}

constexpr int kRoundsOfChunk = 2;  // long ones

struct TableChunk {
  uint8_t* tables;
  int groups;
  bool is_long[kRoundsOfChunk];  // the round that begins there
  int largest;                   // no sum of its activations is larger, whatever their signs
  int zeros;                     // what a word of its sums has too much
};

int largest_sum(const uint8_t* x, int count) {
  const __m256i zero = _mm256_set1_epi8(char(kByteZero));
  __m512i total = _mm512_setzero_si512();
  for (int i = 0; i < count; i += 32) {
    const __mmask32 here = count - i < 32 ? (1u << (count - i)) - 1 : ~0u;
    const __m256i steps = _mm256_xor_si256(_mm256_mask_loadu_epi8(zero, here, x + i), zero);
    total = _mm512_add_epi64(total,
                             _mm512_zextsi256_si512(_mm256_sad_epu8(_mm256_abs_epi8(steps), _mm256_setzero_si256())));
  }
  return int(_mm512_reduce_add_epi64(total));
}

// Form: FourSigns or FiveSigns.
template <class Form>
void make_chunk(const uint8_t* x, TableChunk& chunk) {
  using Short = typename Form::Short;
  using Long = typename Form::Long;
  static_assert(Form::form.chunk == kRoundsOfChunk * Long::groups && Long::groups % Short::groups == 0);
  constexpr int kSigns = Form::form.signs, kBytes = Form::form.group_bytes;
  chunk.largest = chunk.zeros = 0;
  for (int group = 0; group < chunk.groups; group += Long::groups) {
    const int groups = chunk.groups - group < Long::groups ? chunk.groups - group : Long::groups;
    const int largest = largest_sum(x + kSigns * group, kSigns * groups);
    const bool is_long = chunk.is_long[group / Long::groups] = groups == Long::groups && largest <= Form::limit;
    chunk.largest += largest;
    if (is_long) {
      Form::template make_round<Long>(x + kSigns * group, chunk.tables + kBytes * group);
      chunk.zeros += Long::zeros;
    } else {
      for (int g = group; g < group + groups; g += Short::groups) {
        Form::template make_round<Short>(x + kSigns * g, chunk.tables + kBytes * g);
        chunk.zeros += Short::zeros;
      }
    }
  }
}

}  // namespace
}  // namespace tersify
