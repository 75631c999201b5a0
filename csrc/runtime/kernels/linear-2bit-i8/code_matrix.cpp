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
    if (std::any_of(parts.begin(), parts.end(), [&](const Found& part) { return part.there[level + kTop]; }))
      found.push_back(level);
  return found;
}

}  // namespace

CodeMatrix::CodeMatrix(const ByteRows& weight, int threads, HugePages* shared)
    : rows_(weight.rows), steps_((weight.features + 3) / 4) {
  threads = threads_for(size_t(rows_) * weight.features, threads);
  std::vector<int> levels = levels_of(weight, threads);
  if (levels.front() >= -1 && levels.back() <= 1)
    levels = {std::begin(kTernary), std::end(kTernary)};
  else
    bits_ = levels.size() <= 16 ? 4 : 8;
  uint8_t codes_by_level[2 * kTop + 1] = {};
  for (size_t i = 0; i < levels.size(); ++i) {
    const auto byte = static_cast<uint8_t>(levels[i] + 128);
    if (bits_ == 4) levels_[i] = byte;
    codes_by_level[levels[i] + kTop] = bits_ == 8 ? byte : static_cast<uint8_t>(i);
  }
  codes_.grow(size_t(blocks()) * steps_ * step_bytes(), shared);
  const size_t step_words = step_bytes() / sizeof(uint32_t);
  auto* codes = reinterpret_cast<uint32_t*>(codes_.data());
  // Four features of a row are one word, whose bytes the rows of a lane share.
  auto add_row = [&](uint32_t* block, int row, const uint8_t* row_codes) {
    const int shift = bits_ == 8 ? 0 : row / kLanes * bits_, place = bits_ == 8 ? row : row % kLanes;
    for (int step = 0; step < steps_; ++step) {
      uint32_t four;
      std::memcpy(&four, row_codes + 4 * step, sizeof four);
      uint32_t& word = block[size_t(step) * step_words + place];
      word = shift == 0 ? four : word | four << shift;
    }
  };
  in_parts(blocks(), std::min(threads, blocks()), [&](int, size_t begin, size_t end) {
    // Any code will do beyond the last feature, where activations are zeros, and in rows beyond the last.
    std::vector<int8_t> bytes(size_t(steps_) * 4, 0);
    std::vector<uint8_t> row_codes(bytes.size());
    for (size_t number = begin; number < end; ++number)
      for (int row = 0; row < block_rows(); ++row) {
        const int from = int(number) * block_rows() + row;
        if (from < rows_) weight.read(from, bytes.data());
        for (size_t i = 0; i < bytes.size(); ++i)
          row_codes[i] = bits_ == 2 ? static_cast<uint8_t>(bytes[i] + 1) : codes_by_level[bytes[i] + kTop];
        add_row(codes + number * steps_ * step_words, row, row_codes.data());
      }
  });
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
