// Which rows go together, and their entries by what the two have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/conv-lists-f32/conv_lists_task.hpp"

namespace tersify {

constexpr int kPairWord = 4;  // entries

// The signs of one row in one block of input channels, as bits.
struct RowSigns {
  std::vector<uint64_t> plus, minus;
  int count = 0;

  explicit RowSigns(int indices);
  void set(int index, float value);
  uint64_t used(size_t word) const { return plus[word] | minus[word]; }
};

// A chunk of rows, block after block. Entries are indices × 2 + sign.
struct PackedPairs {
  std::vector<RowPair> pairs;
  std::vector<uint16_t> entries;
  std::vector<uint32_t> pair_counts;  // of each block
  size_t nonzeros = 0;
};

// Adds a block of the chunk's rows. `zero`: the entry of a number that is always zero.
void pack_pairs(const std::vector<RowSigns>& rows, uint16_t zero, PackedPairs& packed);

}  // namespace tersify
