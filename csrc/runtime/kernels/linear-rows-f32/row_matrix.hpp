// A matrix in blocks of 32 rows, feature by feature, for products with any number of float vectors.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/linear-rows-f32/rows_task.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

class RowMatrix {
 public:
  // The numbers as they are.
  RowMatrix(const float* weight, int rows, int features, int threads);
  // Numbers of levels. More than 16 levels that are whole numbers of −127..127 are kept as those.
  RowMatrix(const uint8_t* codes, int rows, int features, std::vector<float> levels, int threads);

  int rows() const { return rows_; }
  int features() const { return features_; }
  int blocks() const { return (rows_ + kBlockRows - 1) / kBlockRows; }
  RowsTask task(int block) const;            // without vectors, output and epilogue
  void read(int64_t row, float* out) const;  // one row of the weights, as an embedding wants it
  const char* kernel_name() const;
  size_t resident_bytes() const { return bytes_.size() + levels_.size() * sizeof(float); }

 private:
  size_t feature_bytes() const;
  template <class Pack>
  void pack_blocks(int threads, Pack pack);

  int rows_, features_;
  RowForm form_ = RowForm::Float;
  std::vector<float> levels_;
  AlignedBytes bytes_;
};

}  // namespace tersify
