// What a product with picked activations is asked for: one block of rows, one vector.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

constexpr int kPickRows = 16, kPickEntries = 4;       // of each row, in one step
constexpr int kPickStepBytes = 64, kPickWindow = 64;  // activations that one permutation reaches
constexpr int kPickMostSteps = 2;                     // that share a window
constexpr int kPickUnroll = 4;                        // windows

// Sums of chosen activations for one block of rows. Every step picks up to four activations of its window for each row.
// An entry has the activation's position in the window in the low six bits and its sign in the high two: 01 is +, 11 −,
// 00 none.
struct PickTask {
  int windows, steps;         // a multiple of kPickUnroll; of each window
  const uint16_t* positions;  // where each window begins
  const uint8_t* entries;     // [window][step][row][kPickEntries]
  const int32_t* zeros;       // what kByteZero, which every activation has too much, adds to each row
  const uint8_t* x;           // a window may begin at the last one
  int32_t* sums;              // [kPickRows]
};

}  // namespace tersify
