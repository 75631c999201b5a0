// What the epilogues of byte lanes need of each output channel, made once: a layer of small images has as many channels
// as positions.
#pragma once

#include <vector>

#include "engine/epilogue.hpp"
#include "kernels/conv-lists-f32/conv_lists_task.hpp"

namespace tersify {

std::vector<ByteEpilogue> byte_epilogues(const Epilogue& epilogue, int rows, const Quant& residual,
                                         const Quant& output);

// Means over byte lanes are sums of whole steps, which have no order. For each channel how many steps 1 has, a power of
// two: the largest number that a row of so many weights and a residual can make has about 2^30. 0: the number is not
// finite.
std::vector<float> mean_steps(const Epilogue& epilogue, int rows, int row_weights, const Quant& residual);

}  // namespace tersify
