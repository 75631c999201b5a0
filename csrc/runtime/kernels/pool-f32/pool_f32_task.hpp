// What a pool is asked for: one patch of outputs, all channels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/conv-lists-f32/conv_lists_task.hpp"

namespace tersify {

struct PoolTask {
  PatchView patch;
  const char* input;
  size_t input_channel_bytes;
  const uint32_t* positions;  // tap → vectors from the footprint's start
  int taps, channels;
  bool is_max;
  const char* reciprocal;  // 1 / number of averaged positions, laid out like one channel of the output
  char* output;
  size_t output_channel_bytes, output_row_bytes;
  char* scratch;
};

}  // namespace tersify
