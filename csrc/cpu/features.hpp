#pragma once

#if defined(__x86_64__)
#include <cpuid.h>

namespace tersify {

// What the CPU has and the operating system saves. Compilers have builtins for it, which call into their own run-time
// library; the wheels' compiler has no such calls in its own.
struct CpuFeatures {
  bool sse41 = false, avx2 = false, fma = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512vnni = false, avx512vbmi = false, avx512vpopcntdq = false, avx512fp16 = false;
  unsigned amd_family = 0;  // of other makers: 0
};

inline CpuFeatures asked_cpu_features() {
  constexpr unsigned kWide = 0x6, kWider = 0xe6;  // the states of 256- and of 512-bit registers
  const auto bit = [](unsigned word, int at) { return (word >> at & 1u) != 0; };
  CpuFeatures found;
  unsigned a, b, c, d;
  constexpr unsigned kAmd[] = {0x68747541, 0x69746e65, 0x444d4163};  // "AuthenticAMD", as b, d and c hold it
  const bool amd = __get_cpuid(0, &a, &b, &c, &d) && b == kAmd[0] && d == kAmd[1] && c == kAmd[2];
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  if (amd) found.amd_family = (a >> 8 & 0xf) + (a >> 20 & 0xff);
  found.sse41 = bit(c, 19);
  const bool fma = bit(c, 12), saves = bit(c, 27);
  unsigned saved = 0, high;
  if (saves) asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if ((saved & kWide) != kWide || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.fma = fma;
  found.avx2 = bit(b, 5);
  if ((saved & kWider) != kWider) return found;
  found.avx512f = bit(b, 16);
  found.avx512dq = bit(b, 17);
  found.avx512bw = bit(b, 30);
  found.avx512vl = bit(b, 31);
  found.avx512vbmi = bit(c, 1);
  found.avx512vnni = bit(c, 11);
  found.avx512vpopcntdq = bit(c, 14);
  found.avx512fp16 = bit(d, 23);
  return found;
}

inline const CpuFeatures& cpu_features() {
  static const CpuFeatures found = asked_cpu_features();
  return found;
}

}  // namespace tersify
#endif
