// The kernels, written once for vectors of TERSIFY_VECTOR_BYTES. Each instruction set includes this file
// into a namespace of its own. No inline function of a shared header may be called here: the linker could keep
// the copy compiled for the wrong CPU.

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.hpp"

#define UNROLL _Pragma("GCC unroll 16")

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kBytes = TERSIFY_VECTOR_BYTES;
constexpr int kLanes = kBytes / 4;
typedef float Vec __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));
typedef int32_t IntVec __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));

inline Vec load(const char* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(char* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

inline float curve(float x, Act act) {
  return act == Act::Gelu ? 0.5f * x * (1.0f + erff(x * 0.70710678f)) : x / (1.0f + expf(-x));
}

// Comparisons are written so that NaN stays NaN.
inline Vec clamp(Vec v, float low, float high) {
  const Vec lows = Vec{} + low, highs = Vec{} + high;
  v = v < lows ? lows : v;
  return v > highs ? highs : v;
}

inline Vec activate(Vec v, const EpilogueView& f) {
  if (f.act == Act::Clamp) return clamp(v, f.low, f.high);
  for (int l = 0; l < kLanes; ++l) v[l] = curve(v[l], f.act);
  return v;
}

inline float activate(float v, const EpilogueView& f) {
  if (f.act != Act::Clamp) return curve(v, f.act);
  v = v < f.low ? f.low : v;
  return v > f.high ? f.high : v;
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify

#include "finish_impl.hpp"
#include "conv_impl.hpp"
#include "flat_impl.hpp"
#include "half_impl.hpp"
#include "narrow_impl.hpp"
#include "gemv_impl.hpp"
#include "dense_impl.hpp"
#include "quantize_impl.hpp"

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

const Kernels kKernels{
    kBytes,
    TERSIFY_PATCH_LIMIT,
    lists_scratch_bytes<FloatLanes>,
    lists_conv<FloatLanes>,
    lists_scratch_bytes<HalfLanes>,
    lists_conv<HalfLanes>,
    narrow_conv_scratch_bytes,
    narrow_conv,
    pool,
    to_lanes,
    from_lanes,
    to_half_lanes,
    from_half_lanes,
    to_narrow_lanes,
    from_narrow_lanes,
    elementwise,
    elementwise_rows,
    global_mean,
    TERSIFY_GEMV(trit_tables),
    TERSIFY_GEMV(trit_gemv),
    TERSIFY_GEMV(nibble_gemv),
    dense_sums,
    quantize_vector,
    finish_dense,
    quantize_pixels,
    finish_places,
    all_finite,
    softmax,
    layer_norm,
};

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
