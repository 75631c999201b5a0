// Weights of a convolution with rows in lanes: blocks of rows, number by number of the window.
#pragma once

#include <vector>

#include "kernels/conv-lists-f32/lane_weights.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

class PixelWeights {
 public:
  PixelWeights(const DenseWeight& weight, int lanes);  // one group

  int blocks() const { return (rows_ + block_rows() - 1) / block_rows(); }
  int first_row(int block) const { return block * block_rows(); }
  int rows_of(int block) const { return std::min(block_rows(), rows_ - first_row(block)); }
  const float* block(int block) const;
  std::vector<float> unpack() const;  // [rows][channels][taps]
  // Of the positions of one image, in vector operations.
  double cost(int positions) const;
  size_t resident_bytes() const { return bytes_.size(); }

 private:
  int block_rows() const { return kPixelVectors * lanes_; }
  size_t place(int row, int number) const;  // [block][number][rows of the block, whole vectors]
  int numbers() const { return channels_ * taps_; }

  int rows_, channels_, taps_, lanes_;
  AlignedBytes bytes_;
};

}  // namespace tersify
