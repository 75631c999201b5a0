// Ternary weights for products with 8-bit activations that are looked up: four signs of a row are one byte, the place of
// their sum in a table that is made of the activations.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "memory.hpp"

namespace tersify {

class LookupMatrix {
 public:
  static bool possible(int features) { return features <= kMostFeatures; }
  // `weight`, [rows][features], holds −1, 0 and 1.
  LookupMatrix(const float* weight, int rows, int features);

  int rows() const { return rows_; }
  int bands() const { return (blocks_ + kLookupBandBlocks - 1) / kLookupBandBlocks; }
  static constexpr int band_rows() { return kLookupBandBlocks * kLookupRows; }
  int vector_bytes() const { return 4 * groups_; }  // of activations
  LookupTask task(int first_band, int last_band) const;  // without activations, tables and sums
  static double cost(int rows, int features, int vectors);  // in vector operations
  static constexpr const char* kernel_name() { return "looked-up signs, int8"; }
  size_t resident_bytes() const { return codes_.size(); }

 private:
  static constexpr int kMostFeatures = 1 << 22;  // sums of more could overflow: 1023 for every four
  int rows_, blocks_, groups_;
  AlignedBytes codes_;  // [chunk][band][group][block][byte]
};

}  // namespace tersify
