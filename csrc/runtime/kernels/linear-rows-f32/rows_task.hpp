// Some vectors times one block of rows, as a kernel is told.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

constexpr int kBlockRows = 32;   // of weights that lie side by side
constexpr int kRowsVectors = 8;  // that meet a block together, at most

// How a weight lies: as a float, as its upper half where the lower is zero, as the number of a level, or as a whole
// number of −127..127.
enum class RowForm : uint8_t { Float, Half, Nibble, Byte, Whole };

struct RowsTask {
  const char* block;    // [feature][kBlockRows]; of nibbles rows r and r + 16 share byte r
  const float* levels;  // 16 of nibbles, 256 of bytes
  RowForm form;
  int features, vectors;
  const float* x;  // [vectors][features]
  int first_row, rows;
  float* out;  // row first_row of the first vector; the others lie `out_stride` numbers apart
  ptrdiff_t out_stride;
  EpilogueView epilogue;
};

}  // namespace tersify
