// Signs of weights as planes of bits, for products with activations of two or three levels.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/byte_rows.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

// Where the features of a row, channel by channel, lie as bits of a window's pixels.
std::vector<int> bit_places(int channels, int taps, int pixel_bytes);

class BitMatrix {
 public:
  // Signs. `places`: the bit of each feature in a vector of `bits` of them; empty: they lie in order.
  BitMatrix(const ByteRows& weight, const std::vector<int>& places, int bits, int threads);

  int rows() const { return rows_; }
  int groups() const { return (rows_ + kBitRows - 1) / kBitRows; }
  int rows_of(int group) const;  // the last may have fewer
  int words() const { return words_; }
  bool zeros() const { return zeros_; }
  // What the sums of all rows, rounded up to whole groups, begin with; see bit_sums. `zeros_x`: some activations may be
  // zero. `middle`: what the activations' zero stands for.
  std::vector<int32_t> starts(bool zeros_x, int middle) const;
  BitsTask task(int group, const std::vector<int32_t>& starts) const;  // without activations and sums
  const char* kernel_name() const { return zeros_ ? "signs and zeros, bits" : "signs, bits"; }
  double cost(int vectors) const { return kPerWord * vectors * words_ * groups() * (zeros_ ? 2 : 1); }
  size_t resident_bytes() const { return planes_.size() + (nonzeros_.size() + sums_.size()) * sizeof(int32_t); }

 private:
  static constexpr double kPerWord = 16;  // vector operations of a group of rows
  void add_row(int row, const int8_t* signs, const std::vector<int>& places, int features);

  int rows_, words_;
  bool zeros_ = false;
  std::vector<int32_t> nonzeros_, sums_;  // of each row
  AlignedBytes planes_;
};

}  // namespace tersify
