// Curves of whole vectors. Polynomials are least-squares fits in Chebyshev points; every curve is within a few units of
// the last place, and NaN stays NaN.

#if TERSIFY_VECTOR_BYTES == 64
#include <immintrin.h>
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// A product that is rounded before anything is added to it. Epilogues and roundings to steps then make the same bits on
// every machine, whether or not it has instructions that add products exactly.
template <class T>
inline T product(T a, T b) {
  T p = a * b;
#if defined(__AVX512F__)
  asm("" : "+v"(p));  // any of the 32 registers
#elif defined(__x86_64__)
  asm("" : "+x"(p));
#elif defined(__aarch64__)
  asm("" : "+w"(p));
#elif defined(__riscv_vector)
  if constexpr (sizeof(T) > sizeof(double))
    asm("" : "+m"(p));  // compilers leave no vector of fixed length in a register there
  else
    asm("" : "+f"(p));
#endif
  return p;
}

// Comparisons are written so that NaN stays NaN.
inline Vec clamp(Vec v, float low, float high) {
  const Vec lows = Vec{} + low, highs = Vec{} + high;
  v = v < lows ? lows : v;
  return v > highs ? highs : v;
}

inline Vec magnitude(Vec v) { return (Vec)((IntVec)v & 0x7fffffff); }
inline Vec with_sign_of(Vec v, Vec sign) { return (Vec)((IntVec)v | ((IntVec)sign & int32_t(0x80000000))); }

// A module is fetched before it runs: there curves stand once and are called, elsewhere wherever they are needed.
#if defined(__wasm__)
#define TERSIFY_CURVE __attribute__((noinline)) Vec
#else
#define TERSIFY_CURVE inline Vec
#endif

TERSIFY_CURVE exp_of(Vec x) {
  constexpr float kMagic = 12582912.0f;  // adding it leaves whole numbers in the lowest bits
  const auto too_large = x > Vec{} + 88.7f;
  x = clamp(x, -87.3f, 88.3f);
  const Vec shifted = x * 1.44269504f + kMagic, whole = shifted - kMagic;
  const Vec r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vec p = Vec{} + 0.00139336464f;
  p = p * r + 0.00836317667f;
  p = p * r + 0.0416664649f;
  p = p * r + 0.16666577f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const IntVec power = ((IntVec)shifted - 0x4b400000 + 127) << 23;
  return too_large ? Vec{} + INFINITY : p * (Vec)power;
}

// 1 − erf, with small relative errors far out, too.
inline Vec erfc_of(Vec x) {
  const Vec z = magnitude(x), t = 1.0f / (1.0f + 0.5f * z);
  Vec p = Vec{} + 0.147183806f;
  p = p * t - 0.693520568f;
  p = p * t + 1.18770496f;
  p = p * t - 0.739104533f;
  p = p * t - 0.0433354207f;
  p = p * t - 0.0192470567f;
  p = p * t + 0.0419131766f;
  p = p * t + 0.385034525f;
  p = p * t + 0.998829332f;
  p = p * t - 1.26545817f;
  const Vec far = t * exp_of(p - z * z);
  return x < Vec{} ? 2.0f - far : far;
}

inline Vec sigmoid_of(Vec x) { return 1.0f / (1.0f + exp_of(-x)); }

inline Vec tanh_of(Vec x) {
  const Vec size = magnitude(x), square = x * x;
  Vec p = Vec{} + 0.00221836217f;
  p = p * square - 0.00827612512f;
  p = p * square + 0.0217475501f;
  p = p * square - 0.0539565565f;
  p = p * square + 0.133332918f;
  p = p * square - 0.333333331f;
  const Vec near = x + x * square * p, far = with_sign_of(1.0f - 2.0f / (exp_of(2.0f * size) + 1.0f), x);
  return size < Vec{} + 0.65f ? near : far;
}

// Of zero −∞, of negative numbers NaN, and of numbers too small for an exponent their own.
TERSIFY_CURVE log_of(Vec x) {
  const auto tiny = x < Vec{} + 1.17549435e-38f;
  const IntVec bits = (IntVec)(tiny ? x * 8388608.0f : x);
  // The power of two that leaves a mantissa between √½ and √2.
  const IntVec shifted = bits - 0x3f3504f3, power = shifted >> 23;
  const Vec m = (Vec)(bits - (power << 23)) - 1.0f, square = m * m;
  const Vec whole = __builtin_convertvector(power, Vec) - (tiny ? Vec{} + 23.0f : Vec{});
  Vec p = Vec{} + 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const Vec made = m + (p * m * square - whole * 2.12194440e-4f - 0.5f * square) + whole * 0.693359375f;
  const Vec odd = x == Vec{} ? Vec{} - INFINITY : x + INFINITY;  // ∞ and NaN stay
  const Vec found = ((x > Vec{}) & (x < Vec{} + INFINITY)) ? made : odd;
  return x < Vec{} ? Vec{} + NAN : found;
}

// Of numbers around 1 log x loses what 1 + x has rounded away; it comes back as the ratio of x to what was added.
inline Vec log_sigmoid_of(Vec x) {
  const Vec power = exp_of(Vec{} - magnitude(x)), sum = 1.0f + power, added = sum - 1.0f;
  const Vec log1p = added == Vec{} ? power : log_of(sum) * (power / added);
  return (x < Vec{} ? x : Vec{}) - log1p;
}

inline Vec curve_of(Vec x, Curve curve) {
  Vec made;
  switch (curve) {
    case Curve::Exp:  // halves reach as far as floats do
      made = exp_of(0.5f * x);
      return made * made;
    case Curve::Log:
      return log_of(x);
    case Curve::LogSigmoid:
      return log_sigmoid_of(x);
    default:
      for (int l = 0; l < kLanes; ++l) made[l] = __builtin_sqrtf(x[l]);
      return made;
  }
}

TERSIFY_CURVE curved(Vec v, const EpilogueView& f) {
  switch (f.activation) {
    case Activation::Gelu:
      return 0.5f * v * erfc_of(v * -0.70710678f);
    case Activation::GeluTanh:
      return v * sigmoid_of(1.59576912f * (v + 0.044715f * v * v * v));
    case Activation::Silu:
      return v * sigmoid_of(v);
    case Activation::Sigmoid:
      return sigmoid_of(v);
    case Activation::Tanh:
      return tanh_of(v);
    case Activation::HardSwish:
      return v * clamp(v + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f);
    default:
      return v < Vec{} ? v * f.low : v;
  }
}

inline Vec activate(Vec v, const EpilogueView& f) {
  return f.activation == Activation::Clamp ? clamp(v, f.low, f.high) : curved(v, f);
}

inline float activate(float v, const EpilogueView& f) {
  if (f.activation != Activation::Clamp) return activate(Vec{} + v, f)[0];
  v = v < f.low ? f.low : v;
  return v > f.high ? f.high : v;
}

#if TERSIFY_VECTOR_BYTES == 64
inline __mmask16 lanes_below(int count) { return __mmask16(count >= kLanes ? 0xffff : (1 << count) - 1); }
#endif

// Up to a whole vector from anywhere; what is missing is 0.
inline Vec load_some(const float* p, int count) {
#if TERSIFY_VECTOR_BYTES == 64
  return (Vec)_mm512_maskz_loadu_ps(lanes_below(count), p);
#else
  Vec v = {};
  if (count >= kLanes)
    memcpy(&v, p, sizeof v);
  else
    memcpy(&v, p, size_t(count) * sizeof(float));
  return v;
#endif
}

inline void store_some(float* p, Vec v, int count) {
#if TERSIFY_VECTOR_BYTES == 64
  _mm512_mask_storeu_ps(p, lanes_below(count), (__m512)v);
#else
  if (count >= kLanes)
    memcpy(p, &v, sizeof v);
  else
    memcpy(p, &v, size_t(count) * sizeof(float));
#endif
}

// The same where the lanes are channels, from `channel` on.
inline Vec activate(Vec v, const EpilogueView& f, int channel, int some) {
  if (!f.slopes) return activate(v, f);
  return v < Vec{} ? product(v, load_some(f.slopes + channel, some)) : v;
}

// What the lanes of one channel meet.
inline EpilogueView of_channel(EpilogueView f, int channel) {
  if (f.slopes) f.low = f.slopes[channel];
  return f;
}

inline float sum_of(Vec v) {
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += v[l];
  return sum;
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
