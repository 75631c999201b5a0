// What attention is asked for: some queries of one head.
#pragma once

#include <cstddef>

namespace tersify {

struct AttentionTask {
  const float *q, *k, *v;
  ptrdiff_t q_stride, k_stride, v_stride, out_stride;  // from one token to the next
  int queries, keys, width, value_width;
  float scale;
  const float* mask;  // of the first query; null: all keys count
  ptrdiff_t mask_stride;
  bool added;   // the mask is added to the scores; else a key counts where it is not 0
  int visible;  // causal: how many keys the first query sees, each next one more; ≥ keys: all
  float* out;
  char* scratch;
};

}  // namespace tersify
