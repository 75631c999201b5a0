// RISC-V with V, whose vectors have at least 128 bits.
#define TERSIFY_NAMESPACE rvv
#define TERSIFY_VECTOR_BYTES 16
#define TERSIFY_PATCH_LIMIT 16
#include "isa/all_kernels.hpp"

namespace tersify {
const Kernels& rvv_kernels() { return rvv::kKernels; }
}  // namespace tersify
