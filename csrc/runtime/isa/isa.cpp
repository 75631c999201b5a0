#include "isa/isa.hpp"

#include <stdexcept>

#include "cpu/features.hpp"
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if (defined(__aarch64__) || defined(__riscv)) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace tersify {
namespace {

#if defined(__x86_64__) && defined(__linux__)
// Tiles and byte products in the CPU, tile state enabled and granted to this process, and right results.
bool has_amx() {
  static const bool found = [] {
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25, kTileState = 3u << 17, kOsSaves = 1u << 27;
    constexpr long kRequestState = 0x1023, kTileData = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsSaves)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & kInt8)) return false;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & kTileState) != kTileState || syscall(SYS_arch_prctl, kRequestState, kTileData) != 0) return false;
    return amx_keeps_its_promise();
  }();
  return found;
}
#elif defined(__x86_64__)
bool has_amx() { return false; }  // no way to ask for the tile state
#endif

#if defined(__aarch64__)
// As the kernel tells them: HWCAP_ASIMDDP, HWCAP2_I8MM and HWCAP_ASIMDHP, some of which old headers lack.
bool multiplies_signed_bytes() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) >> 20 & 1;
#else
  return false;
#endif
}

bool multiplies_mixed_bytes() {
#if defined(__linux__) && defined(AT_HWCAP2)
  return getauxval(AT_HWCAP2) >> 13 & 1;
#else
  return false;
#endif
}

const Kernels& neon_fp16_kernels() {
  static const Kernels kernels = [] {
    Kernels k = multiplies_mixed_bytes() ? i8mm_kernels() : dotprod_kernels();
#if defined(TERSIFY_FP16)
    add_neon_fp16(k);
#endif
    return k;
  }();
  return kernels;
}
#endif

#if defined(TERSIFY_RVV)
bool has_rvv() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) >> ('V' - 'A') & 1;
#else
  return false;
#endif
}
#endif

// What portable code is called where its vectors have a name of their own; the other name works, too.
constexpr const char* kPortable = "portable";
#if defined(__aarch64__)
constexpr const char* kBaseline = "neon";
#else
constexpr const char* kBaseline = kPortable;
#endif

bool has_fp16() {
#if defined(TERSIFY_FP16) && defined(__x86_64__)
  return cpu_features().avx512fp16;
#elif defined(TERSIFY_FP16) && defined(__linux__)
  return getauxval(AT_HWCAP) >> 10 & 1;
#else
  return false;
#endif
}

#if defined(__x86_64__)
bool multiplies_bytes(Isa isa) { return isa == Isa::Avx512Vnni || isa == Isa::Avx512Fp16 || isa == Isa::Amx; }

bool permutes_bytes(Isa isa) { return multiplies_bytes(isa) && cpu_features().avx512vbmi; }
#endif

}  // namespace

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::Portable};
#if defined(__x86_64__)
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx2 && cpu.fma) {
    isas.push_back(Isa::Avx2);
    if (cpu.avx512f && cpu.avx512bw && cpu.avx512dq && cpu.avx512vl) {
      isas.push_back(Isa::Avx512);
      if (cpu.avx512vnni) isas.push_back(Isa::Avx512Vnni);
      const bool multiplies_bytes = isas.back() == Isa::Avx512Vnni;
      if (multiplies_bytes && has_fp16()) isas.push_back(Isa::Avx512Fp16);
      if (multiplies_bytes && has_amx()) isas.push_back(Isa::Amx);
    }
  }
#elif defined(__aarch64__)
  if (multiplies_signed_bytes()) {
    isas.push_back(Isa::DotProd);
    if (multiplies_mixed_bytes()) isas.push_back(Isa::I8mm);
    if (has_fp16()) isas.push_back(Isa::NeonFp16);
  }
#elif defined(TERSIFY_RVV)
  if (has_rvv()) isas.push_back(Isa::Rvv);
#endif
  return isas;
}

std::string isa_name(Isa isa) {
  switch (isa) {
    case Isa::Avx2:
      return "avx2";
    case Isa::Avx512:
      return "avx512";
    case Isa::Avx512Vnni:
      return "avx512vnni";
    case Isa::Avx512Fp16:
      return "avx512fp16";
    case Isa::Amx:
      return "amx";
    case Isa::DotProd:
      return "dotprod";
    case Isa::I8mm:
      return "i8mm";
    case Isa::NeonFp16:
      return "neonfp16";
    case Isa::Rvv:
      return "rvv";
    default:
      return kBaseline;
  }
}

bool adds_fp16(Isa isa) {
  return isa == Isa::Avx512Fp16 || isa == Isa::NeonFp16 || (isa == Isa::Amx && has_fp16());
}

const Kernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
#if defined(TERSIFY_FP16)
  if (isa == Isa::Amx) return amx_kernels(adds_fp16(isa) ? fp16_kernels() : avx512_kernels());
  if (isa == Isa::Avx512Fp16) return fp16_kernels();
#else
  if (isa == Isa::Amx) return amx_kernels(avx512_kernels());
#endif
  if (isa == Isa::Avx512Vnni) return vnni_kernels();
  if (isa == Isa::Avx512) return avx512_kernels();
  if (isa == Isa::Avx2) return avx2_kernels();
#elif defined(__aarch64__)
  if (isa == Isa::NeonFp16) return neon_fp16_kernels();
  if (isa == Isa::I8mm) return i8mm_kernels();
  if (isa == Isa::DotProd) return dotprod_kernels();
#elif defined(TERSIFY_RVV)
  if (isa == Isa::Rvv) return rvv_kernels();
#endif
  (void)isa;
  return portable_kernels();
}

PickSums pick_sums_of(Isa isa) {
#if defined(__x86_64__)
  if (permutes_bytes(isa)) return vbmi_pick_sums;
#elif defined(__aarch64__)
  return isa == Isa::Portable ? neon_pick_sums : dotprod_pick_sums;
#else
  (void)isa;
#endif
  return nullptr;
}

LookupSums lookup_sums_of(Isa isa) {
#if defined(__x86_64__)
  if (permutes_bytes(isa)) return vbmi_lookup_sums;
#else
  (void)isa;
#endif
  return nullptr;
}

// Measured on Zen 5, which adds two vectors of byte products a cycle and reads 40 GB a second with one thread: products
// with two bits a weight take 15 ms where lookups of 1.6 take 26. On Zen 4, which does half of either, lookups win.
bool multiplies_faster_than_it_looks_up() {
#if defined(__x86_64__)
  constexpr unsigned kZen5 = 0x1a;
  return cpu_features().amd_family >= kZen5;
#else
  return false;
#endif
}

// Products of bytes take fewer instructions where the CPU has them.
PairKernels pair_kernels_of(Isa isa) {
#if defined(__aarch64__)
  if (isa == Isa::Portable) return neon_pair_kernels;
#else
  (void)isa;
#endif
  return {};
}

BitSums bit_sums_of(Isa isa) {
#if defined(__x86_64__)
  if (multiplies_bytes(isa) && cpu_features().avx512vpopcntdq) return vpopcnt_bit_sums;
#endif
  return kernels_of(isa).bit_sums;
}

Isa isa_named(const std::string& name) {
  if (name == kPortable) return Isa::Portable;
  std::string known;
  for (Isa isa : available_isas()) {
    if (isa_name(isa) == name) return isa;
    known += (known.empty() ? "" : ", ") + isa_name(isa);
  }
  throw std::invalid_argument("this CPU has no instruction set '" + name + "'; it has: " + known);
}

}  // namespace tersify
