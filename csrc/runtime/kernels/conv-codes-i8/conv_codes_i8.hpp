// Images as pixels of bytes, and the outputs of their products.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// At most a whole vector; most are whole, and the compiler likes to know.
inline void copy_some(void* to, const void* from, int count) {
  if (count == kLanes)
    memcpy(to, from, kBytes);
  else
    memcpy(to, from, size_t(count) * 4);
}

inline int at_most_lanes(int count) { return count < kLanes ? count : kLanes; }

void quantize_pixels(const PixelTask& t) {
  const int words = t.pixel_bytes / 4;
  for (int x = 0; x < t.width; x += kLanes) {
    const int pixels = at_most_lanes(t.width - x);
    IntVec sums = {};
    for (int w = 0; w < words; w += kLanes) {
      const int some = at_most_lanes(words - w);
      IntVec word[kLanes];
      for (int k = 0; k < some; ++k) {
        word[k] = IntVec{};
        const int first = 4 * (w + k), left = t.channels - first;
        for (int i = 0; i < 4 && i < left; ++i) {
          Vec v = {};
          copy_some(&v, t.row + (first + i) * t.channel_stride + x, pixels);
          const IntVec step = rounded(clamp(v / t.quant.scale, t.quant.low, t.quant.high)) + t.zero;
          sums += step;
          word[k] |= (step & 255) << (8 * i);
        }
      }
      for (int k = some; k < kLanes; ++k) word[k] = IntVec{};
      transpose(word);
      int8_t* to = t.bytes + size_t(x) * t.pixel_bytes + 4 * w;
      for (int l = 0; l < pixels; ++l) copy_some(to + size_t(l) * t.pixel_bytes, &word[l], some);
    }
    copy_some(t.sums + x, &sums, pixels);
  }
}

void write_positions(const PositionsTask& t) {
  for (int row = 0; row < t.rows; row += kLanes)
    for (int position = 0; position < t.positions; position += kLanes) {
      const int rows = at_most_lanes(t.rows - row), positions = at_most_lanes(t.positions - position);
      IntVec sums[kLanes];
      for (int l = 0; l < positions; ++l) {
        memcpy(&sums[l], t.sums + (position + l) * kCodeRows + row, kBytes);
        sums[l] -= t.totals[position + l];
      }
      for (int l = positions; l < kLanes; ++l) sums[l] = IntVec{};
      transpose(sums);
      for (int r = 0; r < rows; ++r) {
        const int channel = t.first_row + row + r;
        const Folded f = fold(t.epilogue, channel);
        const size_t at = (row + r) * t.row_stride + position;
        Vec v = product(__builtin_convertvector(sums[r] + t.offsets[channel], Vec), Vec{} + f.a) + f.b;
        if (t.residual) {
          Vec other = {};
          copy_some(&other, t.residual + at, positions);
          v += product(other, Vec{} + f.c);
        }
        v = activate(v, t.epilogue);
        copy_some(t.out + at, &v, positions);
      }
    }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
