// What a product by lookup is asked for: some parts of the rows, one vector.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

// Signs of four features of 64 rows, as positions in a table of sums.
constexpr int kLookupRows = 64;        // of a block
constexpr int kLookupBandBlocks = 4;   // that meet a table together
constexpr int kLookupRound = 8;        // groups of four features whose sums always fit bytes
constexpr int kLookupChunk = 32;       // groups whose tables exist at the same time
constexpr int kLookupPairBytes = 384;  // of the tables of two groups
constexpr int kLookupPage = 4096;
constexpr int kLookupTablesBytes =
    kLookupChunk / 2 * kLookupPairBytes + kLookupPage;  // of a chunk, wherever in a page they begin

struct LookupPart {      // rows that one thread may take
  const uint8_t* codes;  // [chunk][band][group][block][row], the last chunk and band may be smaller
  int blocks;
};

struct LookupTask {
  const LookupPart *first, *last;
  int groups;        // a multiple of kLookupRound
  const uint8_t* x;  // activations + kByteZero
  uint8_t* tables;   // room for kLookupTablesBytes
  uint16_t* words;   // room for a number a row, whole blocks
  int32_t* sums;     // of the blocks of all parts
};

}  // namespace tersify
