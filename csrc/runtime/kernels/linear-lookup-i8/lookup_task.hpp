// What a product by lookup is asked for: some parts of the rows, one vector.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

// Signs of 64 rows, four or five features a byte, as positions in a table of their sums. Four are looked up faster; five
// take a fifth less memory.
constexpr int kLookupRows = 64;       // of a block
constexpr int kLookupBandBlocks = 4;  // that meet a table together
constexpr int kLookupPage = 4096;

struct LookupForm {
  int signs;        // of a byte
  int round;        // groups of features, a byte each, whose sums always fit bytes
  int chunk;        // groups whose tables exist at the same time
  int group_bytes;  // of the tables of a group
  // Of a chunk, wherever in a page they begin.
  constexpr int tables_bytes() const { return chunk * group_bytes + kLookupPage; }
};
constexpr LookupForm kFourSigns{4, 8, 32, 192}, kFiveSigns{5, 6, 24, 512};

struct LookupPart {      // rows that one thread may take
  const uint8_t* codes;  // [chunk][band][group][block][row], the last chunk and band may be smaller
  int blocks;
};

struct LookupTask {
  const LookupForm* form;
  const LookupPart *first, *last;
  int groups;        // whole rounds
  const uint8_t* x;  // activations + kByteZero
  uint8_t* tables;   // room for those of a chunk
  uint16_t* words;   // room for a number a row, whole blocks
  int32_t* sums;     // of the blocks of all parts
};

}  // namespace tersify
