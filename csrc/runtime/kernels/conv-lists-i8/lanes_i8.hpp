// Lanes of bytes: how sums of 16 bits lie in them, and between them and flat tensors.
//
// A vector is added as 16-bit numbers, each two neighbouring bytes, and once more shifted down to its odd bytes. The
// second sum says what the odd bytes brought into the first, so both bytes' sums come out of three operations.
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

typedef uint16_t WordVec __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));  // unsigned: wrapping is defined
typedef uint8_t ByteVec __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));

inline WordVec load_words_i8(const char* p) { return *reinterpret_cast<const WordVec*>(p); }
inline void store_words_i8(char* p, WordVec v) { *reinterpret_cast<WordVec*>(p) = v; }

// Round to nearest, ties to even, numbers of less than 2^22.
inline IntVec rounded(Vec v) {
#if defined(__AVX512F__)
  return (IntVec)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
  return (IntVec)_mm256_cvtps_epi32((__m256)v);
#else
  return (IntVec)(v + 12582912.0f) - 0x4b400000;  // the sum with 1.5 × 2^23 has the integer in its lowest bits
#endif
}

inline float byte_zero(const Quant& q) { return q.low < 0 ? kByteZero : 0; }

// A position of a row waits as its two sums (of pairs of bytes, and of the odd bytes alone) and, where any row flushes,
// the wide sums of the first, second, third and fourth byte of every 32 bits.
constexpr int kSums = 2, kWides = 4;
inline size_t waiting_bytes_i8(const ConvTask& t) {
  return size_t(t.patch.h) * t.patch.w * kBytes * (t.flushes ? kSums + kWides : kSums);
}

// The lower 16 bits of every 32, with their sign.
inline IntVec low_halves(WordVec v) {
#if defined(__AVX512BW__)
  return (IntVec)_mm512_madd_epi16((__m512i)v, _mm512_set1_epi32(1));
#else
  return (IntVec)v << 16 >> 16;
#endif
}

// Four numbers in every 32 bits, the first lowest, rounded and kept between two bytes.
inline IntVec rounded_bytes(const Vec (&v)[kWides], float low, float high) {
#if defined(__AVX512BW__)
  // Saturating packs do the lower half of the clamp for all four at once. The upper one comes first: the conversion of
  // what lies beyond 2^31 is negative.
  const Vec highs = Vec{} + high;
  const auto below = [&](int k) { return (__m512i)rounded(v[k] > highs ? highs : v[k]); };
  const __m512i bytes =
      _mm512_packus_epi16(_mm512_packs_epi32(below(0), below(1)), _mm512_packs_epi32(below(2), below(3)));
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i lows = _mm512_set1_epi8(char(_mm_cvtss_si32(_mm_set_ss(low))));
  return (IntVec)_mm512_max_epu8(_mm512_shuffle_epi8(bytes, order), lows);
#else
  IntVec out{};
  UNROLL
  for (int k = 0; k < kWides; ++k) out |= rounded(clamp(v[k], low, high)) << 8 * k;
  return out;
#endif
}

struct ByteSums {
  IntVec of[kWides];
};

inline ByteSums byte_sums(const char* waiting) {
  const WordVec odds = load_words_i8(waiting + kBytes);
  const WordVec evens = load_words_i8(waiting) - (odds << 8);  // without what the odd bytes carried into it
  return {{low_halves(evens), low_halves(odds), (IntVec)evens >> 16, (IntVec)odds >> 16}};
}

void to_lanes_i8(const LaneView& v, const float* flat, char* lanes, int group, int c_begin, int c_end, const Quant& q) {
  const int zero = static_cast<int>(byte_zero(q));
  exchange(v, const_cast<float*>(flat), lanes, group, c_begin, c_end,
           [&](const InsideLanes& inside, const float* channel, char* vector) {
             float numbers[kWides][kLanes] = {};
             for (int i = 0; i < inside.count; ++i)
               numbers[inside.lane[i] % kWides][inside.lane[i] / kWides] = channel[inside.at[i]];
             IntVec out{};
             UNROLL
             for (int k = 0; k < kWides; ++k) {
               Vec number;
               memcpy(&number, numbers[k], sizeof number);
               out |= (rounded(clamp(number / q.scale, q.low, q.high)) + zero) << 8 * k;
             }
             store_words_i8(vector, (WordVec)out);
           });
}

void from_lanes_i8(const LaneView& v, const char* lanes, float* flat, int group, int c_begin, int c_end,
                   const Quant& q) {
  const float zero = byte_zero(q);
  exchange(v, flat, const_cast<char*>(lanes), group, c_begin, c_end,
           [&](const InsideLanes& inside, float* channel, const char* vector) {
             uint8_t bytes[kBytes];
             memcpy(bytes, vector, sizeof bytes);
             for (int i = 0; i < inside.count; ++i) channel[inside.at[i]] = (bytes[inside.lane[i]] - zero) * q.scale;
           });
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
