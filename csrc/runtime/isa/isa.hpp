// Which instruction set the kernels use: asked of the CPU once, or forced by name.
#pragma once

#include <string>
#include <vector>

#include "isa/kernel_table.hpp"

namespace tersify {

// Portable code has the vectors that every CPU of its kind has: SSE2, NEON, those of WebAssembly.
enum class Isa { Portable, Avx2, Avx512, Avx512Vnni, Avx512Fp16, Amx, DotProd, I8mm, NeonFp16, Rvv };

std::vector<Isa> available_isas();  // slowest first
std::string isa_name(Isa isa);
bool adds_fp16(Isa isa);  // by instructions of the CPU: all others round float sums
const Kernels& kernels_of(Isa isa);
PickSums pick_sums_of(Isa isa);          // null where bytes cannot be permuted
LookupSums lookup_sums_of(Isa isa);      // the same
bool multiplies_faster_than_it_looks_up();  // this CPU; codes of two bits then take less time than smaller ones
PairKernels pair_kernels_of(Isa isa);    // null where there are better ways
BitSums bit_sums_of(Isa isa);
Isa isa_named(const std::string& name);  // throws std::invalid_argument for one this CPU lacks

}  // namespace tersify
