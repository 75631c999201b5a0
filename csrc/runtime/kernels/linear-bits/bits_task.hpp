// What products of bits are asked for: one block of rows, some vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

constexpr int kBitRows = 64;     // of a block of weights
constexpr int kBitVectors = 16;  // of activations, at most, that meet a block one after the other

// Signs are bits: 1 is negative. A second plane, where there is one, says which numbers are not zero.
struct BitsTask {
  const uint64_t* signs;     // of the activations
  const uint64_t* used;      // those that are not zero; null: all
  ptrdiff_t vector_words;    // from one vector to the next
  int vectors;               // at most kBitVectors
  const uint64_t* weights;   // [word][signs, and perhaps used][kBitRows]
  bool zeros;                // whether the weights have a plane of those that are not zero
  int words;                 // of one vector
  const int32_t* start;      // what the sum of each row begins with
  int32_t* sums;             // [vector][kBitRows]: start + products that are 1 - products that are -1, see bit_sums
};

// One row of an image → all channels of a pixel as neighbouring bits.
struct BitPixelsTask {
  const float* row;  // of channel 0
  size_t channel_stride;
  int channels, width;
  Quant levels;  // three whole numbers at most; scale 0: signs
  int pixel_bytes;
  uint8_t *signs, *used;
};

}  // namespace tersify
