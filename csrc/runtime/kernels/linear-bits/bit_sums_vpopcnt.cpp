// Sums of products of bits where the CPU counts the bits of whole vectors.
#define TERSIFY_NAMESPACE vpopcnt
#define TERSIFY_VECTOR_BYTES 64
#include "kernels/linear-bits/bit_sums.hpp"

namespace tersify {

const BitSums vpopcnt_bit_sums = vpopcnt::bit_sums;

}  // namespace tersify
