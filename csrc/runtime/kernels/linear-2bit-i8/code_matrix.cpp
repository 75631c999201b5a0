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
    bits_ = levels.size() <= 16 ? 4 : 8;
  if (bits_ == 4)
    for (size_t i = 0; i < levels.size(); ++i) levels_[i] = static_cast<uint8_t>(levels[i] + 128);
  const size_t bytes = size_t(blocks()) * steps_ * step_bytes();
  codes_.grow(bytes);
  auto* codes = reinterpret_cast<uint8_t*>(codes_.data());
  std::memset(codes, 0, bytes);  // whatever lies beyond the last row or feature: nobody reads it, or it meets a zero
  int codes_by_level[2 * kTop + 1] = {};
  for (size_t i = 0; i < levels.size(); ++i) codes_by_level[levels[i] + kTop] = bits_ == 8 ? levels[i] + 128 : int(i);
  for (int row = 0; row < rows; ++row) {
    uint8_t* block = codes + size_t(row / block_rows()) * steps_ * step_bytes();
    const int in_block = row % block_rows(), lane = row % kLanes;
    const int shift = bits_ == 8 ? 0 : in_block / kLanes * bits_;
    uint8_t* place = block + (bits_ == 8 ? 4 * in_block : 4 * lane);
    for (int f = 0; f < features; ++f)
      place[size_t(f / 4) * step_bytes() + f % 4] |=
          static_cast<uint8_t>(codes_by_level[int(weight[size_t(row) * features + f]) + kTop] << shift);
  }
}

const uint8_t* CodeMatrix::block(int number) const {
  return reinterpret_cast<const uint8_t*>(codes_.data()) + size_t(number) * steps_ * step_bytes();
}

int CodeMatrix::rows_of(int group) const { return std::min(kCodeRows, rows_ - group * kCodeRows); }

const char* CodeMatrix::kernel_name() const {
  return bits_ == 2 ? "dense signs, int8" : bits_ == 4 ? "dense table, int8" : "dense bytes, int8";
}

size_t CodeMatrix::unpacked_bytes(int vectors) const {
  return bits_ == 4 && vectors >= kUnpackFrom ? size_t(steps_) * kCodeRows * 4 : 0;
}

void CodeMatrix::unpack(const Kernels& k, int group, char* scratch) const {
  auto* bytes = reinterpret_cast<uint8_t*>(scratch);
  for (int half = 0; half < 2 && 2 * group + half < blocks(); ++half)
    k.unpack_nibbles(block(2 * group + half), levels_, steps_, bytes + half * 2 * kStepBytes);
}

void CodeMatrix::multiply(const Kernels& k, CodesTask task, int group, const char* unpacked) const {
  task.rows = rows_of(group);
  task.levels = nullptr;
  if (bits_ == 8 || unpacked) {
    task.codes = unpacked ? reinterpret_cast<const uint8_t*>(unpacked) : block(group);
    return k.byte_sums(task);
  }
  if (bits_ == 2) {
    task.codes = block(group);
    return k.code_sums(task);
  }
  task.levels = levels_;
  for (int half = 0, rows = task.rows; rows > 0; ++half, rows -= block_rows(), task.sums += block_rows()) {
    task.codes = block(2 * group + half);
    task.rows = std::min(rows, block_rows());
    k.code_sums(task);
  }
}

}  // namespace tersify
