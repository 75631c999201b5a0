#include "kernels/gemv-trits-f32/gemv_weights.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace tersify {
namespace {

constexpr size_t kLevels = 16;

int weights_per_word(GemvKind kind) { return kind == GemvKind::Nibbles ? kNibblesPerWord : kTritsPerWord; }

int words_of(GemvKind kind, int features) {
  const int per_word = weights_per_word(kind);
  return (features + per_word - 1) / per_word;
}

// Three codes of five bits in each half of a word: a multiplication can then shift them, and shifts are scarce.
constexpr int code_shift(int k) { return 16 * (k / 3) + 5 * (k % 3); }

uint32_t trit_word(const float* weights, int begin, int features) {
  uint32_t word = 0;
  for (int k = 0; k < kTritsPerWord / 3; ++k) {
    int code = 0;
    for (int i = 2; i >= 0; --i) {
      const int at = begin + 3 * k + i;
      const float w = at < features ? weights[at] : 0.0f;
      code = code * 3 + 1 + (w > 0) - (w < 0);
    }
    word |= uint32_t(code) << code_shift(k);
  }
  return word;
}

}  // namespace

bool GemvWeights::possible(const Kernels& k, GemvKind kind, const std::vector<float>& table, bool zeros) {
  if (kind == GemvKind::Nibbles) return k.nibble_gemv && table.size() + zeros <= kLevels;
  return bool(k.trit_gemv);
}

GemvWeights::GemvWeights(const DenseWeight& w, GemvKind kind, const std::vector<float>& table)
    : kind_(kind), rows_(w.rows), features_(w.channels) {
  const int words = words_of(kind, features_);
  words_.grow(size_t(blocks()) * words * kGemvRows * sizeof(uint32_t));
  // Code 0 is zero, but for 16 levels that are none; beyond the last feature activations are zeros.
  const int first = table.size() < kLevels;
  std::copy(table.begin(), table.end(), levels_ + first);
  const std::vector<float> nothing(features_, 0.0f);  // rows beyond the last, up to a whole block
  for (int row = 0; row < blocks() * kGemvRows; ++row) {
    const float* weights = row < rows_ ? w.data + size_t(row) * features_ : nothing.data();
    for (int i = 0; i < words; ++i) {
      const size_t at = (size_t(row / kGemvRows) * words + i) * kGemvRows + row % kGemvRows;
      uint32_t word = 0;
      if (kind == GemvKind::Trits) {
        word = trit_word(weights, i * kTritsPerWord, features_);
      } else {
        for (int k = 0; k < kNibblesPerWord && i * kNibblesPerWord + k < features_; ++k) {
          const float value = weights[i * kNibblesPerWord + k];
          if (value == 0 && first) continue;
          const auto found = std::find(table.begin(), table.end(), value);
          if (found == table.end()) throw std::invalid_argument("a weight is missing from its table");
          word |= uint32_t(found - table.begin() + first) << (4 * k);
        }
      }
      reinterpret_cast<uint32_t*>(words_.data())[at] = word;
    }
  }
}

std::vector<float> GemvWeights::unpack() const {
  std::vector<float> dense(size_t(rows_) * features_);
  const int words = words_of(kind_, features_);
  const int per_word = weights_per_word(kind_);
  for (int row = 0; row < rows_; ++row)
    for (int f = 0; f < features_; ++f) {
      const size_t at = (size_t(row / kGemvRows) * words + f / per_word) * kGemvRows + row % kGemvRows;
      const int k = f % per_word;
      const uint32_t word = reinterpret_cast<const uint32_t*>(words_.data())[at];
      if (kind_ == GemvKind::Nibbles) {
        dense[size_t(row) * features_ + f] = levels_[word >> (4 * k) & 15];
        continue;
      }
      const int code = word >> code_shift(k / 3) & 31, position = k % 3;
      dense[size_t(row) * features_ + f] = float((position == 0 ? code : position == 1 ? code / 3 : code / 9) % 3 - 1);
    }
  return dense;
}

size_t GemvWeights::table_bytes() const {
  const size_t words = words_of(kind_, features_);
  if (kind_ == GemvKind::Trits) return words * (kTritsPerWord / 3) * 32 * sizeof(float);
  return words * kNibblesPerWord * sizeof(float);
}

void GemvWeights::make_tables(const Kernels& k, const float* x, char* tables) const {
  if (kind_ == GemvKind::Trits) {
    k.trit_tables(x, features_, reinterpret_cast<float*>(tables));
  } else {
    std::memcpy(tables, x, features_ * sizeof(float));
    std::memset(tables + features_ * sizeof(float), 0, table_bytes() - features_ * sizeof(float));
  }
}

void GemvWeights::multiply(const Kernels& k, GemvTask task) const {
  task.words = reinterpret_cast<const uint32_t*>(words_.data());
  task.levels = levels_;
  task.rows = rows_;
  task.features = features_;
  if (kind_ == GemvKind::Trits)
    k.trit_gemv(task);
  else
    k.nibble_gemv(task);
}

}  // namespace tersify
