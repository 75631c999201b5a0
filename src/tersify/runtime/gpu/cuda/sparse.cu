// Ternary weights with many zeros: a list of the others, one byte each.
//
// Shared memory holds every number of the vector beside its negative, so an entry is an address: 2 · feature, + 1 for −1.
// The entries of a row are cut into `segments` equal lists, one for each lane of a warp: 32 / segments rows a warp. A byte
// is the distance of an entry from the one before it, which may lie behind it: lists are ordered so that few lanes of a
// warp want the same bank at once. Where two weights lie farther apart than 63 features, two entries between them cancel.
// A list's head holds the address of its first entry, and how many bytes of 0 stand in front so that all lists of a warp
// are equally long: they repeat the first entry, and are taken off at the end.
//
// ACT: type of the vector; ROUND: it is rounded to int8 first (ROUND_FROM = ACT), and all sums are whole numbers.
// UNIT: bytes of a number in shared memory, 4 for numbers of fp32 and else 2: bytes would be wanted two or four to a bank.

#define THREADS_OF_BLOCK (32 * WARPS)

#if ROUND
typedef int Sum;
#else
typedef float Sum;
#endif

__device__ __forceinline__ Sum number_at(const char* place) {
#if UNIT == 4
  return *reinterpret_cast<const Sum*>(place);
#elif !ROUND
  return as_float<ACT>(*reinterpret_cast<const u16*>(place));
#else
  return *reinterpret_cast<const short*>(place);
#endif
}

// Four entries of a word. Each address comes from the last of the four before by one product of bytes, so that none
// waits for its neighbour.
__device__ __forceinline__ void four(u32 word, int& at, Sum (&sums)[4], const char* values) {
#pragma unroll
  for (int b = 0; b < 4; ++b)
    sums[b] += number_at(values + __dp4a(int(word), int((0x01010101u >> (24 - 8 * b)) * UNIT), at));
  at = __dp4a(int(word), 0x01010101 * UNIT, at);
}

// Eight numbers, each beside its negative, take UNIT pieces of 16 bytes. Neighbouring threads begin with different
// pieces, or several would want the same banks.
__device__ __forceinline__ int piece_of(int i, int turn) {
  return UNIT == 4 ? (turn + (i >> 1)) & 3 : (turn + (i >> 2)) & 1;
}

#if ROUND
// A step of a word's byte, sign and all.
__device__ __forceinline__ int step_of(u32 word, int byte) { return int(word << (24 - 8 * byte)) >> 24; }

struct PutNumbers {
  uint4* values;
  __device__ __forceinline__ void operator()(int i, const uint2& words) const {
#pragma unroll
    for (int turn = 0; turn < UNIT; ++turn) {
      const int piece = piece_of(i, turn);
      uint4 made;
      const u32 given = piece ? words.y : words.x;
      u32 pairs[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int step = step_of(given, b);
        pairs[b] = permute(u32(step), u32(-step), 0x5410);
      }
      made.x = pairs[0], made.y = pairs[1], made.z = pairs[2], made.w = pairs[3];
      values[UNIT * i + piece] = made;
    }
  }
};
#else
// Whether all are finite.
__device__ __forceinline__ bool placed(const Eight<ACT>& from, int i, uint4* values) {
  bool finite = true;
  float v[8];
  numbers_of<ACT>(from, v);
#pragma unroll
  for (int q = 0; q < 8; ++q) finite = finite && (__float_as_uint(v[q]) & 0x7fffffffu) < 0x7f800000u;
#pragma unroll
  for (int turn = 0; turn < UNIT; ++turn) {
    const int piece = piece_of(i, turn);
    uint4 made;
#if UNIT == 4
    float first = v[0], last = v[1];
#pragma unroll
    for (int q = 1; q < 4; ++q)
      if (piece == q) first = v[2 * q], last = v[2 * q + 1];
    made.x = __float_as_uint(first), made.y = made.x ^ 0x80000000u;
    made.z = __float_as_uint(last), made.w = made.z ^ 0x80000000u;
#else
    const u32 a = piece ? from.words[0].z : from.words[0].x, b = piece ? from.words[0].w : from.words[0].y;
    made.x = permute(a, a ^ 0x80008000u, 0x5410), made.y = permute(a, a ^ 0x80008000u, 0x7632);
    made.z = permute(b, b ^ 0x80008000u, 0x5410), made.w = permute(b, b ^ 0x80008000u, 0x7632);
#endif
    values[UNIT * i + piece] = made;
  }
  return finite;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS_OF_BLOCK)
    sparse(const uint2* lists, const u32* starts, const void* x, const void* x2, const float* gain, float eps, const float* scale,
           const float* bias, void* y, int N, int K, int slices, int segments) {
  SHARED_OF_LAUNCH(uint4, values);
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
  const int out = (slice * 32 + lane) / segments;
  const bool writes = lane % segments == 0 && slice < slices && out < N;
  // asked for now, or the last step would wait for them
  const float row_scale = writes ? scale[out] : 0, row_bias = writes && bias ? bias[out] : 0;
  uint2 now[UN];
#pragma unroll
  for (int u = 0; u < UN; ++u)
    if (begin + u < end) now[u] = stream(lists + size_t(begin + u) * 32 + lane);
  if (threadIdx.x == 0) values[K / 8 * UNIT] = uint4{};
#if !ROUND
  __syncthreads();
#endif
  wait_for_previous();
  const size_t vector = blockIdx.y;
  float vector_scale = 1;
  const char* row = static_cast<const char*>(x) + vector * K * (ACT == F32 ? 4 : 2);
#if ROUND
  const Rounded rounded =
      round_vector<ACT, THREADS_OF_BLOCK, false>(row, x2, gain, eps, K / 8, scratch, PutNumbers{values});
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
  __syncthreads();
  if (spoiled) vector_scale = __uint_as_float(0x7fffffffu);
#endif
  Sum sums[4] = {};
  int at = int(head & 0x3ffff) * UNIT;
  const char* places = reinterpret_cast<const char*>(values);
  const Sum repeated = Sum(head >> 18) * number_at(places + at);
  for (u32 i = begin; i < end; i += UN)
#pragma unroll
    for (int u = 0; u < UN; ++u)
      if (i + u < end) {
        four(now[u].x, at, sums, places);
        four(now[u].y, at, sums, places);
        if (i + UN + u < end) now[u] = stream(lists + size_t(i + UN + u) * 32 + lane);
      }
  Sum all = (sums[0] + sums[1]) + (sums[2] + sums[3]) - repeated;
  for (int d = 1; d < segments; d <<= 1) all += __shfl_xor_sync(0xffffffffu, all, d);
  if (writes) store<OUT>(y, vector * N + out, float(all) * vector_scale * row_scale + row_bias);
}
