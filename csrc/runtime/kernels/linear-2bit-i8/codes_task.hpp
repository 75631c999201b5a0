// What a product with codes of two or four bits is asked for: one block of rows, some vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

constexpr int kCodeRows = 64;         // rows of a block of two-bit codes: four a byte; of four-bit ones half as many
constexpr int kStepBytes = 64;        // of a block's codes for four features
constexpr int kCodeVectors = 16;      // of activations, at most, that meet a block in one call
constexpr int kLeastTileVectors = 6;  // fewer leave the tiles of AMX mostly empty

// Codes of one block of rows times 8-bit activations. Codes lie as [step of 4 features][16 lanes][4 features]; the
// fields of a byte are the rows lane, 16 + lane, 32 + lane and 48 + lane. All steps of a run, then the next run.
struct CodesTask {
  const uint8_t* codes;
  const uint8_t* levels;   // null: a code is a trit + 1; else 16 levels + 128
  int rows;                // of the block; fields without rows are left out
  const int8_t* x;         // the first vector; 64 bytes behind the last run may be read
  ptrdiff_t vector_bytes;  // from one vector to the next
  int vectors;             // at most kCodeVectors
  const int32_t* runs;     // where each run of features begins, in bytes from the vector's start
  int run_count, run_steps;
  int32_t* sums;  // [vector][kCodeRows]
};

}  // namespace tersify
