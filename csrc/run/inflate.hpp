// What zlib packed (RFC 1950 and 1951), and numbers as it writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersify::run {

using Bytes = std::vector<uint8_t>;

struct Damaged {};

// At most `limit` bytes; throws Damaged, also where their sum is not the one that stands behind them.
Bytes inflated(const Bytes& packed, size_t limit);
uint32_t big(const uint8_t* four_bytes);  // the highest byte first

}  // namespace tersify::run
