// Weights of few levels, packed for the product with one vector.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "isa/kernel_table.hpp"
#include "kernels/conv-lists-f32/list_weights.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

enum class GemvKind { Trits, Nibbles };

class GemvWeights {
 public:
  static constexpr size_t kLevels = 16;  // of a nibble

  GemvWeights(const Kernels& kernels, const DenseWeight& weight, GemvKind kind, const std::vector<float>& table,
              int threads);

  // Whether a kernel of this kind exists and can hold these weights. `zeros`: some weight is zero, which takes a code.
  static bool possible(const Kernels& kernels, GemvKind kind, const std::vector<float>& table, bool zeros);

  GemvKind kind() const { return kind_; }
  const char* kernel_name() const { return kind_ == GemvKind::Trits ? "looked-up signs" : "looked-up table"; }
  int rows() const { return rows_; }
  int features() const { return features_; }
  size_t nonzeros() const { return nonzeros_; }
  int blocks() const { return (rows_ + kGemvRows - 1) / kGemvRows; }
  size_t table_bytes() const;  // what one input vector becomes
  void make_tables(const Kernels& kernels, const float* x, char* tables) const;
  void multiply(const Kernels& kernels, GemvTask task) const;
  std::vector<float> unpack() const;  // the dense weights again
  size_t resident_bytes() const { return words_.size() + sizeof levels_; }

 private:
  GemvKind kind_;
  int rows_, features_;
  size_t nonzeros_ = 0;
  AlignedBytes words_;
  float levels_[kLevels] = {};
};

}  // namespace tersify
