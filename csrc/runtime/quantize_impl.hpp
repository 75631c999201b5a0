// Vectors of 8-bit activations: what comes before dense products, and what comes after.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// 127 steps up and down from zero; NaN and infinity make the scale NaN, and with it every sum.
float quantize_vector(const float* x, int count, int8_t* steps, int32_t* total) {
  Vec tops = {}, poison = {};
  const int whole = count / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    Vec v;
    memcpy(&v, x + i, sizeof v);
    poison += v * 0.0f;
    v = v < 0.0f ? -v : v;
    tops = v > tops ? v : tops;
  }
  float top = 0, bad = 0;
  for (int l = 0; l < kLanes; ++l) {
    top = tops[l] > top ? tops[l] : top;
    bad += poison[l];
  }
  for (int i = whole; i < count; ++i) {
    const float v = x[i] < 0 ? -x[i] : x[i];
    top = v > top ? v : top;
    bad += x[i] * 0.0f;
  }
  const float scale = top > 0 ? top / 127.0f : 1.0f, inverse = 1.0f / scale;
  typedef int8_t Steps __attribute__((vector_size(kLanes)));
  IntVec totals = {};
  for (int i = 0; i < whole; i += kLanes) {
    Vec v;
    memcpy(&v, x + i, sizeof v);
    const IntVec step = rounded(v * inverse);
    totals += step;
    const Steps bytes = __builtin_convertvector(step, Steps);
    memcpy(steps + i, &bytes, sizeof bytes);
  }
  int32_t all = 0;
  for (int l = 0; l < kLanes; ++l) all += totals[l];
  for (int i = whole; i < count; ++i) {
    steps[i] = static_cast<int8_t>(lrintf(x[i] * inverse));
    all += steps[i];
  }
  *total = all;
  return scale + bad;
}

// Codes are trits + 1: the activations' own total comes off.
void finish_dense(const int32_t* sums, int32_t total, float scale, int first, int count, float* out, const Finish& f) {
  int r = 0;
  for (; r + kLanes <= count; r += kLanes) {
    IntVec sum;
    memcpy(&sum, sums + r, sizeof sum);
    Vec v = __builtin_convertvector(sum - total, Vec) * scale;
    if (f.scale) {
      Vec scales, shifts;
      memcpy(&scales, f.scale + first + r, sizeof scales);
      memcpy(&shifts, f.shift + first + r, sizeof shifts);
      v = v * scales + shifts;
    }
    v = activate(v, f);
    memcpy(out + r, &v, sizeof v);
  }
  for (; r < count; ++r) {
    float v = static_cast<float>(sums[r] - total) * scale;
    if (f.scale) v = v * f.scale[first + r] + f.shift[first + r];
    out[r] = activate(v, f);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
