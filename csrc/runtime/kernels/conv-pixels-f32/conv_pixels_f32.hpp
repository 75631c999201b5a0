// Convolution with every weight, rows in lanes: some positions share each vector of weights that is read.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// As many positions as leave their sums in registers; with one vector of rows each, as leave their addresses there.
template <int vectors>
constexpr int kPixelTile = vectors == 1 ? 8 : kBytes == 32 ? 6 : 14;

template <int vectors>
inline void write_pixel(const PixelConvTask& t, int position, const Vec* sums) {
  const EpilogueView& f = t.epilogue;
  for (int i = 0; i < vectors; ++i) {
    const int row = t.first_row + i * kLanes, left = t.rows - i * kLanes, some = left < kLanes ? left : kLanes;
    const size_t at = size_t(position) * t.channels + row;
    Vec v = sums[i];
    if (f.scale) v = product(v, load_some(f.scale + row, some)) + load_some(f.shift + row, some);
    if (t.residual) v += load_some(t.residual + at, some);
    if (f.scale2) v = product(v, load_some(f.scale2 + row, some)) + load_some(f.shift2 + row, some);
    store_some(t.output + at, activate(v, f, row, some), some);
  }
}

template <int vectors, int count>
void pixel_tile(const PixelConvTask& t, int first) {
  Vec sums[count][vectors] = {};
  const float* weights = t.weights;
  const int32_t* starts = t.starts + first;
  for (int run = 0; run < t.runs; ++run, starts += t.positions) {
    const float* x[count];
    UNROLL
    for (int p = 0; p < count; ++p) x[p] = starts[p] < 0 ? t.zeros : t.input + starts[p];
    for (int i = 0; i < t.length; ++i, weights += vectors * kLanes) {
      Vec weight[vectors];
      UNROLL
      for (int v = 0; v < vectors; ++v) memcpy(&weight[v], weights + v * kLanes, kBytes);
      UNROLL
      for (int p = 0; p < count; ++p) UNROLL
      for (int v = 0; v < vectors; ++v) sums[p][v] += weight[v] * x[p][i];
    }
  }
  Vec made[count][vectors];  // where a loop may count: clang would keep the sums in memory for it
  UNROLL
  for (int p = 0; p < count; ++p) UNROLL
  for (int v = 0; v < vectors; ++v) made[p][v] = sums[p][v];
  for (int p = 0; p < count; ++p) write_pixel<vectors>(t, first + p, made[p]);
}

template <int vectors>
void pixel_tiles(const PixelConvTask& t) {
  constexpr int kTile = kPixelTile<vectors>;
  int p = t.first;
  for (; p + kTile <= t.last; p += kTile) pixel_tile<vectors, kTile>(t, p);
  if constexpr (kTile > 8)
    for (; p + 8 <= t.last; p += 8) pixel_tile<vectors, 8>(t, p);
  for (; p + 4 <= t.last; p += 4) pixel_tile<vectors, 4>(t, p);
  for (; p + 2 <= t.last; p += 2) pixel_tile<vectors, 2>(t, p);
  for (; p < t.last; ++p) pixel_tile<vectors, 1>(t, p);
}

void conv_pixels(const PixelConvTask& t) {
  if (t.rows > kLanes)
    pixel_tiles<2>(t);
  else
    pixel_tiles<1>(t);
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
