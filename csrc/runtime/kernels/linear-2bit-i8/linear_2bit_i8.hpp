// Products of codes with 8-bit activations and exact 32-bit sums: ternary weights of two bits, four rows a byte, or
// weights of up to 16 levels, two rows a byte.

#include <string.h>

#include "isa/kernel_table.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif
#ifndef UNROLL
#define UNROLL _Pragma("GCC unroll 16")
#endif
#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
#define TERSIFY_BYTE_PRODUCTS  // the instruction set adds products of bytes
#elif defined(__SSE2__) || defined(__ARM_NEON) || defined(__wasm_simd128__) || defined(__riscv_vector)
#define TERSIFY_WORD_PRODUCTS  // it has vectors, and products of words
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kFields = 4, kFieldRows = 16;  // at most four rows a byte, sixteen a vector

#if defined(TERSIFY_BYTE_PRODUCTS)

#if defined(__ARM_FEATURE_DOTPROD)
constexpr int kCodeTile = 4;
typedef int32x4_t Bytes;
inline Bytes load_codes(const uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
inline Bytes broadcast(int32_t v) { return vdupq_n_s32(v); }
inline Bytes both(Bytes a, Bytes b) { return vandq_s32(a, b); }
inline Bytes sum(Bytes a, Bytes b) { return vaddq_s32(a, b); }
inline Bytes less(Bytes a, Bytes b) { return vsubq_s32(a, b); }
template <int bits>
inline Bytes divided(Bytes v) {
  return vshrq_n_s32(v, bits);
}
inline void store_sums(int32_t* p, Bytes v) { vst1q_s32(p, v); }
template <int bits>
inline Bytes shifted_bytes(Bytes v) {
  return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(v), bits));
}
inline Bytes high_nibbles(Bytes v) { return shifted_bytes<4>(v); }
inline Bytes load_levels(const uint8_t* p) { return load_codes(p); }
inline Bytes look_up(Bytes levels, Bytes codes) {
  return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(levels), vreinterpretq_u8_s32(codes)));
}
inline Bytes dot_signed(Bytes sums, Bytes a, Bytes x) {
  return vdotq_s32(sums, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(x));
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kExactPairs = true, kSignedCodes = false;
inline Bytes dot(Bytes sums, Bytes codes, Bytes x) {
  return vusdotq_s32(sums, vreinterpretq_u8_s32(codes), vreinterpretq_s8_s32(x));
}
#else
// Codes would be signed numbers: those of the highest bits are shifted down, and levels lose their 128, which the
// activations alone bring back.
constexpr bool kExactPairs = false, kSignedCodes = true;
inline Bytes dot(Bytes sums, Bytes codes, Bytes x) { return dot_signed(sums, codes, x); }
#endif
#elif defined(__AVX512BW__)
constexpr int kCodeTile = 4;  // accumulators of that many vectors fit the registers
typedef __m512i Bytes;
inline Bytes load_codes(const uint8_t* p) { return _mm512_load_si512(p); }
inline Bytes broadcast(int32_t v) { return _mm512_set1_epi32(v); }
inline Bytes both(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
inline Bytes sum(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
inline Bytes less(Bytes a, Bytes b) { return _mm512_sub_epi32(a, b); }
template <int bits>
inline Bytes divided(Bytes v) {
  return _mm512_srai_epi32(v, bits);
}
inline void store_sums(int32_t* p, Bytes v) { _mm512_storeu_si512(p, v); }
inline Bytes high_nibbles(Bytes v) { return _mm512_srli_epi16(v, 4); }
inline Bytes load_levels(const uint8_t* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Bytes look_up(Bytes levels, Bytes codes) { return _mm512_shuffle_epi8(levels, codes); }
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
constexpr int kCodeTile = 2;
typedef __m256i Bytes;
inline Bytes load_codes(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
inline Bytes broadcast(int32_t v) { return _mm256_set1_epi32(v); }
inline Bytes both(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
inline Bytes sum(Bytes a, Bytes b) { return _mm256_add_epi32(a, b); }
inline Bytes less(Bytes a, Bytes b) { return _mm256_sub_epi32(a, b); }
template <int bits>
inline Bytes divided(Bytes v) {
  return _mm256_srai_epi32(v, bits);
}
inline void store_sums(int32_t* p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline Bytes high_nibbles(Bytes v) { return _mm256_srli_epi16(v, 4); }
inline Bytes load_levels(const uint8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Bytes look_up(Bytes levels, Bytes codes) { return _mm256_shuffle_epi8(levels, codes); }
constexpr bool kExactPairs = false;
inline Bytes dot(Bytes sums, Bytes codes, Bytes x) {
  return sum(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
}
#endif

#if !defined(__ARM_FEATURE_DOTPROD)
constexpr bool kSignedCodes = false;
template <int bits>
inline Bytes shifted_bytes(Bytes v) {
  return v;  // only signed codes are shifted
}
#endif

// Trits + 1. Nothing is shifted: a masked byte is its code times 1, 4, 16 or 64, and so is its sum, until the end.
// Without VNNI a pair of products is added in 16 bits: one field fits (128 · 127 · 2 < 2^15), a whole byte does not.
// With it the whole byte stands for the last field: the others are taken off its sum at the end.
struct TritCodes {
  explicit TritCodes(const CodesTask&) {}
#if defined(__AVX2__)
  // Half as far as others and into the first cache: these are used up fastest.
  static void ask_ahead(const uint8_t* codes) {
    _mm_prefetch(reinterpret_cast<const char*>(codes) + kAheadBytes / 2, _MM_HINT_T0);
  }
#endif

  template <int F>
  void unpack(Bytes byte, Bytes* field) const {
    constexpr int32_t kMasks[kFields] = {0x03030303, 0x0c0c0c0c, 0x30303030, int32_t(0xc0c0c0c0)};
    UNROLL
    for (int f = 0; f < F; ++f) field[f] = f == 3 && kExactPairs ? byte : both(byte, broadcast(kMasks[f]));
    if (F == 4 && kSignedCodes) field[F - 1] = shifted_bytes<6>(byte);
  }
  static Bytes multiply(Bytes sums, Bytes field, Bytes x) { return dot(sums, field, x); }

  template <int F>
  static void store(Bytes* field, int32_t* out) {
    if (F == 4 && kExactPairs) field[3] = less(field[3], sum(field[0], sum(field[1], field[2])));
    store_sums(out, field[0]);
    if (F > 1) store_sums(out + kFieldRows, divided<2>(field[1]));
    if (F > 2) store_sums(out + 2 * kFieldRows, divided<4>(field[2]));
    if (F > 3) store_sums(out + 3 * kFieldRows, kSignedCodes ? field[3] : divided<6>(field[3]));
  }
};

// Levels + 128, looked up. Without VNNI only one of two neighbours at a time fits 16 bits.
struct NibbleCodes {
  explicit NibbleCodes(const CodesTask& t) : levels(load_levels(t.levels)) {}
#if defined(__AVX2__)
  static void ask_ahead(const uint8_t* codes) {
    _mm_prefetch(reinterpret_cast<const char*>(codes) + kAheadBytes, _MM_HINT_T1);
  }
#endif

  template <int F>
  void unpack(Bytes byte, Bytes* field) const {
    field[0] = look_up(levels, both(byte, broadcast(0x0f0f0f0f)));
    if (F > 1) field[1] = look_up(levels, both(high_nibbles(byte), broadcast(0x0f0f0f0f)));
  }
  static Bytes multiply(Bytes sums, Bytes field, Bytes x) {
    if (kExactPairs) return dot(sums, field, x);
#if defined(__ARM_FEATURE_DOTPROD)
    const Bytes level = veorq_s32(field, broadcast(int32_t(0x80808080u))), ones = broadcast(0x01010101);
    return sum(dot(sums, level, x), vshlq_n_s32(dot(broadcast(0), ones, x), 7));
#else
    const Bytes odd = broadcast(int32_t(0xff00ff00)), even = broadcast(0x00ff00ff);
    return dot(dot(sums, field, both(x, odd)), field, both(x, even));
#endif
  }

  template <int F>
  static void store(Bytes* field, int32_t* out) {
    store_sums(out, field[0]);
    if (F > 1) store_sums(out + kFieldRows, field[1]);
  }
  Bytes levels;
};

// V vectors, F fields in use.
template <int V, int F, class Codes>
inline void code_step(const Codes& kind, Bytes (*sums)[F], const uint8_t* codes, const int8_t* const* x, int at) {
  Bytes byte = load_codes(codes);
#if defined(__AVX2__)
  asm("" : "+v"(byte));  // one load, not one an operand
#endif
  Bytes field[F];
  kind.template unpack<F>(byte, field);
  UNROLL
  for (int v = 0; v < V; ++v) {
    int32_t four;
    memcpy(&four, x[v] + at, sizeof four);
    const Bytes activations = broadcast(four);
    UNROLL
    for (int f = F - 1; f >= 0; --f) sums[v][f] = Codes::multiply(sums[v][f], field[f], activations);
  }
}

template <int V, int F, class Codes>
void code_vectors(const CodesTask& t, int first) {
  constexpr int kPhases = V == 1 ? 2 : 1;  // one vector alone would wait for its own sums
  constexpr int kLaneCount = TERSIFY_VECTOR_BYTES / 4;
  const Codes kind(t);
  for (int part = 0; part < kFieldRows; part += kLaneCount) {
    Bytes sums[kPhases * V][F];
    UNROLL
    for (auto& vector : sums) UNROLL
    for (auto& field : vector) field = broadcast(0);
    const uint8_t* codes = t.codes + 4 * part;
    for (int r = 0; r < t.run_count; ++r) {
      const int8_t* x[V];
      UNROLL
      for (int v = 0; v < V; ++v) x[v] = t.x + (first + v) * t.vector_bytes + t.runs[r];
      int step = 0;
      for (; step + kPhases <= t.run_steps; step += kPhases) UNROLL
      for (int phase = 0; phase < kPhases; ++phase, codes += kStepBytes) {
#if defined(__AVX2__)
        if (V == 1) Codes::ask_ahead(codes);
#endif
        code_step<V, F>(kind, sums + phase * V, codes, x, 4 * (step + phase));
      }
      for (; step < t.run_steps; ++step, codes += kStepBytes) code_step<V, F>(kind, sums, codes, x, 4 * step);
    }
    UNROLL
    for (int v = 0; v < V; ++v) {
      Bytes field[F];
      UNROLL
      for (int f = 0; f < F; ++f)
        field[f] = kPhases == 2 ? sum(sums[v][f], sums[(kPhases - 1) * V + v][f]) : sums[v][f];
      Codes::template store<F>(field, t.sums + (first + v) * kCodeRows + part);
    }
  }
}

template <int F, class Codes>
void code_fields(const CodesTask& t) {
  for (int first = 0; first < t.vectors; first += kCodeTile) {
    const int left = t.vectors - first;
    if (left >= 4 && kCodeTile == 4)
      code_vectors<kCodeTile, F, Codes>(t, first);
    else if (left == 3 && kCodeTile == 4)
      code_vectors<kCodeTile == 4 ? 3 : 1, F, Codes>(t, first);
    else if (left >= 2)
      code_vectors<2, F, Codes>(t, first);
    else
      code_vectors<1, F, Codes>(t, first);
  }
}

void code_sums(const CodesTask& t) {
  const int fields = (t.rows + kFieldRows - 1) / kFieldRows;
  if (t.levels) return fields == 1 ? code_fields<1, NibbleCodes>(t) : code_fields<2, NibbleCodes>(t);
  switch (fields) {
    case 1:
      return code_fields<1, TritCodes>(t);
    case 2:
      return code_fields<2, TritCodes>(t);
    case 3:
      return code_fields<3, TritCodes>(t);
    default:
      return code_fields<4, TritCodes>(t);
  }
}

#elif !defined(TERSIFY_WORD_PRODUCTS)

void code_sums(const CodesTask& t) {
  const int bits = t.levels ? 4 : 2, rows = (t.rows + kFieldRows - 1) / kFieldRows * kFieldRows;
  for (int v = 0; v < t.vectors; ++v) {
    const uint8_t* codes = t.codes;
    int32_t* sums = t.sums + v * kCodeRows;
    memset(sums, 0, size_t(rows) * sizeof(int32_t));  // other rows may be somebody else's
    for (int r = 0; r < t.run_count; ++r) {
      const int8_t* x = t.x + v * t.vector_bytes + t.runs[r];
      for (int step = 0; step < t.run_steps; ++step, codes += kStepBytes)
        for (int f = 0; f * kFieldRows < t.rows; ++f)
          for (int lane = 0; lane < kFieldRows; ++lane)
            for (int i = 0; i < 4; ++i) {
              const int code = codes[4 * lane + i] >> (bits * f) & ((1 << bits) - 1);
              sums[f * kFieldRows + lane] += (t.levels ? t.levels[code] : code) * x[4 * step + i];
            }
    }
  }
}

#endif

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify

#if defined(TERSIFY_WORD_PRODUCTS)
#include "kernels/linear-2bit-i8/word_products.hpp"
#endif
