// What a weight matrix is: signs with a scale a row, few levels, or any values.
#pragma once

#include <cstddef>
#include <vector>

#include "isa/kernel_types.hpp"

namespace tersify {

struct WeightClass {
  bool finite = true;
  ValueKind kind = ValueKind::Float;
  std::vector<float> row_scale;  // of signs: the magnitude of each row, 1 for a row of zeros
  std::vector<float> table;      // of few levels: those besides zero, in order
  size_t nonzeros = 0;
};

// One pass over the rows, shared by `threads`; a second one only where the rows are not signs, and it ends at the first
// value too many.
WeightClass classify(const float* weight, size_t rows, size_t columns, size_t max_levels, int threads);

}  // namespace tersify
