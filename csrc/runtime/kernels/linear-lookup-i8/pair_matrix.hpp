// Ternary weights for products with 8-bit activations that are looked up by pairs: see pairs_task.hpp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/byte_rows.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

class PairMatrix {
 public:
  PairMatrix(const ByteRows& weight, int threads);  // signs

  int rows() const { return rows_; }
  int blocks() const { return (rows_ + kPairRows - 1) / kPairRows; }
  int rows_of(int block) const { return std::min(kPairRows, rows_ - block * kPairRows); }
  int rounds() const { return rounds_; }
  size_t vector_bytes() const { return size_t(rounds_) * kPairRoundFeatures; }  // of activations
  size_t tables_bytes() const { return size_t(rounds_) * kPairRoundTableBytes; }
  PairsTask task(int block) const;  // without tables and sums
  static constexpr const char* kernel_name() { return "looked-up pairs of signs, int8"; }
  size_t resident_bytes() const { return codes_.size(); }

 private:
  size_t block_bytes() const { return vector_bytes() / 4 * kPairRows; }

  int rows_, rounds_;
  AlignedBytes codes_;
};

}  // namespace tersify
