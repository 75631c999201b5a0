// Pools of an image that lies pixel by pixel, as a kernel is told.
#pragma once

#include <cstdint>

namespace tersify {

struct PixelPoolTask {
  const float* input;     // an image
  const int32_t* starts;  // [tap][position]: where in the image the channels of its pixel begin; −1: outside it
  int taps, positions, channels;
  int first, last;  // of the positions that are wanted
  bool is_max;
  const float* reciprocals;  // of the numbers that are averaged, for each position
  float* output;             // an image
};

}  // namespace tersify
