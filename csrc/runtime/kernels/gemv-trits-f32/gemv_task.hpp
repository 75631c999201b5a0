// What a product with one vector is asked for: some blocks of rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

constexpr int kGemvRows = 128;  // rows that share the reading of an activation
constexpr int kTritsPerWord = 18, kNibblesPerWord = 8;

struct GemvTask {
  const uint32_t* words;
  const float* tables;  // trits: 32 sums for each three activations; nibbles: the activations
  const float* levels;  // nibbles: 16 of them
  int rows, features;
  int block_begin, block_end;  // of kGemvRows rows
  float* out;
  EpilogueView epilogue;
};

}  // namespace tersify
