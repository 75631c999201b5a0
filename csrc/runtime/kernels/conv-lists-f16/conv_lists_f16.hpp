// Lanes of 16-bit floats, twice as many as of float. Where the CPU cannot add them, their sums are rounded as it would.

#if defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

#if defined(__AVX512F__)

inline int fp16_position(int lane) { return lane; }

inline Vec fp16_part(IntVec v, int k) {
  const __m512i all = (__m512i)v;
  return (Vec)_mm512_cvtph_ps(k ? _mm512_extracti64x4_epi64(all, 1) : _mm512_castsi512_si256(all));
}

inline IntVec join_fp16(const Vec* parts) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const __m256i low = _mm512_cvtps_ph((__m512)parts[0], kNearest), high = _mm512_cvtps_ph((__m512)parts[1], kNearest);
  return (IntVec)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

#elif defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)

inline int fp16_position(int lane) { return lane; }

inline Vec fp16_part(IntVec v, int k) {
  const float16x8_t all = (float16x8_t)v;
  return (Vec)vcvt_f32_f16(k ? vget_high_f16(all) : vget_low_f16(all));
}

inline IntVec join_fp16(const Vec* parts) {
  return (IntVec)vcombine_f16(vcvt_f16_f32((float32x4_t)parts[0]), vcvt_f16_f32((float32x4_t)parts[1]));
}

#else

// Part 0 holds the even lanes, part 1 the odd ones: between 16 and 32 bits there are only shifts.
inline int fp16_position(int lane) { return lane % 2 * kLanes + lane / 2; }

inline Vec fp16_part(IntVec v, int k) {
  const IntVec bits = k ? v >> 16 : v;
  const Vec size = (Vec)((bits & 0x7fff) << 13) * 0x1p112f;  // the exponents count from −15 and −127
  const IntVec not_finite = ((bits & 0x7c00) == 0x7c00) & 0x7f800000;
  return (Vec)((IntVec)size | not_finite | (bits & 0x8000) << 16);
}

// To nearest, ties to even.
inline IntVec fp16_bits(Vec v) {
  const IntVec size = (IntVec)v & 0x7fffffff;
  const IntVec normal = ((size + 0xfff + ((size >> 13) & 1)) >> 13) - (112 << 10);
  const IntVec small = (IntVec)((Vec)size + 0.5f) - 0x3f000000;  // 0.5 counts in the steps of the smallest fp16 numbers
  const IntVec infinity = IntVec{} + 0x7c00, nan = IntVec{} + 0x7e00;
  IntVec bits = size < 0x38800000 ? small : normal;
  bits = size < 0x47800000 ? bits : infinity;
  bits = size > 0x7f800000 ? nan : bits;
  return bits | (((IntVec)v >> 16) & 0x8000);
}

inline IntVec join_fp16(const Vec* parts) { return fp16_bits(parts[0]) | fp16_bits(parts[1]) << 16; }

#endif

struct Fp16Lanes {
#if defined(__AVX512FP16__)
  typedef _Float16 Sum __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));
  static Sum plus_product(Sum sum, Sum weight, Sum x) { return sum + weight * x; }
  static Sum weight(float value) { return Sum{} + static_cast<_Float16>(value); }
#elif defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
  typedef float16x8_t Sum;
  static Sum plus_product(Sum sum, Sum weight, Sum x) { return vfmaq_f16(sum, weight, x); }
  static Sum weight(float value) { return vdupq_n_f16(static_cast<float16_t>(value)); }
#else
  typedef IntVec Sum;
  static Sum plus_product(Sum sum, Sum weight, Sum x) {
    Vec parts[kParts];
    UNROLL
    for (int k = 0; k < kParts; ++k) parts[k] = part(sum, k) + part(weight, k) * part(x, k);
    return join(parts);
  }
  static Sum weight(float value) {
    const Vec parts[kParts] = {Vec{} + value, Vec{} + value};
    return join(parts);
  }
#endif
  static constexpr int kParts = 2;
  static int position(int lane) { return fp16_position(lane); }
  static Sum sign(uint32_t entry) { return (Sum)(IntVec{} + int32_t((0x3c00u | (entry & 1) << 15) * 0x10001u)); }
  static Vec part(Sum v, int k) { return fp16_part((IntVec)v, k); }
  static Sum join(const Vec* parts) { return (Sum)join_fp16(parts); }
};

void to_lanes_f16(const LaneView& v, const float* flat, char* lanes, int group, int c_begin, int c_end) {
  exchange(v, const_cast<float*>(flat), lanes, group, c_begin, c_end,
           [](const InsideLanes& inside, const float* channel, char* vector) {
             float parts[Fp16Lanes::kParts * kLanes] = {};
             for (int i = 0; i < inside.count; ++i) parts[fp16_position(inside.lane[i])] = channel[inside.at[i]];
             Numbers<Fp16Lanes> numbers;
             memcpy(&numbers, parts, sizeof numbers);
             store_numbers<Fp16Lanes>(vector, numbers);
           });
}

void from_lanes_f16(const LaneView& v, const char* lanes, float* flat, int group, int c_begin, int c_end) {
  exchange(v, flat, const_cast<char*>(lanes), group, c_begin, c_end,
           [](const InsideLanes& inside, float* channel, const char* vector) {
             const Fp16Lanes::Sum all = load_lanes<Fp16Lanes>(vector);
             float parts[Fp16Lanes::kParts * kLanes];
             for (int k = 0; k < Fp16Lanes::kParts; ++k) {
               const Vec part = Fp16Lanes::part(all, k);
               memcpy(parts + k * kLanes, &part, sizeof part);
             }
             for (int i = 0; i < inside.count; ++i) channel[inside.at[i]] = parts[fp16_position(inside.lane[i])];
           });
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
