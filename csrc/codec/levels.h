// Which few values an array holds: one pass with a small hash table, which ends as soon as there are too many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersify {

struct Levels {
  std::vector<uint64_t> patterns;   // the bits of each row's values in the order in which they appear, row after row
  std::vector<uint64_t> counts;     // how often each of them occurs
  std::vector<uint32_t> per_row;    // how many values each row has
};

// Writes one code per element: the place of its value among those of its row. False, with `found` half filled, where a
// row holds more than `limit` values. `width` is the bytes of an element: 1, 2, 4 or 8.
bool find_levels(const uint8_t* data, int width, size_t rows, size_t columns, size_t limit, uint8_t* codes, Levels& found);

// Exchanges each code by the entry of its row in `table`, 256 entries a row.
void relabel(uint8_t* codes, size_t rows, size_t columns, const uint8_t* table);

}  // namespace tersify
