// Maxima and means of windows.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

void pool(const PoolTask& t) {
  const float start = t.is_max ? -INFINITY : 0.0f;
  for (int c = 0; c < t.channels; ++c) {
    gather_footprint(t.patch, t.input + c * t.input_channel_bytes, t.scratch, (IntVec)(Vec{} + start));
    for (int y = t.patch.skip_h; y < t.patch.h; ++y)
      for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
        const char* at = t.scratch + y * t.patch.pitch_bytes + size_t(x) * kBytes;
        Vec v = Vec{} + start;
        for (int k = 0; k < t.taps; ++k) {
          const Vec next = load(at + size_t(t.positions[k]) * kBytes);
          if (t.is_max)
            v = larger(next, v);
          else
            v += next;
        }
        const size_t position = y * t.output_row_bytes + size_t(x) * kBytes;
        if (!t.is_max) v *= load(t.reciprocal + position);
        store(t.output + c * t.output_channel_bytes + position, v);
      }
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
