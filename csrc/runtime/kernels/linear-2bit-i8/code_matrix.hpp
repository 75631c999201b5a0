// Weights of few levels, zeros and all, in two or four bits each, for products with 8-bit activations.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/byte_rows.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

constexpr int kCodeTasksPerThread = 4;    // more cost more to claim than a late thread does
constexpr double kCodePerWeight = 0.016;  // in vector operations
constexpr double kCodeRead = 0.008;       // the same for reading a weight, however many vectors meet it

class CodeMatrix {
 public:
  // Whole numbers: −1, 0 and 1 take two bits, up to 16 of −127..127 four.
  CodeMatrix(const ByteRows& weight, int threads);

  int rows() const { return rows_; }
  int block_rows() const { return bits_ == 2 ? kCodeRows : kCodeRows / 2; }
  int blocks() const { return (rows_ + block_rows() - 1) / block_rows(); }
  int steps() const { return steps_; }             // of four features
  int vector_bytes() const { return steps_ * 4; }  // of activations, zeros behind the last
  const uint8_t* block(int number) const;
  const uint8_t* levels() const { return bits_ == 2 ? nullptr : levels_; }
  int rows_of(int block) const;                      // the last may have fewer
  int zero() const { return bits_ == 2 ? 1 : 128; }  // what a weight 0 adds, times the activation
  const char* kernel_name() const { return bits_ == 2 ? "dense signs, int8" : "dense table, int8"; }
  size_t resident_bytes() const { return codes_.size(); }

 private:
  int rows_, steps_, bits_ = 2;
  uint8_t levels_[16] = {};
  AlignedBytes codes_;
};

}  // namespace tersify
