// Images that lie pixel by pixel: their way from and to flat ones, and pools.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// [rows][columns] becomes [columns][rows], square by square.
void swap_axes(const float* in, int rows, int columns, float* out) {
  for (int r = 0; r < rows; r += kLanes) {
    const int some_rows = rows - r < kLanes ? rows - r : kLanes;
    for (int c = 0; c < columns; c += kLanes) {
      const int some_columns = columns - c < kLanes ? columns - c : kLanes;
      IntVec square[kLanes] = {};
      for (int i = 0; i < some_rows; ++i) square[i] = (IntVec)load_some(in + size_t(r + i) * columns + c, some_columns);
      transpose(square);
      for (int i = 0; i < some_columns; ++i) store_some(out + size_t(c + i) * rows + r, (Vec)square[i], some_rows);
    }
  }
}

void pool_pixels(const PixelPoolTask& t) {
  const float start = t.is_max ? -INFINITY : 0.0f;
  for (int p = t.first; p < t.last; ++p)
    for (int c = 0; c < t.channels; c += kLanes) {
      const int some = t.channels - c < kLanes ? t.channels - c : kLanes;
      Vec v = Vec{} + start;
      for (int tap = 0; tap < t.taps; ++tap) {
        const int32_t at = t.starts[tap * t.positions + p];
        if (at < 0) continue;
        const Vec next = load_some(t.input + at + c, some);
        v = t.is_max ? larger(next, v) : v + next;
      }
      if (!t.is_max) v = v * t.reciprocals[p];
      store_some(t.output + size_t(p) * t.channels + c, v, some);
    }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
