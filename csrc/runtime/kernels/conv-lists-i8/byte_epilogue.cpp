#include "kernels/conv-lists-i8/byte_epilogue.hpp"

#include <algorithm>
#include <cmath>

namespace tersify {
namespace {

constexpr int kStepBits = 30, kLeastExponent = -90;
constexpr double kTopByte = 255, kMost = 1e30;

float byte_zero(const Quant& q) { return q.low < 0 ? kByteZero : 0; }

// a·sum + b + c·byte of the residual, counted in units of which 1 has so many.
struct Affine {
  float a, b, c;
};

Affine affine(const Epilogue& e, int row, const Quant& residual, float unit) {
  float a = e.scale.empty() ? 1.0f : e.scale[row], b = e.shift.empty() ? 0.0f : e.shift[row], c = 1.0f;
  if (!e.scale2.empty()) {
    c = e.scale2[row];
    a *= c;
    b = b * c + e.shift2[row];
  }
  c *= unit * residual.scale;
  return {a * unit, b * unit - c * byte_zero(residual), c};
}

// What the activation makes of numbers up to `largest`, up or down.
double activated(const Epilogue& e, double largest) {
  if (e.activation == Activation::Clamp) return std::max({largest, double(e.low), -double(e.high)});
  if (e.activation == Activation::Leaky) return largest * std::max(1.0, std::fabs(double(e.low)));
  return std::max(largest, 1.0);
}

}  // namespace

std::vector<ByteEpilogue> byte_epilogues(const Epilogue& e, int rows, const Quant& residual, const Quant& output) {
  const float zero = byte_zero(output), inverse = 1.0f / output.scale;
  const bool curved = e.activation != Activation::Clamp;
  std::vector<ByteEpilogue> made;
  for (int r = 0; r < rows; ++r) {
    const Affine f = affine(e, r, residual, curved ? 1.0f : inverse);
    ByteEpilogue n{.a = f.a, .b = f.b, .c = f.c, .low = output.low + zero, .high = output.high + zero};
    if (!curved) {  // the clamp and the rounding are one: everything is counted in steps of the output
      n.b += zero;
      n.low = std::max(n.low, e.low * inverse + zero);
      n.high = std::min(n.high, e.high * inverse + zero);
    }
    made.push_back(n);
  }
  return made;
}

std::vector<float> mean_steps(const Epilogue& e, int rows, int row_weights, const Quant& residual) {
  std::vector<float> steps;
  for (int r = 0; r < rows; ++r) {
    const auto [a, b, c] = affine(e, r, residual, 1.0f);
    const double sum = std::fabs(double(a)) * kTopByte * row_weights;
    const double largest = activated(e, sum + std::fabs(double(b)) + std::fabs(double(c)) * kTopByte);
    int exponent = 0;
    std::frexp(largest, &exponent);
    steps.push_back(largest <= kMost ? std::ldexp(1.0f, kStepBits - std::max(exponent, kLeastExponent)) : 0.0f);
  }
  return steps;
}

}  // namespace tersify
