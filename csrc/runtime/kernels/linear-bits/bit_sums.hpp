// Sums of products of signs by counting bits. Signs differ where the product is negative, so a sum of n signs is
// n - 2 × the count of differing bits (XNOR-Net). With zeros on both sides, two planes and four operations give the
// products that are 1 and those that are -1 (as in FATNN, half the work of two-bit numbers).

#include <string.h>

#include "isa/kernel_table.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif
#ifndef UNROLL
#define UNROLL _Pragma("GCC unroll 16")
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

typedef uint64_t BitWords __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));
constexpr int kWordLanes = TERSIFY_VECTOR_BYTES / 8;
// Vectors of rows, and of activations, whose sums registers hold.
#if defined(__aarch64__)
constexpr int kRowsAtOnce = 8, kVectorsAtOnce = 1;
#else
constexpr int kRowsAtOnce = TERSIFY_VECTOR_BYTES >= 32 ? 8 : 4, kVectorsAtOnce = TERSIFY_VECTOR_BYTES == 64 ? 2 : 1;
#endif

inline BitWords load_words(const uint64_t* p) {
  BitWords v;
  memcpy(&v, p, sizeof v);
  return v;
}

// AVX2 and later count the bits of words, all others those of bytes, which are added up for a round of words before they
// could overflow.
#if defined(__AVX2__)
typedef BitWords BitCounts;
constexpr int kRoundWords = 1 << 30;
inline BitWords per_word(BitCounts counts) { return counts; }
#else
typedef int8_t BitCounts __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));
constexpr int kRoundWords = 127 / 8;
#endif

#if defined(__AVX512VPOPCNTDQ__)
inline BitWords bit_counts(BitWords v) { return (BitWords)_mm512_popcnt_epi64((__m512i)v); }
#elif defined(__AVX512BW__)
inline BitWords bit_counts(BitWords v) {
  const __m512i counts = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  const __m512i low = _mm512_set1_epi8(15), all = (__m512i)v;
  const __m512i bytes = _mm512_add_epi8(_mm512_shuffle_epi8(counts, _mm512_and_si512(all, low)),
                                        _mm512_shuffle_epi8(counts, _mm512_and_si512(_mm512_srli_epi16(all, 4), low)));
  return (BitWords)_mm512_sad_epu8(bytes, _mm512_setzero_si512());
}
#elif defined(__AVX2__)
inline BitWords bit_counts(BitWords v) {
  const __m256i counts =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  const __m256i low = _mm256_set1_epi8(15), all = (__m256i)v;
  const __m256i bytes = _mm256_add_epi8(_mm256_shuffle_epi8(counts, _mm256_and_si256(all, low)),
                                        _mm256_shuffle_epi8(counts, _mm256_and_si256(_mm256_srli_epi16(all, 4), low)));
  return (BitWords)_mm256_sad_epu8(bytes, _mm256_setzero_si256());
}
#elif defined(__ARM_NEON)
inline BitCounts bit_counts(BitWords v) { return (BitCounts)vcntq_u8((uint8x16_t)v); }

inline BitWords per_word(BitCounts counts) {
  return (BitWords)vpaddlq_s32(vpaddlq_s16(vpaddlq_s8((int8x16_t)counts)));
}
#else
#if defined(__wasm_simd128__)
inline BitCounts bit_counts(BitWords v) { return (BitCounts)wasm_i8x16_popcnt((v128_t)v); }
#else
inline BitCounts bit_counts(BitWords v) {
  v -= v >> 1 & 0x5555555555555555u;
  v = (v & 0x3333333333333333u) + (v >> 2 & 0x3333333333333333u);
  return (BitCounts)((v + (v >> 4)) & 0x0f0f0f0f0f0f0f0fu);
}
#endif

inline BitWords per_word(BitCounts counts) {
  typedef int16_t Shorts __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));
  typedef int32_t Longs __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));
  typedef int64_t Words __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));
  const Shorts two = ((Shorts)counts << 8 >> 8) + ((Shorts)counts >> 8);
  const Longs four = ((Longs)two << 16 >> 16) + ((Longs)two >> 16);
  return (BitWords)(((Words)four << 32 >> 32) + ((Words)four >> 32));
}
#endif

// Vectors vector .. vector + V meet the rows from `row` on. Zeros on one side only are known before: who calls adds how
// many numbers are not zero, and here only the negative products count.
template <int V, bool zeros_x, bool zeros_w>
void some_bit_sums(const BitsTask& t, int vector, int row) {
  constexpr int R = kRowsAtOnce;
  constexpr bool both = zeros_x && zeros_w;
  constexpr int kWordRows = zeros_w ? 2 * kBitRows : kBitRows;
  BitWords sums[V][R] = {};
  for (int first = 0, word = 0; word < t.words; first = word) {
    const int last = t.words - first < kRoundWords ? t.words : first + kRoundWords;
    BitCounts counts[V][R] = {};
    for (; word < last; ++word) {
      const uint64_t* weights = t.weights + size_t(word) * kWordRows + row;
      BitWords signs[V], used[V];
      for (int v = 0; v < V; ++v) {
        signs[v] = BitWords{} + t.signs[(vector + v) * t.vector_words + word];
        if (zeros_x) used[v] = BitWords{} + t.used[(vector + v) * t.vector_words + word];
      }
      UNROLL for (int r = 0; r < R; ++r) {
        const uint64_t* own = weights + r * kWordLanes;
        const BitWords weight_signs = load_words(own);
        BitWords weight_used = {};
        if (zeros_w) weight_used = load_words(own + kBitRows);
        UNROLL for (int v = 0; v < V; ++v) {
          const BitWords differ = signs[v] ^ weight_signs;
          if (both) {
            const BitWords meet = used[v] & weight_used;
            counts[v][r] += bit_counts(meet & ~differ) - bit_counts(meet & differ);
          } else {
            counts[v][r] += bit_counts(zeros_x ? differ & used[v] : zeros_w ? differ & weight_used : differ);
          }
        }
      }
    }
    for (int v = 0; v < V; ++v)
      for (int r = 0; r < R; ++r) sums[v][r] += per_word(counts[v][r]);
  }
  for (int v = 0; v < V; ++v)
    for (int r = 0; r < R; ++r)
      for (int lane = 0; lane < kWordLanes; ++lane) {
        const int at = row + r * kWordLanes + lane;
        const int32_t sum = static_cast<int32_t>(sums[v][r][lane]);
        t.sums[(vector + v) * kBitRows + at] = t.start[at] + (both ? sum : -2 * sum);
      }
}

template <bool zeros_x, bool zeros_w>
void all_bit_sums(const BitsTask& t) {
  for (int row = 0; row < kBitRows; row += kRowsAtOnce * kWordLanes) {
    int vector = 0;
    for (; vector + kVectorsAtOnce <= t.vectors; vector += kVectorsAtOnce)
      some_bit_sums<kVectorsAtOnce, zeros_x, zeros_w>(t, vector, row);
    for (; vector < t.vectors; ++vector) some_bit_sums<1, zeros_x, zeros_w>(t, vector, row);
  }
}

void bit_sums(const BitsTask& t) {
  if (t.used)
    t.zeros ? all_bit_sums<true, true>(t) : all_bit_sums<true, false>(t);
  else
    t.zeros ? all_bit_sums<false, true>(t) : all_bit_sums<false, false>(t);
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
