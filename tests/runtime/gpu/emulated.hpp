// The CUDA kernels on a CPU, slowly: every thread of a block is a thread, warps and blocks meet at barriers.
// It takes the place of common.cuh; what tensor cores do follows the fragments that the PTX manual draws.

#include <barrier>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

typedef unsigned int u32;
typedef unsigned short u16;
#define S8 0
#define F16 1
#define BF16 2
#define F32 3
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define SHARED_OF_LAUNCH(type, name) type* name = reinterpret_cast<type*>(shared_of_launch.data())

struct Three { u32 x, y, z; };
struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct float4 { float x, y, z, w; };
static thread_local Three threadIdx;
static Three blockIdx;
static std::vector<unsigned char> shared_of_launch;

struct Warp {
  std::barrier<> meet{32};
  u32 words[32][16];
};
static std::unique_ptr<std::barrier<>> block_meets;
static std::vector<std::unique_ptr<Warp>> warps;

static Warp& my_warp() { return *warps[threadIdx.x / 32]; }
static int my_lane() { return threadIdx.x % 32; }

// Every lane gives `count` words; afterwards each can read all until the next exchange.
template <class Read>
static auto exchanged(const u32* mine, int count, Read read) {
  Warp& warp = my_warp();
  std::memcpy(warp.words[my_lane()], mine, count * 4);
  warp.meet.arrive_and_wait();
  auto made = read(warp.words);
  warp.meet.arrive_and_wait();
  return made;
}

static void __syncthreads() { block_meets->arrive_and_wait(); }
static u32 __shfl_sync(u32, u32 v, int lane) {
  return exchanged(&v, 1, [&](auto& all) { return all[lane][0]; });
}
static float __shfl_xor_sync(u32, float v, int distance) {
  const u32 bits = std::bit_cast<u32>(v);
  return std::bit_cast<float>(exchanged(&bits, 1, [&](auto& all) { return all[my_lane() ^ distance][0]; }));
}
static int __shfl_xor_sync(u32, int v, int distance) {
  const u32 bits = v;
  return int(exchanged(&bits, 1, [&](auto& all) { return all[my_lane() ^ distance][0]; }));
}
static u32 __reduce_max_sync(u32, u32 v) {
  return exchanged(&v, 1, [&](auto& all) {
    u32 top = 0;
    for (auto& words : all) top = std::max(top, words[0]);
    return top;
  });
}
static int __reduce_add_sync(u32, int v) {
  const u32 bits = v;
  return exchanged(&bits, 1, [&](auto& all) {
    u32 sum = 0;
    for (auto& words : all) sum += words[0];
    return int(sum);
  });
}

static u32 __float_as_uint(float v) { return std::bit_cast<u32>(v); }
static float __uint_as_float(u32 v) { return std::bit_cast<float>(v); }
static float __fdiv_rn(float a, float b) { return a / b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
static int __float2int_rn(float v) { return v == v ? int(std::nearbyint(std::fmin(std::fmax(v, -2e9f), 2e9f))) : 0; }
static int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += int(int8_t(u32(a) >> (8 * i))) * int8_t(u32(b) >> (8 * i));
  return c;
}
template <class T>
static T min(T a, T b) { return a < b ? a : b; }
template <class T>
static T max(T a, T b) { return a > b ? a : b; }

template <int TYPE>
static float as_float(u16 bits) {
  if (TYPE == BF16) return std::bit_cast<float>(u32(bits) << 16);
  return float(std::bit_cast<_Float16>(bits));
}
// From double, rounded once to the nearest, ties to even.
template <int TYPE>
static u16 rounded16(double v) {
  if (TYPE == F16) {  // a sum or product of two halves is exact in double
    int e;
    if (v == 0 || !std::isfinite(v)) return std::bit_cast<u16>(_Float16(float(v)));
    std::frexp(v, &e);
    const double unit = std::ldexp(1.0, std::max(e, -13) - 11);
    return std::bit_cast<u16>(_Float16(float(std::nearbyint(v / unit) * unit)));
  }
  if (v == 0 || !std::isfinite(v)) return std::bit_cast<u32>(float(v)) >> 16;
  int e;
  std::frexp(v, &e);
  const double unit = std::ldexp(1.0, e - 8);
  return std::bit_cast<u32>(float(std::nearbyint(v / unit) * unit)) >> 16;
}
template <int TYPE>
static void store(void* y, size_t i, float v) {
  if (TYPE == F32)
    static_cast<float*>(y)[i] = v;
  else
    static_cast<u16*>(y)[i] = rounded16<TYPE>(v);
}
template <int TYPE>
static float load(const void* x, size_t i) {
  return TYPE == F32 ? static_cast<const float*>(x)[i] : as_float<TYPE>(static_cast<const u16*>(x)[i]);
}
static uint4 stream(const uint4* p) { return *p; }
static uint2 stream(const uint2* p) { return *p; }
static void let_next_start() {}
static void wait_for_previous() {}
typedef unsigned long long Arrival;
static void bring(uint4* to, const uint4* from, int sixteens, int count, size_t stride, Arrival*) {
  if (my_lane()) return;
  for (int i = 0; i < count; ++i) std::memcpy(to + i * stride, from + i * stride, 16 * sixteens);
}
static void wait_for(Arrival*) { my_warp().meet.arrive_and_wait(); }
static u32 lop_and_or(u32 a, u32 mask, u32 c) { return (a & mask) | c; }
static u32 permute(u32 a, u32 b, u32 selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  u32 made = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 s = selector >> (4 * i) & 15;
    u32 byte = bytes >> (8 * (s & 7)) & 255;
    if (s & 8) byte = byte & 128 ? 255 : 0;
    made |= byte << (8 * i);
  }
  return made;
}
template <int TYPE>
static u32 fma2(u32 a, u32 b, u32 c) {
  u32 made = 0;
  for (int h = 0; h < 2; ++h) {
    auto of = [&](u32 v) { return double(as_float<TYPE>(u16(v >> (16 * h)))); };
    made |= u32(rounded16<TYPE>(of(a) * of(b) + of(c))) << (16 * h);
  }
  return made;
}

// c += A · B with elements of A and B read by `element(register, index in it)`.
template <int PER_WORD, class Sum, class A, class B>
static void fragments_multiplied(Sum (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, A of_a, B of_b) {
  const u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const int g = my_lane() / 4, t = my_lane() % 4;
  const auto made = exchanged(mine, 6, [&](auto& all) {
    std::vector<Sum> sums(4);
    for (int i = 0; i < 4; ++i) {
      const int half = i >> 1, column = 2 * t + (i & 1);  // row g + 8·half, this column
      double exact = 0;
      for (int q = 0; q < 4; ++q)       // the thread of the quad that owns the features
        for (int k2 = 0; k2 < 2; ++k2)  // the lower and the upper half of the features
          for (int e = 0; e < PER_WORD; ++e)
            exact += double(of_a(all[4 * g + q][half + 2 * k2], e)) * double(of_b(all[4 * column + q][4 + k2], e));
      sums[i] = Sum(exact);
    }
    return sums;
  });
  for (int i = 0; i < 4; ++i) c[i] += made[i];
}
template <int TYPE>
static void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  auto of = [](u32 word, int e) { return as_float<TYPE>(u16(word >> (16 * e))); };
  fragments_multiplied<2>(c, a, b0, b1, of, of);
}
static int signed_byte(u32 word, int e) { return int8_t(word >> (8 * e)); }
static void multiply_codes(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  fragments_multiplied<4>(c, a, b0, b1, [](u32 word, int e) { return int(word >> (8 * e) & 255); }, signed_byte);
}
static void multiply_steps(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  fragments_multiplied<4>(c, a, b0, b1, signed_byte, signed_byte);
}

template <class... A, size_t... I>
static void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel(*static_cast<std::decay_t<A>*>(args[I])...);
}

template <class... A>
static void emulate(void (*kernel)(A...), int blocks_x, int blocks_y, int threads, int shared_bytes, void** args) {
  for (int y = 0; y < blocks_y; ++y)
    for (int x = 0; x < blocks_x; ++x) {
      blockIdx = {u32(x), u32(y), 0};
      shared_of_launch.assign(shared_bytes + 16, 0xab);  // nothing is zero before it is written
      block_meets = std::make_unique<std::barrier<>>(threads);
      warps.clear();
      for (int w = 0; w < threads / 32; ++w) warps.push_back(std::make_unique<Warp>());
      std::vector<std::thread> running;
      for (int i = 0; i < threads; ++i)
        running.emplace_back([=] {
          threadIdx = {u32(i), 0, 0};
          call(kernel, args, std::index_sequence_for<A...>{});
        });
      for (std::thread& one : running) one.join();
    }
}
