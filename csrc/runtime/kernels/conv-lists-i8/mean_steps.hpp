// Means over byte lanes are sums of whole steps, which have no order.
#pragma once

#include <vector>

#include "engine/epilogue.hpp"
#include "isa/kernel_types.hpp"

namespace tersify {

// For each channel how many steps 1 has, a power of two: the largest number that a row of so many weights and a residual
// can make has about 2^30. 0: the number is not finite.
std::vector<float> mean_steps(const Epilogue& epilogue, int rows, int row_weights, const Quant& residual);

}  // namespace tersify
