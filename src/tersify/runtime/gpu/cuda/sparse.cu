// Ternary weights with many zeros: a list of the others, one byte each.
//
// Every row is cut into `segments` of `length` features, and every lane of a warp has one segment: 32 / segments rows a
// warp. A byte is 2 · distance + (1 for −1): how far the weight lies behind the one before it, the first one counted from
// the place before the segment, which holds a zero. Lists of a warp are equally long: distances of 0 fill them in front,
// where they add that zero. A gap of more than 127 takes two bytes, whose sum is zero.
//
// ACT: type of the vector; ROUND: it is rounded to int8 first (ROUND_FROM = ACT), and all sums are whole numbers.

#define THREADS_OF_BLOCK (32 * WARPS)

// Four weights of a word.
__device__ __forceinline__ void four(u32 word, u32& at, float (&sums)[4], const char* values) {
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    at += (b == 0 ? word << 1 : word >> (8 * b - 1)) & 0x1fcu;
    const u32 bits = *reinterpret_cast<const u32*>(values + at);
    sums[b] += __uint_as_float(bits ^ ((word << (31 - 8 * b)) & 0x80000000u));
  }
}

// Eight numbers never cross a segment: its length is a multiple.
__device__ __forceinline__ int place_of(int i, int length) { return 8 * i + 8 * i / length + 1; }

struct PutNumbers {
  float* values;
  int length;
  __device__ __forceinline__ void operator()(int i, const uint2& words) const {
    const int place = place_of(i, length);
#pragma unroll
    for (int q = 0; q < 8; ++q) values[place + q] = float(int((q < 4 ? words.x : words.y) << (24 - 8 * (q % 4))) >> 24);
  }
};

// Whether all are finite.
__device__ __forceinline__ bool placed(const Eight<ACT>& from, int i, float* values, int length) {
  const int place = place_of(i, length);
  bool finite = true;
  float v[8];
  numbers_of<ACT>(from, v);
#pragma unroll
  for (int q = 0; q < 8; ++q) {
    finite = finite && (__float_as_uint(v[q]) & 0x7fffffffu) < 0x7f800000u;
    values[place + q] = v[q];
  }
  return finite;
}

extern "C" __global__ void __launch_bounds__(THREADS_OF_BLOCK)
    sparse(const uint4* lists, const u32* starts, const void* x, const void* x2, const float* gain, float eps, const float* scale,
           const float* bias, void* y, int N, int K, int slices, int segments, int length) {
  SHARED_OF_LAUNCH(float, values);
#if ROUND
  __shared__ float scratch[SCRATCH_OF_ROUNDING];
#else
  __shared__ int spoiled;
  if (threadIdx.x == 0) spoiled = 0;
#endif
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slice = blockIdx.x * WARPS + warp;
  let_next_start();
  const u32 begin = slice < slices ? starts[slice] : 0, end = slice < slices ? starts[slice + 1] : 0;
  uint4 now[UN];
#pragma unroll
  for (int u = 0; u < UN; ++u)
    if (begin + u < end) now[u] = stream(lists + size_t(begin + u) * 32 + lane);
  if (threadIdx.x < segments) values[threadIdx.x * (length + 1)] = 0;
  wait_for_previous();
  __syncthreads();
  const size_t vector = blockIdx.y;
  float vector_scale = 1;
  const char* row = static_cast<const char*>(x) + vector * K * (ACT == F32 ? 4 : 2);
#if ROUND
  const Rounded rounded =
      round_vector<ACT, THREADS_OF_BLOCK>(row, x2, gain, eps, K / 8, scratch, PutNumbers{values, length});
  vector_scale = rounded.scale;
#else
  bool finite = true;
#if HOLD
  Eight<ACT> eights[HOLD];
#pragma unroll
  for (int h = 0; h < HOLD; ++h)
    if (int(threadIdx.x) + h * THREADS_OF_BLOCK < K / 8) eights[h] = read_eight<ACT>(row, threadIdx.x + h * THREADS_OF_BLOCK);
#pragma unroll
  for (int h = 0; h < HOLD; ++h)
    if (int(threadIdx.x) + h * THREADS_OF_BLOCK < K / 8)
      finite = placed(eights[h], threadIdx.x + h * THREADS_OF_BLOCK, values, length) && finite;
#else
  for (int i = threadIdx.x; i < K / 8; i += THREADS_OF_BLOCK) finite = placed(read_eight<ACT>(row, i), i, values, length) && finite;
#endif
  if (!finite) spoiled = 1;  // infinity times a zero weight is NaN
#endif
  __syncthreads();
#if !ROUND
  if (spoiled) vector_scale = __uint_as_float(0x7fffffffu);
#endif
  float sums[4] = {};
  u32 at = u32(lane % segments) * (length + 1) * 4;
  const char* places = reinterpret_cast<const char*>(values);
  for (u32 i = begin; i < end; i += UN) {
    uint4 next[UN];
#pragma unroll
    for (int u = 0; u < UN; ++u)
      if (i + UN + u < end) next[u] = stream(lists + size_t(i + UN + u) * 32 + lane);
#pragma unroll
    for (int u = 0; u < UN; ++u)
      if (i + u < end) {
        four(now[u].x, at, sums, places);
        four(now[u].y, at, sums, places);
        four(now[u].z, at, sums, places);
        four(now[u].w, at, sums, places);
      }
#pragma unroll
    for (int u = 0; u < UN; ++u) now[u] = next[u];
  }
  float all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (int d = 1; d < segments; d <<= 1) all += __shfl_xor_sync(0xffffffffu, all, d);
  const int out = (slice * 32 + lane) / segments;
  if (lane % segments || slice >= slices || out >= N) return;
  float v = all * vector_scale * scale[out];
  if (bias) v += bias[out];
  store<OUT>(y, vector * N + out, v);
}
