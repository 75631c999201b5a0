// The rows of a weight matrix as signed bytes, each made when it is asked for: packing reads floats once, in order.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa/kernel_table.hpp"

namespace tersify {

struct ByteRows {
  const Kernels* kernels;
  const float* weight;  // [rows][features]
  int rows, features;
  bool signs;  // only signs count; else the weights are whole numbers of −127..127
  const uint8_t* codes = nullptr;    // in place of `weight`: numbers of levels
  std::array<int8_t, 256> levels{};  // a code beyond the last is kNoLevel
  static constexpr int8_t kNoLevel = -128;

  // Throws for what is not finite, or not whole.
  void read(int row, int8_t* bytes) const {
    if (codes) return read_codes(codes + size_t(row) * features, bytes);
    const float* from = weight + size_t(row) * features;
    if (signs ? kernels->sign_bytes(from, features, bytes) : kernels->whole_bytes(from, features, bytes)) return;
    for (int i = 0; i < features; ++i) {
      if (!std::isfinite(from[i])) throw std::invalid_argument("a weight is not finite");
      if (!(std::fabs(from[i]) <= 127) || from[i] != std::round(from[i]))
        throw std::invalid_argument("dense weights are whole numbers of -127..127, got " + std::to_string(from[i]));
    }
  }

  void read_codes(const uint8_t* from, int8_t* bytes) const {
    bool outside = false;
    for (int i = 0; i < features; ++i) {
      bytes[i] = levels[from[i]];
      outside |= bytes[i] == kNoLevel;
    }
    if (outside) throw std::invalid_argument("a code is outside its levels");
  }
};

inline std::array<int8_t, 256> byte_levels(const std::vector<int>& levels) {
  std::array<int8_t, 256> bytes;
  bytes.fill(ByteRows::kNoLevel);
  if (levels.empty() || levels.size() > bytes.size())
    throw std::invalid_argument("codes have 1..256 levels, got " + std::to_string(levels.size()));
  for (size_t code = 0; code < levels.size(); ++code) {
    if (levels[code] < -127 || levels[code] > 127)
      throw std::invalid_argument("levels are whole numbers of -127..127, got " + std::to_string(levels[code]));
    bytes[code] = static_cast<int8_t>(levels[code]);
  }
  return bytes;
}

}  // namespace tersify
