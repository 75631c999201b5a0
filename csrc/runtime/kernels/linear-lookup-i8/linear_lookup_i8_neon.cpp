// Ternary products with 8-bit activations, looked up by pairs, for NEON without products of bytes: one lookup in a
// vector finds for 16 rows what two signs make of two activations. A sum takes two bytes, its lower four bits and the
// rest; they add up for a round before they overflow, then become words, and those 32-bit sums.
#include <arm_neon.h>
#include <string.h>

#include "isa/kernel_table.hpp"

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE inline __attribute__((always_inline))

namespace tersify {
namespace {

constexpr int kGroups = kPairRoundFeatures / 4, kParts = kPairRows / 16;  // of a round; vectors of rows
constexpr int kWordRounds = 16;                                          // whose sums fit words
static_assert(kPairRoundFeatures / 2 * (2 * 127 / 16 + 1) <= 128 && kPairRoundFeatures / 2 * 15 < 256);
static_assert(kWordRounds * kPairRoundFeatures * 127 < 1 << 15);

struct PairSigns {
  int16x8_t first, second;
};

// Sums 0..7 of nine, and behind them the same with other signs, the first of which is the last of the nine.
template <int at>
INLINE void add_table(int16x8_t x, const PairSigns& signs, uint8_t* tables) {
  const int16x8_t sums = vmlaq_laneq_s16(vmulq_laneq_s16(signs.first, x, at), signs.second, x, at + 1);
  const int16x8_t others = vnegq_s16(sums);
  const int8x16_t lower = vandq_s8(vmovn_high_s16(vmovn_s16(sums), others), vdupq_n_s8(15));
  vst1q_u8(tables + 16 * at, vreinterpretq_u8_s8(lower));
  const int8x16_t upper = vshrn_high_n_s16(vshrn_n_s16(sums, 4), others, 4);
  vst1q_u8(tables + 16 * at + 16, vreinterpretq_u8_s8(upper));
}

void pair_tables(const int8_t* x, int rounds, uint8_t* tables) {
  const int16_t first[] = {-1, -1, -1, 0, 0, 0, 1, 1}, second[] = {-1, 0, 1, -1, 0, 1, -1, 0};
  const PairSigns signs{vld1q_s16(first), vld1q_s16(second)};
  for (int i = 0; i < rounds * kPairRoundFeatures; i += 8) {
    const int16x8_t eight = vmovl_s8(vld1_s8(x + i));
    add_table<0>(eight, signs, tables + 16 * i);
    add_table<2>(eight, signs, tables + 16 * i);
    add_table<4>(eight, signs, tables + 16 * i);
    add_table<6>(eight, signs, tables + 16 * i);
  }
}

struct Bytes {  // of the sums of a round
  uint8x16_t lower[kParts];
  int8x16_t upper[kParts];
};

// Adds what the codes find in the tables of their two pairs.
template <bool begins>
INLINE void add_group(const uint8_t* codes, const uint8_t* tables, Bytes& sums) {
  const uint8x16_t lower0 = vld1q_u8(tables), lower1 = vld1q_u8(tables + 32), low = vdupq_n_u8(15);
  const int8x16_t upper0 = vreinterpretq_s8_u8(vld1q_u8(tables + 16)),
                  upper1 = vreinterpretq_s8_u8(vld1q_u8(tables + 48));
  UNROLL
  for (int part = 0; part < kParts; ++part) {
    const uint8x16_t both = vld1q_u8(codes + 16 * part), code0 = vandq_u8(both, low), code1 = vshrq_n_u8(both, 4);
    const uint8x16_t lower = vqtbl1q_u8(lower0, code0);
    const int8x16_t upper = vqtbl1q_s8(upper0, code0);
    sums.lower[part] = vaddq_u8(begins ? lower : vaddq_u8(sums.lower[part], lower), vqtbl1q_u8(lower1, code1));
    sums.upper[part] = vaddq_s8(begins ? upper : vaddq_s8(sums.upper[part], upper), vqtbl1q_s8(upper1, code1));
  }
}

INLINE void add_round(const uint8_t* codes, const uint8_t* tables, int16x8_t* words) {
  Bytes sums;
  add_group<true>(codes, tables, sums);
  UNROLL
  for (int group = 1; group < kGroups; ++group)
    add_group<false>(codes + group * kPairRows, tables + group * 64, sums);
  const int8x16_t sixteen = vdupq_n_s8(16);
  UNROLL
  for (int part = 0; part < kParts; ++part) {
    const int8x16_t lower = vreinterpretq_s8_u8(sums.lower[part]), upper = sums.upper[part];  // 8 × 15 is a signed byte
    int16x8_t &first = words[2 * part], &second = words[2 * part + 1];
    first = vmlal_s8(vaddw_s8(first, vget_low_s8(lower)), vget_low_s8(upper), vget_low_s8(sixteen));
    second = vmlal_high_s8(vaddw_high_s8(second, lower), upper, sixteen);
  }
}

void pair_sums(const PairsTask& t) {
  memset(t.sums, 0, kPairRows * sizeof *t.sums);
  const uint8_t *codes = t.codes, *tables = t.tables;
  for (int first = 0; first < t.rounds; first += kWordRounds) {
    const int rounds = t.rounds - first < kWordRounds ? t.rounds - first : kWordRounds;
    int16x8_t words[2 * kParts] = {};
    for (int round = 0; round < rounds; ++round, codes += kGroups * kPairRows, tables += kPairRoundTableBytes)
      add_round(codes, tables, words);
    UNROLL
    for (int i = 0; i < 2 * kParts; ++i) {
      int32_t* sums = t.sums + 8 * i;
      vst1q_s32(sums, vaddw_s16(vld1q_s32(sums), vget_low_s16(words[i])));
      vst1q_s32(sums + 4, vaddw_high_s16(vld1q_s32(sums + 4), words[i]));
    }
  }
}

}  // namespace

const PairKernels neon_pair_kernels{pair_tables, pair_sums};

}  // namespace tersify
