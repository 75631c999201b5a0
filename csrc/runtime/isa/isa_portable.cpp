#define TERSIFY_NAMESPACE portable
#define TERSIFY_VECTOR_BYTES 16
#define TERSIFY_PATCH_LIMIT 8
#include "isa/all_kernels.hpp"

namespace tersify {
const Kernels& portable_kernels() { return portable::kKernels; }
}  // namespace tersify
