// What happens number by number.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

void elementwise(float* out, const float* a, const float* b, bool multiply, size_t count, const EpilogueView& f,
                 int channel) {
  const EpilogueView own = of_channel(f, channel);
  const float scale = f.scale ? f.scale[channel] : 1.0f, shift = f.shift ? f.shift[channel] : 0.0f;
  const float scale2 = f.scale2 ? f.scale2[channel] : 1.0f, shift2 = f.scale2 ? f.shift2[channel] : 0.0f;
  for (size_t i = 0; i < count; i += kLanes) {
    const int some = int(count - i < size_t(kLanes) ? count - i : kLanes);
    Vec v = product(load_some(a + i, some), Vec{} + scale) + shift;
    if (b) {
      const Vec other = load_some(b + i, some);
      v = multiply ? product(v, other) : v + other;
    }
    store_some(out + i, activate(product(v, Vec{} + scale2) + shift2, own), some);
  }
}

void elementwise_rows(float* out, const float* a, const float* b, bool multiply, int channels, const EpilogueView& f) {
  for (int c = 0; c < channels; c += kLanes) {
    const int some = channels - c < kLanes ? channels - c : kLanes;
    Vec v = load_some(a + c, some);
    if (f.scale) v = product(v, load_some(f.scale + c, some)) + load_some(f.shift + c, some);
    if (b) {
      const Vec other = load_some(b + c, some);
      v = multiply ? product(v, other) : v + other;
    }
    if (f.scale2) v = product(v, load_some(f.scale2 + c, some)) + load_some(f.shift2 + c, some);
    store_some(out + c, activate(v, f, c, some), some);
  }
}

void curve(float* out, const float* in, size_t count, Curve which) {
  for (size_t i = 0; i < count; i += kLanes) {
    const int some = int(count - i < size_t(kLanes) ? count - i : kLanes);
    store_some(out + i, curve_of(load_some(in + i, some), which), some);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
