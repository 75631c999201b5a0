// Numbers become the nearest of a few levels, as training left a layer's input.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// A true division, because training divided: a product with the inverse would round some halves the other way.
void levels(float* out, const float* in, size_t count, const Quant& q) {
  for (size_t i = 0; i < count; i += kLanes) {
    const int some = int(count - i < size_t(kLanes) ? count - i : kLanes);
    const Vec v = load_some(in + i, some);
    const Vec level = q.scale == 0 ? (v >= 0.0f ? Vec{} + 1.0f : Vec{} - 1.0f)
                                   : __builtin_convertvector(rounded(clamp(v / q.scale, q.low, q.high)), Vec) * q.scale;
    store_some(out + i, level, some);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
