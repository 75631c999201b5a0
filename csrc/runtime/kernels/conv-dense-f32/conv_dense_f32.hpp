// Convolution over float lanes with every weight: a few rows share each vector they read.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// Rows first .. first + R of one group: their patches stay in registers while the weights of a block pass by.
template <int H, int W, int R>
inline void dense_patches(const ConvTask& t, const Unit& unit, const float* weights, const char* footprint, char* sums,
                          int rows, int channel) {
  const size_t pitch = t.patch.pitch_bytes, waiting_bytes = size_t(H) * W * kBytes;
  Vec acc[R][H * W];
  UNROLL
  for (int r = 0; r < R; ++r) UNROLL
  for (int i = 0; i < H * W; ++i)
    acc[r][i] = unit.first || r >= rows ? Vec{} : load(sums + r * waiting_bytes + i * kBytes);
  for (int e = 0; e < unit.entry_count; ++e, weights += kDenseRows) {
    const char* at = footprint + size_t(unit.entries[e]) * kBytes;
    Vec weight[R];
    UNROLL
    for (int r = 0; r < R; ++r) weight[r] = Vec{} + weights[r];
    UNROLL
    for (int y = 0; y < H; ++y) {
      UNROLL
      for (int x = 0; x < W; ++x) {
        const Vec v = load(at + x * kBytes);
        UNROLL
        for (int r = 0; r < R; ++r) acc[r][y * W + x] += weight[r] * v;
      }
      at += pitch;
    }
  }
  const auto write = write_function<Fp32Lanes>(t);
#if defined(__wasm__)  // a module is fetched before it runs: one way to write is enough there
  constexpr bool straight = false;
#else
  const bool straight = write == write_patch<Fp32Lanes> && t.epilogue.activation == Activation::Clamp &&
                        t.patch.skip_h + t.patch.skip_w == 0;
#endif
  UNROLL
  for (int r = 0; r < R; ++r)
    if (r < rows) leave_row<H, W>(t, acc[r], sums + r * waiting_bytes, unit.last, straight ? nullptr : write, channel + r);
}

template <int H, int W>
void dense_rows(const ConvTask& t, const Unit& unit, int first_channel, const char* footprint, char* sums) {
  constexpr int R = H * W > 4 ? 2 : kDenseRows;
  const size_t waiting_bytes = size_t(H) * W * kBytes;
  for (int row = 0; row < int(unit.row_count); row += R) {
    const float* weights = unit.values + size_t(row / kDenseRows) * unit.entry_count * kDenseRows + row % kDenseRows;
    dense_patches<H, W, R>(t, unit, weights, footprint, sums + row * waiting_bytes, int(unit.row_count) - row,
                           first_channel + row);
  }
}

RowsFn dense_function(int h, int w) {
  switch (h * 32 + w) {
    case 4 * 32 + 2:
      return dense_rows<4, 2>;
    case 4 * 32 + 1:
      return dense_rows<4, 1>;
    case 2 * 32 + 4:
      return dense_rows<2, 4>;
    case 2 * 32 + 2:
      return dense_rows<2, 2>;
    case 2 * 32 + 1:
      return dense_rows<2, 1>;
    case 1 * 32 + 8:
      return dense_rows<1, 8>;
    case 1 * 32 + 4:
      return dense_rows<1, 4>;
    case 1 * 32 + 2:
      return dense_rows<1, 2>;
    default:
      return dense_rows<1, 1>;
  }
}

void dense_conv(const ConvTask& t) {
  conv_blocks(t, dense_function(t.patch.h, t.patch.w), conv_waiting_bytes<Fp32Lanes>(t), IntVec{});
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
