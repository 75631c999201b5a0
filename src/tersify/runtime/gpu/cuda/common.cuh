// What every kernel family shares. No header is included, so that NVRTC alone can build it.
// Types of activations and outputs: S8 whole numbers, F16, BF16, F32.

typedef unsigned int u32;
typedef unsigned short u16;

#define S8 0
#define F16 1
#define BF16 2
#define F32 3

#define SHARED_OF_LAUNCH(type, name) extern __shared__ type name[]

template <int TYPE>
__device__ __forceinline__ float as_float(u16 bits) {
  if (TYPE == BF16) return __uint_as_float(u32(bits) << 16);
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
  return r;
}

template <int TYPE>
__device__ __forceinline__ void store(void* y, size_t i, float v) {
  if (TYPE == F32) {
    static_cast<float*>(y)[i] = v;
    return;
  }
  u16 bits;
  if (TYPE == BF16)
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  static_cast<u16*>(y)[i] = bits;
}

template <int TYPE>
__device__ __forceinline__ float load(const void* x, size_t i) {
  return TYPE == F32 ? static_cast<const float*>(x)[i] : as_float<TYPE>(static_cast<const u16*>(x)[i]);
}

// Weights are read once: they leave the L1 to the activations.
__device__ __forceinline__ uint4 stream(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ uint2 stream(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

// The next kernel of the stream may start: until it waits it only reads its own weights.
__device__ __forceinline__ void let_next_start() {
#if PDL
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Everything that came before in the stream is done and visible. No activation is read before it, nothing written.
__device__ __forceinline__ void wait_for_previous() {
#if PDL
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets a warp wait for what it has asked for.
typedef unsigned long long Arrival;

// By a whole warp, once for each arrival: `count` runs of `sixteens` · 16 bytes, `stride` apart in both places, come to
// shared memory. Since Hopper one lane asks for a run, and no register is taken.
__device__ __forceinline__ void bring(uint4* to, const uint4* from, int sixteens, int count, size_t stride, Arrival* arrival) {
  const u32 place = u32(__cvta_generic_to_shared(to)), lane = threadIdx.x & 31;
#if PDL
  if (lane == 0) {
    const u32 meeting = u32(__cvta_generic_to_shared(arrival));
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(meeting) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(meeting), "r"(16 * sixteens * count) : "memory");
    if (sixteens)
      for (int i = 0; i < count; ++i)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         u32(place + 16 * i * stride)),
                     "l"(from + i * stride), "r"(16 * sixteens), "r"(meeting)
                     : "memory");
  }
#else
  for (int i = 0; i < count; ++i)
    for (int at = lane; at < sixteens; at += 32)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(u32(place + 16 * (i * stride + at))),
                   "l"(from + i * stride + at)
                   : "memory");
#endif
}

// By the same warp: afterwards all its lanes can read it.
__device__ __forceinline__ void wait_for(Arrival* arrival) {
#if PDL
  __syncwarp();
  const u32 meeting = u32(__cvta_generic_to_shared(arrival));
  u32 there = 0;
  while (!there)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(there)
                 : "r"(meeting)
                 : "memory");
#else
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
#endif
}

__device__ __forceinline__ u32 lop_and_or(u32 a, u32 mask, u32 c) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(mask), "r"(c));
  return r;
}

template <int TYPE>
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
  u32 r;
  if (TYPE == BF16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

__device__ __forceinline__ u32 permute(u32 a, u32 b, u32 selector) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}

// 16 rows × 16 features times 16 features × 8 vectors.
template <int TYPE>
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if (TYPE == BF16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 rows × 32 features times 32 features × 8 vectors; the weights' codes are 0..255, the activations −127..127.
__device__ __forceinline__ void multiply_codes(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_steps(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
