#include "dense.hpp"

#include <algorithm>
#include <cstring>

namespace tersify {

TernaryMatrix::TernaryMatrix(const float* weight, int rows, int features) : rows_(rows), steps_((features + 3) / 4) {
  const size_t bytes = size_t(blocks()) * steps_ * kDenseRows;
  codes_.grow(bytes);
  std::memset(codes_.data(), 0b01010101, bytes);  // a zero in every place: some are beyond the last row or feature
  auto* codes = reinterpret_cast<uint8_t*>(codes_.data());
  for (int row = 0; row < rows; ++row) {
    uint8_t* block = codes + size_t(row / kDenseRows) * steps_ * kDenseRows;
    const int field = row % kDenseRows / 16, lane = row % 16;
    for (int f = 0; f < features; ++f) {
      const float w = weight[size_t(row) * features + f];
      uint8_t& byte = block[size_t(f / 4) * kDenseRows + 4 * lane + f % 4];
      byte = static_cast<uint8_t>(byte + ((w > 0) - (w < 0)) * (1 << (2 * field)));
    }
  }
}

const uint8_t* TernaryMatrix::block(int number) const {
  return reinterpret_cast<const uint8_t*>(codes_.data()) + size_t(number) * steps_ * kDenseRows;
}

int TernaryMatrix::rows_of(int block) const { return std::min(kDenseRows, rows_ - block * kDenseRows); }

}  // namespace tersify
