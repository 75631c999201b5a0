#include "kernels/gemv-trits-f32/gemv_weights.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "engine/byte_rows.hpp"
#include "threads/in_parts.hpp"

namespace tersify {
namespace {

int weights_per_word(GemvKind kind) { return kind == GemvKind::Nibbles ? kNibblesPerWord : kTritsPerWord; }

int words_of(GemvKind kind, int features) {
  const int per_word = weights_per_word(kind);
  return (features + per_word - 1) / per_word;
}

// Three codes of five bits in each half of a word: a multiplication can then shift them, and shifts are scarce.
constexpr int code_shift(int k) { return 16 * (k / 3) + 5 * (k % 3); }

// Of 18 digits 0, 1, 2 and one byte more: three of them are the third byte of a product, where nothing overflows.
uint32_t trit_word(const uint8_t* digits) {
  uint32_t word = 0;
  for (int k = 0; k < kTritsPerWord / 3; ++k) {
    uint32_t three;
    std::memcpy(&three, digits + 3 * k, sizeof three);
    word |= (three * (1u << 16 | 3u << 8 | 9u) >> 16 & 0xff) << code_shift(k);
  }
  return word;
}

// Of eight codes, the first in the lowest bits.
uint32_t nibble_word(const uint8_t* codes) {
  uint32_t word = 0;
  for (int k = 0; k < kNibblesPerWord; ++k) word |= uint32_t(codes[k]) << (4 * k);
  return word;
}

// Rows as one byte a weight: the sign + 1, or the code of a level.
class CodeRows {
 public:
  CodeRows(const Kernels& kernels, const DenseWeight& w, GemvKind kind, const std::vector<float>& table)
      : weight_{&kernels, w.data, w.rows, w.channels, true}, kind_(kind), table_(table) {}

  uint8_t zero() const { return kind_ == GemvKind::Trits ? 1 : 0; }

  void read(int row, uint8_t* codes) const {
    if (kind_ == GemvKind::Trits) {
      weight_.read(row, reinterpret_cast<int8_t*>(codes));
      for (int i = 0; i < weight_.features; ++i) codes[i] = static_cast<uint8_t>(codes[i] + 1);
    } else if (!weight_.kernels->level_bytes(weight_.weight + size_t(row) * weight_.features, weight_.features,
                                             table_.data(), int(table_.size()), codes)) {
      throw std::invalid_argument("a weight is missing from its table");
    } else if (!has_zero()) {
      for (int i = 0; i < weight_.features; ++i) --codes[i];
    }
  }

  size_t zeros(const uint8_t* codes) const {
    return has_zero() ? size_t(std::count(codes, codes + weight_.features, zero())) : 0;
  }

 private:
  bool has_zero() const { return kind_ == GemvKind::Trits || table_.size() < GemvWeights::kLevels; }

  ByteRows weight_;
  GemvKind kind_;
  const std::vector<float>& table_;
};

}  // namespace

bool GemvWeights::possible(const Kernels& k, GemvKind kind, const std::vector<float>& table, bool zeros) {
  if (kind == GemvKind::Nibbles) return k.nibble_gemv && table.size() + zeros <= kLevels;
  return bool(k.trit_gemv);
}

GemvWeights::GemvWeights(const Kernels& kernels, const DenseWeight& w, GemvKind kind, const std::vector<float>& table,
                         int threads)
    : kind_(kind), rows_(w.rows), features_(w.channels) {
  const int words = words_of(kind, features_), per_word = weights_per_word(kind);
  words_.grow(size_t(blocks()) * words * kGemvRows * sizeof(uint32_t));
  // Code 0 is zero, but for 16 levels that are none; beyond the last feature activations are zeros.
  std::copy(table.begin(), table.end(), levels_ + (table.size() < kLevels));
  const CodeRows weight(kernels, w, kind, table);
  const int parts = std::min(blocks(), threads_for(size_t(rows_) * features_, threads));
  std::vector<size_t> zeros(parts, 0);
  in_parts(blocks(), parts, [&](int part, size_t begin, size_t end) {
    std::vector<uint8_t> codes(size_t(words) * per_word + 1, weight.zero());
    for (int row = int(begin) * kGemvRows; row < int(end) * kGemvRows; ++row) {
      if (row < rows_) {
        weight.read(row, codes.data());
        zeros[part] += weight.zeros(codes.data());
      } else {
        std::fill(codes.begin(), codes.end(), weight.zero());
      }
      uint32_t* to =
          reinterpret_cast<uint32_t*>(words_.data()) + size_t(row / kGemvRows) * words * kGemvRows + row % kGemvRows;
      for (int i = 0; i < words; ++i)
        to[size_t(i) * kGemvRows] = kind == GemvKind::Trits ? trit_word(codes.data() + i * kTritsPerWord)
                                                            : nibble_word(codes.data() + i * kNibblesPerWord);
    }
  });
  nonzeros_ = size_t(rows_) * features_ - std::accumulate(zeros.begin(), zeros.end(), size_t(0));
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
