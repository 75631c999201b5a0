#include "kernels/linear-2bit-i8/code_matrix.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "threads/in_parts.hpp"

namespace tersify {
namespace {

constexpr int kLanes = 16, kTop = 127;
constexpr int kTernary[] = {-1, 0, 1};

std::vector<int> levels_of(const ByteRows& weight, int threads) {
  if (weight.signs) return {std::begin(kTernary), std::end(kTernary)};
  struct Found {
    bool there[2 * kTop + 1] = {};
  };
  std::vector<Found> parts(threads);
  in_parts(weight.rows, threads, [&](int part, size_t begin, size_t end) {
    std::vector<int8_t> bytes(weight.features);
    for (size_t row = begin; row < end; ++row) {
      weight.read(int(row), bytes.data());
      for (int8_t level : bytes) parts[part].there[level + kTop] = true;
    }
  });
  std::vector<int> found;
  for (int level = -kTop; level <= kTop; ++level)
    if (level == 0 ||  // positions beyond the last feature are zeros
        std::any_of(parts.begin(), parts.end(), [&](const Found& part) { return part.there[level + kTop]; }))
      found.push_back(level);
  return found;
}

}  // namespace

CodeMatrix::CodeMatrix(const ByteRows& weight, int threads) : rows_(weight.rows), steps_((weight.features + 3) / 4) {
  threads = threads_for(size_t(rows_) * weight.features, threads);
  std::vector<int> levels = levels_of(weight, threads);
  if (levels.front() >= -1 && levels.back() <= 1)
    levels = {std::begin(kTernary), std::end(kTernary)};
  else
    bits_ = 4;
  if (levels.size() > 16)
    throw std::invalid_argument("dense weights have at most 16 levels, got " + std::to_string(levels.size()));
  uint8_t codes_by_level[2 * kTop + 1] = {};
  for (size_t i = 0; i < levels.size(); ++i) {
    levels_[i] = static_cast<uint8_t>(levels[i] + 128);
    codes_by_level[levels[i] + kTop] = static_cast<uint8_t>(i);
  }
  codes_.grow(size_t(blocks()) * steps_ * kStepBytes);
  auto* codes = reinterpret_cast<uint32_t*>(codes_.data());
  // Four features of a row are one word, whose bytes the rows of a lane share.
  auto add_row = [&](uint32_t* block, int row, const uint8_t* row_codes) {
    const int shift = row / kLanes * bits_, lane = row % kLanes;
    for (int step = 0; step < steps_; ++step) {
      uint32_t four;
      std::memcpy(&four, row_codes + 4 * step, sizeof four);
      uint32_t& word = block[size_t(step) * kLanes + lane];
      word = shift == 0 ? four : word | four << shift;
    }
  };
  in_parts(blocks(), std::min(threads, blocks()), [&](int, size_t begin, size_t end) {
    // Zeros stay beyond the last feature, and in rows beyond the last.
    std::vector<int8_t> bytes(size_t(steps_) * 4, 0);
    std::vector<uint8_t> row_codes(bytes.size());
    for (size_t number = begin; number < end; ++number)
      for (int row = 0; row < block_rows(); ++row) {
        if (row < rows_of(int(number)))
          weight.read(int(number) * block_rows() + row, bytes.data());
        else
          std::fill(bytes.begin(), bytes.end(), int8_t(0));
        for (size_t i = 0; i < bytes.size(); ++i)
          row_codes[i] = bits_ == 2 ? static_cast<uint8_t>(bytes[i] + 1) : codes_by_level[bytes[i] + kTop];
        add_row(codes + number * steps_ * kLanes, row, row_codes.data());
      }
  });
}

const uint8_t* CodeMatrix::block(int number) const {
  return reinterpret_cast<const uint8_t*>(codes_.data()) + size_t(number) * steps_ * kStepBytes;
}

int CodeMatrix::rows_of(int block) const { return std::min(block_rows(), rows_ - block * block_rows()); }

}  // namespace tersify
