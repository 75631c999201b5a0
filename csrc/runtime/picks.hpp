// Sparse ternary weights for products with 8-bit activations: which activations a row adds, and with which sign.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"

namespace tersify {

constexpr double kPickPerStep = 2.6, kPickRead = 2.0;  // measured, in vector operations: for each vector, and for reading

constexpr int kPickMostFeatures = 1 << 16;  // sums of more could overflow: 255 · 64 each

class PickMatrix {
 public:
  static bool possible(int features) { return features <= kPickMostFeatures; }
  // `weight`, [rows][features], holds −1, 0 and 1.
  PickMatrix(const float* weight, int rows, int features);

  int rows() const { return rows_; }
  int blocks() const { return (rows_ + kPickRows - 1) / kPickRows; }
  int rows_of(int block) const;                                                // the last may have fewer
  size_t vector_bytes() const { return size_t(windows_) * kPickWindow; }       // of activations
  PickTask task(int block) const;                                              // without activations and sums
  size_t steps() const { return steps_; }
  static constexpr const char* kernel_name() { return "picked signs, int8"; }
  size_t resident_bytes() const;

 private:
  struct Block {
    size_t entries, runs, windows;  // where they begin
    uint32_t run_count;
  };

  int rows_, features_, windows_;
  size_t steps_ = 0;
  std::vector<Block> blocks_;
  std::vector<PickRun> runs_;
  std::vector<uint16_t> order_;
  std::vector<int32_t> zeros_;
  AlignedBytes entries_;
};

}  // namespace tersify
