// Picked activations on every CPU with NEON: products of 16 bits, added in pairs.
#include "kernels/linear-picks-i8/linear_picks_i8_neon.hpp"

namespace tersify {
namespace {

struct PairSums {
  int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0);  // of two rows each, in two parts

  void add(int8x16_t picked, int8x16_t entry) {
    const int8x16_t signs = vshrq_n_s8(entry, 6);
    low = vpadalq_s16(low, vmull_s8(vget_low_s8(picked), vget_low_s8(signs)));
    high = vpadalq_s16(high, vmull_high_s8(picked, signs));
  }
  int32x4_t all() const { return vpaddq_s32(low, high); }
};

}  // namespace

const PickSums neon_pick_sums = pick_sums<PairSums>;

}  // namespace tersify
