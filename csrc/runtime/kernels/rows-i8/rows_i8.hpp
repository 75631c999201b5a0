// Rows of weights as bytes, from which they are packed.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// Signs; whether all weights are finite. By their bits: comparisons of floats would keep loops from being vectorised.
bool sign_bytes(const float* weights, int count, int8_t* bytes) {
  constexpr uint32_t kMagnitude = 0x7fffffff, kInfinite = 0x7f800000;
  uint32_t odd = 0;
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, weights + i, sizeof bits);
    const uint32_t magnitude = bits & kMagnitude;
    odd |= magnitude >= kInfinite;
    bytes[i] = static_cast<int8_t>(magnitude == 0 ? 0 : int32_t(bits) < 0 ? -1 : 1);
  }
  return !odd;
}

// Whole numbers; whether all weights are such, of −127..127.
bool whole_bytes(const float* weights, int count, int8_t* bytes) {
  constexpr float kMost = 127;
  uint32_t odd = 0;
  for (int i = 0; i < count; ++i) {
    const float weight = weights[i] >= -kMost ? weights[i] : -kMost, within = weight <= kMost ? weight : kMost;
    const int32_t whole = static_cast<int32_t>(within);
    odd |= !(static_cast<float>(whole) == weights[i]);
    bytes[i] = static_cast<int8_t>(whole);
  }
  return !odd;
}

// Zero, or 1 + the position among the levels; whether every weight has one of them.
bool level_bytes(const float* weights, int count, const float* levels, int level_count, uint8_t* bytes) {
  bool missing = false;
  auto coded = [&](const float* from, uint8_t* to, int lanes) {
    alignas(kBytes) float given[kLanes] = {};
    memcpy(given, from, lanes * sizeof(float));
    const Vec v = load(reinterpret_cast<const char*>(given));
    IntVec code = {};
    for (int k = 0; k < level_count; ++k) code = v == Vec{} + levels[k] ? IntVec{} + (k + 1) : code;
    for (int lane = 0; lane < lanes; ++lane) {
      to[lane] = static_cast<uint8_t>(code[lane]);
      missing |= code[lane] == 0 && given[lane] != 0;
    }
  };
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) coded(weights + i, bytes + i, kLanes);
  if (i < count) coded(weights + i, bytes + i, count - i);
  return !missing;
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
