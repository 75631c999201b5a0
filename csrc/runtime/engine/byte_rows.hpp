// The rows of a weight matrix as signed bytes, each made when it is asked for: packing reads floats once, in order.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "isa/kernel_table.hpp"

namespace tersify {

struct ByteRows {
  const Kernels* kernels;
  const float* weight;  // [rows][features]
  int rows, features;
  bool signs;  // only signs count; else the weights are whole numbers of −127..127

  // Throws for what is not finite, or not whole.
  void read(int row, int8_t* bytes) const {
    const float* from = weight + size_t(row) * features;
    if (signs ? kernels->sign_bytes(from, features, bytes) : kernels->whole_bytes(from, features, bytes)) return;
    for (int i = 0; i < features; ++i) {
      if (!std::isfinite(from[i])) throw std::invalid_argument("a weight is not finite");
      if (!(std::fabs(from[i]) <= 127) || from[i] != std::round(from[i]))
        throw std::invalid_argument("dense weights are whole numbers of -127..127, got " + std::to_string(from[i]));
    }
  }
};

}  // namespace tersify
