// Numbers in fp32 as sums of three in bf16, which hold all 24 bits: [3][M][padded] from [M][K]. What is infinite or NaN is
// so in the first part alone.

__device__ __forceinline__ float nearest(float v) {
  u32 bits = __float_as_uint(v);
  bits += 0x7fffu + (bits >> 16 & 1);  // ties to even
  return __uint_as_float(bits & 0xffff0000u);
}

extern "C" __global__ void __launch_bounds__(THREADS) parts(const float* x, u16* y, int M, int K, int padded) {
  const size_t at = size_t(blockIdx.x) * THREADS + threadIdx.x, part = size_t(M) * padded;
  let_next_start();
  wait_for_previous();
  if (at >= part) return;
  const int row = int(at / padded), feature = int(at % padded);
  float rest = feature < K ? x[size_t(row) * K + feature] : 0.0f;
  const bool finite = (__float_as_uint(rest) & 0x7fffffffu) < 0x7f800000u;
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    // The largest numbers would become infinite: they lose their last bits first.
    const bool largest = (__float_as_uint(rest) & 0x7fff0000u) == 0x7f7f0000u;
    const float rounded = largest || !finite ? __uint_as_float(__float_as_uint(rest) & 0xffff0000u) : nearest(rest);
    const u32 bits = __float_as_uint(rounded);
    const bool nan = rest != rest;
    y[p * part + at] = nan ? u16(0x7fc0) : u16(bits >> 16);
    rest = finite ? rest - rounded : 0.0f;
  }
}

// The products of the three parts become one: [M][N] in fp32, from the smallest to the largest, and the bias.
extern "C" __global__ void __launch_bounds__(THREADS) joined(const float* sums, const float* bias, float* y, int M, int N) {
  const size_t at = size_t(blockIdx.x) * THREADS + threadIdx.x, part = size_t(M) * N;
  let_next_start();
  wait_for_previous();
  if (at >= part) return;
  const float whole = sums[at] + (sums[part + at] + sums[2 * part + at]);
  y[at] = bias ? whole + bias[at % N] : whole;
}
