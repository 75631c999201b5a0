// AVX-512 with products of bytes: dense ternary kernels of its own, all else as AVX-512 has it.
#define TERSIFY_NAMESPACE vnni
#define TERSIFY_VECTOR_BYTES 64
#include "dense_impl.hpp"

namespace tersify {

const Kernels& vnni_kernels() {
  static const Kernels kernels = [] {
    Kernels k = avx512_kernels();
    k.dense_sums = vnni::dense_sums;
    return k;
  }();
  return kernels;
}

}  // namespace tersify
