// What recurrent layers ask of a kernel: the sums of one step, and what becomes of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersify {

constexpr int kStateRows = 64;  // rows of a block of a dense matrix
constexpr int kPickedRows = 16, kPickedWindow = 32;

// out = start + matrix · state, for all rows of some items.
struct StateTask {
  const float* state;  // zeros behind the last feature, up to a whole window
  const float* start;  // may be null: 0
  float* out;
  int items;
  size_t state_stride, start_stride, out_stride;  // from item to item
  int rows, features;
  const float* dense;      // [block of kStateRows][feature][kStateRows]; null: picked
  const uint16_t* counts;  // picked: entries of [block of kPickedRows][window of kPickedWindow]
  const uint8_t* indices;  // [entry][kPickedRows], in the window
  const float* values;     // the same
};

}  // namespace tersify
