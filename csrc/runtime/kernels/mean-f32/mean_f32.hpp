// Means of whole channels.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kSumLanes = 16;  // of the widest vector

// What term(i, some) makes of numbers i … i + some − 1, zero in all other lanes, added up. Each of 16 lanes adds every
// sixteenth number, then halves are added: every vector width has the same order, and the same bits.
template <class Term>
inline float sum_in_order(int count, Term term) {
  Vec parts[kSumLanes / kLanes] = {};
  for (int begin = 0; begin < count; begin += kSumLanes) {
    int i = begin;
    for (Vec& part : parts) {
      if (i < count) part += term(i, count - i < kLanes ? count - i : kLanes);
      i += kLanes;
    }
  }
  float sums[kSumLanes];
  memcpy(sums, parts, sizeof sums);
  for (int half = kSumLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}

// [channels][positions]
void mean_planes(const float* in, int positions, int channels, float* out, const EpilogueView& f) {
  const float fraction = 1.0f / float(positions);
  for (int c = 0; c < channels; ++c, in += positions)
    out[c] = sum_in_order(positions, [in](int i, int some) { return load_some(in + i, some); }) * fraction;
  elementwise_rows(out, out, nullptr, false, channels, f);
}

// [positions][channels], in the same order.
void mean_pixels(const float* in, int positions, int channels, float* out, const EpilogueView& f) {
  const float fraction = 1.0f / float(positions);
  for (int c = 0; c < channels; c += kLanes) {
    const int some = channels - c < kLanes ? channels - c : kLanes;
    Vec sums[kSumLanes] = {};
    const float* from = in + c;
    int left = positions;
    for (; left >= kSumLanes; left -= kSumLanes) UNROLL
    for (int l = 0; l < kSumLanes; ++l, from += channels) sums[l] += load_some(from, some);
    UNROLL
    for (int l = 0; l < kSumLanes; ++l)
      if (l < left) sums[l] += load_some(from + size_t(l) * channels, some);
    UNROLL
    for (int l = 0; l < 8; ++l) sums[l] += sums[l + 8];
    UNROLL
    for (int l = 0; l < 4; ++l) sums[l] += sums[l + 4];
    store_some(out + c, ((sums[0] + sums[2]) + (sums[1] + sums[3])) * fraction, some);
  }
  elementwise_rows(out, out, nullptr, false, channels, f);
}

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
