// Ternary weights in two bits a weight, in the order in which tensor cores take them.
//
// A block of 16 rows × 128 features is 512 bytes: lane l = 4·g + t of a warp owns words 0..3, and word i holds, for row
// g + 8·(i & 1), the features 32·t + 16·(i >> 1) + 4·j + 2·u + h at bits 16·h + 8·u + 2·j (j < 4; u, h < 2). A code is
// the weight plus one. So the two bits at one place of all bytes, or of all halves, are a fragment of a matrix for the
// tensor cores: bytes for int8, halves for fp16 and bf16, from the same words.
//
// ACT: type of the activations; OUT: of the outputs. NT: vectors in eights; ONE: a single vector. A warp has MT blocks
// of rows, KW warps share the features of RW groups of rows, and each has UN blocks in flight; UN = 0: all of them, in
// shared memory.
// FUSED: int8 activations are made here from ROUND_FROM ones; RESIDUAL: the output is added to y2.

#define THREADS_OF_BLOCK (32 * RW * KW)
#define COLUMNS (ONE ? 1 : NT * 8)
#define ROWS (RW * MT * 16)
// RAW: two bits of a half are a subnormal number, exact in tensor cores, so no instruction makes −1, 0 and 1 of them: the
// sum of the vector, which every code holds once too often, is taken off at the end.
#define RAW (ACT == F16 && ONE && MT <= 2)
// Fields of a byte weigh 1, 4, 16, 64, those of a half as much and 256: sums of their own, or shifts.
#define SUMS (RAW ? 5 : ACT == S8 && NT * MT <= 2 ? 4 : 1)

// Threads that a multiprocessor should have room for where the words come to shared memory: two kernels overlap there.
// Elsewhere the compiler decides: a least number of blocks would let it take more registers.
#define RESIDENT 1024
#if !UN && MT == 1 && ONE && THREADS_OF_BLOCK <= RESIDENT
#define BOUNDS THREADS_OF_BLOCK, RESIDENT / THREADS_OF_BLOCK
#else
#define BOUNDS THREADS_OF_BLOCK
#endif

#if ACT == S8
typedef int Sum;
#else
typedef float Sum;
#endif

// Two codes → two numbers −1, 0, 1: the bits become the last ones of 1024 (or 128), which a product and a sum undo.
template <int TYPE, int P>
__device__ __forceinline__ u32 plane(u32 word) {
  if (TYPE == F16) {
    constexpr int place = P < 5 ? 2 * P : 2 * (P - 5);
    constexpr u32 half_of[5] = {0x3C00, 0x3400, 0x2C00, 0x2400, 0x1C00}, less[5] = {0xE401, 0xDC04, 0xD410, 0xCC40, 0xC500};
    const u32 v = lop_and_or(P < 5 ? word : word >> 10, 0x00030003u << place, 0x64006400u);
    return fma2<F16>(v, half_of[place / 2] * 0x10001u, less[place / 2] * 0x10001u);
  }
  constexpr int place = 2 * (P % 3);
  constexpr u32 factor[3] = {0x3F80, 0x3E80, 0x3D80}, less[3] = {0xC301, 0xC204, 0xC110};
  const u32 v = lop_and_or(word >> (6 * (P / 3)), 0x00030003u << place, 0x43004300u);
  return fma2<BF16>(v, factor[place / 2] * 0x10001u, less[place / 2] * 0x10001u);
}

// Two codes as they lie in the halves: times 2^(2·(P % 5) − 24).
template <int P>
__device__ __forceinline__ u32 raw_plane(u32 word) {
  return (P < 5 ? word : word >> 10) & (0x00030003u << (2 * (P % 5)));
}

template <int P>
__device__ __forceinline__ u32 fragment(u32 word) {
  return RAW ? raw_plane<P>(word) : plane<ACT, P>(word);
}

template <int P>
struct Planes {  // the products of planes P..7
  static __device__ __forceinline__ void run(Sum (&sums)[SUMS][MT][NT][4], const uint4 (&w)[MT], const u32 (&b)[NT][16]) {
#if ACT != S8
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      const u32 a[4] = {fragment<P>(w[m].x), fragment<P>(w[m].y), fragment<P>(w[m].z), fragment<P>(w[m].w)};
#pragma unroll
      for (int n = 0; n < NT; ++n)
        multiply<ACT>(sums[RAW ? P % 5 : 0][m][n], a, b[n][2 * (P % 4) + P / 4], b[n][8 + 2 * (P % 4) + P / 4]);
    }
    Planes<P + 1>::run(sums, w, b);
#endif
  }
};
template <>
struct Planes<8> {
  static __device__ __forceinline__ void run(Sum (&)[SUMS][MT][NT][4], const uint4 (&)[MT], const u32 (&)[NT][16]) {}
};

__device__ __forceinline__ void block_product(Sum (&sums)[SUMS][MT][NT][4], const uint4 (&w)[MT], const char* x, size_t row_bytes,
                                              int M, int g, int t, int kb) {
#if ACT == S8
  u32 b[NT][8];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int row = ONE ? 0 : min(n * 8 + g, M - 1);
    const uint4* from = reinterpret_cast<const uint4*>(x + row * row_bytes + kb * 128 + t * 32);
    const uint4 v0 = from[0], v1 = from[1];
    b[n][0] = v0.x, b[n][1] = v0.y, b[n][2] = v0.z, b[n][3] = v0.w;
    b[n][4] = v1.x, b[n][5] = v1.y, b[n][6] = v1.z, b[n][7] = v1.w;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      u32 a[4] = {w[m].x, w[m].y, w[m].z, w[m].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = SUMS == 4 ? a[i] & (0x03030303u << (2 * j)) : (a[i] >> (2 * j)) & 0x03030303u;
#pragma unroll
      for (int n = 0; n < NT; ++n) multiply_codes(sums[SUMS == 4 ? j : 0][m][n], a, b[n][j], b[n][4 + j]);
    }
  }
#else
  u32 b[NT][16];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int row = ONE ? 0 : min(n * 8 + g, M - 1);
    const uint4* from = reinterpret_cast<const uint4*>(x + row * row_bytes + kb * 256 + t * 64);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const uint4 v = from[q];
      b[n][4 * q] = v.x, b[n][4 * q + 1] = v.y, b[n][4 * q + 2] = v.z, b[n][4 * q + 3] = v.w;
    }
  }
  Planes<0>::run(sums, w, b);
#endif
}

// One sum of the fields' own ones.
__device__ __forceinline__ Sum joined(const Sum (&sums)[SUMS][MT][NT][4], int m, int n, int i) {
  Sum v = sums[0][m][n][i];
#if ACT == S8
  if (SUMS == 4) v += (sums[1 % SUMS][m][n][i] >> 2) + (sums[2 % SUMS][m][n][i] >> 4) + (sums[3 % SUMS][m][n][i] >> 6);
#elif RAW
  v += sums[1][m][n][i] * 0x1p-2f + sums[2][m][n][i] * 0x1p-4f + sums[3][m][n][i] * 0x1p-6f + sums[4][m][n][i] * 0x1p-8f;
  v *= 0x1p24f;
#endif
  return v;
}

#if RAW
// Of the features of blocks begin..end − 1, by a warp. It also brings them near before the products ask for them.
__device__ __forceinline__ float sum_of_features(const char* x, int begin, int end, int step, int lane) {
  float total = 0;
#pragma unroll 4
  for (int at = lane; at < (end - begin + step - 1) / step * 16; at += 32) {
    float v[8];
    numbers_of<F16>(read_eight<F16>(x, 16 * (begin + at / 16 * step) + at % 16), v);
    total += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  }
#pragma unroll
  for (int d = 16; d; d >>= 1) total += __shfl_xor_sync(0xffffffffu, total, d);
  return total;
}
#endif

extern "C" __global__ void __launch_bounds__(BOUNDS)
    ternary(const uint4* w, const void* x, const void* x2, const float* gain, float eps, const float* x_scale, const int* x_sum,
            const float* scale, const float* bias, const void* y2, void* y, int M, int N, int KB) {
  __shared__ Sum parts[KW][COLUMNS][ROWS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kw = warp % KW, rw = warp / KW, g = lane >> 2, t = lane & 3;
  const int tiles = (N + 15) / 16, first = (blockIdx.x * RW + rw) * MT;
  let_next_start();
#if UN
  const int begin = kw, end = KB, step = KW;
  const uint4* from[MT];
#pragma unroll
  for (int m = 0; m < MT; ++m) from[m] = w + size_t(min(first + m, tiles - 1)) * KB * 32 + lane;
  uint4 now[UN][MT], next[UN][MT];
#pragma unroll
  for (int u = 0; u < UN; ++u)
#pragma unroll
    for (int m = 0; m < MT; ++m)
      if (kw + u * KW < KB) now[u][m] = stream(from[m] + (kw + u * KW) * 32);
#else
  const int begin = KB * kw / KW, end = KB * (kw + 1) / KW, step = 1;
  SHARED_OF_LAUNCH(uint4, shared);
  __shared__ Arrival arrivals[RW * KW];
  uint4* brought = shared + (FUSED ? KB * 8 : 0) + size_t(rw * MT * KB + begin) * 32;
  bring(brought, w + (size_t(first) * KB + begin) * 32, (end - begin) * 32, max(min(MT, tiles - first), 0), size_t(KB) * 32,
        arrivals + warp);
#endif
  wait_for_previous();
#if FUSED
  SHARED_OF_LAUNCH(uint4, steps);
  __shared__ float scratch[SCRATCH_OF_ROUNDING];
  const Rounded rounded =
      round_vector<ROUND_FROM, THREADS_OF_BLOCK>(x, x2, gain, eps, KB * 16, scratch, PutSteps{reinterpret_cast<uint2*>(steps)});
  const char* vectors = reinterpret_cast<const char*>(steps);
#else
  const char* vectors = static_cast<const char*>(x);
#endif
#if RAW
  __shared__ float totals[KW];
  if (rw == 0) {
    const float total = sum_of_features(vectors, begin, end, step, lane);
    if (lane == 0) totals[kw] = total;
  }
#endif
  const size_t row_bytes = size_t(KB) * 128 * (ACT == S8 ? 1 : 2);
  Sum sums[SUMS][MT][NT][4] = {};
#if UN
  for (int kb = begin; kb < end; kb += step * UN) {
#pragma unroll
    for (int u = 0; u < UN; ++u)
#pragma unroll
      for (int m = 0; m < MT; ++m)
        if (kb + (UN + u) * KW < KB) next[u][m] = stream(from[m] + (kb + (UN + u) * KW) * 32);
#pragma unroll
    for (int u = 0; u < UN; ++u)
      if (kb + u * KW < KB) block_product(sums, now[u], vectors, row_bytes, M, g, t, kb + u * KW);
#pragma unroll
    for (int u = 0; u < UN; ++u)
#pragma unroll
      for (int m = 0; m < MT; ++m) now[u][m] = next[u][m];
  }
#else
  wait_for(arrivals + warp);
#pragma unroll 2
  for (int kb = begin; kb < end; kb += step) {
    uint4 now[MT];
#pragma unroll
    for (int m = 0; m < MT; ++m) now[m] = brought[size_t(m * KB + kb - begin) * 32 + lane];
    block_product(sums, now, vectors, row_bytes, M, g, t, kb);
  }
#endif

#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = n * 8 + 2 * t + (i & 1);
        if (column < COLUMNS) parts[kw][column][(rw * MT + m) * 16 + g + 8 * (i >> 1)] = joined(sums, m, n, i);
      }
  __syncthreads();
  for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS_OF_BLOCK) {
    const int row = at % ROWS, column = at / ROWS, out = blockIdx.x * ROWS + row;
    if (out >= N || column >= M) continue;
    Sum all = 0;
#pragma unroll
    for (int k = 0; k < KW; ++k) all += parts[k][column][row];
#if ACT == S8
#if FUSED
    float v = float(all - rounded.sum) * rounded.scale;
#else
    float v = float(all - x_sum[column]) * x_scale[column];
#endif
#else
    float v = all;
#if RAW
#pragma unroll
    for (int k = 0; k < KW; ++k) v -= totals[k];
#endif
#endif
    v *= scale[out];
    if (bias) v += bias[out];
    const size_t place = size_t(column) * N + out;
#if RESIDUAL
    v += load<OUT>(y2, place);
#endif
    store<OUT>(y, place, v);
  }
}
