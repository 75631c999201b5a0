// Sparse ternary weights for products with 8-bit activations: which activations a row adds, and with which sign.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/byte_rows.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

constexpr int kPickMostFeatures = 1 << 16;  // sums of more could overflow: 255 · 64 each

class PickMatrix {
 public:
  static bool possible(int features) { return features <= kPickMostFeatures; }
  PickMatrix(const ByteRows& weight, int threads);  // signs

  int rows() const { return rows_; }
  int blocks() const { return (rows_ + kPickRows - 1) / kPickRows; }
  size_t vector_bytes() const { return vector_bytes_; }  // of activations, and a window behind them
  PickTask task(int block) const;                        // without activations and sums
  double cost(int vectors) const;                        // in vector operations
  static constexpr const char* kernel_name() { return "picked signs, int8"; }
  size_t resident_bytes() const;

 private:
  int rows_, steps_;  // of a window
  size_t vector_bytes_;
  std::vector<size_t> first_window_;  // of every block, and the number of all
  std::vector<uint16_t> positions_;
  std::vector<int32_t> zeros_;
  AlignedBytes entries_;
};

}  // namespace tersify
