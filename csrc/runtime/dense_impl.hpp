// Dense ternary products with 8-bit activations: two bits a weight, four rows a byte, exact 32-bit sums.
//
// Nothing is shifted: a masked byte is the code times 1, 4, 16 or 64, and so is its sum, until the end.

#include <string.h>

#include "kernels.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#ifndef UNROLL
#define UNROLL _Pragma("GCC unroll 16")
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kFields = 4, kFieldRows = kDenseRows / kFields;

#if defined(__AVX2__)

#if defined(__AVX512BW__)
constexpr int kDenseTile = 4;  // accumulators of that many vectors fit the registers
typedef __m512i Bytes;
inline Bytes load_codes(const uint8_t* p) { return _mm512_load_si512(p); }
inline Bytes broadcast(int32_t v) { return _mm512_set1_epi32(v); }
inline Bytes both(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
inline Bytes sum(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
inline Bytes less(Bytes a, Bytes b) { return _mm512_sub_epi32(a, b); }
template <int bits>
inline Bytes divided(Bytes v) { return _mm512_srai_epi32(v, bits); }
inline void store_sums(int32_t* p, Bytes v) { _mm512_storeu_si512(p, v); }
#if defined(__AVX512VNNI__)
constexpr bool kExactPairs = true;
inline Bytes dot(Bytes sums, Bytes codes, Bytes x) { return _mm512_dpbusd_epi32(sums, codes, x); }
#else
constexpr bool kExactPairs = false;
inline Bytes dot(Bytes sums, Bytes codes, Bytes x) {
  return sum(sums, _mm512_madd_epi16(_mm512_maddubs_epi16(codes, x), _mm512_set1_epi16(1)));
}
#endif
#else
constexpr int kDenseTile = 2;
typedef __m256i Bytes;
inline Bytes load_codes(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
inline Bytes broadcast(int32_t v) { return _mm256_set1_epi32(v); }
inline Bytes both(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
inline Bytes sum(Bytes a, Bytes b) { return _mm256_add_epi32(a, b); }
inline Bytes less(Bytes a, Bytes b) { return _mm256_sub_epi32(a, b); }
template <int bits>
inline Bytes divided(Bytes v) { return _mm256_srai_epi32(v, bits); }
inline void store_sums(int32_t* p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
constexpr bool kExactPairs = false;
inline Bytes dot(Bytes sums, Bytes codes, Bytes x) {
  return sum(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
}
#endif

// A byte's fields as numbers. Without VNNI a pair of products is added in 16 bits: one field fits (128 · 127 · 2 < 2^15), a
// whole byte does not. With it the whole byte stands for the last field: the others are taken off its sum at the end.
template <int F>
inline void unpack_fields(Bytes byte, Bytes* field) {
  constexpr int32_t kMasks[kFields] = {0x03030303, 0x0c0c0c0c, 0x30303030, int32_t(0xc0c0c0c0)};
  UNROLL for (int f = 0; f < F; ++f) field[f] = f == 3 && kExactPairs ? byte : both(byte, broadcast(kMasks[f]));
}

// One vector's sums, fields in registers → rows.
template <int F>
inline void store_fields(Bytes* field, int32_t* out) {
  if (F == 4 && kExactPairs) field[3] = less(field[3], sum(field[0], sum(field[1], field[2])));
  store_sums(out, field[0]);
  if (F > 1) store_sums(out + kFieldRows, divided<2>(field[1]));
  if (F > 2) store_sums(out + 2 * kFieldRows, divided<4>(field[2]));
  if (F > 3) store_sums(out + 3 * kFieldRows, divided<6>(field[3]));
}

// V vectors, F fields in use.
template <int V, int F>
inline void dense_step(Bytes (*sums)[kFields], const uint8_t* codes, const int8_t* const* x, int at) {
  Bytes byte = load_codes(codes);
  asm("" : "+v"(byte));  // one load, not one an operand
  Bytes field[kFields];
  unpack_fields<F>(byte, field);
  UNROLL for (int v = 0; v < V; ++v) {
    int32_t four;
    memcpy(&four, x[v] + at, sizeof four);
    const Bytes activations = broadcast(four);
    UNROLL for (int f = F - 1; f >= 0; --f) sums[v][f] = dot(sums[v][f], field[f], activations);
  }
}

template <int V, int F>
void dense_vectors(const DenseTask& t, int first) {
  constexpr int kPhases = V == 1 ? 2 : 1;  // one vector alone would wait for its own sums
  constexpr int kLaneCount = TERSIFY_VECTOR_BYTES / 4;
  for (int part = 0; part < kFieldRows; part += kLaneCount) {
    Bytes sums[kPhases * V][kFields];
    UNROLL for (auto& vector : sums)
      UNROLL for (auto& field : vector) field = broadcast(0);
    const uint8_t* codes = t.codes + 4 * part;
    for (int r = 0; r < t.run_count; ++r) {
      const int8_t* x[V];
      UNROLL for (int v = 0; v < V; ++v) x[v] = t.x + (first + v) * t.vector_bytes + t.runs[r];
      int step = 0;
      for (; step + kPhases <= t.run_steps; step += kPhases)
        UNROLL for (int phase = 0; phase < kPhases; ++phase, codes += kDenseRows)
          dense_step<V, F>(sums + phase * V, codes, x, 4 * (step + phase));
      for (; step < t.run_steps; ++step, codes += kDenseRows) dense_step<V, F>(sums, codes, x, 4 * step);
    }
    UNROLL for (int v = 0; v < V; ++v) {
      Bytes field[kFields];
      UNROLL for (int f = 0; f < F; ++f)
        field[f] = kPhases == 2 ? sum(sums[v][f], sums[(kPhases - 1) * V + v][f]) : sums[v][f];
      store_fields<F>(field, t.sums + (first + v) * kDenseRows + part);
    }
  }
}

template <int F>
void dense_fields(const DenseTask& t) {
  for (int first = 0; first < t.vectors; first += kDenseTile) {
    const int left = t.vectors - first;
    if (left >= 4 && kDenseTile == 4)
      dense_vectors<kDenseTile, F>(t, first);
    else if (left == 3 && kDenseTile == 4)
      dense_vectors<kDenseTile == 4 ? 3 : 1, F>(t, first);
    else if (left >= 2)
      dense_vectors<2, F>(t, first);
    else
      dense_vectors<1, F>(t, first);
  }
}

void dense_sums(const DenseTask& t) {
  switch ((t.rows + kFieldRows - 1) / kFieldRows) {
    case 1: return dense_fields<1>(t);
    case 2: return dense_fields<2>(t);
    case 3: return dense_fields<3>(t);
    default: return dense_fields<4>(t);
  }
}

#else

void dense_sums(const DenseTask& t) {
  memset(t.sums, 0, size_t(t.vectors) * kDenseRows * sizeof(int32_t));
  for (int v = 0; v < t.vectors; ++v) {
    const uint8_t* codes = t.codes;
    int32_t* sums = t.sums + v * kDenseRows;
    for (int r = 0; r < t.run_count; ++r) {
      const int8_t* x = t.x + v * t.vector_bytes + t.runs[r];
      for (int step = 0; step < t.run_steps; ++step, codes += kDenseRows)
        for (int f = 0; f * kFieldRows < t.rows; ++f)
          for (int lane = 0; lane < kFieldRows; ++lane)
            for (int i = 0; i < 4; ++i)
              sums[f * kFieldRows + lane] += (codes[4 * lane + i] >> (2 * f) & 3) * x[4 * step + i];
    }
  }
}

#endif

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
