// A vector rounded to 127 steps up and down, as csrc/runtime/kernels/linear-i8 does it on the CPU: the same scale, the
// same steps. With SWAP the second and third byte of every four change places: so two-bit words want them.

#ifndef PROLOGUE
#define PROLOGUE 1  // 1: the vector as it is; 2: its RMS norm times a gain; 3: relu(x)² · x2, then as 2
#endif

#ifndef SWAP
#define SWAP 0
#endif

#ifndef HOLD
#define HOLD 0  // eights of numbers that a thread keeps from the first look to the second; 0: it reads them twice
#endif

struct Rounded {
  float scale;
  int sum;
};

#define SCRATCH_OF_ROUNDING 96  // words of shared memory, a part for each of the three sums over the block

template <int TYPE>
struct Eight {
  uint4 words[TYPE == F32 ? 2 : 1];
};

template <int TYPE>
__device__ __forceinline__ Eight<TYPE> read_eight(const void* x, int i) {
  Eight<TYPE> made;
#pragma unroll
  for (int w = 0; w < (TYPE == F32 ? 2 : 1); ++w) made.words[w] = static_cast<const uint4*>(x)[(TYPE == F32 ? 2 : 1) * i + w];
  return made;
}

template <int TYPE>
__device__ __forceinline__ void numbers_of(const Eight<TYPE>& from, float (&v)[8]) {
  const uint4 first = from.words[0], last = from.words[TYPE == F32 ? 1 : 0];
  const u32 words[8] = {first.x, first.y, first.z, first.w, last.x, last.y, last.z, last.w};
#pragma unroll
  for (int q = 0; q < 8; ++q) v[q] = TYPE == F32 ? __uint_as_float(words[q]) : as_float<TYPE>(u16(words[q / 2] >> (16 * (q & 1))));
}

// What is rounded, before the norm's factor: x, or relu(x)² · x2, times the gain.
template <int TYPE>
struct Source {
  Eight<TYPE> x;
#if PROLOGUE == 3
  Eight<TYPE> x2;
#endif
#if PROLOGUE >= 2
  float4 gain[2];
#endif

  __device__ __forceinline__ void read(const void* from, const void* from2, const float* gains, int i) {
    x = read_eight<TYPE>(from, i);
#if PROLOGUE == 3
    x2 = read_eight<TYPE>(from2, i);
#endif
#if PROLOGUE >= 2
    gain[0] = reinterpret_cast<const float4*>(gains)[2 * i], gain[1] = reinterpret_cast<const float4*>(gains)[2 * i + 1];
#endif
  }

  __device__ __forceinline__ void numbers(float (&v)[8], float& squares) const {
    numbers_of<TYPE>(x, v);
#if PROLOGUE == 3
    float factors[8];
    numbers_of<TYPE>(x2, factors);
#pragma unroll
    for (int q = 0; q < 8; ++q) {
      const float positive = v[q] > 0 ? v[q] : (v[q] == v[q] ? 0.0f : v[q]);
      v[q] = positive * positive * factors[q];
    }
#endif
#if PROLOGUE >= 2
    const float g[8] = {gain[0].x, gain[0].y, gain[0].z, gain[0].w, gain[1].x, gain[1].y, gain[1].z, gain[1].w};
#pragma unroll
    for (int q = 0; q < 8; ++q) squares += v[q] * v[q], v[q] *= g[q];
#endif
  }
};

__device__ __forceinline__ void note_largest(u32& top, const float (&v)[8]) {
#pragma unroll
  for (int q = 0; q < 8; ++q) top = max(top, __float_as_uint(v[q]) & 0x7fffffffu);  // as whole numbers: NaN is the largest
}

// Eight steps in the bytes of two words, and their sum.
__device__ __forceinline__ uint2 steps_of(const float (&v)[8], float factor, float inverse, int& sum) {
  u32 s[8];
#pragma unroll
  for (int q = 0; q < 8; ++q) s[q] = u32(__float2int_rn(__fmul_rn(PROLOGUE >= 2 ? v[q] * factor : v[q], inverse))) & 0xff;
  uint2 words;
  words.x = s[0] | s[1] << (SWAP ? 16 : 8) | s[2] << (SWAP ? 8 : 16) | s[3] << 24;
  words.y = s[4] | s[5] << (SWAP ? 16 : 8) | s[6] << (SWAP ? 8 : 16) | s[7] << 24;
  sum = __dp4a(int(words.x), 0x01010101, sum);
  sum = __dp4a(int(words.y), 0x01010101, sum);
  return words;
}

// By the whole block, once in a kernel. `put(i, words)` gets steps 8·i and those behind; what it writes to shared memory
// can be read by all threads afterwards. Without SUM the steps are not added up.
template <int TYPE, int THREADS_, bool SUM = true, class Put>
__device__ __forceinline__ Rounded round_vector(const void* x, const void* x2, const float* gain, float eps, int eights,
                                                float* scratch, const Put& put) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 top = 0;
  float squares = 0;
#if HOLD
  float held[HOLD][8];
  Source<TYPE> sources[HOLD];
#pragma unroll
  for (int h = 0; h < HOLD; ++h)
    if (int(threadIdx.x) + h * THREADS_ < eights) sources[h].read(x, x2, gain, threadIdx.x + h * THREADS_);
#pragma unroll
  for (int h = 0; h < HOLD; ++h)
    if (int(threadIdx.x) + h * THREADS_ < eights) {
      sources[h].numbers(held[h], squares);
      note_largest(top, held[h]);
    }
#else
  for (int i = threadIdx.x; i < eights; i += THREADS_) {
    float v[8];
    Source<TYPE> source;
    source.read(x, x2, gain, i);
    source.numbers(v, squares);
    note_largest(top, v);
  }
#endif
  top = __reduce_max_sync(0xffffffffu, top);
#if PROLOGUE >= 2
#pragma unroll
  for (int d = 16; d; d >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, d);
#endif
  if (lane == 0) scratch[warp] = __uint_as_float(top), scratch[32 + warp] = squares;
  __syncthreads();
  squares = 0;
#pragma unroll
  for (int w = 0; w < THREADS_ / 32; ++w) top = max(top, __float_as_uint(scratch[w])), squares += scratch[32 + w];
  float factor = 1, largest = __uint_as_float(top);
#if PROLOGUE >= 2
  factor = rsqrtf(squares / (8.0f * eights) + eps);
  largest *= factor;
#endif
  const float step = __fdiv_rn(largest, 127.0f);
  const float scale = step > 1.17549435e-38f ? step : 1.17549435e-38f;  // its inverse is never infinite
  const float inverse = __fdiv_rn(1.0f, scale);
  int sum = 0;
#if HOLD
#pragma unroll
  for (int h = 0; h < HOLD; ++h)
    if (int(threadIdx.x) + h * THREADS_ < eights) put(threadIdx.x + h * THREADS_, steps_of(held[h], factor, inverse, sum));
#else
  for (int i = threadIdx.x; i < eights; i += THREADS_) {
    float v[8], ignored = 0;
    Source<TYPE> source;
    source.read(x, x2, gain, i);
    source.numbers(v, ignored);
    put(i, steps_of(v, factor, inverse, sum));
  }
#endif
  int* sums = reinterpret_cast<int*>(scratch + 64);
  if (SUM) {
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (lane == 0) sums[warp] = sum;
  }
  __syncthreads();
  Rounded made;
  made.scale = (__float_as_uint(largest) & 0x7fffffffu) < 0x7f800000u ? scale : __uint_as_float(0x7fffffffu);
  made.sum = 0;
#pragma unroll
  for (int w = 0; SUM && w < THREADS_ / 32; ++w) made.sum += sums[w];
  return made;
}

struct PutSteps {
  uint2* out;
  __device__ __forceinline__ void operator()(int i, const uint2& words) const { out[i] = words; }
};

#ifdef ROUNDING_KERNEL
// One block a vector.
extern "C" __global__ void __launch_bounds__(THREADS)
    rounding(const void* x, const void* x2, const float* gain, float eps, uint2* out, float* scale, int* sum, int eights) {
  __shared__ float scratch[SCRATCH_OF_ROUNDING];
  let_next_start();
  wait_for_previous();
  const size_t row = blockIdx.x, bytes = size_t(eights) * (ACT == F32 ? 32 : 16);
  const char* from = static_cast<const char*>(x) + row * bytes;
  const char* other = static_cast<const char*>(x2) + row * bytes;
  const Rounded made = round_vector<ACT, THREADS>(from, other, gain, eps, eights, scratch, PutSteps{out + row * eights});
  if (threadIdx.x == 0) {
    scale[row] = made.scale;
    sum[row] = made.sum;
  }
}
#endif
