// Sparse ternary products with 8-bit activations: one permutation of bytes picks 64 of them from a window of 64, one
// product of bytes adds four for each of 16 rows. The sign lies in the two bits of an entry that a permutation ignores.
#include <immintrin.h>

#include "kernels.hpp"

#define UNROLL _Pragma("GCC unroll 16")

namespace tersify {
namespace {

constexpr int kChains = 4;  // sums that do not wait for each other

// `W` windows of `S` steps each.
template <int S, int W>
inline void add_windows(__m512i* sums, const PickTask& t, const uint16_t* windows, const uint8_t* entries) {
  const __m512i signs = _mm512_set1_epi8(static_cast<char>(0xc0));
  UNROLL for (int w = 0; w < W; ++w) {
    const __m512i window = _mm512_load_si512(t.x + windows[w] * kPickWindow);
    UNROLL for (int s = 0; s < S; ++s, entries += kPickStepBytes) {
      __m512i entry = _mm512_load_si512(entries);
      asm("" : "+v"(entry));  // one load, not one an operand
      __m512i& sum = sums[(w * S + s) % kChains];
      sum = _mm512_dpbusd_epi32(sum, _mm512_permutexvar_epi8(entry, window), _mm512_and_si512(entry, signs));
    }
  }
}

template <int S>
inline void add_run(__m512i* sums, const PickTask& t, int count, const uint16_t* windows, const uint8_t* entries) {
  constexpr int kTogether = S >= kChains ? 1 : (kChains + S - 1) / S;
  int w = 0;
  for (; w + kTogether <= count; w += kTogether)
    add_windows<S, kTogether>(sums, t, windows + w, entries + size_t(w) * S * kPickStepBytes);
  for (; w < count; ++w) add_windows<S, 1>(sums, t, windows + w, entries + size_t(w) * S * kPickStepBytes);
}

void pick_sums(const PickTask& t) {
  __m512i sums[kChains] = {};
  const uint8_t* entries = t.entries;
  const uint16_t* windows = t.windows;
  for (int r = 0; r < t.run_count; ++r) {
    const int steps = t.runs[r].steps, count = t.runs[r].windows;
    switch (steps) {
      case 1: add_run<1>(sums, t, count, windows, entries); break;
      case 2: add_run<2>(sums, t, count, windows, entries); break;
      case 3: add_run<3>(sums, t, count, windows, entries); break;
      case 4: add_run<4>(sums, t, count, windows, entries); break;
      case 5: add_run<5>(sums, t, count, windows, entries); break;
      case 6: add_run<6>(sums, t, count, windows, entries); break;
      case 7: add_run<7>(sums, t, count, windows, entries); break;
      default: add_run<kPickMostSteps>(sums, t, count, windows, entries); break;
    }
    windows += count;
    entries += size_t(steps) * count * kPickStepBytes;
  }
  __m512i sum = _mm512_add_epi32(_mm512_add_epi32(sums[0], sums[1]), _mm512_add_epi32(sums[2], sums[3]));
  sum = _mm512_sub_epi32(_mm512_srai_epi32(sum, 6), _mm512_loadu_si512(t.zeros));  // a sign is ±64
  _mm512_storeu_si512(t.sums, sum);
}

}  // namespace

const PickSums vbmi_pick_sums = pick_sums;

}  // namespace tersify
