// A vector rounded to 127 steps up and down, as csrc/runtime/kernels/linear-i8 does it on the CPU: the same scale, the
// same steps. With SWAP the second and third byte of every four change places: so two-bit words want them.

#ifndef PROLOGUE
#define PROLOGUE 1  // 1: the vector as it is; 2: its RMS norm times a gain; 3: relu(x)² · x2, then as 2
#endif

#ifndef SWAP
#define SWAP 0
#endif

struct Rounded {
  float scale;
  int sum;
};

// Largest value, sum of squares and sum of whole numbers over the block. `scratch` holds 33 words.
template <int THREADS_>
__device__ __forceinline__ float block_max(float v, float* scratch) {
  // Sizes are compared as whole numbers: NaN is the largest.
  u32 bits = __reduce_max_sync(0xffffffffu, __float_as_uint(v));
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = __uint_as_float(bits);
  __syncthreads();
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < THREADS_ / 32; ++i) top = max(top, __float_as_uint(scratch[i]));
  __syncthreads();
  return __uint_as_float(top);
}

template <int THREADS_>
__device__ __forceinline__ float block_sum(float v, float* scratch) {
#pragma unroll
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
  __syncthreads();
  float all = 0;
#pragma unroll
  for (int i = 0; i < THREADS_ / 32; ++i) all += scratch[i];
  __syncthreads();
  return all;
}

// Eight numbers from position 8·i on, in fp32, before the norm's factor.
template <int TYPE>
__device__ __forceinline__ void eight(const void* x, const void* x2, const float* gain, int i, float (&v)[8], float& squares) {
  const uint4 raw = static_cast<const uint4*>(x)[i];
  const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    v[2 * q] = as_float<TYPE>(u16(words[q]));
    v[2 * q + 1] = as_float<TYPE>(u16(words[q] >> 16));
  }
#if PROLOGUE == 3
  const uint4 other = static_cast<const uint4*>(x2)[i];
  const u32 factors[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
  for (int q = 0; q < 8; ++q) {
    const float positive = v[q] > 0 ? v[q] : (v[q] == v[q] ? 0.0f : v[q]);
    v[q] = positive * positive * as_float<TYPE>(u16(factors[q / 2] >> (16 * (q & 1))));
  }
#endif
#if PROLOGUE >= 2
#pragma unroll
  for (int q = 0; q < 8; ++q) squares += v[q] * v[q];
  const float4 g0 = reinterpret_cast<const float4*>(gain)[2 * i], g1 = reinterpret_cast<const float4*>(gain)[2 * i + 1];
  const float g[8] = {g0.x, g0.y, g0.z, g0.w, g1.x, g1.y, g1.z, g1.w};
#pragma unroll
  for (int q = 0; q < 8; ++q) v[q] *= g[q];
#endif
}

// By the whole block; `out` holds `eights` · 8 bytes. Call __syncthreads before other threads' bytes are read.
template <int TYPE, int THREADS_>
__device__ __forceinline__ Rounded round_vector(const void* x, const void* x2, const float* gain, float eps, int eights, uint2* out,
                                                float* scratch) {
  float top = 0, squares = 0;
  for (int i = threadIdx.x; i < eights; i += THREADS_) {
    float v[8];
    eight<TYPE>(x, x2, gain, i, v, squares);
#pragma unroll
    for (int q = 0; q < 8; ++q) top = __uint_as_float(max(__float_as_uint(top), __float_as_uint(v[q]) & 0x7fffffffu));
  }
  top = block_max<THREADS_>(top, scratch);
  float factor = 1;
#if PROLOGUE >= 2
  squares = block_sum<THREADS_>(squares, scratch);
  factor = rsqrtf(squares / (8.0f * eights) + eps);
  top *= factor;
#endif
  const float steps = __fdiv_rn(top, 127.0f);
  const float scale = steps > 1.17549435e-38f ? steps : 1.17549435e-38f;  // its inverse is never infinite
  const float inverse = __fdiv_rn(1.0f, scale);
  int sum = 0;
  for (int i = threadIdx.x; i < eights; i += THREADS_) {
    float v[8], ignored = 0;
    eight<TYPE>(x, x2, gain, i, v, ignored);
    u32 s[8];
#pragma unroll
    for (int q = 0; q < 8; ++q) s[q] = u32(__float2int_rn(__fmul_rn(PROLOGUE >= 2 ? v[q] * factor : v[q], inverse))) & 0xff;
    uint2 words;
    words.x = s[0] | s[1] << (SWAP ? 16 : 8) | s[2] << (SWAP ? 8 : 16) | s[3] << 24;
    words.y = s[4] | s[5] << (SWAP ? 16 : 8) | s[6] << (SWAP ? 8 : 16) | s[7] << 24;
    sum = __dp4a(int(words.x), 0x01010101, sum);
    sum = __dp4a(int(words.y), 0x01010101, sum);
    out[i] = words;
  }
  sum = __reduce_add_sync(0xffffffffu, sum);
  int* sums = reinterpret_cast<int*>(scratch);
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
  __syncthreads();
  int all = 0;
#pragma unroll
  for (int i = 0; i < THREADS_ / 32; ++i) all += sums[i];
  Rounded made;
  made.scale = (__float_as_uint(top) & 0x7fffffffu) < 0x7f800000u ? scale : __uint_as_float(0x7fffffffu);
  made.sum = all;
  return made;
}

#ifdef ROUNDING_KERNEL
// One block a vector.
extern "C" __global__ void __launch_bounds__(THREADS)
    rounding(const void* x, const void* x2, const float* gain, float eps, uint2* out, float* scale, int* sum, int eights) {
  __shared__ float scratch[33];
  let_next_start();
  wait_for_previous();
  const size_t row = blockIdx.x;
  const char* from = static_cast<const char*>(x) + row * eights * 16;
  const char* other = static_cast<const char*>(x2) + row * eights * 16;
  const Rounded made = round_vector<ACT, THREADS>(from, other, gain, eps, eights, out + row * eights, scratch);
  if (threadIdx.x == 0) {
    scale[row] = made.scale;
    sum[row] = made.sum;
  }
}
#endif
