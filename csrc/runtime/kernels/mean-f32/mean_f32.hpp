// Means of whole channels.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

void global_mean(const LaneView& v, const char* lanes, float* flat, int group, const EpilogueView& f) {
  const int grid = v.rows * v.cols;
  const bool whole = v.rows * v.tile_h == v.h && v.cols * v.tile_w == v.w;
  const float fraction = 1.0f / (float(v.h) * v.w);
  for (int c = 0; c < v.c; ++c) {
    const char* channel = lanes + (size_t(group) * v.c + c) * v.channel_vectors * kBytes;
    Vec sum{};
    for (int y = 0; y < v.tile_h; ++y)
      for (int x = 0; x < v.tile_w; ++x) {
        Vec next = load(channel + (size_t(y) * v.tile_w + x) * kBytes);
        if (!whole)
          for (int l = 0; l < kLanes; ++l) {
            const LaneStart at = lane_start(v, l);
            if (at.y + y >= v.h || at.x + x >= v.w) next[l] = 0;
          }
        sum += next;
      }
    for (int i = 0; i < v.images && group * v.images + i < v.n; ++i) {
      float total = 0;
      for (int l = 0; l < grid; ++l) total += sum[i * grid + l];
      float mean = total * fraction;
      if (f.scale) mean = product(mean, f.scale[c]) + f.shift[c];
      flat[size_t(group * v.images + i) * v.c + c] = activate(mean, f);
    }
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
