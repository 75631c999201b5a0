// Whether numbers are neither NaN nor infinite.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

bool all_finite(const float* x, size_t count) {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones in NaN and infinity alone
  uint32_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    found |= (bits & kExponent) == kExponent;
  }
  return !found;
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
