// Vectors of 8-bit activations: what comes before their products with codes, and what comes after.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// 127 steps up and down from zero; NaN and infinity make the scale NaN, and with it every sum.
float quantize_vector(const float* x, int count, int zero, uint8_t* steps, int32_t* total) {
  // Sizes are compared as whole numbers: NaN and infinity are the largest.
  constexpr int32_t kSize = 0x7fffffff, kInfinity = 0x7f800000;
  IntVec tops = {};
  const int whole = count / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    IntVec v;
    memcpy(&v, x + i, sizeof v);
    v &= kSize;
    tops = v > tops ? v : tops;
  }
  int32_t top_bits = 0;
  auto compare = [&](int32_t v) { top_bits = (v & kSize) > top_bits ? v & kSize : top_bits; };
  for (int l = 0; l < kLanes; ++l) compare(tops[l]);
  for (int i = whole; i < count; ++i) {
    int32_t v;
    memcpy(&v, x + i, sizeof v);
    compare(v);
  }
  float top;
  memcpy(&top, &top_bits, sizeof top);
  // Never so small that its inverse is infinite.
  const float scale = top / 127.0f > FLT_MIN ? top / 127.0f : FLT_MIN, inverse = 1.0f / scale;
  typedef uint8_t Steps __attribute__((vector_size(kLanes)));
  IntVec totals = {};
  for (int i = 0; i < whole; i += kLanes) {
    Vec v;
    memcpy(&v, x + i, sizeof v);
    const IntVec step = rounded(product(v, Vec{} + inverse));
    totals += step;
    const Steps bytes = __builtin_convertvector(step + zero, Steps);
    memcpy(steps + i, &bytes, sizeof bytes);
  }
  int32_t all = 0;
  for (int l = 0; l < kLanes; ++l) all += totals[l];
  for (int i = whole; i < count; ++i) {
    const int32_t step = static_cast<int8_t>(lrintf(product(x[i], inverse)));
    steps[i] = static_cast<uint8_t>(step + zero);
    all += step;
  }
  *total = all;
  return top_bits < kInfinity ? scale : NAN;
}

// `total`: what the activations would add if every weight were zero.
void write_vector(const int32_t* sums, int32_t total, float scale, int first, int count, float* out,
                  const EpilogueView& f) {
  int r = 0;
  for (; r + kLanes <= count; r += kLanes) {
    IntVec sum;
    memcpy(&sum, sums + r, sizeof sum);
    Vec v = __builtin_convertvector(sum - total, Vec) * scale;
    if (f.scale) {
      Vec scales, shifts;
      memcpy(&scales, f.scale + first + r, sizeof scales);
      memcpy(&shifts, f.shift + first + r, sizeof shifts);
      v = product(v, scales) + shifts;
    }
    v = activate(v, f);
    memcpy(out + r, &v, sizeof v);
  }
  for (; r < count; ++r) {
    float v = static_cast<float>(sums[r] - total) * scale;
    if (f.scale) v = product(v, f.scale[first + r]) + f.shift[first + r];
    out[r] = activate(v, f);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
