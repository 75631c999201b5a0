// Ternary weights with many zeros: a list of the others, one byte each.
//
// Shared memory holds every number of the vector beside its negative, so an entry is an address: 2 · feature, + 1 for −1.
// The entries of a row, in order, are cut into `segments` equal lists, one for each lane of a warp: 32 / segments rows a
// warp. A byte is the distance of an entry from the one before it. Where two weights lie farther apart than 127 features,
// two entries between them cancel. A list's head holds the address of its first entry, and how many bytes of 0 stand in
// front so that all lists of a warp are equally long: they repeat the first entry, and are taken off at the end.
//
// ACT: type of the vector; ROUND: it is rounded to int8 first (ROUND_FROM = ACT), and all sums are whole numbers.

#define THREADS_OF_BLOCK (32 * WARPS)

// Four entries of a word.
__device__ __forceinline__ void four(u32 word, u32& at, float (&sums)[4], const char* values) {
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    at += permute(word, 0, 0x4440 + b) << 2;
    sums[b] += *reinterpret_cast<const float*>(values + at);
  }
}

// Eight numbers, each beside its negative.
__device__ __forceinline__ void put_eight(float4* values, int i, const float (&v)[8]) {
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float4 both = {v[2 * q], -v[2 * q], v[2 * q + 1], -v[2 * q + 1]};
    values[4 * i + q] = both;
  }
}

struct PutNumbers {
  float4* values;
  __device__ __forceinline__ void operator()(int i, const uint2& words) const {
    float v[8];
#pragma unroll
    for (int q = 0; q < 8; ++q) v[q] = float(int((q < 4 ? words.x : words.y) << (24 - 8 * (q % 4))) >> 24);
    put_eight(values, i, v);
  }
};

// Whether all are finite.
__device__ __forceinline__ bool placed(const Eight<ACT>& from, int i, float4* values) {
  bool finite = true;
  float v[8];
  numbers_of<ACT>(from, v);
#pragma unroll
  for (int q = 0; q < 8; ++q) finite = finite && (__float_as_uint(v[q]) & 0x7fffffffu) < 0x7f800000u;
  put_eight(values, i, v);
  return finite;
}

extern "C" __global__ void __launch_bounds__(THREADS_OF_BLOCK)
    sparse(const uint2* lists, const u32* starts, const void* x, const void* x2, const float* gain, float eps, const float* scale,
           const float* bias, void* y, int N, int K, int slices, int segments) {
  SHARED_OF_LAUNCH(float4, values);
#if ROUND
  __shared__ float scratch[SCRATCH_OF_ROUNDING];
#else
  __shared__ int spoiled;
  if (threadIdx.x == 0) spoiled = 0;
#endif
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slice = blockIdx.x * WARPS + warp;
  let_next_start();
  const u32 begin = slice < slices ? starts[slice] : 0, end = slice < slices ? starts[slice + 1] : 0;
  const u32 head = slice < slices ? starts[slices + 1 + slice * 32 + lane] : 0;
  uint2 now[UN];
#pragma unroll
  for (int u = 0; u < UN; ++u)
    if (begin + u < end) now[u] = stream(lists + size_t(begin + u) * 32 + lane);
  if (threadIdx.x == 0) values[K / 2] = float4{};
  wait_for_previous();
  __syncthreads();
  const size_t vector = blockIdx.y;
  float vector_scale = 1;
  const char* row = static_cast<const char*>(x) + vector * K * (ACT == F32 ? 4 : 2);
#if ROUND
  const Rounded rounded =
      round_vector<ACT, THREADS_OF_BLOCK>(row, x2, gain, eps, K / 8, scratch, PutNumbers{values});
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
      finite = placed(eights[h], threadIdx.x + h * THREADS_OF_BLOCK, values) && finite;
#else
  for (int i = threadIdx.x; i < K / 8; i += THREADS_OF_BLOCK) finite = placed(read_eight<ACT>(row, i), i, values) && finite;
#endif
  if (!finite) spoiled = 1;  // infinity times a zero weight is NaN
#endif
  __syncthreads();
#if !ROUND
  if (spoiled) vector_scale = __uint_as_float(0x7fffffffu);
#endif
  float sums[4] = {};
  u32 at = (head & 0x3ffff) * 4;
  const char* places = reinterpret_cast<const char*>(values);
  const float repeated = float(head >> 18) * *reinterpret_cast<const float*>(places + at);
  for (u32 i = begin; i < end; i += UN)
#pragma unroll
    for (int u = 0; u < UN; ++u)
      if (i + u < end) {
        four(now[u].x, at, sums, places);
        four(now[u].y, at, sums, places);
        if (i + UN + u < end) now[u] = stream(lists + size_t(i + UN + u) * 32 + lane);
      }
  float all = (sums[0] + sums[1]) + (sums[2] + sums[3]) - repeated;
  for (int d = 1; d < segments; d <<= 1) all += __shfl_xor_sync(0xffffffffu, all, d);
  const int out = (slice * 32 + lane) / segments;
  if (lane % segments || slice >= slices || out >= N) return;
  float v = all * vector_scale * scale[out];
  if (bias) v += bias[out];
  store<OUT>(y, vector * N + out, v);
}
