#define TERSIFY_NAMESPACE avx2
#define TERSIFY_VECTOR_BYTES 32
#define TERSIFY_PATCH_LIMIT 8
#include "isa/all_kernels.hpp"

namespace tersify {
const Kernels& avx2_kernels() { return avx2::kKernels; }
}  // namespace tersify
