#include "kernels/conv-lists-i8/mean_steps.hpp"

#include <algorithm>
#include <cmath>

namespace tersify {
namespace {

constexpr int kStepBits = 30, kLeastExponent = -90;
constexpr double kTopByte = 255, kMost = 1e30;

// What the activation makes of numbers up to `largest`, up or down.
double activated(const Epilogue& e, double largest) {
  if (e.activation == Activation::Clamp) return std::max({largest, double(e.low), -double(e.high)});
  if (e.activation == Activation::Leaky) return largest * std::max(1.0, std::fabs(double(e.low)));
  return std::max(largest, 1.0);
}

}  // namespace

std::vector<float> mean_steps(const Epilogue& e, int rows, int row_weights, const Quant& residual) {
  const float zero = residual.low < 0 ? kByteZero : 0;
  std::vector<float> steps;
  for (int r = 0; r < rows; ++r) {
    float a = e.scale.empty() ? 1.0f : e.scale[r], b = e.shift.empty() ? 0.0f : e.shift[r], c = 1.0f;
    if (!e.scale2.empty()) {
      c = e.scale2[r];
      a *= c;
      b = b * c + e.shift2[r];
    }
    c *= residual.scale;
    b -= c * zero;
    const double sum = std::fabs(double(a)) * kTopByte * row_weights;
    const double largest = activated(e, sum + std::fabs(double(b)) + std::fabs(double(c)) * kTopByte);
    int exponent = 0;
    std::frexp(largest, &exponent);
    steps.push_back(largest <= kMost ? std::ldexp(1.0f, kStepBits - std::max(exponent, kLeastExponent)) : 0.0f);
  }
  return steps;
}

}  // namespace tersify
