// Activations of two or three levels as planes of bits.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// −1, 0 or 1. Of the levels 0..2 the middle one is 0.
inline IntVec bit_level(Vec v, const Quant& levels) {
  if (levels.scale == 0) return v >= 0.0f ? IntVec{} + 1 : IntVec{} - 1;
  return rounded(clamp(v / levels.scale, levels.low, levels.high)) - (levels.high > 1 ? 1 : 0);
}

// A bit for every lane that is not zero; lanes are 0 or all ones.
inline uint32_t lane_bits(IntVec lanes) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)lanes);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)lanes));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= static_cast<uint32_t>(lanes[lane] & 1) << lane;
  return bits;
#endif
}

// The planes of one vector, zeros behind the last number; how many are not zero. `used` may be null.
int32_t bit_vector(const float* x, int count, const Quant& levels, uint64_t* signs, uint64_t* used) {
  int32_t nonzeros = 0;
  for (int first = 0, word = 0; first < count; first += 64, ++word) {
    uint64_t negative = 0, there = 0;
    for (int i = first; i < count && i < first + 64; i += kLanes) {
      const int some = count - i < kLanes ? count - i : kLanes;
      Vec v;  // most are whole, and the compiler likes to know
      if (some == kLanes)
        memcpy(&v, x + i, kBytes);
      else
        v = load_some(x + i, some);
      const IntVec level = bit_level(v, levels);
      const uint64_t inside = (uint64_t(1) << some) - 1;
      negative |= (lane_bits(level < 0) & inside) << (i - first);
      there |= (lane_bits(level != 0) & inside) << (i - first);
    }
    signs[word] = negative;
    if (used) used[word] = there;
    nonzeros += __builtin_popcountll(there);
  }
  return nonzeros;
}

void bit_pixels(const BitPixelsTask& t) {
  for (int x = 0; x < t.width; x += kLanes) {
    const int pixels = t.width - x < kLanes ? t.width - x : kLanes;
    for (int byte = 0; byte < t.pixel_bytes; ++byte) {
      IntVec negative = {}, there = {};
      for (int bit = 0; bit < 8 && 8 * byte + bit < t.channels; ++bit) {
        const IntVec level =
            bit_level(load_some(t.row + (8 * byte + bit) * t.channel_stride + x, pixels), t.levels);
        negative |= (level < 0) & (1 << bit);
        there |= (level != 0) & (1 << bit);
      }
      for (int lane = 0; lane < pixels; ++lane) {
        const size_t at = size_t(x + lane) * t.pixel_bytes + byte;
        t.signs[at] = static_cast<uint8_t>(negative[lane]);
        if (t.used) t.used[at] = static_cast<uint8_t>(there[lane]);
      }
    }
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
