// The matrix that a recurrent layer multiplies its state with: every weight, or where most are zero, the others.
#pragma once

#include <cstdint>
#include <vector>

#include "isa/kernel_table.hpp"

namespace tersify {

class StateMatrix {
 public:
  StateMatrix(const Kernels& kernels, const float* weight, int rows, int features);

  int rows() const { return rows_; }
  int features() const { return features_; }
  int padded_features() const { return (features_ + kPickedWindow - 1) / kPickedWindow * kPickedWindow; }
  // out = start + matrix · state; what the task says of the matrix is filled in. A state has padded_features() numbers.
  void multiply(const Kernels& kernels, StateTask task) const;
  double cost(int items) const;  // of one step of items that run together, in products
  const char* kernel_name() const { return dense_.empty() ? "recurrent, picked" : "recurrent, dense"; }
  size_t resident_bytes() const;

 private:
  void pick(const float* weight);
  void lay(const float* weight);

  int rows_, features_;
  std::vector<float> dense_, values_;
  std::vector<uint16_t> counts_;
  std::vector<uint8_t> indices_;
};

}  // namespace tersify
