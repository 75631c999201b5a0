// What a product by lookup of pairs is asked for: one block of rows, one vector.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

// Two signs are a code of four bits, four of a row a byte: what they make of two activations is found by one lookup in
// a vector of 16 bytes, which every NEON has. Code 3 (a + 1) + (b + 1) stands for the signs a and b.
constexpr int kPairRows = 64;             // of a block
constexpr int kPairRoundFeatures = 16;    // whose sums fit bytes, whatever the activations
constexpr int kPairRoundTableBytes = 256;  // two tables of 16 bytes a pair

struct PairsTask {
  const uint8_t* codes;   // [round][group of four features][kPairRows]: the first pair in the lower bits
  const uint8_t* tables;  // [round][pair][lower four bits of a sum, the rest][16]
  int rounds;
  int32_t* sums;  // [kPairRows]
};

// Null where the instruction set has other ways that are better.
struct PairKernels {
  void (*tables)(const int8_t* x, int rounds, uint8_t* tables) = nullptr;
  void (*sums)(const PairsTask&) = nullptr;
};

}  // namespace tersify
