// Some positions of an image times one block of rows, as a kernel is told. Images lie pixel by pixel: [y][x][channels].
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

constexpr int kPixelVectors = 2;  // of rows in a block, at most

struct PixelConvTask {
  const float* weights;   // [run][number of it][rows of the block]
  const float* input;     // an image
  const int32_t* starts;  // [run][position]: where in the image the numbers of a run begin; −1: outside it
  const float* zeros;     // as many as a run has numbers, for those
  int runs, length;       // a window is some runs of numbers
  int positions;          // of the image
  int first, last;        // of the positions that are wanted
  int first_row, rows;    // of the block; more than a vector has lanes: it holds two vectors
  int channels;           // of the output
  const float* residual;  // an image like the output, or null
  float* output;          // an image
  EpilogueView epilogue;
};

}  // namespace tersify
