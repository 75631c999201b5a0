// Picked activations where the CPU adds four products of bytes at once.
#include "kernels/linear-picks-i8/linear_picks_i8_neon.hpp"

namespace tersify {
namespace {

struct DotSums {
  int32x4_t sums = vdupq_n_s32(0);

  void add(int8x16_t picked, int8x16_t entry) { sums = vdotq_s32(sums, picked, vandq_s8(entry, vdupq_n_s8(-64))); }
  int32x4_t all() const { return vshrq_n_s32(sums, 6); }  // a sign is ±64
};

}  // namespace

const PickSums dotprod_pick_sums = pick_sums<DotSums>;

}  // namespace tersify
