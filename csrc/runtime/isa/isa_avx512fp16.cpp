// AVX-512 that adds 16-bit floats, with products of bytes, too.
#define TERSIFY_NAMESPACE fp16
#define TERSIFY_VECTOR_BYTES 64
#define TERSIFY_PATCH_LIMIT 16
#include "isa/all_kernels.hpp"

namespace tersify {
const Kernels& fp16_kernels() { return fp16::kKernels; }
}  // namespace tersify
