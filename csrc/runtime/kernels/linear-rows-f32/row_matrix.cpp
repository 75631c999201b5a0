#include "kernels/linear-rows-f32/row_matrix.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "isa/kernel_table.hpp"
#include "threads/in_parts.hpp"

namespace tersify {
namespace {

constexpr size_t kNibbleLevels = 16, kByteLevels = 256;
constexpr int kNibbleRows = kBlockRows / 2;

uint32_t bits_of(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
}

// Whether the lower halves of all numbers are zero: they came from bfloat16, and half their bytes are enough.
bool fits_half(const float* weight, size_t count, int threads) {
  std::atomic<bool> fits{true};
  in_parts(count, threads, [&](int, size_t begin, size_t end) {
    for (size_t at = begin; at < end && fits; at += 4096) {
      uint32_t lower = 0;
      for (size_t i = at; i < std::min(end, at + 4096); ++i) lower |= bits_of(weight[i]) & 0xffff;
      if (lower) fits = false;
    }
  });
  return fits;
}

bool all_whole(const std::vector<float>& levels) {
  return std::all_of(levels.begin(), levels.end(), [](float v) { return std::fabs(v) <= 127 && v == std::round(v); });
}

// Every code as the byte that stands for it.
std::vector<uint8_t> bytes_by_code(const std::vector<float>& levels, RowForm form) {
  std::vector<uint8_t> bytes(kByteLevels, 0);
  for (size_t code = 0; code < levels.size(); ++code)
    bytes[code] = static_cast<uint8_t>(form == RowForm::Whole ? int(levels[code]) : int(code));
  return bytes;
}

}  // namespace

// Calls pack(block, where it lies, its first row, its rows) for every block; rows beyond the last are zeros.
template <class Pack>
void RowMatrix::pack_blocks(int threads, Pack pack) {
  const size_t block_bytes = features_ * feature_bytes();
  bytes_.grow(blocks() * block_bytes);
  in_parts(blocks(), std::min(threads_for(size_t(rows_) * features_, threads), blocks()),
           [&](int, size_t begin, size_t end) {
             for (size_t block = begin; block < end; ++block) {
               char* to = bytes_.data() + block * block_bytes;
               const int first = int(block) * kBlockRows;
               if (rows_ - first < kBlockRows) std::memset(to, 0, block_bytes);
               pack(to, first, std::min(kBlockRows, rows_ - first));
             }
           });
}

RowMatrix::RowMatrix(const float* weight, int rows, int features, int threads) : rows_(rows), features_(features) {
  if (!portable_kernels().all_finite(weight, size_t(rows) * features))
    throw std::invalid_argument("a weight is not finite");
  if (fits_half(weight, size_t(rows) * features, threads_for(size_t(rows) * features, threads))) form_ = RowForm::Half;
  pack_blocks(threads, [&](char* to, int first, int count) {
    const float* from = weight + size_t(first) * features_;
    if (form_ == RowForm::Float) {
      auto* at = reinterpret_cast<float*>(to);
      for (int f = 0; f < features_; ++f)
        for (int r = 0; r < count; ++r) at[f * kBlockRows + r] = from[size_t(r) * features_ + f];
      return;
    }
    auto* at = reinterpret_cast<uint16_t*>(to);
    for (int f = 0; f < features_; ++f)
      for (int r = 0; r < count; ++r)
        at[f * kBlockRows + r] = static_cast<uint16_t>(bits_of(from[size_t(r) * features_ + f]) >> 16);
  });
}

RowMatrix::RowMatrix(const uint8_t* codes, int rows, int features, std::vector<float> levels, int threads)
    : rows_(rows), features_(features), levels_(std::move(levels)) {
  if (levels_.empty() || levels_.size() > kByteLevels)
    throw std::invalid_argument("a matrix of levels has 1..256, got " + std::to_string(levels_.size()));
  if (!portable_kernels().all_finite(levels_.data(), levels_.size()))
    throw std::invalid_argument("a level is not finite");
  form_ = levels_.size() <= kNibbleLevels ? RowForm::Nibble : all_whole(levels_) ? RowForm::Whole : RowForm::Byte;
  const std::vector<uint8_t> bytes = bytes_by_code(levels_, form_);
  std::atomic<bool> outside{false};
  pack_blocks(threads, [&](char* to, int first, int count) {
    const uint8_t* from = codes + size_t(first) * features_;
    auto* at = reinterpret_cast<uint8_t*>(to);
    uint8_t most = 0;
    for (int f = 0; f < features_; ++f)
      for (int r = 0; r < count; ++r) {
        const uint8_t code = from[size_t(r) * features_ + f], byte = bytes[code];
        most = std::max(most, code);
        if (form_ != RowForm::Nibble)
          at[f * kBlockRows + r] = byte;
        else if (r < kNibbleRows)
          at[f * kNibbleRows + r] = byte;
        else
          at[f * kNibbleRows + r - kNibbleRows] |= static_cast<uint8_t>(byte << 4);
      }
    if (most >= levels_.size()) outside = true;
  });
  if (outside) throw std::invalid_argument("a code is outside its " + std::to_string(levels_.size()) + " levels");
  levels_.resize(form_ == RowForm::Nibble ? kNibbleLevels : kByteLevels, 0.0f);
}

size_t RowMatrix::feature_bytes() const {
  switch (form_) {
    case RowForm::Float:
      return kBlockRows * sizeof(float);
    case RowForm::Half:
      return kBlockRows * sizeof(uint16_t);
    case RowForm::Nibble:
      return kNibbleRows;
    default:
      return kBlockRows;
  }
}

RowsTask RowMatrix::task(int block) const {
  RowsTask t{};
  t.block = bytes_.data() + size_t(block) * features_ * feature_bytes();
  t.levels = levels_.data();
  t.form = form_;
  t.features = features_;
  t.first_row = block * kBlockRows;
  t.rows = std::min(kBlockRows, rows_ - block * kBlockRows);
  return t;
}

void RowMatrix::read(int64_t row, float* out) const {
  const char* at = bytes_.data() + size_t(row / kBlockRows) * features_ * feature_bytes();
  const int r = int(row % kBlockRows);
  for (int f = 0; f < features_; ++f, at += feature_bytes()) {
    if (form_ == RowForm::Float) {
      std::memcpy(out + f, at + r * sizeof(float), sizeof(float));
    } else if (form_ == RowForm::Half) {
      uint16_t half;
      std::memcpy(&half, at + r * sizeof half, sizeof half);
      const uint32_t bits = uint32_t(half) << 16;
      std::memcpy(out + f, &bits, sizeof bits);
    } else {
      const auto byte = static_cast<uint8_t>(at[form_ == RowForm::Nibble ? r % kNibbleRows : r]);
      out[f] = form_ == RowForm::Whole  ? float(static_cast<int8_t>(byte))
               : form_ == RowForm::Byte ? levels_[byte]
                                        : levels_[byte >> (r / kNibbleRows * 4) & 15];
    }
  }
}

const char* RowMatrix::kernel_name() const {
  return form_ == RowForm::Float ? "floats" : form_ == RowForm::Half ? "half floats" : form_ == RowForm::Whole ? "whole numbers" : "levels";
}

}  // namespace tersify
