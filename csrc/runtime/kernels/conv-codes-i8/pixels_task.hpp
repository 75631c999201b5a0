// What surrounds the products of a two-bit convolution: rows of an image become pixels, sums become outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

// One row of an image → pixels of 8-bit steps, all channels of one together.
struct PixelTask {
  const float* row;  // of channel 0
  size_t channel_stride;
  int channels, width;
  Quant quant;
  int zero;         // the byte of step 0
  int pixel_bytes;  // channels, rounded up to whole steps of four: what is left over is 0
  int8_t* bytes;
  int32_t* sums;  // of each pixel's bytes
};

// Sums of some positions and a block of rows → the flat output.
struct PositionsTask {
  const int32_t* sums;     // [position][kCodeRows]
  const int32_t* totals;   // of each position's activations
  const int32_t* offsets;  // of each row of the layer
  int first_row, rows, positions;
  float* out;             // of the first row and position; positions are neighbours
  const float* residual;  // the same position of the other summand; may be null
  size_t row_stride;
  EpilogueView epilogue;
};

}  // namespace tersify
