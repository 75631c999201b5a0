// Sparse ternary products with 8-bit activations: one permutation of bytes picks 64 of them from a window of 64, one
// product of bytes adds four for each of 16 rows. The sign lies in the two bits of an entry that a permutation ignores.
#include <immintrin.h>

#include "isa/kernel_table.hpp"

#define UNROLL _Pragma("GCC unroll 16")

namespace tersify {
namespace {

template <int S>
void add_windows(const PickTask& t) {
  const __m512i signs = _mm512_set1_epi8(static_cast<char>(0xc0));
  __m512i sums[kPickUnroll] = {};  // none waits for another
  const uint8_t* entries = t.entries;
  for (int w = 0; w < t.windows; w += kPickUnroll) UNROLL
  for (int i = 0; i < kPickUnroll; ++i) {
    const __m512i window = _mm512_loadu_si512(t.x + t.positions[w + i]);
    UNROLL
    for (int s = 0; s < S; ++s, entries += kPickStepBytes) {
      __m512i entry = _mm512_load_si512(entries);
      asm("" : "+v"(entry));  // one load, not one an operand
      __m512i& sum = sums[(i * S + s) % kPickUnroll];
      sum = _mm512_dpbusd_epi32(sum, _mm512_permutexvar_epi8(entry, window), _mm512_and_si512(entry, signs));
    }
  }
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(sums[0], sums[1]), _mm512_add_epi32(sums[2], sums[3]));
  // A sign is ±64.
  _mm512_storeu_si512(t.sums, _mm512_sub_epi32(_mm512_srai_epi32(sum, 6), _mm512_loadu_si512(t.zeros)));
}

void pick_sums(const PickTask& t) {
  static_assert(kPickMostSteps == 2);
  t.steps == 1 ? add_windows<1>(t) : add_windows<2>(t);
}

}  // namespace

const PickSums vbmi_pick_sums = pick_sums;

}  // namespace tersify
