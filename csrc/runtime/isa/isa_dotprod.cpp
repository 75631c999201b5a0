// NEON with products of signed bytes: products with codes of its own, all else as portable code has it.
#define TERSIFY_NAMESPACE dotprod
#define TERSIFY_VECTOR_BYTES 16
#include "kernels/linear-2bit-i8/linear_2bit_i8.hpp"
#include "kernels/linear-8bit-i8/linear_8bit_i8.hpp"

namespace tersify {

const Kernels& dotprod_kernels() {
  static const Kernels kernels = [] {
    Kernels k = portable_kernels();
    k.code_sums = dotprod::code_sums;
    k.byte_sums = dotprod::byte_sums;
    k.unpack_nibbles = dotprod::unpack_nibbles;
    return k;
  }();
  return kernels;
}

}  // namespace tersify
