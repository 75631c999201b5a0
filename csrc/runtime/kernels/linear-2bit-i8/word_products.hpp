// Products of codes with 8-bit activations where the instruction set adds products of words, not of bytes: vectors of
// 128 bits, in which the even bytes and the odd ones become words of their own.

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

typedef int16_t Words __attribute__((vector_size(16)));
typedef uint16_t PlainWords __attribute__((vector_size(16)));  // shifted down with zeros
typedef int32_t Wholes __attribute__((vector_size(16)));

#if defined(__aarch64__)
constexpr int kWordTile = 4;  // vectors whose sums fit the registers
#else
constexpr int kWordTile = 2;
#endif

struct BothWords {
  Words even, odd;
};

inline Words load_words(const uint8_t* p) {
  Words v;
  memcpy(&v, p, sizeof v);
  return v;
}

// Bytes with a sign.
inline BothWords signed_bytes(Words v) { return {(Words)((PlainWords)v << 8) >> 8, v >> 8}; }

// Neighbours of products belong to one row. A product is at most 128 · 127, so two of them fit a word.
inline Wholes plus_products(Wholes sums, const BothWords& a, const BothWords& x) {
#if defined(__SSE2__)
  return sums + (Wholes)_mm_madd_epi16((__m128i)a.even, (__m128i)x.even) +
         (Wholes)_mm_madd_epi16((__m128i)a.odd, (__m128i)x.odd);
#elif defined(__wasm_simd128__)
  return sums + (Wholes)wasm_i32x4_dot_i16x8((v128_t)a.even, (v128_t)x.even) +
         (Wholes)wasm_i32x4_dot_i16x8((v128_t)a.odd, (v128_t)x.odd);
#elif defined(__ARM_NEON)
  return (Wholes)vpadalq_s16((int32x4_t)sums, (int16x8_t)(a.even * x.even + a.odd * x.odd));
#else
  const Words both = a.even * x.even + a.odd * x.odd;
  return sums + ((Wholes)both << 16 >> 16) + ((Wholes)both >> 16);
#endif
}

// Levels by their codes of 0 … 15.
inline Words look_up(const uint8_t* levels, Words codes) {
#if defined(__aarch64__)
  return (Words)vqtbl1q_u8(vld1q_u8(levels), (uint8x16_t)codes);
#elif defined(__wasm_simd128__)
  return (Words)wasm_i8x16_swizzle(wasm_v128_load(levels), (v128_t)codes);
#else
  uint8_t bytes[16];
  memcpy(bytes, &codes, sizeof bytes);
  for (uint8_t& byte : bytes) byte = levels[byte];
  return load_words(bytes);
#endif
}

constexpr int16_t kLowNibbles = 0x0f0f;
inline Words low_nibbles(Words v) { return v & kLowNibbles; }
inline Words upper_nibbles(Words v) { return (Words)((PlainWords)v >> 4) & kLowNibbles; }
inline Words without_128(Words v) { return v ^ int16_t(0x8080); }

// Trits + 1.
struct TritWords {
  static constexpr int kStep = kStepBytes, kTooMuch = 0;
  explicit TritWords(const CodesTask&) {}
  template <int F>
  void unpack(const uint8_t* codes, BothWords* field) const {
    const Words v = load_words(codes);
    UNROLL
    for (int f = 0; f < F; ++f)
      field[f] = {(Words)((PlainWords)v >> 2 * f) & 3, (Words)((PlainWords)v >> (8 + 2 * f)) & 3};
  }
};

// Levels + 128, looked up; the 128 that they lose here come back at the end.
struct NibbleWords {
  static constexpr int kStep = kStepBytes, kTooMuch = 128;
  explicit NibbleWords(const CodesTask& t) : levels(t.levels) {}
  template <int F>
  void unpack(const uint8_t* codes, BothWords* field) const {
    const Words v = load_words(codes);
    field[0] = signed_bytes(without_128(look_up(levels, low_nibbles(v))));
    if (F > 1) field[F - 1] = signed_bytes(without_128(look_up(levels, upper_nibbles(v))));
  }
  const uint8_t* levels;
};

// The same, unpacked: sixteen rows behind the other.
struct ByteWords {
  static constexpr int kStep = kFields * kStepBytes, kTooMuch = 128;
  explicit ByteWords(const CodesTask&) {}
  template <int F>
  void unpack(const uint8_t* codes, BothWords* field) const {
    UNROLL
    for (int f = 0; f < F; ++f) field[f] = signed_bytes(without_128(load_words(codes + f * kStepBytes)));
  }
};

// V vectors, F fields in use, four rows of each at a time.
template <int V, int F, class Codes>
void word_vectors(const CodesTask& t, int first) {
  const Codes kind(t);
  int32_t totals[V] = {};
  for (int v = 0; v < V && Codes::kTooMuch; ++v)
    for (int r = 0; r < t.run_count; ++r)
      for (int i = 0; i < 4 * t.run_steps; ++i) totals[v] += t.x[(first + v) * t.vector_bytes + t.runs[r] + i];
  for (int part = 0; part < kFieldRows; part += 4) {
    Wholes sums[V][F] = {};
    const uint8_t* codes = t.codes + 4 * part;
    for (int r = 0; r < t.run_count; ++r) {
      const int8_t* x = t.x + first * t.vector_bytes + t.runs[r];
      for (int step = 0; step < t.run_steps; ++step, codes += Codes::kStep) {
        BothWords field[F];
        kind.template unpack<F>(codes, field);
        UNROLL
        for (int v = 0; v < V; ++v) {
          int32_t four;
          memcpy(&four, x + v * t.vector_bytes + 4 * step, sizeof four);
          const BothWords activations = signed_bytes((Words)(Wholes{} + four));
          UNROLL
          for (int f = 0; f < F; ++f) sums[v][f] = plus_products(sums[v][f], field[f], activations);
        }
      }
    }
    UNROLL
    for (int v = 0; v < V; ++v) UNROLL
    for (int f = 0; f < F; ++f) {
      const Wholes sum = sums[v][f] + Codes::kTooMuch * totals[v];
      memcpy(t.sums + (first + v) * kCodeRows + f * kFieldRows + part, &sum, sizeof sum);
    }
  }
}

template <int F, class Codes>
void word_fields(const CodesTask& t) {
  int first = 0;
  for (; t.vectors - first >= kWordTile; first += kWordTile) word_vectors<kWordTile, F, Codes>(t, first);
  for (; t.vectors > first; ++first) word_vectors<1, F, Codes>(t, first);
}

template <class Codes>
void word_sums(const CodesTask& t) {
  switch ((t.rows + kFieldRows - 1) / kFieldRows) {
    case 1:
      return word_fields<1, Codes>(t);
    case 2:
      return word_fields<2, Codes>(t);
    case 3:
      return word_fields<3, Codes>(t);
    default:
      return word_fields<4, Codes>(t);
  }
}

void code_sums(const CodesTask& t) {
  if (!t.levels) return word_sums<TritWords>(t);
  t.rows <= kFieldRows ? word_fields<1, NibbleWords>(t) : word_fields<2, NibbleWords>(t);
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
