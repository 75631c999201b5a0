// Weights of up to 16 levels in four bits a weight.
//
// A block of 16 rows × 64 features is 512 bytes: lane l = 4·g + t of a warp owns words 0..3, and nibble q of word i is the
// code of row g + 8·(i & 1), feature 16·t + 8·(i >> 1) + q. fp16 and bf16: a byte is two codes, and a table in shared
// memory, a copy for every lane so that none waits for another, holds the two numbers. int8: the levels are bytes in four
// registers, which byte permutations look up.
//
// ACT, OUT, NT, ONE, MT, KW, RW, UN, FUSED, RESIDUAL: as in ternary.cu.

#define THREADS_OF_BLOCK (32 * RW * KW)
#define COLUMNS (ONE ? 1 : NT * 8)
#define ROWS (RW * MT * 16)
#define PARTS_BYTES (KW * COLUMNS * ROWS * 4)
#define TABLE_BYTES (ACT == S8 ? 0 : 256 * 32 * 4)
#define ROOM (PARTS_BYTES > TABLE_BYTES ? PARTS_BYTES : TABLE_BYTES)

#if ACT == S8
typedef int Sum;
#else
typedef float Sum;
#endif

// Four codes in the low half of `low` (their last three bits) and of `which` (places, and the upper table's by bit 2).
__device__ __forceinline__ u32 levels_of(const uint4& table, u32 low, u32 which) {
  return permute(permute(table.x, table.y, low), permute(table.z, table.w, low), which);
}

__device__ __forceinline__ void block_product(Sum (&sums)[MT][NT][4], const uint4 (&w)[MT], const char* x, size_t row_bytes, int M,
                                              int g, int t, int kb, const uint4& table, const char* pairs) {
#if ACT == S8
  uint4 b[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int row = ONE ? 0 : min(n * 8 + g, M - 1);
    b[n] = *reinterpret_cast<const uint4*>(x + row * row_bytes + kb * 64 + t * 16);
  }
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    const u32 words[4] = {w[m].x, w[m].y, w[m].z, w[m].w};
    u32 a[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 low = words[i] & 0x77777777u, which = lop_and_or(words[i] >> 1, 0x44444444u, 0x32103210u);
      a[0][i] = levels_of(table, low, which);
      a[1][i] = levels_of(table, low >> 16, which >> 16);
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      multiply_steps(sums[m][n], a[0], b[n].x, b[n].z);
      multiply_steps(sums[m][n], a[1], b[n].y, b[n].w);
    }
  }
#else
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
  for (int m = 0; m < MT; ++m) {
    const u32 words[4] = {w[m].x, w[m].y, w[m].z, w[m].w};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const u32 byte = p == 0 ? words[i] << 7 : words[i] >> (8 * p - 7);  // the byte times the 128 bytes of an entry
        a[i] = *reinterpret_cast<const u32*>(pairs + (byte & 0x7f80u));
      }
#pragma unroll
      for (int n = 0; n < NT; ++n) multiply<ACT>(sums[m][n], a, b[n][p], b[n][4 + p]);
    }
  }
#endif
}

// `table`: 16 bytes of levels for int8; else 256 words, the two numbers of every byte.
extern "C" __global__ void __launch_bounds__(THREADS_OF_BLOCK)
    table4(const uint4* w, const u32* table, const void* x, const void* x2, const float* gain, float eps, const float* x_scale,
           const float* scale, const float* bias, const void* y2, void* y, int M, int N, int KB) {
  // Partial sums take the place of the table when no lane needs it any more.
  __shared__ uint4 memory[ROOM / 16];
  Sum(*parts)[COLUMNS][ROWS] = reinterpret_cast<Sum(*)[COLUMNS][ROWS]>(memory);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kw = warp % KW, rw = warp / KW, g = lane >> 2, t = lane & 3;
  const int tiles = (N + 15) / 16, first = (blockIdx.x * RW + rw) * MT;
  let_next_start();
#if UN
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
  const int begin = KB * kw / KW, end = KB * (kw + 1) / KW;
  SHARED_OF_LAUNCH(uint4, shared);
  __shared__ Arrival arrivals[RW * KW];
  uint4* brought = shared + (FUSED ? KB * 4 : 0) + size_t(rw * MT * KB + begin) * 32;
  bring(brought, w + (size_t(first) * KB + begin) * 32, (end - begin) * 32, max(min(MT, tiles - first), 0), size_t(KB) * 32,
        arrivals + warp);
#endif
  // Asked for now, or the last step would wait for them: those of the first row that a thread writes.
  const int mine = blockIdx.x * ROWS + threadIdx.x % ROWS;
  const float my_scale = mine < N ? scale[mine] : 0, my_bias = mine < N && bias ? bias[mine] : 0;
#if ACT == S8
  const uint4 levels = *reinterpret_cast<const uint4*>(table);
  const char* pairs = nullptr;
#else
  const uint4 levels = {};
#pragma unroll
  for (int at = threadIdx.x; at < 256 * 8; at += THREADS_OF_BLOCK) {
    const u32 both = table[at / 8];
    const uint4 four = {both, both, both, both};
    memory[at] = four;
  }
  __syncthreads();
  const char* pairs = reinterpret_cast<const char*>(reinterpret_cast<const u32*>(memory) + lane);
#endif
  wait_for_previous();
#if FUSED
  SHARED_OF_LAUNCH(uint4, steps);
  __shared__ float scratch[SCRATCH_OF_ROUNDING];
  const Rounded rounded =
      round_vector<ROUND_FROM, THREADS_OF_BLOCK>(x, x2, gain, eps, KB * 8, scratch, PutSteps{reinterpret_cast<uint2*>(steps)});
  const char* vectors = reinterpret_cast<const char*>(steps);
#else
  const char* vectors = static_cast<const char*>(x);
#endif
  const size_t row_bytes = size_t(KB) * 64 * (ACT == S8 ? 1 : 2);
  Sum sums[MT][NT][4] = {};
#if UN
  for (int kb = kw; kb < KB; kb += KW * UN) {
#pragma unroll
    for (int u = 0; u < UN; ++u)
#pragma unroll
      for (int m = 0; m < MT; ++m)
        if (kb + (UN + u) * KW < KB) next[u][m] = stream(from[m] + (kb + (UN + u) * KW) * 32);
#pragma unroll
    for (int u = 0; u < UN; ++u)
      if (kb + u * KW < KB) block_product(sums, now[u], vectors, row_bytes, M, g, t, kb + u * KW, levels, pairs);
#pragma unroll
    for (int u = 0; u < UN; ++u)
#pragma unroll
      for (int m = 0; m < MT; ++m) now[u][m] = next[u][m];
  }
#else
  wait_for(arrivals + warp);
#pragma unroll 2
  for (int kb = begin; kb < end; ++kb) {
    uint4 now[MT];
#pragma unroll
    for (int m = 0; m < MT; ++m) now[m] = brought[size_t(m * KB + kb - begin) * 32 + lane];
    block_product(sums, now, vectors, row_bytes, M, g, t, kb, levels, pairs);
  }
#endif
  __syncthreads();
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = n * 8 + 2 * t + (i & 1);
        if (column < COLUMNS) parts[kw][column][(rw * MT + m) * 16 + g + 8 * (i >> 1)] = sums[m][n][i];
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
    float v = float(all) * rounded.scale;
#else
    float v = float(all) * x_scale[column];
#endif
#else
    float v = all;
#endif
    const bool known = THREADS_OF_BLOCK % ROWS == 0 || at == int(threadIdx.x);
    v *= known ? my_scale : scale[out];
    v += known ? my_bias : bias ? bias[out] : 0;
    const size_t place = size_t(column) * N + out;
#if RESIDUAL
    v += load<OUT>(y2, place);
#endif
    store<OUT>(y, place, v);
  }
}
