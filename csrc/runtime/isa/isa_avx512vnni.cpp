// AVX-512 with products of bytes: products with codes of its own, all else as AVX-512 has it.
#define TERSIFY_NAMESPACE vnni
#define TERSIFY_VECTOR_BYTES 64
#include "kernels/linear-2bit-i8/linear_2bit_i8.hpp"
#include "kernels/linear-8bit-i8/linear_8bit_i8.hpp"

namespace tersify {

const Kernels& vnni_kernels() {
  static const Kernels kernels = [] {
    Kernels k = avx512_kernels();
    k.code_sums = vnni::code_sums;
    k.byte_sums = vnni::byte_sums;
    k.unpack_nibbles = vnni::unpack_nibbles;
    return k;
  }();
  return kernels;
}

}  // namespace tersify
