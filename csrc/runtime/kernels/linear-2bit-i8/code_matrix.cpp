#include "kernels/linear-2bit-i8/code_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace tersify {
namespace {

constexpr int kLanes = 16, kTop = 127;

std::vector<int> levels_of(const float* weight, size_t count) {
  bool there[2 * kTop + 1] = {};
  there[kTop] = true;  // positions beyond the last feature are zeros
  for (size_t i = 0; i < count; ++i) {
    if (!(std::abs(weight[i]) <= kTop) || weight[i] != std::round(weight[i]))
      throw std::invalid_argument("dense weights are whole numbers of -127..127, got " + std::to_string(weight[i]));
    there[int(weight[i]) + kTop] = true;
  }
  std::vector<int> found;
  for (int level = -kTop; level <= kTop; ++level)
    if (there[level + kTop]) found.push_back(level);
  return found;
}

}  // namespace

CodeMatrix::CodeMatrix(const float* weight, int rows, int features) : rows_(rows), steps_((features + 3) / 4) {
  std::vector<int> levels = levels_of(weight, size_t(rows) * features);
  if (levels.front() >= -1 && levels.back() <= 1)
    levels = {-1, 0, 1};
  else
    bits_ = 4;
  if (levels.size() > 16)
    throw std::invalid_argument("dense weights have at most 16 levels, got " + std::to_string(levels.size()));
  for (size_t i = 0; i < levels.size(); ++i) levels_[i] = static_cast<uint8_t>(levels[i] + 128);
  const size_t bytes = size_t(blocks()) * steps_ * kStepBytes;
  codes_.grow(bytes);
  auto* codes = reinterpret_cast<uint8_t*>(codes_.data());
  int codes_by_level[2 * kTop + 1] = {};
  for (size_t i = 0; i < levels.size(); ++i) codes_by_level[levels[i] + kTop] = int(i);
  auto code_of = [&](float level) { return codes_by_level[int(level) + kTop]; };
  // A zero in every position: some are beyond the last row or feature.
  int zeros = 0;
  for (int shift = 0; shift < 8; shift += bits_) zeros |= code_of(0) << shift;
  std::memset(codes, zeros, bytes);
  for (int row = 0; row < rows; ++row) {
    uint8_t* block = codes + size_t(row / block_rows()) * steps_ * kStepBytes;
    const int shift = row % block_rows() / kLanes * bits_, lane = row % kLanes;
    for (int f = 0; f < features; ++f) {
      const int change = code_of(weight[size_t(row) * features + f]) - code_of(0);
      uint8_t& byte = block[size_t(f / 4) * kStepBytes + 4 * lane + f % 4];
      byte = static_cast<uint8_t>(byte + change * (1 << shift));
    }
  }
}

const uint8_t* CodeMatrix::block(int number) const {
  return reinterpret_cast<const uint8_t*>(codes_.data()) + size_t(number) * steps_ * kStepBytes;
}

int CodeMatrix::rows_of(int block) const { return std::min(block_rows(), rows_ - block * block_rows()); }

}  // namespace tersify
