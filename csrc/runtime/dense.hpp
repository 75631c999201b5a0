// Ternary weights, zeros and all, in two bits each, for products with 8-bit activations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"

namespace tersify {

class TernaryMatrix {
 public:
  // Only the signs of `weight`, [rows][features], are kept.
  TernaryMatrix(const float* weight, int rows, int features);

  int rows() const { return rows_; }
  int blocks() const { return (rows_ + kDenseRows - 1) / kDenseRows; }
  int steps() const { return steps_; }                 // of four features
  int vector_bytes() const { return steps_ * 4; }      // of activations, zeros behind the last
  const uint8_t* block(int number) const;
  int rows_of(int block) const;                        // the last may have fewer than kDenseRows
  size_t resident_bytes() const { return codes_.size(); }

 private:
  int rows_, steps_;
  AlignedBytes codes_;
};

}  // namespace tersify
