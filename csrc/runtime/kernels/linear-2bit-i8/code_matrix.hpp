// Whole numbers, zeros and all, in two, four or eight bits each, for products with 8-bit activations.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/byte_rows.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

constexpr int kCodeTasksPerThread = 4;    // more cost more to claim than a late thread does
constexpr double kCodePerWeight = 0.016;  // in vector operations
constexpr double kCodeRead = 0.008;       // the same for reading a weight, however many vectors meet it
constexpr int kUnpackFrom = 8;            // vectors from which it pays to unpack four bits to bytes before they come

class CodeMatrix {
 public:
  // Whole numbers of −127..127: −1, 0 and 1 take two bits, up to 16 others four. Activations beyond the last feature
  // must be zeros.
  CodeMatrix(const ByteRows& weight, int threads, HugePages* shared = nullptr);

  int rows() const { return rows_; }
  int groups() const { return (rows_ + kCodeRows - 1) / kCodeRows; }  // of kCodeRows rows
  int steps() const { return steps_; }                                // of four features
  int vector_bytes() const { return steps_ * 4; }                     // of activations, zeros behind the last
  int rows_of(int group) const;                                       // the last may have fewer
  int zero() const { return bits_ == 2 ? 1 : 128; }                   // what a weight 0 adds, times the activation
  // Where `vectors` of them meet every group one after the other, its four bits are unpacked into that much scratch.
  size_t unpacked_bytes(int vectors) const;
  void unpack(const Kernels& kernels, int group, char* scratch) const;
  // The sums of one group; `task` says all but the weights. `unpacked`: what `unpack` made of the group, or null.
  void multiply(const Kernels& kernels, CodesTask task, int group, const char* unpacked) const;
  const char* kernel_name() const;
  size_t resident_bytes() const { return codes_.size(); }

 private:
  int block_rows() const { return bits_ == 4 ? kCodeRows / 2 : kCodeRows; }
  int blocks() const { return (rows_ + block_rows() - 1) / block_rows(); }
  size_t step_bytes() const { return bits_ == 8 ? kCodeRows * 4 : kStepBytes; }
  const uint8_t* block(int number) const;

  int rows_, steps_, bits_ = 2;
  uint8_t levels_[16] = {};
  AlignedBytes codes_;
};

}  // namespace tersify
