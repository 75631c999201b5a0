// NEON that adds 16-bit floats: lists in lanes of them. All else is what the instruction set without them has, so that
// its numbers stay the same.
#define TERSIFY_NAMESPACE neonfp16
#define TERSIFY_VECTOR_BYTES 16
#define TERSIFY_PATCH_LIMIT 16
#include "isa/all_kernels.hpp"

namespace tersify {

void add_neon_fp16(Kernels& kernels) {
  kernels.conv_lists_f16_scratch_bytes = neonfp16::kKernels.conv_lists_f16_scratch_bytes;
  kernels.conv_lists_f16 = neonfp16::kKernels.conv_lists_f16;
  kernels.to_lanes_f16 = neonfp16::kKernels.to_lanes_f16;
  kernels.from_lanes_f16 = neonfp16::kKernels.from_lanes_f16;
}

}  // namespace tersify
