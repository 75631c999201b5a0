#include "kernels/linear-rows-f32/row_matrix.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "threads/in_parts.hpp"

namespace tersify {
namespace {

constexpr size_t kNibbleLevels = 16, kByteLevels = 256;

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

}  // namespace

RowMatrix::RowMatrix(const float* weight, int rows, int features, std::vector<float> levels, int threads)
    : rows_(rows), features_(features), levels_(std::move(levels)) {
  threads = threads_for(size_t(rows) * features, threads);
  if (levels_.empty()) {
    form_ = fits_half(weight, size_t(rows) * features, threads) ? RowForm::Half : RowForm::Float;
  } else {
    if (std::find(levels_.begin(), levels_.end(), 0.0f) == levels_.end()) levels_.push_back(0.0f);
    std::sort(levels_.begin(), levels_.end());
    if (levels_.size() > kByteLevels)
      throw std::invalid_argument("a matrix of levels has at most 255 besides zero, got " +
                                  std::to_string(levels_.size() - 1));
    form_ = levels_.size() <= kNibbleLevels ? RowForm::Nibble : RowForm::Byte;
  }
  bytes_.grow(size_t(blocks()) * features_ * feature_bytes());
  in_parts(blocks(), std::min(threads, blocks()), [&](int, size_t begin, size_t end) {
    for (size_t block = begin; block < end; ++block) pack(weight, block);
  });
  if (!levels_.empty()) levels_.resize(form_ == RowForm::Nibble ? kNibbleLevels : kByteLevels, 0.0f);
}

size_t RowMatrix::feature_bytes() const {
  switch (form_) {
    case RowForm::Float:
      return kBlockRows * sizeof(float);
    case RowForm::Half:
      return kBlockRows * sizeof(uint16_t);
    case RowForm::Nibble:
      return kBlockRows / 2;
    default:
      return kBlockRows;
  }
}

void RowMatrix::pack(const float* weight, size_t block) {
  char* to = bytes_.data() + block * features_ * feature_bytes();
  std::memset(to, 0, features_ * feature_bytes());
  const int rows = std::min(kBlockRows, rows_ - int(block) * kBlockRows);
  for (int r = 0; r < rows; ++r) {
    const float* row = weight + (block * kBlockRows + r) * features_;
    for (int f = 0; f < features_; ++f) {
      if (!std::isfinite(row[f])) throw std::invalid_argument("a weight is not finite");
      char* at = to + f * feature_bytes();
      if (form_ == RowForm::Float) {
        std::memcpy(at + r * sizeof(float), row + f, sizeof(float));
        continue;
      }
      if (form_ == RowForm::Half) {
        const auto half = static_cast<uint16_t>(bits_of(row[f]) >> 16);
        std::memcpy(at + r * sizeof half, &half, sizeof half);
        continue;
      }
      const auto found = std::lower_bound(levels_.begin(), levels_.end(), row[f]);
      if (found == levels_.end() || *found != row[f]) throw std::invalid_argument("a weight is missing from its table");
      const int code = int(found - levels_.begin());
      if (form_ == RowForm::Byte)
        at[r] = static_cast<char>(code);
      else
        at[r % 16] = static_cast<char>(at[r % 16] | code << (r / 16 * 4));
    }
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
      const auto byte = static_cast<uint8_t>(at[form_ == RowForm::Byte ? r : r % 16]);
      out[f] = levels_[form_ == RowForm::Byte ? byte : byte >> (r / 16 * 4) & 15];
    }
  }
}

const char* RowMatrix::kernel_name() const {
  return form_ == RowForm::Float ? "floats" : form_ == RowForm::Half ? "half floats" : "levels";
}

}  // namespace tersify
