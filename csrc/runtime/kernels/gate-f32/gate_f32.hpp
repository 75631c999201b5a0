// Gated activations: one half of what a linear layer made opens or closes the other.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

void gate(float* out, const float* gates, const float* up, int count, const EpilogueView& f, bool square) {
  for (int i = 0; i < count; i += kLanes) {
    const int some = count - i < kLanes ? count - i : kLanes;
    Vec v = activate(load_some(gates + i, some), f);
    if (square) v *= v;
    if (up) v *= load_some(up + i, some);
    store_some(out + i, v, some);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
