#define TERSIFY_NAMESPACE avx512
#define TERSIFY_VECTOR_BYTES 64
#define TERSIFY_PATCH_LIMIT 16
#include "isa/all_kernels.hpp"

namespace tersify {
const Kernels& avx512_kernels() { return avx512::kKernels; }
}  // namespace tersify
