// Sparse ternary products with 8-bit activations: one table of 64 bytes gives 16 activations from a window of 64, and
// `Sums` adds four of them, with their signs, for each of four rows. Activations lose their 128 as they are read, so no
// zeros are left to take off.
#pragma once

#include <arm_neon.h>

#include "isa/kernel_table.hpp"

#define UNROLL _Pragma("GCC unroll 16")

namespace tersify {
namespace {

constexpr int kParts = kPickStepBytes / 16;  // vectors of a step: four rows each

inline uint8x16x4_t window_at(const uint8_t* x) {
  const uint8x16_t zero = vdupq_n_u8(kByteZero);
  uint8x16x4_t window = vld1q_u8_x4(x);
  UNROLL
  for (int i = 0; i < 4; ++i) window.val[i] = veorq_u8(window.val[i], zero);
  return window;
}

template <class Sums>
void pick_sums(const PickTask& t) {
  const uint8x16_t places = vdupq_n_u8(0x3f);
  Sums sums[kParts];
  const uint8_t* entries = t.entries;
  for (int w = 0; w < t.windows; ++w) {
    const uint8x16x4_t window = window_at(t.x + t.positions[w]);
    for (int s = 0; s < t.steps; ++s, entries += kPickStepBytes) UNROLL
    for (int part = 0; part < kParts; ++part) {
      const uint8x16_t entry = vld1q_u8(entries + 16 * part);
      const int8x16_t picked = vreinterpretq_s8_u8(vqtbl4q_u8(window, vandq_u8(entry, places)));
      sums[part].add(picked, vreinterpretq_s8_u8(entry));
    }
  }
  UNROLL
  for (int part = 0; part < kParts; ++part) vst1q_s32(t.sums + 4 * part, sums[part].all());
}

}  // namespace
}  // namespace tersify
