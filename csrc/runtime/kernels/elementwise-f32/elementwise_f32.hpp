// What happens number by number.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

void elementwise(float* out, const float* a, const float* b, bool multiply, size_t count, const EpilogueView& f,
                 int channel) {
  const float scale = f.scale ? f.scale[channel] : 1.0f, shift = f.shift ? f.shift[channel] : 0.0f;
  const float scale2 = f.scale2 ? f.scale2[channel] : 1.0f, shift2 = f.scale2 ? f.shift2[channel] : 0.0f;
  for (size_t i = 0; i < count; ++i) {
    float v = a[i] * scale + shift;
    if (b) v = multiply ? v * b[i] : v + b[i];
    out[i] = v * scale2 + shift2;
  }
  if (f.activation == Activation::Clamp) {
    for (size_t i = 0; i < count; ++i) {
      const float v = out[i] < f.low ? f.low : out[i];
      out[i] = v > f.high ? f.high : v;
    }
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = curve(out[i], f.activation);
  }
}

void elementwise_rows(float* out, const float* a, const float* b, bool multiply, int channels, const EpilogueView& f) {
  for (int c = 0; c < channels; ++c) {
    float v = a[c];
    if (f.scale) v = v * f.scale[c] + f.shift[c];
    if (b) v = multiply ? v * b[c] : v + b[c];
    if (f.scale2) v = v * f.scale2[c] + f.shift2[c];
    out[c] = activate(v, f);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
