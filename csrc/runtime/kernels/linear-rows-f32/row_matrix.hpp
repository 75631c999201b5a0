// A matrix in blocks of 32 rows, feature by feature, for products with any number of float vectors.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/linear-rows-f32/rows_task.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

class RowMatrix {
 public:
  // `levels` empty: the numbers as they are. Otherwise every weight is 0 or one of them.
  RowMatrix(const float* weight, int rows, int features, std::vector<float> levels, int threads);

  int rows() const { return rows_; }
  int features() const { return features_; }
  int blocks() const { return (rows_ + kBlockRows - 1) / kBlockRows; }
  RowsTask task(int block) const;           // without vectors, output and epilogue
  void read(int64_t row, float* out) const; // one row of the weights, as an embedding wants it
  const char* kernel_name() const;
  size_t resident_bytes() const { return bytes_.size() + levels_.size() * sizeof(float); }

 private:
  size_t feature_bytes() const;
  void pack(const float* weight, size_t block);

  int rows_, features_;
  RowForm form_ = RowForm::Float;
  std::vector<float> levels_;
  AlignedBytes bytes_;
};

}  // namespace tersify
